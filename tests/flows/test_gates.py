"""Gated flows: switches located, simultaneous ones together, sliding solved and left exactly."""

from __future__ import annotations

import jax.numpy as jnp
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
    gaussian,
    integrate,
)
from attnflow.models.two_head_gram import score_flow, score_start
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.tasks import MixtureClassification
from tolerances import LEADING_ORDER, LOCATED_MARK, SOLVED_TIGHTLY

TIGHT = {"rtol": 1e-11, "solver": Solver(atol=1e-13)}


def gated(velocity, gates, names=None):
    """A flow from a velocity with gates."""
    return Flow(velocity=velocity, gates=gates, gate_names=names, name="toy")


# x' = 1 - g(x > 0) c(s), s' = 1: below 0 upwards by 1, above downwards by c - 1 with c = 3 - s.
# Slides on x = 0 from t = 1 with the share 1 / c, until c = 1 at s = 2; then x' = s - 2.
def slowing(theta, g):
    return {"x": 1.0 - g[0] * (3.0 - theta["s"]), "s": jnp.ones(())}


toy = gated(slowing, lambda th: jnp.atleast_1d(th["x"]), names=["wall"])
below = {"x": np.array(-1.0), "s": np.array(0.0)}


def test_a_sliding_mode_is_entered_solved_and_left():
    solution = integrate(toy, below, 4.0, **TIGHT)
    assert [(e.name, e.direction) for e in solution.events] == [
        ("sliding wall", 1),
        ("sliding wall", -1),
    ]
    assert [e.time for e in solution.events] == pytest.approx([1.0, 2.0], abs=LOCATED_MARK)
    (mode,) = solution.sliding
    assert mode.sliding == ("wall",)
    assert mode.share[0] == pytest.approx((0.5, 1.0), abs=LOCATED_MARK)
    # On the surface the gate is 1 / (3 - s), and x stays 0; afterwards x = (t - 2)^2 / 2.
    rows = solution.trajectory.sel(time=slice(1.01, 1.99))
    assert rows["gates"].values[:, 0] == pytest.approx(1 / (3 - rows["time"].values), abs=1e-8)
    assert float(solution.at(1.5)["x"]) == pytest.approx(0, abs=LOCATED_MARK)
    assert float(solution.final["x"]) == pytest.approx(2.0, abs=1e-8)
    assert solution.status is Status.DONE


def test_descent_chatters_around_the_same_flow():
    for rate in (0.01, 0.001):
        run = descend(toy, below, 4.0, GradientDescent(rate), save=Linear(9))
        assert float(run.final["x"]) == pytest.approx(2.0, abs=10 * rate)


def test_a_crossing_is_located_and_not_called_sliding():
    # x' = 1 below 0 and 3 above: crosses at t = 1.
    flow = gated(lambda th, g: {"x": 1.0 + 2.0 * g[0]}, lambda th: jnp.atleast_1d(th["x"]))
    solution = integrate(flow, {"x": np.array(-1.0)}, 2.0, **TIGHT)
    assert [(e.name, e.direction) for e in solution.events] == [("gate 0", 1)]
    assert solution.events[0].time == pytest.approx(1.0, abs=LOCATED_MARK)
    assert float(solution.final["x"]) == pytest.approx(3.0, abs=LOCATED_MARK)
    assert not solution.sliding
    assert [mode.on for mode in solution.modes] == [(False,), (True,)]


def test_simultaneous_gates_switch_together():
    # Crossing both is consistent, crossing one is not: rounding must not choose.
    def velocity(theta, g):
        return {"x": -1.0 + 0.5 * (g - g[::-1]) ** 2}

    flow = gated(velocity, lambda th: th["x"])
    solution = integrate(flow, {"x": np.array([1.0, 1.0])}, 2.0, **TIGHT)
    assert [(e.index, e.direction) for e in solution.events] == [(0, -1), (1, -1)]
    assert solution.events[0].time == solution.events[1].time
    assert solution.final["x"] == pytest.approx(np.array([-1.0, -1.0]), abs=LOCATED_MARK)


