"""How a figure looks: colours, sizes, title and legend.

Nothing here keeps state or opens a window. Colours are Okabe and Ito's, which colour-blind readers
can tell apart, and every curve also differs by its line style. The legend stands outside the axes,
so that it never covers a curve.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage

P = ParamSpec("P")

Figures = Mapping[str, Callable[["xr.Dataset", "list[Stage]"], "Figure"]]
"""Figure functions of a trajectory and its stages, by file name."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), (0, (7, 2)))
BANDS = ("#f2f2f2", "#dceaf4", "#fbe9dd", "#ddf2ea", "#f8e8f1")
GREY = "#555555"

WIDTH = 5.4
"""Inches: read on a telephone, and two stand side by side on a screen."""

SMALL = 8.0
"""Points of the smallest text: it is still read where a page is as wide as a telephone."""

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.labelcolor": "#222222",
    "figure.titlesize": 11,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "attnflow",  # the same data gives the same bytes
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
}


@contextmanager
def style(layout: bool = True) -> Iterator[None]:
    """Our style and nothing of the reader's own, so that the same data gives the same bytes.

    `layout=False` is for saving: a figure without an engine gets none from the settings.
    """
    from matplotlib import style as styles

    with styles.context(["default", {**STYLE, "figure.constrained_layout.use": layout}]):
        yield


def styled(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a figure function in our style from its first to its last line.

    The layout is computed once and kept: computed at every save, it would shift a little, and
    the same figure would not give the same bytes. Without an engine a save also draws only once.
    """

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            figure = function(*args, **kwargs)
            engine = figure.get_layout_engine()
            if engine is not None:
                engine.execute(figure)
        with style(layout=False):
            figure.set_layout_engine(None)  # "none" would leave a placeholder, drawn twice
        return figure

    return draw


def of_config(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Mark a figure function that looks at its study alone, not at the trajectory or the stages.

    Such a figure may be drawn while the solve is still going on.
    """
    vars(function)["of_config"] = True  # goes through `styled` and `bound`
    return function


def shows(*labels: str) -> Callable[[Callable[P, Figure]], Callable[P, Figure]]:
    """Name the claims that a figure shows, by their labels or what these begin with.

    `"Prop 3.4"` stands for every part of it, `"Prop 3.4 (eq 14)"` for that one.
    """

    def mark(function: Callable[P, Figure]) -> Callable[P, Figure]:
        vars(function)["shows"] = labels  # goes through `styled` and `bound`
        return function

    return mark


def bound(function: Callable[..., Figure], **fixed: Any) -> Callable[..., Figure]:
    """A figure function with some arguments fixed; it keeps its name and its docstring."""
    part = functools.partial(function, **fixed)
    functools.update_wrapper(part, function)
    return part


def new(rows: int = 1, columns: int = 1, *, height: float = 3.8, width: float = WIDTH) -> Any:
    """A figure without pyplot, and its axes as `Figure.subplots` returns them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def title(figure: Figure, text: str) -> None:
    """A title above everything, stage names included."""
    figure.suptitle(text, x=0.01, ha="left", fontweight="bold")


def legend(figure: Figure, *axes: Axes, extra: str = "") -> None:
    """The named curves of the axes below the figure, in as many columns as there is room for.

    The figure grows by the rows after the second, so that the axes keep their height.
    """
    handles: list[Any] = []
    labels: list[str] = []
    for each in axes:
        found = each.get_legend_handles_labels()
        handles += found[0]
        labels += found[1]
    if extra:
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color="none"))
        labels.append(extra)
    if not handles:
        return
    entry = 42 + 5.8 * max(map(len, labels))
    columns = max(1, min(len(labels), int(72 * figure.get_figwidth() // entry)))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)  # even rows
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 2))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=2.6)
