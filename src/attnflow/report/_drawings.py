"""Figures on their way into a page or a folder, with their captions."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from attnflow import _figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.walk import Outcome


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


def drawings(outcome: Outcome) -> list[Drawing]:
    """Every figure of a run."""
    functions = outcome.figure_functions
    words = _given_captions(outcome.study)
    return [
        drawing(name, figure, words.get(name) or caption(name, functions.get(name)))
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
    words = _given_captions(outcome.study).get(name) or caption(name, functions[name])
    # Several outputs of one notebook share a page, and an id has one meaning in a page.
    key = hashlib.sha256(_figures.svg_text(figure).encode()).hexdigest()[:8]
    return drawing(name, figure, words, prefix=f"af-{key}-")


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
