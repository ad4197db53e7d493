"""Cells, sweeps and what they say."""

import json
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sweep_work
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.runs import (
    Cell,
    CellResult,
    Ensemble,
    begin_ensemble,
    cells,
    list_runs,
    open_ensemble,
    slopes,
    spread,
    sweep,
)


def test_seeds_are_a_range_or_a_list():
    assert [c.overrides["seed"] for c in cells({}, "0:16")] == list(range(16))
    assert [c.seed for c in cells({}, "0,3,5")] == [0, 3, 5]
    assert [c.seed for c in cells({}, "0:2, 7")] == [0, 1, 7]
    assert [c.seed for c in cells({}, [4, 2])] == [4, 2]


def test_a_scan_is_a_list_or_a_range_with_exact_ends():
    values = [c.overrides["init_scale"] for c in cells({}, scan="init_scale=1e-6:1e-2:9:log")]
    assert values[0] == 1e-6
    assert values[2] == 1e-5
    assert values[-1] == 1e-2
    assert len(values) == 9
    assert [c.value for c in cells({}, scan="lam=0.5,0.7,0.9")] == [0.5, 0.7, 0.9]
    assert [c.value for c in cells({}, scan="lam=0:1:5")] == [0, 0.25, 0.5, 0.75, 1]


def test_a_scan_of_whole_numbers_stays_whole():
    found = [c.value for c in cells({"dim": 16}, scan="dim=4:64:5:log")]
    assert found == [4, 8, 16, 32, 64]
    assert all(isinstance(value, int) for value in found)
    assert [c.value for c in cells({"dim": 16}, scan="dim=16,inf")] == [16, math.inf]
    with pytest.raises(InputError, match="dim takes whole numbers"):
        cells({"dim": 16}, scan="dim=4:64:6:log")
    assert isinstance(cells({"lam": 0.5}, scan="lam=0:1:2")[0].value, float)


def test_words_are_scanned_where_the_base_has_a_word():
    assert [c.value for c in cells({"mode": "flow"}, scan="mode=flow,gd")] == ["flow", "gd"]


def test_seeds_and_scan_give_the_product_on_top_of_the_base():
    found = cells({"pi": [0.6, 0.4], "lam": 0.8}, "0:3", "lam=0.5,0.7")
    assert [(c.index, c.value, c.seed) for c in found] == [
        *((0, 0.5, 0), (1, 0.5, 1), (2, 0.5, 2)),
        *((3, 0.7, 0), (4, 0.7, 1), (5, 0.7, 2)),
    ]
    assert found[5].overrides == {"pi": [0.6, 0.4], "lam": 0.7, "seed": 2}
    assert found[5].name == "0005-seed2-lam0.7"
    assert [c.overrides for c in cells({"a": 1})] == [{"a": 1}]


@pytest.mark.parametrize(
    ("seeds", "scan", "sentence"),
    [
        ("x", None, "seeds: 'x' is not a list of seeds"),
        ("-1", None, "not a seed"),
        ("3:3", None, "has no seed in it"),
        ("0,0", None, "a value twice"),
        ("0:99999999999", None, "too many"),
        (None, "lam", "is not a scan"),
        (None, "lam=", "is not a scan"),
        (None, "lam=a,b", "'a' in 'lam=a,b' is not a number"),
        (None, "lam=0:1", "not first:last:count"),
        (None, "lam=0:1:3:sqrt", "not first:last:count"),
        (None, "lam=0:1:1", "not a count"),
        (None, "lam=0:1:3:log", "ends above 0"),
        (None, "lam=1:1:3", "a value twice"),
        (None, "lam=0:inf:3", "finite numbers"),
        (None, "lamb=0:1:3", "did you mean 'lam'"),
        ("0:4", "seed=0,1", "keep one of the two"),
        ("0:1000", "lam=0:1:1000", "at most 100000"),
    ],
)
def test_bad_seeds_and_scans_are_one_sentence(seeds, scan, sentence):
    with pytest.raises(InputError) as caught:
        cells({"lam": 0.5}, seeds, scan, known=["lam", "seed", "pi"])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


