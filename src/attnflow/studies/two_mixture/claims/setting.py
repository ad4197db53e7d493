"""Sections 2 to 4: the data, the model, Algorithm 1, and how the trained model decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import numpy as np

from attnflow import claims
from attnflow.claims import Control, Measurement, at_most, equal, every, identity, order, sign
from attnflow.models.two_head import tables, weight_flow
from attnflow.models.two_head_gram import score_flow
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import algorithm, theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, TWO, forward, neurons_of, past_gates
from attnflow.studies.two_mixture.claims.gradients import Point, points, weights_of
from attnflow.studies.two_mixture.margin import signed_features
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

TRAINED = (0.1, 0.03, 0.01)
"""Scales omega at which Algorithm 1 is run to its end."""


@paper.claim("Def 2.1")
def law_of_the_samples(study) -> Measurement:
    r"""Each sample up to the order of its tokens has the probability that the four steps give:
    $y$, $k$, the places $l_0, l_1$ and each distractor $\epsilon v_{k'}$, $k' \neq k$, uniform."""

    def listed(pair: tuple[int, int]) -> list[float]:
        task = MixtureClassification(*pair)
        return [task.count, *in_order(told(task.population))[1:]]

    pairs, drawn_ = ((2, 3), (3, 4), (2, 5)), lambda pair: in_order(drawn(*pair))
    alike = Control("distinct samples equally likely", lambda pair: in_order(even(drawn(*pair))))
    return identity(over=pairs, predicted=drawn_, measured=listed, control=alike)


@paper.claim("Def 2.1 (sampler)", part="experiment")
def sampler(study) -> Measurement:
    r"""Independent draws follow that law: $\chi^2$ over its degrees of freedom has mean 1."""
    task, n, law = MixtureClassification(2, 4), 600, drawn(2, 4)
    draws = [told(task.sample(n, seed).distinct()) for seed in range(40)]

    def statistics(law: dict) -> list[float]:
        gaps = [[(x.get(key, 0.0) - p) ** 2 / p for key, p in law.items()] for x in draws]
        return [n * sum(row) / (len(law) - 1) for row in gaps]

    alike = Control("distinct samples equally likely", measured=statistics(even(law)))
    return claims.statistical(predicted=1.0, samples=statistics(law), control=alike)


@paper.claim("ours: orbits of the samples")
def orbits(study) -> Measurement:
    """The weight of an orbit is the probability of the samples that a relabelling of the groups or
    the flip of all signs takes into one another."""

    def merged(pair: tuple[int, int], law: dict) -> dict:
        found: Counter = Counter()
        for (y, _, bag), p in law.items():
            own = next(x for x in bag if 0 < x <= pair[0])
            rest = Counter((abs(x), x * y > 0) for x in bag if abs(x) not in (own, own + pair[0]))
            groups = {g for g, _ in rest}  # how often each other signal has y's sign, and not
            found[tuple(sorted((rest[g, True], rest[g, False]) for g in groups))] += p
        return found

    def written(pair: tuple[int, int]) -> list[float]:
        return in_order(merged(pair, drawn(*pair)))

    def kept(pair: tuple[int, int]) -> list[float]:
        return in_order(merged(pair, told(MixtureClassification(*pair).orbits)))

    every_ = lambda pair: in_order(even(merged(pair, drawn(*pair))))  # noqa: E731
    pairs, alike = ((3, 4), (2, 5), (3, 5)), Control("orbits equally likely", every_)
    return identity(over=pairs, predicted=written, measured=kept, control=alike)


def drawn(K: int, L: int) -> dict:
    """The law of (y, d, tokens) by the four steps of Def. 2.1, every outcome written out.

    A token is +-(1 + coordinate), so that -3 is minus the third signal."""
    found: Counter = Counter()
    signals = [(g, s) for g in range(K) for s in (1, -1)]
    for y, k, (l0, l1) in product((1, -1), range(K), permutations(range(L), 2)):
        others = [x for x in signals if x[0] != k]
        for rest in product(others, repeat=L - 2):
            X = {l0: k + 1, l1: y * (K + k + 1)}
            free = [place for place in range(L) if place not in X]
            X |= {place: s * (K + g + 1) for place, (g, s) in zip(free, rest, strict=True)}
            chance = 1 / (2 * K * L * (L - 1) * len(others) ** (L - 2))
            found[y, y * sum(s for _, s in rest), tuple(sorted(X.values()))] += chance
    return found


def told(population: MixturePopulation) -> dict:
    """The same of a list of samples."""
    rows = (population.sign * (population.token + 1)).astype(int).tolist()
    heads = zip(population.label.tolist(), population.agreement.tolist(), rows, strict=True)
    keys = [(y, d, tuple(sorted(row))) for y, d, row in heads]
    return dict(zip(keys, population.weight.tolist(), strict=True))


def even(law: dict) -> dict:
    return dict.fromkeys(law, 1 / len(law))


def in_order(law: dict) -> list[float]:
    """How many outcomes there are, and their probabilities in the order of the outcomes."""
    return [len(law), *(law[key] for key in sorted(law))]


def written_out(at: Point, turn: bool = False) -> np.ndarray:
    S = common.turned(at.theta.scores) if turn else at.theta.scores
    return forward(at.theta.w, S, at.population, at.theta.bias)[2]


def from_tables(at: Point, name: str) -> Any:
    found = getattr(tables(at.population), name)
    return found(at.theta.w, at.theta.scores, at.theta.bias)


@paper.claim("eq 1")
def output(study) -> Measurement:
    r"""$f(X) = \sigma(H_+(X) + b) - \sigma(H_-(X) + b)$ with
    $H(X) = \sum_l w^\top X\,\mathrm{softmax}(X^\top W_K^\top W_Q x_l)$."""
    turn = Control("keys and queries exchanged", lambda at: written_out(at, turn=True))
    found: Callable = lambda at: from_tables(at, "predictions")  # noqa: E731
    return identity(over=points(study), predicted=written_out, measured=found, control=turn)


@paper.claim("Sec 2.2 (loss)")
def loss_of_the_population(study) -> Measurement:
    r"""$L = \mathbb E\,\ell(y f(X))$ with $\ell(x) = \log(1 + e^{-x})$; that of the samples with
    one $d$ is the mean given $d$."""

    def means(at: Point, weighted: bool = True) -> list[float]:
        pop, d = at.population, at.population.agreement
        each = np.log1p(np.exp(-pop.label * written_out(at)))
        weight = pop.weight if weighted else np.ones(len(pop))
        inside = [d == d, *(d == x for x in sorted(set(d)))]
        return [float(weight[x] @ each[x] / weight[x].sum()) for x in inside]

    def found(at: Point) -> list[float]:
        return [from_tables(at, "loss"), *from_tables(at, "group_losses")]

    plain = Control("without weights", lambda at: means(at, weighted=False))
    return identity(over=points(study), predicted=means, measured=found, control=plain)


@paper.claim("Algorithm 1 (samples of the stages)")
def samples_of_the_stages(study) -> Measurement:
    r"""Stages 1 and 3 move $w_\pm$ by $-\nabla\mathbb E\,\ell$ over all samples, stage 2 moves
    $W_K, W_Q$ by that given a conflicting sample (at L = 4: d = -2, not 0);
    what is not trained stands still."""
    omega, bias = 0.3, float(study.config.bias)
    ten = symmetric_flow(TWO.orbits, omega, bias)
    state = ten.sample(np.random.default_rng(4), {})
    state["w"] = bias * np.array([0.3, 0.8])  # some gates are shut, not all
    theta, nowhere = ten.lift(state), {"t1": 1.0, "score": None, "wait": 1.0, "until": 1.0}

    def moved(make: Callable, population: MixturePopulation, at: Any, lift: Callable) -> np.ndarray:
        """Velocities (w, S) in the three stages."""
        rows = []
        flow_of = lambda pop, frozen: make(pop, omega, bias, frozen)  # noqa: E731
        for phase in algorithm.schedule(flow_of, population, **nowhere):  # type: ignore[arg-type]
            system = phase.flow.bind(at)
            y, v = system.layout.flatten(at), np.empty(system.size)
            system.rhs(y, v, (system.guards(y) > 0) * 1.0)
            up = lift(system.layout.unflatten(v))
            rows.append(np.r_[up["w"].ravel(), up["S"].ravel()])
        return np.array(rows)

    def wanted(second: MixturePopulation) -> np.ndarray:
        w, S = theta["w"], theta["S"]
        one, two = (common.written(w, S, omega, p, bias) for p in (TWO.population, second))
        first = np.r_[one.dw.ravel(), 0 * S.ravel()]
        return np.stack([first, np.r_[0 * w.ravel(), two.dS.ravel()], first])

    th: Any = weights_of(theta["w"], theta["S"], omega, bias)

    def scores(v: Any) -> dict[str, Any]:
        return {"w": v.w, "S": common.turned(v.WK) @ th.WQ + common.turned(th.WK) @ v.WQ}

    by_weights = lambda pop, omega, bias, frozen: weight_flow(pop, frozen)  # noqa: E731
    full = moved(score_flow, TWO.population, theta, lambda v: v)
    few = moved(symmetric_flow, TWO.orbits, state, ten.lift)
    found = [full, few, moved(by_weights, TWO.population, th, scores)]
    right, all_ = ([wanted(pop)] * 3 for pop in (common.CONFLICTING, TWO.population))
    wrong = Control("stage 2 on all samples", all_)
    four = MixtureClassification(2, 4).population
    used: Any = algorithm.schedule(lambda pop, _: pop.weight, four, **nowhere)  # type: ignore[arg-type]
    votes = four.label * four.bags[:, 2:].sum(axis=1)  # 1 + d: at L = 4 also 1, neither of both
    hard, tied = ((votes <= least) * four.weight for least in (0, 1))
    return every(
        moved=equal(predicted=right, measured=found, rtol=1e-11, control=wrong),
        longer=equal(
            predicted=[four.weight, hard / hard.sum(), four.weight],
            measured=[phase.flow for phase in used],
            rtol=1e-12,
            control=Control("d = 0 too", [four.weight, tied / tied.sum(), four.weight]),
        ),
    )


@paper.claim("ours: Algorithm 1 as one solve", regime=past_gates & common.bounded_scores)
def three_stages(study) -> Measurement:
    """The whole of Algorithm 1 solved at once has the gate time and the neurons of the closed form,
    the T2 of stage 2 solved by itself, and the losses at which stage 3 is timed."""
    c, run, alone = study.config, study.three_stages, common.second_stage(study)
    S = common.both_heads(common.lifted(run.at_t2["S_sum"], run.at_t2["S_diff"]))
    ends = run.solution.states(run.t2 + np.r_[0.0, list(run.times.values())])["w"]
    at_t2, *losses = (common.loss(neurons_of(*w), S, TWO.population, c.bias) for w in ends)
    closed = lambda K: [theory.gate_time(c.bias, K), *theory.neurons(c.t1, c.bias, K)]  # noqa: E731
    linear = Control("of the linear phase", theory.attention_time(alone.gamma, c.omega))
    three, still = Control("of three groups", closed(3)), Control("at T2", [at_t2] * len(losses))
    first = [run.t05, *run.at_t1["w"]]
    return every(
        first=equal(predicted=closed(2), measured=first, rtol=1e-7, control=three),
        second=equal(predicted=alone.length, measured=run.duration, rtol=1e-7, control=linear),
        third=equal(predicted=list(run.times), measured=losses, rtol=1e-6, control=still),
    )


@paper.claim("ours: the best end of stage 1", regime=common.two_mixtures & common.condition_one)
def best_end(study) -> Measurement:
    r"""$T_1 + (9/\gamma(T_1))\log(1/\omega)$ is stationary at `best_t1`, with the rate of $\gamma$
    that the loss has, and stages 1 and 2 together take longer with half and with twice that T1."""
    b, omega = float(study.config.bias), float(study.config.omega)
    best = theory.best_t1(b, omega)

    def rate(t1: float) -> float:
        """1 - 9 log(1/omega) gamma'/gamma^2."""
        gamma, a = (float(x) for x in theory.neurons(t1, b))
        dw = common.force(neurons_of(gamma, a), np.zeros((2, 4, 4)), TWO.population, b)[0]
        return abs(1 - 9 * math.log(1 / omega) * float(dw[0, C1]) / gamma**2)

    total = [best * s + common.run_at(b, omega, best * s, 1.0).length for s in (0.25, 0.5, 1, 2)]
    longer, later = min(total[1], total[3]) - total[2], Control("later", rate(1.01 * best))
    half = Control("half of it against a quarter", total[1] - total[0])
    return every(
        stationary=at_most(bound=1e-7, measured=rate(best), control=later),
        shortest=sign(predicted=1, measured=longer, control=half),
    )


@paper.claim("eq 2")
def attention_feature(study) -> Measurement:
    r"""$f(X) = [w_+^\top, w_-^\top, 1]\,\mathcal F(X)$ with the gates of $w_\pm$ in the attention
    feature $\mathcal F$."""

    def times(at: Point, gates: str = "actual") -> np.ndarray:
        th, pop = at.theta, at.population
        F = pop.label[:, None] * signed_features(pop, th.w, th.scores, th.bias, gates)
        return F @ np.r_[th.w[0], th.w[1], 1.0]

    on = Control("all gates on", lambda at: times(at, "all_on"))
    return identity(over=points(study), predicted=times, measured=written_out, control=on)


@paper.claim("Sec 4 (group signal)", regime=common.staged)
def group_decides(study) -> Measurement:
    r"""At $T_3$ the group token of $X_{1,+,-}$ gives the plus head more than the minus head:
    $w_+^\top c_1\sum_q p^{(+)}_{q, c_1} - w_-^\top c_1\sum_q p^{(-)}_{q, c_1} \geq \Omega(1)$."""
    parts = np.transpose([parts_of_the_output(study, omega) for omega in TRAINED])
    soon = Control("one unit of time after T1", measured=parts[2])
    return order("Omega", x=TRAINED, y=parts[0], power=0.0, tol=0.03, control=soon)


@paper.claim("Sec 4 (classification signals)", regime=common.staged)
def signals_cancel(study) -> Measurement:
    r"""At $T_3$ the plus head's $w_+^\top v_1$ and $w_+^\top(-v_2)$ nearly cancel on $X_{1,+,-}$,
    regardless of queries: what is left is $O(\omega)$."""
    parts = np.transpose([parts_of_the_output(study, omega) for omega in TRAINED])
    group = Control("what the group signal gives", measured=parts[0])
    return order("O", x=TRAINED, y=parts[1], power=1.0, control=group)


@paper.once
def parts_of_the_output(study, omega: float) -> tuple[float, float, float]:
    """Of X_{1,+,-}: the group token's part of H_+ - H_- at T3, what the classification signals
    give the plus head, and the first a unit of time after T1."""
    c, one = study.config, common.SAMPLES.index("c1 +v1 -v2")
    how = (c.bias, c.t1, c.score_stop, (0.01,), 1e-6)
    run = algorithm.three_stages(TWO, omega, *how)

    def parts(state: Any) -> tuple[float, float]:
        w = neurons_of(*state["w"])
        S = common.both_heads(common.lifted(state["S_sum"], state["S_diff"]))
        given = forward(w, S, TWO.population, c.bias)[0][:, one].sum(axis=-1)  # head, key
        signals = w[0, 2] * given[0, 1] - w[0, 3] * given[0, 2]
        return float(w[0, C1] * given[0, 0] - w[1, C1] * given[1, 0]), abs(float(signals))

    return *parts(run.solution.final), parts(run.solution.at(run.t1 + 1.0))[0]
