"""The saddle ledger in a report: its table and its figure."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pytest

from attnflow import draw
from attnflow.linearise import SavedSaddles
from attnflow.report import figures, page, saddles_over_loss
from attnflow.report._drawings import drawings

from .markup import Markup


def saddle(number: int, **known: Any) -> dict[str, Any]:
    """A plateau of which nothing is known but what is given."""
    row: dict[str, Any] = dict.fromkeys(
        ("leave_predicted", "index", "nullity", "rate_predicted", "rate_measured")
    )
    row |= {
        "number": number,
        "loss": 1 / number,
        "time": 5.0 * number,
        "enter": 4.0 * number,
        "leave": 6.0 * number,
        "converged": False,
        "gradient": 2e-3,
        "rates": [],
        "blocks": "",
        "efolds": 0.0,
        "note": "8 steps <did> not halve it",
    }
    return {**row, **known}


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(mpl.text.Text) if t.get_text()]


def test_the_table_is_there_with_a_ledger_only(outcome) -> None:
    read = Markup(page(outcome))
    assert "saddles" in read.ids
    assert outcome.saddles.words.capitalize() in read.words
    for row in outcome.saddles.records():
        assert f"{row['rate_predicted']:.5g}" in read.words
        assert row["note"] in read.words
    other = Markup(page(outcome.replace(saddles=None)))
    assert "saddles" not in other.ids
    assert "exit rate" not in other.words


def test_what_is_not_known_is_a_dash(outcome) -> None:
    unknown = SavedSaddles("1 plateau, 0 refined to critical points.", [saddle(1)])
    read = Markup(page(outcome.replace(saddles=unknown)))
    assert "1 plateau, 0 refined" in read.words
    assert "8 steps <did> not halve it" in read.words
    assert "not a number" not in read.words


def test_the_figure_numbers_each_saddle_and_says_its_rates(bare) -> None:
    figure = figures(bare)["saddles"]
    said = texts(figure)
    for row in bare.saddles.records():
        assert str(row["number"]) in said
        rates = f"exit rate {row['rate_predicted']:.4g}, measured {row['rate_measured']:.4g}"
        assert f"{row['number']}: {rates}" in said
    (axes,) = figure.axes
    assert all("(" in label for label in (axes.get_xlabel(), axes.get_ylabel()))
    levels = [line for line in axes.get_lines() if line.get_linewidth() == 3]
    assert [float(line.get_ydata()[0]) for line in levels] == pytest.approx(
        [s.loss for s in bare.saddles]
    )
    (drawing,) = [d for d in drawings(bare, figures(bare)) if d.name == "saddles"]
    assert drawing.caption.startswith("Each saddle at its loss")


def test_the_figure_says_what_was_not_found(bare) -> None:
    known: dict[str, Any] = {"converged": True, "law": "exponential", "rate_measured": 0.09}
    late = {"leave_predicted": 19.0, "flag": "exit predicted 3 times too late"}
    rows = [
        saddle(1),
        saddle(2, converged=True, law="algebraic", power=2.04, power_error=0.05),
        saddle(3, **known, rate_predicted=0.1, **late),
        saddle(4, kind="bottleneck"),
        saddle(5, kind="still waiting", converged=True),
        *(saddle(k) for k in range(6, 12)),
    ]
    figure = saddles_over_loss(bare.trajectory, bare.stages, SavedSaddles("", rows))
    said = texts(figure)
    assert "1: not refined, no law" in said
    assert "2: speed ~ r^2.04 ± 0.05" in said
    assert f"3: exit rate 0.1, measured 0.09 ({late['flag']})" in said
    assert "4: bottleneck, not refined, no law" in said
    assert "5: still waiting" in said
    assert "11: not refined, no law" in said  # more saddles than colours
    markers = [line.get_marker() for line in figure.axes[0].get_lines()]
    assert markers.count("X") == 1
    again = saddles_over_loss(bare.trajectory, bare.stages, SavedSaddles("", rows))
    assert draw.svg_text(figure) == draw.svg_text(again)


@pytest.mark.parametrize("kind", ["one row", "two rows", "nan", "zero"])
def test_little_or_broken_data_is_drawn(bare, kind: str) -> None:
    data = bare.trajectory
    cut = {
        "one row": data.isel(time=[0]),
        "two rows": data.isel(time=[0, 1]),
        "nan": data.where(False),
        "zero": data * 0.0,
    }[kind]
    assert saddles_over_loss(cut, [], bare.saddles).axes
