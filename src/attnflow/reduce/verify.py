"""A reduction against the flow it reduces: does their difference fall with the tolerance?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, positive, shown
from attnflow._precision import float64
from attnflow._tables import html_table
from attnflow.flows.driver import absolute_tolerance, integrate
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.options import Solver, option
from attnflow.reduce.reduction import Reduction

ON_IT = 1e-8
"""How far off the reduced set a start may lie, relative to its norm."""
TIGHTER = 100.0
"""By how much the tolerance of the second pair of solves is tighter."""
FALLS = 10.0
"""A difference that falls by this much is one of integration."""
EXCEEDS = 3.0
"""A difference beyond this multiple of the solves' own error is one of the flows."""
NUDGE = 1e-14
"""A start that is so far off, relative to its size, is the same start."""
FINEST = 1e-13
"""No solve is asked for a smaller relative tolerance."""
ROUNDING = 1000 * np.finfo(float).eps
"""What the roundings of a solve add up to, before the flow amplifies them."""


class Gap(NamedTuple):
    """How far full and reduced flow are apart at one time, by the tighter and the looser solves.

    All but `absolute` are relative to the largest coordinate, the distance to the norm.
    """

    time: float
    absolute: float
    """max |project(full) - reduced| over the coordinates, of the tighter solves."""
    relative: float
    distance: float
    """How far the full solve is off the reduced set."""
    looser: float
    """The larger of the two at the looser tolerance."""
    error: float
    """By how much each flow's own solves differ: the error of the looser ones."""
    nudged: float = 0.0
    """By how much starts that are `NUDGE` to either side move the tighter solves, where tried."""

    @property
    def size(self) -> float:
        return max(self.relative, self.distance)

    @property
    def exact_to(self) -> float:
        return max(self.error, self.nudged)

    @property
    def falls(self) -> bool:
        return self.size <= max(self.looser, self.error) / FALLS

    def verdict(self, rtol: float) -> str:
        """By the looser solves' `rtol`: rounding is amplified as much as their error was."""
        if self.falls or self.size <= ROUNDING * max(1.0, self.error / rtol):
            return "agrees"
        return "differs" if self.size > EXCEEDS * self.exact_to else "unresolved"


@dataclass(frozen=True)
class Verification:
    """Full and reduced flow side by side, solved at two tolerances."""

    status: str
    """`agrees`: the difference falls with the tolerance; `differs`: it stays; `unresolved`: the
    solves are not exact enough to tell; `not-compared`: one of them did not arrive."""
    sentence: str
    gaps: tuple[Gap, ...]
    """One for each time of `until`."""
    rtol: tuple[float, float]
    """Of the looser and of the tighter solves."""
    parameters: tuple[int, int]
    """Of the full and of the reduced flow."""
    evaluations: tuple[int, int]

    @property
    def agrees(self) -> bool:
        return self.status == "agrees"

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(gap.time for gap in self.gaps)

    @property
    def absolute(self) -> tuple[float, ...]:
        return tuple(gap.absolute for gap in self.gaps)

    @property
    def distance(self) -> tuple[float, ...]:
        return tuple(gap.distance for gap in self.gaps)

    @property
    def worst(self) -> float:
        """The largest relative difference of the tighter solves."""
        return max((gap.size for gap in self.gaps), default=float("nan"))

    def __repr__(self) -> str:
        return f"Verification({self.status}: {self.sentence})"

    def _repr_html_(self) -> str:
        heads = ("time", "difference", "relative", "off the reduced set")
        heads += (f"at rtol {self.rtol[0]:.0e}", "error of that solve")
        rows = [(f"{gap[0]:.6g}", *(f"{x:.1e}" for x in gap[1:6])) for gap in self.gaps]
        return html_table(heads, rows, repr(self))


