"""The saddle ledger: where a trajectory waited, which mode freed it, and when it had to leave.

The law of an escape is the one in force where the plateau is left, decided by the solver's own rows
(`escape`). The critical point says which mode it is and predicts its rate; it is the plateau's own
only if it lies within the plateau's extent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params
from attnflow.flows.solution import Solution
from attnflow.linearise.escape import Law, algebraic, exponential, predicted_leave
from attnflow.linearise.modes import Spectrum, spectrum
from attnflow.linearise.newton import CriticalPoint, critical_point
from attnflow.linearise.records import SaddleLedger, Wait, counted
from attnflow.linearise.rows import Escape, growth_rate, velocity, with_states
from attnflow.observe.stages import Plateau, plateaus

if TYPE_CHECKING:
    import xarray as xr

SAME = 0.02
"""Rates within this share of the top one belong to the same (multiple) eigenvalue."""

IN_TIME = 0.1
"""A law is said when it ends the plateau within this share of the wait."""

ACTS = 0.1
"""A mode that cannot grow by this e-fold during the whole plateau did not free the flow."""

MOST = 40
"""Of the search behind a plateau; one that was still getting slower then is not decided."""

WAITS = 1.0
"""A run that ends on a saddle waits there when its top mode could have grown by this e-fold."""


@float64
def saddle_ledger(
    source: Solution | Any, *, prominence: float = 0.15, rtol: float | None = None
) -> SaddleLedger:
    """Find the plateaus of a solve, refine each to a critical point on its leaf, and list them.

    `source` is a `Solution` of `integrate`, or anything with one as its `solution` (a run, a
    study). A solve that kept its states is read as it is; any other is solved again at `rtol`
    (default: the solve's own, at most 1e-8). A refinement that does not converge is listed with
    what is known.
    """
    solution = source if isinstance(source, Solution) else getattr(source, "solution", None)
    if not isinstance(solution, Solution) or solution.solver.get("engine") == "descent":
        raise InputError("source", "not a solved flow; give what integrate (or a run) returned")
    return trajectory_ledger(
        solution.flow,
        solution.start,
        solution.trajectory,
        final=solution.final,
        engine=solution.solver["engine"],
        prominence=prominence,
        rtol=min(solution.rtol, 1e-8) if rtol is None else rtol,
    )


@float64
def trajectory_ledger(
    flow: FlowLike,
    start: Params,
    trajectory: xr.Dataset,
    *,
    final: Params | None = None,
    engine: str = "auto",
    prominence: float = 0.15,
    rtol: float = 1e-8,
) -> SaddleLedger:
    """`saddle_ledger` of a trajectory with `loss` and `speed` that `flow` took from `start`.

    Whether it ends on a saddle is only told where `final` is given, the state at its end.
    """
    if not {"loss", "speed"} <= set(map(str, trajectory.data_vars)):
        raise InputError("source", "no loss was observed; a ledger needs a flow with a loss")
    found = _plateaus(trajectory, prominence, end=final is not None)
    last = found.pop() if found and found[-1].open else None
    data, system, missed = trajectory, flow.bind(start), ""
    if found:
        data, failed = with_states(
            flow, start, trajectory, _fastest(trajectory, found[-1]), rtol, engine
        )
        # Of the rows with their states: at a blow-up two solves may be apart by many times its
        # length.
        own = found if data is trajectory else _plateaus(data, prominence)
        if failed and len(own) < len(found):
            missed = f" {len(found) - len(own)} could not be solved again: {failed}"
        found = own
    first = int(not found or found[0].enter > data["time"].values[0])  # the start is number 0
    waits = [_wait(k, p, Escape.of(system, data, p), start) for k, p in enumerate(found, first)]
    if last is not None and final is not None:
        number = len(waits) + (first if waits else int(last.enter > 0))
        waits += _still(number, last, system, start, final, trajectory)
    if not waits:
        return SaddleLedger((), missed.strip() or "no separation: the flow never waits.")
    rows = [wait.as_dict() for wait in waits]
    return SaddleLedger(tuple(waits), f"{counted(rows)} to critical points.{missed}")


def _plateaus(data: xr.Dataset, prominence: float, end: bool = False) -> list[Plateau]:
    t, speed, loss = (data[n].values for n in ("time", "speed", "loss"))
    return plateaus(t, speed, loss, prominence=prominence, start=True, end=end)


def _fastest(data: xr.Dataset, plateau: Plateau) -> int:
    """The row of the fastest moment after a plateau."""
    t, speed = data["time"].values, data["speed"].values
    left = min(int(np.searchsorted(t, plateau.leave)), len(t) - 1)
    return left + int(np.nanargmax(speed[left:]))


def _still(
    number: int, plateau: Plateau, system: System, start: Params, final: Params, data: xr.Dataset
) -> list[Wait]:
    """The saddle on which a trajectory ends; nothing where it ends on none, as at a minimum."""
    t, speed = data["time"].values, data["speed"].values
    tail = t >= plateau.enter
    path = float(np.trapezoid(speed[tail], t[tail]))  # no state of the stretch is further away
    waited = float(t[-1] - plateau.enter)
    y = system.layout.flatten(final)
    v = velocity(system, y)
    growth = growth_rate(system, y, v)
    grows = growth * waited >= ACTS
    if grows:
        # A start may not have moved yet. Where s = k r^q, r is q s / (d log s / dt).
        path = max(path, 3 * float(np.linalg.norm(v)) / growth)
    if not path > 0 or not (grows or _may_leave(spectrum(system.flow, final), v, waited, path)):
        return []
    point = critical_point(system.flow, final, leaf=start, within=path, max_iterations=MOST)
    if point.spectrum is None:
        return []
    top = _top_rate(point.spectrum)
    if top * waited < WAITS and not grows:
        return []
    mode = "without an unstable mode" if top * waited < WAITS else f"its top rate is {top:.5g}"
    words = f"the run ends here: {mode}"
    return [Wait(number, plateau, "still waiting", point, path, sentence=words)]


def _may_leave(here: Spectrum, v: np.ndarray, waited: float, path: float) -> bool:
    """Whether a state may lie beside a saddle: something grows, and the point where the linearised
    flow stands still is near. Far cheaper than a search, which most runs do not need at their end.
    """
    acts = np.abs(here.rates) * waited >= ACTS
    away = (np.real(here.modes) @ v)[acts] / np.real(here.rates)[acts]
    return _top_rate(here) * waited >= WAITS and float(np.linalg.norm(away)) <= path


def _top_rate(found: Spectrum) -> float:
    return float(np.real(found.rates).max())


def _wait(number: int, plateau: Plateau, escape: Escape, start: Params) -> Wait:
    point = critical_point(
        escape.system.flow,
        escape.system.layout.numpy(escape.near),
        leaf=start,
        within=escape.extent or None,
        tolerance=1e-8,
        max_iterations=MOST,
    )
    undecided = not point.converged and point.iterations >= MOST
    modes = _Modes.of(point, escape)
    wait = Wait(
        number,
        plateau,
        "saddle" if point.converged else "unknown" if undecided else "bottleneck",
        point,
        escape.extent,
        modes.rates if modes is not None else (),
        modes.blocks if modes is not None else "",
    )
    if not point.converged:  # a law of escape is one of leaving a critical point
        return replace(wait, sentence=f"{point.sentence}; no law")
    seen = _laws(escape, modes)
    held = sorted((law for law in seen if law.holds), key=lambda law: law.residual)
    for law in held:
        found = replace(wait, leave_predicted=_leave(escape, law, modes))
        if abs(found.exit_ratio - 1) <= IN_TIME:
            return replace(found, law=law, sentence=law.sentence)
    if not held:
        tried = f" ({', '.join(law.tried for law in seen)})" if seen else ""
        return replace(wait, sentence=f"no law{tried}")
    late = replace(wait, leave_predicted=_leave(escape, held[0], modes))
    words = f"{held[0].tried}, but it would leave after {late.exit_ratio:.2f} of the wait"
    return replace(late, sentence=f"no law: {words}")


def _leave(escape: Escape, law: Law, modes: _Modes | None) -> float:
    """When a law ends the plateau: that of the point's own modes, or else as it was fitted."""
    if law.name == "exponential" and modes is not None:
        return modes.leave(escape, law.first)
    grown = math.log(escape.level / escape.speed[law.first])
    return float(escape.time[law.first]) + law.wait(grown)


def _laws(escape: Escape, modes: _Modes | None) -> list[Law]:
    """Both laws as fitted: the powers of the speed, and the exponential of the point's top mode."""
    found = [algebraic(np.log(escape.speed), escape.growth, escape.leave)]
    if modes is not None:
        found.append(exponential(*modes.growth(escape), escape.leave, modes.rates[0]))
    return [law for law in found if law is not None]


@dataclass(frozen=True)
class _Modes:
    """The unstable modes of a refined point that can act during its plateau."""

    theta: np.ndarray
    all_rates: np.ndarray
    modes: np.ndarray
    top: int
    """How many belong to the top rate."""
    blocks: str

    @classmethod
    def of(cls, point: CriticalPoint, escape: Escape) -> _Modes | None:
        spectrum = point.spectrum
        if spectrum is None:
            return None
        rates = np.real(spectrum.rates)
        waited = float(escape.time[escape.leave] - escape.time[0])
        acts = (rates > 1e-6 * spectrum.scale) & (rates * waited >= ACTS)
        if not acts.any():
            return None
        rates, modes = rates[acts], np.real(spectrum.modes)[acts]
        top = int(np.sum(rates >= rates[0] * (1 - SAME)))
        theta = escape.system.layout.flatten(point.theta)
        return cls(theta, rates, modes, top, _blocks(spectrum, np.flatnonzero(acts)[:top]))

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates without their multiplicities, at most four."""
        kept: list[float] = []
        for rate in self.all_rates:
            if not kept or rate < kept[-1] * (1 - SAME):
                kept.append(float(rate))
        return tuple(kept[:4])

    def growth(self, escape: Escape) -> tuple[np.ndarray, np.ndarray]:
        """The log of the amplitude of the top modes, and its growth rate, at every row."""
        amplitude = (escape.states - self.theta) @ self.modes[: self.top].T
        moving = escape.velocity @ self.modes[: self.top].T
        squares = np.maximum(np.sum(amplitude**2, axis=1), 1e-300)
        return 0.5 * np.log(squares), np.sum(amplitude * moving, axis=1) / squares

    def leave(self, escape: Escape, row: int) -> float:
        """When the linearised flow leaves, from its unstable components at a row."""
        away = self.modes @ (escape.states[row] - self.theta)
        return predicted_leave(self.all_rates, away, float(escape.time[row]), escape.level)


def _blocks(spectrum: Spectrum, top: np.ndarray) -> str:
    shares = spectrum.weights[top].mean(axis=0)
    order = np.argsort(-shares)
    return ", ".join(f"{spectrum.blocks[i]} {shares[i]:.2f}" for i in order if shares[i] >= 0.05)
