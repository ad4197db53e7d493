"""Gradient descent as a series in its step: exact in the number of steps."""

from __future__ import annotations

import functools
import math

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from expand_ground import attention_only, chain_flow, logistic_flow, population

from attnflow._errors import InputError
from attnflow.expand import descent_series, series
from attnflow.flows import Flow


def literal(flow, theta, steps, eta):
    system = flow.bind(theta)
    y = system.layout.flatten(theta)
    v = np.empty_like(y)
    for _ in range(steps):
        system.rhs(y, v)
        y = y + eta * v
    return y


def flat(flow, theta):
    return flow.bind(theta).layout.flatten(theta)


@pytest.fixture(scope="module")
def attention():
    model = attention_only()
    return model, descent_series(model.flow, model.start(), order=5)


def test_a_linear_flow_gives_the_binomial_theorem():
    d = descent_series(Flow(velocity=lambda th: {"x": -2 * th["x"]}), {"x": np.ones(1)}, order=6)
    want = np.diag([0.0] + [(-2.0) ** k for k in range(1, 7)])  # (1 - 2 eta)^s
    np.testing.assert_allclose(d.differences[..., 0], want, atol=1e-12)


@functools.cache
def population_descent():
    flow, start = population()
    return flow, start, descent_series(flow, start, order=8)


@hypothesis.settings(max_examples=40)
@hypothesis.given(steps=st.integers(0, 60), eta=st.floats(1e-6, 2e-4))
def test_it_is_literal_gradient_descent(steps, eta):
    flow, start, d = population_descent()
    true = literal(flow, start, steps, eta)
    assert np.abs(flat(flow, d(steps, eta)) - true).max() < 1e-13


def test_its_error_is_of_the_next_order_in_eta(attention):
    model, d = attention
    flow, etas = model.flow, np.geomspace(0.01, 0.03, 4)
    errors = [
        np.linalg.norm(flat(flow, d(7, eta)) - literal(flow, model.start(), 7, eta)) for eta in etas
    ]
    slope = np.polyfit(np.log(etas), np.log(errors), 1)[0]
    assert slope == pytest.approx(6, abs=0.05)


def test_many_small_steps_are_the_flow(attention):
    model, d = attention
    s = series(model.flow, model.start(), order=5)
    for k in range(1, 6):
        limit = d.differences[k, k] / math.factorial(k)
        np.testing.assert_allclose(limit, s.coefficients[k], rtol=1e-11, atol=1e-17)
    t = 0.5
    gaps = [np.abs(flat(d.flow, d(n, t / n)) - flat(d.flow, s(t))).max() for n in (10**4, 10**5)]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=1e-3)
    assert gaps[1] < 1e-6


def test_leading_terms_of_attention_are_b_k_q_with_their_binomials(attention):
    model, d = attention
    lead = d.leading()
    steps = {
        "WO": (1, "C(s,1)"),
        "V": (2, "C(s,2)"),
        "W": (4, "3*C(s,4) + 2*C(s,3)"),
        "P": (4, "3*C(s,4) + 2*C(s,3)"),
    }
    assert {name: (a.order, a.steps) for name, a in lead.items()} == steps
    for name, matrix in model.leading().items():
        close = np.abs(lead[name].coefficient - matrix).max()
        assert close <= 1e-12 * np.abs(matrix).max(), name


def test_the_first_steps_of_attention_are_exact(attention):
    model, _ = attention
    flow, eta = model.flow, 0.05
    layout = flow.bind(model.start()).layout
    lead = model.leading()
    one, two, three = (layout.unflatten(literal(flow, model.start(), s, eta)) for s in (1, 2, 3))
    np.testing.assert_allclose(one["WO"], eta * lead["WO"], rtol=1e-12, atol=1e-17)
    assert not one["V"].any()
    np.testing.assert_allclose(two["W"], 0, atol=1e-19)
    gap = three["W"] - 2 * eta**4 * lead["W"]
    assert np.abs(gap).max() < 0.1 * np.abs(three["W"]).max()