rubbish = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.text("0123456789:,.-+einfalogm= ", max_size=24),
    st.from_regex(r"\A(lam|dim|mode)=[-0-9.e]{1,6}:[-0-9.e]{1,6}:[0-9]{1,3}(:log)?\Z"),
    st.integers(),
    st.lists(st.one_of(st.integers(-2, 5), st.floats(), st.text(max_size=2)), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(rubbish, rubbish, st.booleans())
def test_only_input_errors_come_out_of_rubbish(seeds, scan, closed):
    base = {"lam": 0.5, "dim": 4, "mode": "flow", "flag": True}
    try:
        found = cells(base, seeds, scan, known=base if closed else None)
    except InputError:
        return
    assert found
    assert [c.index for c in found] == list(range(len(found)))
    for cell in found[:10]:
        assert not any(isinstance(v, float) and math.isnan(v) for v in cell.overrides.values())
        assert "/" not in cell.name


def test_death_and_exceptions_are_statuses_of_their_cells():
    seen = []
    found = sweep(
        cells({}, "0:8"),
        sweep_work.troubled,
        workers=2,
        progress=lambda done, total, result: seen.append((done, total)),
    )
    assert [r.cell.index for r in found] == list(range(8))
    assert [r.status for r in found] == [
        *("finished", "died", "failed", "failed", "failed", "failed", "finished", "finished")
    ]
    assert "process died" in found[1].sentence
    assert found[2].sentence == "dim: 0 is not a width"
    assert found[3].sentence == "ValueError: first line"
    assert "not a mapping" in found[4].sentence
    assert seen == [(k, 8) for k in range(1, 9)]


def test_any_executor_is_accepted_and_left_open():
    with ThreadPoolExecutor(2) as pool:
        found = sweep(cells({}, "0,6"), sweep_work.troubled, executor=pool)
        assert [r.ok for r in found] == [True, True]
        assert pool.submit(int, "3").result() == 3
    closed = sweep(cells({}, "0,6"), sweep_work.troubled, executor=pool)
    assert [r.status for r in closed] == ["failed", "failed"]
    assert "takes no more work" in closed[0].sentence


def test_work_that_cannot_be_pickled_is_bad_input():
    with pytest.raises(InputError, match="cannot be sent to another process"):
        sweep(cells({}), lambda config: {})
    with pytest.raises(InputError, match="workers"):
        sweep(cells({}), sweep_work.fine, workers=0)


def test_ctrl_c_returns_what_there_is():
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, sweep_work.__file__], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["0", "True", "finished"]
    assert rows[1:] == [[str(k), "False", "cancelled"] for k in range(1, 6)]
    assert time.monotonic() - begin < 40


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_parent(ending, tmp_path):
    command = [sys.executable, sweep_work.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as parent:
        while len(list(tmp_path.iterdir())) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
        parent.send_signal(ending)
    assert parent.returncode == -ending
    pids = [int(file.name) for file in tmp_path.iterdir()]
    while any(map(alive, pids)):  # the limit of the test ends it where one stays
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def results(found, work=sweep_work.fine):
    return [CellResult(c, True, "finished", "", 0.0, work(c.overrides)) for c in found]


def test_spread_is_over_seeds():
    rows = {s.name: s for s in spread(results(cells({"x": 2.0}, "0:4")))}
    assert rows["loss"].mean == 16
    assert rows["loss"].sd == 0
    row = rows["plateaus.0.loss"]
    assert (row.mean, row.min, row.max, row.n, row.missing) == (3.5, 2, 5, 4, 0)
    assert row.sd == pytest.approx(np.std([0, 1, 2, 3], ddof=1))


def test_spread_is_per_scanned_value_and_counts_what_is_missing():
    found = results(cells({}, "0:2", "x=1.0,2.0"))
    found[3] = CellResult(found[3].cell, False, "died", "gone")
    rows = {(s.name, s.value): s for s in spread(found)}
    assert rows["loss", 1.0].n == 2
    assert (rows["loss", 2.0].n, rows["loss", 2.0].missing, rows["loss", 2.0].sd) == (1, 1, None)


def test_slopes_find_the_power_law_and_keep_every_form():
    (loss, plateau) = slopes(results(cells({}, "0:2", "x=0.1:10:9:log")), "x")
    assert loss.name == "loss"
    assert set(loss.fits) == {"linear", "log-x", "log-y", "log-log"}
    assert loss.best == "log-log"
    assert loss.fits["log-log"].slope == pytest.approx(3)
    assert loss.fits["log-log"].intercept == pytest.approx(math.log(2))
    assert loss.fits["log-log"].error == pytest.approx(0, abs=1e-12)
    assert plateau.fits["linear"].slope == pytest.approx(1)
    assert plateau.fits["linear"].n == 18


def test_slopes_agree_with_polyfit_and_leave_out_undefined_forms():
    rng = np.random.default_rng(0)
    x, y = np.arange(-3.0, 6.0), rng.normal(size=9)
    found = [
        CellResult(
            Cell(k, {"x": float(a)}, None, {"x": float(a)}), True, "", "", 0, {"summary": {"y": b}}
        )
        for k, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    (row,) = slopes(found)
    (coefficients, covariance) = np.polyfit(x, y, 1, cov=True)
    assert set(row.fits) == {"linear"}
    assert row.fits["linear"].slope == pytest.approx(coefficients[0])
    assert row.fits["linear"].error == pytest.approx(math.sqrt(covariance[0, 0]))
    assert row.fits["linear"].r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_a_constant_has_no_r2_and_no_best_form():
    found = results(cells({}, None, "x=1:5:5"), lambda config: {"summary": {"y": 0.1, "b": True}})
    (row,) = slopes(found)
    assert row.best is None
    assert row.fits["linear"].slope == pytest.approx(0, abs=1e-15)
    assert slopes(results(cells({}, "0:3"))) == []


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
                ),
                max_leaves=4,
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_summary_gives_statistics_that_are_json(summaries):
    found = [
        CellResult(Cell(k, {"x": k}, 0, {"x": k}), True, "finished", "", 0.0, {"summary": s})
        for k, s in enumerate(summaries)
    ]
    json.dumps(Ensemble.of("fake", found).json(), allow_nan=False)


def test_an_ensemble_is_saved_opened_and_listed(tmp_path):
    plan = cells({"dim": math.inf}, "0:2", "x=1.0,2.0,4.0")
    folder = tmp_path / "e"
    assert begin_ensemble(folder, "fake", plan, command="attnflow run fake --seeds 0:2") is None
    assert [row.status for row in list_runs(tmp_path)] == ["unfinished"]
    found = [
        CellResult(
            c,
            True,
            "finished",
            "",
            0.5,
            {**sweep_work.fine(c.overrides), "run": str(folder / c.name)},
        )
        for c in plan
    ]
    found[1] = CellResult(plan[1], False, "died", "its process died")
    saved = Ensemble.of("fake", found, "attnflow run fake --seeds 0:2")
    saved.save(folder)
    raw = json.loads((folder / "ensemble.json").read_text())
    assert raw["cells"][0]["run"] == plan[0].name
    opened = open_ensemble(folder)
    assert opened.spread == saved.spread
    assert opened.slopes == saved.slopes
    assert [r.cell for r in opened.results] == plan
    assert opened.results[0].run == str(folder / plan[0].name)
    (row,) = list_runs(tmp_path)
    assert (row.kind, row.status, row.sentence) == (
        "ensemble",
        "finished",
        "5 of 6 cells have a result; cell 1: its process died",
    )
    assert "cell 1: its process died" in repr(opened)
    assert "log-log (best)" in opened._repr_html_()
    again = begin_ensemble(folder, "fake", plan)
    assert again is not None
    assert again.spread == saved.spread
    for other in ({"cells": plan[1:]}, {"study": "other"}, {"exists": "overwrite"}):
        with pytest.raises(InputError, match="already holds an ensemble"):
            begin_ensemble(folder, **{"study": "fake", "cells": plan, **other})
    assert begin_ensemble(folder, "fake", plan, exists="resume") is None
    with pytest.raises(InputError, match="unfinished ensemble; resume it"):
        begin_ensemble(folder, "fake", plan)
    raw = (folder / "ensemble.json").read_bytes()
    for damage in (raw[:-9], raw.replace(b"waiting", b"wasting", 1), b"[]", b"\xff"):
        (folder / "ensemble.json").write_bytes(damage)
        assert [row.kind for row in list_runs(tmp_path)] in (["broken"], [])
        with pytest.raises(InputError, match=r"ensemble\.json"):
            open_ensemble(folder)


def test_an_ensemble_does_not_go_into_a_folder_that_is_not_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="not an ensemble of ours"):
        begin_ensemble(tmp_path, "fake", cells({}))
    assert [p.name for p in Path(tmp_path).iterdir()] == ["thesis.tex"]
