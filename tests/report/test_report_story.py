"""The first screen: a sentence, an axis on which every stage is wide enough, and what is news."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from attnflow import draw
from attnflow.draw.story import _bounds, _even
from attnflow.observe import Stage


@pytest.fixture(scope="module")
def trajectory():
    t = np.linspace(0.0, 1000.0, 401)
    return xr.Dataset({"loss": ("time", np.exp(-t / 300))}, coords={"time": t})


STAGES = [Stage("focus", 10.0), Stage("dilution", 12.0), Stage("focus", 700.0, cycle=2)]


def test_every_stage_has_the_same_width(trajectory):
    t = trajectory["time"].values
    bounds = _bounds(t, STAGES)
    assert bounds.tolist() == [0.0, 10.0, 12.0, 700.0, 1000.0]
    np.testing.assert_allclose(_even(bounds, bounds), np.arange(5))
    assert (np.diff(_even(t, bounds)) > 0).all()


def test_a_stretch_over_decades_runs_by_its_logarithm(trajectory):
    x = _even(np.array([12.0, np.sqrt(12.0 * 700.0), 700.0]), np.array([0.0, 12.0, 700.0]))
    np.testing.assert_allclose(x, [1.0, 1.5, 2.0])


def test_stages_that_begin_together_share_a_band(trajectory):
    together = [*STAGES, Stage("retraction", 10.0 + 1e-9)]
    assert len(_bounds(trajectory["time"].values, together)) == 5
    figure = draw.told(trajectory, together, draw.Story("It fell."))
    names = [text.get_text() for text in figure.axes[0].texts]
    assert names == ["focus, retraction", "dilution", "focus 2"]


def test_a_stage_of_a_later_cycle_has_the_colour_of_its_first(trajectory):
    top = draw.told(trajectory, STAGES, draw.Story("It fell.")).axes[0]
    first, second, again = (patch.get_facecolor() for patch in top.patches)
    assert first == again
    assert first != second


@pytest.mark.parametrize("maps", [None, np.random.default_rng(0).random((401, 3, 3))])
@pytest.mark.parametrize("stages", [[], STAGES])
def test_it_is_drawn_with_and_without_stages_and_maps(trajectory, stages, maps):
    story = draw.Story("It fell.", {"a": trajectory["loss"].values}, "loss", maps)
    figure = draw.told(trajectory, stages, story)
    assert figure.axes[0].get_lines()
    assert len(figure.axes) == (2 if maps is None else 3)
