"""The study's measurements: the panels of Fig. 2, and the amplitudes of the unstable modes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow.flows.probes import Observable
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.models.one_layer_contexts import group_losses, mean_attention
from attnflow.studies.focus_dilution import theory
from attnflow.tasks.contexts import Contexts
from attnflow.tasks.markov import MarkovChain


def of(
    chain: MarkovChain, training: Contexts | None, test: Contexts | None
) -> dict[str, Observable]:
    """Every observable of a run: those of the model, and what belongs to its data."""
    ids = np.arange(chain.tokens)
    token, pair = {"token": ids}, {"query": ids, "key": ids}
    found = one_layer.observables(chain)
    found |= {
        "amplitude": Observable(
            lambda th: amplitudes(th, chain),
            ("unstable",),
            {"unstable": np.array(AMPLITUDES)},
            "",
            "amplitude of an unstable mode",
        )
    }
    if training is not None:
        found["token_loss"] = Observable(
            lambda th: group_losses(th, training),
            ("token",),
            token,
            "nats",
            "training loss of the group that ends in a token",
        )
        found["data_attention"] = Observable(
            lambda th: mean_attention(th, training),
            ("query", "key"),
            pair,
            "probability",
            "attention averaged over the training contexts",
        )
    if test is not None:
        found["test_loss"] = Observable(
            lambda th: group_losses(th, test),
            ("token",),
            token,
            "nats",
            "test loss of the group that ends in a token",
        )
    return found


AMPLITUDES = ("condensation", "focus", "new direction")


def amplitudes(theta: OneLayerAttention, chain: MarkovChain) -> Any:
    """Sizes of the modes that free the flow from the origin, the unigram and the rank-one point.

    `|W0^T q + W1 u| / 2`; `|a^T (WQ + WK)| / 2` along the condensed direction a; and the second
    singular value of the stacked (W0, W1^T), what has left the rank-one manifold.
    """
    xp = np if isinstance(theta.W0, np.ndarray) else jnp
    a = theory.condensed_amplitude(theta, chain)
    size = xp.linalg.norm(a)
    focus = xp.linalg.norm((a / size) @ (theta.WQ + theta.WK)) / 2
    outer = xp.concatenate([theta.W0, theta.W1.T])
    second = xp.linalg.svd(outer, compute_uv=False)[1] if min(outer.shape) > 1 else 0.0 * size
    return xp.stack([size, focus, second])
