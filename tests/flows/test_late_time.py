"""Logistic regression on separable data: the late-time law is known from the max-margin problem."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from attnflow import Flow, integrate
from attnflow.flows import Log


def max_margin(signed: np.ndarray) -> float:
    """The largest margin of a unit vector: max over |w| = 1 of min over samples of x.w y."""
    found = minimize(
        lambda w: w @ w,
        np.linalg.lstsq(signed, np.ones(len(signed)), rcond=None)[0],
        constraints={"type": "ineq", "fun": lambda w: signed @ w - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(1 / np.linalg.norm(found.x))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_falls_like_one_over_margin_squared_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(6) % 2 == 0, 1.0, -1.0)
    x = 0.5 * rng.standard_normal((6, 2)) + labels[:, None] * np.array([2.0, 0.5])
    signed = x * labels[:, None]
    flow = Flow(lambda th: jnp.sum(jnp.logaddexp(0.0, -jnp.asarray(signed) @ th["w"])))
    solution = integrate(flow, {"w": np.zeros(2)}, until=1e10, save=Log(80, first=1.0), rtol=1e-9)
    t, loss = solution.trajectory["time"].values[1:], solution.trajectory["loss"].values[1:]
    late = t > 1e8
    slope = np.polyfit(np.log(t[late]), np.log(loss[late]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.01)
    margin = max_margin(signed)
    assert loss[-1] * t[-1] * margin**2 == pytest.approx(1.0, rel=0.05)
