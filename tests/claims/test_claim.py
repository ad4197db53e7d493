"""A claim: its id, its statement, its regime, its control, its evidence."""

from __future__ import annotations

import dataclasses
from math import pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.claims import (
    Cause,
    Claim,
    ClaimDefect,
    Correction,
    Ledger,
    Part,
    Regime,
    Strength,
    Verdict,
    claim,
    claims_of,
    corrected,
    equal,
    fact,
    not_checkable,
    positive,
    refuted,
    run_snippet,
)


def area(circle) -> float:
    return pi * circle.radius**2


def made(measurement, **options) -> Claim:
    """A claim that always measures the same."""

    @claim("Prop 1", **options)
    def measure(study):
        """The area is what it is."""
        return measurement

    return measure


GOOD_IDS = (
    "Prop 3.4 (eq 14)",
    "Prop 3.4 (ii)",
    "Thm 3.2 (i)",
    "Lemma E.6",
    "App E.6",
    "App B",
    "eq 14",
    "eqs 90-92",
    "Fig 2C",
    "Fig S1",
    "Thm D.3/3.9 (a) (b)",
    "Prop 2.3, eq 5",
    "Theorem 3.2",
    "Abstract",
    "ours: conservation of W1 1",
    "ours:balance",
)


@pytest.mark.parametrize("id", GOOD_IDS)
def test_a_papers_label_in_full_is_an_id(id):
    assert made(equal(1, 1, control=2)).id == "Prop 1"
    assert claim(id)(made(fact(True)).measure).id == id


@pytest.mark.parametrize(
    "id", ["14", "3.4", "(14)", "", "Prop", "prop 3.4", "ours:", "eq 14\n", 14]
)
def test_a_bare_number_is_not_an_id(id):
    with pytest.raises(InputError, match="label in full"):
        claim(id)


def test_a_misspelt_label_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'Prop'"):
        claim("Porp 3.4")


@given(st.from_regex(r"[0-9.() ]*", fullmatch=True))
def test_no_number_alone_passes_for_a_label(id):
    with pytest.raises(InputError):
        claim(id)


