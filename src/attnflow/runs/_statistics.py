"""What an ensemble says: spreads over seeds, slopes over a scanned parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.runs._manifest import flat
from attnflow.runs._sweep import CellResult


@dataclass(frozen=True)
class Spread:
    """One scalar over the seeds, at one scanned value (`parameter` None: there was no scan).

    Of several scanned keys, `value` has one value each.
    """

    name: str
    parameter: str | None
    value: Any
    mean: float
    sd: float | None
    """Standard deviation of the sample (divided by n - 1); None for a single cell."""
    min: float
    max: float
    n: int
    """Cells in which the scalar is a finite number."""
    missing: int
    """The other cells: no result, no such scalar, or not finite."""


@dataclass(frozen=True)
class Fit:
    """Least squares y = intercept + slope x, x or y replaced by its natural logarithm."""

    slope: float
    error: float | None
    """Standard error of the slope; None for two points."""
    intercept: float
    r2: float | None
    """Part of the variance of y (or log y) explained; None where y is constant."""
    n: int


@dataclass(frozen=True)
class Slope:
    """One scalar against the scanned parameter in every form that is defined.

    Forms: `linear` (y, x), `log-x` (y, log x), `log-y` (log y, x), `log-log` (log y, log x).
    `best` has the largest r2; an r2 of y and one of log y are not the same measure, so look at
    all of them.
    """

    name: str
    parameter: str
    fits: dict[str, Fit]
    best: str | None
    n: int
    missing: int


def spread(results: Sequence[CellResult]) -> list[Spread]:
    """Mean, sd, min, max of every number in the cells' summaries, per scanned value."""
    groups: dict[tuple[str | None, Any], list[CellResult]] = {}
    for result in results:
        groups.setdefault((result.cell.parameter, result.cell.value), []).append(result)
    rows = []
    for (parameter, value), group in groups.items():
        for name, numbers in _scalars(group).items():
            y = np.array(list(numbers.values()))
            # Scaled, so that the squares of very large or small numbers stay finite.
            unit = float(np.abs(y).max()) or 1.0
            sd = float(np.std(y / unit, ddof=1) * unit) if len(y) > 1 else None
            mean = float(np.mean(y / unit) * unit)
            low, high = float(y.min()), float(y.max())
            missing = len(group) - len(y)
            rows.append(Spread(name, parameter, value, mean, sd, low, high, len(y), missing))
    return rows


def slopes(results: Sequence[CellResult], parameter: str | None = None) -> list[Slope]:
    """Fits of every number in the summaries against the scanned parameter, over all cells."""
    if parameter is None:
        scanned_keys = next((list(r.cell.at) for r in results if r.cell.at), [])
        if len(scanned_keys) != 1:  # a line against one of several says nothing
            return []
        (parameter,) = scanned_keys
    scanned = {k: _scanned(r, parameter) for k, r in enumerate(results)}
    rows = []
    for name, numbers in _scalars(results).items():
        points = [(scanned[k], y) for k, y in numbers.items() if is_number(scanned[k])]
        x, y = np.array(points, float).reshape(-1, 2).T
        fits = dict(_fits(x, y))
        judged = {form: fit.r2 for form, fit in fits.items() if fit.r2 is not None}
        best = max(judged, key=judged.__getitem__) if judged else None
        rows.append(Slope(name, parameter, fits, best, len(x), len(results) - len(x)))
    return rows


def _scanned(result: CellResult, parameter: str) -> Any:
    return result.cell.at.get(parameter, result.cell.overrides.get(parameter))


def _scalars(results: Iterable[CellResult]) -> dict[str, dict[int, float]]:
    """Finite numbers of the summaries: name -> position of the result -> value."""
    found: dict[str, dict[int, float]] = {}
    for k, result in enumerate(results):
        for name, value in flat(dict(result.summary) if result.ok else {}):
            if is_number(value):
                found.setdefault(name, {})[k] = float(value)
    return found


def _fits(x: np.ndarray, y: np.ndarray) -> Iterable[tuple[str, Fit]]:
    positive_x, positive_y = bool((x > 0).all()), bool((y > 0).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x, log_y = np.log(x), np.log(y)
    forms = [("linear", x, y, True)]
    forms += [("log-x", log_x, y, positive_x), ("log-y", x, log_y, positive_y)]
    forms += [("log-log", log_x, log_y, positive_x and positive_y)]
    for form, u, v, defined in forms:
        if defined and (fit := _fit(u, v)) is not None:
            yield form, fit


def _fit(x: np.ndarray, y: np.ndarray) -> Fit | None:
    if len(x) < 2:
        return None
    with np.errstate(all="ignore"):
        dx, dy = x - x.mean(), y - y.mean()
        sxx, syy, sxy = (float(np.dot(a, b)) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
        if not sxx > 0 or not math.isfinite(sxx + syy + abs(sxy)):
            return None
        slope = sxy / sxx
        rest = float(np.sum((dy - slope * dx) ** 2))
        error = math.sqrt(rest / (len(x) - 2) / sxx) if len(x) > 2 else None
        # Rounding of a constant is not variance.
        flat_y = syy <= len(y) * (4 * np.finfo(float).eps * float(np.abs(y).max())) ** 2
        r2 = None if flat_y else max(0.0, 1 - rest / syy)
        intercept = float(y.mean() - slope * x.mean())
    return Fit(slope, error, intercept, r2, len(x))


def is_number(value: Any) -> bool:
    # np.float64 is a float, and whole numbers of any origin have __index__.
    real = isinstance(value, float | np.floating) or hasattr(value, "__index__")
    if not real or isinstance(value, bool | np.bool_ | np.ndarray):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
