"""Tables of blocks for the terminal and the notebook."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

from attnflow._tables import html_table, text_table

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
        return html_table(*self._rows(), note=" ".join(filter(None, [self.criterion, self.note])))


def number(x: float | None) -> str:
    """A number with four digits; a dash where there is none."""
    if x is None or x != x:
        return "-"
    return f"{x:.4g}"


def counted(size: int) -> str:
    return f"{size:,} parameter" + ("s" if size != 1 else "")
