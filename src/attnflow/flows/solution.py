"""What a solve returns: a value with the trajectory, a status in words, the work and the drift."""

from __future__ import annotations

import enum
import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
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
    FAILED = "failed"

    @property
    def complete(self) -> bool:
        """Whether the solve reached its end or a stop, so that there is nothing to resume."""
        return self in (Status.DONE, Status.STOPPED)


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
    drift: float
    """max over time and conserved quantities of |C(t) - C(0)| over the largest squared norm."""
    drifts: Mapping[str, float]
    rtol: float
    atol: float
    solver: Mapping[str, str]
    final: Params
    start: Params
    flow: Any = field(repr=False, default=None)
    cross_check: Mapping[str, float] | None = None
    """Largest difference to the second engine, in units of the tolerance."""
    resumable: bool = False
    _options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def time(self) -> float:
        """Where it ended."""
        return float(self.trajectory["time"].values[-1])

    def first(self, name: str, default: float = float("nan")) -> float:
        """The time of the first crossing of a mark."""
        return next((e.time for e in self.events if e.name == name), default)

    def at(self, time: float) -> Params:
        """The parameters at a time.

        From the kept states when `time` is one of the output times of a solve with
        `keep_states=True`; else the flow is solved again up to there with the same options.
        """
        if not 0 <= time <= self.time:
            raise InputError("time", f"{time:g}; the solve spans 0 to {self.time:g}")
        if "state" in self.trajectory:
            times = self.trajectory["time"].values
            i = int(np.argmin(np.abs(times - time)))
            if times[i] == time:
                layout = self.flow.bind(self.start).layout
                return layout.numpy(self.trajectory["state"].values[i])
        if time == 0:
            return self.start
        if time == self.time:
            return self.final
        if "engine" not in self._options:
            raise InputError("time", f"{time:g} was not saved; discrete runs need keep_states=True")
        from attnflow.flows.driver import integrate

        again = integrate(
            self.flow,
            self.start,
            until=self.time,
            save=[0.0, time],
            keep_states=True,
            stops={},
            progress=False,
            **self._options,
        )
        return again.at(time)

    def __repr__(self) -> str:
        rows = self.trajectory.sizes["time"]
        return (
            f"Solution({self.status}: {self.sentence} {rows} rows of "
            f"{', '.join(map(str, self.trajectory.data_vars))}; "
            f"rhs {self.work['rhs']:,.0f}, jvp {self.work['jvp']:,.0f}, "
            f"steps {self.work['steps']:,.0f}, {self.work['seconds']:.2f} s, "
            f"drift {self.drift:.1e}, rtol {self.rtol:g})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "status": f"{self.status}: {self.sentence}",
            "work": ", ".join(f"{k} {v:,.6g}" for k, v in self.work.items()),
            "drift": f"{self.drift:.2e}" if self.drifts else "nothing conserved was declared",
            "tolerance": f"rtol {self.rtol:g}, atol {self.atol:.3g}",
            "solver": ", ".join(f"{k} {v}" for k, v in self.solver.items() if v),
        }
        if self.cross_check:
            facts["second engine"] = ", ".join(
                f"{k} {v:.3g} tolerances" for k, v in self.cross_check.items()
            )
        rows = "".join(
            f"<tr><th style='text-align:left'>{k}</th>"
            f"<td style='text-align:left'>{html.escape(v)}</td></tr>"
            for k, v in facts.items()
        )
        marks = "".join(
            f"<tr><td style='text-align:left'>{html.escape(e.name)}</td><td>{e.time:.6g}</td>"
            f"<td>{'up' if e.direction > 0 else 'down'}</td></tr>"
            for e in self.events[:40]
        )
        if marks:
            marks = f"<table><tr><th>mark</th><th>time</th><th></th></tr>{marks}</table>"
        return f"<table>{rows}</table>{self._picture()}{marks}{self.trajectory._repr_html_()}"

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


def with_cross_check(solution: Solution, other: Solution) -> Solution:
    """The solution with its distance to a second engine's, in units of the tolerance."""
    units: dict[str, float] = {}
    for name, values in solution.trajectory.data_vars.items():
        if name not in other.trajectory:
            continue
        a, b = values.values, other.trajectory[name].values
        n = min(len(a), len(b))
        scale = solution.rtol * np.max(np.abs(a[:n])) + solution.atol
        units[str(name)] = float(np.max(np.abs(a[:n] - b[:n])) / scale)
    layout = solution.flow.bind(solution.start).layout
    y, z = layout.flatten(solution.final), layout.flatten(other.final)
    weights = solution.rtol * np.abs(y) + solution.atol
    units["final state"] = float(np.sqrt(np.mean(((y - z) / weights) ** 2)))
    return replace(solution, cross_check=units)
