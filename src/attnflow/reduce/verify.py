"""A reduction against the flow it reduces: both solved, compared where steps end."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from attnflow._errors import InputError, positive, shown
from attnflow._precision import float64
from attnflow.flows.driver import absolute_tolerance, integrate
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params
from attnflow.flows.options import Solver
from attnflow.flows.solution import Solution
from attnflow.reduce.reduction import Reduction

ON_IT = 1e-8
"""How far off the reduced set a start may lie, relative to its norm."""


@dataclass(frozen=True)
class Verification:
    """How far a reduced solve is from the projection of the full one, time by time."""

    status: str
    """`agrees`, `differs`, or `not-compared` when one of the solves did not arrive."""
    sentence: str
    times: tuple[float, ...]
    absolute: tuple[float, ...]
    """max |project(full(t)) - reduced(t)| over the coordinates."""
    units: tuple[float, ...]
    """Root mean square of the difference over `rtol |z| + atol`."""
    distance: tuple[float, ...]
    """How far the full solve is off the reduced set, relative to its norm."""
    rtol: float
    atol: float
    parameters: tuple[int, int]
    """Of the full and of the reduced flow."""
    evaluations: tuple[int, int]

    @property
    def agrees(self) -> bool:
        return self.status == "agrees"

    @property
    def worst(self) -> float:
        """The largest difference in units of the tolerance."""
        return max(self.units, default=float("nan"))

    def __repr__(self) -> str:
        return f"Verification({self.status}: {self.sentence})"

    def _repr_html_(self) -> str:
        heads = ("time", "difference", "in tolerances", "off the reduced set")
        rows = zip(self.times, self.absolute, self.units, self.distance, strict=True)
        body = "".join(
            f"<tr><td>{t:.6g}</td><td>{a:.2e}</td><td>{u:.3g}</td><td>{d:.1e}</td></tr>"
            for t, a, u, d in rows
        )
        head = "".join(f"<th>{h}</th>" for h in heads)
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


@float64
def verify(
    full: FlowLike,
    reduced: Reduction,
    start: Params,
    until: float | Sequence[float],
    *,
    rtol: float = 1e-10,
    within: float = 1000.0,
    solver: Solver | None = None,
    **options: Any,
) -> Verification:
    """Solve the full flow from `start` and the reduced one from `project(start)`, and compare.

    Both end a step at `until` (or at each of several times: the solves go on from there), so no
    interpolated state is compared. The difference between `project(full)` and `reduced` is
    reported absolutely and in units of the tolerance, `rtol |z| + atol` with the reduced solve's
    atol; two exact solves of an unstable flow still part by some hundred of these, so they
    agree when `within` that many. `solver` and `options` go to both solves.

    >>> gram = GramFlow(loss_of_gram, {"K": 4, "Q": 4})
    >>> verify(full=flow, reduced=gram, start=weights, until=50)
    Verification(agrees: ...)
    """
    if not isinstance(reduced, Reduction):
        raise InputError("reduced", f"{shown(reduced)}; a GramFlow, OrbitFlow or ManifoldFlow")
    ends = _ends(until)
    rtol, within = positive("rtol", rtol), positive("within", within)
    off = reduced.distance(start)
    if not off <= ON_IT:
        raise InputError(
            "start", f"lies off the reduced set by {off:.2g} of its norm; start from lift(state)"
        )
    theta, z = start, reduced.project(start)
    layout = reduced.bind(z).layout
    # The scale of the first start, for all legs.
    tolerances = {
        "rtol": rtol,
        "full": _atol(full, start, rtol),
        "reduced": _atol(reduced, z, rtol),
    }
    how = Solver() if solver is None else solver
    rows: list[tuple[float, float, float, float]] = []
    work = np.zeros(2, dtype=int)
    failed = ""
    before = 0.0
    for end in ends:
        leg = {"until": end - before, "save": [0.0], "rtol": rtol, "progress": False, **options}
        upper = integrate(full, theta, solver=replace(how, atol=tolerances["full"]), **leg)
        lower = integrate(reduced, z, solver=replace(how, atol=tolerances["reduced"]), **leg)
        work += [_work(upper), _work(lower)]
        failed = _failure(full.name, upper) or _failure(reduced.name, lower)
        if failed:
            break
        theta, z, before = upper.final, lower.final, end
        a, b = layout.flatten(reduced.project(theta, near=z)), layout.flatten(z)
        units = (a - b) / (rtol * np.abs(b) + tolerances["reduced"])
        rows.append(
            (
                end,
                float(np.abs(a - b).max()),
                float(np.sqrt(np.mean(units**2))),
                reduced.distance(theta, near=z),
            )
        )
    times, absolute, units, distance = zip(*rows, strict=True) if rows else ((), (), (), ())
    status, sentence = _verdict(failed, rows, rtol, within)
    return Verification(
        status,
        sentence,
        times,
        absolute,
        units,
        distance,
        rtol,
        tolerances["reduced"],
        (full.bind(start).size, layout.size),
        (int(work[0]), int(work[1])),
    )


def _ends(until: Any) -> list[float]:
    many = isinstance(until, Sequence | np.ndarray) and not isinstance(until, str)
    ends = [positive("until", t) for t in (until if many else [until])]
    if not ends or not all(a < b for a, b in pairwise(ends)):
        raise InputError("until", f"{shown(until)}; a time, or increasing times")
    return ends


def _work(solution: Solution) -> int:
    return int(solution.work["rhs"] + solution.work["jvp"])


def _failure(name: str, solution: Solution) -> str:
    return "" if solution.status.complete else f"{name} {solution.sentence}"


def _atol(flow: FlowLike, start: Params, rtol: float) -> float:
    system = flow.bind(start)
    return absolute_tolerance(system, system.layout.flatten(start), rtol)


def _verdict(failed: str, rows: list[Any], rtol: float, within: float) -> tuple[str, str]:
    if failed:
        return "not-compared", failed
    end, absolute, units, _ = max(rows, key=lambda row: row[2])
    agrees = units <= within
    return (
        "agrees" if agrees else "differs",
        f"full and reduced flow differ by {units:.3g} tolerances ({absolute:.2g} absolutely) at "
        f"t = {end:.6g}, rtol {rtol:g}" + ("." if agrees else f": more than {within:g}."),
    )
