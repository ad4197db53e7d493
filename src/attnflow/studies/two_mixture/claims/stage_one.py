"""Section 5.1 and Appendix D: neurons under uniform attention, before and after T0.5."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import (
    Measurement,
    Regime,
    at_most,
    claim,
    equal,
    every,
    exponent,
    fact,
    positive,
)
from attnflow.flows.driver import integrate
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params
from attnflow.models.two_head import TwoHeadClassifier, tables
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import (
    C1,
    EXPLICIT,
    SAMPLES,
    TWO,
    V1,
    derivative,
    forward,
    neurons_of,
    past_gates,
    said,
    three_tokens,
    two_mixtures,
)
from attnflow.tasks.mixture import MixtureClassification

UNIFORM = np.zeros((2, 4, 4))
"""Scores of infinite width before stage 2: uniform attention."""

PLUS, MINUS = "c1 +v1 +v2", "c1 -v1 -v2"
SHARES = np.array([0.1, 0.5, 0.9])
"""Times looked at, as shares of a stage."""

WIDTH = 64
OMEGAS = (0.0125, 0.025, 0.05)
"""Dimension and scales of the start at which alignments at T1 are compared."""


LONG = 100.0
"""Beyond this a T1 is not of order one, and the start of a finite width shows."""


def order_one(study) -> Regime:
    """T1 after T0.5, and both of order one."""
    base = past_gates(study)
    if not base.inside:
        return base
    gate = theory.gate_time(study.config.bias)
    return Regime(2 * gate <= LONG, f"{base.sentence}; T0.5 is of order one, below {LONG / 2:g}")


def early(study) -> list[np.ndarray]:
    """w at times of stage 1.1, from the closed form."""
    b = float(study.config.bias)
    return _neurons(SHARES * min(theory.gate_time(b), study.config.t1), b)


def late(study) -> list[np.ndarray]:
    """w at times of stage 1.2."""
    b, t1 = float(study.config.bias), study.config.t1
    gate = theory.gate_time(b)
    return _neurons(gate + SHARES * (t1 - gate), b)


def _neurons(times: np.ndarray, bias: float) -> list[np.ndarray]:
    both = zip(*theory.neurons(times, bias), strict=True)
    return [neurons_of(float(gamma), float(a)) for gamma, a in both]


def rates(study, ws: list[np.ndarray]) -> np.ndarray:
    """dw/dt[time, head, coordinate], from the loss alone by complex steps."""

    def value(w: Any) -> Any:
        return common.loss(w, UNIFORM, TWO.population, float(study.config.bias))

    return np.stack([-derivative(value, w) for w in ws])


def sensitivities(study, ws: list[np.ndarray]) -> dict[str, np.ndarray]:
    """g(X) of each sample over time."""
    b, y = float(study.config.bias), TWO.population.label
    g = [1 / (1 + np.exp(y * forward(w, UNIFORM, TWO.population, b)[2])) for w in ws]
    return dict(zip(SAMPLES, np.stack(g).T, strict=True))


def consistent(g: dict[str, np.ndarray], signs: str = "+-") -> np.ndarray:
    """The sum of g over the consistent samples with these signs."""
    return sum(v for s, v in g.items() for sign in signs if s.count(f"{sign}v") == 2)  # type: ignore[return-value]


# --- Stage 1.1: Lemmas 5.2, D.1, D.2.


def _along_signals(study, head: int) -> Measurement:
    ws = early(study)
    sign, total = (1, -1)[head], consistent(sensitivities(study, ws))
    predicted = np.stack([sign * total / 8] * 2, axis=1)
    return equal(
        predicted,
        rates(study, ws)[:, head, V1:],
        rtol=1e-13,
        control=predicted * 8 / 7,
        note="at three times of stage 1.1; control: 1/7",
    )


def _no_growth(study) -> Measurement:
    here, there = (np.abs(rates(study, ws)[:, :, :V1]).max() for ws in (early(study), _shut(study)))
    return at_most(here, 1e-15, control=there, note="control: after T0.5")


def _shut(study) -> list[np.ndarray]:
    b = float(study.config.bias)
    return _neurons(theory.gate_time(b) * np.array([1.5]), b)


@claim("Lemma 5.2 (classification signals)", part="constant", **said(two_mixtures))
def rate_of_signals(study) -> Measurement:
    """While all gates are on, dw_+^T v_k/dt = (1/8) sum g over consistent samples, w_- the same
    with a minus.
    """
    return every(plus=_along_signals(study, 0), minus=_along_signals(study, 1))


@claim("Lemma 5.2 (group signals)", **said(two_mixtures))
def no_rate_of_groups(study) -> Measurement:
    """While all gates are on, dw_+^T c_k/dt = dw_-^T c_k/dt = 0."""
    return _no_growth(study)


@claim("Lemma D.1 (w+)", part="constant", **said(two_mixtures))
def growth_of_plus_signals(study) -> Measurement:
    """Stage 1.1: dw_+^T v_k/dt = (1/8) sum_{k', s = s'} g(X_{k',s,s'})."""
    return _along_signals(study, 0)


@claim("Lemma D.1 (w-)", part="constant", **said(two_mixtures))
def growth_of_minus_signals(study) -> Measurement:
    """Stage 1.1: dw_-^T v_k/dt = -(1/8) sum_{k', s = s'} g(X_{k',s,s'})."""
    return _along_signals(study, 1)


@claim("Lemma D.2", **said(two_mixtures))
def no_growth_of_groups(study) -> Measurement:
    """Stage 1.1: dw_+^T c_k/dt = dw_-^T c_k/dt = 0."""
    return _no_growth(study)


# --- The flow of stage 1, gates held between switches.


@dataclass(frozen=True, eq=False)
class Stage:
    """Stage 1 solved numerically on (gamma, a): the switch, and states at three late times."""

    switch: float
    times: np.ndarray
    states: np.ndarray
    shut: tuple[str, ...]


@functools.lru_cache(maxsize=32)
def solved(bias: float, t1: float, groups: int = 2) -> Stage:
    """Stage 1 from w = 0, through the switches of its gates, by an explicit method."""
    flow = symmetric_flow(MixtureClassification(groups, 3).orbits, 1.0, bias, ("attention",))
    found = integrate(flow, flow.start, t1, rtol=1e-12, solver=EXPLICIT, progress=False)
    shut = [e for e in found.events if e.direction < 0]
    if not shut:
        return Stage(np.inf, np.array([t1]), found.final["w"][None], ())
    switch = shut[0].time
    times = np.r_[switch + SHARES * (t1 - switch), t1]
    return Stage(switch, times, found.states(times)["w"], tuple(e.name for e in shut))


@claim("Cor D.3", part="constant", **said(past_gates))
def gates_reach_zero(study) -> Measurement:
    """There is a time T0.5 of order one at which H_s(X_{k,-s,-s}) = -b: it is b + (e^{2b}-1)/2."""
    b, t1 = float(study.config.bias), float(study.config.t1)
    return equal(
        theory.gate_time(b),
        solved(b, t1).switch,
        rtol=1e-9,
        atol=1e-10,
        control=b + np.expm1(b) / 2,
        note="control: e^b in place of e^{2b}",
    )


@claim("ours: stage 1 in closed form", **said(past_gates))
def stage_one_closed(study) -> Measurement:
    """gamma and a are Lambert functions of time, before T0.5 and after it."""
    b, t1 = float(study.config.bias), float(study.config.t1)
    found = solved(b, t1)
    predicted = np.stack(theory.neurons(found.times, b), axis=1)
    wrong = np.stack(theory.neurons(1.01 * found.times, b), axis=1)
    before = 0.7 * found.switch
    first = solved(b, before).states[0]
    return every(
        before=equal(np.stack(theory.neurons(before, b)), first, rtol=1e-9, control=1.01 * first),
        after=equal(
            predicted,
            found.states,
            rtol=1e-9,
            control=wrong,
            note=f"at T1 = {t1:g}: gamma = {found.states[-1, 0]:.10f}, "
            f"a = {found.states[-1, 1]:.10f}",
        ),
    )


@claim("ours: K groups slow stage 1 by K/2", **said(three_tokens))
def slower_with_groups(study) -> Measurement:
    """At L = 3 the curves of K groups are those of two with time multiplied by K/2."""
    b = float(study.config.bias)
    gate = theory.gate_time(b)
    if not np.isfinite(gate) or gate > 1e6:
        gate = 1.0
    pair = solved(b, 4 * gate).states[-1]
    Ks = sorted({3, 32, study.config.groups} - {2})
    many = np.stack([solved(b, 4 * gate * K / 2, K).states[-1] for K in Ks])
    same = np.stack([solved(b, 4 * gate, K).states[-1] for K in Ks])
    return equal(
        np.stack([pair] * len(Ks)),
        many,
        rtol=1e-9,
        control_measured=same,
        note=f"K = {Ks}; control: at the same time",
    )


# --- Stage 1.2: Lemmas 5.3, D.4, D.5.


def _along(study, head: int, groups: bool) -> Measurement:
    ws = late(study)
    g = sensitivities(study, ws)
    own = "+-"[head]
    sign = 1 if groups else (1, -1)[head]
    if groups:
        one = np.stack([g[f"c{k} {own}v{k} {own}v{3 - k}"] for k in (1, 2)], axis=1)
        at = slice(C1, V1)
    else:
        one = np.stack([consistent(g, own)] * 2, axis=1)
        at = slice(V1, None)
    found, before = (rates(study, x)[:, head, at] for x in (ws, early(study)))
    return equal(
        sign * one / 8,
        found,
        rtol=1e-12,
        control_measured=before,
        note="at three times from T0.5 to T1; control: the rate before T0.5",
    )


@claim("Lemma 5.3", part="constant", **said(past_gates))
def rate_of_groups(study) -> Measurement:
    """Once H_+(X_{k,-,-}) < -b: dw_+^T c_k/dt = (1/8) g(X_{k,+,+})."""
    return _along(study, 0, groups=True)


@claim("Lemma D.4 (w+)", part="constant", **said(past_gates))
def later_growth_of_plus_signals(study) -> Measurement:
    """Stage 1.2: dw_+^T v_k/dt = (1/8) sum_k' g(X_{k',+,+})."""
    return _along(study, 0, groups=False)


@claim("Lemma D.4 (w-)", part="constant", **said(past_gates))
def later_growth_of_minus_signals(study) -> Measurement:
    """Stage 1.2: dw_-^T v_k/dt = -(1/8) sum_k' g(X_{k',-,-})."""
    return _along(study, 1, groups=False)


@claim("Lemma D.5 (w+)", part="constant", **said(past_gates))
def growth_of_plus_groups(study) -> Measurement:
    """Stage 1.2: dw_+^T c_k/dt = (1/8) g(X_{k,+,+})."""
    return _along(study, 0, groups=True)


@claim("Lemma D.5 (w-)", part="constant", **said(past_gates))
def growth_of_minus_groups(study) -> Measurement:
    """Stage 1.2: dw_-^T c_k/dt = (1/8) g(X_{k,-,-})."""
    return _along(study, 1, groups=True)


# --- The end of stage 1: Cor. D.6, D.7, Thm. D.8.


@claim("Cor D.6", **said(past_gates))
def four_gates_shut(study) -> Measurement:
    """Between T0.5 and T1 exactly the gates of head s on X_{k,-s,-s} are shut: four of sixteen."""

    def exactly_four(ws: list[np.ndarray]) -> bool:
        shut = np.stack([forward(w, UNIFORM, TWO.population, study.config.bias)[1] for w in ws])
        off = shut + study.config.bias < 0
        wanted = np.array([[s.count(f"{sign}v") == 2 for s in SAMPLES] for sign in "-+"])
        return bool((off == wanted).all())

    reduced = solved(float(study.config.bias), float(study.config.t1)).shut
    return every(
        pattern=fact(
            exactly_four(late(study)),
            control=exactly_four(early(study)),
            sentence=f"shut: + head on {MINUS} and its group mirror, - head on {PLUS}",
        ),
        switched=equal(1, len(reduced), rtol=0.0, control=2, note=f"orbits that switch: {reduced}"),
    )


@claim("Cor D.6 (rates)", part="proof-step", **said(past_gates))
def signals_outgrow_groups(study) -> Measurement:
    """Stage 1.2: d w_+^T(v_1 + v_2)/dt > d w_+^T c_1/dt; it is four times as fast."""
    v = rates(study, late(study))[:, 0]
    signals, group = v[:, V1] + v[:, V1 + 1], v[:, C1]
    return every(
        greater=positive(signals - group, control=group - signals),
        ratio=equal(4.0, signals / group, rtol=1e-12, control=3.0),
    )


@claim("Cor D.7", **said(order_one, "consistent"))
def alignments_of_order_one(study) -> Measurement:
    """At T1 of order one w_+^T mu is of order one for every signal mu, whatever omega."""
    return _order_one(study)


@claim("Lemma 5.3 (alignments)", **said(order_one, "consistent"))
def both_of_order_one(study) -> Measurement:
    """If T1 is of order one then w_+^T v_k and w_+^T c_k are of order one after stage 1."""
    return _order_one(study)


@claim("Thm 4.1 (T1)", **said(order_one, "consistent"))
def first_stage_of_order_one(study) -> Measurement:
    """A stage 1 whose length does not depend on omega aligns the neurons."""
    return _order_one(study)


def _order_one(study) -> Measurement:
    b = float(study.config.bias)
    t1 = min(float(study.config.t1), LONG)
    gamma, a = np.array([_finite_width(b, w, t1) for w in OMEGAS]).T
    short = [float(theory.neurons(theory.gate_time(b) * (1 + w), b)[0]) for w in OMEGAS]
    return every(
        groups=exponent(
            OMEGAS,
            gamma,
            0.0,
            tol=0.05,
            control_y=short,
            note=f"w_+ . c at T1, dimension {WIDTH}; control: T1 = T0.5 (1 + omega)",
        ),
        signals=exponent(OMEGAS, a, 0.0, tol=0.05, control=1.0),
    )


@functools.lru_cache(maxsize=32)
def _finite_width(bias: float, omega: float, t1: float) -> tuple[float, float]:
    """Mean alignments of the plus head at T1, with a random attention that is not uniform."""
    theta = TwoHeadClassifier.gaussian(2, WIDTH, omega, bias=bias, seed=6)
    t, S = tables(TWO.population), np.asarray(theta.scores)

    def velocity(state: Params, on: Any, out: Params | None = None) -> Params:
        dw = t.forces(state["w"], S, bias, on)[0].reshape(2, 4)
        if out is None:
            return {"w": dw}
        out["w"][:] = dw
        return out

    flow = Flow(velocity=velocity, gates=lambda z: t.gate_values(z["w"], S, bias), host=True)
    w = integrate(flow, {"w": np.zeros((2, 4))}, t1, rtol=1e-5, progress=False).final["w"][0]
    return float(w[C1:V1].mean()), float(w[V1:].mean())


@claim("Thm D.8", **said(past_gates))
def outputs_at_the_end(study) -> Measurement:
    """At T1 f(X_{k,s,s}) is s times a constant, and f(X_{k,s,-s}) = 0."""
    b, t1 = float(study.config.bias), float(study.config.t1)
    w = _neurons(np.array([t1]), b)[0]
    tilted = w + np.array([[0, 0, 0.1, 0], [0, 0, 0, 0]])
    y, d = TWO.population.label, TWO.population.agreement

    def f(w: np.ndarray) -> np.ndarray:
        return forward(w, UNIFORM, TWO.population, b)[2]

    return every(
        consistent=positive(
            (y * f(w))[d == 1],
            margin=b,
            control=(y * f(0 * w))[d == 1],
            note=f"s f = {float((y * f(w))[d == 1].min()):.6g}; control: w = 0",
        ),
        conflicting=at_most(
            np.abs(f(w)[d == -1]).max(),
            1e-14,
            note="control: w_+ . v_1 moved",
            control=np.abs(f(tilted)[d == -1]).max(),
        ),
    )
