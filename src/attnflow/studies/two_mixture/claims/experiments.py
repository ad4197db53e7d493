"""Section 3.1, Appendix A and Section 6: what the experiments show, measured again.

Joint training is gradient descent at learning rate .1, exact at infinite width, and the flow that
it follows; the paper does not give the dimension nor the scale omega: the config's are taken.
"""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    Regime,
    at_least,
    at_most,
    condition,
    equal,
    every,
    fact,
    monotone,
    order,
    sign,
    slope,
)
from attnflow.flows.solution import Solution
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.reduce import Descents, gram_descent
from attnflow.studies.two_mixture import algorithm, stages
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO, both_heads, lifted, neurons_of, turned
from attnflow.studies.two_mixture.claims.gradients import root
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.descent import attention_only
from attnflow.studies.two_mixture.paper import paper

LR = 0.1
SEVERAL = (2, 3, 4, 6, 8)
"""Numbers of groups of the scan; the paper shows 2, 3, 4 and 8."""
GUESSED = "omega and b are the config's, infinite width"


@condition
def learnable(config: Config) -> Regime:
    """Small starts and a bias of order one, so that joint training separates its stages."""
    words = f"omega = {config.omega:.4g} within .02 and .5, b = {config.bias:.4g} within .05 and 1"
    return Regime(
        0.02 <= config.omega <= 0.5 and 0.05 <= config.bias <= 1, f"{words}; K = 2, L = 3"
    )


def flow_of(study) -> SymmetricFlow:
    return symmetric_flow(TWO.orbits, float(study.config.omega), float(study.config.bias))


def descent(study) -> Descents:
    return _descent(flow_of(study))


@functools.lru_cache(maxsize=8)
def _descent(flow: SymmetricFlow) -> Descents:
    """Joint descent of K = 2 until the loss is .02: the ten numbers after every step."""
    gram, ten = flow.gram, flow.of_gram
    return gram_descent(
        gram, gram.start, LR, 6000, keep=ten, stop=lambda s: flow.loss_of(ten(s)) < 0.02
    )


def losses(study) -> np.ndarray:
    """The loss over ln 2 of the conflicting and of the consistent samples, after every step."""
    return flow_of(study).group_losses(descent(study).rows) / np.log(2)


def half_step(study, kind: int) -> int:
    """The first step at which the loss of the conflicting (0) or consistent (1) has halved."""
    return int(np.argmax(losses(study)[:, kind] <= 0.5))


def joint_of(study, groups: int = 2) -> Solution:
    """The joint flow of K groups until its loss is .05."""
    return algorithm.learning(groups, float(study.config.omega), float(study.config.bias))


# --- Section 3.1.


@paper.claim("Sec 3.1 (i)", part="experiment", regime=learnable, setting=GUESSED)
def consistent_before_conflicting(study) -> Measurement:
    """The loss of consistent samples falls early, that of conflicting ones only after sufficient
    training: it has hardly moved when the former has halved, and has halved five times later."""
    end, early = half_step(study, 0), half_step(study, 1)
    return every(
        waits=at_least(
            bound=0.98,
            measured=losses(study)[early, 0],
            control=Control("the consistent samples", losses(study)[early, 1]),
            note=f"the loss over ln 2 at step {early}",
        ),
        learns=at_most(
            bound=0.51,
            measured=losses(study)[end, 0],
            control=Control(
                "after five times those steps", losses(study)[min(5 * early, end - 1), 0]
            ),
            note=f"at step {end}",
        ),
    )


@paper.claim("Sec 3.1 (ii)", part="experiment", regime=learnable, setting=GUESSED)
def neurons_before_attention(study) -> Measurement:
    """The neurons align from the beginning, the attention scores change only later: when w.v has
    half of what it has at the conflicting half time, the largest score has not a tenth."""
    end, states = half_step(study, 0), descent(study).rows
    a = states["w"][: end + 1, 1]
    score = flow_of(study).score(states, "c", "v")[: end + 1]
    early = int(np.argmax(a >= a[-1] / 2))
    return at_most(
        bound=0.1,
        measured=score[early] / score[-1],
        control=Control("the share of w.v", a[early] / a[-1]),
        note=f"w.v has half of its size at step {early} of {end}",
    )


