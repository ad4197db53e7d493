"""How a flow leaves a saddle: exponentially along an unstable mode, or algebraically without one.

Near a saddle with an unstable mode of rate `c` the amplitude grows like exp(c t), and the escape
time is `log(1/eps) / c`. Where the Hessian vanishes, as at the origin of a product of n >= 3
factors, the speed grows like a power of the distance, `s = k r^q` with `q = n - 1`, and the escape
time is of order `eps^-(q-1)`. The growth rate of a size tells the two apart: it is constant in the
first case, and in the second `d log s / dt = C s^p` with `p = (q-1)/q`.

Both laws are lines in the plane of (log size, log growth rate), fitted to the solver's own rows:
times do not enter, so that a blow-up at t = 1e20, which no clock resolves, is a line as well. A law
counts where it is in force when the plateau is left: its window is a stretch of rows around the
exit on which the line fits within a band, over an e-fold (exponential) or a decade of the speed
(algebraic) at least. A stretch between two laws, as when factors of different sizes catch up with
each other, bends, and gets none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "row"]

STEADY = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""How far a growth rate may be from its law, relatively. The strictest that leaves two e-folds (or
decades) gives the numbers, the last one decides whether there is a law."""

SURE = 0.04
"""A power is printed when its error is at most this share of it."""

WHOLE, AT_MOST = 0.075, 0.25
"""A power is at least 2, and this near to a whole number, relatively and at most: the velocity of
an analytic flow grows like one, and a fit between two shows a passage from one law to another."""

LEAST_ROWS = 6


@dataclass(frozen=True)
class Law:
    """A law of growth fitted to a stretch of rows."""

    name: str
    """`exponential` or `algebraic`."""
    first: int
    last: int
    """Rows of the window."""
    span: float
    """E-folds of the amplitude (exponential) or decades of the speed (algebraic)."""
    residual: float
    """Root mean square of log(growth rate) around the law."""
    rate: float
    """Of an exponential, where it is steadiest; at the first row of the window of a power law."""
    power: float = 1.0
    """q of `s = k r^q`."""
    power_error: float = 0.0
    """Its standard error, and half of what the thirds of the window differ by."""
    least: float = 1.0
    """The least span for the law to be said."""

    @property
    def holds(self) -> bool:
        """Whether the window is long enough for the law to be said."""
        if self.span < self.least or self.name == "exponential":
            return self.span >= self.least
        whole = round(self.power) if np.isfinite(self.power) else 0
        sure = self.power_error <= SURE * self.power
        return whole >= 2 and abs(self.power - whole) <= min(WHOLE * whole, AT_MOST) and sure

    def wait(self, growth: float) -> float:
        """How long the law takes from its first row on until log(size) has grown by `growth`."""
        p = 1 - 1 / self.power
        return (growth if p == 0 else (1 - np.exp(-p * growth)) / p) / self.rate

    @property
    def sentence(self) -> str:
        if self.name == "exponential":
            return f"grew at {self.tried}"
        return f"{self.tried}: time ~ eps^-{round(self.power) - 1}"

    @property
    def tried(self) -> str:
        """The fit, whether the law holds or not."""
        if self.name == "exponential":
            return f"{self.rate:.5g} over {self.span:.1f} e-folds"
        power = f"{self.power:.2f} ± {max(self.power_error, 0.01):.2f}"
        return f"speed ~ r^{power} over {self.span:.1f} decades"


def exponential(
    size: Series, rate: Series, at: int, *, band: float = STEADY[-1], least: float = 1.0
) -> Law | None:
    """The exponential law around row `at` of a size (its log) and its growth rate; None if there
    is no growth at all. It holds where it is within `band` over `least` e-folds."""
    window = _window(size, rate, at)
    if window is None:
        return None
    rows, log = window
    low, high = _within(size, log, rows, at, band, _constant)
    span = float(size[high] - size[low])
    for closer in STEADY:
        a, b = _longest(size, log, range(low, high + 1), closer)
        if size[b] - size[a] >= min(2.0, span):
            break
    weights, y = _weights(size[low : high + 1]), log[low : high + 1]
    residual = float(np.sqrt(weights @ (y - weights @ y) ** 2))
    # The mean over time is the harmonic one over the growth.
    steady = float(1 / (_weights(size[a : b + 1]) @ np.exp(-log[a : b + 1])))
    return Law("exponential", low, high, span, residual, steady, least=least)


