"""The flow that is measured: pi = (.75, .19, .05, .01), lam = .8, from a small Gaussian start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnflow.flows import Flow, System
from attnflow.models import OneLayerAttention
from attnflow.models.one_layer import population_flow, prediction
from attnflow.tasks import MarkovChain

CHAIN = MarkovChain((0.75, 0.19, 0.05, 0.01), lam=0.8)
UNTIL = 3000.0
SHOWN_TO = 300.0
"""Accuracy is compared up to here: before it explicit methods are not limited by stability."""
SPACING = 0.5
"""Between two compared times; the step sizes of gradient descent divide it."""

SCALES = {16: 1e-3, 64: 5e-4, 256: 2.5e-4}
"""dim -> initial scale: scale * sqrt(dim) is 4e-3, where the plateaus are clean."""


def flow() -> Flow:
    return population_flow(CHAIN)


def start(dim: int, seed: int = 0, scale: float | None = None) -> OneLayerAttention:
    return OneLayerAttention.gaussian(CHAIN.tokens, dim, scale or SCALES[dim], seed)


def bound(dim: int, seed: int = 0) -> tuple[System, np.ndarray]:
    """The flow on flat vectors, and the flat start."""
    theta = start(dim, seed)
    system = flow().bind(theta)
    return system, system.layout.flatten(theta)


def grid(until: float) -> np.ndarray:
    """The times at which loss curves are compared."""
    return np.arange(0.0, until + SPACING / 2, SPACING)


def host_loss(system: System) -> Callable[[np.ndarray], float]:
    """The loss in plain NumPy, so that watching a peer costs it nothing to compile."""
    weights = CHAIN.pi[:, None] * CHAIN.transition

    def loss(y: np.ndarray) -> float:
        law: Any = prediction(system.layout.unflatten(y), CHAIN.pi)
        return float(-np.sum(weights * np.log(law)))

    return loss


def distance(curve: Any, reference: Any) -> float:
    """max |loss - reference| over the times that both have."""
    n = min(len(curve), len(reference))
    return float(np.max(np.abs(np.asarray(curve[:n]) - np.asarray(reference[:n]))))
