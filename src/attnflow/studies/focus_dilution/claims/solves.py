"""The solver, step by step by hand, and on flows whose paths are known."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from attnflow.claims import against, equal, fact
from attnflow.flows import (
    Adam,
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Mark,
    Phase,
    Solver,
    Store,
    descend,
    integrate,
)
from attnflow.flows.driver import absolute_tolerance
from attnflow.flows.engines import choose, spectral_radius
from attnflow.flows.recorder import Bounds
from attnflow.flows.switching import Field
from attnflow.linearise.lyapunov_schmidt import lyapunov_schmidt
from attnflow.models.one_layer import CONSERVED, OneLayerAttention, population_flow
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_velocity,
    blocks,
    flat,
    moved,
)
from attnflow.studies.focus_dilution.paper import paper

END = 2.0


def beginning(study) -> OneLayerAttention:
    return OneLayerAttention.gaussian(study.chain.tokens, DIM, 0.4, SEEDS[1])


@paper.claim("ours: the solve by hand")
@against("one step later", equal, rtol=1e-7)
def solve_by_hand(study, right: bool):
    """The states that a solve gives between its rows are those of a classical Runge-Kutta method
    on autodiff's gradient of the loss written out."""
    h, states = END / 100, [beginning(study)]
    for _ in range(100):
        k, total = np.zeros_like(flat(states[-1])), 0.0
        for ahead, weight in ((0, 1), (h / 2, 2), (h / 2, 2), (h, 1)):
            k = autodiff_velocity(moved(states[-1], ahead * k), study.chain)
            total = total + weight * k
        states.append(moved(states[-1], h / 6 * total))
    found = integrate(population_flow(study.chain), states[0], END, rtol=1e-9, progress=False)
    rows = (0, 37, 70, 100)
    given = zip(*blocks(found.states([k * h for k in rows])), strict=True)
    chosen = [states[k if right else min(k + 1, 100)] for k in rows]
    return [flat(OneLayerAttention(*theta)) for theta in given], [flat(theta) for theta in chosen]


@paper.claim("ours: the drift that a solve reports")
@against("over the smallest squared norm", equal, rtol=1e-9, note="fewer steps than between looks")
def drift_by_hand(study, right: bool):
    """The drift of each conserved quantity is its largest change over the largest squared norm of
    a matrix, looked at where the solve ends."""
    flow, start = population_flow(study.chain), beginning(study)
    found = integrate(flow, start, END, rtol=1e-3, progress=False)
    ends = found.start, found.final
    norms = [float(np.sum(w**2)) for theta in ends for w in blocks(theta)]
    change = [np.abs(c(ends[1]) - c(ends[0])).max() for c in CONSERVED.values()]
    by_hand = np.divide(change, max(norms) if right else min(norms))
    return [found.drifts[name] for name in CONSERVED], by_hand


@paper.claim("ours: descent by hand")
@against("one step less", equal, rtol=1e-11)
def descent_by_hand(study, right: bool):
    """Forty steps of gradient descent are forty steps against autodiff's gradient, at times that
    count them."""
    rate, steps, path = 0.05, 40, [beginning(study)]
    for _ in range(steps):
        path.append(moved(path[-1], rate * autodiff_velocity(path[-1], study.chain)))
    how = {"observe": {"first": lambda th: th.W0[0]}, "save": Linear(9), "progress": False}
    flow, optimiser = population_flow(study.chain), GradientDescent(rate)
    found = descend(flow, path[0], steps * rate, optimiser, **how)
    times = found.trajectory["time"].values
    rows, late = np.round(times / rate).astype(int), 0 if right else 1
    first = [blocks(path[max(k - late, 0)])[0][0] for k in rows]
    seen = flat(found.final), np.ravel(found.trajectory["first"].values), times
    return np.concatenate(seen), np.concatenate([flat(path[steps - late]), *first, rate * rows])


