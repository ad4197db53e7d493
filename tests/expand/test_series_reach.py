"""How far a series reaches: breakdown, gates; and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expand_ground import attention_only, logistic_flow

from attnflow._errors import InputError
from attnflow.expand import series
from attnflow.flows import Flow

X = np.array([[1.0, 2.0], [-1.0, 0.5], [0.3, -2.0]])
RELU_START = {"W": np.array([[0.3, -0.2], [0.1, 0.4]]), "a": np.array([0.5, -0.4])}


def relu_loss(th):
    return 0.5 * jnp.sum((jax.nn.relu(X @ th["W"]) @ th["a"] - jnp.array([1.0, -1.0, 0.5])) ** 2)


# -- breakdown ------------------------------------------------------------------------------------


def test_the_radius_is_that_of_the_nearest_pole():
    flow = Flow(velocity=lambda th: {"x": th["x"] ** 2})
    s = series(flow, {"x": np.array([0.5])}, order=10)
    assert s.radius == pytest.approx(2.0, rel=1e-12)


def test_breakdown_of_the_leading_terms_is_measured_where_the_next_order_says():
    model = attention_only()
    s = series(model.flow, model.start(), order=5)
    table = s.measured_breakdown(tolerance=0.01)
    for name, times in table.items():
        assert times.leading_measured == pytest.approx(times.leading, rel=0.15), name
        assert times.series_measured > 5 * times.leading_measured
    by_angle = s.measured_breakdown(cosine=0.9999)
    for name in ("WO", "V", "W"):
        assert by_angle[name].leading_measured == pytest.approx(by_angle[name].leading, rel=0.25)
    assert "cosine 0.9999" in repr(by_angle)
    assert by_angle._repr_html_().startswith("<table>")


def test_breakdown_of_the_whole_series_is_estimated_within_a_factor():
    s = series(logistic_flow(), {"x": np.array([0.1])}, order=8)
    times = s.measured_breakdown()["x"]
    assert 0.6 < times.series / times.series_measured < 1.3
    # t^2 (1 - 2x) / 2 against t: a closed form for the leading term
    assert times.leading == pytest.approx(0.01 * 2 / 0.8, rel=1e-12)
    assert times.leading_measured == pytest.approx(times.leading, rel=0.02)


def test_a_frozen_block_never_breaks_down():
    flow = Flow(velocity=lambda th: {"x": th["x"] ** 2, "y": jnp.zeros(2)})
    s = series(flow, {"x": np.array([0.5]), "y": np.ones(2)}, order=4)
    assert s.leading()["y"].order is None
    assert s.measured_breakdown()["y"].order is None


# -- gates ----------------------------------------------------------------------------------------


def test_a_relu_network_is_said_to_be_piecewise():
    s = series(Flow(relu_loss), RELU_START, order=6)
    assert "Piecewise" in s.note
    assert "valid until the first gate switches" in s.note
    assert "gt" in s.note


def test_the_first_gate_switches_where_the_solve_says():
    # x' = -1 crosses 0 at t = 0.4; until then y' = x, and then 0
    flow = Flow(velocity=lambda th: {"x": -jnp.ones(1) - 0.1 * th["x"], "y": jax.nn.relu(th["x"])})
    start = {"x": np.array([0.4]), "y": np.array([0.0])}
    s = series(flow, start, order=8)
    true = 10 * np.log(1 + 0.04)
    assert s.switch == pytest.approx(true, rel=1e-8)
    assert s.measured_switch() == pytest.approx(true, rel=1e-8)
    assert f"t = {true:.4g}" in s.note
    given = series(flow, start, order=8, gates=lambda th: th["x"])
    assert given.switch == pytest.approx(true, rel=1e-8)
    assert given.measured_switch() == pytest.approx(true, rel=1e-8)


def test_a_gate_on_its_switch_at_the_start_is_said():
    s = series(Flow(relu_loss), {"W": np.zeros((2, 2)), "a": np.ones(2)}, order=2)
    assert "exactly on their switch" in s.note


def test_a_branch_whose_two_sides_agree_is_smooth():
    flow = Flow(velocity=lambda th: {"x": jnp.where(th["x"] > 1, th["x"] * 2, th["x"] + th["x"])})
    assert series(flow, {"x": np.array([0.5])}, order=4).note == ""


def test_gates_that_are_no_function_are_refused():
    with pytest.raises(InputError, match="gates: 3; a function of the parameters"):
        series(logistic_flow(), {"x": np.ones(1)}, 3, gates=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="uses 'sort', which has no Taylor rule"):
        series(logistic_flow(), {"x": np.ones(3)}, 3, gates=lambda th: jnp.sort(th["x"]))
    with pytest.raises(InputError, match="none; this flow has no gates"):
        series(logistic_flow(), {"x": np.ones(1)}, 3).measured_switch()


# -- what has no Taylor rule ----------------------------------------------------------------------


def test_an_unknown_primitive_is_named_and_the_order_lowered():
    flow = Flow(lambda th: jnp.sum(jnp.sort(th["x"]) ** 3 * jnp.array([1.0, 2.0])))
    s = series(flow, {"x": np.array([0.3, 0.1])}, order=8)
    assert s.order == 4
    assert s.asked == 8
    assert "uses 'sort', which has no Taylor rule" in s.note
    # x' = -6 x^2 for the smaller-ranked entry weights: 0.1 has weight 1, 0.3 has weight 2
    for entry, (x, w) in enumerate([(0.3, 2.0), (0.1, 1.0)]):
        want = x * (-3 * w * x) ** np.arange(5)
        np.testing.assert_allclose(s.coefficients[:, entry], want, rtol=1e-13)


def test_a_velocity_that_cannot_be_differentiated_is_refused():
    def odd(x):
        return jax.pure_callback(np.cbrt, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    flow = Flow(velocity=lambda th: {"x": odd(th["x"])})
    with pytest.raises(InputError, match="uses 'pure_callback', which has no Taylor rule"):
        series(flow, {"x": np.ones(2)}, order=3)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, -1, 2.5, "3", True, None, 31])
def test_an_order_is_a_whole_number_in_range(order):
    with pytest.raises(InputError, match="order"):
        series(logistic_flow(), {"x": np.ones(1)}, order)


@pytest.mark.parametrize(
    ("flow", "theta", "sentence"),
    [
        (3, {"x": np.ones(1)}, "flow: 3; a Flow"),
        (Flow(lambda th: th["x"]), {"x": np.ones(2)}, "loss: returns shape"),
        (
            Flow(lambda th: jnp.log(th["x"]).sum()),
            {"x": np.zeros(1)},
            "velocity of x is NaN or inf",
        ),
        (logistic_flow(), {"x": np.array([np.nan])}, "start.x: a NaN"),
        (logistic_flow(), {"x": np.array([1])}, "start.x: dtype int64"),
        (logistic_flow(), {}, "no float array"),
        (Flow(lambda th: float(th["x"][0])), {"x": np.ones(1)}, "not written with jax.numpy"),
    ],
)
def test_bad_input_is_one_sentence(flow, theta, sentence):
    with pytest.raises(InputError, match=sentence):
        series(flow, theta, 3)


def test_an_order_that_overflows_is_named():
    with pytest.raises(
        InputError, match=r"order: 12; the coefficient of t\^5 overflows, so at most 4"
    ):
        series(logistic_flow(), {"x": np.array([1e60])}, order=12)
    assert series(logistic_flow(), {"x": np.array([1e60])}, order=4).order == 4


def test_times_and_blocks_are_checked():
    s = series(logistic_flow(), {"x": np.array([0.1])}, order=3)
    for bad in (np.nan, np.inf, "soon", None):
        with pytest.raises(InputError, match="a finite time"):
            s(bad)
    with pytest.raises(InputError, match="block: y is none; known: x"):
        s.block("y")
    with pytest.raises(InputError, match="tolerance"):
        s.breakdown(tolerance=-1)
    with pytest.raises(InputError, match="cosine"):
        s.breakdown(cosine=2)
    with pytest.raises(InputError, match="orders up to 3"):
        s.truncated(4)
