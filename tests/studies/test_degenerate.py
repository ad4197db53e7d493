"""The perturbed degenerate point of Appendix D: its known numbers, and a wrong model is noticed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnflow.claims import Claim, Verdict
from attnflow.studies.focus_dilution.claims import degenerate, degenerate_cases, degenerate_lemmas
from attnflow.studies.focus_dilution.claims.bilinear_blocks import measured_blocks
from attnflow.studies.focus_dilution.claims.degenerate_cases import Case, cases
from attnflow.studies.focus_dilution.limit import LimitModel
from attnflow.tasks import MarkovChain
from tolerances import IDENTITY, PRINTED


def study(pi: tuple[float, ...], lam: float) -> Any:
    return SimpleNamespace(name="focus-dilution", chain=MarkovChain(pi, lam))


def test_a_wrong_derivative_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims measure the model: with another model most of them fail."""
    kept = LimitModel.transition
    monkeypatch.setattr(LimitModel, "transition", lambda self, d=0.0: kept(self, 1.1 * d))
    degenerate_cases._cases.cache_clear()
    try:
        both = [*vars(degenerate).values(), *vars(degenerate_lemmas).values()]
        known = {c.id: c for c in both if isinstance(c, Claim)}
        at, failed = study((0.6, 0.4), 0.7), 0
        for id in ("Prop D.2 (eq 100)", "Lemma D.7 (eq 117)", "Lemma D.7 (eq 119)", "Lemma D.10"):
            failed += known[id](at).verdict is Verdict.FAILS
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
    for case in cases(study((0.75, 0.19, 0.05, 0.01), 0.8)):
        blocks = measured_blocks(case)
        total = np.concatenate(
            [sum(v for k, v in blocks.items() if k[0] == half) for half in ("g", "b")]
        )
        assert np.abs(total - case.B).max() < 1e-12
        for block in blocks.values():
            np.testing.assert_allclose(block, np.swapaxes(block, 1, 2), atol=1e-14)
