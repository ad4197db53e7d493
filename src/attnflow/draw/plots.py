"""Plots that several studies share: curves over time, a matrix as a picture, the place of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.draw.bands import timeline
from attnflow.draw.curves import Look, curve
from attnflow.draw.scales import log_y
from attnflow.draw.style import GREY, SMALL, legend, new, title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage


@dataclass(frozen=True)
class Panel:
    """One axes over time: the name of its vertical axis, and its curves with their names or looks.

    `levels` are horizontal lines by their names (not in the legend without one); `also` draws more.
    """

    ylabel: str
    curves: Iterable[tuple[str | Look, Any]]
    levels: Mapping[str, float] = field(default_factory=dict)
    log: bool = False
    limits: tuple[float | None, float | None] | None = None
    also: Callable[[Axes], None] | None = None

    def draw(self, axes: Axes, time: np.ndarray) -> None:
        for i, (look, values) in enumerate(self.curves):
            curve(axes, time, values, Look.of(i, look) if isinstance(look, str) else look)
        for (name, level), line in zip(self.levels.items(), ("--", ":"), strict=False):
            axes.axhline(level, color=GREY, lw=1.1, ls=line, label=name or "_")
        if self.also is not None:
            self.also(axes)
        if self.log:
            log_y(axes)
        if self.limits is not None:
            axes.set_ylim(*self.limits)
        axes.set_ylabel(self.ylabel)


def over_time(
    data: xr.Dataset,
    stages: Sequence[Stage],
    words: str,
    *panels: Panel,
    extra: str = "",
    height: float | None = None,
) -> Figure:
    """Panels below each other over the times of a trajectory, titled `words`, with one legend.

    The legend is that of the first panel with a named curve; `extra` is its last entry.
    """
    time = data["time"].values
    figure, grid = new(len(panels), 1, height=height or (3.8 if len(panels) == 1 else 5.4))
    rows = np.atleast_1d(grid).tolist()
    for axes, panel in zip(rows, panels, strict=True):
        timeline(axes, time, stages, names=axes is rows[0], label=axes is rows[-1])
        panel.draw(axes, time)
    title(figure, words)
    legend(
        figure, next((a for a in rows if a.get_legend_handles_labels()[1]), rows[0]), extra=extra
    )
    return figure


def each(values: xr.DataArray) -> list[tuple[str, np.ndarray]]:
    """The curves of a variable [time, name] for a `Panel`: each with its coordinate as its name."""
    names = values[values.dims[1]].values
    return [(plain(name), one) for name, one in zip(names, values.values.T, strict=True)]


def plain(name: object) -> str:
    """A label as it is: a leading underscore or a dollar sign means something to matplotlib."""
    text = str(name).replace("$", r"\$")
    return f"“{text}”" if text.startswith("_") else text


def heat(axes: Axes, values: np.ndarray, *, numbers: bool, cmap: str = "cividis") -> Any:
    """A matrix of probabilities as a picture, with its numbers where they are wanted."""
    image = axes.imshow(values, vmin=0, vmax=1, cmap=cmap, interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        if numbers and np.isfinite(value):
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=SMALL,
                color="black" if value > 0.6 else "white",
                in_layout=False,
            )
    step = 1 + (max(values.shape) - 1) // 8
    axes.set_xticks(range(0, values.shape[1], step))
    axes.set_yticks(range(0, values.shape[0], step))
    axes.spines[:].set_visible(False)
    return image


def ticks(axes: Axes, names: Sequence[str], most: int = 9) -> None:
    """Names along both sides of a square matrix, `most` of them evenly where there are more."""
    step = 1 + (len(names) - 1) // (most - 1)
    axes.set_xticks(range(0, len(names), step), names[::step], fontsize=SMALL)
    axes.set_yticks(range(0, len(names), step), names[::step], fontsize=SMALL)


def star(axes: Axes, x: float, y: float, label: str) -> None:
    """Where this run lies on a map."""
    axes.plot(
        [x],
        [y],
        ls="none",
        marker="*",
        ms=14,
        markerfacecolor="white",
        markeredgecolor="black",
        zorder=6,
        clip_on=False,
        label=label,
    )


def note(axes: Axes, words: str) -> None:
    """A sentence in an axes that has nothing to show."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, fill(words, 44), ha="center", va="center", transform=axes.transAxes)
