"""How figures look: one place for colours, stage bands, legends and token names.

A figure is a function of a dataset, decorated with `styled`, that returns a matplotlib `Figure`;
nothing here keeps state or opens a window. Colours are Okabe and Ito's, which colour-blind
readers can tell apart, and every curve also differs by its line style. Legends and stage names
stand outside the axes, so that they never cover a curve. A figure is narrow enough
to be read on a telephone, and two of them stand side by side on a desk's screen.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage

P = ParamSpec("P")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
LINES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), (0, (7, 2)))
BANDS = ("#f2f2f2", "#dceaf4", "#fbe9dd", "#ddf2ea", "#f8e8f1")
GREY = "#555555"

WIDTH = 5.4
"""Inches."""

MOST_NAMED = 8
"""Entries of a legend; a chain of more tokens takes its colours from a map."""

MOST_POINTS = 600
"""Points of a curve: more cannot be told apart at this width, and cost time and bytes."""

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

    The layout is computed once and kept: computed at every save, it would wander a little, and
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


def legend(figure: Figure, axes: Axes, *, extra: str = "") -> None:
    """The named curves of an axes below the figure, in as many columns as there is room for.

    The figure grows by the rows after the second, so that the axes keep their height.
    """
    handles, labels = axes.get_legend_handles_labels()
    if extra:
        from matplotlib.lines import Line2D

        handles, labels = [*handles, Line2D([], [], color="none")], [*labels, extra]
    if not handles:
        return
    entry = 42 + 5.8 * max(map(len, labels))
    columns = max(1, min(len(labels), int(72 * figure.get_figwidth() // entry)))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)  # even rows
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 2))
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=2.6)


def curve(axes: Axes, x: Any, y: Any, look: int | Look, label: str = "") -> None:
    """One curve, thinned to `MOST_POINTS`; a point stands alone where nothing can join it."""
    seen = look if isinstance(look, Look) else Look.of(look, label)
    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = thinned(len(x))
    axes.plot(
        x[kept],
        y[kept],
        color=seen.colour,
        linestyle=seen.line,
        label=seen.label or label or "_",
        lw=seen.width,
        marker="o" if np.isfinite(y).sum() == 1 else "",
    )


def thinned(rows: int, most: int = MOST_POINTS) -> np.ndarray:
    """Which of so many rows are drawn: all, or `most` of them evenly, both ends included."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).round().astype(int))


@dataclass(frozen=True)
class Look:
    """Colour, line style, name and width of a curve; without a name it is not in the legend."""

    colour: Any
    line: Any
    label: str = ""
    width: float | None = None

    @classmethod
    def of(cls, index: int, label: str = "") -> Look:
        return cls(COLOURS[index % len(COLOURS)], LINES[index % len(LINES)], label)


def tokens(law: Sequence[float], most: int = MOST_NAMED) -> tuple[list[Look], str]:
    """How each token is drawn, and what the legend leaves out (empty when nothing).

    Up to `most` tokens (8) have a colour and a line style each. More take their colour from a map
    by their frequency, and the legend names the most frequent ones and the rarest, `most` in all.
    """
    n = len(law)
    if n <= most:
        return [Look.of(i, token(i, law)) for i in range(n)], ""
    from matplotlib import colormaps

    order = np.argsort(-np.asarray(law), kind="stable")
    place = np.empty(n, int)
    place[order] = np.arange(n)
    shades = colormaps["viridis"](np.linspace(0, 0.92, n))
    named = {*order[: most - 1].tolist(), int(order[-1])}
    looks = [
        Look(tuple(shades[place[i]]), LINES[place[i] % 4], token(i, law) if i in named else "")
        for i in range(n)
    ]
    rest = n - most
    return looks, f"and {rest} between" if rest else ""


def token(index: int, law: Sequence[float] | None = None) -> str:
    """`token 0 (0.75)`: the number and how frequent it is."""
    return f"token {index}" if law is None else f"token {index} ({law[index]:.3g})"


