"""Spectral measurements: against NumPy, and where their values are known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.observe import alignment, effective_rank, entropy_rank, singular_values, stable_rank
from strategies import seeds
from tolerances import LOGARITHM_OF_ZEROS, SUM_OF_MANY

shapes = st.sampled_from([(1, 4), (3, 3), (5, 2)])


@given(shape=shapes, seed=seeds)
def test_singular_values_are_numpys_in_double_precision(shape, seed):
    w = np.random.default_rng(seed).standard_normal(shape)
    s = singular_values(w)
    assert s.dtype == np.float64
    expected = np.linalg.svd(w, compute_uv=False)
    assert np.asarray(s) == pytest.approx(expected, abs=SUM_OF_MANY)


@given(k=st.integers(1, 5), seed=seeds)
def test_k_equal_modes_have_rank_k_by_either_measure(k, seed):
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))[0]
    w = 3.0 * q[:, :k] @ q[:k]
    assert float(effective_rank(w)) == pytest.approx(k, rel=LOGARITHM_OF_ZEROS)
    assert float(stable_rank(w)) == pytest.approx(k, rel=SUM_OF_MANY)


@given(shape=shapes, seed=seeds, scale=st.floats(1e-6, 1e6))
def test_ranks_do_not_see_the_scale_and_lie_between_one_and_the_size(shape, seed, scale):
    w = np.random.default_rng(seed).standard_normal(shape)
    for rank in (effective_rank, stable_rank):
        value = float(rank(w))
        assert 1 - SUM_OF_MANY <= value <= min(shape) + SUM_OF_MANY
        assert float(rank(scale * w)) == pytest.approx(value, rel=SUM_OF_MANY)
    assert float(entropy_rank(singular_values(w))) == pytest.approx(
        float(effective_rank(w)), rel=SUM_OF_MANY
    )


def test_alignment_is_the_cosine_of_matrices_and_of_vectors():
    a, b = np.array([[1.0, 2.0], [0.0, 2.0]]), np.array([[2.0, 0.0], [1.0, 2.0]])
    assert float(alignment(a, b)) == pytest.approx(6 / 9, rel=SUM_OF_MANY)
    assert float(alignment(a, -3 * a)) == pytest.approx(-1, rel=SUM_OF_MANY)
    assert float(alignment(a[0], b[0])) == pytest.approx(1 / np.sqrt(5), rel=SUM_OF_MANY)


def test_a_vector_is_no_matrix():
    with pytest.raises(Exception, match=r"singular_values"):
        singular_values(jnp.ones(3))
