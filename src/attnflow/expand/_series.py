"""`series`: the Taylor coefficients in time of a flow's solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, nearest, positive, shown, whole
from attnflow._precision import float64
from attnflow._tables import html_table, text_table
from attnflow.expand import _gates
from attnflow.expand._breakdown import Breakdown, estimated, measured, radius_of
from attnflow.expand._sweep import Sweep, disturbed, length, prepared, rescued
from attnflow.expand._tables import Table, counted, number
from attnflow.flows.layout import Block, Layout, Params, Vector

ZERO = 64.0
"""A coefficient below so many times its rounding error is zero."""


@float64
def series(
    flow: Any, theta: Params, order: int, *, gates: Callable[[Params], Any] | None = None
) -> Series:
    """The solution of `theta' = v(theta)` from `theta` as a power series in time.

    `theta(t) = sum_k c_k t^k` with `c_{k+1} = v_k / (k+1)`, where v_k is the k-th coefficient of
    the velocity along the series so far. One program is compiled for all orders and kept, so a
    second start costs milliseconds.

    flow
        Any flow; autodiff losses and closed forms alike. The series is that of what is computed:
        hand-written derivative rules do not enter, and `stop_gradient` hides nothing.
    order
        1 to 30. A primitive without a Taylor rule lowers it to 4, and `note` names the primitive.
    gates
        A function of the parameters whose signs are the gates of a piecewise flow. Without it
        they are read off the velocity (maxima, absolute values, comparisons).

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> series(flow, {"x": np.array([1.0])}, order=3).block("x").ravel()
    array([ 1.        , -1.        ,  0.5       , -0.16666667])
    """
    sweep, y = prepared(flow, theta, order)
    reached = sweep.order

    def recursion(unit: float = 1.0, start: Vector = y, shake: Any = None) -> np.ndarray:
        c = np.zeros((reached + 1, y.size))
        c[0] = start
        for k in range(reached):
            c[k + 1] = unit * sweep(c[:reached])[k] / (k + 1)
            if shake is not None:
                c[k + 1] = shake(c[k + 1])
        return c

    powers = np.arange(reached + 1)[:, None]
    c = rescued(recursion, order, 0, powers, "t")
    rounding = disturbed(lambda start, shake: recursion(1.0, start, shake), y, c)
    out = Series(c, rounding, sweep.note, order, flow, sweep.layout)
    return _with_gates(out, sweep, gates)


@dataclass(frozen=True)
class Leading:
    """The first non-zero order of a block's increment `theta(t) - theta(0)`, and what it is."""

    order: int | None
    """None if the block does not move up to the order of the series."""
    norm: float
    coefficient: np.ndarray = field(repr=False)
    next: int | None
    """The order of the first correction."""


class LeadingTerms(Table[Leading]):
    """`Leading` by block."""

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [
                name,
                "-" if a.order is None else str(a.order),
                number(a.norm),
                "-" if a.next is None else str(a.next),
            ]
            for name, a in self.items()
        ]
        return ["block", "order", "|coefficient|", "next order"], rows


