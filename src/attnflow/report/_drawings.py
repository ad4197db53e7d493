"""Figures on their way into a page, with their captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from attnflow.draw import caption, svg_text
from attnflow.report._saddles import saddles_over_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.runs import Run


@dataclass(frozen=True)
class Drawing:
    """A figure as inline SVG, its caption, and the name of its file."""

    name: str
    caption: str
    svg: Markup


def figures(run: Run, drawn: Mapping[str, Figure | str] | None = None) -> dict[str, Figure | str]:
    """The study's figures (or those `drawn` of it), and the saddles where a ledger has some."""
    drawn = dict(run.figures if drawn is None else drawn)
    if run.saddles and "saddles" not in drawn:
        drawn["saddles"] = saddles_over_loss(run.trajectory, run.stages, run.saddles)
    return drawn


def drawings(run: Run, drawn: Mapping[str, Figure | str]) -> list[Drawing]:
    """Figures of a run (or their SVG) with their captions."""
    own = run.built.figures() if set(drawn) - {"saddles"} else {}
    functions = {"saddles": saddles_over_loss, **own}
    return [drawing(name, figure, caption(name, functions[name])) for name, figure in drawn.items()]


def drawing(name: str, figure: Figure | str, words: str, prefix: str | None = None) -> Drawing:
    """One figure ready for a page; the ids inside begin with `prefix`."""
    prefix = f"fig-{slug(name)}-" if prefix is None else prefix
    return Drawing(name, words, Markup(svg_text(figure, prefix, words)))


def slug(text: str) -> str:
    """A text as part of an id: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
