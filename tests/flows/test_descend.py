"""Discrete training: the optimiser it says it is, the flow's discretisation, reproducible."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import balance, draw, product_loss, two_layer_linear

from attnflow.flows import (
    Adam,
    Every,
    Flow,
    GradientDescent,
    Linear,
    Momentum,
    Status,
    descend,
    integrate,
)
from tolerances import (
    FIRST_ORDER_SLOPE,
    HAND_LOOP,
    IDENTITY,
    LEADING_ORDER,
    OPTAX_LOOP,
    STANDARD_ERRORS,
    SUM_OF_MANY,
)

TARGET = draw(2, 3, seed=1)
start = {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)}
flow = Flow(product_loss(TARGET), conserved={"balance": balance})


def hand_loop(rate: float, steps: int, speeds: tuple[float, float] = (1.0, 1.0)) -> Any:
    """Gradient descent on 0.5 |W2 W1 - target|^2, written out in NumPy."""
    W1, W2 = start["W1"].copy(), start["W2"].copy()
    for _ in range(steps):
        gap = W2 @ W1 - TARGET
        W1, W2 = W1 - rate * speeds[0] * (W2.T @ gap), W2 - rate * speeds[1] * (gap @ W1.T)
    return {"W1": W1, "W2": W2}


def assert_close(a: Any, b: Any, tolerance: float) -> None:
    for name in a:
        assert np.abs(a[name] - b[name]).max() <= tolerance * np.abs(b[name]).max(), name


def test_one_step_of_descent_is_the_formula():
    run = descend(flow, start, 0.05, GradientDescent(0.05))
    assert run.work["steps"] == 1
    assert_close(run.final, hand_loop(0.05, 1), HAND_LOOP)


def test_gradient_descent_is_the_hand_written_loop():
    run = descend(flow, start, 2.0, GradientDescent(0.05))
    assert run.status is Status.DONE
    assert run.work["rhs"] == run.work["steps"] == 40
    assert_close(run.final, hand_loop(0.05, 40), 40 * HAND_LOOP)


def test_rates_per_block_are_learning_rates_per_block():
    fast = Flow(product_loss(TARGET), rates={"W1": 0.5, "W2": 3.0})
    run = descend(fast, start, 1.0, GradientDescent(0.05))
    assert_close(run.final, hand_loop(0.05, 20, (0.5, 3.0)), 40 * HAND_LOOP)


def test_rates_per_block_also_hold_for_minibatches():
    fast = Flow(product_loss(TARGET), rates={"W1": 0.0, "W2": 3.0})
    full = product_loss(TARGET)
    run = descend(fast, start, 1.0, GradientDescent(0.05), batch=lambda th, key: full(th))
    assert_close(run.final, hand_loop(0.05, 20, (0.0, 3.0)), 40 * HAND_LOOP)


@pytest.mark.parametrize(
    ("optimiser", "transform", "dt"),
    [
        (Momentum(0.01, 0.8), optax.sgd(0.01, momentum=0.8), 0.05),
        (Momentum(0.01, 0.8, nesterov=True), optax.sgd(0.01, momentum=0.8, nesterov=True), 0.05),
        (Adam(0.02, b1=0.8, b2=0.9), optax.adam(0.02, b1=0.8, b2=0.9), 0.02),
    ],
    ids=["momentum", "nesterov", "adam"],
)
def test_optimisers_are_optax_loops(float64, optimiser, transform, dt):
    theta = jax.tree.map(jnp.asarray, start)
    state = transform.init(theta)
    gradient = jax.jit(jax.grad(product_loss(TARGET)))
    for _ in range(60):
        update, state = transform.update(gradient(theta), state, theta)
        theta = optax.apply_updates(theta, update)
    run = descend(flow, start, 60 * dt, optimiser)
    assert run.work["steps"] == 60
    assert_close(run.final, jax.tree.map(np.asarray, theta), OPTAX_LOOP)


def test_descent_converges_to_the_flow_at_first_order_in_the_rate():
    exact = integrate(flow, start, 1.0, rtol=1e-11).final
    rates = np.array([2.0, 1.0, 0.5]) * 1e-4
    errors = [
        np.linalg.norm(descend(flow, start, 1.0, GradientDescent(r)).final["W1"] - exact["W1"])
        for r in rates
    ]
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert slope == pytest.approx(1.0, abs=FIRST_ORDER_SLOPE)


def test_momentum_time_is_the_flows_time():
    exact = integrate(flow, start, 1.0, rtol=1e-9).trajectory["loss"].values[-1]
    run = descend(flow, start, 1.0, Momentum(1e-5, 0.9))
    assert run.trajectory["loss"].values[-1] == pytest.approx(exact, rel=LEADING_ORDER)


def test_a_flow_and_its_discretisation_compare_in_one_line():
    case = two_layer_linear()
    save = Linear(11)
    solved = integrate(case.flow, case.start, 2.0, save=save).trajectory
    trained = descend(case.flow, case.start, 2.0, GradientDescent(1e-4), save=save).trajectory
    assert float(abs(solved["loss"] - trained["loss"]).max()) <= LEADING_ORDER
    assert set(trained.data_vars) == set(solved.data_vars)


# Minibatches: every coordinate draws its own sample, so one run has 4000 independent trials.
POPULATION = np.array([-1.0, 0.0, 0.5, 3.0])
COUNT = 4000
mean_flow = Flow(lambda th: 0.5 * jnp.mean((th["x"][:, None] - POPULATION) ** 2, axis=1).sum())


def minibatch(th: Any, key: Any) -> Any:
    drawn = jax.random.choice(key, jnp.asarray(POPULATION), (COUNT,))
    return 0.5 * jnp.sum((th["x"] - drawn) ** 2)


def sgd(seed: int) -> np.ndarray:
    wide = {"x": np.full(COUNT, 2.0)}
    run = descend(mean_flow, wide, 1.0, GradientDescent(0.1), batch=minibatch, seed=seed)
    return run.final["x"]


def test_minibatches_repeat_with_their_seed_and_differ_without():
    first, again, other = sgd(0), sgd(0), sgd(1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_minibatches_are_unbiased():
    # The gradient is linear, so the expectation of SGD is gradient descent itself.
    final = sgd(2)
    exact = descend(mean_flow, {"x": np.full(COUNT, 2.0)}, 1.0, GradientDescent(0.1)).final["x"][0]
    error = abs(final.mean() - exact) / (final.std() / np.sqrt(COUNT))
    assert error <= STANDARD_ERRORS
    assert final.std() > 0.1


def test_rows_lie_at_whole_steps_from_the_start_to_the_end():
    run = descend(flow, start, 1.0, GradientDescent(0.1), save=Every(4))
    assert run.trajectory["step"].values.tolist() == [0, 4, 8, 10]
    assert run.trajectory["time"].values == pytest.approx([0, 0.4, 0.8, 1.0], rel=IDENTITY)


def test_observing_more_often_does_not_change_the_run():
    sparse = descend(flow, start, 1.0, GradientDescent(0.01), save=[1.0])
    dense = descend(flow, start, 1.0, GradientDescent(0.01), save=Every(1))
    assert_close(dense.final, sparse.final, OPTAX_LOOP)


def test_descent_breaks_the_balance_and_says_by_how_much():
    run = descend(flow, start, 1.0, GradientDescent(0.05))
    moved = np.abs(balance(run.final) - balance(start)).max()
    largest = max(np.sum(w**2) for tree in (run.final, start) for w in tree.values())
    assert run.drift == pytest.approx(moved / largest, rel=SUM_OF_MANY)
    assert run.drift > 1e-4


def test_progress_rises_to_one():
    seen: list[float] = []
    descend(flow, start, 1.0, progress=lambda fraction, words: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
