"""The saddle ledger: where a trajectory waited, which mode freed it, and when it had to leave."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.driver import integrate
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.options import Solver, Store
from attnflow.flows.solution import Solution, Status
from attnflow.linearise.escape import (
    Algebraic,
    Growth,
    algebraic_law,
    exponential_window,
    predicted_leave,
)
from attnflow.linearise.newton import CriticalPoint, critical_point
from attnflow.linearise.records import SaddleTable
from attnflow.observe.stages import Plateau, plateaus

if TYPE_CHECKING:
    import xarray as xr

SAMPLES = 64
"""States looked at on each plateau."""

SAME = 0.02
"""Rates within this share of the top one belong to the same (multiple) eigenvalue."""


@dataclass(frozen=True)
class Saddle:
    """One plateau of a trajectory and the critical point behind it."""

    number: int
    plateau: Plateau
    point: CriticalPoint
    rates: tuple[float, ...]
    """The distinct unstable rates, largest first."""
    blocks: str
    """Which weights move in the leading mode, with their shares."""
    growth: Growth | None
    """Measured growth of the leading mode."""
    algebraic: Algebraic | None
    leave_predicted: float
    sentence: str

    @property
    def loss(self) -> float:
        """Of the refined point; of the trajectory where it did not converge."""
        return self.point.loss if self.point.converged else self.plateau.loss

    @property
    def rate_predicted(self) -> float:
        return self.rates[0] if self.rates else float("nan")

    @property
    def rate_measured(self) -> float:
        return self.growth.rate if self.growth and self.growth.exists else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """The row of the ledger; None where something is not known."""
        row = {
            "number": self.number,
            "loss": self.loss,
            "time": self.plateau.time,
            "enter": self.plateau.enter,
            "leave": self.plateau.leave,
            "leave_predicted": self.leave_predicted,
            "converged": self.point.converged,
            "gradient": self.point.speed,
            "index": self.point.index,
            "nullity": self.point.nullity,
            "rates": list(self.rates),
            "blocks": self.blocks,
            "rate_predicted": self.rate_predicted,
            "rate_measured": self.rate_measured,
            "efolds": self.growth.efolds if self.growth else 0.0,
            "note": self.sentence,
        }
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


@dataclass(frozen=True, repr=False)
class SaddleLedger(SaddleTable):
    """Every plateau of a trajectory, in order, with the critical point behind it."""

    saddles: tuple[Saddle, ...]
    sentence: str

    def __iter__(self) -> Iterator[Saddle]:
        return iter(self.saddles)

    def __len__(self) -> int:
        return len(self.saddles)

    def __getitem__(self, k: int) -> Saddle:
        return self.saddles[k]

    def records(self) -> list[dict[str, Any]]:
        return [saddle.as_dict() for saddle in self.saddles]


@float64
def saddle_ledger(
    source: Solution | Any,
    *,
    prominence: float = 0.15,
    rtol: float | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 40,
) -> SaddleLedger:
    """Find the plateaus of a solve, refine each to a critical point on its leaf, and list them.

    `source` is a `Solution` of `integrate`, or anything with one as its `solution` (a run, a
    study). The states on the plateaus are solved for again at `rtol` (default: the solve's own,
    at most 1e-8). A refinement that does not converge is listed with what is known.
    """
    solution = source if isinstance(source, Solution) else getattr(source, "solution", None)
    if not isinstance(solution, Solution) or solution.solver.get("engine") == "descent":
        raise InputError("source", "not a solved flow; give what integrate (or a run) returned")
    return trajectory_ledger(
        solution.flow,
        solution.start,
        solution.trajectory,
        engine=solution.solver["engine"],
        prominence=prominence,
        rtol=min(solution.rtol, 1e-8) if rtol is None else rtol,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )


@float64
def trajectory_ledger(
    flow: FlowLike,
    start: Params,
    trajectory: xr.Dataset,
    *,
    engine: str = "auto",
    prominence: float = 0.15,
    rtol: float = 1e-8,
    tolerance: float = 1e-10,
    max_iterations: int = 40,
) -> SaddleLedger:
    """`saddle_ledger` of a trajectory with `loss` and `speed` that `flow` took from `start`."""
    if not {"loss", "speed"} <= set(map(str, trajectory.data_vars)):
        raise InputError("source", "no loss was observed; a ledger needs a flow with a loss")
    t, speed, loss = (trajectory[n].values for n in ("time", "speed", "loss"))
    found = plateaus(t, speed, loss, prominence=prominence, start=True)
    if not found:
        return SaddleLedger((), "no separation: the flow never waits.")
    times = np.unique(np.concatenate([np.linspace(p.enter, p.leave, SAMPLES) for p in found]))
    again = integrate(
        flow,
        start,
        until=float(times[-1]),
        save=times,
        store=Store(states=True),
        rtol=rtol,
        solver=Solver(engine=engine),
        progress=False,
    )
    if again.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if not again.status.complete:
        return SaddleLedger(
            (), f"not listed: the plateaus could not be solved again, {again.sentence}"
        )
    saddles = tuple(
        _saddle(k, plateau, again, tolerance, max_iterations) for k, plateau in enumerate(found, 1)
    )
    refined = sum(s.point.converged for s in saddles)
    many = "1 plateau" if len(saddles) == 1 else f"{len(saddles)} plateaus"
    return SaddleLedger(saddles, f"{many}, {refined} refined to critical points.")


def _saddle(
    number: int, plateau: Plateau, again: Solution, tolerance: float, max_iterations: int
) -> Saddle:
    data = again.trajectory
    inside = (data["time"].values >= plateau.enter) & (data["time"].values <= plateau.leave)
    t = data["time"].values[inside]
    states, speeds = data["state"].values[inside], data["speed"].values[inside]
    layout = again.flow.bind(again.start).layout
    rising = int(np.argmin(speeds))
    point = critical_point(
        again.flow,
        layout.numpy(states[rising]),
        leaf=again.start,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    spectrum = point.spectrum
    if spectrum is None:
        return Saddle(
            number,
            plateau,
            point,
            (),
            "",
            None,
            algebraic_law(t[rising:], speeds[rising:]),
            float("nan"),
            point.sentence,
        )
    rates = np.real(spectrum.rates)
    unstable = rates > 1e-6 * max(spectrum.scale, float(np.abs(rates).max()))
    leaving = (states - layout.flatten(point.theta)) @ np.real(spectrum.modes).T
    if not unstable.any() or rates[0] * (plateau.leave - plateau.enter) < 0.1:
        # A mode that cannot grow by a tenth during the whole plateau did not free the flow.
        law = algebraic_law(t[rising:], speeds[rising:])
        words = law.sentence if law else "no unstable mode: a minimum, or a slow manifold"
        leave = law.leave if law else float("nan")
        return Saddle(number, plateau, point, (), "", None, law, leave, words)
    top = unstable & (rates >= rates[0] * (1 - SAME))
    growth = exponential_window(t, np.linalg.norm(leaving[:, top], axis=1))
    leave = predicted_leave(rates[unstable], leaving[0, unstable], plateau.enter, speeds[-1])
    if growth.exists:
        words = f"grew at {growth.rate:.5g} over {growth.efolds:.1f} e-folds"
    else:
        words = f"no exponential window ({growth.efolds:.1f} e-folds)"
    return Saddle(
        number,
        plateau,
        point,
        _distinct(rates[unstable]),
        _blocks(spectrum, top),
        growth,
        None,
        leave,
        words,
    )


def _distinct(rates: np.ndarray) -> tuple[float, ...]:
    """The rates without their multiplicities, at most four."""
    kept: list[float] = []
    for rate in rates:
        if not kept or rate < kept[-1] * (1 - SAME):
            kept.append(float(rate))
    return tuple(kept[:4])


def _blocks(spectrum: Any, top: np.ndarray) -> str:
    shares = spectrum.weights[top].mean(axis=0)
    order = np.argsort(-shares)
    return ", ".join(f"{spectrum.blocks[i]} {shares[i]:.2f}" for i in order if shares[i] >= 0.05)
