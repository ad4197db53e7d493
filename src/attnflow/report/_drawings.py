"""Figures on their way into a page, with their captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from attnflow.draw import caption, in_steps, svg_text, told
from attnflow.report._saddles import saddles_over_loss
from attnflow.studies.config import step_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.draw import Story
    from attnflow.runs import Run


@dataclass(frozen=True)
class Drawing:
    """A figure as inline SVG, its caption, and the name of its file."""

    name: str
    caption: str
    svg: Markup


def figures(run: Run, drawn: Mapping[str, Figure | str] | None = None) -> dict[str, Figure | str]:
    """The study's figures (or those `drawn` of it), the first one that tells the run's story, and
    the saddles where a ledger has some."""
    drawn = dict(run.figures if drawn is None else drawn)
    if "story" not in drawn and "loss" in run.trajectory and run.trajectory.sizes["time"] > 1:
        with in_steps(step_length(run.config)):
            drawn = {"story": told(run.trajectory, run.stages, story(run)), **drawn}
    if run.saddles and "saddles" not in drawn:
        drawn["saddles"] = saddles_over_loss(
            run.trajectory, run.stages, run.saddles, story(run).loss
        )
    return drawn


def drawings(run: Run, drawn: Mapping[str, Figure | str]) -> list[Drawing]:
    """Figures of a run (or their SVG) with their captions."""
    own = run.built.figures() if set(drawn) - {"saddles", "story"} else {}
    functions = {"saddles": saddles_over_loss, "story": told, **own}
    return [drawing(name, figure, caption(name, functions[name])) for name, figure in drawn.items()]


def story(run: Run) -> Story:
    """What the study says of the run."""
    return run.built.story(run.trajectory, run.stages)


def drawing(name: str, figure: Figure | str, words: str, prefix: str | None = None) -> Drawing:
    """One figure ready for a page; the ids inside begin with `prefix`."""
    prefix = f"fig-{slug(name)}-" if prefix is None else prefix
    return Drawing(name, words, Markup(svg_text(figure, prefix, words)))


def slug(text: str) -> str:
    """A text as part of an id: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
