"""Staged schedules: one flow after another, each with its own data, frozen blocks and end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnflow._errors import InputError, positive, shown
from attnflow.flows.discrete import Descent, GradientDescent, descend
from attnflow.flows.driver import integrate
from attnflow.flows.flow import Flow, FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.probes import Mark
from attnflow.flows.sinks import Event, Sink
from attnflow.flows.solution import Solution, Status


@dataclass(frozen=True)
class Phase:
    """One stage of a schedule: a flow, until a time or an event.

    flow
        Its own flow: restricting the expectation to some samples is a flow on those samples.
    until
        How long it lasts; with `stop`, how long to wait for it.
    stop
        A mark that ends the phase when it is crossed.
    frozen
        Blocks that stand still (a name or everything below a path), besides the flow's own rates.
    """

    name: str
    flow: FlowLike
    until: float
    stop: Mark | Callable | None = None
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class StagedSolution(Solution):
    """One solution over all phases; `trajectory["phase"]` numbers them, `phases` are the parts."""

    phases: tuple[Solution, ...] = field(repr=False, default=())
    begins: tuple[float, ...] = ()
    """When each phase begins."""

    def at(self, time: float) -> Params:
        """The parameters at a time, from the phase that it falls into."""
        if not 0 <= time <= self.time:
            raise InputError("time", f"{time:g}; the schedule spans 0 to {self.time:g}")
        i = max(int(np.searchsorted(self.begins, time, side="left")) - 1, 0)
        part = self.phases[i]
        # A time of one phase's own clock may round past its end.
        return part.at(min(time - self.begins[i], part.time))


def staged(
    phases: Sequence[Phase],
    start: Params,
    *,
    optimiser: Descent | None = None,
    sinks: Callable[[int], Sink] | None = None,
    **options: Any,
) -> StagedSolution:
    """Solve the phases one after another, each from where the one before ended.

    `options` go to `integrate` (or to `descend`, with an `optimiser`): observe, marks, save,
    rtol and so on; output times are those of each phase. Every phase that ends is an event of
    its name at its end, so `solution.first("neurons")` is when the phase "neurons" ended.

    `sinks(i)` is where phase i puts its rows; called again with the same sinks an interrupted
    schedule goes on: phases that had ended replay from their last checkpoint.

    A phase that does not reach its stop, or is interrupted, ends the schedule there.
    """
    _check(phases)
    parts: list[Solution] = []
    names: list[str] = []
    theta = start
    for i, phase in enumerate(phases):
        part = _run(phase, theta, optimiser, {**options, **({"sink": sinks(i)} if sinks else {})})
        parts.append(part)
        names.append(phase.name)
        theta = part.final
        missed = phase.stop is not None and part.status is Status.DONE
        if missed or not part.status.complete:
            break
    joined = join(parts, StagedSolution)
    begins = np.cumsum([0.0, *(part.time for part in parts)])
    status, sentence = joined.status, joined.sentence
    ends = list(zip(names, begins[1:].tolist(), strict=True))
    if phases[len(parts) - 1].stop is not None and status is Status.DONE:
        status, sentence = Status.FAILED, f"its stop was not reached within {parts[-1].time:.6g}."
    if not status.complete:
        ends = ends[:-1]
    # A phase that ended by its stop has that stop's event already, under the same name.
    known = {e.name for e in joined.events}
    ended = [Event(n, t, 1, i) for i, (n, t) in enumerate(ends) if n not in known]
    index = np.repeat(np.arange(len(parts)), _rows(parts))
    trajectory = joined.trajectory.assign_coords(
        phase=("time", index, {"long_name": "phase", "names": list(names)})
    )
    return replace(
        joined,
        trajectory=trajectory.assign_attrs(status=str(status)),
        status=status,
        sentence=f"{names[-1]}: {sentence}",
        events=tuple(sorted([*joined.events, *ended], key=lambda e: e.time)),
        phases=tuple(parts),
        begins=tuple(begins[:-1].tolist()),
    )


def join(parts: Sequence[Solution], kind: type[Any] = Solution) -> Any:
    """Solutions end to end on one clock; a part begins where the one before it ended.

    The first row of a later part is the last of the one before, and is left out; so are columns
    whose axes differ between the parts (the gates of other samples).
    """
    import xarray as xr

    shifts = np.cumsum([0.0, *(part.time for part in parts)]).tolist()
    odd = _differing([part.trajectory for part in parts])
    common = [part.trajectory.drop_dims(odd, errors="ignore") for part in parts]
    tables, events = [], []
    steps = 0
    for k, part in enumerate(parts):
        table = common[k].isel(time=slice(_first(part) if k else 0, None))
        table = table.assign_coords(
            time=("time", table["time"].values + shifts[k], table["time"].attrs)
        )
        if "step" in table.coords:
            table = table.assign_coords(step=("time", table["step"].values + steps))
        steps += int(part.work["steps"])
        tables.append(table)
        events += [replace(e, time=e.time + shifts[k]) for e in part.events]
    trajectory = tables[0]
    if len(tables) > 1:
        trajectory = xr.concat(
            tables,
            "time",
            data_vars="all",
            coords="minimal",
            compat="override",
            join="override",
            combine_attrs="override",
        )
    last = parts[-1]
    # Each part measures from its own start, so what moved in all is at most the sum.
    drifts = {n: sum(p.drifts.get(n, 0.0) for p in parts) for p in parts for n in p.drifts}
    return kind(
        trajectory=trajectory,
        status=last.status,
        sentence=_sentence(parts, events),
        events=tuple(events),
        work={n: sum(p.work[n] for p in parts) for n in last.work},
        drift=max(drifts.values(), default=float("nan")),
        drifts=drifts,
        rtol=last.rtol,
        atol=last.atol,
        solver=parts[0].solver,
        final=last.final,
        start=parts[0].start,
        flow=parts[0].flow,
        resumable=any(p.resumable for p in parts),
    )


@functools.lru_cache(maxsize=64)
def freeze(flow: Any, blocks: tuple[str, ...]) -> Any:
    """The flow with some blocks standing still; what it conserves is no longer claimed."""
    if not blocks:
        return flow
    if isinstance(freezing := getattr(flow, "freeze", None), Callable):
        return freezing(blocks)
    inner = flow if isinstance(flow, Flow) else getattr(flow, "flow", None)
    if not isinstance(inner, Flow):
        raise InputError("frozen", f"{shown(blocks)} of {flow!r}; freeze blocks of a Flow")
    return Flow(
        inner._loss,
        velocity=inner._velocity,
        rates={**inner.rates, **dict.fromkeys(blocks, 0.0)},
        host=inner.host,
        name=inner.name,
    )


def _run(phase: Phase, theta: Params, optimiser: Descent | None, options: dict) -> Solution:
    flow: Any = phase.flow
    if phase.stop is not None:
        options = {**options, "stops": {**options.get("stops", {}), phase.name: phase.stop}}
    if optimiser is None:
        flow = freeze(flow, tuple(phase.frozen))
        if hasattr(flow, "integrate"):  # a flow that brings its own way of being solved
            return flow.integrate(theta, phase.until, **options)
        return integrate(flow, theta, phase.until, **options)
    flow = getattr(flow, "plain", flow)
    if not hasattr(flow, "descend"):
        return descend(freeze(flow, tuple(phase.frozen)), theta, phase.until, optimiser, **options)
    # Steps of the weights taken in reduced coordinates: not Euler steps of the reduced flow.
    if phase.frozen or not isinstance(optimiser, GradientDescent):
        raise InputError(
            "phases",
            f"{phase.name!r} descends on {flow!r}, which takes GradientDescent and "
            "freezes by its own rates; give the phase a flow with rates of 0",
        )
    steps = max(1, round(phase.until / optimiser.rate))
    return flow.descend(theta, optimiser.rate, steps, **options)


def _check(phases: Sequence[Phase]) -> None:
    if not phases or not all(isinstance(p, Phase) for p in phases):
        raise InputError("phases", f"{shown(phases)}; a list of at least one Phase")
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise InputError("phases", f"names {shown(names)}; every phase has its own")
    for phase in phases:
        positive(f"phases.{phase.name}.until", phase.until)


def _sentence(parts: Sequence[Solution], events: Sequence[Event]) -> str:
    """How the last part ended, on the common clock."""
    t = sum(part.time for part in parts)
    if parts[-1].status is Status.DONE:
        return f"reached t = {t:.6g}."
    if parts[-1].status is Status.STOPPED:
        return f"'{events[-1].name}' was reached at t = {t:.6g}."
    return parts[-1].sentence if len(parts) == 1 else f"{parts[-1].sentence} (t = {t:.6g} in all)"


def _differing(tables: Sequence[Any]) -> list[str]:
    """The axes besides time that are not the same in all tables."""
    dims = {dim for table in tables for dim in table.dims} - {"time"}
    everywhere = [dim for dim in dims if all(dim in table.dims for table in tables)]
    same = {
        dim
        for dim in everywhere
        if all(np.array_equal(table[dim].values, tables[0][dim].values) for table in tables)
    }
    return sorted(map(str, dims - same))


def _first(part: Solution) -> int:
    """1 where a part has a row at its own time 0."""
    return int(part.trajectory.sizes["time"] > 0 and part.trajectory["time"].values[0] == 0)


def _rows(parts: Sequence[Solution]) -> list[int]:
    return [p.trajectory.sizes["time"] - (_first(p) if k else 0) for k, p in enumerate(parts)]
