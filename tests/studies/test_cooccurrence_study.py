"""The co-occurrence study: its laws, modes, phases, population, figures and bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from attnflow import walk
from attnflow._errors import InputError
from attnflow.flows import integrate
from attnflow.models import value_mlp
from attnflow.studies import build, configured
from attnflow.studies import config as configs
from attnflow.studies.cooccurrence import figures, observables, theory
from attnflow.studies.cooccurrence.study import Cooccurrence
from attnflow.studies.study import stages_of
from attnflow.tasks import WordCooccurrence
from tolerances import PRINTED

STUDY = "cooccurrence"
KEYS = (
    *("gamma2", "r_star", "shares", "slope_measured", "r_measured", "t05", "t1", "t1_all", "t1_g"),
    *("population_loss", "population_error", "population_stderr", "population_worst"),
    "safe_samples",
)
SMALL = {"samples": 12, "length": 4, "dim": 32, "neurons": 16, "until": 300.0}


def study(**keys: Any) -> Cooccurrence:
    return build(STUDY, keys)  # type: ignore[return-value]


def summary(ready: Cooccurrence) -> dict[str, Any]:
    return ready.summary(ready.solution.trajectory, [])


# --- The max-margin law.


@pytest.mark.parametrize(
    ("n", "length", "gamma2", "r_star"),
    [
        (60, 5, 0.12160612, 1.26866),
        (120, 5, 0.09031946, 1.37795),
        (60, 8, 0.18838, 1.1642),
        (30, 12, 0.44666, 0.9268),
    ],
)
def test_the_law_has_the_known_constants(n, length, gamma2, r_star):
    law = theory.class_law(WordCooccurrence(length), n)
    digits = 5e-9 if gamma2 < 0.122 else 5e-6
    assert law.gamma2 == pytest.approx(gamma2, abs=digits)
    assert law.r_star == pytest.approx(r_star, abs=5e-5)
    assert law.gap <= 1e-12
    assert law.shares.sum() == pytest.approx(1)


def test_many_samples_give_one_seventeenth_and_three_halves():
    law = theory.class_law(WordCooccurrence())
    assert 17 * law.gamma2 == pytest.approx(1, abs=1e-12)
    assert 17 * law.shares == pytest.approx([7, 5, 5, 0], abs=1e-12)
    assert law.relevant == pytest.approx([2, 2, -3], abs=1e-12)
    assert law.r_star == pytest.approx(1.5, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(7, 40), st.integers(3, 12))
def test_the_closed_form_is_the_law_while_the_last_class_is_no_support(steps, length):
    n = 6 * steps
    told, law = theory.closed_law(n, length), theory.class_law(WordCooccurrence(length), n)
    if told["w3"] >= 1:
        assert law.gamma2 == pytest.approx(told["gamma2"], rel=1e-10)
        assert law.r_star == pytest.approx(told["r_star"], rel=1e-9)
        assert law.shares[3] == pytest.approx(0, abs=1e-12)
    else:  # then it is a support vector and the true margin is smaller
        assert law.gamma2 < told["gamma2"]
        assert law.shares[3] > 0


@pytest.mark.parametrize(
    ("targets", "proportions"), [(2, ()), (3, ()), (1, ()), (2, (0.4, 0.3, 0.2, 0.1))]
)
def test_classes_and_samples_give_one_law(targets, proportions):
    task = WordCooccurrence(5, 4000, targets, proportions)
    n = 4 * task.step
    task = WordCooccurrence(5, task.needed(n, "distinct"), targets, proportions)
    few, many = theory.class_law(task, n), theory.sample_law(task.training(n))
    assert many.gamma2 == pytest.approx(few.gamma2, rel=1e-9)
    assert many.shares == pytest.approx(few.shares, abs=1e-8)
    assert many.relevant == pytest.approx(few.relevant, abs=1e-7)
    assert theory.worst_margin(task, many) == pytest.approx(theory.worst_margin(task, few))


def test_population_safe_numbers_of_samples():
    found = [theory.safe_samples(WordCooccurrence(length)) for length in (4, 5, 6, 8, 12, 20)]
    assert found == [48, 72, 90, 132, 216, 378]


def by_coordinates(K: np.ndarray) -> np.ndarray:
    """The multipliers of the shortest w with margins of at least 1, one after another."""
    a = np.zeros(len(K))
    for _ in range(100_000):
        before = a.copy()
        for i in range(len(a)):
            a[i] = max(0.0, a[i] + (1 - K[i] @ a) / K[i, i])
        if np.abs(a - before).max() < 1e-13 * max(1.0, a.max()):
            break
    return a


def every_sentence_is_right(task: WordCooccurrence, n: int) -> bool:
    """By the classes' Gram matrix and each class's worst sentence of words that there are."""
    y, counts, free = task.label, task.counts(n), task.irrelevant
    shared = task.relevant @ task.relevant.T
    a = by_coordinates(y[:, None] * y * shared + np.diag(free / counts))
    own = (y * a / counts)[free > 0]
    base = shared @ (y * a)
    worst = [y * (base + free * extreme) for extreme in (own.min(), own.max())]
    return bool(np.min(worst) > 1e-9)


@pytest.mark.parametrize(
    ("targets", "length", "proportions", "safe"),
    [
        (2, 3, (), 18),  # sentences with both targets have no irrelevant word
        (3, 4, (), 56),
        (1, 3, (), 12),
        (2, 3, (0.4, 0.3, 0.2, 0.1), 20),
        (2, 6, (0.7, 0.1, 0.1, 0.1), 110),
        (2, 4, (0.02, 0.02, 0.48, 0.48), 900),
    ],
)
def test_safe_numbers_by_another_solver(targets, length, proportions, safe):
    task = WordCooccurrence(length, 40, targets, proportions)
    assert theory.safe_samples(task) == safe
    assert not every_sentence_is_right(task, safe - task.step)
    assert all(every_sentence_is_right(task, n) for n in range(safe, 3 * safe, 2 * task.step))


def test_a_population_that_cannot_be_listed_is_drawn():
    """Also with uniform attention: no run ends in a refusal."""
    task = WordCooccurrence(10, 40)
    G = np.random.default_rng(0).normal(size=40)
    found = observables.bag_population(task, G, 1, draws=4000)
    again = observables.bag_population(task, G, 2, draws=4000)
    assert found.loss_error > 0
    assert abs(found.loss - again.loss) < 5 * np.hypot(found.loss_error, again.loss_error)


def test_the_limit_error_vanishes_where_it_is_safe():
    task = WordCooccurrence(5)
    assert theory.limit_error(task, 60) == pytest.approx((60 / 160) ** 3 / 3, rel=1e-12)
    assert theory.limit_error(task, 72) == 0


# --- Limits.


def test_the_two_scalar_limit():
    told = theory.two_scalars()
    assert told.peak == pytest.approx(3.564722, abs=PRINTED)
    assert told.rise == pytest.approx(1.157861, abs=PRINTED)
    assert told.correct == pytest.approx(12.979411, abs=PRINTED)
    ready = study(mode="scalar", rtol=1e-10)
    found, data = summary(ready), ready.solution.trajectory
    assert found["t05"] == pytest.approx(told.peak, abs=PRINTED)  # -dG3 = dG1: the peak
    assert found["t1"] == found["t1_g"] == pytest.approx(told.correct, abs=PRINTED)
    rise = float(data["class_loss"].sel({"class": "only 1"}).max()) / np.log(2)
    assert rise == pytest.approx(told.rise, abs=1e-5)
    assert found["slope_measured"] == pytest.approx(1 / 17, rel=1e-4)
    assert 1 / float(data["loss"][-1] * data["time"][-1]) == pytest.approx(1 / 17, rel=1e-3)
    assert found["r_measured"] == pytest.approx(1.5, rel=1e-5)
    assert found["population_error"] == 0


def test_infinite_width_follows_the_law():
    found = summary(study(mode="infinite-width"))
    assert found["gamma2"] == pytest.approx(0.12160612, abs=5e-9)
    assert found["slope_measured"] == pytest.approx(found["gamma2"], rel=2e-3)
    assert found["r_measured"] == pytest.approx(found["r_star"], rel=2e-3)
    assert found["t1"] == found["t1_all"] == pytest.approx(6.9016, abs=1e-4)
    assert found["t05"] == pytest.approx(3.8464, abs=1e-4)
    assert found["population_error"] == pytest.approx(0.017578125, abs=1e-12)


def test_infinite_width_is_what_scipy_says():
    """The times again, from a solve of the same equation that shares no code with the run."""
    X = WordCooccurrence(5, 163).training(60)
    rows = np.array([np.bincount(t, minlength=163) for t in X.token]) * X.label[:, None]

    def rates(_: float, G: np.ndarray) -> np.ndarray:
        return (1 / (1 + np.exp(rows @ G))) @ rows / 60

    def values(_: float, G: np.ndarray) -> float:
        return min(G[0] + G[1] + G[2], -(G[0] + G[2]), -G[2])

    def margins(_: float, G: np.ndarray) -> float:
        return (rows @ G).min()

    run = solve_ivp(
        rates, (0, 40), np.zeros(163), "DOP853", events=[values, margins], rtol=1e-11, atol=1e-13
    )
    found = summary(study(mode="infinite-width", until=40.0, rtol=1e-10))
    assert found["t1_g"] == pytest.approx(run.t_events[0][-1], abs=1e-6)
    assert found["t1_all"] == pytest.approx(run.t_events[1][-1], abs=1e-6)


def test_wide_models_come_near_infinite_width():
    told = summary(study(mode="infinite-width", samples=12, length=4, until=100.0))
    gaps = []
    for dim in (256, 4096):
        keys = {**SMALL, "dim": dim, "init": "expected", "k0": 0.3, "until": 100.0}
        found = summary(study(**keys))
        gaps.append(abs(found["t1"] - told["t1"]) + abs(found["r_measured"] - told["r_measured"]))
    assert gaps[1] < gaps[0] / 8  # like 1/m
    assert gaps[1] < 0.01


# --- Runs.


@pytest.mark.parametrize("mode", ["flow", "gd", "infinite-width", "scalar"])
def test_every_mode_tells_the_same_keys(mode):
    found = walk.run(STUDY, claims=False, progress=False, **{**SMALL, "mode": mode})
    assert not found.notes
    assert tuple(found.summary) == KEYS
    assert json.loads(json.dumps(found.summary)) == found.summary


@pytest.mark.parametrize("mode", ["flow", "gd", "infinite-width", "scalar"])
def test_every_mode_has_a_story_in_its_own_time(mode):
    ready = study(**{**SMALL, "mode": mode})
    data = ready.solution.trajectory
    stages = stages_of(ready, data)
    assert "phase 2" in [s.name for s in stages]
    assert all(s.when.startswith("step" if mode == "gd" else "t = ") for s in stages)
    told = ready.story(data, stages).sentence
    assert ("stays uniform" in told) == (mode in ("infinite-width", "scalar"))


def test_gram_and_reduced_weights_are_one_run():
    by_gram = study(**{**SMALL, "rtol": 1e-10})
    assert by_gram.by_gram
    flow = value_mlp.reduced_flow(by_gram.sentences, 32, by_gram.output)
    weights = {n: by_gram.drawn[n] for n in ("u", "WV", "WK", "WQ")}
    end = integrate(flow, weights, by_gram.horizon, rtol=1e-10).final
    a, b = value_mlp.correlations(by_gram.solution.final), value_mlp.correlations(end)
    assert pytest.approx(b.G, abs=1e-6) == a.G
    assert not study(**{**SMALL, "dim": 8}).by_gram


def test_descent_follows_the_flow_at_a_small_rate():
    told, gaps = float(study(**SMALL).solution.trajectory["loss"][-1]), []
    for rate in (0.02, 0.01):
        run = study(**SMALL, mode="gd", rate=rate).solve(marks={}, observe={}).trajectory
        gaps.append(abs(float(run["loss"][-1]) / told - 1))
    assert gaps[1] < 0.6 * gaps[0]
    assert gaps[1] < 0.01


def test_descent_tells_its_stages_in_steps():
    ready = study(**SMALL, mode="gd", rate=0.01)
    for stage in ready.stages(ready.solution.trajectory):
        assert stage.step == round(stage.time / 0.01)
        assert stage.when == f"step {stage.step}"
    assert "not by the end" in stage.evidence  # with 12 samples, by relevant words alone


def test_frozen_attention_changes_little_in_the_paper_s_regime_and_much_outside():
    def effect(**keys: Any) -> float:
        trained, frozen = (
            study(**SMALL, **keys, attention=a).solution.trajectory["loss"].values[-1]
            for a in ("trained", "frozen")
        )
        return abs(frozen / trained - 1)

    assert effect(k0=0.3) < 1e-3
    assert effect(k0=6.0, output=0.1) > 0.05


@settings(max_examples=4, deadline=None)
@given(st.integers(100, 200), st.sampled_from([24, 48, 96]), st.sampled_from([0.03, 0.3, 1.0]))
def test_times_are_last_crossings_on_unseen_seeds_widths_and_scales(seed, dim, k0):
    """After its time each condition holds at every row, just before it does not."""
    ready = study(**{**SMALL, "dim": dim, "k0": k0, "seed": seed})
    data = ready.solution.trajectory
    tau = data["time"].values * ready.tau
    rates, G = data["value_rate"].values, data["value"].values
    holds = {
        "t05": -rates[:, 2] > rates[:, :2].max(axis=1),
        "t1": (data["class_margin"].values > 0).all(axis=1),
        "t1_all": data["worst_margin"].values > 0,
        "t1_g": np.min([G[:, :3].sum(axis=1), -G[:, 0] - G[:, 2], -G[:, 1] - G[:, 2], -G[:, 2]], 0)
        > 0,
    }
    for name, when in ready.times().items():
        later, before = tau > when * (1 + 1e-9), (tau < when * (1 - 1e-9)) & (tau > 0)
        assert holds[name][later].all() or not holds[name][later].any(), name
        if before.any():
            assert holds[name][before][-1] != holds[name][later][0], name
    names = [stage.name for stage in ready.stages(data)]
    assert names[0] == "phase 1"
    assert names[-1] == "phase 2"


def test_appendix_a_by_flow_and_descent():
    both = study().experiment
    flow = both["flow"]
    assert flow.horizon == pytest.approx(300)
    assert (len(flow.sentences), flow.config.words, flow.config.dim) == (60, 64, 128)
    assert flow.output == pytest.approx(1 / 3, rel=0.1)
    short = {mode: each.at(until=each.config.until / 30) for mode, each in both.items()}
    curves = {mode: each.solution.trajectory for mode, each in short.items()}
    flow_loss, gd_loss = (float(curves[m]["loss"][-1]) for m in ("flow", "gd"))
    assert gd_loss == pytest.approx(flow_loss, rel=5e-4)
    assert short["gd"].solution.work["steps"] == 1000
    single = curves["flow"]["class_loss"].sel({"class": "only 1"}).values
    assert single.max() > 1.02 * single[0]  # misled at first


def test_repeated_words_change_the_law():
    distinct, repeated = (
        summary(study(mode="infinite-width", tokens=t, vocab=v))["gamma2"]
        for t, v in (("distinct", 0), ("iid", 64))
    )
    assert 0.07 < repeated < 0.11 < distinct


# --- The population.


def test_the_population_loss_by_listing_by_bags_and_by_draws():
    ready = study(mode="infinite-width", samples=12, length=4, until=1e3)
    G, task = ready.solution.final, ready.task
    by_bags = ready.population
    X = task.population
    margins = observables.margins_of(X, 1, G, np.zeros((task.vocab, task.vocab)))
    listed = observables.weighed(margins, X.weight)
    assert by_bags.loss == pytest.approx(listed.loss, rel=1e-9)
    assert by_bags.error == pytest.approx(listed.error, abs=1e-12)
    assert by_bags.worst == pytest.approx(listed.worst, abs=1e-9)
    drawn = task.sample(40_000, 5)
    found = observables.weighed(
        observables.margins_of(drawn, 1, G, np.zeros((task.vocab, task.vocab))),
        drawn.weight,
        drawn.kind,
    )
    assert abs(found.loss - listed.loss) <= 5 * found.loss_error
    assert 0 < found.loss_error < 0.02 * listed.loss
    assert found.worst >= listed.worst - 1e-12


# --- Border.


@pytest.mark.parametrize(
    ("keys", "field", "words"),
    [
        ({"vocab": 64}, "vocab", "at least 163"),
        ({"tokens": "within", "vocab": 6}, "vocab", "at least 7"),
        ({"proportions": (0.5, 0.2, 0.2, 0.2)}, "proportions", "sums to 1.1"),
        ({"length": 2}, "length", "at least 3"),
        ({"targets": 3, "length": 3}, "length", "at least 4"),
        ({"samples": 64}, "samples", "nearest is 66"),
        ({"samples": 4}, "samples", "nearest is 6"),
        ({"targets": 3}, "samples", "nearest is 56"),
        ({"k0": 0.0}, "k0", "positive"),
        ({"output": -1.0}, "output", "positive"),
        ({"output": float("nan")}, "output", "positive"),
        ({"until": -1.0}, "until", "positive"),
        ({"mode": "sgd"}, "mode", "one of flow"),
    ],
)
def test_bad_input_is_one_sentence(keys, field, words):
    with pytest.raises(InputError, match=words) as error:
        configured(STUDY, keys)
    assert error.value.field == field


def test_the_vocabulary_defaults_to_what_the_mode_needs():
    for tokens, words in (("distinct", 163), ("within", 7), ("iid", 4)):
        assert configured(STUDY, {"tokens": tokens})[1].task().vocab == words


def test_a_config_round_trips():
    _, config = configured(STUDY, {"proportions": "0.4,0.3,0.2,0.1", "samples": 30})
    again = configs.build(type(config), configs.as_dict(config))
    assert again == config


@pytest.mark.parametrize("mode", ["flow", "infinite-width"])
def test_figures_are_drawn(mode, monkeypatch):
    ready = study(**{**SMALL, "mode": mode})
    data = ready.solution.trajectory
    one = ready if mode == "flow" else study(**SMALL)
    monkeypatch.setitem(vars(ready), "experiment", {"flow": one, "gd": one})
    monkeypatch.setattr(figures, "SCALES", (0.3, 3.0))
    monkeypatch.setattr(figures, "OUTPUTS", (1.0,))
    for name, draw in ready.figures().items():
        figure = draw(data, ready.stages(data))
        assert figure.axes, name
        for axes in figure.axes:
            assert axes.get_ylabel() or axes.get_xlabel(), name