@paper.claim("Sec 3.1 (iii)", part="experiment", regime=learnable, setting=GUESSED)
def scores_rise_when_the_loss_falls(study) -> Measurement:
    """The time at which the scores change noticeably coincides with that at which the conflicting
    loss falls: the steepest rise of the score and the steepest fall are close."""
    rise = int(np.argmax(np.diff(flow_of(study).score(descent(study).rows, "c", "v"))))
    falls = [int(np.argmin(np.diff(losses(study)[:, k]))) for k in (0, 1)]
    half = half_step(study, 0)
    return at_most(
        bound=0.1,
        measured=abs(rise - falls[0]) / half,
        control=Control("the fall of the consistent loss", abs(rise - falls[1]) / half),
        note=f"steps {rise} (score) and {falls[0]} (loss), over the half time",
    )


@paper.claim("Sec 3.1 (iv)", part="experiment", regime=learnable, setting=GUESSED)
def association(study) -> Measurement:
    """c1'S v1 grows to a large positive and c1'S v2 to a large negative value: attention associates
    group and signal of one group and dissociates those of different groups."""

    def scores(step: int) -> list[float]:
        state = {k: x[step] for k, x in descent(study).rows.items()}
        own, other = (flow_of(study).score(state, "c", "v", same) for same in (True, False))
        return [float(own), -float(other)]

    return sign(
        predicted=1,
        measured=scores(-1),
        margin=0.5,
        control=Control("when the consistent loss has halved", scores(half_step(study, 1))),
        note="c1'S v1 and -c1'S v2 at loss .02",
    )


@paper.claim("Fig 1", part="experiment", regime=learnable, setting=GUESSED)
def descent_follows_the_flow(study) -> Measurement:
    """Descent at learning rate .1 has the half time of the gradient flow: the analysis of the flow
    is one of the experiment."""
    run = joint_of(study)
    return equal(
        predicted=run.first("half -1"),
        measured=half_step(study, 0) * LR,
        rtol=0.015,
        control=Control("of the consistent samples", run.first("half 1")),
    )


# --- Appendix A.


@paper.claim("App A.1 (Fig 2)", part="experiment", regime=learnable, setting=GUESSED)
def concentrated_maps(study) -> Measurement:
    """After training the plus head's signal queries attend to the group token on X(1,+,-) and on
    X(1,+,+) the own signal does so, the other one avoids it."""
    rows = descent(study).rows
    first, last = (
        flow_of(study).attention({k: x[step] for k, x in rows.items()})[0] for step in (0, -1)
    )  # sample (d = 1, d = -1), key, query
    return every(
        concentrated=at_least(
            bound=0.6,
            measured=[last[1, 0, 1], last[1, 0, 2], last[0, 0, 1]],
            control=Control("before training", first[[1, 1, 0], 0, [1, 2, 1]]),
        ),
        avoided=at_most(
            bound=0.2, measured=last[0, 0, 2], control=Control("before training", first[0, 0, 2])
        ),
    )


@paper.claim(
    "App A.2 (Fig 3)",
    part="experiment",
    setting="K = 2, omega = .1, b = 1/2, neurons of standard deviation 1, infinite width",
)
def attention_alone(study) -> Measurement:
    """With Gaussian neurons that are kept fixed the transformer is suggested not to be trainable:
    the loss of the median draw hardly falls with time."""
    found = attention_only(TWO.population, neurons_of_the_draws(), steps=800)
    return order(
        "Omega",
        over=(100, 200, 400, 800),
        y=lambda t: np.median(found.losses[t, :-1]),
        power=0.0,
        tol=0.2,
        toward="infinity",
        control=Control("neurons 2(c1 + c2 +- (v1 + v2))", measured=lambda t: found.losses[t, -1]),
        note=f"{int((found.accuracy[:-1] == 1).sum())} of {len(DRAWS)} draws reach accuracy 1",
    )


DRAWS = range(15)


def neurons_of_the_draws() -> np.ndarray:
    """Gaussian ones, and at last aligned ones."""
    draws = [np.random.default_rng(seed).standard_normal((2, 4)) for seed in DRAWS]
    return np.array([*draws, 2.0 * np.array([[1, 1, 1, 1], [1, 1, -1, -1.0]])])


