"""Fitted exponents with honest errors, and means over repeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.claims import Strength, Verdict, exponent, fit_line, slope, statistical

X = np.geomspace(1e-4, 1e-1, 12)


@given(st.floats(-4, 4), st.floats(1e-3, 1e3))
def test_an_exact_power_law_gives_its_exponent_and_constant(power, constant):
    found = exponent(X, constant * X**power, power, tol=1e-6, control=power + 1)
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
    found = exponent(X, X**power * noise, power, tol=0.3, control=power + 1)
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
    assert exponent(X, X**2, 3, tol=0.1, control=2).verdict is Verdict.FAILS
    assert exponent(X, X**2, 2, tol=0.1, control=3).verdict is Verdict.CONSISTENT


def test_a_fit_looser_than_its_tolerance_is_not_checkable():
    y = X**2 * np.exp(3 * np.random.default_rng(1).standard_normal(len(X)))
    found = exponent(X, y, 2, tol=0.01, control=3)
    assert found.verdict is Verdict.NOT_CHECKABLE
    assert "too loose" in found.sentence


def test_an_exponent_may_be_controlled_by_a_perturbed_setting():
    found = exponent(X, X**2, 2, tol=0.1, control_y=X**3)
    assert found.control is not None
    assert found.control.flips
    assert found.control.measured == pytest.approx(3)


def test_a_time_grows_like_the_logarithm():
    eps = np.geomspace(1e-8, 1e-2, 7)
    found = slope(np.log(1 / eps), 2.18 * np.log(1 / eps) + 4, 2.18, tol=0.01, control=2.5)
    assert found.verdict is Verdict.CONSISTENT
    assert "slope 2.1800" in found.sentence


@given(st.integers(0, 2**32 - 1), st.floats(-100, 100))
def test_a_mean_agrees_with_the_truth_and_not_with_a_shifted_one(seed, truth):
    samples = truth + np.random.default_rng(seed).standard_normal(400)
    found = statistical(truth, samples, z=6, control=truth + 1, seeds=range(400))
    assert found.verdict is Verdict.HOLDS
    assert found.strength is Strength.STATISTICAL
    low, high = found.evidence["interval"]
    assert low <= truth <= high
    assert found.evidence["seeds"] == list(range(400))
    assert found.control is not None
    assert found.control.flips


def test_above_and_below_need_z_standard_errors():
    samples = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    assert statistical(0.5, samples, side="above", control=1.0).good
    assert not statistical(1.0, samples, side="above", control=0.5).good
    assert statistical(1.5, samples, side="below", control=1.0).good
    same = np.ones(3)
    assert not statistical(1.0, same, side="above", control=0.0).good
    assert statistical(1.0, same, control=0.0).good


def test_a_few_scattered_repeats_have_a_control_that_does_not_flip():
    found = statistical(0.0, [-5.0, 5.0, 1.0], control=1.0)
    assert found.control is not None
    assert not found.control.flips


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: exponent([1, 2], [1, 2], 1, tol=0.1, control=2), "three distinct"),
        (lambda: exponent([1, 1, 2], [1, 1, 2], 1, tol=0.1, control=2), "three distinct"),
        (lambda: exponent([0, 1, 2], [1, 2, 3], 1, tol=0.1, control=2), "values > 0"),
        (lambda: exponent([1, 2, 3], [1, np.nan, 3], 1, tol=0.1, control=2), "values > 0"),
        (lambda: exponent([1, 2, 3], [1, 2], 1, tol=0.1, control=2), "shape"),
        (lambda: exponent([1, 2, 3], [1, 2, 3], 1, tol=0.0, control=2), "it is > 0"),
        (lambda: slope([1, 2, 3], [1, np.inf, 3], 1, tol=0.1, control=2), "finite points"),
        (lambda: statistical(0, [1.0], control=1), "at least two"),
        (lambda: statistical(0, [1.0, 2.0], seeds=[1], control=1), "1 seeds for 2"),
        (lambda: statistical(0, [1.0, 2.0], z=0, control=1), "it is > 0"),
        (lambda: statistical(0, [1.0, 2.0], side="abov", control=1), "did you mean 'above'"),
    ],
)
def test_bad_input_is_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()
