"""How far two runs are apart, observable by observable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
from attnflow._tables import html_table, text_table

if TYPE_CHECKING:
    import xarray as xr

_HEADER = ("observable", "difference", "at time", "of its range", "of its size")

STILL = 1e-6
"""A curve whose range is below this share of its size hardly moves."""
CLOSE = 0.1
"""Up to this relative difference two curves are called the same to so many percent."""


@dataclass(frozen=True)
class Difference:
    """The largest difference of one observable over the common times.

    `absolute` is max |a - b|, reached at time `at`; `size` is max(|a|, |b|), and `scale` the range
    (max - min) of the side that moves more, or the size where neither moves, as `of` says;
    `relative` is absolute / scale. So a curve that falls to 1e-8 and is late by a little is not
    called wrong by 100 %. A NaN on one side only counts as an infinite difference.
    """

    name: str
    absolute: float
    at: float | None
    relative: float
    scale: float
    of: str
    size: float

    def __str__(self) -> str:
        at = "" if self.at is None else f" at time {self.at:.6g}"
        return f"{percent(self.relative)} of its {self.of} ({self.name}{at})"


@dataclass(frozen=True)
class Comparison:
    """Differences per common observable, and the observables left out with the reason."""

    rows: tuple[Difference, ...]
    skipped: dict[str, str]
    sentence: str
    interpolated: bool
    """Whether one side was interpolated linearly; its error is then part of the difference."""

    def __getitem__(self, name: str) -> Difference:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def worst(self) -> Difference | None:
        """The row with the largest relative difference."""
        return max(self.rows, key=lambda row: row.relative, default=None)

    @property
    def largest_relative(self) -> float:
        return self.worst.relative if self.worst else 0.0

    def __repr__(self) -> str:
        skipped = "".join(f"\nleft out: {name} ({why})" for name, why in self.skipped.items())
        return f"{self.sentence}\n{text_table(_HEADER, self._cells())}{skipped}"

    def _repr_html_(self) -> str:
        left_out = [
            (f"{name} (left out)", why, None, None, None) for name, why in self.skipped.items()
        ]
        return html_table(_HEADER, [*self._cells(), *left_out], self.sentence)

    def _cells(self) -> list[tuple[Any, ...]]:
        return [
            (
                row.name,
                row.absolute,
                row.at,
                percent(row.relative) if row.of == "range" else "it does not move",
                percent(row.absolute / row.size if row.absolute else 0.0),
            )
            for row in self.rows
        ]


def percent(share: float) -> str:
    """`3 %`; in powers of ten where it is very small or no number of percent is of use."""
    if share == 0 or not np.isfinite(share):
        return "0 %" if share == 0 else "no number"
    return f"{100 * share:.2g} %" if 1e-5 <= share < 10 else f"{share:.1e}"


def compare(a: Any, b: Any) -> Comparison:
    """Largest differences on the common time range, at the times of the coarser side.

    The sentence says how far the two are apart in relative terms: of the range of the curve.

    Each side is a dataset or whatever has one as its `trajectory`: a run, a solution. So
    a flow and its discretisation are compared in one line.
    """
    return _compared(_data(a, "a"), _data(b, "b"))


def _compared(a: xr.Dataset, b: xr.Dataset) -> Comparison:
    grid, interpolated, sentence = _common_times(a["time"].values, b["time"].values)
    rows: list[Difference] = []
    skipped: dict[str, str] = {}
    names = dict.fromkeys(str(name) for name in [*a.data_vars, *b.data_vars])
    for name in names:
        reason = _why_not(a, b, name)
        if reason is None and not len(grid) and "time" in a[name].dims:
            reason = "no common time"
        if reason is not None:
            skipped[name] = reason
            continue
        if "time" in a[name].dims:
            rows.append(_difference(name, *_over_time(a, b, name, grid), grid))
        else:
            same = b[name].transpose(*a[name].dims).values
            rows.append(_difference(name, a[name].values[None], same[None], None))
    return Comparison(tuple(rows), skipped, f"{_largest(rows)}{sentence}", interpolated)


def _largest(rows: list[Difference]) -> str:
    if not rows:
        return ""
    worst = max(rows, key=lambda row: row.relative)
    if worst.relative == 0:
        return "equal in every number; "
    if np.isinf(worst.relative):
        return f"one side has no number where the other has one ({worst.name}); "
    return f"{'the same to' if worst.relative <= CLOSE else 'they differ by'} {worst}; "


def _data(side: Any, field: str) -> xr.Dataset:
    data = getattr(side, "trajectory", side)
    if not hasattr(data, "coords") or "time" not in data.coords or data["time"].dims != ("time",):
        raise InputError(field, "has no coordinate 'time'; give a run or its trajectory")
    return data


def _common_times(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool, str]:
    if not len(a) or not len(b):
        return np.zeros(0), False, "one side has no rows"
    first, last = max(a[0], b[0]), min(a[-1], b[-1])
    inside = [times[(times >= first) & (times <= last)] for times in (a, b)]
    if first > last or not len(inside[0]) or not len(inside[1]):
        return np.zeros(0), False, "the two sides have no time in common"
    grid = min(inside, key=len)
    interpolated = not all(np.isin(grid, times).all() for times in (a, b))
    how = "interpolated linearly to" if interpolated else "at"
    sentence = f"from time {first:.6g} to {last:.6g}, {how} {len(grid)} common times"
    return grid, interpolated, sentence


def _why_not(a: xr.Dataset, b: xr.Dataset, name: str) -> str | None:
    for data, side in ((a, "second"), (b, "first")):
        if name not in data.data_vars:
            return f"only in the {side}"
    if any(data[name].dtype.kind not in "biuf" for data in (a, b)):
        return "not real numbers"
    if set(a[name].dims) != set(b[name].dims):
        return "other dimensions"
    for dim in a[name].dims:
        if dim == "time":
            continue
        if a.sizes[dim] != b.sizes[dim]:
            return f"'{dim}' has {a.sizes[dim]} and {b.sizes[dim]} entries"
        if dim in a.coords and dim in b.coords and not np.array_equal(a[dim], b[dim]):
            return f"the labels of '{dim}' differ"
    return None


def _over_time(
    a: xr.Dataset, b: xr.Dataset, name: str, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    dims = ("time", *(dim for dim in a[name].dims if dim != "time"))
    first, second = (
        _at(data["time"].values, data[name].transpose(*dims).values, grid) for data in (a, b)
    )
    return first, second


def _at(times: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Linear interpolation along the first axis, exact (NaN included) where a time is shared."""
    values = np.asarray(values, float)
    low = np.clip(np.searchsorted(times, grid, side="right") - 1, 0, len(times) - 1)
    high = np.minimum(low + 1, len(times) - 1)
    width = np.where(times[high] > times[low], times[high] - times[low], 1.0)
    weight = ((grid - times[low]) / width).reshape(-1, *[1] * (values.ndim - 1))
    with np.errstate(invalid="ignore", over="ignore"):
        between = values[low] + weight * (values[high] - values[low])
    return np.where(weight == 0, values[low], between)


def _difference(name: str, a: np.ndarray, b: np.ndarray, times: np.ndarray | None) -> Difference:
    if not a.size:
        return Difference(name, 0.0, None, 0.0, 0.0, "size", 0.0)
    a, b = np.asarray(a, float), np.asarray(b, float)
    both_nan = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where((a == b) | both_nan, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    worst = int(np.argmax(gap.reshape(len(gap), -1).max(axis=1)))
    largest = float(gap.max())
    size = max(_finite(a)[1], _finite(b)[1])
    extent = max(_finite(a)[0], _finite(b)[0]) if times is not None else 0.0
    scale, of = (extent, "range") if extent > STILL * size else (size, "size")
    relative = largest / scale if largest and np.isfinite(largest) else largest
    at = None if times is None else float(times[worst])
    return Difference(name, largest, at, relative, scale, of, size)


def _finite(values: np.ndarray) -> tuple[float, float]:
    """The range and the size of what is finite."""
    finite = values[np.isfinite(values)]
    return (float(np.ptp(finite)), float(np.abs(finite).max())) if finite.size else (0.0, 0.0)
