"""Appendix F and what Theorem 4.1 says of T3: the neurons again, to a loss of epsilon.

The attention stands still at what stage 2 left. Then `dw_+.mu/dt = sum over d of alpha_d(mu) g_d`
with the coefficients that the proofs of F.1 and F.2 write out: constant but for the gates.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from attnflow import claims
from attnflow.claims import Control, Measurement, at_least, at_most, equal, every, identity, sign
from attnflow.flows.driver import integrate
from attnflow.flows.probes import Mark
from attnflow.flows.solution import Solution
from attnflow.models.two_head_gram import score_flow, score_start
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import margin, theory
from attnflow.studies.two_mixture.algorithm import ThreeStages, loss_marks, three_stages
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, SAMPLES, V1, V2, forward, loss
from attnflow.studies.two_mixture.claims.stage_two import in_omega
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.errata import MINUS_HEAD
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixturePopulation

EPSILONS = (0.1, 10**-1.5, 0.01)
LOSSES = (*EPSILONS, 0.001, 0.0001)
"""Losses at which stage 3 is timed: the epsilons and their squares."""

HIGH = 9.0
"""A bias that keeps the gates on at random weights."""

ALL = common.TWO.population


@claims.condition
def stop_of_order_one(config: Config) -> claims.Regime:
    words = f"stage 2 ends at a score of {config.score_stop:.3g} (0.2 to 3)"
    return claims.Regime(0.2 <= config.score_stop <= 3, words)


@claims.condition
def sharp(config: Config) -> claims.Regime:
    words = "omega <= 0.3: beyond it a gate slides in stage 3, and neither opens nor stays shut"
    return claims.Regime(config.omega <= 0.3, words)


converging = common.past_gates & common.condition_one & stop_of_order_one
claim = functools.partial(paper.claim, regime=converging)
step = functools.partial(claim, part="proof-step")


def three(study, elsewhere: bool = False) -> ThreeStages:
    """Algorithm 1 at K = 2, L = 3 with the config's numbers, or with another end of stage 2."""
    c = study.config
    stop = (0.5 if c.score_stop > 1 else 2.0) if elsewhere else float(c.score_stop)
    return three_stages(common.TWO, float(c.omega), float(c.bias), float(c.t1), stop, LOSSES)


def arrays(found: ThreeStages) -> tuple[np.ndarray, np.ndarray]:
    """w[time, head, coordinate] along stage 3, and S[head, key, query] of T2."""
    at = found.solution.trajectory["phase"].values == 2
    w = found.solution.states()["w"][at]
    S = common.both_heads(common.lifted(found.at_t2["S_sum"], found.at_t2["S_diff"]))
    return np.stack([common.neurons_of(*each) for each in w]), S


# --- The full model at infinite width: 40 numbers, no symmetry put in, stage by stage.


Trained = tuple[list[float], np.ndarray, np.ndarray]
"""T2 - T1 and T3 - T2, where T3 is at a loss of .01; w at T1 and at T3; S at T2."""


@paper.once
def trained(study, uneven: float = 0.0) -> Trained:
    """Algorithm 1 on all 8 neurons and 32 scores, from w = 0 but for `uneven` of one neuron."""
    c = study.config

    def stage(population, frozen: str, start, until: float, **stops: Mark) -> Solution:
        flow = score_flow(population, float(c.omega), float(c.bias), (frozen,))
        options: Any = {"stops": stops or None, "solver": common.EXPLICIT, "progress": False}
        return integrate(flow, start, until, rtol=1e-9, **options)

    start = score_start(2, np.array([[uneven, 0, 0, 0], [0, 0, 0, 0]]))
    first = stage(ALL, "attention", start, float(c.t1))
    score = Mark(lambda state: state["S"][0, C1, V1], float(c.score_stop))
    second = stage(common.CONFLICTING, "neurons", first.final, 5000.0, score=score)
    low = Mark(lambda state: loss(state["w"], state["S"], ALL, c.bias), EPSILONS[-1], -1)
    third = stage(ALL, "attention", second.final, 1e6, loss=low)
    w = np.stack([first.final["w"], third.final["w"]])
    return [second.time, third.time], w, second.final["S"]


