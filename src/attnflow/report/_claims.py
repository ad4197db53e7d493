"""The ledger on a page: errata first, then the rows by section, each with a link of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnflow.claims import Verdict
from attnflow.claims.words import compared, counted, facts, verdict_words
from attnflow.report._drawings import slug

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnflow.claims import Citation, Erratum, Ledger, Row
    from attnflow.claims.words import Compared


@dataclass(frozen=True)
class Shown:
    """A row with what the template says of it; `text` is what a filter searches."""

    row: Row
    anchor: str
    words: str
    source: str
    compared: list[Compared]
    facts: list[tuple[str, str]]
    text: str
    loud: bool


@dataclass(frozen=True)
class Claims:
    """A ledger as `claims.html` shows it."""

    sections: list[tuple[str, str, list[Shown]]]
    verdicts: list[tuple[Verdict, str, str]]
    errata: list[tuple[Erratum, list[Shown]]]
    surprises: list[Shown]
    missed: list[Shown]
    parts: list[str]
    strengths: list[str]
    notation: Mapping[str, str]

    @property
    def news(self) -> list[tuple[str, str, str, str]]:
        """What did not come out as printed, once per cause: verdict, colour, words, link."""
        rows = [s for *_, group in self.sections for s in group]
        fails = [s for s in rows if s.row.verdict is Verdict.FAILS]
        causes = [(e.title, found[0]) for e, found in self.errata]
        known = {id(s) for _, found in self.errata for s in found}
        told = [(s.row.title, s) for s in fails if id(s) not in known]
        told += causes + [(s.row.title, s) for s in self.missed if id(s) not in known]
        return [
            (s.row.verdict.label, s.row.verdict.colour, f"{s.row.id}: {words}", s.anchor)
            for words, s in sorted(told, key=lambda each: each[1].row.verdict is not Verdict.FAILS)
        ]

    def __len__(self) -> int:
        return sum(len(rows) for *_, rows in self.sections)


def claims(ledger: Ledger, paper: Citation | None, notation: Mapping[str, str]) -> Claims:
    """What the page shows of a ledger; `paper` is the one that goes unsaid."""
    ledger = type(ledger)(tuple(replace(row) for row in ledger))  # each a thing of its own
    anchors = _anchors(ledger)
    shown = {id(row): _shown(row, anchors[id(row)], paper) for row in ledger}
    rows = list(shown.values())

    def first(verdict: Verdict) -> str:
        return next(s.anchor for s in rows if s.row.verdict is verdict)

    sections = ledger.sections.items()
    many = {v: n for v, n in ledger.counts.items() if n}
    return Claims(
        sections=[(t, counted(found), [shown[id(r)] for r in found]) for t, found in sections],
        verdicts=[(v, v.counted(n), first(v)) for v, n in many.items()],
        errata=[(e, [shown[id(r)] for r in found]) for e, found in ledger.errata.items()],
        surprises=[s for s in rows if s.row.surprising],
        missed=[s for s in rows if s.row.verdict is Verdict.NOT_REPRODUCED],
        parts=list(dict.fromkeys(str(s.row.part) for s in rows)),
        strengths=list(dict.fromkeys(str(s.row.strength) for s in rows)),
        notation=notation,
    )


def _shown(row: Row, anchor: str, paper: Citation | None) -> Shown:
    return Shown(
        row=row,
        anchor=anchor,
        words=verdict_words(replace(row, cause=None)),  # the erratum says it
        source=_source(row, paper),
        compared=compared(row),
        facts=facts(row),
        text=" ".join([row.id, row.part, row.title, row.note, row.reading]).lower(),
        loud=row.verdict is Verdict.FAILS or row.surprising,
    )


def _anchors(ledger: Ledger) -> dict[int, str]:
    """An id per row from its label and part; the second row of one name is number 2."""
    seen: Counter[str] = Counter()
    found = {}
    for row in ledger:
        name = f"claim-{slug(row.id)}-{row.part}"
        seen[name] += 1
        found[id(row)] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    return found


def _source(row: Row, paper: Citation | None) -> str:
    """Paper and equation, without what the page or the claim's id already say."""
    if row.paper is not None and row.paper != paper:
        return row.source
    return "" if row.equation in row.id else row.equation
