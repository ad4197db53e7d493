"""The ODE engines behind one interface: start, one accepted step, interpolate inside that step.

SUNDIALS CVODE (variable-order BDF or Adams, Newton with matrix-free GMRES) is the default;
SciPy is the second opinion, and the engine where scikit-sundae has no wheel. The driver in
`integrate` owns everything else: outputs, marks, limits, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from attnflow._errors import InputError, nearest
from attnflow.flows.layout import Vector
from attnflow.flows.options import Solver, has_cvode
from attnflow.flows.switching import Field


@dataclass
class Work:
    """What a solve cost, counted in our own callbacks (engines leave out difference quotients)."""

    rhs: int = 0
    jvp: int = 0
    steps: int = 0
    restarts: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return dict(vars(self))


class Engine(Protocol):
    """One solver at work. `t` and `y` are the last accepted step's end."""

    name: str
    t: float
    y: Vector

    def start(self, t: float, y: Vector) -> None: ...

    def step(self, until: float) -> str | None:
        """Take one accepted step, not past `until`; returns a sentence if it cannot."""
        ...

    def interpolate(self, t: float) -> Vector:
        """The state at a time inside the last step."""
        ...


@dataclass(frozen=True)
class Choice:
    """Which engine, method and Jacobian a solve uses, and why."""

    engine: str
    method: str
    jacobian: str
    why: str = field(compare=False, default="")

    def as_dict(self) -> dict[str, str]:
        return dict(vars(self))


METHODS = {"cvode": ("bdf", "adams"), "scipy": ("lsoda", "radau", "bdf", "dop853", "rk45")}


def choose(field: Field, y: Vector, until: float, solver: Solver) -> Choice:
    """Fill in every `auto`.

    CVODE with BDF and difference quotients unless told otherwise: over saddle-to-saddle flows it
    needs the fewest evaluations, and a difference quotient costs one right-hand side where an
    exact product costs about two (measured in `benchmarks/engines.py`). Adams is taken when the
    whole solve spans only a few time constants of the start, where no stiffness can build up.
    """
    engine, method, jac = solver.engine, solver.method, solver.jacobian
    for name, value, known in (
        ("engine", engine, ("auto", *METHODS)),
        ("jacobian", jac, ("auto", "difference", "exact")),
    ):
        if not (isinstance(value, str) and value in known):
            raise InputError(name, f"{value!r} is not one; {nearest(str(value), known)}")
    why = []
    if engine == "auto":
        engine = "cvode" if has_cvode() else "scipy"
        if engine == "scipy":
            why.append("scikit-sundae has no wheel for this platform, so SciPy integrates")
    elif engine == "cvode" and not has_cvode():
        raise InputError(
            "engine", "'cvode' needs scikit-sundae, which is not installed; use 'auto' or 'scipy'"
        )
    if not (isinstance(method, str) and method in (known := ("auto", *METHODS[engine]))):
        raise InputError(
            "method", f"{method!r} is not one of {engine}'s; {nearest(str(method), known)}"
        )
    if method == "auto" and engine == "cvode":
        constants = until * spectral_radius(field, y)
        method = "adams" if constants < 20 else "bdf"
        why.append(
            f"the solve spans {constants:.3g} time constants of the start: "
            + ("short enough for Adams" if method == "adams" else "BDF, since stiffness may build")
        )
    elif method == "auto":
        method = "lsoda" if field.size <= Scipy.DENSE else "dop853"
        if method == "dop853":
            why.append(f"{field.size} parameters are too many for SciPy's dense Jacobian: explicit")
    # A small closed form runs in NumPy alone, and a sliding mode has no compiled Jacobian.
    plain = engine == "cvode" or field.gated or field.system.native
    if jac == "exact" and field.gated:
        raise InputError("jacobian", "'exact' on a flow with gates; 'difference' or 'auto'")
    if jac == "auto":
        jac = "difference" if plain else "exact"
    return Choice(engine, method, jac, "; ".join(why))


def build(choice: Choice, field: Field, work: Work, rtol: float, atol: float) -> Engine:
    """The engine of a choice."""
    if choice.engine == "cvode":
        return Cvode(field, work, choice, rtol, atol)
    return Scipy(field, work, choice, rtol, atol)


def spectral_radius(field: Field, y: Vector, products: int = 12) -> float:
    """The largest |eigenvalue| of the linearised flow at `y`, by power iteration (a fair guess)."""
    v = np.random.default_rng(0).standard_normal(field.size)
    out, base = np.empty_like(v), np.empty_like(v)
    field.rhs(y, base)
    # A difference quotient: an exact product would cost a compilation for one number.
    h = 1e-7 * max(1.0, float(np.linalg.norm(y)))
    for _ in range(products):
        v /= np.linalg.norm(v)
        field.rhs(y + h * v, out)
        v = (out - base) / h
        if not np.isfinite(radius := float(np.linalg.norm(v))) or radius == 0.0:
            return 0.0
    return radius