@paper.claim("ours: attention alone, step by step", setting="as App A.2")
def attention_alone_by_weights(study) -> Measurement:
    """Descent of keys and queries with fixed neurons has the losses and, at its end, the accuracy
    of the same steps taken on weights that have this Gram."""
    steps, pop, neurons = 60, TWO.population, neurons_of_the_draws()[[0, 12, 15]]
    found = attention_only(pop, neurons, steps=steps)

    def taken(w: np.ndarray, taken: int) -> tuple[list[float], float]:
        # The infinite width's Gram omega^2 I is that of eight rows.
        WK, WQ = (np.stack([0.1 * np.eye(8)[:, at]] * 2) for at in (slice(0, 4), slice(4, 8)))
        losses = []
        for _ in range(taken + 1):
            yf = pop.label * common.forward(w, turned(WK) @ WQ, pop, 0.5)[2]
            M = common.force(w, turned(WK) @ WQ, pop, 0.5)[1]
            losses.append(float(np.log1p(np.exp(-yf)).mean()))
            WK, WQ = WK + WQ @ turned(M), WQ + WK @ M
        return losses, float((yf > 0).mean())

    kept, later = ([taken(w, n) for w in neurons] for n in (steps, steps + 1))
    return every(
        loss=equal(
            predicted=np.array([each[0] for each in kept]).T,
            measured=found.losses,
            rtol=1e-11,
            control=Control("one step later", np.array([each[0][1:] for each in later]).T),
        ),
        accuracy=equal(
            predicted=[each[1] for each in kept],
            measured=found.accuracy,
            rtol=1e-12,
            control=Control("before training", [taken(w, 0)[1] for w in neurons]),
        ),
    )


@paper.claim("App A.3 (Fig 4)", part="experiment", regime=learnable, setting=GUESSED)
def other_scores_stay_small(study) -> Measurement:
    """Of all 16 scores at K = 2 the four c_k'S v_j change most."""
    S = np.abs(flow_of(study).lift(descent(study).final)["S"][0])

    def others(block: tuple[slice, slice]) -> float:
        rest = S.copy()
        rest[block] = 0.0
        return float(rest.max() / S[block].min())

    c, v = slice(0, 2), slice(2, 4)
    return at_most(
        bound=0.6,
        measured=others((c, v)),
        control=Control("the four v_k'S c_j in their place", others((v, c))),
        note="the largest of the other scores over the least of the four",
    )


@paper.claim("App A.4 (Fig 5-7)", part="experiment", regime=learnable, setting=f"{GUESSED}, L = 3")
def more_groups_alike(study) -> Measurement:
    """With K = 3, 4 and 8 groups training is as with 2: consistent samples first, then the scores
    c_k'S v_k rise and the conflicting ones are learnt."""
    runs = [joint_of(study, K) for K in (3, 4, 8)]
    rows = [np.searchsorted(run.trajectory["time"], run.first("half 1")) for run in runs]
    waits = [run.trajectory["group_loss"].values[i] for run, i in zip(runs, rows, strict=True)]
    scores = [run.flow.score(run.states(), "c", "v") for run in runs]
    return every(
        order=at_least(
            bound=0.98,
            measured=[d[0] / np.log(2) for d in waits],
            control=Control("the consistent samples", [d[1] / np.log(2) for d in waits]),
            note="the conflicting loss over ln 2 when the consistent one has halved",
        ),
        scores=sign(
            predicted=1,
            measured=[score[-1] for score in scores],
            margin=0.5,
            control=Control("at that time", [x[i] for x, i in zip(scores, rows, strict=True)]),
        ),
    )


# --- Section 6.


@paper.claim("Observation 1 (trainable)", part="experiment", regime=learnable, setting=GUESSED)
def many_groups_are_learnt(study) -> Measurement:
    """The transformer of eq. (1) learns K >= 3 mixtures."""
    runs = [joint_of(study, K) for K in SEVERAL[1:]]
    return sign(
        predicted=1,
        measured=min(run.flow.predictions(run.final).min() for run in runs),
        margin=0.1,
        control=Control("at the start", min(run.flow.predictions(run.start).min() for run in runs)),
        note="min y f at loss .05, K = 3, 4, 6, 8",
    )


@paper.claim("Observation 1 (near symmetry)", part="experiment", regime=learnable, setting=GUESSED)
def near_symmetry_is_lost(study) -> Measurement:
    """For K >= 3 the near symmetry c_1'S v_1 = -c_1'S v_2 of K = 2 no longer holds."""

    def gap(K: int) -> float:
        run = joint_of(study, K)
        own, other = (run.flow.score(run.final, "c", "v", same) for same in (True, False))
        return abs(1 + other / own)

    return at_least(
        bound=0.4,
        measured=[gap(K) for K in (3, 4, 8)],
        control=Control("K = 2", gap(2)),
        note="|1 + c1'S v2 / c1'S v1|",
    )


