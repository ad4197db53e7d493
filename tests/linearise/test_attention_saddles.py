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
@pytest.mark.parametrize("seed", [0, 1, 2])
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
        assert saddle.growth is not None
        assert f"{saddle.growth.efolds:.1f} e-folds" in saddle.sentence
    if scale == 1e-6:
        for saddle in ledger:
            assert saddle.rate_measured == pytest.approx(saddle.rate_predicted, rel=0.02)
    assert ledger[1].blocks.startswith(("WQ", "WK"))
    assert ledger[2].blocks.startswith(("W0", "W1"))


@pytest.mark.slow
def test_the_top_of_a_wide_hessian_takes_few_products() -> None:
    start = OneLayerAttention.gaussian(4, 256, 2.5e-4, 0)
    plateau = integrate(population_flow(CHAIN), start, until=40.0).final
    found = spectrum(population_flow(CHAIN), plateau, top=5)
    assert len(found.modes[0]) == 133_120
    assert found.products <= 200
    assert found.residuals[0] < 1e-9
    # The others lie in a cluster of 255 rates that differ by less than 1e-5.
    assert found.residuals.max() < 1e-4
    # On the trajectory, beside the critical point, the mode is attention with 3 % of the rest.
    assert found.weights[0, 2:].sum() > 0.9
