"""What the study trains on: the long-context population, a finite length, or a sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.flows.flow import Flow
from attnflow.models.one_layer import OneLayerAttention, population_flow, sequence_loss
from attnflow.models.one_layer_contexts import context_attention, context_flow
from attnflow.studies.focus_dilution.config import Config
from attnflow.tasks.contexts import Contexts
from attnflow.tasks.markov import MarkovChain

TEST_SEED = 1_000_003
"""Added to the seed of the training sample for the test sample."""


@lru_cache(maxsize=16)
def finite_length(chain: MarkovChain, length: int, first: str) -> Contexts:
    return Contexts.of_chain(chain, length, first)  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def drawn(chain: MarkovChain, sequences: int, length: int, first: str, seed: int) -> Contexts:
    tokens = chain.sample(sequences, length + 1, seed=seed, first=first)
    return Contexts.of_sample(tokens, chain.tokens)


def training(config: Config) -> Contexts | None:
    """The table the model is trained on; None for the population limit, which has none."""
    c = config
    if c.data == "finite":
        return finite_length(c.chain(), c.context, c.first)
    if c.data == "sample":
        return drawn(c.chain(), c.sequences, c.context, c.first, c.seed)
    return None


def test(config: Config) -> Contexts | None:
    """A second sample of the same size, for `data = sample`."""
    c = config
    if c.data != "sample":
        return None
    return drawn(c.chain(), c.sequences, c.context, c.first, c.seed + TEST_SEED)


@lru_cache(maxsize=16)
def _flow_of(contexts: Contexts) -> Flow:
    return context_flow(contexts)


def flow(config: Config) -> Flow:
    contexts = training(config)
    return population_flow(config.chain()) if contexts is None else _flow_of(contexts)


def minibatch(config: Config) -> Callable[[OneLayerAttention, Any], Any]:
    """The loss of a random batch.

    From a table, rows are drawn with their weights: sequences drawn with replacement, at the cost
    of their counts. For the population limit, fresh sequences of `context` tokens are drawn.
    """
    contexts, size = training(config), config.minibatch
    if contexts is None:
        return _fresh(config.chain(), size, config.context)
    row, label = np.nonzero(contexts.weights)
    cumulated = np.cumsum(contexts.weights[row, label])
    last, occurs = contexts.last[row], contexts.log_counts[row]

    def loss(theta: OneLayerAttention, key: Any) -> Any:
        u = jax.random.uniform(key, (size,), dtype=jnp.float64)
        pick = jnp.searchsorted(jnp.asarray(cumulated), u * cumulated[-1], side="right")
        pick = jnp.minimum(pick, len(row) - 1)
        batch = _Picked(jnp.asarray(last)[pick], jnp.asarray(occurs)[pick])
        logits = context_attention(theta.score, batch) @ theta.readout  # type: ignore[arg-type]
        told = jnp.asarray(label)[pick]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), told[:, None], axis=1))

    return loss


class _Picked:
    """Rows of a table, as attention reads them."""

    def __init__(self, last: Any, log_counts: Any):
        self.last, self.log_counts = last, log_counts


def _fresh(chain: MarkovChain, size: int, length: int) -> Callable[[OneLayerAttention, Any], Any]:
    """Cross-entropy on freshly sampled sequences, eq. (3); the first token is uniform."""
    steps = np.log(np.maximum(chain.transition, 1e-300))

    def loss(theta: OneLayerAttention, key: Any) -> Any:
        first, rest = jax.random.split(key)

        def step(token: Any, k: Any) -> tuple[Any, Any]:
            following = jax.random.categorical(k, jnp.asarray(steps)[token], axis=-1)
            return following, following

        begin = jax.random.randint(first, (size,), 0, chain.tokens)
        _, others = jax.lax.scan(step, begin, jax.random.split(rest, length))
        return sequence_loss(theta, jnp.concatenate([begin[None], others]).T)

    return loss
