"""Small figures of a sweep: one number over the scanned parameter or over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.draw.scales import log_scale, log_y
from attnflow.draw.style import BANDS, COLOURS, GREY, legend, new, styled, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS = {
    "loss": "nats",
    "entropy": "nats",
    "floor": "nats",
    "time": "flow time",
    "enter": "flow time",
    "leave": "flow time",
    "rate": "1 / flow time",
    "speed": "weights per time",
    "prominence": "decades",
}
"""By a word of a number's name, the last one first."""


@styled
def against_parameter(
    name: str,
    values: Sequence[float],
    parameter: str,
    given: Sequence[Any],
    fit: tuple[str, Any] | None = None,
    predicted: Any = None,
) -> Figure:
    """A point per run, their means, and a fitted line.

    `given` are the parameter's values, one per run. `fit` is a form (linear, log-x, log-y or
    log-log: where the fit is a straight line) and its `slope`, `error` (or None) and `intercept`;
    `predicted` is the line of the same form through what closed forms say.
    """
    figure, axes = new(width=4.2, height=3.5)
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    levels = list(dict.fromkeys(given))
    x = np.array(given if numeric else [levels.index(v) for v in given], float)
    y, at = np.array(values), np.unique(x)
    several = len(at) < len(x)
    if several:
        axes.plot(x, y, "o", ms=4, color=COLOURS[0], alpha=0.45, mew=0, label="one run")
    means = np.array([y[x == value].mean() for value in at])
    axes.plot(at, means, "D", ms=5, color=COLOURS[0], label="mean" if several else "run")
    if fit is not None and numeric:
        if predicted is not None:
            _line(axes, at, fit[0], predicted, "predicted, slope", GREY, ":")
        _line(axes, at, *fit, f"{fit[0]} fit, slope", COLOURS[1], "--")
    if not numeric:
        axes.set_xticks(range(len(levels)), [str(v) for v in levels])
    axes.set_xlabel(f"{parameter} (config value)")
    return _named(figure, axes, name)


@styled
def over_seeds(name: str, values: Sequence[float], seeds: Sequence[int]) -> Figure:
    """A point per seed, their mean and one standard deviation on both sides."""
    figure, axes = new(width=4.2, height=3.5)
    y = np.array(values)
    mean, sd = float(y.mean()), float(y.std(ddof=1)) if len(y) > 1 else 0.0
    axes.axhspan(mean - sd, mean + sd, color=BANDS[1], lw=0, label="± one sd")
    axes.axhline(mean, color=COLOURS[1], ls="--", lw=1.2, label=f"mean {mean:.5g}")
    axes.plot(np.array(seeds, float), y, "o", ms=5, color=COLOURS[0], label="one run")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("seed (number)")
    return _named(figure, axes, name)


def _named(figure: Figure, axes: Axes, name: str) -> Figure:
    _told_apart(axes)
    word = name.split(".")[-1].replace("_", " ")
    words = (*reversed(word.split(" ")), *(part.rstrip("s") for part in name.split(".")[:-1]))
    axes.set_ylabel(f"{word} ({next((UNITS[w] for w in words if w in UNITS), 'number')})")
    title(figure, name)
    legend(figure, axes)
    return figure


def _told_apart(axes: Axes) -> None:
    """Ticks that differ, however little a number varies, with as many digits as that takes."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        if low <= 0 or high / low > 10:
            return
        axes.yaxis.set_minor_locator(NullLocator())
    locator = MaxNLocator(5)
    at = np.asarray(locator.tick_values(low, high))
    step = float(np.diff(at).min()) if len(at) > 1 else 1.0
    largest = float(np.abs(at).max()) or 1.0
    plain = 1e-4 <= largest < 1e6
    kind = "f" if plain else "e"
    enough = (d for d in range(13) if all(_exact(v, f".{d}{kind}", step) for v in at))
    form = f".{next(enough, 13)}{kind}"
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: format(v, form)))
    axes.set_ylim(low, high)


def _exact(value: float, form: str, step: float) -> bool:
    """Whether a tick is written as what it is, to a hundredth of the distance of two."""
    return abs(float(format(value, form)) - value) < 0.01 * step


def _line(
    axes: Axes, at: np.ndarray, form: str, fit: Any, name: str, colour: str, line: str
) -> None:
    """The fit in the form in which it is a straight line; the axes take that form's scales."""
    log_at, log_values = form in ("log-x", "log-log"), form in ("log-y", "log-log")
    if log_at:
        log_scale(axes, "x")
    x = (np.geomspace if log_at else np.linspace)(float(at.min()), float(at.max()), 50)
    y = fit.intercept + fit.slope * (np.log(x) if log_at else x)
    error = "" if fit.error is None else f" ± {fit.error:.2g}"
    words = f"{name} {fit.slope:.4g}{error if line == '--' else ''}"
    axes.plot(x, np.exp(y) if log_values else y, color=colour, ls=line, lw=1.4, label=words)
    if log_values:
        log_y(axes)
