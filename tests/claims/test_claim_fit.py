"""Fitted exponents with honest errors, and means over repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.claims import Control, Strength, Verdict, fit_line, order, slope, statistical

X = np.geomspace(1e-4, 1e-1, 12)


def off(value: float) -> Control:
    return Control("another value", value)


@given(st.floats(-4, 4), st.floats(1e-3, 1e3))
def test_an_exact_power_law_gives_its_exponent_and_constant(power, constant):
    found = order(
        "Theta", x=X, y=constant * X**power, power=power, tol=1e-6, control=off(power + 1)
    )
    assert found.verdict is Verdict.CONSISTENT
    assert found.strength is Strength.FIT
    assert found.measured == pytest.approx(power, abs=1e-9)
    assert found.evidence["constant"] == pytest.approx(constant, rel=1e-9)
    assert found.evidence["range"] == [pytest.approx(1e-4), pytest.approx(1e-1)]
    assert found.control is not None
    assert found.control.flips


@given(st.floats(-3, 3), st.integers(0, 2**32 - 1))
def test_a_noisy_exponent_lies_within_a_few_of_its_standard_errors(power, seed):
    noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal(len(X)))
    found = order("Theta", x=X, y=X**power * noise, power=power, tol=0.3)
    # 12 points: a t of 9 with 10 degrees of freedom has probability 4e-6.
    assert abs(found.measured - power) <= 9 * found.evidence["stderr"]


def test_the_standard_error_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 30)
    lines = [fit_line(x, 2 * x + rng.standard_normal(30)) for _ in range(2000)]
    z = np.array([(line.slope - 2) / line.stderr for line in lines])
    # Student's t with 28 degrees of freedom: 94.4 % within 2, give or take 0.5 %.
    assert 0.929 < np.mean(np.abs(z) < 2) < 0.959


def test_a_wrong_exponent_fails_and_a_theta_never_holds():
    assert order("Theta", x=X, y=X**2, power=3).verdict is Verdict.FAILS
    assert order("Theta", x=X, y=X**2, power=2).verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("toward", ["zero", "infinity"])
def test_bounds_of_an_order_look_the_right_way(toward):
    """Near zero a larger power is smaller; towards infinity it is larger."""
    smaller, larger = (3, 1) if toward == "zero" else (1, 3)
    for power, is_o, is_omega in ((smaller, True, False), (larger, False, True), (2, True, True)):
        y = X**power
        assert order("O", x=X, y=y, power=2, toward=toward).good == is_o
        assert order("Omega", x=X, y=y, power=2, toward=toward).good == is_omega


def test_a_sweep_is_a_function_of_its_elements():
    found = order(
        "Theta",
        over=X,
        y=lambda x: 3 * x**2,
        power=2,
        control=Control("line", measured=lambda x: x),
    )
    assert found.verdict is Verdict.CONSISTENT
    assert found.control is not None
    assert found.control.measured == pytest.approx(1)
    assert found.evidence["ends"] == pytest.approx([2, 2])
    with pytest.raises(InputError, match="over: is missing"):
        order("Theta", y=lambda x: x, power=1)
    with pytest.raises(InputError, match="did you mean 'Theta'"):
        order("theta", x=X, y=X, power=1)  # type: ignore[arg-type]


def test_a_fit_looser_than_its_tolerance_is_not_checkable():
    y = X**2 * np.exp(3 * np.random.default_rng(1).standard_normal(len(X)))
    found = order("Theta", x=X, y=y, power=2, tol=0.01)
    assert found.verdict is Verdict.NOT_CHECKABLE
    assert "too loose" in found.sentence


def test_an_exponent_may_be_controlled_by_a_perturbed_setting():
    found = order("Theta", x=X, y=X**2, power=2, control=Control("cube", measured=X**3))
    assert found.control is not None
    assert found.control.flips
    assert found.control.measured == pytest.approx(3)


def test_a_time_grows_like_the_logarithm():
    eps = np.geomspace(1e-8, 1e-2, 7)
    found = slope(
        over=eps,
        x=lambda e: np.log(1 / e),
        y=lambda e: 2.18 * np.log(1 / e) + 4,
        predicted=2.18,
        within=0.01,
        control=off(2.5),
    )
    assert found.verdict is Verdict.CONSISTENT
    assert "slope 2.1800" in found.sentence


@given(st.integers(0, 2**32 - 1), st.floats(-100, 100))
def test_a_mean_agrees_with_the_truth_and_not_with_a_shifted_one(seed, truth):
    samples = truth + np.random.default_rng(seed).standard_normal(400)
    found = statistical(
        predicted=truth, samples=samples, z=6, control=off(truth + 1), seeds=range(400)
    )
    assert found.verdict is Verdict.HOLDS
    assert found.strength is Strength.STATISTICAL
    low, high = found.evidence["interval"]
    assert low <= truth <= high
    assert found.evidence["seeds"] == list(range(400))
    assert found.control is not None
    assert found.control.flips


def test_above_and_below_need_z_standard_errors():
    samples = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    assert statistical(predicted=0.5, samples=samples, side="above").good
    assert not statistical(predicted=1.0, samples=samples, side="above").good
    assert statistical(predicted=1.5, samples=samples, side="below").good
    same = np.ones(3)
    assert not statistical(predicted=1.0, samples=same, side="above").good
    assert statistical(predicted=1.0, samples=same).good


def test_a_few_scattered_repeats_have_a_control_that_does_not_flip():
    found = statistical(predicted=0.0, samples=[-5.0, 5.0, 1.0], control=off(1.0))
    assert found.control is not None
    assert not found.control.flips


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: order("Theta", x=[1, 2], y=[1, 2], power=1, tol=0.1), "three distinct"),
        (lambda: order("Theta", x=[1, 1, 2], y=[1, 1, 2], power=1, tol=0.1), "three distinct"),
        (lambda: order("Theta", x=[0, 1, 2], y=[1, 2, 3], power=1, tol=0.1), "values > 0"),
        (lambda: order("Theta", x=[1, 2, 3], y=[1, np.nan, 3], power=1, tol=0.1), "values > 0"),
        (lambda: order("Theta", x=[1, 2, 3], y=[1, 2], power=1, tol=0.1), "shape"),
        (lambda: order("Theta", x=[1, 2, 3], y=[1, 2, 3], power=1, tol=0.0), "it is > 0"),
        (lambda: slope(x=[1, 2, 3], y=[1, np.inf, 3], predicted=1, within=0.1), "finite points"),
        (lambda: statistical(predicted=0, samples=[1.0]), "at least two"),
        (lambda: statistical(predicted=0, samples=[1.0, 2.0], seeds=[1]), "1 seeds for 2"),
        (lambda: statistical(predicted=0, samples=[1.0, 2.0], z=0), "it is > 0"),
        (lambda: statistical(predicted=0, samples=[1.0, 2.0], side="abov"), "did you mean 'above'"),
    ],
)
def test_bad_input_is_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()
