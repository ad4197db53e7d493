"""Continuation: follow a critical point while a parameter changes, through folds.

Pseudo-arclength: the point and the parameter move together along the curve of solutions of
`grad L(theta; p) = 0`, so that a fold (where the curve turns back in p) is nothing special.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown
from attnflow._precision import float64
from attnflow._tables import html_table
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params, Vector
from attnflow.linearise.newton import critical_point

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Special:
    """A point of a branch where its stability changes: a fold, or a bifurcation."""

    kind: str
    """`fold` or `branch point`."""
    parameter: float
    loss: float
    before: int
    after: int
    """Number of unstable modes on either side."""
    theta: Params


@dataclass(frozen=True)
class Branch:
    """A curve of critical points: parameter, loss and stability along it."""

    name: str
    parameter: Float[np.ndarray, "point"]
    loss: Float[np.ndarray, "point"]
    index: np.ndarray
    """Number of unstable modes at each point."""
    rate: Float[np.ndarray, "point"]
    """The largest rate at each point: negative where it is stable."""
    states: Float[np.ndarray, "point state"]
    special: tuple[Special, ...]
    complete: bool
    """Whether the curve reached the end of the range (or came back out of it)."""
    sentence: str
    layout: Any

    def theta(self, k: int) -> Params:
        return self.layout.numpy(self.states[k])

    @property
    def dataset(self) -> xr.Dataset:
        """The branch as xarray over `point`."""
        import xarray as xr

        return xr.Dataset(
            {
                self.name: ("point", self.parameter),
                "loss": ("point", self.loss),
                "index": ("point", self.index),
                "rate": ("point", self.rate),
                "state": (("point", "coordinate"), self.states),
            }
        )

    def __repr__(self) -> str:
        lines = [f"Branch in {self.name}: {len(self.parameter)} points. {self.sentence}"]
        lines += [
            f"  {s.kind:<12} {self.name} = {s.parameter:.8g}  loss {s.loss:.6g}  "
            f"unstable modes {s.before} -> {s.after}"
            for s in self.special
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            (s.kind, f"{s.parameter:.8g}", f"{s.loss:.6g}", f"{s.before} → {s.after}")
            for s in self.special
        ]
        return html_table(("point", self.name, "loss", "unstable"), rows, self.sentence)


@float64
def continue_branch(
    family: Callable[[Params, Any], Any],
    near: Params,
    start: float,
    stop: float,
    *,
    name: str = "parameter",
    step: float | None = None,
    max_points: int = 2000,
    tolerance: float = 1e-11,
) -> Branch:
    """Follow a critical point of `family(theta, p)` (a loss) from p = `start` towards `stop`.

    `near` is refined at `start` first. The curve is followed until the parameter leaves the
    interval, `max_points` are reached, or the corrector fails at the smallest step; which of
    them is said in `sentence`. Folds and changes of stability are located to `tolerance`.

    >>> branch = continue_branch(lambda th, b: th["x"]**4 / 4 - th["x"]**2 / 2 - b * th["x"],
    ...                          {"x": np.array(-1.0)}, -1.0, 1.0, name="b")
    >>> [round(s.parameter, 6) for s in branch.special]      # the cusp's two folds
    [0.3849, -0.3849]
    """
    if not (np.isfinite(start) and np.isfinite(stop) and start != stop):
        raise InputError("stop", f"{shown(stop)}; a finite value other than start = {start:g}")
    if step is not None and not step > 0:
        raise InputError("step", f"{step}; a positive arc length")
    flow = Flow(lambda theta: family(theta, start), name="branch")
    first = critical_point(flow, near, hold=False, tolerance=max(tolerance, 1e-13))
    system = flow.bind(near)
    if not first.converged:
        y = system.layout.flatten(near)
        return Branch(
            name,
            np.array([start]),
            np.array([first.loss]),
            np.array([-1]),
            np.array([np.nan]),
            y[None],
            (),
            False,
            f"no critical point near the given one: {first.sentence}",
            system.layout,
        )
    curve = _Curve(family, system.layout, tolerance)
    point = np.append(system.layout.flatten(first.theta), start)
    return _follow(curve, point, start, stop, name, step, max_points)


class _Curve:
    """grad L(y; p) = 0 in the joint space z = (y, p)."""

    def __init__(self, family: Any, layout: Any, tolerance: float):
        self.layout, self.tolerance = layout, tolerance

        def loss(z: Any) -> Any:
            return jnp.asarray(family(layout.unflatten(z[:-1]), z[-1]))

        def gradient(z: Any) -> Any:
            return jax.grad(loss)(z)[:-1]

        self._loss = jax.jit(loss)
        self._gradient = jax.jit(gradient)
        self._jacobian = jax.jit(jax.jacfwd(gradient))

    def loss(self, z: Vector) -> float:
        return float(self._loss(z))

    def rates(self, z: Vector) -> np.ndarray:
        """Rates of the flow at a point, largest first."""
        return -np.linalg.eigvalsh(np.asarray(self._jacobian(z))[:, :-1])

    def tangent(self, z: Vector, along: Vector) -> Vector:
        """The unit tangent of the curve that points along the given direction."""
        jacobian = np.asarray(self._jacobian(z))
        bordered = np.vstack([jacobian, along])
        wanted = np.zeros(len(z))
        wanted[-1] = 1.0
        t = np.linalg.lstsq(bordered, wanted, rcond=None)[0]
        return t / np.linalg.norm(t)

    def correct(self, guess: Vector, along: Vector) -> tuple[Vector, int] | None:
        """Newton in the plane through the guess across the tangent; None if it fails."""
        z = guess
        for iteration in range(12):
            residual = np.append(np.asarray(self._gradient(z)), along @ (z - guess))
            if np.linalg.norm(residual) <= self.tolerance:
                return z, iteration
            bordered = np.vstack([np.asarray(self._jacobian(z)), along])
            # Least squares: at a branch point the bordered matrix is singular.
            z = z - np.linalg.lstsq(bordered, residual, rcond=1e-13)[0]
            if not np.isfinite(z).all():
                return None
        return None


def _follow(
    curve: _Curve, z: Vector, start: float, stop: float, name: str, step: float | None, most: int
) -> Branch:
    towards = np.zeros(len(z))
    towards[-1] = np.sign(stop - start)
    t = curve.tangent(z, towards)
    longest = step if step is not None else abs(stop - start) / 50
    h = longest / 4
    points, rates = [z], [curve.rates(z)]
    special: list[Special] = []
    sentence, complete = f"{most} points, the limit", False
    low, high = min(start, stop), max(start, stop)
    while len(points) < most:
        corrected = curve.correct(z + h * t, t)
        if corrected is None:
            h /= 2
            if h < 1e-10 * longest:
                sentence = f"the corrector fails near {name} = {z[-1]:.6g}"
                break
            continue
        new, iterations = corrected
        new_t = curve.tangent(new, t)
        if new_t @ t < 0.9 and h > 1e-6 * longest:  # the curve turned too far in one step
            h /= 2
            continue
        new_rates = curve.rates(new)
        special += _between(curve, z, new, t, new_t, rates[-1], new_rates)
        z, t = new, new_t
        points.append(z)
        rates.append(new_rates)
        if iterations <= 3:
            h = min(1.5 * h, longest)
        if not low <= z[-1] <= high:
            side = stop if (z[-1] - start) * (stop - start) > 0 else start
            sentence, complete = f"left the interval at {name} = {side:g}", True
            break
    states = np.array(points)
    return Branch(
        name=name,
        parameter=states[:, -1],
        loss=np.array([curve.loss(p) for p in points]),
        index=np.array([_unstable(r) for r in rates]),
        rate=np.array([r[0] for r in rates]),
        states=states[:, :-1],
        special=tuple(special),
        complete=complete,
        sentence=sentence,
        layout=curve.layout,
    )


def _unstable(rates: np.ndarray) -> int:
    return int(np.sum(rates > 1e-9 * max(1.0, float(np.abs(rates).max()))))


def _between(
    curve: _Curve,
    a: Vector,
    b: Vector,
    ta: Vector,
    tb: Vector,
    before: np.ndarray,
    after: np.ndarray,
) -> list[Special]:
    """The special point between two neighbours, by bisection along the curve."""
    fold = np.sign(ta[-1]) != np.sign(tb[-1]) and ta[-1] != 0
    if not fold and _unstable(before) == _unstable(after):
        return []
    along = (b - a) / np.linalg.norm(b - a)
    low, high = 0.0, float(np.linalg.norm(b - a))
    count = _unstable(before)
    z = b
    for _ in range(60):
        middle = 0.5 * (low + high)
        corrected = curve.correct(a + middle * along, along)
        if corrected is None:
            break
        z = corrected[0]
        if fold:
            passed = np.sign(curve.tangent(z, along)[-1]) != np.sign(ta[-1])
        else:
            passed = _unstable(curve.rates(z)) != count
        low, high = (low, middle) if passed else (middle, high)
        if high - low < 1e-13 * max(1.0, abs(float(z[-1]))):
            break
    kind = "fold" if fold else "branch point"
    theta = curve.layout.numpy(z[:-1])
    return [Special(kind, float(z[-1]), curve.loss(z), count, _unstable(after), theta)]
