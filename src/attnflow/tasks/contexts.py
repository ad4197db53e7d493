"""Laws of (context, label) as attention without positions sees them.

A model that pools its context by a softmax over tokens sees of a context only its last token and
how often each token occurs. So a law of sequences is a table of (last token, counts) with the
joint weight of every label: exact for finite length by dynamic programming, and for a sample by
counting. A hundred thousand sequences of Appendix E become fewer than five thousand rows.
"""

from __future__ import annotations

from math import comb
from typing import Literal, final

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, nearest, whole
from attnflow.tasks.markov import Law, MarkovChain

FIRST = ("uniform", "stationary")


@final
class Contexts:
    """A table of contexts, sorted by last token: what occurs, how often, followed by what.

    >>> law = Contexts.of_chain(MarkovChain((0.75, 0.25), 0.8), length=2, first="stationary")
    >>> law.last, law.counts.tolist()
    (array([0, 0, 1, 1]), [[2, 0], [1, 1], [1, 1], [0, 2]])
    >>> round(float(law.weights.sum()), 12)
    1.0
    """

    last: Int[np.ndarray, "row"]
    counts: Int[np.ndarray, "row token"]
    weights: Float[np.ndarray, "row next"]
    """Joint weight of a row and its label; sums to 1."""
    log_counts: Float[np.ndarray, "row token"]

    def __init__(self, last: np.ndarray, counts: np.ndarray, weights: np.ndarray):
        order = np.argsort(last, kind="stable")
        self.last = np.asarray(last, dtype=np.int64)[order]
        self.counts = np.asarray(counts, dtype=np.int64)[order]
        self.weights = np.asarray(weights, dtype=np.float64)[order]
        with np.errstate(divide="ignore"):
            self.log_counts = np.log(self.counts)  # of a token that does not occur: -inf
        for array in (self.last, self.counts, self.weights, self.log_counts):
            array.flags.writeable = False

    @classmethod
    def of_chain(
        cls,
        chain: MarkovChain,
        length: int,
        first: Literal["uniform", "stationary"] = "uniform",
        *,
        most_rows: int = 2_000_000,
    ) -> Contexts:
        """The exact law of `length` tokens of a chain and the token after them.

        The first token is uniform as in Def. 2.1, or stationary. States (last token, counts) are
        carried forward one token at a time and merged; nothing is sampled. A law of more than
        `most_rows` contexts is refused: it would not fit, and a sample is as good.
        """
        d, length = chain.tokens, whole("length", length)
        _check_first(first)
        expected = table_rows(length, d)
        if expected > most_rows:
            raise InputError(
                "length",
                f"{length} tokens of {d} kinds make {expected:,} contexts; at most "
                f"{most_rows:,}: take a shorter length, fewer tokens, or a sample",
            )
        radix = radix_of(length, d)
        last = np.arange(d)
        keys = radix.copy()
        mass = np.full(d, 1 / d) if first == "uniform" else chain.pi.copy()
        for _ in range(length - 1):
            joint = mass[:, None] * chain.transition[last]
            merged = keys[:, None] + radix[None, :]
            keys, last, mass = merge(merged, np.broadcast_to(np.arange(d), merged.shape), joint, d)
        counts = unpacked(keys, radix, length)
        kept = mass > 0
        weights = mass[:, None] * chain.transition[last]
        return cls(last[kept], counts[kept], weights[kept])

    @classmethod
    def of_sample(cls, tokens: Int[np.ndarray, "sequence position"], vocabulary: int) -> Contexts:
        """The empirical law of sequences whose last token is the label.

        Equal (last token, counts) are one row; a label's weight is its multiplicity over N.
        """
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 or tokens.shape[1] < 2 or not len(tokens):
            raise InputError(
                "tokens", f"shape {tokens.shape}; sequences of at least one token and a label"
            )
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise InputError(
                "tokens", f"ids {tokens.min()} to {tokens.max()}; from 0 to {vocabulary - 1}"
            )
        inputs, labels = tokens[:, :-1].astype(np.int64), tokens[:, -1]
        radix = radix_of(inputs.shape[1], vocabulary)
        keys = radix[inputs].sum(axis=1) * vocabulary + inputs[:, -1]
        rows, row = np.unique(keys, return_inverse=True)
        weights = np.bincount(row * vocabulary + labels, minlength=len(rows) * vocabulary)
        counts = unpacked(rows // vocabulary, radix, inputs.shape[1])
        return cls(rows % vocabulary, counts, weights.reshape(-1, vocabulary) / len(tokens))

    @property
    def rows(self) -> int:
        return len(self.last)

    @property
    def tokens(self) -> int:
        """d, the size of the vocabulary."""
        return self.counts.shape[1]

    @property
    def length(self) -> int:
        """Tokens in a context, without the label."""
        return int(self.counts[0].sum())

    @property
    def bigram(self) -> Float[np.ndarray, "current next"]:
        """Joint weight of (last token, label)."""
        joint = np.zeros((self.tokens, self.tokens))
        np.add.at(joint, self.last, self.weights)
        return joint

    @property
    def last_law(self) -> Law:
        """How often each token is the last one."""
        return self.bigram.sum(axis=1)

    @property
    def label_law(self) -> Law:
        return self.weights.sum(axis=0)

    @property
    def bigram_entropy(self) -> float:
        """The entropy of the label given the last token: the best a bigram predictor can do.

        Training on a Markov sample ends there, apart from what it overfits.
        """
        joint = self.bigram
        given = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)
        return float(-np.sum(joint * np.log(np.where(joint > 0, given, 1.0))))

    @property
    def mean_frequencies(self) -> Float[np.ndarray, "current token"]:
        """Mean share of each token in a context, given its last token."""
        mass = self.weights.sum(axis=1)
        share = np.zeros((self.tokens, self.tokens))
        np.add.at(share, self.last, mass[:, None] * self.counts / self.length)
        return share / np.maximum(self.last_law, 1e-300)[:, None]

    def __repr__(self) -> str:
        return f"Contexts({self.rows:,} rows, {self.tokens} tokens, length {self.length})"


def _check_first(first: str) -> None:
    if first not in FIRST:
        raise InputError("first", f"{first!r}; {nearest(first, FIRST)}")


def table_rows(length: int, tokens: int) -> int:
    """How many contexts there are: a last token, and how often each occurs beside it."""
    return tokens * comb(length + tokens - 2, tokens - 1)


def radix_of(length: int, tokens: int) -> np.ndarray:
    """Place values that pack the counts of a context into one whole number."""
    place = (length + 1) ** np.arange(tokens, dtype=object)  # exact, however long
    fits = place[-1] * (length + 1) * tokens < 2**62
    return place.astype(np.int64) if fits else place


def unpacked(keys: np.ndarray, radix: np.ndarray, length: int) -> np.ndarray:
    return np.stack([(keys // place) % (length + 1) for place in radix], axis=1).astype(np.int64)


def merge(
    keys: np.ndarray, last: np.ndarray, mass: np.ndarray, tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge states with equal counts and last token."""
    both = np.ravel(keys) * tokens + np.ravel(last)
    unique, where = np.unique(both, return_inverse=True)
    total = np.bincount(where, weights=np.ravel(mass), minlength=len(unique))
    return unique // tokens, (unique % tokens).astype(np.int64), total
