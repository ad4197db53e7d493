"""The statistics of a corpus, against their literal definition with one-hot matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import InputError
from attnflow.corpus import kernels
from attnflow.corpus.associations import associations
from attnflow.corpus.statistics import DIMS, attention_term, bigram_counts, context_term, statistics


def random_windows(size=17, length=9, sequences=12, seed=0):
    return np.random.default_rng(seed).integers(0, size, (sequences, length + 1))


def literal(windows, size, table=None, labels="next"):
    """Every statistic with one-hot matrices and the Jacobian of softmax, as it is defined."""
    length = windows.shape[1] - 1
    uniform = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
    X = [np.eye(size)[row[:-1]] for row in windows]
    Y = [np.eye(size)[row[1:]] for row in windows]
    count = len(windows) * length
    pairs = list(zip(X, Y, strict=True))
    B = sum(x.T @ (y - 1 / size) for x, y in pairs) / count
    Phi = sum((y - 1 / size).T @ uniform @ x for x, y in pairs) / count
    G = B.T @ B @ Phi if table is None else table
    jacobian = np.array([np.diag(a) - np.outer(a, a) for a in uniform])
    S = []
    for x, y in pairs:
        scores = (y if labels == "next" else x) @ G @ x.T
        S.append(np.einsum("tj,tji->ti", scores, jacobian))
    return {
        "unigram": sum(x.sum(0) for x in X) / count,
        "bigram": B,
        "interchange": B.T @ B,
        "context": Phi,
        "value": Phi.T @ B.T,
        "g": G,
        "attention": sum(x.T @ s @ x for (x, _), s in zip(pairs, S, strict=True)) / count,
        "position": np.array(
            [sum(np.trace(s, offset=-m) for s in S) / count for m in range(length)]
        ),
        "current_context": sum(x.T @ uniform.T @ x for x in X) / count,
        "context2": sum((y - 1 / size).T @ uniform @ uniform @ x for x, y in pairs) / count,
    }


def test_statistics_equal_their_literal_definition():
    windows = random_windows()
    found, wanted = statistics(windows, 17), literal(windows, 17)
    for name, array in wanted.items():
        bar = 1e-19 if name in ("attention", "position") else 1e-15
        assert np.abs(getattr(found, name) - array).max() <= bar, name


def windows_of_any_shape():
    def drawn(shape):
        size, length, sequences, seed = shape
        return size, random_windows(size, length, sequences, seed)

    shape = st.tuples(
        st.integers(2, 9), st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**31)
    )
    return shape.map(drawn)


@given(windows_of_any_shape())
def test_every_shape_agrees_with_the_definition(drawn):
    size, windows = drawn
    found, wanted = statistics(windows, size), literal(windows, size)
    for name, array in wanted.items():
        scale = max(np.abs(array).max(), 1e-3)
        np.testing.assert_allclose(getattr(found, name), array, atol=1e-14 * scale, err_msg=name)


@given(windows_of_any_shape(), st.sampled_from(["next", "current"]))
def test_the_attention_term_of_any_table_is_centred_over_its_prefix(drawn, labels):
    size, windows = drawn
    table = np.random.default_rng(size).normal(1.0, 1.0, (size, size))
    wanted = literal(windows, size, table, labels)
    attention, position = attention_term(windows, table, labels)
    np.testing.assert_allclose(attention, wanted["attention"], atol=1e-14)
    np.testing.assert_allclose(position, wanted["position"], atol=1e-14)
    pairs = kernels.attention(windows, table, labels, form="pairs")
    np.testing.assert_allclose(attention * windows[:, 1:].size, pairs[0], atol=1e-12)
    np.testing.assert_allclose(position * windows[:, 1:].size, pairs[1], atol=1e-12)


@pytest.mark.parametrize(("size", "length", "sequences"), [(17, 9, 12), (300, 64, 200)])
def test_sums_that_are_zero(size, length, sequences):
    found = statistics(random_windows(size, length, sequences), size)
    for name, axis in (
        ("bigram", 1),
        ("context", 0),
        ("context2", 0),
        ("g", 0),
        ("attention", 1),
        ("position", 0),
    ):
        array = getattr(found, name)
        assert np.abs(array.sum(axis=axis)).max() <= 1e-14 * np.abs(array).max(), name


def test_a_first_position_alone_says_nothing_about_attention():
    found = statistics(random_windows(length=1), 17)
    assert not found.attention.any()
    assert not found.position.any()


def test_counts_are_whole_and_of_every_pair():
    windows = random_windows()
    counts = bigram_counts(windows, 17)
    assert counts.dtype == np.int64
    assert counts.sum() == windows[:, 1:].size
    wanted = np.zeros((17, 17), int)
    np.add.at(wanted, (windows[:, :-1], windows[:, 1:]), 1)
    np.testing.assert_array_equal(counts, wanted)
    np.testing.assert_array_equal(context_term(windows, 17), statistics(windows, 17).context)


def test_cooccurrence_weighs_a_pair_by_its_distance():
    found = kernels.cooccurrence(np.array([[0, 1, 2, 0]]), 3, reach=2)
    wanted = [[0, 0.5, 1], [1, 0, 0], [0.5, 1, 0]]
    np.testing.assert_array_equal(found, wanted)


def test_the_dataset_names_every_axis():
    found = statistics(random_windows(), 17, [f"w{i}" for i in range(17)]).dataset()
    assert found.bigram.dims == ("current", "next")
    assert found.context.dims == ("next", "context")
    assert found.value.dims == ("context", "stream")
    assert found.g.dims == ("next", "context")
    assert found.attention.dims == ("query", "key")
    assert found.position.dims == ("lag",)
    assert found.token.values.tolist()[:2] == ["w0", "w1"]
    assert set(DIMS) > set(found.data_vars)


@pytest.mark.parametrize(
    ("windows", "sentence"),
    [
        (np.array([[0, 3]]), "token id 3; 0 to 2"),
        (np.array([[0, -1]]), "token id -1; 0 to 2"),
        (np.array([[0]]), "at least 2 tokens"),
        (np.zeros((0, 4), int), "at least one row"),
    ],
)
def test_what_is_no_window_is_said(windows, sentence):
    with pytest.raises(InputError, match=sentence):
        statistics(windows, 3)


def test_a_table_that_is_not_square_is_said():
    with pytest.raises(InputError, match="square"):
        attention_term(np.array([[0, 1]]), np.zeros((2, 3)))
    with pytest.raises(InputError, match="labels: 'last'"):
        attention_term(np.array([[0, 1]]), np.zeros((2, 2)), labels="last")


def test_a_token_that_nothing_leads_to_has_no_interchangeable_ones() -> None:
    """Its whitened column is zero up to rounding: no NaN, and no cosine of rounding errors."""
    windows = np.random.default_rng(0).integers(1, 7, (40, 9)).astype(np.int32)
    windows[:, 0] = 0  # begins every window, follows nothing
    found = statistics(windows, 7)
    for token in range(7):
        listed = associations(found, "interchange", token, whitened=True)
        assert all(np.isfinite(a.strength) and a.strength <= 1 + 1e-9 for a in listed)
        assert (listed == []) if token == 0 else (0 not in [a.token for a in listed])
