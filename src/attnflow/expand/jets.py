"""Exact partial derivatives of any order in NumPy: Taylor arithmetic in several variables.

Nothing is compiled, so a few derivatives of a small formula cost milliseconds where JAX compiles
for seconds; `expand.series` expands in one variable, time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import Any, no_type_check

import numpy as np


@no_type_check  # no shapes are said here, and the tests' checker would cost more than the sums
class Jet:
    """A value with all its partial derivatives up to an order: forward autodiff in NumPy.

    `c[..., a]` is the Taylor coefficient of the a-th monomial of `monomials(variables, order)`.

    >>> x, y = Jet.variables(np.array([2.0, 3.0]), order=2)
    >>> (x * x * y).derivative(2)
    array([[6., 4.],
           [4., 0.]])
    """

    def __init__(self, c: np.ndarray, variables: int, order: int):
        self.c, self.size, self.order = c, variables, order

    @classmethod
    def variables(cls, at: Sequence[float] | np.ndarray, order: int) -> Jet:
        """The coordinates themselves, as one jet of shape (variables,)."""
        at = np.asarray(at, dtype=np.float64)
        n = len(at)
        c = np.zeros((n, _table(n, order).count))
        c[:, 0] = at
        c[:, 1 : n + 1] = np.eye(n)
        return cls(c, n, order)

    def derivative(self, order: int) -> np.ndarray:
        """The full tensor of partial derivatives of that order, on the last axes."""
        places, factors = _table(self.size, self.order).tensor(order)
        return self.c[..., places] * factors

    @property
    def value(self) -> np.ndarray:
        return self.c[..., 0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.c.shape[:-1]

    @property
    def T(self) -> Jet:
        return self._like(np.swapaxes(self.c, 0, 1))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Jet:
        return self._like(self.c[(*(key if isinstance(key, tuple) else (key,)), ...)])

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: int) -> Jet:
        return self._like(self.c.reshape(*shape, self.c.shape[-1]))

    def sum(self, axis: int) -> Jet:
        return self._like(self.c.sum(axis=axis % len(self.shape)))

    def __neg__(self) -> Jet:
        return self._like(-self.c)

    def __add__(self, other: Any) -> Jet:
        return self._like(self.c + self._lift(other))

    def __sub__(self, other: Any) -> Jet:
        return self._like(self.c - self._lift(other))

    def __rsub__(self, other: Any) -> Jet:
        return -self + other

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return self._like(self.c * np.asarray(other, dtype=np.float64)[..., None])
        left, right, starts = _table(self.size, self.order).product
        terms = self.c[..., left] * other.c[..., right]
        return self._like(np.add.reduceat(terms, starts, axis=-1))

    def __truediv__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return self * (1 / np.asarray(other, dtype=np.float64))
        return self * other._through([(-1) ** k / other.value ** (k + 1) for k in self._orders])

    __radd__, __rmul__ = __add__, __mul__

    def exp(self) -> Jet:
        return self._through([np.exp(self.value) / math.factorial(k) for k in self._orders])

    def log(self) -> Jet:
        v = self.value
        tail = [(-1) ** (k + 1) / (k * v**k) for k in self._orders[1:]]
        return self._through([np.log(v), *tail])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        """NumPy's functions and operators on the left of a jet: `np.exp(jet)`, `array * jet`."""
        unary = {np.exp: Jet.exp, np.log: Jet.log, np.negative: Jet.__neg__}
        binary = {np.add: Jet.__radd__, np.multiply: Jet.__rmul__, np.subtract: Jet.__rsub__}
        if method == "__call__" and ufunc in unary:
            return unary[ufunc](inputs[0])
        if method == "__call__" and ufunc in binary:
            return binary[ufunc](inputs[1], inputs[0])
        return NotImplemented

    @property
    def _orders(self) -> range:
        return range(self.order + 1)

    @staticmethod
    def concatenate(parts: Sequence[Jet]) -> Jet:
        """Jets of the same variables end to end, along their first axis."""
        return parts[0]._like(np.concatenate([p.c for p in parts]))

    def _like(self, c: np.ndarray) -> Jet:
        return Jet(c, self.size, self.order)

    def _lift(self, other: Any) -> np.ndarray:
        if isinstance(other, Jet):
            return other.c
        value = np.asarray(other, dtype=np.float64)
        c = np.zeros((*value.shape, self.c.shape[-1]))
        c[..., 0] = value
        return c

    def _through(self, coefficients: list[np.ndarray]) -> Jet:
        """f(self) from the Taylor coefficients of f at the value, by Horner's rule."""
        rest = self._like(self.c.copy())
        rest.c[..., 0] = 0.0
        out = self._like(self._lift(coefficients[-1]))
        for a in reversed(coefficients[:-1]):
            out = out * rest + a
        return out


class _Table:
    """Monomials of several variables up to an order, and how they multiply."""

    def __init__(self, n: int, order: int):
        monomials = [
            m for k in range(order + 1) for m in combinations_with_replacement(range(n), k)
        ]
        self.n, self.place = n, {m: i for i, m in enumerate(monomials)}
        self.count = len(monomials)
        pairs = sorted(
            (self.place[tuple(sorted(a + b))], i, j)
            for i, a in enumerate(monomials)
            for j, b in enumerate(monomials)
            if len(a) + len(b) <= order
        )
        into, left, right = np.array(pairs).T
        self.product = left, right, np.searchsorted(into, np.arange(self.count))

    def tensor(self, order: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each partial derivative of an order stands, and its factorials."""
        shape = (self.n,) * order
        indices = [tuple(sorted(i)) for i in product(range(self.n), repeat=order)]
        places = np.array([self.place[i] for i in indices]).reshape(shape)
        factors = [math.prod(math.factorial(i.count(v)) for v in set(i)) for i in indices]
        return places, np.array(factors, dtype=np.float64).reshape(shape)


@lru_cache(maxsize=16)
def _table(n: int, order: int) -> _Table:
    return _Table(n, order)
