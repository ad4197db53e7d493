"""What every flow owes its users, over every flow of the project."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest
from problems import Problem, registry

from attnflow.flows import integrate
from tolerances import (
    CLOSED_FORM_VS_AUTODIFF,
    DRIFT_PER_RTOL,
    LOSS_DIFFERENCE,
    SUM_OF_MANY,
    VELOCITY_DIFFERENCE,
)


@pytest.fixture(params=registry().values(), ids=registry().keys())
def case(request: pytest.FixtureRequest) -> Problem:
    return request.param()


@pytest.fixture
def system(case: Problem) -> Any:
    return case.flow.bind(case.start)


@pytest.fixture
def y(case: Problem, system: Any) -> np.ndarray:
    return system.layout.flatten(case.start)


def rates_of(case: Problem, system: Any) -> np.ndarray:
    per_block = system.layout.per_block(case.flow.rates, 1.0, "rates")
    out = np.empty(system.size)
    for block, rate in zip(system.layout.blocks, per_block, strict=True):
        out[block.start : block.stop] = rate
    return out


def directions(size: int, count: int = 4) -> np.ndarray:
    v = np.random.default_rng(1).standard_normal((count, size))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def velocity(system: Any, y: np.ndarray) -> np.ndarray:
    out = np.full(system.size, np.nan)
    system.rhs(y, out)
    return out


def test_velocity_is_minus_the_rates_times_the_slope_of_the_loss(case, system, y):
    rates, speed = rates_of(case, system), velocity(system, y)
    assert np.all(speed[rates == 0] == 0)
    h = 1e-5
    for v in directions(system.size):
        v = np.where(rates > 0, v, 0.0)
        slope = (system.loss(y + h * v) - system.loss(y - h * v)) / (2 * h)
        minus = -np.sum(np.divide(speed, rates, where=rates > 0, out=np.zeros_like(y)) * v)
        assert slope == pytest.approx(minus, abs=LOSS_DIFFERENCE * max(1, abs(minus)))


def test_loss_falls_along_the_velocity(system, y):
    speed = velocity(system, y)
    assert np.linalg.norm(speed) > 0
    assert system.loss(y + 1e-4 * speed) < system.loss(y)


def test_jvp_is_the_difference_of_velocities(system, y):
    h, out = 1e-5, np.empty(system.size)
    for v in directions(system.size):
        system.jvp(y, v, out)
        quotient = (velocity(system, y + h * v) - velocity(system, y - h * v)) / (2 * h)
        assert np.linalg.norm(out - quotient) <= VELOCITY_DIFFERENCE * max(1, np.linalg.norm(out))


def test_jacobian_is_symmetric_in_the_metric(case, system, y):
    rates = rates_of(case, system)
    moves = rates > 0
    hessian = (system.jacobian(y)[moves] / rates[moves, None])[:, moves]
    assert np.abs(hessian - hessian.T).max() <= SUM_OF_MANY * np.abs(hessian).max()


def test_jacobian_and_its_products_agree(system, y):
    v, out = directions(system.size, 1)[0], np.empty(system.size)
    system.jvp(y, v, out)
    expected = system.jacobian(y) @ v
    assert np.abs(out - expected).max() <= CLOSED_FORM_VS_AUTODIFF * max(1, np.abs(out).max())


def test_engine_velocity_is_the_traced_velocity(system, y):
    with jax.enable_x64(True):
        traced = np.asarray(jax.jit(system.trace_velocity)(y))
    speed = velocity(system, y)
    assert np.abs(speed - traced).max() <= CLOSED_FORM_VS_AUTODIFF * max(1, np.abs(traced).max())


def test_conserved_quantities_do_not_move_along_the_velocity(system, y):
    with jax.enable_x64(True):
        push = jax.jit(lambda y, v: jax.jvp(system._trace_conserved, (y,), (v,))[1])
        moved = push(y, velocity(system, y))
    for name, rate in moved.items():
        assert np.abs(rate).max() <= CLOSED_FORM_VS_AUTODIFF * max(1, float(y @ y)), name


def test_a_solve_lowers_the_loss_and_keeps_what_is_conserved(case):
    solution = integrate(case.flow, case.start, case.until, rtol=1e-6)
    loss = solution.trajectory["loss"].values
    assert loss[-1] < loss[0]
    assert np.all(np.diff(loss) <= 1e-6 * abs(loss[0]))
    assert set(solution.drifts) == set(case.flow.conserved)
    if case.flow.conserved:
        assert 0 <= solution.drift <= DRIFT_PER_RTOL * solution.rtol
    else:
        assert np.isnan(solution.drift)


def test_flatten_and_unflatten_are_inverse(case, system, y):
    tree = system.layout.unflatten(y)
    assert jax.tree.structure(tree) == jax.tree.structure(case.start)
    assert np.array_equal(system.layout.flatten(tree), y)
    for leaf, given in zip(jax.tree.leaves(tree), jax.tree.leaves(case.start), strict=True):
        if callable(given):
            assert leaf is given
        else:
            assert np.array_equal(leaf, given)
            assert np.shape(leaf) == np.shape(given)


def test_kept_trees_are_copies_and_views_are_views(system, y):
    assert not any(np.shares_memory(x, y) for x in arrays(system.layout.numpy(y)))
    assert all(np.shares_memory(x, y) for x in arrays(system.layout.unflatten(y)))


def arrays(tree: Any) -> list[np.ndarray]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, np.ndarray)]


def all_float64(case: Problem) -> bool:
    velocity = case.flow.velocity(case.start)
    product = case.flow.jvp(case.start, velocity)
    solution = integrate(case.flow, case.start, 0.01)
    leaves = [*arrays(velocity), *arrays(product), *arrays(solution.final)]
    columns = [v.values for v in solution.trajectory.data_vars.values()]
    digits = case.flow.loss(case.start) != float(np.float32(case.flow.loss(case.start)))
    return bool(leaves and digits) and all(a.dtype == np.float64 for a in (*leaves, *columns))


def test_numbers_are_float64_though_the_caller_never_asked(case):
    assert not jax.config.jax_enable_x64
    assert all_float64(case)
    assert not jax.config.jax_enable_x64
    assert jax.numpy.ones(1).dtype == np.float32


def test_numbers_are_float64_in_a_worker_thread(case):
    answers: list[bool] = []
    worker = threading.Thread(target=lambda: answers.append(all_float64(case)))
    worker.start()
    worker.join()
    assert answers == [True]
    assert not jax.config.jax_enable_x64


def test_two_starts_of_one_layout_share_the_compiled_functions(case):
    again = jax.tree.map(lambda x: x if callable(x) else x + 0.0, case.start)
    assert case.flow.bind(again) is case.flow.bind(case.start)
