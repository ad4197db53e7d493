"""Sections 2 to 4: the data, the model, Algorithm 1, and how the trained model decides."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations, product

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    at_most,
    equal,
    every,
    identity,
    order,
    sign,
    statistical,
)
from attnflow.models.two_head import tables
from attnflow.models.two_head_gram import score_flow
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import algorithm, theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import (
    C1,
    CONFLICTING,
    TWO,
    both_heads,
    forward,
    neurons_of,
    past_gates,
    second_stage,
    staged,
    two_mixtures,
)
from attnflow.studies.two_mixture.claims.gradients import points, root
from attnflow.studies.two_mixture.margin import signed_features
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

PAIRS = ((2, 3), (3, 4), (2, 5))
"""(K, L) at which laws of samples are compared."""

TRAINED = (0.1, 0.03, 0.01)
"""Scales omega at which Algorithm 1 is run to its end."""


# --- Section 2.


@paper.claim("Def 2.1")
def law_of_the_samples(study) -> Measurement:
    r"""Each sample up to the order of its tokens has the probability that the four steps give:
    $y$, $k$, the places $l_0, l_1$ and each distractor $\epsilon v_{k'}$, $k' \neq k$, uniform."""
    return identity(
        over=PAIRS,
        predicted=lambda pair: listed(drawn(*pair)),
        measured=lambda pair: listed(
            told(MixtureClassification(*pair).population), MixtureClassification(*pair).count
        ),
        rtol=1e-12,
        control=Control(
            "distinct samples equally likely",
            lambda pair: listed(dict.fromkeys(drawn(*pair), 1 / len(drawn(*pair)))),
        ),
    )


@paper.claim("Def 2.1 (sampler)", part="experiment")
def sampler(study) -> Measurement:
    r"""Independent draws follow that law: $\chi^2$ over its degrees of freedom has mean 1."""
    task, n, seeds = MixtureClassification(2, 4), 600, list(range(40))
    law = drawn(2, 4)

    def statistics(chances: dict) -> list[float]:
        found = []
        for seed in seeds:
            counts = told(task.sample(n, seed).distinct())
            gaps = [(n * counts.get(key, 0.0) - n * p) ** 2 / (n * p) for key, p in chances.items()]
            found.append(sum(gaps) / (len(chances) - 1))
        return found

    return statistical(
        predicted=1.0,
        samples=statistics(law),
        seeds=seeds,
        control=Control(
            "distinct samples equally likely", measured=statistics(dict.fromkeys(law, 1 / len(law)))
        ),
    )


@paper.claim("ours: orbits of the samples")
def orbits(study) -> Measurement:
    """The weight of an orbit is the probability of the samples that a relabelling of the groups or
    the flip of all signs takes into one another."""

    def merged(pair: tuple[int, int]) -> dict:
        found: Counter = Counter()
        for (y, _, bag), p in drawn(*pair).items():
            found[orbit(pair[0], y, bag)] += p
        return found

    def kept(pair: tuple[int, int]) -> dict:
        listed_ = told(MixtureClassification(*pair).orbits)
        return {orbit(pair[0], y, bag): p for (y, _, bag), p in listed_.items()}

    return identity(
        over=((3, 4), (2, 5), (3, 5)),
        predicted=lambda pair: listed(merged(pair)),
        measured=lambda pair: listed(kept(pair)),
        rtol=1e-12,
        control=Control(
            "orbits equally likely",
            lambda pair: listed(dict.fromkeys(merged(pair), 1 / len(merged(pair)))),
        ),
    )


def drawn(K: int, L: int) -> dict:
    """The law of (y, d, tokens) by the four steps of Def. 2.1, every outcome written out.

    A token is +-(1 + coordinate), so that -3 is minus the third signal."""
    found: Counter = Counter()
    signals = [(g, s) for g in range(K) for s in (1, -1)]
    for y, k, (l0, l1) in product((1, -1), range(K), permutations(range(L), 2)):
        others = [x for x in signals if x[0] != k]
        for rest in product(others, repeat=L - 2):
            X = dict.fromkeys((l0, l1))
            X[l0], X[l1] = k + 1, y * (K + k + 1)
            free = [place for place in range(L) if place not in X]
            X |= {place: s * (K + g + 1) for place, (g, s) in zip(free, rest, strict=True)}
            d = y * sum(s for _, s in rest)
            chance = 1 / (2 * K * L * (L - 1) * len(others) ** (L - 2))
            found[y, d, tuple(sorted(X.values()))] += chance
    return found


def told(population: MixturePopulation) -> dict:
    """The same of a list of samples."""
    rows = (population.sign * (population.token + 1)).astype(int)
    bags = [tuple(sorted(row)) for row in rows.tolist()]
    heads = zip(population.label.tolist(), population.agreement.tolist(), bags, strict=True)
    return dict(zip(heads, population.weight.tolist(), strict=True))


def orbit(K: int, y: float, bag: tuple[int, ...]) -> tuple:
    """What neither relabelling nor the flip changes: how often each other signal has y's sign."""
    own = next(x for x in bag if 0 < x <= K)
    counts = Counter((abs(x), x * y > 0) for x in bag if abs(x) not in (own, own + K))
    return tuple(sorted((counts[g, True], counts[g, False]) for g in {g for g, _ in counts}))


def listed(law: dict, count: int | None = None) -> list[float]:
    """How many outcomes there are, and their probabilities in the order of the outcomes."""
    return [len(law) if count is None else count, *(law[key] for key in sorted(law))]


@paper.claim("eq 1")
def output(study) -> Measurement:
    r"""$f(X) = \sigma(H_+(X) + b) - \sigma(H_-(X) + b)$ with
    $H(X) = \sum_l w^\top X\,\mathrm{softmax}(X^\top W_K^\top W_Q x_l)$."""

    def written(at, turn: bool = False) -> np.ndarray:
        S = np.asarray(at.theta.scores)
        return forward(at.theta.w, common.turned(S) if turn else S, at.population, at.theta.bias)[2]

    return identity(
        over=points(study),
        predicted=written,
        measured=lambda at: tables(at.population).predictions(
            at.theta.w, at.theta.scores, at.theta.bias
        ),
        rtol=1e-12,
        control=Control("keys and queries exchanged", lambda at: written(at, turn=True)),
    )


@paper.claim("Sec 2.2 (loss)")
def loss_of_the_population(study) -> Measurement:
    r"""$L = \mathbb E\,\ell(y f(X))$ with $\ell(x) = \log(1 + e^{-x})$; that of the samples with
    one $d$ is the mean given $d$."""

    def means(at, weight: np.ndarray) -> list[float]:
        pop = at.population
        f = forward(at.theta.w, at.theta.scores, pop, at.theta.bias)[2]
        each = np.log1p(np.exp(-pop.label * f))
        inside = [
            np.ones(len(pop), bool),
            *(pop.agreement == d for d in sorted(set(pop.agreement))),
        ]
        return [float(weight[x] @ each[x] / weight[x].sum()) for x in inside]

    def package(at) -> list[float]:
        t, given = tables(at.population), (at.theta.w, at.theta.scores, at.theta.bias)
        return [t.loss(*given), *t.group_losses(*given)]

    return identity(
        over=points(study),
        predicted=lambda at: means(at, at.population.weight),
        measured=package,
        rtol=1e-12,
        control=Control("without weights", lambda at: means(at, np.ones(len(at.population)))),
    )


# --- Section 3.2: Algorithm 1.


@paper.claim("Algorithm 1 (samples of the stages)")
def samples_of_the_stages(study) -> Measurement:
    r"""Stages 1 and 3 move $w_\pm$ by $-\nabla\mathbb E\,\ell$ over all samples, stage 2 moves
    $W_K, W_Q$ by that given a conflicting sample; what is not trained stands still."""
    omega, bias = 0.3, float(study.config.bias)
    state = symmetric_flow(TWO.orbits, omega, bias).sample(np.random.default_rng(4), {})
    state["w"] = bias * np.array([0.3, 0.8])  # some gates are shut, not all

    def moved(full: bool) -> np.ndarray:
        """Velocities (w, S) in the three stages, of the full model or by its ten numbers."""
        small = symmetric_flow(TWO.orbits, omega, bias)
        phases = algorithm.schedule(
            (lambda pop, frozen: score_flow(pop, omega, bias, frozen))
            if full
            else (lambda pop, frozen: symmetric_flow(pop, omega, bias, frozen)),
            TWO.population if full else TWO.orbits,
            **{"t1": 1.0, "score": None, "wait": 1.0, "until": 1.0},  # type: ignore[arg-type]
        )
        rows = []
        for phase in phases:
            at = small.lift(state) if full else state
            system = phase.flow.bind(at)
            v = np.empty(system.size)
            y = system.layout.flatten(at)
            system.rhs(y, v, (system.guards(y) > 0) * 1.0)
            v = system.layout.unflatten(v)
            v = v if full else small.lift(v)
            rows.append(np.concatenate([np.ravel(v["w"]), np.ravel(v["S"])]))
        return np.array(rows)

    def wanted(second: MixturePopulation) -> np.ndarray:
        theta = symmetric_flow(TWO.orbits, omega, bias).lift(state)
        w, S = theta["w"], theta["S"]
        dw = common.force(w, S, TWO.population, bias)[0]
        M = common.force(w, S, second, bias)[1]
        dS = M @ root(omega**4, common.turned(S) @ S) + root(omega**4, S @ common.turned(S)) @ M
        first, still = np.r_[dw.ravel(), 0 * S.ravel()], 0 * w.ravel()
        return np.stack([first, np.r_[still, dS.ravel()], first])

    control = Control("stage 2 on all samples", wanted(TWO.population))
    both = {"full": True, "reduced": False}
    return every(
        **{
            name: equal(
                predicted=wanted(CONFLICTING), measured=moved(full), rtol=1e-12, control=control
            )
            for name, full in both.items()
        }
    )


@paper.claim("ours: Algorithm 1 as one solve", regime=past_gates & common.bounded_scores)
def three_stages(study) -> Measurement:
    """The whole of Algorithm 1 solved at once has the gate time and the neurons of the closed form,
    the T2 of stage 2 solved by itself, and the losses at which stage 3 is timed."""
    c, run, alone = study.config, study.three_stages, second_stage(study)
    w, S = neurons_of(*run.at_t1["w"]), both_heads(common.lifted(*sectors(run.at_t2)))
    ends = run.solution.states(run.t2 + np.array(list(run.times.values())))
    losses = [common.loss(neurons_of(*each), S, TWO.population, c.bias) for each in ends["w"]]
    at_t2 = common.loss(w, S, TWO.population, c.bias)
    return every(
        gates=equal(
            predicted=theory.gate_time(c.bias),
            measured=run.t05,
            rtol=1e-7,
            control=Control("of three groups", theory.gate_time(c.bias, 3)),
        ),
        neurons=equal(
            predicted=np.stack(theory.neurons(c.t1, c.bias)),
            measured=run.at_t1["w"],
            rtol=1e-7,
            control=Control("of three groups", np.stack(theory.neurons(c.t1, c.bias, 3))),
        ),
        second=equal(
            predicted=alone.length,
            measured=run.duration,
            rtol=1e-6,
            control=Control("of the linear phase", theory.attention_time(alone.gamma, c.omega)),
        ),
        third=equal(
            predicted=list(run.times),
            measured=losses,
            rtol=1e-5,
            control=Control("at T2", measured=[at_t2] * len(losses)),
        ),
    )


def sectors(state) -> tuple[np.ndarray, np.ndarray]:
    return state["S_sum"], state["S_diff"]


@paper.claim("ours: the best end of stage 1", regime=two_mixtures & common.condition_one)
def best_end(study) -> Measurement:
    r"""$T_1 + (9/\gamma(T_1))\log(1/\omega)$ is stationary at `best_t1`, with the rate of $\gamma$
    that the loss has, and stages 1 and 2 together take longer with half and with twice that T1."""
    c = study.config
    best = theory.best_t1(c.bias, c.omega)

    def rate(t1: float) -> float:
        """1 - 9 log(1/omega) gamma'/gamma^2."""
        gamma, a = (float(x) for x in theory.neurons(t1, c.bias))
        still = np.zeros((2, 4, 4))
        grows = common.force(neurons_of(gamma, a), still, TWO.population, c.bias)[0][0, C1]
        return 1 - 9 * math.log(1 / c.omega) * float(grows) / gamma**2

    def total(t1: float) -> float:
        return t1 + common.run_at(float(c.bias), float(c.omega), t1, 1.0).length

    return every(
        stationary=at_most(
            bound=1e-6,
            measured=abs(rate(best)),
            control=Control("one per cent later", abs(rate(1.01 * best))),
        ),
        shortest=sign(
            predicted=1,
            measured=[total(best / 2) - total(best), total(2 * best) - total(best)],
            control=Control(
                "half of it against a quarter", [total(best / 2) - total(best / 4)] * 2
            ),
        ),
    )


# --- Section 4.


@paper.claim("eq 2")
def attention_feature(study) -> Measurement:
    r"""$f(X) = [w_+^\top, w_-^\top, 1]\,\mathcal F(X)$ with the gates of $w_\pm$ in the attention
    feature $\mathcal F$."""

    def product_(at, gates: str) -> np.ndarray:
        th, pop = at.theta, at.population
        F = pop.label[:, None] * signed_features(pop, th.w, th.scores, th.bias, gates)
        return F @ np.r_[th.w[0], th.w[1], 1.0]

    return identity(
        over=points(study),
        predicted=lambda at: product_(at, "actual"),
        measured=lambda at: forward(at.theta.w, at.theta.scores, at.population, at.theta.bias)[2],
        rtol=1e-12,
        control=Control("all gates on", lambda at: product_(at, "all_on")),
    )


@paper.claim("Sec 4 (group signal)", regime=staged)
def group_decides(study) -> Measurement:
    r"""At $T_3$ the group token of $X_{1,+,-}$ gives the plus head more than the minus head:
    $w_+^\top c_1\sum_q p^{(+)}_{q, c_1} - w_-^\top c_1\sum_q p^{(-)}_{q, c_1} \geq \Omega(1)$."""
    return order(
        "Omega",
        over=TRAINED,
        y=lambda omega: parts_of_the_output(study, omega)[0],
        power=0.0,
        tol=0.03,
        control=Control(
            "one unit of time after T1", measured=lambda omega: parts_of_the_output(study, omega)[2]
        ),
    )


@paper.claim("Sec 4 (classification signals)", regime=staged)
def signals_cancel(study) -> Measurement:
    r"""At $T_3$ the plus head's $w_+^\top v_1$ and $w_+^\top(-v_2)$ nearly cancel on $X_{1,+,-}$,
    regardless of queries: what is left is $O(\omega)$."""
    return order(
        "O",
        over=TRAINED,
        y=lambda omega: parts_of_the_output(study, omega)[1],
        power=1.0,
        control=Control(
            "what the group signal gives",
            measured=lambda omega: parts_of_the_output(study, omega)[0],
        ),
    )


@paper.once
def parts_of_the_output(study, omega: float) -> tuple[float, float, float]:
    """Of X_{1,+,-}: the group token's part of H_+ - H_- at T3, what the classification signals
    give the plus head, and the first a unit of time after T1."""
    c, losses = study.config, (0.01,)
    run = algorithm.three_stages(TWO, omega, c.bias, c.t1, c.score_stop, losses)
    one = common.SAMPLES.index("c1 +v1 -v2")

    def parts(state) -> tuple[float, float]:
        w = neurons_of(*state["w"])
        p = forward(w, both_heads(common.lifted(*sectors(state))), TWO.population, c.bias)[0]
        given = p[:, one].sum(axis=-1)  # head, key
        signals = w[0, 2] * given[0, 1] - w[0, 3] * given[0, 2]
        return float(w[0, C1] * given[0, 0] - w[1, C1] * given[1, 0]), abs(float(signals))

    return *parts(run.solution.final), parts(run.solution.at(run.t1 + 1.0))[0]
