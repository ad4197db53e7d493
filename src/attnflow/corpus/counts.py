"""Exact counts of a tokenised text, and the two predictors they give."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

PSEUDO = 10.0
"""Pseudo-counts of the unigram law that every row of the bigram predictor starts from. A hundred
would lower its held-out loss by 0.05 nats on WikiText-2, by 0.01 on TinyStories (BPE of 1,000)."""

Ids = Int[np.ndarray, "position"]


def unigram_law(ids: Ids, tokens: int) -> Float[np.ndarray, "token"]:
    """How frequent each token is, one added to every count."""
    counts = np.bincount(ids, minlength=tokens) + 1.0
    return counts / counts.sum()


def window_frequency(ids: Ids, tokens: int, length: int) -> Float[np.ndarray, "token"]:
    """The share of (disjoint) windows of `length` tokens in which each token occurs."""
    rows = np.sort(ids[: len(ids) // length * length].reshape(-1, length), axis=1)
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.bincount(rows[first], minlength=tokens) / max(len(rows), 1)


class Bigrams:
    """Counts `[current, next]` of a text, and the smoothed predictor `P(next | current)`.

    `P(j | i) = (count_ij + k pi_j) / (count_i + k)` with the unigram law `pi` and `k = PSEUDO`.
    """

    def __init__(self, ids: Ids, tokens: int, pseudo: float = PSEUDO):
        from scipy.sparse import coo_array

        ones = np.ones(len(ids) - 1, np.int64)
        self.counts = coo_array((ones, (ids[:-1], ids[1:])), shape=(tokens, tokens)).tocsr()
        self.law = unigram_law(ids, tokens)
        self.pseudo = pseudo

    @cached_property
    def _seen(self) -> np.ndarray:
        return np.asarray(self.counts.sum(axis=1)).ravel()

    def rows(self, current: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n next"]:
        """The next-token law after each of these tokens."""
        counted = self.counts[current].toarray() + self.pseudo * self.law
        return counted / (self._seen[current] + self.pseudo)[:, None]

    def loss(self, ids: Ids) -> float:
        """Cross-entropy of the predictor on a text, nats per token."""
        now, following = ids[:-1], ids[1:]
        # Pair by pair: a dense row for every token of the text would not fit.
        pairs, times = np.unique(np.stack([now, following]), axis=1, return_counts=True)
        counted = np.asarray(self.counts[pairs[0], pairs[1]]).ravel()
        law = (counted + self.pseudo * self.law[pairs[1]]) / (self._seen[pairs[0]] + self.pseudo)
        return float(-np.sum(times * np.log(law)) / times.sum())

    def unigram_loss(self, ids: Ids) -> float:
        """Cross-entropy of the unigram law on a text, nats per token."""
        return float(-np.mean(np.log(self.law[ids[1:]])))
