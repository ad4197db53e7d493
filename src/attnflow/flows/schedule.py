"""When a solve is observed: linear, logarithmic, at every k-th step, or at given times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnflow._errors import InputError, positive, shown, whole


@dataclass(frozen=True)
class Every:
    """At the end of every k-th accepted step: dense where the flow moves, no interpolation."""

    steps: int = 1


@dataclass(frozen=True)
class Linear:
    """At `count` equally spaced times from 0 to the end."""

    count: int = 400


@dataclass(frozen=True)
class Log:
    """At 0 and `count` logarithmically spaced times from `first` (default: end / 1e5)."""

    count: int = 400
    first: float | None = None


Schedule = Every | Linear | Log | Sequence[float] | np.ndarray


def times_of(save: Schedule, until: float) -> np.ndarray | None:
    """The output times of a schedule (a solve adds its end if it is missing); None for `Every`."""
    if isinstance(save, Every):
        whole("save.steps", save.steps)
        return None
    if isinstance(save, Linear):
        return np.linspace(0.0, until, whole("save.count", save.count, least=2))
    if isinstance(save, Log):
        whole("save.count", save.count, least=2)
        first = until / 1e5 if save.first is None else positive("save.first", save.first)
        if not 0 < first < until:
            raise InputError("save.first", f"{first:g}; a time between 0 and until = {until:g}")
        inner = np.geomspace(first, until, save.count)
        inner[-1] = until  # geomspace may end one rounding short
        return np.concatenate([[0.0], inner])
    try:
        times = np.asarray(save, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("save", f"{shown(save)}; Every, Linear, Log or a list of times") from None
    if times.ndim != 1 or times.size == 0 or not (np.diff(times) > 0).all():
        raise InputError("save", "times must be a strictly increasing list")
    if not np.isfinite(times).all():
        raise InputError("save", "a NaN or infinite time; times are finite")
    if times[0] < 0 or times[-1] > until:
        raise InputError(
            "save", f"times from {times[0]:g} to {times[-1]:g}; they lie within 0 and {until:g}"
        )
    return times


def outputs_of(
    save: Schedule, lengths: Sequence[float]
) -> Callable[[int, float], np.ndarray | None]:
    """The output times of phase i that begins at t, on the common clock; None for `Every`.

    Equally spaced times are those of each phase; a list is of the whole schedule.
    """
    if isinstance(save, Every | Linear | Log):
        local = [times_of(save, length) for length in lengths]

        def of_phase(index: int, begins: float) -> np.ndarray | None:
            times = local[index]
            return None if times is None else times + begins

        return of_phase
    times = times_of(save, float(sum(lengths)))
    return lambda index, begins: times
