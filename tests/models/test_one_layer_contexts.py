"""One-layer attention on tables of contexts: against raw sequences, autodiff and the limit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.flows import Flow, GradientDescent, descend, integrate
from attnflow.models import OneLayerAttention, population_flow
from attnflow.models.one_layer import sequence_loss, token_gradients
from attnflow.models.one_layer_contexts import (
    context_flow,
    context_gradients,
    context_loss,
    group_losses,
    mean_attention,
)
from attnflow.tasks import Contexts, MarkovChain
from strategies import seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY, OPTAX_LOOP, SUM_OF_MANY

CHAIN = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
EXACT = Contexts.of_chain(CHAIN, 6, "uniform")
TOKENS = CHAIN.sample(300, 8, seed=2, first="uniform")
SAMPLE = Contexts.of_sample(TOKENS, 4)
scales = st.sampled_from([0.1, 0.5, 1.0])


def apart(a, b) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


@pytest.mark.parametrize("table", [EXACT, SAMPLE], ids=["exact", "sample"])
def test_gradients_equal_autodiff(table):
    by_autodiff = Flow(lambda th: context_loss(th, table))

    @settings(max_examples=20)
    @given(seed=seeds, scale=scales)
    def check(seed, scale):
        theta = OneLayerAttention.gaussian(4, 5, scale, seed)
        assert apart(context_flow(table).velocity(theta), by_autodiff.velocity(theta)) <= (
            CLOSED_FORM_VS_AUTODIFF * max(1.0, 10 * scale**3)
        )

    check()


@settings(max_examples=20)
@given(seed=seeds, scale=scales)
def test_the_compressed_loss_is_the_loss_of_the_raw_sequences(seed, scale):
    theta = OneLayerAttention.gaussian(4, 5, scale, seed)
    raw = float(sequence_loss(theta, TOKENS))
    assert float(context_loss(theta, SAMPLE)) == pytest.approx(raw, abs=SUM_OF_MANY)


def test_numpy_and_jax_give_the_same_gradients():
    theta = OneLayerAttention.gaussian(4, 5, 0.8, 1)
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    with jax.enable_x64(True):
        traced = context_gradients(jnp.asarray(M), jnp.asarray(Phi), EXACT)
    for a, b in zip(context_gradients(M, Phi, EXACT), traced, strict=True):
        assert np.abs(a - np.asarray(b)).max() <= IDENTITY


def test_full_batch_descent_on_the_table_is_descent_on_the_sequences():
    theta = OneLayerAttention.gaussian(4, 5, 0.3, 4)
    raw = Flow(lambda th: sequence_loss(th, TOKENS))
    options = {"until": 5.0, "optimiser": GradientDescent(0.1), "progress": False}
    a = descend(context_flow(SAMPLE), theta, **options).final
    b = descend(raw, theta, **options).final
    assert apart(a, b) <= OPTAX_LOOP


def test_group_losses_are_means_over_the_sequences_of_a_group():
    theta = OneLayerAttention.gaussian(4, 5, 0.8, 7)
    found = np.asarray(group_losses(theta, SAMPLE))
    for k in range(4):
        group = TOKENS[TOKENS[:, -2] == k]
        if len(group):
            assert found[k] == pytest.approx(float(sequence_loss(theta, group)), abs=SUM_OF_MANY)
    total = found @ SAMPLE.last_law
    assert total == pytest.approx(float(context_loss(theta, SAMPLE)), abs=SUM_OF_MANY)


def test_mean_attention_is_the_mean_over_sequences():
    theta = OneLayerAttention.gaussian(4, 5, 0.8, 7)
    scores = np.asarray(theta.score)
    total, seen = np.zeros((4, 4)), np.zeros(4)
    for row in TOKENS[:, :-1]:
        weights = np.exp(scores[row[-1], row])
        np.add.at(total[row[-1]], row, weights / weights.sum())
        seen[row[-1]] += 1
    present = seen > 0
    found = np.asarray(mean_attention(theta, SAMPLE))[present]
    assert np.abs(found - total[present] / seen[present, None]).max() <= SUM_OF_MANY


def test_the_flow_on_a_table_conserves_the_balances():
    solution = integrate(
        context_flow(EXACT),
        OneLayerAttention.gaussian(4, 4, 0.3, 0),
        until=30.0,
        rtol=1e-8,
        progress=False,
    )
    assert solution.drift < 1e-6
    assert np.all(np.diff(solution.trajectory["loss"].values) <= 1e-9)


def test_the_finite_length_gradient_tends_to_the_population_gradient_like_one_over_length():
    chain = MarkovChain((0.75, 0.25), 0.8)
    theta = OneLayerAttention.gaussian(2, 4, 0.8, 3)
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    limit = token_gradients(M, Phi, chain)[0]
    off = []
    for length in (80, 160, 320):
        table = Contexts.of_chain(chain, length, "stationary")
        off.append(np.abs(context_gradients(M, Phi, table)[0] - limit).max())
    ratios = np.array(off[:-1]) / np.array(off[1:])
    assert np.all(np.abs(ratios - 2) < 0.15)


def test_the_population_flow_is_the_flow_of_its_two_gradients():
    theta = OneLayerAttention.gaussian(4, 5, 0.5, 2)
    by_autodiff = Flow(population_flow(CHAIN)._loss).velocity(theta)
    assert apart(population_flow(CHAIN).velocity(theta), by_autodiff) <= CLOSED_FORM_VS_AUTODIFF
