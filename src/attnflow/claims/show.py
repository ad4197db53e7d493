"""A ledger on the screen: a terminal table and a piece of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from attnflow.claims.export import correction_facts, shown_value, verdict_words
from attnflow.claims.row import Row

if TYPE_CHECKING:
    from rich.table import Table


def rich_table(rows: Sequence[Row], summary: str) -> Table:
    """A table for the terminal; a surprise is marked with `!`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=Text(summary), caption_justify="left", title_justify="left")
    for name in ("Verdict", "Claim", "Statement", "Predicted", "Measured"):
        table.add_column(name, no_wrap=name == "Claim", vertical="top")
    for row in rows:
        mark = "! " if row.surprising else ""
        table.add_row(
            Text(f"{mark}{row.verdict.symbol} {verdict_words(row)}", style=row.verdict.colour),
            Text(f"{row.id}\n{row.part}"),
            Text(row.title),
            Text(shown_value(row.predicted)),
            Text(shown_value(row.measured)),
        )
    return table


def html(rows: Sequence[Row], summary: str) -> str:
    """A table with inline styles: verdicts by bar colour, sign and word."""
    heads = "".join(
        f'<th style="{_CELL}">{name}</th>'
        for name in (
            "Verdict",
            "Claim",
            "Statement",
            "Predicted",
            "Measured",
            "Tolerance",
            "Source",
        )
    )
    body = "".join(_html_row(row) for row in rows)
    return (
        f'<div style="overflow-x:auto"><p>{escape(summary)}</p>'
        f'<table style="border-collapse:collapse"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_CELL = "text-align:left;vertical-align:top;padding:.3em .6em"


def _html_row(row: Row) -> str:
    bar = f"{_CELL};border-left:.5em solid {row.verdict.colour}"
    mark = "! " if row.surprising else ""
    verdict = escape(f"{mark}{row.verdict.symbol} {verdict_words(row)}")
    cells = (
        f"{escape(row.id)}<br><small>{escape(row.part)}</small>",
        f"{escape(row.title)}{_details(row)}",
        *(escape(shown_value(v)) for v in (row.predicted, row.measured)),
        escape(shown_value(row.tolerance, 2)),
        escape(row.source),
    )
    rest = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr><td style="{bar}"><b>{verdict}</b></td>{rest}</tr>'


def _details(row: Row) -> str:
    """What lies behind a row: note, regime, control, and the correction with its snippet."""
    facts: list[tuple[str, str]] = [("note", row.note)]
    if row.regime is not None:
        facts.append(("inside" if row.regime.inside else "outside", row.regime.sentence))
    if row.control is not None:
        facts.append(("control", f"{row.control.name}: {row.control.sentence}"))
    snippet = ""
    if row.correction is not None:
        facts += correction_facts(row.correction)
        snippet = f'<pre style="white-space:pre-wrap">{escape(row.correction.snippet)}</pre>'
    lines = "<br>".join(f"<i>{escape(k)}</i>: {escape(v)}" for k, v in facts if v)
    return f"<details><summary>evidence</summary>{lines}{snippet}</details>" if lines else ""
