"""Measurements from many runs: fitted slopes and exponents, and means over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow._errors import InputError, nearest, shown
from attnflow.claims.measure import Control, Measurement
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


def exponent(
    x: ArrayLike,
    y: ArrayLike,
    predicted: float,
    *,
    tol: float,
    control: float | None = None,
    control_y: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """`y = Theta(x^predicted)`: the slope of log y on log x agrees within `tol`.

    The verdict is `consistent`, never `holds`: finite runs cannot show an order. The evidence
    holds the slope, its standard error, the range of x, and the constant `y / x^predicted` with
    its spread. Where the standard error exceeds `tol` the fit says nothing: not checkable.
    `control` is an exponent that must not fit; `control_y` is measured in a perturbed setting.

    >>> x = np.array([1.0, 2.0, 4.0, 8.0])
    >>> found = exponent(x, 3 * x**2, predicted=2, tol=0.01, control=3)
    >>> found.verdict.value, round(found.evidence["constant"], 9)
    ('consistent', 3.0)
    """
    xs, ys = _positive("x", x), _positive("y", y)
    if control_y is not None:
        control_y = np.log(_positive("control_y", control_y))
    base = _sloped(np.log(xs), np.log(ys), predicted, tol, control, control_y)
    ratio = ys / xs**predicted
    constant = float(np.exp(np.log(ratio).mean()))
    evidence = dict(base.evidence) | {
        "range": [float(xs.min()), float(xs.max())],
        "constant": finite(constant),
        "constant_range": [finite(float(ratio.min())), finite(float(ratio.max()))],
    }
    constant_words = f"constant {constant:.4g} ({ratio.min():.4g} to {ratio.max():.4g})"
    return _finished(base, "exponent", xs, evidence, f"; {constant_words}", note)


def slope(
    x: ArrayLike,
    y: ArrayLike,
    predicted: float,
    *,
    tol: float,
    control: float | None = None,
    control_y: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """`y = predicted * x + const`, for instance a time against log(1/eps); as `exponent`."""
    base = _sloped(x, y, predicted, tol, control, control_y)
    xs = numbers("x", x)
    evidence = dict(base.evidence) | {"range": [float(xs.min()), float(xs.max())]}
    return _finished(base, "slope", xs, evidence, "", note)


def statistical(
    predicted: float,
    samples: ArrayLike,
    *,
    z: float = 3.0,
    side: Literal["equal", "above", "below"] = "equal",
    atol: float = 0.0,
    seeds: Sequence[int] | None = None,
    control: float | None = None,
    control_samples: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """The mean over independent repeats against a prediction, in standard errors.

    `equal`: the prediction lies within z standard errors of the mean; `above` and `below`: the
    mean lies beyond it by at least z. The evidence holds the interval `mean +- z stderr`, the
    z-score with its two-sided p-value (normal approximation), the repeats and the seeds.
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
    flipped = None
    if control is not None or control_samples is not None:
        target = float(predicted if control is None else control)
        data = values if control_samples is None else _repeats("control_samples", control_samples)
        other, other_gap = judge(target, data)
        words = f"mean {data.mean():.6g} is {other_gap:+.3g} from the control {target:.6g}"
        flips = other is not good and math.isfinite(other_gap)
        flipped = Control(flips, words, finite(target), finite(float(data.mean())))
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
        sentence=f"{words}. {note}" if note else words,
        predicted=finite(float(predicted)),
        measured=mean,
        tolerance=z * stderr + atol,
        error=abs(gap),
        strength=Strength.STATISTICAL,
        control=flipped,
        evidence=evidence,
    )


def _sloped(
    x: ArrayLike,
    y: ArrayLike,
    predicted: float,
    tol: float,
    control: float | None,
    control_y: ArrayLike | None,
) -> Measurement:
    """A fitted slope against a predicted one; the caller adds the sentence and the range."""
    if not (math.isfinite(tol) and tol > 0):
        raise InputError("tol", f"{shown(tol)} is not a tolerance of a slope; it is > 0")
    line = fit_line(x, y)

    def judge(target: float, found: Line) -> bool:
        return abs(found.slope - target) <= tol

    good = judge(predicted, line)
    flipped = None
    if control is not None or control_y is not None:
        other = line if control_y is None else fit_line(x, control_y)
        target = float(predicted if control is None else control)
        flips = judge(target, other) is not good and math.isfinite(target)
        words = f"{other.slope:.4f} ± {other.stderr:.2g} against {target:g}"
        flipped = Control(flips, words, finite(target), other.slope)
    verdict = Verdict.CONSISTENT if good else Verdict.FAILS
    return Measurement(
        verdict=verdict if line.stderr <= tol else Verdict.NOT_CHECKABLE,
        sentence="",
        predicted=float(predicted),
        measured=line.slope,
        tolerance=float(tol),
        error=abs(line.slope - predicted),
        strength=Strength.FIT,
        control=flipped,
        evidence={"slope": line.slope, "stderr": line.stderr, "points": line.points},
    )


def _finished(
    base: Measurement, name: str, xs: NDArray, evidence: dict[str, Any], extra: str, note: str
) -> Measurement:
    words = (
        f"{name} {base.measured:.4f} ± {evidence['stderr']:.2g} over {xs.min():.3g} to"
        f" {xs.max():.3g} ({evidence['points']} points){extra}"
    )
    if base.verdict is Verdict.NOT_CHECKABLE:
        words = f"the fit is too loose for a tolerance of {base.tolerance:g}: {words}"
    sentence = f"{words}. {note}" if note else words
    return Measurement(**{**vars(base), "sentence": sentence, "evidence": evidence})


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
