"""Descents whose every step is known: rows, marks, phases, momentum, Adam, minibatches."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._precision import float64
from attnflow.claims.instruments.systems import Numbers, Sink, begin
from attnflow.flows import (
    Adam,
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Mark,
    Momentum,
    Phase,
    Store,
)
from attnflow.flows.discrete import Optimiser, _Trainer, descend
from attnflow.flows.solution import Solution

RATE, CHUNK = 0.1, _Trainer.CHUNK


def bowl(c: float, **options: Any) -> Flow:
    """L = c x1^2 / 2 + x2^2 / 2."""
    return Flow(lambda th: 0.5 * (c * th["x"][0] ** 2 + th["x"][1] ** 2), **options)


def trained(flow: Any, steps: float | None, how: Optimiser, **options: Any) -> Solution:
    until = None if steps is None else steps * RATE
    return descend(flow, begin([1.0, -2.0]), until, how, progress=False, **options)


def stepped(c: float) -> Numbers:
    """x_k = (1 - rate c)^k: rows at every third step and at the end, at their times, with loss and
    speed; equal times are rounded to steps; every step is counted."""
    runs = [trained(bowl(c), 10, GradientDescent(RATE), save=s) for s in (Every(3), Linear(4))]
    known, found = [], []
    for run, steps in zip(runs, ([0, 3, 6, 9, 10], [0, 3, 7, 10]), strict=True):
        k = np.array(steps)
        x, y = (1 - RATE * c) ** k, -2 * (1 - RATE) ** k
        known += [k, RATE * k, (c * x**2 + y**2) / 2, np.hypot(c * x, y), [x[-1], y[-1], 10, 10]]
        rows = run.trajectory
        found += [rows[name].values for name in ("step", "time", "loss", "speed")]
        found += [[*run.final["x"], run.work["steps"], run.work["rhs"]]]
    return np.concatenate(known).tolist(), np.concatenate(found).tolist()


def crossed(c: float) -> Numbers:
    """At 1.5 over its curvature x1 changes sign with every step; marks of one direction see every
    second one, an event is of the first step behind its level, and a stop ends the run with that
    step, in whichever chunk of steps it is."""
    far = Mark(lambda th: th["x"][1], -2 * (1 - RATE * 1e-3) ** (CHUNK + 2.5), 1)
    flow = Flow(lambda th: 0.5 * (15 * th["x"][0] ** 2 + 5e-4 * c * th["x"][1] ** 2))
    x = lambda th: th["x"][0] * 2.0**20  # noqa: E731
    marks = {"up": Mark(x, 0.0, 1), "down": Mark(x, 0.0, -1), "both": lambda th: th["x"] - 0.4}
    how: dict[str, Any] = {"marks": marks, "stops": {"far": far}, "save": Linear(2)}
    run = trained(flow, 3 * CHUNK, GradientDescent(RATE), **how)
    first = [(e.time / RATE, e.direction, e.index, len(e.name)) for e in run.events[:5]]
    known = [1, -1, 0, 4, 1, -1, 0, 4, 2, 1, 0, 2, 3, -1, 0, 4, 4, 1, 0, 2]
    last, end = run.events[-1], CHUNK + 3
    known += [end, 1, end, -2 * (1 - RATE * 1e-3) ** end]
    told = [last.time / RATE, last.direction, run.work["steps"], run.final["x"][1]]
    return known, [*np.ravel(first), *told]


def descents_phased(c: float) -> Numbers:
    """Four steps in one bowl, then another until x1 is below a tenth, then
    two at half the rate: each begins where the one before ended, on one clock."""
    stop = Mark(lambda th: th["x"][0], 0.1, -1)
    phases = [
        Phase("one", bowl(c), 4 * RATE),
        Phase("two", bowl(0.7 * c), 50 * RATE, stop),
        Phase("three", bowl(c, rates={"x": 0.5}), 2 * RATE),
    ]
    run = trained(phases, None, GradientDescent(RATE), save=Every(2))
    path = [1.0]
    for _ in range(4):
        path.append(path[-1] * (1 - RATE * c))
    while path[-1] >= 0.1:
        path.append(path[-1] * (1 - 0.7 * RATE * c))
    middle = len(path) - 1
    path += [path[-1] * (1 - RATE * c / 2), path[-1] * (1 - RATE * c / 2) ** 2]
    parts = [x / RATE for part in run.phases for x in (part.begins, part.ends)]
    rows = run.trajectory["step"].values[[0, 1, 2, 3, -2, -1]]
    known = [0, 4, 4, middle, middle, middle + 2, 0, 2, 4, 6, middle, middle + 2]
    known += [path[-1], 4, middle, middle + 2]
    return known, [*parts, *rows, run.final["x"][0], *(e.time / RATE for e in run.events)]


def with_memory(c: float) -> Numbers:
    """Heavy ball and Nesterov's momentum, Adam, and AdamW with its decay, step by step; time goes
    by the rate over one minus the momentum."""
    known, found, weights = [], [], np.array([c, 1.0])
    for nesterov in (False, True):
        x, v = np.array([1.0, -2.0]), np.zeros(2)
        for _ in range(8):
            g = weights * x
            v = 0.5 * v + g
            x = x - RATE * ((g + 0.5 * v) if nesterov else v)
        run = trained(bowl(c), 16, Momentum(RATE, 0.5, nesterov))
        known += [*x, 8, 16 * RATE]
        found += [*run.final["x"], run.work["steps"], run.time]
    for decay in (0.0, 0.3):
        x, m, s = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
        for k in range(1, 9):
            g = weights * x**3
            m, s = 0.8 * m + 0.2 * g, 0.9 * s + 0.1 * g**2
            step = m / (1 - 0.8**k) / (np.sqrt(s / (1 - 0.9**k)) + 1e-3)
            x = x - RATE * (step + decay * x)
        flow = Flow(lambda th: 0.25 * (c * th["x"][0] ** 4 + th["x"][1] ** 4))
        run = trained(flow, 8, Adam(RATE, 0.8, 0.9, 1e-3, decay))
        known, found = [*known, *x], [*found, *run.final["x"]]
    return known, found


@float64
def minibatches(c: float) -> Numbers:
    """The draw of a step is that of its number under the seed's key; rates of blocks act on it."""
    key, x = jax.random.key(7), np.array([1.0, -2.0])

    def noise(key: Any) -> Any:
        return jax.random.normal(key, (2,), dtype=float)

    for k in range(6):
        x = x - RATE * 0.5 * (c * x + np.asarray(noise(jax.random.fold_in(key, k))))
    flow = Flow(lambda th: 0.5 * c * (th["x"] ** 2).sum(), rates={"x": 0.5})
    batch = lambda th, key: 0.5 * c * (th["x"] ** 2).sum() + jnp.sum(noise(key) * th["x"])  # noqa: E731
    how: dict[str, Any] = {"batch": batch, "seed": 7, "save": Linear(2)}
    marks = {"never": Mark(lambda th: th["x"][0], 9.0)}
    runs = [trained(flow, 6, GradientDescent(RATE), **how, marks=m) for m in (None, marks)]
    return [*x, *x], np.ravel([run.final["x"] for run in runs]).tolist()


