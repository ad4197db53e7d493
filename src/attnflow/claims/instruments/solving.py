"""Solves of known paths: rows, marks, phases, drift, work, limits, both engines."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow.claims.instruments.systems import RTOL, Numbers, begin, flow_of, solved
from attnflow.flows import (
    Every,
    Flow,
    Limits,
    Linear,
    Log,
    Mark,
    Phase,
    Solver,
    Store,
    integrate,
    opinion,
)
from attnflow.flows.driver import absolute_tolerance
from attnflow.flows.engines import METHODS, choose, spectral_radius
from attnflow.flows.recorder import Bounds
from attnflow.flows.switching import Field


def marked(c: float) -> Numbers:
    """x = (cos ct, sin ct): both cross 1/2, twice; marks of one direction see one of them, and the
    solve stops where sin ct rises to 0."""
    flow, each = flow_of(lambda x: c * np.array([-x[1], x[0]])), lambda theta: theta["x"]
    marks = {"both": Mark(each, 0.5), "up": Mark(lambda theta: theta["x"][0], 0.5, 1)}
    marks["down"] = Mark(lambda theta: theta["x"][0], 0.5, -1)
    stop = {"stop": Mark(lambda theta: theta["x"][1], 0.0, 1)}
    run = solved(flow, [1, 0], 9.0, marks=marks, stops=stop, save=[0.3, 0.6])
    at, index = np.array([1, 2, 2, 5, 10, 10, 12]) * np.pi / 6 / c, (1, 0, 0, 1, 0, 0, 0)
    events = zip(at, (1, -1, -1, -1, 1, 1, 1), index, (4, 4, 4, 4, 4, 2, 4), strict=True)
    found = [(e.time, e.direction, e.index, len(e.name)) for e in run.events]
    rows = run.trajectory
    known = [*np.ravel(list(events)), 0.3, 0.6, 2 * np.pi / c, c, c, c]
    return known, [*np.ravel(found), *rows["time"].values, *rows["speed"].values]


def phased(c: float) -> Numbers:
    """Up by c for a unit of time, down twice as fast to 0, up again for half a unit."""
    up, down = flow_of(lambda x: np.array([c])), flow_of(lambda x: np.array([-2 * c]))
    stop = Mark(lambda theta: theta["x"][0], 0.0, -1)
    phases = [Phase("up", up, 1.0), Phase("down", down, 5.0, stop), Phase("last", up, 0.5)]
    run = solved(phases, [0], save=Linear(3))
    parts = [x for p in run.phases for x in (p.begins, p.ends)]
    rows = run.trajectory
    events = [x for e in run.events for x in (e.time, e.index, e.direction)]
    times, phase = [0, 0.5, 1, 1.5, 1.75, 2], [0, 0, 0, 1, 2, 2]
    directions = [e.direction for e in run.events]
    known = [1, 0, directions[0], 1.5, 0, -1, 2, 2, 1, 0, 1, 1, 1.5, 1.5, 2, *times, *phase, c / 2]
    return known, [*events, *parts, *rows["time"].values, *rows["phase"].values, *run.final["x"]]


def drifting(rate: float) -> Flow:
    kept = {
        "norm": lambda theta: np.sum(theta["x"] ** 2),
        "less": lambda th: 0.9 * th["x"][:1] ** 2,
    }
    return flow_of(lambda x: np.full(2, rate), conserved=kept)


def drifted(c: float) -> Numbers:
    """The drift of |x|^2 along x' = c is its change over the largest |x|^2, phase by phase; beyond
    1000 rtol, and not before, the solve says so."""
    size, flow = (lambda t: 2 * (0.1 + c / 20 * t) ** 2), drifting(c / 20)
    one = solved(flow, [0.1, 0.1], 1.0)
    two = solved([Phase("a", flow, 0.5), Phase("b", flow, 0.5)], [0.1, 0.1])
    parts = [(size(t) - size(s)) / size(t) for s, t in ((0, 1), (0, 0.5), (0.5, 1))]
    near = [solved(drifting(r * c * RTOL / 4), [1.0, 1.0], 1.0) for r in (999.5, 1000.5)]
    found = [str(run.status) == "drifted" for run in (one, two, *near)]
    found.append("'norm' drifted" in one.sentence)
    known = [parts[0], sum(parts[1:]), 1, 1, 0, 1, 1]
    return known, [one.drifts["norm"], two.drifts["norm"], *found]


def resolved(c: float) -> Numbers:
    """The absolute tolerance is rtol times the root mean square of the start (1 at the origin), or
    the flow's scale; a solve of 20 time constants and more is taken for stiff."""
    still, starts = (lambda x: 0 * x), [[3 * c, 4 * c], [0, 0]]
    runs = [solved(flow_of(still), start, 1.0) for start in starts]
    runs.append(solved(flow_of(still, scale=c / 8), starts[0], 1.0))
    decay = [solved(flow_of(lambda x, k=k: -k * x), [1], 2.0) for k in (5 * c - 0.1, 5 * c + 0.1)]
    stiff = [run.solver["method"] == "bdf" for run in decay]
    return [np.sqrt(12.5) * c, 1, c / 8, 0, 1], [*(run.atol / RTOL for run in runs), *stiff]


