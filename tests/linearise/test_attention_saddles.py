"""The saddle ledger and the matrix-free spectrum on the population flow of attention."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import integrate
from attnflow.linearise import saddle_ledger, spectrum
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.tasks import MarkovChain

CHAIN = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize(("scale", "until"), [(1e-6, 420.0), (1e-3, 200.0)])
def test_every_plateau_is_listed_refined_and_left_at_its_rate(
    scale: float, until: float, seed: int
) -> None:
    start = OneLayerAttention.gaussian(4, 16, scale, seed)
    ledger = saddle_ledger(integrate(population_flow(CHAIN), start, until=until, rtol=1e-8))
    losses = [saddle.loss for saddle in ledger]
    assert losses == pytest.approx([np.log(4), CHAIN.unigram_entropy, 0.490720], abs=1e-5)
    for saddle in ledger:
        assert saddle.point.converged
        assert saddle.point.speed < 1e-9
        assert max(saddle.point.conserved.values()) < 1e-9
        assert saddle.law is not None
        assert saddle.law.span >= 1
        assert f"{saddle.law.span:.1f} e-folds" in saddle.sentence
        assert saddle.point.distance <= saddle.extent
    if scale == 1e-6:
        for saddle in ledger:
            assert saddle.rate_measured == pytest.approx(saddle.rate_predicted, rel=0.02)
    assert ledger[1].blocks.startswith(("WQ", "WK"))
    assert ledger[2].blocks.startswith(("W0", "W1"))


@pytest.mark.slow
def test_equal_tokens_are_told_apart_inside_the_rank_one_manifold() -> None:
    # Two equal rare tokens: after the unigram saddle the flow waits at the optimum of two groups,
    # then with the two tokens split, and leaves each at the rate of its refined point.
    chain = MarkovChain((0.75, 0.125, 0.125), 0.8)
    start = OneLayerAttention.gaussian(3, 16, 1e-3, 0)
    ledger = saddle_ledger(integrate(population_flow(chain), start, until=900.0))
    assert len(ledger) == 4
    assert [s.loss for s in ledger][1:] == pytest.approx([0.735622, 0.427850, 0.423619], abs=2e-6)
    assert [s.rate_predicted for s in ledger][1:] == pytest.approx([0.0664, 0.0231, 0.0112], 0.01)
    for saddle in ledger:
        assert saddle.rate_measured == pytest.approx(saddle.rate_predicted, rel=0.02)
        assert saddle.leave_predicted == pytest.approx(saddle.plateau.leave, rel=0.03)
    assert [s.point.index for s in ledger][2:] == [1, 15]


@pytest.mark.slow
def test_a_plateau_without_a_critical_point_is_a_status_found_early() -> None:
    start = OneLayerAttention.gaussian(4, 16, 1e-3, 0)
    last = saddle_ledger(integrate(population_flow(CHAIN), start, until=900.0))[-1]
    assert last.plateau.time == pytest.approx(402, abs=5)
    assert not last.point.converged
    assert last.kind == "bottleneck"
    assert last.law is None
    assert last.point.iterations < 20
    assert "did not halve it" in last.sentence
    assert last.as_dict()["rate_predicted"] is None


@pytest.mark.slow
def test_the_top_of_a_wide_hessian_takes_few_products() -> None:
    start = OneLayerAttention.gaussian(4, 128, 5e-4, 0)
    plateau = integrate(population_flow(CHAIN), start, until=40.0).final
    found = spectrum(population_flow(CHAIN), plateau, top=5)
    assert len(found.modes[0]) == 33_792
    assert found.products <= 200
    assert found.residuals[0] < 1e-9
    # The others lie in a cluster of 127 rates that differ by less than 1e-5.
    assert found.residuals.max() < 1e-4
    # On the trajectory, beside the critical point, the mode is attention with 3 % of the rest.
    assert found.weights[0, 2:].sum() > 0.9
