"""Section 3.1, Appendix A and Section 6: what the experiments show, measured again.

Joint training is gradient descent at learning rate .1, exact at infinite width, and the flow that
it follows; the paper does not give the dimension nor the scale omega: the config's are taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow import claims
from attnflow.claims import Control, Measurement, at_least, at_most, equal, every, order, sign
from attnflow.flows.solution import Solution
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.reduce import Descents, gram_descent
from attnflow.studies.two_mixture import algorithm, stages
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO, turned
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.descent import attention_only
from attnflow.studies.two_mixture.paper import paper

LR, SEVERAL = 0.1, (2, 3, 4, 6, 8)
"""The learning rate, and the numbers of groups of the scan; the paper shows 2, 3, 4 and 8."""


@claims.condition
def learnable(config: Config) -> claims.Regime:
    """Small starts and a bias of order one, so that joint training separates its stages."""
    words = f"omega = {config.omega:.4g} within .02 and .5, b = {config.bias:.4g} within .05 and 1"
    inside = 0.02 <= config.omega <= 0.5 and 0.05 <= config.bias <= 1
    return claims.Regime(inside, f"{words}; K = 2, L = 3")


def observed(id: str) -> Any:
    """A claim about what an experiment of the paper shows."""
    guessed = "omega and b are the config's, infinite width, L = 3"
    return paper.claim(id, part="experiment", regime=learnable, setting=guessed)


def flow_of(study) -> SymmetricFlow:
    return symmetric_flow(TWO.orbits, float(study.config.omega), float(study.config.bias))


@paper.once
def descent(study) -> Descents:
    """Joint descent of K = 2 until the loss is .02: the ten numbers after every step."""
    flow = flow_of(study)
    small = lambda s: flow.loss_of(flow.of_gram(s)) < 0.02  # noqa: E731
    return gram_descent(flow.gram, flow.gram.start, LR, 6000, keep=flow.of_gram, stop=small)


def state_at(study, step: int) -> dict[str, np.ndarray]:
    return {k: x[step] for k, x in descent(study).rows.items()}


def losses(study) -> np.ndarray:
    """The loss over ln 2 of the conflicting and of the consistent samples, after every step."""
    return flow_of(study).group_losses(descent(study).rows) / np.log(2)


def half_step(study, kind: int) -> int:
    """The first step at which the loss of the conflicting (0) or consistent (1) has halved."""
    return int(np.argmax(losses(study)[:, kind] <= 0.5))


def joint_of(study, groups: int = 2) -> Solution:
    """The joint flow of K groups until its loss is .05."""
    return algorithm.learning(groups, float(study.config.omega), float(study.config.bias))


@observed("Sec 3.1 (i)")
def consistent_before_conflicting(study) -> Measurement:
    """The loss of consistent samples falls early, that of conflicting ones only after sufficient
    training: it has hardly moved when the former has halved, and halves later than five times."""
    end, early = half_step(study, 0), half_step(study, 1)
    hard, easy = losses(study)[early]
    later = losses(study)[[end, min(5 * early, end - 1)], 0]
    soon = Control("five times later", later[1])
    return every(
        waits=at_least(bound=0.98, measured=hard, control=Control("the consistent samples", easy)),
        learns=at_most(bound=0.51, measured=later[0], control=soon),
    )


@observed("Sec 3.1 (ii)")
def neurons_before_attention(study) -> Measurement:
    """The neurons align from the beginning, the attention scores change only later: when w.v has
    half of what it has at the conflicting half time, the largest score has not a tenth."""
    end, states = half_step(study, 0), descent(study).rows
    a, score = states["w"][: end + 1, 1], flow_of(study).score(states, "c", "v")[: end + 1]
    early = int(np.argmax(a >= a[-1] / 2))
    aligned = Control("the share of w.v", a[early] / a[-1])
    return at_most(bound=0.1, measured=score[early] / score[-1], control=aligned)


@observed("Sec 3.1 (iii)")
def scores_rise_when_the_loss_falls(study) -> Measurement:
    """The time at which the scores change noticeably coincides with that at which the conflicting
    loss falls: the steepest rise of the score and the steepest fall are close."""
    rise = int(np.argmax(np.diff(flow_of(study).score(descent(study).rows, "c", "v"))))
    falls = np.argmin(np.diff(losses(study), axis=0), axis=0)
    hard, easy = np.abs(rise - falls) / half_step(study, 0)
    return at_most(bound=0.1, measured=hard, control=Control("the consistent loss", easy))


@observed("Sec 3.1 (iv)")
def association(study) -> Measurement:
    """c1'S v1 grows to a large positive and c1'S v2 to a large negative value: attention associates
    group and signal of one group and dissociates those of different groups."""

    def scores(step: int) -> list[float]:
        state = state_at(study, step)
        own, other = (flow_of(study).score(state, "c", "v", same) for same in (True, False))
        return [float(own), -float(other)]

    early = Control("when the consistent loss has halved", scores(half_step(study, 1)))
    return sign(predicted=1, measured=scores(-1), margin=0.5, control=early)


@observed("Fig 1")
def descent_follows_the_flow(study) -> Measurement:
    """Descent at learning rate .1 has the half time of the gradient flow: the analysis of the flow
    is one of the experiment."""
    hard, easy = (joint_of(study).first(f"half {d}") for d in (-1, 1))
    other = Control("of the consistent samples", easy)
    return equal(predicted=hard, measured=half_step(study, 0) * LR, rtol=0.015, control=other)


@observed("App A.1 (Fig 2)")
def concentrated_maps(study) -> Measurement:
    """After training the plus head's signal queries attend to the group token on X(1,+,-) and on
    X(1,+,+) the own signal does so, the other one avoids it."""
    # sample (d = 1, d = -1), key, query
    first, last = (flow_of(study).attention(state_at(study, step))[0] for step in (0, -1))
    drawn, avoids = ([1, 1, 0], 0, [1, 2, 1]), (0, 0, 2)
    near, far = Control("before training", first[drawn]), Control("before training", first[avoids])
    return every(
        concentrated=at_least(bound=0.6, measured=last[drawn], control=near),
        avoided=at_most(bound=0.2, measured=last[avoids], control=far),
    )


ALONE = "K = 2, omega = .1, b = 1/2, neurons of standard deviation 1, infinite width"


@paper.claim("App A.2 (Fig 3)", part="experiment", setting=ALONE)
def attention_alone(study) -> Measurement:
    """With Gaussian neurons that are kept fixed the transformer is suggested not to be trainable:
    the loss of the median draw hardly falls with time."""
    found = attention_only(TWO.population, neurons_of_the_draws(), steps=800)
    steps = [100, 200, 400, 800]
    median, aligned = np.median(found.losses[steps, :-1], axis=1), found.losses[steps, -1]
    trains = Control("neurons 2(c1 + c2 +- (v1 + v2))", measured=aligned)
    note = f"{int((found.accuracy[:-1] == 1).sum())} of 15 draws reach accuracy 1"
    how: Any = {"power": 0.0, "tol": 0.2, "toward": "infinity", "note": note}
    return order("Omega", x=steps, y=median, **how, control=trains)


def neurons_of_the_draws() -> np.ndarray:
    """Fifteen Gaussian ones, and at last aligned ones."""
    draws = [np.random.default_rng(seed).standard_normal((2, 4)) for seed in range(15)]
    return np.array([*draws, 2.0 * np.array([[1, 1, 1, 1], [1, 1, -1, -1.0]])])


@paper.claim("ours: attention alone, step by step", setting=ALONE)
def attention_alone_by_weights(study) -> Measurement:
    """Descent of keys and queries with fixed neurons has the losses and, at its end, the accuracy
    of the same steps taken on weights that have this Gram."""
    steps, pop, neurons = 60, TWO.population, neurons_of_the_draws()[[0, 12, 15]]
    found = attention_only(pop, neurons, steps=steps)

    def taken(w: np.ndarray) -> np.ndarray:
        """y f after every step."""
        # The infinite width's Gram omega^2 I is that of eight rows.
        WK, WQ = (np.stack([0.1 * np.eye(8)[:, at]] * 2) for at in (slice(0, 4), slice(4, 8)))
        rows = []
        for _ in range(steps + 2):
            rows.append(pop.label * common.forward(w, turned(WK) @ WQ, pop, 0.5)[2])
            M = common.force(w, turned(WK) @ WQ, pop, 0.5)[1]
            WK, WQ = WK + WQ @ turned(M), WQ + WK @ M
        return np.array(rows)

    yf = np.stack([taken(w) for w in neurons], axis=1)  # step draw sample
    loss, right = np.log1p(np.exp(-yf)).mean(axis=2), (yf > 0).mean(axis=2)
    later, first = Control("one step later", loss[1:]), Control("before training", right[0])
    return every(
        loss=equal(predicted=loss[:-1], measured=found.losses, rtol=1e-11, control=later),
        accuracy=equal(predicted=right[-2], measured=found.accuracy, rtol=1e-12, control=first),
    )


@observed("App A.3 (Fig 4)")
def other_scores_stay_small(study) -> Measurement:
    """Of all 16 scores at K = 2 the four c_k'S v_j change most."""
    S = np.abs(flow_of(study).lift(descent(study).final)["S"][0])

    def others(block: tuple[slice, slice]) -> float:
        """The largest of the other scores over the least of the four."""
        rest = S.copy()
        rest[block] = 0.0
        return float(rest.max() / S[block].min())

    turn = Control("the four v_k'S c_j in their place", others(np.s_[2:, :2]))
    return at_most(bound=0.6, measured=others(np.s_[:2, 2:]), control=turn)


