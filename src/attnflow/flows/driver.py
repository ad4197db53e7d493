"""`integrate`: our own segmented driver around whichever engine solves the flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnflow._errors import InputError, positive, whole
from attnflow._precision import float64
from attnflow.flows.engines import Choice, Engine, Work, build, choose, has_cvode
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.probes import Mark, Marks, Observable, Observers
from attnflow.flows.progress import Report, reporting
from attnflow.flows.recorder import Drift, Limits, Recorder, interruptible, plain
from attnflow.flows.schedule import Every, Schedule, times_of
from attnflow.flows.sinks import Checkpoint, Event, MemorySink, Sink, dataset
from attnflow.flows.solution import Solution, Status, with_cross_check


@float64
def integrate(
    flow: FlowLike,
    start: Params,
    until: float,
    *,
    observe: Mapping[str, Observable | Callable] | None = None,
    marks: Mapping[str, Mark | Callable] | None = None,
    stops: Mapping[str, Mark | Callable] | None = None,
    save: Schedule = Every(1),  # noqa: B008  (frozen)
    rtol: float = 1e-6,
    atol: float | None = None,
    engine: str = "auto",
    method: str = "auto",
    jacobian: str = "auto",
    keep_states: bool = False,
    sink: Sink | None = None,
    checkpoint_every: int | None = None,
    max_steps: int = 1_000_000,
    max_seconds: float | None = None,
    progress: bool | Report | None = None,
    cross_check: bool = False,
) -> Solution:
    """Solve `theta' = flow(theta)` from `start` up to the time `until`.

    observe
        Named pure functions of the parameters; they stream to the sink at the times of `save`
        (`Every(k)` steps, `Linear(n)`, `Log(n)` or a list). The loss and the norm of the velocity
        (`speed`) are always there; the whole state only with `keep_states`.
    marks, stops
        Scalar functions that cross a level. A mark's time is found by root finding and the solve
        goes on, unchanged; a stop ends it there. All that cross in one step are recorded.
    rtol, atol
        `atol` follows the scale of the start unless given: `rtol` times its root mean square.
    engine, method, jacobian
        `cvode` (`bdf`, `adams`; products by `difference` or `exact`) or `scipy` (`lsoda`,
        `radau`, `bdf`, `dop853`, `rk45`); `auto` chooses and says why in `solution.solver`.
    sink, checkpoint_every
        Where rows go (memory by default) and after how many accepted steps the engine restarts
        from a stored state. A resumed solve replays from the last checkpoint, so it gives the
        same numbers as an uninterrupted one with the same `checkpoint_every`.
    cross_check
        Solve again with the second engine and report the differences in units of the tolerance.

    Returns a `Solution`; a solve that cannot finish says so in `status` and `sentence`.

    >>> flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> solution = integrate(flow, {"x": np.array([1.0])}, until=2.0)
    >>> abs(solution.final["x"][0] - np.exp(-2)) < 1e-5
    True
    """
    until, rtol = positive("until", until), positive("rtol", rtol)
    if rtol >= 0.1:
        raise InputError("rtol", f"{rtol:g}; a relative tolerance is below 0.1")
    max_steps = whole("max_steps", max_steps)
    if max_seconds is not None:
        max_seconds = positive("max_seconds", max_seconds)
    if checkpoint_every is not None:
        checkpoint_every = whole("checkpoint_every", checkpoint_every)
    system = flow.bind(start)
    y0 = system.layout.flatten(start)
    system.check(y0)
    atol = absolute_tolerance(y0, rtol) if atol is None else positive("atol", atol)
    choice = choose(system, y0, until, engine, method, jacobian)
    observers = Observers(system, observe)
    markers = Marks(system, marks or {}, stops or {})
    times = times_of(save, until)
    every = save.steps if isinstance(save, Every) else 0
    sink = MemorySink() if sink is None else sink

    with interruptible() as asked, reporting(progress, "integrate") as report:
        solve = _Solve(
            system=system,
            engine=build(choice, system, work := Work(), rtol, atol),
            work=work,
            recorder=Recorder(system, observers, sink, keep_states),
            marks=markers,
            outputs=_Outputs(times, every),
            limits=Limits(max_steps, max_seconds, until, asked),
            until=until,
            checkpoint_every=checkpoint_every,
            report=report,
        )
        status, sentence = solve.run(y0)

    segment = solve.recorder.collect()
    solution = Solution(
        trajectory=dataset(
            segment, solve.recorder.shape, {"flow": flow.name, "status": str(status)}
        ),
        status=status,
        sentence=sentence,
        events=segment.events,
        work=work.as_dict(),
        drift=solve.drift.worst,
        drifts=solve.drift.each,
        rtol=rtol,
        atol=atol,
        solver=choice.as_dict(),
        final=system.layout.numpy(solve.y),
        start=system.layout.numpy(y0),
        flow=flow,
        resumable=not isinstance(sink, MemorySink) and not status.complete,
        _options={
            "rtol": rtol,
            "atol": atol,
            "engine": choice.engine,
            "method": choice.method,
            "jacobian": choice.jacobian,
        },
    )
    if cross_check and solution.time > 0:
        solution = with_cross_check(solution, _second(flow, solution, observe, choice))
    return solution


def absolute_tolerance(y: Vector, rtol: float) -> float:
    """`rtol` times the root mean square of the start; of 1 for a start at the origin.

    Small starts need small absolute tolerances: the directions that will grow are that small.
    """
    largest = float(np.abs(y).max())
    if largest == 0:
        return rtol
    return rtol * largest * float(np.sqrt(np.mean((y / largest) ** 2)))


def _second(flow: FlowLike, first: Solution, observe: Any, choice: Choice) -> Solution:
    """The same solve by the other engine, observed at the same times."""
    other = "scipy" if choice.engine == "cvode" else "cvode"
    if other == "cvode" and not has_cvode():
        raise InputError("cross_check", "needs a second engine, and scikit-sundae is not installed")
    times = first.trajectory["time"].values
    return integrate(
        flow,
        first.start,
        until=first.time,
        observe=observe,
        save=times,
        rtol=first.rtol,
        atol=first.atol,
        engine=other,
        progress=False,
    )


class _Outputs:
    """Which output times fall into a step."""

    def __init__(self, times: np.ndarray | None, every: int):
        self._times = times
        self._every = every

    @property
    def at_start(self) -> bool:
        return self._times is None or self._times[0] == 0

    def due(self, after: float, upto: float, step: int, last: bool) -> list[float]:
        if self._times is None:
            return [upto] if last or step % self._every == 0 else []
        low, high = np.searchsorted(self._times, [after, upto], side="right")
        due = [float(t) for t in self._times[low:high]]
        # Where a solve ends is always shown, also after a stop, a limit or a shorter list of times.
        if last and (not due or due[-1] != upto):
            due.append(upto)
        return due


class _Solve:
    """One solve: engine steps outside, marks and outputs inside each step."""

    def __init__(
        self,
        *,
        system: System,
        engine: Engine,
        work: Work,
        recorder: Recorder,
        marks: Marks,
        outputs: _Outputs,
        limits: Limits,
        until: float,
        checkpoint_every: int | None,
        report: Report,
    ):
        self.system = system
        self.engine = engine
        self.work = work
        self.recorder = recorder
        self.marks = marks
        self.outputs = outputs
        self.limits = limits
        self.until = until
        self.checkpoint_every = checkpoint_every
        self.report = report
        self.y: Vector = np.empty(0)
        self.drift: Drift

    def run(self, y0: Vector) -> tuple[Status, str]:
        began = time.perf_counter()
        self.y = y0
        self.drift = Drift(self.system, y0)
        resumed = self.recorder.begin()
        before = 0.0
        if resumed is not None:
            before = self._restore(resumed)
        else:
            self.engine.start(0.0, y0)
            if self.outputs.at_start:
                self.recorder.row(0.0, 0, y0)
        # A mark that starts exactly on its level does not count as crossed there.
        self._distances = self.marks(self.engine.y) if len(self.marks) else np.empty(0)
        try:
            # Overflow and NaN are answered with a status, not with NumPy's warnings.
            with np.errstate(over="ignore", invalid="ignore"):
                status, sentence = self._loop(began, before)
        finally:
            # Whatever ends the loop, even an exception from a user's function, what was observed
            # reaches the sink.
            self.work.seconds = before + time.perf_counter() - began
            self.recorder.flush()
        self.drift.look(self.y)
        return status, sentence

    def _loop(self, began: float, before: float) -> tuple[Status, str]:
        shown = 0.0
        while self.engine.t < self.until:
            t_old, y_old = self.engine.t, self.y
            failure = self.engine.step(self.until)
            if failure is not None:
                return self._broken(Status.FAILED, failure, t_old, y_old)
            self.work.steps += 1
            step, t_new, self.y = self.work.steps, self.engine.t, self.engine.y

            stop = self._cross(t_old, t_new)
            end = t_new if stop is None else stop.time
            limit = self.limits.reached(step, t_new, self.y) if stop is None else None
            if limit is not None and limit[0] is Status.DIVERGED:
                return self._broken(*limit, t_old, y_old)
            last = stop is not None or limit is not None or t_new >= self.until
            if stop is not None:
                self.y = self.engine.interpolate(end)
            for t in self.outputs.due(t_old, end, step, last):
                self.recorder.row(t, step, self.engine.interpolate(t))
            if stop is not None:
                return Status.STOPPED, f"'{stop.name}' was reached at t = {stop.time:.6g}."
            if limit is not None:
                return limit

            if step % Drift.EVERY == 0:
                self.drift.look(self.y)
            if self.checkpoint_every and step % self.checkpoint_every == 0 and not last:
                self._checkpoint(step, t_new, before + time.perf_counter() - began)
            if (now := time.perf_counter()) - shown > 0.1:
                shown = now
                self.report(t_new / self.until, f"t = {t_new:.5g}  {self.work.rhs:,} evaluations")
        self.report(1.0, f"t = {self.engine.t:.5g}  {self.work.rhs + self.work.jvp:,} evaluations")
        return Status.DONE, f"reached t = {self.engine.t:.6g}."

    def _broken(self, status: Status, sentence: str, t: float, y: Vector) -> tuple[Status, str]:
        """End with the last good state, and with its row if the schedule had left it out."""
        self.y = y
        if self.recorder.last_time != t:
            self.recorder.row(t, self.work.steps, y)
        return status, sentence

    def _cross(self, t_old: float, t_new: float) -> Event | None:
        """Record the marks crossed in this step; returns the first stop, if one was crossed."""
        if not len(self.marks):
            return None
        old, new = self._distances, self.marks(self.engine.y)
        self._distances = new
        events, stop = self.marks.crossed(old, new, lambda i: self._root(i, t_old, t_new))
        for event in events:
            self.recorder.event(event)
        return stop

    def _root(self, i: int, low: float, high: float) -> float:
        """When mark `i` crosses its level inside the step, to the resolution of time."""
        from scipy.optimize import brentq

        def distance(t: float) -> float:
            return float(self.marks(self.engine.interpolate(t))[i])

        at_low, at_high = distance(low), distance(high)
        if at_high == 0:
            return high
        if at_low == 0 or np.sign(at_low) == np.sign(at_high):
            return low  # the interpolant meets the level at the very start of the step
        resolution = 16 * np.finfo(float).eps * max(abs(low), abs(high))
        # Without `disp`: a mark that is flat at its level (a cube) converges slowly, no exception.
        root = brentq(distance, low, high, xtol=resolution, disp=False)
        return float(root)  # pyright: ignore[reportArgumentType]

    def _checkpoint(self, step: int, t: float, seconds: float) -> None:
        arrays, scalars = self.drift.save()
        scalars |= self.limits.save()
        self.work.seconds = seconds
        self.work.restarts += 1
        self.recorder.checkpoint(
            Checkpoint(step, t, {"state": self.y, **arrays}, plain({**scalars, **vars(self.work)}))
        )
        self.engine.start(t, self.y)

    def _restore(self, checkpoint: Checkpoint) -> float:
        """Go on from a checkpoint; returns the seconds already spent."""
        for name in ("rhs", "jvp", "steps", "restarts"):
            setattr(self.work, name, int(checkpoint.scalars[name]))
        self.drift.load(checkpoint)
        self.limits.load(checkpoint)
        self.recorder.last_time = checkpoint.time
        self.y = np.asarray(checkpoint.arrays["state"])
        self.engine.start(checkpoint.time, self.y)
        return float(checkpoint.scalars["seconds"])
