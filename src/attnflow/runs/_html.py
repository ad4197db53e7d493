"""Small tables for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(rows: Iterable[Sequence[Any]], *, header: Sequence[str] = (), caption: str = "") -> str:
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{escape(cell(value))}</td>" for value in row)
        + "</tr>"
        for row in rows
    )
    return (
        "<table>"
        + (f"<caption style='text-align:left'>{escape(caption)}</caption>" if caption else "")
        + (f"<thead><tr>{head}</tr></thead>" if header else "")
        + f"<tbody>{body}</tbody></table>"
    )


def text(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> str:
    lines = [list(header), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def cell(value: Any) -> str:
    """A number to four digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)
