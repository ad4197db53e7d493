"""`integrate`: our own driver around whichever engine solves the flow, from switch to switch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnflow._errors import InputError, named_arguments, positive
from attnflow._precision import float64
from attnflow.flows import opinion
from attnflow.flows.engines import Choice, build, choose
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Shares, Vector
from attnflow.flows.options import MOVED, Limits, Solver, Store, has_cvode, option
from attnflow.flows.phases import Phase, phases_of
from attnflow.flows.probes import Mark, Observable, crossings
from attnflow.flows.progress import Report, reporting, seldom
from attnflow.flows.recorder import Bounds, Course, Drift, Leg, interruptible, legs_of
from attnflow.flows.schedule import Every, Schedule, outputs_of
from attnflow.flows.sinks import Checkpoint, Event
from attnflow.flows.solution import Solution, Status, cross_checked
from attnflow.flows.switching import Field
from attnflow.flows.users import kinks

DRIFT = 1000.0
"""A conserved quantity that moved by more than so many rtol was not conserved."""
GRAZING_TOLERANCE = 1e-10
"""How far beyond its surface a gate may be that never left it: more is a switch."""


@named_arguments(MOVED)
@float64
def integrate(
    flow: FlowLike | Sequence[Phase],
    start: Params,
    until: float | None = None,
    *,
    observe: Mapping[str, Observable | Callable] | None = None,
    marks: Mapping[str, Mark | Callable] | None = None,
    stops: Mapping[str, Mark | Callable] | None = None,
    save: Schedule = Every(1),  # noqa: B008  (frozen)
    rtol: float = 1e-6,
    solver: Solver | str | None = None,
    store: Store | None = None,
    limits: Limits | None = None,
    progress: bool | Report | None = None,
) -> Solution:
    """Solve `theta' = flow(theta)` from `start` up to the time `until`.

    flow
        A flow, or a list of `Phase`s: each is solved from where the one before ended, on one
        clock. A phase that ends is an event of its name; one that does not reach its stop ends
        the schedule. A flow with gates is solved exactly through their switches, with a row at
        each, and along their surfaces where it slides; `solution.modes` lists the stretches.
    observe
        Named pure functions of the parameters; they stream to the sink at the times of `save`
        (`Every(k)` steps, `Linear(n)`, `Log(n)` or a list). The loss and the norm of the velocity
        (`speed`) are always there.
    marks, stops
        Scalar functions that cross a level. A mark's time is found by root finding and the solve
        goes on, unchanged; a stop ends it there. All that cross in one step are recorded.
    rtol, solver
        The relative tolerance, and who solves: see `Solver`.
    store, limits
        Where rows and restart points go (see `Store`), and how far to go at most (`Limits`).

    Returns a `Solution`; a solve that cannot finish says so in `status` and `sentence`.

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> solution = integrate(flow, {"x": np.array([1.0])}, until=2.0)
    >>> round(float(solution.final["x"][0]), 4)  # exp(-2)
    0.1353
    """
    rtol = positive("rtol", rtol)
    if rtol >= 0.1:
        raise InputError("rtol", f"{rtol:g}; a relative tolerance is below 0.1")
    rtol, how = opinion.applied(rtol, option("solver", solver, Solver))
    where: Store = option("store", store, Store)
    most: Limits = option("limits", limits, Limits)
    phases = phases_of(flow, start, until)
    times = outputs_of(save, [phase.until for phase in phases])
    legs = legs_of(phases, start, observe, marks, stops)
    y0 = legs[0].system.layout.flatten(start)
    atol = absolute_tolerance(legs[0].system, y0, rtol)
    atol = atol if how.atol is None else positive("atol", how.atol)
    solve = _Solve(legs, y0, rtol, atol, how, where, most, times, save)
    with interruptible() as asked, reporting(progress, "integrate") as report:
        status, sentence = solve.run(asked, seldom(report))
    chosen = solve.choice  # not chosen again: the same steps once more
    again = {
        "solve": integrate,
        "flow": flow,
        "until": until,
        "rtol": rtol,
        "solver": Solver(chosen.engine, chosen.method, chosen.jacobian, atol),
        "store": Store(every=where.every),
    }
    solution = solve.solution(
        flow,
        status,
        sentence,
        rtol=rtol,
        atol=atol,
        solver=chosen.as_dict(),
        modes=solve.field.listed(),
        _again=again,
    )
    if how.cross_check and solution.time > 0:
        solution = cross_checked(solution, _second(solution, observe, solve.choice))
    return solution


def absolute_tolerance(system: System, y: Vector, rtol: float) -> float:
    """`rtol` times the flow's scale, or the root mean square of the start (1 at the origin).

    Small starts need small absolute tolerances: the directions that will grow are that small.
    """
    if system.flow.scale is not None:
        return rtol * system.flow.scale
    largest = float(np.abs(y).max())
    if largest == 0:
        return rtol
    return rtol * largest * float(np.sqrt(np.mean((y / largest) ** 2)))


def _second(first: Solution, observe: Any, choice: Choice) -> Solution:
    """The same solve by the other engine, observed at the same times."""
    other = "scipy" if choice.engine == "cvode" else "cvode"
    if other == "cvode" and not has_cvode():
        raise InputError("cross_check", "needs a second engine, and scikit-sundae is not installed")
    return first.again(
        observe=observe, save=first.trajectory["time"].values, solver=Solver(other, atol=first.atol)
    )


class _Solve(Course):
    """One solve: phases outside, then modes, engine steps, and events and outputs in each step."""

    def __init__(
        self,
        legs: list[Leg],
        y0: Vector,
        rtol: float,
        atol: float,
        solver: Solver,
        store: Store,
        limits: Limits,
        times: Callable[[int, float], np.ndarray | None],
        save: Schedule,
    ):
        super().__init__(legs, y0, store)
        self.rtol, self.atol, self.solver, self.limits = rtol, atol, solver, limits
        self._times, self._save = times, save
        self._switches = 0
        self._enter(0, 0.0)

    def _enter(self, index: int, t: float) -> None:
        """Get ready for a phase that begins at t."""
        self.leg = self.legs[index]
        modes = self.field.modes if index else []
        self.field = Field(self.leg.system)
        self.field.modes = modes
        self.began, self.end = t, t + self.leg.phase.until
        self.choice = choose(self.field, self.y, self.leg.phase.until, self.solver)
        self.engine = build(self.choice, self.field, self.work, self.rtol, self.atol)
        self.times = self._times(index, t)
        self.drift = Drift(self.leg.system, self.y)

    def run(self, asked: Any, report: Report) -> tuple[Status, str]:
        self._clock, self._report = time.perf_counter(), report
        self.bounds = Bounds(self.limits, asked, steps=1_000_000)
        resumed = self.recorder.begin()
        try:
            # Overflow and NaN are answered with a status, not with NumPy's warnings.
            with np.errstate(over="ignore", invalid="ignore"):
                if resumed is None:
                    lost = self.field.begin(self.y)
                    if lost is not None:
                        raise InputError("start", lost)
                    self._restart(0.0)
                    measured = self.leg.probes.first(self.y, self.u)
                    if self.times is None or (len(self.times) and self.times[0] == 0):
                        self._row(0.0, self.y, self.u, measured)
                else:
                    self._restore(resumed)
                return self._phases()
        finally:
            # Whatever ends the loop, even an exception from a user's function, what was observed
            # reaches the sink.
            self.work.seconds = self.seconds()
            self.recorder.flush()

    def _phases(self) -> tuple[Status, str]:
        while True:
            status, sentence = self._loop()
            self._note(self.now)
            met = status is Status.STOPPED and sentence.startswith(f"'{self.leg.phase.name}' ")
            ended = self.end_phase(status, sentence, met, self.began, self.now)
            if ended is not None:
                return self._judged(*ended)
            t = self.now
            self._enter(self.leg.index + 1, t)
            lost = self.field.begin(self.y)
            if lost is not None:
                return Status.FAILED, f"{self.leg.phase.name}: {lost}"
            self._restart(t)
            self._checkpoint(t)

    def _judged(self, status: Status, sentence: str) -> tuple[Status, str]:
        """A solve whose conserved quantities moved did not follow the flow."""
        moved = {n: d for n, d in self.drifts.items() if not d <= DRIFT * self.rtol}
        if status.complete and moved:
            name = max(moved, key=moved.__getitem__)
            return Status.DRIFTED, (
                f"{sentence[:-1]}, but {name!r} drifted by {moved[name]:.1e}, more than "
                f"{DRIFT:g} times rtol = {self.rtol:g}: tighten rtol."
            )
        return status, sentence

    def _loop(self) -> tuple[Status, str]:
        # What is left after a switch at the very end is below the resolution of time.
        while self.end - self.engine.t > 1e-14 * self.end:
            t_old, y_old = self.engine.t, self.y
            failure = self.engine.step(self.end)
            if failure is not None:
                return self._broken(Status.FAILED, failure, t_old, y_old)
            self.work.steps += 1
            step, t_new, self.y = self.work.steps, self.engine.t, self.engine.y
            limit = self.bounds.reached(step, t_new, self.y, self.end)
            if limit is not None and limit[0] is Status.DIVERGED:
                return self._broken(*limit, t_old, y_old)

            ahead = limit is None and t_new < self.end
            stop, switch, row = self._cross(t_old, t_new, self._due_at(step, not ahead))
            if stop is not None or switch is not None:
                limit, ended = None, stop.time if stop is not None else switch[0]  # type: ignore
                self.y = self.engine.interpolate(ended)
                self.now, row = ended, None
            last = stop is not None or limit is not None or not ahead
            self._rows(t_old, self.now, step, last or switch is not None, row)
            if stop is not None:
                return Status.STOPPED, f"'{stop.name}' was reached at t = {stop.time:.6g}."
            if limit is not None:
                return self._hinted(limit)
            if switch is not None:
                lost = self._switch(*switch)
                if lost is not None:
                    return lost
                continue
            if step % Drift.EVERY == 0:
                self.drift.look(self.y)
            if self.every and step % self.every == 0 and not last:
                self._checkpoint(t_new)
                self.engine.start(t_new, self.y)
            self._report(t_new / self.end, f"t = {t_new:.5g}  {self.work.rhs:,} evaluations")
        return Status.DONE, f"reached t = {self.engine.t:.6g}."

    def _due_at(self, step: int, last: bool) -> bool:
        """Whether the end of this step is a row by itself."""
        every = isinstance(self._save, Every) and step % self._save.steps == 0
        return last or every

    def _rows(self, after: float, upto: float, step: int, last: bool, measured: Any) -> None:
        """The output times within a step; where a solve ends or switches is always shown."""
        if self.times is None:
            due = [upto] if self._due_at(step, last) else []
        else:
            low, high = np.searchsorted(self.times, [after, upto], side="right")
            due = [float(t) for t in self.times[low:high]]
            if last and (not due or due[-1] != upto):
                due.append(upto)
        for t in due:
            if t == upto:
                self._row(t, self.y, self.u if measured is not None else None, measured)
            else:
                self._row(t, self.engine.interpolate(t))

    def _row(self, t: float, y: Vector, u: Shares | None = None, measured: Any = None) -> None:
        # The speed is not counted as work of the solve.
        u = self.field.shares(y) if u is None else u
        measured = self.leg.probes.row(y, u) if measured is None else measured
        self.recorder.row(self.leg, t, self.work.steps, y, u, measured, self.field.speed(y))

    def _broken(self, status: Status, sentence: str, t: float, y: Vector) -> tuple[Status, str]:
        """End with the last good state, and with its row if the schedule had left it out."""
        self.y, self.now = y, t
        if self.recorder.last_time != t:
            self._row(t, y)
        return status, sentence

    def _hinted(self, limit: tuple[Status, str]) -> tuple[Status, str]:
        status, sentence = limit
        system = self.leg.system
        smooth = system.gates is not None or not system.has_loss
        if status is Status.STALLED and not smooth and kinks(system.trace_loss, system.size):
            sentence += (
                " The loss has a ReLU, a maximum or an absolute value: declare its gates, "
                "Flow(loss, gates=...)."
            )
        return status, sentence

    def _measure(self, y: Vector, row: bool) -> tuple[np.ndarray, Any]:
        """The distances of all marks, then of all gates; and the row of the state if wanted."""
        probes = self.leg.probes
        self.u = u = self.field.shares(y)
        if row:
            measured, marks = probes.both(y, u)
        else:
            measured, marks = None, probes.distances(y, u)
        return np.concatenate([marks, self.field.distances(y, u)]), measured

    def _cross(self, t_old: float, t_new: float, row: bool) -> Any:
        """Marks are recorded; returns the first stop or switch, and the row at the step's end.

        One kind of event: a mark or stop that changes sign, a guard that reaches its surface, a
        share that leaves [0, 1]. A mark that sits exactly on its level has not crossed it.
        """
        probes, old = self.leg.probes, self._distances
        new, measured = self._measure(self.engine.y, row)
        self._distances, self.now = new, t_new
        count = len(probes)
        gated = np.full(len(new) - count, -1)
        hit, direction = crossings(old, new, np.concatenate([probes.direction, gated]))
        late = (old[count:] <= 0) & (new[count:] < -GRAZING_TOLERANCE)
        if not hit.any() and not late.any():
            return None, None, measured
        when = {i: self._root(i, t_old, t_new) for i in np.flatnonzero(hit).tolist()}
        found = [
            Event(probes.names[i], t, int(direction[i]), probes.index[i])
            for i, t in when.items()
            if i < count
        ]
        gates = {i - count: t for i, t in when.items() if i >= count}
        gates |= dict.fromkeys(np.flatnonzero(late).tolist(), t_new)
        ends = [(t, i) for i, t in when.items() if i < count and probes.is_stop[i]]
        switch = min(gates.values(), default=np.inf)
        stop = min(ends, default=(np.inf, -1))
        until = min(stop[0], switch)
        for event in sorted(found, key=lambda e: (e.time, e.name, e.index)):
            if event.time <= until:
                self.recorder.event(event)
        if stop[0] <= switch and ends:
            index = stop[1]
            name, entry = probes.names[index], probes.index[index]
            return Event(name, stop[0], int(direction[index]), entry), None, measured
        if not gates:
            return None, None, measured
        together = switch + 64 * np.finfo(float).eps * max(t_new, t_new - t_old)
        return None, (switch, [i for i, t in gates.items() if t <= together]), measured

    def _root(self, i: int, low: float, high: float) -> float:
        """When distance `i` crosses 0 inside the step, to the resolution of time."""
        from scipy.optimize import brentq

        count = len(self.leg.probes)

        def distance(t: float) -> float:
            y = self.engine.interpolate(t)
            u = self.field.shares(y)
            if i < count:
                return float(self.leg.probes.distances(y, u)[i])
            return float(self.field.distances(y, u)[i - count])

        at_low, at_high = distance(low), distance(high)
        if at_high == 0:
            return high
        if at_low == 0 or np.sign(at_low) == np.sign(at_high):
            return low  # the interpolant meets the level at the very start of the step
        resolution = 16 * np.finfo(float).eps * max(abs(low), abs(high))
        # Without `disp`: a mark that is flat at its level (a cube) converges slowly, no exception.
        root = brentq(distance, low, high, xtol=resolution, disp=False)
        return float(root)  # pyright: ignore[reportArgumentType]

    def _switch(self, t: float, hit: list[int]) -> tuple[Status, str] | None:
        """Go over to the next mode; a status where there is none, or they never end."""
        self._note(t)
        before, slid = self.field.on.copy(), self.field.sliding
        lost = self.field.switch(self.y, hit)
        if lost is not None:
            return Status.FAILED, f"at t = {t:.6g} {lost}"
        for event in self.field.changes(t, before, slid):
            self.recorder.event(event)
        self._switches += 1
        if self._switches > self.limits.switches:
            names = ", ".join(self.field.names[i] for i in hit[:3])
            return Status.STALLED, (
                f"{self._switches:,} switches up to t = {t:.6g}, the last of {names}: the gates "
                "chatter, or limits.switches is too small."
            )
        self._restart(t)
        self._checkpoint(t)
        return None

    def _note(self, t: float) -> None:
        self.field.note(self._mode_began, t, self._mode_first, self.field.shares(self.y))

    def _restart(self, t: float) -> None:
        """The engine begins anew at the present state: another field, or a stored state."""
        self.engine.start(t, self.y)
        self.now = t
        self._distances, _ = self._measure(self.y, False)
        self._mode_began, self._mode_first = t, self.u

    def _checkpoint(self, t: float) -> None:
        self.work.restarts += 1
        if not self.recorder.resumable:
            return
        arrays = self.field.save()
        if self._mode_first is not None:
            arrays["mode.first"] = self._mode_first
        modes = {"mode.began": self._mode_began, "switches": self._switches}
        self.save(t, arrays, {**self.bounds.save(), "began": self.began, **modes})

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        scalars, arrays = checkpoint.scalars, checkpoint.arrays
        self.y = np.asarray(arrays["state"], dtype=float)
        self._enter(int(scalars["leg"]), float(scalars["began"]))
        self.load(checkpoint)
        self.bounds.load(checkpoint)
        self.field.load(arrays)
        self._switches = int(scalars["switches"])
        self._restart(checkpoint.time)
        self._mode_began = float(scalars["mode.began"])
        self._mode_first = np.asarray(arrays["mode.first"]) if self.field.gated else None
