"""Gradient descent on the weights, taken in their Gram, is exact: every rule, one start or many."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from invariant_losses import (
    draw,
    random_gram_loss,
    two_heads_gradient,
    two_heads_loss,
    two_heads_weights,
)

from attnflow import InputError
from attnflow.flows import Adam, GradientDescent, Momentum, descend, integrate
from attnflow.reduce import GramFlow, gram_descent
from strategies import seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, FIRST_ORDER_SLOPE

DESCENT = 1e-13  # some hundred steps of the same map in other variables: the figure to reach

OPTIMISERS = [GradientDescent(0.02), Momentum(0.01, 0.9), Momentum(0.01, 0.8, nesterov=True)]

P, STEPS = 3, 150
HEADS = {"plus": {"K": P, "Q": P}, "minus": {"K": P, "Q": P}}
RATES = {"minus.Q": 0.5, "plus.K": 0.0, "w": 2.0}
STARTS = [two_heads_weights(P, widths) for widths in ((4, 6), (2, 3), (40, 1))]


def two_heads(**options: Any) -> GramFlow:
    """Two groups, a frozen block, unequal rates and plain parameters."""
    return GramFlow(two_heads_loss(P), HEADS, rates=RATES, **options)


PLAIN, CLOSED = two_heads(), two_heads(gradient=two_heads_gradient(P))


def three_blocks() -> GramFlow:
    f = random_gram_loss(5)
    return GramFlow(lambda G: f(G.matrix), {"a": 2, "b": 2, "c": 1}, rates={"a": 2.0, "c": 0.0})


def arguments(optimiser: Any) -> dict[str, Any]:
    given = {k: getattr(optimiser, k, 0) for k in ("momentum", "nesterov")}
    return {"rate": optimiser.rate, "momentum": given["momentum"], "nesterov": given["nesterov"]}


def trained(flow: GramFlow, weights: Any, optimiser: Any, steps: int, **options: Any) -> Any:
    """The state of the weights after descent on them, by autodiff and optax."""
    return flow.project(after(flow.full, weights, optimiser, steps, **options))


def after(flow: Any, start: Any, optimiser: Any, steps: int, **options: Any) -> Any:
    until = steps * optimiser.rate / (1 - getattr(optimiser, "momentum", 0.0))
    run = descend(flow, start, until, optimiser, save=[0.0], **options)
    assert run.work["steps"] == steps
    return run.final


@functools.cache
def two_heads_trained(optimiser: Any, i: int) -> Any:
    """Start `i` of the two heads after `STEPS` steps on its weights."""
    return trained(PLAIN, STARTS[i], optimiser, STEPS)


def gap(a: Any, b: Any) -> float:
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)))


@pytest.mark.parametrize(
    ("optimiser", "width"), list(zip(OPTIMISERS, (2, 64, 9), strict=True)), ids=repr
)
def test_gram_descent_equals_weight_descent(optimiser: Any, width: int) -> None:
    flow = three_blocks()
    weights = {
        n: draw(width, s, seed=s, scale=width**-0.5) for n, s in (("a", 2), ("b", 2), ("c", 1))
    }
    found = after(flow, flow.project(weights), optimiser, 300)
    expected = trained(flow, weights, optimiser, 300)
    assert gap(expected, flow.project(weights)) > 0.1
    assert gap(found, expected) <= DESCENT


@pytest.mark.parametrize("optimiser", OPTIMISERS[1:], ids=repr)
def test_gram_descent_moves_groups_and_plain_parameters_alike(optimiser: Any) -> None:
    flow = PLAIN
    found = after(flow, flow.project(STARTS[0]), optimiser, STEPS)
    assert gap(found, two_heads_trained(optimiser, 0)) <= DESCENT


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
def test_minibatch_descent_closes_in_the_gram_too(optimiser: Any) -> None:
    """Noise in the loss: every step has its own, the same in both descents."""
    flow = PLAIN

    def batch(state: Any, key: Any) -> Any:
        noise = 1.0 + 0.5 * jax.random.normal(key, (P, P))
        own = sum(jnp.sum(jnp.tril(noise) * G.matrix[:P, :P]) for G in state["gram"].values())
        return flow.forces.loss(state) + 0.1 * own + noise[0, 0] * jnp.sum(state["rest"]["w"] ** 2)

    start = flow.project(STARTS[0])
    found = after(flow, start, optimiser, STEPS, batch=batch, seed=7)
    expected = trained(
        flow,
        STARTS[0],
        optimiser,
        STEPS,
        batch=lambda theta, key: batch(flow.declaration.project(theta, jnp), key),
        seed=7,
    )
    assert gap(found, expected) <= DESCENT
    assert gap(found, two_heads_trained(optimiser, 0)) > 1e-3


@pytest.mark.parametrize("closed", [True, False], ids=["in NumPy", "compiled"])
@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
def test_descents_from_many_starts_are_those_of_the_weights(optimiser: Any, closed: bool) -> None:
    flow = CLOSED if closed else PLAIN
    starts = [flow.project(weights) for weights in STARTS]
    found = gram_descent(flow, starts, steps=STEPS, every=60, **arguments(optimiser))
    assert found.steps.tolist() == [0, 60, 120, 150]
    for i in range(len(STARTS)):
        each = jax.tree.map(lambda x, i=i: x[i], found.final)
        assert gap(each, two_heads_trained(optimiser, i)) <= DESCENT
        first = jax.tree.map(lambda x, i=i: x[0, i], found.rows)
        assert gap(first, starts[i]) == 0


def test_leading_axes_of_the_starts_are_kept() -> None:
    one = PLAIN.project(STARTS[0])
    many = jax.tree.map(lambda x: np.broadcast_to(x, (2, 3, *np.shape(x))), one)
    for flow in (CLOSED, PLAIN):
        alone = gram_descent(flow, one, 0.02, 20).final
        block = gram_descent(flow, many, 0.02, 20).final
        assert block["gram"]["plus"].matrix.shape == (2, 3, 2 * P, 2 * P)
        assert block["rest"]["bias"].shape == (2, 3)
        assert gap(block, alone) <= DESCENT


@settings(max_examples=10)
@given(seeds)
def test_the_closed_form_in_numpy_is_the_gradient_by_autodiff(seed: int) -> None:
    """What a test flow declares is right, and the flow uses it as it uses autodiff."""
    state = PLAIN.sample(np.random.default_rng(seed), PLAIN.project(STARTS[0]))
    moved = PLAIN.velocity(state)
    size = 1 + gap(moved, jax.tree.map(np.zeros_like, moved))
    assert gap(CLOSED.velocity(state), moved) <= CLOSED_FORM_VS_AUTODIFF * size


def test_a_closed_form_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = two_heads(gradient=two_heads_gradient(P))
    start = flow.project(STARTS[0])
    monkeypatch.setattr(jax, "jit", None)
    monkeypatch.setattr(jax, "grad", None)
    assert gram_descent(flow, [start, start], 0.02, 3).steps.tolist() == [0, 1, 2, 3]


def test_rows_keep_what_is_asked_for_and_end_where_they_are_told() -> None:
    flow = CLOSED
    starts = [flow.project(weights) for weights in STARTS]
    whole = gram_descent(flow, starts, 0.02, 50)
    biases = whole.rows["rest"]["bias"]
    assert biases.shape == (51, 3)
    level = float(biases[33, 0])
    run = gram_descent(
        flow,
        starts,
        0.02,
        50,
        every=5,
        keep=lambda s: s["rest"]["bias"],
        stop=lambda s: s["rest"]["bias"][0] <= level,
    )
    assert run.steps.tolist() == [0, 5, 10, 15, 20, 25, 30, 35]
    assert np.array_equal(run.rows, biases[run.steps])


def test_a_start_that_diverges_leaves_the_others_alone() -> None:
    flow = CLOSED
    good = flow.project(STARTS[0])
    bad = {**good, "rest": {"w": np.full(P, 1e200), "bias": np.array(0.0)}}
    found = gram_descent(flow, [good, bad], 0.02, 5).final["rest"]["w"]
    alone = gram_descent(flow, good, 0.02, 5).final["rest"]["w"]
    assert np.abs(found[0] - alone).max() <= DESCENT
    assert not np.isfinite(found[1]).all()


def test_euler_steps_of_the_gram_flow_are_not_gradient_descent() -> None:
    """The eta^2 term that steps of G' miss."""
    flow = GramFlow(random_gram_loss(3), 3)
    weights = {"H": draw(4, 3, scale=0.5)}
    exact = after(flow, flow.project(weights), GradientDescent(0.02), 100)
    euler = descend(flow.flow, flow.project(weights), 2.0, GradientDescent(0.02)).final
    assert gap(exact, euler) > 1e-4


