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

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.linearise.leaf import Equations
from attnflow.linearise.modes import DENSE, Spectrum, spectrum

BESIDE = 1e-4
"""How far beside its leaf, in squared norms, a critical point may lie when the leaf has none."""

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
    equations = Equations(system, base, hold)
    y, iterations, sentence = _solve(equations, y0, tolerance, max_iterations, PATIENCE)
    if sentence and hold:
        # A leaf of small but non-zero values may hold no critical point at all (the origin is
        # only on the leaf of zero); then the one beside it counts, if it is beside it.
        beside = Equations(system, base, False)
        z, more, failed = _solve(beside, y0, tolerance, max_iterations, PATIENCE // 2)
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
        loss=_loss(system, y),
        index=None if found is None else found.index(),
        nullity=found.nullity() if found is not None and found.complete else None,
        spectrum=found,
        conserved=equations.off(y),
        distance=float(np.linalg.norm(y - y0)),
        iterations=iterations,
        converged=converged,
        sentence=sentence,
    )


def _loss(system: System, y: Vector) -> float:
    return system.loss(y) if system.has_loss else float("nan")


def _solve(
    equations: Equations, y: Vector, tolerance: float, most: int, patience: int
) -> tuple[Vector, int, str]:
    """Levenberg-Marquardt along the leaf; the point, the iterations and why it failed (or '')."""
    y = equations.onto_leaf(y)
    velocity = equations.velocity(y)
    speed = float(np.linalg.norm(velocity))
    factor, iteration = 1.0, 0
    accepted = [speed]
    why = f"{most} iterations, the limit"
    while speed > tolerance:
        if iteration == most:
            break
        if len(accepted) > patience and speed > 0.5 * accepted[-1 - patience]:
            why = f"{patience} steps did not halve it"
            break
        iteration += 1
        # Damping by the squared speed: small steps far away, so that the nearest critical point
        # is found, and quadratic convergence at the end even where the Jacobian is singular.
        d = equations.step(y, velocity, max(factor * speed**2, 1e-28))
        trial = equations.onto_leaf(y + d)
        new = equations.velocity(trial)
        new_speed = float(np.linalg.norm(new))
        if np.isfinite(new_speed) and new_speed < speed:
            factor = max(factor / 4, 1e-3) if new_speed < 0.7 * speed else factor
            y, velocity, speed = trial, new, new_speed
            accepted.append(speed)
        else:
            factor *= 6
            if factor > 1e14:
                why = "no step slows it"
                break
    if speed <= tolerance:
        return y, iteration, ""
    sentence = f"stopped at speed {speed:.2e}, above the tolerance {tolerance:.0e} ({why})"
    return y, iteration, sentence
