"""Lemma 5.4 and what follows it: uniform attention cannot separate, the start hardly can."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy.optimize import nnls

from attnflow.claims import Control, Measurement, equal, every, identity, order, sign
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture.claims.common import (
    CONFLICTING,
    TWO,
    both_heads,
    forward,
    second_stage,
    staged,
)
from attnflow.studies.two_mixture.margin import (
    Margin,
    largest_margin,
    signed_features,
    symmetric_features,
)
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
    n, one, none = len(label), np.ones((len(label), 1)), np.zeros_like(bags)
    heads = [np.concatenate(rows, axis=1) for rows in ((bags, none, one), (none, bags, one))]
    found = 0
    for pattern in product((0.0, 1.0), repeat=2 * n):
        on = np.array(pattern).reshape(2, n)
        right = label[:, None] * (on[0][:, None] * heads[0] - on[1][:, None] * heads[1])
        sides = [(2 * on[h] - 1)[:, None] * heads[h] for h in range(2)]
        G, h = np.concatenate([right, *sides]), np.concatenate([np.ones(n), np.zeros(2 * n)])
        target = np.zeros(G.shape[1] + 1)
        target[-1] = 1.0
        found += nnls(np.concatenate([G.T, h[None]]), target)[1] > 1e-9
    return int(found)


@paper.claim("Lemma 5.4")
def no_neurons_separate(study) -> Measurement:
    r"""Under uniform attention no neuron weights (and no bias) have $y f > 0$ on all four
    conflicting samples: each of the 256 gate patterns has a certificate of infeasibility."""
    bags, label = CONFLICTING.bags, CONFLICTING.label
    return equal(
        predicted=0,
        measured=feasible(bags, label),
        rtol=0.0,
        control=Control("without one of the samples", measured=feasible(bags[:3], label[:3])),
        note="gate patterns that some weights have",
    )


@paper.claim("Lemma 5.4", part="proof-step", setting="a proof of ours: the paper prints none")
def parallelogram(study) -> Measurement:
    """The bags of the four conflicting samples are a parallelogram with alternating labels, so the
    convex sets f > 0 and f < 0 would meet in its centre."""

    def centre(agreement: int, label: float) -> np.ndarray:
        pop = TWO.population.restricted(agreement)
        return pop.bags[pop.label == label].mean(axis=0)

    return equal(
        predicted=centre(-1, 1.0),
        measured=centre(-1, -1.0),
        rtol=1e-15,
        control=Control("the consistent samples", centre(1, 1.0), measured=centre(1, -1.0)),
    )


@paper.claim("ours: uniform attention separates at no K and L")
def bags_meet(study) -> Measurement:
    """The hulls of the two labels meet in the space of bags for every K and L (f > 0 and f < 0 are
    convex sets there), so attention is necessary in general, not only for K = 2, L = 3."""

    def reached(K: int, L: int, told: bool = False) -> float:
        """The largest margin of bag and bias; `told` adds the own signal of the group."""
        pop = MixtureClassification(K, L).population
        own = pop.label if told else np.ones(len(pop))
        return largest_margin(pop.label[:, None] * np.c_[pop.bags, own]).upper

    return equal(
        predicted=0.0,
        measured=max(reached(*pair) for pair in PAIRS),
        rtol=0.0,
        atol=1e-12,
        control=Control(
            "with the group's own signal told apart", measured=reached(2, 3, told=True)
        ),
        note=f"{len(PAIRS)} pairs (K, L)",
    )


@paper.claim("Lemma 5.4 (initial margin)")
def start_margin(study) -> Measurement:
    r"""The largest margin of the attention feature at initialisation is of order
    $\omega^2/\sqrt m$."""

    def over_m(m: int) -> float:
        return start_margins(m, SCALES[0])

    def over_omega(omega: float) -> float:
        return start_margins(WIDTHS[-2], omega)

    plain = "entries of variance omega^2"
    return every(
        dimension=order(
            "Theta",
            over=WIDTHS,
            y=over_m,
            power=-0.5,
            toward="infinity",
            control=Control(plain, measured=lambda m: start_margins(m, SCALES[0] * m**0.5)),
        ),
        scale=order(
            "Theta",
            over=SCALES,
            y=over_omega,
            power=2.0,
            tol=0.03,
            control=Control(plain, measured=lambda w: start_margins(WIDTHS[-2], 16 * w)),
        ),
    )


@paper.once
def start_margins(m: int, omega: float) -> float:
    """The mean over seeds of the largest margin at the start, all gates on."""
    models = (TwoHeadClassifier.gaussian(2, m, omega, seed=seed) for seed in SEEDS)
    features = (signed_features(TWO.population, th.w, th.scores, th.bias) for th in models)
    return float(np.mean([largest_margin(Z).upper for Z in features]))


@paper.claim("Sec 5.2 (separability)", regime=staged)
def separable_after_stage_two(study) -> Measurement:
    """After stage 2 the attention features are separable: their largest margin is positive with
    all gates on, and its direction and the dual weights certify it on both sides."""
    b, found, pop = float(study.config.bias), second_stage(study), TWO.population

    def at(share: float) -> tuple[np.ndarray, Margin]:
        """y F written out from (2), and the margin of the library's features."""
        S = both_heads(share * found.S[-1])
        p = forward(found.w, S, pop, b)[0]
        seen = np.einsum("hnkq,nka->hna", p, pop.inputs)
        Z = pop.label[:, None] * np.c_[seen[0], -seen[1], np.zeros(len(pop))]
        return Z, largest_margin(signed_features(pop, found.w, S, b))

    Z, margin = at(1.0)
    reached = float((Z @ margin.direction).min() / np.linalg.norm(margin.direction))
    short = np.abs(margin.weights) @ Z / np.abs(margin.weights).sum()
    mean = Z.mean(axis=0)
    return every(
        margin=sign(
            predicted=1,
            measured=margin.lower,
            margin=1e-3,
            control=Control("with uniform attention", at(0.0)[1].lower),
        ),
        certificate=equal(
            predicted=[reached, np.linalg.norm(short)],
            measured=[margin.upper, margin.lower],
            rtol=1e-9,
            control=Control("equal weights", [(Z @ mean).min(), np.linalg.norm(mean)]),
        ),
    )


@paper.claim("ours: three numbers carry the margin for any K")
def margin_of_symmetric_states(study) -> Measurement:
    """Of a symmetric state the largest margin is that of three numbers per orbit: along c, along v
    (opposite in the heads) and along the bias; with all gates on and with the actual ones."""

    def states(pair: tuple[int, int]):
        task = MixtureClassification(*pair)
        flow = symmetric_flow(task.orbits, 0.3, 0.5)
        state = {k: 1.5 * x for k, x in flow.start.items()}
        state |= {"S_diff": np.array([[0.3, 2.0], [-0.7, 0.4]]), "w": np.array([0.4, 0.9])}
        return task.population, flow, state

    def full(pair: tuple[int, int]) -> list[float]:
        pop, flow, state = states(pair)
        theta = flow.lift(state)
        features = [signed_features(pop, theta["w"], theta["S"], 0.5, g) for g in GATES]
        return [largest_margin(Z).value for Z in features]

    def few(pair: tuple[int, int], columns: int = 3) -> list[float]:
        _, flow, state = states(pair)
        return [
            largest_margin(symmetric_features(flow, state, g)[:, :columns]).value for g in GATES
        ]

    return identity(
        over=((2, 3), (3, 3), (4, 4)),
        predicted=few,
        measured=full,
        rtol=1e-8,
        control=Control("without the bias", lambda pair: few(pair, columns=2)),
    )


GATES = ("all_on", "actual")
