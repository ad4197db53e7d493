"""Spectral measurements of a weight matrix."""

from __future__ import annotations

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._precision import float64

AnyArray: TypeAlias = Array | np.ndarray


@float64
def singular_values(w: Float[AnyArray, "row column"]) -> Float[AnyArray, "mode"]:
    """Singular values, largest first."""
    return jnp.linalg.svd(w, compute_uv=False)


@float64
def effective_rank(w: Float[AnyArray, "row column"]) -> Float[AnyArray, ""]:
    """exp of the entropy of the normalised singular values: 1 for rank one, k for k equal modes."""
    return entropy_rank(singular_values(w))


@float64
def entropy_rank(s: Float[AnyArray, "mode"]) -> Float[AnyArray, ""]:
    """The effective rank, from the singular values."""
    p = s / jnp.sum(s)
    return jnp.exp(-jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0)))


@float64
def stable_rank(w: Float[AnyArray, "row column"]) -> Float[AnyArray, ""]:
    """|W|_F^2 / |W|_2^2: a rank to which small singular values add almost nothing."""
    return share_of_top(singular_values(w))


@float64
def share_of_top(s: Float[AnyArray, "mode"]) -> Float[AnyArray, ""]:
    """The stable rank, from the singular values."""
    return jnp.sum(s**2) / s[0] ** 2


@float64
def alignment(w: Float[AnyArray, "*axes"], v: Float[AnyArray, "*axes"]) -> Float[AnyArray, ""]:
    """The cosine of the angle between two matrices, each read as one long vector."""
    return jnp.sum(w * v) / (jnp.linalg.norm(w) * jnp.linalg.norm(v))
