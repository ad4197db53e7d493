"""Figures: one style, legible stages, and no crash on little or broken data."""

from __future__ import annotations

import functools
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest

from attnflow import draw
from attnflow.observe.stages import Stage
from attnflow.walk import run

NAMES = ["loss", "attention", "attention-maps", "ranks", "embeddings", "speed"]
SECOND = [
    Stage(n, t, c)
    for n, t, c in (
        ("condensation", 13.0, 1),
        ("focus", 30.0, 1),
        ("dilution", 31.0, 1),
        ("focus", 45.0, 2),
        ("dilution", 45.5, 2),
    )
]


@pytest.fixture(scope="module")
def wide():
    """Twelve tokens, more than colours."""
    law = np.array([0.3, 0.2, 0.12, 0.1, 0.08, 0.06, 0.05, 0.04, 0.02, 0.015, 0.01, 0.005])
    return run("focus-dilution", pi=tuple(law), until=5.0, dim=3, claims=False, progress=False)


@pytest.fixture(scope="module")
def narrow():
    return run("focus-dilution", pi=(0.7, 0.3), until=5.0, dim=3, claims=False, progress=False)


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(mpl.text.Text) if t.get_text()]


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_has_a_name_and_a_unit(bare, name):
    figure = bare.built.figures()[name](bare.trajectory, SECOND)
    named = [label for a in figure.axes for label in (a.get_xlabel(), a.get_ylabel()) if label]
    assert named
    assert all("(" in label for label in named)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["one row", "two rows", "nan", "partly nan", "zero"])
def test_little_or_broken_data_is_drawn(bare, name, kind):
    data = bare.trajectory
    cut = {
        "one row": data.isel(time=[0]),
        "two rows": data.isel(time=[0, 1]),
        "nan": data.where(False),
        "partly nan": data.where(data["time"] < 20),
        "zero": data * 0.0,
    }[kind]
    stages = [] if kind in ("two rows", "zero") else SECOND
    assert bare.built.figures()[name](cut, stages).axes


@pytest.mark.parametrize("name", NAMES)
def test_two_tokens_and_twelve(narrow, wide, name):
    for outcome in (narrow, wide):
        figure = outcome.built.figures()[name](outcome.trajectory, outcome.stages)
        shown = [legend for legend in figure.legends if len(legend.get_texts()) > 9]
        assert not shown


def test_many_tokens_are_told_apart_by_a_map_and_named_in_part(wide):
    looks, rest = draw.tokens(wide.built.chain.pi.tolist())
    assert len({look.colour for look in looks}) == 12
    assert [bool(look.label) for look in looks].count(True) == draw.MOST_NAMED
    assert rest == "and 4 between"


def test_stage_names_stand_above_the_axes_and_later_cycles_are_numbered(bare):
    figure = bare.built.figures()["loss"](bare.trajectory, SECOND)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    top = axes.get_window_extent().y1
    names = [
        t for t in axes.texts if t.get_text() in ("focus", "dilution", "focus 2", "dilution 2")
    ]
    assert len(names) == 4
    boxes = [mpl.text.Text.get_window_extent(t) for t in names]  # without the leading line
    assert all(box.y0 >= top for box in boxes)
    lefts = [axes.transAxes.inverted().transform(box.p0)[0] for box in boxes]
    assert all(b - a > 0.02 for a, b in pairwise(lefts))


def test_legend_is_outside_the_axes(bare):
    for figure in bare.figures.values():
        figure.draw_without_rendering()
        for legend in figure.legends:
            lowest = min(a.get_window_extent().y0 for a in figure.axes)
            assert legend.get_window_extent().y1 <= lowest


def test_style_does_not_leak_and_readers_settings_do_not_enter(bare):
    before = dict(mpl.rcParams)
    function = bare.built.figures()["loss"]
    usual = draw.svg_text(function(bare.trajectory, bare.stages))
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.facecolor": "black"}):
        assert draw.svg_text(function(bare.trajectory, bare.stages)) == usual
    assert dict(mpl.rcParams) == before


def test_caption_of_functions_with_and_without_words():
    def told(data, stages):
        """First line.

        More.
        """

    assert draw.caption("a", told) == "First line."
    assert draw.caption("a", functools.partial(told, stages=[])) == "First line."
    assert draw.caption("attention-maps", lambda data, stages: None) == "Attention maps"
    assert draw.caption("a", draw.bound(told, stages=[])) == "First line."


def test_svg_ids_begin_with_the_prefix(bare):
    text = draw.svg_text(bare.figures["speed"], "q-", 'a "label" <here>')
    assert 'aria-label="a &quot;label&quot; &lt;here&gt;"' in text
    assert text.count('id="') == text.count('id="q-')
    assert text.count("url(#") == text.count("url(#q-")
    assert "purl.org" not in text
