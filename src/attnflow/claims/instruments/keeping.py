"""What is kept of a solve, handed over and told: restart points, segments, progress, seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.claims.instruments.descending import RATE, bowl, trained
from attnflow.claims.instruments.solving import turn
from attnflow.claims.instruments.systems import RTOL, Numbers, Sink, begin, flow_of, solved
from attnflow.flows import (
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Mark,
    Phase,
    Solver,
    Store,
    integrate,
)
from attnflow.flows.discrete import descend
from attnflow.flows.probes import shared
from attnflow.flows.recorder import Bounds, Recorder
from attnflow.flows.sinks import Checkpoint, Segment, Shape, dataset


def resumed(c: float) -> Numbers:
    """A circle in two phases, the second of half the speed, that breaks after a stored state of
    either phase, goes on as if nothing was: rows, phases, drift, events, work. What is not
    interrupted has its two phases on the path."""
    kept = {"first": lambda th: th["x"][0] + th["x"][1]}
    marks = {"half": Mark(lambda th: th["x"][1], 0.5), "low": Mark(lambda th: th["x"][1], -0.5)}

    def go(strength: float, sink: Sink) -> list[float]:
        one, two = (flow_of(turn(k * strength), conserved=kept) for k in (1.0, 0.5))
        phases = [Phase("one", one, 2.0), Phase("two", two, 3.0)]
        how: dict[str, Any] = {"store": Store(sink, every=20), "marks": marks, "rtol": 1e-5}
        run = solved(phases, [1, 0], save=Linear(12), **how)
        parts = [x for p in run.phases for x in (p.begins, p.ends)]
        rows, work = run.trajectory, run.work
        numbers = [*rows["phase"].values, *rows["time"].values, *rows["speed"].values, *parts]
        numbers += [run.drifts["first"], *(x for e in run.events for x in (e.time, e.direction))]
        return [*numbers, *run.final["x"], work["rhs"], work["steps"], work["restarts"]]

    whole, known, found = go(2.0, Sink()), [], []
    for most in (2, 12):
        broken = Sink(most)
        with contextlib.suppress(KeyboardInterrupt):
            go(2.0, broken)
        legs = broken.last.scalars["leg"]
        known += [*whole, float(most > 2)]
        found += [*go(c, broken if c == 2.0 else Sink()), legs]
    run = solved([Phase("a", flow_of(turn(c)), 1.0), Phase("b", flow_of(turn(-c)), 0.5)], [1, 0])
    ends = [[run.phases[0].ends, run.phases[1].begins, run.phases[1].ends], run.final["x"]]
    phase = run.trajectory["phase"].values[[0, -1]]
    known += [1, 1, 1.5, np.cos(c / 2), np.sin(c / 2), 0, 1, 1]
    return known, [*found, *ends[0], *ends[1], *phase, float(run.sentence.startswith("b: "))]


def windows(c: float) -> Numbers:
    """What a solve remembers of its pace is stored and taken up again, so that it stalls at the
    same step; from a stored state that has none it begins there."""
    asked, known, found = threading.Event(), [], []
    for scalars in (None, {}):
        before, after = (Bounds(Limits(), asked, 10**6) for _ in range(2))
        before.reached(1000, c, np.zeros(1), 1e9)
        before.reached(1700, 3 * c, np.zeros(1), 1e9)
        stored = before.save() if scalars is None else scalars
        after.load(Checkpoint(1700, 3 * c, {}, stored))
        known += [1000, c] if scalars is None else [1700, 3 * c]
        found += [after.save()["window.step"], after.save()["window.time"]]
        looks = ((1999, 0), (2000, 1)) if scalars is None else ((2699, 0), (2700, 1))
        for step, stalls in looks:
            end = found[-1] * (1 + 9e-4)
            known.append(stalls)
            found.append(float(after.reached(step, end, np.zeros(1), 1e9) is not None))
    return known, found


def handed_over(c: float) -> Numbers:
    """Rows reach a sink in order, as many at a time as are due and the rest at the end, with their
    states where these are kept; axes that nobody named are counted from one."""
    sink, most, count = Sink(), Recorder.FLUSH_ROWS, 2 * Recorder.FLUSH_ROWS + 9
    run = solved(flow_of(turn(c)), [1, 0], 1.0, save=Linear(count), store=Store(sink))
    t = np.linspace(0, 1, count)
    sizes = [segment.rows for segment in sink.segments]
    columns = {"time": np.arange(2.0), "w": np.full((2, 3, 4), c)}
    data = dataset(Segment(columns), Shape({}))
    axes = [data.sizes["w_axis1"], data.sizes["w_axis2"]]
    known = [count, most, 3, 4, c, *np.cos(c * t[::60]), *np.sin(c * t[::60])]
    states = run.states(run.trajectory["time"].values)["x"]
    # A slow machine flushes more often, never larger.
    return known, [sum(sizes), max(sizes), *axes, data["w"].values.mean(), *states[::60].T.ravel()]


def told_of(c: float) -> Numbers:
    """Progress is the part of the way: of the steps, or of the time. Seconds are those since the
    beginning, after those of the run that is taken up. What observables share is computed once
    for each state."""
    parts: list[float] = []
    before = time.perf_counter()
    run = descended(c, parts)
    within = [0 < run.work["seconds"] <= time.perf_counter() - before]
    way: list[float] = []
    flow = flow_of(turn(c))
    integrate(flow, begin([1, 0]), 1.0, rtol=RTOL, progress=lambda part, words: way.append(part))
    steps = [0 < way[0] < 0.5, way[-1] == 1, sorted(way) == way]

    sink = Sink(2)
    with contextlib.suppress(KeyboardInterrupt):
        solved(flow, [1, 0], 1.0, store=Store(sink, every=5))
    sink.last = replace(sink.last, scalars={**sink.last.scalars, "seconds": 100.0 * c})
    before = time.perf_counter()
    again = solved(flow, [1, 0], 1.0, store=Store(sink, every=5)).work["seconds"] - 100.0 * c
    within.append(0 < again <= time.perf_counter() - before)

    calls: list[float] = []

    def measure(theta: Any) -> float:
        calls.append(theta)
        return c * theta

    once, states = shared(measure), (1000.5, 2000.5)
    values = [once(x) for x in states for _ in range(3)]
    known = [0.3, 0.6, 0.9, 1, 1, 1, 1, 1, 1, len(states), *(c * x for x in states)]
    return known, [*parts, *within, *steps, len(calls), values[1], values[-1]]


def descended(c: float, parts: list[float]) -> Any:
    """Ten steps, observed after every third."""

    def hear(part: float, words: str) -> None:
        parts.append(part)

    how = GradientDescent(RATE)
    return descend(bowl(c), begin([1, -2]), 10 * RATE, how, save=Every(3), progress=hear)


def tolerances(c: float) -> Numbers:
    """SciPy's engine takes fewer steps at a larger tolerance, and below 1e-13, which is the
    smallest that it can keep, no more of them."""

    def steps(rtol: float, method: str = "dop853") -> float:
        how = Solver("scipy", method, atol=rtol)
        return solved(flow_of(turn(c)), [1, 0], 3.0, rtol=rtol, solver=how).work["steps"]

    few, some, many = (steps(rtol) for rtol in (1e-3, 1e-6, 1e-12))
    floor = [steps(rtol) for rtol in (1e-13, 1e-14)]
    atol = [solved(flow_of(turn(c)), [1, 0], 1.0, rtol=r).atol for r in (1e-3, 1e-6)]
    mean = np.sqrt(0.5)
    known = [1, 1, 1, 1e-3 * mean, 1e-6 * mean, np.cos(c)]
    end = solved(flow_of(turn(c)), [1, 0], 1.0).final["x"][0]
    found = [few < 0.8 * some, some < 0.8 * many, floor[1] < 2 * floor[0], *atol, end]
    return known, [float(x) for x in found]


def precisions(c: float) -> Numbers:
    """A table that the caller's own compiled function holds in single precision is here in double
    precision, and there in single precision still."""
    table = np.array([c / 3, c / 7])
    single = jax.jit(lambda x: (x * table).sum())
    first = float(single(jnp.ones(2, dtype=np.float32)))
    flow = Flow(lambda th: -(th["x"] * table).sum())
    run = trained(flow, 10, GradientDescent(RATE))
    second = float(jax.jit(lambda x: (2 * x * table).sum())(jnp.ones(2, dtype=np.float32)))
    error = [run.final["x"][0] - 1 - c / 3, run.final["x"][1] + 2 - c / 7]
    small = [float(abs(x) < 1e-12) for x in error]
    return [1, 1, 10 * c / 21, 20 * c / 21], [*small, round(first, 6), round(second, 6)]


KEPT = {
    "a solve that is resumed": (resumed.__doc__, resumed),
    "what a stored state remembers of the pace": (windows.__doc__, windows),
    "what is handed over": (handed_over.__doc__, handed_over),
    "progress and seconds": (told_of.__doc__, told_of),
    "tolerances of the second engine": (tolerances.__doc__, tolerances),
    "two precisions": (precisions.__doc__, precisions),
}
