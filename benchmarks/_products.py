"""Products of n scalar factors: the exact way out of the origin, to judge a saddle ledger by.

The flow of `L = (w_1 ... w_n - 1)^2 / 2` keeps every `w_i^2 - w_j^2`, so its path is known: with
`u` the factor of least size, signed so that it grows, every other is `w_j = sqrt(u^2 + d_j)` with
`d_j >= 0` from the start, `P = u prod w_j` and `u' = (1 - P) prod w_j`. Speed, its growth rate
`d log s / dt` and both laws follow from u alone, without a solver and without a search.

Which law is right on a given start is read off that path where it leaves the plateau, at the
geometric mean of its least and its greatest speed:

- the sum of the two least factors grows at `(1 - P)` times the product of the others. Where that
  rate stays within a tenth over an e-fold of the sum, the escape is *exponential*. For n = 2 this
  is so until P counts; for n >= 3 only while the two least factors are far below the others;
- where `d log s / dt ~ s^p` with `1 / (1 - p)` near n - 1 over a decade of the speed, it is
  *algebraic* with the power n - 1: all factors have become equal. By homogeneity the time of
  escape scales like eps^-(n-2) then;
- a start that leaves the plateau between the two, or too soon, follows *no law*.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

POINTS = 40_001

RATE_BAND = 0.1
"""An exponential rate may be this far from its middle, relatively."""

POWER_BAND = 0.1
"""A power may be this far from n - 1, relatively."""

SLACK = 1.4
"""A window that is longer than the least one by this factor is clear, one that is shorter by it
is clearly none; between them either answer is right."""


@dataclass(frozen=True)
class Path:
    """The exact path from a start up to the product `end`."""

    start: np.ndarray
    end: float = 0.9

    @cached_property
    def others(self) -> np.ndarray:
        """d_j: the squares of all factors but the least, above the square of the least."""
        squares = np.sort(self.start**2)
        return squares[1:] - squares[0]

    @cached_property
    def u(self) -> np.ndarray:
        """The least factor along the path, closely spaced around 0 and in proportion beyond."""
        least = int(np.argmin(np.abs(self.start)))
        first = np.abs(self.start[least]) * np.sign(np.prod(self.start))
        scale = max(float(np.abs(self.start).min()), 1e-6 * float(np.abs(self.start).max()))
        low, high = first, 1.0
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._product(middle) < self.end else (low, middle)
        return scale * np.sinh(
            np.linspace(np.arcsinh(first / scale), np.arcsinh(low / scale), POINTS)
        )

    def _squares(self, u: Any) -> np.ndarray:
        return np.asarray(u)[..., None] ** 2 + self.others

    def _product(self, u: Any) -> np.ndarray:
        return u * np.sqrt(self._squares(u)).prod(axis=-1)

    @cached_property
    def product(self) -> np.ndarray:
        return self._product(self.u)

    @cached_property
    def pull(self) -> np.ndarray:
        """u'."""
        return (1 - self.product) * np.sqrt(self._squares(self.u)).prod(axis=-1)

    @cached_property
    def time(self) -> np.ndarray:
        """The integral of du / u', by Simpson's rule on every pair of intervals' cubic."""
        from scipy.integrate import cumulative_simpson

        x = np.linspace(0.0, 1.0, POINTS)
        return cumulative_simpson(np.gradient(self.u, x, edge_order=2) / self.pull, x=x, initial=0)

    @cached_property
    def speed(self) -> np.ndarray:
        return np.sqrt(self._parts.sum(axis=-1)) * (1 - self.product)

    @cached_property
    def _parts(self) -> np.ndarray:
        """(P / w_i)^2 for every factor, the least one first."""
        squares = self._squares(self.u)
        all_of_them = squares.prod(axis=-1)
        rest = [np.delete(squares, j, axis=-1).prod(axis=-1) for j in range(len(self.others))]
        return np.stack([all_of_them, *(self.u**2 * r for r in rest)], axis=-1)

    @cached_property
    def growth(self) -> np.ndarray:
        """d log s / dt, from the derivatives of each part in u."""
        u, squares = self.u, self._squares(self.u)
        each = 2 * u[:, None] / squares  # d log w_j^2 / du
        parts = self._parts
        slopes = [parts[:, 0] * each.sum(axis=-1)]
        for j in range(len(self.others)):
            rest = np.delete(squares, j, axis=-1).prod(axis=-1)
            others = each.sum(axis=-1) - each[:, j]
            slopes.append(2 * u * rest + u**2 * rest * others)
        product = np.sqrt(squares).prod(axis=-1) * (1 + u * each.sum(axis=-1) / 2)
        log_speed = 0.5 * np.sum(slopes, axis=0) / parts.sum(axis=-1) - product / (1 - self.product)
        return log_speed * self.pull

    @cached_property
    def power(self) -> np.ndarray:
        """The local power q of `s ~ r^q`, where the speed grows; NaN elsewhere."""
        with np.errstate(all="ignore"):
            p = np.gradient(np.log(self.growth)) / np.gradient(np.log(self.speed))
        return np.where(self.growth > 0, 1 / (1 - p), np.nan)

    @cached_property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """The log of the sum of the two least factors, and its rate."""
        squares = np.sort(self._squares(self.u), axis=-1)
        rest = np.sqrt(squares[:, 1:]).prod(axis=-1)
        return np.log(self.u + np.sqrt(squares[:, 0])), (1 - self.product) * rest

    def leaves(self, top: float | None = None) -> int:
        """The row at which the plateau ends, when the greatest speed that is seen is `top`."""
        last = int(np.argmax(self.speed)) if top is None else self._reaches(top)
        slowest = int(np.argmin(self.speed[: last + 1]))
        level = np.sqrt(self.speed[slowest] * self.speed[last])
        return slowest + int(np.argmax(self.speed[slowest:] >= level))

    def _reaches(self, top: float) -> int:
        fastest = int(np.argmax(self.speed))
        past = self.speed[: fastest + 1] >= top * (1 - 1e-6)
        return int(np.argmax(past)) if past.any() else fastest

    def laws(self, top: float | None = None, slack: float = 1.0) -> set[str]:
        """Which laws have a window around the end of the plateau, `slack` times the least one."""
        at, found = self.leaves(top), set()
        size, rate = self.pair
        low, high = _around(at, np.abs(np.log(rate / rate[at])) <= 2 * RATE_BAND)
        middle = 0.5 * (rate[low : high + 1].max() + rate[low : high + 1].min())
        low, high = _around(at, np.abs(rate / middle - 1) <= RATE_BAND)
        if size[high] - size[low] >= slack:
            found.add("exponential")
        n = len(self.start)
        if n > 2:
            near = np.abs(self.power / (n - 1) - 1) <= POWER_BAND
            low, high = _around(at, near)
            if np.log10(self.speed[high] / self.speed[low]) >= slack:
                found.add("algebraic")
        return found

    def right(self, law: str | None, power: float | None, top: float | None = None) -> str:
        """`right`, `wrong` or `missed`, for a law that a ledger prints on this start."""
        surely, perhaps = self.laws(top, SLACK), self.laws(top, 1 / SLACK)
        if law is None:
            return "missed" if surely else "right"
        n = len(self.start)
        sound = law in perhaps and (law == "exponential" or abs((power or 0) - (n - 1)) <= 0.25)
        return "right" if sound else "wrong"


def _around(at: int, holds: np.ndarray) -> tuple[int, int]:
    """First and last row of the stretch around `at` on which a condition holds."""
    if not holds[at]:
        return at, at
    before, after = np.flatnonzero(~holds[:at]), np.flatnonzero(~holds[at:])
    low = int(before[-1]) + 1 if len(before) else 0
    return low, (at + int(after[0]) - 1 if len(after) else len(holds) - 1)


def start(n: int, eps: float, seed: int | None) -> np.ndarray:
    """n factors eps (seed None), or Gaussian of that scale."""
    if seed is None:
        return np.full(n, eps)
    return eps * np.random.default_rng([seed, n]).standard_normal(n)
