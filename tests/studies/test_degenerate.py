"""The perturbed degenerate point of Appendix D: its known numbers, and a wrong model is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import studies
from attnflow.claims import Verdict, claims_in
from attnflow.studies.focus_dilution.claims import degenerate, degenerate_lemmas, finite_eta
from attnflow.studies.focus_dilution.claims.degenerate import left_163
from attnflow.studies.focus_dilution.claims.degenerate_cases import Case, cases
from attnflow.studies.focus_dilution.limit import LimitModel
from tolerances import IDENTITY, PRINTED


def test_a_wrong_derivative_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims measure the model: with another model they fail."""
    kept = LimitModel.transition
    monkeypatch.setattr(LimitModel, "transition", lambda self, d=0.0: kept(self, 1.1 * d))
    known = {c.id: c for c in claims_in(degenerate, degenerate_lemmas)}
    at = studies.build("focus-dilution", pi=(0.61, 0.39), lam=0.7)  # a config of no other test
    for id in ("Prop D.2 (eq 100)", "Lemma D.7 (eq 117)", "Lemma D.7 (eq 119)", "Lemma D.10"):
        assert known[id](at).verdict is Verdict.FAILS


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
        assert case.transverse_rates(point, delta)[0] / delta == pytest.approx(rate, abs=2e-6)
        assert case.force(point, delta)[0] / delta == pytest.approx(rate, abs=2e-6)
        assert left_163(case) == pytest.approx(condition, abs=PRINTED)


def test_the_path_is_the_same_for_every_eta() -> None:
    """On gamma_2 = gamma_3 attention does not see eta, so neither does the perturbed point."""
    one, two = Case(0.75, 0.8, 3.0), Case(0.75, 0.8, 10.0)
    np.testing.assert_allclose(one.solved(0.01).theta, two.solved(0.01).theta, atol=10 * IDENTITY)


def test_the_blocks_are_symmetric_forms() -> None:
    for case in cases(studies.build("focus-dilution")):
        for block in case.blocks.values():
            np.testing.assert_allclose(block, np.swapaxes(block, 1, 2), atol=1e-14)


def test_at_finite_eta_equal_tokens_part_faster_than_the_law_moves() -> None:
    """eta = 1.394 for pi = (.75, .125, .125), lam = .8: a rate of .0231 within rank one at every
    delta, above the transverse .863 delta."""
    study = studies.build("focus-dilution", pi=(0.75, 0.125, 0.125))
    shares = (1e-4, 8e-3, 8e-2)  # delta up to 0.01
    delta, speed, tangential, transverse = finite_eta.finite(study, 10.727, shares)
    assert finite_eta.FiniteEta(study, 10.727).z[4] ** 2 == pytest.approx(1.394, abs=1e-4)
    assert speed.max() < 1e-13
    np.testing.assert_allclose(tangential, 0.0231, atol=1e-4)
    np.testing.assert_allclose(transverse, 0.863 * delta, rtol=1e-2)
    assert delta[-1] == pytest.approx(0.01)
