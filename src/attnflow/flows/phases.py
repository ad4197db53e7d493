"""Schedules of phases: one flow after another, each with its own data, frozen blocks and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow._errors import InputError, positive, shown
from attnflow.flows.flow import Flow, FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.probes import Mark


@dataclass(frozen=True)
class Phase:
    """One part of a schedule: a flow, until a time or an event.

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


def phases_of(flow: Any, start: Params, until: float | None) -> list[Phase]:
    """What is solved one after the other: a flow until a time, or the phases of a schedule."""
    if isinstance(flow, Sequence) and not isinstance(flow, str):
        phases = _checked(flow)
        if until is not None:
            raise InputError("until", f"{until:g}; every phase of a schedule has its own")
    else:
        if not hasattr(flow, "bind"):
            hint = "write Flow(loss)" if callable(flow) else "a Flow, or a list of phases"
            raise InputError("flow", f"{shown(flow)}; {hint}")
        if until is None:
            raise InputError("until", "not given; the time up to which the flow is solved")
        alone: Any = flow
        phases = [Phase("", alone, positive("until", until))]
    first = phases[0].flow.bind(start).layout.signature
    for phase in phases:
        if phase.flow.bind(start).layout.signature != first:
            raise InputError(f"phases.{phase.name}", "other parameters than the first phase")
    return phases


def freeze(flow: Any, blocks: tuple[str, ...]) -> Any:
    """The flow with some blocks standing still."""
    if not blocks:
        return flow
    inner = flow if isinstance(flow, Flow) else getattr(flow, "flow", None)
    if not isinstance(inner, Flow) or hasattr(flow, "updates"):
        raise InputError(
            "frozen", f"{shown(blocks)} of {flow!r}; give the phase a flow with rates of 0"
        )
    return inner.frozen(blocks)


def _checked(phases: Sequence[Any]) -> list[Phase]:
    if not phases or not all(isinstance(p, Phase) for p in phases):
        raise InputError("phases", f"{shown(phases)}; a list of at least one Phase")
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise InputError("phases", f"names {shown(names)}; every phase has its own")
    for phase in phases:
        positive(f"phases.{phase.name}.until", phase.until)
        if not hasattr(phase.flow, "bind"):
            raise InputError(f"phases.{phase.name}.flow", f"{shown(phase.flow)}; a Flow")
    return list(phases)
