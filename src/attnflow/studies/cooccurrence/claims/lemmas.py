"""Section 4: how the two phases come about."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    always,
    at_least,
    at_most,
    equal,
    every,
    sign,
)
from attnflow.flows.sinks import Event
from attnflow.models.value_mlp import weight_flow
from attnflow.studies.cooccurrence import stages
from attnflow.studies.cooccurrence.claims.common import (
    Run,
    condition_1,
    declared,
    each,
    in_regime,
    inside,
    phase_1,
    phase_2,
    through,
)
from attnflow.studies.cooccurrence.claims.scaling import (
    SETTING,
    WIDTHS,
    Over,
    Quantity,
    Record,
    at_start,
    few,
    largest,
    power,
    starts,
)
from attnflow.studies.cooccurrence.observables import gradient_ratio
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import WordCooccurrence

late = partial(declared, __name__, phase_2)

FIRST = {"regime": condition_1, "setting": "t = 0, n = 36, L = 4, m = 1024 to 16384, k0 = 0.01"}


# --- The first rates, by the flow of all weights.


@paper.once
def first_rates(study: Any, dim: int, seed: int, neurons: int = 16) -> np.ndarray:
    """`d(a_j w_j WV mu)/dt` at a start: neuron x relevant word."""
    ready = few(study, dim=dim, neurons=neurons, k0=0.01, seed=seed)
    c = ready.config
    th = ready.initialisation.model(c.words, c.dim, c.neurons, c.seed)
    moved = weight_flow(ready.sentences, c.dim).velocity(th)
    return (th.a[:, None] * (moved.W @ th.WV + th.W @ moved.WV))[:, :3]


def all_starts(study: Any) -> list[tuple[Record, np.ndarray]]:
    return [
        (at_start(study, m, k0=0.01, seed=seed), first_rates(study, m, seed))
        for m in WIDTHS[1:]
        for seed in starts(study)
    ]


@paper.claim("Lemma 4.1", **FIRST)
def first_rate_of_targets(study) -> Measurement:
    r"""At the start $\frac{\partial a_jw_j^\top W_V\mu}{\partial t} = \Theta((\sigma_0^2 +
    \sigma_1^2)m)$ for both targets and every neuron, where $m$ is well above $m_1$."""
    over = Over(all_starts, lambda s: s[0].dim)  # type: ignore[arg-type]

    def ratio(of: Any, width: int = 0) -> Quantity:
        return lambda s: of(s[1][:, :2]) / s[0].scale * s[0].dim ** float(width)  # type: ignore

    squared = ("in units of the squared width", ratio(np.min, -1))
    without = ("without the width in the scale", ratio(np.max, 1))
    task, widest = few(study).task, all_starts(study)[-1]
    return every(
        slowest=power("Omega", 0.0, ratio(np.min), squared, 0.15, over)(study),
        fastest=power("O", 0.0, ratio(np.max), without, 0.15, over)(study),
        constant=equal(
            predicted=1 / 6,
            measured=float(widest[1][:, :2].mean()) / widest[0].scale,
            rtol=0.05,
            control=Control("as if g(0) = 1", float(task.law[0] - task.law[1])),
        ),
    )


@paper.claim("ours: neurons against the width", regime=condition_1)
@against(
    "m = 64, m1 = 1024",
    at_least,
    bound=1.0,
    note="fraction of neurons whose first rate is positive",
)
def neurons_against_the_width(study, right: bool):
    r"""Lemma 4.1 for every neuron needs $m \gg m_1$: with more neurons than dimensions some start
    in the wrong direction."""
    m, m1 = (1024, 16) if right else (64, 1024)
    return float((first_rates(study, m, study.config.seed, m1)[:, :2] > 0).mean())


@paper.claim("Lemma 4.2", **FIRST)
@against("a target", at_most, bound=0.3)
def first_rate_of_the_common_word(study, right: bool):
    r"""$\frac{\partial a_jw_j^\top W_V\mu_3}{\partial t} = \tilde O(\sigma_1^2\sqrt{mm_1} +
    \sigma_0^2\sqrt{mL} + \sigma_1^2mF)$ at the start, with $F = \max_i|F_i^{(0)}|$: the
    largest over neurons stays within a factor of that at every width."""

    def size(r: Record) -> float:
        small = r.s1**2 * np.sqrt(r.dim * r.m1) + r.s0**2 * np.sqrt(r.dim * r.L)
        return small + r.s1**2 * r.dim * largest(r.margin[0])

    return [largest(rate[:, 2 if right else 0]) / size(r) for r, rate in all_starts(study)]


# --- Ratios of rates.


def slacks(run: Run) -> np.ndarray:
    """What is left of the two inequalities of Lemma 4.3, relative: the smaller C of each row."""
    rate = run["value_rate"]
    fall, rise = -rate[:, 2], rate[:, :2]
    return np.minimum(fall / rise.max(axis=1) - 1, 1 - fall / rise.sum(axis=1))


def random_slack(run: Run) -> np.ndarray:
    """The lower one with the fall of an irrelevant word in place of the common word's."""
    fall = -np.gradient(run["value"], run.tau / run.unit, axis=0)[:, 3]
    return fall / run["value_rate"][:, :2].max(axis=1) - 1


