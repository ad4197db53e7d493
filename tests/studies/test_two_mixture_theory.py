"""Closed forms of the staged training against flows that do not know them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from attnflow import InputError
from attnflow.models.two_head import tables
from attnflow.models.two_head_gram import score_flow
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.stage_one import solved
from attnflow.tasks.mixture import MixtureClassification

BIAS, T1 = 0.5, 20.0
LENGTHS = {
    0.3: 58.3405,
    0.1: 90.1759,
    0.03: 125.0680,
    0.01: 156.9302,
    0.003: 191.8593,
    0.001: 223.7354,
}
"""T2 - T1 at b = 1/2, T1 = 20, stop at score 1."""


def alignments(bias: float = BIAS, t1: float = T1) -> tuple[float, float]:
    gamma, a = theory.neurons(t1, bias)
    return float(gamma), float(a)


def test_numbers_of_stage_one():
    assert theory.gate_time(0.5) == pytest.approx(1.359140914, abs=1e-9)
    gamma, a = alignments()
    assert gamma == pytest.approx(0.3101696281, abs=1e-10)
    assert a == pytest.approx(0.8703392563, abs=1e-10)


@pytest.mark.parametrize("bias", [0.05, 0.25, 0.5, 1.0])
def test_neurons_are_the_flow_of_stage_one(bias):
    stage = solved(bias, 25.0)
    assert stage.switch == pytest.approx(theory.gate_time(bias), abs=1e-9)
    np.testing.assert_allclose(
        np.stack(theory.neurons(stage.times, bias), axis=1), stage.states, rtol=0, atol=1e-9
    )


def test_neurons_are_the_flow_of_all_weights():
    """The eight neurons of both heads with S = 0, no gate held, no reduction."""
    t, zero = tables(MixtureClassification(2, 3).population), np.zeros((2, 4, 4))
    found = solve_ivp(
        lambda _, y: t.forces(y.reshape(2, 4), zero, BIAS)[0],
        (0, T1),
        np.zeros(8),
        method="DOP853",
        rtol=1e-11,
        atol=1e-12,
    ).y[:, -1]
    gamma, a = alignments()
    expected = common.neurons_of(gamma, a).ravel()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@given(st.floats(0.02, 2.0), st.floats(0.0, 200.0), st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_neurons_solve_their_own_equations(bias, time, groups):
    gamma, a = (float(x) for x in theory.neurons(time, bias, groups))
    s = 2 * time / groups
    if time <= theory.gate_time(bias, groups):
        assert gamma == 0
        assert a + math.expm1(4 * a) / 4 == pytest.approx(s / 2, abs=1e-11)
    else:
        u = gamma + 2 * a + bias
        right = 2 * bias + math.exp(2 * bias) + 5 / 8 * (s - theory.gate_time(bias))
        assert u + math.exp(u) == pytest.approx(right, rel=1e-11)
        assert a == pytest.approx(bias / 2 + 2 * gamma, abs=1e-12)


@pytest.mark.parametrize("groups", [3, 8, 32])
def test_groups_slow_stage_one(groups):
    stage = solved(BIAS, T1 * groups / 2, groups)
    np.testing.assert_allclose(stage.states[-1], alignments(), rtol=0, atol=1e-9)


def test_neurons_are_continuous_at_the_switch():
    gate = theory.gate_time(BIAS)
    before, after = (np.stack(theory.neurons(gate * x, BIAS)) for x in (1 - 1e-12, 1 + 1e-12))
    np.testing.assert_allclose(before, after, atol=1e-11)
    np.testing.assert_allclose(before[1], BIAS / 2, atol=1e-11)


@pytest.mark.parametrize(("omega", "expected"), LENGTHS.items())
def test_length_of_stage_two(omega, expected):
    length = common.stage_two(*alignments(), BIAS, omega, 1.0).time
    assert length == pytest.approx(expected, abs=1e-4)


def test_stage_two_on_all_sixteen_scores():
    """The ten variables give the T2 of the full score flow on the conflicting samples."""
    omega, (gamma, a) = 0.1, alignments()
    flow = score_flow(common.CONFLICTING, omega, BIAS, ("neurons",))
    start = {"w": common.neurons_of(gamma, a), "S": np.zeros((2, 4, 4))}
    system = flow.bind(start)

    def rhs(_, y):
        out = np.empty_like(y)
        system.rhs(y, out)
        return out

    end = solve_ivp(
        rhs,
        (0, LENGTHS[omega]),
        system.layout.flatten(start),
        method="DOP853",
        rtol=1e-9,
        atol=1e-11,
    ).y[:, -1]
    assert system.layout.unflatten(end)["S"][0, 0, 2] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_linear_phase(groups):
    """Relative error below the size of the scores, for any number of groups."""
    omega, (gamma, a) = 1e-3, alignments()
    stage = common.stage_two(gamma, a, BIAS, omega, 1.0, groups)
    time = 0.5 * theory.attention_time(gamma, omega, groups)
    state = stage.at(time)
    share = (groups - 1) / groups
    closed = theory.linear_phase(time, gamma, omega, groups)
    assert share * state["S_diff"][0, 1] == pytest.approx(closed["c.S v"], rel=2e-3)
    assert share * state["S_diff"][1, 0] == pytest.approx(closed["v.S c"], rel=2e-3)
    assert abs(state["S_sum"]).max() < 1e-3 * closed["c.S v"]


def test_slope_of_stage_two():
    gamma, a = alignments()
    assert theory.attention_slope(gamma) == pytest.approx(29.0164, abs=1e-4)
    for groups in (2, 8):
        one, two = (common.stage_two(gamma, a, BIAS, w, 1.0, groups).time for w in (3e-3, 1e-3))
        local = (two - one) / math.log(3)
        assert local == pytest.approx(theory.attention_slope(gamma, groups), rel=1e-4)


def test_predicted_length_of_stage_two_is_within_six_per_cent():
    gamma, _ = alignments()
    for omega, length in LENGTHS.items():
        assert theory.attention_time(gamma, omega) == pytest.approx(length, rel=0.06)
    assert theory.attention_time(0.0, 0.1) == math.inf


def test_comparison_system():
    x = theory.comparison([0.0, 10.0, 30.0], 0.1, 0.02)
    np.testing.assert_allclose(x[:, 0], [0, 0.01, 0.01])
    A = np.array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])
    found = solve_ivp(lambda _, y: 0.02 * A @ y, (0, 30), x[:, 0], rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(x[:, -1], found.y[:, -1], rtol=1e-8)


@pytest.mark.parametrize("omega", [0.1, 0.001])
def test_best_end_of_stage_one(omega):
    """It is the minimum of its own trade, and measured no other end is better by two per cent."""
    best = theory.best_t1(BIAS, omega)
    around = theory.total_time(best * np.array([0.9, 1.0, 1.1]), BIAS, omega)
    assert around[1] < min(around[0], around[2])

    def measured(t1):
        return t1 + common.stage_two(*alignments(t1=t1), BIAS, omega, 1.0).time

    others = [measured(best * x) for x in (0.5, 0.75, 1.4, 2.0)]
    assert measured(best) < 1.02 * min(others)
    assert max(others) > 1.02 * measured(best)


def test_stage_times_of_a_config():
    times = theory.stage_times(BIAS, 0.1, t1=T1, margin=0.4, epsilon=0.01)
    assert times["T0.5"] == theory.gate_time(BIAS)
    assert times["T2-T1"] == theory.attention_time(alignments()[0], 0.1)
    assert times["T3-T2"] == pytest.approx(1 / (0.01 * 0.16))
    assert theory.stage_times(BIAS, 0.1)["T1"] == theory.best_t1(BIAS, 0.1)


def test_stop_before_the_gates_has_no_stage_two():
    assert theory.stage_times(BIAS, 0.1, t1=1.0)["T2-T1"] == math.inf


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: theory.gate_time(0.0), "bias"),
        (lambda: theory.gate_time(0.5, 1), "groups"),
        (lambda: theory.neurons(-1.0, 0.5), "time"),
        (lambda: theory.best_t1(0.5, 1.5), "omega"),
        (lambda: theory.convergence_time(0.0, 0.1), "margin"),
        (lambda: theory.attention_time(0.3, 0.1, stop=-1.0), "stop"),
    ],
)
def test_bad_input_names_its_field(call, field):
    with pytest.raises(InputError, match=field):
        call()


def test_large_bias_never_shuts_a_gate():
    assert theory.gate_time(400.0) == math.inf
    gamma, a = theory.neurons(50.0, 400.0)
    assert gamma == 0
    assert a > 0


def test_run_has_the_forces_of_the_model():
    """What the claims compute over time is what the model's tables give, state by state."""
    run = common.run_at(BIAS, 0.1, T1, 1.0)
    t = tables(common.CONFLICTING)
    for k in (0, 40, 95):
        M = t.forces(run.w, common.both_heads(run.S[k]), BIAS)[1][:16].reshape(4, 4)
        np.testing.assert_allclose(run.M[k], M, atol=1e-15)
    flow = symmetric_flow(common.TWO.orbits.restricted(agreement=-1), 0.1, BIAS, ("neurons",))
    lifted = flow.project({"w": run.w, "S": common.both_heads(run.S[60])})
    moved = flow.lift(flow.flow.velocity(lifted))["S"][0]
    np.testing.assert_allclose(run.rates["S"][60], moved, atol=1e-13)
