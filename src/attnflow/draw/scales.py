"""Logarithmic axes with few ticks and plain labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def log_scale(axes: Axes, which: str = "xy") -> None:
    """Logarithmic axes: `x`, `y` or both."""
    for name in which:
        getattr(axes, f"set_{name}scale")("log")
        plain_log_ticks(getattr(axes, f"{name}axis"))


def log_y(axes: Axes) -> None:
    """A logarithmic vertical axis where a curve has something above zero."""
    lines = [  # those of the data, not the borders of the bands
        line
        for line in axes.get_lines()
        if line.get_transform().contains_branch_seperately(axes.transData)[1]
    ]
    values = [np.asarray(line.get_ydata(), float) for line in lines]
    if any((np.isfinite(v) & (v > 0)).any() for v in values):
        log_scale(axes, "y")


def plain_log_ticks(axis: Any) -> None:
    """Tick labels in plain text on a logarithmic axis, and few ticks: drawing costs by the tick."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    class Between(LogLocator):
        """Ticks at 2 to 9 over about a decade, at 2 and 5 over a few decades, none over many."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            low, high = sorted((vmin, vmax))
            decades = math.log10(high / low) if low > 0 else math.inf
            if decades > 3.5:
                return np.empty(0)
            self.set_params(subs=tuple(range(2, 10)) if decades < 1.7 else (2, 5))
            return super().tick_values(vmin, vmax)

    def between(value: float, _: int) -> str:
        """The label of a tick between two powers of ten; empty unless powers of ten are few."""
        low, high = sorted(axis.get_view_interval())
        decades = math.log10(high / low) if low > 0 else math.inf
        first = round(value / 10 ** math.floor(math.log10(value) + 1e-9), 6) if value > 0 else 0
        wanted = decades < 0.8 or (decades < 1.7 and first in (2, 5))
        return f"{value:.3g}" if wanted and 1e-3 <= value < 1e4 else ""

    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_minor_locator(Between())
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_powers(value)))
    axis.set_minor_formatter(FuncFormatter(between))


def in_powers(value: float) -> str:
    """`0.01`, `100`, `10⁻⁵`: plain text, since mathematics in SVG needs fonts of its own."""
    if value <= 0:
        return "0" if value == 0 else ""
    exponent = math.log10(value)
    if not math.isclose(exponent, round(exponent), abs_tol=1e-9) or -3 <= exponent <= 4:
        return f"{value:.3g}" if exponent < 3 else f"{value:,.0f}".replace(",", "\u202f")
    return "10" + str(round(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
