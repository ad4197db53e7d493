"""What the builders call equal, bounded, signed, monotone and true; when controls flip."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnflow._errors import InputError
from attnflow.claims import (
    Control,
    Strength,
    Verdict,
    always,
    at_least,
    at_most,
    equal,
    every,
    fact,
    identity,
    monotone,
    not_checkable,
    sign,
)

finite = st.floats(-1e6, 1e6, allow_nan=False)
TWO = Control("two", 2.0)


def test_equal_carries_prediction_measurement_and_the_absolute_tolerance():
    found = equal(predicted=2.0, measured=2.0 + 1e-11, rtol=1e-10, control=Control("other", 2.1))
    assert found.verdict is found.promise is Verdict.HOLDS
    assert (found.predicted, found.measured) == (2.0, 2.0 + 1e-11)
    assert found.tolerance == pytest.approx(2e-10)
    assert found.error == pytest.approx(1e-11, rel=1e-3)
    assert found.control is not None
    assert found.control.flips
    assert found.control.name == "other"


@given(finite, st.floats(1e-12, 1e-3), st.floats(-3, 3))
def test_equal_holds_exactly_within_its_tolerance(predicted, rtol, times):
    measured = predicted + times * rtol * abs(predicted)
    found = equal(predicted=predicted, measured=measured, rtol=rtol)
    error, allowed = abs(measured - predicted), found.tolerance
    assert found.good == (error <= allowed)


def test_a_predicted_zero_among_others_is_compared_at_the_scale_of_the_whole():
    spectrum = np.array([0.5, -0.5, 0.0])
    noisy = spectrum + 1e-12
    assert equal(predicted=spectrum, measured=noisy, rtol=1e-10).good
    assert not equal(predicted=spectrum, measured=noisy, rtol=1e-10, each=True).good


def test_each_entry_at_its_own_size_stores_one_tolerance_per_entry():
    found = equal(predicted=[1.0, 100.0], measured=[1.0, 100.0], rtol=0.1, each=True)
    assert found.tolerance == pytest.approx([0.1, 10.0])


def test_what_is_not_finite_never_holds_and_is_stored_as_none():
    for measured in (np.nan, np.inf, -np.inf):
        found = equal(predicted=1.0, measured=measured, atol=1e9)
        assert found.verdict is Verdict.FAILS
        assert found.measured is None
        assert "not finite" in found.sentence
    assert not equal(predicted=np.inf, measured=np.inf).good
    assert equal(predicted=[1.0, 2.0], measured=[1.0, np.nan]).measured == [1.0, None]


@pytest.mark.parametrize("value", [1.05, np.nan, np.inf])
def test_a_control_that_matches_or_is_not_finite_does_not_flip(value):
    found = equal(predicted=1.0, measured=1.0, rtol=0.1, control=Control("near", value))
    assert found.control is not None
    assert not found.control.flips


def test_a_control_may_change_the_setting_instead_of_the_formula():
    found = equal(predicted=1.0, measured=1.0, control=Control("elsewhere", measured=3.0))
    assert found.control is not None
    assert found.control.flips
    assert (found.control.predicted, found.control.measured) == (1.0, 3.0)
    both = Control("another law", predicted=2.0, measured=2.0)
    assert not equal(predicted=1.0, measured=1.0, control=both).control.flips  # type: ignore[union-attr]


def test_without_a_control_there_is_none():
    one = equal(predicted=1.0, measured=1.0)
    assert one.control is None
    assert fact(measured=True).control is None
    assert every(a=equal(predicted=1.0, measured=1.0, control=TWO), b=one).control is None


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=finite))
def test_small_arrays_are_stored_whole_and_equal_to_themselves(array):
    found = equal(predicted=array, measured=array)
    assert found.good
    assert np.array_equal(np.array(found.measured), array)


def test_a_large_array_is_stored_as_its_worst_entry():
    predicted = np.ones((50, 50))
    measured = predicted.copy()
    measured[7, 3] = 1.5
    found = equal(predicted=predicted, measured=measured)
    assert (found.predicted, found.measured, found.error) == (1.0, 1.5, 0.5)
    assert "2500 entries" in found.sentence


@given(finite, finite, st.floats(0, 10))
def test_at_most_and_at_least_are_mirror_images(measured, bound, slack):
    beyond = Control("beyond", bound + slack + 1e3)
    below = at_most(measured=measured, bound=bound, slack=slack, control=beyond)
    mirrored = Control("beyond", -bound - slack - 1e3)
    above = at_least(measured=-measured, bound=-bound, slack=slack, control=mirrored)
    assert below.verdict is above.verdict
    assert below.good == (measured - bound <= slack)
    assert below.control is not None
    assert below.control.flips == below.good
    assert (below.relation, above.relation) == ("at most", "at least")


def test_signs_are_strict_and_may_differ_by_entry():
    other = Control("the other way", -1.0)
    assert sign(predicted=1, measured=[0.1, 2.0], control=other).good
    assert not sign(predicted=1, measured=[0.0, 2.0], control=other).good
    assert sign(predicted=[1, -1], measured=[0.1, -2.0]).good
    assert not sign(predicted=-1, measured=-1e-9, margin=1e-6).good
    with pytest.raises(InputError, match=r"\+1 or -1"):
        sign(predicted=0.5, measured=1.0)


def test_an_identity_is_exact_and_compared_point_by_point():
    points = [1e-8, 1.0, 1e8]
    found = identity(
        over=points,
        predicted=lambda x: x**2,
        measured=lambda x: x * x,
        control=Control("cube", lambda x: x**3),
    )
    assert found.strength is Strength.EXACT
    assert found.good
    assert found.control is not None
    assert found.control.flips
    # An error at the smallest point is not hidden by the largest one.
    assert not identity(over=points, predicted=lambda x: x, measured=lambda x: x + 1e-9).good
    with pytest.raises(InputError, match="no point"):
        identity(over=[], predicted=abs, measured=abs)


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=12))
def test_monotone_is_what_every_step_says(values):
    rising = all(b > a for a, b in itertools.pairwise(values))
    falling = all(b < a for a, b in itertools.pairwise(values))
    assert monotone(measured=values).good == rising
    assert monotone(measured=values, rising=False).good == falling


def test_a_monotone_series_may_lose_its_slack_and_needs_three_values():
    assert not monotone(measured=[0.0, 1.0, 0.9, 2.0]).good
    assert monotone(measured=[0.0, 1.0, 0.9, 2.0], slack=0.2).good
    found = monotone(measured=[0, 1, 2], control=Control("backwards", [2, 1, 0]))
    assert found.control is not None
    assert found.control.flips
    with pytest.raises(InputError, match="three values"):
        monotone(measured=[0.0, 1.0])


def test_always_looks_at_its_window_alone():
    t, y = np.arange(6.0), np.array([9.0, 0.0, 0.5, 0.4, 0.3, 9.0])
    found = always(times=t, measured=y, after=1, until=4, at_most=0.6, control=Control("y", y + 1))
    assert found.good
    assert found.control is not None
    assert found.control.flips
    assert not always(times=t, measured=y, after=1, at_most=0.6).good
    assert always(times=t, measured=y, until=0, at_least=9.0).good
    with pytest.raises(InputError, match="no time lies"):
        always(times=t, measured=y, after=7, at_most=1.0)
    with pytest.raises(InputError, match="one of at_least"):
        always(times=t, measured=y)
    with pytest.raises(InputError, match="3 values at 6 times"):
        always(times=t, measured=y[:3], at_most=1.0)


def test_a_fact_needs_truth_values():
    found = fact(measured=np.True_, control=Control("no", np.False_))  # type: ignore[arg-type]
    assert found.strength is Strength.NUMERIC
    assert found.measured is True
    assert found.control is not None
    assert found.control.flips
    with pytest.raises(InputError, match="not a truth value"):
        fact(measured=1.0)  # type: ignore[arg-type]


def test_every_part_must_hold_and_every_control_flip():
    good = equal(predicted=1.0, measured=1.0, control=TWO)
    bad = equal(predicted=1.0, measured=3.0, control=Control("three", 3.0))
    vacuous = equal(predicted=1.0, measured=1.0, control=Control("one", 1.0))
    assert every(a=good, b=good).verdict is Verdict.HOLDS
    assert every(a=good, b=bad).verdict is Verdict.FAILS
    control = every(a=good, b=vacuous).control
    assert control is not None
    assert not control.flips
    assert every(a=good, b=not_checkable("no data")).verdict is Verdict.NOT_CHECKABLE
    with pytest.raises(InputError, match="no measurement"):
        every()


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: equal(predicted=[], measured=[]), "is empty"),
        (lambda: equal(predicted=1j, measured=1.0), "not a real number"),
        (lambda: equal(predicted="a", measured=1.0), "not a real number"),
        (lambda: equal(predicted=[1.0, [2.0]], measured=1.0), "not a real number"),
        (lambda: equal(predicted=[1.0, 2.0], measured=[1.0, 2.0, 3.0]), "shape"),
        (lambda: equal(predicted=1.0, measured=1.0, rtol=-1.0), "not a tolerance"),
        (lambda: equal(predicted=1.0, measured=1.0, atol=np.nan), "not a tolerance"),
        (lambda: equal(predicted=1.0, measured=1.0, control=2.0), "write Control"),
        (lambda: Control(" ", 1.0), "has no name"),
        (lambda: Control("a"), "has no value"),
        (lambda: Control("a", 1.0, predicted=2.0).sides("predicted"), "twice"),
        (lambda: not_checkable("  "), "say why"),
    ],
)
def test_bad_input_is_one_sentence(build, sentence):
    with pytest.raises(InputError, match=sentence):
        build()
