"""The stage rules on runs that did not set their gates: seeds, widths, laws and scales."""

from __future__ import annotations

import functools
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import walk
from attnflow.studies.focus_dilution import stages
from attnflow.studies.focus_dilution.stages import Signals
from attnflow.studies.focus_dilution.study import FocusDilution

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
def _ran(keys):
    # A run of its own would look for its saddles too, and these tests do not.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FocusDilution, "saddles", lambda self, *a, **k: None)
        return walk.run("focus-dilution", dict(keys), claims=False, progress=False)


def ran(until=1200.0, **keys):
    return _ran(tuple({"until": until, **keys}.items()))


def of_cycle(found, cycle):
    return {s.name: s for s in found if s.cycle == cycle}


@pytest.mark.parametrize("keys", UNSEEN, ids=[str(k) for k in range(len(UNSEEN))])
def test_the_first_cycle_comes_in_its_order(keys):
    outcome = ran(**keys)
    first, second = of_cycle(outcome.stages, 1), of_cycle(outcome.stages, 2)
    times = [first[name].time for name in MAIN]
    assert times == sorted(times)
    assert all(0 <= s.confidence <= 1 and s.evidence for s in outcome.stages)
    assert times[0] < first["attention onset"].time < first["dilution"].time
    assert "retraction" in first
    assert "condensation" not in second  # what comes later is a rank that grows
    assert second["rank growth"].time >= first["new direction"].time
    assert second["dilution"].time > second["rank growth"].time
    assert [s.time for s in outcome.stages] == sorted(s.time for s in outcome.stages)


def test_focus_comes_before_the_new_direction_even_where_attention_does_not_dilute():
    outcome = ran(pi=(0.4, 0.3, 0.2, 0.1), lam=0.2, until=6000.0, dim=8)
    first = of_cycle(outcome.stages, 1)
    assert first["condensation"].time < first["focus"].time < first["new direction"].time
    assert "rises and stays" in first["focus"].evidence
    assert "dilution" not in first


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        ({"init_scale": "width"}, True),  # a large start: the stable rank falls to 1.076
        ({"init_scale": 1 / 256, "pi": (8 / 15, 4 / 15, 2 / 15, 1 / 15)}, False),
    ],
)
def test_adam_has_stages_too_and_counts_them_in_steps(keys, short):
    outcome = ran(until=0.24, mode="adam", rate=6e-4, dim=64, **keys)
    first = of_cycle(outcome.stages, 1)
    assert (first["condensation"].confidence < 0.5) is short
    assert ("short of its gate" in first["condensation"].evidence) is short
    assert first["condensation"].time < first["focus"].time < first["dilution"].time
    for stage in outcome.stages:
        assert stage.step == pytest.approx(stage.time / 6e-4, abs=1)
        assert stage.when == f"step {stage.step}"
    assert f"focus step {first['focus'].step}" in " ".join(str(outcome).split())
    assert outcome.step_of(6e-3) == 10


def test_a_flow_has_times_and_no_steps():
    outcome = ran(until=100.0, dim=8)
    assert all(s.step is None and s.when.startswith("t = ") for s in outcome.stages)
    assert outcome.step_of(1.0) is None


def test_a_gain_that_nobody_sees_says_so():
    weak, strong = ran(**UNSEEN[0]).stages, ran(**UNSEEN[5]).stages
    assert "too little to see" in of_cycle(weak, 1)["focus"].evidence
    assert "too little to see" not in of_cycle(strong, 1)["focus"].evidence


def test_equal_tokens_split_inside_rank_one_and_unequal_ones_do_not():
    equal = ran(pi=(0.75, 0.125, 0.125), seed=2, dim=8)
    times = {s.name: s.time for s in equal.stages if s.cycle == 1}
    assert times["dilution"] < times["in-manifold split"] < times["new direction"]
    assert "in-manifold split" not in {s.name for s in ran(**UNSEEN[0]).stages}


def test_stable_equal_tokens_do_not_split():
    # Here the criterion of the in-manifold instability says that equal tokens stay together.
    stable = ran(pi=(0.8, 0.1, 0.1), lam=0.3, dim=8)
    assert "in-manifold split" not in {s.name for s in stable.stages}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_start_that_is_too_large_is_no_separation(seed):
    assert ran(init_scale=0.3, seed=seed, until=300.0).stages == []


def test_a_flow_without_a_wait_has_no_stages():
    outcome = ran(seed=5, dim=8)
    pi = outcome.built.chain.pi
    signals = Signals.of(outcome.trajectory)
    assert stages.find(signals, pi, []) == []
    assert stages.find(signals, pi, None)


