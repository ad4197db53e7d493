"""Padé continuation of a series, entry by entry, robust to noise and to exact rational cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.layout import Layout, Params


@dataclass(frozen=True)
class Continuation:
    """`p(t) / q(t)` for every entry, with `q(0) = 1`.

    Where the data do not determine a denominator (a polynomial entry, a frozen one, noise) the
    entry is its Taylor polynomial. `pole` is the first time at which some entry's denominator
    vanishes: a true blow-up or an artefact, and in both cases the end of what can be believed.
    """

    numerator: Float[np.ndarray, "m parameter"] = field(repr=False)
    denominator: Float[np.ndarray, "n parameter"] = field(repr=False)
    unit: float
    """The unit of time of the two polynomials."""
    rational: float
    """Share of the entries that have a denominator."""
    pole: float
    _layout: Layout = field(repr=False)

    @float64
    def __call__(self, t: float) -> Params:
        """The parameters at time t."""
        if not np.isfinite(t):
            raise InputError("t", f"{t}; a finite time")
        x = float(t) / self.unit
        p = np.polynomial.polynomial.polyval(x, self.numerator)
        q = np.polynomial.polynomial.polyval(x, self.denominator)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._layout.numpy(np.asarray(p / q))


def continued(
    coefficients: np.ndarray, rounding: np.ndarray, m: int, n: int, unit: float, layout: Layout
) -> Continuation:
    """The [m/n] approximant of every column of `coefficients[order, parameter]`.

    The denominator is the null vector of the n x (n+1) Toeplitz block of coefficients, by SVD;
    where that block has lower rank, the degrees shrink until the vector is unique.
    """
    c = np.where(np.abs(coefficients) > 8 * rounding, coefficients, 0.0)
    c = c * unit ** np.arange(len(c), dtype=float)[:, None]
    size = c.shape[1]
    p, q = np.zeros((max(m, len(c) - 1) + 1, size)), np.zeros((n + 1, size))
    p[: len(c)], q[0] = c, 1.0
    level = np.abs(c).max(axis=0)
    todo = np.flatnonzero(level > 0)
    degrees = np.tile([m, n], (size, 1))
    while todo.size:
        again = []
        for a, b in {tuple(d) for d in degrees[todo].tolist()}:
            if b < 1 or a < 0:
                continue  # nothing left to determine: the Taylor polynomial stays
            here = todo[(degrees[todo] == [a, b]).all(axis=1)]
            block = _toeplitz(c[:, here] / level[here], a, b)
            _, s, vt = np.linalg.svd(block)
            rank = (s > 1e-12).sum(axis=1)
            good = rank == b
            vector = vt[:, -1].T  # [n+1, entry]
            good &= np.abs(vector[0]) > 1e-10 * np.abs(vector).max(axis=0)
            vector = vector[:, good] / vector[0, good]
            # The solution is regular well inside the radius of convergence: a pole there is noise.
            good[np.flatnonzero(good)[_vanishes(vector)]] = False
            rank = np.where(good, b, np.minimum(rank, b - 1))
            at = here[good]
            q[:, at] = 0.0
            q[: b + 1, at] = vector[:, ~_vanishes(vector)]
            p[:, at] = 0.0
            for k in range(a + 1):
                p[k, at] = sum(q[j, at] * c[k - j, at] for j in range(min(k, b) + 1))
            less = here[~good]
            degrees[less, 0] -= b - rank[~good]
            degrees[less, 1] = rank[~good]
            again.append(less)
        todo = np.concatenate(again) if again else np.empty(0, int)
    rational = float(np.mean(np.abs(q[1:]).max(axis=0, initial=0.0) > 0))
    return Continuation(p, q, unit, rational, unit * _first_pole(q), layout)


def _toeplitz(c: np.ndarray, m: int, n: int) -> Any:
    """`[entry, row, column] -> c[m+1+row-column]`, zero before the first coefficient."""
    index = m + 1 + np.arange(n)[:, None] - np.arange(n + 1)[None, :]
    rows = np.where(index[..., None] >= 0, c[np.maximum(index, 0)], 0.0)
    return np.moveaxis(rows, -1, 0)


def _vanishes(q: np.ndarray) -> np.ndarray:
    """Which denominators (columns, 1 at 0) pass through 0 within 0.7 of the unit of time."""
    times = np.linspace(0, 0.7, 101)
    low = np.min([np.polynomial.polynomial.polyval(x, q) for x in times], axis=0)
    return low <= 0


def _first_pole(q: np.ndarray) -> float:
    """The first of many times up to 100 units at which some denominator has passed through 0."""
    before = 0.0
    for x in np.geomspace(1e-2, 1e2, 400):
        crossed = np.polynomial.polynomial.polyval(x, q) <= 0
        if crossed.any():
            here = q[:, crossed]
            for _ in range(50):
                middle = 0.5 * (before + x)
                hit = (np.polynomial.polynomial.polyval(middle, here) <= 0).any()
                before, x = (before, middle) if hit else (middle, x)
            return x
        before = x
    return float("inf")