@paper.claim("ours: what the near symmetry becomes for K groups", regime=learnable)
def zero_sum(study) -> Measurement:
    """What survives for any K is that the scores of a key sum to about zero over the groups,
    c_k'S v_j = -c_k'S v_k/(K-1): the sum sector stays at its size omega^2."""

    def size(sector: str) -> list[float]:
        runs = (joint_of(study, K) for K in SEVERAL)
        return [float(np.abs(run.final[sector]).max()) / study.config.omega**2 for run in runs]

    return at_most(
        bound=2.5,
        measured=size("S_sum"),
        control=Control("the difference sector", size("S_diff")),
        note=f"over omega^2, K in {SEVERAL}",
    )


def half_times(study, kind: int = -1) -> np.ndarray:
    return np.array([joint_of(study, K).first(f"half {kind}") for K in SEVERAL])


@paper.claim("Observation 1 (slower with K)", part="experiment", regime=learnable, setting=GUESSED)
def slower_with_more_groups(study) -> Measurement:
    """Training takes longer with more groups."""
    found = half_times(study)
    return monotone(
        measured=found,
        control=Control("per group beyond the first", found / np.subtract(SEVERAL, 1)),
        note="conflicting half times",
    )


@paper.claim("ours: the half time is affine in K", regime=learnable)
def affine_in_groups(study) -> Measurement:
    """The conflicting half time grows linearly in K: the slope over K = 2 to 4 is that over 4
    to 8."""
    found = half_times(study)
    return slope(
        x=SEVERAL[2:],
        y=found[2:],
        predicted=(found[2] - found[0]) / 2,
        within=0.03,
        control=Control("of the consistent samples", measured=half_times(study, 1)[2:]),
    )


@paper.claim("ours: the stages of joint training", regime=learnable)
def stages_of_joint_training(study) -> Measurement:
    """The stages begin where the first gate shuts, where attention begins to do more than half of
    the loss decrease, and where it ends; the conflicting loss halves inside the third."""
    b, omega = float(study.config.bias), float(study.config.omega)
    run = algorithm.joint(TWO, omega, b, 3000.0, loss=0.01)
    found, half, times = stages.find(run.trajectory), run.first("half -1"), run.trajectory["time"]

    def watched(times: np.ndarray) -> np.ndarray:
        """The lowest gate, and the attention's share of -dL/dt less 1/2, written out."""
        states, rows = run.states(times), []
        for w, total, diff in zip(*(states[k] for k in ("w", "S_sum", "S_diff")), strict=True):
            w, S = neurons_of(*w), both_heads(lifted(total, diff))
            dw, M = common.force(w, S, TWO.population, b)
            A, B = root(omega**4, S @ turned(S)), root(omega**4, turned(S) @ S)
            power = (M * (M @ B + A @ M)).sum()
            gate = common.forward(w, S, TWO.population, b)[1].min() + b
            rows.append([gate, power / (power + (dw**2).sum()) - 0.5])
        return np.array(rows).T

    t = times.values
    gate, q = watched(t)
    peak = int(np.argmax(q))
    after = [int(np.argmax(gate < 0)), int(np.flatnonzero(q[:peak] < 0)[-1]) + 1]
    after.append(peak + int(np.argmax(q[peak:] < 0)))
    fine = np.array([np.linspace(t[i - 1], t[i], 6) for i in after])
    crossed = watched(fine.ravel()).reshape(2, 3, 6)[[0, 1, 1], range(3)]
    edges = [
        np.interp(0, x[::way], y[::way])
        for x, y, way in zip(crossed, fine, (-1, 1, -1), strict=True)
    ]

    switches = [s["time"] for s in stages.switches(run.trajectory)[1:]]
    jumps = any(abs(time - edge) < 0.02 * edge for time in switches for edge in edges[1:])

    def holds(run: Solution, kind: int) -> bool:
        """Whether a loss halves where, by the rule, attention has its stage."""
        begins, *ends = (stage.time for stage in stages.find(run.trajectory)[2:])
        return begins <= run.first(f"half {kind}") <= (*ends, np.inf)[0]

    runs = [run, *(joint_of(study, K) for K in (3, 4, 8))]
    return every(
        begins=equal(
            predicted=edges,
            measured=[stage.time for stage in found[1:]],
            rtol=0.02 if jumps else 1e-3,  # the share jumps where a gate switches
            each=True,
            control=Control("the conflicting half time", measured=[half] * 3),
        ),
        inside=fact(
            measured=all(holds(each, -1) for each in runs),
            control=Control("of the consistent samples", any(holds(each, 1) for each in runs)),
            note="K = 2, 3, 4, 8",
        ),
    )