def timeline(
    axes: Axes,
    time: Any,
    stages: Sequence[Stage] = (),
    *,
    names: bool = True,
    label: bool = True,
    log: bool = True,
) -> None:
    """A logarithmic axis of flow time with a pale band from each stage to the next.

    The names stand above the axes, side by side where there is room and slanted where there is
    not; a later cycle's have its number. Without a positive time, or with `log=False`, the axis is
    linear.
    """
    t = np.asarray(time, float)
    t = t[np.isfinite(t)]
    positive = t[t > 0]
    last = float(t[-1]) if len(t) else 0.0
    first = max(float(positive[0]), last / 1e4) if len(positive) else 0.0
    if log and first > 0 and last > first:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.set_xlim(first, last)
    else:
        first, last = 0.0, last or 1.0
        axes.set_xlim(-0.03 * last, last)
    if label:
        axes.set_xlabel("flow time t (steps × learning rate)")
    shown = sorted((s for s in stages if first <= s.time < last), key=lambda s: s.time)
    ends = [*(s.time for s in shown[1:]), last][: len(shown)]
    for i, (stage, end) in enumerate(zip(shown, ends, strict=True)):
        axes.axvspan(stage.time, end, color=BANDS[i % len(BANDS)], lw=0, zorder=0)
    if shown:
        axes.vlines(
            [s.time for s in shown],
            0,
            1,
            transform=axes.get_xaxis_transform(),
            color="#888888",
            lw=0.6,
            zorder=1,
        )
    if names and shown:
        _stage_names(axes, shown)


def log_y(axes: Axes) -> None:
    """A logarithmic vertical axis where a curve has something above zero."""
    lines = [  # those of the data, not the borders of the bands
        line
        for line in axes.get_lines()
        if line.get_transform().contains_branch_seperately(axes.transData)[1]
    ]
    values = [np.asarray(line.get_ydata(), float) for line in lines]
    if any((np.isfinite(v) & (v > 0)).any() for v in values):
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)


def save(figure: Figure, path: Any) -> None:
    """Write a figure in our style; the ending decides the format."""
    kind = str(path).rsplit(".", 1)[-1]
    if kind == "svg":
        Path(path).write_text(_svg(figure), encoding="utf-8")
        return
    with style(layout=False):
        figure.savefig(
            path, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None
        )


def _svg(figure: Figure) -> str:
    """The figure as an SVG file. Kept with it: a run writes it to disk and into its page."""
    kept: str | None = vars(figure).get("_attnflow_svg")
    if kept is None:
        buffer = io.StringIO()
        with style(layout=False):
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        kept = vars(figure)["_attnflow_svg"] = buffer.getvalue()
    return kept


def svg_text(figure: Figure, prefix: str = "", label: str = "") -> str:
    """The figure as an `<svg>` element to put into a page: as wide as its place, with a label.

    `prefix` goes before every id inside, so that several figures live in one page; the element's
    own id is `prefix` + "svg", and its style sheet is confined to it.
    """
    text = _svg(figure)
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Nothing refers to a picture, and two equal ones would share an id.
    text = re.sub(r'(<image\b[^>]*?)\s+id="[^"]*"', r"\1", text)
    seen: Counter[str] = Counter()

    def own(found: re.Match[str]) -> str:
        # matplotlib names an image by its content: two equal ones would share an id.
        seen[found[1]] += 1
        again = f"-{seen[found[1]]}" if seen[found[1]] > 1 else ""
        return f'id="{prefix}{found[1]}{again}"'

    text = re.sub(r'\bid="([^"]+)"', own, text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}\1"', text)
    text = text.replace(">*{", f">#{prefix}svg *{{", 1)
    box = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg id="{prefix}svg" class="drawing" {box[0] if box else ""} role="img"'
    head += f' aria-label="{escape(label)}" width="100%" xmlns="http://www.w3.org/2000/svg">'
    return head + text[text.index(">") + 1 :]