def test_adam_is_refused_with_a_reason() -> None:
    flow = PLAIN
    layout = flow.bind(flow.project(STARTS[0])).layout
    with pytest.raises(InputError, match=r"optimiser: Adam.*not functions of inner products"):
        flow.updates(Adam(0.01), layout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0.0}, "rate: 0"),
        ({"steps": 2.5}, "steps: 2.5"),
        ({"every": 0}, "every: 0"),
        ({"momentum": -0.1}, "momentum: -0.1"),
        ({"starts": []}, "starts: empty"),
        ({"starts": {"K": 1}}, "start: .*a state is"),
    ],
)
def test_many_descents_check_their_numbers(options: dict[str, Any], words: str) -> None:
    flow = PLAIN
    given = {"starts": flow.project(STARTS[0]), "rate": 0.1, "steps": 3, **options}
    with pytest.raises(InputError, match=words):
        gram_descent(flow, **given)


def test_gram_descent_tends_to_the_gram_flow_in_first_order() -> None:
    flow = GramFlow(random_gram_loss(3), 3)
    start = flow.project({"H": draw(4, 3, scale=0.5)})
    limit = integrate(flow, start, 1.0, rtol=1e-11).final
    counts = np.array([1000, 2000, 4000])
    gaps = [gap(after(flow, start, GradientDescent(1 / n), n), limit) for n in counts.tolist()]
    slope, _ = np.polyfit(np.log(1 / counts), np.log(gaps), 1)
    assert slope == pytest.approx(1.0, abs=FIRST_ORDER_SLOPE)


def test_gram_descent_is_observed_like_any_run() -> None:
    flow = GramFlow(random_gram_loss(3), 3)
    start, seen = flow.infinite_width(0.5), {"G": lambda s: s["gram"].matrix}
    run = descend(flow, start, 1.0, GradientDescent(0.02), observe=seen, save=[0, 1.0])
    assert run.trajectory["G"].shape == (2, 3, 3)
    assert np.array_equal(run.trajectory["G"].values[-1], run.final["gram"].matrix)
    assert run.trajectory["loss"].values[-1] < run.trajectory["loss"].values[0]
