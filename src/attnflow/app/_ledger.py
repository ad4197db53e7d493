"""A ledger for the page: the rows as their words and typeset statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnflow.app import _shown
from attnflow.app._library import Missing
from attnflow.claims import mathematics
from attnflow.claims.words import compared, facts, sections, verdict_words

if TYPE_CHECKING:
    from attnflow.claims import Ledger, Row
    from attnflow.runs import Run


def shown(run: Run) -> dict[str, Any]:
    """Every row of a run's ledger, in the order of the paper's sections."""
    ledger = _ledger(run)
    figures = _shown.figures(run)
    rows = [
        _row(row, section, figures) for section, found in ledger.sections.items() for row in found
    ]
    return {"headline": ledger.headline, "rows": rows}


def table(run: Run) -> tuple[list[str], list[list[Any]]]:
    """The ledger as a table for a spreadsheet."""
    head = ["section", "id", "part", "strength", "verdict", "predicted", "measured", "statement"]
    rows = []
    for section, found in sections(_ledger(run)).items():
        for row in found:
            sides = compared(row)
            predicted, measured = (
                "; ".join(getattr(s, n) for s in sides) for n in ("predicted", "measured")
            )
            words = [section, row.id, str(row.part), str(row.strength), row.verdict.value]
            rows.append([*words, predicted, measured, mathematics.plain(row.title)])
    return head, rows


def _ledger(run: Run) -> Ledger:
    if run.claims is None:
        raise Missing("The claims of this run were not checked: attnflow run without --no-claims.")
    return run.claims


def _row(row: Row, section: str, figures: list[str]) -> dict[str, Any]:
    fix = row.correction
    told = {
        "id": row.id,
        "part": str(row.part),
        "strength": str(row.strength),
        "verdict": row.verdict.value,
        "words": verdict_words(row),
        "colour": row.verdict.colour,
        "section": mathematics.html(section),
        "title": mathematics.html(row.title),
        "plain": mathematics.plain(row.title),
        "source": row.source,
        "ours": row.ours,
        "surprising": row.surprising,
        "compared": [vars(each) for each in compared(row)],
        "facts": [[name, mathematics.html(words)] for name, words in facts(row)],
        "figures": _figures(row, figures),
        "erratum": None if row.erratum is None else mathematics.plain(row.erratum.title),
    }
    if fix is not None:
        sides = {"printed": fix.printed, "corrected": fix.corrected, "seen": fix.counterexample}
        told["correction"] = {name: mathematics.html(text) for name, text in sides.items() if text}
        told["snippet"] = fix.snippet
    return told


def _figures(row: Row, there: list[str]) -> list[str]:
    """The run's figures whose names are words of the statement, the nearest first."""
    text = f" {row.title} {row.note}".lower()
    shared = {name: [w for w in name.split("-") if f" {w[:-1] or w}" in text] for name in there}
    found = [name for name, words in shared.items() if words]
    return sorted(found, key=lambda name: len(name.split("-")) - len(shared[name]))[:3]
