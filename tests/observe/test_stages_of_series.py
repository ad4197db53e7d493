"""Where a series passes a level and where it is highest, between its samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.observe import Stage, first_time, summit


@given(st.floats(0.5, 8.0), st.integers(30, 300))
def test_a_straight_line_is_crossed_where_it_is(when, rows):
    t = np.linspace(0, 10, rows)
    assert first_time(t, 1 + (t - when)) == pytest.approx(when, abs=1e-9)


def test_a_level_has_to_be_held():
    t = np.arange(10.0)
    signal = np.array([0, 2, 2, 0, 0, 2, 2, 2, 2, 0.0])
    assert first_time(t, signal) == pytest.approx(4.5)
    assert first_time(t, signal, hold=2) == pytest.approx(0.5)
    assert first_time(t, signal, hold=5) is None
    assert first_time(t, signal, level=3.0) is None


def test_nothing_is_found_before_the_time_asked_for():
    t, signal = np.arange(10.0), np.full(10, 2.0)
    assert first_time(t, signal) == 0.0
    assert first_time(t, signal, after=3.5) == 4.0


@given(st.floats(2.2, 7.8), st.integers(20, 200), st.integers(0, 100))
def test_a_parabola_is_highest_at_its_top(top, rows, seed):
    steps = np.random.default_rng(seed).uniform(0.5, 1.5, rows)
    t = 10 * np.cumsum(steps) / steps.sum()
    signal = -((t - top) ** 2)
    assert summit(t, signal, int(np.argmax(signal))) == pytest.approx(top, abs=1e-7)


def test_an_end_is_its_own_top():
    t = np.arange(5.0)
    assert summit(t, t, 4) == 4.0
    assert summit(t, -t, 0) == 0.0
    assert summit(t, np.array([0, 1, 1, 1, 0.0]), 2) == 2.0


def test_a_stage_says_its_time_in_the_unit_of_its_run():
    assert Stage("focus", 60.357).when == "t = 60.36"
    assert Stage("focus", 0.03, step=201).when == "step 201"
