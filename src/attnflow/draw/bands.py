"""The time axis: a pale band per stage, with its name above the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.draw.clock import time_name, time_ticks
from attnflow.draw.scales import log_scale
from attnflow.draw.style import BANDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnflow.observe.stages import Stage

SIZE, SLANT = 8.5, 35
"""Size of a stage's name in points, and its slant in degrees where names stand too close."""


def timeline(
    axes: Axes,
    time: Any,
    stages: Sequence[Stage] = (),
    *,
    names: bool = True,
    label: bool = True,
    log: bool = True,
) -> None:
    """A logarithmic axis of flow time (or steps) with a pale band from each stage to the next.

    The names stand above the axes, side by side where there is room and slanted where there is
    not; a later cycle's have its number. Without a positive time, or with `log=False`, the axis is
    linear.
    """
    first, last = _limits(axes, time, log)
    time_ticks(axes)
    if label:
        axes.set_xlabel(time_name())
    shown = sorted((s for s in stages if first <= s.time < last), key=lambda s: s.time)
    if not shown:
        return
    begins = [s.time for s in shown]
    for i, (begin, end) in enumerate(zip(begins, [*begins[1:], last], strict=True)):
        axes.axvspan(begin, end, color=BANDS[i % len(BANDS)], lw=0, zorder=0)
    fraction = axes.get_xaxis_transform()
    axes.vlines(begins, 0, 1, transform=fraction, color="#888888", lw=0.6, zorder=1)
    if names:
        _name(axes, shown)


def numbered(stage: Stage) -> str:
    """`focus`, and `focus 2` in the second cycle."""
    return stage.name if stage.cycle == 1 else f"{stage.name} {stage.cycle}"


def _limits(axes: Axes, time: Any, log: bool) -> tuple[float, float]:
    """Set the scale and the ends of the time axis, and return the ends between which bands go."""
    t = np.asarray(time, float)
    t = t[np.isfinite(t)]
    positive = t[t > 0]
    last = float(t[-1]) if len(t) else 0.0
    first = max(float(positive[0]), last / 1e4) if len(positive) else 0.0
    if log and first > 0 and last > first:
        log_scale(axes, "x")
        axes.set_xlim(first, last)
        return first, last
    last = last or 1.0
    axes.set_xlim(-0.03 * last, last)
    return 0.0, last


def _name(axes: Axes, stages: Sequence[Stage]) -> None:
    figure: Any = axes.get_figure()
    room = 72 * figure.get_figwidth() - 60  # points between the left and the right end, about
    scale = axes.transScale.transform
    low, high = (scale((x, 1.0))[0] for x in axes.get_xlim())
    at = [room * (scale((s.time, 1.0))[0] - low) / (high - low) for s in stages]
    names = [numbered(s) for s in stages]
    ends = zip(at, names, [*at[1:], room], strict=True)
    flat = all(a + 0.6 * SIZE * len(name) + 4 <= end for a, name, end in ends)
    placed = zip(range(len(at)), names, at, strict=True) if flat else _slanted(stages, at, room)
    for i, name, place in placed:
        moved = place - at[i] if abs(place - at[i]) > 0.5 else 0.0
        axes.annotate(
            name,
            (stages[i].time, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(moved + (0 if flat else 2), 8 if moved else 4),
            textcoords="offset points",
            rotation=0 if flat else SLANT,
            rotation_mode="anchor",
            ha="left",
            va="bottom",
            fontsize=SIZE,
            color="#333333",
            arrowprops=dict(_LEADER) if moved else None,
        )


_LEADER = {
    "arrowstyle": "-",
    "lw": 0.6,
    "color": "#888888",
    "shrinkA": 0,
    "shrinkB": 0,
    "patchA": None,
    "relpos": (0, 0),
}
"""The thin line between a stage's beginning and a name that had to move away from it."""


def _slanted(
    stages: Sequence[Stage], at: Sequence[float], room: float
) -> list[tuple[int, str, float]]:
    """Index, name and place of the slanted names that fit.

    Where they do not all fit, a later cycle is named only where it begins; where that is still
    too much, the stages of least confidence go without a name.
    """
    names = [numbered(s) for s in stages]
    chosen = list(range(len(stages)))
    places = _spread(at, names, room)
    if places is None:
        first = {s.cycle: i for i, s in reversed(list(enumerate(stages)))}
        chosen = [i for i, s in enumerate(stages) if s.cycle == 1 or first[s.cycle] == i]
        names = [s.name if s.cycle == 1 else f"cycle {s.cycle}" for s in stages]
    while places is None:
        places = _spread([at[i] for i in chosen], [names[i] for i in chosen], room)
        if places is None:
            chosen.remove(min(chosen, key=lambda i: stages[i].confidence))
    return [(i, names[i], place) for i, place in zip(chosen, places, strict=True)]


def _spread(at: Sequence[float], names: Sequence[str], room: float) -> list[float] | None:
    """Places for slanted names, apart and near their lines; None where they do not fit."""
    gap = 1.4 * SIZE / math.sin(math.radians(SLANT))
    places: list[float] = []
    for x in at:
        places.append(max(x, places[-1] + gap) if places else x)
    last = math.inf
    for i in reversed(range(len(places))):
        end = room + 30 - 0.5 * SIZE * len(names[i])  # a name may stand out a little
        places[i] = last = min(places[i], last - gap, end)
    far = max((abs(place - x) for place, x in zip(places, at, strict=True)), default=0.0)
    return places if far <= 3 * gap else None
