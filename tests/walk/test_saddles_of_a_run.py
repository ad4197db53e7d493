"""The saddle ledger of a run: computed, said, stored, shown again, and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import attnflow.linearise
from attnflow import linearise, register, walk
from attnflow.linearise import SaddleLedger, SavedSaddles
from attnflow.report import figures
from attnflow.runs import Run, open_run, plain
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.study import FocusDilution

SMALL: dict[str, Any] = {"dim": 4, "until": 60.0}
"""Waits at the origin and at the unigram saddle."""


def saying(said: dict[str, str]):
    return lambda step, words, passing=False: said.update({step: words})


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Run, dict[str, str], Path]:
    out = tmp_path_factory.mktemp("saddles") / "run"
    said: dict[str, str] = {}
    outcome = walk.run(
        "focus-dilution", out=out, claims=False, progress=False, say=saying(said), **SMALL
    )
    return outcome, said, out


def test_a_run_has_its_ledger_and_says_so_in_a_line(ran) -> None:
    outcome, said, _ = ran
    ledger = outcome.saddles
    assert isinstance(ledger, SaddleLedger)
    origin, unigram = ledger
    chain = outcome.built.chain
    assert origin.rate_predicted == pytest.approx(theory.escape_rate(chain), rel=1e-3)
    assert origin.rate_measured == pytest.approx(origin.rate_predicted, rel=0.01)
    assert unigram.loss == pytest.approx(chain.unigram_entropy, abs=1e-6)
    assert unigram.rate_predicted == pytest.approx(theory.focus_rate(chain), rel=0.02)
    worst = max(abs(s.exit_ratio - 1) for s in ledger)
    assert ledger.worst == pytest.approx(worst)
    many = "the start and 1 plateau, 2 refined"
    assert said["saddles"] == f"{many}, exits predicted within {100 * worst:.2g} %"
    assert said["plateaus"].count(" to ") == 1


def test_the_summary_gives_each_plateau_its_rates(ran) -> None:
    outcome, _, _ = ran
    (row,) = outcome.summary["plateaus"]
    unigram = outcome.saddles[1]
    assert row["rate_predicted"] == unigram.rate_predicted
    assert row["rate_measured"] == unigram.rate_measured
    assert (row["enter"], row["leave"]) == (unigram.plateau.enter, unigram.plateau.leave)
    assert outcome.as_json()["summary"]["plateaus"] == [row]
    (without,) = outcome.built.summary(outcome.trajectory, outcome.stages)["plateaus"]
    assert (without["rate_predicted"], without["rate_measured"]) == (None, None)
    assert [without[k] for k in ("enter", "leave")] == pytest.approx(
        [row["enter"], row["leave"]], rel=1e-3
    )


def test_a_stored_run_shows_it_without_solving_again(ran, monkeypatch) -> None:
    outcome, _, out = ran

    def refuse(*args, **kwargs):
        raise AssertionError("solved again")

    monkeypatch.setattr(linearise, "trajectory_ledger", refuse)
    monkeypatch.setattr(attnflow.linearise.rows, "integrate", refuse)
    stored = open_run(out)
    assert isinstance(stored.saddles, SavedSaddles)
    assert stored.saddles.records() == plain(outcome.saddles.records())
    assert repr(stored.saddles) == repr(outcome.saddles)
    assert stored.saddles.words == outcome.saddles.words
    assert plain(stored.summary) == plain(outcome.summary)
    assert json.loads((out / "saddles.json").read_text()) == plain(outcome.saddles.as_json())
    assert 'id="saddles"' in (out / "report.html").read_text()
    assert (out / "figures" / "saddles.svg").exists()


def test_a_finished_run_without_its_ledger_gets_it_on_resume(ran) -> None:
    outcome, _, out = ran
    (out / "saddles.json").unlink()
    (out / "report.html").unlink()
    again = walk.run(
        "focus-dilution", out=out, exists="resume", claims=False, progress=False, **SMALL
    )
    assert (out / "saddles.json").exists()
    # From the stored trajectory: the same plateaus, the same points.
    assert again.saddles is not None
    assert [r["loss"] for r in again.saddles.records()] == pytest.approx(
        [s.loss for s in outcome.saddles], rel=1e-12
    )


def test_discrete_and_wide_runs_have_none(monkeypatch) -> None:
    gd = walk.run("focus-dilution", dim=2, until=2.0, mode="gd", claims=False, progress=False)
    assert gd.saddles is None
    monkeypatch.setattr("attnflow.linearise.modes.DENSE", 20)
    wide = walk.run("focus-dilution", dim=2, until=2.0, claims=False, progress=False)
    assert wide.saddles is None


def test_a_study_may_have_none(monkeypatch) -> None:
    class Plain(FocusDilution):  # type: ignore[misc]
        name: ClassVar[str] = "without-saddles"

        def saddles(self, trajectory, **options):
            return None

    register(Plain)
    outcome = walk.run("without-saddles", dim=2, until=2.0, claims=False, progress=False)
    assert outcome.saddles is None


def test_no_separation_is_said_and_drawn_nowhere() -> None:
    said: dict[str, str] = {}
    outcome = walk.run(
        "focus-dilution",
        dim=2,
        until=2.0,
        init_scale=1.0,
        claims=False,
        progress=False,
        say=saying(said),
    )
    assert outcome.saddles is not None
    assert len(outcome.saddles) == 0
    assert said["saddles"] == "no separation: the flow never waits"
    assert outcome.saddles.worst is None
    assert "saddles" not in figures(outcome)
