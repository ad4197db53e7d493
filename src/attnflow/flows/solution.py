"""What a solve returns: a value with the trajectory, a status in words, the work and the drift."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError
from attnflow._tables import html_table
from attnflow.flows import opinion
from attnflow.flows.gates import Mode
from attnflow.flows.layout import Params
from attnflow.flows.sinks import Event

if TYPE_CHECKING:
    import xarray as xr


class Status(enum.StrEnum):
    """How a solve ended. Results are values: none of these is an exception."""

    DONE = "done"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    STEP_LIMIT = "step-limit"
    TIME_LIMIT = "time-limit"
    STALLED = "stalled"
    DIVERGED = "diverged"
    DRIFTED = "drifted"
    FAILED = "failed"

    @property
    def complete(self) -> bool:
        """Whether the solve reached its end or a stop, so that there is nothing to resume."""
        return self in (Status.DONE, Status.STOPPED, Status.DRIFTED)


@dataclass(frozen=True)
class Part:
    """A phase of a schedule, as it was solved."""

    name: str
    begins: float
    ends: float


@dataclass(frozen=True)
class Solution:
    """A solved flow or a discrete training run: same fields, so the two compare in one line."""

    trajectory: xr.Dataset
    """The observables over `time` (and `step`)."""
    status: Status
    sentence: str
    events: tuple[Event, ...]
    """Every mark and stop that was crossed, in order of time."""
    work: Mapping[str, float]
    """`rhs`, `jvp`, `steps`, `restarts`, `seconds`: counted in our own callbacks."""
    drifts: Mapping[str, float]
    """max over time of |C(t) - C(0)| over the largest squared norm of a block, for each."""
    rtol: float
    atol: float
    solver: Mapping[str, str]
    final: Params
    start: Params
    flow: Any = field(repr=False, default=None)
    """The flow, or the list of phases."""
    modes: tuple[Mode, ...] = ()
    """Of a flow with gates: the stretches with one smooth field, in order."""
    phases: tuple[Part, ...] = ()
    cross_check: Mapping[str, float] | None = None
    """Largest difference to the second engine, in units of the tolerance."""
    resumable: bool = False
    _again: Mapping[str, Any] = field(repr=False, default_factory=dict)
    _kept: tuple[list[float], np.ndarray] | None = field(repr=False, default=None)

    @property
    def time(self) -> float:
        """Where it ended."""
        return float(self.trajectory["time"].values[-1])

    @property
    def drift(self) -> float:
        """The largest of `drifts`; NaN where nothing conserved was declared."""
        return max(self.drifts.values(), default=float("nan"))

    @property
    def sliding(self) -> tuple[Mode, ...]:
        """The stretches on a surface."""
        return tuple(mode for mode in self.modes if mode.sliding)

    def first(self, name: str, default: float = float("nan")) -> float:
        """The time of the first crossing of a mark, switch of a gate, or end of a phase."""
        return next((e.time for e in self.events if e.name == name), default)

    def at(self, time: float) -> Params:
        """The parameters at a time."""
        return self._layout.numpy(self._flat(np.array([float(time)]))[0])

    def states(self, times: Any = None) -> Params:
        """The parameters at times (default: those of the rows), stacked along a first axis.

        States of rows are remembered while they are few; others are solved for again with the
        same options, and a discrete run gives those of the nearest step.
        """
        wanted = self.trajectory["time"].values if times is None else np.asarray(times, float)
        flat, layout = self._flat(wanted), self._layout
        return layout.stacked(
            [flat[:, b.start : b.stop].reshape(-1, *b.shape) for b in layout.blocks]
        )

    def _flat(self, wanted: np.ndarray) -> Float[np.ndarray, "time size"]:
        outside = wanted[~((wanted >= 0) & (wanted <= self.time))]
        if len(outside):
            raise InputError("times", f"{outside[0]:g}; the solve spans 0 to {self.time:g}")
        known = self._known()
        if not set(wanted.tolist()) <= set(known):
            inner = np.unique(wanted[wanted > 0])
            # Nothing is watched: neither observables nor marks change a step.
            store = replace(self._again["store"], states=True)
            solved = self.again(save=inner, observe=None, marks=None, stops=None, store=store)
            found, rows = solved.trajectory["time"].values, solved.trajectory["state"].values
            nearest = np.abs(found[None, :] - inner[:, None]).argmin(axis=1)
            known |= dict(zip(inner.tolist(), rows[nearest], strict=True))
        return np.array([known[t] for t in wanted.tolist()]).reshape(len(wanted), -1)

    def again(self, **options: Any) -> Solution:
        """The same solve once more, with some options changed."""
        if not self._again:
            raise InputError("solution", "was not made by integrate or descend in this process")
        given = {**self._again, "progress": False, **options}
        if given["until"] is not None:  # a schedule has its times in its phases
            given["until"] = self.time
        with opinion.asking(opinion.Opinion()):  # it has been asked for once
            return given.pop("solve")(given.pop("flow"), self.start, given.pop("until"), **given)

    @property
    def _layout(self) -> Any:
        first = self.flow[0].flow if isinstance(self.flow, Sequence) else self.flow
        return first.bind(self.start).layout

    def _known(self) -> dict[float, np.ndarray]:
        layout = self._layout
        known = {0.0: layout.flatten(self.start)}
        if "state" in self.trajectory:
            rows = self.trajectory["state"].values
            known |= dict(zip(self.trajectory["time"].values.tolist(), rows, strict=True))
        elif self._kept is not None:
            known |= dict(zip(*self._kept, strict=True))
        return known | {self.time: layout.flatten(self.final)}

    def __repr__(self) -> str:
        rows = self.trajectory.sizes["time"]
        return (
            f"Solution({self.status}: {self.sentence} {rows} rows of "
            f"{', '.join(map(str, self.trajectory.data_vars))}; "
            f"rhs {self.work['rhs']:,.0f}, jvp {self.work['jvp']:,.0f}, "
            f"steps {self.work['steps']:,.0f}, {self.work['seconds']:.2f} s, "
            f"{self.drift_words}, rtol {self.rtol:g})"
        )

    @property
    def drift_words(self) -> str:
        return f"drift {self.drift:.1e}" if self.drifts else "nothing conserved was declared"

    def _repr_html_(self) -> str:
        facts = {
            "status": f"{self.status}: {self.sentence}",
            "work": ", ".join(f"{k} {v:,.6g}" for k, v in self.work.items()),
            "conserved": self.drift_words,
            "tolerance": f"rtol {self.rtol:g}, atol {self.atol:.3g}",
            "solver": ", ".join(f"{k} {v}" for k, v in self.solver.items() if v),
        }
        if self.cross_check:
            facts["second engine"] = ", ".join(
                f"{k} {v:.3g} tolerances" for k, v in self.cross_check.items()
            )
        rows = [
            (e.name, f"{e.time:.6g}", "up" if e.direction > 0 else "down") for e in self.events[:40]
        ]
        marks = html_table(("mark", "time", ""), rows) if rows else ""
        return (
            html_table([], facts.items()) + self._picture() + marks + self.trajectory._repr_html_()
        )

    def _picture(self) -> str:
        """The loss curve as inline SVG: enough to see the plateaus without any plotting call."""
        if "loss" not in self.trajectory or self.trajectory.sizes["time"] < 2:
            return ""
        t = self.trajectory["time"].values
        loss = self.trajectory["loss"].values
        keep = np.isfinite(loss) & (t > 0)
        if keep.sum() < 2:
            return ""
        x, y = np.log10(t[keep]), loss[keep]
        x = 10 + 580 * (x - x[0]) / max(float(np.ptp(x)), 1e-300)
        y = 150 - 140 * (y - y.min()) / max(float(np.ptp(y)), 1e-300)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        low, high = float(loss[keep].min()), float(loss[keep].max())
        return (
            "<svg viewBox='0 0 600 175' width='600' role='img' aria-label='loss over log time'>"
            f"<polyline points='{points}' fill='none' stroke='#0072b2' stroke-width='2'/>"
            f"<text x='10' y='170' font-size='11'>loss {high:.4g} to {low:.4g}, "
            f"t = {t[keep][0]:.3g} to {t[keep][-1]:.4g} (log)</text></svg>"
        )


def cross_checked(solution: Solution, other: Solution) -> Solution:
    """The solution with its distance to a second engine's, in units of the tolerance."""
    units: dict[str, float] = {}
    for name, values in solution.trajectory.data_vars.items():
        if name not in other.trajectory:
            continue
        a, b = values.values, other.trajectory[name].values
        n = min(len(a), len(b))
        scale = solution.rtol * np.max(np.abs(a[:n])) + solution.atol
        units[str(name)] = float(np.max(np.abs(a[:n] - b[:n])) / scale)
    layout = solution._layout
    y, z = layout.flatten(solution.final), layout.flatten(other.final)
    weights = solution.rtol * np.abs(y) + solution.atol
    units["final state"] = float(np.sqrt(np.mean(((y - z) / weights) ** 2)))
    return replace(solution, cross_check=units)
