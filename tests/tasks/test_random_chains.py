"""A random chain per sequence: exact laws and losses against loops over all sequences."""

from __future__ import annotations

import itertools
from collections import Counter
from math import comb

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import chisquare

from attnflow import Flow, InputError, integrate
from attnflow.tasks import RandomChains
from strategies import answer, rubbish, seeds
from tolerances import CHI_SQUARE_P, IDENTITY, SOLVED_TIGHTLY, STANDARD_ERRORS, SUM_OF_MANY


@st.composite
def laws_of_laws(draw: st.DrawFn) -> RandomChains:
    K = draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(seeds))
    alpha = {
        "number": float(rng.gamma(1.0) + 0.01),
        "row": rng.gamma(1.0, size=K) + 0.01,
        "matrix": rng.gamma(1.0, size=(K, K)) + 0.01,
    }[draw(st.sampled_from(["number", "row", "matrix"]))]
    first = rng.dirichlet(np.ones(K)) if draw(st.booleans()) else None
    return RandomChains(K, alpha, first)


lengths = st.integers(1, 5)


def transitions(sequence: tuple[int, ...], K: int) -> np.ndarray:
    counts = np.zeros((K, K), dtype=int)
    for a, b in itertools.pairwise(sequence):
        counts[a, b] += 1
    return counts


def chance(chains: RandomChains, sequence: tuple[int, ...]) -> float:
    """The Dirichlet-multinomial formula: the chain integrated out at once, not token by token."""
    alpha, n = chains.alpha, transitions(sequence, chains.tokens)
    log = gammaln(alpha.sum(1)) - gammaln((alpha + n).sum(1))
    log = log.sum() + (gammaln(alpha + n) - gammaln(alpha)).sum()
    return float(chains.first[sequence[0]] * np.exp(log))


def losses_by_loop(chains: RandomChains, length: int, mixing: float) -> dict[str, float]:
    """After `length` tokens: a plain loop over all sequences with one token more."""
    K, total = chains.tokens, Counter()
    for sequence in itertools.product(range(K), repeat=length + 1):
        *seen, label = sequence
        p, before = chance(chains, sequence), chance(chains, tuple(seen))
        followed = [0] * K
        for a, b in itertools.pairwise(seen):
            followed[b] += a == seen[-1]
        pairs = sum(followed)
        bigram = followed[label] / pairs if pairs else 1 / K
        unigram = seen.count(label) / length
        total["bayes"] -= p * np.log(p / before) if p else 0
        total["bigram"] -= p * np.log((1 - mixing) * bigram + mixing / K)
        total["unigram"] -= p * np.log((1 - mixing) * unigram + mixing / K)
        total["uniform"] += p * np.log(K)
    return dict(total)


@given(chains=laws_of_laws(), length=lengths, mixing=st.sampled_from([0.01, 0.3, 1.0]))
def test_the_losses_are_those_of_a_loop_over_all_sequences(chains, length, mixing):
    found = chains.losses(length, mixing)
    assert found["position"].values.tolist() == list(range(1, length + 1))
    for position in range(1, length + 1):
        for name, value in losses_by_loop(chains, position, mixing).items():
            row = float(found[name].sel(position=position))
            assert row == pytest.approx(value, rel=SUM_OF_MANY, abs=SUM_OF_MANY), name


@given(chains=laws_of_laws(), length=lengths)
def test_the_population_has_every_sequence_with_its_chance(chains, length):
    population = chains.population(length)
    assert len(population.tokens) == chains.tokens**length
    assert len(np.unique(population.tokens, axis=0)) == len(population.tokens)
    assert population.weights.sum() == pytest.approx(1.0, abs=10 * IDENTITY)
    for tokens, weight in zip(population.tokens.tolist(), population.weights, strict=True):
        assert weight == pytest.approx(chance(chains, tuple(tokens)), rel=SUM_OF_MANY)


