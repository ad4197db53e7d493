"""Where a series breaks down: estimated from its own terms, and measured on a solve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError, positive
from attnflow.expand._sweep import length
from attnflow.expand._tables import Table, number
from attnflow.flows.driver import integrate
from attnflow.flows.options import Solver, Store

if TYPE_CHECKING:
    from attnflow.expand._series import Series
    from attnflow.flows.layout import Block


@dataclass(frozen=True)
class Times:
    """When one block's leading term, and the whole series, leave the solution."""

    order: int | None
    next: int | None
    radius: float
    """Radius of convergence by the root test; inf if the block is a polynomial so far."""
    leading: float
    """Estimated from the next non-zero order."""
    series: float
    """Estimated from the last term, continued geometrically."""
    leading_measured: float = float("nan")
    series_measured: float = float("nan")


class Breakdown(Table[Times]):
    """`Times` by block, estimates beside measurements."""

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        head = [
            "block",
            "order",
            "radius",
            "leading: estimate",
            "measured",
            "series: estimate",
            "measured",
        ]
        rows = [
            [name, "-" if a.order is None else str(a.order)]
            + [
                number(x)
                for x in (a.radius, a.leading, a.leading_measured, a.series, a.series_measured)
            ]
            for name, a in self.items()
        ]
        return head, rows


