"""Infinite width of the two-head classifier: square roots, Lax pair, ten numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.flows import Linear, Solver, integrate
from attnflow.models.two_head import tables
from attnflow.models.two_head_gram import (
    gram_flow,
    head_scores,
    infinite_width_start,
    score_flow,
    score_start,
    self_scores,
)
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.tasks import MixtureClassification
from tolerances import IDENTITY

SIZES = [(2, 3), (3, 3), (3, 4), (8, 3)]


@pytest.fixture(scope="module")
def infinite():
    """K = 2, L = 3 at infinite width up to t = 150, by its Gram."""
    gram = gram_flow(MixtureClassification(2, 3).population)
    return integrate(
        gram, infinite_width_start(2, 0.1), 150.0, rtol=1e-11, solver=Solver(atol=1e-13)
    )


def test_self_scores_are_square_roots_at_infinite_width(infinite):
    S = head_scores(infinite.final)
    assert np.abs(S).max() > 1
    A, B = self_scores(S, 0.1)
    for i, head in enumerate(("plus", "minus")):
        G = infinite.final["gram"][head]
        assert np.abs(G["K"] - A[i]).max() < 1e-10
        assert np.abs(G["Q"] - B[i]).max() < 1e-10
        assert np.abs(A[i] @ S[i] - S[i] @ B[i]).max() < 1e-10
    wrong, _ = self_scores(S, 0.2)
    assert np.abs(wrong - A).max() > 1e-3


def test_the_spectrum_of_the_lax_pair_is_constant(infinite):
    # J G has the eigenvalues +-omega^2; its square is omega^4 I, off by the error of the solve.
    J = np.diag([1.0] * 4 + [-1.0] * 4)
    for head in ("plus", "minus"):
        JG = J @ infinite.final["gram"][head].matrix
        assert np.abs(JG @ JG - 1e-4 * np.eye(8)).max() < 1e-10
    assert infinite.drift < 1e-10


def test_eliminated_and_symmetric_flow_are_the_gram_flow(infinite):
    S, w = head_scores(infinite.final), infinite.final["rest"]["w"]
    flow = score_flow(MixtureClassification(2, 3).population, 0.1)
    solved = integrate(flow, score_start(2), 150.0, rtol=1e-11, solver=Solver(atol=1e-13)).final
    # Solves that are not told of the kink agree to what it costs them.
    assert np.abs(solved["S"] - S).max() < 1e-8
    assert np.abs(solved["w"] - w).max() < 1e-8
    reduced = symmetric_flow(MixtureClassification(2, 3).orbits, 0.1)
    ten = integrate(reduced, reduced.start, 150.0, rtol=1e-11, solver=Solver(atol=1e-13)).final
    lifted = reduced.lift(ten)
    assert np.abs(lifted["S"] - S).max() < 1e-8
    assert np.abs(lifted["w"] - w).max() < 1e-8


@pytest.mark.parametrize(("K", "L"), SIZES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_ten_numbers_carry_the_full_system(K, L, seed):
    task, omega = MixtureClassification(K, L), 0.3
    reduced, full = symmetric_flow(task.orbits, omega), score_flow(task.population, omega)
    state = reduced.sample(np.random.default_rng(seed), reduced.start)
    theta = reduced.lift(state)
    assert reduced.distance(theta) < 1e-14
    back = reduced.project(theta)
    velocity, moved = full.velocity(theta), reduced.flow.velocity(state)
    assert reduced.distance(velocity) < 1e-12
    for name, value in reduced.project(velocity).items():
        assert np.abs(back[name] - state[name]).max() < 1e-14
        assert np.abs(value - moved[name]).max() < 1e-13
    assert reduced.flow.loss(state) == pytest.approx(full.loss(theta), abs=IDENTITY * 10)


@pytest.mark.parametrize(("K", "L"), SIZES)
def test_symmetric_solve_is_the_full_solve(K, L):
    # b = 3 and t <= 8: smooth, so that 1e-10 is within reach of two solves.
    task = MixtureClassification(K, L)
    reduced, full = symmetric_flow(task.orbits, 0.7, 3.0), score_flow(task.population, 0.7, 3.0)
    options = {"rtol": 1e-12, "solver": Solver(atol=1e-14), "save": Linear(2)}
    small = integrate(reduced, reduced.start, 8.0, **options).final
    large = integrate(full, score_start(K), 8.0, **options).final
    for name, value in reduced.lift(small).items():
        assert np.abs(value - large[name]).max() < 1e-10
    assert np.abs(large["S"]).max() > 1e-4


def test_observables_of_the_reduction_are_those_of_the_model():
    task = MixtureClassification(3, 4)
    reduced, t = symmetric_flow(task.orbits, 0.3), tables(task.population)
    state = reduced.sample(np.random.default_rng(5), reduced.start)
    theta = reduced.lift(state)
    full = t.group_losses(theta["w"], theta["S"], 0.5)
    assert reduced.group_losses(state) == pytest.approx(full, abs=1e-13)
    A, B = self_scores(theta["S"][0], 0.3)
    roots = reduced.self_scores(state)
    for name, matrix in (("A", A), ("B", B)):
        blocks = matrix.reshape(2, 3, 2, 3).transpose(0, 2, 1, 3)
        diff = blocks[..., 0, 0] - blocks[..., 0, 1]
        assert np.abs(diff - roots[f"{name}_diff"]).max() < 1e-13
        assert np.abs(diff + 3 * blocks[..., 0, 1] - roots[f"{name}_sum"]).max() < 1e-13
    assert reduced.score(state, "c", "v") == pytest.approx(theta["S"][0][0, 3], abs=1e-14)
    assert reduced.score(state, "v", "c", same=False) == pytest.approx(
        theta["S"][0][3, 1], abs=1e-14
    )