@float64
def verify(
    full: FlowLike,
    reduced: Reduction,
    start: Params,
    until: float | Sequence[float],
    *,
    rtol: float = 1e-10,
    solver: Solver | str | None = None,
    **options: Any,
) -> Verification:
    """Solve the full flow from `start` and the reduced one from `project(start)`, and compare.

    Both end a step at each time of `until` (of one time also at a quarter and a sixteenth of it,
    as a flow that has arrived forgets where it was wrong) and go on from there, so that no
    interpolated state is compared. All is solved at `rtol` and again a hundred times tighter. If
    the reduction is exact, the difference between `project(full)` and `reduced`, and how far the
    full flow is off the reduced set, fall with the tolerance, like the difference of each flow's
    own two solves; if it is not, they stay. Where that is not clear, a still tighter solve
    decides. `solver` and `options` go to all solves.

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: (1.0 - (th["K"] * th["Q"]).sum()) ** 2)
    >>> gram = af.GramFlow(lambda G: (1.0 - G["K", "Q"][0, 0]) ** 2, {"K": 1, "Q": 1})
    >>> weights = {"K": np.ones((5, 1)), "Q": 0.1 * np.ones((5, 1))}
    >>> verify(full=flow, reduced=gram, start=weights, until=1.0).agrees
    True
    """
    if not isinstance(reduced, Reduction):
        raise InputError("reduced", f"{shown(reduced)}; a GramFlow, OrbitFlow or ManifoldFlow")
    ends, rtol = _ends(until), positive("rtol", rtol)
    off = reduced.distance(start)
    if not off <= ON_IT:
        raise InputError(
            "start", f"lies off the reduced set by {off:.2g} of its norm; start from lift(state)"
        )
    if off > 0:  # what lies off would be there at every tolerance
        start = reduced.lift(reduced.project(start))
    pair = _Pair(full, reduced, start, ends, option("solver", solver, Solver), options)
    tighter = max(rtol / TIGHTER, FINEST)
    try:
        gaps, tolerances = _decided(pair, tighter * TIGHTER, tighter)
        status, sentence = _judged(gaps, tolerances)
    except _NotArrived as error:
        gaps, tolerances = (), (tighter * TIGHTER, tighter)
        status, sentence = "not-compared", str(error)
    sizes = (pair.upper.layout.size, pair.lower.layout.size)
    work = (int(pair.work[0]), int(pair.work[1]))
    return Verification(status, sentence, gaps, tolerances, sizes, work)


def _decided(pair: _Pair, looser: float, tighter: float) -> tuple[tuple[Gap, ...], Any]:
    """The gaps at two tolerances, tightened while they leave it open.

    A difference that stays may also be a rounding of the start that an unstable flow amplifies: it
    counts only beyond what starts that are `NUDGE` to either side make.
    """
    loose, tight = pair.solve(looser), pair.solve(tighter)
    while True:
        gaps = pair.gaps(tight, [loose])
        if _status(gaps, looser) == "differs":
            gaps = pair.gaps(tight, [loose, *(pair.solve(tighter, side) for side in (1, -1))])
        if _status(gaps, looser) != "unresolved" or tighter <= FINEST:
            return gaps, (looser, tighter)
        looser, tighter = tighter, max(tighter / TIGHTER, FINEST)
        loose, tight = tight, pair.solve(tighter)


class _NotArrived(Exception):
    """A solve ended before its time; the sentence says why."""


class _Level(NamedTuple):
    """One pair of solves: flat states at every time."""

    full: Float[np.ndarray, "time parameter"]
    projected: Float[np.ndarray, "time coordinate"]
    reduced: Float[np.ndarray, "time coordinate"]
    distance: Float[np.ndarray, "time"]


