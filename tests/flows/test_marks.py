"""Marks and stops: located by root finding, all recorded, in order, never changing the solve."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from attnflow.flows import Flow, GradientDescent, Linear, Mark, Solver, Status, descend, integrate
from attnflow.flows.engines import has_cvode
from tolerances import FLAT_ROOT, LEADING_ORDER, LOCATED_MARK, SOLVED

RTOL = 1e-11


def tight(engine):
    return Solver(engine, atol=1e-13)


needs_cvode = pytest.mark.skipif(not has_cvode(), reason="scikit-sundae has no wheel here")
engines = pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])

# x(t) = cos t, y(t) = -sin t: crossings in both directions at known times.
circle = Flow(velocity=lambda th: {"x": th["y"], "y": -th["x"]}, name="circle")
start = {"x": np.array(1.0), "y": np.array(0.0)}


def x(th):
    return th["x"]


@engines
def test_crossings_are_located_in_both_directions(engine):
    solution = integrate(circle, start, 7.0, marks={"zero": x}, solver=tight(engine), rtol=RTOL)
    assert [(e.name, e.direction, e.index) for e in solution.events] == [
        ("zero", -1, 0),
        ("zero", 1, 0),
    ]
    times = [e.time for e in solution.events]
    assert times == pytest.approx([np.pi / 2, 3 * np.pi / 2], abs=LOCATED_MARK)
    assert solution.first("zero") == times[0]


@engines
@pytest.mark.parametrize(("direction", "expected"), [(-1, np.pi / 3), (1, 5 * np.pi / 3)])
def test_a_direction_counts_only_crossings_that_way(engine, direction, expected):
    marks = {"half": Mark(x, level=0.5, direction=direction)}
    solution = integrate(circle, start, 6.0, marks=marks, solver=tight(engine), rtol=RTOL)
    assert [e.time for e in solution.events] == pytest.approx([expected], abs=LOCATED_MARK)
    assert solution.events[0].direction == direction


@engines
def test_a_vector_is_one_mark_per_entry(engine):
    levels = np.array([0.8, 2.0, 0.3])
    marks = {"level": lambda th: th["x"] - levels}
    solution = integrate(circle, start, 2.0, marks=marks, solver=tight(engine), rtol=RTOL)
    assert [e.index for e in solution.events] == [0, 2]
    expected = np.arccos([0.8, 0.3])
    assert [e.time for e in solution.events] == pytest.approx(expected, abs=LOCATED_MARK)


@engines
def test_marks_of_one_instant_are_all_recorded(engine):
    marks = {
        "a": x,
        "b": lambda th: -th["x"],
        "c": lambda th: th["x"] ** 3,
        "d": lambda th: jnp.stack([th["x"], 2 * th["x"]]),
    }
    solution = integrate(circle, start, 2.0, marks=marks, solver=tight(engine), rtol=RTOL)
    recorded = sorted((e.name, e.index) for e in solution.events)
    assert recorded == [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("d", 1)]
    times = [e.time for e in solution.events]
    assert times == sorted(times)
    assert times == pytest.approx([np.pi / 2] * 5, abs=FLAT_ROOT)
    plain = [e.time for e in solution.events if e.name != "c"]
    assert plain == pytest.approx([np.pi / 2] * 4, abs=LOCATED_MARK)


@engines
def test_a_mark_that_starts_on_its_level_has_not_crossed_it(engine):
    marks = {"top": Mark(x, level=1.0), "y": lambda th: th["y"]}
    solution = integrate(circle, start, 4.0, marks=marks, solver=tight(engine), rtol=RTOL)
    assert [e.name for e in solution.events] == ["y"]
    assert solution.first("y") == pytest.approx(np.pi, abs=LOCATED_MARK)


def test_a_mark_that_never_crosses_has_no_time():
    solution = integrate(circle, start, 4.0, marks={"far": Mark(x, level=3.0)})
    assert solution.events == ()
    assert np.isnan(solution.first("far"))
    assert solution.first("far", default=-1.0) == -1.0


@engines
def test_a_stop_ends_at_its_root_and_drops_what_comes_later(engine):
    marks = {
        "before": Mark(x, level=0.31),
        "at once": lambda th: 3.0 * (th["x"] - 0.3),
        "after": Mark(x, level=0.29),
    }
    solution = integrate(
        circle,
        start,
        50.0,
        marks=marks,
        stops={"stop": Mark(x, level=0.3)},
        solver=tight(engine),
        rtol=RTOL,
    )
    assert solution.status is Status.STOPPED
    assert "'stop' was reached at t = 1.266" in solution.sentence
    assert solution.time == pytest.approx(np.arccos(0.3), abs=LOCATED_MARK)
    assert solution.time == solution.first("stop")
    assert solution.final["x"] == pytest.approx(0.3, abs=LOCATED_MARK)
    names = {e.name for e in solution.events}
    assert {"before", "stop"} <= names <= {"before", "stop", "at once"}
    assert solution.trajectory["time"].values[-1] == solution.time
    assert np.all(solution.trajectory["time"].values <= solution.time)


@engines
def test_the_first_of_two_stops_ends_the_solve(engine):
    stops = {"late": Mark(x, level=0.2), "early": Mark(x, level=0.201)}
    solution = integrate(
        circle, start, 5.0, stops=stops, solver=tight(engine), save=Linear(7), rtol=RTOL
    )
    assert [e.name for e in solution.events] == ["early"]
    assert solution.trajectory["time"].values[-1] == solution.first("early")


def test_marks_in_the_very_first_step_are_found():
    flow = Flow(velocity=lambda th: {"x": jnp.ones_like(th["x"])})
    solution = integrate(
        flow, {"x": np.array([0.0])}, 10.0, marks={"m": Mark(lambda th: th["x"], level=1e-7)}
    )
    assert solution.first("m") == pytest.approx(1e-7, rel=SOLVED)


def test_descent_locates_marks_between_its_observations():
    flow = Flow(lambda th: 0.5 * th["x"] ** 2)
    run = descend(
        flow,
        {"x": np.array(1.0)},
        3.0,
        GradientDescent(1e-3),
        save=Linear(301),
        marks={"half": Mark(x, level=0.5)},
        stops={"tenth": Mark(x, level=0.1)},
    )
    assert run.status is Status.STOPPED
    assert run.first("half") == pytest.approx(np.log(2), abs=LEADING_ORDER)
    assert run.first("tenth") == pytest.approx(np.log(10), abs=LEADING_ORDER)
    assert run.events[-1].direction == -1
