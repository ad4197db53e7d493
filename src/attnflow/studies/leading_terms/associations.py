"""Top associations of a token under each mapping (Fig. 5), with frequencies divided out."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnflow.corpus import Statistics

BASES = {
    "bigram": "follows it (B)",
    "interchange": "stands for it (Σ)",
    "context": "comes before it (Φ)",
    "attention": "it attends to (Q)",
}
"""The mappings, and what a large entry in a token's row says."""


def whitened(found: Statistics, basis: str) -> Float[np.ndarray, "token other"]:
    """A mapping with both axes divided by the root of their token's frequency.

    Raw rows are lists of frequent tokens. Interchangeability is that of whitened bigrams, as a
    cosine between what comes before two tokens.
    """
    root = np.sqrt(np.maximum(found.unigram, 1 / found.positions))
    if basis == "interchange":
        before = found.bigram / root[:, None] / root[None, :]
        unit = before / np.maximum(np.linalg.norm(before, axis=0), 1e-300)
        return unit.T @ unit
    return getattr(found, basis) / root[:, None] / root[None, :]


def associations(found: Statistics, token: int, basis: str, count: int) -> list[int]:
    """The other tokens with the largest entries in a token's row."""
    row = whitened(found, basis)[token].copy()
    row[token] = -np.inf
    return np.argsort(-row, kind="stable")[:count].tolist()


def chosen_tokens(found: Statistics, count: int) -> list[int]:
    """Tokens to show: from the frequent ones, evenly spaced in rank, the first few left out."""
    ranked = np.argsort(-found.unigram, kind="stable")
    seen = ranked[found.unigram[ranked] > 0]
    last = max(1, min(len(seen) - 1, 60))
    return seen[np.unique(np.linspace(min(5, last), last, count).astype(int))].tolist()
