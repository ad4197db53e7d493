"""A claim: its id, its statement, its regime, its control, its evidence."""

from __future__ import annotations

import dataclasses
import sys
from math import pi
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.claims import (
    Cause,
    ClaimDefect,
    Control,
    Erratum,
    Ledger,
    Paper,
    Part,
    Regime,
    Strength,
    Verdict,
    claims_in,
    condition,
    corrected,
    equal,
    fact,
    not_checkable,
    not_reproduced,
    order,
    refuted,
    run_snippet,
)
from attnflow.flows import Flow, integrate, opinion

PAPER = Paper("circle")
OTHER = Control("another value", 2.0)


def area(circle) -> float:
    return pi * circle.radius**2


def one(measured: float = 1.0, control: Control | None = OTHER):
    return equal(predicted=1.0, measured=measured, control=control)


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
    "Condition 1",
    "Abstract",
    "ours: conservation of W1 1",
    "ours:balance",
)


@pytest.mark.parametrize("id", GOOD_IDS)
def test_a_papers_label_in_full_is_an_id(made, id):
    assert made(one(), id).id == id


@pytest.mark.parametrize(
    "id", ["14", "3.4", "(14)", "", "Prop", "prop 3.4", "ours:", "eq 14\n", 14]
)
def test_a_bare_number_is_not_an_id(id):
    with pytest.raises(InputError, match="label in full"):
        PAPER.claim(id)


def test_a_misspelt_label_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'Prop'"):
        PAPER.claim("Porp 3.4")


@given(st.from_regex(r"[0-9.() ]*", fullmatch=True))
def test_no_number_alone_passes_for_a_label(id):
    with pytest.raises(InputError):
        PAPER.claim(id)


