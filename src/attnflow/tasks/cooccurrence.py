"""Word co-occurrence (Def. 2.1 and Assumption 2.3 of the co-occurrence paper): law and samples."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown, whole

MOST = 2_000_000
"""Most sentences that are listed: their attention is then a gigabyte."""

Tokens = Literal["distinct", "within", "iid"]


@final
@dataclass(frozen=True)
class WordCooccurrence:
    """Sentences of `length` words: does every one of the `targets` occur?

    Each sentence has the common word once, the targets of its class once each, and irrelevant
    words, uniform with replacement, in its other places. A class is a subset of the targets,
    larger ones first, then in lexicographic order (two targets: both, first, second, none); only
    the full set is positive. `proportions` are the classes' probabilities; default 1/2 for the
    full set, the rest equal. Words are numbered: the targets, the common word, the irrelevant ones.

    >>> WordCooccurrence(length=5, vocab=64).needed(60, "distinct")
    163
    """

    length: int = 5
    vocab: int = 64
    targets: int = 2
    proportions: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        k = whole("targets", self.targets)
        if k > 8:
            raise InputError("targets", f"{k}; at most 8, which have 256 classes")
        if whole("length", self.length) < max(3, k + 1):
            raise InputError(
                "length",
                f"{self.length}; at least {max(3, k + 1)}: {k} targets and the common word",
            )
        whole("vocab", self.vocab)
        self._check_vocab(k + 2, "one irrelevant word")
        _ = self.law

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The subsets of the targets, the full set first."""
        return _classes(self.targets)

    @property
    def names(self) -> tuple[str, ...]:
        """`both`, `only 1`, `only 2`, `none`; `all`, `1 2` ... for other numbers of targets."""
        full = {1: "it", 2: "both"}.get(self.targets, "all")
        words = [" ".join(str(j + 1) for j in subset) for subset in self.classes[1:-1]]
        return (full, *(f"only {word}" for word in words), "none")

    @property
    def law(self) -> tuple[Fraction, ...]:
        """The classes' probabilities, as fractions."""
        count = len(self.classes)
        if not self.proportions:
            return (Fraction(1, 2), *[Fraction(1, 2 * (count - 1))] * (count - 1))
        given = self.proportions
        if len(given) != count:
            raise InputError(
                "proportions",
                f"{shown(given)} has {len(given)} entries; {self.targets} targets have {count} "
                "classes, the full set first",
            )
        if not all(np.isfinite(p) and p > 0 for p in given):
            raise InputError("proportions", f"{shown(given)}; every class has a positive share")
        if abs(sum(given) - 1) > 1e-6:
            raise InputError(
                "proportions", f"{shown(given)} sums to {sum(given):.6g}; class shares add up to 1"
            )
        parts = [Fraction(p).limit_denominator(10_000) for p in given]
        if sum(parts) != 1:  # rounded thirds: the rest is the last class's
            parts[-1] = Fraction(1) - sum(parts[:-1], Fraction(0))
        return tuple(parts)

    @property
    def label(self) -> Float[np.ndarray, "class"]:
        """+1 for the full set of targets, else -1."""
        return np.array([1.0] + [-1.0] * (len(self.classes) - 1))

    @property
    def relevant(self) -> Float[np.ndarray, "class word"]:
        """How often each target and the common word (last) occur in a sentence of a class."""
        rows = [[float(j in subset) for j in range(self.targets)] for subset in self.classes]
        return np.array([[*row, 1.0] for row in rows])

    @property
    def irrelevant(self) -> Int[np.ndarray, "class"]:
        """How many irrelevant words a sentence of each class has."""
        return np.array([self.length - 1 - len(subset) for subset in self.classes])

    @property
    def step(self) -> int:
        """The numbers of samples that Assumption 2.3 (i) allows are the multiples of this."""
        return math.lcm(*(p.denominator for p in self.law))

    def counts(self, samples: int) -> Int[np.ndarray, "class"]:
        """How many of n samples are of each class (Assumption 2.3 (i))."""
        n, step = whole("samples", samples), self.step
        if n % step:
            near = step * max(1, round(n / step))
            shares = ", ".join(map(str, self.law))
            raise InputError(
                "samples",
                f"{n}; the class shares {shares} make whole classes of a multiple of {step} "
                f"(the nearest is {near})",
            )
        return np.array([int(n * p) for p in self.law])

    def needed(self, samples: int, tokens: Tokens) -> int:
        """The smallest vocabulary: for all irrelevant words different, different within a
        sentence, or any."""
        least = self.targets + 1
        if tokens == "distinct":
            return least + int(self.counts(samples) @ self.irrelevant)
        return least + (int(self.irrelevant.max()) if tokens == "within" else 1)

    def training(self, samples: int, tokens: Tokens = "distinct", seed: int = 0) -> Sentences:
        """A training set with the classes in their exact proportions.

        `distinct`: no irrelevant word occurs twice in it (Assumption 2.3 (ii)); `within`: none
        twice in a sentence; `iid`: uniform with replacement, as in Def. 2.1.
        """
        if tokens not in ("distinct", "within", "iid"):
            raise InputError("tokens", f"{shown(tokens)}; distinct, within or iid")
        counts = self.counts(samples)
        words = {"distinct": "all irrelevant words different", "within": "none twice in a sentence"}
        self._check_vocab(self.needed(samples, tokens), words.get(tokens, "one irrelevant word"))
        kind = np.repeat(np.arange(len(counts)), counts)
        rng = np.random.default_rng(seed)
        first, rest = self.targets + 1, self.vocab - self.targets - 1
        sizes = self.irrelevant[kind]
        if tokens == "distinct":
            fill = np.split(first + np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        elif tokens == "within":
            fill = [first + rng.choice(rest, size, replace=False) for size in sizes]
        else:
            fill = [first + rng.integers(rest, size=size) for size in sizes]
        return self._sentences(kind, fill, np.full(len(kind), 1 / len(kind)))

    def sample(self, draws: int, seed: int = 0) -> Sentences:
        """Independent sentences of Def. 2.1, as many of each class, weighted by its probability."""
        each = -(-whole("draws", draws) // len(self.classes))  # rounded up
        rng = np.random.default_rng(seed)
        kind = np.repeat(np.arange(len(self.classes)), each)
        first, rest = self.targets + 1, self.vocab - self.targets - 1
        fill = [first + rng.integers(rest, size=(each, size)) for size in self.irrelevant]
        weight = np.array([float(p) / each for p in self.law])[kind]
        return self._sentences(kind, fill, weight)

    @property
    def count(self) -> int:
        """The number of different sentences up to the order of their words."""
        return self.bag_count(self.vocab - self.targets - 1)

    def bag_count(self, groups: int) -> int:
        """The number of kinds of sentences where irrelevant words of a group are alike."""
        return sum(math.comb(groups + size - 1, size) for size in self.irrelevant.tolist())

    @property
    def population(self) -> Sentences:
        """Every sentence up to the order of its words, which the model does not see."""
        if self.count > MOST:
            raise InputError(
                "population",
                f"vocab = {self.vocab}, length = {self.length} has {self.count:,} different "
                f"sentences, more than the {MOST:,} that are listed; sample(draws) draws some",
            )
        return _population(self)

    def bags(self, groups: Int[np.ndarray, "group"]) -> Bags:
        """Every sentence up to exchanging irrelevant words of one group; `groups` are their sizes.

        Exact where words of a group are alike to the model.
        """
        sizes = [int(g) for g in groups]
        count = self.bag_count(len(sizes))
        if count > MOST:
            raise InputError(
                "population",
                f"{len(sizes)} kinds of irrelevant words make {count:,} kinds of sentences, more "
                f"than the {MOST:,} that are listed; sample(draws) draws some",
            )
        share = np.array(sizes) / sum(sizes)
        kinds, used, chance = [], [], []
        for kind, (size, p) in enumerate(zip(self.irrelevant.tolist(), self.law, strict=True)):
            times, ways = _multisets(len(sizes), size)
            kinds.append(np.full(len(ways), kind))
            used.append(times)
            chance.append(float(p) * ways * np.prod(share**times, axis=1))
        return Bags(np.concatenate(kinds), np.concatenate(used), np.concatenate(chance))

    def _sentences(self, kind: np.ndarray, fill: Sequence[Any], weight: np.ndarray) -> Sentences:
        """The words of each sentence; `fill` are the irrelevant ones, by sentence or by class."""
        token = np.empty((len(kind), self.length), dtype=np.int64)
        by_class = len(fill) == len(self.classes) and np.ndim(fill[0]) == 2
        for c, subset in enumerate(self.classes):
            rows = kind == c
            token[rows, : len(subset)] = subset
            token[rows, len(subset)] = self.targets
            mine = fill[c] if by_class else [f for f, r in zip(fill, rows, strict=True) if r]
            token[rows, len(subset) + 1 :] = np.reshape(mine, (int(rows.sum()), self.irrelevant[c]))
        return Sentences(token, self.label[kind], weight, kind, self.vocab, self.targets)

    def _check_vocab(self, needed: int, why: str) -> None:
        if self.vocab < needed:
            raise InputError("vocab", f"{self.vocab}; {why} needs at least {needed} words")


@final
@dataclass(frozen=True)
class Bags:
    """Kinds of sentences: the class, how often each group of words occurs, the probability."""

    kind: Int[np.ndarray, "bag"]
    times: Int[np.ndarray, "bag group"]
    weight: Float[np.ndarray, "bag"]


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """Weighted sentences: word numbers by position, label, class.

    Equal sets are equal as values, so that compiled functions and caches are shared.
    """

    token: Int[np.ndarray, "sample position"]
    label: Float[np.ndarray, "sample"]
    weight: Float[np.ndarray, "sample"]
    kind: Int[np.ndarray, "sample"]
    vocab: int
    targets: int = 2

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, part: slice) -> Sentences:
        """Some of them, with the weights that they have among all."""
        arrays = ("token", "label", "weight", "kind")
        return replace(self, **{name: getattr(self, name)[part] for name in arrays})

    @property
    def length(self) -> int:
        return self.token.shape[1]

    @functools.cached_property
    def bags(self) -> Float[np.ndarray, "sample word"]:
        """How often each word occurs in each sentence: all that uniform attention sees."""
        found = np.zeros((len(self), self.vocab))
        for column in self.token.T:
            found[np.arange(len(self)), column] += 1
        return found

    @property
    def repeats(self) -> int:
        """How many sentences have a word twice."""
        return int((self.bags > 1).any(axis=1).sum())

    @functools.cached_property
    def membership(self) -> Float[np.ndarray, "class sample"]:
        """1 where a sample is of a class."""
        return (self.kind == np.arange(2**self.targets)[:, None]) * 1.0

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        arrays = (self.token, self.label, self.weight, self.kind)
        return self.vocab, self.targets, self.token.shape, *(a.tobytes() for a in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sentences) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Sentences({len(self)} of {self.length} words, vocabulary {self.vocab})"


@functools.cache
def _classes(k: int) -> tuple[tuple[int, ...], ...]:
    return tuple(s for size in range(k, -1, -1) for s in combinations(range(k), size))


@functools.lru_cache(maxsize=4)
def _population(task: WordCooccurrence) -> Sentences:
    rest, first = task.vocab - task.targets - 1, task.targets + 1
    fill, kinds, chance = [], [], []
    for kind, (size, p) in enumerate(zip(task.irrelevant.tolist(), task.law, strict=True)):
        rows = list(combinations_with_replacement(range(rest), size))
        words = np.array(rows, dtype=np.int64).reshape(len(rows), size)
        fill.append(first + words)
        kinds.append(np.full(len(words), kind))
        chance.append(float(p) * _orders(words) / rest**size)
    return task._sentences(np.concatenate(kinds), fill, np.concatenate(chance))


def _orders(words: Int[np.ndarray, "row place"]) -> Float[np.ndarray, "row"]:
    """In how many orders each row of sorted words can stand."""
    ways = np.full(len(words), float(math.factorial(words.shape[1])))
    run = np.ones(len(words))  # the length of the run of equal words that ends here
    for place in range(1, words.shape[1]):
        run = np.where(words[:, place] == words[:, place - 1], run + 1, 1.0)
        ways /= run
    return ways


def _multisets(groups: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each group occurs in each multiset of `size`, and the number of its orders."""
    rows = list(combinations_with_replacement(range(groups), size))
    times = np.zeros((len(rows), groups), dtype=np.int64)
    ways = np.empty(len(rows))
    for i, row in enumerate(rows):
        found = Counter(row)
        for group, n in found.items():
            times[i, group] = n
        ways[i] = math.factorial(size) / math.prod(math.factorial(n) for n in found.values())
    return times, ways
