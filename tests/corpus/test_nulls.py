"""Null corpora and safe cosines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from attnflow._errors import InputError
from attnflow.corpus import Corpus, nulls, statistics
from attnflow.corpus.nulls import (
    TERMS,
    breakdown_time,
    cosine,
    gain,
    halves,
    norm,
    permuted,
    residual_cosine,
    shuffled,
    without,
)
from attnflow.corpus.stories import stories


@given(strategies.seeds, st.sampled_from([1e-180, 1e-20, 1.0, 1e200]))
def test_norms_and_cosines_do_not_underflow(seed: int, scale: float) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, 4, 5))
    assert norm(scale * a) == pytest.approx(scale * np.linalg.norm(a), rel=1e-14)
    wanted = np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
    assert cosine(scale * a, b) == pytest.approx(wanted, abs=1e-14)
    tiny = (a * 1e-25).astype(np.float32)
    assert cosine(tiny, a) == pytest.approx(1, abs=1e-7)
    assert norm(tiny) == pytest.approx(1e-25 * np.linalg.norm(a), rel=1e-6)
    assert gain(3 * a, a) == pytest.approx(3)
    assert abs(np.vdot(without(a, b), b)) < 1e-13
    # What is shared with the null does not count, and what is left is compared.
    assert residual_cosine(a + 9 * b, a - 7 * b, b) == pytest.approx(1)


def test_a_zero_has_no_cosine() -> None:
    assert np.isnan(cosine(np.zeros(3), np.ones(3)))
    with pytest.raises(InputError, match="shape"):
        cosine(np.zeros(3), np.zeros(4))


def test_null_corpora_are_those_of_the_generator() -> None:
    windows = np.arange(12, dtype=np.int32).reshape(3, 4) % 5
    wanted = np.random.default_rng(0).permutation(windows.ravel()).reshape(3, 4)
    np.testing.assert_array_equal(shuffled(windows), wanted)
    order = np.random.default_rng(0).permutation(5)
    square = np.arange(25.0).reshape(5, 5)
    np.testing.assert_array_equal(permuted(square), square[order][:, order])
    np.testing.assert_array_equal(permuted(square[0]), square[0][order])
    first, second = halves(windows)
    np.testing.assert_array_equal(first, windows[[0, 2]])
    np.testing.assert_array_equal(second, windows[[1]])
    with pytest.raises(InputError, match="at least 2"):
        halves(windows[:1])


def test_every_term_comes_with_its_nulls() -> None:
    corpus = Corpus.of(stories(0, 1500), "bpe", 200)
    windows = corpus.windows(24)
    theory = statistics(windows, corpus.tokens)
    found = nulls(windows, theory)
    assert set(found) == set(TERMS)
    other = statistics(shuffled(windows), corpus.tokens)
    for name, row in found.items():
        array = getattr(theory, name)
        assert row["shuffled"] == cosine(array, getattr(other, name))
        assert row["permuted"] == cosine(array, permuted(array))
        assert abs(row["permuted"]) < 0.35
    # A text of 1,500 sentences says much more than its frequencies do.
    assert found["bigram"]["halves"] > 0.95 > 0.4 > found["bigram"]["shuffled"]
    assert abs(found["bigram"]["ones"]) < 1e-12  # its rows sum to zero


def test_the_breakdown_time_is_the_formula() -> None:
    windows = np.random.default_rng(1).integers(0, 9, (30, 8))
    theory = statistics(windows, 9)
    B, Phi = theory.bigram, theory.context
    loop = B @ Phi @ Phi.T
    unit = B / np.linalg.norm(B)
    r = np.linalg.norm(loop - np.sum(loop * unit) * unit) / np.linalg.norm(B)
    for layers, c in ((1, 0.999), (3, 0.99)):
        wanted = np.sqrt(6 * np.tan(np.arccos(c)) / (layers * r))
        assert breakdown_time(theory, layers, c) == pytest.approx(wanted, rel=1e-10)
    with pytest.raises(InputError, match="threshold"):
        breakdown_time(theory, 1, 1.0)