@observed("App A.4 (Fig 5-7)")
def more_groups_alike(study) -> Measurement:
    """With K = 3, 4 and 8 groups training is as with 2: consistent samples first, then the scores
    c_k'S v_k rise and the conflicting ones are learnt."""
    runs = [joint_of(study, K) for K in (3, 4, 8)]
    rows = [np.searchsorted(run.trajectory["time"], run.first("half 1")) for run in runs]
    both = list(zip(runs, rows, strict=True))
    waits = np.array([run.trajectory["group_loss"].values[i] / np.log(2) for run, i in both])
    scores = [run.flow.score(run.states(), "c", "v") for run in runs]
    early = Control("at that time", [x[i] for x, i in zip(scores, rows, strict=True)])
    easy = Control("the consistent samples", waits[:, 1])
    last = [x[-1] for x in scores]
    return every(
        order=at_least(bound=0.98, measured=waits[:, 0], control=easy),
        scores=sign(predicted=1, measured=last, margin=0.5, control=early),
    )


@observed("Observation 1 (trainable)")
def many_groups_are_learnt(study) -> Measurement:
    """The transformer of eq. (1) learns K >= 3 mixtures: y f > 0 on every sample at loss .05."""
    runs = [joint_of(study, K) for K in SEVERAL[1:]]
    least = lambda at: min(r.flow.predictions(getattr(r, at)).min() for r in runs)  # noqa: E731
    end, start = least("final"), least("start")
    return sign(predicted=1, measured=end, margin=0.1, control=Control("at the start", start))