@pytest.mark.parametrize("c", [1.7, 2.0, 2.5, 3.1])
def test_a_lone_gate_slides_whatever_the_rounding_of_its_rate(c):
    # x' = 2 - s - c on: slides on x = 0 from t = 1 with the share (2 - t)/c, and leaves it at 2.
    flow = gated(
        lambda th, g: {"x": 2.0 - th["s"] - c * g[0], "s": jnp.ones(())},
        lambda th: jnp.atleast_1d(th["x"]),
    )
    solution = integrate(flow, {"x": np.array(-1.5), "s": np.array(0.0)}, 2.5, **TIGHT)
    assert solution.status is Status.DONE
    assert solution.sliding[0].share[0] == pytest.approx((1 / c, 0.0), abs=LOCATED_MARK)
    assert float(solution.final["x"]) == pytest.approx(-0.125, abs=LOCATED_MARK)


def test_two_gates_slide_at_once():
    # x_i' = 1 - c_i g_i: both end on their surface, with shares 1 / c_i, at t = 1 and t = 2.
    c = np.array([4.0, 2.0])
    flow = gated(lambda th, g: {"x": 1.0 - c * g}, lambda th: th["x"])
    solution = integrate(flow, {"x": np.array([-1.0, -2.0])}, 3.0, **TIGHT)
    assert [e.name for e in solution.events] == ["sliding gate 0", "sliding gate 1"]
    assert [e.time for e in solution.events] == pytest.approx([1.0, 2.0], abs=LOCATED_MARK)
    assert solution.trajectory["gates"].values[-1] == pytest.approx(1 / c, abs=LOCATED_MARK)
    assert solution.final["x"] == pytest.approx(np.zeros(2), abs=LOCATED_MARK)


def test_stops_marks_and_output_times():
    solution = integrate(
        toy,
        below,
        4.0,
        observe={"s": lambda th: th["s"]},
        save=[0.5, 1.5, 2.5],
        marks={"half": Mark(lambda th: th["s"], level=1.25)},
        stops={"late": Mark(lambda th: th["s"], level=3.0)},
        **TIGHT,
    )
    assert solution.status is Status.STOPPED
    assert "'late' was reached at t = 3" in solution.sentence
    assert (solution.first("half"), solution.first("late")) == pytest.approx((1.25, 3.0))
    times = solution.trajectory["time"].values
    assert times == pytest.approx([0.5, 1, 1.5, 2, 2.5, 3], abs=LOCATED_MARK)
    assert solution.trajectory["s"].values == pytest.approx(times, abs=LOCATED_MARK)


def test_too_many_switches_are_a_status():
    # A gate that swings: x'' = -x crosses 0 again and again, smoothly.
    flow = gated(lambda th, g: {"x": th["v"], "v": -th["x"]}, lambda th: jnp.atleast_1d(th["x"]))
    start = {"x": np.array(1.0), "v": np.array(0.0)}
    solution = integrate(flow, start, 100.0, limits=Limits(switches=3), **TIGHT)
    assert solution.status is Status.STALLED
    assert len(solution.events) == 4
    expected = np.pi * (np.arange(4) + 0.5)
    assert [e.time for e in solution.events] == pytest.approx(expected, abs=1e-8)


def test_a_list_of_names_that_does_not_fit():
    flow = gated(lambda th, g: {"x": g}, lambda th: th["x"], names=["only one"])
    with pytest.raises(InputError, match="1 names for 2 gates"):
        integrate(flow, {"x": np.ones(2)}, 1.0)


# The two-head classifier.


