"""Known ground for expansions: closed forms, and an attention-only model at zero weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow.expand import safe
from attnflow.flows import Flow
from attnflow.models import OneLayerAttention, population_flow
from attnflow.tasks import MarkovChain


def contour(f: Callable[[np.ndarray], np.ndarray], order: int, radius: float) -> np.ndarray:
    """Taylor coefficients at 0 of an analytic function, by Cauchy's integral on a circle."""
    n = 128
    t = radius * np.exp(2j * np.pi * np.arange(n) / n)
    return (np.fft.fft(f(t)) / n).real[: order + 1] / radius ** np.arange(order + 1)


def logistic_flow() -> Flow:
    return Flow(velocity=lambda th: {"x": th["x"] * (1 - th["x"])}, name="logistic")


def chain_flow(beta: Any, gamma: Any, delta: Any) -> Flow:
    """`L = -(beta.a + a.Gamma b + Delta(a, b, c))`: three factors that wake one after the other."""

    def loss(th: Any) -> Any:
        a, b, c = th["a"], th["b"], th["c"]
        return -(beta @ a + a @ gamma @ b + jnp.einsum("ijk,i,j,k", delta, a, b, c))

    return Flow(loss)


class AttentionOnly:
    """One layer of arXiv 2601.19208 on one-hot sequences: weights WO, V, W and positions P.

    h = X + A X V, A = causal softmax(X W X^T + P[t-j]), logits h WO, mean cross-entropy.
    """

    def __init__(self, tokens: int = 5, length: int = 4, count: int = 6, seed: int = 0):
        rng = np.random.default_rng(seed)
        text = rng.integers(tokens, size=(count, length + 1))
        eye = np.eye(tokens)
        self.tokens, self.length = tokens, length
        self.X, self.Y = eye[text[:, :-1]], eye[text[:, 1:]]
        self.mean = 1.0 / (count * length)

    def start(self) -> dict[str, np.ndarray]:
        v = self.tokens
        return {
            "WO": np.zeros((v, v)),
            "V": np.zeros((v, v)),
            "W": np.zeros((v, v)),
            "P": np.zeros(self.length),
        }

    @functools.cached_property
    def flow(self) -> Flow:
        lag = np.arange(self.length)[:, None] - np.arange(self.length)[None, :]
        causal = lag >= 0

        def loss(th: Any) -> Any:
            X = jnp.asarray(self.X)
            scores = X @ th["W"] @ X.swapaxes(1, 2) + th["P"][np.maximum(lag, 0)]
            A = safe.softmax(jnp.where(causal, scores, -jnp.inf))
            logits = (X + A @ X @ th["V"]) @ th["WO"]
            return -self.mean * jnp.sum(self.Y * safe.log_softmax(logits))

        return Flow(loss, name="attention only")

    def leading(self) -> dict[str, np.ndarray]:
        """B, K, Q and Delta by their definitions."""
        T = self.length
        A0 = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
        R = self.Y - 1 / self.tokens
        B = self.mean * np.einsum("nta,ntb->ab", self.X, R)
        Phi = self.mean * np.einsum("nta,tj,njb->ab", R, A0, self.X)
        G = B.T @ B @ Phi
        g = np.einsum("nta,ab,njb->ntj", self.Y, G, self.X)
        S = A0 * (g - np.einsum("ntk,tk->nt", g, A0)[:, :, None])
        Q = self.mean * np.einsum("nta,ntj,njb->ab", self.X, S, self.X)
        lags = [self.mean * sum(np.trace(s, -m) for s in S) for m in range(T)]
        return {"WO": B, "V": Phi.T @ B.T, "W": Q, "P": np.array(lags)}


@functools.cache
def attention_only() -> AttentionOnly:
    """One model, and with it one compiled program, for all tests."""
    return AttentionOnly()


@functools.cache
def population() -> tuple[Flow, OneLayerAttention]:
    """The closed-form population flow of one-layer attention, and a start of O(1)."""
    flow = population_flow(MarkovChain((0.6, 0.3, 0.1), 0.8))
    return flow, OneLayerAttention.gaussian(3, 3, 0.5, seed=1)
