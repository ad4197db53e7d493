"""Beyond the paper: gates on which the exact flow slides, and what descent does instead."""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import Measurement, claim, equal, every, fact
from attnflow.flows.driver import integrate
from attnflow.flows.solution import Solution
from attnflow.models.two_head import gate_names
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims.common import STUDY
from attnflow.tasks.mixture import MixtureClassification


@functools.cache
def _joint(length: int) -> Solution:
    """Joint training at K = 2, b = 1/2, omega = .3 to t = 20."""
    flow = symmetric_flow(MixtureClassification(2, length).orbits, 0.3, 0.5)
    return integrate(flow, flow.start, 20.0, rtol=1e-9, progress=False)


def rates(found: Solution, time: float, gate: str) -> tuple[float, float]:
    """`d(H + b)/dt` of a gate at a time, while it is on and while it is off.

    The flow slides where the first is negative and the second positive.
    """
    system = found.flow.flow.bind(found.start)
    y, v, i = (
        system.layout.flatten(found.at(time)),
        np.empty(system.size),
        _names(found).index(gate),
    )
    on, both = (system.guards(y) > 0) * 1.0, []
    for on[i] in (1.0, 0.0):
        system.rhs(y, v, on)
        both.append(float(system.guard_rate(y, v)[i]))
    return both[0], both[1]


def _names(found: Solution) -> list[str]:
    return list(gate_names(found.flow.population))


@claim("ours: sliding at L = 5", study=STUDY)
def sliding(study) -> Measurement:
    """With five tokens (K = 2, b = 1/2) the exact flow reaches a gate from which the fields of both
    sides lead back to it: it slides (Filippov). With three tokens it crosses."""
    five, three = _joint(5), _joint(3)
    slid = five.sliding[0]
    on, off = rates(five, slid.begins, slid.sliding[0])
    last = [e for e in three.events if e.name in _names(three)][-1]
    crossed = rates(three, last.time, last.name)
    # On: the height falls; off: it rises.
    return every(
        back=fact(
            on < 0 < off,
            control=crossed[0] < 0 < crossed[1],
            sentence=f"at t = {slid.begins:.4f} the gate moves at {on:.4g} while on and {off:.4g} "
            f"while off; it slides to t = {slid.ends:.4f}",
        ),
        share=equal(off / (off - on), slid.share[0][0], rtol=1e-6, control=0.5),
    )


@claim("ours: descent leaves the sliding surface", part="experiment", study=STUDY)
def descent_at_five(study) -> Measurement:
    """Descent at learning rate .1 steps over two surfaces at once, shuts the gate of the d = -3
    samples and never learns them (loss ln 2); small steps follow the sliding flow instead."""
    flow = symmetric_flow(MixtureClassification(2, 5).orbits, 0.3, 0.5)
    hard = int(np.argmin(flow.population.agreement))
    big, small = (
        gram_descent(flow.gram, flow.gram.start, rate, steps, every=round(4 / rate)).rows
        for rate, steps in ((0.1, 1500), (0.002, 2000))
    )
    heights = [flow.gate_values(flow.of_gram(run))[1, 0, hard] for run in (big, small)]
    dead, alive = map(float, heights)
    stuck = float(flow.group_losses(flow.of_gram(big))[-1, 0])
    return every(
        stuck=equal(np.log(2), stuck, rtol=1e-6, control=0.1, note="loss given d = -3 at t = 150"),
        branch=fact(
            dead < 0 < alive,
            control=alive < 0,
            sentence=f"H + b at t = 4: {dead:.3g} (rate .1), {alive:.3g} (rate .002)",
        ),
    )
