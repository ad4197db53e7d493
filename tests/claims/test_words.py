"""What is said of a row: comparisons by their relation, facts behind it, counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.claims.test_ledger import _record

from attnflow.claims import (
    Control,
    Measurement,
    Row,
    Verdict,
    at_least,
    at_most,
    equal,
    every,
    fact,
    monotone,
    not_checkable,
    order,
    sign,
    slope,
    statistical,
)
from attnflow.claims.words import columns, compared, counted, facts, headline, shown_value

X = [1.0, 2.0, 4.0, 8.0]


def row(found: Measurement) -> Row:
    plain = Row.from_dict({**_record(), "verdict": found.verdict.value})
    return replace(
        plain,
        relation=found.relation,
        predicted=found.predicted,
        measured=found.measured,
        tolerance=found.tolerance,
        strength=found.strength,
        evidence=found.evidence,
        expected=found.verdict,
    )


@pytest.mark.parametrize(
    ("found", "predicted", "measured"),
    [
        (at_most(bound=1e-12, measured=2.7e-16), "at most 1e-12", "2.7e-16"),
        (at_least(bound=1, measured=2, slack=0.5), "at least 1 (slack 0.5)", "2"),
        (at_most(bound=1, measured=[0, 0.5, 0.9, 0.1]), "at most 1 (worst of 4)", "0.9"),
        (equal(predicted=2, measured=2, rtol=1e-11), "2 (within 2e-11)", "2"),
        (equal(predicted=[1, 2], measured=[1, 2], rtol=0), "(1, 2)", "(1, 2)"),
        (
            equal(predicted=np.eye(2), measured=[[1, 0.5], [0, 1]], rtol=0.1),
            "0 (within 0.1, worst of 2×2)",
            "0.5",
        ),
        (sign(predicted=-1, measured=0.2), "negative", "0.2"),
        (sign(predicted=[1, -1], measured=[3, -4]), "(positive, negative)", "(3, -4)"),
        (monotone(measured=[1.0, 2.0, 5.0]), "rises", "from 1 to 5"),
        (monotone(measured=[5.0, 2.0, 1.0], rising=False), "falls", "from 5 to 1"),
        (fact(measured=True), "true", "true"),
        (order("Theta", x=X, y=[x**2 for x in X], power=2), "Θ, power 2", "fitted 2 ± 0"),
        (order("O", x=X, y=[x**3 for x in X], power=2), "O, power 2", "fitted 3 ± 0"),
        (slope(x=X, y=[3 * x for x in X], predicted=3, within=0.1), "slope 3", "fitted 3 ± 0"),
        (
            statistical(predicted=1.0, samples=[0.9, 1.1]),
            "1 (within 0.3)",
            "1 ± 0.1 over 2 repeats",
        ),
        (
            every(a=at_most(bound=1, measured=0.5), b=equal(predicted=3, measured=3, rtol=0)),
            "a: at most 1; b: 3",
            "a: 0.5; b: 3",
        ),
        (
            every(a=every(b=fact(measured=True), c=monotone(measured=[1, 2, 3]))),
            "a, b: true; a, c: rises",
            "a, b: true; a, c: from 1 to 3",
        ),
        (not_checkable("because"), "–", "–"),
    ],
)
def test_columns_read_as_the_relation_does(found, predicted, measured):
    said, got = columns(row(found))
    # The standard error of an exact line is rounding.
    assert (said, got.split(" ±")[0]) == (predicted, measured.split(" ±")[0])
    assert ("±" in got) == ("±" in measured)
    assert columns(Row.from_dict(row(found).to_dict())) == (said, got)


def test_several_at_once_survive_a_row_that_lost_its_parts():
    found = row(every(a=fact(measured=True), b=at_most(bound=1, measured=0)))
    assert [c.name for c in compared(found)] == ["a", "b"]
    assert columns(replace(found, evidence={})) == ("(true, 1)", "(true, 0)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "true"),
        (1 / 3, "0.333333"),
        ([1.0, None], "(1, –)"),
        ([[0.5, -2.0], [1.0, None]], "2×2 array, largest -2"),
        ([0.0] * 7, "7 array, largest 0"),
        ([None] * 7, "7 array, largest –"),
        ([[1.0, 2.0], 3.0], "((1, 2), 3)"),
        ([True, "x"], "(true, x)"),
    ],
)
def test_a_cell_stays_short(value, text):
    assert shown_value(value) == text


def test_facts_say_how_it_was_read_and_whether_it_stays():
    found = replace(
        row(fact(measured=False)),
        reading="a K is missing",
        guessed="the seed",
        evidence={"rechecks": {"ten times tighter": "fails", "the second engine": "fails"}},
    )
    said = dict(facts(found))
    assert said["our reading"] == "a K is missing"
    assert said["settings guessed"] == "the seed"
    assert said["measured again"] == "stays ten times tighter and under the second engine"
    assert "regime" not in said
    again = {"rechecks": {"ten times tighter": "fails", "the second engine": "holds"}}
    words = "stays ten times tighter; becomes holds under the second engine"
    assert dict(facts(replace(found, evidence=again)))["measured again"] == words


def test_counts_and_headline():
    verdicts = [Verdict.HOLDS] * 3 + [Verdict.HOLDS_AS_READ, Verdict.FAILS, Verdict.NOT_CHECKABLE]
    rows = [replace(row(fact(measured=True)), verdict=v, expected=v) for v in verdicts]
    assert counted(rows) == "3 hold, 1 holds as read, 1 fails, 1 not checkable"
    assert headline(rows) == "3 hold, 1 as read, 1 not checkable · 1 fails: eq 1"
    surprising = [replace(rows[0], expected=Verdict.FAILS)]
    assert headline(surprising) == "1 holds · 1 surprise: eq 1"
    assert headline([]) == counted([]) == "no claims"


def test_a_control_is_named_with_how_it_came_out():
    found = equal(predicted=1.0, measured=1.0, control=Control("another law", np.pi))
    said = dict(facts(replace(row(found), control=found.control)))
    assert said["control"].startswith("another law: error 2.14")
    assert said["control"].endswith("the verdict flips")