@paper.claim("ours: Adam by hand")
@against("without the correction of its means", equal, rtol=1e-9)
def adam_by_hand(study, right: bool):
    """Twenty steps of Adam are those of its running means of the gradient and of its square, each
    over what it is of a constant."""
    rate, theta, steps = 1e-3, beginning(study), 20
    mean, square = np.zeros_like(flat(theta)), np.zeros_like(flat(theta))
    for k in range(1, steps + 1):
        g = -autodiff_velocity(theta, study.chain)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        parts = (1 - 0.9**k, 1 - 0.999**k) if right else (1, 1)
        step = mean / parts[0] / (np.sqrt(square / parts[1]) + 1e-8)
        theta = moved(theta, -rate * step)
    flow, start = population_flow(study.chain), beginning(study)
    found = descend(flow, start, steps * rate, Adam(rate), progress=False)
    return flat(found.final), flat(theta)


# --- Paths that are known: a circle, a straight line, a diagonal matrix.


def linear_flow(
    matrix: np.ndarray, shift: float = 0.0, calls: list[int] | None = None, **how: Any
) -> Flow:
    """x' = matrix x + shift; each call is noted."""

    def velocity(theta: Any, out: Any = None) -> Any:
        if calls is not None:
            calls.append(1)
        moved = matrix @ theta["x"] + shift
        if out is None:
            return {"x": moved}
        out["x"][:] = moved
        return out

    return Flow(velocity=velocity, host=True, **how)


TURN, EAST = np.array([[0.0, -1.0], [1.0, 0.0]]), {"x": np.array([1.0, 0.0])}
"""Round the circle in 2 pi, from (1, 0)."""


@paper.claim("ours: marks and rows of a solve")
@against("a turn that is a hundredth faster", equal, rtol=1e-6)
def marks_and_rows(study, right: bool):
    """On a circle every crossing is known: a solve marks each entry with its direction, keeps only
    the directions that are asked for, stops at its stop, and has rows at the steps or times that
    are asked for and where it ends."""
    flow = linear_flow(TURN if right else 1.01 * TURN)
    x, y = lambda th: th["x"][0], lambda th: th["x"][1]
    marks = {"any": Mark(lambda th: th["x"]), "up": Mark(y, 0.5, 1), "down": Mark(y, 0.5, -1)}
    how = {"rtol": 1e-9, "progress": False, "observe": {"x": x}}
    stops = {"end": Mark(x, -0.5, 1)}
    one = integrate(flow, EAST, 100.0, save=Every(7), marks=marks, stops=stops, **how)
    two = integrate(flow, EAST, 10.0, save=Linear(11), **how)
    third, rows, steps = np.pi / 3, one.trajectory, one.work["steps"]
    crossed = [(third / 2, 1, 0), (1.5 * third, -1, 0), (2.5 * third, -1, 0), (3 * third, -1, 1)]
    t, late = rows["time"].values, two.trajectory["time"].values
    known = *crossed, (4 * third, 1, 0), np.cos(t), np.ones_like(t), np.arange(11), np.cos(late)
    seen = rows["x"], rows["speed"], late, two.trajectory["x"], rows["step"], [one.time]
    ended = np.append(np.arange(0, steps, 7), steps), [t[-1]]
    found = *((e.time, e.direction, e.index) for e in one.events), *seen
    return np.concatenate([*known, *ended]), np.concatenate(found)


@paper.claim("ours: phases of a solve")
@against("back at half the speed", equal, rtol=1e-6, atol=1e-7)
def phases_of_a_solve(study, right: bool):
    """Round the circle for a unit of time, then back until the start is passed: each phase begins
    where the one before ends, and every row says which it is of."""
    back = Mark(lambda th: th["x"][1], 0.0, -1)
    turned = linear_flow(-TURN if right else -0.5 * TURN)
    phases = [Phase("there", linear_flow(TURN), 1.0), Phase("back", turned, 9.0, back)]
    run = integrate(phases, EAST, rtol=1e-9, save=Linear(5), progress=False)
    t, of = run.trajectory["time"].values, run.trajectory["phase"].values
    spans = np.ravel([(part.begins, part.ends) for part in run.phases])
    seen = [*(e.time for e in run.events), run.time, *run.final["x"], np.sum(of != (t > 1))]
    return [0, 1, 1, 2, 1, 2, 2, 1, 0, 0], [*spans, *seen]