@claim("Thm 4.1 (symmetry at T3)")
def symmetric_at_the_end(study) -> Measurement:
    r"""At $T_3$ $w_+^\top v_1 = w_+^\top v_2 = -w_-^\top v_k$ and $w_+^\top c_1 = w_+^\top c_2 =
    w_-^\top c_k$: the full model, into which no symmetry was put, has them."""

    def spread(found: Trained) -> float:
        w = found[1][1] * [[1, 1, 1, 1], [1, 1, -1, -1]]
        return float(max(np.ptp(w[:, :2]), np.ptp(w[:, 2:])))

    uneven = Control("one neuron starts at 1e-3", spread(trained(study, 1e-3)))
    return at_most(bound=1e-6, measured=spread(trained(study)), control=uneven)


@claim("ours: ten numbers are the full model through all stages")
def reduced_is_full(study) -> Measurement:
    r"""The lengths of stages 2 and 3 and the neurons at $T_1$ and at a loss of .01 are those of the
    full model."""
    lengths, w, _ = trained(study)

    def numbers(found: ThreeStages) -> list[float]:
        begins, ends = (found.solution.phases[1].begins, found.solution.phases[1].ends)
        fall = found.times[EPSILONS[-1]]
        return [ends - begins, fall, *found.at_t1["w"], *found.solution.at(ends + fall)["w"]]

    there = Control("stage 2 to another score", numbers(three(study, elsewhere=True)))
    few, full = numbers(three(study)), [*lengths, *w[:, 0, [C1, V1]].ravel()]
    return equal(predicted=few, measured=full, rtol=1e-6, each=True, control=there)


@claim("App F (witness)")
def witness(study) -> Measurement:
    r"""After stage 2 the neurons $w_\pm = c_1 + c_2 \pm (v_1 + v_2)$ have $y f$ bounded away from 0
    on all samples."""

    w, c = common.neurons_of(1, 1), study.config
    least = lambda S: float((ALL.label * forward(w, S, ALL, c.bias)[2]).min())  # noqa: E731
    before = Control("before stage 2", least(np.zeros((2, 4, 4))))
    bound = 0.5 * min(1.0, c.score_stop)
    return at_least(bound=bound, measured=least(trained(study)[2]), control=before)


KINDS = ("++", "--", "+-", "-+")
DISPLAYS = {
    "v1": [(1, f"c1 {s}v1 {t}v2", f"{s}v1") for s, t in KINDS]
    + [(1 if s == t else -1, f"c2 {s}v2 {t}v1", f"{t}v1") for s, t in KINDS],
    "c1": [(1 if s == "+" else -1, f"c1 {s}v1 {t}v2", "c1") for s, t in KINDS],
}
"""The brackets of F.1 and F.2: sign, sample, the key whose attention from all queries counts."""

EASY, HARD, SHUT = map(SAMPLES.index, ("c1 +v1 +v2", "c1 +v1 -v2", "c1 -v1 -v2"))
"""X_{1,+,+} and X_{1,+,-}, which g_+ and g_- are of, and X_{1,-,-}, whose gate may be shut."""


def display(p: np.ndarray, key: str, g_plus: float, g_minus: float, gate: float) -> float:
    """`dw_+.v_1/dt` or `dw_+.c_1/dt`, written out as in the proofs of Lemmas F.1 and F.2."""
    total = 0.0
    for factor, sample, token in DISPLAYS[key]:
        n, at = SAMPLES.index(sample), sample.split().index(token)
        g = g_plus if ALL.agreement[n] > 0 else g_minus
        shut = ALL.agreement[n] > 0 and ALL.label[n] < 0
        total += factor / 8 * g * (gate if shut else 1) * p[n, at].sum()
    return total


TORN = "the display repeats its first line; put together from its left side as in F.1"


