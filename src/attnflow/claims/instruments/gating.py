"""Gates that open, shut and slide, alone and together."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from attnflow.claims.instruments.systems import Numbers, Sink, begin, flow_of, solved, told
from attnflow.flows import Flow, Limits, Store


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


def chatters(c: float) -> Numbers:
    """On a circle a gate switches every half turn: as often as is allowed, and no more."""
    flow = flow_of(lambda x, on: c * np.array([-x[1], x[0]]), lambda x: x[1:])
    until, first = 5.5 * np.pi / c, np.arctan(0.1)
    runs = [solved(flow, [1, 0.1], until, limits=Limits(switches=n)) for n in (4, 5)]
    stalled = [float(str(run.status) == "stalled") for run in runs]
    return [(5 * np.pi - first) / c, until, 1, 0], [*(run.time for run in runs), *stalled]


def compiled(c: float) -> Numbers:
    """A loss with its gates, by autodiff: x1 rises by 1 and, where it is positive, by c more, and
    so fall x2 and x3. Everything but a solve sees the gates where the
    state puts them."""

    def loss(theta: Any, on: Any) -> Any:
        x = theta["x"]
        return -x[0] * (1 + c * on["up"]) + (x[1:] * (1 + c * on["down"])).sum()

    gates = lambda theta: {"up": theta["x"][0], "down": theta["x"][1:]}  # noqa: E731
    flow = Flow(loss, gates=gates)
    start, seen = [-1, 1 + c, 2 + 2 * c], {"open": lambda th, on: on["up"]}
    run = solved(flow, start, 3.0, observe=seen)
    shown = run.trajectory["open"].values[[0, -1]]
    moved = [flow.velocity(begin(x))["x"] for x in ([1, 1, -1], [-1, -1, 1])]
    events = sorted((e.time, e.direction) for e in run.events)
    known = [1, -1, 1, 1, 2, -1, 2 + 2 * c, -2, -1, 0, 1, 1 + c, -1 - c, -1, 1, -1, -1 - c]
    return known, [*np.ravel(events), *run.final["x"], *shown, *np.ravel(moved)]


def rates_of_guards(c: float) -> Numbers:
    """How fast c x^3 and c x y move along a direction; a guard along no direction does not."""
    flow = flow_of(lambda x, on: 0 * x, lambda x: np.array([c * x[0] ** 3, c * x[0] * x[1]]))
    y, v = np.array([0.7, -0.4]), np.array([0.3, 1.1])
    system = flow.bind(begin(y))
    known = [3 * c * y[0] ** 2 * v[0], c * (v[0] * y[1] + y[0] * v[1]), 0, 0]
    return known, [*system.guard_rate(y, v), *system.guard_rate(y, 0 * v)]


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


def resumed(c: float) -> Numbers:
    """A solve that breaks while it slides goes on from its last stored state, as if nothing was."""
    broken, whole = Sink(2), Sink()

    def go(c: float, sink: Sink) -> list[float]:
        run = solved(turning(c), [-1.5, 0], 2.5, store=Store(sink, every=12))
        return [*told(run), *run.trajectory["speed"].values[-9:], run.work["steps"]]

    with contextlib.suppress(KeyboardInterrupt):
        go(2.0, broken)
    last = broken.last
    again = go(c, broken if c == 2.0 else Sink())
    known = [*go(2.0, whole), 2.0, 1.0]
    return known, [*again, whole.last.time, float(last is not None)]


GATES = {
    "a solve crosses a gate": ("A gate opens where the field leads on.", crossing),
    "a solve shuts a gate": ("A gate shuts where the field leads on.", falling),
    "a solve slides and goes on": (goes_on.__doc__, goes_on),
    "a solve slides and turns back": (turns_back.__doc__, turns_back),
    "two gates slide": (two_slide.__doc__, two_slide),
    "two gates switch at once": (at_once.__doc__, at_once),
    "a loss with gates": (compiled.__doc__, compiled),
    "how fast guards move": (rates_of_guards.__doc__, rates_of_guards),
    "as many switches as are allowed": (chatters.__doc__, chatters),
    "a start on the surface": (on_the_surface.__doc__, on_the_surface),
    "a solve that is resumed while it slides": (resumed.__doc__, resumed),
}
