"""The series of a flow against closed forms, nested derivatives and accurate solves."""

from __future__ import annotations

import math

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special
from expand_ground import attention_only, contour, logistic_flow, population

from attnflow.expand import Series, safe, series
from attnflow.flows import Flow, Solver, integrate
from attnflow.models import OneLayerAttention
from attnflow.models.one_layer import population_loss
from attnflow.tasks import MarkovChain

CHAIN = MarkovChain((0.6, 0.3, 0.1), 0.8)


@pytest.fixture(scope="module")
def attention() -> tuple[Flow, OneLayerAttention, Series]:
    flow, start = population()
    return flow, start, series(flow, start, order=8)


def close(a: object, b: object, rtol: float) -> None:
    """Relative to the largest entry."""
    a, b = np.asarray(a), np.asarray(b)
    assert np.abs(a - b).max() <= rtol * np.abs(b).max()


# -- closed forms ---------------------------------------------------------------------------------


@hypothesis.settings(max_examples=3)
@hypothesis.given(n=st.integers(1, 6), order=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_linear_flow_has_the_coefficients_of_the_exponential(n, order, seed):
    rng = np.random.default_rng(seed)
    A, x = rng.standard_normal((n, n)), rng.standard_normal(n)
    s = series(Flow(velocity=lambda th: {"x": A @ th["x"]}), {"x": x}, order)
    power = x
    for k in range(order + 1):
        close(s.coefficients[k], power / math.factorial(k), 1e-13)
        power = A @ power


def test_the_logistic_equation_has_its_known_coefficients():
    x = 0.2
    s = series(logistic_flow(), {"x": np.array([x])}, order=12)
    want = contour(lambda t: 1 / (1 + (1 / x - 1) * np.exp(-t)), 12, radius=2.0)
    close(s.coefficients[:, 0] * 2.0 ** np.arange(13), want * 2.0 ** np.arange(13), 1e-14)


@hypothesis.settings(max_examples=3)
@hypothesis.given(d=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_balanced_linear_network_follows_its_singular_values(d, seed):
    rng = np.random.default_rng(seed)
    U, V = (scipy.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    target, w = rng.uniform(0.5, 2, d), rng.uniform(0.1, 0.4, d)
    start = {"W1": np.sqrt(w)[:, None] * V.T, "W2": U * np.sqrt(w)}
    M = (U * target) @ V.T
    flow = Flow(lambda th: 0.5 * jnp.sum((th["W2"] @ th["W1"] - M) ** 2))
    s = series(flow, start, order=8)
    for i in range(d):
        # w' = 2 w (target - w) in each mode, and each factor is its square root.
        def root(t, i=i):
            e = np.exp(2 * target[i] * t)
            return np.sqrt(target[i] * e / (e - 1 + target[i] / w[i]))

        want = contour(root, 8, radius=0.3)
        close(np.einsum("a,kab,b->k", U[:, i], s.block("W2"), np.eye(d)[i]), want, 1e-12)
        close(np.einsum("a,kab,b->k", np.eye(d)[i], s.block("W1"), V[:, i]), want, 1e-12)


@pytest.mark.parametrize("softplus", [jax.nn.softplus, safe.softplus])
def test_logistic_regression_on_one_point_is_lambert_w(softplus):
    flow = Flow(lambda th: softplus(-th["w"]).sum())
    for w in (0.0, 0.7):
        s = series(flow, {"w": np.array([w])}, order=10)

        def solution(t, w=w):  # w + e^w = t + const
            c = w + np.exp(w) + t
            return c - scipy.special.lambertw(np.exp(c))

        scale = 0.8 ** np.arange(11)
        close(s.coefficients[:, 0] * scale, contour(solution, 10, 0.8) * scale, 1e-13)
        assert s.note == ""


# -- other ways to the same numbers ---------------------------------------------------------------


def lie_derivatives(system, y, order):
    """theta^(k) as k-fold derivatives along the velocity itself."""
    functions = [system.trace_velocity]
    for _ in range(order - 1):
        functions.append(
            lambda y, f=functions[-1]: jax.jvp(f, (y,), (system.trace_velocity(y),))[1]
        )
    with jax.enable_x64(True):
        values = jax.jit(lambda y: [f(y) for f in functions])(y)
    return [np.asarray(v) / math.factorial(k + 1) for k, v in enumerate(values)]


def test_a_tanh_network_agrees_with_nested_derivatives_to_order_4():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 2)), rng.standard_normal(6)
    flow = Flow(lambda th: jnp.mean((jnp.tanh(x @ th["W"]) @ th["a"] - y) ** 2))
    start = {"W": rng.standard_normal((2, 3)), "a": rng.standard_normal(3)}
    s = series(flow, start, order=6)
    system = flow.bind(start)
    for k, want in enumerate(lie_derivatives(system, s.coefficients[0], 4), start=1):
        close(s.coefficients[k], want, 1e-13)


def test_attention_by_autodiff_with_rates_has_the_closed_form_series(attention):
    _, start, s = attention
    auto = Flow(lambda th: population_loss(th, CHAIN), rates={"W0": 1.0, "W1": 1.0 + 1e-15})
    t = series(auto, start, order=8)
    assert t.note == ""
    for k in range(1, 9):
        close(t.coefficients[k], s.coefficients[k], 1e-11)


def test_the_maximum_inside_a_softmax_is_not_a_kink(attention):
    assert attention[2].note == ""
    assert attention[2].order == 8


def test_the_truncated_series_leaves_an_accurate_solve_at_order_plus_one(attention):
    flow, start, s = attention
    times = np.geomspace(0.06, 0.12, 4)
    layout, true = flow.bind(start).layout, []
    for t in times:  # each to its own end: dense output would lose digits
        run = integrate(
            flow,
            start,
            until=t,
            rtol=1e-13,
            solver=Solver(atol=1e-15, engine="scipy", method="dop853"),
            progress=False,
        )
        true.append(layout.flatten(run.final))
    for order in (2, 3, 4):
        errors = [
            np.linalg.norm(y - s.truncated(order).flat(t)) for t, y in zip(times, true, strict=True)
        ]
        slope = np.polyfit(np.log(times), np.log(errors), 1)[0]
        assert slope == pytest.approx(order + 1, abs=0.05)


def test_order_8_of_the_logistic_equation_leaves_it_at_order_9():
    x = np.longdouble(0.2)
    s = series(logistic_flow(), {"x": np.array([0.2])}, order=8)
    t = np.geomspace(0.05, 0.1, 6).astype(np.longdouble)
    true = 1 / (1 + (1 / x - 1) * np.exp(-t))
    # Coefficients are rounded to float64; the exact ones are rational and known to be these.
    values = sum(c * t**k for k, c in enumerate(_logistic_exact(x, 8)))
    slope = np.polyfit(np.log(t.astype(float)), np.log(np.abs(values - true).astype(float)), 1)[0]
    assert slope == pytest.approx(9, abs=0.05)
    close(s.coefficients[:, 0], np.array(_logistic_exact(x, 8), dtype=float), 1e-15)


def _logistic_exact(x, order):
    c = [x]
    for k in range(order):
        square = sum(c[j] * c[k - j] for j in range(k + 1))
        c.append((c[k] - square) / (k + 1))
    return c


# -- shapes of the answer -------------------------------------------------------------------------


def test_any_pytree_comes_back_as_it_was():
    model = eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    model = jax.tree.map(lambda w: np.asarray(w) if eqx.is_array(w) else w, model)
    x = np.array([[0.3, -0.5], [1.0, 0.2]])
    flow = Flow(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))
    s = series(flow, model, order=3)
    back = s(0.0)
    assert jax.tree.structure(back) == jax.tree.structure(model)
    assert back.activation is model.activation
    first = s.block("layers.0.weight")
    assert first.shape == (4, 3, 2)
    assert first.dtype == np.float64
    np.testing.assert_allclose(first[0], np.asarray(model.layers[0].weight))
    np.testing.assert_allclose(
        first[1], flow.velocity(model).layers[0].weight, rtol=1e-12, atol=1e-15
    )