def algebraic(size: Series, rate: Series, at: int) -> Law | None:
    """The power law around row `at` of a speed (its log) and its growth rate; None as above."""
    window = _window(size, rate, at)
    if window is None:
        return None
    rows, log = window
    for band in STEADY[1:4]:
        low, high = _within(size, log, rows, at, band, _line)
        if size[high] - size[low] >= 2 * np.log(10):
            break
    x, y = size[low : high + 1], log[low : high + 1]
    span = float(x[-1] - x[0]) / np.log(10)
    if len(x) < LEAST_ROWS:
        return Law("algebraic", low, high, 0.0, 0.0, float("nan"), float("nan"), float("inf"))
    p, residual, error = _line(x, y)
    thirds = np.searchsorted(x, x[0] + (x[-1] - x[0]) * np.array([0, 1 / 3, 2 / 3, 1 + 1e-9]))
    slopes = [_line(x[i:j], y[i:j])[0] for i, j in pairwise(thirds) if j - i >= 3]
    error = float(np.hypot(error, 0.5 * np.ptp(slopes))) if len(slopes) > 1 else float("inf")
    power = 1 / (1 - p) if p < 1 else float("inf")
    begin = float(np.exp(_weights(x) @ (y - p * x) + p * x[0]))
    rms = float(np.sqrt(_weights(x) @ residual**2))
    return Law("algebraic", low, high, span, rms, begin, power, power**2 * error)


def _window(size: Series, rate: Series, at: int) -> tuple[range, Series] | None:
    """The rows around `at` over which the size grows all the time, and the log of its rate."""
    grows = np.isfinite(size) & np.isfinite(rate) & (rate > 0)
    grows[1:] &= size[1:] > size[:-1]
    if not grows[at]:
        return None
    before, after = np.flatnonzero(~grows[:at]), np.flatnonzero(~grows[at:])
    first = int(before[-1]) + 1 if len(before) else 0
    last = at + int(after[0]) if len(after) else len(size)
    return range(first, last), np.log(np.where(grows, rate, np.nan))


def _within(size: Series, log: Series, rows: range, at: int, band: float, fit) -> tuple[int, int]:
    """The longest stretch of rows around `at` on which a fit leaves at most `band`.

    For some last rows, the first one by bisection: the further back, the worse it fits.
    """
    best = (at, at)
    ends = np.unique(np.linspace(at, rows[-1], 24).astype(int))
    for high in ends:
        low, wrong = int(at), rows[0] - 1
        if np.abs(fit(size[low : high + 1], log[low : high + 1])[1]).max() > band:
            break
        while low - wrong > 1:
            middle = (low + wrong) // 2
            good = np.abs(fit(size[middle : high + 1], log[middle : high + 1])[1]).max() <= band
            low, wrong = (middle, wrong) if good else (low, middle)
        if size[high] - size[low] > size[best[1]] - size[best[0]]:
            best = (low, int(high))
    return best


def _longest(size: Series, log: Series, rows: range, band: float) -> tuple[int, int]:
    """The stretch of rows with the most growth on which the rate stays within `band`."""
    best, low = (rows[0], rows[0]), rows[0]
    for high in rows:
        while np.ptp(log[low : high + 1]) > 2 * band:
            low += 1
        if size[high] - size[low] > size[best[1]] - size[best[0]]:
            best = (low, high)
    return best


def _constant(x: Series, y: Series) -> tuple[float, Series, float]:
    """The middle of y, and what is left of it."""
    middle = 0.5 * (y.max() + y.min())
    return middle, y - middle, 0.0


def _line(x: Series, y: Series) -> tuple[float, Series, float]:
    """Slope, residuals and standard error of the slope, every stretch of x weighing the same."""
    if len(x) < 3:
        return 0.0, np.zeros_like(y), float("inf")
    weights = _weights(x)
    dx, dy = x - weights @ x, y - weights @ y
    spread = float(weights @ dx**2)
    slope = float(weights @ (dx * dy)) / spread
    left = dy - slope * dx
    return slope, left, float(np.sqrt(weights @ left**2 / (spread * max(len(x) - 2, 1))))


def _weights(x: Series) -> Series:
    """The share of each row in the length of x."""
    if len(x) < 2 or x[-1] <= x[0]:
        return np.full(len(x), 1 / len(x))
    width = np.gradient(x)
    return width / width.sum()


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
