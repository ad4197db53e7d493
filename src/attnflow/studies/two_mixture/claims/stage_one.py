"""Section 5.1 and Appendix D: neurons under uniform attention, before and after T0.5."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow import claims
from attnflow.claims import Control, Measurement, at_most, equal, every, fact, order, sign
from attnflow.flows.driver import integrate
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.models.two_head_gram import score_flow, score_start
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import SAMPLES, TWO, V1, forward, past_gates
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification

UNIFORM = np.zeros((2, 4, 4))
"""Scores of infinite width before stage 2: uniform attention."""

SHARES = np.array([0.1, 0.5, 0.9])
"""Times looked at, as shares of a stage."""

WIDTH, OMEGAS = 64, (0.0125, 0.025, 0.05)
"""Dimension and scales of the start at which a finite width is looked at."""

LONG = 100.0
"""Beyond this a T1 is not of order one, and the start of a finite width shows."""


@claims.condition
def of_order_one(config: Config) -> claims.Regime:
    gate = theory.gate_time(config.bias)
    return claims.Regime(2 * gate <= LONG, f"T0.5 = {gate:.4g} is of order one, below {LONG / 2:g}")


order_one = past_gates & of_order_one


def early(study) -> list[np.ndarray]:
    """w at times of stage 1.1, from the closed form."""
    b = float(study.config.bias)
    return neurons(SHARES * min(theory.gate_time(b), study.config.t1), b)


def late(study) -> list[np.ndarray]:
    """w at times of stage 1.2."""
    b, gate = float(study.config.bias), theory.gate_time(study.config.bias)
    return neurons(gate + SHARES * (study.config.t1 - gate), b)


def neurons(times: np.ndarray, bias: float) -> list[np.ndarray]:
    both = zip(*theory.neurons(times, bias), strict=True)
    return [common.neurons_of(float(gamma), float(a)) for gamma, a in both]


def rates(study, ws: list[np.ndarray]) -> np.ndarray:
    """dw/dt[time, head, coordinate], from the loss alone by complex steps."""
    value = lambda w: common.loss(w, UNIFORM, TWO.population, float(study.config.bias))  # noqa: E731
    return np.stack([-common.derivative(value, w) for w in ws])


def sensitivities(study, ws: list[np.ndarray], *kinds: str) -> np.ndarray:
    """g(X_{k,s,s'})[time, k], summed over these kinds of signs s, s' (such as `+-`)."""
    b, y = float(study.config.bias), TWO.population.label
    g = np.stack([1 / (1 + np.exp(y * forward(w, UNIFORM, TWO.population, b)[2])) for w in ws])
    at = [[SAMPLES.index(f"c{k} {s[0]}v{k} {s[1]}v{3 - k}") for k in (1, 2)] for s in kinds]
    return g[:, at].sum(axis=1)


CONSISTENT = ("++", "--")


def along_signals(study, times, heads: tuple[int, ...], kinds: tuple[str, ...]) -> Measurement:
    """dw . v_k/dt against the sum of g over both groups' samples of these kinds, over 8."""
    ws, signs = times(study), np.array([1, -1])[list(heads), None] / 8

    def rate(kinds: tuple[str, ...]) -> np.ndarray:
        total = sensitivities(study, ws, *kinds).sum(axis=1)
        return total[:, None, None] * signs * np.ones(2)

    conflicting = Control("the sum over conflicting samples", rate(("+-", "-+")[: len(kinds)]))
    measured = rates(study, ws)[:, heads, V1:]
    return equal(predicted=rate(kinds), measured=measured, rtol=1e-12, control=conflicting)


FIRST = r"{0}: $dw_{1}^\top v_k/dt = {2}\frac18\sum g$ over the consistent samples."
early_signals = {
    f"Lemma {id}": (FIRST.format(*words), early, heads, CONSISTENT)
    for id, words, heads in (
        ("5.2 (classification signals)", ("While all gates are on", r"\pm", r"\pm"), (0, 1)),
        ("D.1 (w+)", ("Stage 1.1", "+", ""), (0,)),
        ("D.1 (w-)", ("Stage 1.1", "-", "-"), (1,)),
    )
}
constant = functools.partial(paper.family, part="constant")
signals_early = constant(early_signals, regime=common.two_mixtures)(along_signals)


@paper.family(
    {
        "Lemma 5.2 (group signals)": (r"With all gates on, $dw_\pm^\top c_k/dt = 0$.",),
        "Lemma D.2": (r"Stage 1.1: $dw_+^\top c_k/dt = dw_-^\top c_k/dt = 0$.",),
    },
    regime=common.two_mixtures,
)
def no_growth(study) -> Measurement:
    b = float(study.config.bias)
    shut = neurons(theory.gate_time(b) * np.array([1.01]), b)
    here, there = (np.abs(rates(study, ws)[:, :, :V1]).max() for ws in (early(study), shut))
    return at_most(bound=1e-15, measured=here, control=Control("after T0.5", there))


# --- The flow of stage 1.


@dataclass(frozen=True, eq=False)
class Stage:
    """Stage 1 solved numerically on (gamma, a): the switch, and states at three late times."""

    switch: float
    times: np.ndarray
    states: np.ndarray
    shut: tuple[str, ...]


@paper.once
def solved(bias: float, t1: float, groups: int = 2) -> Stage:
    """Stage 1 from w = 0, through the switches of its gates, by an explicit method."""
    flow = symmetric_flow(MixtureClassification(groups, 3).orbits, 1.0, bias, ("attention",))
    found = integrate(flow, flow.start, t1, rtol=1e-12, solver=common.EXPLICIT, progress=False)
    shut = [e for e in found.events if e.direction < 0]
    if not shut:
        return Stage(np.inf, np.array([t1]), found.final["w"][None], ())
    times = np.r_[shut[0].time + SHARES * (t1 - shut[0].time), t1]
    return Stage(shut[0].time, times, found.states(times)["w"], tuple(e.name for e in shut))


@paper.claim("Cor D.3", part="constant", regime=past_gates)
def gates_reach_zero(study) -> Measurement:
    r"""There is a time $T_{0.5} = \Theta(1)$ at which $H_s(X_{k,-s,-s}) = -b$: it is
    $b + (e^{2b} - 1)/2$."""
    b = float(study.config.bias)
    switch, other = solved(b, float(study.config.t1)).switch, b + np.expm1(b) / 2
    once = Control("e^b in place of e^{2b}", other)
    return equal(predicted=theory.gate_time(b), measured=switch, rtol=1e-9, control=once)


@paper.claim("ours: stage 1 in closed form", regime=past_gates)
def stage_one_closed(study) -> Measurement:
    """gamma and a are Lambert functions of time, before T0.5 and after it."""
    b, found = float(study.config.bias), solved(float(study.config.bias), float(study.config.t1))
    times = np.r_[0.7 * found.switch, found.times]
    measured = np.r_[solved(b, times[0]).states, found.states]
    closed = lambda bias: np.stack(theory.neurons(times, bias), axis=1)  # noqa: E731
    on = Control("as if no gate had shut", closed(100.0))
    return equal(predicted=closed(b), measured=measured, rtol=1e-9, control=on)


@paper.claim("ours: K groups slow stage 1 by K/2", regime=common.three_tokens)
def slower_with_groups(study) -> Measurement:
    """At L = 3 the curves of K groups are those of two with time multiplied by K/2."""
    b = float(study.config.bias)
    until, Ks = 4 * theory.gate_time(b), sorted({3, 32, study.config.groups} - {2})

    def ends(slower: bool) -> np.ndarray:
        return np.stack([solved(b, until * (K / 2 if slower else 1), K).states[-1] for K in Ks])

    def closed(groups: bool) -> list[list[float]]:
        pairs = [(until * K / 2, K if groups else 2) for K in Ks]
        return [[theory.gate_time(b, K), *theory.neurons(t, b, K)] for t, K in pairs]

    pair = np.stack([solved(b, until).states[-1]] * len(Ks))
    gates = np.c_[[solved(b, until * K / 2, K).switch for K in Ks], ends(True)]
    same = Control("at the same time", measured=ends(False))
    two = Control("of two groups", closed(False))
    return every(
        curves=equal(predicted=pair, measured=ends(True), rtol=1e-9, control=same),
        closed=equal(predicted=closed(True), measured=gates, rtol=1e-9, control=two),
    )


@paper.family(
    {
        "Lemma 5.3": (r"With $H_+(X_{k,-,-}) < -b$: $dw_+^\top c_k/dt = \frac18 g(X_{k,+,+})$.", 0),
        "Lemma D.5 (w+)": (r"Stage 1.2: $dw_+^\top c_k/dt = \frac18 g(X_{k,+,+})$.", 0),
        "Lemma D.5 (w-)": (r"Stage 1.2: $dw_-^\top c_k/dt = \frac18 g(X_{k,-,-})$.", 1),
    },
    part="constant",
    regime=past_gates,
)
def along_groups(study, head: int) -> Measurement:
    ws, own = late(study), CONSISTENT[head]
    rate, conflicting = (sensitivities(study, ws, kind) / 8 for kind in (own, "+-"))
    found, wrong = rates(study, ws)[:, head, :V1], Control("g of a conflicting sample", conflicting)
    return equal(predicted=rate, measured=found, rtol=1e-12, control=wrong)


SECOND = r"Stage 1.2: $dw_{0}^\top v_k/dt = {1}\frac18\sum g(X_{{k',{0},{0}}})$ over $k'$."
late_signals = {
    "Lemma D.4 (w+)": (SECOND.format("+", ""), late, (0,), ("++",)),
    "Lemma D.4 (w-)": (SECOND.format("-", "-"), late, (1,), ("--",)),
}
signals_late = constant(late_signals, regime=past_gates)(along_signals)


@paper.claim("Cor D.6", regime=past_gates)
def four_gates_shut(study) -> Measurement:
    """Between T0.5 and T1 exactly the gates of head s on X_{k,-s,-s} are shut: four of sixteen. Of
    the orbits one gate switches, once: that of the minus head on c1 +v1 +v2."""
    b, t1 = float(study.config.bias), float(study.config.t1)

    def exactly_four(ws: list[np.ndarray]) -> bool:
        off = np.stack([forward(w, UNIFORM, TWO.population, b)[1] for w in ws]) + b < 0
        wanted = np.array([[s.count(f"{sign}v") == 2 for s in SAMPLES] for sign in "-+"])
        return bool((off == wanted).all())

    def once_only(until: float) -> bool:
        return solved(b, until).shut == ("minus c1 +v1 +v2",)

    before = [exactly_four(early(study)), once_only(0.9 * theory.gate_time(b))]
    return every(
        pattern=fact(measured=exactly_four(late(study)), control=Control("before T0.5", before[0])),
        switched=fact(measured=once_only(t1), control=Control("before T0.5", before[1])),
    )


@paper.claim("Cor D.6 (rates)", part="proof-step", regime=past_gates)
def signals_outgrow_groups(study) -> Measurement:
    r"""Stage 1.2: $dw_+^\top(v_1 + v_2)/dt > dw_+^\top c_1/dt$; it is four times as fast."""
    found = rates(study, late(study)).sum(axis=0)
    both = zip(found[:, V1:].sum(axis=1), found[:, 0], strict=True)
    (signals, group), (other, own) = both
    minus = Control("the minus head", other - own)
    alone = Control("one signal alone", measured=found[0, V1] / group)
    return every(
        greater=sign(predicted=1, measured=signals - group, control=minus),
        ratio=equal(predicted=4.0, measured=signals / group, rtol=1e-12, control=alone),
    )


@paper.family(
    {
        "Cor D.7": (r"At $T_1 = \Theta(1)$ $w_+^\top\mu = \Theta(1)$ for every signal $\mu$.",),
        "Lemma 5.3 (alignments)": (r"If $T_1 = \Theta(1)$ then $w_+^\top v_k, w_+^\top c_k$ too.",),
        "Thm 4.1 (T1)": ("A stage 1 whose length is free of omega aligns the neurons.",),
    },
    regime=order_one,
)
def alignments(study) -> Measurement:
    """w_+ . c and w_+ . v at T1 over scales of a random attention that is not uniform."""
    b, t1 = float(study.config.bias), min(float(study.config.t1), LONG)
    gate = theory.gate_time(b)
    c, v = np.transpose([first_stage(b, t1, w)["w"][0].reshape(2, 2).mean(1) for w in OMEGAS])
    barely = [theory.neurons(gate * (1 + w), b)[0] for w in OMEGAS]
    shorter = [theory.neurons(gate * w, b)[1] for w in OMEGAS]
    late = Control("T1 = T0.5 (1 + omega)", measured=barely)
    short = Control("T1 = T0.5 omega", measured=shorter)
    return every(
        groups=order("Theta", x=OMEGAS, y=c, power=0.0, tol=0.03, control=late),
        signals=order("Theta", x=OMEGAS, y=v, power=0.0, tol=0.03, control=short),
    )


@paper.once
def first_stage(bias: float, t1: float, omega: float | None = None, tilt: float = 0.0) -> Any:
    """w and S of both heads at T1, of the full model: eight neurons, nothing assumed alike.

    At infinite width, or with the random attention of a finite one of scale omega; `tilt` is what
    w_+ . v_1 starts with.
    """
    start = score_start(2)
    start["w"][0, V1] = tilt
    if omega is not None:
        start["S"] = np.asarray(TwoHeadClassifier.gaussian(2, WIDTH, omega, seed=6).scores)
    flow = score_flow(TWO.population, 1.0, bias, ("attention",))
    how: dict[str, Any] = {"rtol": 1e-6} if omega else {"rtol": 1e-10, "solver": common.EXPLICIT}
    return integrate(flow, start, t1, **how, progress=False).final


def outputs(study, agreement: int, t1: float, **how: float) -> np.ndarray:
    """y f at T1 of the consistent (1) or of the conflicting (-1) samples."""
    b, pop = float(study.config.bias), TWO.population
    end = first_stage(b, float(t1), **how)
    return (pop.label * forward(end["w"], end["S"], pop, b)[2])[pop.agreement == agreement]


FULL = "all eight neurons, none assumed alike"


@paper.claim("Thm D.8 (consistent)", regime=past_gates, setting=FULL)
def consistent_outputs(study) -> Measurement:
    r"""At $T_1$ $f(X_{k,s,s}) = s\cdot\Omega(1)$: with the closed form it is
    $s(\gamma + 2a + b)$."""
    b, t1 = float(study.config.bias), study.config.t1
    (gamma, a), measured = theory.neurons(t1, b), outputs(study, 1, t1)
    on = Control("with the other head's gate still on", np.full(4, 4 * a))
    soon = Control("after a hundredth of T0.5", outputs(study, 1, theory.gate_time(b) / 100).min())
    known = np.full(4, gamma + 2 * a + b)
    return every(
        size=equal(predicted=known, measured=measured, rtol=1e-8, control=on),
        sign=sign(predicted=1, measured=measured.min(), margin=b, control=soon),
    )


@paper.claim("Thm D.8 (conflicting)", regime=past_gates, setting=FULL)
def conflicting_outputs(study) -> Measurement:
    r"""At $T_1$ $f(X_{k,s,-s}) = 0$."""
    found, moved = (np.abs(outputs(study, -1, study.config.t1, tilt=x)) for x in (0.0, 1e-3))
    other = Control("w_+ . v_1 starts at 0.001", moved)
    return at_most(bound=1e-12, measured=found, control=other)


@paper.claim("ours: conflicting outputs of a finite width at T1", regime=order_one)
def conflicting_outputs_of_a_width(study) -> Measurement:
    r"""With the random attention of a finite width $f(X_{k,s,-s}) = \Theta(\omega^2)$ at $T_1$."""
    t1 = min(float(study.config.t1), LONG)
    own, other = ([np.abs(outputs(study, d, t1, omega=w)).max() for w in OMEGAS] for d in (-1, 1))
    easy = Control("of the consistent samples", measured=other)
    return order("Theta", x=OMEGAS, y=own, power=2.0, control=easy)
