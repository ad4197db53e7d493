"""Stages of a trajectory: when its character changes, with the evidence for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "time"]


NOISE = 1e-6
"""A plateau is left by at least this share of the whole fall of the loss."""


@dataclass(frozen=True)
class Stage:
    """The time at which something begins, which cycle it belongs to, and what shows it."""

    name: str
    time: float
    cycle: int = 1
    evidence: str = ""
    confidence: float = 1.0
    """How clearly it shows, from 0 (at the margin of its threshold) to 1."""
    step: int | None = None
    """The optimiser's step, for a run that takes steps; None for a flow."""

    @property
    def when(self) -> str:
        """The time in the unit of the run: `step 201`, or `t = 60.36` of a flow."""
        return f"t = {self.time:.4g}" if self.step is None else f"step {self.step}"

    def as_dict(self) -> dict[str, Any]:
        """What is known of it: a flow's stage has no step."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Plateau:
    """A stretch where the flow waits: a minimum of the speed that stands out on both sides."""

    loss: float
    time: float
    """Where the speed is least."""
    enter: float
    leave: float
    speed: float
    prominence: float
    """Decades by which the speed rises on the lower side."""
    open: bool = False
    """Whether the trajectory ends on it: it has not left yet, or it has arrived."""

    @property
    def words(self) -> str:
        """`0.72836 (22.65 to 54.32)`."""
        since = f"since {self.enter:.4g}, still waiting"
        return (
            f"{self.loss:.5f} ({since if self.open else f'{self.enter:.4g} to {self.leave:.4g}'})"
        )

    def as_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "open"}


def plateaus(
    time: Series,
    speed: Series,
    loss: Series,
    *,
    prominence: float = 0.15,
    start: bool = False,
    end: bool = False,
) -> list[Plateau]:
    """Minima of log10(speed) with at least `prominence` decades on both sides.

    With `start` the stretch that the flow begins on counts too (a small start waits at the
    origin): before it, the speed is taken as infinite. With `end` so does one that it ends on,
    which is `open`: it is left at no time, and may be a minimum.

    `enter` and `leave` are where the speed is half the prominence (in decades) above its minimum.
    A stretch that the loss does not leave is none either: at a minimum the speed is the solver's
    noise. A flow that never waits has no plateau: an empty list is "no separation".
    """
    good = np.isfinite(speed) & (speed > 0)
    t, log, level = time[good], np.log10(speed[good]), loss[good]
    if len(t) < 5:
        return []
    pad = int(start)
    depth = np.concatenate([np.full(pad, -log.max() - 1.0), -log])
    result = []
    for peak, height, *bases in _peaks(depth, prominence):
        i, (left, right) = peak - pad, (max(base - pad, 0) for base in bases)
        if level[i] - level[i:].min() < NOISE * (level.max() - level.min()):
            continue
        result.append(_plateau(t, log, level, i, height, left, right))
    return result + (_last(t, log, level, result, prominence) if end else [])


def _peaks(x: Series, prominence: float) -> list[tuple[int, float, int, int]]:
    """Maxima of at least this prominence: index, prominence, and the lowest indices beside them.

    As `scipy.signal.find_peaks`, whose room takes half a second to load.
    """
    ends = np.flatnonzero(np.diff(x))  # of runs of equal values, but for the last run
    first, last = np.append(0, ends + 1), np.append(ends, len(x) - 1)
    rises = np.diff(x[first]) > 0
    found = []
    for k in 1 + np.flatnonzero(rises[:-1] & ~rises[1:]):
        i = int(first[k] + last[k]) // 2
        higher = np.flatnonzero(x > x[i])
        low = higher[higher < i].max(initial=0)
        high = higher[higher > i].min(initial=len(x))
        left = i - int(np.argmin(x[low : i + 1][::-1]))
        right = i + int(np.argmin(x[i:high]))
        height = float(x[i] - max(x[left], x[right]))
        if height >= prominence:
            found.append((i, height, left, right))
    return found


def _plateau(
    t: Series, log: Series, loss: Series, i: int, height: float, left: int, right: int
) -> Plateau:
    half = log[i] + 0.5 * height
    return Plateau(
        loss=float(loss[i]),
        time=float(t[i]),
        enter=_crossing(t, log, half, range(i, left - 1, -1)),
        leave=_crossing(t, log, half, range(i, right + 1)),
        speed=float(10 ** log[i]),
        prominence=float(height),
    )


def _last(
    t: Series, log: Series, loss: Series, before: list[Plateau], prominence: float
) -> list[Plateau]:
    """The slow stretch that the trajectory ends on, if it is slower than what came before."""
    left = int(np.searchsorted(t, before[-1].leave)) if before else 0
    top = left + int(np.argmax(log[left:])) if before else 0
    i = top + int(np.argmin(log[top:]))
    fall = log[top:].max() - log[i] if before or log[top] > log[i] else 0.0
    if (before and fall < prominence) or log[i:].max() - log[i] >= prominence:
        return []
    found = _plateau(t, log, loss, i, fall, top, len(t) - 1)
    return [replace(found, leave=float(t[-1]), open=True)]


def first_time(
    time: Series, signal: Series, *, level: float = 1.0, after: float = -np.inf, hold: int = 3
) -> float | None:
    """When a signal first exceeds a level for `hold` samples in a row, between the samples."""
    run = 0
    for i, above in enumerate((signal > level) & (time >= after)):
        run = run + 1 if above else 0
        if run == hold:
            first = i - hold + 1
            if first == 0 or time[first - 1] < after:
                return float(time[first])
            low, high = signal[first - 1], signal[first]
            share = (level - low) / (high - low) if low < level else 1.0
            return float(time[first - 1] + share * (time[first] - time[first - 1]))
    return None


def summit(time: Series, signal: Series, peak: int) -> float:
    """When a signal is highest, from the parabola through its highest sample and the two beside."""
    if not 0 < peak < len(time) - 1:
        return float(time[peak])
    (a, b, c), (x, y, z) = time[peak - 1 : peak + 2], signal[peak - 1 : peak + 2]
    rise, fall = (y - x) / (b - a), (z - y) / (c - b)
    if not rise > 0 > fall:
        return float(b)
    return float((a + b) / 2 + (c - a) / 2 * rise / (rise - fall))


def _crossing(t: Series, log: Series, level: float, order: Sequence[int]) -> float:
    """The first time, in the given order of samples, at which `log` reaches the level."""
    previous = order[0]
    for i in order[1:]:
        if log[i] >= level:
            share = (level - log[previous]) / (log[i] - log[previous])
            return float(t[previous] + share * (t[i] - t[previous]))
        previous = i
    return float(t[order[-1]])