@observed("Observation 1 (near symmetry)")
def near_symmetry_is_lost(study) -> Measurement:
    """For K >= 3 the near symmetry c_1'S v_1 = -c_1'S v_2 of K = 2 no longer holds."""

    def gap(K: int) -> float:
        """|1 + c1'S v2 / c1'S v1|."""
        run = joint_of(study, K)
        own, other = (run.flow.score(run.final, "c", "v", same) for same in (True, False))
        return abs(1 + other / own)

    return at_least(bound=0.4, measured=[gap(3), gap(4), gap(8)], control=Control("K = 2", gap(2)))


@paper.claim("ours: what the near symmetry becomes for K groups", regime=learnable)
def zero_sum(study) -> Measurement:
    """What survives for any K is that the scores of a key sum to about zero over the groups,
    c_k'S v_j = -c_k'S v_k/(K-1): the sum sector stays at its size omega^2."""

    def size(sector: str) -> list[float]:
        runs = (joint_of(study, K) for K in SEVERAL)
        return [float(np.abs(run.final[sector]).max()) / study.config.omega**2 for run in runs]

    other = Control("the difference sector", size("S_diff"))
    return at_most(bound=2.5, measured=size("S_sum"), control=other)


def half_times(study, kind: int = -1) -> np.ndarray:
    return np.array([joint_of(study, K).first(f"half {kind}") for K in SEVERAL])


@observed("Observation 1 (slower with K)")
def slower_with_more_groups(study) -> Measurement:
    """Training takes longer with more groups: the conflicting half time rises."""
    share = half_times(study) / np.subtract(SEVERAL, 1)
    control = Control("per group beyond the first", share)
    return claims.monotone(measured=half_times(study), control=control)