class _Pair:
    """The two flows and where they start; counts the work."""

    def __init__(
        self,
        full: FlowLike,
        reduced: Reduction,
        start: Params,
        ends: list[float],
        solver: Solver,
        options: Any,
    ):
        self.full, self.reduced, self.ends = full, reduced, ends
        self.theta, self.z = start, reduced.project(start)
        self.upper, self.lower = full.bind(start), reduced.bind(self.z)
        # The scales of the first start, for all legs.
        self.scales = [
            absolute_tolerance(system, system.layout.flatten(at), 1.0)
            for system, at in ((self.upper, start), (self.lower, self.z))
        ]
        self.solver, self.options = solver, {"save": [0.0], "progress": False, **options}
        self.work = np.zeros(2, dtype=int)

    def solve(self, rtol: float, side: int = 0) -> _Level:
        """Both flows through all times, from the start or from a `NUDGE` to one side of it."""
        theta, z, rows = self.theta, self.z, []
        if side:
            y = self.upper.layout.flatten(theta)
            noise = np.random.default_rng(0).standard_normal(len(y))
            theta = self.upper.layout.numpy(y + side * NUDGE * self.scales[0] * noise)
            z = self.reduced.project(theta, near=z)
        for before, end in pairwise([0.0, *self.ends]):
            theta = self._leg(0, self.full, theta, end - before, rtol)
            z = self._leg(1, self.reduced, z, end - before, rtol)
            down = self.lower.layout.flatten(self.reduced.project(theta, near=z))
            distance = self.reduced.distance(theta, near=z)
            flat = self.upper.layout.flatten(theta), down, self.lower.layout.flatten(z)
            rows.append((*flat, distance))
        return _Level(*(np.array(column) for column in zip(*rows, strict=True)))

    def _leg(self, which: int, flow: FlowLike, at: Params, span: float, rtol: float) -> Params:
        solver = replace(self.solver, atol=rtol * self.scales[which])
        solution = integrate(flow, at, span, rtol=rtol, solver=solver, **self.options)
        self.work[which] += int(solution.work["rhs"] + solution.work["jvp"])
        if not solution.status.complete:
            raise _NotArrived(f"{flow.name} {solution.sentence}")
        return solution.final

    def gaps(self, tight: _Level, others: list[_Level]) -> tuple[Gap, ...]:
        loose, *_ = others
        error, *nudged = [
            np.max([_relative(a, b) for a, b in zip(o[:3], tight[:3], strict=True)], axis=0)
            for o in others
        ]
        columns = (
            self.ends,
            np.abs(tight.projected - tight.reduced).max(axis=1),
            _relative(tight.projected, tight.reduced),
            tight.distance,
            np.maximum(_relative(loose.projected, loose.reduced), loose.distance),
            error,
            np.max([0 * error, *nudged], axis=0),
        )
        return tuple(Gap(*map(float, row)) for row in zip(*columns, strict=True))


def _relative(
    a: Float[np.ndarray, "time size"], b: Float[np.ndarray, "time size"]
) -> Float[np.ndarray, "time"]:
    """The largest difference over the largest entry, time by time."""
    return np.abs(a - b).max(axis=1) / np.maximum(np.abs(b).max(axis=1), 1e-300)


def _ends(until: Any) -> list[float]:
    many = isinstance(until, Sequence | np.ndarray) and not isinstance(until, str)
    ends = [positive("until", t) for t in until] if many else _earlier(positive("until", until))
    if not ends or not all(a < b for a, b in pairwise(ends)):
        raise InputError("until", f"{shown(until)}; a time, or increasing times")
    return ends


def _earlier(until: float) -> list[float]:
    return [until / 16, until / 4, until]


def _status(gaps: tuple[Gap, ...], rtol: float) -> str:
    verdicts = {gap.verdict(rtol) for gap in gaps}
    return next((s for s in ("differs", "unresolved") if s in verdicts), "agrees")


def _judged(gaps: tuple[Gap, ...], rtol: tuple[float, float]) -> tuple[str, str]:
    status = _status(gaps, rtol[0])
    gap = max((g for g in gaps if g.verdict(rtol[0]) == status), key=lambda g: g.size)
    what = (
        "the relative difference"
        if gap.relative >= gap.distance
        else "the full flow's distance from the reduced set"
    )
    seen = f"{what} at t = {gap.time:.6g} is {gap.looser:.1e} at rtol {rtol[0]:.0e} and "
    seen += f"{gap.size:.1e} at {rtol[1]:.0e}"
    falls = "falls with the tolerance, so it is integration error"
    return status, seen + {
        "agrees": f": it {falls}" if gap.falls else ": that is rounding",
        "differs": ": it does not fall with the tolerance, though the solves are exact to "
        f"{gap.exact_to:.1e}, so the two flows are not the same",
        "unresolved": f": the solves are exact to {gap.exact_to:.1e} only, which does not tell; "
        "compare at an earlier time",
    }[status] + "."