def test_a_claim_is_frozen_and_states_itself(paper):
    @paper.claim("Prop 3.4 (eq 14)", part="constant")
    def the_area(study):
        """The area of a disc
        is pi r^2.

        The rest is for those who want to know more.
        """
        return one()

    assert the_area.title == "The area of a disc is pi r^2."
    assert (the_area.equation, the_area.part) == ("eq 14", Part.CONSTANT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        the_area.id = "Prop 3.5"  # type: ignore[misc]


def test_a_claim_without_a_statement_is_rejected(paper):
    with pytest.raises(InputError, match="no statement"):

        @paper.claim("Prop 1")
        def silent(study):
            return one()


def test_what_a_claim_is_told_is_checked(made):
    with pytest.raises(InputError, match="did you mean 'constant'"):
        made(one(), part="constnt")
    with pytest.raises(InputError, match="@condition"):
        made(one(), regime=lambda config: True)
    with pytest.raises(InputError, match="not a Citation"):
        Paper("circle", citation="Chen 2025")  # type: ignore[arg-type]


def test_a_check_gives_a_row_that_cites_paper_and_equation(circle, paper):
    @paper.claim("Prop 1 (eq 2)", part="constant")
    def the_area(study):
        """The area is pi r^2."""
        other = Control("of the unit circle", pi)
        return equal(predicted=area(study), measured=4 * pi, control=other)

    row = the_area.check(circle)
    assert row.verdict is row.expected is Verdict.HOLDS
    assert (row.study, row.strength, row.cause) == ("circle", Strength.NUMERIC, None)
    assert row.source == "Archimedes and of Syracuse 250, eq 2"
    assert row.control is not None
    assert row.control.name == "of the unit circle"


def test_a_claim_without_a_control_is_a_defect(circle, made):
    with pytest.raises(ClaimDefect, match="no negative control") as caught:
        made(one(control=None)).check(circle)
    row = caught.value.row
    assert row.verdict is Verdict.NOT_CHECKABLE
    assert row.surprising
    assert "no negative control" in row.note


def test_a_claim_that_cannot_fail_is_a_defect(circle, made):
    loose = equal(predicted=1, measured=1, rtol=10, control=Control("five", 5))
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(loose).check(circle)


def test_an_unexpected_failure_is_a_finding_and_not_a_defect(circle, made):
    row = made(one(3.0)).check(circle)
    assert (row.verdict, row.expected, row.defect) == (Verdict.FAILS, Verdict.HOLDS, None)
    assert row.surprising


def test_a_reason_needs_no_control(circle, made):
    row = made(not_checkable("needs the authors' data")).check(circle)
    assert row.note == "needs the authors' data"
    assert not row.surprising


def test_a_measurement_is_what_a_claim_returns(circle, made):
    with pytest.raises(InputError, match="return equal"):
        made(3.0).check(circle)


# --- What is expected follows from the builder.


def test_the_expected_verdict_follows_from_the_builder(circle, made, wrong):
    x = [1.0, 2.0, 4.0]
    fit = order("Theta", x=x, y=x, power=1, control=Control("square", 2))
    experiment = equal(predicted=1, measured=3, control=Control("another seed", measured=1.0))
    found = {
        Verdict.HOLDS: one(),
        Verdict.CONSISTENT: fit,
        Verdict.HOLDS_CORRECTED: corrected(printed=one(2.0), right=one(), **wrong),
        Verdict.NOT_REPRODUCED: not_reproduced(found=experiment, guessed="the batch size"),
        Verdict.NOT_CHECKABLE: not_checkable("no data"),
    }
    for verdict, measurement in found.items():
        row = made(measurement).check(circle)
        assert row.verdict is row.expected is verdict
        assert not row.surprising


def test_a_reading_holds_as_read_at_best(circle, made):
    for how in ({"reading": "the sign is lost"}, {"torn": "put together from (3)"}):
        row = made(one(), **how).check(circle)
        assert row.verdict is row.expected is Verdict.HOLDS_AS_READ
        assert (row.reading or row.torn) == next(iter(how.values()))
        assert made(one(3.0), **how).check(circle).verdict is Verdict.FAILS


def test_an_experiment_that_comes_out_as_reported_is_a_surprise(circle, made):
    row = made(not_reproduced(found=one(), guessed="the batch size")).check(circle)
    assert row.verdict is Verdict.HOLDS
    assert row.surprising
    assert row.guessed == "the batch size"


# --- Regimes.


@condition
def big(config):
    return Regime(config.radius > 10, f"the radius is {config.radius} and should exceed 10")


@condition
def below_twenty(config):
    """the radius
    is below 20"""
    return config.radius < 20


def test_outside_its_regime_a_claim_is_not_measured(circle, large, paper):
    @paper.claim("Prop 1", regime=big)
    def measured_where_it_applies(study):
        """Large circles are large."""
        assert study.radius > 10
        return one()

    row = measured_where_it_applies.check(circle)
    assert row.verdict is Verdict.OUT_OF_REGIME
    assert row.regime == Regime(False, "the radius is 2.0 and should exceed 10")
    assert measured_where_it_applies.check(large).verdict is Verdict.HOLDS


def test_out_of_regime_is_a_surprise_at_the_default_config_only(circle, made):
    outside = made(one(), regime=big)
    assert outside.check(circle).surprising
    smaller = dataclasses.replace(circle, config=type(circle.config)(1.0))
    assert not outside.check(smaller).surprising


def test_regimes_compose_and_say_all_they_ask(large, circle, made):
    both = big & below_twenty
    assert both(large.config) == Regime(
        True, "the radius is 11.0 and should exceed 10; the radius is below 20"
    )
    assert both(circle.config) == big(circle.config)
    assert (both & big).parts == both.parts
    with pytest.raises(InputError, match="neither a Regime"):
        condition(lambda config: "yes")(large.config)


def test_a_regime_never_sees_the_study(circle, made):
    seen = []
    made(one(), regime=condition(lambda config: bool(seen.append(config) or True))).check(circle)
    assert seen == [circle.config]


# --- Evidence against what is printed.


def test_a_wrong_constant_holds_corrected(circle, made, wrong):
    found = corrected(
        printed=equal(predicted=2 * area(circle), measured=4 * pi),
        right=equal(predicted=area(circle), measured=4 * pi),
        **wrong,
    )
    row = made(found).check(circle)
    assert (row.verdict, row.cause) == (Verdict.HOLDS_CORRECTED, Cause.CONSTANT)
    assert row.correction is not None
    assert row.correction.printed_error == pytest.approx(4 * pi)
    assert row.correction.corrected_error == pytest.approx(0)
    assert row.correction.run() == "12.566\n"  # the file called like the claim's function
    assert row.control is not None
    assert row.control.name == "as printed"
    assert row.control.predicted == pytest.approx(8 * pi)


def test_what_is_printed_may_hold_after_all(circle, made, wrong):
    row = made(corrected(printed=one(), right=one(3.0), **wrong)).check(circle)
    assert (row.verdict, row.cause) == (Verdict.HOLDS, None)
    assert row.surprising


def test_a_correction_that_is_not_told_apart_is_a_defect(circle, made, wrong):
    same = one(control=None)
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(corrected(printed=same, right=same, **wrong)).check(circle)


def test_a_wrong_correction_fails(circle, made, wrong):
    row = made(corrected(printed=one(3.0), right=one(3.0), **wrong)).check(circle)
    assert row.verdict is Verdict.FAILS
    assert row.surprising


FALSE = Erratum("odd", "3 is odd", cause="false")


def test_a_refuted_claim_fails_with_its_counterexample(circle, made):
    told = {"text": "every integer is even", "counterexample": "3", "erratum": FALSE}
    printed = fact(measured=3 % 2 == 0, control=Control("four", 4 % 2 == 0))
    row = made(refuted(printed=printed, snippet="shared", **told)).check(circle)
    assert (row.verdict, row.expected, row.cause) == (Verdict.FAILS, Verdict.FAILS, Cause.FALSE)
    assert row.erratum == FALSE
    true = refuted(printed=fact(measured=True, control=Control("three", False)), **told)
    assert made(true).check(circle).surprising


def test_a_refutation_needs_a_control_that_holds(circle, made):
    told = {"text": "x", "counterexample": "y", "erratum": FALSE, "snippet": "shared"}
    with pytest.raises(ClaimDefect, match="does not flip"):
        made(refuted(printed=one(3.0), **told)).check(circle)


def test_rows_of_one_cause_are_one_erratum(circle, made, wrong):
    found = corrected(printed=one(2.0), right=one(), **wrong)
    ledger = Ledger.check([made(found), made(found, "Prop 2"), made(one(), "Prop 3")], circle)
    assert {e.key: len(rows) for e, rows in ledger.errata.items()} == {"double": 2}
    assert ledger.summary == "1 holds, 2 hold corrected (1 erratum)"


def test_a_snippet_runs_alone_in_a_fresh_namespace():
    assert run_snippet("x = 1\nprint(__name__)") == "__snippet__\n"
    with pytest.raises(NameError):
        run_snippet("print(x)")
    with pytest.raises(AssertionError):
        run_snippet("assert 1 == 2")


@pytest.mark.parametrize(
    ("snippet", "sentence"),
    [
        ("\n".join(["x = 1"] * 21), "21 lines"),
        (" \n", "is empty"),
        ("x = = 1\n", "not Python"),
        ("import attnflow.studies.two_mixture\n", "without the study"),
        ("from attnflow.studies import two_mixture\n", "without the study"),
        ("from attnflow import studies\n", "without the study"),
        ("nowhere", "is missing"),
    ],
)
def test_a_poor_snippet_is_rejected(circle, made, wrong, snippet, sentence):
    found = corrected(printed=one(2.0), right=one(), snippet=snippet, **wrong)
    (row,) = Ledger.check([made(found)], circle)
    assert row.surprising
    assert sentence in row.note


def test_twenty_lines_are_short_enough_and_a_paper_without_a_folder_says_so(circle, made, wrong):
    twenty = "\n".join(["x = 1"] * 20)
    found = corrected(printed=one(2.0), right=one(), snippet=twenty, **wrong)
    assert made(found).check(circle).verdict is Verdict.HOLDS_CORRECTED
    bare = dataclasses.replace(made(found), paper=PAPER)
    assert bare.check(circle).verdict is Verdict.HOLDS_CORRECTED
    found = corrected(printed=one(2.0), right=one(), **wrong)
    (row,) = Ledger.check([dataclasses.replace(made(found), paper=PAPER)], circle)
    assert "no folder of snippets" in row.note


@pytest.mark.parametrize("field", ["text", "correct"])
def test_both_formulas_are_given(wrong, field):
    with pytest.raises(InputError, match=field):
        corrected(printed=one(2.0), right=one(), **{**wrong, field: " "})


def test_an_erratum_says_what_is_wrong():
    with pytest.raises(InputError, match="not a cause"):
        Erratum("a", "b", cause="typo")
    with pytest.raises(InputError, match="a sentence"):
        Erratum("a", " ", cause="sign")


# --- A second opinion.


def spring(rtol: float):
    flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    return integrate(flow, {"x": np.ones(1)}, 1.0, rtol=rtol, progress=False)


def test_what_is_called_wrong_and_rests_on_a_solve_is_measured_again(circle, paper, wrong):
    seen = []

    @paper.claim("Prop 1")
    def measure(study):
        """The spring stays where it is."""
        found = spring(1e-6)
        seen.append((found.rtol, found.solver["engine"]))
        x = float(found.final["x"][0])
        right = equal(predicted=float(2.718281828459045**-1), measured=x, rtol=1e-3)
        return corrected(printed=equal(predicted=1.0, measured=x), right=right, **wrong)

    row = measure.check(circle)
    assert row.evidence["rechecks"] == {
        "ten times tighter": "holds-corrected",
        "the second engine": "holds-corrected",
    }
    first, tighter, other = seen
    assert tighter[0] == pytest.approx(first[0] / 10)
    assert other[1] != first[1]
    assert opinion.current() == opinion.Opinion()


def test_a_verdict_that_does_not_stay_is_a_defect(circle, paper, wrong):
    @paper.claim("Prop 1")
    def measure(study):
        """The tolerance is what it is."""
        printed = equal(predicted=1e-4, measured=spring(1e-3).rtol)
        return corrected(printed=printed, right=one(), **wrong)

    with pytest.raises(ClaimDefect, match="does not stay"):
        measure.check(circle)


def test_what_rests_on_no_solve_is_measured_once(circle, paper, wrong):
    count = []

    @paper.claim("Prop 1")
    def measure(study):
        """An identity."""
        count.append(1)
        return corrected(printed=one(2.0), right=one(), **wrong)

    assert "rechecks" not in measure.check(circle).evidence
    assert len(count) == 1


# --- Where claims are found.


def test_claims_are_those_that_a_module_defines(paper):
    module = ModuleType("a_section", "Section 3: areas.\n\nMore words.")

    def define(name: str, id: str, where: str = "a_section"):
        def measure(study):
            """A statement."""
            return one()

        measure.__module__ = where
        setattr(module, name, paper.claim(id)(measure))

    define("first", "Prop 1")
    define("second", "Prop 2")
    define("imported", "Prop 3", where="another_section")
    found = claims_in(module)
    assert [c.id for c in found] == ["Prop 1", "Prop 2"]
    assert found[0].section == "Section 3: areas"
    define("third", "Prop 1")
    with pytest.raises(InputError, match="claimed twice"):
        claims_in(module)


def test_a_family_is_one_claim_per_row(paper, circle):
    module = ModuleType("a_section", "Section 3: areas.")
    rows = {"Prop 1": ("Twice the radius.", 2), "Prop 2": ("", 3)}

    @paper.family(rows, part="constant")
    def measured(study, factor: int):
        """In words of its own."""
        there = Control("of another kind", area(study))
        return equal(predicted=float(len(str(10**factor)) - 1), measured=factor, control=there)

    for claim in measured:
        claim.measure.__module__ = "a_section"
    vars(module)["area"] = measured
    found = claims_in(module)
    assert [(c.id, c.statement) for c in found] == [
        ("Prop 1", "Twice the radius."),
        ("Prop 2", "In words of its own."),
    ]
    assert [c.check(circle).measured for c in found] == [2.0, 3.0]
    assert {str(c.part) for c in found} == {"constant"}


def test_a_module_that_is_imported_registers_nothing(paper):
    assert not [v for v in vars(sys.modules["attnflow.claims.paper"]).values() if v == [paper]]
    assert claims_in(ModuleType("empty")) == ()
