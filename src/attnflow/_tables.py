"""Small tables for the terminal and the notebook."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_LEFT = "style='text-align:left'"  # of each cell: a notebook's own style is on the cells too


def text_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their longest entry."""
    lines = [list(head), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", note: str = ""
) -> str:
    """The same for a notebook, with a sentence above it and one below."""
    top = "".join(f"<th {_LEFT}>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td {_LEFT}>{escape(cell(value))}</td>' for value in row)}</tr>"
        for row in rows
    )
    above = f"<caption {_LEFT}>{escape(caption)}</caption>" if caption else ""
    above += f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<table>{above}<tbody>{body}</tbody></table>" + (f"<p>{escape(note)}</p>" * bool(note))


def cell(value: Any) -> str:
    """A number to four digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)
