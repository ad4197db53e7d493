"""What every flow owes its users, over every flow of the project."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from problems import CALLED, Problem, registry

import attnflow
from attnflow.flows import integrate
from attnflow.flows.switching import Field
from tolerances import (
    CLOSED_FORM_VS_AUTODIFF,
    DRIFT_PER_RTOL,
    LOSS_DIFFERENCE,
    SUM_OF_MANY,
    VELOCITY_DIFFERENCE,
)

ROOT = Path(attnflow.__file__).parent

BASIC = ("quadratic_bowl", "two_layer_linear", "population_two_term_chain", "two_head_symmetric")
"""Enough where the kind of flow does not matter."""


def test_every_flow_of_the_package_is_in_the_registry():
    """Each function of the package that makes a flow is called by a problem, or says why not.

    Claims aside: what they make is a second way to a flow that is here, and they compare the two.
    """
    for make in registry().values():
        make()
    made = set(makers(ROOT))
    assert made - CALLED == set(ELSEWHERE)
    assert len(made) >= 15


ELSEWHERE = {
    "linearise.branch.continue_branch": "a user's family at its start, by autodiff",
    "studies.focus_dilution.rank_one.vector_flow": "rank_one_flow, whose velocity it is given",
    "studies.focus_dilution.timeline.propagated": "no loss; test_timeline has the full flow",
}
"""Makers that are not called here, and which problem has the same flow."""


def makers(root: Path) -> Iterator[str]:
    """`module.function` of every call of a flow's class in the package."""
    trees = {path: ast.parse(path.read_text()) for path in root.rglob("*.py")}
    classes = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)]
    reductions = {c.name for c in classes if "Reduction" in map(ast.unparse, c.bases)}
    assert {"GramFlow", "OrbitFlow", "ManifoldFlow", "SymmetricFlow"} <= reductions
    for path, tree in trees.items():
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if "claims" not in module.split("."):
            yield from (f"{module}.{name}" for name in calls(tree, {"Flow", *reductions}))