@step("Lemma F.1 (expansion)")
def expansion_along_v(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top v_1$ is $\frac18 g_+$ and $\frac18 g_-$ times the
    attention that $\pm v_1$ has in the samples, with the gates of $X_{k,-,-}$."""
    return expansion(study, "v1", V1)


@step("Lemma F.2 (expansion)", torn=TORN)
def expansion_along_c(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top c_1$ is $\frac18 g_+$ and $\frac18 g_-$ times the
    attention that $c_1$ has in the samples of one label less that of the other, with the gate of
    $X_{1,-,-}$."""
    return expansion(study, "c1", C1)


def expansion(study, key: str, at: int) -> Measurement:
    bias, (w, S) = study.config.bias, arrays(three(study))

    def written(w: np.ndarray, gate: float | None = None) -> float:
        p, H, f = forward(w, S, ALL, bias)
        g = 1 / (1 + np.exp(ALL.label * f))
        on = float(H[0, SHUT] + bias > 0) if gate is None else gate
        return display(p[0], key, g[EASY], g[HARD], on)

    return identity(
        over=[w[0], common.neurons_of(3, 1)],  # of T2, where a gate is shut; with all gates on
        predicted=written,
        measured=lambda w: -common.derivative(lambda x: loss(x, S, ALL, bias), w)[0, at],
        rtol=1e-11,
        control=Control("all gates on", lambda w: written(w, 1.0)),
    )


def coefficient(r: common.StageTwo, key: str, sign: int, gate: float = 0.0) -> float:
    """What g_+ (sign 1) or g_- counts for; the gate is shut until it opens in stage 3."""
    return abs(display(r.attention[-1][0], key, sign > 0, sign < 0, gate))


@paper.claim("Lemma F.1", regime=common.staged)
def rate_along_v(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top v_k = \Theta(g_+) + \tilde O(\omega g_-)$: the coefficient
    of $g_+$ is bounded on both sides with the gates shut and open, that of $g_-$ vanishes with
    $\omega$."""
    rest = Control("the coefficient of g_-", measured=lambda r: coefficient(r, "v1", -1))
    along_c = Control("along c_1", measured=lambda r: coefficient(r, "c1", -1))
    return every(
        shut=in_omega(study, "Theta", 0, lambda r: coefficient(r, "v1", 1), rest, 0.02),
        open=in_omega(study, "Theta", 0, lambda r: coefficient(r, "v1", 1, 1.0), rest, 0.02),
        rest=in_omega(study, "O", 1, lambda r: coefficient(r, "v1", -1), along_c, 0.2),
    )


@paper.claim("Lemma F.2", regime=common.staged)
def rate_along_c(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top c_k \ge \Omega(g_-) + \tilde O(\omega g_+)$: the
    coefficient of $g_-$ is bounded below, and what $g_+$ takes away once the gates are open
    vanishes with $\omega$."""
    taken = Control("the coefficient of g_+", measured=lambda r: coefficient(r, "c1", 1, 1.0))
    shut = Control("while they are shut", measured=lambda r: coefficient(r, "c1", 1))
    return every(
        below=in_omega(study, "Omega", 0, lambda r: coefficient(r, "c1", -1), taken, 0.02),
        rest=in_omega(study, "O", 1, lambda r: coefficient(r, "c1", 1, 1.0), shut, 0.2),
    )


@paper.family(
    {
        "Thm F.3": (
            r"$T_3 - T_2 = O(1/\epsilon)$: the time of stage 3 to a loss $\epsilon$.",
            *("Theta", LOSSES[2:], EPSILONS, 0.03),
        ),
        "Thm 4.1 (T3 - T2)": (r"$T_3 - T_2 = O(1/\epsilon)$.", "O", EPSILONS, LOSSES[2:], 0.3),
    },
    regime=converging,
)
def one_over_epsilon(study, kind, losses: tuple, others: tuple, tol: float) -> Measurement:
    y, there = ([three(study).times[e] for e in each] for each in (losses, others))
    other = Control("to sqrt epsilon, or to epsilon^2", measured=there)
    return claims.order(kind, x=losses, y=y, power=-1, tol=tol, control=other)


def output_rate(sample: str, minus: list[int], slip: bool = False):
    """df/dt as displayed; `minus` are the signs of the lines of w_-.c_1, w_-.v_1 and w_-.v_2."""
    n, plus = SAMPLES.index(sample), ALL.sign[SAMPLES.index(sample)]

    def value(point) -> float:
        S, w, dw = point
        p, H, _ = forward(w, S, ALL, HIGH)
        seen = p[:, n].sum(axis=-1)  # head x key
        if slip:  # in the line of w_-.v_1 the query v_1 attends to v_2
            seen[1, 1] += p[1, n, 2, 1] - p[1, n, 1, 1]
        lines = dw[:, [C1, V1, V2]] * seen
        return float(lines[0] @ plus + (H[1, n] + HIGH > 0) * (lines[1] @ minus))

    return value


def chain_rule(sample: str, minus: list[int], control: Control | None = None) -> Measurement:
    """df/dt on a sample at random weights and motions, with the minus head's gate on and off."""
    n, rng = SAMPLES.index(sample), np.random.default_rng(5)
    points = [(rng.normal(size=(2, 4, 4)), *rng.normal(size=(2, 2, 4))) for _ in range(4)]
    for _, w, _ in points[::2]:
        w[1, C1] -= 100

    def measured(point) -> float:
        S, w, dw = point
        return float(np.imag(forward(w + 1e-150j * dw, S, ALL, HIGH)[2][n]) / 1e-150)

    shown = output_rate(sample, minus)
    return identity(over=points, predicted=shown, measured=measured, rtol=1e-11, control=control)


KEY = r"in the line of $w_-^\top v_1$ the key of the query $v_1$ is read $v_1$, not $v_2$"


@step("Thm F.3 (consistent output)", reading=KEY)
def consistent_output(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} f(X_{1,+,+})$ is the sum of $\frac{d}{dt} w_\pm^\top x$ times the
    attention that $x = v_1, v_2, c_1$ has in the two heads, the minus head's with a minus sign and
    its gate."""
    name, minus = "c1 +v1 +v2", [-1, -1, -1]
    extracted = Control("as extracted", output_rate(name, minus, slip=True))
    return chain_rule(name, minus, extracted)


@step("Thm F.3 (conflicting output)")
def conflicting_output(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} f(X_{1,+,-})$ has $-\frac{d}{dt} w_-^\top v_1$ and $+\frac{d}{dt}
    w_-^\top v_2$ times the attention of $v_1$ and $-v_2$ in the minus head. (In a symmetric state
    the two nearly cancel, so that the conclusion stands.)"""
    name = "c1 +v1 -v2"
    return claims.corrected(
        printed=chain_rule(name, [-1, 1, -1]),
        right=chain_rule(name, [-1, -1, 1]),
        text=r"$+\frac{d}{dt} w_-^\top v_1 (\ldots) - \frac{d}{dt} w_-^\top v_2 (\ldots)$",
        correct=r"$-\frac{d}{dt} w_-^\top v_1 (\ldots) + \frac{d}{dt} w_-^\top v_2 (\ldots)$",
        erratum=MINUS_HEAD,
    )


@step("Thm F.3")
def loss_falls_at_its_square(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} E[\ell] = -\Omega(g_+^2 + g_-^2)$, with a constant that the whole
    stage has."""
    found, bias = three(study), study.config.bias
    w, S = arrays(found)

    def ratio(w: np.ndarray, S: np.ndarray, population: MixturePopulation = ALL) -> float:
        force = common.derivative(lambda x: loss(x, S, population, bias), w)
        g = 1 / (1 + np.exp(ALL.label * forward(w, S, ALL, bias)[2]))
        return float((force**2).sum() / (g[EASY] ** 2 + g[HARD] ** 2))

    least = min(ratio(each, S) for each in w[:: max(1, len(w) // 40)])
    bound = margin.margin(found.flow, found.at_t2).value ** 2 / 4
    uniform = Control("conflicting, uniform attention", ratio(w[0], 0 * S, common.CONFLICTING))
    return at_least(bound=bound, measured=least, control=uniform, note="margin^2/4")


def nearest(S: np.ndarray) -> tuple[float, np.ndarray]:
    """The margin of the signed features with all gates on, and the shortest w with y f >= 1.

    By symmetry the nearest point of their hull lies between the means of the two kinds of sample.
    """
    p = forward(np.zeros((2, 4)), S, ALL, 1.0)[0]
    F = np.einsum("hnkq,nka,n->nha", p, ALL.inputs, ALL.label) * np.array([[1.0], [-1.0]])
    one, two = (F[ALL.agreement == d].mean(axis=0) for d in (1, -1))
    step = np.clip((one * (one - two)).sum() / ((one - two) ** 2).sum(), 0, 1)
    point = one + step * (two - one)
    square = (point**2).sum()
    return float(np.sqrt(square)), point / square


@claim("ours: stage 3 lasts 1/(epsilon margin^2)", part="constant", regime=converging & sharp)
def margin_sets_the_time(study) -> Measurement:
    r"""$\epsilon (T_3 - T_2) \to 1/\gamma^2$ with $\gamma$ the largest margin of the attention
    features at $T_2$, all gates on: the constant of Theorem F.3."""
    runs = [three(study), three(study, elsewhere=True)]
    free, shut = ([margin.margin(r.flow, r.at_t2, g) for r in runs] for g in ("all_on", "actual"))
    sizes, actual = ([m.value for m in each] for each in (free, shut))
    known, other = ([theory.convergence_time(m, 1.0) for m in each] for each in (sizes, actual))
    a, b = LOSSES[-2:]
    per = [(r.times[b] - r.times[a]) / (1 / b - 1 / a) for r in runs]
    closed, dual = [nearest(arrays(r)[1])[0] for r in runs], [m.upper for m in free]
    gates = Control("with the gates that there are", measured=actual)
    slow = Control("with the gates that there are", other)
    return every(
        margin=equal(predicted=closed, measured=sizes, rtol=1e-9, each=True, control=gates),
        dual=equal(predicted=closed, measured=dual, rtol=1e-9, each=True, control=gates),
        time=equal(predicted=known, measured=per, rtol=0.005, each=True, control=slow),
    )


@claim("Thm 4.1 (loss at T3)")
def loss_reaches_epsilon(study) -> Measurement:
    r"""There is a $T_3$ with $E[\ell] \le \epsilon$ after Algorithm 1, for five $\epsilon$."""
    run, S = three(study), arrays(three(study))[1]

    reached = lambda w, S: loss(common.neurons_of(*w), S, ALL, study.config.bias)  # noqa: E731
    stuck = [reached(without_attention(study).final["w"], 0 * S)] * len(LOSSES)
    control = Control("without stage 2, for long", measured=stuck)
    found = [reached(w, S) for w in ends(run)]
    return equal(predicted=LOSSES, measured=found, rtol=1e-5, each=True, control=control)


@claim("Thm 4.1 (alignment with v at T3)", regime=converging & sharp)
def aligned_with_v(study) -> Measurement:
    r"""At $T_3$ $w_+^\top v_k$ and $w_-^\top(-v_k)$ are positive and $\tilde\Theta(1)$: they grow
    with $\log 1/\epsilon$ as the direction of the largest margin says."""
    w = trained(study)[1][1][:, V1:]
    other = Control("the heads exchanged", min(*w[1], *-w[0]))
    positive = sign(predicted=1, measured=min(*w[0], *-w[1]), control=other)
    return every(sign=positive, size=grows(study, V1, C1))


@claim("Thm 4.1 (alignment with c at T3)", regime=converging & sharp)
def aligned_with_c(study) -> Measurement:
    r"""At $T_3$ $w_\pm^\top c_k$ are positive and $\tilde\Theta(1)$: they grow with $\log
    1/\epsilon$ as the direction of the largest margin says."""
    w, bias = trained(study)[1][1][:, :V1], study.config.bias
    early = Control("at T0.5", theory.neurons(theory.gate_time(bias), bias)[0])
    positive = sign(predicted=1, measured=w.min(), control=early)
    return every(sign=positive, size=grows(study, C1, V1))


def grows(study, at: int, other: int) -> Measurement:
    """w.mu over log 1/epsilon against the shortest w with y f >= 1."""
    found, x = three(study), [-np.log(e) for e in LOSSES[2:]]
    direction, y = nearest(arrays(found)[1])[1][0], ends(found)[2:, at // V1]
    control = Control("along the other signal", direction[other])
    return claims.slope(x=x, y=y, predicted=direction[at], within=0.03, control=control)


@claim("ours: gates shut in stage 1 open again in stage 3", regime=converging & sharp)
def gates_open_again(study) -> Measurement:
    r"""The gates that Cor. D.6 finds shut from $T_{0.5}$ to $T_1$ open in stage 3, and at the end
    all are on: the corollary does not extend. Without stage 2 they would stay shut."""
    found, bias = three(study), study.config.bias
    t2, (w, S) = found.solution.phases[1].ends, arrays(found)
    again = [e.time - t2 for e in found.switches if e.direction > 0 and e.time > t2]

    def open_(w: np.ndarray, S: np.ndarray) -> bool:
        return bool((forward(w, S, ALL, bias)[1] + bias > 0).all())

    skipped = open_(common.neurons_of(*without_attention(study).final["w"]), 0 * S)
    found = open_(w[-1], S) and len(again) == 1
    note = f"they open at t - T2 = {again[0]:.4g}" if again else "none opens"
    return claims.fact(measured=found, control=Control("without stage 2", skipped), note=note)


def ends(found: ThreeStages) -> np.ndarray:
    """(gamma, a) where stage 3 reaches each loss."""
    t2 = found.solution.phases[1].ends
    return found.solution.states([t2 + t for t in found.times.values()])["w"]


@paper.once
def without_attention(study) -> Solution:
    """Stage 3 right after stage 1: the neurons alone, for long."""
    c, start = study.config, three(study).at_t1
    flow = symmetric_flow(common.TWO.orbits, c.omega, c.bias, ("attention",))
    how: Any = {"stops": loss_marks(flow.loss_of, (0.3,)), "solver": common.EXPLICIT}
    return integrate(flow, start, 2e4, rtol=1e-8, progress=False, **how)