def test_a_second_start_compiles_nothing():
    traced = []

    def velocity(th):
        traced.append(1)
        return {"x": -(th["x"] ** 3)}

    flow = Flow(velocity=velocity)
    series(flow, {"x": np.array([1.0, 2.0])}, order=5)
    before = len(traced)
    again = series(flow, {"x": np.array([0.5, 1.0])}, order=5)
    assert len(traced) == before
    close(again.coefficients[:3, 0], [0.5, -0.125, 0.046875], 1e-14)


def test_stop_gradient_hides_nothing_of_what_is_computed():
    flow = Flow(velocity=lambda th: {"x": -jax.lax.stop_gradient(th["x"])})
    close(
        series(flow, {"x": np.ones(1)}, 4).coefficients[:, 0], [1, -1, 1 / 2, -1 / 6, 1 / 24], 1e-15
    )


def test_it_reads_as_a_table(attention):
    text = repr(attention[2])
    assert "Series of order 8 in 36 parameters" in text
    assert all(word in text for word in ("W0", "WQ", "radius", "leading"))
    assert attention[2]._repr_html_().startswith("<table>")
    assert ">WK</td>" in attention[2].leading()._repr_html_()


# -- leading orders -------------------------------------------------------------------------------


def test_leading_orders_of_attention_from_zero_are_1_2_4_4():
    model = attention_only()
    s = series(model.flow, model.start(), order=5)
    lead = s.leading()
    assert {name: a.order for name, a in lead.items()} == {"WO": 1, "V": 2, "W": 4, "P": 4}
    share = {"WO": 1.0, "V": 1 / 2, "W": 1 / 8, "P": 1 / 8}
    for name, matrix in model.leading().items():
        close(lead[name].coefficient, share[name] * matrix, 1e-12)


def test_a_coefficient_that_is_only_rounding_is_not_leading():
    rng = np.random.default_rng(3)
    y = rng.standard_normal((30, 3))
    y -= y.mean(axis=0)
    y /= 3.0  # the columns sum to zero, up to rounding
    flow = Flow(lambda th: jnp.sum(safe.softplus(y @ th["w"])) - 0.5 * (th["b"] - 1) ** 2)
    s = series(flow, {"w": np.zeros(3), "b": np.zeros(())}, order=3)
    assert 0 < np.abs(s.block("w")[1]).max() < 1e-14
    assert s.leading()["w"].order is None
    assert s.leading()["b"].order == 1


def test_small_starts_keep_their_small_leading_terms():
    flow = Flow(lambda th: -th["a"] * th["b"] * th["c"])
    start = {"a": np.array(1e-20), "b": np.array(2e-20), "c": np.array(3e-20)}
    assert {a.order for a in series(flow, start, 3).leading().values()} == {1}
