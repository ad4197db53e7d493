"""Losses with a known invariance and nothing else special about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(shape)


def random_gram_loss(p: int, seed: int = 0) -> Callable[[Any], Any]:
    """A smooth function of a p x p matrix that does not read it symmetrically."""
    A, B = draw(p, p, seed=seed, scale=p**-0.5), draw(p, p, seed=seed + 1)

    def loss(G: Any) -> Any:
        return 0.5 * jnp.sum((jnp.tanh(G @ A) - B) ** 2) + 0.1 * jnp.sum(jnp.sin(G * B) + G**2)

    return loss


def product_loss(target: np.ndarray) -> Callable[[Any], Any]:
    """Sees only K^T Q."""
    return lambda G: 0.5 * jnp.sum((jnp.sin(G["K", "Q"]) - target) ** 2)


def two_heads_loss(p: int) -> Callable[[Any, Any], Any]:
    """Two groups and plain parameters."""
    A = draw(p, p, seed=5)

    def loss(G: Any, rest: Any) -> Any:
        read = [jnp.tanh(G[head]["K", "Q"] @ A) @ rest["w"] for head in ("plus", "minus")]
        return 0.5 * jnp.sum((read[0] - read[1] - 1.0) ** 2) + 0.05 * rest["bias"] ** 2

    return loss


def two_heads_weights(p: int, widths: tuple[int, int]) -> dict[str, Any]:
    def head(n: int, seed: int) -> dict[str, np.ndarray]:
        return {
            "K": draw(n, p, seed=seed, scale=n**-0.5),
            "Q": draw(n, p, seed=seed + 1, scale=n**-0.5),
        }

    return {
        "plus": head(widths[0], 1),
        "minus": head(widths[1], 3),
        "w": draw(p, seed=6),
        "bias": np.array(0.3),
    }


def two_heads_gradient(p: int) -> Callable[[Any, Any], Any]:
    """The gradient of `two_heads_loss` written out, for NumPy arrays with leading axes."""
    A = draw(p, p, seed=5)

    def gradient(G: Any, rest: Any) -> Any:
        T = {head: np.tanh(G[head]["K", "Q"] @ A) for head in ("plus", "minus")}
        w = rest["w"][..., None]
        miss = (T["plus"] - T["minus"]) @ w - 1.0
        slope = {h: (1 - t**2) * (miss * w.swapaxes(-1, -2)) @ A.T for h, t in T.items()}
        of_w = ((T["plus"] - T["minus"]).swapaxes(-1, -2) @ miss)[..., 0]
        blocks = {"plus": {("K", "Q"): slope["plus"]}, "minus": {("K", "Q"): -slope["minus"]}}
        return blocks, {"w": of_w, "bias": 0.1 * rest["bias"]}

    return gradient