def descents_resumed(c: float) -> Numbers:
    """Adam that breaks after its second stored state goes on as if nothing was: its rows, its
    drift, which is looked at with every stored state and at the end, and its events."""
    broken, whole = Sink(2), Sink()
    kept = {"first": lambda th: th["x"][0] ** 2}
    marks = {"half": Mark(lambda th: th["x"][0], 0.5)}

    def go(strength: float, sink: Sink) -> list[float]:
        flow = bowl(strength, conserved=kept)
        where = Store(sink, every=5)
        run = trained(flow, 23, Adam(RATE), save=Every(4), store=where, marks=marks)
        rows, steps = run.trajectory, [e.time / RATE for e in run.events]
        told = [*rows["loss"].values, *rows["step"].values, run.drifts["first"], *steps]
        return [*told, run.work["steps"], run.work["restarts"]]

    with contextlib.suppress(KeyboardInterrupt):
        go(2.0, broken)
    known = [*go(2.0, whole), 20, 20 * RATE, 10, 10 * RATE]
    ended = [broken.last.step, broken.last.time]
    again = go(c, broken if c == 2.0 else Sink())
    return known, [*again, whole.last.step, whole.last.time, *ended]


def drift_of_descent(c: float) -> Numbers:
    """x1^2 along (1 - rate c)^k, which falls and, at the rate 2.2 / c, grows: its largest change at
    the stored states and at the end, over the largest squared norm."""
    kept, steps = {"first": lambda th: th["x"][0] ** 2}, np.array([0, 4, 8, 10])
    known, found = [], []
    for strength in (c, 22.0):
        run = trained(
            bowl(strength, conserved=kept), 10, GradientDescent(RATE), store=Store(every=4)
        )
        x, y = (1 - RATE * strength) ** steps, -2 * (1 - RATE) ** steps
        known.append(np.abs(x**2 - 1).max() / (x**2 + y**2).max())
        found.append(run.drifts["first"])
    return known, found


def descents_limited(c: float) -> Numbers:
    """A descent that has no time left ends with the steps to its first row, one that has enough
    takes all of its steps, and says how many; the rows of a second phase are at its own times."""
    how = GradientDescent(RATE)
    runs = [trained(bowl(c), 10, how, save=Every(3), limits=Limits(seconds=s)) for s in (1e-9, 1e6)]
    said = [float(run.sentence.split()[1]) for run in runs[1:]]
    steps = [run.work["steps"] for run in runs]
    phases = [Phase("one", bowl(c), 4 * RATE), Phase("two", bowl(c), 6 * RATE)]
    rows = trained(phases, None, how, save=Linear(3)).trajectory["step"].values
    known = [3, 10, 10, 0, 2, 4, 7, 10, (1 - RATE * c) ** 3]
    return known, [*steps, *said, *rows, runs[0].final["x"][0]]


def diverged(c: float) -> Numbers:
    """x <- x - x^3 c / 10 from 100 overflows: the run says so, with its last finite row."""
    flow = Flow(lambda th: 0.25 * c * th["x"][0] ** 4)
    how = GradientDescent(RATE)
    run = descend(flow, begin([100.0]), 30 * RATE, how, progress=False, save=Every(1))
    path = [100.0]
    while np.isfinite(path[-1]):
        with np.errstate(over="ignore"):
            path.append(float(np.float64(path[-1]) * (1 - RATE * c * np.float64(path[-1]) ** 2)))
    steps = len(path) - 2
    rows = run.trajectory["step"].values
    known = [np.log(abs(path[-2])), steps, steps, 0]
    return known, [np.log(abs(run.final["x"][0])), rows[-1], len(rows) - 1, run.status.complete]


DESCENTS = {
    "steps of a descent": (stepped.__doc__, stepped),
    "marks and stops of a descent": (crossed.__doc__, crossed),
    "phases of a descent": (descents_phased.__doc__, descents_phased),
    "optimisers with a memory": (with_memory.__doc__, with_memory),
    "minibatches": (minibatches.__doc__, minibatches),
    "a descent that is resumed": (descents_resumed.__doc__, descents_resumed),
    "drift of a descent": (drift_of_descent.__doc__, drift_of_descent),
    "what ends a descent": (descents_limited.__doc__, descents_limited),
    "a descent that diverges": (diverged.__doc__, diverged),
}
