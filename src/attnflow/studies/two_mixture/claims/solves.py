"""Beyond the paper: what a solve through gates tells, on systems that are solved by hand.

Each system has one strength c. What is predicted is written out for it; the control solves the
same system with another strength.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, equal
from attnflow.flows import Flow, Linear, Phase, integrate
from attnflow.flows.engines import METHODS
from attnflow.flows.options import Limits, Solver, Store
from attnflow.flows.probes import Mark
from attnflow.flows.sinks import joined
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
    begin, how = {"x": np.array(start, dtype=float)}, {"rtol": RTOL, "progress": False}
    return integrate(flow, begin, until, limits=Limits(seconds=1e6), **how | options)


def told(run: Solution) -> list[float]:
    """Events, stretches between switches with their shares, first and last row, and the end."""
    events = [(e.time, e.direction, e.index, e.name.startswith("sliding")) for e in run.events]
    modes = [(m.begins, m.ends, *m.on, *np.ravel(m.share)) for m in run.modes]
    ends = (*run.trajectory["time"].values[[0, -1]], *run.final["x"], run.resumable)
    return [float(x) for row in (*events, *modes, ends) for x in row]


def crossing(c: float) -> Numbers:
    run = solved(flow_of(lambda x, on: 1 + c * on, lambda x: x), [-1], 2.0)
    return [1, 1, 0, 0, 0, 1, 0, 1, 2, 1, 0, 2, 1 + c, 0], told(run)


def falling(c: float) -> Numbers:
    run = solved(flow_of(lambda x, on: -c - 2 * (1 - on), lambda x: x), [1], 2.0)
    t = 1 / c
    return [t, -1, 0, 0, 0, t, 1, t, 2, 0, 0, 2, -(c + 2) * (2 - t), 0], told(run)


def goes_on(c: float) -> Numbers:
    """x1' = 1 - (c + 1 - x2) on slides from t = 1 with the share 1/(c + 1 - t), until c."""
    field = lambda x, on: np.r_[1 - on * (c + 1 - x[1]), 1.0, on]  # noqa: E731
    save = [0.0, (1 + c) / 2, c + 1]
    run = solved(flow_of(field, lambda x: x[:1]), [-1, 0, 0], c + 1, save=save)
    share = run.trajectory["gates"].sel(time=save[1]).values
    modes = [0, 1, 0, 1, c, 0, 1 / c, 1, c, c + 1, 1]
    ends = [0, c + 1, 0.5, c + 1, np.log(c) + 1, 0]
    return [1, 1, 0, 1, c, -1, 0, 1, *modes, *ends, 2 / (c + 1)], [*told(run), *share]


def turning(c: float) -> Flow:
    return flow_of(lambda x, on: np.r_[2 - x[1] - c * on, 1.0], lambda x: x[:1])


def turns_back(c: float) -> Numbers:
    """x1' = 2 - x2 - c on slides from t = 1 with the share (2 - t)/c, until 2."""
    modes = [0, 1, 0, 1, 2, 0, 1 / c, 0, 2, 2.5, 0]
    known = [1, 1, 0, 1, 2, -1, 0, 1, *modes, 0, 2.5, -0.125, 2.5, 0]
    return known, told(solved(turning(c), [-1.5, 0], 2.5))


def two_slide(c: float) -> Numbers:
    """x_k' = 1 - c_k on_k: each stays on its surface with the share 1/c_k, from t = 1 and 2."""
    run = solved(flow_of(lambda x, on: 1 - np.array([c, 4.0]) * on, lambda x: x), [-1, -2], 3.0)
    modes = [0, 1, 0, 0, 1, 2, 0, 0, 1 / c, 1 / c, 2, 3, 0, 0, 1 / c, 1 / c, 0.25, 0.25]
    return [1, 1, 0, 1, 2, 1, 1, 1, *modes, 0, 3, 0, 0, 0], told(run)


def at_once(c: float) -> Numbers:
    """Both gates shut at 1/c; with one of them on x would stand still."""
    run = solved(flow_of(lambda x, on: c * ((on - on[::-1]) ** 2 - 1), lambda x: x), [1, 1], 2.0)
    t, x = 1 / c, 1 - 2 * c
    return [t, -1, 0, 0, t, -1, 1, 0, 0, t, 1, 1, t, 2, 0, 0, 0, 2, x, x, 0], told(run)