def _stage_names(axes: Axes, stages: Sequence[Stage], size: float = 8.5) -> None:
    figure: Any = axes.get_figure()
    room = 72 * figure.get_figwidth() - 60  # points between the left and the right end, about
    scale = axes.transScale.transform
    low, high = (scale((x, 1.0))[0] for x in axes.get_xlim())
    at = [room * (scale((s.time, 1.0))[0] - low) / (high - low) for s in stages]
    names = [s.name if s.cycle == 1 else f"{s.name} {s.cycle}" for s in stages]
    ends = [*at[1:], room]
    flat = all(a + 0.6 * size * len(n) + 4 <= e for a, n, e in zip(at, names, ends, strict=True))
    angle = 0 if flat else 35
    chosen = list(range(len(stages)))
    places: list[float] | None = at
    if not flat:
        gap = 1.4 * size / math.sin(math.radians(angle))
        places = _spread(at, names, gap, room, size)
        if places is None:  # of later cycles only where they begin
            first = {s.cycle: i for i, s in reversed(list(enumerate(stages)))}
            chosen = [i for i, s in enumerate(stages) if s.cycle == 1 or first[s.cycle] == i]
            for i in chosen:
                names[i] = names[i] if stages[i].cycle == 1 else f"cycle {stages[i].cycle}"
        while places is None:
            places = _spread([at[i] for i in chosen], [names[i] for i in chosen], gap, room, size)
            if places is None:
                chosen.remove(min(chosen, key=lambda i: stages[i].confidence))
    for i, place in zip(chosen, places or (), strict=True):
        moved = place - at[i] if abs(place - at[i]) > 0.5 else 0.0
        axes.annotate(
            names[i],
            (stages[i].time, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(moved + (0 if flat else 2), 8 if moved else 4),
            textcoords="offset points",
            rotation=angle,
            rotation_mode="anchor",
            ha="left",
            va="bottom",
            fontsize=size,
            color="#333333",
            arrowprops={
                "arrowstyle": "-",
                "lw": 0.6,
                "color": "#888888",
                "shrinkA": 0,
                "shrinkB": 0,
                "patchA": None,
                "relpos": (0, 0),
            }
            if moved
            else None,
        )


def _spread(
    at: Sequence[float], names: Sequence[str], gap: float, room: float, size: float
) -> list[float] | None:
    """Places for slanted names, `gap` apart and near their lines; None where they do not fit."""
    places: list[float] = []
    for x in at:
        places.append(max(x, places[-1] + gap) if places else x)
    last = math.inf
    for i in reversed(range(len(places))):
        end = room + 30 - 0.5 * size * len(names[i])  # a name may stand out a little
        places[i] = last = min(places[i], last - gap, end)
    far = max((abs(place - x) for place, x in zip(places, at, strict=True)), default=0.0)
    return places if far <= 3 * gap else None


def plain_log_ticks(axis: Any) -> None:
    """Tick labels in plain text on a logarithmic axis, and few ticks: drawing costs by the tick."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    class Between(LogLocator):
        """All of 2 to 9 over a decade or so, 2 and 5 over a few, none over many."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            low, high = sorted((vmin, vmax))
            decades = math.log10(high / low) if low > 0 else math.inf
            if decades > 3.5:
                return np.empty(0)
            self.set_params(subs=tuple(range(2, 10)) if decades < 1.7 else (2, 5))
            return super().tick_values(vmin, vmax)

    def between(value: float, _: int) -> str:
        """Ticks between the powers of ten speak up where there are too few of those."""
        low, high = sorted(axis.get_view_interval())
        decades = math.log10(high / low) if low > 0 else math.inf
        first = round(value / 10 ** math.floor(math.log10(value) + 1e-9), 6) if value > 0 else 0
        wanted = decades < 0.8 or (decades < 1.7 and first in (2, 5))
        return f"{value:.3g}" if wanted and 1e-3 <= value < 1e4 else ""

    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_minor_locator(Between())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axis.set_minor_formatter(FuncFormatter(between))


def _power(value: float) -> str:
    """`0.01`, `100`, `10⁻⁵`: plain text, since mathematics in SVG needs fonts of its own."""
    if value <= 0:
        return ""
    exponent = math.log10(value)
    if not math.isclose(exponent, round(exponent), abs_tol=1e-9) or -3 <= exponent <= 4:
        return f"{value:.3g}" if exponent < 3 else f"{value:,.0f}".replace(",", "\u202f")
    return "10" + str(round(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
