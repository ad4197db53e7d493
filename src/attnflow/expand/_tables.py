"""Small tables for the terminal and the notebook."""

from __future__ import annotations

import abc
import html
from collections.abc import Sequence
from typing import Generic, TypeVar

Row = TypeVar("Row")


class Table(dict[str, Row], abc.ABC, Generic[Row]):
    """Rows by the name of a block; prints as a table."""

    criterion: str = ""
    note: str = ""

    @abc.abstractmethod
    def _rows(self) -> tuple[list[str], list[list[str]]]: ...

    def __repr__(self) -> str:
        return "\n".join(filter(None, [self.criterion, text_table(*self._rows()), self.note]))

    def _repr_html_(self) -> str:
        return html_table(*self._rows(), " ".join(filter(None, [self.criterion, self.note])))


def number(x: float | None) -> str:
    """A number with six digits; a dash where there is none."""
    if x is None or x != x:
        return "-"
    return f"{x:.4g}"


def counted(size: int) -> str:
    return f"{size:,} parameter" + ("s" if size != 1 else "")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest entry; words to the left, numbers to the right."""
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    top = "".join(f"<th style='text-align:left'>{html.escape(h)}</th>" for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    under = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<table><tr>{top}</tr>{body}</table>{under}"
