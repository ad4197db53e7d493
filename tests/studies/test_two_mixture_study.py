"""The two-mixture study: its numbers, its modes, its stages, its figures and its bad input."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from attnflow import draw, walk
from attnflow._errors import InputError
from attnflow.flows import Every, GradientDescent, Limits, Solver, Status, Store, descend, integrate
from attnflow.flows.sinks import joined
from attnflow.models.two_head import TwoHeadClassifier, weight_flow
from attnflow.models.two_head_gram import gram_flow, head_scores, infinite_width_start
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.runs import Run, open_run
from attnflow.studies import config as configs
from attnflow.studies.two_mixture import algorithm, descent, observables, stages, theory
from attnflow.studies.two_mixture.claims import sliding
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.study import TwoMixture
from attnflow.tasks.mixture import MixtureClassification

TWO = MixtureClassification(2, 3)
STUDY = "two-mixture"


@cache
def outcome(**keys) -> Run:
    return walk.run(STUDY, claims=False, progress=False, **keys)


@pytest.fixture(scope="module", autouse=True)
def _forget():
    yield
    outcome.cache_clear()


# --- The numbers of Algorithm 1 and of joint training.


def test_the_three_stages_have_the_known_lengths():
    found = outcome().summary
    assert found["t05"] == pytest.approx(1.359140914, abs=1e-8)
    assert found["gamma_t1"] == pytest.approx(0.3101696281, abs=1e-8)
    assert found["a_t1"] == pytest.approx(0.8703392563, abs=1e-8)
    assert found["stage2_duration"] == pytest.approx(90.1759, abs=1e-4)
    assert set(found["stage3_time"]) == {"0.1", "0.03", "0.01", "0.003", "0.001"}
    assert 1e-3 * found["stage3_time"]["0.001"] == pytest.approx(5.359, abs=1e-3)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("omega", "length"),
    [
        (0.3, 58.3405),
        (0.1, 90.1759),
        (0.03, 125.0680),
        (0.01, 156.9302),
        (0.003, 191.8593),
        (0.001, 223.7354),
    ],
)
def test_stage_two_lasts_as_long_as_it_should(omega, length):
    run = algorithm.three_stages(TWO, omega, 0.5, 20.0, 1.0, (0.1,), 1e-9)
    assert run.duration == pytest.approx(length, abs=1e-4)


@pytest.mark.parametrize(
    ("groups", "half"), [(2, 108.0), (3, 197.8), (4, 286.8), (6, 464.2), (8, 641.5), (16, 1350.0)]
)
def test_conflicting_half_times_for_many_groups(groups, half):
    run = algorithm.learning(groups, 0.1, 0.5)
    assert run.first("half -1") == pytest.approx(half, rel=0.005)
    assert run.first("half 1") == pytest.approx(0.574 * groups, rel=0.005)


def test_descent_halves_the_conflicting_loss_at_step_1087():
    found = outcome(mode="gd").summary
    assert found["half_steps"] == {"-1": 1087, "1": 12}
    assert found["half_times"]["-1"] == pytest.approx(108.7, abs=1e-9)
    last = outcome(mode="gd").trajectory.isel(time=-1)
    assert float(last["loss"]) == pytest.approx(0.0054, abs=5e-5)
    scores = last["score"].sel(head="plus")
    assert float(scores.sel(key="c1", query="v1")) == pytest.approx(3.09, abs=0.01)
    assert float(scores.sel(key="c1", query="v2")) == pytest.approx(-3.09, abs=0.01)
    assert found["margin"] == pytest.approx(0.84, abs=0.005)


def test_the_predictions_are_near_what_is_measured():
    found = outcome().summary
    told = found["predictions"]
    assert told["t05"] == pytest.approx(found["t05"], rel=1e-8)
    assert told["stage2_duration"] == pytest.approx(found["stage2_duration"], rel=0.05)
    assert told["stage3_time_0.01"] == pytest.approx(found["stage3_time"]["0.01"], rel=0.05)
    best = told["best_t1"]
    assert all(
        theory.total_time(best, 0.5, 0.1) <= theory.total_time(best * s, 0.5, 0.1)
        for s in (0.8, 1.25)
    )


# --- One solve against another.


def test_a_joint_run_is_that_of_another_engine():
    flow = symmetric_flow(TWO.orbits, 0.1, 0.5)
    explicit = Solver("scipy", "dop853")
    other = integrate(flow, flow.start, 150.0, rtol=1e-10, solver=explicit, progress=False)
    run = algorithm.joint(TWO, 0.1, 0.5, 150.0, rtol=1e-10)
    for name, value in run.final.items():
        np.testing.assert_allclose(value, other.final[name], rtol=0, atol=1e-6)
    switches = [e for e in run.events if not e.name.startswith("half")]
    assert [(e.name, e.direction) for e in switches] == [
        (e.name, e.direction) for e in other.events
    ]
    for mine, theirs in zip(switches, other.events, strict=True):
        assert mine.time == pytest.approx(theirs.time, abs=1e-6)


def test_a_staged_run_has_the_stages_of_the_summary():
    found, told = outcome(mode="staged").summary, outcome().summary
    for name in ("t05", "gamma_t1", "a_t1", "stage2_duration"):
        assert found[name] == pytest.approx(told[name], rel=1e-6)
    for loss, time in told["stage3_time"].items():
        assert found["stage3_time"][loss] == pytest.approx(time, rel=1e-5)
    assert [s.name for s in outcome(mode="staged").stages] == list(stages.NAMES)
    assert [g["state"] for g in found["gates"]] == ["off", "on"]


@pytest.mark.parametrize(("K", "L"), [(2, 3), (3, 4)])
def test_descent_in_the_sectors_is_descent_in_the_gram(K, L):
    task = MixtureClassification(K, L)
    flow = symmetric_flow(task.orbits, 0.1, 0.5)
    small = gram_descent(flow.gram, flow.gram.start, 0.1, 600, every=600).final
    start = infinite_width_start(K, 0.1)
    full = gram_descent(gram_flow(task.population, 0.5), start, 0.1, 600, every=600).final
    lifted = flow.lift(flow.of_gram(small))
    assert np.abs(lifted["w"]).max() > 0.1
    np.testing.assert_allclose(lifted["S"], head_scores(full), atol=1e-13)
    np.testing.assert_allclose(lifted["w"], full["rest"]["w"], atol=1e-13)


def test_attention_alone_is_descent_of_weights_with_frozen_neurons():
    """At the width at which the Gram of the start is its expectation: orthogonal columns."""
    neurons = np.random.default_rng(0).standard_normal((2, 2, 4))
    found = descent.attention_only(TWO.population, neurons, steps=50)
    each = np.stack([0.1 * np.eye(8)] * 2)
    for i, w in enumerate(neurons):
        theta = TwoHeadClassifier(w, each[:, :, :4], each[:, :, 4:], 0.5)
        flow = weight_flow(TWO.population, ("neurons",))
        run = descend(flow, theta, 50.0, GradientDescent(1.0), save=Every(1), progress=False)
        np.testing.assert_allclose(found.losses[:, i], run.trajectory["loss"].values, rtol=1e-12)


class Stored:
    """A sink that a second run goes on from: rows up to its last checkpoint."""

    def __init__(self):
        self.segments, self.kept, self.last = [], 0, None

    def begin(self, shape):
        del self.segments[self.kept :]
        return self.last

    def flush(self, segment):
        self.segments.append(segment)

    def checkpoint(self, checkpoint):
        self.last, self.kept = checkpoint, len(self.segments)

    def collect(self):
        return joined(self.segments)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [({"until": 140.0}, 150), ({"mode": "staged"}, 150), ({"dim": 8, "until": 30.0}, 60)],
    ids=str,
)
def test_a_run_killed_after_a_checkpoint_resumes_to_the_same_numbers(keys, steps):
    study = walk.build(STUDY, keys)
    whole = study.solve(store=Store(Stored(), every=40), progress=False)
    sink = Stored()
    cut = study.solve(store=Store(sink, every=40), limits=Limits(steps=steps), progress=False)
    assert cut.status is Status.STEP_LIMIT
    assert 0 < sink.last.step < steps
    resumed = study.solve(store=Store(sink, every=40), progress=False)
    assert resumed.status is whole.status
    assert resumed.events == whole.events
    assert resumed.phases == whole.phases
    for name in whole.trajectory.variables:
        np.testing.assert_array_equal(
            resumed.trajectory[name].values, whole.trajectory[name].values
        )


@given(seed=st.integers(0, 10_000), groups=st.integers(2, 5), length=st.integers(3, 5))
def test_the_powers_of_both_parts_are_the_fall_of_the_loss(seed, groups, length):
    flow = symmetric_flow(MixtureClassification(groups, length).orbits, 0.7, 0.5)
    state = flow.sample(np.random.default_rng(seed), flow.start)
    v, h = flow._velocity(state), 1e-6
    ahead, behind = (
        float(flow.loss_of({n: state[n] + s * h * v[n] for n in state})) for s in (1, -1)
    )
    falls = -(ahead - behind) / (2 * h)
    speed = max(1.0, sum(flow.powers(state)))
    assert sum(flow.powers(state)) == pytest.approx(falls, abs=tolerances.LOSS_DIFFERENCE * speed)


def test_features_of_stage_three_give_the_heights_of_the_gates():
    flow = symmetric_flow(MixtureClassification(3, 4).orbits, 0.3, 0.5)
    state = flow.sample(np.random.default_rng(1), flow.start)
    heights = flow.features(state) @ state["w"] + 0.5
    np.testing.assert_allclose(heights, flow.gate_values(state), atol=tolerances.SUM_OF_MANY)


def test_a_gate_that_slides_is_followed_and_said():
    found = outcome(length=5, omega=0.3, until=25.0)
    slid = [s for s in found.summary["gates"] if s["state"] == "sliding"]
    assert slid[0]["time"] == pytest.approx(3.0983, abs=1e-3)
    mode = found.built.solution.sliding[0]
    on, off = sliding.rates(found.built.solution, mode.begins, mode.sliding[0])
    assert on < 0 < off
    assert mode.share[0][0] == pytest.approx(off / (off - on), rel=1e-6)


def test_powers_add_up_to_the_fall_of_the_loss_while_a_gate_slides():
    found = outcome(length=5, omega=0.3, until=25.0)
    mode, data = found.built.solution.sliding[0], found.trajectory
    t = data["time"].values
    inside = (t > mode.begins) & (t < mode.ends)
    times = t[inside][2:-2:5]
    h, flow = 1e-3, found.built.symmetric
    ahead, behind = (
        np.array([float(flow.loss_of(found.built.solution.at(x + s * h))) for x in times])
        for s in (1, -1)
    )
    falls = -(ahead - behind) / (2 * h)
    powers = (data["neuron_power"] + data["attention_power"]).sel(time=times).values
    np.testing.assert_allclose(powers, falls, rtol=1e-3)
    held = [sum(flow.powers(found.built.solution.at(x))) for x in times]
    assert np.abs(np.array(held) / falls - 1).max() > 0.05  # without the shares they do not


# --- Modes and stages, on runs that did not set the rules.


@pytest.mark.parametrize(
    "keys",
    [
        {"dim": 32, "omega": 0.3, "until": 160.0, "seed": 3},
        {"dim": 128, "omega": 0.2, "until": 180.0, "seed": 5},
        {"dim": 48, "mode": "gd", "omega": 0.3, "until": 160.0, "rate": 0.05},
        {"omega": 0.05},
        {"groups": 3, "omega": 0.2},
        {"bias": 0.25, "omega": 0.15},
    ],
    ids=str,
)
def test_the_attention_stage_holds_the_conflicting_half_time(keys):
    found = outcome(**keys)
    names = [s.name for s in found.stages]
    assert names == list(stages.NAMES)
    times = {s.name: s.time for s in found.stages}
    half = found.summary["half_times"]
    assert half["1"] < times["attention"] < half["-1"] < times["convergence"]
    expected = theory.gate_time(found.config["bias"], found.config["groups"])
    assert times["neurons 1.2"] == pytest.approx(expected, rel=0.3)  # descent: ten steps a row


def test_a_run_that_is_too_short_has_no_attention_stage():
    found = outcome(until=10.0)
    assert [s.name for s in found.stages] == list(stages.NAMES[:2])
    assert found.summary["half_times"]["-1"] is None


def test_a_wide_model_is_near_the_infinite_one():
    wide = outcome(dim=128, omega=0.2, until=180.0, seed=5).summary["half_times"]["-1"]
    limit = outcome(omega=0.2, until=180.0).summary["half_times"]["-1"]
    assert wide == pytest.approx(limit, rel=0.1)


def test_a_run_on_disk_opens_as_it_was(tmp_path):
    kept = walk.run(
        STUDY, until=140.0, out=tmp_path / "run", claims=False, report=False, progress=False
    )
    again = open_run(tmp_path / "run")
    assert again.summary == kept.summary
    assert [e.name for e in again.events] == [e.name for e in kept.events]
    for name in kept.trajectory.data_vars:
        np.testing.assert_array_equal(again.trajectory[name].values, kept.trajectory[name].values)


# --- Figures.


@pytest.mark.parametrize(
    "keys",
    [{}, {"mode": "staged"}, {"groups": 9, "until": 50.0}, {"dim": 8, "mode": "gd", "until": 20.0}],
    ids=str,
)
def test_every_figure_draws_with_named_axes(keys):
    found = outcome(**keys)
    for name, function in found.built.figures().items():
        figure = function(found.trajectory, found.stages)
        labels = [a.get_xlabel() for a in figure.axes] + [a.get_ylabel() for a in figure.axes]
        assert any(labels), name
        assert all("(" in label for label in labels if label), (name, labels)
        if getattr(function, "of_config", False):
            assert draw.svg(function(None, [])) == draw.svg(figure), name
    wanted = {"losses", "neurons", "scores", "attention-maps", "share", "margin"}
    assert wanted <= set(found.built.figures())


# --- Config and bad input.


def test_the_width_is_a_number_or_infinite_in_every_spelling():
    for given_ in ("inf", math.inf, "Inf"):
        assert configs.build(Config, {"dim": given_}).dim == "inf"
    assert configs.build(Config, {"dim": "64"}).dim == 64
    for config in (Config(), Config(dim=64, mode="gd")):
        import tomllib

        assert configs.build(Config, tomllib.loads(configs.to_toml(config))) == config


@pytest.mark.parametrize(
    ("keys", "field", "words"),
    [
        ({"groups": 1}, "groups", "at least 2"),
        ({"length": 2}, "length", "at least 3"),
        ({"bias": 0.0}, "bias", "positive"),
        ({"bias": -1.0}, "bias", "every gate is on only"),
        ({"omega": 0.0}, "omega", "positive"),
        ({"dim": 0}, "dim", "at least 1, or inf"),
        ({"dim": 2.5}, "dim", "or inf"),
        ({"dim": 10**6}, "dim", "inf"),
        ({"rate": 0.0}, "rate", "positive"),
        ({"until": -1.0}, "until", "at least 0"),
        ({"mode": "gd", "until": 0.01}, "until", "one step"),
        ({"rtol": 0.5}, "rtol", "below 0.1"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"groups": 8, "length": 9, "dim": 16}, "length", "1,240,320 distinct samples"),
        ({"groups": 8, "length": 9, "mode": "gd"}, "length", "orbit form"),
        ({"mode": "adam"}, "mode", "one of flow, staged, gd"),
        ({"dim": "wide"}, "dim", "inf"),
    ],
)
def test_bad_input_is_one_sentence(keys, field, words):
    with pytest.raises(InputError) as error:
        configs.build(Config, keys)
    assert error.value.field == field
    assert words in error.value.sentence


def test_a_long_enumeration_runs_in_the_orbit_form():
    study = TwoMixture(Config(groups=8, length=7, until=5.0))
    found = study.solve(progress=False)
    assert found.status.complete
    assert set(study.knowing(solution=found).half_times()) == {"-5", "-3", "-1", "1", "3", "5"}


def test_gate_switches_are_read_from_the_rows():
    data = outcome().trajectory
    found = stages.switches(data)
    assert [s["state"] for s in found] == ["off", "on"]
    assert all(s["gate"] == "minus c1 +v1 +v2" for s in found)
    assert observables.chosen_samples(TWO.orbits).tolist() == [1, 0]


# --- The stretch that is attention's stage.


def test_a_dip_that_the_rest_outweighs_does_not_end_a_stage():
    t = np.arange(9.0)
    outweighed = np.array([-1.0, -1, 2, 2, -0.1, 2, 2, -1, -1])
    deep = np.array([-1.0, -1, 2, 2, -9, 2, 1, -1, -1])
    assert stages.stretch(t, outweighed) == (2, 6)
    assert stages.stretch(t, deep) == (2, 3)
    assert stages.stretch(t, -np.ones(9)) is None


def test_a_stretch_is_the_largest_in_time_and_not_in_rows():
    t = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 1.5, 2.0, 6.0, 7.0])
    many = np.array([-1.0, 1, 1, 1, 1, -3, 1, 1, -1])
    assert stages.stretch(t, many) == (6, 7)
