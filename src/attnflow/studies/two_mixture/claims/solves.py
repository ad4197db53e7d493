"""Beyond the paper: what a solve through gates tells, on systems that are solved by hand.

Each system has one strength c. What is predicted is written out for it; the control solves the
same system with another strength.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, equal
from attnflow.flows import Flow, Phase, integrate
from attnflow.flows.options import Solver
from attnflow.flows.probes import Mark
from attnflow.flows.solution import Solution
from attnflow.studies.two_mixture.paper import paper

RTOL = 1e-9
Numbers = tuple[list[float], list[float]]
"""What is predicted and what a solve tells."""


def flow_of(field: Any, guards: Any = None, **options: Any) -> Flow:
    """`x' = field(x)`, or `field(x, on)` with the gates that are on where `guards(x) > 0`."""

    def velocity(theta: Any, *on: Any, out: Any) -> None:
        out["x"][:] = field(theta["x"], *on)

    gates = None if guards is None else lambda theta: np.asarray(guards(theta["x"]))
    return Flow(velocity=velocity, gates=gates, host=True, **options)


def solved(flow: Any, start: list[float], until: float | None = None, **options: Any) -> Solution:
    begin = {"x": np.array(start, dtype=float)}
    return integrate(flow, begin, until, **{"rtol": RTOL, "progress": False} | options)


def told(run: Solution) -> list[float]:
    """Events, stretches between switches with their shares, and the end."""
    events = [(e.time, e.direction, e.index, e.name.startswith("sliding")) for e in run.events]
    modes = [(m.begins, m.ends, *m.on, *np.ravel(m.share)) for m in run.modes]
    return [float(x) for row in (*events, *modes, (run.time,), run.final["x"]) for x in row]


def crossing(c: float) -> Numbers:
    run = solved(flow_of(lambda x, on: 1 + c * on, lambda x: x), [-1], 2.0)
    return [1, 1, 0, 0, 0, 1, 0, 1, 2, 1, 2, 1 + c], told(run)


def falling(c: float) -> Numbers:
    run = solved(flow_of(lambda x, on: -c - 2 * (1 - on), lambda x: x), [1], 2.0)
    t = 1 / c
    return [t, -1, 0, 0, 0, t, 1, t, 2, 0, 2, -(c + 2) * (2 - t)], told(run)


def shut_again(c: float) -> Numbers:
    """x1' = 1 - (c + 1 - x2) on: it slides from t = 1 with the share 1/(c + 1 - t), until c."""
    field = lambda x, on: np.r_[1 - on * (c + 1 - x[1]), 1.0, on]  # noqa: E731
    save = [0.5, (1 + c) / 2, c + 1]
    run = solved(flow_of(field, lambda x: x[:1]), [-1, 0, 0], c + 1, save=save)
    shares = run.trajectory["gates"].values[run.trajectory["time"].values == save[1], 0]
    modes = [0, 1, 0, 1, c, 0, 1 / c, 1, c, c + 1, 1]
    known = [1, 1, 0, 1, c, -1, 0, 1, *modes, c + 1, 0.5, c + 1, np.log(c) + 1, 2 / (c + 1)]
    return known, [*told(run), *shares]


def opened_again(c: float) -> Numbers:
    """x1' = 2 - x2 - c on: it slides from t = 1 with the share (2 - t)/c, until 2."""
    field = lambda x, on: np.r_[2 - x[1] - c * on, 1.0]  # noqa: E731
    run = solved(flow_of(field, lambda x: x[:1]), [-1.5, 0], 3.0)
    modes = [0, 1, 0, 1, 2, 0, 1 / c, 0, 2, 3, 0]
    return [1, 1, 0, 1, 2, -1, 0, 1, *modes, 3, -0.5, 3], told(run)


def two_slide(c: float) -> Numbers:
    """x_k' = 1 - c_k on_k: each stays on its surface with the share 1/c_k, from t = 1 and 2."""
    run = solved(flow_of(lambda x, on: 1 - np.array([c, 4.0]) * on, lambda x: x), [-1, -2], 3.0)
    events = [1, 1, 0, 1, 2, 1, 1, 1]
    modes = [0, 1, 0, 0, 1, 2, 0, 0, 1 / c, 1 / c, 2, 3, 0, 0, 1 / c, 1 / c, 0.25, 0.25]
    return [*events, *modes, 3, 0, 0], told(run)


def together(c: float) -> Numbers:
    """Both cross at 1/c; with one of them on they would stand still."""
    field = lambda x, on: -c + c * (on - on[::-1]) ** 2  # noqa: E731
    run = solved(flow_of(field, lambda x: x), [1, 1], 2.0)
    t = 1 / c
    events, modes = [t, -1, 0, 0, t, -1, 1, 0], [0, t, 1, 1, t, 2, 0, 0]
    return [*events, *modes, 2, 1 - 2 * c, 1 - 2 * c], told(run)


