"""Lemma 5.4 and what follows it: uniform attention cannot separate, the start hardly can."""

from __future__ import annotations

import functools
from itertools import product

import numpy as np
from scipy.optimize import nnls

from attnflow.claims import Measurement, claim, equal, every, exponent, fact, positive
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.studies.two_mixture.claims.common import CONFLICTING, STUDY, TWO, said, staged
from attnflow.studies.two_mixture.margin import largest_margin, signed_features
from attnflow.tasks.mixture import MixtureClassification

PAIRS = ((2, 3), (3, 3), (4, 3), (8, 3), (2, 4), (3, 4), (4, 4), (2, 5), (3, 5))
"""(K, L) at which the bags are looked at."""

WIDTHS, SCALES, SEEDS = (16, 64, 256, 1024), (0.1, 0.3, 1.0), range(12)
"""Starts whose margin is measured."""

EXACT = 1e-9
"""Residual of a Farkas certificate whose right-hand side is 1."""


def certificates(plus: np.ndarray, minus: np.ndarray, label: np.ndarray) -> list[float]:
    """For each gate pattern, how far Farkas' certificate of infeasibility is from exact.

    Unknown are w_+, w_-, b with `y f >= 1`, `H + b >= 0` where the pattern says on and `<= 0`
    where it says off. `G x >= h` has no solution exactly when some `lam >= 0` has
    `lam G = 0, lam h = 1`: a non-negative least-squares problem whose residual is then 0.
    """
    n = len(label)
    heads = [
        np.concatenate([plus, np.zeros_like(minus), np.ones((n, 1))], axis=1),
        np.concatenate([np.zeros_like(plus), minus, np.ones((n, 1))], axis=1),
    ]
    residuals = []
    for pattern in product((0.0, 1.0), repeat=2 * n):
        on = np.array(pattern).reshape(2, n)
        right = label[:, None] * (on[0][:, None] * heads[0] - on[1][:, None] * heads[1])
        sides = [(2 * on[h] - 1)[:, None] * heads[h] for h in range(2)]
        G, h = np.concatenate([right, *sides]), np.concatenate([np.ones(n), np.zeros(2 * n)])
        target = np.zeros(G.shape[1] + 1)
        target[-1] = 1.0
        residuals.append(float(nnls(np.concatenate([G.T, h[None]]), target)[1]))
    return residuals


@functools.cache
def uniform_certificates() -> tuple[float, ...]:
    bags = CONFLICTING.bags
    return tuple(certificates(bags, bags, CONFLICTING.label))


@claim("Lemma 5.4", study=STUDY)
def no_neurons_separate(study) -> Measurement:
    """Under uniform attention no neuron weights (and no bias) have y f > 0 on all four conflicting
    samples: every one of the 256 gate patterns has a certificate of infeasibility."""
    found = uniform_certificates()
    solved = sum(r > EXACT for r in found)
    three = certificates(CONFLICTING.bags[:3], CONFLICTING.bags[:3], CONFLICTING.label[:3])
    return fact(
        solved == 0,
        control=all(r <= EXACT for r in three),
        sentence=f"{solved} of {len(found)} gate patterns are feasible; largest residual of a "
        f"certificate {max(found):.1e}; without one sample {sum(r > EXACT for r in three)} of "
        f"{len(three)} are",
    )


@claim("Lemma 5.4", part="proof-step", study=STUDY)
def parallelogram(study) -> Measurement:
    """The bags of the four conflicting samples are a parallelogram with alternating labels, so the
    convex sets f > 0 and f < 0 would meet in its centre (our short proof)."""
    label = CONFLICTING.label
    centre = np.stack([CONFLICTING.bags[label == y].mean(axis=0) for y in (1.0, -1.0)])
    moved = CONFLICTING.bags + 0.1 * (CONFLICTING.token[:, :1] == 0) * label[:, None]
    other = moved[label > 0].mean(axis=0)
    return equal(centre[0], centre[1], atol=1e-15, rtol=0.0, control=other)


@claim("ours: uniform attention separates at no K and L", study=STUDY)
def bags_meet(study) -> Measurement:
    """The hulls of the two labels meet in the space of bags for every K and L (f > 0 and f < 0 are
    convex sets there), so attention is necessary in general, not only for K = 2, L = 3."""
    worst = max(_bag_margin(K, L) for K, L in PAIRS)
    # A bag that also tells the group's own signal apart is separable at once.
    population = TWO.population
    told = np.concatenate([population.bags, population.label[:, None]], axis=1)
    told = largest_margin(population.label[:, None] * told).value
    return equal(
        0.0, worst, rtol=0.0, atol=1e-8, control_measured=told, note=f"{len(PAIRS)} pairs (K, L)"
    )


@functools.cache
def _bag_margin(groups: int, length: int) -> float:
    population = MixtureClassification(groups, length).population
    Z = np.concatenate([population.bags, np.ones((len(population), 1))], axis=1)
    return largest_margin(population.label[:, None] * Z).upper


@functools.cache
def start_margins() -> dict[tuple[int, float], float]:
    """The mean over seeds of the largest margin at the start, all gates on."""
    found = {}
    for m, omega in product(WIDTHS, SCALES):
        if m != WIDTHS[-2] and omega != SCALES[0]:
            continue
        values = []
        for seed in SEEDS:
            model = TwoHeadClassifier.gaussian(2, m, omega, seed=seed)
            Z = signed_features(TWO.population, model.w, model.scores, model.bias)
            values.append(largest_margin(Z).upper)
        found[m, omega] = float(np.mean(values))
    return found


@claim("Lemma 5.4 (initial margin)", expected="consistent", study=STUDY)
def start_margin(study) -> Measurement:
    """The largest margin of the attention feature at initialisation is of order
    omega^2 / sqrt(m)."""
    known = start_margins()
    over_m = [known[m, SCALES[0]] for m in WIDTHS]
    over_omega = [known[WIDTHS[-2], s] for s in SCALES]
    return every(
        dimension=exponent(WIDTHS, over_m, -0.5, tol=0.15, control=-1.0),
        scale=exponent(SCALES, over_omega, 2.0, tol=0.05, control=1.0),
    )


@claim("Sec 5.2 (separability)", **said(staged))
def separable_after_stage_two(study) -> Measurement:
    """After stage 2 the attention features are separable: their largest margin is positive with
    all gates on, and u and the dual weights certify it on both sides."""
    c, found = study.config, second_stage(study)
    S = np.stack([found.S[-1], MIRRORED * found.S[-1]])
    end = largest_margin(signed_features(TWO.population, found.w, S, c.bias))
    start = largest_margin(signed_features(TWO.population, found.w, 0 * S, c.bias))
    return every(
        margin=positive(end.lower, margin=1e-3, control=start.lower),
        certificate=equal(end.upper, end.lower, rtol=1e-9, control=1.01 * end.upper),
    )


MIRRORED = np.kron(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.ones((2, 2)))
