"""The weights of the first steps in closed form: leading terms, and what comes after them.

With the statistics of `attnflow.corpus` (B, Phi, K = Phi^T B^T, G = B^T B Phi, Q, Delta) and the
running sums `a = sum 1`, `b = sum a` (t and t^2/2 along a flow, s eta and C(s,2) eta^2 in steps):

    W_O = a B,    V_l = b K,    W_l = (sum a b) Q,    P_l = (sum a b) Delta

in every layer (Theorem 4.1, eqs. 204-207); `sum a b` is t^4/8, or (3 C(s,4) + 2 C(s,3)) eta^4.

The next orders follow from the same recursion, carried on: each is a list of matrices with running
sums (`Series`). Layers differ first in V at t^4 and in W at t^6: deep layers read what shallow ones
wrote (l - 1), shallow ones are read by deep ones (L - l).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnflow.corpus import Statistics, attention_term
from attnflow.expand.clock import Clock, Steps
from attnflow.models.attention_lm import Weights

Matrix = Float[np.ndarray, "row column"]
Series = dict[int, list[tuple[Any, Matrix]]]
"""Order in the rate -> running sums with the matrices that they multiply."""


def leading_coefficients(steps: int, rate: float) -> dict[str, float]:
    """`s eta`, `C(s,2) eta^2` and `(3 C(s,4) + 2 C(s,3)) eta^4` (eqs. 204-207)."""
    from math import comb

    fourth = (3 * comb(steps, 4) + 2 * comb(steps, 3)) * rate**4
    return {"W_O": steps * rate, "V": comb(steps, 2) * rate**2, "W": fourth, "P": fourth}


def flow_coefficients(time: float) -> dict[str, float]:
    """`t`, `t^2/2` and `t^4/8`: the limit of many small steps."""
    return {"W_O": time, "V": time**2 / 2, "W": time**4 / 8, "P": time**4 / 8}


def directions(found: Statistics) -> dict[str, np.ndarray]:
    """What the leading terms are multiples of: B, K, Q and Delta."""
    return {"W_O": found.bigram, "V": found.value, "W": found.attention, "P": found.position}


def repeated(of_one_layer: Mapping[str, np.ndarray], layers: int) -> Weights:
    """Weights whose layers are all alike."""
    return {
        name: np.array(m) if name == "W_O" else np.repeat(m[None], layers, axis=0)
        for name, m in of_one_layer.items()
    }


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of a training on these windows, to any of the known orders."""

    windows: Int[np.ndarray, "sequence place"]
    statistics: Statistics
    layers: int
    clock: Clock

    @classmethod
    def after(
        cls, windows: Any, statistics: Statistics, layers: int, steps: int, rate: float
    ) -> Terms:
        """After so many steps of gradient descent at one rate."""
        return cls(windows, statistics, layers, Steps.equal(steps, rate))

    def leading(self) -> Weights:
        """The leading term of every weight."""
        now, c = self.clock.now, self.coefficients
        size = {"W_O": now(c["W_O"]), "V": now(c["V"]), "W": now(c["W"]), "P": now(c["W"])}
        found = {name: size[name] * m for name, m in directions(self.statistics).items()}
        return repeated(found, self.layers)

    @cached_property
    def coefficients(self) -> dict[str, Any]:
        """The running sums of the leading terms, as functions of the clock."""
        a = self.clock.sum(self.clock.one)
        b = self.clock.sum(a)
        return {"W_O": a, "V": b, "W": self.clock.sum(a * b)}

    def upto(self, W_O: int = 3, V: int = 4, W: int = 6) -> Weights:
        """All terms up to an order in the rate of each weight (P as W)."""
        found = {"W_O": self._total(self.output, W_O)}
        layers = range(1, self.layers + 1)
        found["V"] = np.stack([self._total(self.values(l), V) for l in layers])
        both = [self._attention(l, W) for l in layers]
        found["W"] = np.stack([query_key for query_key, _ in both])
        found["P"] = np.stack([lag for _, lag in both])
        return found

    def _total(self, series: Series, order: int) -> np.ndarray:
        parts = [self.clock.now(f) * m for n, s in series.items() if n <= order for f, m in s]
        return np.sum(parts, axis=0)

    # --- The recursion, order by order.

    @cached_property
    def output(self) -> Series:
        """W_O: the residual `Y - U`, its softmax to second order, and what V adds to the stream."""
        s, up = self.statistics, self.clock.sum
        B, Phi, D, size = s.bigram, s.context, s.unigram[:, None], s.vocabulary
        a, b = self.coefficients["W_O"], self.coefficients["V"]
        return {
            1: [(a, B)],
            2: [(b * (-1 / size), D * B)],
            3: [
                (up(b) * self.layers, B @ Phi @ Phi.T),
                (up(b) * (1 / size**2), D**2 * B),
                (up(a * a) * (-0.5 / size), D * self._squares),
            ],
        }

    @cached_property
    def _squares(self) -> Matrix:
        """B∘B less its row means: the second order of a softmax."""
        squares = self.statistics.bigram**2
        return squares - squares.mean(axis=1, keepdims=True)

    @cached_property
    def residual(self) -> Series:
        """How predictions change, by current token: `R = Y - U + X (first + second order)`."""
        a, size = self.coefficients["W_O"], self.statistics.vocabulary
        found = {n: [(f * (-1 / size), m) for f, m in self.output[n]] for n in (1, 2)}
        found[2].append((a * a * (-0.5 / size), self._squares))
        return found

    def values(self, layer: int) -> Series:
        """V of a layer (counted from 1): `dV = Phi^T W_O^T + C0 R W_O^T + other layers`."""
        s, a, b = self.statistics, self.coefficients["W_O"], self.coefficients["V"]
        Phi, C0 = s.context, s.current_context
        pushed: Series = {n: [(f, Phi.T @ m.T) for f, m in self.output[n]] for n in (1, 2, 3)}
        for i, j in ((1, 1), (1, 2), (2, 1)):
            for f, r in self.residual[i]:
                pushed[i + j] += [(f * g, C0 @ r @ m.T) for g, m in self.output[j]]
        K, B, Phi2 = s.value, s.bigram, s.context2
        pushed[3].append((a * b * (layer - 1.0), K.T @ Phi2.T @ B.T))
        pushed[3].append((a * b * (self.layers - float(layer)), Phi2.T @ B.T @ K.T))
        return {n + 1: [(self.clock.sum(f), m) for f, m in terms] for n, terms in pushed.items()}

    # --- Attention: every order is the same kernel with another table.

    def _attention(self, layer: int, order: int) -> tuple[np.ndarray, np.ndarray]:
        """W and P of a layer: `Q[table]` of the products `W_O^T V^T`, and of other layers."""
        now, up = self.clock.now, self.clock.sum
        V = self.values(layer)
        seen = _joined(self.output, V, order - 1)
        tables = {"next": _table(now, up, seen)}
        current = [
            (f * g, r @ m)
            for i, rows in self.residual.items()
            for f, r in rows
            for j, products in seen.items()
            if i + j <= order - 1
            for g, m in products
        ]
        tables["current"] = _table(now, up, {0: current})
        query_key, lag = (0.0, 0.0)
        for labels, table in tables.items():
            if table is not None:
                more = attention_term(self.windows, table, labels)
                query_key, lag = query_key + more[0], lag + more[1]
        if order >= 6 and self.layers > 1:
            a, b = self.coefficients["W_O"], self.coefficients["V"]
            size = now(up(a * b * b))
            below, above = self._other_layers
            query_key = query_key + size * (
                (layer - 1) * below[0] + (self.layers - layer) * above[0]
            )
            lag = lag + size * ((layer - 1) * below[1] + (self.layers - layer) * above[1])
        return np.asarray(query_key), np.asarray(lag)

    @cached_property
    def _other_layers(self) -> tuple[tuple[Matrix, np.ndarray], tuple[Matrix, np.ndarray]]:
        """The t^6 terms of W and P that one layer below, and one above, add.

        Below: queries and keys read `A0 X K`, so S is spread over prefixes on either side
        (`K^T X^T A0^T S X + X^T S A0 X K`), and the values are read at such a key
        (`S[M A0^T]`, M[t, j] = H[y_t, x_j], H = B^T K^T K^T). Above: a place is also read by
        later ones, so that their labels count (`S[A0^T M]`).
        """
        s, K = self.statistics, self.statistics.value
        H, size = s.bigram.T @ K.T @ K.T, s.vocabulary
        left, right = np.zeros((size, size)), np.zeros((size, size))
        below, above = np.zeros((size, size)), np.zeros((size, size))
        lags_below, lags_above = np.zeros((2, s.length))
        A0 = np.tri(s.length) / np.arange(1, s.length + 1)[:, None]
        lag = np.maximum(np.subtract.outer(np.arange(s.length), np.arange(s.length)), 0).ravel()
        for row in self.windows:
            x, y = row[:-1], row[1:]
            places = (x[:, None] * size + x[None]).ravel()

            def pairs(S: np.ndarray, places: np.ndarray = places) -> Matrix:
                return np.bincount(places, S.ravel(), size * size).reshape(size, size)

            S, M = _centred(A0, s.g[np.ix_(y, x)]), H[np.ix_(y, x)]
            left += pairs(A0.T @ S)
            right += pairs(S @ A0)
            read, later = _centred(A0, M @ A0.T), _centred(A0, A0.T @ M)
            below += pairs(read)
            above += pairs(later)
            lags_below += np.bincount(lag, read.ravel(), s.length)
            lags_above += np.bincount(lag, later.ravel(), s.length)
        n = s.positions
        return (((K.T @ left + right @ K + below) / n, lags_below / n), (above / n, lags_above / n))


def _centred(A0: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Through the softmax at uniform attention: `S = A0 * (M - mean over the prefix)`."""
    met = A0 * M
    return met - A0 * met.sum(axis=1, keepdims=True)


def _joined(output: Series, values: Series, order: int) -> Series:
    """`W_O^T V^T`, by order."""
    found: Series = {}
    for i, left in output.items():
        for j, right in values.items():
            if i + j <= order:
                terms = [(f * g, m.T @ v.T) for f, m in left for g, v in right]
                found.setdefault(i + j, []).extend(terms)
    return found


def _table(now: Any, up: Any, series: Series) -> Matrix | None:
    parts = [now(up(f)) * m for terms in series.values() for f, m in terms]
    return np.sum(parts, axis=0) if parts else None