RANDOM = ("an irrelevant word for the common one", random_slack)


@paper.claim("Lemma 4.3", regime=phase_1)
def rates_late_in_phase_1(study) -> Measurement:
    r"""From some $T_{0.5} \le T_1$ on, $(1+C)\max(\dot G(\mu_1), \dot G(\mu_2)) \le -\dot G(\mu_3)
    \le (1-C)(\dot G(\mu_1) + \dot G(\mu_2))$ with a constant $C$, up to $T_1$."""
    run = in_regime(study)
    since = (run.times["t05"] + run.T1) / 2
    return always(
        times=run.tau,
        measured=slacks(run),
        after=since,
        until=run.T1,
        at_least=0.1,
        control=Control(RANDOM[0], random_slack(run)),
        note=f"from tau = {since:.3g} to T1 = {run.T1:.3g}; T0.5 = {run.times['t05']:.3g}",
    )


@paper.claim("ours: times and stages", regime=phase_1)
def times_and_stages(study) -> Measurement:
    r"""Before $T_{0.5}$ the common word falls more slowly than the targets rise, after it faster:
    the last zero of $-\dot G(\mu_3) - \max\dot G$ is a sign change of the recorded rates; the other
    times are those of the recorded margins and values."""
    run = in_regime(study)
    rate, (G1, G2, G3) = run["value_rate"], run["value"][:, :3].T
    series = {
        "t05": -rate[:, 2] - rate[:, :2].max(axis=1),
        "t1": run["class_margin"].min(axis=1),
        "t1_all": run["worst_margin"],
        "t1_g": np.min([G1 + G2 + G3, -G1 - G3, -G2 - G3, -G3], axis=0),
    }

    def crossing(values: np.ndarray) -> float:
        """The last sign change of a series, between its rows."""
        at = np.flatnonzero(np.diff(values > 0))
        if not len(at):
            return 0.0
        i = at[-1]
        share = values[i] / (values[i] - values[i + 1])
        return float(run.tau[i] + share * (run.tau[i + 1] - run.tau[i]))

    found = [crossing(values) for values in series.values()]
    half, one, each_sample, _ = found
    nothing = few(study, mode="scalar", until=1.0).times()
    events = [Event("t05", 0.32, 1), Event("t1", 0.58, 1), Event("t1_all", 0.7, 1)]

    def steps(rate: float) -> list[float]:
        return [*nothing.values(), *(s.step or 0 for s in stages.find(events, 1.0, rate))]

    early = [half] if 0 < half < one else []  # a start may fall faster by chance
    names = ["phase 1", *["common word"] * len(early), "phase 2"]
    return every(
        times=equal(
            predicted=[run.times[name] for name in series],
            measured=found,
            rtol=3e-3,
            control=Control(
                "all samples for class means", measured=[half, each_sample, *found[2:]]
            ),
        ),
        stages=equal(
            predicted=[run.stages[name] for name in names],
            measured=[0.0, *early, one],
            rtol=3e-3,
            control=Control("from all samples on", measured=[0.0, *early, each_sample]),
        ),
        steps=equal(
            predicted=steps(0.1),
            measured=[0, 0, 0, 0, 0, 3, 6],
            rtol=0.0,
            control=Control("a tenfold rate", steps(1.0)),
            note="nothing is crossed before tau = 1; steps of descent at the rate .1",
        ),
    )


@paper.claim("Sec 4.1 (single targets)", regime=phase_1, setting="infinite width, F(0) = 0")
@against("samples with both targets", at_least, bound=1.02, note="largest loss over the first")
def single_targets_first(study, right: bool):
    """In phase 1 the loss of samples with one target rises before it falls, that of samples with
    both falls. (A start with outputs of order one can hide it.)"""
    rows = inside(study).at(mode="infinite-width", until=30.0).solution.trajectory
    losses = rows["class_loss"].values
    return (losses.max(axis=0) / losses[0])[slice(1, 3) if right else slice(1)]


def gap(one: int, two: int) -> Any:
    """The difference of two classes' gradients over the smaller."""

    def of(run: Run) -> np.ndarray:
        S = run["gradient_sum"]
        return np.abs(S[:, one] - S[:, two]) / np.minimum(S[:, one], S[:, two])

    return of


def gap_shares(run: Run) -> np.ndarray:
    """The smaller of the two gaps of Lemma 4.5, over all gradients."""
    S = run["gradient_sum"]
    gaps = np.minimum(S[:, 1:].sum(axis=1) - S[:, 0], S[:, 0] - S[:, 1])
    return gaps / S.sum(axis=1)


