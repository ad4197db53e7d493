"""The solver, step by step by hand, and on flows whose paths are known."""

from __future__ import annotations

import numpy as np

from attnflow.claims import against, equal
from attnflow.flows import Adam, GradientDescent, Linear, descend, integrate
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
