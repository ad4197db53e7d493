"""Measurements from many runs: fitted slopes and exponents, and means over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow._errors import InputError, nearest, shown
from attnflow.claims.control import Control, Countercheck, given_control
from attnflow.claims.measure import Measurement, joined
from attnflow.claims.values import finite, numbers
from attnflow.claims.verdict import Strength, Verdict


@dataclass(frozen=True)
class Line:
    """A least-squares line with the standard error of its slope."""

    slope: float
    stderr: float
    intercept: float
    points: int


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    """Ordinary least squares of y on x, from at least three points at three distances."""
    xs, ys = _points(x, y)
    dx = xs - xs.mean()
    slope = float(dx @ ys / (dx @ dx))
    intercept = float(ys.mean() - slope * xs.mean())
    residual = ys - intercept - slope * xs
    variance = float(residual @ residual) / (len(xs) - 2)
    return Line(slope, math.sqrt(variance / float(dx @ dx)), intercept, len(xs))


def slope(
    *,
    over: Sequence[Any] | None = None,
    x: Any = None,
    y: Any,
    predicted: float,
    within: float,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`y = predicted * x + const`, for instance a time against log(1/eps); at best `consistent`.

    `x` and `y` are lists, or functions of each element of `over` (x is the element by default).
    The fitted slope agrees within the fraction `within`; where its standard error is larger the
    fit says nothing. The control's value is a slope that must not fit; `measured=` is another y.
    """
    xs, ys = _series(over, x), _series(over, y)
    return _fitted("slope", xs, ys, predicted, within * abs(predicted), 0, over, control, note)


