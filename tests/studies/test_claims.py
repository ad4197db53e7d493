"""Every claim of every study: its verdict on laws of several kinds, its control, its correction.

A pair is a study and a config. All claims of a pair are measured once a session (`ledger`); a
verdict that is not the expected one fails here.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnflow import InputError, studies, walk
from attnflow.app._ledger import names
from attnflow.claims import Claim, Ledger, Verdict
from attnflow.claims.evidence import check_snippet, run_snippet
from attnflow.studies.focus_dilution.claims import common as focus_regimes
from attnflow.studies.focus_dilution.claims.degenerate_cases import limit_point
from attnflow.studies.two_mixture.claims import common as mixture_regimes

FOCUS, MIXTURE, LEADING = "focus-dilution", "two-mixture", "leading-terms"

CLOSED = (
    "rank_one",
    "dilution",
    "symmetric",
    "degenerate",
    "finite_eta",
    "degenerate_proofs",
    "degenerate_lemmas",
    "bilinear",
)
"""Sections of focus-dilution that solve nothing of their own: they are cheap on any law."""

LAWS = ("population", "origin", "unigram", "focus", *CLOSED, "solves")
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
    "leading": (LEADING, {}, ()),
}


ERRATA = {
    FOCUS: {
        "indefinite",
        "unequal-scales",
        "same-direction",
        "below-average",
        "finite-eta",
        "second-order-hessian",
    },
    MIXTURE: {
        "quarter",
        "doubled-at-t1",
        "diagonal-at-t1",
        "minus-head",
        "construction",
        "bernstein",
    },
}
"""What is printed wrongly, at the study's default config."""

FALSE = {FOCUS: {"Prop 3.4 (J_att)", "Thm 3.7 (opposite directions)"}, MIXTURE: set()}


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


# --- Every study.


@pytest.mark.parametrize("pair", PAIRS)
def test_no_verdict_is_a_surprise(rows, pair: str) -> None:
    study, _, sections = PAIRS[pair]
    found = rows(pair)
    assert len(found) == len(claims_of(study, sections)) > 70
    assert [(row.id, str(row.verdict), row.note) for row in found.surprises] == []
    for row in found:
        if row.verdict not in (Verdict.OUT_OF_REGIME, Verdict.NOT_CHECKABLE):
            assert row.control is not None, row.id
            assert row.control.flips, (row.id, row.control.sentence)


@pytest.mark.parametrize("pair", ["focus", "mixture", "leading"])
def test_at_the_default_config_everything_is_measured(rows, pair: str) -> None:
    assert with_verdict(rows(pair), Verdict.OUT_OF_REGIME) == set()


@pytest.mark.parametrize("pair", ["focus", "mixture"])
def test_what_is_printed_wrongly_is_one_erratum_each(rows, pair: str) -> None:
    found = rows(pair)
    assert {erratum.key for erratum in found.errata} == ERRATA[PAIRS[pair][0]]
    assert with_verdict(found, Verdict.FAILS) == FALSE[PAIRS[pair][0]]
    for row in found:
        assert (row.erratum is not None) == (row.correction is not None), row.id


@pytest.mark.parametrize("study", [FOCUS, MIXTURE])
def test_every_snippet_is_a_file_that_shows_itself(rows, study: str) -> None:
    """And every file is the snippet of a row."""
    pair = {FOCUS: "focus", MIXTURE: "mixture"}[study]
    used = {row.correction.snippet for row in rows(pair) if row.correction is not None}
    folder = studies.build(study).paper.snippets
    assert isinstance(folder, Path)
    texts = {path.name: path.read_text().strip("\n") for path in folder.glob("*.py")}
    for text in texts.values():
        check_snippet(text)
        assert run_snippet(text) or "assert " in text
    assert set(texts.values()) == used


def test_rows_that_call_something_wrong_stay_under_a_second_opinion(rows) -> None:
    again = [
        row.evidence["rechecks"]
        for pair in ("focus", "mixture")
        for row in rows(pair)
        if "rechecks" in row.evidence
    ]
    assert again
    assert all(list(each) == ["ten times tighter", "the second engine"] for each in again)


# --- Focus and dilution.


def test_where_the_criterion_says_stable_it_is(rows) -> None:
    found = rows("focus, stable")
    assert found["Prop 3.8 (neutrally stable)"].verdict is Verdict.HOLDS
    assert found["ours: equal tokens part within rank one"].verdict is Verdict.OUT_OF_REGIME
    assert found["ours: rate of the split of equal tokens"].verdict is Verdict.HOLDS


def test_the_counterexample_to_opposite_directions_is_shown_on_every_law(rows) -> None:
    for pair in ("focus", "focus, same direction"):
        row = rows(pair)["Thm 3.7 (opposite directions)"]
        assert row.verdict is Verdict.FAILS
        assert "gamma_1 -0." in row.correction.run()
        assert rows(pair)["Thm 3.7 (eq 21)"].verdict is Verdict.HOLDS


@pytest.mark.parametrize("pair", ["focus, uniform", "focus, matrix"])
def test_outside_the_hypotheses_nothing_is_measured(rows, pair: str) -> None:
    found = rows(pair, *CLOSED)
    measured = {row.id for row in found} - with_verdict(found, Verdict.OUT_OF_REGIME)
    any_law = {"Prop 3.8 (construction)", "ours: regime map of Prop 3.8"}  # on laws of their own
    saddles = {"ours: saddles of the rank-one phase"} if pair == "focus, matrix" else set()
    assert measured == any_law | saddles | {
        "Thm 3.7 (opposite directions)",
        "Prop 3.6 (i)",
        "Prop 3.6 (eq 20)",
        "Prop 3.6 (eq 20, eta)",
        "ours: rank-one system in closed form",
    }
    assert rows(pair)["Thm 3.2 (condensation time)"].verdict is (
        Verdict.OUT_OF_REGIME if pair.endswith("uniform") else Verdict.HOLDS
    )