@given(chains=laws_of_laws(), length=lengths)
def test_the_table_of_counts_is_the_population_merged(chains, length):
    table, K = chains.counts(length), chains.tokens
    merged: Counter = Counter()
    population = chains.population(length + 1)
    for tokens, weight in zip(population.tokens.tolist(), population.weights, strict=True):
        *seen, label = tokens
        merged[seen[-1], transitions(tuple(seen), K).tobytes(), label] += weight
    for last, counts, weights, occurs in zip(*table, table.tokens, strict=True):
        for label in range(K):
            expected = merged.pop((int(last), counts.tobytes(), label))
            assert weights[label] == pytest.approx(expected, rel=SUM_OF_MANY)
        assert occurs.sum() == length
    assert not any(merged.values())


@given(chains=laws_of_laws(), length=lengths)
def test_losses_are_ordered_and_bayes_falls(chains, length):
    found = chains.losses(length)
    for name in ("bigram", "unigram", "uniform"):
        assert np.all(found["bayes"] <= found[name] + IDENTITY)
    assert np.all(found["known"] <= found["bayes"] + IDENTITY)
    stationary = RandomChains(chains.tokens, 0.7).losses(length)["bayes"].values
    assert np.all(np.diff(stationary) < 0)  # all tokens alike: more is known with every token


@pytest.mark.parametrize("alpha", [0.2, [[0.5, 2.0], [1.0, 0.1]]])
def test_the_losses_are_those_of_sampled_sequences(alpha):
    chains, length = RandomChains(2, alpha), 12
    tokens = chains.sample(100_000, length + 1, seed=3)
    rows = np.arange(len(tokens))
    counts = np.zeros((len(tokens), 2, 2), dtype=int)
    found = chains.losses(length)["bayes"].values
    for position in range(length):
        p = chains.predictive(tokens[:, position], counts)[rows, tokens[:, position + 1]]
        error = np.log(p).std() / np.sqrt(len(p))
        assert abs(-np.log(p).mean() - found[position]) <= STANDARD_ERRORS * max(error, 1e-12)
        counts[rows, tokens[:, position], tokens[:, position + 1]] += 1


@pytest.mark.parametrize("alpha", [0.001, 0.5, [[0.5, 2.0, 1.0], [1.0, 0.1, 3.0], [2.0, 2.0, 2.0]]])
def test_sampled_sequences_follow_the_exact_law(alpha):
    chains = RandomChains(3, alpha, first=[0.5, 0.5, 0.0])
    tokens, expected = chains.population(4)
    found = chains.sample(50_000, 4, seed=5) @ 3 ** np.arange(3, -1, -1)
    counts = np.bincount(found, minlength=81)
    assert np.array_equal(tokens @ 3 ** np.arange(3, -1, -1), np.arange(81))
    often = expected * len(found) >= 5
    pooled = [*counts[often], counts[~often].sum()], [*expected[often], expected[~often].sum()]
    observed, law = (np.array(row) for row in pooled)
    keep = law > 0
    assert observed[~keep].sum() == 0
    assert chisquare(observed[keep], law[keep] * len(found)).pvalue > CHI_SQUARE_P


def test_one_who_knows_the_chain_loses_the_entropy_of_its_rows():
    chains = RandomChains(2, 1.0)
    # A uniform row (p, 1 - p): int_0^1 -2 p log p dp = 1/2.
    assert float(chains.losses(1)["known"][0]) == pytest.approx(0.5, rel=SUM_OF_MANY)
    far = chains.losses(150)
    gap = (far["bayes"] - far["known"]).values
    # One free number per row, learned from half the tokens each: the gap tends to 1 / position.
    assert gap[-1] * 150 == pytest.approx(1.0, abs=0.15)
    assert gap[-1] < gap[74] < gap[0]


