"""Critical points on the leaf of the conserved quantities.

Critical points of these flows come in continuous families: plain pseudo-inverse Newton drifts along
the family, and a rate measured where it ends belongs to another trajectory's saddle. The flow
cannot leave the leaf on which its conserved quantities keep their values, so the search does not
either: it solves `velocity = 0` and `C(theta) = C(near)` together, by Levenberg-Marquardt with the
damping tied to the residual, which converges quadratically to a set of solutions as well.

Nothing in the search has a scale of its own. A start of size 1e-6 is slow, and yet as far from its
saddle as one of size 1: to converge is to slow down by a factor, and steps are measured by how far
away the point may lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow._tables import html_table
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.users import flow_or_sentence
from attnflow.linearise.leaf import Equations
from attnflow.linearise.modes import DENSE, Spectrum, spectrum

BESIDE, BESIDE_AT_LARGE = 0.5, 0.01
"""When a leaf holds no critical point, one beside it counts if the leaf is at most this share of
`within` away from it; and at most this share of the state, where nothing is said about `within`."""

PATIENCE = 8
"""A search ends when its speed has not halved over this many accepted steps."""


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
        return html_table([], facts.items()) + (
            self.spectrum._repr_html_() if self.spectrum else ""
        )


@float64
def critical_point(
    flow: FlowLike,
    near: Params,
    *,
    leaf: Params | None = None,
    hold: bool = True,
    within: float | None = None,
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
    within
        How far from `near` the point may lie; one that is further away is refused.
    tolerance
        The search has converged when the speed has fallen to this share of that at `near`, or to
        what rounding leaves of it. One that gets no further counts from the square root of it
        on: a degenerate point is approached ever more slowly.

    A search that does not converge is a status: `converged` is False and `sentence` says how far
    it came.
    """
    flow_or_sentence(flow)
    for name, value in (("tolerance", tolerance), ("within", within)):
        if value is not None and not value > 0:
            raise InputError(name, f"{value}; a positive number")
    system = flow.bind(near)
    y0 = system.layout.flatten(near)
    system.check(y0)
    base = y0 if leaf is None else system.layout.flatten(leaf)
    hold = hold and bool(flow.conserved)
    equations = Equations(system, base, hold)
    speed, rounding = _speeds(equations, y0)
    least, enough = max(tolerance * speed, rounding), tolerance**0.5 * speed
    search = _Search(least, enough, max_iterations, _length(y0, within))
    y, iterations, sentence = search(equations, y0, PATIENCE)
    if sentence and hold:
        # A leaf of small but non-zero values may hold no critical point at all (the origin is
        # only on the leaf of zero); then the one beside it counts, if it is beside it.
        z, more, failed = search(Equations(system, base, False), y0, PATIENCE - 2)
        share = BESIDE_AT_LARGE if within is None else BESIDE
        if not failed and _beside(equations, z) <= share * _length(y0, within):
            y, iterations, sentence = z, iterations + more, ""
    speed = float(np.linalg.norm(equations.velocity(y)))
    distance = float(np.linalg.norm(y - y0))
    if not sentence and within is not None and distance > within:
        sentence = f"the nearest critical point is {distance:.3g} away, beyond {within:.3g}"
    converged = sentence == ""
    theta = system.layout.numpy(y)
    found = None
    if converged:
        all_of_it = system.size <= DENSE
        found = spectrum(flow, theta, top=None if all_of_it else top)
        sentence = f"converged in {iterations} iterations to speed {speed:.1e}"
        off = max(equations.off(y).values(), default=0.0)
        if off > 1e-8 * max(float(y @ y), float(base @ base)):
            sentence += f"; beside its leaf by {off:.1e}, which holds no critical point nearby"
    return CriticalPoint(
        theta=theta,
        speed=speed,
        loss=_loss(system, y),
        index=None if found is None else found.index(),
        nullity=found.nullity() if found is not None and found.complete else None,
        spectrum=found,
        conserved=equations.off(y),
        distance=distance,
        iterations=iterations,
        converged=converged,
        sentence=sentence,
    )


def _length(y: Vector, within: float | None) -> float:
    """How far steps go: `within`, or the size of the state where that is below 1."""
    return within or min(1.0, float(np.linalg.norm(y))) or 1.0


def _speeds(equations: Equations, y: Vector) -> tuple[float, float]:
    """The speed at `y`, and what rounding makes of a speed of zero there."""
    velocity = equations.velocity(y)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], len(y))
    moved = equations.velocity(y * (1 + 1e-10 * signs)) - velocity
    return float(np.linalg.norm(velocity)), 2e-14 / 1e-10 * float(np.linalg.norm(moved))


def _beside(equations: Equations, z: Vector) -> float:
    """How far the leaf is from `z`, in order of magnitude, for quadratic conserved quantities."""
    off = max(equations.off(z).values())
    return off / (float(np.linalg.norm(z)) + np.sqrt(off)) if off else 0.0


def _loss(system: System, y: Vector) -> float:
    return system.loss(y) if system.has_loss else float("nan")


@dataclass(frozen=True)
class _Search:
    """Levenberg-Marquardt along a leaf, in steps of at most half a length."""

    tolerance: float
    enough: float
    """A search that ends above its tolerance, but below this, has found its point."""
    most: int
    length: float

    def __call__(self, equations: Equations, y: Vector, patience: int) -> tuple[Vector, int, str]:
        """The point, the iterations and why it failed (or '')."""
        y = equations.onto_leaf(y)
        velocity = equations.velocity(y)
        speed = float(np.linalg.norm(velocity))
        factor, iteration = 1.0, 0
        accepted = [speed]
        why = f"{self.most} iterations, the limit"
        while speed > self.tolerance and iteration < self.most:
            if len(accepted) > patience and speed > 0.5 * accepted[-1 - patience]:
                why = f"{patience} steps did not halve it"
                break
            iteration += 1
            # Damping by the squared speed: no step is longer than half the length, so that the
            # nearest critical point is found, and convergence is quadratic at the end even where
            # the Jacobian is singular.
            d = equations.step(y, velocity, factor * (speed / self.length) ** 2)
            trial = equations.onto_leaf(y + d)
            new = equations.velocity(trial)
            new_speed = float(np.linalg.norm(new))
            if np.isfinite(new_speed) and new_speed < speed:
                factor = max(factor / 4, 1e-3) if new_speed < 0.7 * speed else factor
                y, velocity, speed = trial, new, new_speed
                accepted.append(speed)
            elif (factor := 6 * factor) > 1e14:
                why = "no step slows it"
                break
        if speed <= max(self.tolerance, self.enough):
            return y, iteration, ""
        limit = f"above the tolerance {self.tolerance:.0e}"
        return y, iteration, f"stopped at speed {speed:.2e}, {limit} ({why})"
