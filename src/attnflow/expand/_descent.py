"""`descent_series`: plain gradient descent after s steps, as a power series in the step size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, nearest, positive, shown, whole
from attnflow._precision import float64
from attnflow._tables import html_table, text_table
from attnflow.expand._series import ZERO
from attnflow.expand._sweep import disturbed, length, prepared, rescued
from attnflow.expand._tables import Table, counted, number
from attnflow.flows.layout import Layout, Params, Vector

LIMIT = 16
"""Differences of order j lose j bits, so the highest order is lower than that of a flow."""


@float64
def descent_series(flow: Any, theta: Params, order: int) -> DescentSeries:
    """`theta_{s+1} = theta_s + eta v(theta_s)` after s steps, exactly in s, to `order` in eta.

    `theta_s = theta_0 + sum_{k>=1} eta^k p_k(s)` where p_k is a polynomial of degree at most k
    that vanishes at s = 0: `p_k(s) = sum_{j=1..k} C(s, j) d_jk`. The recursion runs in truncated
    power series of eta for s = 0..order; its forward differences at s = 0 are the d_jk. Powers of
    t in the flow become binomials here: with t = s eta fixed and s to infinity, `d_kk / k!` is
    the flow's own coefficient.

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> descent_series(flow, {"x": np.array([1.0])}, order=3)(steps=3, eta=0.1)   # 0.9 ** 3
    {'x': array([0.729])}
    """
    sweep, y = prepared(flow, theta, order, LIMIT)
    reached = sweep.order

    def differences(unit: float = 1.0, start: Vector = y, shake: Any = None) -> np.ndarray:
        a = np.zeros((reached + 1, y.size))
        a[0] = start
        gains = np.zeros((reached, reached, y.size))
        for s in range(reached):
            gain = unit * sweep(a[:reached])
            gains[s] = gain if shake is None else shake(gain)
            a[1:] += gains[s]
        d = np.zeros((reached + 1, reached + 1, y.size))
        for j in range(1, reached + 1):
            d[j, j:] = gains[0, j - 1 :]  # p_k has degree k: higher differences are zero
            gains = gains[1:] - gains[:-1]
        return d

    powers = np.arange(reached + 1)[None, :, None]
    d = rescued(differences, order, 1, powers, "eta")
    rounding = disturbed(lambda start, shake: differences(1.0, start, shake), y, d)
    return DescentSeries(d, rounding, y, sweep.note, order, flow, sweep.layout)


@dataclass(frozen=True)
class LeadingDescent:
    """The lowest order in eta of a block's increment, with its polynomial in the steps."""

    order: int | None
    steps: str
    """The polynomial in binomials, for instance `3*C(s,4) + 2*C(s,3)`."""
    norm: float
    coefficient: np.ndarray = field(repr=False)
    """What the binomials multiply, when one array serves all of them; else that of the highest."""
    weights: dict[int, float]
    """The factor of each C(s, j); empty if the terms are not proportional."""
    terms: dict[int, np.ndarray] = field(repr=False)
    """The array of each C(s, j)."""


class LeadingDescents(Table[LeadingDescent]):
    """`LeadingDescent` by block."""

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [name, "-" if a.order is None else str(a.order), a.steps, number(a.norm)]
            for name, a in self.items()
        ]
        return ["block", "order in eta", "steps", "|coefficient|"], rows


@dataclass(frozen=True, repr=False)
class DescentSeries:
    """`theta_s = theta_0 + sum_k eta^k sum_j C(s, j) differences[j, k]`."""

    differences: Float[np.ndarray, "binomial order parameter"]
    rounding: Float[np.ndarray, "binomial order parameter"]
    start: Vector
    note: str
    asked: int
    flow: Any
    layout: Layout

    @property
    def order(self) -> int:
        """The highest order in eta that was computed."""
        return self.differences.shape[1] - 1

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.layout.blocks)

    def block(self, name: str) -> np.ndarray:
        """The coefficients of one block: `[binomial, order, *shape]`."""
        for b in self.layout.blocks:
            if b.name == name:
                return self.differences[..., b.start : b.stop].reshape(
                    self.order + 1, self.order + 1, *b.shape
                )
        raise InputError("block", f"{shown(name)} is none; {nearest(str(name), self.blocks)}")

    @float64
    def __call__(self, steps: int, eta: float) -> Params:
        """The parameters after `steps` steps of size `eta`, as a tree like the start."""
        steps, eta = whole("steps", steps, least=0), positive("eta", eta)
        weights = np.array(
            [
                [float(math.comb(steps, j)) * eta**k for k in range(self.order + 1)]
                for j in range(self.order + 1)
            ]
        )
        return self.layout.numpy(self.start + np.tensordot(weights, self.differences, axes=2))

    def leading(self, tolerance: float = ZERO) -> LeadingDescents:
        """Per block the lowest order in eta that is not zero, and its polynomial in s."""
        out = LeadingDescents()
        for b in self.layout.blocks:
            d = self.differences[..., b.start : b.stop]
            size = length(d)
            noise = length(self.rounding[..., b.start : b.stop])
            # Differences cancel: what is left of the largest gain is noise as well.
            noise = np.maximum(noise, np.finfo(float).eps * size.max(axis=0, keepdims=True))
            live = size > tolerance * noise
            if not live.any():
                zero = np.zeros(b.shape)
                out[b.name] = LeadingDescent(None, "0", 0.0, zero, {}, {})
                continue
            k = int(np.argmax(live.any(axis=0)))
            terms = {int(j): d[j, k].reshape(b.shape) for j in np.flatnonzero(live[:, k])[::-1]}
            weights, coefficient = _proportions(terms)
            names = [
                f"{_factor(weights[j])}C(s,{j})" if weights else f"A{j} C(s,{j})" for j in terms
            ]
            text = " + ".join(names).replace("+ -", "- ")
            out[b.name] = LeadingDescent(
                k, text, float(length(coefficient.ravel())), coefficient, weights, terms
            )
        return out

    def __repr__(self) -> str:
        title = f"DescentSeries of order {self.order} in {counted(self.layout.size)}"
        return "\n".join(filter(None, [title, text_table(*self.leading()._rows()), self.note]))

    def _repr_html_(self) -> str:
        return html_table(*self.leading()._rows(), note=self.note)


def _proportions(terms: dict[int, np.ndarray]) -> tuple[dict[int, float], np.ndarray]:
    """`term_j = weight_j * coefficient` with the smallest whole weights, if there are such."""
    top = max(terms)
    lead = terms[top]
    unit = lead / float(np.abs(lead).max())  # squares of large coefficients would overflow
    square = float(np.vdot(unit, lead))
    ratios: dict[int, Fraction] = {}
    for j, a in terms.items():
        ratio = float(np.vdot(unit, a)) / square
        if np.abs(a - ratio * lead).max() > 1e-9 * np.abs(a).max():
            return {}, lead
        ratios[j] = Fraction(ratio).limit_denominator(5040)
        if abs(float(ratios[j]) - ratio) > 1e-9 * abs(ratio):
            return {}, lead
    scale = math.lcm(*(r.denominator for r in ratios.values()))
    divisor = math.gcd(*(int(r * scale) for r in ratios.values()))
    weights = {j: float(r * scale / divisor) for j, r in ratios.items()}
    return weights, lead / weights[top]


def _factor(weight: float) -> str:
    return "" if weight == 1 else f"{weight:g}*"