@dataclass(frozen=True, repr=False)
class Series:
    """`theta(t) = sum_k coefficients[k] t^k`; row 0 is the start."""

    coefficients: Float[np.ndarray, "order parameter"]
    rounding: Float[np.ndarray, "order parameter"]
    """How far rounding may have moved each coefficient."""
    note: str
    """Warnings: a lower order than asked for, a piecewise flow."""
    asked: int
    flow: Any
    layout: Layout
    gate_terms: Float[np.ndarray, "gate_order gate"] = field(
        default_factory=lambda: np.empty((1, 0))
    )
    """The gates' own series in time: a gate switches where its polynomial changes sign."""
    gates: Callable[[Params], Any] | None = None

    @property
    def order(self) -> int:
        """The highest order that was computed."""
        return len(self.coefficients) - 1

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.layout.blocks)

    def block(self, name: str) -> np.ndarray:
        """The coefficients of one block: `[order, *shape]`."""
        b = self._named(name)
        return self.coefficients[:, b.start : b.stop].reshape(-1, *b.shape)

    @float64
    def __call__(self, t: float) -> Params:
        """The truncated series at time t, as a tree like the start."""
        return self.layout.numpy(self.flat(_time(t)))

    def flat(self, t: float) -> Vector:
        """The truncated series at time t, as a flat vector."""
        return np.asarray(np.polynomial.polynomial.polyval(t, self.coefficients))

    def truncated(self, order: int) -> Series:
        """The series cut at a lower order."""
        if whole("order", order) > self.order:
            raise InputError("order", f"{order}; this series has orders up to {self.order}")
        cut = slice(0, order + 1)
        return replace(self, coefficients=self.coefficients[cut], rounding=self.rounding[cut])

    def leading(self, tolerance: float = ZERO) -> LeadingTerms:
        """Per block the first order that exceeds `tolerance` times its rounding error."""
        out = LeadingTerms()
        for b in self.layout.blocks:
            orders = self.orders(b, tolerance)
            first = orders[0] if orders else None
            values = self.block(b.name)[first or 0] * (1.0 if orders else 0.0)
            out[b.name] = Leading(
                first,
                float(length(values.ravel())),
                np.array(values),
                orders[1] if len(orders) > 1 else None,
            )
        return out

    def orders(self, block: Block, tolerance: float = ZERO) -> list[int]:
        """The orders from 1 on at which a block's coefficient is not zero."""
        at = slice(block.start, block.stop)
        norms = length(self.coefficients[1:, at])
        noise = length(self.rounding[1:, at])
        return (np.flatnonzero(norms > tolerance * noise) + 1).tolist()

    @property
    def radius(self) -> float:
        """The radius of convergence by the root test over the upper half of the orders."""
        return radius_of(length(self.coefficients), list(range(1, self.order + 1)))

    def breakdown(self, tolerance: float = 0.01, cosine: float | None = None) -> Breakdown:
        """When the leading terms and the whole series are expected to leave the solution.

        Leading term: the next non-zero order reaches the relative size `tolerance` (or, with
        `cosine`, turns the increment that far away). Series: its last term, continued
        geometrically with the radius of convergence, does.
        """
        return estimated(self, tolerance, cosine)

    @float64
    def measured_breakdown(
        self,
        flow: Any = None,
        *,
        tolerance: float = 0.01,
        cosine: float | None = None,
        until: float | None = None,
        rtol: float = 1e-10,
    ) -> Breakdown:
        """`breakdown`, with the times measured on an accurate solve beside the estimates."""
        return measured(self, flow or self.flow, tolerance, cosine, until, rtol)

    @property
    def reach(self) -> float:
        """How far the series is expected to be right to 1 %, in all blocks (inf: polynomials)."""
        return min(
            (a.series for a in self.breakdown().values() if a.series == a.series),
            default=float("inf"),
        )

    @property
    def switch(self) -> float:
        """When the first gate switches along the series (inf: not within its reach)."""
        return _gates.first_switch(self.gate_terms, self.reach, self.coefficients)

    @float64
    def measured_switch(self, flow: Any = None, *, until: float | None = None) -> float:
        """When the first gate switches along an accurate solve (inf: not until then)."""
        if self.gates is None:
            raise InputError("gates", "none; this flow has no gates that could switch")
        if until is None:
            until = 3 * (self.switch if np.isfinite(self.switch) else self.reach)
        return _gates.measured_switch(self, flow or self.flow, positive("until", until))

    def _named(self, name: str) -> Block:
        for b in self.layout.blocks:
            if b.name == name:
                return b
        raise InputError("block", f"{shown(name)} is none; {nearest(str(name), self.blocks)}")

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        head, rows = self.leading()._rows()
        at = self.breakdown()
        rows = [
            [*row, number(at[name].radius), number(at[name].leading), number(at[name].series)]
            for name, row in zip(self.blocks, rows, strict=True)
        ]
        return [*head, "radius", "leading to 1 %", "series to 1 %"], rows

    def __repr__(self) -> str:
        title = f"Series of order {self.order} in {counted(self.layout.size)}"
        return "\n".join(filter(None, [title, text_table(*self._rows()), self.note]))

    def _repr_html_(self) -> str:
        return html_table(*self._rows(), note=self.note)


def _time(t: Any) -> float:
    try:
        value = float(t)
    except (TypeError, ValueError):
        raise InputError("t", f"{shown(t)}; a finite time") from None
    if not np.isfinite(value):
        raise InputError("t", f"{value}; a finite time")
    return value


def _with_gates(out: Series, sweep: Sweep, gates: Callable[[Params], Any] | None) -> Series:
    """The series with its gates, given or found, and the sentence that says it is piecewise."""
    sharp = [] if sweep.unknown else sweep.sharp(out.coefficients[: sweep.order])
    if gates is not None:
        terms, measure = _gates.given(gates, out.coefficients, out.layout), gates
    elif sharp:
        found, kink = sweep.switches(out.coefficients[: sweep.order])
        keep = np.isin(kink, sharp)
        terms = found[:, keep]
        measure = sweep.gates(sharp) if keep.any() else None
    else:
        return out
    out = replace(out, gate_terms=terms, gates=measure)
    return replace(out, note=" ".join(filter(None, [out.note, _gates.sentence(out, sweep, sharp)])))
