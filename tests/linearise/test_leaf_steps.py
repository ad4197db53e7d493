"""Least-squares steps along a leaf: against the plain dense solution, and how a search ends."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import Flow, integrate
from attnflow.linearise import critical_point, spectrum
from attnflow.linearise.leaf import LEAF_WEIGHT, ON_LEAF, Equations, damped_least_squares
from attnflow.linearise.newton import PATIENCE
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.tasks import MarkovChain

CHAIN = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)


@settings(max_examples=40)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 4),
    st.integers(-24, 2),
    st.integers(0, 10**6),
)
def test_damped_least_squares_solves_the_stacked_problem(
    rows: int, columns: int, lost: int, power: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, columns))
    matrix[:, : min(lost, columns - 1)] = 0.0  # singular: the damping decides there
    target = rng.standard_normal(rows)
    found = damped_least_squares(matrix, target, 10.0**power)
    stacked = np.vstack([matrix, 10.0 ** (power / 2) * np.eye(columns)])
    wanted = np.concatenate([target, np.zeros(columns)])
    expected = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
    # Where both are solutions of an ill-conditioned problem, what counts is the objective.
    least = np.linalg.norm(stacked @ expected - wanted)
    assert np.linalg.norm(stacked @ found - wanted) <= least * (1 + 1e-9) + 1e-12
    singular = np.linalg.svd(stacked, compute_uv=False)
    if singular[-1] > 1e-4 * singular[0]:
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.fixture(scope="module")
def plateau():
    """A state beside the unigram saddle at width 4, its system and its start."""
    flow = population_flow(CHAIN)
    start = OneLayerAttention.gaussian(4, 4, 1e-3, 0)
    system = flow.bind(start)
    y = system.layout.flatten(integrate(flow, start, until=42.0, rtol=1e-8).final)
    return system, system.layout.flatten(start), y


def test_symmetric_balances_are_held_once_with_the_same_squares(plateau) -> None:
    system, start, y = plateau
    equations = Equations(system, start, True)
    held = equations.held(y)
    assert len(held) == 10 + 10 + 4  # two symmetric matrices and the row sums
    full = np.concatenate([np.ravel(c) for c in system.conserved(y).values()])
    assert np.sum(held**2) == pytest.approx(np.sum(full**2), rel=1e-12)


def test_a_quantity_that_is_not_symmetric_is_held_entry_by_entry() -> None:
    flow = Flow(
        lambda th: 0.0 * jnp.sum(th["a"]), conserved={"a": lambda th: th["a"], "b": lambda th: 1.0}
    )
    system = flow.bind({"a": np.ones((2, 2))})
    assert len(Equations(system, np.ones(4), True).held(np.ones(4))) == 5


@pytest.mark.parametrize("damping", [1e-3, 1e-6, 1e-10])
def test_a_step_is_the_weighted_least_squares_of_all_rows(plateau, damping: float) -> None:
    system, start, y = plateau
    equations = Equations(system, start, True)
    velocity = equations.velocity(y)
    step = equations.step(y, velocity, damping)
    # The same rows without leaving any out; central differences of quadratics are exact.
    names, h = list(system.conserved(y)), 1.0

    def rows(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.ravel(system.conserved(x)[n]) for n in names])

    held = np.stack([(rows(y + h * e) - rows(y - h * e)) / (2 * h) for e in np.eye(len(y))], 1)
    jacobian = system.jacobian(y)
    weight = LEAF_WEIGHT * np.linalg.norm(jacobian) / np.linalg.norm(held)
    stacked = np.vstack([jacobian, weight * held, np.sqrt(damping) * np.eye(len(y))])
    off = rows(y) - rows(start)
    wanted = -np.concatenate([velocity, weight * off, np.zeros(len(y))])
    expected = np.linalg.lstsq(stacked, wanted, rcond=1e-14)[0]
    assert np.linalg.norm(step - expected) < 1e-5 * np.linalg.norm(expected)


def test_the_way_onto_the_leaf_is_short_and_ends_on_it(plateau) -> None:
    system, start, y = plateau
    equations = Equations(system, start, True)
    moved = y + 1e-3 * np.random.default_rng(0).standard_normal(len(y))
    found = equations.onto_leaf(moved)
    assert max(equations.off(found).values()) <= ON_LEAF * max(1.0, float(found @ found))
    # Once more, with the Jacobian of the last step at hand.
    again = equations.onto_leaf(y + 1e-6 * (moved - y))
    assert max(equations.off(again).values()) <= ON_LEAF * max(1.0, float(again @ again))
    assert np.linalg.norm(found - moved) < np.linalg.norm(moved - y)


def test_a_search_that_no_longer_gains_ends_early() -> None:
    flow = Flow(velocity=lambda th: {"x": 1e-3 + th["x"] ** 2})  # slow at 0, but no zero
    found = critical_point(flow, {"x": np.array([0.3])}, max_iterations=200)
    assert not found.converged
    assert found.speed == pytest.approx(1e-3, rel=0.5)
    assert found.iterations < 60
    assert f"{PATIENCE} steps did not halve it" in found.sentence or "no step" in found.sentence


def test_dense_spectra_need_no_products(plateau) -> None:
    system, _, y = plateau
    found = spectrum(system.flow, system.layout.numpy(y))
    assert found.products == 0
    assert found.complete
    jacobian = system.jacobian(y)
    worst = np.abs(jacobian @ found.modes.T - found.modes.T * found.rates).max()
    assert worst < 1e-12
    assert found.residuals.max() == pytest.approx(worst, abs=1e-12)
