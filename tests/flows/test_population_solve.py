"""The foundation's figures on the slice: work, final loss, drift (never seconds)."""

from __future__ import annotations

import numpy as np
import pytest
from problems import PI_A

from attnflow.flows import Every, Mark, Status, integrate
from attnflow.flows.engines import has_cvode
from attnflow.models import OneLayerAttention, population_flow
from attnflow.tasks import MarkovChain
from tolerances import DRIFT_AT_1E7, LEADING_ORDER

pytestmark = pytest.mark.skipif(not has_cvode(), reason="the figures are CVODE's")
chain = MarkovChain(PI_A, lam=0.8)
flow = population_flow(chain)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dim_16_reaches_its_loss_within_three_thousand_evaluations(seed):
    start = OneLayerAttention.gaussian(4, 16, 1e-3, seed)
    solution = integrate(flow, start, 3000.0, save=Every(50))
    assert solution.status is Status.DONE
    assert solution.work["rhs"] + solution.work["jvp"] <= 3000
    loss = solution.trajectory["loss"].values
    assert 0.30308 <= loss[-1] <= 0.30310
    assert np.all(np.diff(loss) < 1e-6)
    assert loss[-1] > chain.floor


def test_drift_at_rtol_1e_7_is_below_1e_5():
    start = OneLayerAttention.gaussian(4, 16, 1e-3, seed=0)
    solution = integrate(flow, start, 3000.0, rtol=1e-7, save=Every(50))
    assert set(solution.drifts) == {"embedding balance", "query-key balance", "read-out row sums"}
    assert 0 < solution.drift < DRIFT_AT_1E7


def test_condensation_comes_when_the_linearisation_says():
    # t = log(r / a0) / mu0 with mu0 = |pi| |v|, a0 = |W0^T q + W1 u| / 2 (focus_dilution, Thm 3.2).
    pi = chain.pi
    v = pi - 1 / 4
    q, u = pi / np.linalg.norm(pi), v / np.linalg.norm(v)
    start = OneLayerAttention.gaussian(4, 16, 1e-5, seed=0)
    a0 = np.linalg.norm(start.W0.T @ q + start.W1 @ u) / 2
    r, mu0 = 0.01, np.linalg.norm(pi) * np.linalg.norm(v)
    mark = Mark(lambda th: ((th.W0.T @ q) ** 2).sum(), level=r**2)
    solution = integrate(flow, start, 60.0, stops={"r": mark})
    assert solution.first("r") == pytest.approx(np.log(r / a0) / mu0, rel=LEADING_ORDER)


@pytest.mark.slow
def test_dim_256_stays_within_its_work():
    start = OneLayerAttention.gaussian(4, 256, 2.5e-4, seed=0)
    solution = integrate(flow, start, 150.0, save=Every(200))
    assert solution.status is Status.DONE
    assert solution.work["rhs"] + solution.work["jvp"] <= 1500
    assert solution.drift < 10 * DRIFT_AT_1E7
