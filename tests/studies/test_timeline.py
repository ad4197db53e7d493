"""The predicted timeline: against runs of the full flow, and its parts against known values."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import walk
from attnflow.studies.focus_dilution import theory, timeline
from attnflow.tasks import MarkovChain, two_group_law

PI_A = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
PI_B = MarkovChain(np.array([8, 4, 2, 1]) / 15, 0.8)
S3 = MarkovChain(two_group_law(0.75, 3), 0.8)


def test_the_typical_length_is_the_mean_length():
    rng = np.random.default_rng(0)
    for dim in (1, 3, 16):
        sampled = np.linalg.norm(rng.standard_normal((200_000, dim)), axis=1).mean()
        assert timeline.typical_length(dim) == pytest.approx(sampled, rel=5e-3)


@pytest.mark.parametrize(
    ("keys", "within"),
    [
        (
            {"pi": (0.65, 0.25, 0.1), "lam": 0.85, "seed": 5, "init_scale": 1e-6, "until": 1000.0},
            0.02,
        ),
        # Chance makes a start of this width and scale up to a few hundredths faster or slower.
        ({"pi": (8 / 15, 4 / 15, 2 / 15, 1 / 15), "dim": 12, "seed": 6}, 0.06),
        ({"chain_kind": "metropolis", "dim": 12, "seed": 2}, 0.08),
    ],
)
def test_it_predicts_the_stages_of_runs_it_has_not_seen(keys, within):
    study = walk.build("focus-dilution", **{"until": 600.0, **keys})
    data = study.solve(progress=False).trajectory  # a run would look for its saddles too
    stages = study.stages(data)
    told = timeline.predict(study.chain, study.config.dim, study.config.scale)
    measured = {s.name: s.time for s in stages if s.cycle == 1}
    for name in ("focus", "dilution", "new direction"):
        assert measured[name] == pytest.approx(told.times[name], rel=within), name
    assert told.plateaus[0]["loss"] == pytest.approx(study.plateaus(data)[0].loss, abs=2e-3)
    assert study.summary(data, stages)["timeline"]["focus"] == told.times["focus"]


def test_it_predicts_the_mean_of_starts_it_has_not_seen():
    """A single start is off by 1.1 % (one standard deviation over twelve seeds), so four are
    averaged."""
    names = ("focus", "dilution", "new direction")
    told = timeline.predict(PI_A, 16, 1e-6).times
    measured = []
    for seed in (4, 5, 6, 7):
        study = walk.build("focus-dilution", dim=16, seed=seed, init_scale=1e-6, until=420.0)
        found = study.stages(study.solve(progress=False).trajectory)
        times = {s.name: s.time for s in found if s.cycle == 1}
        measured.append([times[name] for name in names])
    assert np.mean(measured, axis=0) == pytest.approx([told[name] for name in names], rel=0.015)


def test_its_rates_are_the_known_ones():
    rates = timeline.predict(PI_A, 16, 1e-6).rates
    assert rates["condensation"] == pytest.approx(0.459501, abs=1e-6)
    assert rates["focus"] == pytest.approx(0.1276555, abs=1e-7)
    assert rates["new direction"] == pytest.approx(0.0619, abs=5e-4)
    assert timeline.predict(S3, 16, 1e-6).rates["new direction"] == pytest.approx(0.01124, rel=0.01)


def test_equal_tokens_wait_at_the_two_group_and_at_the_split_point():
    losses = [w["loss"] for w in timeline.predict(S3, 16, 1e-3).plateaus]
    assert losses == pytest.approx([0.735622, 0.427850, 0.423619], abs=2e-5)


def test_cleanliness_is_the_exponent_of_the_least_speed():
    assert theory.cleanliness(PI_A) == pytest.approx(0.258, abs=1e-3)
    assert theory.cleanliness(PI_B) == pytest.approx(0.66, abs=5e-3)


@pytest.mark.parametrize("chain", [PI_A, PI_B], ids=["A", "B"])
def test_the_least_speed_of_the_rank_one_flow_scales_with_that_exponent(chain):
    scales = np.array([1e-5, 1e-6, 1e-7])
    least = []
    for scale in scales:
        told = timeline.predict(chain, 16, float(scale))
        assert told.trajectory is not None
        t, speed = told.trajectory["time"].values, told.trajectory["speed"].values
        inside = (t > told.times["condensation"]) & (t < told.times["focus"])
        least.append(speed[inside].min())
    slope = np.polyfit(np.log(scales), np.log(least), 1)[0]
    assert slope == pytest.approx(theory.cleanliness(chain), abs=0.02)


def test_a_uniform_law_has_no_timeline():
    told = timeline.predict(MarkovChain((0.5, 0.5), 0.8), 8, 1e-3)
    assert told.times == {}
    assert "uniform" in told.sentence


def test_a_large_start_has_only_its_condensation():
    told = timeline.predict(PI_A, 16, 0.5)
    assert set(told.times) == {"condensed"}
