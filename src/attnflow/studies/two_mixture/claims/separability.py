"""Lemma 5.4 and what follows it: uniform attention cannot separate, the start hardly can."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import nnls

from attnflow.claims import Control, Measurement, equal, every, identity, order, sign
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import CONFLICTING, TWO
from attnflow.studies.two_mixture.margin import largest_margin, signed_features, symmetric_features
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification

PAIRS = ((2, 3), (3, 3), (4, 3), (8, 3), (2, 4), (3, 4), (4, 4), (2, 5), (3, 5))
"""(K, L) at which the bags are looked at."""

WIDTHS, SCALES, SEEDS = (16, 64, 256, 1024), (0.1, 0.3, 1.0), range(12)
"""Starts whose margin is measured."""


def feasible(bags: np.ndarray, label: np.ndarray) -> int:
    """How many gate patterns have w_+, w_-, b with `y f >= 1` and these gates.

    `G x >= h` has no solution exactly when some `lam >= 0` has `lam G = 0, lam h = 1` (Farkas): a
    non-negative least-squares problem whose residual is then 0.
    """
    n, one, none, found = len(label), np.ones((len(label), 1)), np.zeros_like(bags), 0
    heads = [np.concatenate(rows, axis=1) for rows in ((bags, none, one), (none, bags, one))]
    for pattern in product((0.0, 1.0), repeat=2 * n):
        on = np.array(pattern).reshape(2, n, 1)
        right = label[:, None] * (on[0] * heads[0] - on[1] * heads[1])
        G = np.concatenate([right, *((2 * on[h] - 1) * heads[h] for h in range(2))])
        rows = np.concatenate([G.T, np.r_[np.ones(n), np.zeros(2 * n)][None]])
        found += nnls(rows, np.r_[np.zeros(len(rows) - 1), 1.0])[1] > 1e-9
    return int(found)


@paper.claim("Lemma 5.4")
def no_neurons_separate(study) -> Measurement:
    r"""Under uniform attention no neuron weights (and no bias) have $y f > 0$ on all four
    conflicting samples: each of the 256 gate patterns has a certificate of infeasibility."""
    bags, label = CONFLICTING.bags, CONFLICTING.label
    three = Control("without one of the samples", measured=feasible(bags[:3], label[:3]))
    return equal(predicted=0, measured=feasible(bags, label), rtol=0.0, control=three)


@paper.claim("Lemma 5.4", part="proof-step", setting="a proof of ours: the paper prints none")
def parallelogram(study) -> Measurement:
    """The bags of the four conflicting samples are a parallelogram with alternating labels, so the
    convex sets f > 0 and f < 0 would meet in its centre."""

    def centres(agreement: int) -> list[np.ndarray]:
        pop = TWO.population.restricted(agreement)
        return [pop.bags[pop.label == label].mean(axis=0) for label in (1.0, -1.0)]

    (plus, minus), (easy, other) = centres(-1), centres(1)
    consistent = Control("the consistent samples", easy, measured=other)
    return equal(predicted=plus, measured=minus, rtol=1e-15, control=consistent)


@paper.claim("ours: uniform attention separates at no K and L")
def bags_meet(study) -> Measurement:
    """The hulls of the two labels meet in the space of bags for every K and L (f > 0 and f < 0 are
    convex sets there), so attention is necessary in general, not only for K = 2, L = 3."""

    def reached(K: int, L: int, told: bool = False) -> float:
        """The largest margin of bag and bias; `told` adds the own signal of the group."""
        pop = MixtureClassification(K, L).population
        own = pop.label if told else np.ones(len(pop))
        return largest_margin(pop.label[:, None] * np.c_[pop.bags, own]).upper

    told = Control("with the group's own signal told apart", measured=reached(2, 3, told=True))
    worst = max(reached(*pair) for pair in PAIRS)
    return equal(predicted=0.0, measured=worst, rtol=0.0, atol=1e-12, control=told)


@paper.claim("Lemma 5.4 (initial margin)")
def start_margin(study) -> Measurement:
    r"""The largest margin of the attention feature at initialisation is of order
    $\omega^2/\sqrt m$."""
    over_m, over_omega = (lambda m: start_margins(m, 0.1)), (lambda w: start_margins(256, w))
    plain = "entries of variance omega^2"
    grown = Control(plain, measured=lambda m: start_margins(m, 0.1 * m**0.5))
    large = Control(plain, measured=lambda w: start_margins(256, 16 * w))
    infinity = {"power": -0.5, "toward": "infinity"}
    return every(
        dimension=order("Theta", over=WIDTHS, y=over_m, control=grown, **infinity),  # type: ignore[arg-type]
        scale=order("Theta", over=SCALES, y=over_omega, power=2.0, tol=0.03, control=large),
    )


@paper.once
def start_margins(m: int, omega: float) -> float:
    """The mean over seeds of the largest margin at the start, all gates on."""
    models = (TwoHeadClassifier.gaussian(2, m, omega, seed=seed) for seed in SEEDS)
    features = (signed_features(TWO.population, th.w, th.scores, th.bias) for th in models)
    return float(np.mean([largest_margin(Z).upper for Z in features]))


@paper.claim("Sec 5.2 (separability)", regime=common.staged)
def separable_after_stage_two(study) -> Measurement:
    """After stage 2 the attention features are separable: their largest margin is positive with
    all gates on, and its direction and the dual weights certify it on both sides."""
    b, run, pop = float(study.config.bias), common.second_stage(study), TWO.population
    S = common.both_heads(run.S[-1])
    margin, start = (largest_margin(signed_features(pop, run.w, x, b)) for x in (S, 0 * S))
    # y F written out from (2); the last entry is the bias's.
    seen = np.einsum("hnkq,nka->hna", common.forward(run.w, S, pop, b)[0], pop.inputs)
    Z = pop.label[:, None] * np.c_[seen[0], -seen[1], np.zeros(len(pop))]
    u, dual, mean = margin.direction, np.abs(margin.weights), Z.mean(axis=0)
    sides = [(Z @ u).min() / np.linalg.norm(u), np.linalg.norm(dual @ Z) / dual.sum()]
    uniform = Control("with uniform attention", start.lower)
    equally = Control("equal weights", [(Z @ mean).min(), np.linalg.norm(mean)])
    found = [margin.upper, margin.lower]
    return every(
        margin=sign(predicted=1, measured=margin.lower, margin=1e-3, control=uniform),
        certificate=equal(predicted=sides, measured=found, rtol=1e-10, control=equally),
    )


@paper.claim("ours: three numbers carry the margin for any K")
def margin_of_symmetric_states(study) -> Measurement:
    """Of a symmetric state the largest margin is that of three numbers per orbit: along c, along v
    (opposite in the heads) and along the bias; with all gates on and with the actual ones."""
    S = {"S_sum": np.zeros((2, 2)), "S_diff": np.array([[0.3, 2.0], [-0.7, 0.4]])}
    state, gates = S | {"w": np.array([0.4, 0.9])}, ("all_on", "actual")

    def full(pair: tuple[int, int]) -> list[float]:
        task = MixtureClassification(*pair)
        theta = symmetric_flow(task.orbits, 0.3, 0.5).lift(state)
        w, S, pop = theta["w"], theta["S"], task.population
        features = (signed_features(pop, w, S, 0.5, g) for g in gates)
        return [largest_margin(Z).value for Z in features]

    def few(pair: tuple[int, int], columns: int = 3) -> list[float]:
        flow = symmetric_flow(MixtureClassification(*pair).orbits, 0.3, 0.5)
        features = (symmetric_features(flow, state, g)[:, :columns] for g in gates)
        return [largest_margin(Z).value for Z in features]

    pairs, bare = ((2, 3), (3, 3), (4, 4)), Control("without the bias", lambda pair: few(pair, 2))
    return identity(over=pairs, predicted=few, measured=full, rtol=1e-11, control=bare)
