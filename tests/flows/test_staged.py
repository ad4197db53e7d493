"""Staged schedules: phases one after another, for flows and for descent, as one solution."""

from __future__ import annotations

import numpy as np
import pytest
from sinks import Interrupted, Stored

from attnflow import InputError
from attnflow.flows import (
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Mark,
    Phase,
    Solver,
    Status,
    Store,
    descend,
    integrate,
)
from attnflow.reduce import GramFlow
from tolerances import IDENTITY, LOCATED_MARK, OPTAX_LOOP

TIGHT = {"rtol": 1e-11, "solver": Solver(atol=1e-13)}
start = {"x": np.array(1.0), "y": np.array(1.0)}


def decay(speed, name="decay"):
    """L = speed (x^2 + y^2) / 2: both decay at rate `speed`."""
    return Flow(lambda th: 0.5 * speed * (th["x"] ** 2 + th["y"] ** 2), name=name)


def low(level):
    return Mark(lambda th: th["y"], level=level, direction=-1)


SLOW, FAST = decay(1.0), decay(3.0)
PHASES = [
    Phase("x only", SLOW, 1.0, frozen=("y",)),
    Phase("y to a tenth", FAST, 50.0, stop=low(0.1), frozen=("x",)),
    Phase("both", SLOW, 0.5),
]
SECOND = np.log(10) / 3  # how long y' = -3 y needs to a tenth


def test_phases_follow_each_other_and_freeze_their_blocks():
    solution = integrate(PHASES, start, **TIGHT)
    assert solution.status is Status.DONE
    assert solution.first("x only") == pytest.approx(1.0, abs=IDENTITY)
    assert solution.first("y to a tenth") == pytest.approx(1 + SECOND, abs=LOCATED_MARK)
    assert solution.first("both") == pytest.approx(1.5 + SECOND, abs=LOCATED_MARK)
    assert len(solution.events) == 3
    assert float(solution.final["x"]) == pytest.approx(np.exp(-1.5), abs=LOCATED_MARK)
    assert float(solution.final["y"]) == pytest.approx(0.1 * np.exp(-0.5), abs=LOCATED_MARK)
    assert "both: reached t = 2.26" in solution.sentence


@pytest.mark.parametrize("solve", [integrate, descend])
@pytest.mark.parametrize("after", [[], [Phase("both", SLOW, 0.5)]])
def test_a_stop_that_is_not_reached_ends_every_schedule(solve, after):
    solution = solve([Phase("y to a tenth", SLOW, 0.5, stop=low(0.1)), *after], start)
    assert solution.status is Status.FAILED
    assert "its stop was not reached within 0.5." in solution.sentence
    assert solution.time == pytest.approx(0.5, abs=IDENTITY)
    assert solution.events == ()


def test_one_trajectory_with_the_phase_as_a_coordinate():
    solution = integrate(PHASES, start, observe={"x": lambda th: th["x"]}, save=Linear(5), **TIGHT)
    table = solution.trajectory
    assert table["phase"].attrs["names"] == ["x only", "y to a tenth", "both"]
    times = table["time"].values
    assert (np.diff(times) > 0).all()
    assert np.unique(table["phase"].values).tolist() == [0, 1, 2]
    flat = table["x"].values[table["phase"].values == 1]
    assert flat == pytest.approx(np.exp(-1.0), abs=LOCATED_MARK)
    assert (np.diff(table["step"].values) >= 0).all()


def test_the_state_at_a_time_of_any_phase():
    solution = integrate(PHASES, start, **TIGHT)
    for time, x, y in ((0.5, np.exp(-0.5), 1.0), (1.5, np.exp(-1), np.exp(-1.5))):
        theta = solution.at(time)
        assert (float(theta["x"]), float(theta["y"])) == pytest.approx((x, y), abs=1e-8)
    assert solution.at(0.0)["x"] == start["x"]
    with pytest.raises(InputError, match="spans 0 to"):
        solution.at(9.0)


def test_descent_takes_the_same_phases():
    rate = 0.05
    solution = descend(PHASES, start, optimiser=GradientDescent(rate), save=Linear(1001))
    steps = int(np.ceil(np.log(0.1) / np.log(1 - 3 * rate)))
    assert float(solution.final["x"]) == pytest.approx((1 - rate) ** 30, abs=OPTAX_LOOP)
    expected = (1 - 3 * rate) ** steps * (1 - rate) ** 10
    assert float(solution.final["y"]) == pytest.approx(expected, abs=OPTAX_LOOP)
    assert solution.trajectory["step"].values[-1] == 30 + steps


