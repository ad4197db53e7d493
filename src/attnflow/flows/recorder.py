"""What every solve shares, continuous or discrete: rows to a sink, drift, limits, interruption."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attnflow._errors import InputError
from attnflow.flows.engines import Work
from attnflow.flows.flow import System
from attnflow.flows.layout import Params, Shares, Vector, squared_norm
from attnflow.flows.options import Limits, Store
from attnflow.flows.phases import Phase, freeze
from attnflow.flows.probes import Probes
from attnflow.flows.sinks import Checkpoint, Event, MemorySink, Segment, Shape, Sink, dataset
from attnflow.flows.solution import Part, Solution, Status


@dataclass(frozen=True)
class Leg:
    """A phase, bound to its start: the system that is solved and what is measured on it."""

    index: int
    phase: Phase
    flow: Any
    system: System
    probes: Probes

    @property
    def field(self) -> str:
        return f"phases.{self.phase.name}" if self.phase.name else "flow"


def legs_of(
    phases: Sequence[Phase],
    start: Params,
    observe: Mapping[str, Any] | None,
    marks: Mapping[str, Any] | None,
    stops: Mapping[str, Any] | None,
) -> list[Leg]:
    """Every phase with its system and probes, checked before any work."""
    legs = []
    for i, phase in enumerate(phases):
        flow = freeze(phase.flow, tuple(phase.frozen))
        system = flow.bind(start)
        y = system.layout.flatten(start)
        system.check(y)
        ends = dict(stops or {})
        if phase.stop is not None:
            ends[phase.name] = phase.stop
        legs.append(Leg(i, phase, flow, system, Probes(system, y, observe, marks, ends)))
    first = legs[0]
    for leg in legs:
        gates = [() if x.system.gates is None else x.system.gates.names for x in (first, leg)]
        if leg.probes.shape.dims != first.probes.shape.dims or gates[0] != gates[1]:
            raise InputError(leg.field, "other observables or gates than the first phase")
    return legs


class Recorder:
    """Measures states into rows and hands them to the sink in segments."""

    FLUSH_ROWS: ClassVar[int] = 256
    FLUSH_SECONDS: ClassVar[float] = 2.0
    """A flush is due after so many rows, or so long after the last one."""
    KEPT: ClassVar[int] = 5_000_000
    """Numbers of states kept in memory, for whoever asks for them again."""

    def __init__(self, legs: Sequence[Leg], store: Store):
        self._sink: Sink = MemorySink() if store.sink is None else store.sink
        self.resumable = store.sink is not None
        self._column, self._many = store.states, len(legs) > 1
        self._rows: list[dict[str, Any]] = []
        self._events: list[Event] = []
        self._flushed = time.monotonic()
        self.kept: list[tuple[float, Vector]] | None = []
        """Time and state of every row; None where they are too many, or rows were resumed."""
        self.last_time: float | None = None
        """The time of the last row."""
        self.shape = self._full_shape(legs)

    def _full_shape(self, legs: Sequence[Leg]) -> Shape:
        shape, gates = legs[0].probes.shape, legs[0].system.gates
        dims = {**shape.dims, "speed": ()}
        attrs = {**shape.attrs, "speed": {"long_name": "norm of the velocity"}}
        coords = dict(shape.coords)
        if gates is not None:
            dims["gates"], coords["gate"] = ("gate",), np.array(gates.names)
            attrs["gates"] = {"long_name": "share of each gate"}
        if self._many:
            dims["phase"] = ()
            attrs["phase"] = {"long_name": "phase", "names": [leg.phase.name for leg in legs]}
        if self._column:
            dims["state"] = ("parameter",)
        return Shape(dims, coords, attrs)

    def begin(self) -> Checkpoint | None:
        resumed = self._sink.begin(self.shape)
        if resumed is not None:
            self.last_time, self.kept = resumed.time, None
        return resumed

    def row(
        self,
        leg: Leg,
        t: float,
        step: int,
        y: Vector,
        u: Shares | None,
        measured: Any,
        speed: float,
    ) -> None:
        """Keep one measured state."""
        row = {"time": t, "step": step, "speed": speed, **measured}
        if u is not None:
            row["gates"] = np.array(u)
        if self._many:
            row["phase"] = float(leg.index)
        if self._column:
            row["state"] = np.array(y)
        self._rows.append(row)
        self._keep(t, y)
        self.last_time = t
        late = time.monotonic() - self._flushed > self.FLUSH_SECONDS
        if late or len(self._rows) >= self.FLUSH_ROWS:
            self.flush()

    def _keep(self, t: float, y: Vector) -> None:
        if self.kept is not None:
            self.kept.append((t, np.array(y)))
            if len(self.kept) * len(y) > self.KEPT:
                self.kept = None

    def event(self, event: Event) -> None:
        self._events.append(event)

    def flush(self) -> None:
        """Hand over what there is; the engine never notices."""
        self._flushed = time.monotonic()
        if not self._rows and not self._events:
            return
        columns = {
            name: np.array([row[name] for row in self._rows])
            for name in (self._rows[0] if self._rows else ())
        }
        self._sink.flush(Segment(columns, tuple(self._events)))
        self._rows, self._events = [], []

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.flush()
        self._sink.checkpoint(checkpoint)

    def collect(self) -> Segment:
        self.flush()
        return self._sink.collect()


class Course:
    """What a solve carries from phase to phase, continuous or discrete."""

    leg: Leg
    """The present phase."""
    drift: Drift
    _clock: float

    def __init__(self, legs: Sequence[Leg], y: Vector, store: Store):
        self.legs, self.y, self.start = legs, y, y
        self.every = store.every or 0
        self.recorder, self.work = Recorder(legs, store), Work()
        self.drifts: dict[str, float] = {}
        self.parts: list[Part] = []
        self._before = 0.0

    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._clock

    def end_phase(
        self, status: Status, sentence: str, met: bool, begins: float, ends: float
    ) -> tuple[Status, str] | None:
        """Leave the present phase, whose own stop was `met` or not; None where another follows."""
        self.drift.look(self.y)
        for name, moved in self.drift.each.items():
            self.drifts[name] = self.drifts.get(name, 0.0) + moved
        phase, many = self.leg.phase, len(self.legs) > 1
        self.parts.append(Part(phase.name, begins, ends))
        if status is Status.DONE and phase.stop is not None:
            status = Status.FAILED
            sentence = f"its stop was not reached within {phase.until:.6g}."
        if many and status is Status.DONE:
            self.recorder.event(Event(phase.name, ends, 1, self.leg.index))
        if self.leg is not self.legs[-1] and (met or status is Status.DONE):
            return None
        return status, f"{phase.name}: {sentence}" if many else sentence

    def save(self, t: float, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Store a checkpoint: what every solve needs to go on, and what this one adds."""
        self.work.seconds = self.seconds()
        conserved, moved = self.drift.save()
        parts = np.array([[p.begins, p.ends] for p in self.parts]).reshape(-1, 2)
        sums = {f"drift.{n}": d for n, d in self.drifts.items()}
        numbers = plain({**moved, **scalars, "leg": self.leg.index, **sums, **vars(self.work)})
        stored = {"state": self.y, "parts": parts, **conserved, **arrays}
        self.recorder.checkpoint(Checkpoint(self.work.steps, t, stored, numbers))

    def load(self, checkpoint: Checkpoint) -> None:
        """Take up what `save` stored."""
        arrays, scalars = checkpoint.arrays, checkpoint.scalars
        self.y = np.asarray(arrays["state"], dtype=float)
        for name in ("rhs", "jvp", "steps", "restarts"):
            setattr(self.work, name, int(scalars[name]))
        self._before = float(scalars["seconds"])
        self.drift.load(checkpoint)
        self.drifts = {k[6:]: float(v) for k, v in scalars.items() if k.startswith("drift.")}
        ends = np.asarray(arrays["parts"]).tolist()
        self.parts = [Part(self.legs[k].phase.name, *span) for k, span in enumerate(ends)]

    def solution(self, flow: Any, status: Status, sentence: str, **facts: Any) -> Solution:
        """Everything as a value."""
        segment, layout, kept = self.recorder.collect(), self.leg.system.layout, self.recorder.kept
        attrs = {"flow": self.legs[0].flow.name, "status": str(status)}
        many = len(self.legs) > 1
        return Solution(
            trajectory=dataset(segment, self.recorder.shape, attrs),
            status=status,
            sentence=sentence,
            events=tuple(sorted(segment.events, key=lambda e: e.time)),
            work=self.work.as_dict(),
            drifts=self.drifts,
            final=layout.numpy(self.y),
            start=layout.numpy(self.start),
            flow=flow if many else self.legs[0].phase.flow,
            phases=tuple(self.parts) if many else (),
            resumable=self.recorder.resumable and not status.complete,
            _kept=None if not kept else ([t for t, _ in kept], np.array([y for _, y in kept])),
            **facts,
        )