def order(
    kind: Literal["Theta", "O", "Omega"],
    *,
    over: Sequence[Any] | None = None,
    x: Any = None,
    y: Any,
    power: float,
    tol: float = 0.1,
    toward: Literal["zero", "infinity"] = "zero",
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`y = kind(x^power)` as x goes to zero or infinity; at best `consistent`.

    Finite runs cannot show an order: the slope of log y on log x is fitted over a stated range.
    `Theta` wants it within `tol` of the power, `O` and `Omega` on the right side of it. The
    evidence holds the slope with its standard error, the slopes of the first and last pair, and
    the constant `y / x^power` with its spread. Where the standard error exceeds `tol` the fit says
    nothing: not checkable. The control's value is a power that must not fit; `measured=` is
    another y.

    >>> x = np.array([1.0, 2.0, 4.0, 8.0])
    >>> found = order("Theta", x=x, y=3 * x**2, power=2, tol=0.01, control=Control("cubic", 3))
    >>> found.verdict.value, round(found.evidence["constant"], 9)
    ('consistent', 3.0)
    """
    way = {"Theta": 0, "O": -1, "Omega": 1}.get(kind)
    if way is None:
        hint = nearest(str(kind), ["Theta", "O", "Omega"])
        raise InputError("kind", f"'{shown(kind)}' is not an order ({hint})")
    if toward == "zero":  # a larger power is a smaller quantity there
        way = -way
    xs, ys = _positive("x", _series(over, x)), _positive("y", _series(over, y))
    _points(xs, ys)
    ratio = ys / xs**power
    constant = float(np.exp(np.log(ratio).mean()))
    logs = np.log(xs), np.log(ys)
    words = f"constant {constant:.4g} ({ratio.min():.4g} to {ratio.max():.4g})"
    found = _fitted(kind, *logs, power, tol, way, over, control, joined(words, note), log=True)
    evidence = {
        "constant": finite(constant),
        "constant_range": [finite(float(ratio.min())), finite(float(ratio.max()))],
        "range": [float(xs.min()), float(xs.max())],
    }
    return replace(found, evidence={**found.evidence, **evidence})


def statistical(
    *,
    predicted: float,
    samples: ArrayLike,
    z: float = 3.0,
    side: Literal["equal", "above", "below"] = "equal",
    atol: float = 0.0,
    seeds: Sequence[int] | None = None,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """The mean over independent repeats against a prediction, in standard errors.

    `equal`: the prediction lies within z standard errors of the mean; `above` and `below`: the
    mean lies beyond it by at least z. The evidence holds the interval `mean +- z stderr`, the
    z-score with its two-sided p-value (normal approximation), the repeats and the seeds. The
    control's value is another prediction; `measured=` are other samples.
    """
    if side not in ("equal", "above", "below"):
        hint = nearest(str(side), ["equal", "above", "below"])
        raise InputError("side", f"'{side}' is not a side ({hint})")
    if not (math.isfinite(z) and z > 0):
        raise InputError("z", f"{shown(z)} is not a number of standard errors; it is > 0")
    values = _repeats("samples", samples)
    if seeds is not None and len(seeds) != len(values):
        raise InputError("seeds", f"{len(seeds)} seeds for {len(values)} samples")

    def judge(target: float, data: NDArray) -> tuple[bool, float]:
        mean, allowed = float(data.mean()), z * _stderr(data) + atol
        gap = mean - target
        good = {"equal": abs(gap) <= allowed, "above": gap >= allowed, "below": -gap >= allowed}
        strict = side == "equal" or gap != 0.0
        return bool(good[side]) and strict, gap

    good, gap = judge(float(predicted), values)
    mean, stderr = float(values.mean()), _stderr(values)
    score = gap / stderr if stderr > 0 else math.copysign(math.inf, gap) if gap else 0.0
    flipped, given = None, given_control(control)
    if given is not None:
        p, m = given.sides("predicted")
        target = float(predicted if p is None else p)
        data = values if m is None else _repeats("control", m)
        other, other_gap = judge(target, data)
        words = f"mean {data.mean():.6g} is {other_gap:+.3g} from {target:.6g}"
        flips = other is not good and math.isfinite(other_gap)
        flipped = Countercheck(given.name, flips, words, finite(target), finite(float(data.mean())))
    words = f"mean {mean:.6g} ± {stderr:.2g} over {len(values)} repeats, z = {score:.2f}"
    evidence: dict[str, Any] = {
        "repeats": len(values),
        "stderr": stderr,
        "interval": [mean - z * stderr, mean + z * stderr],
        "z": finite(score),
        "p": math.erfc(abs(score) / math.sqrt(2)),
        "side": side,
    }
    if seeds is not None:
        evidence["seeds"] = [int(s) for s in seeds]
    return Measurement(
        verdict=Verdict.HOLDS if good else Verdict.FAILS,
        sentence=joined(words, note),
        relation={"equal": "=", "above": "at least", "below": "at most"}[side],
        predicted=finite(float(predicted)),
        measured=mean,
        tolerance=z * stderr + atol,
        error=abs(gap),
        strength=Strength.STATISTICAL,
        control=flipped,
        evidence=evidence,
    )


def _fitted(
    kind: str,
    x: NDArray,
    y: NDArray,
    predicted: float,
    tol: float,
    way: int,
    over: Sequence[Any] | None,
    control: Control | None,
    note: str,
    log: bool = False,
) -> Measurement:
    """A fitted slope against a predicted one; `way` -1 and +1 bound it from above and below."""
    if not (math.isfinite(tol) and tol > 0):
        raise InputError("tol", f"{shown(tol)} is not a tolerance of a slope; it is > 0")
    line = fit_line(x, y)

    def judge(target: float, found: Line) -> bool:
        gap = found.slope - target
        return abs(gap) <= tol if way == 0 else way * gap >= -tol

    good, flipped = judge(predicted, line), None
    given = given_control(control)
    if given is not None:
        p, m = given.sides("predicted")
        target = float(predicted if p is None else p)
        other = line
        if m is not None:
            other_y = _series(over, m)
            other = fit_line(x, np.log(_positive("control", other_y)) if log else other_y)
        flips = judge(target, other) is not good and math.isfinite(target)
        words = f"{other.slope:.4f} ± {other.stderr:.2g} against {target:g}"
        flipped = Countercheck(given.name, flips, words, finite(target), other.slope)
    by = np.argsort(x)
    pairs = np.diff(y[by]) / np.diff(x[by]) if len(np.unique(x)) == len(x) else np.zeros(0)
    low, high = (np.exp(x.min()), np.exp(x.max())) if log else (x.min(), x.max())
    words = f"{'exponent' if log else 'slope'} {line.slope:.4f} ± {line.stderr:.2g}"
    words += f" over {low:.3g} to {high:.3g} ({line.points} points)"
    loose = line.stderr > tol
    if loose:
        words = f"the fit is too loose for a tolerance of {tol:g}: {words}"
    verdict = Verdict.CONSISTENT if good else Verdict.FAILS
    return Measurement(
        verdict=Verdict.NOT_CHECKABLE if loose else verdict,
        sentence=joined(words, note),
        relation=kind,
        predicted=float(predicted),
        measured=line.slope,
        tolerance=float(tol),
        error=abs(line.slope - predicted),
        strength=Strength.FIT,
        control=flipped,
        evidence={
            "slope": line.slope,
            "stderr": line.stderr,
            "points": line.points,
            "range": [float(low), float(high)],
            **({"ends": [float(pairs[0]), float(pairs[-1])]} if pairs.size else {}),
        },
        promise=Verdict.CONSISTENT,
    )


def _series(over: Sequence[Any] | None, values: Any) -> NDArray:
    """A list, a function at each element of `over`, or the elements themselves."""
    if over is None and (values is None or callable(values)):
        raise InputError("over", "is missing: x or y is a function of its elements")
    points: Sequence[Any] = [] if over is None else over
    if values is None:
        return numbers("x", points)
    at: Any = values
    return numbers("x", [float(at(p)) for p in points] if callable(values) else at)


def _points(x: ArrayLike, y: ArrayLike) -> tuple[NDArray, NDArray]:
    xs, ys = numbers("x", x), numbers("y", y)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise InputError("y", f"x has shape {xs.shape} and y {ys.shape}; give two equal lists")
    if not (np.isfinite(xs).all() and np.isfinite(ys).all()):
        raise InputError("y", "a fit needs finite points")
    if len(np.unique(xs)) < 3:
        raise InputError("x", f"{shown(xs.tolist())} has fewer than three distinct values")
    return xs, ys


def _positive(name: str, values: ArrayLike) -> NDArray:
    array = numbers(name, values)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise InputError(name, f"{shown(array.ravel().tolist())}: a power law needs values > 0")
    return array


def _repeats(name: str, samples: ArrayLike) -> NDArray:
    values = numbers(name, samples)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise InputError(name, "give a list of at least two finite repeats")
    return values


def _stderr(values: NDArray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))
