"""Curves, and how each is told apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.draw.style import COLOURS, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED = 8
"""Entries of a legend; a chain of more tokens takes its colours from a map."""

MOST_POINTS = 600
"""Points of a curve: more cannot be told apart at this width, and cost time and bytes."""


def curve(axes: Axes, x: Any, y: Any, look: int | Look, label: str = "") -> None:
    """One curve, thinned to `MOST_POINTS`; a single finite point is drawn as a dot."""
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