def test_a_claim_is_frozen_and_states_itself():
    @claim("Prop 3.4 (eq 14)", part="constant", strength="exact")
    def the_area(study):
        """The area of a disc
        is pi r^2.

        The rest is for those who want to know more.
        """
        return equal(pi, pi, control=3.0)

    assert the_area.title == "The area of a disc is pi r^2."
    assert the_area.equation == "eq 14"
    assert (the_area.part, the_area.strength) == (Part.CONSTANT, Strength.EXACT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        the_area.id = "Prop 3.5"  # type: ignore[misc]


def test_a_claim_without_a_statement_is_rejected():
    with pytest.raises(InputError, match="no statement"):

        @claim("Prop 1")
        def silent(study):
            return equal(1, 1, control=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"part": "constnt"}, "did you mean 'constant'"),
        ({"strength": "numerical"}, "did you mean 'numeric'"),
        ({"expected": "hold"}, "did you mean 'holds'"),
        ({"paper": "Chen 2025"}, "not a Citation"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(options, sentence):
    with pytest.raises(InputError, match=sentence):
        claim("Prop 1", **options)


def test_a_check_gives_a_row_that_cites_paper_and_equation(circle):
    @claim("Prop 1 (eq 2)", part="constant")
    def the_area(study):
        """The area is pi r^2."""
        return equal(area(study), 4 * pi, control=2 * area(study))

    row = the_area.check(circle)
    assert row.verdict is Verdict.HOLDS
    assert not row.surprising
    assert (row.study, row.strength, row.cause) == ("circle", Strength.NUMERIC, None)
    assert row.source == "Archimedes and of Syracuse 250, eq 2"
    assert row.paper is circle.paper


def test_a_claim_without_a_control_is_a_defect(circle):
    with pytest.raises(ClaimDefect, match="no negative control") as caught:
        made(equal(1, 1)).check(circle)
    row = caught.value.row
    assert row.verdict is Verdict.NOT_CHECKABLE
    assert row.surprising
    assert "no negative control" in row.note


def test_a_claim_that_cannot_fail_is_a_defect(circle):
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(equal(1, 1, rtol=10, control=5)).check(circle)


def test_a_defect_is_a_surprise_even_where_not_checkable_was_expected(circle):
    with pytest.raises(ClaimDefect) as caught:
        made(equal(1, 1), expected="not-checkable").check(circle)
    assert caught.value.row.surprising


def test_an_unexpected_failure_is_a_finding_and_not_a_defect(circle):
    row = made(equal(1, 2, control=3)).check(circle)
    assert row.verdict is Verdict.FAILS
    assert row.surprising
    assert row.defect is None


def test_a_reason_needs_no_control(circle):
    row = made(not_checkable("needs the authors' data"), expected="not-checkable").check(circle)
    assert row.note == "needs the authors' data"
    assert not row.surprising


def test_a_measurement_is_what_a_claim_returns(circle):
    with pytest.raises(InputError, match="return equal"):
        made(3.0).check(circle)


def test_outside_its_regime_a_claim_is_not_measured(circle):
    def large(study):
        return Regime(study.radius > 10, f"the radius is {study.radius} and should exceed 10")

    @claim("Prop 1", regime=large)
    def never(study):
        """Large circles are large."""
        raise AssertionError("was measured")

    row = never.check(circle)
    assert row.verdict is Verdict.OUT_OF_REGIME
    assert row.regime == Regime(False, "the radius is 2.0 and should exceed 10")


def test_a_plain_predicate_lends_its_docstring(circle):
    def small(study):
        """the radius
        is below 10"""
        return study.radius < 10

    row = made(equal(1, 1, control=2), regime=small).check(circle)
    assert row.regime == Regime(True, "the radius is below 10")
    with pytest.raises(InputError, match="neither a Regime"):
        made(equal(1, 1, control=2), regime=lambda s: "yes").check(circle)


def test_an_expectation_may_depend_on_the_study(circle):
    def expected(study):
        return "holds" if study.radius < 10 else "fails"

    found = made(equal(1, 1, control=2), expected=expected)
    assert not found.check(circle).surprising
    assert found.check(dataclasses.replace(circle, radius=11)).surprising


def test_a_wrong_constant_holds_corrected(circle, correction):
    found = corrected(
        printed=equal(2 * area(circle), 4 * pi),
        right=equal(area(circle), 4 * pi),
        correction=correction,
    )
    row = made(found, expected="holds-corrected").check(circle)
    assert row.verdict is Verdict.HOLDS_CORRECTED
    assert row.cause is Cause.CONSTANT
    assert row.correction is not None
    assert row.correction.printed_error == pytest.approx(4 * pi)
    assert row.correction.corrected_error == pytest.approx(0)
    assert row.predicted == pytest.approx(4 * pi)
    assert row.control is not None
    assert row.control.predicted == pytest.approx(8 * pi)  # the printed one is the control


def test_what_is_printed_may_hold_after_all(circle, correction):
    printed = equal(area(circle), 4 * pi, control=1.0)
    found = corrected(printed=printed, right=equal(1.0, 4 * pi), correction=correction)
    row = made(found, expected="holds-corrected").check(circle)
    assert row.verdict is Verdict.HOLDS
    assert row.cause is None
    assert row.surprising


def test_a_correction_that_is_not_told_apart_is_a_defect(circle, correction):
    same = equal(area(circle), 4 * pi)
    found = corrected(printed=same, right=same, correction=correction)
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(found).check(circle)


def test_a_wrong_correction_fails(circle, correction):
    wrong = equal(1.0, 4 * pi, control=2.0)
    row = made(corrected(printed=wrong, right=wrong, correction=correction)).check(circle)
    assert row.verdict is Verdict.FAILS
    assert row.surprising


def test_a_refuted_claim_fails_with_its_counterexample(circle):
    correction = Correction(
        printed="every integer is even",
        corrected=None,
        counterexample="3 = 2*1 + 1",
        cause=Cause.FALSE,
        snippet="assert 3 % 2 == 1",
    )
    found = refuted(printed=fact(3 % 2 == 0, control=4 % 2 == 0), correction=correction)
    row = made(found, expected="fails").check(circle)
    assert (row.verdict, row.cause) == (Verdict.FAILS, Cause.FALSE)
    assert not row.surprising
    assert refuted(printed=fact(True, control=False), correction=correction).good


def test_an_expected_failure_without_evidence_is_a_defect(circle):
    with pytest.raises(ClaimDefect, match="without evidence"):
        made(equal(1, 2, control=2), expected="fails").check(circle)


def test_a_refutation_needs_a_control_that_holds(circle, correction):
    found = refuted(printed=equal(1, 2, control=3), correction=correction)
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(found, expected="fails").check(circle)


def rounded(study):
    return round(study.radius**2 * pi, study.digits)


def tighter(study):
    return dataclasses.replace(study, digits=study.digits - 14)


def test_a_verdict_stays_when_it_is_measured_again(circle):
    @claim(
        "Prop 1", recheck={"as a study": lambda s: s, "direct": lambda s: positive(1, control=-1)}
    )
    def steady(study):
        """The area is pi r^2."""
        return equal(area(study), rounded(study), control=1.0)

    row = steady.check(circle)
    assert row.evidence["rechecks"] == {"as a study": "holds", "direct": "holds"}


def test_a_verdict_that_changes_when_measured_again_is_a_defect(circle):
    @claim("Prop 1", recheck={"second solver": tighter})
    def shaky(study):
        """The area is pi r^2."""
        return equal(area(study), rounded(study), control=1.0)

    with pytest.raises(ClaimDefect, match="fails under second solver"):
        shaky.check(circle)


def test_a_snippet_runs_alone_in_a_fresh_namespace(correction):
    assert correction.run() == "12.566\n"
    assert run_snippet("x = 1\nprint(__name__)") == "__snippet__\n"
    with pytest.raises(NameError):
        run_snippet("print(x)")
    with pytest.raises(AssertionError):
        run_snippet("assert 1 == 2")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"snippet": "\n".join(["x = 1"] * 21)}, "21 lines"),
        ({"snippet": " "}, "is empty"),
        ({"snippet": "x = = 1"}, "not Python"),
        ({"snippet": "import attnflow.studies.two_mixture"}, "without the study"),
        ({"snippet": "from attnflow.studies import two_mixture"}, "without the study"),
        ({"snippet": "from attnflow import studies"}, "without the study"),
        ({"printed": ""}, "as it is printed"),
        ({"corrected": None}, "right formula or a counterexample"),
        ({"cause": "typo"}, "not a cause"),
    ],
)
def test_a_poor_correction_is_rejected(correction, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        dataclasses.replace(correction, **changes)


def test_a_snippet_of_twenty_lines_is_short_enough(correction):
    dataclasses.replace(correction, snippet="\n".join(["x = 1"] * 20))


def test_corrected_needs_a_right_formula(correction):
    without = dataclasses.replace(correction, corrected=None, counterexample="r = 2")
    with pytest.raises(InputError, match="refuted"):
        corrected(printed=equal(1, 2), right=equal(2, 2), correction=without)


def test_users_register_claims_about_their_own_study(fresh_study, circle):
    assert claims_of(fresh_study) == ()

    @claim("ours: first", study=fresh_study)
    def first(study):
        """One."""
        return equal(1, 1, control=2)

    @claim("ours: first", part="constant", study=fresh_study)
    def second(study):
        """Two."""
        return equal(2, 2, control=1)

    assert claims_of(fresh_study) == (first, second)
    assert Ledger.check(claims_of(fresh_study), circle).summary == "2 hold"


def test_one_id_is_claimed_once_per_study_and_part(fresh_study):
    def define(name):
        def measure(study):
            """A statement."""
            return equal(1, 1, control=2)

        measure.__qualname__ = name
        return claim("Prop 1", study=fresh_study)(measure)

    define("one")
    again = define("one")  # a notebook cell that is run again
    assert claims_of(fresh_study) == (again,)
    with pytest.raises(InputError, match="already claimed"):
        define("other")
