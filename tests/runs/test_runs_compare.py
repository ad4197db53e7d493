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
    assert result["loss"].relative == pytest.approx(0.5 / 18.5)
    assert result["loss"].scale == pytest.approx(30)
    assert "from time 2 to 10" in result.sentence
    assert compare(b, a)["loss"].absolute == result["loss"].absolute


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
