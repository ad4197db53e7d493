"""The claims of Sections 2 to 3.2 and 4.1: their verdicts on laws of several kinds."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import walk
from attnflow.claims import Verdict
from attnflow.claims.claim import ClaimDefect
from attnflow.studies.focus_dilution.claims import cycles, training
from attnflow.tasks import MarkovChain

SECTIONS = ("population", "origin", "unigram", "focus", "cycles")

CONFIGS = [
    {"pi": (0.75, 0.125, 0.125), "until": 900.0, "dim": 8},
    {"transition": ((0.9, 0.1), (0.1, 0.9)), "until": 5.0},  # a uniform law
    {"pi": (0.9, 0.1), "lam": 0.3, "until": 400.0, "dim": 4},
    {"pi": (0.32, 0.28, 0.25, 0.15), "lam": 0.95, "until": 5.0, "dim": 4},
    {"transition": ((0.9, 0.1, 0.0), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4)), "until": 5.0, "dim": 4},
    {"chain_kind": "drift", "until": 600.0, "dim": 8},
    {"mode": "gd", "rate": 0.1, "until": 5.0, "dim": 4},
]


def rows_of(keys: dict):
    study = walk.build("focus-dilution", keys)
    for claim in study.claims():
        if claim.measure.__module__.rsplit(".", 1)[-1] in SECTIONS:
            try:
                yield claim.check(study)
            except ClaimDefect as defect:
                pytest.fail(str(defect))


@pytest.mark.parametrize("keys", CONFIGS, ids=[str(i) for i in range(len(CONFIGS))])
def test_no_verdict_is_a_surprise(keys):
    rows = list(rows_of(keys))
    assert len(rows) > 40
    for row in rows:
        assert row.verdict is row.expected, f"{row.id}: {row.verdict} ({row.note})"


def test_what_is_printed_wrongly_is_found_to_be_wrong():
    verdicts = {row.id: row.verdict for row in rows_of(CONFIGS[0])}
    assert verdicts["Prop 3.4 (J_att)"] is Verdict.FAILS
    for name in (
        "Prop 2.3 (eq 4)",
        "Thm 3.2 (eq 10)",
        "eq 60",
        "eq 65",
        "eq 71",
        "Thm 3.5 (eq 16)",
        "Prop 3.3 (hypothesis)",
    ):
        assert verdicts[name] is Verdict.HOLDS_CORRECTED


def test_the_smaller_chain_of_a_two_term_chain_is_a_two_term_chain():
    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
    small, known, weight = cycles.smaller_chain(chain)
    pi = chain.pi[1:] / chain.pi[1:].sum()
    lam = 0.8 / (0.8 + 0.2 * 0.25)
    assert np.abs(small.transition - MarkovChain(pi, lam).transition).max() < 1e-14
    # The loss of a model that knows all rows is the floor, however it is split.
    assert known + weight * small.floor == pytest.approx(chain.floor, abs=1e-14)


def test_leading_singular_values_are_those_of_the_svd():
    rng = np.random.default_rng(0)
    for shape in ((4, 40), (40, 4), (40, 40)):
        w = rng.normal(size=shape)
        s = np.linalg.svd(w, compute_uv=False)
        found = training._leading(w)
        assert found == pytest.approx((s[0], s[1], (s**2).sum() / s[0] ** 2), rel=1e-10)


def test_the_claims_of_the_experiment_are_kept_to_the_paper_s_laws():
    other = walk.build("focus-dilution", pi=(0.6, 0.3, 0.1))
    assert not training.paper_law(other).inside
    assert training.paper_law(walk.build("focus-dilution")).inside
    assert not training.long_training(walk.build("focus-dilution")).inside
