"""Appendix F and what Theorem 4.1 says of T3: the neurons again, to a loss of epsilon.

The attention stands still at what stage 2 left. Then `dw_+.mu/dt = sum over d of alpha_d(mu) g_d`
with the coefficients that the proofs of F.1 and F.2 write out: constant but for the gates.
"""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Measurement,
    Regime,
    at_least,
    at_most,
    claim,
    equal,
    every,
    exponent,
    fact,
    positive,
)
from attnflow.flows.driver import integrate
from attnflow.flows.solution import Solution
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import margin, theory
from attnflow.studies.two_mixture.algorithm import LOSSES, ThreeStages, loss_marks, three_stages
from attnflow.studies.two_mixture.claims.common import (
    C1,
    OMEGAS,
    SIGNS,
    TWO,
    V1,
    StageTwo,
    condition_one,
    order_at_most,
    past_gates,
    said,
    second_stage,
    second_stages,
    staged,
)

STOPS = (0.5, 1.0, 2.0)
"""Ends of stage 2 at which the law of stage 3 is measured."""

SHARP = 0.3
"""Largest omega at which the gates of stage 3 are seen to cross, not slide."""


def converging(study) -> Regime:
    """Condition 1 and T1 beyond T0.5; stage 2 ends at any score of at most 4."""
    base, c = past_gates(study), study.config
    if not base.inside:
        return base
    small = condition_one(study)
    words = f"{base.sentence}; {small.sentence}; stage 2 ends at a score of {c.score_stop:.3g}"
    return Regime(small.inside and 0.2 <= c.score_stop <= 4, f"{words} (0.2 to 4)")


def crossing(study) -> Regime:
    """The same at small omega: at .45 a gate slides on its surface in stage 3, and neither opens
    nor stays shut."""
    base, omega = converging(study), study.config.omega
    if not base.inside:
        return base
    return Regime(omega <= SHARP, f"{base.sentence}; omega <= {SHARP:g} here")


def three(study, stop: float | None = None) -> ThreeStages:
    """Algorithm 1 at K = 2, L = 3 with the config's numbers."""
    c = study.config
    return three_stages(TWO, c.omega, c.bias, c.t1, c.score_stop if stop is None else stop)


def slopes(found: StageTwo, shut: bool) -> np.ndarray:
    """alpha[d, signal]: `dw_+/dt = alpha_+ g_+ + alpha_- g_-` at the attention of T2.

    `shut` leaves out the samples X_{k,-,-}, whose gate of the plus head stage 1 has shut.
    """
    population = TWO.population
    p = found.attention[-1][0]
    seen = np.einsum("nkq,nka->na", p, population.inputs)
    gate = np.ones(len(population))
    if shut:
        gate[(population.agreement > 0) & (population.label < 0)] = 0.0
    each = (population.weight * population.label * gate)[:, None] * seen
    return np.stack([each[population.agreement == d].sum(axis=0) for d in (1, -1)])


@claim("App F (witness)", **said(converging))
def witness(study) -> Measurement:
    """After stage 2 the neurons w_+- = c_1 + c_2 +- (v_1 + v_2) have y f bounded away from 0 on all
    samples."""
    flow = three(study).flow
    known = dict(three(study).at_t2, w=np.ones(2))
    uniform = dict(flow.start, w=np.ones(2))
    found = float(flow.predictions(known).min())
    return positive(
        found,
        margin=1e-2,
        control=float(flow.predictions(uniform).min()),
        note=f"min y f = {found:.4f}",
    )


@claim("Lemma F.1", **said(staged, "consistent"))
def rate_along_v(study) -> Measurement:
    """In stage 3 dw_+.v_k/dt = Theta(g_+) + O~(omega g_-): the coefficient of g_+ is bounded on
    both sides, that of g_- vanishes with omega."""
    main = [slopes(second_stage(study), shut)[0, V1] for shut in (True, False)]
    rest = [abs(slopes(r, True)[1, V1]) for r in second_stages(study)]
    other = [slopes(r, True)[1, C1] for r in second_stages(study)]
    return every(
        below=at_least(main, 0.1, control=[0.0, 0.0]),
        above=at_most(main, 0.5, control=[1.0, 1.0], note="gates shut, gates open"),
        rest=_order(rest, other),
    )


