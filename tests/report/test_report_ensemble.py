"""A sweep's page: cells with links, spreads, slopes in every form, and pictures."""

from __future__ import annotations

from attnflow.report import ensemble_page
from attnflow.runs import CellResult, Ensemble, cells

from .markup import Markup


def test_scan_page_has_cells_spreads_and_slopes(scan):
    text = ensemble_page(scan)
    read = Markup(text)
    assert read.problems == []
    assert {"answer", "figures", "cells", "spreads", "slopes"} <= set(read.ids)
    for form in ("linear", "log-x", "log-y", "log-log"):
        assert form in read.words
    assert "log-log ★ best" in read.words
    assert "stages.focus.time" in read.words
    assert "8 of 9 cells have a result" in read.words
    assert "ValueError: <b>bold</b>" in read.words
    assert "attnflow run x --scan <s>" in read.words
    assert read.count("script") == 1
    assert ensemble_page(scan) == text


def test_cells_link_their_own_pages_beside_this_one(scan):
    links = [r for r in Markup(ensemble_page(scan)).resources if r.endswith("report.html")]
    assert len(links) == 8
    assert links[0] == "0000-seed0-init_scale0.0001/report.html"


def test_unfinished_cells_have_no_link(scan):
    cut = [CellResult(r.cell, r.ok, "interrupted", "by hand", 1.0, r.value) for r in scan.results]
    read = Markup(ensemble_page(Ensemble.of("x", cut)))
    assert not [r for r in read.resources if r.endswith("report.html")]


def test_only_numbers_that_vary_are_drawn(scan):
    read = Markup(ensemble_page(scan))
    drawn = [str(a["aria-label"]) for t, a in read.tags if t == "svg"]
    assert drawn == [
        "plateaus.0.loss against init_scale.",
        "stages.focus.time against init_scale.",
        "plateaus.0.time against init_scale.",
    ]


def test_seeds_page_shows_every_seed(repeats):
    read = Markup(ensemble_page(repeats))
    assert read.problems == []
    assert "repeats over seeds" in read.words
    assert "slopes" not in read.ids
    assert [a["aria-label"] for t, a in read.tags if t == "svg"] == [
        "plateaus.0.time over the seeds.",
        "stages.focus.time over the seeds.",
    ]


def test_scan_over_words_has_a_page():
    grid = cells({"mode": "flow"}, None, "mode=flow,gd")
    results = [
        CellResult(c, True, "done", "ok", 1.0, {"summary": {"loss": float(c.index + 1)}})
        for c in grid
    ]
    read = Markup(ensemble_page(Ensemble.of("x", results)))
    assert read.problems == []
    assert read.count("svg") == 1
    assert "No slope could be fitted" in read.words


def test_ensemble_without_any_result_has_a_page():
    grid = cells({}, "0:2")
    waiting = [CellResult(c, False, "waiting", "not run yet") for c in grid]
    read = Markup(ensemble_page(Ensemble.of("x", waiting)))
    assert read.problems == []
    assert "0 of 2 cells have a result" in read.words
    assert "No cell has a number to show." in read.words