# --- Trajectories drawn by hand: the rules must read what was drawn.

T = np.linspace(0, 10, 201)
PI = np.array([0.7, 0.3])


def drawn(**changed) -> Signals:
    second = np.where(T < 1, 1.0, np.where(T < 8, 0.01, 0.5))
    onto = 0.7 + 0.1 * np.exp(-((T - 4) ** 2)) - 0.3 / (1 + np.exp(-4 * (T - 6)))
    attention = np.zeros((len(T), 2, 2))
    attention[:, 1, 0], attention[:, 0, 0] = onto, 0.9
    attention[:, :, 1] = 1 - attention[:, :, 0]
    series = {
        "loss": 2 - 0.1 * T,
        "rank": 1 + second,
        "stable": 1 + second**2,
        "embedding": np.stack([np.ones_like(T), second], axis=1),
        "query": np.stack([0.01 * np.exp(T), np.full_like(T, 0.01)], axis=1),
        "attention": attention,
        "norms": np.stack([T, np.minimum(T, 5)], axis=1),
    }
    return Signals(t=T, **{**series, **changed})


def times(signals: Signals) -> dict[str, float]:
    return {s.name: s.time for s in stages.find(signals, PI)}


def test_rules_hold_on_made_up_series():
    found = times(drawn())
    assert found["condensation"] == pytest.approx(1.0, abs=0.06)
    assert found["focus"] == pytest.approx(4.0, abs=0.01)
    assert found["dilution"] == pytest.approx(4 + np.sqrt(np.log(2)), abs=0.04)  # the tail helps
    assert found["new direction"] == pytest.approx(8.0, abs=0.06)
    assert found["attention onset"] == pytest.approx(np.log(3), abs=0.05)
    assert "retraction" not in found


@pytest.mark.parametrize(
    ("excess", "found"), [(0.049, True), (0.051, True), (0.09, True), (0.11, False)]
)
def test_a_gate_has_a_margin_and_its_time_does_not_jump(excess, found):
    """The stable rank falls to 1 + excess and turns back."""
    stable = 1 + excess * (1 + (T - 4) ** 2)
    names = {s.name: s for s in stages.find(drawn(stable=stable), PI)}
    assert ("condensation" in names) is found
    if found:
        stage = names["condensation"]
        assert stage.time == pytest.approx(4 - 1 / 3, abs=0.1)
        assert ("short of its gate" in stage.evidence) is (excess > 0.05)
        assert stage.confidence == pytest.approx(1 - excess / 0.1, abs=1e-9)


def test_a_signal_that_was_still_on_its_way_does_not_count():
    stable = 1 + 0.2 * np.exp(-0.1 * T)  # 1.074 at the end, and falling
    assert stages.find(drawn(stable=stable), PI) == []


def test_one_retraction_is_one_cycle_s():
    """Token 2 falls from 3 to 1 across the first new direction, and once more later."""
    pi = np.array([0.6, 0.3, 0.1])
    second = np.where(T < 1, 1.0, np.where(T < 4, 0.01, 0.5))
    rank = np.where(T < 4, 1.0, 2.0)
    embedding = np.stack([np.ones_like(T), second, 0.01 * np.ones_like(T)], axis=1)
    fall = np.interp(T, [0, 3, 5, 6, 7, 8, 10], [1, 3, 1, 2, 2.5, 1.5, 2])
    norms = np.stack([T, T, fall], axis=1)
    flat = np.full((len(T), 3, 3), 1 / 3)
    query = 0.01 * np.ones((len(T), 3))
    changed = {"embedding": embedding, "norms": norms, "rank": rank, "query": query}
    both = stages.find(drawn(attention=flat, **changed), pi)
    seen = [(s.cycle, s.time) for s in both if s.name == "retraction"]
    assert seen == [(1, pytest.approx(3.6, abs=0.05)), (2, pytest.approx(7.5, abs=0.05))]
    once = np.interp(T, [0, 3, 5, 10], [1, 3, 1, 1.1])
    norms = np.stack([T, T, once], axis=1)
    found = stages.find(drawn(attention=flat, **{**changed, "norms": norms}), pi)
    assert [s.cycle for s in found if s.name == "retraction"] == [1]


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_units_do_not_matter(size, pace):
    """The scale of the weights and of time move no stage against another."""
    signals = drawn()
    scaled = {n: size * getattr(signals, n) for n in ("embedding", "query", "norms")}
    other = replace(signals, t=pace * T, **scaled)
    assert {f.name for f in fields(Signals)} >= set(scaled)
    assert times(other) == pytest.approx({n: pace * t for n, t in times(signals).items()})