def on_the_surface(c: float) -> Numbers:
    """Of three gates at 0 the first opens, the second slides, the third stays shut."""
    field = lambda x, on: np.array([1.0, 1 - c * on[1], -1 - on[2]])  # noqa: E731
    run = solved(flow_of(field, lambda x: x), [0, 0, 0], 1.0)
    return [0, 1, 1, 0, 0, 1 / c, 1 / c, 0, 1, 1, 0, -1, 0], told(run)


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
    rows, events = run.trajectory, [x for e in run.events for x in (e.time, e.index)]
    times, phase = [0, 0.5, 1, 1.5, 1.75, 2], [0, 0, 0, 1, 2, 2]
    known = [1, 0, 1.5, 0, 2, 2, 0, 1, 1, 1.5, 1.5, 2, *times, *phase, c / 2]
    return known, [*events, *parts, *rows["time"].values, *rows["phase"].values, *run.final["x"]]


def drifting(rate: float) -> Flow:
    kept = {"norm": lambda theta: np.sum(theta["x"] ** 2)}
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
    return [parts[0], sum(parts[1:]), 1, 1, 0, 1], [one.drifts["norm"], two.drifts["norm"], *found]


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
    runs = [solved(flow, [1, 0], 1.0, solver=Solver(e, m)) for e in METHODS for m in METHODS[e]]
    times = np.array([0, 0.25, 0.5, 1])
    known = np.stack([np.cos(c * times), np.sin(c * times)], axis=1)
    return [*known.ravel()] * len(runs), np.ravel([run.states(times)["x"] for run in runs]).tolist()


class Sink:
    """Keeps rows up to its last checkpoint, for a second solve; it breaks after some of them."""

    def __init__(self, most: float = np.inf):
        self.segments, self.kept, self.last, self.most = [], 0, None, most

    def begin(self, shape: Any) -> Any:
        del self.segments[self.kept :]
        return self.last

    def flush(self, segment: Any) -> None:
        self.segments.append(segment)

    def checkpoint(self, checkpoint: Any) -> None:
        self.last, self.kept, self.most = checkpoint, len(self.segments), self.most - 1
        if self.most == 0:
            raise KeyboardInterrupt

    def collect(self) -> Any:
        return joined(self.segments)


def resumed(c: float) -> Numbers:
    """A solve that breaks while it slides goes on from its last stored state, as if nothing was."""
    broken, whole = Sink(2), Sink()

    def go(c: float, sink: Sink) -> list[float]:
        run = solved(turning(c), [-1.5, 0], 2.5, store=Store(sink, every=12))
        return [*told(run), *run.trajectory["speed"].values[-9:], run.work["steps"]]

    with contextlib.suppress(KeyboardInterrupt):
        go(c, broken)
    return go(2.0, whole), go(2.0, broken)


SYSTEMS = {
    "a solve crosses a gate": ("A gate opens where the field leads on.", crossing),
    "a solve shuts a gate": ("A gate shuts where the field leads on.", falling),
    "a solve slides and goes on": (goes_on.__doc__, goes_on),
    "a solve slides and turns back": (turns_back.__doc__, turns_back),
    "two gates slide": (two_slide.__doc__, two_slide),
    "two gates switch at once": (at_once.__doc__, at_once),
    "a start on the surface": (on_the_surface.__doc__, on_the_surface),
    "marks, stops and rows of a solve": (marked.__doc__, marked),
    "phases of a solve": (phased.__doc__, phased),
    "drift of a solve": (drifted.__doc__, drifted),
    "what a solve resolves": (resolved.__doc__, resolved),
    "every engine": (by_every_engine.__doc__, by_every_engine),
    "a solve that is resumed": (resumed.__doc__, resumed),
}


@paper.family({f"ours: {k}": v for k, v in SYSTEMS.items()}, setting="a system solved by hand")
def by_hand(study, system: Any) -> Measurement:
    (known, found), there = system(2.0), system(2.5)[1]
    other = Control("another strength", measured=there)
    return equal(predicted=known, measured=found, rtol=1e-7, control=other)
