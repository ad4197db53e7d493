"""Forces by their non-zero blocks are the whole matrix, in NumPy and traced, alone or many."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.flows import GradientDescent, descend
from attnflow.reduce import GramFlow
from attnflow.reduce.gram_forces import Force
from tolerances import IDENTITY, OPTAX_LOOP

P = 5
BLOCKS = {
    "two": [(slice(0, 2), slice(2, 5)), (slice(2, 5), slice(0, 2))],
    "a column": [(slice(0, 1), slice(1, 5)), (slice(1, 5), slice(0, 1))],
    "one of three": [(slice(0, 2), slice(3, 5))],
    "whole": [(slice(0, 5), slice(0, 5))],
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(BLOCKS)), st.integers(0, 10**6), st.sampled_from([(), (3,), (2, 2)]))
def test_products_with_blocks_are_those_with_the_matrix(kind, seed, many):
    rng = np.random.default_rng(seed)
    F = np.zeros((*many, P, P))
    for rows, columns in BLOCKS[kind]:
        F[..., rows, columns] = rng.standard_normal(F[..., rows, columns].shape)
    force = Force(P, [(r, c, F[..., r, c]) for r, c in BLOCKS[kind]])
    X = rng.standard_normal((*many, P, P))
    scale = 1 + abs(F).max() * abs(X).max() * P
    assert abs(force.after(X) - X @ F).max() <= IDENTITY * scale
    assert abs(force.before(X) - F.swapaxes(-1, -2) @ X).max() <= IDENTITY * scale
    assert (force.matrix == F).all()


def loss(G: Any) -> Any:
    return (G["a", "b"] ** 2).sum() + (G["a", "c"] ** 3).sum() + (G["b"] - 1.0).sum() ** 2


def gradient(G: Any) -> Any:
    """Two blocks meet in the columns of a: they become one matrix."""
    total = 2 * (G["b"] - 1.0).sum()
    ones = 0 * G["b"] + total
    return {("a", "b"): 2 * G["a", "b"], ("a", "c"): 3 * G["a", "c"] ** 2, ("b", "b"): ones}


@pytest.mark.parametrize("rates", [{}, {"b": 2.0, "c": 0.0}])
def test_blocks_that_share_columns_are_added_up(rates):
    sizes = {"a": 2, "b": 3, "c": 1}
    plain, closed = (GramFlow(loss, sizes, rates=rates, gradient=g) for g in (None, gradient))
    rng = np.random.default_rng(1)
    start = closed.project({n: 0.3 * rng.standard_normal((7, s)) for n, s in sizes.items()})
    found, told = (f.velocity(start)["gram"].matrix for f in (closed, plain))
    assert abs(found - told).max() <= 10 * IDENTITY
    ends = [descend(f, start, 1.0, GradientDescent(0.01)).final for f in (closed, plain)]
    a, b = (np.asarray(end["gram"].matrix) for end in ends)
    assert abs(a - b).max() <= OPTAX_LOOP


def test_a_gradient_for_numpy_alone_is_taken_by_autodiff_where_it_is_traced():
    def numpy_only(G: Any) -> Any:
        return {("K", "Q"): np.cos(np.asarray(G["K", "Q"]))}

    def sines(G: Any) -> Any:
        return jnp.sin(G["K", "Q"]).sum()

    flow = GramFlow(sines, {"K": 2, "Q": 2}, gradient=numpy_only)
    rng = np.random.default_rng(2)
    start = flow.project({n: rng.standard_normal((4, 2)) for n in "KQ"})
    end = descend(flow, start, 0.5, GradientDescent(0.01)).final["gram"].matrix
    full = descend(flow.full, flow.lift(start, 4), 0.5, GradientDescent(0.01)).final
    assert abs(np.asarray(end) - flow.project(full)["gram"].matrix).max() <= OPTAX_LOOP
