"""Discrete training behind the same interface: gradient descent, momentum, minibatches, Adam.

A discrete run returns the same `Solution` as a solve, over `time = step * rate`, so that a flow
and its discretisation are compared in one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, named_arguments, positive, shown
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params, Vector, squared_norm
from attnflow.flows.options import MOVED, Limits, Store, option
from attnflow.flows.phases import Phase, phases_of
from attnflow.flows.probes import Mark, Observable, crossings
from attnflow.flows.progress import Report, reporting
from attnflow.flows.recorder import Bounds, Course, Drift, Leg, interruptible, legs_of
from attnflow.flows.schedule import Every, Linear, Schedule, outputs_of
from attnflow.flows.sinks import Checkpoint, Event
from attnflow.flows.solution import Solution, Status


@dataclass(frozen=True)
class GradientDescent:
    """`theta <- theta - rate * grad L`: the Euler scheme of the flow. Time is `step * rate`."""

    rate: float = 0.01

    def transform(self) -> Any:
        import optax

        return optax.sgd(self.rate)


@dataclass(frozen=True)
class Momentum:
    """Heavy ball (or Nesterov) momentum; time is `step * rate / (1 - momentum)`."""

    rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False

    def transform(self) -> Any:
        import optax

        return optax.sgd(self.rate, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True)
class Adam:
    """Adam as in optax, with `decay` AdamW; time is `step * rate` (not comparable with the
    flow's, only shown)."""

    rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0

    def transform(self) -> Any:
        import optax

        b1, b2, eps = self.b1, self.b2, self.eps
        if self.decay:
            return optax.adamw(self.rate, b1=b1, b2=b2, eps=eps, weight_decay=self.decay)
        return optax.adam(self.rate, b1=b1, b2=b2, eps=eps)


Optimiser = GradientDescent | Momentum | Adam

MOST = 100_000_000
"""Steps of a descent, where no limit is given."""


@named_arguments(MOVED)
@float64
def descend(
    flow: FlowLike | Sequence[Phase],
    start: Params,
    until: float | None = None,
    optimiser: Optimiser = GradientDescent(),  # noqa: B008  (frozen)
    *,
    batch: Callable[[Params, Any], Any] | None = None,
    seed: int = 0,
    observe: Mapping[str, Observable | Callable] | None = None,
    marks: Mapping[str, Mark | Callable] | None = None,
    stops: Mapping[str, Mark | Callable] | None = None,
    save: Schedule = Linear(400),  # noqa: B008  (frozen)
    store: Store | None = None,
    limits: Limits | None = None,
    progress: bool | Report | None = None,
) -> Solution:
    """Train for `until / step` optimiser steps, where a step advances time as the optimiser says.

    flow
        As in `integrate`: a flow or a list of phases. A reduced flow that knows how descent on
        the weights acts on it (`GramFlow`) takes exactly those steps.
    batch
        A stochastic loss `batch(theta, key)`: minibatch SGD. Without it the full gradient of the
        flow is used (the velocity: rates per block act as learning rates per block).
    marks, stops
        As in `integrate`, looked at after every step: the time of an event is that of the first
        step behind the level, and a stop ends the run with that step.

    Steps between two observations run as compiled loops.

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> run = descend(flow, {"x": np.array([1.0])}, until=2.0, optimiser=GradientDescent(0.5))
    >>> float(run.final["x"][0])
    0.0625
    """
    where: Store = option("store", store, Store)
    most: Limits = option("limits", limits, Limits)
    dt = time_step(optimiser)
    phases = phases_of(flow, start, until)
    for phase in phases:
        _total(phase, dt, MOST if most.steps is None else most.steps)
    legs = legs_of(phases, start, observe, marks, stops)
    times = outputs_of(save, [round(phase.until / dt) * dt for phase in phases])
    run = _Descent(legs, start, optimiser, dt, batch, seed, where, save, times)
    # Overflow and NaN are answered with a status, not with NumPy's warnings.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with interruptible() as asked, reporting(progress, "descend") as report, quiet:
        status, sentence = run.go(Bounds(most, asked, steps=MOST, stalls=False), report)
    again = {
        "solve": descend,
        "flow": flow,
        "until": until,
        "optimiser": optimiser,
        "batch": batch,
        "seed": seed,
        "store": Store(every=where.every),
    }
    nan, solver = float("nan"), {"engine": "descent", "method": repr(optimiser)}
    return run.solution(flow, status, sentence, rtol=nan, atol=nan, solver=solver, _again=again)


def time_step(optimiser: Optimiser) -> float:
    """By how much a step advances time; its numbers are checked."""
    if not isinstance(optimiser, GradientDescent | Momentum | Adam):
        raise InputError(
            "optimiser", f"{shown(optimiser)}; GradientDescent, Momentum or Adam, with its rate"
        )
    rate = positive("rate", optimiser.rate)
    if isinstance(optimiser, Momentum):
        mu = optimiser.momentum
        if not (isinstance(mu, int | float) and 0 <= mu < 1):
            raise InputError("momentum", f"{shown(mu)}; at least 0 and below 1")
        return rate / (1 - mu)
    return rate


def _total(phase: Phase, dt: float, most: int) -> int:
    """The number of steps of a phase."""
    steps, field = phase.until / dt, f"phases.{phase.name}.until" if phase.name else "until"
    if round(steps) < 1:
        raise InputError(field, f"{phase.until:g} is less than one step of {dt:g}")
    if steps > most:
        raise InputError(
            field, f"{phase.until:g} takes {steps:,.0f} steps; limits.steps is {most:,}"
        )
    return round(steps)


class _Trainer:
    """The compiled loops: so many optimiser updates of the flat state, with or without marks."""

    CHUNK: ClassVar[int] = 1024
    """Steps of one loop that looks at the marks after each of them."""

    def __init__(self, leg: Leg, optimiser: Optimiser, batch: Any, seed: int):
        system, layout, probes = leg.system, leg.system.layout, leg.probes
        updates = getattr(leg.flow, "updates", None)
        own = updates(optimiser, layout, batch) if updates is not None else None
        transform = optimiser.transform() if own is None else own
        key = jax.random.key_data(jax.random.key(seed))
        self._init = transform.init

        def gradient(y: Any, key: Any) -> Any:
            if batch is None:
                return -system.trace_velocity(y)
            return system.trace_metric(jax.grad(lambda z: batch(layout.unflatten(z), key))(y))

        def step(k: Any, y: Any, state: Any) -> Any:
            # The key of a step is a function of its number, so a resumed run draws alike.
            grad = gradient(y, jax.random.fold_in(jax.random.wrap_key_data(key), k))
            update, state = transform.update(grad, state, y)
            return y + update, state

        def advance(y: Any, state: Any, first: Any, steps: Any) -> Any:
            return jax.lax.fori_loop(0, steps, lambda k, c: step(first + k, *c), (y, state))

        def watched(y: Any, state: Any, first: Any, steps: Any) -> Any:
            def body(k: Any, carry: Any) -> Any:
                y, state, seen = carry
                y, state = step(first + k, y, state)
                return y, state, seen.at[k].set(probes.trace_distances(y))

            seen = jnp.zeros((self.CHUNK, len(probes)))
            return jax.lax.fori_loop(0, steps, body, (y, state, seen))

        self.advance = jax.jit(advance)
        self.watched = jax.jit(watched)

    def begin(self, y: Vector) -> Any:
        return self._init(jnp.asarray(y))


class _Descent(Course):
    """One discrete training: phases outside, then observations, and compiled chunks in between."""

    def __init__(
        self,
        legs: list[Leg],
        start: Params,
        optimiser: Optimiser,
        dt: float,
        batch: Any,
        seed: int,
        store: Store,
        save: Schedule,
        times: Callable[[int, float], np.ndarray | None],
    ):
        super().__init__(legs, legs[0].system.layout.flatten(start), store)
        self._train = lambda leg: _Trainer(leg, optimiser, batch, seed)
        self._save, self._times = save, times
        self.dt, self.step, self._began = dt, 0, 0

    def go(self, bounds: Bounds, report: Report) -> tuple[Status, str]:
        self._clock, self.bounds, self._report = time.perf_counter(), bounds, report
        resumed = self.recorder.begin()
        index = 0 if resumed is None else int(resumed.scalars["leg"])
        for leg in self.legs[index:]:
            self._enter(leg, resumed)
            resumed = None
            try:
                status, sentence, stop = self._phase()
            finally:
                self.work.seconds = self.seconds()
                self.recorder.flush()
            met, span = stop == leg.phase.name, (self._began * self.dt, self.step * self.dt)
            ended = self.end_phase(status, sentence, met, *span)
            if ended is not None:
                return ended
        raise AssertionError("a schedule has a phase")

    def _enter(self, leg: Leg, resumed: Checkpoint | None) -> None:
        self.leg, self.trainer = leg, self._train(leg)
        self.drift = Drift(leg.system, self.y)
        self._began = self.step
        self.state = self.trainer.begin(self.y)
        if resumed is not None:
            self._restore(resumed)
        elif leg.index == 0 and 0 in self._observed():
            self._row(self.y, leg.probes.first)
        self._distances = leg.probes.distances(self.y)

    def _observed(self) -> set[int]:
        """The steps after which this phase is observed."""
        total = round(self.leg.phase.until / self.dt)
        times = self._times(self.leg.index, self._began * self.dt)
        if times is None:
            assert isinstance(self._save, Every)
            steps = self._began + np.arange(0, total + 1, self._save.steps)
        else:
            steps = np.round(times / self.dt).astype(int)
        self._end = self._began + total
        steps = steps[(steps >= self._began) & (steps <= self._end)]
        return {*steps.tolist(), self._began, self._end}

    def _phase(self) -> tuple[Status, str, str | None]:
        observed = self._observed()
        breaks = set(observed)
        if self.every:
            breaks |= set(range(-(-self._began // self.every) * self.every, self._end, self.every))
        for step in sorted(b for b in breaks if b > self.step):
            good, seen = self.y, self.step
            stop = self._advance(step)
            t = self.step * self.dt
            limit = self.bounds.reached(self.step, t, self.y, self._end * self.dt)
            if limit is not None and limit[0] is Status.DIVERGED:
                self.y, self.step = good, seen
                if self.recorder.last_time != seen * self.dt:
                    self._row(good)
                return *limit, None
            if self.step in observed or stop is not None or limit is not None:
                self._row(self.y)
            if stop is not None:
                sentence = f"'{stop.name}' was reached at t = {stop.time:.6g}, step {self.step:,}."
                return Status.STOPPED, sentence, stop.name
            if limit is not None:
                return *limit, None
            if self.every and step % self.every == 0:
                self.drift.look(self.y)
                if step != self._end:
                    self._checkpoint()
            self._report(step / self._end, f"step {step:,}")
        taken, t = self._end - self._began, self._end * self.dt
        return Status.DONE, f"took {taken:,} steps to t = {t:.6g}.", None

    def _advance(self, upto: int) -> Event | None:
        """Train up to a step, or to the first stop before it."""
        y = jnp.asarray(self.y)
        if not len(self.leg.probes):
            y, self.state = self.trainer.advance(y, self.state, self.step, upto - self.step)
            self._taken(y, upto)
            return None
        while self.step < upto:
            steps = min(self.trainer.CHUNK, upto - self.step)
            first, before, state = self.step, y, self.state
            y, self.state, seen = self.trainer.watched(y, state, first, steps)
            stop, taken = self._cross(np.asarray(seen)[:steps])
            if stop is not None:
                # The state where it stopped: the same steps once more, up to there.
                y, self.state = self.trainer.advance(before, state, first, taken)
            self._taken(y, first + taken)
            if stop is not None or not np.isfinite(self.y.sum()):
                return stop
        return None

    def _taken(self, y: Any, step: int) -> None:
        self.work.rhs += step - self.step
        self.work.steps = self.step = step
        self.y = np.asarray(y)
        self.work.seconds = self.seconds()

    def _cross(self, seen: np.ndarray) -> tuple[Event | None, int]:
        """Record the marks crossed in a chunk; returns its first stop and the steps up to there."""
        probes = self.leg.probes
        old = np.concatenate([self._distances[None], seen[:-1]])
        hit, direction = crossings(old, seen, probes.direction)
        steps = len(seen)
        stops = np.argwhere(hit & probes.is_stop)
        if len(stops):
            steps = int(stops[0][0]) + 1
        stop = None
        for k, i in np.argwhere(hit[:steps]).tolist():
            t = (self.step + k + 1) * self.dt
            event = Event(probes.names[i], t, int(direction[k, i]), probes.index[i])
            self.recorder.event(event)
            if stop is None and probes.is_stop[i]:
                stop = event
        self._distances = seen[steps - 1]
        return stop, steps

    def _row(self, y: Vector, measure: Callable[..., Any] | None = None) -> None:
        u = None
        if self.leg.system.gates is not None:
            u = (self.leg.system.guards(y) > 0) * 1.0
        out = np.empty_like(y)
        self.leg.system.rhs(y, out)
        measured = (measure or self.leg.probes.row)(y, u)
        speed = float(np.sqrt(squared_norm(out)))
        self.recorder.row(self.leg, self.step * self.dt, self.step, y, u, measured, speed)

    def _checkpoint(self) -> None:
        self.work.restarts += 1
        if not self.recorder.resumable:
            return
        leaves = jax.tree_util.tree_leaves(self.state)
        arrays = {f"optimiser.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        self.save(self.step * self.dt, arrays, {"began": self._began})

    def _restore(self, checkpoint: Checkpoint) -> None:
        leaves, tree = jax.tree_util.tree_flatten(self.state)
        leaves = [jnp.asarray(checkpoint.arrays[f"optimiser.{i}"]) for i in range(len(leaves))]
        self.state = jax.tree_util.tree_unflatten(tree, leaves)
        self.load(checkpoint)
        self.step, self._began = checkpoint.step, int(checkpoint.scalars["began"])
