"""Small figures of a sweep: one scalar over the scanned parameter or over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnflow import _figures as draw
from attnflow.runs._manifest import flat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.runs import Ensemble, Fit, Slope

MOST = 6
"""Figures on a page; every other number is in the tables."""

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
"""By the last word of a number's name."""


@dataclass(frozen=True)
class Scalar:
    """A number of the cells' summaries: its dotted name and its values by cell."""

    name: str
    values: Mapping[int, float]


def scalars(ensemble: Ensemble) -> list[Scalar]:
    """Every finite number of the summaries, in the order in which they occur."""
    found: dict[str, dict[int, float]] = {}
    for k, result in enumerate(ensemble.results):
        if not result.ok:
            continue
        for name, value in flat(dict(result.summary)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                continue
            if math.isfinite(value):
                found.setdefault(name, {})[k] = float(value)
    return [Scalar(name, values) for name, values in found.items()]


def main_scalars(ensemble: Ensemble, found: Iterable[Scalar]) -> list[Scalar]:
    """The numbers worth a figure: those that vary, taken in turn from each group of the summary.

    A loss comes first; then one of `plateaus`, one of `stages`, and so on. A number that most
    cells lack is left to the tables.
    """
    most, enough = MOST, max(2, sum(r.ok for r in ensemble.results) / 2)
    groups: dict[str, list[Scalar]] = {}
    for each in found:
        y = np.array(list(each.values.values()))
        if len(y) >= enough and np.ptp(y) > 1e-9 * np.abs(y).max():
            groups.setdefault(each.name.split(".")[0], []).append(each)
    for group in groups.values():
        group.sort(key=lambda s: not s.name.endswith(("loss", "time")))
    chosen: list[Scalar] = groups.pop("loss", [])
    while any(groups.values()) and len(chosen) < most:
        chosen += [group.pop(0) for group in groups.values() if group]
    return chosen[:most]


@draw.styled
def against_parameter(ensemble: Ensemble, scalar: Scalar) -> Figure:
    """Points per cell, their means, and the best fit."""
    figure, axes = draw.new(width=4.2, height=3.5)
    given = [ensemble.results[k].cell.value for k in scalar.values]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    levels = list(dict.fromkeys(given))
    x = np.array(given if numeric else [levels.index(v) for v in given], float)
    y = np.array(list(scalar.values.values()))
    if _several(x):
        axes.plot(x, y, "o", ms=4, color=draw.COLOURS[0], alpha=0.45, mew=0, label="one run")
    at = np.unique(x)
    means = np.array([y[x == value].mean() for value in at])
    axes.plot(at, means, "D", ms=5, color=draw.COLOURS[0], label="mean" if _several(x) else "run")
    slope = next((s for s in ensemble.slopes if s.name == scalar.name), None)
    if slope is not None and slope.best is not None and numeric:
        _line(axes, at, slope, slope.best)
    if not numeric:
        axes.set_xticks(range(len(levels)), [str(v) for v in levels])
    axes.set_xlabel(f"{ensemble.parameter} (config value)")
    return _named(figure, axes, scalar)


@draw.styled
def over_seeds(ensemble: Ensemble, scalar: Scalar) -> Figure:
    """A point per seed, their mean and one standard deviation on both sides."""
    figure, axes = draw.new(width=4.2, height=3.5)
    cells = [ensemble.results[k].cell for k in scalar.values]
    x = np.array([c.index if c.seed is None else c.seed for c in cells], float)
    y = np.array(list(scalar.values.values()))
    mean, sd = float(y.mean()), float(y.std(ddof=1)) if len(y) > 1 else 0.0
    axes.axhspan(mean - sd, mean + sd, color=draw.BANDS[1], lw=0, label="± one sd")
    axes.axhline(mean, color=draw.COLOURS[1], ls="--", lw=1.2, label=f"mean {mean:.5g}")
    axes.plot(x, y, "o", ms=5, color=draw.COLOURS[0], label="one run")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("seed (number)")
    return _named(figure, axes, scalar)


def _named(figure: Figure, axes: Axes, scalar: Scalar) -> Figure:
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(axis="y", useOffset=False)
    word = scalar.name.split(".")[-1].replace("_", " ")
    axes.set_ylabel(f"{word} ({UNITS.get(word.split(' ')[-1], 'as in the summary')})")
    draw.title(figure, scalar.name)
    draw.legend(figure, axes)
    return figure


def _line(axes: Axes, at: np.ndarray, slope: Slope, form: str) -> None:
    """The fit in the form in which it is a straight line; the axes take that form's scales."""
    fit = slope.fits[form]
    log_x, log_y = form in ("log-x", "log-log"), form in ("log-y", "log-log")
    if log_x:
        axes.set_xscale("log")
        draw.plain_log_ticks(axes.xaxis)
    low, high = float(at.min()), float(at.max())
    x = np.geomspace(low, high, 50) if log_x else np.linspace(low, high, 50)
    y = fit.intercept + fit.slope * (np.log(x) if log_x else x)
    words = f"{form} fit, slope {_with_error(fit)}"
    axes.plot(x, np.exp(y) if log_y else y, color=draw.COLOURS[1], ls="--", lw=1.4, label=words)
    if log_y:
        draw.log_y(axes)


def _with_error(fit: Fit) -> str:
    return f"{fit.slope:.4g}" + ("" if fit.error is None else f" ± {fit.error:.2g}")


def _several(x: Sequence[float] | np.ndarray) -> bool:
    """Whether one value of the parameter has more than one run."""
    return len(np.unique(x)) < len(x)
