"""Appendix D and Theorem 3.9: every verdict, every control, every correction."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnflow.claims import Claim, ClaimDefect, Row, Verdict
from attnflow.studies.focus_dilution.claims import (
    bilinear,
    degenerate,
    degenerate_lemmas,
    degenerate_proofs,
)
from attnflow.studies.focus_dilution.claims.bilinear_blocks import measured_blocks
from attnflow.studies.focus_dilution.claims.degenerate_cases import Case, cases, limit_point
from attnflow.tasks import MarkovChain
from tolerances import IDENTITY, PRINTED

MODULES = (degenerate, degenerate_proofs, degenerate_lemmas, bilinear)
CLAIMS = [c for m in MODULES for c in vars(m).values() if isinstance(c, Claim)]

DEFAULT = ((0.75, 0.19, 0.05, 0.01), 0.8)
OTHER = ((0.5, 0.3, 0.2), 0.7)

CORRECTED = {
    "Thm D.3 (perturbed Hessian)",
    "Thm D.3 (eq 106)",
    "Thm D.3 (eq 108)",
    "Lemma D.9 (item 2)",
    "Lemma D.9 (item 3)",
    "eq 131",
    "eq 139",
    "eq 144",
    "eq 146",
    "eq 147",
    "eq 149",
    "eq 152",
    "Lemma D.15 (c3)",
    "Lemma D.15 (cross term)",
}


def study(pi: tuple[float, ...], lam: float) -> Any:
    return SimpleNamespace(name="focus-dilution", chain=MarkovChain(pi, lam))


@cache
def rows(pi: tuple[float, ...], lam: float) -> dict[str, Row]:
    return {c.id: c.check(study(pi, lam)) for c in CLAIMS}


@pytest.mark.parametrize("config", [DEFAULT, OTHER])
def test_every_verdict_is_the_expected_one(config) -> None:
    found = rows(*config)
    assert len(found) == len(CLAIMS) >= 85  # ids are unique
    for id, row in found.items():
        assert row.verdict is row.expected, (id, row.note)
    assert {i for i, r in found.items() if r.verdict is Verdict.HOLDS_CORRECTED} == CORRECTED
    assert Verdict.FAILS not in {r.verdict for r in found.values()}


@pytest.mark.parametrize("config", [DEFAULT, OTHER])
def test_every_control_flips(config) -> None:
    for id, row in rows(*config).items():
        assert row.control is not None, id
        assert row.control.flips, (id, row.control.sentence)


def test_every_correction_shows_itself() -> None:
    for id in CORRECTED:
        row = rows(*DEFAULT)[id]
        assert row.correction is not None, id
        row.correction.run()


@pytest.mark.parametrize(
    "chain",
    [
        MarkovChain((0.75, 0.25), 0.3),  # (1 - lam) pi1 = 0.525: gamma_low would be positive
        MarkovChain((0.25, 0.25, 0.25, 0.25), 0.5),  # nobody leads
        MarkovChain.of(((0.9, 0.1), (0.3, 0.7))),  # no lam
    ],
)
def test_outside_the_regime_nothing_is_measured(chain: MarkovChain) -> None:
    outside = SimpleNamespace(name="focus-dilution", chain=chain)
    for claim in CLAIMS:
        row = claim.check(outside)
        assert row.verdict is row.expected is Verdict.OUT_OF_REGIME, claim.id
        assert row.measured is None


@settings(max_examples=4)
@given(st.floats(0.34, 0.99), st.floats(0.02, 0.98))
def test_verdicts_stay_over_the_whole_regime(pi1: float, lam: float) -> None:
    low = (1 - pi1) / 2
    at = study((pi1, low, low), lam)
    assume(limit_point(at).inside)
    for claim in CLAIMS:
        try:
            row = claim.check(at)
        except ClaimDefect as defect:
            raise AssertionError(f"{claim.id} at {pi1}, {lam}: {defect.row.note}") from None
        assert row.verdict is row.expected, (claim.id, pi1, lam, row.note)


def test_a_wrong_derivative_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims measure the model: with another model most of them fail."""
    from attnflow.studies.focus_dilution.claims import degenerate_cases
    from attnflow.studies.focus_dilution.limit import LimitModel

    kept = LimitModel.transition
    monkeypatch.setattr(LimitModel, "transition", lambda self, d=0.0: kept(self, 1.1 * d))
    degenerate_cases._cases.cache_clear()
    try:
        at, failed = study((0.6, 0.4), 0.7), 0
        for id in ("Prop D.2 (eq 100)", "Lemma D.7 (eq 117)", "Lemma D.7 (eq 119)", "Lemma D.10"):
            claim = next(c for c in CLAIMS if c.id == id)
            failed += claim(at).verdict is Verdict.FAILS
        assert failed == 4
    finally:
        degenerate_cases._cases.cache_clear()


@pytest.mark.parametrize(
    ("pi1", "lam", "rate", "condition"),
    [(0.75, 0.8, 0.805452, -0.746577), (0.45, 0.65, 0.686621, -0.574609)],
)
def test_the_known_numbers_come_out(pi1: float, lam: float, rate: float, condition: float) -> None:
    """The transverse coefficient and the left side of (163), to six digits, for both eta."""
    for eta in (3.0, 10.0):
        case = Case(pi1, lam, eta)
        delta = 1e-5
        point = case.solved(delta).theta
        assert case.transverse_rate(point, delta) / delta == pytest.approx(rate, abs=2e-6)
        assert case.force(point, delta) / delta == pytest.approx(rate, abs=2e-6)
        left = case.c * (1 - pi1) * case.gl * case.Pl[1] - case.kappa
        assert left == pytest.approx(condition, abs=PRINTED)


def test_the_path_is_the_same_for_every_eta() -> None:
    """On gamma_2 = gamma_3 attention does not see eta, so neither does the perturbed point."""
    one, two = Case(0.75, 0.8, 3.0), Case(0.75, 0.8, 10.0)
    np.testing.assert_allclose(one.solved(0.01).theta, two.solved(0.01).theta, atol=10 * IDENTITY)


def test_the_blocks_sum_to_the_third_derivative() -> None:
    for case in cases(study(*DEFAULT)):
        blocks = measured_blocks(case)
        total = np.concatenate(
            [sum(v for k, v in blocks.items() if k[0] == half) for half in ("g", "b")]
        )
        assert np.abs(total - case.B).max() < 1e-12
        for block in blocks.values():
            np.testing.assert_allclose(block, np.swapaxes(block, 1, 2), atol=1e-14)
