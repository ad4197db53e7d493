"""An exact reduction is told from a wrong one by how the difference falls with the tolerance."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from invariant_losses import draw, product_loss

from attnflow import gaussian
from attnflow.flows import Flow, Limits, Solver
from attnflow.reduce import GramFlow, ManifoldFlow, OrbitFlow, verify

BLOCKS = {"K": 2, "Q": 3}
WEIGHTS = {"K": draw(4, 2), "Q": draw(4, 3, seed=1)}
TARGET = np.diag([2.0, 1.0, 0.3])


def gram_flow(wrong: float = 0.0) -> GramFlow:
    """Its velocity is wrong by the factor 1 + `wrong`."""
    return GramFlow(lambda G: (1 + wrong) * product_loss(draw(2, 3))(G), BLOCKS)


FULL = gram_flow().full


def test_an_exact_gram_reduction_agrees() -> None:
    found = verify(full=FULL, reduced=gram_flow(), start=WEIGHTS, until=4.0)
    assert found.agrees
    assert found.times == (0.25, 1.0, 4.0)
    assert found.rtol == (1e-10, 1e-12)
    assert "falls with the tolerance" in repr(found)
    assert max(found.absolute) < 1e-9
    assert found.worst < 1e-9
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize("wrong", [1e-2, 1e-3, 1e-6, 1e-9])
def test_a_velocity_that_is_wrong_by_little_is_told_from_integration_error(wrong) -> None:
    found = verify(FULL, gram_flow(wrong), WEIGHTS, 1.0)
    assert found.status == "differs"
    assert not found.agrees
    # To first order the difference is wrong * t * velocity: of the order of `wrong` itself.
    assert 1e-3 * wrong < found.worst < 10 * wrong
    assert "does not fall with the tolerance" in found.sentence
    assert "tolerances" not in found.sentence


@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-12])
def test_the_verdict_does_not_depend_on_the_first_tolerance(rtol) -> None:
    assert verify(FULL, gram_flow(), WEIGHTS, 1.0, rtol=rtol).agrees
    assert verify(FULL, gram_flow(1e-3), WEIGHTS, 1.0, rtol=rtol).status == "differs"


def test_saddle_to_saddle_is_no_difference() -> None:
    """Errors grow from a small start by many orders; they still fall with the tolerance."""

    def loss(G: Any) -> Any:
        return 0.5 * jnp.sum((G["in", "out"] - TARGET) ** 2)

    start = gaussian({"in": (5, 3), "out": (5, 3)}, scale=1e-5)
    flow = GramFlow(loss, {"in": 3, "out": 3})
    wrong = GramFlow(lambda G: (1 + 1e-6) * loss(G), {"in": 3, "out": 3})
    assert verify(flow.full, flow, start, 12.0).agrees
    assert verify(flow.full, wrong, start, 12.0).status == "differs"


@pytest.mark.parametrize("solver", [Solver("scipy", "dop853"), Solver("scipy", "lsoda")])
def test_another_engine_gives_the_same_verdict(solver) -> None:
    assert verify(FULL, gram_flow(), WEIGHTS, 1.0, solver=solver).agrees
    assert verify(FULL, gram_flow(1e-9), WEIGHTS, 1.0, solver=solver).status == "differs"


def two_wells(theta: Any) -> Any:
    """Symmetric under exchange; on the diagonal the flow passes an unstable point."""
    x, y = theta["x"]
    return 0.25 * (x**2 - 1) ** 2 + 0.25 * (y**2 - 1) ** 2 + 0.6 * x * y


@pytest.mark.parametrize("until", [1.0, 20.0])
def test_a_true_symmetry_agrees(until) -> None:
    reduced = OrbitFlow(Flow(two_wells), [lambda th: {"x": th["x"][::-1]}], {"x": np.zeros(2)})
    start = {"x": np.array([0.3, 0.3])}
    found = verify(Flow(two_wells), reduced, start, until)
    assert found.agrees, found
    other = Flow(lambda th: two_wells(th) + 1e-9 * th["x"][0] * jnp.sin(th["x"][1]))
    assert verify(other, reduced, start, until).status == "differs"  # not symmetric any more


def test_a_start_that_is_off_by_rounding_is_taken_for_the_nearest_on_the_set() -> None:
    reduced = OrbitFlow(Flow(two_wells), [lambda th: {"x": th["x"][::-1]}], {"x": np.zeros(2)})
    found = verify(Flow(two_wells), reduced, {"x": np.array([0.3, 0.3 + 1e-9])}, 1.0)
    assert found.agrees, found


def unstable(theta: Any) -> Any:
    """u on its way to 1, and v, which leaves 0 as exp(t) and comes to rest at 1."""
    u, v = jnp.array([[0.8, 0.6], [-0.6, 0.8]]) @ theta["x"]
    return 0.25 * (u**2 - 1) ** 2 + 0.25 * (v**2 - 1) ** 2


def test_a_manifold_that_rounding_leaves_is_not_called_wrong() -> None:
    """v = 0 is invariant, but a rounding of 1e-17 grows as exp(t)."""
    flow = Flow(unstable)
    reduced = ManifoldFlow(flow, lambda z: {"x": jnp.array([0.8, 0.6]) * z["u"]}, {"u": 0.5})
    start = reduced.lift({"u": 0.5})
    assert verify(flow, reduced, start, 3.0).agrees
    for late, size in ((25.0, 1e-8), (60.0, 0.1)):
        lost = verify(flow, reduced, start, [late])
        assert lost.status == "unresolved", lost
        assert lost.worst > size
        assert "compare at an earlier time" in lost.sentence


def test_a_solve_that_does_not_arrive_is_not_compared() -> None:
    found = verify(FULL, gram_flow(), WEIGHTS, 100.0, limits=Limits(steps=5))
    assert found.status == "not-compared"
    assert "the limit of steps" in found.sentence
    assert found.times == ()
    assert np.isnan(found.worst)