def on_the_surface(c: float) -> Numbers:
    """Of three gates at 0 the first leaves, the second slides, the third turns back."""
    field = lambda x, on: np.array([1.0, 1 - c * on[1], -1 - on[2]])  # noqa: E731
    run = solved(flow_of(field, lambda x: x), [0, 0, 0], 1.0)
    return [0, 1, 1, 0, 0, 1 / c, 1 / c, 1, 1, 0, -1], told(run)


def marked(c: float) -> Numbers:
    """x = (cos ct, sin ct): its first number falls to 1/2, rises to it, and ends at 0."""
    up, down = (Mark(lambda theta: theta["x"][0], 0.5, way) for way in (1, -1))
    stop = Mark(lambda theta: theta["x"][1], 0.0, 1)
    marks = {"any": Mark(lambda theta: theta["x"][0], 0.5), "up": up, "down": down}
    flow = flow_of(lambda x: c * np.array([-x[1], x[0]]))
    run = solved(flow, [1, 0], 9.0, marks=marks, stops={"stop": stop}, save=[0.3, 0.6])
    t = run.trajectory["time"].values
    speed = run.trajectory["speed"].values
    a, b = np.arccos(0.5) / c, (2 * np.pi - np.arccos(0.5)) / c
    events = [(a, -1), (a, -1), (b, 1), (b, 1), (2 * np.pi / c, 1)]
    known = [*np.ravel(events), 0.3, 0.6, 2 * np.pi / c, c, c, c, 1]
    names = [e.name for e in run.events] == ["any", "down", "any", "up", "stop"]
    return known, [*np.ravel([(e.time, e.direction) for e in run.events]), *t, *speed, names * 1.0]


def staged(c: float) -> Numbers:
    """Up by c for a unit of time, down twice as fast to 0, up again for half a unit."""
    up, down = flow_of(lambda x: np.array([c])), flow_of(lambda x: np.array([-2 * c]))
    stop = Mark(lambda theta: theta["x"][0], 0.0, -1)
    phases = [Phase("up", up, 1.0), Phase("down", down, 5.0, stop), Phase("last", up, 0.5)]
    run = solved(phases, [0], save=[0.5, 1.25, 1.75])
    parts = [x for p in run.phases for x in (p.begins, p.ends)]
    rows = run.trajectory
    t, events = rows["time"].values, [e.time for e in run.events]
    known = [1, 1.5, 2, 0, 1, 1, 1.5, 1.5, 2, 0.5, 1, 1.25, 1.5, 1.75, 2, 0, 0, 1, 1, 2, 2, c / 2]
    return known, [*events, *parts, *t, *rows["phase"].values, *run.final["x"]]


def drifted(c: float) -> Numbers:
    """x' = c from (1, 1) moves |x|^2 by 4c + 2c^2, over the largest squared norm: no solve of it
    is complete; nothing moves with the rate 0, and phases add."""
    kept = {"norm": lambda theta: np.sum(theta["x"] ** 2)}
    flow = flow_of(lambda x: np.full(2, c), conserved=kept)
    one = solved(flow, [1, 1], 1.0)
    two = solved([Phase("a", flow, 0.5), Phase("b", flow, 0.5)], [1, 1])
    size = lambda t: 2 * (1 + c * t) ** 2  # noqa: E731
    parts = [(size(t) - size(s)) / size(t) for s, t in ((0, 1), (0, 0.5), (0.5, 1))]
    found = [*(run.drifts["norm"] for run in (one, two)), 1.0 * (str(one.status) == "drifted")]
    return [parts[0], parts[1] + parts[2], 1], found


def resolved(c: float) -> Numbers:
    """rtol times the root mean square of the start, or the flow's scale; 1 at the origin."""
    still, how = (lambda x: 0 * x), Solver("scipy", "dop853")
    starts = [[3 * c, 4 * c], [0, 0]]
    runs = [solved(flow_of(still), start, 1.0, solver=how) for start in starts]
    runs.append(solved(flow_of(still, scale=c / 8), starts[0], 1.0, solver=how))
    return [np.sqrt(12.5) * c, 1, c / 8], [run.atol / RTOL for run in runs]


@paper.family(
    {
        "ours: a solve crosses a gate": ("It opens where the field leads on.", crossing),
        "ours: a solve shuts a gate": ("It shuts where the field leads on.", falling),
        "ours: a solve slides and goes on": (shut_again.__doc__, shut_again),
        "ours: a solve slides and turns back": (opened_again.__doc__, opened_again),
        "ours: two gates slide": (two_slide.__doc__, two_slide),
        "ours: two gates switch at once": (together.__doc__, together),
        "ours: a start on the surface": (on_the_surface.__doc__, on_the_surface),
        "ours: marks, stops and rows of a solve": (marked.__doc__, marked),
        "ours: phases of a solve": (staged.__doc__, staged),
        "ours: drift of a solve": (drifted.__doc__, drifted),
        "ours: what a solve resolves": (resolved.__doc__, resolved),
    },
    setting="a system that is solved by hand",
)
def by_hand(study, system: Any) -> Measurement:
    (known, found), there = system(2.0), system(2.5)[1]
    other = Control("another strength", measured=there)
    return equal(predicted=known, measured=found, rtol=1e-7, control=other)
