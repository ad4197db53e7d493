"""Figures of the focus-dilution study: each draws for every kind of config, and is right."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import xarray as xr

from attnflow import draw, walk
from attnflow.observe.stages import Stage
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.figures import maps, prediction, shared, weights
from attnflow.studies.focus_dilution.study import FocusDilution

CONFIGS = {
    "default": {"until": 160.0, "dim": 8, "seed": 1},
    "equal": {"pi": (0.75, 0.125, 0.125), "until": 40.0, "dim": 4},
    "two tokens": {"pi": (0.7, 0.3), "until": 20.0, "dim": 3},
    "matrix": {
        "transition": ((0.9, 0.1, 0.0), (0.1, 0.7, 0.2), (0.3, 0.3, 0.4)),
        "until": 20.0,
        "dim": 3,
    },
    "sample": {
        "data": "sample",
        "mode": "adam",
        "dim": 8,
        "sequences": 500,
        "context": 5,
        "rate": 0.01,
        "until": 1.0,
        "init_scale": 0.05,
    },
    "large start": {"init_scale": 0.5, "until": 10.0, "dim": 3},
    "uniform": {
        "transition": ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), (0.3, 0.2, 0.5)),
        "until": 5.0,
        "dim": 3,
    },
}

ALWAYS = {
    "loss",
    "setting",
    "attention",
    "attention-maps",
    "entropy",
    "condensation",
    "ranks",
    "singular",
    "embeddings",
    "embedding-paths",
    "amplitudes",
    "speed",
}
TWO_TERM = {"map-instability", "map-cleanliness", "map-length", "timeline"}
NAMES = {
    "default": ALWAYS | TWO_TERM,
    "equal": ALWAYS | TWO_TERM,
    "two tokens": ALWAYS | TWO_TERM - {"map-instability"},
    "matrix": ALWAYS | {"timeline"},
    "sample": ALWAYS | {"attention-maps-data", "map-instability", "map-length"},
    "large start": ALWAYS | TWO_TERM,
    "uniform": ALWAYS,
}


class Trained(NamedTuple):
    study: FocusDilution
    data: xr.Dataset
    stages: list[Stage]

    def draw(self, name: str):
        return self.study.figures()[name](self.data, self.stages)


@cache
def trained(name: str) -> Trained:
    study = walk.build("focus-dilution", CONFIGS[name])
    assert isinstance(study, FocusDilution)
    data = study.solve(progress=False).trajectory
    return Trained(study, data, study.stages(data))


@pytest.fixture(scope="module", autouse=True)
def _forget():
    yield
    trained.cache_clear()


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_figure_of_a_config_draws_with_named_axes(kind):
    run = trained(kind)
    assert set(run.study.figures()) == NAMES[kind]
    for name, function in run.study.figures().items():
        figure = function(run.data, run.stages)
        labels = [a.get_xlabel() for a in figure.axes] + [a.get_ylabel() for a in figure.axes]
        assert any(a.get_xlabel() for a in figure.axes), name
        assert all("(" in label for label in labels if label), (name, labels)
        alone = [a for a in figure.axes if len(figure.axes) == 1]
        assert all(a.get_xlabel() and a.get_ylabel() for a in alone), name
        assert function.__doc__.splitlines()[0].endswith("."), name
        if getattr(function, "of_config", False):
            assert draw.svg(function(None, [])) == draw.svg(figure), name


def test_the_default_run_has_the_stages_that_the_figures_show():
    names = [s.name for s in trained("default").stages if s.cycle == 1]
    assert {"condensation", "focus", "dilution", "new direction"} <= set(names)
    assert trained("large start").stages == []


def test_group_losses_add_up_to_the_loss_that_is_drawn():
    run = trained("default")
    (axes,) = run.draw("loss").axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    groups = np.array(
        [lines[f"S{k}, token {k} ({p:.3g})"].get_ydata() for k, p in enumerate(run.study.chain.pi)]
    )
    total = np.asarray(lines["loss"].get_ydata(), float)
    np.testing.assert_allclose(run.study.chain.pi @ groups, total, rtol=1e-12)
    levels = [p["loss"] for p in run.study.timeline.plateaus]
    np.testing.assert_array_equal(lines["predicted plateaus"].get_ydata(), levels)


def test_loss_of_a_sample_shows_its_test_sets_and_its_own_levels():
    run = trained("sample")
    (axes,) = run.draw("loss").axes
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    drawn = np.array([line.get_ydata() for line in dashed if len(np.ravel(line.get_ydata())) > 2])
    np.testing.assert_array_equal(drawn.T, run.data["test_loss"].values)
    tokens = run.study.chain.sample(500, 6, seed=0, first="uniform")
    joint = np.zeros((4, 4))
    for *_, last, label in tokens:
        joint[last, label] += 1 / 500
    given = joint / joint.sum(axis=1, keepdims=True)
    floor = -sum(joint[i, j] * np.log(given[i, j]) for i, j in np.argwhere(joint > 0))
    labels = [str(line.get_label()) for line in axes.get_lines()]
    assert f"bigram entropy {floor:.4f}" in labels


def test_paths_are_the_projections_on_the_principal_directions():
    run = trained("default")
    snapshots = run.data["embedding"].values
    rows = snapshots.reshape(-1, snapshots.shape[-1])
    _, sizes, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    paths, shares = weights.principal(snapshots)
    np.testing.assert_allclose(shares[:2], (sizes**2 / (sizes**2).sum())[:2], rtol=1e-9)
    naive = snapshots @ directions[:2].T
    signs = np.sign((naive * paths).sum(axis=(0, 1)))
    np.testing.assert_allclose(paths, naive * signs, atol=1e-9)
    assert (paths[-1].max(axis=0) >= -paths[-1].min(axis=0)).all()
    whole = run.draw("embedding-paths").axes[-1]
    drawn = next(line for line in whole.get_lines() if str(line.get_label()).startswith("token 1"))
    kept = draw.thinned(len(paths))
    np.testing.assert_allclose(drawn.get_xydata(), paths[kept, 1], atol=1e-9)


def test_paths_stop_and_begin_at_the_stages():
    run = trained("default")
    figure = run.draw("embedding-paths")
    when = {s.name: s.time for s in run.stages if s.cycle == 1}
    t = run.data["time"].values
    early, middle, _ = figure.axes
    paths, _ = weights.principal(run.data["embedding"].values)
    line = next(x for x in early.get_lines() if str(x.get_label()).startswith("token 0"))
    np.testing.assert_allclose(line.get_xydata()[-1], paths[t <= when["dilution"]][-1, 0])
    line = next(x for x in middle.get_lines() if str(x.get_label()).startswith("token 0"))
    np.testing.assert_allclose(line.get_xydata()[0], paths[t >= when["dilution"]][0, 0])


def test_heat_maps_hold_the_cosines_of_the_rows():
    run = trained("default")
    figure = run.draw("condensation")
    grid = [a for a in figure.axes if a.images]
    when = {s.name: s.time for s in run.stages if s.cycle == 1}
    times = [0.0, *sorted(when[n] for n in ("condensation", "focus", "new direction"))]
    states = run.study.snapshots(times)
    for axes, name in zip(grid, ("W0", "WQ", "WK", "W1"), strict=True):
        assert len(axes.images) == 4
        order = None
        for image, theta in reversed(list(zip(axes.images, states, strict=True))):
            w = np.asarray(getattr(theta, name))
            naive = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in w] for a in w])
            order = np.arange(len(w)) if name == "W0" else order
            order = weights.clustered(naive) if order is None else order
            shown = naive[np.ix_(order, order)]
            np.testing.assert_allclose(image.get_array(), shown, atol=1e-12)
        assert sorted(order) == list(range(len(order)))


def test_a_wide_matrix_is_shown_by_64_of_its_rows():
    run = trained("two tokens")
    wide = walk.build("focus-dilution", {**CONFIGS["two tokens"], "dim": 100})
    figure = wide.figures()["condensation"](run.data.isel(time=[0]), [])
    labels = [a.get_ylabel() for a in figure.axes if a.images]
    assert labels[1:] == [f"{n}\n(64 of 100 neurons)" for n in ("WQ", "WK", "W1")]
    assert [a.images[0].get_array().shape for a in figure.axes if a.images][1] == (64, 64)
    assert draw.thinned(100, 64)[[0, -1]].tolist() == [0, 99]


def test_clustering_puts_parallel_rows_together():
    rng = np.random.default_rng(0)
    signs = rng.permutation([1.0] * 9 + [-1.0] * 7)
    rows = signs[:, None] * rng.standard_normal(5) * rng.uniform(0.5, 2, (16, 1))
    order = weights.clustered(weights.cosines(rows))
    assert np.abs(np.diff(signs[order])).sum() == 2  # one change of sign along the order
    assert weights.cosines(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]


def test_snapshots_are_the_parameters_of_the_run():
    run = trained("default")
    t = run.data["time"].values
    times = [float(t[-1]), 0.0, float(t[len(t) // 2])]
    states = run.study.snapshots(times)
    seen = run.data["embedding"].sel(time=times).values
    np.testing.assert_allclose([s.W0 for s in states], seen, atol=2e-3)
    np.testing.assert_array_equal(states[1].WQ, run.study.start.WQ)
    assert run.study.snapshots(times) is states


def test_snapshots_of_a_discrete_run_are_its_steps():
    run = trained("sample")
    again = FocusDilution(run.study.config)  # as a run that was opened from disk
    t = run.data["time"].values[[0, 7, 50]]
    states = again.snapshots(t.tolist())
    seen = run.data["embedding"].sel(time=t).values
    np.testing.assert_allclose([s.W0 for s in states], seen, rtol=1e-9, atol=1e-12)


def test_timeline_pairs_what_is_predicted_with_what_was_measured():
    run = trained("default")
    pairs = prediction.paired(run.data, run.stages, run.study.timeline, run.study)
    found = {name: (guess, seen) for name, guess, seen in pairs}
    measured = {s.name: s.time for s in run.stages if s.cycle == 1}
    for name in ("condensation", "focus", "dilution", "new direction"):
        assert found[name] == (run.study.timeline.times[name], measured[name])
    (axes,) = run.draw("timeline").axes
    words = [t.get_text() for t in axes.texts]
    assert words == [f"{round(guess / seen - 1, 3) + 0.0:+.1%}" for _, guess, seen in pairs]


def test_growth_of_the_condensed_mode_is_drawn_at_its_rate():
    run = trained("default")
    span = prediction.windows(run.data, run.study)["condensation"]
    t = run.data["time"].values
    inside = (t >= span[0]) & (t <= span[1])
    size = run.data["amplitude"].sel(unstable="condensation").values
    rate = theory.escape_rate(run.study.chain)
    assert prediction.growth(t[inside], size[inside]) == pytest.approx(rate, rel=1e-2)
    (axes,) = run.draw("amplitudes").axes
    guide = next(line for line in axes.get_lines() if line.get_alpha() == 0.25)
    x, y = guide.get_data()
    assert np.log(y[1] / y[0]) / (x[1] - x[0]) == pytest.approx(rate)


def test_plateaus_are_counted_from_the_unigram_one():
    run = trained("default")
    found = shared.waits(run.data, run.study)
    assert found == run.study.plateaus(run.data)
    later = run.data.where(run.data["time"] > found[0].leave, drop=True)
    assert len(run.study.plateaus(later)) == len(found) - 1
    assert shared.waits(later, run.study) == []
    assert "focus" not in prediction.windows(later, run.study)


def test_a_mode_that_does_not_grow_has_no_exponential_window():
    run = trained("default")
    flat = run.data.copy()
    flat["amplitude"] = xr.where(flat["unstable"] == "focus", 0.01, flat["amplitude"])
    flat["amplitude"] = flat["amplitude"].transpose("time", "unstable")
    (axes,) = run.study.figures()["amplitudes"](flat, run.stages).axes
    labels = {str(line.get_label()).split(":")[0]: line for line in axes.get_lines()}
    assert str(labels["focus"].get_label()).endswith("no exponential window")
    assert str(labels["condensation"].get_label()).endswith("measured")


def test_map_of_cleanliness_says_the_predicted_speed_of_this_run():
    run = trained("default")
    constant, power = maps.calibrated(run.study)
    c = run.study.config
    predicted = run.study.timeline.trajectory
    t = predicted["time"].values
    first = int(np.argmin(np.abs(t - run.study.timeline.times["second saddle"])))
    speed = constant * (c.scale * np.sqrt(c.dim)) ** power
    assert speed == pytest.approx(float(predicted["speed"].values[first]), rel=1e-9)
    assert power == theory.cleanliness(run.study.chain)
    label = next(str(line.get_label()) for line in run.draw("map-cleanliness").axes[0].get_lines())
    assert f"{speed:.3g} predicted, {run.study.plateaus(run.data)[0].speed:.3g} measured" in label


def test_bias_of_contexts_is_the_closed_form_and_falls_like_one_over_their_length():
    run = trained("default")
    for s in (1, 19, 200):
        assert maps.lean(s, 0.8) == pytest.approx(theory.context_bias(run.study.chain, s))
    bias = np.array(maps.length_bias(0.75, 0.8, "stationary"))
    slope = np.polyfit(np.log(maps.LENGTHS[-3:]), np.log(bias[-3:]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)


def test_map_of_instability_has_the_sign_of_the_margin():
    run = trained("equal")
    (axes,) = run.draw("map-instability").axes
    shown = axes.images[0].get_array()
    x, y = maps._centres(1 / 3, 1.0), maps._centres(0.0, 1.0)
    for i, j in ((5, 80), (90, 10), (60, 60)):
        assert bool(shown[j, i]) == (maps._margin(x[i], y[j], 3) > 0)
    assert "two-group margin" in str(axes.get_lines()[-1].get_label())


def test_long_curves_are_thinned_to_their_ends():
    kept = draw.thinned(5000)
    assert len(kept) == draw.curves.MOST_POINTS
    assert kept[[0, -1]].tolist() == [0, 4999]
    assert draw.thinned(7).tolist() == list(range(7))
