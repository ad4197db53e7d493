"""Appendices E to H: every label has a row, and none comes out otherwise than promised."""

import numpy as np
import pytest

from attnflow import studies
from attnflow.claims import Ledger, Verdict, claims_in
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence.claims import (
    attention_in_phase_2,
    concentration,
    early_phase,
    end_of_phase_1,
    late_phase,
    scaling,
)

LABELS = [
    *(f"E.{k}" for k in range(3, 29) if k != 18),  # Def. E.18 is a definition
    *(f"F.{k}" for k in range(2, 21)),
    "G.1",
    "G.2",
    "H.1",
    "H.2",
]

ROWS = claims_in(early_phase, end_of_phase_1, late_phase, attention_in_phase_2, concentration)


def test_every_label_has_a_row():
    claimed = {row.id.split(" ")[1] for row in ROWS}
    assert [label for label in LABELS if label not in claimed] == []


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"seed": 3},
        {"targets": 3, "samples": 56},
        {"tokens": "iid", "vocab": 64, "proportions": (0.4, 0.2, 0.2, 0.2), "samples": 60},
    ],
    ids=["default", "seed", "three targets", "repeated words"],
)
def test_nothing_surprises(keys):
    study = studies.build("cooccurrence", **keys)
    ledger = Ledger.check(ROWS, study)
    assert [(r.id, r.verdict, r.defect) for r in ledger.rows if r.surprising] == []
    outside = {r.id for r in ledger.rows if r.verdict is Verdict.OUT_OF_REGIME}
    assert bool(outside) is ("seed" not in keys and keys != {})


def test_a_record_has_the_neurons_of_the_weights():
    """Put together from the idle parts, the products are those of the weights themselves."""
    ready = scaling.few(studies.build("cooccurrence"), dim=32, samples=6)
    c = ready.config
    theta = ready.initialisation.model(c.words, c.dim, c.neurons, c.seed)
    found = scaling.at_start(ready, 32, samples=6)
    np.testing.assert_allclose(found.NN[0], theta.W @ theta.W.T, atol=1e-13)
    np.testing.assert_allclose(found.P[0], theta.W @ theta.WV, atol=1e-13)
    np.testing.assert_allclose(found.G[0], theta.a @ theta.W @ theta.WV, atol=1e-13)


def test_a_solve_moves_the_neurons_as_the_weights():
    """Grams with idle neurons against the flow of every weight, one product after another."""
    ready = scaling.few(studies.build("cooccurrence"), dim=32, samples=6)
    c = ready.config
    found = scaling.record(ready, 32, 2.0, samples=6)
    theta = ready.initialisation.model(c.words, c.dim, c.neurons, c.seed)
    flow = value_mlp.weight_flow(ready.sentences, 32)
    from attnflow.flows import integrate

    end = integrate(flow, theta, found.t[-1], rtol=1e-10, progress=False).final
    np.testing.assert_allclose(found.NN[-1], end.W @ end.W.T, atol=1e-7)
    np.testing.assert_allclose(found.P[-1], end.W @ end.WV, atol=1e-7)
    np.testing.assert_allclose(found.VV[-1], end.WV.T @ end.WV, atol=1e-7)
    np.testing.assert_allclose(found.S[-1], end.WK.T @ end.WQ, atol=1e-8)
    rate = np.gradient(found.G, found.t, axis=0)[10:-10]
    np.testing.assert_allclose(found.dG[10:-10], rate, rtol=0.1, atol=1e-2 * np.abs(rate).max())
