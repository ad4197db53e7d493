"""Section 5.1 and Appendix D: neurons under uniform attention, before and after T0.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    Regime,
    at_most,
    condition,
    equal,
    every,
    fact,
    order,
    sign,
)
from attnflow.flows.driver import integrate
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.models.two_head_gram import score_flow, score_start
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
    three_tokens,
    two_mixtures,
)
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


@condition
def of_order_one(config: Config) -> Regime:
    gate = theory.gate_time(config.bias)
    return Regime(2 * gate <= LONG, f"T0.5 = {gate:.4g} is of order one, below {LONG / 2:g}")


order_one = past_gates & of_order_one


def early(study) -> list[np.ndarray]:
    """w at times of stage 1.1, from the closed form."""
    b = float(study.config.bias)
    return _neurons(SHARES * min(theory.gate_time(b), study.config.t1), b)


def late(study) -> list[np.ndarray]:
    """w at times of stage 1.2."""
    b, gate = float(study.config.bias), theory.gate_time(study.config.bias)
    return _neurons(gate + SHARES * (study.config.t1 - gate), b)


def _neurons(times: np.ndarray, bias: float) -> list[np.ndarray]:
    both = zip(*theory.neurons(times, bias), strict=True)
    return [neurons_of(float(gamma), float(a)) for gamma, a in both]


def rates(study, ws: list[np.ndarray]) -> np.ndarray:
    """dw/dt[time, head, coordinate], from the loss alone by complex steps."""

    def value(w: Any) -> Any:
        return common.loss(w, UNIFORM, TWO.population, float(study.config.bias))

    return np.stack([-derivative(value, w) for w in ws])


def sensitivities(study, ws: list[np.ndarray], *kinds: str) -> np.ndarray:
    """g(X_{k,s,s'})[time, k], summed over these kinds of signs s, s' (such as `+-`)."""
    b, y = float(study.config.bias), TWO.population.label
    g = np.stack([1 / (1 + np.exp(y * forward(w, UNIFORM, TWO.population, b)[2])) for w in ws])
    names = [[f"c{k} {s[0]}v{k} {s[1]}v{3 - k}" for k in (1, 2)] for s in kinds]
    return np.sum([[g[:, SAMPLES.index(name)] for name in row] for row in names], axis=0).T


# --- Stage 1.1: Lemmas 5.2, D.1, D.2.


def _along_signals(study, head: int) -> Measurement:
    ws, way = early(study), (1, -1)[head]
    rate, other = (
        way / 8 * sensitivities(study, ws, *kinds).sum(axis=1, keepdims=True) * np.ones(2)
        for kinds in (("++", "--"), ("+-", "-+"))
    )
    return equal(
        predicted=rate,
        measured=rates(study, ws)[:, head, V1:],
        rtol=1e-13,
        control=Control("the sum over the conflicting samples", other),
        note="at three times of stage 1.1",
    )


def _no_growth(study) -> Measurement:
    b = float(study.config.bias)
    shut = _neurons(theory.gate_time(b) * np.array([1.01]), b)
    here, there = (np.abs(rates(study, ws)[:, :, :V1]).max() for ws in (early(study), shut))
    return at_most(bound=1e-15, measured=here, control=Control("after T0.5", there))


@paper.claim("Lemma 5.2 (classification signals)", part="constant", regime=two_mixtures)
def rate_of_signals(study) -> Measurement:
    r"""While all gates are on, $dw_+^\top v_k/dt = \frac18\sum g$ over the consistent samples, and
    $w_-$ has the same with a minus."""
    return every(plus=_along_signals(study, 0), minus=_along_signals(study, 1))


@paper.claim("Lemma 5.2 (group signals)", regime=two_mixtures)
def no_rate_of_groups(study) -> Measurement:
    r"""While all gates are on, $dw_+^\top c_k/dt = dw_-^\top c_k/dt = 0$."""
    return _no_growth(study)


@paper.claim("Lemma D.1 (w+)", part="constant", regime=two_mixtures)
def growth_of_plus_signals(study) -> Measurement:
    r"""Stage 1.1: $dw_+^\top v_k/dt = \frac18\sum_{k', s = s'} g(X_{k',s,s'})$."""
    return _along_signals(study, 0)


@paper.claim("Lemma D.1 (w-)", part="constant", regime=two_mixtures)
def growth_of_minus_signals(study) -> Measurement:
    r"""Stage 1.1: $dw_-^\top v_k/dt = -\frac18\sum_{k', s = s'} g(X_{k',s,s'})$."""
    return _along_signals(study, 1)


@paper.claim("Lemma D.2", regime=two_mixtures)
def no_growth_of_groups(study) -> Measurement:
    r"""Stage 1.1: $dw_+^\top c_k/dt = dw_-^\top c_k/dt = 0$."""
    return _no_growth(study)


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
    found = integrate(flow, flow.start, t1, rtol=1e-12, solver=EXPLICIT, progress=False)
    shut = [e for e in found.events if e.direction < 0]
    if not shut:
        return Stage(np.inf, np.array([t1]), found.final["w"][None], ())
    switch = shut[0].time
    times = np.r_[switch + SHARES * (t1 - switch), t1]
    return Stage(switch, times, found.states(times)["w"], tuple(e.name for e in shut))


@paper.claim("Cor D.3", part="constant", regime=past_gates)
def gates_reach_zero(study) -> Measurement:
    r"""There is a time $T_{0.5} = \Theta(1)$ at which $H_s(X_{k,-s,-s}) = -b$: it is
    $b + (e^{2b} - 1)/2$."""
    b = float(study.config.bias)
    return equal(
        predicted=theory.gate_time(b),
        measured=solved(b, float(study.config.t1)).switch,
        rtol=1e-9,
        control=Control("e^b in place of e^{2b}", b + np.expm1(b) / 2),
    )


@paper.claim("ours: stage 1 in closed form", regime=past_gates)
def stage_one_closed(study) -> Measurement:
    """gamma and a are Lambert functions of time, before T0.5 and after it."""
    b, found = float(study.config.bias), solved(float(study.config.bias), float(study.config.t1))
    before = 0.7 * found.switch
    return every(
        before=equal(
            predicted=np.stack(theory.neurons(before, b)),
            measured=solved(b, before).states[0],
            rtol=1e-9,
            control=Control("of three groups", np.stack(theory.neurons(before, b, 3))),
        ),
        after=equal(
            predicted=np.stack(theory.neurons(found.times, b), axis=1),
            measured=found.states,
            rtol=1e-9,
            control=Control(
                "as if no gate had shut", np.stack(theory.neurons(found.times, 100.0), axis=1)
            ),
        ),
    )


@paper.claim("ours: K groups slow stage 1 by K/2", regime=three_tokens)
def slower_with_groups(study) -> Measurement:
    """At L = 3 the curves of K groups are those of two with time multiplied by K/2."""
    b = float(study.config.bias)
    until = 4 * theory.gate_time(b)
    Ks = sorted({3, 32, study.config.groups} - {2})
    pair = solved(b, until)
    many = [solved(b, until * K / 2, K) for K in Ks]
    return every(
        neurons=equal(
            predicted=np.stack([pair.states[-1]] * len(Ks)),
            measured=np.stack([run.states[-1] for run in many]),
            rtol=1e-9,
            control=Control(
                "at the same time", measured=np.stack([solved(b, until, K).states[-1] for K in Ks])
            ),
            note=f"K = {Ks}",
        ),
        closed=equal(
            predicted=[[theory.gate_time(b, K), *theory.neurons(until * K / 2, b, K)] for K in Ks],
            measured=[[run.switch, *run.states[-1]] for run in many],
            rtol=1e-9,
            control=Control(
                "of two groups", [[pair.switch, *theory.neurons(until * K / 2, b)] for K in Ks]
            ),
        ),
    )


# --- Stage 1.2: Lemmas 5.3, D.4, D.5.


def _along(study, head: int, groups: bool) -> Measurement:
    ws, own, way = late(study), ("++", "--")[head], 1 if groups else (1, -1)[head]
    rate, other = (sensitivities(study, ws, kind) / 8 for kind in (own, "+-"))
    if not groups:
        rate, other = (way * x.sum(axis=1, keepdims=True) * np.ones(2) for x in (rate, other))
    return equal(
        predicted=rate,
        measured=rates(study, ws)[:, head, :V1] if groups else rates(study, ws)[:, head, V1:],
        rtol=1e-12,
        control=Control("g of a conflicting sample", other),
        note="at three times from T0.5 to T1",
    )


@paper.claim("Lemma 5.3", part="constant", regime=past_gates)
def rate_of_groups(study) -> Measurement:
    r"""Once $H_+(X_{k,-,-}) < -b$: $dw_+^\top c_k/dt = \frac18 g(X_{k,+,+})$."""
    return _along(study, 0, groups=True)


@paper.claim("Lemma D.4 (w+)", part="constant", regime=past_gates)
def later_growth_of_plus_signals(study) -> Measurement:
    r"""Stage 1.2: $dw_+^\top v_k/dt = \frac18\sum_{k'} g(X_{k',+,+})$."""
    return _along(study, 0, groups=False)


@paper.claim("Lemma D.4 (w-)", part="constant", regime=past_gates)
def later_growth_of_minus_signals(study) -> Measurement:
    r"""Stage 1.2: $dw_-^\top v_k/dt = -\frac18\sum_{k'} g(X_{k',-,-})$."""
    return _along(study, 1, groups=False)


@paper.claim("Lemma D.5 (w+)", part="constant", regime=past_gates)
def growth_of_plus_groups(study) -> Measurement:
    r"""Stage 1.2: $dw_+^\top c_k/dt = \frac18 g(X_{k,+,+})$."""
    return _along(study, 0, groups=True)


@paper.claim("Lemma D.5 (w-)", part="constant", regime=past_gates)
def growth_of_minus_groups(study) -> Measurement:
    r"""Stage 1.2: $dw_-^\top c_k/dt = \frac18 g(X_{k,-,-})$."""
    return _along(study, 1, groups=True)


# --- The end of stage 1: Cor. D.6, D.7, Thm. D.8.


@paper.claim("Cor D.6", regime=past_gates)
def four_gates_shut(study) -> Measurement:
    """Between T0.5 and T1 exactly the gates of head s on X_{k,-s,-s} are shut: four of sixteen."""
    b, t1 = float(study.config.bias), float(study.config.t1)

    def exactly_four(ws: list[np.ndarray]) -> bool:
        off = np.stack([forward(w, UNIFORM, TWO.population, b)[1] for w in ws]) + b < 0
        wanted = np.array([[s.count(f"{sign}v") == 2 for s in SAMPLES] for sign in "-+"])
        return bool((off == wanted).all())

    def once_only(until: float) -> bool:
        return solved(b, until).shut == ("minus c1 +v1 +v2",)

    return every(
        pattern=fact(
            measured=exactly_four(late(study)),
            control=Control("before T0.5", exactly_four(early(study))),
        ),
        switched=fact(
            measured=once_only(t1),
            control=Control("before T0.5", once_only(0.9 * theory.gate_time(b))),
            note="of the orbits one gate switches, once: the minus head on c1 +v1 +v2",
        ),
    )


@paper.claim("Cor D.6 (rates)", part="proof-step", regime=past_gates)
def signals_outgrow_groups(study) -> Measurement:
    r"""Stage 1.2: $dw_+^\top(v_1 + v_2)/dt > dw_+^\top c_1/dt$; it is four times as fast."""
    plus, minus = np.moveaxis(rates(study, late(study)), 1, 0)
    signals, group = plus[:, V1:].sum(axis=1), plus[:, C1]
    return every(
        greater=sign(
            predicted=1,
            measured=signals - group,
            control=Control("the minus head", minus[:, V1:].sum(axis=1) - minus[:, C1]),
        ),
        ratio=equal(
            predicted=4.0,
            measured=signals.sum() / group.sum(),
            rtol=1e-12,
            control=Control("one signal alone", measured=plus[:, V1].sum() / group.sum()),
        ),
    )


@paper.claim("Cor D.7", regime=order_one)
def alignments_of_order_one(study) -> Measurement:
    r"""At $T_1 = \Theta(1)$ $w_+^\top\mu = \Theta(1)$ for every signal $\mu$, whatever $\omega$."""
    return _order_one(study)


@paper.claim("Lemma 5.3 (alignments)", regime=order_one)
def both_of_order_one(study) -> Measurement:
    r"""If $T_1 = \Theta(1)$ then $w_+^\top v_k, w_+^\top c_k = \Theta(1)$ after stage 1."""
    return _order_one(study)


@paper.claim("Thm 4.1 (T1)", regime=order_one)
def first_stage_of_order_one(study) -> Measurement:
    """A stage 1 whose length does not depend on omega aligns the neurons."""
    return _order_one(study)


def _order_one(study) -> Measurement:
    b, t1 = float(study.config.bias), min(float(study.config.t1), LONG)
    gate = theory.gate_time(b)

    def aligned(which: int):
        return lambda w: first_stage(b, t1, w)["w"][0, 2 * which : 2 * which + 2].mean()

    return every(
        groups=order(
            "Theta",
            over=OMEGAS,
            y=aligned(0),
            power=0.0,
            tol=0.03,
            control=Control(
                "T1 = T0.5 (1 + omega)", measured=lambda w: theory.neurons(gate * (1 + w), b)[0]
            ),
            note=f"w_+ . c at T1, dimension {WIDTH}",
        ),
        signals=order(
            "Theta",
            over=OMEGAS,
            y=aligned(1),
            power=0.0,
            tol=0.03,
            control=Control("T1 = T0.5 omega", measured=lambda w: theory.neurons(gate * w, b)[1]),
        ),
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
    how = {"rtol": 1e-6} if omega else {"rtol": 1e-10, "solver": EXPLICIT}
    return integrate(flow, start, t1, **how, progress=False).final  # type: ignore[arg-type]


def outputs(
    study, *, omega: float | None = None, tilt: float = 0.0, t1: float | None = None
) -> Any:
    """y f at T1, of the consistent and of the conflicting samples."""
    b, pop = float(study.config.bias), TWO.population
    end = first_stage(b, float(study.config.t1) if t1 is None else t1, omega, tilt)
    yf = pop.label * forward(end["w"], end["S"], pop, b)[2]
    return yf[pop.agreement > 0], yf[pop.agreement < 0]


@paper.claim(
    "Thm D.8 (consistent)", regime=past_gates, setting="all eight neurons, none assumed alike"
)
def consistent_outputs(study) -> Measurement:
    r"""At $T_1$ $f(X_{k,s,s}) = s\cdot\Omega(1)$: with the closed form it is
    $s(\gamma + 2a + b)$."""
    b, t1 = float(study.config.bias), float(study.config.t1)
    gamma, a = theory.neurons(t1, b)
    return every(
        size=equal(
            predicted=np.full(4, gamma + 2 * a + b),
            measured=outputs(study)[0],
            rtol=1e-7,
            control=Control("with the other head's gate still on", np.full(4, 4 * a)),
        ),
        sign=sign(
            predicted=1,
            measured=outputs(study)[0].min(),
            margin=b,
            control=Control(
                "after a hundredth of T0.5", outputs(study, t1=theory.gate_time(b) / 100)[0].min()
            ),
        ),
    )


@paper.claim(
    "Thm D.8 (conflicting)", regime=past_gates, setting="all eight neurons, none assumed alike"
)
def conflicting_outputs(study) -> Measurement:
    r"""At $T_1$ $f(X_{k,s,-s}) = 0$."""
    return at_most(
        bound=1e-12,
        measured=np.abs(outputs(study)[1]),
        control=Control("w_+ . v_1 starts at 0.001", np.abs(outputs(study, tilt=1e-3)[1])),
    )


@paper.claim("ours: conflicting outputs of a finite width at T1", regime=order_one)
def conflicting_outputs_of_a_width(study) -> Measurement:
    r"""With the random attention of a finite width $f(X_{k,s,-s}) = \Theta(\omega^2)$ at $T_1$."""
    t1 = min(float(study.config.t1), LONG)

    def largest(kind: int):
        return lambda w: np.abs(outputs(study, omega=w, t1=t1)[kind]).max()

    return order(
        "Theta",
        over=OMEGAS,
        y=largest(1),
        power=2.0,
        tol=0.1,
        control=Control("of the consistent samples", measured=largest(0)),
        note=f"dimension {WIDTH}",
    )
