"""One-layer attention: closed forms against autodiff, and the facts of focus_dilution section 1."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.flows import Flow, integrate
from attnflow.models import OneLayerAttention, population_flow
from attnflow.models.one_layer import (
    CONSERVED,
    attention,
    observables,
    population_loss,
    prediction,
    sequence_loss,
    token_gradients,
    token_losses,
    velocity,
)
from attnflow.tasks import MarkovChain
from strategies import chains, models
from tolerances import (
    CLOSED_FORM_VS_AUTODIFF,
    IDENTITY,
    LONG_CONTEXT_LOSS,
    SOLVED_TIGHTLY,
    SUM_OF_MANY,
)

PI_A = (0.75, 0.19, 0.05, 0.01)
cases = chains.flatmap(lambda chain: st.tuples(st.just(chain), models(chain.tokens)))


def close(a: Any, b: Any, tolerance: float) -> bool:
    scale = max(1.0, max(float(np.abs(x).max()) for x in jax.tree.leaves(b)))
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        float(np.abs(np.asarray(x) - np.asarray(y)).max()) <= tolerance * scale for x, y in pairs
    )


@jax.jit
def gradient(theta: Any, pi: Any, transition: Any) -> Any:
    """By autodiff, compiled once per shape for all chains."""
    chain = SimpleNamespace(pi=pi, transition=transition)
    return jax.grad(population_loss)(theta, chain)


def on_jax(model: OneLayerAttention) -> OneLayerAttention:
    return jax.tree.map(jnp.asarray, model)


@pytest.mark.usefixtures("strict")
class TestClosedForms:
    """With every silent promotion of rank or dtype forbidden."""

    @given(case=cases)
    def test_velocity_is_minus_the_gradient_of_the_population_loss(self, case):
        chain, model = case
        slope = gradient(on_jax(model), chain.pi, chain.transition)
        expected = jax.tree.map(lambda g: -np.asarray(g), slope)
        assert close(velocity(model, chain), expected, CLOSED_FORM_VS_AUTODIFF)
        assert close(velocity(on_jax(model), chain), expected, CLOSED_FORM_VS_AUTODIFF)
        out = jax.tree.map(lambda x: np.full_like(x, np.nan), model)
        assert velocity(model, chain, out) is out
        assert close(out, expected, CLOSED_FORM_VS_AUTODIFF)

    @given(case=cases)
    def test_token_gradients_are_the_derivatives_by_readout_and_score(self, case):
        chain, model = case

        def loss(M: Any, Phi: Any) -> Any:
            weights = jax.nn.softmax(Phi + jnp.log(chain.pi)[None, :], axis=1)
            logs = jax.nn.log_softmax(weights @ M, axis=1)
            return -jnp.sum(jnp.asarray(chain.pi)[:, None] * jnp.asarray(chain.transition) * logs)

        M, Phi = jnp.asarray(model.readout), jnp.asarray(model.score)
        expected = jax.grad(loss, argnums=(0, 1))(M, Phi)
        assert close(token_gradients(M, Phi, chain), expected, CLOSED_FORM_VS_AUTODIFF)
        GM, GP = token_gradients(model.readout, model.score, chain)
        assert close([GM, GP], list(expected), CLOSED_FORM_VS_AUTODIFF)
        assert np.abs(GM.sum(axis=1)).max() <= IDENTITY * 10  # GM 1 = 0
        assert np.abs(GP.sum(axis=1)).max() <= IDENTITY * 10 * max(1, np.abs(model.readout).max())


@given(case=cases)
def test_three_quantities_are_conserved_for_every_chain(case):
    chain, model = case
    speed = velocity(model, chain)
    with jax.enable_x64(True):
        for name, conserved in CONSERVED.items():
            rate = jax.jvp(conserved, (on_jax(model),), (on_jax(speed),))[1]
            scale = max(1.0, max(np.abs(x).max() for x in jax.tree.leaves(speed)))
            assert np.abs(rate).max() <= CLOSED_FORM_VS_AUTODIFF * scale, name


@given(case=cases)
def test_attention_and_prediction_are_laws(case):
    chain, model = case
    for rows in (attention(model, chain.pi), prediction(model, chain.pi)):
        assert rows.shape == (chain.tokens, chain.tokens)
        assert np.all(rows >= 0)
        assert np.abs(rows.sum(axis=1) - 1).max() <= IDENTITY


@given(case=cases)
def test_token_losses_add_up_to_the_population_loss(case):
    chain, model = case
    losses = np.asarray(token_losses(model, chain))
    assert losses.dtype == np.float64
    total = float(population_loss(model, chain))
    assert chain.pi @ losses == pytest.approx(total, abs=IDENTITY * max(1, total))
    entropy = -np.sum(chain.transition * np.log(prediction(model, chain.pi)), axis=1)
    assert losses == pytest.approx(entropy, rel=SUM_OF_MANY)
    assert total >= chain.floor - IDENTITY


@given(chain=chains)
def test_forces_at_the_origin_are_minus_pi_times_the_centred_next_token_law(chain):
    d = chain.tokens
    GM, GP = token_gradients(np.zeros((d, d)), np.zeros((d, d)), chain)
    # Eq. (9), for any chain: the stationary law is also the law of the next token.
    assert np.abs(GM + np.outer(chain.pi, chain.pi - 1 / d)).max() <= IDENTITY
    assert np.abs(GP).max() == 0


@given(chain=chains)
def test_the_unigram_plateau_is_a_critical_point_for_any_law(chain):
    log_pi = np.log(chain.pi)
    l, size = log_pi - log_pi.mean(), np.linalg.norm(chain.pi)
    if np.linalg.norm(l) < 1e-6:
        return  # the uniform law: the plateau is the origin
    k = np.sqrt(np.linalg.norm(l) / size)
    alpha = np.array([0.6, 0.0, -0.8])
    model = OneLayerAttention(
        np.outer(k * chain.pi / size, alpha),
        np.outer(alpha, k * l / np.linalg.norm(l)),
        np.zeros((3, 3)),
        np.zeros((3, 3)),
    )
    assert float(population_loss(model, chain)) == pytest.approx(
        chain.unigram_entropy, rel=SUM_OF_MANY
    )
    speed = jax.tree.leaves(velocity(model, chain))
    assert max(np.abs(x).max() for x in speed) <= CLOSED_FORM_VS_AUTODIFF * k


def test_population_flow_by_closed_form_and_by_autodiff_take_the_same_path():
    chain = MarkovChain(PI_A, lam=0.8)
    start = OneLayerAttention.gaussian(4, 3, 1e-2, seed=3)
    auto = Flow(lambda theta: population_loss(theta, chain))
    closed = integrate(population_flow(chain), start, 30.0, rtol=1e-9).trajectory["loss"].values
    traced = integrate(auto, start, 30.0, rtol=1e-9).trajectory["loss"].values
    assert closed[-1] == pytest.approx(traced[-1], rel=SOLVED_TIGHTLY)


def naive_sequence_loss(model: OneLayerAttention, tokens: np.ndarray) -> float:
    total = 0.0
    for row in tokens:
        *inputs, label = row.tolist()
        z = np.array([model.W0[t] for t in inputs])
        scores = np.array([z[-1] @ model.WQ @ model.WK.T @ z[j] for j in range(len(inputs))])
        weights = np.exp(scores) / np.exp(scores).sum()
        logits = sum(w * row for w, row in zip(weights, z, strict=True)) @ model.W1
        total -= logits[label] - np.log(np.exp(logits).sum())
    return total / len(tokens)


@settings(max_examples=10)
@given(case=cases)
def test_sequence_loss_is_the_naive_loop(case):
    chain, model = case
    tokens = chain.sample(5, 7, seed=1)
    loss = sequence_loss(model, tokens)
    assert loss.dtype == np.float64
    assert float(loss) == pytest.approx(naive_sequence_loss(model, tokens), rel=SUM_OF_MANY)


def test_long_sequences_approach_the_population_loss():
    chain = MarkovChain(PI_A, lam=0.8)
    model = OneLayerAttention.gaussian(4, 4, 0.7, seed=5)
    population = float(population_loss(model, chain))
    gaps = []
    for length in (10, 400):
        tokens = chain.sample(1000, length + 1, seed=2)
        # The labels' noise cancels: the law of the label given the last input is known.
        logits = jax.vmap(jax.tree.map(jnp.asarray, model).logits)(jnp.asarray(tokens[:, :-1]))
        logs = np.asarray(jax.nn.log_softmax(logits, axis=1))
        loss = -np.mean(np.sum(chain.transition[tokens[:, -2]] * logs, axis=1))
        gaps.append(abs(loss - population))
    assert gaps[0] > 2 * gaps[1]
    assert gaps[1] <= LONG_CONTEXT_LOSS
    sampled = float(sequence_loss(model, chain.sample(1000, 401, seed=3)))
    assert sampled == pytest.approx(population, abs=5 * LONG_CONTEXT_LOSS)


def test_observables_are_named_finite_and_consistent():
    chain = MarkovChain(PI_A, lam=0.8)
    start = OneLayerAttention.gaussian(4, 6, 1e-2, seed=0)
    data = integrate(population_flow(chain), start, 20.0, observe=observables(chain)).trajectory
    for name, values in data.data_vars.items():
        assert np.isfinite(values.values).all(), name
    assert data["attention"].dims == ("time", "query", "key")
    assert np.abs(data["attention"].sum("key") - 1).max() <= IDENTITY
    weighted = data["token_loss"].values @ chain.pi
    assert weighted == pytest.approx(data["loss"].values, rel=SUM_OF_MANY)
    assert data["norm"].sel(matrix="W0").values == pytest.approx(
        np.linalg.norm(data["embedding_norm"].values, axis=1), rel=SUM_OF_MANY
    )
    assert np.all(data["effective_rank"] >= 1 - IDENTITY)
    assert float(data["off_axis"].sel(token=0).max()) <= SUM_OF_MANY


@pytest.mark.parametrize("dim", [0, -2, 2.5, "wide"])
def test_a_width_is_a_whole_number_of_at_least_one(dim):
    with pytest.raises(InputError, match=r"^dim: "):
        OneLayerAttention.gaussian(4, dim, 1e-3)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_an_initial_scale_is_positive(scale):
    with pytest.raises(InputError, match=r"^init_scale: "):
        OneLayerAttention.gaussian(4, 3, scale)


def test_a_gaussian_start_repeats_with_its_seed():
    a, b, c = (OneLayerAttention.gaussian(4, 3, 1e-2, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
    assert not np.array_equal(a.W0, c.W0)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(a))
