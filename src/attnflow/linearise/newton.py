"""Critical points on the leaf of the conserved quantities.

Critical points of these flows come in continuous families: plain pseudo-inverse Newton drifts along
the family, and a rate measured where it ends belongs to another trajectory's saddle. The flow
cannot leave the leaf on which its conserved quantities keep their values, so the search does not
either: it solves `velocity = 0` and `C(theta) = C(near)` together, by Levenberg-Marquardt with the
damping tied to the residual, which converges quadratically to a set of solutions as well.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import lstsq

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.linearise.modes import DENSE, Spectrum, spectrum

LEAF_WEIGHT = 100.0
"""Rows that keep a step on the leaf weigh this much more than those that slow the flow."""


BESIDE = 1e-4
"""How far beside its leaf, in squared norms, a critical point may lie when the leaf has none."""


@dataclass(frozen=True)
class CriticalPoint:
    """Where a flow stands still, on the leaf of the point the search began from."""

    theta: Params
    speed: float
    """Norm of the velocity there (for unit rates: of the gradient)."""
    loss: float
    index: int | None
    """Number of unstable modes; None where the search did not converge."""
    nullity: int | None
    spectrum: Spectrum | None
    conserved: Mapping[str, float]
    """How far each conserved quantity is from its value at `near` (largest entry)."""
    distance: float
    """How far from `near` the point lies."""
    iterations: int
    converged: bool
    sentence: str

    def __repr__(self) -> str:
        if not self.converged:
            return f"CriticalPoint(not converged: {self.sentence})"
        rates = "" if self.spectrum is None else f", top rate {np.real(self.spectrum.rates[0]):.6g}"
        return (
            f"CriticalPoint(loss {self.loss:.8g}, speed {self.speed:.1e}, index {self.index}, "
            f"nullity {self.nullity}{rates}, {self.distance:.3g} away)"
        )

    def _repr_html_(self) -> str:
        facts = {
            "status": self.sentence,
            "loss": f"{self.loss:.10g}",
            "speed": f"{self.speed:.2e}",
            "index": self.index,
            "nullity": self.nullity,
            "held": ", ".join(f"{k} to {v:.1e}" for k, v in self.conserved.items()) or "nothing",
        }
        rows = "".join(
            f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in facts.items()
        )
        return f"<table>{rows}</table>" + (self.spectrum._repr_html_() if self.spectrum else "")


@float64
def critical_point(
    flow: FlowLike,
    near: Params,
    *,
    leaf: Params | None = None,
    hold: bool = True,
    tolerance: float = 1e-10,
    max_iterations: int = 60,
    top: int = 5,
) -> CriticalPoint:
    """The critical point nearest to `near` on its leaf.

    leaf
        Conserved quantities are held at their values here (default: at `near`). Give the start
        of a trajectory to refine a later point without its integration error.
    hold
        False searches without the conserved quantities; only for comparison.
    tolerance
        Norm of the velocity at which the search has converged.

    A search that does not converge is a status: `converged` is False and `sentence` says how far
    it came.
    """
    if not tolerance > 0:
        raise InputError("tolerance", f"{tolerance}; a positive number")
    system = flow.bind(near)
    y0 = system.layout.flatten(near)
    system.check(y0)
    base = y0 if leaf is None else system.layout.flatten(leaf)
    hold = hold and bool(flow.conserved)
    equations = _Equations(system, base, hold)
    y, iterations, sentence = _solve(equations, y0, tolerance, max_iterations)
    if sentence and hold:
        # A leaf of small but non-zero values may hold no critical point at all (the origin is
        # only on the leaf of zero); then the one beside it counts, if it is beside it.
        z, more, failed = _solve(_Equations(system, base, False), y0, tolerance, max_iterations)
        off = max(equations.off(z).values())
        if not failed and off <= BESIDE * max(1.0, float(z @ z)):
            y, iterations, sentence = z, iterations + more, ""
    velocity = equations.velocity(y)
    speed = float(np.linalg.norm(velocity))
    converged = sentence == ""
    theta = system.layout.numpy(y)
    found = None
    if converged:
        all_of_it = system.size <= DENSE
        found = spectrum(flow, theta, top=None if all_of_it else top)
        sentence = f"converged in {iterations} iterations to speed {speed:.1e}"
        off = max(equations.off(y).values(), default=0.0)
        if off > 1e-8:
            sentence += f"; beside its leaf by {off:.1e}, which holds no critical point nearby"
    return CriticalPoint(
        theta=theta,
        speed=speed,
        loss=system.loss(y) if system.has_loss else float("nan"),
        index=None if found is None else found.index(),
        nullity=found.nullity() if found is not None and found.complete else None,
        spectrum=found,
        conserved=equations.off(y),
        distance=float(np.linalg.norm(y - y0)),
        iterations=iterations,
        converged=converged,
        sentence=sentence,
    )


class _Equations:
    """The velocity, to be made zero, and C(y) - C(leaf), to be kept zero."""

    def __init__(self, system: System, leaf: Vector, hold: bool):
        self.system = system
        self._names = list(system.flow.conserved) if hold else []
        self._reference = system.conserved(leaf) if hold else {}
        self._velocity = _Map(system, "velocity", system.trace_velocity)
        self._held = _Map(system, "conserved", self._trace_held) if hold else None
        self._values = np.concatenate([np.ravel(self._reference[n]) for n in self._names] or [[]])

    def _trace_held(self, y: Any) -> Any:
        theta = self.system.layout.unflatten(y)
        conserved = self.system.flow.conserved
        return jnp.concatenate([jnp.ravel(jnp.asarray(conserved[n](theta))) for n in self._names])

    def velocity(self, y: Vector) -> np.ndarray:
        out = np.empty_like(y)
        self.system.rhs(y, out)
        return out

    def off(self, y: Vector) -> dict[str, float]:
        """How far each conserved quantity is from the leaf."""
        now = self.system.conserved(y) if self._names else {}
        return {n: float(np.abs(now[n] - self._reference[n]).max()) for n in self._names}

    def step(self, y: Vector, velocity: np.ndarray, damping: float) -> np.ndarray:
        """argmin |J d + v|^2 + damping |d|^2 along the leaf (heavily weighted rows)."""
        maps = [(self._velocity, 1.0, velocity)]
        if self._held is not None:
            maps.append((self._held, LEAF_WEIGHT, self._held(y) - self._values))
        return _least_squares(maps, y, damping)

    def onto_leaf(self, y: Vector) -> Vector:
        """The nearest point of the leaf, by Gauss-Newton steps of least norm."""
        for _ in range(4 if self._held is not None else 0):
            assert self._held is not None
            off = self._held(y) - self._values
            if np.abs(off).max(initial=0.0) <= 1e-13 * max(1.0, float(y @ y)):
                break
            y = y + _least_squares([(self._held, 1.0, off)], y, 1e-14)
        return y


class _Map:
    """A function of the flat vector with its Jacobian and products, compiled once per flow."""

    def __init__(self, system: System, name: str, function: Any):
        def once(what: str, made: Any) -> Any:
            return system.compiled(("newton", name, what), made)

        self._value = once("value", function)
        self._jacobian = once("jacobian", jax.jacfwd(function))
        self._push = once("push", lambda y, v: jax.jvp(function, (y,), (v,))[1])
        self._pull = once("pull", lambda y, u: jax.vjp(function, y)[1](u)[0])

    def __call__(self, y: Vector) -> np.ndarray:
        return np.asarray(self._value(y))

    def jacobian(self, y: Vector) -> np.ndarray:
        return np.asarray(self._jacobian(y))

    def push(self, y: Vector, v: np.ndarray) -> np.ndarray:
        return np.asarray(self._push(y, np.ravel(v)))

    def pull(self, y: Vector, u: np.ndarray) -> np.ndarray:
        return np.asarray(self._pull(y, np.ravel(u)))


def _least_squares(maps: list[tuple[_Map, float, np.ndarray]], y: Vector, damping: float) -> Any:
    """argmin sum_k w_k^2 |J_k d + r_k|^2 + damping |d|^2, dense or by LSMR on products."""
    n = len(y)
    target = -np.concatenate([w * r for _, w, r in maps])
    if n <= DENSE:
        rows = [w * m.jacobian(y) for m, w, _ in maps]
        stacked = np.vstack([*rows, np.sqrt(damping) * np.eye(n)])
        # Pivoted QR of the stacked rows: the normal equations would square the condition.
        wanted = np.concatenate([target, np.zeros(n)])
        found: Any = lstsq(stacked, wanted, cond=1e-14, lapack_driver="gelsy", check_finite=False)
        return found[0]
    from scipy.sparse import linalg

    sparse: Any = linalg

    sizes = np.cumsum([0, *[len(r) for _, _, r in maps]])

    def push(v: np.ndarray) -> np.ndarray:
        return np.concatenate([w * m.push(y, v) for m, w, _ in maps])

    def pull(u: np.ndarray) -> np.ndarray:
        u = np.ravel(u)
        parts = zip(maps, sizes[:-1], sizes[1:], strict=True)
        return np.sum([w * m.pull(y, u[a:b]) for (m, w, _), a, b in parts], axis=0)

    operator = sparse.LinearOperator((len(target), n), matvec=push, rmatvec=pull, dtype=np.float64)
    return sparse.lsmr(
        operator, target, damp=np.sqrt(damping), atol=1e-12, btol=1e-12, maxiter=500
    )[0]


def _solve(
    equations: _Equations, y: Vector, tolerance: float, most: int
) -> tuple[Vector, int, str]:
    """Levenberg-Marquardt along the leaf; the point, the iterations and why it failed (or '')."""
    y = equations.onto_leaf(y)
    velocity = equations.velocity(y)
    speed = float(np.linalg.norm(velocity))
    factor = 1.0
    for iteration in range(most):
        if speed <= tolerance:
            return y, iteration, ""
        # Damping by the squared speed: small steps far away, so that the nearest critical point
        # is found, and quadratic convergence at the end even where the Jacobian is singular.
        d = equations.step(y, velocity, max(factor * speed**2, 1e-28))
        trial = equations.onto_leaf(y + d)
        new = equations.velocity(trial)
        new_speed = float(np.linalg.norm(new))
        if np.isfinite(new_speed) and new_speed < speed:
            factor = max(factor / 4, 1e-3) if new_speed < 0.7 * speed else factor
            y, velocity, speed = trial, new, new_speed
        else:
            factor *= 6
            if factor > 1e14:
                break
    if speed <= tolerance:
        return y, most, ""
    return y, most, f"stopped at speed {speed:.2e}, above the tolerance {tolerance:.0e}"
