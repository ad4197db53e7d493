"""The search for quadratic conserved quantities: it finds them all, and only them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import draw, product_loss, two_layer_linear

from attnflow._errors import InputError
from attnflow.flows import Flow, integrate, quadratic_invariants
from tolerances import DRIFT_PER_RTOL, SUM_OF_MANY


def test_a_product_conserves_the_difference_of_squares():
    flow = Flow(lambda th: (th["a"] * th["b"] - 1.0) ** 2)
    start = {"a": np.array(0.5), "b": np.array(2.0)}
    (found,) = quadratic_invariants(flow, start)
    shape = found.matrix / found.matrix[0, 0]
    assert np.abs(shape - np.diag([1.0, -1.0])).max() <= SUM_OF_MANY
    assert np.abs(found.linear).max() <= SUM_OF_MANY
    assert found.residual <= SUM_OF_MANY


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_a_two_layer_network_conserves_its_balance_and_nothing_else(hidden):
    flow = Flow(product_loss(draw(2, 3, seed=1)))
    start = {"W1": draw(hidden, 3, seed=2), "W2": draw(2, hidden, seed=3)}
    assert len(quadratic_invariants(flow, start)) == hidden * (hidden + 1) // 2


def test_a_metric_changes_the_conserved_quantity():
    flow = Flow(lambda th: (th["a"] * th["b"] - 1.0) ** 2, rates={"b": 4.0})
    (found,) = quadratic_invariants(flow, {"a": np.array(0.5), "b": np.array(2.0)})
    assert found.matrix[1, 1] / found.matrix[0, 0] == pytest.approx(-0.25, abs=SUM_OF_MANY)


def test_a_translation_symmetric_loss_conserves_a_linear_function_and_its_square():
    flow = Flow(lambda th: jnp.cosh(th["x"][0] - th["x"][1]) + jnp.sum(th["x"][2] ** 4))
    found = quadratic_invariants(flow, {"x": np.zeros(3)})
    assert len(found) == 2
    for c in found:
        a = c.matrix[0, 0]
        assert np.abs(c.linear - c.linear[0] * np.array([1, 1, 0])).max() <= SUM_OF_MANY
        assert np.abs(c.matrix - a * np.outer([1, 1, 0], [1, 1, 0])).max() <= SUM_OF_MANY


def test_a_generic_loss_conserves_nothing():
    w = draw(5, 4, seed=4)
    flow = Flow(lambda th: jnp.sum(jnp.tanh(w @ th["x"]) ** 2) + jnp.sum(jnp.cosh(th["x"])))
    assert quadratic_invariants(flow, {"x": np.ones(4)}) == []


def test_what_is_found_is_conserved_along_a_solve():
    case = two_layer_linear()
    found = quadratic_invariants(case.flow, case.start)
    assert len(found) == 10
    declared = Flow(case.flow._loss, conserved={f"quadratic {i}": c for i, c in enumerate(found)})
    solution = integrate(declared, case.start, 3.0, rtol=1e-9)
    assert solution.drift <= DRIFT_PER_RTOL * 1e-9
    values = [float(c(case.start)) for c in found]
    assert np.ptp(values) > 1e-3
    assert not jax.config.jax_enable_x64


def test_too_many_parameters_are_refused_before_any_work():
    flow = Flow(lambda th: (th["x"] ** 2).sum())
    with pytest.raises(InputError, match=r"^like: 61 parameters"):
        quadratic_invariants(flow, {"x": np.ones(61)})
