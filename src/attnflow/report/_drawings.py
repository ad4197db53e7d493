"""Figures on their way into a page or a folder, with their captions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from attnflow import _figures
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


def write_figures(figures: Mapping[str, Figure], folder: Path) -> None:
    """Every figure as `NAME.svg` and `NAME.pdf` in a folder (made if missing)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for kind in ("svg", "pdf"):
            _figures.save(figure, folder / f"{name}.{kind}")


def figures(run: Run) -> dict[str, Figure]:
    """The study's figures, and the saddles of a run that has a ledger of them."""
    drawn = dict(run.figures)
    if run.saddles is not None and len(run.saddles):
        drawn.setdefault("saddles", saddles_over_loss(run.trajectory, run.stages, run.saddles))
    return drawn


def drawings(run: Run, drawn: Mapping[str, Figure]) -> list[Drawing]:
    """Figures of a run with their captions."""
    functions = {"saddles": saddles_over_loss, **run.built.figures()}
    words = _given_captions(run.built)
    return [
        drawing(name, figure, words.get(name) or caption(name, functions[name]))
        for name, figure in drawn.items()
    ]


def drawing(name: str, figure: Figure, caption: str, prefix: str | None = None) -> Drawing:
    """One figure ready for a page; the ids inside begin with `prefix`."""
    prefix = f"fig-{slug(name)}-" if prefix is None else prefix
    return Drawing(name, caption, Markup(_figures.svg_text(figure, prefix, caption)))


def caption(name: str, function: Callable[..., Any] | None) -> str:
    """The first line of a figure function's docstring; its name in words where there is none."""
    doc = getattr(function, "__doc__", None)
    if isinstance(function, functools.partial) and doc == functools.partial.__doc__:
        doc = function.func.__doc__
    lines = (doc or "").strip().splitlines()
    return lines[0].strip() if lines else name.replace("-", " ").replace("_", " ").capitalize()


def slug(text: str) -> str:
    """A text as part of an id: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _given_captions(study: Any) -> Mapping[str, str]:
    given = getattr(study, "captions", None)
    given = given() if callable(given) else given
    return given if isinstance(given, Mapping) else {}
