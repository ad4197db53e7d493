"""Figures on their way into a page, with their captions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from attnflow.draw import caption, svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.walk import Outcome


@dataclass(frozen=True)
class Drawing:
    """A figure as inline SVG, its caption, and the name of its file."""

    name: str
    caption: str
    svg: Markup


def drawings(outcome: Outcome) -> list[Drawing]:
    """Every figure of a run."""
    functions = outcome.figure_functions
    return [
        drawing(name, figure, caption(name, functions.get(name)))
        for name, figure in outcome.figures.items()
    ]


def first_drawing(outcome: Outcome) -> Drawing | None:
    """The loss figure (or the study's first one); the others are not drawn."""
    functions = outcome.study.figures()
    name = "loss" if "loss" in functions else next(iter(functions), None)
    if name is None:
        return None
    done = vars(outcome).get("figures")
    figure = done[name] if done else functions[name](outcome.trajectory, outcome.stages)
    # Several outputs of one notebook share a page, and an id has one meaning in a page.
    key = hashlib.sha256(svg_text(figure).encode()).hexdigest()[:8]
    return drawing(name, figure, caption(name, functions[name]), prefix=f"af-{key}-")


def drawing(name: str, figure: Figure, words: str, prefix: str | None = None) -> Drawing:
    """One figure ready for a page; the ids inside begin with `prefix`."""
    prefix = f"fig-{slug(name)}-" if prefix is None else prefix
    return Drawing(name, words, Markup(svg_text(figure, prefix, words)))


def slug(text: str) -> str:
    """A text as part of an id: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