@paper.claim("ours: engines agree")
@against("at a hundredth less", equal, rtol=1e-6)
def engines_agree(study, right: bool):
    """Four methods that a solve can take, of two libraries, give the circle, between their
    steps too."""
    times = np.linspace(0.0, 6.0, 7)
    kinds = (("cvode", "bdf"), ("cvode", "adams"), *(("scipy", m) for m in ("lsoda", "dop853")))
    flow, how = linear_flow(TURN), {"rtol": 1e-9, "progress": False}
    runs = [integrate(flow, EAST, 6.0, solver=Solver(*kind), **how) for kind in kinds]
    known = np.cos(times if right else 0.99 * times)
    return [known] * len(runs), [run.states(times)["x"][:, 0] for run in runs]


@paper.claim("ours: what a solve counts")
@against("the steps for the evaluations", equal, rtol=0)
def what_a_solve_counts(study, right: bool):
    """Every velocity is counted, apart from one to check the start, thirteen to find its fastest
    mode, and one a row; a step has one row, where every step is asked for."""
    calls: list[int] = []
    run = integrate(linear_flow(TURN, calls=calls), EAST, 10.0, save=Every(), progress=False)
    rows, work = len(run.trajectory["time"]), run.work
    return [work["rhs" if right else "steps"], work["steps"]], [len(calls) - rows - 14, rows - 1]


@paper.claim("ours: what a solve looks at for its drift")
@against("a look every forty steps", equal, rtol=1e-9)
def looks_of_the_drift(study, right: bool):
    """The drift is the largest change of what is called conserved, over the largest squared norm,
    at every fiftieth step and at the end; here of a coordinate of the circle, which does change."""
    flow = linear_flow(TURN, conserved={"first": lambda th: th["x"][0]})
    how = {"rtol": 1e-6, "store": Store(states=True), "progress": False}
    found = integrate(flow, EAST, 9.0, save=Every(50 if right else 40), **how)
    rows = found.trajectory["state"].values
    return np.abs(rows[:, 0] - 1).max() / np.sum(rows**2, axis=1).max(), found.drifts["first"]


@paper.claim("ours: when a drift is said")
@against("at ten times the tolerance", equal, rtol=0)
def drift_is_said(study, right: bool):
    """A solve is called drifted where the drift is above a thousand times its relative tolerance,
    on a straight line, which is solved exactly."""
    flow = linear_flow(np.zeros((1, 1)), -1.0, conserved={"x": lambda th: th["x"]})
    start, rtol = {"x": np.array([1.0])}, 1e-4 if right else 1e-3
    runs = [integrate(flow, start, t, rtol=rtol, progress=False) for t in (0.09995, 0.10005)]
    return [0, 1], [run.status == "drifted" for run in runs]


@paper.claim("ours: how a solve is set up")
@against("a matrix with another fastest mode", equal, rtol=1e-4)
def set_up(study, right: bool):
    """Its fastest mode is found by power iteration; a solve of fewer than twenty of its time
    constants is explicit; the absolute tolerance is that of the root mean square of the start, of
    the scale of the flow where it has one, and the relative one at the origin."""
    matrix, y = np.diag([-3.0 if right else -4.0, 1.0, 0.5]), np.array([3.0, 4.0, 0.0])
    flows = [linear_flow(matrix), linear_flow(matrix, scale=0.1)]
    system, scaled = (flow.bind({"x": y}) for flow in flows)
    field = Field(system)
    methods = [choose(field, y, n / 3, Solver()).method for n in (19.9, 20.1)]
    sizes = [(system, y), (system, 0 * y), (system, y / 1e200), (scaled, y)]
    tolerances = [absolute_tolerance(s, x, 1e-3) for s, x in sizes]
    mean = np.sqrt(25 / 3)
    told = [3.0, 1, 0, 1e-3 * mean, 1e-3, 1e-3 * mean, 1e-4]
    tolerances[2] *= 1e200
    return told, [spectral_radius(field, y), *(m == "adams" for m in methods), *tolerances]


