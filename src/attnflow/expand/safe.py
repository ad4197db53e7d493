"""Softplus, log-sum-exp and softmax that every kind of differentiation reads correctly.

`jax.nn.softplus` is a maximum plus a function of an absolute value. Plain Taylor mode
(`jax.experimental.jet`) ignores the derivative rule that hides this, and gets the slope at 0 wrong
(0 instead of 1/2); exactly there a flow from zero weights starts. The functions below subtract a
maximum that is held constant: any constant gives the same value, so all derivatives are exact.
`series` itself also knows the versions of `jax.nn`; these are for losses that other tools expand.

>>> from attnflow.expand import safe
>>> def loss(theta):                                  # logistic regression
...     return safe.softplus(-labels * (inputs @ theta["w"])).mean()
>>> def loss(theta):                                  # cross-entropy of a linear read-out
...     logits = inputs @ theta["W"]
...     return -(targets * safe.log_softmax(logits, axis=-1)).sum(axis=-1).mean()
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def softplus(x: Any) -> Float[Array, "..."]:
    """log(1 + e^x), with full relative precision in both tails.

    >>> round(float(softplus(0.0)), 6)
    0.693147
    """
    x = jnp.asarray(x)
    m = lax.stop_gradient(jnp.maximum(x, 0.0))
    # Both branches are e^(x-m) + e^-m - 1; each cancels its own 1 without rounding.
    rest = jnp.where(m > 0, jnp.expm1(x - m) + jnp.exp(-m), jnp.exp(x - m) + jnp.expm1(-m))
    return m + jnp.log1p(rest)


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Float[Array, "..."]:
    """log sum_i e^(x_i) along `axis`; entries of -inf (a mask) count as absent."""
    x = jnp.asarray(x)
    m = _held_maximum(x, axis)
    out = m + jnp.log(jnp.sum(jnp.exp(x - m), axis=axis, keepdims=True))
    return out if keepdims else jnp.squeeze(out, axis=axis)


def log_softmax(x: Any, axis: int = -1) -> Float[Array, "..."]:
    """x - logsumexp(x)."""
    x = jnp.asarray(x)
    shifted = x - _held_maximum(x, axis)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))


def softmax(x: Any, axis: int = -1) -> Float[Array, "..."]:
    """e^(x_i) / sum_j e^(x_j); entries of -inf (a mask) get weight 0."""
    x = jnp.asarray(x)
    weights = jnp.exp(x - _held_maximum(x, axis))
    return weights / jnp.sum(weights, axis=axis, keepdims=True)


def _held_maximum(x: Any, axis: int) -> Any:
    return lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True))
