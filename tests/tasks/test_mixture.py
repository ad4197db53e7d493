"""Mixture of linear classification: the exact law, its orbits, its sampler, bad input."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from attnflow import InputError
from attnflow.tasks import MixtureClassification
from tolerances import CHI_SQUARE_P, IDENTITY

COUNTS = {
    (2, 3): (8, 2),
    (2, 4): (12, 3),
    (3, 3): (24, 2),
    (3, 4): (60, 6),
    (4, 4): (168, 6),
    (4, 5): (448, 14),
    (8, 3): (224, 2),
    (8, 4): (1680, 6),
    (8, 5): (8960, 14),
}


def by_brute_force(K, L):
    """Every ordered draw of Def. 2.1 as a multiset of signed tokens, with its probability."""
    law = {}
    kinds = [(g, s) for g in range(K) for s in (1, -1)]
    for k, y in product(range(K), (1, -1)):
        others = [kind for kind in kinds if kind[0] != k]
        for draw in product(others, repeat=L - 2):
            key = (k, y, tuple(sorted(draw)))
            law[key] = law.get(key, 0.0) + 1 / (2 * K * len(others) ** (L - 2))
    return law


def keys(population):
    K = population.groups
    out = []
    for t, s in zip(population.token, population.sign, strict=True):
        rest = sorted(zip((t[2:] - K).tolist(), s[2:].astype(int).tolist(), strict=True))
        out.append((int(t[0]), int(s[1]), tuple(rest)))
    return out


@pytest.mark.parametrize(("K", "L"), [(2, 3), (2, 5), (3, 4), (4, 3)])
def test_the_population_is_the_law_of_the_definition(K, L):
    population, law = MixtureClassification(K, L).population, by_brute_force(K, L)
    assert len(set(keys(population))) == len(population) == len(law)
    for key, weight in zip(keys(population), population.weight, strict=True):
        assert weight == pytest.approx(law[key], abs=IDENTITY)


@pytest.mark.parametrize(("size", "counts"), COUNTS.items())
def test_counts_of_samples_and_orbits(size, counts):
    task = MixtureClassification(*size)
    assert (task.count, len(task.population), len(task.orbits)) == (counts[0], *counts)


def test_orbits_of_a_list_that_does_not_fit():
    task = MixtureClassification(8, 9)
    assert (task.count, len(task.orbits)) == (1_240_320, 298)
    with pytest.raises(InputError, match=r"1,240,320 distinct samples.*orbits.*sample"):
        _ = task.population


@given(st.integers(2, 5), st.integers(3, 6))
def test_weights_and_agreements(K, L):
    task = MixtureClassification(K, L)
    for population in (task.population, task.orbits):
        assert population.weight.sum() == pytest.approx(1, abs=IDENTITY)
        assert (population.token[:, 0] + K == population.token[:, 1]).all()
        assert (population.sign[:, 1] == population.label).all()
        d = population.label * population.sign[:, 2:].sum(axis=1)
        assert (population.agreement == d).all()
        assert population.agreements == list(range(-(L - 2), L - 1, 2))
        same = population.token[:, 2:] == population.token[:, 1:2]
        assert not same.any()


@given(st.integers(2, 4), st.integers(3, 5), st.integers(0, 2**32 - 1))
def test_orbits_carry_the_mean_of_every_symmetric_function(K, L, seed):
    # A random function of what relabelling and the sign flip leave alone.
    task, table = MixtureClassification(K, L), {}
    rng = np.random.default_rng(seed)

    def invariant(population):
        out = []
        for t, s, y in zip(population.token, population.sign, population.label, strict=True):
            pairs = [(tuple(y * s[t == v])) for v in range(K, 2 * K) if v != t[1]]
            key = tuple(sorted(tuple(sorted(pair)) for pair in pairs))
            out.append(table.setdefault(key, rng.standard_normal()))
        return np.array(out)

    full, orbits = task.population, task.orbits
    values = invariant(full)
    assert len(table) == len(orbits)
    assert orbits.weight @ invariant(orbits) == pytest.approx(full.weight @ values, abs=1e-13)


@pytest.mark.parametrize(("K", "L"), [(2, 3), (3, 4)])
def test_the_sampler_draws_the_population(K, L):
    task = MixtureClassification(K, L)
    drawn = task.sample(20_000, seed=1)
    assert drawn == task.sample(20_000, seed=1)
    assert drawn != task.sample(20_000, seed=2)
    merged = drawn.distinct()
    found = dict(zip(keys(merged), merged.weight, strict=True))
    expected = task.population.weight * 20_000
    counts = np.array([found[key] for key in keys(task.population)]) * 20_000
    assert chisquare(counts, expected).pvalue > CHI_SQUARE_P


def test_a_wrong_sampler_would_be_noticed():
    task = MixtureClassification(3, 4)
    counts = task.sample(20_000, seed=1).distinct().weight * 20_000
    uniform = np.full(len(counts), counts.mean())
    assert chisquare(counts, uniform).pvalue < CHI_SQUARE_P


def test_restricting_and_reweighting():
    population = MixtureClassification(2, 3).population
    conflicting = population.restricted(agreement=-1)
    assert conflicting.names() == ["c1 +v1 -v2", "c1 -v1 +v2", "c2 +v2 -v1", "c2 -v2 +v1"]
    assert conflicting.weight.tolist() == [0.25] * 4
    assert conflicting == population.restricted(where=population.agreement < 0)
    assert hash(conflicting) == hash(population.restricted(agreement=[-1]))
    again = population.reweighted(np.where(population.agreement < 0, 3.0, 1.0))
    assert again.weight @ (population.agreement < 0) == pytest.approx(0.75)
    assert again != population
    both = MixtureClassification(4, 5).population.restricted(agreement=[-3, -1])
    assert both.agreements == [-3, -1]
    assert both.weight.sum() == pytest.approx(1)


def test_inputs_and_bags():
    population = MixtureClassification(2, 3).population
    assert population.inputs.shape == (8, 3, 4)
    assert population.bags[1].tolist() == [1, 0, 1, -1]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: MixtureClassification(groups=1), "groups"),
        (lambda: MixtureClassification(groups=2.5), "groups"),
        (lambda: MixtureClassification(length=2), "length"),
        (lambda: MixtureClassification().sample(0), "samples"),
        (lambda: MixtureClassification().population.restricted(agreement=0), "agreement"),
        (lambda: MixtureClassification().population.restricted(), "agreement"),
        (lambda: MixtureClassification().population.restricted(where=[True]), "where"),
        (lambda: MixtureClassification().population.reweighted(np.zeros(8)), "weight"),
        (lambda: MixtureClassification().population.reweighted([1.0]), "weight"),
        (lambda: MixtureClassification(40, 60).orbits, "length"),
    ],
)
def test_bad_input_is_one_sentence(make, field):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
