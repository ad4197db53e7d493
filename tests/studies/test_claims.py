"""Every claim of every study: its verdict on laws of several kinds, its control, its correction.

A pair is a study and a config. All claims of a pair are measured once a session (`ledger`); a
verdict that is not the expected one fails here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnflow import walk
from attnflow.claims import Claim, Ledger, Verdict
from attnflow.claims.evidence import run_snippet
from attnflow.studies.focus_dilution.claims import common as focus_regimes
from attnflow.studies.focus_dilution.claims import cycles, training
from attnflow.studies.focus_dilution.claims.degenerate_cases import limit_point
from attnflow.studies.two_mixture.claims import common as mixture_regimes
from attnflow.tasks import MarkovChain

FOCUS, MIXTURE = "focus-dilution", "two-mixture"

CLOSED = (
    "rank_one",
    "dilution",
    "symmetric",
    "degenerate",
    "degenerate_proofs",
    "degenerate_lemmas",
    "bilinear",
)
"""Sections of focus-dilution that solve nothing of their own: they are cheap on any law."""

LAWS = ("population", "origin", "unigram", "focus", *CLOSED)
"""The same, and what is measured near the first two critical points."""

STAGES = ("gradients", "symmetry", "stage_one", "stage_two", "attention", "expanded", "signs")
"""Sections of two-mixture about the loss and its first two stages."""

SHORT: dict[str, Any] = {"until": 5.0, "dim": 4}

PAIRS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "focus": (FOCUS, {}, ()),
    "focus, two groups": (FOCUS, {"pi": (0.75, 0.125, 0.125)}, ()),
    "focus, little staying": (
        FOCUS,
        {"pi": (0.9, 0.1), "lam": 0.3, "until": 400.0, "dim": 4},
        LAWS,
    ),
    "focus, much staying": (FOCUS, {"pi": (0.32, 0.28, 0.25, 0.15), "lam": 0.95, **SHORT}, LAWS),
    "focus, uniform": (FOCUS, {"transition": ((0.9, 0.1), (0.1, 0.9)), **SHORT}, ()),
    "focus, matrix": (
        FOCUS,
        {"transition": ((0.9, 0.1, 0.0), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4)), **SHORT},
        (),
    ),
    "focus, drift": (FOCUS, {"chain_kind": "drift", "until": 600.0, "dim": 8}, LAWS),
    "focus, descent": (FOCUS, {"mode": "gd", "rate": 0.1, **SHORT}, ()),
    "focus, two tokens": (FOCUS, {"pi": (0.7, 0.3)}, CLOSED),
    "focus, three tokens": (FOCUS, {"pi": (0.5, 0.3, 0.2), "lam": 0.7}, CLOSED),
    "focus, nearly uniform": (FOCUS, {"pi": (0.34, 0.33, 0.33)}, CLOSED),
    "focus, stable": (FOCUS, {"pi": (0.8, 0.1, 0.1), "lam": 0.3}, CLOSED),
    "focus, extreme": (
        FOCUS,
        {"pi": (0.97, 0.01, 0.01, 0.01), "lam": 0.999},
        tuple(each for each in CLOSED if each != "dilution"),  # stiff for long
    ),
    "focus, same direction": (FOCUS, {"pi": (0.75, *[0.05] * 5), "lam": 0.02}, CLOSED),
    "focus, no limit point": (FOCUS, {"pi": (0.75, 0.25), "lam": 0.3}, CLOSED),
    "mixture": (MIXTURE, {}, ()),
    "mixture, bias 1": (MIXTURE, {"bias": 1.0}, STAGES),
    "mixture, omega 0.3": (MIXTURE, {"omega": 0.3}, STAGES),
    "mixture, corner": (MIXTURE, {"omega": 0.45, "score_stop": 1.5, "bias": 0.05, "t1": 5.0}, ()),
    "mixture, small": (MIXTURE, {"score_stop": 0.3, "omega": 0.05, "bias": 0.8}, STAGES),
    "mixture, three groups": (MIXTURE, {"groups": 3}, ()),
    "mixture, four tokens": (MIXTURE, {"length": 4}, STAGES),
    "mixture, many": (MIXTURE, {"groups": 8, "length": 5}, ()),
    "mixture, large bias": (MIXTURE, {"bias": 3.0}, STAGES),
    "mixture, large omega": (MIXTURE, {"omega": 2.0}, STAGES),
    "mixture, late stop": (MIXTURE, {"score_stop": 3.0, "omega": 0.45}, ()),
    "mixture, early T1": (MIXTURE, {"t1": 1.0}, STAGES),
    "mixture, weak groups": (MIXTURE, {"bias": 2.0, "t1": 40.0, "omega": 0.2}, ()),
}


WRONG = {  # printed wrongly, in the study's default config
    FOCUS: {
        "Prop 2.3 (eq 4)",
        "Thm 3.2 (eq 10)",
        "Lemma 3.1 (simple eigenvalue)",
        "Prop 3.3 (hypothesis)",
        "eq 60",
        "Prop 3.4 (unique mode)",
        "eq 71",
        "eq 65",
        "Thm 3.5 (eq 16)",
        "Prop 3.6 (eq 20, eta)",
        "eq 88",
        "App C.3 (linearised prediction)",
        "Prop 3.8 (construction)",
        "Thm D.3 (perturbed Hessian)",
        "Thm D.3 (eq 106)",
        "Thm D.3 (eq 108)",
        "Lemma D.9 (item 2)",
        "Lemma D.9 (item 3)",
        *(f"eq {n}" for n in (131, 139, 144, 146, 147, 149, 152)),
        "Lemma D.15 (c3)",
        "Lemma D.15 (cross term)",
        "App E (law)",
    },
    MIXTURE: {
        "App B.1 (w-)",
        "Section 5.2 (36 variables)",
        "Lemma E.1 (rates at T1)",
        "Lemma E.1 (next rate at T1)",
        "Lemma E.3 (comparison system)",
        "Lemma E.4 (uniform attention)",
        *(f"Lemma E.5 ({w})" for w in ("lines 10 and 11", "values at T1", "growing variables")),
        "Lemma E.5 (parabola)",
        *(f"App E.5.1 ({pair})" for pair in ("c1 v1", "c1 c1", "v1 v1", "v1 c1")),
        *(f"App E.5.2 ({pair})" for pair in ("c1 c1", "c1 c2", "v1 v1", "c1 v1")),
        *(f"App E.5.3 ({pair})" for pair in ("v1 v1", "v1 v2", "c1 v1", "c1 c1")),
        *(f"App E.6 ({side})" for side in ("queries", "keys")),
        *(f"App E.7.1 ({place})" for place in ("c1 v1", "v1 v1", "left side")),
        *(f"App E.7.2 ({pair})" for pair in ("c1 v1", "c1 c1")),
        *(f"App E.7.3 ({pair})" for pair in ("c1 c1", "v1 v1", "v1 c1")),
        "Lemma 6.1",
        "App A.2 (Fig 3)",
        "Lemma G.1",
        "Lemma H.1",
    },
}
FALSE = {
    FOCUS: {
        "Prop 3.4 (J_att)",
        "Prop 3.8 (neutrally stable)",
        "Sec 4.1 (stage I, attention)",
        "Fig 2C (steps 350 to 550)",
        "Sec 4.1 (stage III, rank one)",
        "Sec 4.1 (a smaller chain)",
    },
    MIXTURE: set(),
}
SHOWN = {  # what a snippet prints
    "Prop 3.8 (neutrally stable)": "eta 1.",
    "Lemma H.1": "is False",
    "App A.2 (Fig 3)": "seed 12: loss 0.148, accuracy 1.0",
    "Lemma 6.1": "-1 printed 1.0 corrected -1.0",
    "Lemma G.1": "omega^2 = 0.09 ; m omega^2 = 18",
}


@pytest.fixture
def rows(ledger):
    """`rows(pair, *sections)`: the ledger of a pair, of some sections where they are named."""

    def get(pair: str, *sections: str) -> Ledger:
        study, keys, measured = PAIRS[pair]
        found = ledger(study, keys, *measured)
        wanted = {(c.id, c.part) for c in claims_of(study, sections)}
        return Ledger(tuple(row for row in found if (row.id, row.part) in wanted))

    return get


def claims_of(study: str, sections: tuple[str, ...] = ()) -> list[Claim]:
    """The claims of a study, of some sections where they are named."""
    return [c for c in walk.build(study).claims() if not sections or section_of(c) in sections]


def section_of(claim: Claim) -> str:
    """The module in which a claim is written."""
    return claim.measure.__module__.rpartition(".")[2]


def with_verdict(ledger: Ledger, verdict: Verdict) -> set[str]:
    return {row.id for row in ledger if row.verdict is verdict}


@pytest.mark.parametrize("pair", PAIRS)
def test_no_verdict_is_a_surprise(rows, pair: str) -> None:
    study, _, sections = PAIRS[pair]
    found = rows(pair)
    assert len(found) == len(claims_of(study, sections)) > 90
    assert [(row.id, str(row.verdict), row.note) for row in found.surprises] == []
    for row in found:
        if row.verdict not in (Verdict.OUT_OF_REGIME, Verdict.NOT_CHECKABLE):
            assert row.control is not None, row.id
            assert row.control.flips, (row.id, row.control.sentence)


@pytest.mark.parametrize("pair", ["focus", "mixture"])
def test_what_is_printed_wrongly_is_found_and_shows_itself(rows, pair: str) -> None:
    study, found = PAIRS[pair][0], rows(pair)
    assert with_verdict(found, Verdict.HOLDS_CORRECTED) == WRONG[study]
    assert with_verdict(found, Verdict.FAILS) == FALSE[study]
    wrong = [row for row in found if row.correction is not None]
    assert {row.id for row in wrong} == WRONG[study] | FALSE[study]
    printed = {text: run_snippet(text) for text in {row.correction.snippet for row in wrong}}
    for row in wrong:
        assert SHOWN.get(row.id, "") in printed[row.correction.snippet]


# --- Focus and dilution.


def test_symmetric_laws_have_the_same_corrections(rows) -> None:
    found = rows("focus, two groups", *CLOSED)
    wrong = {c.id for c in claims_of(FOCUS, CLOSED)} & WRONG[FOCUS]
    assert with_verdict(found, Verdict.HOLDS_CORRECTED) == wrong
    assert with_verdict(found, Verdict.FAILS) == {"Prop 3.8 (neutrally stable)"}


def test_where_the_criterion_says_stable_it_is(rows) -> None:
    found = rows("focus, stable")
    assert found["Prop 3.8 (neutrally stable)"].verdict is Verdict.HOLDS
    assert found["ours: equal tokens part within rank one"].verdict is Verdict.OUT_OF_REGIME
    assert found["ours: rate of the split of equal tokens"].verdict is Verdict.HOLDS


def test_both_groups_can_move_the_same_way(rows) -> None:
    """Many tokens and little staying: gamma_1 falls with gamma_low while the contrast grows."""
    found = rows("focus, same direction")
    row = found["Thm 3.7 (opposite directions)"]
    assert row.verdict is Verdict.FAILS
    assert row.correction is not None
    assert "gamma_1 -0." in row.correction.run()
    assert found["Thm 3.7 (eq 21)"].verdict is Verdict.HOLDS


@pytest.mark.parametrize("pair", ["focus, uniform", "focus, matrix"])
def test_outside_the_hypotheses_nothing_is_measured(rows, pair: str) -> None:
    found = rows(pair, *CLOSED)
    measured = {row.id for row in found} - with_verdict(found, Verdict.OUT_OF_REGIME)
    any_law = {"Prop 3.8 (construction)", "ours: regime map of Prop 3.8"}  # on laws of their own
    saddles = {"ours: saddles of the rank-one phase"} if pair == "focus, matrix" else set()
    assert measured == any_law | saddles | {
        "Prop 3.6 (i)",
        "Prop 3.6 (eq 20)",
        "Prop 3.6 (eq 20, eta)",
    }
    assert rows(pair)["Thm 3.2 (condensation time)"].verdict is (
        Verdict.OUT_OF_REGIME if pair.endswith("uniform") else Verdict.HOLDS
    )


def test_two_tokens_have_one_lower_token_and_never_focus(rows) -> None:
    out = with_verdict(rows("focus, two tokens", "rank_one", "dilution"), Verdict.OUT_OF_REGIME)
    assert out == {"Prop 3.6 (ii)", "eqs 80-81"}
    assert not cycles.drawn_law(walk.build(FOCUS, pi=(0.7, 0.3))).inside
    assert cycles.drawn_law(walk.build(FOCUS)).inside


def test_a_chain_that_hardly_moves_has_no_frequencies_yet() -> None:
    assert not focus_regimes.forgetful(walk.build(FOCUS, lam=0.999)).inside
    assert focus_regimes.forgetful(walk.build(FOCUS)).inside


def test_the_claims_of_the_experiment_are_kept_to_the_paper_s_laws() -> None:
    assert not training.paper_law(walk.build(FOCUS, pi=(0.6, 0.3, 0.1))).inside
    assert training.paper_law(walk.build(FOCUS)).inside
    assert not training.long_training(walk.build(FOCUS)).inside


APPENDIX_D = ("degenerate", "degenerate_proofs", "degenerate_lemmas", "bilinear")


@pytest.mark.parametrize(
    "chain",
    [
        MarkovChain((0.75, 0.25), 0.3),  # (1 - lam) pi1 = 0.525: gamma_low would be positive
        MarkovChain((0.25, 0.25, 0.25, 0.25), 0.5),  # nobody leads
        MarkovChain.of(((0.9, 0.1), (0.3, 0.7))),  # no lam
    ],
)
def test_without_a_limit_point_nothing_of_appendix_d_is_measured(chain: MarkovChain) -> None:
    outside = SimpleNamespace(name=FOCUS, chain=chain)
    for claim in claims_of(FOCUS, APPENDIX_D):
        row = claim.check(outside)
        assert row.verdict is row.expected is Verdict.OUT_OF_REGIME, claim.id
        assert row.measured is None


@settings(max_examples=4)
@given(st.floats(0.34, 0.99), st.floats(0.02, 0.98))
def test_verdicts_of_appendix_d_stay_over_the_whole_regime(pi1: float, lam: float) -> None:
    low = (1 - pi1) / 2
    at = SimpleNamespace(name=FOCUS, chain=MarkovChain((pi1, low, low), lam))
    assume(limit_point(at).inside)
    found = Ledger.check(claims_of(FOCUS, APPENDIX_D), at)
    assert [(row.id, pi1, lam, row.note) for row in found.surprises] == []


# --- Two-mixture.

APPENDICES = (
    "gradients",
    "symmetry",
    "stage_one",
    "stage_two",
    "near_symmetry",
    "signs",
    "attention",
    "expanded",
)
"""Appendices B to E."""


@pytest.mark.parametrize(
    "pair", ["mixture", "mixture, bias 1", "mixture, omega 0.3", "mixture, corner"]
)
def test_inside_the_hypotheses_everything_is_measured(rows, pair: str) -> None:
    assert with_verdict(rows(pair, *APPENDICES), Verdict.OUT_OF_REGIME) == set()


@pytest.mark.parametrize("pair", ["mixture, three groups", "mixture, four tokens", "mixture, many"])
def test_lemmas_about_two_groups_are_out_of_regime(rows, pair: str) -> None:
    found = rows(pair)
    for name in (
        "Lemma C.2 (eq 4)",
        "Lemma 5.2 (group signals)",
        "Lemma E.1 (eq 11)",
        "Thm D.8",
        "Thm E.7 (consistent, group query)",
        "App E.7.3 (v1 v1)",
    ):
        assert found[name].verdict is Verdict.OUT_OF_REGIME, name


def test_what_holds_for_any_task_is_measured_for_it(rows) -> None:
    many = rows("mixture, many")
    for name in ("App B.1 (WK)", "App B.2 (system)", "ours: ten variables for every K and L"):
        assert many[name].verdict is Verdict.HOLDS
    slope = rows("mixture, three groups")["ours: stage 2 takes 9 (K-1)/gamma log 1/omega"]
    assert slope.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("given_", [{"bias": 500.0}, {"bias": 0.5, "omega": 1e-30}])
def test_regimes_are_judged_without_overflow(given_: dict[str, float]) -> None:
    config = {"groups": 2, "length": 3, "omega": 0.1, "t1": 20.0, "score_stop": 1.0, **given_}
    study = SimpleNamespace(name=MIXTURE, config=SimpleNamespace(**config))
    for regime in {c.regime for c in claims_of(MIXTURE) if c.regime is not None}:
        assert regime(study).sentence


def test_regimes_say_their_numbers() -> None:
    assert mixture_regimes.two_mixtures(walk.build(MIXTURE, groups=3)).sentence.startswith("K = 3")
    assert not mixture_regimes.condition_one(walk.build(MIXTURE, omega=0.9)).inside
    early = mixture_regimes.past_gates(walk.build(MIXTURE, t1=1.0))
    assert "T0.5 = 1.359" in early.sentence
    assert mixture_regimes.staged(walk.build(MIXTURE)).inside


STATEMENTS = {
    "App": "B.1 B.2 E.5.1 E.5.2 E.5.3 E.6 E.7.1 E.7.2 E.7.3",
    "Lemma": "C.1 C.2 C.4 5.2 5.3 5.5 D.1 D.2 D.4 D.5 E.1 E.2 E.3 E.4 E.5 E.6",
    "Cor": "C.3 C.5 D.3 D.6 D.7",
    "Thm": "D.8 E.7 4.1",
}


@pytest.mark.parametrize(
    "label", [f"{kind} {number}" for kind, all_ in STATEMENTS.items() for number in all_.split()]
)
def test_every_statement_has_a_claim(label: str) -> None:
    ids = [c.id for c in claims_of(MIXTURE)]
    assert any(id == label or id.startswith(f"{label} (") for id in ids)


def test_a_wrong_order_is_noticed() -> None:
    x = [0.1, 0.01, 0.001]
    order = mixture_regimes.order_at_most
    good = order(x, [v**2 for v in x], 1.0, control_y=[1.0, 1.0, 1.0])
    bad = order(x, [v**0.5 for v in x], 1.0, control_y=[v**2 for v in x])
    assert good.verdict is Verdict.CONSISTENT
    assert good.control.flips
    assert bad.verdict is Verdict.FAILS
