"""Closed forms of the focus-dilution study, from the chain alone.

Notation of the paper: `v = pi - 1/d`, `l = log pi - mean log pi`, `Var = diag(pi) - pi pi^T`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow.models.one_layer import OneLayerAttention
from attnflow.tasks.markov import MarkovChain

Law = Float[np.ndarray, "token"]

CONDENSED = 0.05
"""Level of the condensed amplitude whose time is predicted from the linearisation."""


def escape_rate(chain: MarkovChain) -> float:
    """mu0 = |pi| |v|: the unstable rate at the origin (Thm. 3.2)."""
    return float(np.linalg.norm(chain.pi) * np.linalg.norm(chain.pi - 1 / chain.tokens))


def condensed_amplitude(theta: OneLayerAttention, chain: MarkovChain) -> Any:
    """The component of (W0, W1) along the unstable modes at the origin, a vector of length dim.

    `(W0^T q + W1 u) / 2` with `q = pi/|pi|`, `u = v/|v|` (0 for a uniform law): it grows like
    exp(mu0 t). For NumPy and for traced weights.
    """
    v = chain.pi - 1 / chain.tokens
    size = np.linalg.norm(v)
    u = v / size if size > 0 else v
    return (theta.W0.T @ (chain.pi / np.linalg.norm(chain.pi)) + theta.W1 @ u) / 2


def condensation_time(start: OneLayerAttention, chain: MarkovChain, level: float) -> float:
    """When the condensed amplitude reaches a level: log(level / a0) / mu0 (Thm. 3.2)."""
    a0 = float(np.linalg.norm(condensed_amplitude(start, chain)))
    return float(np.log(level / a0) / escape_rate(chain))


def log_law(chain: MarkovChain) -> Law:
    """l = log pi - mean(log pi): the read-out of the best constant predictor."""
    return np.log(chain.pi) - np.mean(np.log(chain.pi))


def unigram_point(
    chain: MarkovChain, dim: int, alpha: np.ndarray | None = None
) -> OneLayerAttention:
    """The second critical point for any law: `W0 = k q a^T`, `W1 = k a l^T/|l|`, WQ = WK = 0.

    `k^2 = |l|/|pi|` makes every prediction equal pi, so the loss is the unigram entropy. On a
    two-group law `l` is parallel to `v` and this is the point of Prop. 3.3.
    """
    a = np.eye(dim)[0] if alpha is None else alpha / np.linalg.norm(alpha)
    l, size = log_law(chain), np.linalg.norm(chain.pi)
    k = np.sqrt(np.linalg.norm(l) / size)
    zero = np.zeros((dim, dim))
    return OneLayerAttention(
        k * np.outer(chain.pi / size, a), k * np.outer(a, l / np.linalg.norm(l)), zero, zero
    )  # type: ignore[arg-type]


def ray_constant(chain: MarkovChain) -> float:
    """kappa1^2 = sqrt((d-1)/d) ln(pi1/pi2) / |pi| of Prop. 3.3, for a two-group law."""
    d = chain.tokens
    ratio = np.log(chain.pi[0] / chain.pi[1])
    return float(np.sqrt((d - 1) / d) * ratio / np.linalg.norm(chain.pi))


def focus_rate(chain: MarkovChain) -> float:
    """c, the growth rate of attention at the unigram point, for any chain.

    `c = -g^T GP g` with `g = W0 a`; `GP = -diag(pi) (P - 1 pi^T) b g^T Var`. For the two-term
    chain it is `lam Cov_pi(pi, log pi) Var_pi(pi) |l| / |pi|^5`.
    """
    point = unigram_point(chain, 1)
    g, b = np.asarray(point.W0)[:, 0], np.asarray(point.W1)[0]
    pi = chain.pi
    drive = g @ (pi[:, None] * (chain.transition - pi)) @ b
    return float(drive * (pi @ g**2 - (pi @ g) ** 2))


def contraction(chain: MarkovChain) -> np.ndarray:
    """-A, the flow of (Delta W0 a, Delta W1^T a) at the unigram point: eq. (76)-(78) for any law.

    `d(dL/dM) = pi pi^T dM Var(pi)` (eq. 63) along the condensed direction a.
    """
    point = unigram_point(chain, 1)
    g, b, pi = np.asarray(point.W0)[:, 0], np.asarray(point.W1)[0], chain.pi
    var = np.diag(pi) - np.outer(pi, pi)
    mean = float(pi @ g)
    return -np.block(
        [
            [(b @ var @ b) * np.outer(pi, pi), mean * np.outer(pi, b @ var)],
            [mean * np.outer(var @ b, pi), mean**2 * var],
        ]
    )


def slowest_contraction(chain: MarkovChain) -> float:
    """s, the slowest rate but zero at which (W0, W1) settle at the unigram point."""
    rates = -np.linalg.eigvalsh(contraction(chain))
    return float(rates[rates > 1e-9 * rates.max()].min())


def cleanliness(chain: MarkovChain) -> float:
    """s / (s + c): the least speed on the unigram plateau scales like eps to this power.

    The flow settles at rate s while attention grows at rate c from size eps; the speed is least
    where the two are equal.
    """
    s, c = slowest_contraction(chain), focus_rate(chain)
    return s / (s + c)


def printed_focus_rate(chain: MarkovChain) -> float:
    """eq. (14): c = lam kappa1^4 |pi|_Var^4 / (|v| |pi|^3), on a two-group law."""
    assert chain.lam is not None
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    spread = pi @ pi**2 - (pi @ pi) ** 2
    size = np.linalg.norm(v) * np.linalg.norm(pi) ** 3
    return float(chain.lam * ray_constant(chain) ** 2 * spread**2 / size)


def context_bias(chain: MarkovChain, length: int) -> float:
    """rho = (1 - lam^s) / (s (1 - lam)): how much a context of s tokens leans to its last one.

    `E[n_j / s | last = i] = pi_j + rho (1_ij - pi_j)` for a stationary two-term chain.
    """
    assert chain.lam is not None
    return (1 - chain.lam**length) / (length * (1 - chain.lam))


def two_group(chain: MarkovChain, *, staying: float = 0.8) -> MarkovChain:
    """The two-group law with the same first entry and the same weight of staying.

    `staying` is that of a chain that has none, as it was given by its matrix.
    """
    d, first = chain.tokens, float(chain.pi.max())
    lam = staying if chain.lam is None else chain.lam
    return MarkovChain((first, *[(1 - first) / (d - 1)] * (d - 1)), lam)
