"""Running sums of a training: what powers of time are to a flow, binomials are to its steps.

A leading term is a product of statistics times a nested sum over the steps before, such as
`sum_k eta_k sum_{i<k} eta_i`. With equal rates it is a binomial (`C(s, 2) eta^2`), along a flow a
power (`t^2 / 2`), under a schedule of rates neither. A `Clock` computes it for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
from jaxtyping import Float
from numpy.polynomial import Polynomial

from attnflow._errors import InputError


class Clock(Protocol):
    """Functions of training time that can be added, multiplied and summed up."""

    @property
    def one(self) -> Any:
        """The constant 1."""
        ...

    def sum(self, f: Any) -> Any:
        """The sum of `rate f` over the steps before, or the integral from 0."""
        ...

    def now(self, f: Any) -> float:
        """The value of a function at the end."""
        ...


@final
class Steps:
    """Steps with rates: equal ones, or a schedule.

    >>> clock = Steps.equal(3, 0.1)
    >>> a = clock.sum(clock.one)
    >>> round(clock.now(clock.sum(a)), 12)        # C(3, 2) eta^2
    0.03
    """

    def __init__(self, rates: Sequence[float] | Float[np.ndarray, "step"]):
        self.rates = np.asarray(rates, dtype=float)
        if self.rates.ndim != 1 or not np.isfinite(self.rates).all():
            raise InputError("rates", "a list of finite rates, one per step")
        self.one = np.ones(len(self.rates) + 1)

    @classmethod
    def equal(cls, steps: int, rate: float) -> Steps:
        return cls(np.full(steps, float(rate)))

    def sum(self, f: Any) -> Float[np.ndarray, "step"]:
        return np.concatenate([[0.0], np.cumsum(self.rates * np.asarray(f)[:-1])])

    def now(self, f: Any) -> float:
        return float(np.asarray(f)[-1])


@final
class Continuous:
    """The flow up to time t: functions are polynomials.

    >>> clock = Continuous(2.0)
    >>> clock.now(clock.sum(clock.sum(clock.one)))        # t^2 / 2
    2.0
    """

    def __init__(self, time: float):
        self.time = float(time)
        self.one = Polynomial([1.0])

    def sum(self, f: Any) -> Polynomial:
        return f.integ()

    def now(self, f: Any) -> float:
        return float(f(self.time))
