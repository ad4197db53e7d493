"""A ledger on the screen: tables for a terminal and a piece of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from attnflow.claims import mathematics
from attnflow.claims.mathematics import plain
from attnflow.claims.row import Row
from attnflow.claims.verdict import Verdict
from attnflow.claims.words import (
    columns,
    correction_facts,
    counted,
    errata,
    facts,
    label,
    sections,
    summary,
    verdict_words,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table


def terminal(rows: Sequence[Row], every: bool = False) -> Group:
    """The ledger by sections: how many rows have which verdict, and what a reader must know.

    That is each erratum, what was not reproduced and what is a surprise; `every` adds all rows.
    """
    from rich.console import Group
    from rich.text import Text

    if every:
        shown: list[RenderableType] = []
        for title, found in sections(rows).items():
            shown += [
                Text.assemble((plain(title), "bold"), f"  {counted(found)}"),
                _table(found),
                "",
            ]
        return Group(*shown, Text(summary(rows)))
    told = [row for row in rows if row.erratum is None and not _quiet(row)]
    parts = [_sections(rows), _errata(rows), _table(told)]
    shown = [part for each in parts if each.row_count for part in (each, "")]
    return Group(*shown, Text(summary(rows)))


def _quiet(row: Row) -> bool:
    loud = (Verdict.FAILS, Verdict.HOLDS_CORRECTED, Verdict.NOT_REPRODUCED)
    return row.verdict not in loud and not row.surprising


def _sections(rows: Sequence[Row]) -> Table:
    """How the rows of each section came out."""
    from rich.text import Text

    table = _columns("Section", "Verdicts")
    for title, found in sections(rows).items():
        table.add_row(Text(plain(title)), Text(counted(found)))
    return table


def _errata(rows: Sequence[Row]) -> Table:
    """Each erratum once, with the rows that show it."""
    from rich.text import Text

    table = _columns("Erratum", "What is wrong", "Shown by")
    for erratum, found in errata(rows).items():
        first = found[0].verdict
        names = [row.id for row in found[:3]] + ([f"{len(found) - 3} more"] if found[3:] else [])
        table.add_row(
            Text(f"{first.symbol} {erratum.cause}", style=first.colour),
            Text(plain(erratum.title)),
            Text(", ".join(names)),
        )
    return table


def _table(rows: Sequence[Row]) -> Table:
    """A line per row; a surprise is marked with `!`."""
    from rich.text import Text

    table = _columns("Verdict", "Claim", "Statement", "Predicted", "Measured")
    for row in rows:
        mark = "! " if row.surprising else ""
        table.add_row(
            Text(f"{mark}{row.verdict.symbol} {verdict_words(row)}", style=row.verdict.colour),
            Text(label(row)),
            Text(plain(row.title)),
            *(Text(cell) for cell in columns(row)),
        )
    return table


def _columns(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, vertical="top")
    return table


def html(rows: Sequence[Row]) -> str:
    """Tables with inline styles: verdicts by bar colour, sign and word."""
    names = ("Verdict", "Claim", "Statement", "Predicted", "Measured")
    heads = "".join(f'<th style="{_CELL}">{name}</th>' for name in names)
    body = ""
    for title, found in sections(rows).items():
        said = f"{mathematics.html(title)} <small>{counted(found)}</small>"
        body += f'<tr><th colspan="{len(names)}" style="{_CELL}">{said}</th></tr>'
        body += "".join(_html_row(row) for row in found)
    return (
        f'<div style="overflow-x:auto"><p>{escape(summary(rows))}</p>'
        f'<table style="border-collapse:collapse"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_CELL = "text-align:left;vertical-align:top;padding:.3em .6em"


def _html_row(row: Row) -> str:
    bar = f"{_CELL};border-left:.5em solid {row.verdict.colour}"
    mark = "! " if row.surprising else ""
    verdict = escape(f"{mark}{row.verdict.symbol} {verdict_words(row)}")
    cells = (
        escape(label(row)),
        f"{mathematics.html(row.title)}{_details(row)}",
        *(escape(cell) for cell in columns(row)),
    )
    rest = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr><td style="{bar}"><b>{verdict}</b></td>{rest}</tr>'


def _details(row: Row) -> str:
    """What lies behind a row, and the correction with its snippet."""
    found, snippet = [*facts(row), *([("source", row.source)] if row.source else [])], ""
    if row.correction is not None:
        found += correction_facts(row.correction)
        snippet = f'<pre style="white-space:pre-wrap">{escape(row.correction.snippet)}</pre>'
    lines = "<br>".join(f"<i>{escape(k)}</i>: {mathematics.html(v)}" for k, v in found)
    return f"<details><summary>evidence</summary>{lines}{snippet}</details>" if lines else ""
