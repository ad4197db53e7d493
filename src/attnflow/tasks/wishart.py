"""Exact expectations of words in a sample covariance, by Wick's theorem.

`S = 1/n sum_i x_i x_i^T` with independent `x_i ~ N(0, Sigma)`. A word is a product of matrices of
which some are S: what layers of linear attention, or steps of descent, compute in context.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

Letter = str
"""`S`, the name of a fixed matrix, or that name with a prime: its transpose."""
Word = tuple[Letter, ...]
Words = tuple[Word, ...]
Polynomial = dict[Word, int]
"""A sum of words with whole coefficients: a matrix."""
SYMMETRIC = ("S", "Sigma", "Omega")


def mean_trace(terms: Polynomial, samples: int, letters: Mapping[Letter, Any]) -> Any:
    """`E tr(sum of coefficient * word)`, exact; `letters` holds Sigma and the other matrices.

    The matrices may be NumPy arrays or traced by JAX.

    >>> import numpy as np
    >>> float(mean_trace({("S", "S"): 1}, 4, {"Sigma": np.eye(2)}))  # 2 (1 + 1/4) + 2 * 2 / 4
    3.5
    """
    alphabet, levels, chosen, powers, times = _plan(tuple(terms.items()))
    xp = array_namespace(*letters.values())
    matrices = xp.stack([_letter(name, letters) for name in alphabet])
    values, words = [xp.ones(1)], None  # the 1 pads products of few traces
    for before, last, traced in levels:
        words = matrices[last] if words is None else words[before] @ matrices[last]
        values.append(xp.trace(words[traced], axis1=1, axis2=2))
    values = xp.concatenate(values)
    return (xp.prod(values[chosen], axis=1) * (times / float(samples) ** powers)).sum()


@functools.lru_cache(maxsize=32)
def _plan(terms: tuple[tuple[Word, int], ...]) -> tuple[Any, ...]:
    """How to compute the sum in a few batched products.

    All words are built letter by letter, those of one length at once: `levels` holds for each
    length the number of the word that is prolonged, its last letter, and which words are traced.
    `chosen` says which traces a term multiplies, with its power of 1/n and its factor.
    """
    total: dict[tuple[Words, int], int] = {}
    for word, coefficient in terms:
        for key, times in paired((canonical(word),)).items():
            total[key] = total.get(key, 0) + coefficient * times
    parts = {part for words, _ in total for part in words}
    alphabet = sorted({letter for part in parts for letter in part})
    levels, place, before = [], {}, {}
    for size in range(1, max(map(len, parts)) + 1):
        words = sorted({part[:size] for part in parts if len(part) >= size})
        traced = [i for i, word in enumerate(words) if word in parts]
        place |= {words[i]: len(place) + 1 + j for j, i in enumerate(traced)}
        prolonged = [before.get(word[:-1], 0) for word in words]
        last = [alphabet.index(word[-1]) for word in words]
        levels.append([np.array(row, dtype=np.int64) for row in (prolonged, last, traced)])
        before = {word: i for i, word in enumerate(words)}
    most = max(len(words) for words, _ in total)
    chosen = [([place[part] for part in words] + [0] * most)[:most] for words, _ in total]
    return alphabet, levels, *map(np.array, (chosen, [k for _, k in total], [*total.values()]))


@functools.cache
def paired(words: Words) -> dict[tuple[Words, int], int]:
    """`E prod_i tr(word_i)` as a sum over products of traces without S, by their power of 1/n.

    Take one `S = x x^T` and pair its left x (Wick, or integration by parts) with

    - its own right x: `tr(S R)` becomes `tr(Sigma R)`;
    - the x of another S in the same trace: `tr(S A S B)` becomes
      `1/n [tr(S B Sigma A^T) + tr(S A) tr(Sigma B)]`;
    - the x of an S in another trace: `tr(S R) tr(S B)` becomes
      `1/n [tr(S R Sigma B) + tr(S R Sigma B^T)]`.

    The 1/n is the chance that two S draw the same sample. Each step removes one S; states that are
    equal up to rotation and transposition are expanded once.
    """
    first = next((i for i, word in enumerate(words) if "S" in word), None)
    if first is None:
        return {(words, 0): 1}
    rest = words[:first] + words[first + 1 :]
    here = _rotated(words[first], words[first].index("S"))[1:]
    total: dict[tuple[Words, int], int] = {}
    _add(total, (("Sigma", *here), *rest), 0)
    for i in (i for i, letter in enumerate(here) if letter == "S"):
        a, b = here[:i], here[i + 1 :]
        _add(total, (("S", *b, "Sigma", *transposed(a)), *rest), 1)
        _add(total, (("S", *a), ("Sigma", *b), *rest), 1)
    for j, word in enumerate(rest):
        others = rest[:j] + rest[j + 1 :]
        for i in (i for i, letter in enumerate(word) if letter == "S"):
            b = _rotated(word, i)[1:]
            _add(total, (("S", *here, "Sigma", *b), *others), 1)
            _add(total, (("S", *here, "Sigma", *transposed(b)), *others), 1)
    return total


def _add(total: dict[tuple[Words, int], int], words: Words, power: int) -> None:
    for (parts, more), times in paired(tuple(sorted(map(canonical, words)))).items():
        key = parts, power + more
        total[key] = total.get(key, 0) + times


def product(*factors: Polynomial) -> Polynomial:
    """The product of sums of words, in this order."""
    total: Polynomial = {(): 1}
    for factor in factors:
        longer: Polynomial = {}
        for left, a in total.items():
            for right, b in factor.items():
                longer[left + right] = longer.get(left + right, 0) + a * b
        total = longer
    return total


def transpose(terms: Polynomial) -> Polynomial:
    return {transposed(word): coefficient for word, coefficient in terms.items()}


def transposed(word: Word) -> Word:
    return tuple(_prime(letter) for letter in reversed(word))


def canonical(word: Word) -> Word:
    """One word for all that have the same trace by rotation and transposition."""
    turns = range(max(len(word), 1))
    return min(_rotated(w, i) for w in (word, transposed(word)) for i in turns)


def _rotated(word: Word, i: int) -> Word:
    return word[i:] + word[:i]


def _prime(letter: Letter) -> Letter:
    if letter in SYMMETRIC:
        return letter
    return letter[:-1] if letter.endswith("'") else letter + "'"


def _letter(name: Letter, letters: Mapping[Letter, Any]) -> Any:
    return letters[name[:-1]].T if name.endswith("'") else letters[name]


def array_namespace(*arrays: Any) -> Any:
    """`jax.numpy` where an array is one of JAX's or traced by it, else NumPy."""
    foreign = [a for a in arrays if not isinstance(a, np.ndarray)]
    return foreign[0].__array_namespace__() if foreign else np
