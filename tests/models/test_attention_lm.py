"""The attention language model: its written-out gradient against autodiff, by every route."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.flows import Adam, GradientDescent, descend, integrate
from attnflow.models import attention_lm as lm
from tolerances import CLOSED_FORM_VS_AUTODIFF, HAND_LOOP


def drawn(size: int, context: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size, (count, context + 1))


def autodiff(theta, windows):
    with jax.enable_x64(True):
        value, found = jax.value_and_grad(lm.loss)(theta, windows)
        return float(value), {name: np.asarray(g) for name, g in found.items()}


ROUTES = [(1, "table"), (1, "gather"), (1, "dense"), (2, "auto"), (3, "gather"), (3, "dense")]


@pytest.mark.parametrize(("layers", "route"), ROUTES)
def test_gradient_is_that_of_autodiff(layers, route):
    windows = drawn(7, 6, 5)
    theta = lm.start(7, 6, layers, scale=0.6, seed=layers)
    value, found = lm.Windows(windows, 7, route=route).gradient(theta)
    there, slope = autodiff(theta, windows)
    assert value == pytest.approx(there, rel=CLOSED_FORM_VS_AUTODIFF)
    for name in lm.BLOCKS:
        assert found[name] == pytest.approx(slope[name], abs=CLOSED_FORM_VS_AUTODIFF)


def test_one_formula_serves_numpy_and_jax():
    data = lm.Windows(drawn(6, 5, 4), 6)
    theta = lm.start(6, 5, 2, scale=0.5)
    here = data.gradient(theta)[1]
    with jax.enable_x64(True):
        there = jax.jit(lambda th: data.gradient(th)[1])(theta)
    for name in lm.BLOCKS:
        assert np.asarray(there[name]) == pytest.approx(here[name], abs=1e-15)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 9), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99)
)
def test_routes_agree_on_any_shape(size, context, count, layers, seed):
    windows = drawn(size, context, count, seed)
    theta = lm.start(size, context, layers, scale=1.0, seed=seed)
    routes = ("gather", "dense", "table")[: 3 if layers == 1 else 2]
    first, *others = [lm.Windows(windows, size, route=r).gradient(theta)[1] for r in routes]  # type: ignore
    for other in others:
        for name in lm.BLOCKS:
            assert other[name] == pytest.approx(first[name], abs=1e-14)


def test_large_scores_do_not_overflow():
    theta = lm.start(5, 4, 2, scale=0.5)
    theta["W"] *= 2000
    value, found = lm.Windows(drawn(5, 4, 3), 5).gradient(theta)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in found.values())


def test_single_precision_is_close_and_keeps_tiny_gradients():
    windows = drawn(12, 8, 6)
    theta = lm.start(12, 8, 2)
    theta["W_O"] += 1e-7 * np.random.default_rng(0).standard_normal((12, 12))
    theta["V"] += 1e-14 * np.random.default_rng(1).standard_normal((2, 12, 12))
    exact = lm.Windows(windows, 12).gradient(theta)[1]
    rough = lm.Windows(windows, 12, precision="float32").gradient(theta)[1]
    assert 0 < np.abs(exact["W"]).max() < 1e-20
    for name in lm.BLOCKS:
        assert rough[name].dtype == np.float64
        assert rough[name] == pytest.approx(exact[name], abs=1e-4 * np.abs(exact[name]).max())


def test_descent_and_adam_are_those_of_the_gradient():
    windows = drawn(6, 5, 4)
    data, theta = lm.Windows(windows, 6), lm.start(6, 5, 2, scale=0.1)
    flow = lm.window_flow(data)
    run = descend(flow, theta, 1.5, GradientDescent(0.5), save=[0.0])
    by_hand = theta
    for _ in range(3):
        found = autodiff(by_hand, windows)[1]
        by_hand = {name: m - 0.5 * found[name] for name, m in by_hand.items()}
    for name in lm.BLOCKS:
        assert np.asarray(run.final[name]) == pytest.approx(by_hand[name], abs=10 * HAND_LOOP)
    decayed = descend(flow, theta, 0.01, Adam(0.01, eps=1e-4, decay=0.5), save=[0.0]).final
    found = autodiff(theta, windows)[1]
    for name in lm.BLOCKS:
        g = found[name]
        step = theta[name] - 0.01 * (g / (np.abs(g) + 1e-4) + 0.5 * theta[name])
        assert np.asarray(decayed[name]) == pytest.approx(step, abs=1e-12)


def test_sums_of_rows_are_conserved_along_the_flow():
    data = lm.Windows(drawn(5, 4, 6), 5)
    run = integrate(lm.window_flow(data), lm.start(5, 4, 2, scale=0.3), 2.0, rtol=1e-9)
    assert run.drift < 1e-9
    assert (
        float(np.abs(run.final["P"].sum(axis=1) - lm.start(5, 4, 2, 0.3)["P"].sum(1)).max()) < 1e-9
    )


@pytest.mark.parametrize(
    ("windows", "size", "words"),
    [
        (np.zeros((2, 1), int), 3, "rows of at least two tokens"),
        (np.zeros((0, 4), int), 3, "rows of at least two tokens"),
        (np.full((2, 4), 3), 3, "outside 0 to 2"),
        (np.full((2, 4), -1), 3, "outside 0 to 2"),
    ],
)
def test_bad_windows_are_a_sentence(windows, size, words):
    with pytest.raises(InputError, match=words):
        lm.Windows(windows, size)
