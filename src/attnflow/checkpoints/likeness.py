"""How alike two tables over the same tokens are: the cosine of their row covariances.

For a table S with rows centred over their columns, `C = S S^T`; `cos = <C, C'> / (|C| |C'|)`, and
`cka` the same after the mean row is subtracted on both sides (linear CKA). No token x token matrix
is built: with `S = L R` and L [token, width], everything is a product of width x width matrices,

    <S S^T, H H^T> = tr(R^T P R),    P = (L^T H)(L^T H)^T,
    |S S^T|^2      = |G^(1/2) R R^T G^(1/2)|^2 = tr(R R^T G R R^T G),    G = L^T L.

The sides of a form are computed once a layer, and a head costs a few small products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Table = Float[np.ndarray, "token column"]
Square = Float[np.ndarray, "width width"]


def rows_of_theory(theory: Table) -> Table:
    """Rows scaled to unit length and then centred over their columns; zero rows stay zero."""
    size = np.abs(theory).max(axis=1, keepdims=True)  # first: entries of 1e-160 have no square
    scaled = np.divide(theory, size, out=np.zeros_like(theory), where=size > 0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit = np.divide(scaled, length, out=scaled, where=length > 0)
    return unit - unit.mean(axis=1, keepdims=True)


@dataclass(frozen=True)
class Prepared:
    """A theory ready to be compared: its rows, their mean taken out, and the covariances' norms."""

    rows: Table
    norm: float
    centred_norm: float

    @classmethod
    def of(cls, theory: Table) -> Prepared:
        return cls.covering(rows_of_theory(np.asarray(theory, dtype=float)))

    @classmethod
    def covering(cls, rows: Table) -> Prepared:
        """Rows as they are (the all-ones covariance has one column of ones)."""
        return cls(rows, covariance_norm(rows), covariance_norm(rows - rows.mean(axis=0)))


def covariance_norm(rows: Table) -> float:
    """`|H H^T|`, by the smaller of the two Gram matrices."""
    gram = rows.T @ rows if rows.shape[1] <= rows.shape[0] else rows @ rows.T
    return float(np.linalg.norm(gram))


@dataclass(frozen=True)
class Side:
    """One side of tables over the tokens, `S = left R`, against theories of the same tokens."""

    left: Table
    _gram: Square
    _centred_gram: Square

    @classmethod
    def of(cls, left: Table) -> Side:
        middle = left - left.mean(axis=0)
        return cls(left, left.T @ left, middle.T @ middle)

    def against(self, theory: Prepared) -> tuple[Square, Square]:
        """`P` of a theory, and P with the mean row taken out of both."""
        plain = self.left.T @ theory.rows
        # Taking the mean out of one of the two is enough: the centring is a projection.
        centred = plain - np.outer(self.left.mean(axis=0), theory.rows.sum(axis=0))
        return plain @ plain.T, centred @ centred.T

    def likeness(
        self, right: Square, theory: Prepared, against: tuple[Square, Square]
    ) -> tuple[float, float]:
        """`(cos, cka)` of the table `left R`, where `right = R R^T`."""
        found = []
        grams, norms = (self._gram, self._centred_gram), (theory.norm, theory.centred_norm)
        for gram, product, norm in zip(grams, against, norms, strict=True):
            inner = float(np.sum(product * right))
            half = right @ gram
            own = float(np.sum(half * half.T))
            found.append(_ratio(inner, np.sqrt(max(own, 0.0)) * norm))
        return found[0], found[1]


def likeness(table: Table, theory: Float[np.ndarray, "token theory"]) -> tuple[float, float]:
    """`(cos, cka)` of any table (rows are centred over their columns) with a theory."""
    centred = table - table.mean(axis=1, keepdims=True)
    ready, side = Prepared.of(theory), Side.of(centred)
    return side.likeness(np.eye(table.shape[1]), ready, side.against(ready))


def score_right(form: Square, rows: Table) -> Square:
    """`R R^T` of `S = X qk X^T` with rows centred: `qk (X - mean)^T (X - mean) qk^T`."""
    middle = rows - rows.mean(axis=0)
    return form @ (middle.T @ middle) @ form.T


def written_right(form: Square) -> Square:
    """`R R^T` of `S = X ov` with rows centred over the width."""
    centred = form - form.mean(axis=1, keepdims=True)
    return centred @ centred.T


def _ratio(inner: float, size: float) -> float:
    """0 where a covariance vanishes: nothing is like nothing."""
    return float(np.clip(inner / size, -1.0, 1.0)) if size > 0 and np.isfinite(size) else 0.0
