"""A law of laws: every sequence has its own Markov chain, drawn with Dirichlet rows."""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown, whole
from attnflow.tasks.contexts import merge, radix_of, unpacked
from attnflow.tasks.markov import Law, drawn

if TYPE_CHECKING:
    import xarray as xr

MOST_NUMBERS = 50_000_000
"""Counts in the table of an exact law, or tokens in a population."""
MOST_TOKENS = 1000
MOST_WORK = 100_000_000
"""States times positions: a quarter of a minute."""


class Sequences(NamedTuple):
    """Every sequence of a length with its probability; the weights sum to 1."""

    tokens: Int[np.ndarray, "sequence position"]
    weights: Float[np.ndarray, "sequence"]


class CountTable(NamedTuple):
    """Contexts up to what the Bayes predictor sees of them, and the law of the next token.

    The weights are joint with the next token and sum to 1.
    """

    last: Int[np.ndarray, "row"]
    transitions: Int[np.ndarray, "row current next"]
    weights: Float[np.ndarray, "row next"]

    @property
    def seen(self) -> Int[np.ndarray, "row next"]:
        """How often each token followed the last one before."""
        return self.transitions[np.arange(len(self.last)), self.last]

    @property
    def tokens(self) -> Int[np.ndarray, "row token"]:
        """How often each token occurs: it was left again, or it is the last."""
        return (
            self.transitions.sum(axis=2) + np.eye(self.transitions.shape[1], dtype=int)[self.last]
        )