class Drift:
    """How far the conserved quantities moved, against the largest squared norm of a block."""

    EVERY = 100
    """Accepted steps between two looks: a fixed count, so that a resumed solve looks alike."""

    def __init__(self, system: System, y: Vector):
        self._system = system
        self._reference = system.conserved(y) if system.flow.conserved else {}
        self._moved = dict.fromkeys(self._reference, 0.0)
        self._norm2 = 0.0
        self.look(y)

    def look(self, y: Vector) -> None:
        if not self._reference:
            return
        for block in self._system.layout.blocks:
            part = y[block.start : block.stop]
            self._norm2 = max(self._norm2, squared_norm(part))
        for name, value in self._system.conserved(y).items():
            moved = np.max(np.abs(value - self._reference[name]), initial=0.0)
            self._moved[name] = max(self._moved[name], float(moved))

    @property
    def each(self) -> dict[str, float]:
        floor = np.finfo(float).tiny
        return {n: moved / max(self._norm2, floor) for n, moved in self._moved.items()}

    def save(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        arrays = {f"conserved.{n}": value for n, value in self._reference.items()}
        scalars = {f"moved.{n}": moved for n, moved in self._moved.items()}
        return arrays, {**scalars, "norm2": self._norm2}

    def load(self, checkpoint: Checkpoint) -> None:
        for name in self._reference:
            self._reference[name] = np.asarray(checkpoint.arrays[f"conserved.{name}"])
            self._moved[name] = float(checkpoint.scalars[f"moved.{name}"])
        self._norm2 = float(checkpoint.scalars["norm2"])


class Bounds:
    """What can end a solve from outside: steps, wall time, Ctrl-C, a stall, a blow-up."""

    STALL_WINDOW = 1000
    STALL_STEPS = 1e6
    STALL_ADVANCE = 1e-3
    """Stalled: a window of steps that advanced time by less than this part of itself (or by steps
    below its resolution), with more than `STALL_STEPS` such steps still to go. The first condition
    alone would end a solve that escapes a saddle late, the second one alone a solve that is at
    t = 100 of 1e9.
    """

    def __init__(self, limits: Limits, interrupt: Any, steps: int, stalls: bool = True):
        self._stalls = stalls  # steps of a fixed length cannot stall
        self._max_steps = steps if limits.steps is None else limits.steps
        self._max_seconds = limits.seconds
        self._deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self._interrupt = interrupt
        self._window = (0, 0.0)

    def reached(self, step: int, t: float, y: Vector, until: float) -> tuple[Status, str] | None:
        """The status and sentence of the limit that was reached, if one was."""
        if not np.isfinite(y.sum()):
            return Status.DIVERGED, f"the state is no longer finite at t = {t:.6g}."
        if t >= until:
            return None
        if self._interrupt.is_set():
            return Status.INTERRUPTED, f"interrupted at t = {t:.6g}."
        if step >= self._max_steps:
            return Status.STEP_LIMIT, f"{step:,} steps reached t = {t:.6g}: the limit of steps."
        if self._deadline is not None and time.monotonic() > self._deadline:
            return Status.TIME_LIMIT, f"{self._max_seconds:g} s reached t = {t:.6g}: the limit."
        first, since = self._window
        if self._stalls and step - first >= self.STALL_WINDOW:
            pace = (t - since) / (step - first)
            self._window = (step, t)
            collapsed = t - since < self.STALL_ADVANCE * t
            vanishing = pace < np.finfo(float).eps * until
            if (collapsed or vanishing) and until - t > self.STALL_STEPS * pace:
                return Status.STALLED, (
                    f"stalled at t = {t:.6g}: the last {step - first:,} steps advanced by "
                    f"{pace:.1e} each (the velocity may be discontinuous there)."
                )
        return None

    def save(self) -> dict[str, float]:
        """For a checkpoint: a resumed solve must stall at the same step."""
        return {"window.step": self._window[0], "window.time": self._window[1]}

    def load(self, checkpoint: Checkpoint) -> None:
        self._window = (
            int(checkpoint.scalars.get("window.step", checkpoint.step)),
            float(checkpoint.scalars.get("window.time", checkpoint.time)),
        )


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C into a flag the step loop reads; the second one raises as usual.

    So with SIGTERM and SIGHUP where a handler waits for them, which hears of it too; a signal that
    is ignored, or ends the process at once, is left alone.
    """
    asked = threading.Event()
    known = (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    handlers: dict[Any, Any] = {each: signal.getsignal(each) for each in known if each}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    handlers = {each: handler for each, handler in handlers.items() if callable(handler)}

    def ask(signum: int, frame: Any) -> None:
        asked.set()
        put(handlers)
        with suppress(KeyboardInterrupt):
            handlers[signum](signum, frame)

    def put(new: Mapping[Any, Any]) -> None:
        for each, handler in new.items():
            signal.signal(each, handler)

    put(dict.fromkeys(handlers, ask))
    try:
        yield asked
    finally:
        put(handlers)


def plain(numbers: Mapping[str, float]) -> dict[str, float | int]:
    """Counters and floats without NumPy types, ready for a checkpoint."""
    return {k: int(v) if isinstance(v, int | np.integer) else float(v) for k, v in numbers.items()}
