"""Loops over token ids, compiled by numba on first use: every statistic of a set of windows.

A window is a row of T + 1 token ids; position t = 1..T reads the input `x_t = row[t-1]`, has the
label `y_t = row[t]`, and attends to the inputs x_1..x_t. Uniform attention is `A0[t, j] = 1/t`.
Nothing of size T x V or T x T is ever formed. The prefix x_1..x_t is kept as its *distinct* tokens
with their multiplicities, which is exact and, in natural text, half the work or less.

All outputs are plain sums over windows, so that those of parts of a corpus add up to those of
the whole. `statistics.py` divides them by the number of positions and centres them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int64

from attnflow._errors import InputError

Windows = Int[np.ndarray, "sequence place"]
Square = Float64[np.ndarray, "row column"]

LABELS = ("next", "current")


def bigram(windows: Windows, vocabulary: int) -> Int64[np.ndarray, "current next"]:
    """How often each token follows each: `sum_t [x_t = a, y_t = b]`."""
    counts = np.zeros((vocabulary, vocabulary), np.int64)
    compiled(_bigram)(checked(windows, vocabulary), counts)
    return counts


def context(windows: Windows, vocabulary: int) -> Float64[np.ndarray, "next context"]:
    """The average prefix of each label: `sum_t sum_{j<=t} [y_t = a, x_j = b] / t`."""
    sums = np.zeros((vocabulary, vocabulary))
    compiled(_context)(checked(windows, vocabulary), 1, sums)
    return sums


def current_context(windows: Windows, vocabulary: int) -> Float64[np.ndarray, "current context"]:
    """The average prefix of each input: `sum_t sum_{j<=t} [x_t = a, x_j = b] / t`."""
    sums = np.zeros((vocabulary, vocabulary))
    compiled(_context)(checked(windows, vocabulary), 0, sums)
    return sums


def context2(windows: Windows, vocabulary: int) -> Float64[np.ndarray, "next context"]:
    """The same with uniform attention applied twice, `A0^2[t, j] = (H_t - H_{j-1}) / t`."""
    sums = np.zeros((vocabulary, vocabulary))
    compiled(_context2)(checked(windows, vocabulary), sums)
    return sums


def attention(
    windows: Windows, table: Square, labels: str = "next", form: str = "distinct"
) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "lag"]]:
    """`sum X^T S X`, and the sums of S along its diagonals, for `table[label, context]`.

    `S[t, j] = (table[y_t, x_j] - mean_{k<=t} table[y_t, x_k]) / t` for j <= t. With
    `labels="current"`, x_t stands in place of y_t. `form="pairs"` goes through every (t, j)
    one by one: the same numbers, slower, and the plainest check of the other.
    """
    size = len(table)
    if table.shape != (size, size):
        raise InputError("table", f"has the shape {table.shape}; [label, context] is square")
    if labels not in LABELS:
        raise InputError("labels", f"{labels!r}; one of {', '.join(LABELS)}")
    windows = checked(windows, size)
    table = np.ascontiguousarray(table, np.float64)
    query_key, lag = np.zeros((size, size)), np.zeros(windows.shape[1] - 1)
    loop = {"distinct": _attention_distinct, "pairs": _attention_pairs}[form]
    compiled(loop)(windows, int(labels == "next"), table, query_key, lag)
    return query_key, lag


def cooccurrence(
    windows: Windows, vocabulary: int, reach: int
) -> Float64[np.ndarray, "current context"]:
    """Tokens near each other, as GloVe counts them: `sum_{m=1..reach} [x_t = a, x_{t-m} = b] / m`.

    Labels are tokens as well here: the whole row of T + 1 is counted.
    """
    sums = np.zeros((vocabulary, vocabulary))
    compiled(_cooccurrence)(checked(windows, vocabulary), reach, sums)
    return sums


def checked(windows: Windows, vocabulary: int) -> np.ndarray:
    """The windows as the loops read them: compiled code does not look where it writes."""
    windows = np.asarray(windows)
    if windows.ndim != 2 or windows.shape[1] < 2 or not len(windows):
        raise InputError(
            "windows", f"of shape {windows.shape}; rows of at least 2 tokens, at least one row"
        )
    if windows.dtype.kind not in "iu":
        raise InputError("windows", f"of {windows.dtype}; whole numbers")
    if windows.min() < 0 or windows.max() >= vocabulary:
        wrong = windows[(windows < 0) | (windows >= vocabulary)][0]
        raise InputError("windows", f"have the token id {wrong}; 0 to {vocabulary - 1}")
    return np.ascontiguousarray(windows, np.int32)


@functools.cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """A loop of this package as machine code, kept on the disk between processes."""
    try:
        import numba
    except ImportError:
        raise InputError(
            "corpus", "its statistics need the extra: pip install 'attnflow[corpus]'"
        ) from None
    # Whoever checks shapes at run time has wrapped the loop; the compiler wants the loop itself.
    return numba.njit(cache=True, nogil=True, boundscheck=False)(inspect.unwrap(loop))


def _bigram(windows, counts):
    rows, places = windows.shape
    for n in range(rows):
        for t in range(places - 1):
            counts[windows[n, t], windows[n, t + 1]] += 1


def _context(windows, ahead, sums):
    rows, places = windows.shape
    slot = np.full(len(sums), -1, np.int32)  # token -> its number among the distinct ones
    distinct = np.empty(places, np.int32)
    times = np.zeros(places)
    for n in range(rows):
        count = 0
        for t in range(places - 1):
            token = windows[n, t]
            if slot[token] < 0:
                slot[token] = count
                distinct[count] = token
                times[count] = 0.0
                count += 1
            times[slot[token]] += 1.0
            share = 1.0 / (t + 1)
            row = sums[windows[n, t + ahead]]
            for d in range(count):
                row[distinct[d]] += times[d] * share
        for d in range(count):
            slot[distinct[d]] = -1


def _context2(windows, sums):
    rows, places = windows.shape
    slot = np.full(len(sums), -1, np.int32)
    distinct = np.empty(places, np.int32)
    times = np.zeros(places)
    before = np.zeros(places)  # sum of H_{j-1} over the places of a token
    harmonic = np.zeros(places)
    for t in range(1, places):
        harmonic[t] = harmonic[t - 1] + 1.0 / t
    for n in range(rows):
        count = 0
        for t in range(places - 1):
            token = windows[n, t]
            if slot[token] < 0:
                slot[token] = count
                distinct[count] = token
                times[count] = before[count] = 0.0
                count += 1
            times[slot[token]] += 1.0
            before[slot[token]] += harmonic[t]
            share = 1.0 / (t + 1)
            row = sums[windows[n, t + 1]]
            for d in range(count):
                row[distinct[d]] += (times[d] * harmonic[t + 1] - before[d]) * share
        for d in range(count):
            slot[distinct[d]] = -1


def _attention_distinct(windows, ahead, table, query_key, lag):
    rows, places = windows.shape
    length = places - 1
    slot = np.full(len(table), -1, np.int32)
    distinct = np.empty(length, np.uint32)  # unsigned: an index that is never from the end
    times = np.zeros(length)
    number = np.empty(length, np.uint32)  # place -> number of its token among the distinct ones
    score = np.empty(length)
    age = np.zeros(length)  # sums by lag, the longest first, so that a prefix is read forwards
    lost = np.zeros(length)  # by lag: what rounding has lost (windows nearly cancel each other)
    for n in range(rows):
        count = 0
        for t in range(length):
            token = windows[n, t]
            if slot[token] < 0:
                slot[token] = count
                distinct[count] = token
                times[count] = 0.0
                count += 1
            number[t] = slot[token]
            times[slot[token]] += 1.0
            share = 1.0 / (t + 1)
            row = table[windows[n, t + ahead]]
            mean = 0.0
            for d in range(count):
                score[d] = row[distinct[d]]
                mean += times[d] * score[d]
            mean *= share
            rest = 0.0
            for d in range(count):
                score[d] -= mean
                rest += times[d] * score[d]
            rest *= share  # what rounding has left of the mean
            for d in range(count):
                score[d] = (score[d] - rest) * share
            into = query_key[token]
            for d in range(count):
                into[distinct[d]] += times[d] * score[d]
            shift = length - 1 - t
            for j in range(t + 1):
                age[shift + j] += score[number[j]]
        for d in range(count):
            slot[distinct[d]] = -1
        for m in range(length):
            add = age[length - 1 - m] - lost[m]
            total = lag[m] + add
            lost[m] = (total - lag[m]) - add
            lag[m] = total
            age[length - 1 - m] = 0.0


def _attention_pairs(windows, ahead, table, query_key, lag):
    rows, places = windows.shape
    for n in range(rows):
        for t in range(places - 1):
            row, into = table[windows[n, t + ahead]], query_key[windows[n, t]]
            mean = 0.0
            for j in range(t + 1):
                mean += row[windows[n, j]]
            mean /= t + 1
            for j in range(t + 1):
                score = (row[windows[n, j]] - mean) / (t + 1)
                into[windows[n, j]] += score
                lag[t - j] += score


def _cooccurrence(windows, reach, sums):
    rows, places = windows.shape
    for n in range(rows):
        for t in range(places):
            into = sums[windows[n, t]]
            for m in range(1, min(reach, t) + 1):
                into[windows[n, t - m]] += 1.0 / m