@final
class RandomChains:
    """Sequences of a Markov chain whose rows are independent, `P[i] ~ Dirichlet(alpha[i])`.

    `alpha` is a number, one vector for all rows, or a matrix `alpha[current, next]`; the first
    token is uniform unless `first` gives its law. The chain is drawn anew for every sequence, so
    it has to be learned in context, and the counts of transitions are all there is to learn from.
    A predictor's loss is `E[-log p(next token)]` in nats.

    >>> chains = RandomChains(2, alpha=1.0)
    >>> chains.losses(3)["bayes"].values.round(6)  # after 1, 2, 3 tokens
    array([0.693147, 0.664831, 0.621227])
    """

    tokens: int
    alpha: Float[np.ndarray, "current next"]
    first: Law

    def __init__(self, tokens: int, alpha: Any = 1.0, first: Any = None) -> None:
        self.tokens = whole("tokens", tokens, least=2)
        if self.tokens > MOST_TOKENS:
            raise InputError("tokens", f"{tokens:,}; at most {MOST_TOKENS:,}")
        self.alpha = _concentrations(alpha, self.tokens)
        self.first = _law(first, self.tokens)

    def predictive(
        self, last: Int[np.ndarray, "row"], transitions: Int[np.ndarray, "row current next"]
    ) -> Float[np.ndarray, "row next"]:
        """The Bayes predictor: `(count + alpha) / (total + sum of alpha)` in the last token's row.

        It is the law of the next token given the whole context: a row's posterior is
        Dirichlet(alpha + counts), and the other rows say nothing about it.
        """
        posterior = self.alpha[last] + transitions[np.arange(len(last)), last]
        return posterior / posterior.sum(axis=1, keepdims=True)

    def counts(self, length: int) -> CountTable:
        """The exact law of `length` tokens and the next one, up to (last token, counts)."""
        self._check_states(whole("length", length))
        return list(self._tables(length))[-1]

    def losses(self, length: int, mixing: float = 0.01) -> xr.Dataset:
        """The loss by `position`, the number of tokens seen, from 1 to `length`; exact.

        - `bayes`: of `predictive`, the least that is possible;
        - `bigram`: of the frequencies of what followed the last token (induction, no prior);
        - `unigram`: of the frequencies of the tokens so far, the last one included;
        - `uniform`: log of the number of tokens;
        - `known`: of one who knows the chain, the mean entropy of a posterior row.

        A token that was not seen has frequency 0, so `bigram` and `unigram` are mixed with a share
        of `mixing` of the uniform law (which is all where nothing was seen); with `mixing=0` their
        loss is infinite.
        """
        import xarray as xr

        if not (isinstance(mixing, int | float | np.number) and 0 <= mixing <= 1):
            raise InputError("mixing", f"{shown(mixing)}; a share from 0 to 1")
        self._check_states(whole("length", length))
        rows = [self._losses(table, mixing) for table in self._tables(length)]
        columns = {name: ("position", [row[name] for row in rows]) for name in rows[0]}
        return xr.Dataset(columns, {"position": np.arange(1, length + 1)})

    def population(self, length: int) -> Sequences:
        """Every sequence of `length` tokens with its probability."""
        K, length = self.tokens, whole("length", length)
        if length * K ** min(length, 64) > MOST_NUMBERS:
            raise InputError(
                "length",
                f"{length} tokens of {K} kinds make {K}^{length} sequences; at most "
                f"{MOST_NUMBERS // length:,}: take a shorter length, counts(length), or a sample",
            )
        tokens, weights = np.arange(K)[:, None], self.first
        for _ in range(length - 1):
            tokens = np.repeat(tokens, K, axis=0)
            onward = np.tile(np.arange(K), len(weights))
            last = tokens[:, -1]
            left = tokens[:, :-1] == last[:, None]
            pairs = (left & (tokens[:, 1:] == onward[:, None])).sum(axis=1)
            chance = (self.alpha[last, onward] + pairs) / (
                self.alpha.sum(axis=1)[last] + left.sum(axis=1)
            )
            weights = np.repeat(weights, K) * chance
            tokens = np.column_stack([tokens, onward])
        return Sequences(tokens, weights)

    def sample(
        self, sequences: int, length: int, seed: int = 0
    ) -> Int[np.ndarray, "sequence position"]:
        """Sequences of token ids, each of its own chain."""
        n, length = whole("sequences", sequences), whole("length", length)
        rng = np.random.default_rng(seed)
        steps = np.cumsum([rng.dirichlet(row, size=n) for row in self.alpha], axis=2)
        tokens = np.empty((n, length), dtype=np.int64)
        tokens[:, 0] = drawn(np.cumsum(self.first), rng.random(n))
        for position in range(1, length):
            row, u = steps[tokens[:, position - 1], np.arange(n)], rng.random(n)[:, None]
            tokens[:, position] = np.minimum((u >= row).sum(axis=1), self.tokens - 1)
        return tokens

    def _tables(self, length: int):
        """One table after another, for 1 to `length` tokens.

        States (last token, packed counts) are carried on by one token and merged. By the Bayes
        predictor their chance needs nothing else: the chain itself is integrated out.
        """
        K = self.tokens
        radix = radix_of(length, K * K).reshape(K, K)
        last, keys, mass = np.arange(K), np.zeros(K, dtype=radix.dtype), self.first
        for position in range(length):
            counts = unpacked(keys, radix.ravel(), length).reshape(-1, K, K)
            joint = mass[:, None] * self.predictive(last, counts)
            yield CountTable(last, counts, joint)
            if position + 1 < length:
                onward = np.broadcast_to(np.arange(K), joint.shape)
                keys, last, mass = merge(keys[:, None] + radix[last], onward, joint, K)

    def _losses(self, table: CountTable, mixing: float) -> dict[str, float]:
        from scipy.special import digamma

        p = table.weights
        bayes = self.predictive(table.last, table.transitions)
        posterior = self.alpha[table.last] + table.seen
        total = posterior.sum(axis=1)
        known = digamma(total + 1) - (bayes * digamma(posterior + 1)).sum(axis=1)
        return {
            "bayes": _cross_entropy(p, bayes),
            "bigram": _cross_entropy(p, _frequencies(table.seen, mixing)),
            "unigram": _cross_entropy(p, _frequencies(table.tokens, mixing)),
            "uniform": float(np.log(self.tokens)),
            "known": float(p.sum(axis=1) @ known),
        }

    def _check_states(self, length: int) -> None:
        """Refuse a length whose states may not fit.

        At most every sequence is a state of its own. And of the K^2 counts K follow from the rest
        (by their sum, and as every token is left as often as it is entered, but for the first and
        the last), so that there are at most K^2 C(length - 1 + K^2 - K, K^2 - K).
        """
        K, steps, free = self.tokens, length - 1, self.tokens**2 - self.tokens
        by_counts = lgamma(steps + free + 1) - lgamma(free + 1) - lgamma(steps + 1) + log(K)
        states = exp(min(log(K) + min(steps * log(K), by_counts), 700.0))  # no overflow
        most = min(MOST_NUMBERS // K**2, MOST_WORK // length)
        if states > most:
            raise InputError(
                "length",
                f"{length} tokens of {K} kinds may have {states:.3g} transition counts; at most "
                f"{most:,} at this length: take a shorter length, fewer tokens, or a sample",
            )

    def __repr__(self) -> str:
        alpha = np.unique(self.alpha)
        words = f"alpha {alpha[0]:g}" if len(alpha) == 1 else f"alpha {alpha[0]:g} to {alpha[-1]:g}"
        return f"RandomChains({self.tokens} tokens, {words})"


def _concentrations(alpha: Any, tokens: int) -> Float[np.ndarray, "current next"]:
    given = _numbers("alpha", alpha)
    if given.shape not in ((), (tokens,), (tokens, tokens)):
        raise InputError(
            "alpha", f"shape {given.shape}; a number, {tokens} of them, or {tokens} x {tokens}"
        )
    if not (given > 0).all():
        raise InputError("alpha", f"{shown(np.ravel(given).tolist())}; positive numbers")
    matrix = np.broadcast_to(given, (tokens, tokens)).copy()
    matrix.flags.writeable = False
    return matrix


def _law(first: Any, tokens: int) -> Law:
    law = np.full(tokens, 1 / tokens) if first is None else _numbers("first", first)
    if law.shape != (tokens,) or (law < 0).any() or abs(law.sum() - 1) > 1e-9:
        rule = f"{tokens} probabilities that sum to 1"
        raise InputError("first", f"{shown(np.ravel(law).tolist())}; {rule}")
    return law / law.sum()


def _numbers(field: str, given: Any) -> np.ndarray:
    try:
        numbers = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field, f"{shown(given)}; numbers are meant") from None
    if not np.isfinite(numbers).all():
        raise InputError(field, f"{shown(np.ravel(numbers).tolist())} has a NaN or infinite entry")
    return numbers


def _frequencies(counts: Int[np.ndarray, "row token"], mixing: float) -> np.ndarray:
    """Frequencies with a share of the uniform law; uniform where nothing was counted."""
    total, K = counts.sum(axis=1, keepdims=True), counts.shape[1]
    seen = np.where(total > 0, counts / np.maximum(total, 1), 1 / K)
    return (1 - mixing) * seen + mixing / K


def _cross_entropy(p: np.ndarray, q: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        logs = np.log(q)
    return float(-np.sum(p[p > 0] * logs[p > 0]))
