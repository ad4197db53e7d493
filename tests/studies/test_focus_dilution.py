"""The focus-dilution study: its runs, its stages and its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnflow import walk
from attnflow.claims import Verdict
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims import cycles
from attnflow.tasks import MarkovChain

DEFAULT = (0.75, 0.19, 0.05, 0.01)
TWO_GROUP = (0.75, 0.125, 0.125)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("pi", "rate", "c"), [(DEFAULT, 0.459501, 0.1276555), (TWO_GROUP, 0.393221, 0.0662578)]
)
def test_closed_forms_have_the_known_values(pi, rate: float, c: float) -> None:
    chain = MarkovChain(pi, 0.8)
    assert theory.escape_rate(chain) == pytest.approx(rate, abs=1e-6)
    assert theory.focus_rate(chain) == pytest.approx(c, abs=1e-7)


def test_the_two_forms_of_the_focus_rate_agree_on_two_groups() -> None:
    chain = MarkovChain(TWO_GROUP, 0.8)
    assert theory.printed_focus_rate(chain) == pytest.approx(theory.focus_rate(chain), rel=1e-12)
    assert theory.ray_constant(chain) == pytest.approx(1.89859, abs=1e-5)


def test_the_smaller_chain_of_a_two_term_chain_is_a_two_term_chain():
    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
    small, known, weight = cycles.smaller_chain(chain)
    pi = chain.pi[1:] / chain.pi[1:].sum()
    lam = 0.8 / (0.8 + 0.2 * 0.25)
    assert np.abs(small.transition - MarkovChain(pi, lam).transition).max() < 1e-14
    # The loss of a model that knows all rows is the floor, however it is split.
    assert known + weight * small.floor == pytest.approx(chain.floor, abs=1e-14)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_run_walks_through_its_plateaus(seed: int) -> None:
    outcome = walk.run("focus-dilution", seed=seed, claims=False, progress=False)
    first = ["condensation", "focus", "dilution", "new direction"]
    names = [s.name for s in outcome.stages if s.cycle == 1 and s.name in first]
    assert names == first
    losses = [p.loss for p in outcome.plateaus]
    assert losses[0] == pytest.approx(0.727139, abs=2e-3)
    assert losses[1] == pytest.approx(0.490720, abs=2e-3)
    assert 0.30308 <= outcome.loss <= 0.30310
    assert outcome.work["rhs"] + outcome.work["jvp"] <= 3000
    predicted = outcome.summary["timeline"]["condensed"]
    measured = next(e.time for e in outcome.events if e.name == "condensed")
    assert measured == pytest.approx(predicted, rel=5e-3)
    json.dumps(outcome.as_json(), allow_nan=False)


def test_too_large_a_start_is_no_separation() -> None:
    outcome = walk.run("focus-dilution", init_scale=0.5, until=200.0, claims=False, progress=False)
    assert outcome.stages == []
    assert "no separation" in str(outcome)


@pytest.mark.parametrize("mode", ["gd", "adam", "sgd"])
def test_discrete_modes_train_the_same_model(mode: str) -> None:
    keys = {"mode": mode, "dim": 4, "init_scale": 0.1, "batch": 16, "context": 8}
    keys |= {"until": 20.0, "rate": 0.05} if mode != "adam" else {"until": 2.0, "rate": 0.01}
    outcome = walk.run("focus-dilution", keys, claims=False, progress=False)
    loss = outcome.trajectory["loss"].values
    assert outcome.status == "done"
    assert loss[-1] < loss[0] - 0.1


def test_gradient_descent_follows_the_flow() -> None:
    from attnflow.runs import compare

    keys = {"dim": 4, "until": 30.0, "claims": False, "progress": False}
    flow = walk.run("focus-dilution", rtol=1e-9, **keys)
    descent = walk.run("focus-dilution", mode="gd", rate=0.002, **keys)
    loss = next(d for d in compare(flow.trajectory, descent.trajectory).rows if d.name == "loss")
    assert 0 < loss.absolute < 5e-3


def test_a_general_chain_runs_to_its_entropy_rate() -> None:
    outcome = walk.run(
        "focus-dilution",
        transition=((0.9, 0.1), (0.3, 0.7)),
        init_scale=0.05,
        until=2000.0,
        claims=False,
        progress=False,
    )
    assert outcome.loss == pytest.approx(outcome.summary["floor"], abs=1e-3)
    assert np.isclose(
        outcome.built.chain.pi @ outcome.built.chain.transition, outcome.built.chain.pi
    ).all()


@pytest.mark.parametrize(
    ("keys", "field", "words"),
    [
        ({"pi": (0.4, 0.4, 0.2)}, "pi", "ties at the top (tokens 0 and 1)"),
        ({"pi": (0.25,) * 4}, "pi", "one most frequent token"),
        ({"lam": 1.0}, "lam", "strictly between 0 and 1"),
        ({"lam": 0.0}, "lam", "strictly between 0 and 1"),
        ({"data": "samples"}, "data", "one of population, finite, sample"),
        ({"sequences": 0}, "sequences", "at least one"),
        ({"batch": -1}, "batch", "minibatch"),
        ({"init_scale": -1.0}, "init_scale", "a positive, finite number"),
    ],
)
def test_bad_configs_are_one_sentence(keys, field, words) -> None:
    from attnflow import InputError

    with pytest.raises(InputError) as refused:
        walk.build("focus-dilution", keys)
    assert refused.value.field == field
    assert words in refused.value.sentence


def test_a_length_that_does_not_fit_is_said_before_any_work() -> None:
    from attnflow import InputError

    with pytest.raises(InputError, match="take a shorter length"):
        walk.run("focus-dilution", data="finite", context=500, claims=False, progress=False)


def test_short_training_on_the_sample_of_appendix_e_shows_the_pattern() -> None:
    outcome = walk.run(
        "focus-dilution",
        data="sample",
        mode="adam",
        rate=1.5e-4,
        until=0.12,
        dim=64,
        init_scale=1 / 256,
        sequences=20_000,
        claims=False,
        progress=False,
    )
    data = outcome.trajectory
    assert {"data_attention", "test_loss", "token_loss"} <= set(data.data_vars)
    onto = data["attention"].sel(key=0).values[:, 1:].mean(axis=1)
    assert onto.max() > 0.9
    assert onto[-1] < 0.3
    groups = data["token_loss"].values
    weights = data["loss"].values
    table = outcome.built.flow.loss(outcome.built.solution.final)
    assert weights[-1] == pytest.approx(table, abs=1e-12)
    assert groups[:, 3].max() > groups[0, 3] + 0.1
    first = {s.name: s.time for s in outcome.stages if s.cycle == 1}
    assert first["condensation"] < first["focus"] < first["dilution"] < first["new direction"]


def test_minibatches_of_the_sample_are_unbiased() -> None:
    import jax

    from attnflow.studies.focus_dilution import data

    study = walk.build(
        "focus-dilution", data="sample", mode="adam", batch=400, sequences=3000, dim=4, rate=0.01
    )
    assert study.stochastic
    theta = type(study.start).gaussian(4, 4, 0.7, 3)
    loss = jax.jit(data.minibatch(study.config))
    with jax.enable_x64(True):
        drawn = [float(loss(theta, key)) for key in jax.random.split(jax.random.key(0), 400)]
    gap = np.mean(drawn) - study.flow.loss(theta)
    assert abs(gap) < 4 * np.std(drawn) / 20


@pytest.mark.slow
def test_appendix_e_ends_at_the_bigram_entropy_of_its_sample() -> None:
    study = walk.build("focus-dilution", EXAMPLES / "appendix_e.toml", until=4500 * 1.5e-4)
    row = next(c for c in study.claims() if c.id == "App E (final loss)").check(study)
    assert row.verdict is Verdict.HOLDS, row.note