@pytest.mark.parametrize("bias", [0.25, 0.5, 1.0])
def test_stage_one_switches_at_the_closed_form_time(bias):
    stage = symmetric_flow(MixtureClassification(2, 3).orbits, 0.1, bias, ("attention",))
    solution = integrate(stage, stage.start, 20.0, rtol=1e-11)
    (event,) = solution.events
    assert event.time == pytest.approx(bias + (np.exp(2 * bias) - 1) / 2, abs=1e-8)
    assert (event.name, event.direction) == ("minus c1 +v1 +v2", -1)
    if bias == 0.5:
        assert solution.final["w"] == pytest.approx([0.3101696281, 0.8703392563], abs=1e-9)


def test_the_four_gates_of_the_full_model_switch_at_one_instant():
    flow = score_flow(MixtureClassification(2, 3).population, 0.1, 0.5, ("attention",))
    solution = integrate(flow, score_start(2), 20.0, rtol=1e-10, solver=Solver(atol=1e-12))
    # Corollary D.6: plus head on consistent y = -1, minus head on consistent y = +1.
    assert sorted(e.name for e in solution.events) == [
        "minus c1 +v1 +v2",
        "minus c2 +v2 +v1",
        "plus c1 -v1 -v2",
        "plus c2 -v2 -v1",
    ]
    assert {e.time for e in solution.events} == {solution.events[0].time}
    assert solution.events[0].time == pytest.approx(0.5 + (np.e - 1) / 2, abs=1e-8)
    assert solution.final["w"][0] == pytest.approx(
        [0.3101696281, 0.3101696281, 0.8703392563, 0.8703392563], abs=1e-8
    )


@pytest.fixture(scope="module")
def five_tokens():
    """K = 2, L = 5, b = 1/2 at infinite width: the exact flow up to t = 20."""
    flow = symmetric_flow(MixtureClassification(2, 5).orbits, 0.1, 0.5)
    return flow, integrate(flow, flow.start, 20.0, rtol=1e-9)


def test_the_exact_flow_slides_at_five_tokens(five_tokens):
    _, solution = five_tokens
    (mode,) = solution.sliding
    assert mode.sliding == ("minus c1 +v1 +v2 +v2 -v2",)  # d = 1
    assert (mode.begins, mode.ends) == pytest.approx((3.1143, 16.6525), abs=1e-3)
    assert 0 < mode.share[0][0] < 1
    assert mode.share[0][1] == pytest.approx(1, abs=1e-6)  # it leaves with the gate on


def test_small_steps_of_descent_follow_the_sliding_flow_and_large_ones_jump(five_tokens):
    flow, solution = five_tokens
    exact = solution.final["w"]
    small, large = (
        descend(flow, flow.start, 20.0, GradientDescent(rate), save=Linear(2)).final["w"]
        for rate in (2e-4, 1e-2)
    )
    assert small == pytest.approx(exact, abs=SOLVED_TIGHTLY * 10)
    assert np.abs(large - exact).max() > LEADING_ORDER * 5
    assert large[0] < exact[0] / 5  # gamma turns down: the branch that gives up d = -3


@pytest.mark.parametrize(("K", "half"), [(2, 108.0), (3, 197.8), (8, 641.5)])
def test_half_time_of_the_conflicting_loss(K, half):
    flow = symmetric_flow(MixtureClassification(K, 3).orbits, 0.1)
    level = Mark(lambda z: flow.group_losses(z)[0], level=np.log(2) / 2, direction=-1)
    solution = integrate(flow, flow.start, 1.3 * half, stops={"half": level})
    assert solution.first("half") == pytest.approx(half, rel=0.005)


def test_a_gated_phase_of_a_schedule():
    phases = [Phase("on", toy, 1.5), Phase("held", toy, 1.0, frozen=("x",))]
    solution = integrate(phases, below, **TIGHT)
    assert float(solution.final["x"]) == pytest.approx(0.0, abs=LOCATED_MARK)
    assert float(solution.final["s"]) == pytest.approx(2.5, abs=LOCATED_MARK)


# The user's own ReLU network, by autodiff: y = sum_i a_i relu(w_i x).
X, TARGET = np.array([-1.0, -0.5, 0.3, 0.8]), np.array([0.4, 0.0, 0.5, 0.1])


