"""The limit model of Appendix D: closed forms against autodiff, jets, and the finite-eta flow."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.expand.jets import Jet
from attnflow.models import OneLayerAttention, one_layer
from attnflow.models.one_layer import population_flow
from attnflow.studies.focus_dilution.limit import (
    LimitModel,
    rank_one_weights,
    split_weights,
    weight_velocity,
)
from attnflow.tasks import MarkovChain
from strategies import seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY, SUM_OF_MANY

pytestmark = pytest.mark.usefixtures("float64")


@cache
def model(tokens: int) -> LimitModel:
    return LimitModel(0.6, 0.7, 2.0, tokens)


@cache
def gradients(tokens: int) -> Any:
    """dL/dM and dL/dPhi of the loss by autodiff; one program per number of tokens."""
    m = model(tokens)
    return jax.jit(jax.grad(lambda M, Phi, d: m.of(M, Phi, d).loss, (0, 1)))


@given(st.sampled_from([3, 5]), seeds, st.floats(-0.05, 0.05))
def test_the_gradients_are_the_closed_forms(tokens: int, seed: int, delta: float) -> None:
    rng = np.random.default_rng(seed)
    M, Phi = rng.standard_normal((2, tokens, tokens))
    found = model(tokens).of(M, Phi, delta)
    GM, GP = gradients(tokens)(jnp.asarray(M), jnp.asarray(Phi), delta)
    np.testing.assert_allclose(found.GM, GM, atol=CLOSED_FORM_VS_AUTODIFF)
    np.testing.assert_allclose(found.GP, GP, atol=CLOSED_FORM_VS_AUTODIFF)
    assert found.attention[0, 0] == 1
    assert not found.attention[0, 1:].any()
    assert not found.attention[1:, 0].any()
    np.testing.assert_allclose(found.prediction.sum(axis=1), 1, atol=IDENTITY)


@cache
def derivatives() -> Any:
    """Loss, gradient, Hessian and third derivatives in (gamma, beta, delta) by JAX."""
    m = model(3)

    def loss(z: Any) -> Any:
        return m.loss(z[:6], z[6])

    second = jax.jacfwd(jax.grad(loss))
    return jax.jit(lambda z: (loss(z), jax.grad(loss)(z), second(z), jax.jacfwd(second)(z)))


@given(seeds)
def test_jets_are_the_derivatives_of_jax(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = np.append(rng.standard_normal(6), 0.03 * rng.standard_normal())
    jet = Jet.variables(z, 3)
    loss = model(3).loss(jet[:6], jet[6])
    for order, wanted in enumerate(derivatives()(z)):
        found = loss.derivative(order) if order else loss.value
        np.testing.assert_allclose(found, wanted, atol=SUM_OF_MANY)
    velocity = model(3).velocity(jet[:6], jet[6])
    np.testing.assert_allclose(velocity.value, -loss.derivative(1)[:6], atol=IDENTITY)
    np.testing.assert_allclose(velocity.derivative(2), -loss.derivative(3)[:6], atol=SUM_OF_MANY)


@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=3))
def test_jet_arithmetic(at: list[float]) -> None:
    x, *rest = Jet.variables(np.array(at), 3)
    y = rest[0]
    for left, right in (
        (np.exp(np.log(x)), x),
        ((x + y) * (x - y), x * x - y * y),
        (x / y * y, x),
        (1.0 - x, -(x - 1.0)),
        (np.log(x * y), np.log(x) + np.log(y)),
        (np.array(2.0) * x / 2.0, x),
    ):
        np.testing.assert_allclose(left.c, right.c, atol=SUM_OF_MANY)


def test_jets_refuse_what_they_do_not_know() -> None:
    (x,) = Jet.variables(np.array([1.0]), 1)
    with pytest.raises(TypeError):
        np.sin(x)


@given(st.floats(0.35, 0.95), st.floats(0.05, 0.95), st.sampled_from([3, 4, 6]), st.floats(0, 20))
def test_the_symmetric_point_exists_exactly_in_its_regime(
    pi1: float, lam: float, tokens: int, gap: float
) -> None:
    m = LimitModel(pi1, lam, 3.0, tokens)
    exists = (1 - lam) * pi1 < 1 / tokens < lam + (1 - lam) * pi1
    if not exists:
        with pytest.raises(InputError, match="pi1"):
            m.symmetric_point()
        return
    theta = m.symmetric_point(gap)
    gamma, beta = theta[:tokens], theta[tokens:]
    assert gamma[0] > 0 > gamma[1]
    assert beta[0] > beta[1]
    assert beta.sum() == pytest.approx(0, abs=IDENTITY * np.abs(beta).max() * 10)
    assert gamma @ gamma - beta @ beta == pytest.approx(gap, abs=SUM_OF_MANY)
    fields, P = m.fields(theta), m.transition()
    np.testing.assert_allclose(fields.prediction[0], P[0], atol=IDENTITY)
    np.testing.assert_allclose(fields.prediction[1], P[1:].mean(axis=0), atol=IDENTITY)
    for force in (fields.GM, fields.GP, m.velocity(theta)):
        assert np.abs(force).max() < IDENTITY


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("pi1", {"pi1": 1.0}),
        ("lam", {"lam": 0.0}),
        ("eta", {"eta": -1.0}),
        ("tokens", {"tokens": 2}),
    ],
)
def test_bad_input_names_its_field(field: str, keys: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        LimitModel(**{"pi1": 0.6, "lam": 0.7, "eta": 2.0, **keys})
    assert error.value.field == field


@pytest.mark.parametrize("tokens", [3, 4])
def test_the_flow_of_all_weights_is_the_gradient_of_the_loss(tokens: int) -> None:
    m, dim = model(tokens), 2
    size = 2 * tokens * dim + 2 * dim**2

    def loss(w: Any) -> Any:
        W0, W1, WQ, WK = split_weights(w, tokens, dim)
        return m.of(W0 @ W1, W0 @ WQ @ WK.T @ W0.T, 0.02).loss

    w = np.random.default_rng(1).standard_normal(size)
    np.testing.assert_allclose(
        weight_velocity(m, w, dim, 0.02),
        -jax.jit(jax.grad(loss))(jnp.asarray(w)),
        atol=CLOSED_FORM_VS_AUTODIFF,
    )


def finite(m: LimitModel, theta: np.ndarray) -> OneLayerAttention:
    """The full model of width 1 at the same (gamma, beta, eta)."""
    inner = np.full((1, 1), np.sqrt(m.eta))
    return OneLayerAttention(theta[: m.tokens, None], theta[None, m.tokens :], inner, inner)


@pytest.mark.parametrize("pi", [(0.75, 0.8), (0.45, 0.65)])
def test_the_finite_model_tends_to_the_limit(pi: tuple[float, float]) -> None:
    """The velocity differs by no more than the attention that leaks through the mask."""
    leaks = []
    for eta in (3.0, 10.0, 30.0, 100.0):
        m = LimitModel(*pi, eta)
        theta = m.symmetric_point() + np.array([0.05, 0.02, -0.03, 0.1, -0.05, 0.02])
        chain, full = MarkovChain(m.law(), m.lam), finite(m, theta)
        A = one_layer.attention(full, chain.pi)
        leak = max(float(A[0, 1:].sum()), float(A[1:, 0].max()))
        moved = population_flow(chain).velocity(full)
        velocity = np.concatenate([moved.W0[:, 0], moved.W1[0]])
        limit = m.velocity(theta)
        assert np.abs(velocity - limit).max() <= 3 * (1 + eta) * leak + IDENTITY
        masked = m.fields(theta)
        assert np.abs(A - masked.attention).max() <= leak + IDENTITY
        leaks.append(leak)
    assert leaks[-1] < 1e-8 < leaks[0]
    assert leaks == sorted(leaks, reverse=True)


def test_the_rank_one_manifold_is_invariant() -> None:
    """On it the flow of all weights is the flow in (gamma, beta), and nothing leaves it."""
    m, rng = model(3), np.random.default_rng(2)
    theta = m.symmetric_point() + 0.2 * rng.standard_normal(6)
    W0, W1, WQ, WK = split_weights(weight_velocity(m, rank_one_weights(m, theta, 2), 2), 3, 2)
    np.testing.assert_allclose(np.concatenate([W0[:, 0], W1[0]]), m.velocity(theta), atol=IDENTITY)
    for off in (W0[:, 1], W1[1], WQ[1], WQ[:, 1], WK[1], WK[:, 1]):
        assert np.abs(off).max() < IDENTITY
