"""Comparing two trajectories."""

import numpy as np
import pytest
import xarray as xr
from fake_producer import folder_for, produce

from attnflow._errors import InputError
from attnflow.runs import DiskSink, compare, open_run


def data(times, labels=("a", "b"), **columns):
    return xr.Dataset(
        {n: (("time", "token") if np.ndim(v) == 2 else "time", v) for n, v in columns.items()},
        {"time": times, "token": list(labels)},
    )


def test_a_run_compared_with_itself_is_zero_everywhere(tmp_path):
    with folder_for(tmp_path / "r") as folder:
        produce(DiskSink(folder))
    run = open_run(tmp_path / "r")
    result = compare(run, run.trajectory)
    assert [(r.name, r.absolute, r.relative) for r in result.rows] == [
        ("loss", 0, 0),
        ("score", 0, 0),
    ]
    assert not result.interpolated


def test_differences_are_taken_on_the_coarser_grid_of_the_common_range():
    t, s = np.linspace(0, 10, 101), np.linspace(2, 12, 6)
    a, b = data(t, loss=3 * t), data(s, loss=3 * s + 0.5 * (s == 6))
    result = compare(a, b)
    assert result["loss"].absolute == pytest.approx(0.5)
    assert result["loss"].at == 6
    assert result["loss"].scale == pytest.approx(30 - 6)
    assert result["loss"].size == pytest.approx(30)
    assert result["loss"].relative == pytest.approx(0.5 / 24)
    assert result.sentence == (
        "the same to 2.1 % of its range (loss at time 6); from time 2 to 10, at 5 common times"
    )
    assert compare(b, a)["loss"].absolute == result["loss"].absolute


def test_a_gap_of_three_percent_is_called_three_percent():
    """The second run is late by a little: where both have fallen to nothing it is 100 % larger."""
    t = np.linspace(0, 40, 401)
    early, late = np.exp(-t), np.exp(-(t - 0.0326))
    result = compare(data(t, loss=early), data(t, loss=np.minimum(late, 1.0)))
    assert result["loss"].relative == pytest.approx(np.exp(-0.1) * (np.exp(0.0326) - 1))
    assert result.sentence.startswith("the same to 3 % of its range (loss at time 0.1); ")
    shifted = compare(data(t, loss=early), data(t, loss=early + 0.03 * t / 40))
    assert shifted["loss"].relative == pytest.approx(0.03)
    assert shifted["loss"].at == 40
    assert shifted.sentence.startswith("the same to 3 % of its range (loss at time 40); ")
    assert "3 %" in repr(shifted)
    assert "3 %" in shifted._repr_html_()


def test_a_large_gap_is_not_called_the_same():
    t = np.linspace(0, 1, 5)
    result = compare(data(t, loss=1 - t), data(t, loss=1 - t / 2))
    assert result.sentence.startswith("they differ by 50 % of its range (loss at time 1); ")


def test_the_worst_observable_is_named():
    t = np.linspace(0, 1, 5)
    a = data(t, loss=t, norm=5 + t)
    result = compare(a, data(t, loss=t + 1e-9, norm=5.04 + t))
    assert result.worst is result["norm"]
    assert result.largest_relative == pytest.approx(0.04)
    assert result["loss"].relative == pytest.approx(1e-9)
    assert "1.0e-09" in repr(result)


def test_what_hardly_moves_is_measured_by_its_size():
    """A conserved quantity: its range is its own rounding."""
    t = np.linspace(0, 1, 5)
    noise = 1e-13 * np.array([0, 1, -1, 1, 0])
    still = compare(data(t, c=7 + noise), data(t, c=7 - noise))["c"]
    assert still.of == "size"
    assert still.relative < 1e-13
    apart = compare(data(t, c=7 + noise), data(t, c=7.7 + noise))["c"]
    assert (apart.of, apart.relative) == ("size", pytest.approx(0.7 / 7.7))
    zero = compare(data(t, c=0 * t), data(t, c=0 * t))
    assert zero.sentence.startswith("equal in every number; ")


def test_interpolation_is_said():
    a, b = data([0.0, 1.0, 2.0], loss=[0.0, 1.0, 4.0]), data([0.5, 1.5], loss=[0.25, 2.25])
    result = compare(a, b)
    assert result.interpolated
    assert result["loss"].absolute == pytest.approx(0.25)
    assert "interpolated" in repr(result)


def test_a_nan_on_one_side_only_is_an_infinite_difference():
    t = [0.0, 1.0]
    a, b = data(t, x=[np.nan, 1.0], y=[np.nan, 1.0]), data(t, x=[np.nan, 1.0], y=[0.0, 1.0])
    result = compare(a, b)
    assert result["x"].absolute == 0
    assert result["y"].absolute == result.largest_relative == np.inf
    assert "one side has no number where the other has one (y)" in result.sentence


def test_what_cannot_be_compared_is_left_out_with_its_reason():
    t, m = [0.0, 1.0], np.ones((2, 2))
    a = data(t, x=m, only=[1.0, 2.0], word=["a", "b"])
    b = data(t, labels=("b", "a"), x=m, word=["a", "b"])
    result = compare(a, b)
    assert result.rows == ()
    assert result.skipped == {
        "x": "the labels of 'token' differ",
        "only": "only in the first",
        "word": "not real numbers",
    }
    assert "only in the first" in result._repr_html_()


def test_transposed_dimensions_are_the_same_observable():
    t, m = [0.0, 1.0, 2.0], np.arange(6.0).reshape(3, 2)
    a = data(t, x=m)
    assert compare(a, a.transpose("token", "time"))["x"].absolute == 0


def test_no_common_time_is_a_sentence():
    result = compare(data([0.0, 1.0], x=[1.0, 2.0]), data([2.0, 3.0], x=[1.0, 2.0]))
    assert result.rows == ()
    assert "no time in common" in result.sentence


def test_a_dataset_without_time_is_bad_input():
    with pytest.raises(InputError, match="no coordinate 'time'"):
        compare(xr.Dataset({"x": ("y", [1.0])}), data([0.0], x=[1.0]))
