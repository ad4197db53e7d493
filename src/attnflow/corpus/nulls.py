"""What a cosine would be without any syntax: null corpora, and the floor that sampling sets.

The matrices of `statistics.py` are close to rank one (frequency by frequency), so that a cosine
near 1 with one of them may need no more than word counts. Each cosine is therefore shown beside
four others of the same matrix: with itself on the token-shuffled corpus, with itself under a
permutation of the tokens, with the matrix of ones, and between two halves of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError
from attnflow.corpus.statistics import InMemory, Source, Statistics

TERMS = ("bigram", "context", "value", "g", "attention", "position")
"""The matrices that training is compared with."""

Array = Float[np.ndarray, "..."]
Windows = Int[np.ndarray, "sequence place"]


def norm(array: Array) -> float:
    """The Frobenius norm; entries are scaled by the largest before they are squared.

    Attention terms have entries of 1e-10, whose squares vanish in single precision.
    """
    array = np.asarray(array)
    largest = float(np.abs(array).max(initial=0.0))
    if not 0 < largest < np.inf:
        return largest
    scaled = (array / largest).ravel().astype(np.float64)
    return largest * float(np.sqrt(scaled @ scaled))


def cosine(one: Array, other: Array) -> float:
    """The cosine of the angle between two arrays of one shape; nan where one of them is zero."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        raise InputError("cosine", f"of arrays of shape {one.shape} and {other.shape}")
    sizes = [float(np.abs(a).max(initial=0.0)) for a in (one, other)]
    if not all(0 < size < np.inf for size in sizes):
        return float("nan")
    a, b = ((x / s).ravel().astype(np.float64) for x, s in zip((one, other), sizes, strict=True))
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1, 1))


def gain(found: Array, theory: Array) -> float:
    """`<found, theory> / <theory, theory>`: the length that a cosine hides."""
    return cosine(found, theory) * norm(found) / norm(theory)


def without(array: Array, null: Array) -> Array:
    """The part of an array that is orthogonal to a null of it."""
    size = norm(null)
    if not size:
        return array
    unit = null / size
    return array - np.vdot(unit, array) * unit


def residual_cosine(one: Array, other: Array, null: Array) -> float:
    """The cosine of what is left of two arrays when a null's direction is projected out of both."""
    return cosine(without(one, null), without(other, null))


def shuffled(windows: Windows, seed: int = 0) -> Windows:
    """The windows of the corpus whose tokens are shuffled: frequencies stay, all order is gone."""
    order = np.random.default_rng(seed).permutation(windows.ravel())
    return order.reshape(windows.shape)


def permuted(array: Array, seed: int = 0) -> Array:
    """The array with its tokens renamed at random, on both axes alike (lags: shuffled)."""
    order = np.random.default_rng(seed).permutation(len(array))
    return array[order] if array.ndim == 1 else array[np.ix_(order, order)]


def halves(windows: Windows) -> tuple[Int[np.ndarray, "even place"], Int[np.ndarray, "odd place"]]:
    """Every other window, and the rest: two corpora of one source."""
    if len(windows) < 2:
        raise InputError("windows", "1; two halves take at least 2")
    return windows[::2], windows[1::2]


def nulls(
    windows: Windows,
    theory: Statistics,
    names: Sequence[str] = TERMS,
    seed: int = 0,
    source: Callable[[Windows], Source] = InMemory,
) -> dict[str, dict[str, float]]:
    """For each statistic its cosine with its nulls, and between two halves of the corpus.

    `shuffled`, `permuted`, `ones`: a training run that reaches no more than these has shown
    nothing. `halves`: one that reaches this agrees as well as a sample of that size can tell.
    `source` says who counts the null corpora.
    """
    made = Statistics(source(shuffled(windows, seed)), theory.vocabulary)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for name in names:
        array = getattr(theory, name)
        found[name]["shuffled"] = cosine(array, getattr(made, name))
        found[name]["permuted"] = cosine(array, permuted(array, seed))
        found[name]["ones"] = cosine(array, np.ones_like(array))
        found[name]["halves"] = float("nan")
    del made  # its matrices, before those of the halves are made
    if len(windows) > 1:
        parts = (np.ascontiguousarray(half) for half in halves(windows))
        first, second = (Statistics(source(part), theory.vocabulary) for part in parts)
        for name in names:
            found[name]["halves"] = cosine(getattr(first, name), getattr(second, name))
    return found


def breakdown_time(theory: Statistics, layers: int = 1, threshold: float = 0.999) -> float:
    """When the output weight leaves its leading term, foreseen before training.

    `t_c = sqrt(6 tan(arccos c) / (L r))` with `r = |M - proj_B M| / |B|`, `M = B Phi Phi^T`: the
    term of order t^3 that the loop from values to outputs adds, at right angles to B.
    """
    if not 0 < threshold < 1:
        raise InputError("threshold", f"{threshold}; a cosine between 0 and 1")
    loop = theory.value.T @ theory.context.T
    apart = norm(without(loop, theory.bigram)) / norm(theory.bigram)
    if not apart:
        return float("inf")
    return float(np.sqrt(6 * np.tan(np.arccos(threshold)) / (layers * apart)))
