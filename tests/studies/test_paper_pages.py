"""The page of each paper in the docs: the parts a reader needs, and numbers that the ledger has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attnflow.claims import Ledger

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = ("focus-dilution", "two-mixture", "cooccurrence", "leading-terms")
PARTS = ("The question", "Setting", "The result, in plain words", "What we found", "Reproduction")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Line:
    """A row of a page's table: the claim's label, what is printed of its numbers, its verdict."""

    label: str
    predicted: list[str]
    measured: list[str]
    verdict: str


def table(text: str) -> list[Line]:
    """The rows of the section Reproduction."""
    part = text.partition("\n## Reproduction\n")[2].partition("\n## ")[0]
    rows = [re.split(r" *\| *", line)[1:-1] for line in part.splitlines() if line[:3] == "| `"]
    return [
        Line(label.strip("`"), NUMBER.findall(said), NUMBER.findall(found), verdict)
        for label, _, said, found, verdict in rows
    ]


def flat(value: Any) -> Iterator[float]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from flat(each)
    elif value is not None:
        yield float(value)


def printed_as(text: str, value: float) -> bool:
    """Whether a number is this one, rounded to the digits that are printed."""
    mantissa, _, exponent = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - digits)
    return abs(float(text) - value) <= 0.5 * unit * (1 + 1e-9)


def faults(lines: list[Line], ledger: Ledger) -> list[str]:
    """What a table says that the ledger does not."""
    found = []
    for line in lines:
        rows = [row for row in ledger if row.id == line.label]
        if not rows:
            found.append(f"{line.label}: no such claim")
        if rows and not any(row.verdict.value == line.verdict for row in rows):
            found.append(f"{line.label}: {line.verdict}, the ledger has {rows[0].verdict.value}")
        for what in ("predicted", "measured"):
            known = [value for row in rows for value in flat(getattr(row, what))]
            found += [
                f"{line.label}: {what} {text} is not in the ledger"
                for text in getattr(line, what)
                if not any(printed_as(text, value) for value in known)
            ]
    return found


@pytest.mark.parametrize("study", STUDIES)
def test_a_page_says_what_the_ledger_says(study, ledger):
    lines = table((DOCS / f"{study}.md").read_text())
    assert len(lines) >= 10
    assert sum(bool(line.measured) for line in lines) >= 6
    assert faults(lines, ledger(study, {})) == []


@pytest.mark.parametrize("study", STUDIES)
def test_a_page_has_the_parts_a_reader_needs(study):
    text = (DOCS / f"{study}.md").read_text()
    places = [text.index(f"\n## {part}\n") for part in PARTS]
    assert places == sorted(places)
    assert "| sign | meaning | key |" in text


def test_a_wrong_number_or_verdict_would_be_seen(ledger):
    """On one row of a real ledger, each cell changed in turn."""
    known = ledger("two-mixture", {})
    good = Line("Cor D.3", ["1.3591"], ["1.35914"], "holds")
    assert faults([good], known) == []
    for bad in (
        Line("Cor D.33", [], [], "holds"),
        Line("Cor D.3", ["1.3592"], [], "holds"),
        Line("Cor D.3", [], ["1.3590"], "holds"),
        Line("Cor D.3", [], [], "fails"),
    ):
        assert len(faults([bad], known)) >= 1
