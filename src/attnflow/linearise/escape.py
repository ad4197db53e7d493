"""How a flow leaves a saddle: exponentially along an unstable mode, or algebraically without one.

Near a saddle with an unstable mode of rate `c` the amplitude grows like exp(c t), and the escape
time is `log(1/eps) / c`. Where the Hessian vanishes, as at the origin of a product of n >= 3
factors, the speed grows like a power of the distance, `s = k r^q` with `q = n - 1`, and the escape
time is of order `eps^-(q-1)`. The growth rate of a size tells the two apart: it is constant in the
first case, and in the second `d log s / dt = C s^p` with `p = (q-1)/q`.

Both laws are read in the plane of (log size, log growth rate), off the solver's own rows: times do
not enter, so that a blow-up at t = 1e20, which no clock resolves, is a line as well. A law counts
where it is in force when the plateau is left: its window is a stretch of rows around the exit on
which the growth rate (or the local power) stays within a tenth of one value, over an e-fold of the
amplitude (exponential) or a decade of the speed (algebraic) at least. A stretch between two laws,
as when factors of different sizes catch up with each other, bends, and gets none.

The power of an analytic flow is whole in the limit, and on the way there it is off by corrections
of the relative order r^m or r^-m with m >= 1, which change by at least their own size over an
e-fold of the distance. So the change of the local power per e-fold of the distance estimates how
far the limit is: that is the error of a power. A power is said when the whole number is within that
error. A logarithm or a broken power stays off a whole number without changing, and gets no law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Series = Float[np.ndarray, "row"]

STEADY = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""How far a growth rate may be from its middle, relatively. The strictest that leaves two e-folds
gives the rate, the last one decides whether there is a law."""

NEAR = 0.1
"""How far the local power may be from its whole number along the window, relatively, and a growth
rate from that of its mode."""

TOLD = 0.01
"""Powers are not told apart more closely than this, relatively nor absolutely."""

SURE = 0.25
"""A power is said when its error is at most this: the whole numbers beside it are then three errors
away or more."""

PIECE = np.log(10) / 3
"""The local power is that of a stretch of this length in the log of the speed."""

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
    """By how much the local power changes per e-fold of the distance."""

    @property
    def holds(self) -> bool:
        """Whether the law can be said: over a window that is long enough, with a whole power."""
        whole = round(self.power)
        if self.span < 1 or self.name == "exponential":
            return self.span >= 1
        return whole >= 2 and abs(self.power - whole) <= self.power_error <= SURE

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
        power = f"{self.power:.2f} ± {self.power_error:.2f}"
        return f"speed ~ r^{power} over {self.span:.1f} decades"


def exponential(size: Series, rate: Series, at: int, own: float) -> Law | None:
    """The exponential law around row `at` of the size of a mode (its log) and its growth rate; None
    if it does not grow at its own rate.

    Towards the exit a mode may fall behind its own rate, since every escape saturates. One that is
    ahead of it is driven by higher orders: another law has taken over.
    """
    _, log = _growing(size, rate, at)
    low, high = _around(at, log <= np.log(own * (1 + NEAR)))
    low, high = _longest(size, log, range(low, high + 1), STEADY[-1], at)
    if low == high:
        return None
    span = float(size[high] - size[low])
    for closer in STEADY:
        a, b = _longest(size, log, range(low, high + 1), closer)
        if size[b] - size[a] >= min(2.0, span):
            break
    weights, y = _weights(size[low : high + 1]), log[low : high + 1]
    residual = float(np.sqrt(weights @ (y - weights @ y) ** 2))
    # The mean over time is the harmonic one over the growth.
    steady = float(1 / (_weights(size[a : b + 1]) @ np.exp(-log[a : b + 1])))
    if abs(steady / own - 1) > NEAR:
        return None
    return Law("exponential", low, high, span, residual, steady)


