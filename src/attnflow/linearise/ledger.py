"""The saddle ledger: where a trajectory waited, which mode freed it, and when it had to leave.

The law of an escape is the one in force where the plateau is left, decided by the solver's own rows
(`escape`). The critical point says which mode it is and predicts its rate; it is the plateau's own
only if it lies within the plateau's extent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.solution import Solution
from attnflow.linearise.escape import Law, algebraic, exponential, predicted_leave
from attnflow.linearise.modes import DENSE, Spectrum
from attnflow.linearise.newton import CriticalPoint, critical_point
from attnflow.linearise.records import SaddleTable
from attnflow.linearise.rows import Escape, with_states
from attnflow.observe.stages import Plateau, plateaus

if TYPE_CHECKING:
    import xarray as xr

SAME = 0.02
"""Rates within this share of the top one belong to the same (multiple) eigenvalue."""

WITHIN = 2.0
"""A critical point is the plateau's own when it lies at most this multiple of the plateau's extent
(the largest distance of its states from the slowest one) from the slowest state."""

ACTS = 0.1
"""A mode that cannot grow by this e-fold during the whole plateau did not free the flow."""

MISSED = 2.0
"""A predicted wait is flagged when it is off by more than this factor."""


@dataclass(frozen=True)
class Wait:
    """One plateau of a trajectory, the critical point behind it and the law by which it is left."""

    number: int
    plateau: Plateau
    kind: str
    """`saddle`; `still waiting` where the run ends on one; `bottleneck`, a slow stretch without a
    critical point of its own; `unknown` where the search was not decided."""
    point: CriticalPoint | None
    """None where the plateau was not found again at the tighter tolerance."""
    extent: float
    rates: tuple[float, ...] = ()
    """The distinct unstable rates that could act during the plateau, largest first."""
    blocks: str = ""
    """Which weights move in the leading mode, with their shares."""
    law: Law | None = None
    """None where no law has a window, or neither fits."""
    leave_predicted: float = float("nan")
    sentence: str = ""

    @property
    def refined(self) -> bool:
        return self.point is not None and self.point.converged

    @property
    def loss(self) -> float:
        """Of the refined point; of the trajectory where there is none."""
        return self.point.loss if self.point and self.point.converged else self.plateau.loss

    @property
    def rate_predicted(self) -> float:
        """Of the refined point, where its mode was seen to grow exponentially."""
        return self.rates[0] if self.rates and self._is("exponential") else float("nan")

    @property
    def rate_measured(self) -> float:
        return self.law.rate if self.law and self._is("exponential") else float("nan")

    @property
    def exit_ratio(self) -> float:
        """The predicted wait over the measured one."""
        waited = self.plateau.leave - self.plateau.enter
        return (self.leave_predicted - self.plateau.enter) / waited if waited > 0 else float("nan")

    @property
    def flag(self) -> str | None:
        """What is wrong with the predicted exit, if it misses by more than a factor of two."""
        ratio = self.exit_ratio
        if math.isnan(ratio) or 1 / MISSED <= ratio <= MISSED:
            return None
        late, factor = ("late", ratio) if ratio > 1 else ("early", 1 / max(ratio, 1e-300))
        return f"exit predicted {factor:.3g} times too {late}"

    def _is(self, law: str) -> bool:
        return self.law is not None and self.law.name == law

    def as_dict(self) -> dict[str, Any]:
        """The row of the ledger; None where something is not known."""
        law, point = self.law, self.point
        powers = law is not None and law.name == "algebraic"
        row = {
            "number": self.number,
            "kind": self.kind,
            "loss": self.loss,
            "time": self.plateau.time,
            "enter": self.plateau.enter,
            "leave": None if self.plateau.open else self.plateau.leave,
            "leave_predicted": self.leave_predicted,
            "speed": self.plateau.speed,
            "prominence": self.plateau.prominence,
            "converged": self.refined,
            "distance": point.distance if point else None,
            "extent": self.extent,
            "gradient": point.speed if point else None,
            "index": point.index if point else None,
            "nullity": point.nullity if point else None,
            "rates": list(self.rates),
            "blocks": self.blocks,
            "law": law.name if law else None,
            "rate_predicted": self.rate_predicted,
            "rate_measured": self.rate_measured,
            "efolds": law.span if law and not powers else 0.0,
            "power": law.power if law and powers else None,
            "power_error": law.power_error if law and powers else None,
            "flag": self.flag,
            "note": self.sentence,
        }
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


@dataclass(frozen=True, repr=False)
class SaddleLedger(SaddleTable):
    """Every plateau of a trajectory, in order, with the critical point behind it."""

    saddles: tuple[Wait, ...]
    sentence: str

    def __iter__(self) -> Iterator[Wait]:
        return iter(self.saddles)

    def __len__(self) -> int:
        return len(self.saddles)

    def __getitem__(self, k: int) -> Wait:
        return self.saddles[k]

    def records(self) -> list[dict[str, Any]]:
        return [saddle.as_dict() for saddle in self.saddles]


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
    engine: str = "auto",
    prominence: float = 0.15,
    rtol: float = 1e-8,
) -> SaddleLedger:
    """`saddle_ledger` of a trajectory with `loss` and `speed` that `flow` took from `start`."""
    if not {"loss", "speed"} <= set(map(str, trajectory.data_vars)):
        raise InputError("source", "no loss was observed; a ledger needs a flow with a loss")
    found = _plateaus(trajectory, prominence)
    if not found:
        return SaddleLedger((), "no separation: the flow never waits.")
    data, failed = with_states(flow, start, trajectory, _needed(trajectory, found), rtol, engine)
    own = found if data is trajectory else _plateaus(data, prominence)
    system = flow.bind(start)
    waits: list[Wait] = []
    for plateau, same in zip(found, _matched(found, own), strict=True):
        if same is None:
            words = f"not found again at rtol {rtol:g}" + (f": {failed}" if failed else "")
            unknown = Wait(len(waits) + 1, plateau, "unknown", None, float("nan"), sentence=words)
            waits += [] if plateau.open else [unknown]
            continue
        escape = Escape.of(system, data, same)
        if not plateau.open or _unstable(escape):
            wait = _wait(len(waits) + 1, plateau, escape, start)
            waits += [wait] if wait.kind == "still waiting" or not plateau.open else []
    if not waits:
        return SaddleLedger((), "no separation: the flow never waits.")
    refined = sum(w.refined for w in waits)
    many = "1 plateau" if len(waits) == 1 else f"{len(waits)} plateaus"
    return SaddleLedger(tuple(waits), f"{many}, {refined} refined to critical points.")


def _plateaus(data: xr.Dataset, prominence: float) -> list[Plateau]:
    t, speed, loss = (data[n].values for n in ("time", "speed", "loss"))
    return plateaus(t, speed, loss, prominence=prominence, start=True, end=True)


def _needed(data: xr.Dataset, found: list[Plateau]) -> float:
    """Up to when states are needed: the fastest moment after the last plateau, or the end."""
    t, speed = data["time"].values, data["speed"].values
    if found[-1].open:
        return float(t[-1])
    left = int(np.searchsorted(t, found[-1].leave))
    return float(t[left + int(np.nanargmax(speed[left:]))]) if left < len(t) else float(t[-1])


def _matched(found: list[Plateau], own: list[Plateau]) -> list[Plateau | None]:
    """The same plateaus in a tighter solve: in order, or else the nearest in loss and in kind.

    Not by time: just before a blow-up the two solves may be apart by many times its length.
    """
    if [p.open for p in found] == [p.open for p in own]:
        return list(own)
    scale = max(max(p.loss for p in found) - min(p.loss for p in found), 1e-300)

    def nearest(p: Plateau) -> Plateau | None:
        same = [q for q in own if q.open == p.open and abs(q.loss - p.loss) <= 0.01 * scale]
        return min(same, key=lambda q: abs(q.time - p.time), default=None)

    return [nearest(p) for p in found]


def _unstable(escape: Escape) -> bool:
    """Whether something can still grow where a run ends; at a minimum nothing does."""
    waited = float(escape.time[-1] - escape.time[0])
    if escape.growth[-1] * waited >= ACTS:
        return True
    jacobian = escape.system.jacobian(escape.near) if escape.system.size <= DENSE else None
    return jacobian is not None and bool(np.linalg.eigvals(jacobian).real.max() * waited >= ACTS)


def _wait(number: int, plateau: Plateau, escape: Escape, start: Params) -> Wait:
    within = WITHIN * escape.extent
    point = critical_point(
        escape.system.flow,
        escape.system.layout.numpy(escape.near),
        leaf=start,
        within=within or None,
        max_iterations=40,
    )
    modes = _Modes.of(point, escape)
    laws = [algebraic(np.log(escape.speed), escape.growth, escape.leave)]
    if modes is not None:
        laws.append(exponential(*modes.growth(escape), escape.leave))
    else:
        laws.append(exponential(np.log(escape.speed), escape.growth, escape.leave))
    seen = [law for law in laws if law is not None]
    law = min((x for x in seen if x.holds), key=lambda x: x.residual, default=None)
    leave = float("nan")
    if law is not None and not plateau.open:
        if law.name == "exponential" and modes is not None:
            leave = modes.leave(escape)
        else:
            grown = math.log(escape.level / escape.speed[law.first])
            leave = float(escape.time[law.first]) + law.wait(grown)
    return Wait(
        number,
        plateau,
        _kind(plateau, point, escape, law),
        point,
        escape.extent,
        modes.rates if modes is not None else (),
        modes.blocks if modes is not None else "",
        law,
        leave,
        _words(point, law, seen, modes),
    )


def _kind(plateau: Plateau, point: CriticalPoint, escape: Escape, law: Law | None) -> str:
    if plateau.open:
        return "still waiting" if point.converged else "unknown"
    if point.converged:
        return "saddle"
    return "bottleneck"


def _words(point: CriticalPoint, law: Law | None, seen: list[Law], modes: _Modes | None) -> str:
    said = [] if point.converged else [point.sentence]
    if law is not None:
        said.append(law.sentence)
    else:
        spans = {"exponential": "e-folds", "algebraic": "decades"}
        short = [f"{x.span:.1f} {spans[x.name]}" for x in seen]
        said.append("no law" + (f" ({', '.join(short)})" if short else ""))
    return "; ".join(said)


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

    def leave(self, escape: Escape) -> float:
        """When the linearised flow leaves, from its unstable components at entry."""
        entered = self.modes @ (escape.states[0] - self.theta)
        return predicted_leave(self.all_rates, entered, float(escape.time[0]), escape.level)


def _blocks(spectrum: Spectrum, top: np.ndarray) -> str:
    shares = spectrum.weights[top].mean(axis=0)
    order = np.argsort(-shares)
    return ", ".join(f"{spectrum.blocks[i]} {shares[i]:.2f}" for i in order if shares[i] >= 0.05)
