"""`integrate_gated`: from switch to switch of a flow with gates, and along its surfaces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, positive, whole
from attnflow._precision import float64
from attnflow.flows.driver import absolute_tolerance, integrate
from attnflow.flows.gates import ROUNDING, GatedFlow, GatedSolution, Mode, inner
from attnflow.flows.layout import Params
from attnflow.flows.probes import Mark, Observable, as_mark, as_observable
from attnflow.flows.schedule import Every, Schedule, times_of
from attnflow.flows.sinks import Event
from attnflow.flows.solution import Solution, Status
from attnflow.flows.staging import join

TOGETHER = 1e-12
"""Gates this close to 0 switch at the same instant: by symmetry, and rounding must not choose."""
SWITCH, LEAVE = "(switch)", "(leave)"


@float64
def integrate_gated(
    flow: GatedFlow,
    start: Params,
    until: float,
    *,
    observe: Mapping[str, Observable | Callable] | None = None,
    marks: Mapping[str, Mark | Callable] | None = None,
    stops: Mapping[str, Mark | Callable] | None = None,
    save: Schedule = Every(1),  # noqa: B008  (frozen)
    rtol: float = 1e-8,
    atol: float | None = None,
    max_switches: int = 1000,
    **options: Any,
) -> GatedSolution:
    """Solve exactly through the switches: smooth pieces, each gate a mark, sliding where it slides.

    All gates that reach zero within 1e-12 of each other switch together. Arguments are those of
    `integrate`; the rows have one more column, `gates` (1 on, 0 off, between: sliding), and
    there is a row at every switch besides those of `save`.
    """
    until, rtol = positive("until", until), positive("rtol", rtol)
    for name in ("sink", "checkpoint_every"):
        if options.get(name) is not None:
            raise InputError(name, "given, but a solve through gates cannot be resumed; leave out")
    system = flow.plain.bind(start)
    y = system.layout.flatten(start)
    if atol is None:
        atol = absolute_tolerance(y, rtol) if flow.scale is None else rtol * flow.scale
    values = np.ravel(np.asarray(flow.gates(system.layout.numpy(y)), dtype=float))
    walk = _Walk(flow, flow.names(len(values)), {"theta": start, "gates": (values > 0) * 1.0})
    walk.settle([tuple(np.flatnonzero(np.abs(values) <= TOGETHER).tolist())])
    times = times_of(save, until)
    given = {
        "marks": {n: _marked(m, f"marks.{n}") for n, m in (marks or {}).items()},
        "stops": {n: _marked(m, f"stops.{n}") for n, m in (stops or {}).items()},
        "observe": {n: _observed(o) for n, o in (observe or {}).items()},
        "rtol": rtol,
        "atol": atol,
        **options,
    }
    walk.user_stops = set(given["stops"])
    t, max_switches = 0.0, whole("max_switches", max_switches)
    # What is left after a switch at the very end is below the resolution of time.
    while walk.failure is None and (until - t > 1e-14 * until or not walk.parts):
        local: Any = save if times is None else np.concatenate([[0.0], times[times > t] - t])
        part = walk.piece(until - t, t, local, given)
        t += part.time
        if part.status is not Status.STOPPED or not walk.switch(part, t):
            break
        if len(walk.parts) > max_switches:
            walk.failure = Status.STALLED, f"{max_switches:,} switches up to t = {t:.6g}."
    return walk.solution()


class _Walk:
    """The state between two pieces: which gates are on, which slide, what has happened."""

    def __init__(self, flow: GatedFlow, names: tuple[str, ...], state: Params):
        self.flow, self.names, self.state = flow, names, state
        self.system = flow.held.bind(state)
        self.units: list[tuple[int, ...]] = []  # sets of gates that slide together
        self.parts: list[Solution] = []
        self.modes: list[Mode] = []
        self.events: list[Event] = []
        self.failure: tuple[Status, str] | None = None
        self.user_stops: set[str] = set()
        gates, layout = flow.gates, self.system.layout
        self._rate = self.system.compiled(
            ("gate rate", gates),
            lambda y, v: jax.jvp(
                lambda z: jnp.ravel(gates(layout.unflatten(z)["theta"])), (y,), (v,)
            )[1],
        )

    @property
    def on_surface(self) -> tuple[int, ...]:
        return tuple(i for unit in self.units for i in unit)

    def piece(self, until: float, t: float, save: Any, given: dict[str, Any]) -> Solution:
        """Solve up to the next switch."""
        slide, flow = self.on_surface, self.flow.held
        share: Callable[[Params], Any] | None = None
        stops = {**given["stops"], SWITCH: Mark(_distance(self.flow, slide), direction=-1)}
        if slide:
            flow, share = self.flow.sliding(self.system, slide)
            stops[LEAVE] = Mark(_inside(share), direction=-1)
        gates = Observable(_levels(share, slide), ("gate",), {"gate": np.array(self.names)})
        part = integrate(
            flow,
            self.state,
            until,
            **{
                **given,
                "stops": stops,
                "observe": {**given["observe"], "gates": gates},
                "save": save,
            },
        )
        g = part.trajectory["gates"].values
        self.parts.append(part)
        self.modes.append(
            Mode(
                t,
                t + part.time,
                tuple((self.state["gates"] > 0).tolist()),
                tuple(self.names[i] for i in slide),
                tuple((float(g[0, i]), float(g[-1, i])) for i in slide),
            )
        )
        self.state = {"theta": part.final["theta"], "gates": self.state["gates"].copy()}
        return part

    def switch(self, part: Solution, t: float) -> bool:
        """Go on after a stop; False where it was one of the user's."""
        names = {e.name for e in part.events if e.time == part.time}
        if names & self.user_stops or not names & {SWITCH, LEAVE}:
            return False
        before, sliding = self.state["gates"].copy(), self.on_surface
        if LEAVE in names:
            self._leave(part)
        else:
            values = np.ravel(np.asarray(self.flow.gates(self.state["theta"])))
            distance = np.where(before > 0, values, -values)
            others = [i for i in range(len(values)) if i not in sliding]
            hit = {others[e.index] for e in part.events if e.name == SWITCH}
            near = {i for i in others if distance[i] <= TOGETHER}
            self.settle([*self.units, tuple(sorted(hit | near))])
        after = self.on_surface
        for i, name in enumerate(self.names):
            if (i in after) != (i in sliding):
                self.events.append(Event(f"sliding {name}", t, 1 if i in after else -1, i))
            elif before[i] != self.state["gates"][i]:
                self.events.append(Event(name, t, 1 if before[i] == 0 else -1, i))
        return True

    def settle(self, units: list[tuple[int, ...]]) -> None:
        """Find the mode in which every gate on its surface goes where it says, or stays."""
        units = [unit for unit in units if unit]
        if not units:
            return
        for split in (units, [(i,) for unit in units for i in unit]):
            # Crossing first, then sliding, then turning back; what slid goes on sliding first.
            choices = [
                ("slide", "on", "off") if unit in self.units else ("flip", "slide", "stay")
                for unit in split
            ]
            if len(split) <= 6:
                for choice in product(*choices):
                    if self._consistent(split, choice):
                        return
        self.failure = Status.FAILED, f"no field is consistent at the gates {units}."

    def _consistent(self, units: list[tuple[int, ...]], choice: Sequence[str]) -> bool:
        gates = self.state["gates"].copy()
        slide = [u for u, c in zip(units, choice, strict=True) if c == "slide"]
        for unit, c in zip(units, choice, strict=True):
            at = list(unit)
            if c == "flip":
                gates[at] = 1.0 - gates[at]
            elif c != "stay":
                gates[at] = 1.0 if c == "on" else 0.0
        state = {"theta": self.state["theta"], "gates": gates}
        rate, share = self._rates(state, [i for unit in slide for i in unit])
        if not ((share >= -ROUNDING) & (share <= 1 + ROUNDING)).all():
            return False
        slack = ROUNDING * np.abs(rate).max(initial=0.0)
        for unit in units:
            for i in unit:
                away = abs(rate[i]) if unit in slide else rate[i] * (1 - 2 * gates[i])
                if not away <= slack:
                    return False
        self.state, self.units = state, slide
        return True

    def _rates(self, state: Params, slide: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """How fast every gate moves, and the shares of those that slide (`GatedFlow.sliding`).

        From the smooth field alone: a mode that is only tried out must not cost a compilation.
        """

        def velocity(on: int | None = None) -> np.ndarray:
            gates = state["gates"].copy()
            gates[slide] = 0.0
            if on is not None:
                gates[on] = 1.0
            y = self.system.layout.flatten({"theta": state["theta"], "gates": gates})
            self.system.rhs(y, v := np.empty_like(y))
            return np.asarray(self._rate(y, v))

        off = velocity()
        step = np.array([velocity(i) - off for i in slide]).reshape(len(slide), len(off))
        share = np.linalg.pinv(step[:, slide].T, rtol=ROUNDING) @ -off[slide]
        return off + share @ step, share

    def _leave(self, part: Solution) -> None:
        """A share reached 0 or 1: its gates are off or on, the others go on sliding."""
        share = part.trajectory["gates"].values[-1]
        stay = []
        for unit in self.units:
            at = list(unit)
            ended = (share[at] <= ROUNDING) | (share[at] >= 1 - ROUNDING)
            if ended.any():
                self.state["gates"][at] = (share[at] > 0.5) * 1.0
            else:
                stay.append(unit)
        self.units = stay

    def solution(self) -> GatedSolution:
        if not self.parts:
            raise InputError("start", (self.failure or (None, "no field at the start"))[1])
        joined = join(self.parts, GatedSolution)
        status, sentence = self.failure or (joined.status, joined.sentence)
        own = [e for e in joined.events if e.name not in (SWITCH, LEAVE)]
        begins = np.cumsum([0.0, *(p.time for p in self.parts)])[:-1]
        return replace(
            joined,
            trajectory=joined.trajectory.drop_vars("state", errors="ignore").assign_attrs(
                status=str(status)
            ),
            status=status,
            sentence=sentence,
            events=tuple(sorted([*own, *self.events], key=lambda e: e.time)),
            final=joined.final["theta"],
            start=joined.start["theta"],
            flow=self.flow,
            phases=tuple(self.parts),
            begins=tuple(begins.tolist()),
            modes=tuple(self.modes),
        )


@functools.lru_cache(maxsize=512)
def _distance(flow: GatedFlow, slide: tuple[int, ...]) -> Callable[[Params], Any]:
    """How far each gate that does not slide is from its switch."""

    def distance(state: Params) -> Any:
        d = (2.0 * state["gates"] - 1.0) * jnp.ravel(flow.gates(state["theta"]))
        return jnp.delete(d, np.asarray(slide, dtype=int), assume_unique_indices=True)

    return distance


@functools.lru_cache(maxsize=512)
def _inside(share: Callable[[Params], Any]) -> Callable[[Params], Any]:
    def inside(state: Params) -> Any:
        u = share(state)
        return jnp.minimum(u, 1.0 - u)

    return inside


@functools.lru_cache(maxsize=512)
def _levels(share: Callable[[Params], Any] | None, slide: tuple[int, ...]) -> Callable:
    if share is None:
        return lambda state: state["gates"]
    return lambda state: state["gates"].at[np.asarray(slide)].set(share(state))


def _marked(given: Any, field: str) -> Mark:
    mark = as_mark(given, field)
    return replace(mark, measure=inner(mark.measure))


def _observed(given: Any) -> Observable:
    observable = as_observable(given)
    return replace(observable, measure=inner(observable.measure))
