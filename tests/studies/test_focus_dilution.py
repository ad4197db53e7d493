"""The focus-dilution study: its verdicts, its stages and its numbers."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from attnflow import walk
from attnflow.claims import Ledger, Verdict
from attnflow.studies.focus_dilution import theory
from attnflow.tasks import MarkovChain

DEFAULT = (0.75, 0.19, 0.05, 0.01)
TWO_GROUP = (0.75, 0.125, 0.125)


@cache
def ledger_of(pi: tuple[float, ...]) -> Ledger:
    return walk.check("focus-dilution", pi=pi)


@pytest.mark.parametrize("pi", [DEFAULT, TWO_GROUP])
def test_every_verdict_is_the_expected_one(pi: tuple[float, ...]) -> None:
    ledger = ledger_of(pi)
    assert not ledger.surprises, ledger.summary
    assert len(ledger) >= 11


def test_every_claim_has_a_control_that_flips() -> None:
    for row in ledger_of(DEFAULT):
        assert row.control is not None, row.id
        assert row.control.flips, row.id


def test_every_correction_shows_itself() -> None:
    corrected = [row for row in ledger_of(DEFAULT) if row.correction is not None]
    assert corrected
    for row in corrected:
        assert row.verdict in (Verdict.HOLDS_CORRECTED, Verdict.FAILS)
        assert row.correction is not None
        row.correction.run()


def test_a_uniform_law_is_outside_the_regime() -> None:
    ledger = walk.check("focus-dilution", pi=(0.5, 0.5))
    assert ledger["Thm 3.2 (condensation time)"].verdict is Verdict.OUT_OF_REGIME
    assert not ledger.surprises, ledger.summary


@pytest.mark.parametrize(
    ("pi", "rate", "c"),
    [(DEFAULT, 0.459501, 0.1276555), (TWO_GROUP, 0.393221, 0.0662578)],
)
def test_closed_forms_have_the_known_values(pi, rate: float, c: float) -> None:
    chain = MarkovChain(pi, 0.8)
    assert theory.escape_rate(chain) == pytest.approx(rate, abs=1e-6)
    assert theory.focus_rate(chain) == pytest.approx(c, abs=1e-7)


def test_the_two_forms_of_the_focus_rate_agree_on_two_groups() -> None:
    chain = MarkovChain(TWO_GROUP, 0.8)
    assert theory.printed_focus_rate(chain) == pytest.approx(theory.focus_rate(chain), rel=1e-12)
    assert theory.ray_constant(chain) == pytest.approx(1.89859, abs=1e-5)


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
    assert "no separation" in repr(outcome)


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
    loss = next(d for d in compare(flow.trajectory, descent.trajectory).rows
                if d.name == "loss")  # fmt: skip
    assert 0 < loss.absolute < 5e-3


def test_a_general_chain_runs_to_its_entropy_rate() -> None:
    outcome = walk.run(
        "focus-dilution", transition=((0.9, 0.1), (0.3, 0.7)), init_scale=0.05, until=2000.0,
        claims=False, progress=False,
    )  # fmt: skip
    assert outcome.loss == pytest.approx(outcome.summary["floor"], abs=1e-3)
    assert np.isclose(outcome.study.chain.pi @ outcome.study.chain.transition,
                      outcome.study.chain.pi).all()  # fmt: skip
