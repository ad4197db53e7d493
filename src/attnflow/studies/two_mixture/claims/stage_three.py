"""Appendix F and what Theorem 4.1 says of T3: the neurons again, to a loss of epsilon.

The attention stands still at what stage 2 left. Then `dw_+.mu/dt = sum over d of alpha_d(mu) g_d`
with the coefficients that the proofs of F.1 and F.2 write out: constant but for the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    Regime,
    at_least,
    at_most,
    condition,
    corrected,
    equal,
    every,
    fact,
    identity,
    order,
    sign,
    slope,
)
from attnflow.flows.driver import integrate
from attnflow.flows.probes import Mark
from attnflow.flows.solution import Solution
from attnflow.models.two_head_gram import score_flow, score_start
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import margin, theory
from attnflow.studies.two_mixture.algorithm import ThreeStages, loss_marks, three_stages
from attnflow.studies.two_mixture.claims.common import (
    C1,
    CONFLICTING,
    EXPLICIT,
    SAMPLES,
    TWO,
    V1,
    V2,
    StageTwo,
    both_heads,
    condition_one,
    derivative,
    forward,
    lifted,
    loss,
    neurons_of,
    past_gates,
    second_stages,
    staged,
)
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.errata import MINUS_HEAD
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixturePopulation

EPSILONS = (0.1, 10**-1.5, 0.01)
LOSSES = (*EPSILONS, 0.001, 0.0001)
"""Losses at which stage 3 is timed: the epsilons and their squares."""

SHARP = 0.3
"""Largest omega at which the gates of stage 3 are seen to cross, not slide."""

ALL = TWO.population


@condition
def stop_of_order_one(config: Config) -> Regime:
    words = f"stage 2 ends at a score of {config.score_stop:.3g} (0.2 to 3)"
    return Regime(0.2 <= config.score_stop <= 3, words)


@condition
def sharp(config: Config) -> Regime:
    """At omega = .45 a gate slides on its surface in stage 3, and neither opens nor stays shut."""
    return Regime(config.omega <= SHARP, f"omega <= {SHARP:g} here")


converging = past_gates & condition_one & stop_of_order_one


def three(study, elsewhere: bool = False) -> ThreeStages:
    """Algorithm 1 at K = 2, L = 3 with the config's numbers, or with another end of stage 2."""
    c = study.config
    stop = float(c.score_stop)
    if elsewhere:
        stop = 0.5 if stop > 1 else 2.0
    return three_stages(TWO, float(c.omega), float(c.bias), float(c.t1), stop, LOSSES)


def arrays(found: ThreeStages) -> tuple[np.ndarray, np.ndarray]:
    """w[time, head, coordinate] along stage 3, and S[head, key, query] of T2."""
    at = found.solution.trajectory["phase"].values == 2
    w = found.solution.states()["w"][at]
    S = both_heads(lifted(found.at_t2["S_sum"], found.at_t2["S_diff"]))
    return np.stack([neurons_of(*each) for each in w]), S


# --- The full model at infinite width: 40 numbers, no symmetry put in, stage by stage.


@dataclass(frozen=True, eq=False)
class Trained:
    """The full model at the ends of the stages; T3 is where the loss is .01."""

    lengths: np.ndarray
    """T2 - T1 and T3 - T2."""
    w: np.ndarray
    """At T1 and at T3."""
    S: np.ndarray
    """At T2."""


@paper.once
def trained(study, uneven: float = 0.0) -> Trained:
    """Algorithm 1 on all 8 neurons and 32 scores, from w = 0 but for `uneven` of one neuron."""
    c = study.config

    def stage(population: MixturePopulation, frozen: str, start, until: float, stop=None):
        flow = score_flow(population, float(c.omega), float(c.bias), (frozen,))
        stops = None if stop is None else {"end": stop}
        return integrate(
            flow, start, until, stops=stops, rtol=1e-9, solver=EXPLICIT, progress=False
        )

    start = score_start(2, np.array([[uneven, 0, 0, 0], [0, 0, 0, 0]]))
    first = stage(ALL, "attention", start, float(c.t1))
    score = Mark(lambda state: state["S"][0, C1, V1], float(c.score_stop))
    second = stage(CONFLICTING, "neurons", first.final, 5000.0, score)
    end = Mark(lambda state: loss(state["w"], state["S"], ALL, c.bias), EPSILONS[-1], -1)
    third = stage(ALL, "attention", second.final, 1e6, end)
    w = np.stack([first.final["w"], third.final["w"]])
    return Trained(np.array([second.time, third.time]), w, second.final["S"])