STALLED = [(1000, 1.0), (2000, 1.0009)]
"""Steps and times: the second thousand advances by less than a thousandth of what was reached."""


@paper.claim("ours: what ends a solve")
@against("where steps cannot stall", fact)
def what_ends_a_solve(study, right: bool):
    """A state that is not finite, an interruption, the steps or the seconds that are allowed, and
    a stall: a thousand steps that advance by less than a thousandth, or by less than time resolves,
    with more than a million such steps to go. Nothing ends a solve that is at its end."""
    enough, edge, asked = Limits(), 1.0009 + 0.9 * (1 + 5e-7), threading.Event()
    cases: list[tuple[str, Any, Any, Any]] = [
        ("stalled", enough, STALLED, 1e9),
        ("", enough, [STALLED[0], (1999, 1.0009)], 1e9),
        ("", enough, [STALLED[0], (2000, 1.0011)], 1e9),
        ("stalled", enough, STALLED, edge),
        ("", enough, STALLED, edge - 1e-6),
        ("stalled", enough, [(1000, 1e-7)], 1e9),
        ("", enough, [(1000, 1e-3)], 1e9),
        ("step_limit", Limits(steps=5), [(5, 0.1)], 1.0),
        ("", Limits(steps=5), [(4, 0.1)], 1.0),
        ("", Limits(steps=5), [(5, 1.0)], 1.0),
        ("time_limit", Limits(seconds=1e-9), [(1, 0.1)], 1.0),
        ("", Limits(seconds=1e6), [(1, 0.1)], 1.0),
    ]

    def said(limits: Limits, looks: list[tuple[int, float]], until: float, y: float = 0.0) -> str:
        bounds = Bounds(limits, asked, 10**6, stalls=right)
        found = [bounds.reached(step, t, np.array([y]), until) for step, t in looks]
        return str(found[-1][0].name).lower() if found[-1] else ""

    found = [said(*case) for _, *case in cases] + [said(enough, [(1, 2.0)], 1.0, np.nan)]
    asked.set()
    found.append(said(enough, [(1, 0.1)], 1.0))
    return found == [*(told for told, *_ in cases), "diverged", "interrupted"]


@paper.claim("ours: the reduction of a known family")
@against("about another parameter", equal, rtol=1e-9, atol=1e-12)
def reduction_of_a_known_family(study, right: bool):
    """Of x' = x^3 - (p - 1/2) x, y' = -2 (y - x^2 - 3 (p - 1/2)) the range equation is solved by
    y = x^2 + 3 (p - 1/2), at once where x = 0, and leaves the first line."""
    about = 0.5 if right else 0.6

    def evaluate(z: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
        (x, y), q = z, p - about
        value = np.array([x**3 - q * x, -2 * (y - x**2 - 3 * q)])
        return value, np.array([[3 * x**2 - q, 0, -x], [4 * x, -2, 6]])

    family = lyapunov_schmidt(evaluate, np.zeros(2), p=about, host=True)
    way = float(family.kernel[0, 0])
    points = [(0.0, 0.7), (0.3, 0.7), (-0.2, 0.4)]
    found = [family.solve([way * x], p) for x, p in points]
    left = [way * family.reduced([way * x], p)[0] for x, p in points]
    known = [(x**2 + 3 * (p - 0.5), x**3 - (p - 0.5) * x) for x, p in points]
    told = [*np.ravel(known), 0, 3.0]
    sides = np.column_stack([[f.theta[1] for f in found], left])
    return told, [*sides.ravel(), found[0].iterations, abs(family.first_order[0])]
