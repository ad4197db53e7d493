"""Mixture of linear classification (Def. 2.1 of the two-mixture paper): exact law and sampler."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown, whole


@final
@dataclass(frozen=True)
class Listing:
    """How many samples are listed at most: a limit of time and one of memory."""

    samples: int = 50_000
    """A gradient over so many takes a third of a second."""
    tokens: int = 4_000_000
    """All samples together: a gigabyte as vectors."""

    def most(self, length: int) -> int:
        """Samples of this length."""
        return min(self.samples, self.tokens // length)


LISTING = Listing()


@final
@dataclass(frozen=True)
class MixtureClassification:
    """K groups, L tokens: `c_k`, `y v_k`, and L - 2 distractors `eps v_k'` of other groups.

    The coordinates of a token are `c_k` = k and `v_k` = K + k (D = 2K; the orthonormal signals
    span all that the model sees). The label y is the sign of the group's own signal.

    >>> MixtureClassification(groups=2, length=3).count
    8
    """

    groups: int = 2
    length: int = 3

    def __post_init__(self) -> None:
        whole("groups", self.groups, least=2)
        whole("length", self.length, least=3)

    @property
    def dimension(self) -> int:
        """D = 2K, the number of signals."""
        return 2 * self.groups

    @property
    def count(self) -> int:
        """The number of distinct samples up to the order of tokens: 2K C(2(K-1)+L-3, L-2)."""
        kinds, distractors = 2 * (self.groups - 1), self.length - 2
        return 2 * self.groups * math.comb(kinds + distractors - 1, distractors)

    @property
    def population(self) -> MixturePopulation:
        """Every distinct sample with its probability."""
        if self.count > LISTING.most(self.length):
            raise InputError(
                "population",
                f"K = {self.groups}, L = {self.length} has {self.count:,} distinct samples, more "
                f"than {LISTING.most(self.length):,}; use the orbit form (orbits) or "
                "sample(n, seed)",
            )
        return _population(self)

    @property
    def orbits(self) -> MixturePopulation:
        """One sample per orbit of relabelling the groups and of the flip `v -> -v`, `y -> -y`.

        Its weight is the probability of the orbit. Where the model is symmetric (every group
        alike, the minus head the mirror of the plus head) a sample's loss is that of its
        representative, so losses and gradients along symmetric directions are exact.
        """
        return _orbits(self)

    def sample(self, samples: int, seed: int = 0) -> MixturePopulation:
        """Independent draws of Def. 2.1, weight 1/n each; `distinct()` merges equal ones.

        The model does not see the order of tokens; they come in the order of the population.
        """
        n, K = whole("samples", samples), self.groups
        rng = np.random.default_rng(seed)
        label = rng.choice([-1.0, 1.0], n)
        group = rng.integers(K, size=n)
        shift = rng.integers(1, K, size=(n, self.length - 2))
        sign = rng.choice([-1.0, 1.0], (n, self.length - 2))
        return _assemble(K, group, label, (group[:, None] + shift) % K, sign, np.full(n, 1 / n))


@final
@dataclass(frozen=True, eq=False)
class MixturePopulation:
    """Weighted samples: position 0 is the group token, 1 its classification signal, then the rest.

    A token is `sign * e_token`; distractors are sorted. Equal populations are equal as values, so
    that compiled functions and caches are shared.
    """

    groups: int
    token: Int[np.ndarray, "sample position"]
    sign: Float[np.ndarray, "sample position"]
    label: Float[np.ndarray, "sample"]
    weight: Float[np.ndarray, "sample"]
    agreement: Int[np.ndarray, "sample"]
    """d = y * (sum of distractor signs). K = 2, L = 3: +1 is consistent, -1 is conflicting."""
    representatives: bool = False
    """Whether each sample stands for its orbit under relabelling and sign (`orbits`)."""

    @property
    def dimension(self) -> int:
        """D = 2K."""
        return 2 * self.groups

    @property
    def length(self) -> int:
        """L, the number of tokens."""
        return self.token.shape[1]

    def __len__(self) -> int:
        return len(self.label)

    @functools.cached_property
    def inputs(self) -> Float[np.ndarray, "sample position coordinate"]:
        """X^T: the tokens as vectors."""
        return self.sign[..., None] * np.eye(self.dimension)[self.token]

    @property
    def bags(self) -> Float[np.ndarray, "sample coordinate"]:
        """The sum of the tokens: all that uniform attention sees."""
        return self.inputs.sum(axis=1)

    @property
    def agreements(self) -> list[int]:
        """The values that d takes, increasing."""
        return np.unique(self.agreement).tolist()

    def restricted(
        self, agreement: int | Sequence[int] | None = None, *, where: Any = None
    ) -> MixturePopulation:
        """The samples with these values of d (or where the mask is true), weights summing to 1.

        `restricted(agreement=-1)` at L = 3 are the conflicting samples of stage 2.
        """
        if (agreement is None) == (where is None):
            raise InputError("agreement", "give either values of d or where=, a mask of samples")
        keep = np.asarray(where)
        if agreement is not None:
            keep = np.isin(self.agreement, agreement)
        if keep.shape != self.label.shape or keep.dtype != bool:
            raise InputError(
                "where", f"{keep.dtype} of shape {keep.shape}; one boolean per sample ({len(self)})"
            )
        if not self.weight[keep].sum() > 0:
            raise InputError(
                "agreement" if where is None else "where",
                f"{shown(agreement if where is None else 'the mask')} leaves no samples; "
                f"d takes the values {shown(self.agreements)}",
            )
        weight = self.weight[keep] / self.weight[keep].sum()
        return replace(
            self,
            token=self.token[keep],
            sign=self.sign[keep],
            label=self.label[keep],
            weight=weight,
            agreement=self.agreement[keep],
        )

    def reweighted(self, weight: Any) -> MixturePopulation:
        """The same samples with other weights, which are normalised."""
        w = np.asarray(weight, dtype=np.float64)
        if w.shape != self.weight.shape or not (np.isfinite(w).all() and (w >= 0).all()):
            raise InputError(
                "weight", f"shape {w.shape}; one weight of at least 0 per sample ({len(self)})"
            )
        if not w.sum() > 0:
            raise InputError("weight", "all zero; at least one sample has a positive weight")
        return replace(self, weight=w / w.sum())

    def distinct(self) -> MixturePopulation:
        """Equal samples merged, their weights added."""
        key = np.concatenate([self.token, self.sign.astype(np.int64)], axis=1)
        _, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(inverse.ravel(), weights=self.weight)
        return replace(
            self,
            token=self.token[first],
            sign=self.sign[first],
            label=self.label[first],
            weight=weight,
            agreement=self.agreement[first],
        )

    def names(self) -> list[str]:
        """Each sample in words: `c1 +v1 -v2`."""
        K = self.groups

        def word(token: int, sign: float) -> str:
            return f"c{token + 1}" if token < K else f"{'+' if sign > 0 else '-'}v{token - K + 1}"

        return [
            " ".join(word(t, s) for t, s in zip(tokens, signs, strict=True))
            for tokens, signs in zip(self.token.tolist(), self.sign.tolist(), strict=True)
        ]

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        arrays = (self.token, self.sign, self.weight)
        return self.groups, self.representatives, *(a.tobytes() for a in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixturePopulation) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        kind = "orbits" if self.representatives else "samples"
        return f"MixturePopulation(K = {self.groups}, L = {self.length}, {len(self)} {kind})"


@functools.lru_cache(maxsize=32)
def _population(task: MixtureClassification) -> MixturePopulation:
    K, distractors = task.groups, task.length - 2
    kinds = [(g, s) for g in range(1, K) for s in (1.0, -1.0)]  # group relative to the sample's
    bags = list(combinations_with_replacement(range(len(kinds)), distractors))
    every = 2 * K * len(kinds) ** distractors
    chance = np.array([_orders(Counter(bag).values(), distractors) / every for bag in bags])
    shift = np.array([[kinds[i][0] for i in bag] for bag in bags])
    sign = np.array([[kinds[i][1] for i in bag] for bag in bags])
    group = np.repeat(np.arange(K), 2 * len(bags))
    label = np.tile(np.repeat([1.0, -1.0], len(bags)), K)
    shift, sign, chance = (
        np.tile(shift, (2 * K, 1)),
        np.tile(sign, (2 * K, 1)),
        np.tile(chance, 2 * K),
    )
    return _assemble(K, group, label, (group[:, None] + shift) % K, sign, chance)


@functools.lru_cache(maxsize=32)
def _orbits(task: MixtureClassification) -> MixturePopulation:
    """y = +1 in group 0; the distractors are a multiset of (n+, n-) pairs, one per other group."""
    K, distractors = task.groups, task.length - 2
    rows: list[tuple[list[int], list[float], float]] = []
    most = LISTING.most(task.length)
    # There are L - 1 with all distractors in one group: too many of those, and none is listed.
    for parts in _splits(distractors if most >= task.length else 0, K - 1, (distractors, 0)):
        if len(rows) == most or most < task.length:
            raise InputError(
                "length",
                f"{task.length}; samples of this length have more orbits than the {most:,} that "
                "are listed at most; shorter ones have fewer",
            )
        ways = math.perm(K - 1, len(parts)) // math.prod(
            math.factorial(n) for n in Counter(parts).values()
        )
        chance = ways * _orders([n for part in parts for n in part], distractors)
        group = [g for g, part in enumerate(parts, 1) for _ in range(sum(part))]
        sign = [s for plus, minus in parts for s in [1.0] * plus + [-1.0] * minus]
        rows.append((group, sign, chance / (2 * (K - 1)) ** distractors))
    group, sign, chance = (np.array(column) for column in zip(*rows, strict=True))
    zero, one = np.zeros(len(rows), dtype=int), np.ones(len(rows))
    return replace(_assemble(K, zero, one, group, sign, chance), representatives=True)


def _splits(
    total: int, most: int, largest: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Multisets of at most `most` non-zero pairs (n+, n-) with `total` in all, largest first."""
    if total == 0:
        yield ()
        return
    if most == 0:
        return
    for plus, minus in sorted(
        ((p, s - p) for s in range(1, total + 1) for p in range(s + 1)),
        key=lambda pair: (sum(pair), pair[0]),
        reverse=True,
    ):
        if (plus + minus, plus) <= (sum(largest), largest[0]):
            for rest in _splits(total - plus - minus, most - 1, (plus, minus)):
                yield ((plus, minus), *rest)


def _orders(counts: Any, total: int) -> int:
    """The multinomial coefficient: the number of orders of a multiset of tokens."""
    return math.factorial(total) // math.prod(math.factorial(n) for n in counts)


def _assemble(
    K: int,
    group: np.ndarray,
    label: np.ndarray,
    others: np.ndarray,
    sign: np.ndarray,
    weight: np.ndarray,
) -> MixturePopulation:
    """Samples from the group, the label, and the groups and signs of the distractors."""
    order = np.argsort(2 * others + (sign < 0), axis=1, kind="stable")
    others, sign = np.take_along_axis(others, order, 1), np.take_along_axis(sign, order, 1)
    token = np.concatenate([group[:, None], K + group[:, None], K + others], axis=1)
    signs = np.concatenate([np.ones((len(label), 1)), label[:, None], sign], axis=1)
    agreement = np.rint(label * sign.sum(axis=1)).astype(np.int64)
    return MixturePopulation(K, token.astype(np.int64), signs, label, weight, agreement)
