"""One-layer attention (Def. 2.2) on batches of windows, in a chosen precision, and what is seen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow.flows.probes import Observable, shared
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_text.data import Data

SELF = 0.75
"""A token attends to itself when it gives itself at least this much (Fig. 3 C)."""


def cast(theta: OneLayerAttention, precision: str) -> OneLayerAttention:
    return jax.tree.map(lambda w: jnp.asarray(w, precision), theta)


def forward(theta: OneLayerAttention, tokens: Any) -> tuple[Any, Any]:
    """Attention of the last token of each window, and the next-token logits there.

    The same numbers as `OneLayerAttention.logits` window by window, with few large products.
    """
    z = theta.W0[tokens]
    query = (z[:, -1] @ theta.WQ) @ theta.WK.T
    weights = jax.nn.softmax(jnp.einsum("bsm,bm->bs", z, query), axis=1)
    return weights, jnp.einsum("bs,bsm->bm", weights, z) @ theta.W1


def window_loss(theta: OneLayerAttention, windows: Any, precision: str) -> Any:
    """Cross-entropy at the last token of each window, eq. (3): inputs, then the label."""
    _, logits = forward(cast(theta, precision), windows[:, :-1])
    picked = jnp.take_along_axis(logits, windows[:, -1:], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked).astype(float)


def attention_map(theta: OneLayerAttention, tokens: Any) -> Any:
    """The attention `[query, key]` between the tokens of one input, Def. 2.2."""
    z = theta.W0[tokens]
    return jax.nn.softmax((z @ theta.WQ) @ (z @ theta.WK).T, axis=1)


def self_attention(theta: OneLayerAttention, tokens: Any) -> Any:
    """What each token of one input gives to itself (to all its copies: they look the same)."""
    same = tokens[:, None] == tokens[None, :]
    return jnp.sum(attention_map(theta, tokens) * same, axis=1)


def observables(data: Data, precision: str) -> dict[str, Observable]:
    """What is followed through training; the axes carry the tokens themselves."""
    inputs, last = data.held_out[:, :-1], data.held_out[:, -2:-1]
    frequent = np.isin(inputs, data.frequent)
    same = inputs == last
    sequence, sample, tracked = (np.array(x) for x in (data.sequence, data.sample, data.tracked))
    # Constants of a compiled function are kept in it: single precision halves them.
    rows = data.bigrams.rows(last[:, 0]).astype(precision)
    law = data.law.astype(precision)
    information = np.sum(rows * np.log(rows), axis=1), float(np.sum(data.law * np.log(data.law)))

    held_out = shared(lambda theta: forward(cast(theta, precision), inputs))
    predicted = shared(lambda theta: jax.nn.log_softmax(held_out(theta)[1], axis=1))
    own = shared(lambda theta: jnp.sum(held_out(theta)[0] * same, axis=1))

    def entropy(theta: Any) -> Any:
        weights = held_out(theta)[0]
        return -jnp.mean(jnp.sum(jax.scipy.special.xlogy(weights, weights), axis=1))

    def proxy(theta: Any) -> Any:
        keys = theta.W0 @ theta.WK
        scores = (theta.W0[tracked] @ theta.WQ) @ keys.T + jnp.log(data.law)
        return jax.nn.softmax(scores, axis=1)[:, tracked]

    def ranks(theta: Any) -> Any:
        # Without a decomposition: those cost more than all the rest that is observed.
        grams = [w.T @ w for w in (theta.W0, theta.W1.T, theta.WQ, theta.WK)]
        return jnp.stack([jnp.trace(g) ** 2 / jnp.sum(g**2) for g in grams])

    axis = {
        "query": data.names(data.sequence),
        "key": data.names(data.sequence),
        "tracked": data.names(data.tracked),
        "attended": data.names(data.tracked),
        "place": data.names(data.sample.tolist()),
        "matrix": np.array(["W0", "W1", "WQ", "WK"]),
    }

    def over(dim: str) -> dict[str, np.ndarray]:
        return {dim: axis[dim]}

    return {
        "attention": Observable(
            lambda th: attention_map(cast(th, precision), jnp.asarray(sequence)),
            ("query", "key"),
            over("query") | over("key"),
            "probability",
            "attention within the chosen input",
        ),
        "embedding_norm": Observable(
            lambda th: jnp.linalg.norm(th.W0[tracked], axis=1),
            ("tracked",),
            over("tracked"),
            "",
            "norm of a row of W0",
        ),
        "proxy": Observable(
            proxy,
            ("tracked", "attended"),
            over("tracked") | over("attended"),
            "probability",
            "attention of the long-context limit, pi_j exp Phi_ij",
        ),
        "self_attention": Observable(
            lambda th: self_attention(cast(th, precision), jnp.asarray(sample)),
            ("place",),
            over("place"),
            "probability",
            "attention of each token of a held-out sample to itself",
        ),
        "focus": Observable(
            lambda th: (
                jnp.mean(jnp.sum(held_out(th)[0] * frequent, axis=1)) - float(frequent.mean())
            ),
            (),
            {},
            "probability",
            "held-out attention to the three most frequent tokens, less their share of the window",
        ),
        "self_mean": Observable(
            lambda th: jnp.mean(own(th)),
            (),
            {},
            "probability",
            "held-out attention of the last token to itself",
        ),
        "self_share": Observable(
            lambda th: jnp.mean(own(th) >= SELF),
            (),
            {},
            "probability",
            f"share of held-out windows whose last token gives itself at least {SELF}",
        ),
        "attention_entropy": Observable(
            entropy, (), {}, "nats", "mean entropy of held-out attention"
        ),
        "bigram_gap": Observable(
            lambda th: jnp.mean(information[0] - jnp.sum(rows * predicted(th), axis=1)),
            (),
            {},
            "nats",
            "mean KL(bigram row of the last token || prediction), held out",
        ),
        "unigram_gap": Observable(
            lambda th: jnp.mean(information[1] - predicted(th) @ law),
            (),
            {},
            "nats",
            "mean KL(unigram law || prediction), held out",
        ),
        "effective_rank": Observable(
            ranks,
            ("matrix",),
            over("matrix"),
            "",
            "participation ratio (sum s^2)^2 / sum s^4 of the singular values",
        ),
    }