@paper.claim("ours: the half time is affine in K", regime=learnable)
def affine_in_groups(study) -> Measurement:
    """The conflicting half time grows linearly in K: the slope over K = 2 to 4 is that over 4
    to 8."""
    first, _, third, *_ = found = half_times(study)
    easy = Control("of the consistent samples", measured=half_times(study, 1)[2:])
    slope, x = (third - first) / 2, SEVERAL[2:]
    return claims.slope(x=x, y=found[2:], predicted=slope, within=0.03, control=easy)


@paper.claim("ours: the stages of joint training", regime=learnable)
def stages_of_joint_training(study) -> Measurement:
    """The stages begin where the first gate shuts, and at the two ends of the stretch over which
    attention lowers the loss most beyond what the neurons do (at omega = .45 a gate opens just
    before its end); the conflicting loss halves inside it, for K = 2, 3, 4 and 8. The gates that
    the record shows switching are those that the solver met."""
    b, omegas = float(study.config.bias), (float(study.config.omega), 0.45)
    runs = [algorithm.joint(TWO, omega, b, 3000.0, loss=0.01) for omega in omegas]
    told = [stages.find(run.trajectory) for run in runs]
    known, soon = zip(*map(edges, runs, omegas, (b, b)), strict=True)
    found = [x for each in told for x in (*(s.time for s in each[1:]), each[-1].confidence)]
    names, early = list(stages.NAMES), runs[0].trajectory.isel(time=slice(0, 9))

    def holds(run: Solution, kind: int) -> bool:
        """Whether a loss halves where, by the rule, attention has its stage."""
        begins, *ends = (stage.time for stage in stages.find(run.trajectory)[2:])
        return begins <= run.first(f"half {kind}") <= (*ends, np.inf)[0]

    more = [runs[0], *(joint_of(study, K) for K in (3, 4, 8))]
    switches = [s for run in runs for s in stages.switches(run.trajectory)]
    switched = [[s["time"], {"on": 1, "off": -1}[s["state"]]] for s in switches]
    half = Control("to where the conflicting loss has halved", np.ravel(soon))
    loss = Control("where the losses given d halve", met(runs, "half"))
    easy = Control("of the consistent samples", any(holds(run, 1) for run in more))
    return every(
        begins=equal(predicted=np.ravel(known), measured=found, rtol=1e-3, each=True, control=half),
        inside=claims.fact(measured=all(holds(run, -1) for run in more), control=easy),
        named=claims.fact(
            measured=all([s.name for s in each] == names for each in told)
            and all(each[2].confidence == each[3].confidence for each in told),
            control=Control("in the first rows", [s.name for s in stages.find(early)] == names),
        ),
        gates=equal(predicted=met(runs, " c1 "), measured=switched, control=loss, rtol=1e-12),
    )


def met(runs: list[Solution], word: str) -> list[list[float]]:
    """Times and directions of the events whose name has this word, as the solver met them."""
    return [[e.time, e.direction] for run in runs for e in run.events if word in e.name]


def edges(run: Solution, omega: float, b: float) -> tuple[list[float], list[float]]:
    """First gate, begin, end and clearness of attention's stage by all pairs of crossings of the
    powers written out, between the rows too; and with the conflicting half time for the end."""
    t = run.trajectory["time"].values
    t = np.unique(np.concatenate([t[:-1] + k / 8 * np.diff(t) for k in range(9)]))
    states = run.states(t)
    w = common.neurons_of(*states["w"].T)
    S = common.both_heads(common.lifted(states["S_sum"], states["S_diff"]))
    x = common.written(w, S, omega, TWO.population, b)
    gate, power = x.height.min(axis=(1, 2)), x.power
    q, surplus = power[1] / (power[0] + power[1]) - 0.5, power[1] - power[0]

    def zero(x: np.ndarray, i: Any) -> float:
        return float(t[i] + (t[i + 1] - t[i]) * x[i] / (x[i] - x[i + 1]))

    up, down = (np.flatnonzero((way * q[:-1] < 0) & (way * q[1:] >= 0)) for way in (1, -1))
    gained = lambda i, j: np.trapezoid(surplus[i:j], t[i:j])  # noqa: E731
    begin, end = max(((i, j) for i in up for j in down if i < j), key=lambda pair: gained(*pair))
    shut = zero(gate, int(np.argmax(gate < 0)) - 1)
    one = [shut, zero(q, begin), zero(q, end), 2 * float(q[begin:end].max())]
    return one, [*one[:2], run.first("half -1"), one[3]]
