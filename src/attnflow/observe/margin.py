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


def largest_margin(Z: Float[np.ndarray, "sample feature"], *, zero: float = 1e-9) -> Margin:
    """The margin of signed features `y F`, by least-distance programming (Lawson and Hanson).

    The shortest u with `Z u >= 1` solves a non-negative least-squares problem; its
    multipliers are the dual weights, and the point of the hull that they give is along u. A
    margin below `zero`, relative to the largest feature, is none.
    """
    from scipy.optimize import lsq_linear

    Z = np.asarray(Z, dtype=float)
    if Z.ndim != 2 or not len(Z) or not np.isfinite(Z).all():
        raise InputError("features", f"shape {Z.shape}; finite numbers, sample x feature")
    scale = float(np.linalg.norm(Z, np.inf)) or 1.0
    E = np.concatenate([Z.T / scale, np.ones((1, len(Z)))])
    # Not nnls: where features depend on each other, as symmetric ones do, it stops too early.
    found = lsq_linear(E, np.eye(len(E))[-1], (0, np.inf), method="bvls", tol=1e-15)
    multipliers = np.maximum(found.x, 0.0)
    weights = multipliers / multipliers.sum()
    nearest = weights @ Z
    upper = float(np.linalg.norm(nearest))
    if upper <= zero * scale:
        return Margin(0.0, upper, np.zeros_like(nearest), weights)
    return Margin(float((Z @ nearest).min() / upper), upper, nearest / upper, weights)
