"""Figures as files and as part of a page."""

from __future__ import annotations

import functools
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.draw.style import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Any) -> None:
    """Write a figure in our style; the ending decides the format."""
    kind = str(path).rsplit(".", 1)[-1]
    if kind == "svg":
        Path(path).write_text(svg(figure), encoding="utf-8")
        return
    with style(layout=False):
        figure.savefig(
            path, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None
        )


SHOWS = "shows.json"
"""Which claims each figure shows, beside the figures: their labels by the figure's name."""


def write_figures(
    figures: Mapping[str, Figure | str],
    folder: Path,
    pdf: bool = False,
    shows: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Every figure (or SVG of one) as `NAME.svg` in a folder (made if missing).

    With `pdf` figures are also written as `NAME.pdf`, which takes longer than all the rest.
    `shows` are the labels of the claims that each figure shows.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        (folder / f"{name}.svg").write_text(svg(figure), encoding="utf-8")
        if pdf and not isinstance(figure, str):
            save(figure, folder / f"{name}.pdf")
    named = {name: list(labels) for name, labels in (shows or {}).items() if labels}
    if named:
        (folder / SHOWS).write_text(json.dumps(named, indent=1), encoding="utf-8")


def caption(name: str, function: Callable[..., Any] | None) -> str:
    """The first paragraph of a figure function's docstring; its name where there is none."""
    doc = getattr(function, "__doc__", None)
    if isinstance(function, functools.partial) and doc == functools.partial.__doc__:
        doc = function.func.__doc__
    words = " ".join((doc or "").strip().partition("\n\n")[0].split())
    return words or name.replace("-", " ").replace("_", " ").capitalize()


def svg(figure: Figure | str) -> str:
    """The figure as an SVG file. Kept with it: a run writes it to disk and into its page.

    Text is an SVG file already, of a figure that another process drew.
    """
    if isinstance(figure, str):
        return figure
    kept: str | None = vars(figure).get("_attnflow_svg")
    if kept is None:
        buffer = io.StringIO()
        with style(layout=False):
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        kept = vars(figure)["_attnflow_svg"] = buffer.getvalue()
    return kept


def svg_text(figure: Figure | str, prefix: str = "", label: str = "") -> str:
    """The figure as an `<svg>` element to put into a page: as wide as its place, with a label.

    `prefix` goes before every id inside, so that several figures live in one page; the element's
    own id is `prefix` + "svg", and its style sheet is confined to it.
    """
    text = svg(figure)
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
