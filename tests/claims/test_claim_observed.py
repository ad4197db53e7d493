"""What data that nobody has seen show: nothing is foreseen, but the control still has to flip."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnflow._errors import InputError
from attnflow.claims import (
    ClaimDefect,
    Control,
    Paper,
    Verdict,
    at_least,
    every,
    not_checkable,
    observed,
)

paper = Paper("text")
GUESSED = "the tokenizer"


def found(measured: float, other: float):
    return at_least(bound=0.5, measured=measured, control=Control("the other run", other))


def row_of(measurement):
    @paper.claim("Fig 3A", part="experiment")
    def claimed(study):
        """Attention is at least a half."""
        return observed(found=measurement, guessed=GUESSED)

    return claimed.check(SimpleNamespace(name="text"))


@pytest.mark.parametrize(
    ("measured", "other", "verdict"),
    [(0.9, 0.1, Verdict.HOLDS), (0.1, 0.9, Verdict.NOT_REPRODUCED)],
)
def test_either_outcome_is_what_was_expected(measured, other, verdict):
    row = row_of(found(measured, other))
    assert row.verdict is row.expected is verdict
    assert not row.surprising
    assert row.guessed == (GUESSED if verdict is Verdict.NOT_REPRODUCED else "")
    assert row.cause is None


def test_parts_that_fail_make_the_whole_not_reproduced():
    both = every(high=found(0.9, 0.1), low=found(0.1, 0.9))
    assert row_of(both).verdict is Verdict.NOT_REPRODUCED
    nothing = row_of(not_checkable("nothing was learned"))
    assert nothing.verdict is nothing.expected is Verdict.NOT_CHECKABLE


@pytest.mark.parametrize(("measured", "other"), [(0.9, 0.8), (0.1, 0.2)])
def test_a_control_that_does_not_flip_is_a_defect(measured, other):
    with pytest.raises(ClaimDefect, match="the control does not flip"):
        row_of(found(measured, other))


def test_what_was_guessed_has_to_be_said():
    with pytest.raises(InputError, match="guessed"):
        observed(found=found(0.1, 0.9), guessed=" ")
