"""What a solve gives and reports, step by step by hand."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, equal
from attnflow.flows import GradientDescent, Linear, descend, integrate
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
def solve_by_hand(study) -> Measurement:
    """The states that a solve gives between its rows are those of a classical Runge-Kutta method
    on autodiff's gradient of the loss written out."""
    start, steps, h = beginning(study), 100, END / 100

    def speed(theta: OneLayerAttention) -> np.ndarray:
        return autodiff_velocity(theta, study.chain)

    def step(theta: OneLayerAttention) -> OneLayerAttention:
        a = speed(theta)
        b = speed(moved(theta, h / 2 * a))
        c = speed(moved(theta, h / 2 * b))
        d = speed(moved(theta, h * c))
        return moved(theta, h / 6 * (a + 2 * b + 2 * c + d))

    states = [start]
    for _ in range(steps):
        states.append(step(states[-1]))
    found = integrate(population_flow(study.chain), start, END, rtol=1e-9, progress=False)
    chosen = (0, 37, 70, steps)
    given = found.states([k * h for k in chosen])
    return equal(
        predicted=np.concatenate([np.ravel(w) for w in blocks(given)]),
        measured=np.concatenate(
            [np.stack([blocks(states[k])[b] for k in chosen]).ravel() for b in range(4)]
        ),
        rtol=1e-7,
        control=Control(
            "one step later",
            measured=np.concatenate(
                [
                    np.stack([blocks(states[min(k + 1, steps)])[b] for k in chosen]).ravel()
                    for b in range(4)
                ]
            ),
        ),
    )


@paper.claim("ours: the drift that a solve reports")
def drift_by_hand(study) -> Measurement:
    """The drift of each conserved quantity is its largest change over the largest squared norm of
    a matrix, looked at where the solve ends."""
    found = integrate(
        population_flow(study.chain), beginning(study), END, rtol=1e-3, progress=False
    )
    ends = found.start, found.final
    norms = [float(np.sum(w**2)) for theta in ends for w in blocks(theta)]
    change = {n: np.abs(c(ends[1]) - c(ends[0])).max() for n, c in CONSERVED.items()}
    names = sorted(change)
    return equal(
        predicted=[found.drifts[n] for n in names],
        measured=[change[n] / max(norms) for n in names],
        rtol=1e-9,
        control=Control(
            "over the smallest squared norm", measured=[change[n] / min(norms) for n in names]
        ),
        note=f"{found.work['steps']} steps: fewer than between two looks",
    )


@paper.claim("ours: descent by hand")
def descent_by_hand(study) -> Measurement:
    """Forty steps of gradient descent are forty steps against autodiff's gradient, at times that
    count them."""
    start, rate, steps = beginning(study), 0.05, 40
    path = [start]
    for _ in range(steps):
        path.append(moved(path[-1], rate * autodiff_velocity(path[-1], study.chain)))
    found = descend(
        population_flow(study.chain),
        start,
        steps * rate,
        GradientDescent(rate),
        observe={"first": lambda th: th.W0[0]},
        save=Linear(9),
        progress=False,
    )
    rows = np.round(found.trajectory["time"].values / rate).astype(int)
    seen = np.ravel(found.trajectory["first"].values)
    return equal(
        predicted=np.concatenate([flat(found.final), seen, found.trajectory["time"].values]),
        measured=np.concatenate(
            [flat(path[steps]), *(blocks(path[k])[0][0] for k in rows), rate * rows]
        ),
        rtol=1e-11,
        control=Control(
            "one step less",
            measured=np.concatenate(
                [
                    flat(path[steps - 1]),
                    *(blocks(path[max(k - 1, 0)])[0][0] for k in rows),
                    rate * rows,
                ]
            ),
        ),
    )