def test_two_tokens_have_one_lower_token(rows) -> None:
    out = with_verdict(rows("focus, two tokens", "rank_one", "dilution"), Verdict.OUT_OF_REGIME)
    assert out == {"Prop 3.6 (ii)", "eqs 80-81"}


def test_a_chain_that_hardly_moves_has_no_frequencies_yet() -> None:
    assert not focus_regimes.forgetful(configured(FOCUS, lam=0.999)).inside
    assert focus_regimes.forgetful(configured(FOCUS)).inside


APPENDIX_D = ("degenerate", "degenerate_proofs", "degenerate_lemmas", "bilinear")


@pytest.mark.parametrize(
    "keys",
    [
        {"pi": (0.75, 0.25), "lam": 0.3},  # (1 - lam) pi1 = 0.525: gamma_low would be positive
        {"transition": ((0.5, 0.25, 0.25), (0.25, 0.5, 0.25), (0.25, 0.25, 0.5))},  # nobody leads
        {"transition": ((0.9, 0.1), (0.3, 0.7))},  # no lam
    ],
)
def test_without_a_limit_point_nothing_of_appendix_d_is_measured(keys: dict[str, Any]) -> None:
    outside = SimpleNamespace(name=FOCUS, config=configured(FOCUS, **keys))
    limit = [c for c in claims_of(FOCUS, APPENDIX_D) if c.setting.startswith("limit model")]
    assert limit
    for claim in limit:
        row = claim.check(outside)
        assert row.verdict is row.expected is Verdict.OUT_OF_REGIME, claim.id
        assert row.measured is None


@settings(max_examples=4, deadline=None)
@given(st.floats(0.34, 0.99), st.floats(0.02, 0.98))
def test_verdicts_of_appendix_d_stay_over_the_whole_regime(pi1: float, lam: float) -> None:
    low = (1 - pi1) / 2
    study = studies.build(FOCUS, pi=(pi1, low, 1 - pi1 - low), lam=lam)
    assume(limit_point(study.config).inside)
    limit = [c for c in claims_of(FOCUS, APPENDIX_D) if c.setting.startswith("limit model")]
    found = Ledger.check(limit, study)
    assert [(row.id, pi1, lam, row.note) for row in found.surprises] == []


# --- Two-mixture.


@pytest.mark.parametrize("pair", ["mixture, three groups", "mixture, four tokens", "mixture, many"])
def test_lemmas_about_two_groups_are_out_of_regime(rows, pair: str) -> None:
    found = rows(pair)
    for name in (
        "Lemma C.2 (eq 4)",
        "Lemma 5.2 (group signals)",
        "Lemma E.1 (eq 11)",
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
    config = SimpleNamespace(
        **{"groups": 2, "length": 3, "omega": 0.1, "t1": 20.0, "score_stop": 1.0, **given_}
    )
    for regime in (mixture_regimes.staged, mixture_regimes.condition_one):
        assert regime(config).sentence


def test_regimes_say_their_numbers() -> None:
    assert "K = 3" in mixture_regimes.two_mixtures(configured(MIXTURE, groups=3)).sentence
    assert not mixture_regimes.condition_one(configured(MIXTURE, omega=0.9)).inside
    assert "T0.5 = 1.359" in mixture_regimes.past_gates(configured(MIXTURE, t1=1.0)).sentence
    assert mixture_regimes.staged(configured(MIXTURE)).inside


STATEMENTS = {
    FOCUS: {
        "Prop": "2.3 3.3 3.4 3.6 3.8 B.1 C.1 D.1 D.2",
        "Lemma": "3.1 D.4 D.5 D.6 D.7 D.8 D.9 D.10 D.11 D.12 D.13 D.14 D.15 D.16 D.17",
        "Thm": "3.2 3.5 3.7 3.9 D.3",
    },
    MIXTURE: {
        "App": "B.1 B.2 E.5.1 E.5.2 E.5.3 E.6 E.7.1 E.7.2 E.7.3",
        "Lemma": "C.1 C.2 C.4 5.2 5.3 5.4 5.5 6.1 D.1 D.2 D.4 D.5 E.1 E.2 E.3 E.4 E.5 E.6 G.1 H.1",
        "Cor": "C.3 C.5 D.3 D.6 D.7",
        "Thm": "D.8 E.7 4.1",
    },
}
LABELS = [
    (study, f"{kind} {number}")
    for study, kinds in STATEMENTS.items()
    for kind, numbers in kinds.items()
    for number in numbers.split()
]


@pytest.mark.parametrize(("study", "label"), LABELS)
def test_every_statement_has_a_claim(study: str, label: str) -> None:
    ids = [c.id for c in claims_of(study)]
    assert any(id == label or id.startswith((f"{label} (", f"{label},")) for id in ids)


def configured(study: str, **keys: Any) -> Any:
    return studies.configured(study, **keys)[1]


@pytest.mark.parametrize("study", [n for n in studies.names() if studies.built_in(n)])
def test_a_figure_names_claims_that_there_are(study):
    """A label that no claim begins with is a typing error, or a claim that was renamed."""
    try:
        built = studies.build(*studies.configured(study, {}))
    except InputError as error:
        pytest.skip(f"has no default: {error}")
    ids = [claim.id for claim in built.claims()]
    shown = {name: getattr(f, "shows", ()) for name, f in built.figures().items()}
    lost = [(n, label) for n, labels in shown.items() for label in labels if not _known(label, ids)]
    assert lost == []
    assert not ids or all(shown.values())


def _known(label: str, ids: list[str]) -> bool:
    return any(names(label, id) for id in ids)