def algebraic(size: Series, rate: Series, at: int) -> Law | None:
    """The power law around row `at` of a speed (its log) and its growth rate; None if there is no
    growth, or no stretch on which the local power is near a whole number.

    The window is the decade around `at` on which the local power is nearest to its whole number,
    and whatever continues it as closely.
    """
    rows, log = _growing(size, rate, at)
    powers = np.full(len(size), np.nan)
    powers[rows] = _local_powers(size[rows], log[rows])
    whole = max(round(float(powers[at])), 1) if np.isfinite(powers[at]) else 1
    away = np.nan_to_num(np.abs(powers / whole - 1), nan=np.inf)
    closest = min(max(_tolerance(size, away, at, np.log(10)), TOLD), NEAR)
    low, high = _around(at, away <= closest)
    if high - low + 1 < LEAST_ROWS:
        return None
    x, y = size[low : high + 1], log[low : high + 1]
    p, residual = _line(x, y)
    power = 1 / (1 - p)
    error = max(float(np.ptp(powers[low : high + 1])) * power / float(x[-1] - x[0]), TOLD)
    begin = float(np.exp(_weights(x) @ (y - p * x) + p * x[0]))
    rms = float(np.sqrt(_weights(x) @ residual**2))
    span = float(x[-1] - x[0]) / np.log(10)
    return Law("algebraic", low, high, span, rms, begin, power, error)


def _local_powers(x: Series, y: Series) -> Series:
    """The power at every row, of the line through the rows at most half a piece away."""
    first = np.searchsorted(x, x - PIECE / 2)
    last = np.searchsorted(x, x + PIECE / 2, side="right")
    slopes = [
        _line(x[a:b], y[a:b])[0] if b - a >= 3 else np.nan for a, b in zip(first, last, strict=True)
    ]
    p = np.array(slopes)
    return np.where(p < 1, 1 / np.where(p < 1, 1 - p, 1), np.nan)


def _tolerance(size: Series, away: Series, at: int, need: float) -> float:
    """The least tolerance on `away` that leaves a stretch of this length around row `at`."""
    low = high = at
    worst = float(away[at])
    while size[high] - size[low] < need and np.isfinite(worst):
        before = away[low - 1] if low > 0 else np.inf
        after = away[high + 1] if high + 1 < len(size) else np.inf
        low, high = (low - 1, high) if before <= after else (low, high + 1)
        worst = max(worst, float(min(before, after)))
    return worst


def _around(at: int, holds: np.ndarray) -> tuple[int, int]:
    """First and last row of the stretch around `at` on which a condition holds."""
    if not holds[at]:
        return at, at
    before, after = np.flatnonzero(~holds[:at]), np.flatnonzero(~holds[at:])
    low = int(before[-1]) + 1 if len(before) else 0
    return low, at + int(after[0]) - 1 if len(after) else len(holds) - 1


def _growing(size: Series, rate: Series, at: int) -> tuple[range, Series]:
    """The rows around `at` over which the size grows all the time, and the log of its rate; NaN
    where it does not grow."""
    grows = np.isfinite(size) & np.isfinite(rate) & (rate > 0)
    grows[1:] &= size[1:] > size[:-1]
    low, high = _around(at, grows)
    return range(low, high + 1), np.log(np.where(grows, rate, np.nan))


def _longest(
    size: Series, log: Series, rows: range, band: float, at: int | None = None
) -> tuple[int, int]:
    """The stretch of rows with the most growth on which the rate stays within `band`; around row
    `at`, where that is given."""
    low = rows[0]
    best = (low, low) if at is None else (at, at)
    for high in rows:
        while np.ptp(log[low : high + 1]) > 2 * band:
            low += 1
        around = at is None or low <= at <= high
        if around and size[high] - size[low] > size[best[1]] - size[best[0]]:
            best = (low, high)
    return best


def _line(x: Series, y: Series) -> tuple[float, Series]:
    """Slope and residuals of the line through the rows, every stretch of x weighing the same."""
    weights = _weights(x)
    dx, dy = x - weights @ x, y - weights @ y
    slope = float(weights @ (dx * dy)) / float(weights @ dx**2)
    return slope, dy - slope * dx


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