@paper.claim("Thm 4.1 (symmetry at T3)", regime=converging)
def symmetric_at_the_end(study) -> Measurement:
    r"""At $T_3$ $w_+^\top v_1 = w_+^\top v_2 = -w_-^\top v_k$ and $w_+^\top c_1 = w_+^\top c_2 =
    w_-^\top c_k$: the full model, into which no symmetry was put, has them."""

    def spread(found: Trained) -> float:
        w = found.w[1] * [[1, 1, 1, 1], [1, 1, -1, -1]]
        return float(max(np.ptp(w[:, :2]), np.ptp(w[:, 2:])))

    return at_most(
        bound=1e-6,
        measured=spread(trained(study)),
        control=Control("one neuron starts at 1e-3", spread(trained(study, 1e-3))),
        note="40 numbers, solved stage by stage from w = 0 and S = 0",
    )


@paper.claim("ours: ten numbers are the full model through all stages", regime=converging)
def reduced_is_full(study) -> Measurement:
    r"""The lengths of stages 2 and 3 and the neurons at $T_1$ and at a loss of .01 are those of the
    full model."""
    full = trained(study)

    def numbers(found: ThreeStages) -> list[float]:
        assert found.t2 is not None
        fall = found.times[EPSILONS[-1]]
        end = found.solution.at(found.t2 + fall)["w"]
        return [found.t2 - found.t1, fall, *found.at_t1["w"], *end]

    return equal(
        predicted=numbers(three(study)),
        measured=[*full.lengths, *full.w[:, 0, [C1, V1]].ravel()],
        rtol=1e-6,
        each=True,
        control=Control("stage 2 to another score", numbers(three(study, elsewhere=True))),
    )


# --- Lemmas F.1 and F.2.


@paper.claim("App F (witness)", regime=converging)
def witness(study) -> Measurement:
    r"""After stage 2 the neurons $w_\pm = c_1 + c_2 \pm (v_1 + v_2)$ have $y f$ bounded away from 0
    on all samples."""

    def least(S: np.ndarray) -> float:
        return float((ALL.label * forward(neurons_of(1, 1), S, ALL, study.config.bias)[2]).min())

    return at_least(
        bound=0.5 * min(1.0, study.config.score_stop),
        measured=least(trained(study).S),
        control=Control("before stage 2", least(np.zeros((2, 4, 4)))),
    )


DISPLAYS = {
    "v1": [
        (1, "c1 +v1 +v2", "v1"),
        (1, "c1 -v1 -v2", "-v1"),
        (1, "c2 +v2 +v1", "v1"),
        (1, "c2 -v2 -v1", "-v1"),
        (1, "c1 +v1 -v2", "v1"),
        (1, "c1 -v1 +v2", "-v1"),
        (-1, "c2 +v2 -v1", "-v1"),
        (-1, "c2 -v2 +v1", "v1"),
    ],
    "c1": [
        (1, "c1 +v1 +v2", "c1"),
        (-1, "c1 -v1 -v2", "c1"),
        (1, "c1 +v1 -v2", "c1"),
        (-1, "c1 -v1 +v2", "c1"),
    ],
}
"""The brackets of F.1 and F.2: sign, sample, the key whose attention from all queries counts."""

AT_ONCE = [SAMPLES.index(name) for name in ("c1 +v1 +v2", "c1 +v1 -v2", "c1 -v1 -v2")]
"""X_{1,+,+} and X_{1,+,-}, which g_+ and g_- are of, and X_{1,-,-}, whose gate may be shut."""


