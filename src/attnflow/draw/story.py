"""The first figure of a run: loss above, what the study is about below, every stage as wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from attnflow.draw.bands import numbered, timeline
from attnflow.draw.clock import TIME
from attnflow.draw.curves import curve
from attnflow.draw.style import BANDS, SMALL, legend, new, styled

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage

DECADES = 1.5

MAPS = "attention in the middle of a stage: rows are queries, columns keys; dark 0, bright 1"

MOST_MAPS = 9
"""Small maps side by side: more would be smaller than a finger's nail."""


@dataclass(frozen=True)
class Story:
    """What a run is about: one sentence in plain words, and what is drawn below its loss."""

    sentence: str
    curves: Mapping[str, Float[np.ndarray, "time"]] = field(default_factory=dict)
    label: str = ""
    """What the curves measure, with its unit."""
    maps: Float[np.ndarray, "time query key"] | None = None
    """A matrix over time, drawn small in the middle of every stage: rows are queries."""
    loss: str = "loss"
    """What the loss is called, with its unit (`loss (nats)`)."""


@styled
def told(trajectory: xr.Dataset, stages: Sequence[Stage], story: Story) -> Figure:
    """Loss and what the run is about, on an axis that gives every stage the same room."""
    t = trajectory["time"].values
    rows = 2 + (story.maps is not None)
    figure, axes = new(rows, 1, width=11.0, height=2.1 * 2 + 1.3 * (rows - 2) + 0.8)
    if story.maps is not None:
        axes[0].get_gridspec().set_height_ratios([2, 2, 1.1])
    top, low = axes[0], axes[1]
    bounds = _bounds(t, stages)
    x = _even(t, bounds) if len(bounds) > 2 else t
    curve(top, x, trajectory["loss"].values, 0)
    for i, (name, values) in enumerate(story.curves.items()):
        curve(low, x, values, i, name)
    top.set_ylabel(story.loss)
    low.set_ylabel(story.label)
    if len(bounds) > 2:
        _bands(top, low, trajectory, stages, bounds)
    else:
        timeline(top, t, stages, label=False)
        timeline(low, t, stages, names=False)
    if story.maps is not None:
        _maps(axes[2], x, story.maps, len(bounds))
    legend(figure, low)
    return figure


def _bounds(time: Any, stages: Sequence[Stage]) -> Float[np.ndarray, "bound"]:
    """The beginning, every stage and the end; stages that begin together share a bound."""
    inside = [s.time for s in stages if time[0] < s.time < time[-1]]
    bounds = np.unique([time[0], *inside, time[-1]])
    apart = np.diff(bounds) > 1e-6 * (time[-1] - time[0])
    return bounds[np.append(True, apart)] if apart.any() else bounds[:1]


def _even(time: Any, bounds: Any) -> Float[np.ndarray, "time"]:
    """Time on the axis of stages: bound k stands at k, and time runs evenly in between.

    In a stretch over more than `DECADES` its logarithm does: else all would happen at its edge.
    """
    x = np.interp(time, bounds, np.arange(len(bounds)))
    for k, (first, last) in enumerate(pairwise(bounds)):
        inside = (time >= first) & (time <= last)
        if first > 0 and last / first > 10**DECADES:
            x[inside] = k + np.log(time[inside] / first) / np.log(last / first)
    return x


def _bands(
    top: Axes, low: Axes, trajectory: xr.Dataset, stages: Sequence[Stage], bounds: Any
) -> None:
    """A pale band and a name for every stage, and the times at which they begin.

    A stage of a later cycle has the colour of its first.
    """
    t = trajectory["time"].values
    begun: dict[int, list[Stage]] = {}
    for stage in stages:
        if t[0] <= stage.time < t[-1]:
            begun.setdefault(int(np.abs(bounds - stage.time).argmin()), []).append(stage)
    kinds = list(dict.fromkeys(each[-1].name for each in begun.values()))
    colours = {k: BANDS[kinds.index(each[-1].name) % len(BANDS)] for k, each in begun.items()}
    for axes in (top, low):
        for k in colours:
            axes.axvspan(k, k + 1, color=colours[k], lw=0, zorder=0)
        axes.set_xlim(0, len(bounds) - 1)
        axes.set_xticks(range(len(bounds)))
        axes.tick_params(axis="x", labelsize=SMALL)
    steps = "step" in trajectory.coords and any(s.step is not None for s in stages)
    shown = np.interp(bounds, t, trajectory["step"].values) if steps else bounds
    top.set_xticklabels([])
    low.set_xticklabels([f"{v:.0f}" if steps else f"{v:.4g}" for v in shown])
    low.set_xlabel("step (every stage as wide)" if steps else f"{TIME}; every stage as wide")
    for at, each in begun.items():
        top.annotate(
            ", ".join(map(numbered, each)),
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 4),
            textcoords="offset points",
            rotation=30,
            rotation_mode="anchor",
            fontsize=8.5,
            color="#333333",
        )


def _maps(axes: Axes, x: Any, maps: Any, bounds: int) -> None:
    """A small matrix in the middle of (at most `MOST_MAPS` of) the stretches, on one scale."""
    count = min(MOST_MAPS, max(bounds - 1, 2))
    stretches = np.unique(np.linspace(0, max(bounds - 2, 0), count).round().astype(int))
    if bounds > 2:
        middles = stretches + 0.5
        rows = [int(np.abs(x - m).argmin()) for m in middles]
        places = (stretches + 0.5) / (bounds - 1)
    else:
        rows = np.linspace(0, len(x) - 1, count).astype(int).tolist()
        places = (np.arange(count) + 0.5) / count
    axes.set_axis_off()
    wide = min(0.11, 0.9 / max(bounds - 1, count))
    top = max(1.0, float(np.nanmax(maps))) if np.nanmin(maps) >= 0 else float(np.abs(maps).max())
    for row, place in zip(rows, places, strict=True):
        small = axes.inset_axes((place - wide / 2, 0.0, wide, 0.86))
        low = 0.0 if np.nanmin(maps) >= 0 else -top
        small.imshow(maps[row], vmin=low, vmax=top, cmap="cividis", aspect="auto")
        small.set_xticks([])
        small.set_yticks([])
    axes.text(0.0, 0.9, MAPS, fontsize=SMALL, color="#333333")