@claim("Lemma F.2", **said(staged, "consistent"))
def rate_along_c(study) -> Measurement:
    """In stage 3 dw_+.c_k/dt >= Omega(g_-) + O~(omega g_+): the coefficient of g_- is bounded
    below, and what g_+ takes away vanishes with omega (while the gates are shut it adds)."""
    main = slopes(second_stage(study), True)[1, C1]
    shut = [slopes(r, True)[0, C1] for r in second_stages(study)]
    taken = [abs(slopes(r, False)[0, C1]) for r in second_stages(study)]
    return every(
        below=at_least(main, 0.05 * _grown(study), control=0.0),
        shut=positive(shut, control=[-x for x in shut]),
        open=_order(taken, shut),
    )


def _grown(study) -> float:
    """What scores of order one are: constants of stage 3 are proportional to small ones."""
    return min(1.0, study.config.score_stop)


def _order(y, other) -> Measurement:
    if max(y) <= 1e-12:  # an exact symmetry: nothing to fit
        return at_most(max(y), 1e-12, control=max(other))
    return order_at_most(OMEGAS, np.maximum(y, 1e-300), 1.0, control_y=other)


@claim("Thm F.3", **said(converging, "consistent"))
def one_over_epsilon(study) -> Measurement:
    """T3 - T2 = O(1/epsilon): the time of stage 3 to a loss epsilon."""
    found = three(study)
    losses = [e for e in LOSSES if e <= 0.03 and e in found.times]
    return exponent(losses, [found.times[e] for e in losses], -1.0, tol=0.08, control=-2.0)


