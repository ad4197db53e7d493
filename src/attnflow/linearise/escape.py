"""How a flow leaves a saddle: exponentially along an unstable mode, or algebraically without one.

Near a saddle with an unstable mode of rate `c` the amplitude grows like exp(c t), and the escape
time is `log(1/eps) / c`. Where the Hessian vanishes, as at the origin of a product of n >= 3
factors, the speed grows like a power of the distance, `s = k r^q` with `q = n - 1`, and the escape
time is of order `eps^-(q-1)`. The speed alone tells the two apart: `d log s / dt` is constant in
the first case and grows like `s^p`, `p = (q-1)/q`, in the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "time"]

STEADY = (0.002, 0.005, 0.01, 0.02, 0.05)
"""A growth rate is steady while it changes by less than such a share per e-fold; the strictest
share that leaves two e-folds is used."""

ALGEBRAIC = 0.25
"""Least exponent p of `d log s / dt ~ s^p` that counts as algebraic (n = 3 factors: 1/2)."""


@dataclass(frozen=True)
class Growth:
    """A fitted exponential stretch: its rate and how many e-folds it covers."""

    rate: float
    efolds: float
    begin: float
    end: float

    @property
    def exists(self) -> bool:
        """Whether there is a window at all: less than one e-fold is no evidence."""
        return self.efolds >= 1.0


@dataclass(frozen=True)
class Algebraic:
    """A fitted law `s = k r^q`: the escape time scales like eps^-(q-1)."""

    exponent: float
    """p of `d log s / dt ~ s^p`."""
    power: float
    """q = 1 / (1 - p), the power of the velocity in the distance."""
    leave: float
    """When the fitted law reaches the speed at which the flow left."""

    @property
    def factors(self) -> int:
        """The number of factors whose product has this saddle at its origin."""
        return round(self.power) + 1

    @property
    def sentence(self) -> str:
        order = round(self.power) - 1
        return f"escapes algebraically: speed ~ r^{self.power:.2f}, time ~ eps^-{order}"


def exponential_window(time: Series, amplitude: Series) -> Growth:
    """The stretch over which an amplitude grows at the steadiest rate, and that rate.

    The prediction is not used: the window is where the local rate changes least per e-fold.
    """
    good = np.isfinite(amplitude) & (amplitude > 0)
    t, a = time[good], np.log(amplitude[good])
    found = Growth(float("nan"), 0.0, float("nan"), float("nan"))
    if len(t) < 7:
        return found
    rate = np.gradient(a, t)
    bend = np.abs(np.gradient(rate, t)) / np.maximum(rate, 1e-150) ** 2
    for share in STEADY:
        low, high = _longest((rate > 0) & (bend <= share), a)
        if high - low < 3:
            continue
        fitted = float(np.polyfit(t[low : high + 1], a[low : high + 1], 1)[0])
        found = Growth(fitted, float(a[high] - a[low]), float(t[low]), float(t[high]))
        if found.efolds >= 2:
            break
    return found


def _longest(holds: np.ndarray, a: Series) -> tuple[int, int]:
    """First and last index of the run of True that covers most of `a`."""
    best = (0, 0)
    begin: int | None = None
    for i, yes in enumerate([*holds, False]):
        if yes and begin is None:
            begin = i
        elif not yes and begin is not None:
            if a[i - 1] - a[begin] > a[best[1]] - a[best[0]]:
                best = (begin, i - 1)
            begin = None
    return best


def algebraic_law(time: Series, speed: Series) -> Algebraic | None:
    """The power law of an escape without an unstable mode; None where the speed does not show it.

    Fits `d log s / dt ~ s^p` over the upper part of the growth, where the growing direction has
    outgrown the rest of the start.
    """
    good = np.isfinite(speed) & (speed > 0)
    t, s = time[good], np.log(speed[good])
    if len(t) < 8:
        return None
    rate = np.gradient(s, t)
    upper = (s >= s[0] + 0.4 * (s[-1] - s[0])) & (rate > 0)
    if upper.sum() < 4:
        return None
    p, offset = np.polyfit(s[upper], np.log(rate[upper]), 1)
    if not ALGEBRAIC <= p < 0.98:
        return None
    # From the first point of the fit on: ds/dt = C s^(1+p) has the solution used here.
    first = int(np.flatnonzero(upper)[0])
    pace = np.exp(offset + p * s[first])
    leave = t[first] + (1 - np.exp(-p * (s[-1] - s[first]))) / (p * pace)
    return Algebraic(float(p), float(1 / (1 - p)), float(leave))


def predicted_leave(rates: np.ndarray, components: np.ndarray, enter: float, speed: float) -> float:
    """When the linearised flow reaches a speed, from its unstable components at entry.

    Solves `sum_i (c_i a_i)^2 exp(2 c_i (t - enter)) = speed^2`.
    """
    pushes = (rates * components) ** 2
    if not len(rates) or pushes.sum() <= 0 or speed <= 0:
        return float("nan")
    wanted = 2 * np.log(speed)
    low, high = 0.0, 1.0 / float(rates.max())

    def gap(t: float) -> float:
        exponents = 2 * rates * t + np.log(np.maximum(pushes, 1e-300))
        top = exponents.max()
        return float(top + np.log(np.exp(exponents - top).sum()) - wanted)

    if gap(low) >= 0:
        return enter
    while gap(high) < 0:
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gap(middle) < 0 else (low, middle)
    return enter + high
