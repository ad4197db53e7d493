"""Tables of contexts: exact by enumeration of all sequences, and a sample compressed exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from attnflow._errors import InputError
from attnflow.tasks import Contexts, MarkovChain
from strategies import chains
from tolerances import CHI_SQUARE_P, IDENTITY, SUM_OF_MANY

CHAIN = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
firsts = st.sampled_from(["uniform", "stationary"])


def by_hand(chain: MarkovChain, length: int, first: str) -> dict:
    """The joint weights of (last, counts, label) by a sum over all sequences."""
    d = chain.tokens
    begin = chain.pi if first == "stationary" else np.full(d, 1 / d)
    table: dict = {}
    for tokens in itertools.product(range(d), repeat=length):
        p = begin[tokens[0]]
        for a, b in itertools.pairwise(tokens):
            p *= chain.transition[a, b]
        key = (tokens[-1], tuple(np.bincount(tokens, minlength=d).tolist()))
        table[key] = table.get(key, 0.0) + p * chain.transition[tokens[-1]]
    return {k: w for k, w in table.items() if w.sum() > 0}


@settings(max_examples=30)
@given(chain=chains, length=st.integers(1, 4), first=firsts)
def test_the_exact_law_is_the_sum_over_all_sequences(chain, length, first):
    law, expected = Contexts.of_chain(chain, length, first), by_hand(chain, length, first)
    rows = zip(law.last.tolist(), map(tuple, law.counts.tolist()), law.weights, strict=True)
    found = {(last, counts): w for last, counts, w in rows}
    assert found.keys() == expected.keys()
    assert max(np.abs(found[k] - expected[k]).max() for k in found) <= IDENTITY
    assert np.all(np.diff(law.last) >= 0)
    assert law.length == length


@settings(max_examples=30)
@given(chain=chains, length=st.integers(1, 12), first=firsts)
def test_marginals_of_the_exact_law(chain, length, first):
    law = Contexts.of_chain(chain, length, first)
    begin = chain.pi if first == "stationary" else np.full(chain.tokens, 1 / chain.tokens)
    last = begin @ np.linalg.matrix_power(chain.transition, length - 1)
    assert np.abs(law.last_law - last).max() <= SUM_OF_MANY
    assert np.abs(law.bigram - last[:, None] * chain.transition).max() <= SUM_OF_MANY
    assert law.weights.sum() == pytest.approx(1.0, abs=SUM_OF_MANY)
    # The mean counts, summed over last tokens, are the sum of the marginals.
    shares = law.last_law @ law.mean_frequencies
    steps = [begin @ np.linalg.matrix_power(chain.transition, k) for k in range(length)]
    assert np.abs(shares - np.mean(steps, axis=0)).max() <= SUM_OF_MANY


def test_the_stationary_share_given_the_last_token_has_its_closed_form():
    # E[n_j / s given last = i] = pi_j + rho (1_ij - pi_j), rho = (1 - lam^s) / (s (1 - lam)).
    s, lam, pi = 19, 0.8, CHAIN.pi
    rho = (1 - lam**s) / (s * (1 - lam))
    law = Contexts.of_chain(CHAIN, s, "stationary")
    assert np.abs(law.mean_frequencies - (pi + rho * (np.eye(4) - pi))).max() <= SUM_OF_MANY


def test_a_long_context_of_two_tokens_is_exact():
    law = Contexts.of_chain(MarkovChain((0.75, 0.25), 0.8), 320, "stationary")
    assert law.rows == 2 * 320
    assert law.weights.sum() == pytest.approx(1.0, abs=SUM_OF_MANY)


def test_counts_too_large_for_one_machine_word_stay_exact():
    chain = MarkovChain(np.full(40, 1 / 40), 0.5)
    law = Contexts.of_chain(chain, 2)
    assert law.rows == 40 * 40
    assert law.weights.sum() == pytest.approx(1.0, abs=SUM_OF_MANY)


def test_a_compressed_sample_counts_every_sequence():
    tokens = CHAIN.sample(2000, 8, seed=3, first="uniform")
    table = Contexts.of_sample(tokens, 4)
    seen: dict = {}
    for row in tokens.tolist():
        key = (row[-2], tuple(np.bincount(row[:-1], minlength=4).tolist()), row[-1])
        seen[key] = seen.get(key, 0) + 1
    for last, counts, weights in zip(table.last, table.counts, table.weights, strict=True):
        for label, w in enumerate(weights):
            assert round(w * 2000) == seen.pop((last, tuple(counts.tolist()), label), 0)
    assert not seen


def test_a_sample_follows_the_exact_law():
    n = 40_000
    exact = Contexts.of_chain(CHAIN, 6, "uniform")
    sample = Contexts.of_sample(CHAIN.sample(n, 7, seed=5, first="uniform"), 4)
    counted = {
        (int(a), tuple(c)): w.sum()
        for a, c, w in zip(sample.last, sample.counts.tolist(), sample.weights, strict=True)
    }
    expected = n * exact.weights.sum(axis=1)
    rows = zip(exact.last, exact.counts.tolist(), strict=True)
    observed = np.array([n * counted.get((int(a), tuple(c)), 0.0) for a, c in rows])
    common = expected > 10
    f = np.append(observed[common], n - observed[common].sum())
    e = np.append(expected[common], n - expected[common].sum())
    assert chisquare(f, e).pvalue > CHI_SQUARE_P


def test_the_bigram_entropy_of_the_population_is_the_entropy_rate():
    law = Contexts.of_chain(CHAIN, 5, "stationary")
    assert law.bigram_entropy == pytest.approx(CHAIN.floor, abs=IDENTITY)


@pytest.mark.parametrize(
    ("call", "field", "words"),
    [
        (lambda: Contexts.of_chain(CHAIN, 0), "length", "at least 1"),
        (lambda: Contexts.of_chain(CHAIN, 3, "unifrom"), "first", "did you mean 'uniform'"),
        (lambda: Contexts.of_chain(CHAIN, 400), "length", "or a sample"),
        (lambda: Contexts.of_sample(np.zeros((3, 1), int), 4), "tokens", "and a label"),
        (lambda: Contexts.of_sample(np.full((3, 2), 7), 4), "tokens", "from 0 to 3"),
    ],
)
def test_bad_input_is_one_sentence(call, field, words):
    with pytest.raises(InputError) as refused:
        call()
    assert refused.value.field == field
    assert words in refused.value.sentence
