"""Hypothesis strategies: laws, row-stochastic matrices, chains, models, rubbish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.models import OneLayerAttention
from attnflow.tasks import MarkovChain

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([2, 3, 5])  # few, so that JAX compiles few shapes


@st.composite
def laws(draw: st.DrawFn) -> np.ndarray:
    """A stationary law: positive, sums to 1, some entries rare."""
    d = draw(sizes)
    rng = np.random.default_rng(draw(seeds))
    law = rng.dirichlet(np.full(d, draw(st.sampled_from([0.5, 1.0, 10.0])))) + 1e-6
    return law / law.sum()


@st.composite
def row_stochastic(draw: st.DrawFn) -> np.ndarray:
    """An irreducible matrix, rows = current token; some entries are exactly 0."""
    d = draw(sizes)
    rng = np.random.default_rng(draw(seeds))
    matrix = rng.dirichlet(np.ones(d), size=d)
    matrix[rng.random((d, d)) < draw(st.sampled_from([0.0, 0.5]))] = 0.0
    matrix[np.arange(d), (np.arange(d) + 1) % d] += 0.1  # a cycle makes it irreducible
    return matrix / matrix.sum(axis=1, keepdims=True)


lams = st.floats(0.01, 0.99)

chains = st.one_of(
    st.builds(MarkovChain, laws(), lams), st.builds(MarkovChain.of, row_stochastic())
)


@st.composite
def models(draw: st.DrawFn, tokens: int) -> OneLayerAttention:
    """A model of O(1) weights, so that no term of a derivative is negligible."""
    scale = draw(st.sampled_from([0.1, 0.5, 1.0]))
    return OneLayerAttention.gaussian(tokens, draw(st.sampled_from([1, 4])), scale, draw(seeds))


rubbish = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.floats(),
    st.integers(-(10**6), 10**6),
    st.lists(st.floats(), max_size=3),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
    st.binary(max_size=4),
    st.complex_numbers(),
)
"""What a user might type by mistake where a number, a name or a list is meant."""


def answer(call: Callable[[], Any]) -> Any:
    """What a call returns, or the sentence it is refused with; any other exception is a bug."""
    try:
        return call()
    except InputError as error:
        return error
