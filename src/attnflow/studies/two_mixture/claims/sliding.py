"""Beyond the paper: gates on which the exact flow slides, and what descent does instead."""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import Measurement, claim, equal, every, fact
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture import paths
from attnflow.studies.two_mixture.claims.common import STUDY, TWO
from attnflow.tasks.mixture import MixtureClassification


@functools.cache
def _five() -> tuple[float, np.ndarray, str]:
    """K = 2, L = 5, b = 1/2, omega = .3: when a gate slides, and its rates on both sides."""
    flow = symmetric_flow(MixtureClassification(2, 5).orbits, 0.3, 0.5)
    return paths.meeting(flow, 20.0)


@claim("ours: sliding at L = 5", study=STUDY)
def sliding(study) -> Measurement:
    """With five tokens (K = 2, b = 1/2) the exact flow reaches a gate from which the fields of both
    sides lead back to it: it slides (Filippov). With three tokens it crosses."""
    time, rates, _ = _five()
    three = paths.meeting(symmetric_flow(TWO.orbits, 0.3, 0.5), 20.0)[1]
    # On: the height falls; off: it rises.
    return fact(
        bool(rates[0] < 0 < rates[1]),
        control=bool(three[0] < 0 < three[1]),
        sentence=f"at t = {time:.4f} the gate moves at {rates[0]:.4g} while on and {rates[1]:.4g} "
        f"while off: it is on for a share of {rates[1] / (rates[1] - rates[0]):.3f}",
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
