"""Discrete training behind the same interface: gradient descent, momentum, minibatches, Adam.

A discrete run returns the same `Solution` as a solve, over `time = step * rate`, so that a flow
and its discretisation are compared in one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, positive, whole
from attnflow._precision import float64
from attnflow.flows.engines import Work
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.probes import Mark, Marks, Observable, Observers
from attnflow.flows.progress import Report, reporting
from attnflow.flows.recorder import Drift, Limits, Recorder, interruptible, plain
from attnflow.flows.schedule import Every, Linear, Schedule, times_of
from attnflow.flows.sinks import Checkpoint, Event, MemorySink, Sink, dataset
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
    """Adam as in optax; time is `step * rate` (not comparable with the flow's, only shown)."""

    rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def transform(self) -> Any:
        import optax

        return optax.adam(self.rate, b1=self.b1, b2=self.b2, eps=self.eps)


Descent = GradientDescent | Momentum | Adam


@float64
def descend(
    flow: FlowLike,
    start: Params,
    until: float,
    optimiser: Descent = GradientDescent(),  # noqa: B008  (frozen)
    *,
    batch: Callable[[Params, Any], Any] | None = None,
    seed: int = 0,
    observe: Mapping[str, Observable | Callable] | None = None,
    marks: Mapping[str, Mark | Callable] | None = None,
    stops: Mapping[str, Mark | Callable] | None = None,
    save: Schedule = Linear(400),  # noqa: B008  (frozen)
    keep_states: bool = False,
    sink: Sink | None = None,
    checkpoint_every: int | None = None,
    max_steps: int = 100_000_000,
    max_seconds: float | None = None,
    progress: bool | Report | None = None,
) -> Solution:
    """Train for `until / step` optimiser steps, where a step advances time as the optimiser says.

    batch
        A stochastic loss `batch(theta, key)`: minibatch SGD. Without it the full gradient of the
        flow is used (the velocity: rates per block act as learning rates per block).
    marks, stops
        As in `integrate`, looked at whenever the run is observed; the time of a crossing is
        interpolated linearly between two observations.

    Steps between two observations run as one compiled loop.

    >>> flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> run = descend(flow, {"x": np.array([1.0])}, until=2.0, optimiser=GradientDescent(0.5))
    >>> float(run.final["x"][0])
    0.0625
    """
    system = flow.bind(start)
    y0 = system.layout.flatten(start)
    system.check(y0)
    dt = _time_step(optimiser)
    until = positive("until", until)
    max_steps = whole("max_steps", max_steps)
    if max_seconds is not None:
        max_seconds = positive("max_seconds", max_seconds)
    if checkpoint_every is not None:
        checkpoint_every = whole("checkpoint_every", checkpoint_every)
    total = round(until / dt)
    if total < 1:
        raise InputError("until", f"{until:g} is less than one step of {dt:g}")
    if total > max_steps:
        raise InputError("until", f"{until:g} takes {total:,} steps; max_steps is {max_steps:,}")
    stride = checkpoint_every or 0
    outputs = _output_steps(save, total, dt)
    if stride:
        outputs = np.union1d(outputs, np.arange(stride, total, stride))
    sink = MemorySink() if sink is None else sink
    recorder = Recorder(system, Observers(system, observe), sink, keep_states)
    markers = Marks(system, marks or {}, stops or {})
    trainer = _Trainer(system, optimiser, batch, seed)
    work = Work()

    with interruptible() as asked, reporting(progress, "descend") as report:
        limits = Limits(max_steps + 1, max_seconds, total * dt, asked, stalls=False)
        run = _Run(system, trainer, recorder, markers, limits, work, dt, stride, report)
        # Overflow and NaN are answered with a status, not with NumPy's warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            status, sentence = run.go(y0, outputs, set(_output_steps(save, total, dt).tolist()))

    segment = recorder.collect()
    return Solution(
        trajectory=dataset(segment, recorder.shape, {"flow": flow.name, "status": str(status)}),
        status=status,
        sentence=sentence,
        events=segment.events,
        work=work.as_dict(),
        drift=run.drift.worst,
        drifts=run.drift.each,
        rtol=float("nan"),
        atol=float("nan"),
        solver={"engine": "descent", "method": repr(optimiser)},
        final=system.layout.numpy(run.y),
        start=system.layout.numpy(y0),
        flow=flow,
        resumable=not isinstance(sink, MemorySink) and not status.complete,
    )


def _time_step(optimiser: Descent) -> float:
    rate = positive("rate", optimiser.rate)
    if isinstance(optimiser, Momentum):
        if not 0 <= optimiser.momentum < 1:
            raise InputError("momentum", f"{optimiser.momentum}; at least 0 and below 1")
        return rate / (1 - optimiser.momentum)
    return rate


def _output_steps(save: Schedule, total: int, dt: float) -> np.ndarray:
    """The steps after which the run is observed: increasing, from 0 to the last."""
    times = times_of(save, total * dt)
    if times is None:
        assert isinstance(save, Every)
        steps = np.arange(0, total + 1, save.steps)
    else:
        steps = np.round(times / dt).astype(int)
    return np.unique(np.concatenate([[0], np.clip(steps, 0, total), [total]]))


class _Trainer:
    """The compiled loop: `steps` optimiser updates of the flat state."""

    def __init__(self, system: System, optimiser: Descent, batch: Any, seed: int):
        self._transform = optimiser.transform()
        self._key = jax.random.key_data(jax.random.key(seed))
        layout = system.layout

        def gradient(y: Any, key: Any) -> Any:
            if batch is None:
                return -system.trace_velocity(y)
            return system.trace_metric(jax.grad(lambda z: batch(layout.unflatten(z), key))(y))

        @jax.jit
        def advance(y: Any, state: Any, first: Any, steps: Any) -> Any:
            key = jax.random.wrap_key_data(self._key)

            def body(k: Any, carry: Any) -> Any:
                y, state = carry
                # The key of a step is a function of its number, so a resumed run draws alike.
                grad = gradient(y, jax.random.fold_in(key, first + k))
                update, state = self._transform.update(grad, state, y)
                return y + update, state

            return jax.lax.fori_loop(0, steps, body, (y, state))

        self._advance = advance

    def begin(self, y: Vector) -> Any:
        return self._transform.init(jnp.asarray(y))

    def advance(self, y: Any, state: Any, first: int, steps: int) -> tuple[Any, Any]:
        return self._advance(y, state, first, steps)


class _Run:
    """One discrete run, from observation to observation."""

    def __init__(
        self,
        system: System,
        trainer: _Trainer,
        recorder: Recorder,
        marks: Marks,
        limits: Limits,
        work: Work,
        dt: float,
        stride: int,
        report: Report,
    ):
        self.system, self.trainer, self.recorder, self.marks = system, trainer, recorder, marks
        self.limits, self.work, self.dt, self.stride = limits, work, dt, stride
        self.report = report
        self.y: Vector = np.empty(0)
        self.drift: Drift

    def go(self, y0: Vector, breaks: np.ndarray, observed: set[int]) -> tuple[Status, str]:
        began = time.perf_counter()
        self.y, y = y0, jnp.asarray(y0)
        self.drift = Drift(self.system, y0)
        state = self.trainer.begin(y0)
        at, before = 0, 0.0
        resumed = self.recorder.begin()
        if resumed is not None:
            y, state, at, before = self._restore(resumed, state)
            self.recorder.last_time = resumed.time
        elif 0 in observed:
            self.recorder.row(0.0, 0, y0)
        self._distances = self.marks(self.y) if len(self.marks) else np.empty(0)
        seen = at
        ended = Status.DONE, f"took {breaks[-1]:,} steps to t = {breaks[-1] * self.dt:.6g}."
        for step in breaks[breaks > at].tolist():
            y, state = self.trainer.advance(y, state, at, step - at)
            self.work.rhs += step - at
            at = self.work.steps = step
            good, self.y = self.y, np.asarray(y)
            t = step * self.dt
            self.work.seconds = before + time.perf_counter() - began
            limit = self.limits.reached(step, t, self.y)
            if limit is not None and limit[0] is Status.DIVERGED:
                ended, self.y = limit, good
                if self.recorder.last_time != seen * self.dt:
                    self.recorder.row(seen * self.dt, seen, good)
                break
            stop = self._cross(seen * self.dt, t)
            seen = step
            if step in observed or stop is not None or limit is not None:
                self.recorder.row(t, step, self.y)
            if stop is not None or limit is not None:
                reached = f"'{stop.name}' was reached at t = {stop.time:.6g}." if stop else ""
                ended = limit or (Status.STOPPED, reached)
                break
            if self.stride and step % self.stride == 0:
                self.drift.look(self.y)
                if step != breaks[-1]:
                    self._checkpoint(step, t, state)
            self.report(step / breaks[-1], f"step {step:,}")
        self.drift.look(self.y)
        self.work.seconds = before + time.perf_counter() - began
        self.recorder.flush()
        return ended

    def _cross(self, t_old: float, t_new: float) -> Event | None:
        if not len(self.marks):
            return None
        old, new = self._distances, self.marks(self.y)
        self._distances = new

        def between(i: int) -> float:
            return t_old + (t_new - t_old) * float(old[i] / (old[i] - new[i]))

        events, stop = self.marks.crossed(old, new, between)
        for event in events:
            self.recorder.event(event)
        return stop

    def _checkpoint(self, step: int, t: float, state: Any) -> None:
        arrays, scalars = self.drift.save()
        leaves = jax.tree_util.tree_leaves(state)
        arrays |= {f"optimiser.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        self.work.restarts += 1
        self.recorder.checkpoint(
            Checkpoint(step, t, {"state": self.y, **arrays}, plain({**scalars, **vars(self.work)}))
        )

    def _restore(self, checkpoint: Checkpoint, state: Any) -> tuple[Any, Any, int, float]:
        leaves, tree = jax.tree_util.tree_flatten(state)
        leaves = [jnp.asarray(checkpoint.arrays[f"optimiser.{i}"]) for i in range(len(leaves))]
        for name in ("rhs", "jvp", "steps", "restarts"):
            setattr(self.work, name, int(checkpoint.scalars[name]))
        self.drift.load(checkpoint)
        self.y = np.asarray(checkpoint.arrays["state"])
        state = jax.tree_util.tree_unflatten(tree, leaves)
        return jnp.asarray(self.y), state, checkpoint.step, float(checkpoint.scalars["seconds"])