@hypothesis.settings(max_examples=3)
@hypothesis.given(n=st.integers(1, 4), m=st.integers(1, 4), p=st.integers(1, 4))
def test_three_factors_wake_with_their_binomials(n, m, p):
    rng = np.random.default_rng(n + 10 * m + 100 * p)
    beta, gamma = rng.standard_normal(n), rng.standard_normal((n, m))
    delta = rng.standard_normal((n, m, p))
    start = {"a": np.zeros(n), "b": np.zeros(m), "c": np.zeros(p)}
    d = descent_series(chain_flow(beta, gamma, delta), start, order=5)
    lead = d.leading()
    woken = beta @ gamma
    want = {
        "a": (1, "C(s,1)", beta),
        "b": (2, "C(s,2)", woken),
        "c": (4, "3*C(s,4) + 2*C(s,3)", np.einsum("ijk,i,j->k", delta, beta, woken)),
    }
    for name, (order, steps, value) in want.items():
        assert (lead[name].order, lead[name].steps) == (order, steps)
        np.testing.assert_allclose(lead[name].coefficient, value, rtol=1e-12)
    assert lead["c"].weights == {4: 3.0, 3: 2.0}


def test_terms_that_are_not_proportional_are_kept_apart():
    # b' = a1, c' = a1^2 u + a2 w: at eta^3, C(s,3) and C(s,2) multiply different vectors
    u, w = np.array([1.0, 0.0]), np.array([1.0, 1.0])

    def velocity(th):
        a, b = th["a"], th["b"]
        return {"a": jnp.ones(()), "b": a, "c": a**2 * u + b * w}

    start = {"a": np.array(0.0), "b": np.array(0.0), "c": np.zeros(2)}
    lead = descent_series(Flow(velocity=velocity), start, order=4).leading()["c"]
    assert lead.order == 3
    assert lead.steps == "A3 C(s,3) + A2 C(s,2)"
    assert lead.weights == {}
    np.testing.assert_allclose(lead.terms[3], 2 * u + w)  # s^2 = 2 C(s,2) + C(s,1), summed
    np.testing.assert_allclose(lead.terms[2], u)


def test_it_reads_as_a_table(attention):
    text = repr(attention[1])
    assert "DescentSeries of order 5 in 79 parameters" in text
    assert "3*C(s,4) + 2*C(s,3)" in text
    assert ">C(s,2)</td>" in attention[1]._repr_html_()
    assert attention[1].block("P").shape == (6, 6, 4)


def test_a_frozen_block_has_no_leading_term():
    flow = Flow(lambda th: (th["x"] ** 2).sum() + (th["y"] ** 2).sum(), rates={"y": 0.0})
    d = descent_series(flow, {"x": np.ones(2), "y": np.ones(2)}, order=3)
    assert d.leading()["y"].order is None
    assert d(5, 0.01)["y"].tolist() == [1.0, 1.0]


def test_an_unknown_primitive_is_named_here_too():
    flow = Flow(lambda th: jnp.sum(jnp.sort(th["x"]) ** 3))
    d = descent_series(flow, {"x": np.array([0.3, 0.1])}, order=6)
    assert d.order == 4
    assert "'sort'" in d.note
    true = literal(flow, {"x": np.array([0.3, 0.1])}, 9, 1e-4)
    np.testing.assert_allclose(d(9, 1e-4)["x"], true, rtol=1e-11)


@pytest.mark.parametrize(
    ("steps", "eta", "sentence"),
    [(-1, 0.1, "steps: -1"), (2.5, 0.1, "steps: 2.5"), (3, 0.0, "eta: 0.0"), (3, "x", "eta: x")],
)
def test_steps_and_step_size_are_checked(steps, eta, sentence):
    d = descent_series(logistic_flow(), {"x": np.array([0.1])}, order=2)
    with pytest.raises(InputError, match=sentence):
        d(steps, eta)


def test_orders_that_overflow_are_named():
    with pytest.raises(
        InputError, match=r"order: 8; the coefficient of eta\^5 overflows, so at most 4"
    ):
        descent_series(logistic_flow(), {"x": np.array([1e60])}, order=8)
    with pytest.raises(InputError, match="a whole number from 1 to 16"):
        descent_series(logistic_flow(), {"x": np.array([1.0])}, order=17)


def test_a_large_number_of_steps_is_a_number_still():
    d = descent_series(logistic_flow(), {"x": np.array([0.1])}, order=3)
    assert d(10**9, 1e-9)["x"][0] == pytest.approx(
        0.1
        + sum(c for c in series(logistic_flow(), {"x": np.array([0.1])}, 3).coefficients[1:, 0]),
        rel=1e-8,
    )
    assert math.isfinite(d(10**12, 1e-12)["x"][0])