def relu_loss(theta, on):
    hidden = on * (theta["w"][:, None] * X + theta["b"][:, None])
    return 0.5 * jnp.mean((theta["a"] @ hidden - TARGET) ** 2)


def relu_guards(theta):
    return theta["w"][:, None] * X + theta["b"][:, None]


NETWORK = Flow(relu_loss, gates=relu_guards)
WEIGHTS = gaussian({"w": (3,), "b": (3,), "a": (3,)}, scale=0.6, seed=3)


def plain_relu(theta):
    hidden = jnp.maximum(theta["w"][:, None] * X + theta["b"][:, None], 0.0)
    return 0.5 * jnp.mean((theta["a"] @ hidden - TARGET) ** 2)


def test_a_loss_with_gates_is_the_relu_loss_and_its_gradient():
    plain = Flow(plain_relu)
    assert NETWORK.loss(WEIGHTS) == pytest.approx(plain.loss(WEIGHTS), rel=1e-14)
    ours, theirs = NETWORK.velocity(WEIGHTS), plain.velocity(WEIGHTS)
    for name in WEIGHTS:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-13, abs=1e-15)


def test_the_gated_solve_is_the_limit_of_small_steps_of_descent():
    solution = integrate(NETWORK, WEIGHTS, 30.0, rtol=1e-10)
    assert solution.status is Status.DONE
    assert any(e.name.startswith("gate ") for e in solution.events)
    errors = []
    for rate in (4e-3, 1e-3):
        run = descend(NETWORK, WEIGHTS, 30.0, GradientDescent(rate), save=Linear(2))
        errors.append(max(np.abs(run.final[n] - solution.final[n]).max() for n in WEIGHTS))
    assert errors[0] < 0.02
    assert errors[1] < 0.5 * errors[0]  # first order in the rate, through every switch


def test_shares_reach_observables_and_the_energy_balances_also_while_sliding(five_tokens):
    flow, _ = five_tokens
    solution = integrate(
        flow,
        flow.start,
        20.0,
        rtol=1e-9,
        observe={"power": lambda state, on: sum(flow.powers(state, on))},
        save=np.linspace(0.5, 19.5, 58),
    )
    data = solution.trajectory
    sliding = (data["time"].values > 3.3) & (data["time"].values < 16.5)
    assert sliding.sum() > 20
    ahead = solution.states(data["time"].values[sliding] + 1e-4)
    behind = solution.states(data["time"].values[sliding] - 1e-4)
    fall = [
        (flow.loss_of(row(behind, k)) - flow.loss_of(row(ahead, k))) / 2e-4
        for k in range(sliding.sum())
    ]
    assert data["power"].values[sliding] == pytest.approx(np.array(fall), rel=2e-3)


def row(states, k):
    return {name: array[k] for name, array in states.items()}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_killed_solve_through_gates_resumes_to_the_same_bits(after, five_tokens):
    flow, _ = five_tokens
    options = {"rtol": 1e-7, "observe": {"w": lambda s: s["w"]}}
    whole = integrate(flow, flow.start, 20.0, store=Store(Stored(), every=20), **options)
    sink = Interrupted(after)
    with pytest.raises(KeyboardInterrupt):
        integrate(flow, flow.start, 20.0, store=Store(sink, every=20), **options)
    resumed = integrate(flow, flow.start, 20.0, store=Store(sink, every=20), **options)
    assert resumed.trajectory.equals(whole.trajectory)
    assert resumed.modes == whole.modes
    assert resumed.events == whole.events


def test_a_relu_without_gates_that_stalls_is_told_so():
    flow = Flow(lambda th: jnp.abs(th["x"]).sum())
    solution = integrate(flow, {"x": np.array([1.0])}, 10.0)
    assert solution.status in (Status.STALLED, Status.FAILED, Status.DONE)
    if solution.status is Status.STALLED:
        assert "declare its gates" in solution.sentence
