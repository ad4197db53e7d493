"""The largest margin of signed features, with a certificate on both sides.

    gamma = max_{|u| = 1} min_i u.z_i,   z_i = y_i x_i

The dual is the point of the convex hull of the z_i nearest to the origin: its weights certify that
no u does better, and u itself shows that gamma is reached. Where logistic losses fall without end,
the gradients' shares tend to these weights and the direction to u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError

ZERO = 1e-9
"""A margin below this, relative to the largest feature, is none."""


@dataclass(frozen=True)
class Margin:
    """`lower <= margin <= upper`: what the direction reaches and what the dual weights allow."""

    lower: float
    upper: float
    direction: Float[np.ndarray, "feature"]
    weights: Float[np.ndarray, "sample"]
    """The dual: convex weights of the samples whose mean signed feature is shortest."""

    @property
    def value(self) -> float:
        """The margin; 0 where the features are not separable."""
        return max(self.lower, 0.0)

    @property
    def separable(self) -> bool:
        return self.value > 0


def largest_margin(Z: Float[np.ndarray, "sample feature"]) -> Margin:
    """The margin of signed features `y F`, by least-distance programming (Lawson and Hanson).

    The shortest u with `Z u >= 1` solves a non-negative least-squares problem; its residual is
    the direction, its multipliers are the dual weights.
    """
    from scipy.optimize import nnls

    Z = np.asarray(Z, dtype=float)
    if Z.ndim != 2 or not len(Z) or not np.isfinite(Z).all():
        raise InputError("features", f"shape {Z.shape}; finite numbers, sample x feature")
    scale = float(np.linalg.norm(Z, axis=1).max())
    if scale == 0:
        return Margin(0.0, 0.0, np.zeros(Z.shape[1]), np.full(len(Z), 1 / len(Z)))
    E = np.concatenate([Z.T / scale, np.ones((1, len(Z)))])
    target = np.zeros(Z.shape[1] + 1)
    target[-1] = 1.0
    multipliers, _ = nnls(E, target, maxiter=50 * max(E.shape))
    weights = multipliers / multipliers.sum()
    upper = float(np.linalg.norm(weights @ Z))
    residual = target - E @ multipliers
    u = -residual[:-1] / residual[-1] if residual[-1] > 0 else np.zeros(Z.shape[1])
    size = float(np.linalg.norm(u))
    if upper <= ZERO * scale or size == 0:
        return Margin(0.0, upper, np.zeros(Z.shape[1]), weights)
    return Margin(float((Z @ u).min() / size), upper, u / size, weights)