@claim("Thm F.3", part="proof-step", **said(converging))
def loss_falls_at_its_square(study) -> Measurement:
    """In stage 3 dE[loss]/dt = -Omega(g_+^2 + g_-^2), with a constant that the whole stage has."""
    found = three(study)
    flow, phi = found.flow, found.flow.features(found.at_t2)

    def ratio_of(on: np.ndarray, g: np.ndarray, phi: np.ndarray) -> float:
        push = np.einsum("hn,hnk->k", SIGNS * on * (flow.tables.weight * g), phi)
        return float((push @ push) / (2 * flow.groups) / (g @ g))

    ratio = []
    data, states = found.solution.trajectory, found.solution.states()
    rows = np.flatnonzero(data["phase"].values == 2)
    for row in rows[:: max(1, len(rows) // 60)]:
        state = {name: values[row] for name, values in states.items()}
        g = 1 / (1 + np.exp(flow.predictions(state)))
        ratio.append(ratio_of(flow.gate_values(state) > 0, g, phi))
    # Under uniform attention the conflicting samples, left alone, push nothing.
    hard = 0.5 * (flow.population.agreement < 0)
    none = ratio_of(np.ones((2, 2)), hard, flow.features(flow.start))
    return at_least(
        min(ratio),
        0.005 * _grown(study) ** 2,
        control=none,
        note=f"the ratio lies in [{min(ratio):.4f}, {max(ratio):.4f}]",
    )


@claim("ours: stage 3 lasts 1/(epsilon margin^2)", part="constant", **said(converging))
def margin_sets_the_time(study) -> Measurement:
    """epsilon (T3 - T2) -> 1/margin^2 with the largest margin of the attention features at T2, all
    gates on: the constant of Theorem F.3."""
    found, expected, wrong = [], [], []
    for stop in STOPS:
        result = three(study, stop)
        size = margin.margin(result.flow, result.at_t2).value
        found.append(result.times[LOSSES[-1]])
        expected.append(theory.convergence_time(size, LOSSES[-1]))
        wrong.append(theory.convergence_time(size**0.5, LOSSES[-1]))
    return equal(
        np.array(expected),
        np.array(found),
        rtol=0.03,
        each=True,
        control=np.array(wrong),
        note=f"scores {STOPS}, loss {LOSSES[-1]:g}",
    )


@claim("Thm 4.1 (loss at T3)", **said(converging))
def loss_reaches_epsilon(study) -> Measurement:
    """There is a T3 with E[loss] <= epsilon after Algorithm 1, for every epsilon."""
    found = three(study)
    reached = [found.times.get(e, np.inf) for e in LOSSES]
    skipped = _without_attention(study)
    return fact(
        bool(np.isfinite(reached).all()),
        control=bool(np.isfinite(skipped.first("loss 0.3"))),
        sentence=f"loss {LOSSES[-1]:g} after {reached[-1]:.5g}; without stage 2 the loss stays "
        f"at {found.flow.loss_of(skipped.final):.4f}",
    )


@claim("Thm 4.1 (alignment with v at T3)", **said(converging))
def aligned_with_v(study) -> Measurement:
    """At T3 w_+.v_k and w_-.(-v_k) are positive and of order one, up to logarithms."""
    a = _neurons_of(three(study))[:, 1].tolist()
    return every(
        sign=positive(a, control=[-x for x in a]),
        size=at_most(max(a) / np.log(1 / LOSSES[-1]), 2.0, control=1 / LOSSES[-1]),
    )


@claim("Thm 4.1 (alignment with c at T3)", **said(converging))
def aligned_with_c(study) -> Measurement:
    """At T3 w_+-.c_k are positive and of order one, up to logarithms: it grows like log 1/epsilon
    with a slope that the end of stage 2 sets."""
    gamma = _neurons_of(three(study))[:, 0].tolist()
    rise = np.diff(gamma[1:]) / -np.diff(np.log(LOSSES[1:]))
    return every(
        sign=positive(gamma, control=[-x for x in gamma]),
        logarithmic=at_most(
            rise.max() / rise.min(),
            1.5,
            control=LOSSES[1] / LOSSES[-1],
            note=f"w.c = {gamma[-1]:.3f} at loss {LOSSES[-1]:g}",
        ),
    )


@claim("ours: gates shut in stage 1 open again in stage 3", **said(crossing))
def gates_open_again(study) -> Measurement:
    """The four gates that Cor. D.6 finds shut from T0.5 to T1 open in stage 3, and at the end all
    are on: the corollary does not extend. Without stage 2 they would stay shut."""
    found = three(study)
    t2 = found.t2 or np.inf
    again = [e.time - t2 for e in found.switches if e.direction > 0 and e.time > t2]
    every_gate = bool((found.flow.gate_values(found.solution.final) > 0).all())
    skipped = _without_attention(study)
    return fact(
        every_gate and bool(again),
        control=any(e.direction > 0 for e in skipped.events),
        sentence=f"they open at t - T2 = {again[0]:.4g}" if again else "none opens",
    )


@claim("Thm 4.1 (symmetry at T3)", **said(converging))
def symmetric_at_the_end(study) -> Measurement:
    """At T3 the neurons share the symmetries of heads and groups: the flow of all 8 neurons moves
    them alike, w_+.v_k = -w_-.v_k, w_+.c_1 = w_+.c_2 = w_-.c_k."""
    from attnflow.models.two_head import tables

    found = three(study)
    lifted = found.flow.lift(found.solution.final)
    table = tables(TWO.population)

    def uneven(w: np.ndarray) -> float:
        dw = table.forces(w, lifted["S"], found.flow.bias)[0].reshape(2, 4)
        mirror = dw * np.array([[1, 1, 1, 1], [1, 1, -1, -1]])
        return float(np.ptp(mirror.reshape(2, 2, 2), axis=(0, 2)).max() / np.abs(dw).max())

    apart = lifted["w"] + np.array([[0.3, 0, 0, 0], [0, 0, 0, 0]])
    return at_most(uneven(lifted["w"]), 1e-12, control=uneven(apart))


def _neurons_of(found: ThreeStages) -> np.ndarray:
    """(gamma, a) where stage 3 reaches each loss."""
    assert found.t2 is not None
    return found.solution.states([found.t2 + t for t in found.times.values()])["w"]


def _without_attention(study) -> Solution:
    """Stage 3 right after stage 1: the neurons alone, for long."""
    c, start = study.config, three(study).at_t1
    flow = symmetric_flow(TWO.orbits, c.omega, c.bias, ("attention",))
    stops = loss_marks(flow.loss_of, (0.3,))
    return integrate(flow, start, 2e4, stops=stops, rtol=1e-8, progress=False)