def test_a_flow_on_the_exact_law_learns_the_prior():
    """Counts plus a trained pseudo-count: the flow finds alpha, and with it the Bayes loss."""
    chains, alpha = RandomChains(3, 0.4), 0.4
    table = chains.counts(7)

    def loss(theta):
        posterior = table.seen + jnp.exp(theta["log_alpha"])
        p = posterior / posterior.sum(axis=1, keepdims=True)
        return -jnp.sum(table.weights * jnp.log(p))

    solution = integrate(Flow(loss), {"log_alpha": np.array(2.0)}, until=3000.0, rtol=1e-9)
    assert np.exp(solution.final["log_alpha"]) == pytest.approx(alpha, rel=SOLVED_TIGHTLY)
    bayes = float(chains.losses(7)["bayes"][-1])
    assert solution.trajectory["loss"].values[-1] == pytest.approx(bayes, abs=1e-9)


@given(tokens=st.integers(2, 4), length=st.integers(1, 7))
def test_the_bound_on_states_is_kept(tokens, length):
    """Refused is only what may be too many: the bound is never below the states there are."""
    states = len(RandomChains(tokens).counts(length).last)
    free = tokens**2 - tokens
    bound = tokens * min(tokens ** (length - 1), tokens * comb(length - 1 + free, free))
    assert states <= bound


def test_without_mixing_an_unseen_token_costs_infinitely_much():
    found = RandomChains(2, 1.0).losses(3, mixing=0.0)
    assert np.isinf(found["bigram"].values[1:]).all()
    assert np.isfinite(found["bayes"]).all()


def test_relabelled_tokens_have_the_same_losses():
    alpha = np.array([[0.5, 2.0, 1.0], [1.0, 0.1, 3.0], [2.0, 0.3, 2.0]])
    first, turn = np.array([0.2, 0.3, 0.5]), [2, 0, 1]
    a = RandomChains(3, alpha, first).losses(6)
    b = RandomChains(3, alpha[np.ix_(turn, turn)], first[turn]).losses(6)
    for name in a:
        assert a[name].values == pytest.approx(b[name].values, rel=SUM_OF_MANY)


@pytest.mark.parametrize(
    ("field", "words", "call"),
    [
        ("tokens", "at least 2", lambda: RandomChains(1)),
        ("tokens", "at most 1,000", lambda: RandomChains(10**9)),
        ("alpha", "positive numbers", lambda: RandomChains(2, -1.0)),
        ("alpha", "shape (3,)", lambda: RandomChains(2, [1.0, 1.0, 1.0])),
        ("alpha", "NaN", lambda: RandomChains(2, np.nan)),
        ("alpha", "numbers are meant", lambda: RandomChains(2, "much")),
        ("first", "sum to 1", lambda: RandomChains(2, 1.0, first=[0.5, 0.6])),
        ("first", "3 probabilities", lambda: RandomChains(3, 1.0, first=[0.5, 0.5])),
        ("length", "at least 1", lambda: RandomChains(2).losses(0)),
        ("length", "may have 4.33e+07", lambda: RandomChains(4).counts(13)),
        ("length", "may have", lambda: RandomChains(3).losses(10**6)),
        ("length", "sequences", lambda: RandomChains(2).population(40)),
        ("mixing", "from 0 to 1", lambda: RandomChains(2).losses(2, mixing=2.0)),
        ("sequences", "at least 1", lambda: RandomChains(2).sample(0, 3)),
    ],
)
def test_bad_input_is_said_in_one_sentence(field, words, call):
    with pytest.raises(InputError, match=rf"^{field}: ") as caught:
        call()
    assert words in str(caught.value)


@given(tokens=st.one_of(rubbish, st.just(2)), alpha=st.one_of(rubbish, st.just(1.0)), first=rubbish)
def test_rubbish_is_answered_with_a_sentence(tokens, alpha, first):
    chains = answer(lambda: RandomChains(tokens, alpha, first))  # type: ignore[arg-type]
    if isinstance(chains, InputError):
        assert chains.field in ("tokens", "alpha", "first")
    else:
        assert chains.population(1).weights.sum() == pytest.approx(1.0)
