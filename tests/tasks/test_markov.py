"""Markov chains: the exact law, its sampler, and a sentence for every bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from attnflow._errors import InputError
from attnflow.tasks import MarkovChain
from strategies import answer, chains, lams, laws, row_stochastic, rubbish
from tolerances import (
    CHI_SQUARE_P,
    IDENTITY,
    LEADING_ORDER,
    PRINTED,
    SOLVED_LINEAR_SYSTEM,
    SUM_OF_MANY,
)


@given(chain=chains)
def test_the_stationary_law_is_stationary_and_positive(chain):
    assert np.abs(chain.pi @ chain.transition - chain.pi).max() <= IDENTITY
    assert np.all(chain.pi > 0)
    assert chain.pi.sum() == pytest.approx(1.0, abs=IDENTITY)
    assert np.abs(chain.transition.sum(axis=1) - 1).max() <= IDENTITY


@given(pi=laws(), lam=lams)
def test_the_two_term_chain_is_its_formula(pi, lam):
    chain = MarkovChain(pi, lam)
    expected = lam * np.eye(len(pi)) + (1 - lam) * np.ones((len(pi), 1)) * pi
    assert np.abs(chain.transition - expected).max() <= IDENTITY
    general = MarkovChain.of(expected)
    assert general.pi == pytest.approx(pi, rel=SOLVED_LINEAR_SYSTEM)
    assert general.lam is None


def test_a_very_rare_token_keeps_its_digits():
    tiny = 1e-13
    chain = MarkovChain.of([[1 - tiny, tiny, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    # Balance of flows: pi_0 tiny = pi_1 / 2 and pi_1 / 2 = pi_2.
    assert chain.pi[1] / chain.pi[0] == pytest.approx(2 * tiny, rel=LEADING_ORDER)
    assert chain.pi[2] / chain.pi[1] == pytest.approx(0.5, rel=SOLVED_LINEAR_SYSTEM)


def test_a_periodic_chain_has_a_stationary_law():
    assert MarkovChain.of([[0.0, 1.0], [1.0, 0.0]]).pi == pytest.approx([0.5, 0.5], abs=IDENTITY)


def test_many_tokens_are_no_obstacle():
    d = 300
    cycle = np.roll(np.eye(d), 1, axis=1)
    assert MarkovChain.of(cycle).pi == pytest.approx(np.full(d, 1 / d), rel=SOLVED_LINEAR_SYSTEM)
    broken = np.full((d, d), 1 / d)
    broken[: d // 2] = 0.0
    broken[: d // 2, : d // 2] = 1 / (d // 2)  # the first half never leaves itself
    with pytest.raises(InputError, match=r"^transition: not irreducible"):
        MarkovChain.of(broken)


@given(chain=chains)
def test_the_floor_is_the_conditional_entropy(chain):
    total = 0.0
    for i in range(chain.tokens):
        for j in range(chain.tokens):
            p = chain.transition[i, j]
            if p > 0:
                total -= chain.pi[i] * p * np.log(p)
    assert chain.floor == pytest.approx(total, abs=SUM_OF_MANY)
    unigram = -sum(p * np.log(p) for p in chain.pi)
    assert chain.unigram_entropy == pytest.approx(unigram, rel=SUM_OF_MANY)
    assert -IDENTITY <= chain.floor <= chain.unigram_entropy + IDENTITY


def test_the_known_chain_has_its_known_floor():
    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), lam=0.8)
    assert chain.floor == pytest.approx(0.302842, abs=PRINTED)
    assert chain.unigram_entropy == pytest.approx(0.727139, abs=PRINTED)
    assert repr(chain) == "MarkovChain(pi=(0.75, 0.19, 0.05, 0.01), lam=0.8)"


GENERAL = MarkovChain.of([[0.1, 0.6, 0.3], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6]])


def test_sampled_pairs_follow_the_exact_law():
    tokens = GENERAL.sample(20_000, 4, seed=1)
    # One pair per sequence: the trials are independent.
    pairs = np.bincount(3 * tokens[:, 2] + tokens[:, 3], minlength=9)
    expected = (GENERAL.pi[:, None] * GENERAL.transition).ravel()
    assert pairs[expected == 0].sum() == 0
    possible = expected > 0
    p = chisquare(pairs[possible], expected[possible] * len(tokens)).pvalue
    assert p > CHI_SQUARE_P


@pytest.mark.parametrize(
    ("first", "law"), [("stationary", GENERAL.pi), ("uniform", np.ones(3) / 3)]
)
def test_the_first_token_follows_the_law_that_was_asked_for(first, law):
    tokens = GENERAL.sample(20_000, 1, seed=2, first=first)
    counts = np.bincount(tokens[:, 0], minlength=3)
    assert chisquare(counts, law * len(tokens)).pvalue > CHI_SQUARE_P
    other = np.ones(3) / 3 if first == "stationary" else GENERAL.pi
    assert chisquare(counts, other * len(tokens)).pvalue < CHI_SQUARE_P


def test_samples_are_int64_and_repeat_with_their_seed():
    a, b, c = (GENERAL.sample(5, 6, seed=s) for s in (3, 3, 4))
    assert a.shape == (5, 6)
    assert a.dtype == np.int64
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize(
    ("pi", "words"),
    [
        ((0.7, 0.2), "sums to 0.9"),
        ((0.75, 0.2, 0.05, 0.01), "did you mean 0.74, 0.2, 0.05, 0.01"),
        ((1.2, -0.2), "negative entry"),
        ((1.0, 0.0), "zero entry"),
        ((0.5, np.nan), "NaN"),
        ((np.inf, 0.5), "NaN or infinite"),
        ((1.0,), "at least two entries"),
        ((), "at least two entries"),
        (((0.5, 0.5),), "at least two entries"),
        (("a", "b"), "list of numbers"),
    ],
    ids=str,
)
def test_a_bad_law_is_said_in_one_sentence(pi, words):
    with pytest.raises(InputError, match=r"^pi: ") as caught:
        MarkovChain(pi, lam=0.5)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lam", [0.0, 1.0, -0.1, 1.1, np.nan, "much", None])
def test_lam_lies_strictly_between_0_and_1(lam):
    with pytest.raises(InputError, match=r"^lam: "):
        MarkovChain((0.5, 0.5), lam)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[0.5, 0.5], [0.5, 0.4]], "row 1 sums to 0.9"),
        ([[0.5, 0.5]], "shape (1, 2)"),
        ([0.5, 0.5], "shape (2,)"),
        ([[1.0]], "shape (1, 1)"),
        ([[1.5, -0.5], [0.5, 0.5]], "negative"),
        ([[np.nan, 1.0], [0.5, 0.5]], "non-finite"),
        ([[0.5, 0.5], [1.0]], "not a matrix"),
        ([[1.0, 0.0], [0.0, 1.0]], "token 1 is never reached from token 0"),
        ([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], "token 2 is never reached"),
    ],
    ids=str,
)
def test_a_bad_matrix_is_said_in_one_sentence(matrix, words):
    with pytest.raises(InputError, match=r"^transition: ") as caught:
        MarkovChain.of(matrix)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("length", {"sequences": 0, "length": 3}),
        ("length", {"sequences": 2, "length": 0}),
        ("first", {"sequences": 2, "length": 2, "first": "last"}),
    ],
)
def test_a_bad_sample_is_said_in_one_sentence(field, options):
    with pytest.raises(InputError, match=rf"^{field}: "):
        GENERAL.sample(**options)


@given(pi=st.one_of(rubbish, laws()), lam=st.one_of(rubbish, lams))
def test_rubbish_is_answered_with_a_sentence(pi, lam):
    chain = answer(lambda: MarkovChain(pi, lam))
    if isinstance(chain, InputError):
        assert chain.field in ("pi", "lam")
    else:
        assert chain.pi.sum() == pytest.approx(1.0, abs=IDENTITY)


@given(matrix=st.one_of(rubbish, row_stochastic()))
def test_rubbish_as_a_matrix_is_answered_with_a_sentence(matrix):
    chain = answer(lambda: MarkovChain.of(matrix))
    if isinstance(chain, InputError):
        assert chain.field == "transition"
    else:
        assert np.all(chain.pi > 0)
