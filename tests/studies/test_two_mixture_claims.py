"""Verdicts of the two-mixture claims of Appendices B to E, and the room their regimes leave."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnflow.claims import Verdict, claims_of
from attnflow.studies.two_mixture.claims import (
    attention,
    common,
    expanded,
    gradients,
    near_symmetry,
    signs,
    stage_one,
    stage_two,
    symmetry,
)

ROOMS = (gradients, symmetry, stage_one, stage_two, near_symmetry, signs, attention, expanded)
MODULES = {room.__name__ for room in ROOMS}
CLAIMS = [c for c in claims_of(common.STUDY) if c.measure.__module__ in MODULES]
BY_ID = {c.id: c for c in CLAIMS}


def study(**given):
    config = {"groups": 2, "length": 3, "bias": 0.5, "omega": 0.1, "t1": 20.0, "score_stop": 1.0}
    return SimpleNamespace(config=SimpleNamespace(**{**config, **given}))


INSIDE = {
    "default": study(),
    "b1": study(bias=1.0),
    "omega03": study(omega=0.3),
    "corner": study(omega=0.45, score_stop=1.5, bias=0.05, t1=5.0),
}
OUTSIDE = {
    "K3": study(groups=3),
    "L4": study(length=4),
    "K8L5": study(groups=8, length=5),
    "large bias": study(bias=3.0),
    "huge bias": study(bias=500.0),
    "large omega": study(omega=2.0),
    "late stop": study(score_stop=3.0),
    "early T1": study(t1=1.0),
    "weak groups": study(bias=2.0, t1=40.0, omega=0.2),
}


@pytest.mark.parametrize("found", CLAIMS, ids=lambda c: c.id)
def test_verdict_by_default(found):
    """Every claim comes out as expected, in its regime, and its control flips."""
    row = found.check(INSIDE["default"])
    assert row.verdict is row.expected, row.note
    assert row.verdict is not Verdict.OUT_OF_REGIME
    assert row.control is not None
    assert row.control.flips


@pytest.mark.parametrize("where", [k for k in INSIDE if k != "default"])
def test_verdicts_inside(where):
    rows = [c.check(INSIDE[where]) for c in CLAIMS]
    assert {r.id: r.verdict for r in rows} == {r.id: r.expected for r in rows}
    assert Verdict.OUT_OF_REGIME not in {r.verdict for r in rows}


@pytest.mark.parametrize("where", OUTSIDE)
def test_verdicts_outside(where):
    rows = [c.check(OUTSIDE[where]) for c in CLAIMS]
    assert {r.id: r.verdict for r in rows} == {r.id: r.expected for r in rows}
    assert Verdict.OUT_OF_REGIME in {r.verdict for r in rows}


@pytest.mark.parametrize("where", ["K3", "L4", "K8L5"])
def test_lemmas_about_two_groups_are_out_of_regime(where):
    for name in (
        "Lemma C.2 (eq 4)",
        "Lemma 5.2 (group signals)",
        "Lemma E.1 (eq 11)",
        "Thm D.8",
        "Thm E.7 (consistent, group query)",
        "App E.7.3 (v1 v1)",
    ):
        assert BY_ID[name].check(OUTSIDE[where]).verdict is Verdict.OUT_OF_REGIME


def test_what_holds_for_any_task_is_measured_for_it():
    for name in ("App B.1 (WK)", "App B.2 (system)", "ours: ten variables for every K and L"):
        assert BY_ID[name].check(OUTSIDE["K8L5"]).verdict is Verdict.HOLDS
    slope = BY_ID["ours: stage 2 takes 9 (K-1)/gamma log 1/omega"]
    assert slope.check(OUTSIDE["K3"]).verdict is Verdict.CONSISTENT


def test_corrections_stand_alone():
    """Each snippet shows its difference by itself."""
    rows = [c.check(INSIDE["default"]) for c in CLAIMS]
    wrong = [r for r in rows if r.verdict is Verdict.HOLDS_CORRECTED]
    assert len(wrong) == 32
    for snippet in {r.correction.snippet for r in wrong}:
        next(r for r in wrong if r.correction.snippet == snippet).correction.run()


@pytest.mark.parametrize(
    "label",
    [
        "App B.1",
        "App B.2",
        "Lemma C.1",
        "Lemma C.2",
        "Cor C.3",
        "Lemma C.4",
        "Cor C.5",
        "Lemma 5.2",
        "Lemma 5.3",
        "Lemma 5.5",
        "Lemma D.1",
        "Lemma D.2",
        "Cor D.3",
        "Lemma D.4",
        "Lemma D.5",
        "Cor D.6",
        "Cor D.7",
        "Thm D.8",
        "Lemma E.1",
        "Lemma E.2",
        "Lemma E.3",
        "Lemma E.4",
        "Lemma E.5",
        "Lemma E.6",
        "Thm E.7",
        "Thm 4.1",
        "App E.5.1",
        "App E.5.2",
        "App E.5.3",
        "App E.6",
        "App E.7.1",
        "App E.7.2",
        "App E.7.3",
    ],
)
def test_every_statement_has_a_claim(label):
    assert any(c.id == label or c.id.startswith(f"{label} (") for c in CLAIMS)


def test_regimes_say_their_numbers():
    assert common.two_mixtures(study(groups=3)).sentence.startswith("K = 3 (2)")
    assert not common.condition_one(study(omega=0.9)).inside
    assert "T0.5 = 1.359" in common.past_gates(study(t1=1.0)).sentence
    assert common.staged(study()).inside


def test_a_wrong_order_is_noticed():
    x = [0.1, 0.01, 0.001]
    good = common.order_at_most(x, [v**2 for v in x], 1.0, control_y=[1.0, 1.0, 1.0])
    bad = common.order_at_most(x, [v**0.5 for v in x], 1.0, control_y=[v**2 for v in x])
    assert good.verdict is Verdict.CONSISTENT
    assert good.control.flips
    assert bad.verdict is Verdict.FAILS
