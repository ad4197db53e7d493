"""Stationary laws by their shape, and chains that share one law."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, nearest, shown
from attnflow.tasks.markov import Law, MarkovChain, stationary_law


def two_group_law(first: float, tokens: int) -> Law:
    """One frequent token and `tokens - 1` equal rare ones: eq. (1) of arXiv 2605.01199, delta = 0.

    >>> two_group_law(0.75, 3)
    array([0.75 , 0.125, 0.125])
    """
    return perturbed_law(first, tokens, 0.0)


def perturbed_law(
    first: float, tokens: int, delta: float, shape: Sequence[float] | None = None
) -> Law:
    """`pi_i = (1 - first)/(tokens - 1) + c_i delta` for the rare tokens, eq. (1).

    `shape` is c, which sums to 0 (default 1, 0, ..., 0, -1: the asymmetry of Section 3.4).

    >>> perturbed_law(0.75, 3, 0.01)
    array([0.75 , 0.135, 0.115])
    """
    if tokens < 2:
        raise InputError("tokens", f"{tokens}; a law has at least two entries")
    low = (1 - first) / (tokens - 1)
    if not low < first < 1:
        raise InputError("first", f"{first:g}; the frequent token lies between 1/{tokens} and 1")
    if shape is None:
        shape = [0.0] if tokens == 2 else [1.0, *[0.0] * (tokens - 3), -1.0]
    c = np.asarray(shape, dtype=np.float64)
    if c.shape != (tokens - 1,) or abs(c.sum()) > 1e-12:
        raise InputError("shape", f"{shown(c.tolist())}; {tokens - 1} numbers that sum to 0")
    law = np.concatenate([[first], low + c * delta])
    if (law <= 0).any():
        raise InputError("delta", f"{delta:g} makes an entry of the law negative; smaller")
    return stationary_law(law)


def exponential_law(tokens: int, ratio: float = 0.5) -> Law:
    """`pi_i ~ ratio^i`: Appendix E's (1/2, 1/4, ..., 1/2^d), divided by its sum.

    >>> exponential_law(4) * 15
    array([8., 4., 2., 1.])
    """
    if tokens < 2:
        raise InputError("tokens", f"{tokens}; a law has at least two entries")
    if not 0 < ratio < 1:
        raise InputError("ratio", f"{ratio:g}; strictly between 0 and 1")
    weights = ratio ** np.arange(tokens)
    return weights / weights.sum()


Joint = Float[np.ndarray, "current next"]


def _two_term(pi: Law, lam: float) -> Joint:
    return lam * np.diag(pi) + (1 - lam) * np.outer(pi, pi)


def _metropolis(pi: Law, lam: float) -> Joint:
    """Metropolis: uniform proposals, accepted so that pi is stationary; moves ~ min(pi_i, pi_j)."""
    moves = (1 - lam) / (len(pi) - 1) * np.minimum.outer(pi, pi)
    return _staying(pi, moves)


def _neighbours(pi: Law, lam: float) -> Joint:
    """Metropolis that only proposes the neighbours of a token in the order of frequency."""
    place = np.argsort(np.argsort(-pi, kind="stable"))
    beside = np.abs(np.subtract.outer(place, place)) == 1
    return _staying(pi, (1 - lam) / 2 * np.minimum.outer(pi, pi) * beside)


def _drift(pi: Law, lam: float) -> Joint:
    """Two-term chain that stays less and moves around a cycle instead: not reversible."""
    joint = _two_term(pi, lam)
    onward = np.roll(np.eye(len(pi)), 1, axis=1)  # both marginals of onward - I are zero
    return joint + 0.5 * float(np.diag(joint).min()) * (onward - np.eye(len(pi)))


def _staying(pi: Law, moves: Joint) -> Joint:
    np.fill_diagonal(moves, 0.0)
    return moves + np.diag(pi - moves.sum(axis=1))


CHAINS: dict[str, Callable[[Law, float], Joint]] = {
    "two-term": _two_term,
    "metropolis": _metropolis,
    "neighbours": _neighbours,
    "drift": _drift,
}
"""Joint laws of (current, next) whose both marginals are pi, by name."""


def chain_of(kind: str, pi: Sequence[float] | np.ndarray, lam: float) -> MarkovChain:
    """The chain of a kind with stationary law `pi`; `lam` is the weight of staying.

    `two-term` is eq. (2) of arXiv 2605.01199; `metropolis` and `neighbours` are lazy reversible
    chains, `drift` is not reversible. They have one unigram law and four bigram laws, as the four
    matrices of Section 4.1 have (which the paper does not print).
    """
    if kind not in CHAINS:
        raise InputError("chain", f"{kind!r}; {nearest(kind, CHAINS)}")
    plain = MarkovChain(pi, lam)
    if kind == "two-term":
        return plain
    return MarkovChain.of(CHAINS[kind](plain.pi, plain.lam) / plain.pi[:, None])  # type: ignore[arg-type]
