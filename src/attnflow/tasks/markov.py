"""Markov chains: next-token prediction whose exact population law is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown

Law = Float[np.ndarray, "token"]
Transition = Float[np.ndarray, "current next"]


@final
class MarkovChain:
    """An irreducible chain on `tokens` states: `transition[current, next]`, stationary law `pi`.

    `MarkovChain(pi, lam)` is the two-term chain `P = lam I + (1 - lam) 1 pi^T` of
    arXiv 2605.01199, eq. (2); `MarkovChain.of(P)` takes any row-stochastic matrix and computes
    its stationary law.

    >>> MarkovChain((0.75, 0.25), lam=0.8).transition
    array([[0.95, 0.05],
           [0.15, 0.85]])
    """

    pi: Law
    transition: Transition
    lam: float | None

    def __init__(self, pi: Sequence[float] | np.ndarray, lam: float):
        law = stationary_law(pi)
        if not (isinstance(lam, int | float | np.number) and 0 < lam < 1):
            raise InputError(
                "lam", f"{shown(lam)}; the weight of staying lies strictly between 0 and 1"
            )
        self.pi = law
        self.lam = float(lam)
        self.transition = lam * np.eye(len(law)) + (1 - lam) * np.ones((len(law), 1)) * law

    @classmethod
    def of(cls, transition: Sequence[Sequence[float]] | np.ndarray) -> MarkovChain:
        """Any irreducible row-stochastic matrix, rows = current token."""
        matrix = row_stochastic(transition)
        chain = cls.__new__(cls)
        chain.transition = matrix
        chain.pi = _stationary(matrix)
        chain.lam = None
        return chain

    @property
    def tokens(self) -> int:
        """d, the number of tokens."""
        return len(self.pi)

    @property
    def floor(self) -> float:
        """The entropy rate: the loss of the best predictor that sees the current token."""
        return float(-np.sum(self.pi[:, None] * _xlogx(self.transition)))

    @property
    def unigram_entropy(self) -> float:
        """The loss of the best predictor that sees nothing."""
        return float(-np.sum(_xlogx(self.pi)))

    def sample(
        self, sequences: int, length: int, *, seed: int = 0, first: str = "stationary"
    ) -> Int[np.ndarray, "sequence position"]:
        """Sequences of token ids; `first` is `stationary`, or `uniform` as in Def. 2.1."""
        if sequences < 1 or length < 1:
            raise InputError("length", f"{sequences} x {length}; at least one of each")
        if first not in ("stationary", "uniform"):
            raise InputError("first", f"{first!r}; one of stationary, uniform")
        rng = np.random.default_rng(seed)
        law = self.pi if first == "stationary" else np.full(self.tokens, 1 / self.tokens)
        # Inverse transform on the cumulated rows, a whole column of tokens at once.
        steps = np.cumsum(self.transition, axis=1)
        tokens = np.empty((sequences, length), dtype=np.int64)
        tokens[:, 0] = drawn(np.cumsum(law), rng.random(sequences))
        for position in range(1, length):
            rows = steps[tokens[:, position - 1]]
            u = rng.random(sequences)[:, None]
            tokens[:, position] = np.minimum((u >= rows).sum(axis=1), self.tokens - 1)
        return tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarkovChain) and np.array_equal(self.transition, other.transition)

    def __hash__(self) -> int:
        return hash(self.transition.tobytes())

    def __repr__(self) -> str:
        if self.lam is not None:
            return f"MarkovChain(pi=({shown(self.pi.tolist())}), lam={self.lam:g})"
        return f"MarkovChain.of({self.tokens} x {self.tokens} matrix)"


def stationary_law(pi: Sequence[float] | np.ndarray) -> Law:
    """The law as an array, or the sentence that says what is wrong with it."""
    try:
        law = np.asarray(pi, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("pi", f"{shown(pi)}; a stationary law is a list of numbers") from None
    rule = "a stationary law has positive entries that sum to 1"
    if law.ndim != 1 or law.size < 2:
        raise InputError("pi", f"{shown(np.ravel(law).tolist())}; a law has at least two entries")
    values = law.tolist()
    if not np.isfinite(law).all():
        raise InputError("pi", f"{shown(values)} has a NaN or infinite entry; {rule}")
    if (law <= 0).any():
        worst = float(law.min())
        kind = "zero" if worst == 0 else "negative"
        raise InputError("pi", f"{shown(values)} has a {kind} entry ({worst:g}); {rule}")
    total = float(law.sum())
    if abs(total - 1) > 1e-9:
        hint = shown([round(x, 6) for x in (law / total).tolist()])
        rest = 1 - float(law[1:].sum())
        if rest > 0:  # often only the first entry is off
            hint = shown([round(rest, 6), *values[1:]])
        raise InputError("pi", f"{shown(values)} sums to {total:g}; {rule} (did you mean {hint}?)")
    return law / total


def row_stochastic(transition: Sequence[Sequence[float]] | np.ndarray) -> Transition:
    """The matrix as an array, or the sentence that says what is wrong with it."""
    try:
        matrix = np.array(transition, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("transition", "not a matrix of numbers; rows = current token") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 2:
        raise InputError("transition", f"shape {matrix.shape}; a square matrix of at least 2 x 2")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise InputError("transition", "a negative or non-finite entry; probabilities are >= 0")
    sums = matrix.sum(axis=1)
    if (np.abs(sums - 1) > 1e-9).any():
        row = int(np.argmax(np.abs(sums - 1)))
        raise InputError(
            "transition", f"row {row} sums to {sums[row]:g}; every row (current token) sums to 1"
        )
    reached = (matrix > 0) | np.eye(len(matrix), dtype=bool)
    for _ in range(len(matrix).bit_length()):  # squaring doubles the length of the paths
        reached = reached.astype(np.float32) @ reached.astype(np.float32) > 0
    if not reached.all():
        a, b = (int(i) for i in np.argwhere(~reached)[0])
        raise InputError(
            "transition", f"not irreducible: token {b} is never reached from token {a}"
        )
    return matrix / sums[:, None]


def _stationary(matrix: Transition) -> Law:
    """The left fixed vector, by elimination of one token after the other.

    Grassmann, Taksar and Heyman: nothing is subtracted, so that also the rarest token's
    probability is positive and right to the last digits (a least-squares solution is not).
    """
    rest = matrix.copy()
    for n in range(len(rest) - 1, 0, -1):
        rest[:n, n] /= rest[n, :n].sum()
        rest[:n, :n] += np.outer(rest[:n, n], rest[n, :n])
    law = np.ones(len(rest))
    for n in range(1, len(rest)):
        law[n] = law[:n] @ rest[:n, n]
    return law / law.sum()


def drawn(cumulated: Law, u: Float[np.ndarray, "draw"]) -> Int[np.ndarray, "draw"]:
    return np.minimum(np.searchsorted(cumulated, u, side="right"), len(cumulated) - 1)


def _xlogx(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.where(p > 0, p, 1.0))