def test_descent_on_a_gram_flow_takes_the_steps_of_the_weights():
    # L = (1 - k q)^2 / 2 sees k, q through their product; phase one freezes q.
    def loss(G):
        return 0.5 * (1.0 - G["K", "Q"][0, 0]) ** 2

    blocks = {"K": 1, "Q": 1}
    frozen, joint = GramFlow(loss, blocks, rates={"Q": 0.0}), GramFlow(loss, blocks)
    weights = {"K": np.array([[0.5], [0.1]]), "Q": np.array([[0.2], [0.3]])}
    phases = [Phase("keys", frozen, 2.0), Phase("joint", joint, 3.0)]
    solution = descend(phases, joint.project(weights), optimiser=GradientDescent(0.1))
    K, Q = weights["K"].copy(), weights["Q"].copy()
    for step in range(50):
        r = 1.0 - float((K.T @ Q)[0, 0])
        K, Q = K + 0.1 * r * Q, Q + (0.1 * r * K if step >= 20 else 0.0)
    expected = np.block([[K.T @ K, K.T @ Q], [Q.T @ K, Q.T @ Q]])
    assert np.abs(solution.final["gram"].matrix - expected).max() < OPTAX_LOOP
    with pytest.raises(InputError, match="rates of 0"):
        descend(
            [Phase("keys", joint, 2.0, frozen=("gram",))],
            joint.project(weights),
            optimiser=GradientDescent(0.1),
        )


def test_a_stop_that_is_not_reached_ends_the_schedule():
    phases = [PHASES[0], Phase("never", FAST, 0.1, stop=low(0.1)), PHASES[2]]
    solution = integrate(phases, start, **TIGHT)
    assert solution.status is Status.FAILED
    assert "never: its stop was not reached" in solution.sentence
    assert [part.name for part in solution.phases] == ["x only", "never"]
    assert np.isnan(solution.first("never"))
    assert solution.first("x only") == pytest.approx(1.0)


def test_an_interrupted_schedule_goes_on_where_it_was():
    options = {"rtol": 1e-7, "solver": Solver(atol=1e-9)}
    whole = integrate(PHASES, start, store=Store(Stored(), every=20), **options)
    for steps in (10, 25, 60, 90):
        store = Store(Stored(), every=20)
        cut = integrate(PHASES, start, store=store, limits=Limits(steps=steps), **options)
        assert cut.status is Status.STEP_LIMIT
        assert cut.resumable
        resumed = integrate(PHASES, start, store=store, **options)
        assert resumed.status is Status.DONE
        assert resumed.trajectory.equals(whole.trajectory)
        assert resumed.phases == whole.phases
        assert resumed.events == whole.events


def test_an_interrupted_descent_of_phases_goes_on_where_it_was():
    options = {"optimiser": GradientDescent(0.01), "save": Linear(11)}
    whole = descend(PHASES, start, store=Store(Stored(), every=7), **options)
    for after in (1, 12, 20, 24):
        sink = Interrupted(after)
        with pytest.raises(KeyboardInterrupt):
            descend(PHASES, start, store=Store(sink, every=7), **options)
        resumed = descend(PHASES, start, store=Store(sink, every=7), **options)
        assert resumed.trajectory.equals(whole.trajectory)
        assert resumed.phases == whole.phases


def test_a_single_phase_is_the_plain_solve():
    solution = integrate([Phase("all", SLOW, 2.0)], start, **TIGHT)
    assert solution.final["x"] == integrate(SLOW, start, 2.0, **TIGHT).final["x"]


@pytest.mark.parametrize(
    ("phases", "field"),
    [
        ([], "phases"),
        (["a"], "phases"),
        ([PHASES[0], PHASES[0]], "phases"),
        ([Phase("a", SLOW, -1.0)], "phases.a.until"),
        ([Phase("a", SLOW, 1.0, frozen=("z",))], "rates.z"),
        ([Phase("a", object(), 1.0)], "phases.a.flow"),
    ],
)
def test_bad_schedules_are_one_sentence(phases, field):
    with pytest.raises(InputError) as caught:
        integrate(phases, start)
    assert caught.value.field == field
