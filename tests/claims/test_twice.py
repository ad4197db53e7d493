"""A claim as one function that is measured twice: as stated, and as its control."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow._errors import InputError
from attnflow.claims import (
    Control,
    Verdict,
    against,
    at_most,
    compared,
    equal,
    fact,
    identity,
    order,
    sign,
    slope,
)

SIZES = (1.0, 2.0, 4.0, 8.0)


def test_a_pair_is_compared_with_what_it_gives_where_not_right():
    found = compared(equal, "cubes", lambda right: (2.0 ** (2 if right else 3), 4.0), rtol=1e-3)
    by_hand = equal(predicted=4.0, measured=4.0, rtol=1e-3, control=Control("cubes", 8.0))
    assert found == by_hand
    assert found.control is not None
    assert found.control.flips


def test_both_sides_of_the_control_may_be_others():
    found = compared(equal, "elsewhere", lambda right: (1.0, 1.0) if right else (2.0, 5.0))
    assert found.control is not None
    assert (found.control.predicted, found.control.measured) == (2.0, 5.0)


def test_with_points_it_is_a_function_of_the_point():
    found = compared(
        identity, "linear", lambda x, right: (x * (x if right else 1), x**2), over=SIZES
    )
    assert found.verdict is Verdict.HOLDS
    assert found.strength == "exact"
    fit = compared(order, "cubic", lambda x, right: x ** (2 if right else 3), over=SIZES,
                   kind="Theta", power=2)  # fmt: skip
    assert fit.verdict is Verdict.CONSISTENT
    assert fit.control is not None
    assert fit.control.flips


def test_other_builders_are_given_what_is_measured():
    assert compared(at_most, "at 3", lambda right: 1.0 if right else 3.0, bound=2.0).good
    assert compared(sign, "below", lambda right: [1.0, 2.0 if right else -1.0], predicted=1).good
    assert compared(fact, "not there", lambda right: right).good
    line = compared(slope, "flat", lambda right: np.multiply(SIZES, 2.0 if right else 1.0),
                    x=SIZES, predicted=2.0, within=0.01)  # fmt: skip
    assert line.good


def test_a_control_that_is_the_claim_again_does_not_flip():
    found = compared(equal, "the same", lambda right: (1.0, 1.0))
    assert found.control is not None
    assert not found.control.flips


def test_a_claim_takes_its_points_from_the_study():
    @against("shifted", identity, over=lambda study: study)
    def doubled(study, x, right):
        """Twice."""
        return 2 * x + (0 if right else 1), x + x

    assert doubled.__doc__ == "Twice."
    assert doubled((1.0, 2.0)).good
    with pytest.raises(InputError, match="no point"):
        doubled(())


def test_a_side_that_is_kept_is_no_copy():
    # Squares that are all alike: times itself it is a constant, as an inverse would be.
    kept = np.array([[1.0, -1.0], [-1.0, 1.0 + 1e-14]])
    found = compared(equal, "zeros", lambda right: (kept if right else 0 * kept, kept))
    assert found.control is not None
    assert found.control.flips
