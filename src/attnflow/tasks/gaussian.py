"""Covariances: checked at the border, their roots, and one Gaussian mean of a quotient."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown

Matrix = Float[np.ndarray, "coordinate coordinate"]


def checked(field: str, given: Any) -> Matrix:
    """A covariance from a matrix or its diagonal, or the sentence that says what is wrong."""
    try:
        matrix = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field, f"{shown(given)}; a matrix of numbers, or its diagonal") from None
    if matrix.ndim == 1 and matrix.size:
        matrix = np.diag(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InputError(field, f"shape {matrix.shape}; a square matrix, or its diagonal")
    if not np.isfinite(matrix).all():
        raise InputError(field, "has a NaN or infinite entry; a covariance is finite")
    size = float(np.abs(matrix).max())
    if np.abs(matrix - matrix.T).max() > 1e-12 * size:
        raise InputError(field, "not symmetric; a covariance equals its transpose")
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < -1e-12 * size:
        raise InputError(field, f"has the eigenvalue {least:.3g}; those of a covariance are >= 0")
    matrix.flags.writeable = False
    return matrix


def root(covariance: Matrix) -> Matrix:
    """The symmetric square root."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def mean_explained(lam: np.ndarray, noise: float) -> float:
    """`E[sum lam_i^2 z_i^2 / (sum lam_i z_i^2 + noise^2)]` over normal z.

    By `1/q = int_0^inf exp(-u q) du` the Gaussian mean is elementary, and one integral is left.
    It is taken over the logarithm of u, because it spans many scales.
    """
    from scipy.integrate import quad

    def integrand(log_u: float) -> float:
        u = np.exp(log_u)
        grown = 1 + 2 * u * lam
        decay = np.exp(-u * noise**2 - np.log(grown).sum() / 2)
        return float(u * decay * (lam**2 / grown).sum())

    centre = -np.log(lam.max())
    value = 0.0
    for low, high in ((-60, -20), (-20, 0), (0, 20), (20, 60)):
        value += quad(integrand, centre + low, centre + high, epsabs=0, epsrel=1e-12)[0]
    return value
