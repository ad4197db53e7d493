"""The stage rules on runs that did not set their thresholds: seeds, widths, laws and scales."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import xarray as xr

from attnflow import walk
from attnflow.studies.focus_dilution import stages

MAIN = ("condensation", "focus", "dilution", "new direction")

UNSEEN = [
    {"seed": 5, "dim": 12},
    {"seed": 3, "dim": 24, "init_scale": 3e-4},
    {"seed": 8, "dim": 8, "init_scale": 1e-5},
    {"seed": 4, "dim": 8, "pi": (0.6, 0.25, 0.1, 0.05), "lam": 0.7},
    {"seed": 6, "dim": 8, "pi": (0.65, 0.25, 0.1), "lam": 0.85},
    {"seed": 2, "dim": 8, "pi": (0.5, 0.25, 0.12, 0.08, 0.05)},
    {"seed": 7, "dim": 8, "chain_kind": "metropolis"},
]


@functools.cache
def _solved(keys):
    study = walk.build("focus-dilution", dict(keys))
    return study, study.solve(progress=False).trajectory


def solved(**keys):
    """A study and its trajectory; a run would look for its saddles too."""
    return _solved(tuple({"until": 1200.0, **keys}.items()))


def found(**keys):
    study, trajectory = solved(**keys)
    return study.stages(trajectory)


@pytest.mark.parametrize("keys", UNSEEN, ids=[str(k) for k in range(len(UNSEEN))])
def test_the_first_cycle_comes_in_its_order(keys):
    seen = found(**keys)
    first = {s.name: s for s in seen if s.cycle == 1}
    times = [first[name].time for name in MAIN]
    assert times == sorted(times)
    assert all(0 < s.confidence <= 1 and s.evidence for s in seen)
    assert times[0] < first["attention onset"].time < first["dilution"].time
    assert "retraction" in first
    second = {s.name: s.time for s in seen if s.cycle == 2}
    assert second["condensation"] >= first["new direction"].time
    assert second["dilution"] > second["condensation"]
    assert [s.time for s in seen] == sorted(s.time for s in seen)


def test_equal_tokens_split_inside_rank_one_and_unequal_ones_do_not():
    equal = found(pi=(0.75, 0.125, 0.125), seed=2, dim=8)
    times = {s.name: s.time for s in equal if s.cycle == 1}
    assert times["dilution"] < times["in-manifold split"] < times["new direction"]
    assert "in-manifold split" not in {s.name for s in found(**UNSEEN[0])}


def test_stable_equal_tokens_do_not_split():
    # Here the criterion of the in-manifold instability says that equal tokens stay together.
    stable = found(pi=(0.8, 0.1, 0.1), lam=0.3, dim=8)
    assert "in-manifold split" not in {s.name for s in stable}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_start_that_is_too_large_is_no_separation(seed):
    assert found(init_scale=0.3, seed=seed, until=300.0) == []


def test_a_flow_without_a_wait_has_no_stages():
    study, trajectory = solved(**UNSEEN[0])
    assert stages.find(trajectory, study.chain.pi, []) == []
    assert stages.find(trajectory, study.chain.pi, None)


def test_rules_hold_on_made_up_series():
    """A trajectory drawn by hand: the rules must read what was drawn."""
    t = np.linspace(0, 10, 201)
    pi = np.array([0.7, 0.3])
    second = np.where(t < 1, 1.0, np.where(t < 8, 0.01, 0.5))
    onto = 0.7 + 0.1 * np.exp(-((t - 4) ** 2)) - 0.3 / (1 + np.exp(-4 * (t - 6)))
    attention = np.zeros((len(t), 2, 2))
    attention[:, 1, 0], attention[:, 0, 0] = onto, 0.9
    attention[:, :, 1] = 1 - attention[:, :, 0]
    query = np.stack([0.01 * np.exp(t), np.full_like(t, 0.01)], axis=1)
    drawn = xr.Dataset(
        {
            "loss": ("time", 2 - 0.1 * t),
            "effective_rank": (("time", "matrix"), 1 + second[:, None]),
            "stable_rank": (("time", "matrix"), 1 + second[:, None] ** 2),
            "singular_W0": (("time", "mode"), np.stack([np.ones_like(t), second], axis=1)),
            "singular_WQ": (("time", "query_mode"), query),
            "attention": (("time", "query", "key"), attention),
            "embedding_norm": (("time", "token"), np.stack([t, np.minimum(t, 5)], axis=1)),
        },
        coords={"time": t, "matrix": ["W0"]},
    )
    found = {s.name: s.time for s in stages.find(drawn, pi, None)}
    assert found["condensation"] == pytest.approx(1.0, abs=0.06)
    assert found["focus"] == pytest.approx(4.0, abs=0.2)
    assert found["dilution"] == pytest.approx(4 + np.sqrt(np.log(2)), abs=0.1)
    assert found["new direction"] == pytest.approx(8.0, abs=0.06)
    assert "retraction" not in found