def by_every_engine(c: float) -> Numbers:
    """x = (cos ct, sin ct) at t = 1, by every method of both engines, and at times in between."""
    flow = flow_of(lambda x: c * np.array([-x[1], x[0]]))
    marks = {"other": Mark(lambda th: th["x"][1], 0.2), "up": Mark(lambda th: th["x"][1], 0.5)}
    kinds = [Solver(e, m) for e in METHODS for m in METHODS[e]]
    runs = [solved(flow, [1, 0], 1.0, solver=kind, marks=marks) for kind in kinds]
    times = np.array([0, 0.25, 0.5, 1])
    known = np.stack([np.cos(c * times), np.sin(c * times)], axis=1)
    found = [run.states(times)["x"] for run in runs]
    one = [*runs[0].at(0.5)["x"], runs[0].first("up"), runs[0].first("never", c)]
    known = [*known.ravel()] * len(runs)
    return [*known, *np.ravel(known)[4:6], np.pi / 6 / c, c], [*np.ravel(found), *one]


def turn(c: float) -> Any:
    """The field of (cos ct, sin ct)."""
    return lambda x: c * np.array([-x[1], x[0]])


def rows_of(c: float) -> Numbers:
    """Rows at every seventh step and at the end, at equal times, and at times that grow by equal
    factors; each with its state, its speed and what is observed; phases repeat equal times."""
    flow = flow_of(turn(c))
    seen = {"twice": lambda theta: 2 * theta["x"], "one": lambda theta: theta["x"][1]}
    how: dict[str, Any] = {"observe": seen, "store": Store(states=True)}
    plans = (Every(7), Linear(4), Log(3, 0.03), Log(3))
    runs = [solved(flow, [1, 0], 3.0, save=save, **how) for save in plans]
    known, found = [], []
    for run in runs:
        rows = run.trajectory.isel(time=[0, 1, 2, 3, -1])
        t = rows["time"].values
        circle = np.stack([np.cos(c * t), np.sin(c * t)], axis=1)
        known += [circle, 2 * circle, circle[:, 1], np.full(len(t), c)]
        found += [rows[name].values for name in ("state", "twice", "one", "speed")]
    steps = runs[0].work["steps"]
    known += [[0, 7, 14, 21, steps, 2 + (steps - 1) // 7], [0, 1, 2, 3, 0, 0.03, 0.3, 3, 0, 3e-5]]
    every = runs[0].trajectory["step"].values
    found += [every[[0, 1, 2, 3, -1]], [len(every)], *(r.trajectory["time"][:4] for r in runs[1:3])]
    found += [runs[3].trajectory["time"][:2]]
    return [x for part in known for x in np.ravel(part)], [x for p in found for x in np.ravel(p)]


def counted(c: float) -> Numbers:
    """Every velocity is counted, apart from one to check the start, thirteen to find the fastest
    mode, and one a row; a step has one row, where every step is asked for, and a stored state
    where the engine starts again, every twenty steps."""
    calls: list[int] = []

    def field(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return turn(c)(x)

    run = solved(flow_of(field), [1, 0], 5.0, save=Every())
    rows, work = len(run.trajectory["time"]), run.work
    often = solved(flow_of(turn(c)), [1, 0], 5.0, store=Store(every=20)).work
    again = np.ceil(often["steps"] / 20) - 1
    known = [len(calls) - rows - 14, rows - 1, 0, again]
    return known, [work["rhs"], work["steps"], work["restarts"], often["restarts"]]


def looked_at(c: float) -> Numbers:
    """The drift is the largest change of what is called conserved, over the largest squared norm
    of a block, at the start, at every hundredth step and at the end; here of coordinates of a
    circle, which do change, beside a block that stands still."""

    def velocity(theta: Any, out: Any) -> None:
        out["x"][:], out["y"][:] = turn(c)(theta["x"]), 0.0

    kept = {"first": lambda th: th["x"][0], "both": lambda th: th["x"]}
    flow = Flow(velocity=velocity, host=True, conserved=kept)
    start = {"x": np.array([1.0, 0.0]), "y": np.array([c])}
    how: dict[str, Any] = {"save": Every(100), "store": Store(states=True), "rtol": 1e-8}
    run = integrate(flow, start, 9.0, progress=False, **how)
    x = run.trajectory["state"].values[:, :2]
    moved = np.abs(x - x[0])
    known = [moved[:, 0].max() / c**2, moved.max() / c**2]
    return known, [run.drifts["first"], run.drifts["both"]]


def set_up(c: float) -> Numbers:
    """The fastest mode is found by power iteration; a solve of fewer than twenty of its time
    constants is explicit; the absolute tolerance is that of the root mean square of the start, of
    the scale of the flow where it has one, and the relative one at the origin."""
    y, matrix = np.array([3.0, 4.0, 0.0]), np.diag([-c, 0.5, 0.2])
    flows = [flow_of(lambda x: matrix @ x), flow_of(lambda x: matrix @ x, scale=0.1 * c)]
    system, scaled = (flow.bind(begin(y)) for flow in flows)
    field = Field(system)
    explicit = [choose(field, y, n / c, Solver()).method == "adams" for n in (19.9, 20.1)]
    explicit.append(choose(field, y, 1.0, Solver("scipy")).method == "lsoda")
    sizes = [(system, c * y), (system, 0 * y), (system, c * y / 1e200), (scaled, y)]
    found = [absolute_tolerance(s, x, 1e-3) for s, x in sizes]
    mean = c * np.sqrt(25 / 3)
    found[2] *= 1e200
    known = [c, 1, 0, 1, 1e-3 * mean, 1e-3, 1e-3 * mean, 1e-4 * c]
    return known, [round(spectral_radius(field, y), 4), *explicit, *found]


def at_other_rates(c: float) -> Numbers:
    """A closed form whose blocks have rates moves by them, and so its speed is theirs, whether it
    has a speed of its own, which knows no rates, or not; a frozen block stands still."""

    def velocity(theta: Any, out: Any) -> None:
        out["x"][:], out["y"][:] = c, 2 * c

    start, known, found = {"x": np.zeros(1), "y": np.zeros(1)}, [], []
    for own in (None, lambda theta: float(np.sqrt(5) * c)):
        flow = Flow(velocity=velocity, host=True, speed=own)
        fast = Flow(velocity=velocity, host=True, speed=own, rates={"y": 3.0})
        still = [Phase("still", fast, 1.0, frozen=("y",))]
        for each, until, rate in ((flow, 1.0, 1), (fast, 1.0, 3), (still, None, 0)):
            run = integrate(each, start, until, progress=False)
            known += [c, 2 * rate * c, c * np.hypot(1, 2 * rate)]
            found += [run.final["x"][0], run.final["y"][0], run.trajectory["speed"].values[-1]]
    return known, found


def refused(c: float) -> Numbers:
    """A start is finite, and its largest entry has a square."""

    def taken(*start: float) -> float:
        try:
            run = solved(flow_of(lambda x: 0 * x), start, c)
        except InputError:
            return 0.0
        return run.time

    starts = [(1e-147, 0), (1e-147, 1), (2e-146, 0), (0, 0), (np.nan, 1), (np.inf, 1)]
    return [0, c, c, c, 0, 0], [taken(*start) for start in starts]


def limited(c: float) -> Numbers:
    """A state that is not finite, an interruption, the steps or the seconds that are allowed, and
    a stall: a thousand steps that advance by less than a thousandth, or by less than time resolves,
    with more than a million such steps to go. Nothing ends a solve that is at its end."""
    asked, enough = threading.Event(), Limits()
    first, slow = (1000, 1.0), [(1000, 1.0), (2000, 1 + 4.5e-4 * c)]
    edge = slow[1][1] + 0.45 * c
    cases: list[tuple[str, Any, Any, Any]] = [
        ("stalled", enough, slow, 1e9),
        ("", enough, [first, (1999, 1 + 4.5e-4 * c)], 1e9),
        ("", enough, [first, (2000, 1 + 5.5e-4 * c)], 1e9),
        ("stalled", enough, slow, edge * 1.000001),
        ("", enough, slow, edge * 0.999999),
        ("stalled", enough, [(1000, 1e-5)], 1e8),
        ("", enough, [(1000, 2.3e-5)], 1e8),
        ("step_limit", Limits(steps=5), [(5, 0.1)], 1.0),
        ("", Limits(steps=5), [(4, 0.1)], 1.0),
        ("", Limits(steps=5), [(5, 1.0)], 1.0),
        ("time_limit", Limits(seconds=1e-9), [(1, 0.1)], 1.0),
        ("", Limits(seconds=1e6), [(1, 0.1)], 1.0),
    ]

    def said(limits: Limits, looks: Any, until: float, y: float = 0.0) -> str:
        bounds = Bounds(limits, asked, 10**6)
        found = [bounds.reached(step, t, np.array([y]), until) for step, t in looks]
        return str(found[-1][0].name).lower() if found[-1] else ""

    found = [said(*case) == told for told, *case in cases]
    found.append(said(enough, [(1, 2.0)], 1.0, np.nan) == "diverged")
    asked.set()
    found.append(said(enough, [(1, 0.1)], 1.0) == "interrupted")
    return [1.0] * len(found), [float(x) for x in found]


def broken(c: float) -> Numbers:
    """x' = c x^2 from 1 ends at 1/c: whatever was reached is on the path, and the last row is where
    the solve ends; a field of nothing but NaN beyond 1 ends it there."""
    run = solved(flow_of(lambda x: c * x**2), [1], 2 / c, save=[0.0, 0.25 / c])
    t, x = run.trajectory["time"].values, run.final["x"][0]
    wall = solved(flow_of(lambda x: c * np.where(x < 1, 1.0, np.nan)), [0], 2.0)
    known = [(1 - 1 / x) / c, 0, 0.25 / c, 0, 0, 1 / c]
    ended = [run.status.complete, wall.status.complete, round(wall.time * c, 2) / c]
    return known, [t[-1], t[0], t[1], *ended]


def second_opinion(c: float) -> Numbers:
    """Asked for a second opinion, every solve is ten times tighter, or by the other engine, and is
    counted. A cross-check by the other engine tells how far apart the two are: less than a thousand
    tolerances here, where both are at the end of the path."""
    flow = flow_of(turn(c))
    run = solved(flow, [1, 0], 1.0, solver=Solver(cross_check=True))
    with opinion.counting() as count, opinion.asking(opinion.TIGHTER):
        tight = [solved(flow, [1, 0], 1.0, solver=Solver(atol=a)) for a in (None, 1e-6)]
    with opinion.asking(opinion.OTHER):
        other = [solved(flow, [1, 0], 1.0, solver=e).solver["engine"] for e in METHODS]
    gaps = list((run.cross_check or {"none": np.inf}).values())
    scale = np.sqrt(0.5)
    known = [np.cos(c), np.sin(c), 1, 2, RTOL / 10, RTOL / 10 * scale, 1e-7, 1, 1]
    asked = [count[0], tight[0].rtol, tight[0].atol, tight[1].atol]
    swapped = [name == e for name, e in zip(other, ("scipy", "cvode"), strict=True)]
    return known, [*run.final["x"], float(max(gaps) < 1e3), *asked, *swapped]


SOLVES = {
    "marks, stops and rows of a solve": (marked.__doc__, marked),
    "rows of a solve": (rows_of.__doc__, rows_of),
    "phases of a solve": (phased.__doc__, phased),
    "drift of a solve": (drifted.__doc__, drifted),
    "what a solve looks at for its drift": (looked_at.__doc__, looked_at),
    "what a solve counts": (counted.__doc__, counted),
    "what a solve resolves": (resolved.__doc__, resolved),
    "how a solve is set up": (set_up.__doc__, set_up),
    "rates of blocks": (at_other_rates.__doc__, at_other_rates),
    "starts that are refused": (refused.__doc__, refused),
    "what ends a solve": (limited.__doc__, limited),
    "a solve that breaks": (broken.__doc__, broken),
    "every engine": (by_every_engine.__doc__, by_every_engine),
    "a second opinion": (second_opinion.__doc__, second_opinion),
}
