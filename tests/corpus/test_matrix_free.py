"""Operators against the matrices they stand for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from attnflow._errors import InputError
from attnflow.corpus import Corpus, cosine, statistics
from attnflow.corpus.matrix_free import Factors, MatrixFree, components
from attnflow.corpus.stories import stories

DATA = Path(__file__).parents[3] / "shared" / "data"


def random_windows(seed: int, size: int = 11, length: int = 7, sequences: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, size, (sequences, length + 1))


@given(strategies.seeds, st.integers(2, 11), st.integers(1, 7))
def test_operators_are_the_matrices(seed: int, size: int, length: int) -> None:
    windows = random_windows(seed, size, length)
    free, dense = MatrixFree(windows, size, rank=size), statistics(windows, size)
    v = np.random.default_rng(seed).normal(size=(size, 3))
    for name in ("bigram", "context", "value", "attention"):
        matrix, operator = getattr(dense, name), getattr(free, name)
        close = {"atol": 1e-13 * max(np.abs(matrix).max(), 1e-4)}
        np.testing.assert_allclose(operator @ v, matrix @ v, err_msg=name, **close)
        np.testing.assert_allclose(operator.T @ v, matrix.T @ v, err_msg=name, **close)
        np.testing.assert_allclose(operator @ v[:, 0], matrix @ v[:, 0], **close)
        np.testing.assert_allclose(operator.rmatvec(v[:, 0]), matrix.T @ v[:, 0], **close)
    np.testing.assert_allclose(free.g.dense(), dense.g, atol=1e-13 * np.abs(dense.g).max())
    np.testing.assert_allclose(free.position, dense.position, atol=1e-18)
    np.testing.assert_allclose(free.unigram, dense.unigram, atol=1e-15)


def test_a_table_of_low_rank_may_stand_for_g() -> None:
    windows = random_windows(4)
    rng = np.random.default_rng(5)
    label, context = rng.normal(size=(2, 11, 2))
    wanted, _ = statistics(windows, 11).attention_of(label @ context.T)
    found = MatrixFree(windows, 11).attention_of(label, context) @ np.eye(11)
    np.testing.assert_allclose(found, wanted, atol=1e-13)
    with pytest.raises(InputError, match="V x rank each"):
        MatrixFree(windows, 11).attention_of(label, context[:, :1])


def test_components_are_the_singular_ones() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(60, 50)) * 2.0 ** -np.arange(50)
    u, s, vt = np.linalg.svd(matrix)
    found = components(np.asarray(matrix).view(Operator), 8)
    np.testing.assert_allclose(found.values, s[:8], rtol=1e-9)
    best = (u[:, :8] * s[:8]) @ vt[:8]
    np.testing.assert_allclose(found.dense(), best, atol=1e-8)
    assert found.missed == pytest.approx(np.linalg.norm(matrix - best), rel=0.5)
    np.testing.assert_allclose(found.rows(np.array([3, 1])), found.dense()[[3, 1]])


class Operator(np.ndarray):
    """A matrix that is asked as an operator is."""

    def matmat(self, v: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ v

    def rmatmat(self, u: np.ndarray) -> np.ndarray:
        return np.asarray(self).T @ u


@given(strategies.seeds, st.sampled_from([1.0, 1e-170]))
def test_cosines_of_factors_are_those_of_their_matrices(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)

    def drawn() -> Factors:
        left, right = (np.linalg.qr(rng.normal(size=(9, 3)))[0] for _ in range(2))
        return Factors(left, scale * np.sort(rng.random(3))[::-1], right)

    one, other = drawn(), drawn()
    assert one.cosine(other) == pytest.approx(cosine(one.dense(), other.dense()), abs=1e-13)
    assert one.norm == pytest.approx(scale * np.linalg.norm(one.values / scale))
    assert np.isnan(one.cosine(Factors(one.left, 0 * one.values, one.right)))


def test_twenty_four_components_of_g_are_its_best() -> None:
    corpus = Corpus.of(stories(0, 3000), "bpe", 500)
    windows = corpus.windows(64)
    dense = statistics(windows, corpus.tokens)
    u, s, vt = np.linalg.svd(dense.g)
    best, _ = dense.attention_of((u[:, :24] * s[:24]) @ vt[:24])
    free = MatrixFree(windows, corpus.tokens)
    found = free.attention @ np.eye(corpus.tokens)
    size = np.linalg.norm(dense.attention)
    assert np.linalg.norm(found - best) <= 1e-5 * size
    assert np.linalg.norm(found - dense.attention) <= 1e-3 * size  # this text is all templates
    leading = components(free.attention)
    np.testing.assert_allclose(leading.values[:12], np.linalg.svd(best)[1][:12], rtol=1e-4)


def test_twenty_four_components_of_g_give_attention_of_natural_text() -> None:
    file = DATA / "wikitext2" / "valid.txt.gz"
    if not file.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{file} is not on this machine")
    corpus = Corpus.read(file, "bpe", 2000)
    windows = corpus.windows(64)
    dense = statistics(windows, corpus.tokens)
    found, _ = dense.attention_of(MatrixFree(windows, corpus.tokens).g.dense())
    size = np.linalg.norm(dense.attention)
    assert np.linalg.norm(found - dense.attention) <= 1e-6 * size
