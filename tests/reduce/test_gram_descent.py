"""Gradient descent and momentum on the weights, taken in their Gram, are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from invariant_losses import draw, random_gram_loss, two_heads_loss, two_heads_weights

from attnflow.flows import GradientDescent, Momentum, descend, integrate
from attnflow.reduce import GramFlow
from tolerances import FIRST_ORDER_SLOPE

DESCENT = 1e-13  # some hundred steps of the same map in other variables: the figure to reach

OPTIMISERS = [GradientDescent(0.02), Momentum(0.01, 0.9), Momentum(0.01, 0.8, nesterov=True)]


def arguments(optimiser: Any) -> dict[str, Any]:
    given = {k: getattr(optimiser, k, 0) for k in ("momentum", "nesterov")}
    return {"rate": optimiser.rate, "momentum": given["momentum"], "nesterov": given["nesterov"]}


@pytest.mark.parametrize(
    ("optimiser", "width"), list(zip(OPTIMISERS, (2, 64, 9), strict=True)), ids=repr
)
def test_gram_descent_equals_weight_descent(optimiser: Any, width: int) -> None:
    f = random_gram_loss(5)
    flow = GramFlow(lambda G: f(G.matrix), {"a": 2, "b": 2, "c": 1}, rates={"a": 2.0, "c": 0.0})
    weights = {
        n: draw(width, s, seed=s, scale=width**-0.5) for n, s in (("a", 2), ("b", 2), ("c", 1))
    }
    short = flow.descend(flow.project(weights), steps=300, **arguments(optimiser))
    long = descend(flow.full, weights, until=short.time, optimiser=optimiser)
    assert short.work["steps"] == long.work["steps"] == 300
    expected = flow.project(long.final)["gram"].matrix
    moved = np.abs(expected - flow.project(weights)["gram"].matrix).max()
    assert moved > 0.1
    assert np.abs(short.final["gram"].matrix - expected).max() <= DESCENT


@pytest.mark.parametrize("optimiser", OPTIMISERS[1:], ids=repr)
def test_gram_descent_moves_groups_and_plain_parameters_alike(optimiser: Any) -> None:
    p = 3
    weights = two_heads_weights(p, widths=(4, 6))
    blocks = {"plus": {"K": p, "Q": p}, "minus": {"K": p, "Q": p}}
    flow = GramFlow(two_heads_loss(p), blocks, rates={"minus.Q": 0.5, "w": 2.0})
    short = flow.descend(flow.project(weights), steps=200, **arguments(optimiser))
    long = descend(flow.full, weights, until=short.time, optimiser=optimiser)
    expected = flow.project(long.final)
    for head in blocks:
        gap = short.final["gram"][head].matrix - expected["gram"][head].matrix
        assert np.abs(gap).max() <= DESCENT
    for name in ("w", "bias"):
        assert np.abs(short.final["rest"][name] - expected["rest"][name]).max() <= DESCENT


def test_euler_steps_of_the_gram_flow_are_not_gradient_descent() -> None:
    """The eta^2 term that `descend` on the reduced flow would miss."""
    flow = GramFlow(random_gram_loss(3), 3)
    weights = {"H": draw(4, 3, scale=0.5)}
    exact = flow.descend(flow.project(weights), rate=0.02, steps=100).final["gram"].matrix
    euler = descend(flow, flow.project(weights), 2.0, GradientDescent(0.02)).final["gram"].matrix
    assert np.abs(exact - euler).max() > 1e-4


def test_gram_descent_tends_to_the_gram_flow_in_first_order() -> None:
    flow = GramFlow(random_gram_loss(3), 3)
    start = flow.project({"H": draw(4, 3, scale=0.5)})
    limit = integrate(flow, start, 1.0, rtol=1e-11).final["gram"].matrix
    counts = np.array([1000, 2000, 4000])
    gaps = [
        np.abs(flow.descend(start, 1 / n, int(n), save=[0.0]).final["gram"].matrix - limit).max()
        for n in counts
    ]
    slope, _ = np.polyfit(np.log(1 / counts), np.log(gaps), 1)
    assert slope == pytest.approx(1.0, abs=FIRST_ORDER_SLOPE)


def test_gram_descent_is_observed_like_any_run() -> None:
    flow = GramFlow(random_gram_loss(3), 3)
    run = flow.descend(
        flow.infinite_width(0.5), 0.02, 50, observe={"G": lambda s: s["gram"].matrix}, save=[0, 1.0]
    )
    assert run.trajectory["G"].shape == (2, 3, 3)
    assert np.array_equal(run.trajectory["G"].values[-1], run.final["gram"].matrix)
    assert run.trajectory["loss"].values[-1] < run.trajectory["loss"].values[0]
