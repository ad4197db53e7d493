"""What the claims share: their study, the width and the seeds they use, and their regimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._precision import float64
from attnflow.claims import Regime
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import theory
from attnflow.tasks.markov import MarkovChain

STUDY = "focus-dilution"
SEEDS = (11, 12, 13)

DIM = 4
"""Width at which claims are measured: none depends on it, and one width is compiled once."""


def nonuniform(study) -> Regime:
    spread = float(np.ptp(study.chain.pi))
    return Regime(spread > 0, f"the law is not uniform (its entries span {spread:.3g})")


def two_groups(study) -> Regime:
    pi = theory.two_group(study.chain).pi
    inside = bool(pi[0] > pi[1] and np.ptp(pi[1:]) < 1e-12)
    return Regime(inside, f"two-group law: pi1 = {pi[0]:.4g} > pi2 = ... = pid = {pi[1]:.4g}")


def two_term(study) -> Regime:
    lam = study.chain.lam
    return Regime(lam is not None, "P = lam I + (1 - lam) 1 pi^T, eq. (2)")


def distinct(study) -> Regime:
    low = np.sort(study.chain.pi)[:-1]
    spread = float(np.ptp(low))
    inside = study.chain.tokens > 2 and spread > 1e-3
    return Regime(inside, f"the lower-frequency tokens differ (by {spread:.3g})")


def inside(regime: Callable[[Any], Regime], verdict: str = "holds") -> Callable[[Any], str]:
    """What to expect of a claim: its verdict inside the regime, `out-of-regime` outside."""
    return lambda study: verdict if regime(study).inside else "out-of-regime"


def random_points(study, scale: float = 0.7) -> list[OneLayerAttention]:
    d = study.chain.tokens
    return [OneLayerAttention.gaussian(d, DIM, scale, seed) for seed in SEEDS]


@float64
def autodiff_gradients(theta: OneLayerAttention, chain: MarkovChain):
    """dL/dM and dL/dPhi of the population loss by autodiff, independent of the closed form."""

    def loss(M, Phi):
        A = jax.nn.softmax(Phi + jnp.log(chain.pi), axis=1)
        return -jnp.sum(chain.pi[:, None] * chain.transition * jax.nn.log_softmax(A @ M, axis=1))

    gradients = jax.grad(loss, (0, 1))(theta.readout, theta.score)
    return [np.asarray(g) for g in gradients]