BALANCE = (
    late(
        "Lemma 4.4",
        r"""$|\sum_{I_2}g_i - \sum_{I_3}g_i| / \min(\sum_{I_2}g_i, \sum_{I_3}g_i) \le C \ll 1$ in
        phase 2.""",
        through(gap(1, 2), ("both targets against one", gap(0, 1)), at_most=0.25),
    ),
    late(
        "Lemma 4.5",
        r"""$\frac{\sum_i g_i}{\sum_{I_2\cup I_3\cup I_4}g_i - \sum_{I_1}g_i}$ and
        $\frac{\sum_i g_i}{\sum_{I_1}g_i - \sum_{I_2}g_i}$ are $O(1)$ in phase 2, at most 10; with
        many samples they tend to 17/3 and 17/2.""",
        through(
            gap_shares,
            (
                "the first class against all",
                lambda run: 2 * run["gradient_sum"][:, 0] / run["gradient_sum"].sum(axis=1) - 1,
            ),
            at_least=0.1,
        ),
    ),
    late(
        "Lemma 4.5 (rates)",
        r"""$(1+C)\max(\dot G(\mu_1), \dot G(\mu_2)) \le -\dot G(\mu_3) \le (1-C)(\dot G(\mu_1) +
        \dot G(\mu_2))$ in phase 2, with $C = .1$.""",
        through(slacks, RANDOM, at_least=0.1),
    ),
)


@paper.claim("Lemma 4.5 (proof sketch)", part="proof-step", regime=phase_2)
def ratio_of_rates(study) -> Measurement:
    r"""$-\dot G(\mu_3)/\dot G(\mu_1) \approx R = \frac{\sum_{I_2\cup I_3\cup I_4}g_i -
    \sum_{I_1}g_i}{\sum_{I_1}g_i - \sum_{I_2}g_i}$ in phase 2."""
    run = in_regime(study)
    rate, S = run["value_rate"][run.second], run["gradient_sum"][run.second]
    moved = -rate[:, 2] / rate[:, :2].max(axis=1)
    other = S[:, 1:].sum(axis=1) / S[:, 0]
    sums = {k: np.random.default_rng(k).random((3, 2**k)) for k in (1, 2, 3)}

    def by_hand(k: int, row: np.ndarray, first: int = 0) -> float:
        """(sum of all - 2 S_full) / max_j (S_full - sum of S_A over the other A that contain j)."""
        classes = [c for n in range(k, -1, -1) for c in combinations(range(k), n)]
        rest = [sum(s for s, c in zip(row, classes, strict=True) if j in c) for j in range(k)]
        return (row.sum() - 2 * row[first]) / max(2 * row[first] - x for x in rest)

    def each_k(of: Any) -> list[float]:
        return [of(k, row) for k, rows in sums.items() for row in rows]

    return every(
        rates=at_most(
            bound=0.03,
            measured=np.abs(inside(study).ratio(run.rows)[run.second] / moved - 1),
            control=Control("negative over positive gradients", np.abs(other / moved - 1)),
        ),
        targets=equal(
            predicted=np.concatenate(
                [gradient_ratio(x, WordCooccurrence(5, targets=k)) for k, x in sums.items()]
            ),
            measured=each_k(by_hand),
            rtol=1e-12,
            each=True,
            control=Control("with the second class", measured=each_k(partial(by_hand, first=1))),
            note="1 to 3 targets, random gradients",
        ),
    )


@paper.claim("Cor 4.6", regime=phase_2)
def value_correlation_rates(study) -> Measurement:
    r"""$\frac{\partial}{\partial t}\mu_2^\top W_V^\top W_V\mu_1 > 0$ and
    $\frac{\partial}{\partial t}\mu_1^\top W_V^\top W_V\mu_3 < 0$ in phase 2."""
    run = in_regime(study)
    V, t = run["value_correlation"][run.second], run.tau[run.second]

    def rates(i: int, j: int) -> np.ndarray:
        return np.diff(V[:, i, j]) / np.diff(t)

    mixed = Control("a target and the common word", rates(1, 2))
    itself = Control("the common word with itself", rates(2, 2))
    return every(
        targets=sign(predicted=1.0, measured=rates(1, 0), control=mixed),
        common=sign(predicted=-1.0, measured=rates(0, 2), control=itself),
    )


def score_constant(key: int, way: float, half: float = 0.5) -> Quantity:
    """`dS/dt` of a word and the first target at the end over `loss s0^2 m / (sqrt m L)`."""

    def of(r: Record) -> float:
        rate = (r.S[-1, key, 0] - r.S[-2, key, 0]) / (r.t[-1] - r.t[-2])
        loss = (r.loss[-1] + r.loss[-2]) / 2
        return float(way * rate * r.dim**half * r.L / (loss * r.s0**2 * r.dim))

    return of


def flat(key: int, way: float) -> Any:
    other = ("without the square root of m", score_constant(key, way, half=0.0))
    return power("Theta", 0.0, score_constant(key, way), other, 0.1)


SCORES = (
    late(
        "Lemma 4.7",
        r"""$\frac{\partial}{\partial t}\nu^\top W_K^\top W_Q\mu = \frac{1}{\sqrt m}
        \tilde\Theta(\hat L\sigma_0^2m)\frac 1L$ for the two targets, and minus that for the common
        word's key: the constant does not depend on the width (it grows with the log of time).""",
        each(targets=flat(1, 1.0), common=flat(2, -1.0)),
        setting=SETTING,
    ),
)
