"""What the claims share: the width and the seeds they use, their regimes, exact derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._precision import float64
from attnflow.claims import Regime, condition
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.config import Config
from attnflow.tasks.markov import MarkovChain

SEEDS = (11, 12, 13)

DIM = 4
"""Width at which claims are measured: none depends on it, and one width is compiled once."""


@condition
def nonuniform(config: Config) -> Regime:
    spread = float(np.ptp(config.chain().pi))
    return Regime(spread > 0, f"the law is not uniform (its entries span {spread:.3g})")


@condition
def two_groups(config: Config) -> Regime:
    pi = theory.two_group(config.chain()).pi
    inside = bool(pi[0] > pi[1] and np.ptp(pi[1:]) < 1e-12)
    return Regime(inside, f"two-group law: pi1 = {pi[0]:.4g} > pi2 = ... = pid = {pi[1]:.4g}")


@condition
def forgetful(config: Config) -> Regime:
    second = float(np.sort(np.abs(np.linalg.eigvals(config.chain().transition)))[-2])
    words = f"the chain forgets like {second:.3g}^t, within some ten tokens (at most 0.9^t)"
    return Regime(second <= 0.9, words)


@condition
def two_term(config: Config) -> Regime:
    return Regime(config.chain().lam is not None, "P = lam I + (1 - lam) 1 pi^T, eq. (2)")


@condition
def distinct(config: Config) -> Regime:
    chain = config.chain()
    spread = float(np.ptp(np.sort(chain.pi)[:-1]))
    inside = chain.tokens > 2 and spread > 1e-3
    return Regime(inside, f"the lower-frequency tokens differ (by {spread:.3g})")


@condition
def attention_grows(config: Config) -> Regime:
    c = theory.focus_rate(config.chain())
    return Regime(c > 1e-6, f"attention grows at the unigram point: c = {c:.4g}")


grows = nonuniform & attention_grows
"""c > 0 at the second point, which any non-uniform two-term chain has."""


@condition
def distinct_leader(config: Config) -> Regime:
    top = np.sort(config.chain().pi)[::-1]
    return Regime(bool(top[0] - top[1] > 1e-3), f"one token leads, by {top[0] - top[1]:.3g}")


def random_points(study, scale: float = 0.7) -> list[OneLayerAttention]:
    d = study.chain.tokens
    return [OneLayerAttention.gaussian(d, DIM, scale, seed) for seed in SEEDS]


@float64
def autodiff_gradients(theta: OneLayerAttention, chain: MarkovChain):
    """dL/dM and dL/dPhi of the population loss by autodiff, independent of the closed form."""

    given = (np.asarray(theta.readout), np.asarray(theta.score), chain.pi, chain.transition)
    return [np.asarray(g) for g in _token_gradients(*given)]


@jax.jit
def _token_gradients(M: Any, Phi: Any, pi: Any, transition: Any) -> Any:
    return jax.grad(_loss, (0, 1))(M, Phi, pi, transition)


def _loss(M: Any, Phi: Any, pi: Any, transition: Any) -> Any:
    A = jax.nn.softmax(Phi + jnp.log(pi), axis=1)
    return -jnp.sum(pi[:, None] * transition * jax.nn.log_softmax(A @ M, axis=1))


@float64
def autodiff_velocity(theta: OneLayerAttention, chain: MarkovChain) -> np.ndarray:
    """Minus the gradient in all four matrices of the same loss, as one vector."""
    found = _weight_gradients(*blocks(theta), chain.pi, chain.transition)
    return -np.concatenate([np.ravel(g) for g in found])


@jax.jit
def _weight_gradients(W0: Any, W1: Any, WQ: Any, WK: Any, pi: Any, transition: Any) -> Any:
    def loss(W0: Any, W1: Any, WQ: Any, WK: Any) -> Any:
        return _loss(W0 @ W1, W0 @ WQ @ WK.T @ W0.T, pi, transition)

    return jax.grad(loss, (0, 1, 2, 3))(W0, W1, WQ, WK)


def jacobian(theta: OneLayerAttention, chain: MarkovChain) -> np.ndarray:
    """The Jacobian of the flow, blocks in the order W0, W1, WQ, WK, exact by complex steps.

    The closed form is analytic, so `Im v(y + i h e) / h` has no cancellation and h can be tiny;
    nothing is compiled.
    """
    shapes = [np.shape(w) for w in blocks(theta)]
    ends = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    y, h = flat(theta), 1e-150

    def velocity(y: np.ndarray) -> np.ndarray:
        """Eq. (4) and (5) for complex numbers, which the model itself does not take."""
        W0, W1, WQ, WK = (b.reshape(s) for b, s in zip(np.split(y, ends), shapes, strict=True))
        queries, keys, M = W0 @ WQ, W0 @ WK, W0 @ W1
        A = _softmax(queries @ keys.T + np.log(chain.pi))
        R = chain.pi[:, None] * (chain.transition - _softmax(A @ M))
        spread = A * (R @ M.T)
        GM, GP = -(A.T @ R), A * spread.sum(axis=1, keepdims=True) - spread
        moved = (
            -GM @ W1.T - GP @ keys @ WQ.T - GP.T @ queries @ WK.T,
            -W0.T @ GM,
            -W0.T @ GP @ keys,
            -W0.T @ GP.T @ queries,
        )
        return np.concatenate([np.ravel(w) for w in moved])

    steps = y + 1j * h * np.eye(len(y))
    return np.stack([np.imag(velocity(z)) / h for z in steps], axis=1)


def _softmax(z: np.ndarray) -> np.ndarray:
    """A softmax that is analytic: only the real part of the largest entry is taken off."""
    e = np.exp(z - np.real(z).max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def blocks(theta: OneLayerAttention) -> list[np.ndarray]:
    """W0, W1, WQ, WK."""
    return [np.asarray(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK)]


def flat(theta: OneLayerAttention) -> np.ndarray:
    """All parameters as one vector, in the order W0, W1, WQ, WK."""
    return np.concatenate([np.ravel(w) for w in blocks(theta)])


def moved(theta: OneLayerAttention, step: np.ndarray) -> OneLayerAttention:
    """The parameters a step away, given as one vector."""
    shapes = [w.shape for w in blocks(theta)]
    parts = np.split(step, np.cumsum([np.prod(s) for s in shapes])[:-1])
    pairs = zip(blocks(theta), parts, shapes, strict=True)
    return OneLayerAttention(*(w + part.reshape(s) for w, part, s in pairs))  # type: ignore[arg-type]


def cosine(a: Any, b: Any) -> float:
    """The cosine of two arrays as long vectors."""
    a, b = np.ravel(a), np.ravel(b)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