def calls(tree: ast.AST, wanted: set[str], inside: str = "") -> Iterator[str]:
    """Where, in the functions and classes of a tree, one of these names is called."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in wanted:
            yield inside
        yield from calls(node, wanted, f"{inside}.{node.name}".lstrip(".") if named else inside)


# Of the module: the tests of one problem follow each other, so that one worker compiles it.
@pytest.fixture(scope="module", params=registry().values(), ids=registry().keys())
def case(request: pytest.FixtureRequest) -> Problem:
    return request.param()


def only(problems: dict[str, Callable[[], Problem]]) -> pytest.MarkDecorator:
    """Run a test on some of the problems."""
    return pytest.mark.parametrize("case", problems.values(), ids=problems.keys(), indirect=True)


@pytest.fixture
def system(case: Problem) -> Any:
    return case.flow.bind(case.start)


@pytest.fixture
def y(case: Problem, system: Any) -> np.ndarray:
    return system.layout.flatten(case.start)


def rates_of(system: Any) -> np.ndarray:
    per_block = system.layout.per_block(system.flow.rates, 1.0, "rates")
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


def squared_speed(system: Any, y: np.ndarray) -> float:
    """How fast the loss of a gradient flow falls: v . v over the rates."""
    speed, rates = velocity(system, y), rates_of(system)
    return float(np.sum(np.divide(speed**2, rates, where=rates > 0, out=np.zeros_like(y))))


STEP = 1e-5


def slope(function: Callable[[np.ndarray], Any], y: np.ndarray, v: np.ndarray) -> Any:
    """The derivative of a function along v, by a central difference."""
    return (function(y + STEP * v) - function(y - STEP * v)) / (2 * STEP)


def test_gates_are_away_from_their_switches(system, y):
    if system.gates is not None:
        assert np.abs(system.guards(y)).min() > 100 * STEP


@only(registry("gradient"))
def test_velocity_is_minus_the_rates_times_the_slope_of_the_loss(system, y):
    rates, speed = rates_of(system), velocity(system, y)
    assert np.all(speed[rates == 0] == 0)
    for v in directions(system.size):
        v = np.where(rates > 0, v, 0.0)
        minus = -np.sum(np.divide(speed, rates, where=rates > 0, out=np.zeros_like(y)) * v)
        assert slope(system.loss, y, v) == pytest.approx(
            minus, abs=LOSS_DIFFERENCE * max(1, abs(minus))
        )


@only(registry("gradient"))
def test_a_closed_form_is_minus_the_gradient_by_autodiff(system, y):
    """With the gates held, at their places and at any shares between 0 and 1."""
    shares = [None]
    if system.gates is not None:
        shares += list(np.random.default_rng(2).random((2, system.gates.count)))
    with jax.enable_x64(True):
        both = jax.jit(
            lambda y, u: (
                system.trace_velocity(y, u),
                system.trace_metric(-jax.grad(system.trace_loss)(y, u)),
            )
        )
        for u in shares:
            closed, by_autodiff = map(np.asarray, both(y, u))
            scale = max(1, np.abs(by_autodiff).max())
            assert np.abs(closed - by_autodiff).max() <= CLOSED_FORM_VS_AUTODIFF * scale


@only(registry("closed"))
def test_another_formula_gives_the_same_velocity(case, system, y):
    with jax.enable_x64(True):
        told = system.layout.flatten(jax.tree.map(np.asarray, case.closed(case.start)))
    scale = max(1, np.abs(told).max())
    assert np.abs(velocity(system, y) - told).max() <= 10 * CLOSED_FORM_VS_AUTODIFF * scale


@only(registry("full"))
def test_a_reduced_flow_is_the_full_one(case, system, y):
    """The loss is that of the lift. On an invariant subset the lift carries the velocity along;
    of a quotient the projection does."""
    above = case.full.bind(theta := case.lift(case.start))
    z = above.layout.flatten(theta)
    assert system.loss(y) == pytest.approx(above.loss(z), rel=SUM_OF_MANY)
    speed, full = velocity(system, y), velocity(above, z)
    if case.project is None:
        found, wanted = slope(lambda y: _up(case, system, above, y), y, speed), full
    else:
        back = _down(case, system, above, z)
        assert np.abs(back - y).max() <= SUM_OF_MANY * max(1, np.abs(y).max())
        found, wanted = speed, slope(lambda z: _down(case, system, above, z), z, full)
    assert np.abs(found - wanted).max() <= VELOCITY_DIFFERENCE * max(1, np.abs(wanted).max())
    if case.steepest:
        falls = -slope(system.loss, y, speed)
        assert falls == pytest.approx(squared_speed(above, z), rel=LOSS_DIFFERENCE)


def _up(case: Problem, system: Any, above: Any, y: np.ndarray) -> np.ndarray:
    return above.layout.flatten(case.lift(system.layout.numpy(y)))


def _down(case: Problem, system: Any, above: Any, z: np.ndarray) -> np.ndarray:
    return system.layout.flatten(case.project(above.layout.numpy(z)))


@only(registry("symmetries"))
def test_symmetries_leave_the_loss_and_carry_the_velocity_along(case, system, y):
    for moved in case.symmetries:
        image = system.layout.flatten(moved(case.start))
        assert np.abs(image - y).max() > 0.01
        assert system.loss(image) == pytest.approx(system.loss(y), rel=SUM_OF_MANY)
        carried = system.layout.flatten(moved(system.layout.numpy(velocity(system, y))))
        assert np.abs(velocity(system, image) - carried).max() <= SUM_OF_MANY


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


@only(registry("gradient"))
def test_jacobian_is_symmetric_in_the_metric(system, y):
    rates = rates_of(system)
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


def test_the_speed_of_a_row_is_the_norm_of_the_velocity(system, y):
    velocity = np.empty_like(y)
    system.rhs(y, velocity)
    field = Field(system)
    assert field.begin(y) is None
    assert field.speed(y) == pytest.approx(np.linalg.norm(velocity), rel=SUM_OF_MANY)


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


@only({name: registry()[name] for name in BASIC})
def test_numbers_are_float64_though_the_caller_never_asked(case):
    assert not jax.config.jax_enable_x64
    assert all_float64(case)
    assert not jax.config.jax_enable_x64
    assert jax.numpy.ones(1).dtype == np.float32


@only({name: registry()[name] for name in BASIC})
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