class _Counted:
    """Right-hand side and Jacobian product that count themselves."""

    HUGE: ClassVar[float] = 1e150
    """Stands for a non-finite velocity: finite, so that the error test rejects the step."""

    def __init__(self, field: Field, work: Work):
        self.field = field
        self.work = work

    def rhs(self, y: Vector, out: Vector) -> None:
        self.work.rhs += 1
        self.field.rhs(y, out)
        # A sum and not a dot product: BLAS would wake a thread for it at every evaluation.
        if not np.isfinite(out.sum()):
            np.nan_to_num(out, copy=False, nan=self.HUGE)
            np.clip(out, -self.HUGE, self.HUGE, out=out)

    def jvp(self, y: Vector, v: Vector, out: Vector) -> None:
        self.work.jvp += 1
        self.field.jvp(y, v, out)


class Cvode:
    """SUNDIALS CVODE through scikit-sundae."""

    t: float
    y: Vector
    _looked_back: bool

    def __init__(self, field: Field, work: Work, choice: Choice, rtol: float, atol: float | Vector):
        from sksundae.cvode import CVODE, CVODEJacTimes

        counted = _Counted(field, work)
        options: dict[str, Any] = {}
        if choice.jacobian == "exact":
            options["jactimes"] = CVODEJacTimes(
                None, lambda t, y, yp, v, out: counted.jvp(y, v, out)
            )
        self.name = f"cvode-{choice.method}"
        self._solver = CVODE(
            lambda t, y, out: counted.rhs(y, out),
            method={"bdf": "BDF", "adams": "Adams"}[choice.method],
            rtol=rtol,
            atol=atol,
            linsolver="gmres",
            krylov_dim=10,
            **options,
        )

    def start(self, t: float, y: Vector) -> None:
        self._solver.init_step(t, y)
        self.t, self.y, self._looked_back = t, np.array(y), False

    def step(self, until: float) -> str | None:
        before = self.t
        result = self._solver.step(until, method="onestep", tstop=until)
        if self._looked_back and result.success and result.t == before:
            # After an interpolation CVODE first hands back the end of the last step (unless the
            # interpolation was within rounding of it: then this was already the next step).
            result = self._solver.step(until, method="onestep", tstop=until)
        self._looked_back = False
        if not result.success:
            return f"CVODE at t = {self.t:.6g}: {result.message}"
        self.t, self.y = float(result.t), result.y
        if self.t == before:
            return f"CVODE at t = {self.t:.6g}: the step is below the resolution of time"
        return None

    def interpolate(self, t: float) -> Vector:
        if t == self.t:
            return self.y
        self._looked_back = True
        return self._solver.step(t, method="normal", tstop=None).y


class Scipy:
    """SciPy's `OdeSolver` classes, stepped by hand."""

    t: float
    y: Vector
    _solver: Any
    DENSE: ClassVar[int] = 1500
    """States up to this size get a dense Jacobian from SciPy's implicit methods."""

    def __init__(self, field: Field, work: Work, choice: Choice, rtol: float, atol: float | Vector):
        import scipy.integrate as ivp

        self._solver_class = {
            "lsoda": ivp.LSODA,
            "radau": ivp.Radau,
            "bdf": ivp.BDF,
            "dop853": ivp.DOP853,
            "rk45": ivp.RK45,
        }[choice.method]
        self.name = f"scipy-{choice.method}"
        self._counted = _Counted(field, work)
        self._options: dict[str, Any] = {"rtol": max(rtol, 1e-13), "atol": atol}
        implicit = choice.method in ("lsoda", "radau", "bdf")
        if implicit and field.size > self.DENSE:
            raise InputError(
                "method",
                f"{choice.method!r} needs a dense Jacobian, and {field.size} parameters are "
                f"more than {self.DENSE}; use engine='cvode' or method='dop853'",
            )
        if implicit and choice.jacobian == "exact":
            self._options["jac"] = self._jacobian

    def _rhs(self, t: float, y: Vector) -> Vector:
        out = np.empty_like(y)
        self._counted.rhs(y, out)
        return out

    def _jacobian(self, t: float, y: Vector) -> np.ndarray:
        self._counted.work.jvp += self._counted.field.size
        return self._counted.field.jacobian(y)

    def start(self, t: float, y: Vector) -> None:
        self.t, self.y, self._solver = t, np.array(y), None

    def step(self, until: float) -> str | None:
        if self._solver is None or self._solver.t_bound != until:
            self._solver = self._solver_class(self._rhs, self.t, self.y, until, **self._options)
        message = self._solver.step()
        if self._solver.status == "failed":
            return f"SciPy at t = {self.t:.6g}: {message or 'the step failed'}"
        self.t, self.y = float(self._solver.t), np.array(self._solver.y)
        return None

    def interpolate(self, t: float) -> Vector:
        return self.y if t == self.t else np.asarray(self._solver.dense_output()(t))
