"""A ledger for the page: the rows as their words and typeset statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    shows = _shown.shows(run)
    rows = [
        _row(row, section, shows) for section, found in ledger.sections.items() for row in found
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


def _row(row: Row, section: str, shows: Mapping[str, Sequence[str]]) -> dict[str, Any]:
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
        "figures": _figures(row, shows),
        "erratum": None if row.erratum is None else mathematics.plain(row.erratum.title),
    }
    if fix is not None:
        sides = {"printed": fix.printed, "corrected": fix.corrected, "seen": fix.counterexample}
        told["correction"] = {name: mathematics.html(text) for name, text in sides.items() if text}
        told["snippet"] = fix.snippet
    return told


def _figures(row: Row, shows: Mapping[str, Sequence[str]]) -> list[str]:
    """The run's figures that name this claim."""
    return [name for name, labels in shows.items() if any(names(label, row.id) for label in labels)]


def names(label: str, id: str) -> bool:
    """Whether a label stands for a claim: for it alone, or for a statement of which it is a part.

    >>> names("Prop 3.4", "Prop 3.4 (eq 14)"), names("Prop 3.4", "Prop 3.41")
    (True, False)
    >>> names("Thm D.3", "Thm 3.9, Thm D.3 (fast normal)")
    True
    """
    parts = (id, *id.split(", "))
    rests = [part[len(label) :] for part in parts if label and part.startswith(label)]
    return any(not rest or not (rest[0].isalnum() or rest[0] == ".") for rest in rests)
