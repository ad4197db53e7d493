"""A run of an optimiser is told in steps wherever a run of a flow is told in time."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from attnflow import draw, report
from attnflow.observe.stages import Plateau, Stage
from attnflow.report import _tables
from attnflow.runs._statistics import Fit, Slope
from attnflow.studies.config import step_length
from attnflow.walk import run

RATE = 0.05
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def descent():
    keys = {"until": 100.0, "dim": 3, "mode": "gd", "rate": RATE, "init_scale": 0.03}
    return run("focus-dilution", pi=(0.7, 0.3), claims=False, progress=False, **keys)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"mode": "flow", "rate": 0.1}, None),
        ({"mode": "staged", "rate": 0.1}, None),
        ({"mode": "infinite-width", "rate": 0.1}, None),
        ({"mode": "gd", "rate": 0.1}, 0.1),
        ({"mode": "adam", "rate": 0.1}, 0.1),
        ({"mode": "steps"}, 1.0),
        ({"rate": 0.1}, 0.1),
        ({}, None),
    ],
)
def test_which_modes_take_steps(config, length):
    assert step_length(config) == length


def test_a_staged_flow_has_no_steps():
    staged = run("two-mixture", mode="staged", claims=False, progress=False)
    assert staged.finished
    assert [s.step for s in staged.stages] == [None] * len(staged.stages)
    assert staged.step_of(1.0) is None


def test_tables_and_figures_name_steps(descent):
    found = Plateau(time=40.0, enter=10.0, leave=60.0, loss=0.5, speed=1e-3, prominence=1.0)
    table = _tables.plateaus(descent.replace(plateaus=[found]), "loss (nats)")
    assert table is not None
    assert table.head[:2] == ("loss (nats)", "slowest at step")
    assert table.rows[0][1:4] == ("800", "200", "1,200")
    words = draw.svg(descent.figures["loss"])
    assert "step of the optimiser" in words
    assert "flow time" not in words


def test_ticks_stand_at_whole_steps():
    with draw.in_steps(RATE):
        _, axes = draw.new()
        draw.timeline(axes, np.geomspace(RATE, 100 * RATE, 20), [Stage("focus", 1.0, 1)])
        assert draw.moment(10 * RATE) == "step 10"
    shown = [axes.xaxis.get_major_formatter()(x, 0) for x in axes.get_xticks()]
    assert shown == ["1", "10", "100"]
    assert axes.get_xticks() == pytest.approx(RATE * np.array([1.0, 10.0, 100.0]))
    assert draw.moment(0.5) == "t = 0.5"


def test_the_loss_of_an_own_study_has_no_unit():
    own = run(str(EXAMPLES / "own_study.py"), until=6.0, claims=False, progress=False)
    assert own.saddles
    page = report.page(own)
    assert "refined on the leaf" in page
    assert "nats" not in page


def test_a_caption_is_a_whole_sentence():
    assert draw.caption("x", lambda: None) == "X"

    def figure():
        """A caption of
        two lines.

        And more."""

    assert draw.caption("x", figure) == "A caption of two lines."


def test_the_first_stage_has_a_name_where_it_begins_with_the_run(descent):
    stages = [Stage("phase 1", 0.0, 1), Stage("phase 2", 50.0, 1)]
    words = draw.svg(draw.told(descent.trajectory, stages, draw.Story("")))
    assert re.search("phase 1", words)


def test_a_scan_is_told_with_what_was_predicted(monkeypatch):
    from attnflow.report import _scalars

    def line(name, slope):
        return Slope(name, "eps", {"log-x": Fit(slope, 0.01, 0.0, 0.99, 8)}, "log-x", 8, 0)

    measured, predicted = line("stages.focus.time", -2.1), line("timeline.focus", -2.2)
    names = {s.name for s in (measured, predicted)}
    assert _scalars.prediction_of(measured.name, names) == predicted.name
    assert _scalars.prediction_of("loss", names) is None
    pair = (measured, measured.fits["log-x"], predicted.fits["log-x"])
    monkeypatch.setattr(_scalars, "main_slopes", lambda ensemble: [pair])
    words = _scalars.finding(object())  # pyright: ignore[reportArgumentType]
    assert "focus begins 2.1 ± 0.01 time units earlier" in words
    assert "(predicted 2.2)" in words