def radius_of(norms: np.ndarray, orders: list[int]) -> float:
    """exp of minus the slope of log |c_k| over the upper half of the non-zero orders.

    A true radius where the nearest singularity dominates; for an entire function it grows with
    the order. NaN if fewer than two orders are known, inf if the last two orders vanish.
    """
    known = [k for k in orders if norms[k] > 0]
    last = len(norms) - 1
    if known and known[-1] <= last - 2:
        return float("inf")
    upper = known[-max(3, (len(known) + 1) // 2) :]
    if len(upper) < 2:
        return float("nan")
    slope = np.polyfit(upper, np.log(norms[upper]), 1)[0]
    return float(np.exp(-slope))


def estimated(series: Series, tolerance: float, cosine: float | None) -> Breakdown:
    tolerance, cosine = _checked(tolerance, cosine)
    out = Breakdown()
    out.criterion = _criterion(tolerance, cosine)
    out.note = series.note
    for b in series.layout.blocks:
        c = series.coefficients[:, b.start : b.stop]
        orders = series.orders(b)
        norms = length(c)
        radius = radius_of(norms, orders)
        out[b.name] = Times(
            order=orders[0] if orders else None,
            next=orders[1] if len(orders) > 1 else None,
            radius=radius,
            leading=_leading_time(c, orders, tolerance, cosine),
            series=_series_time(c, orders, radius, tolerance),
        )
    return out


def _leading_time(
    c: np.ndarray, orders: list[int], tolerance: float, cosine: float | None
) -> float:
    """From `c_k t^k + c_m t^m`: the relative size of the second, or the angle it makes."""
    if len(orders) < 2:
        return float("inf") if len(orders) == 1 else float("nan")
    k = orders[0]
    size = length(c[k])
    lead = c[k] / size
    for m in orders[1:]:
        part = float(c[m] @ lead)
        along, across = part / size, float(length(c[m] - part * lead) / size)
        if cosine is None:
            return float((tolerance / np.hypot(along, across)) ** (1 / (m - k)))
        # across x / (1 + along x) = tan(angle), x = t^(m-k)
        tangent = np.tan(np.arccos(cosine))
        if across > tangent * along and across > 1e-12 * abs(along):
            return float((tangent / (across - tangent * along)) ** (1 / (m - k)))
    return float("inf")


def _series_time(c: np.ndarray, orders: list[int], radius: float, tolerance: float) -> float:
    """The remainder as the last term times x/(1-x), x = t/radius."""
    if not orders or not np.isfinite(radius):
        return radius
    last = orders[-1]
    x = np.linspace(0, 1, 2001)[1:-1]
    times = radius * x
    moved = c.copy()
    moved[0] = 0.0
    increment = length(np.polynomial.polynomial.polyval(times, moved).T)
    rest = np.exp(np.log(length(c[last])) + last * np.log(times)) * x / (1 - x)
    over = rest > tolerance * increment
    return float(times[int(np.argmax(over))]) if over.any() else radius


def measured(
    series: Series,
    flow: Any,
    tolerance: float,
    cosine: float | None,
    until: float | None,
    rtol: float,
) -> Breakdown:
    """Measure on an accurate solve when each block leaves its leading term and its series."""
    tolerance, cosine = _checked(tolerance, cosine)
    out = estimated(series, tolerance, cosine)
    expected = [t for a in out.values() for t in (a.leading, a.series) if np.isfinite(t) and t > 0]
    if until is None:
        if not expected:
            raise InputError("until", "no block is expected to break down; give a time")
        until = 3 * max(expected)
    until = positive("until", until)
    early = min([t for t in expected if t < until] or [until]) / 5
    blocks = [b for b in series.layout.blocks if out[b.name].order is not None]
    run = integrate(
        flow,
        series.layout.numpy(series.coefficients[0]),
        until=until,
        save=np.concatenate([[0.0], np.geomspace(early, until, 300)]),
        store=Store(states=True),
        rtol=rtol,
        solver=Solver(atol=_resolution(series, blocks, out, rtol)),
        progress=False,
    )
    times = run.trajectory["time"].values[1:]
    states = run.trajectory["state"].values[1:]
    if not run.status.complete:
        out.note = f"{out.note} The solve ended early: {run.sentence}".strip()
    for b in blocks:
        at = slice(b.start, b.stop)
        true = states[:, at] - series.coefficients[0, at]
        k = out[b.name].order
        assert k is not None
        lead = series.coefficients[k, at] * times[:, None] ** k
        moved = series.coefficients[:, at].copy()
        moved[0] = 0.0
        whole = np.polynomial.polynomial.polyval(times, moved).T
        size = np.linalg.norm(true, axis=1)
        # A solve shows an increment only where it exceeds the solve's own error.
        shown = size > 1e4 * rtol * np.linalg.norm(states[:, at], axis=1) * (
            np.linalg.norm(series.coefficients[0, at]) > 0
        )
        off = _distance(true, lead, cosine)
        limit = tolerance if cosine is None else 1 - cosine
        out[b.name] = replace(
            out[b.name],
            leading_measured=_crossing(times[shown], off[shown], limit),
            series_measured=_crossing(times[shown], _distance(true, whole)[shown], tolerance),
        )
    return out


def _resolution(series: Series, blocks: list[Block], found: Breakdown, rtol: float) -> float | None:
    """An absolute tolerance that resolves every leading term well before it breaks down.

    Not finer than that: a block that starts at 0 and grows like t^4 would otherwise force steps
    that resolve it from its very beginning.
    """
    sizes = []
    for b in blocks:
        k, t = found[b.name].order, found[b.name].leading
        if k is not None and np.isfinite(t) and t > 0:
            rms = float(np.sqrt(np.mean(series.coefficients[k, b.start : b.stop] ** 2)))
            sizes.append(rms * (t / 5) ** k)
    return max(rtol * min(sizes), 1e-200) if sizes else None


def _distance(true: np.ndarray, model: np.ndarray, cosine: float | None = None) -> np.ndarray:
    """Relative error per time, or 1 - cosine."""
    size = np.linalg.norm(true, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if cosine is None:
            return np.linalg.norm(true - model, axis=1) / size
        # 1 - cos = |a/|a| - b/|b||^2 / 2, which does not cancel.
        a, b = true / size[:, None], model / np.linalg.norm(model, axis=1)[:, None]
        return 0.5 * np.sum((a - b) ** 2, axis=1)


def _crossing(times: np.ndarray, off: np.ndarray, limit: float) -> float:
    """When `off` first exceeds the limit, between outputs by a power law; inf if never."""
    over = np.flatnonzero(off > limit)
    if not over.size:
        return float("inf")
    i = int(over[0])
    if i == 0 or off[i - 1] <= 0:
        return float(times[i])
    slope = np.log(off[i] / off[i - 1])
    part = np.log(limit / off[i - 1]) / slope if slope > 0 else 1.0
    return float(times[i - 1] * (times[i] / times[i - 1]) ** part)


def _checked(tolerance: float, cosine: float | None) -> tuple[float, float | None]:
    if positive("tolerance", tolerance) >= 1:
        raise InputError("tolerance", f"{tolerance:g}; a relative error below 1")
    if cosine is not None and not 0 < positive("cosine", cosine) < 1:
        raise InputError("cosine", f"{cosine:g}; between 0 and 1, for instance 0.999")
    return float(tolerance), cosine


def _criterion(tolerance: float, cosine: float | None) -> str:
    leading = f"relative error {tolerance:g}" if cosine is None else f"cosine {cosine:g}"
    return f"Times at which the leading term ({leading}) and the series ({tolerance:g}) leave."
