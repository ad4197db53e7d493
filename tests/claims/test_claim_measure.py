"""What the builders call equal, bounded, positive and true, and when their control flips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnflow._errors import InputError
from attnflow.claims import (
    Strength,
    Verdict,
    at_least,
    at_most,
    equal,
    every,
    fact,
    negative,
    not_checkable,
    positive,
)

finite = st.floats(-1e6, 1e6, allow_nan=False)


def test_equal_carries_prediction_measurement_and_the_absolute_tolerance():
    found = equal(predicted=2.0, measured=2.0 + 1e-11, rtol=1e-10, control=2.1)
    assert found.verdict is Verdict.HOLDS
    assert (found.predicted, found.measured) == (2.0, 2.0 + 1e-11)
    assert found.tolerance == pytest.approx(2e-10)
    assert found.error == pytest.approx(1e-11, rel=1e-3)
    assert found.control is not None
    assert found.control.flips


@given(finite, st.floats(1e-12, 1e-3), st.floats(-3, 3))
def test_equal_holds_exactly_within_its_tolerance(predicted, rtol, times):
    measured = predicted + times * rtol * abs(predicted)
    found = equal(predicted, measured, rtol=rtol, control=predicted + 1)
    error, allowed = abs(measured - predicted), found.tolerance
    assert found.good == (error <= allowed)


def test_a_predicted_zero_among_others_is_compared_at_the_scale_of_the_whole():
    spectrum = np.array([0.5, -0.5, 0.0])
    noisy = spectrum + 1e-12
    assert equal(spectrum, noisy, rtol=1e-10, control=2 * spectrum).good
    assert not equal(spectrum, noisy, rtol=1e-10, each=True, control=2 * spectrum).good


def test_each_entry_at_its_own_size_stores_one_tolerance_per_entry():
    found = equal([1.0, 100.0], [1.0, 100.0], rtol=0.1, each=True, control=[2.0, 100.0])
    assert found.tolerance == pytest.approx([0.1, 10.0])


def test_what_is_not_finite_never_holds_and_is_stored_as_none():
    for measured in (np.nan, np.inf, -np.inf):
        found = equal(1.0, measured, atol=1e9, control=2.0)
        assert found.verdict is Verdict.FAILS
        assert found.measured is None
        assert "not finite" in found.sentence
    assert not equal(np.inf, np.inf, control=1.0).good
    assert equal([1.0, 2.0], [1.0, np.nan], control=0.0).measured == [1.0, None]


def test_a_control_that_still_matches_does_not_flip():
    found = equal(1.0, 1.0, rtol=0.1, control=1.05)
    assert found.control is not None
    assert not found.control.flips


@pytest.mark.parametrize("control", [np.nan, np.inf, [1.0, np.nan]])
def test_a_control_that_is_not_finite_flips_nothing(control):
    found = equal([1.0, 2.0], [1.0, 2.0], control=control)
    assert found.control is not None
    assert not found.control.flips


def test_a_control_may_perturb_the_setting_instead_of_the_formula():
    found = equal(1.0, 1.0, control_measured=3.0)
    assert found.control is not None
    assert found.control.flips
    assert (found.control.predicted, found.control.measured) == (1.0, 3.0)


def test_without_a_control_there_is_none():
    assert equal(1.0, 1.0).control is None
    assert fact(True).control is None
    assert every(a=equal(1.0, 1.0, control=2.0), b=equal(1.0, 1.0)).control is None


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=finite))
def test_small_arrays_are_stored_whole_and_equal_to_themselves(array):
    found = equal(array, array, control=array + 1 + np.abs(array).max())
    assert found.good
    assert np.array_equal(np.array(found.measured), array)
    assert found.control is not None
    assert found.control.flips


def test_a_large_array_is_stored_as_its_worst_entry():
    predicted = np.ones((50, 50))
    measured = predicted.copy()
    measured[7, 3] = 1.5
    found = equal(predicted, measured, control=2.0)
    assert (found.predicted, found.measured, found.error) == (1.0, 1.5, 0.5)
    assert "2500 entries" in found.sentence


@given(finite, finite, st.floats(0, 10))
def test_at_most_and_at_least_are_mirror_images(measured, bound, slack):
    below = at_most(measured, bound, slack=slack, control=bound + slack + 1e3)
    above = at_least(-measured, -bound, slack=slack, control=-bound - slack - 1e3)
    assert below.verdict is above.verdict
    assert below.good == (measured - bound <= slack)
    assert below.control is not None
    assert below.control.flips == below.good


def test_a_perturbed_bound_is_a_control_too():
    found = at_most(0.9, 1.0, control_bound=0.5)
    assert found.control is not None
    assert found.control.flips


def test_signs_are_strict():
    assert positive([0.1, 2.0], control=-1.0).good
    assert not positive([0.0, 2.0], control=-1.0).good
    assert negative(-1e-9, control=1.0).good
    assert not negative(-1e-9, margin=1e-6, control=1.0).good


def test_a_fact_is_exact_and_needs_truth_values():
    found = fact(np.True_, control=np.False_)  # type: ignore[arg-type]
    assert found.strength is Strength.EXACT
    assert found.measured is True
    assert found.control is not None
    assert found.control.flips
    with pytest.raises(InputError, match="not a truth value"):
        fact(1.0, control=False)  # type: ignore[arg-type]


def test_every_part_must_hold_and_every_control_flip():
    good = equal(1.0, 1.0, control=2.0)
    bad = equal(1.0, 3.0, control=3.0)
    vacuous = equal(1.0, 1.0, control=1.0)
    assert every(a=good, b=good).verdict is Verdict.HOLDS
    assert every(a=good, b=bad).verdict is Verdict.FAILS
    control = every(a=good, b=vacuous).control
    assert control is not None
    assert not control.flips
    with pytest.raises(InputError, match="no measurement"):
        every()
    with pytest.raises(InputError, match="claim of its own"):
        every(a=good, b=not_checkable("needs a GPU farm"))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: equal([], [], control=[]), "is empty"),
        (lambda: equal(1j, 1.0, control=2.0), "not a real number"),
        (lambda: equal("a", 1.0, control=2.0), "not a real number"),
        (lambda: equal([1.0, [2.0]], 1.0, control=2.0), "not a real number"),
        (lambda: equal([1.0, 2.0], [1.0, 2.0, 3.0], control=0.0), "shape"),
        (lambda: equal(1.0, 1.0, rtol=-1.0, control=2.0), "not a tolerance"),
        (lambda: equal(1.0, 1.0, atol=np.nan, control=2.0), "not a tolerance"),
        (lambda: not_checkable("  "), "say why"),
    ],
)
def test_bad_input_is_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()