def seen(p: np.ndarray, sample: str, key: str, queries=slice(None)) -> float:
    """What a key of a sample has from its queries; p[sample, key, query] of a head."""
    word = sample.replace("+", "").split().index(key)
    return float(p[SAMPLES.index(sample), word, queries].sum())


def display(p: np.ndarray, key: str, g_plus: float, g_minus: float, gate: float) -> float:
    """`dw_+.v_1/dt` or `dw_+.c_1/dt`, written out as in the proofs of Lemmas F.1 and F.2."""
    total = 0.0
    for factor, sample, token in DISPLAYS[key]:
        n = SAMPLES.index(sample)
        g = g_plus if ALL.agreement[n] > 0 else g_minus
        shut = ALL.agreement[n] > 0 and ALL.label[n] < 0
        total += factor / 8 * g * (gate if shut else 1) * seen(p, sample, token)
    return total


@paper.claim("Lemma F.1 (expansion)", part="proof-step", regime=converging)
def expansion_along_v(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top v_1$ is $\frac18 g_+$ and $\frac18 g_-$ times the
    attention that $\pm v_1$ has in the samples, with the gates of $X_{k,-,-}$."""
    return expansion(study, "v1", V1)


@paper.claim(
    "Lemma F.2 (expansion)",
    part="proof-step",
    regime=converging,
    torn="the display repeats its first line; put together from its left side as in F.1",
)
def expansion_along_c(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top c_1$ is $\frac18 g_+$ and $\frac18 g_-$ times the
    attention that $c_1$ has in the samples of one label less that of the other, with the gate of
    $X_{1,-,-}$."""
    return expansion(study, "c1", C1)


def expansion(study, key: str, at: int) -> Measurement:
    found, bias = three(study), study.config.bias
    w, S = arrays(found)

    def written(w: np.ndarray, gate: float | None = None) -> float:
        p, H, f = forward(w, S, ALL, bias)
        g = 1 / (1 + np.exp(ALL.label * f))
        one, other, easy = AT_ONCE
        on = float(H[0, easy] + bias > 0) if gate is None else gate
        return display(p[0], key, g[one], g[other], on)

    return identity(
        over=[
            w[0],
            neurons_of(3, 1),
        ],  # two gates of the plus head are shut at T2, all are on there
        predicted=written,
        measured=lambda w: -derivative(lambda x: loss(x, S, ALL, bias), w)[0, at],
        rtol=1e-11,
        control=Control("all gates on", lambda w: written(w, 1.0)),
        note="the gradient of the loss at T2, and at neurons with all gates on",
    )


def coefficient(r: StageTwo, key: str, sign: int, gate: float = 0.0) -> float:
    """What g_+ (sign 1) or g_- counts for; the gate is shut until it opens in stage 3."""
    return abs(display(r.attention[-1][0], key, sign > 0, sign < 0, gate))


@paper.claim("Lemma F.1", regime=staged)
def rate_along_v(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top v_k = \Theta(g_+) + \tilde O(\omega g_-)$: the coefficient
    of $g_+$ is bounded on both sides with the gates shut and open, that of $g_-$ vanishes with
    $\omega$."""
    rest = Control("the coefficient of g_-", measured=lambda r: coefficient(r, "v1", -1))
    along_c = Control("along c_1", measured=lambda r: coefficient(r, "c1", -1))
    return every(
        shut=ordered(study, "Theta", 0, lambda r: coefficient(r, "v1", 1), rest),
        open=ordered(study, "Theta", 0, lambda r: coefficient(r, "v1", 1, 1.0), rest),
        rest=ordered(study, "O", 1, lambda r: coefficient(r, "v1", -1), along_c),
    )


@paper.claim("Lemma F.2", regime=staged)
def rate_along_c(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} w_+^\top c_k \ge \Omega(g_-) + \tilde O(\omega g_+)$: the
    coefficient of $g_-$ is bounded below, and what $g_+$ takes away once the gates are open
    vanishes with $\omega$."""
    taken = Control("the coefficient of g_+", measured=lambda r: coefficient(r, "c1", 1, 1.0))
    shut = Control("while they are shut", measured=lambda r: coefficient(r, "c1", 1))
    return every(
        below=ordered(study, "Omega", 0, lambda r: coefficient(r, "c1", -1), taken),
        rest=ordered(study, "O", 1, lambda r: coefficient(r, "c1", 1, 1.0), shut),
    )


def ordered(study, kind, power: float, y, control: Control) -> Measurement:
    x, tol = (lambda r: r.omega), 0.02 if power == 0 else 0.2
    return order(kind, over=second_stages(study), x=x, y=y, power=power, tol=tol, control=control)


# --- Theorem F.3.


@paper.claim("Thm F.3", regime=converging)
def one_over_epsilon(study) -> Measurement:
    r"""$T_3 - T_2 = O(1/\epsilon)$: the time of stage 3 to a loss $\epsilon$."""
    times = three(study).times
    return order(
        "Theta",
        x=LOSSES[2:],
        y=[times[e] for e in LOSSES[2:]],
        power=-1,
        tol=0.03,
        control=Control("to sqrt epsilon", measured=[times[e] for e in EPSILONS]),
    )


@paper.claim("Thm 4.1 (T3 - T2)", regime=converging)
def third_stage_length(study) -> Measurement:
    r"""$T_3 - T_2 = O(1/\epsilon)$."""
    times = three(study).times
    return order(
        "O",
        over=EPSILONS,
        y=lambda e: times[e],
        power=-1,
        tol=0.3,
        control=Control("to epsilon^2", measured=[times[e] for e in LOSSES[2:]]),
    )


Formula = Callable[[np.ndarray, np.ndarray, float], float]
"""The display of df/dt: of the motion of the neurons, the attention, and the minus head's gate."""


def chain_rule(sample: str, formula: Formula, other: Formula | None = None) -> Measurement:
    """df/dt on a sample at random weights and motions, with the minus head's gate on and off."""
    n, rng, bias = SAMPLES.index(sample), np.random.default_rng(5), 9.0
    points = [(rng.normal(size=(2, 4, 4)), *rng.normal(size=(2, 2, 4))) for _ in range(4)]
    for _, w, _ in points[::2]:
        w[1, C1] -= 100

    def measured(point) -> float:
        S, w, dw = point
        return float(np.imag(forward(w + 1e-150j * dw, S, ALL, bias)[2][n]) / 1e-150)

    def written(display: Formula):
        def value(point) -> float:
            S, w, dw = point
            p, H, _ = forward(w, S, ALL, bias)
            return display(dw, p, float(H[1, n] + bias > 0))

        return value

    control = None if other is None else Control("as extracted", written(other))
    return identity(
        over=points, predicted=written(formula), measured=measured, rtol=1e-11, control=control
    )


@paper.claim(
    "Thm F.3 (consistent output)",
    part="proof-step",
    regime=converging,
    reading=r"in the line of $w_-^\top v_1$ the key of the query $v_1$ is read $v_1$, not $v_2$",
)
def consistent_output(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} f(X_{1,+,+})$ is the sum of $\frac{d}{dt} w_\pm^\top x$ times the
    attention that $x = v_1, v_2, c_1$ has in the two heads, the minus head's with a minus sign and
    its gate."""
    name, at = "c1 +v1 +v2", {"v1": V1, "v2": V2, "c1": C1}

    def right(dw, p, gate) -> float:
        heads = ((0, 1.0), (1, -gate))
        return sum(s * dw[h, i] * seen(p[h], name, key) for h, s in heads for key, i in at.items())

    def extracted(dw, p, gate) -> float:
        slip = seen(p[1], name, "v2", 1) - seen(p[1], name, "v1", 1)
        return right(dw, p, gate) - gate * dw[1, V1] * slip

    return chain_rule(name, right, extracted)


@paper.claim("Thm F.3 (conflicting output)", part="proof-step", regime=converging)
def conflicting_output(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} f(X_{1,+,-})$ has $-\frac{d}{dt} w_-^\top v_1$ and $+\frac{d}{dt}
    w_-^\top v_2$ times the attention of $v_1$ and $-v_2$ in the minus head. (In a symmetric state
    the two nearly cancel, so that the conclusion stands.)"""
    name = "c1 +v1 -v2"

    def display_with(minus: float):
        def value(dw, p, gate) -> float:
            v1, v2, c1 = ([seen(p[h], name, key) for h in (0, 1)] for key in ("v1", "-v2", "c1"))
            plus = dw[0, V1] * v1[0] - dw[0, V2] * v2[0] + dw[0, C1] * c1[0]
            signals = minus * dw[1, V1] * v1[1] - minus * dw[1, V2] * v2[1]
            return plus + gate * (signals - dw[1, C1] * c1[1])

        return value

    return corrected(
        printed=chain_rule(name, display_with(1.0)),
        right=chain_rule(name, display_with(-1.0)),
        text=r"$+\frac{d}{dt} w_-^\top v_1 (\ldots) - \frac{d}{dt} w_-^\top v_2 (\ldots)$",
        correct=r"$-\frac{d}{dt} w_-^\top v_1 (\ldots) + \frac{d}{dt} w_-^\top v_2 (\ldots)$",
        erratum=MINUS_HEAD,
    )


@paper.claim("Thm F.3", part="proof-step", regime=converging)
def loss_falls_at_its_square(study) -> Measurement:
    r"""In stage 3 $\frac{d}{dt} E[\ell] = -\Omega(g_+^2 + g_-^2)$, with a constant that the whole
    stage has."""
    found, bias = three(study), study.config.bias
    w, S = arrays(found)

    def ratio(w: np.ndarray, S: np.ndarray, population: MixturePopulation = ALL) -> float:
        force = derivative(lambda x: loss(x, S, population, bias), w)
        g = 1 / (1 + np.exp(ALL.label * forward(w, S, ALL, bias)[2]))
        return float((force**2).sum() / (g[AT_ONCE[0]] ** 2 + g[AT_ONCE[1]] ** 2))

    some = [ratio(each, S) for each in w[:: max(1, len(w) // 40)]]
    return at_least(
        bound=margin.margin(found.flow, found.at_t2).value ** 2 / 4,
        measured=min(some),
        control=Control(
            "the conflicting samples under uniform attention",
            ratio(w[0], np.zeros((2, 4, 4)), CONFLICTING),
        ),
        note=f"from {min(some):.4f} to {max(some):.4f}, against a quarter of the squared margin",
    )


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


@paper.claim("ours: stage 3 lasts 1/(epsilon margin^2)", part="constant", regime=converging & sharp)
def margin_sets_the_time(study) -> Measurement:
    r"""$\epsilon (T_3 - T_2) \to 1/\gamma^2$ with $\gamma$ the largest margin of the attention
    features at $T_2$, all gates on: the constant of Theorem F.3."""
    runs = [three(study), three(study, elsewhere=True)]
    sizes = [margin.margin(r.flow, r.at_t2).value for r in runs]
    actual = [margin.margin(r.flow, r.at_t2, "actual").value for r in runs]
    a, b = LOSSES[-2:]
    per = [(r.times[b] - r.times[a]) / (1 / b - 1 / a) for r in runs]
    return every(
        margin=equal(
            predicted=[nearest(arrays(r)[1])[0] for r in runs],
            measured=sizes,
            rtol=1e-9,
            each=True,
            control=Control("with the gates that there are", measured=actual),
        ),
        time=equal(
            predicted=[theory.convergence_time(size, 1.0) for size in sizes],
            measured=per,
            rtol=0.005,
            each=True,
            control=Control(
                "with those gates", [theory.convergence_time(size, 1.0) for size in actual]
            ),
        ),
    )


# --- Theorem 4.1 at T3.


@paper.claim("Thm 4.1 (loss at T3)", regime=converging)
def loss_reaches_epsilon(study) -> Measurement:
    r"""There is a $T_3$ with $E[\ell] \le \epsilon$ after Algorithm 1, for five $\epsilon$."""
    found, bias = three(study), study.config.bias
    _, S = arrays(found)
    stuck = without_attention(study).final["w"]
    return equal(
        predicted=LOSSES,
        measured=[float(loss(neurons_of(*w), S, ALL, bias)) for w in ends(found)],
        rtol=1e-5,
        each=True,
        control=Control(
            "without stage 2, for long",
            measured=[float(loss(neurons_of(*stuck), 0 * S, ALL, bias)) for _ in LOSSES],
        ),
    )


@paper.claim("Thm 4.1 (alignment with v at T3)", regime=converging & sharp)
def aligned_with_v(study) -> Measurement:
    r"""At $T_3$ $w_+^\top v_k$ and $w_-^\top(-v_k)$ are positive and $\tilde\Theta(1)$: they grow
    with $\log 1/\epsilon$ as the direction of the largest margin says."""
    w = trained(study).w[1][:, V1:]
    return every(
        sign=sign(
            predicted=1,
            measured=min(*w[0], *-w[1]),
            control=Control("the heads exchanged", min(*w[1], *-w[0])),
        ),
        size=grows(study, V1, C1),
    )


@paper.claim("Thm 4.1 (alignment with c at T3)", regime=converging & sharp)
def aligned_with_c(study) -> Measurement:
    r"""At $T_3$ $w_\pm^\top c_k$ are positive and $\tilde\Theta(1)$: they grow with $\log
    1/\epsilon$ as the direction of the largest margin says."""
    bias = study.config.bias
    early, _ = theory.neurons(theory.gate_time(bias), bias)
    return every(
        sign=sign(
            predicted=1,
            measured=trained(study).w[1][:, :V1].min(),
            control=Control("at T0.5", early),
        ),
        size=grows(study, C1, V1),
    )


def grows(study, at: int, other: int) -> Measurement:
    """w.mu over log 1/epsilon against the shortest w with y f >= 1."""
    found = three(study)
    direction = nearest(arrays(found)[1])[1][0]
    return slope(
        x=[-np.log(e) for e in LOSSES[2:]],
        y=ends(found)[2:, 0 if at == C1 else 1],
        predicted=direction[at],
        within=0.03,
        control=Control("along the other signal", direction[other]),
    )


@paper.claim("ours: gates shut in stage 1 open again in stage 3", regime=converging & sharp)
def gates_open_again(study) -> Measurement:
    r"""The gates that Cor. D.6 finds shut from $T_{0.5}$ to $T_1$ open in stage 3, and at the end
    all are on: the corollary does not extend. Without stage 2 they would stay shut."""
    found, bias = three(study), study.config.bias
    t2 = found.t2 or np.inf
    again = [e.time - t2 for e in found.switches if e.direction > 0 and e.time > t2]
    w, S = arrays(found)
    heights = forward(w[-1], S, ALL, bias)[1] + bias
    skipped = without_attention(study)
    stuck = forward(neurons_of(*skipped.final["w"]), 0 * S, ALL, bias)[1] + bias
    return fact(
        measured=bool((heights > 0).all()) and len(again) == len(found.flow.population) // 2,
        control=Control("without stage 2", bool((stuck > 0).all())),
        note=f"they open at t - T2 = {again[0]:.4g}" if again else "none opens",
    )


def ends(found: ThreeStages) -> np.ndarray:
    """(gamma, a) where stage 3 reaches each loss."""
    assert found.t2 is not None
    return found.solution.states([found.t2 + t for t in found.times.values()])["w"]


@paper.once
def without_attention(study) -> Solution:
    """Stage 3 right after stage 1: the neurons alone, for long."""
    c, start = study.config, three(study).at_t1
    flow = symmetric_flow(TWO.orbits, c.omega, c.bias, ("attention",))
    stops = loss_marks(flow.loss_of, (0.3,))
    return integrate(flow, start, 2e4, stops=stops, rtol=1e-8, solver=EXPLICIT, progress=False)
