"""Grids of any dimension: cells, their dataset, refinement along a boundary, and a cluster."""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import sweep_work
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import walk
from attnflow._errors import InputError
from attnflow.runs import (
    CellResult,
    Ensemble,
    _cluster,
    cells,
    label_of,
    on_cluster,
    open_ensemble,
    open_run,
    refine,
    sweep,
)
from attnflow.studies.focus_dilution import symmetric


def test_several_keys_give_their_product_in_order():
    found = cells({"lam": 0.8, "dim": 4}, "0:2", ["dim=2,4", "lam=0.1:0.3:3"])
    assert len(found) == 12
    assert [dict(c.at) for c in found[::2]][:3] == [
        {"dim": 2, "lam": 0.1},
        {"dim": 2, "lam": 0.2},
        {"dim": 2, "lam": 0.3},
    ]
    assert found[0].name == "0000-seed0-dim2-lam0.1"
    assert found[0].parameter == "dim, lam"
    assert found[0].value == (2, 0.1)
    assert found[7].overrides == {"dim": 4, "lam": 0.1, "seed": 1}


def test_an_entry_of_a_law_is_scanned_and_the_law_stays_one():
    found = cells({"pi": [0.4, 0.3, 0.2, 0.1]}, None, "pi.0=0.1:0.97:30", known=["pi"])
    for cell in found:
        law = cell.overrides["pi"]
        assert law[0] == cell.at["pi.0"]
        assert sum(law) == pytest.approx(1, abs=1e-14)
        assert np.array(law[1:]) / law[3] == pytest.approx([3, 2, 1])


@pytest.mark.parametrize(
    ("seeds", "scan", "sentence"),
    [
        ("5", None, "write 0:5 for 5 seeds, 5:6 for seed 5 alone"),
        (5, None, "write 0:5"),
        (None, ["lam=1,2", "lam=3,4"], "has a key twice"),
        (None, ["lam=0:1:400", "dim=1:400:400"], "160000 cells"),
        (None, ["lam=1,2", 3], "is not a scan"),
        (None, "pi.9=0.1,0.2", "not a key"),
    ],
)
def test_bad_grids_are_one_sentence(seeds, scan, sentence):
    with pytest.raises(InputError) as caught:
        cells({"lam": 0.5, "dim": 1, "pi": [0.5, 0.5]}, seeds, scan, known=["lam", "dim", "pi"])
    assert sentence in str(caught.value)


def value(cell):
    lam, dim = cell.at["lam"], cell.at["dim"]
    stages = [{"name": "focus", "cycle": 1, "time": 10 * lam}]
    stages += [{"name": "focus", "cycle": 2, "time": 20 * lam}] if dim > 2 else []
    plateaus = [{"loss": lam, "enter": 1.0, "leave": 2.0}] * (dim - 1)
    summary = {"loss": lam * dim, "rates": {"focus": lam}, "regime": "a" if lam < 0.5 else "b"}
    claims = {"Thm 1": "holds" if dim > 2 else "fails"}
    return {"summary": summary, "stages": stages, "plateaus": plateaus, "claims": claims}


def test_one_dataset_holds_every_cell(tmp_path):
    plan = cells({}, "0:2", ["lam=0.25,0.5,0.75", "dim=2,3"])
    results = [CellResult(c, True, "done", "", 0.5, value(c)) for c in plan]
    results[3] = CellResult(plan[3], False, "died", "its process died")
    saved = Ensemble.of("fake", results, "attnflow sweep fake")
    saved.save(tmp_path / "s")
    for data in (
        saved.dataset(),
        open_ensemble(tmp_path / "s").dataset(),
        xr.open_zarr(tmp_path / "s" / "cells.zarr").load(),
    ):
        assert dict(data["loss"].sizes) == {"lam": 3, "dim": 2, "seed": 2}
        assert float(data["loss"].sel(lam=0.75, dim=3, seed=1)) == 0.75 * 3
        assert data["status"].sel(lam=0.25, dim=3, seed=1) == "died"
        assert np.isnan(data["loss"].sel(lam=0.25, dim=3, seed=1))
        assert data["regime"].sel(lam=0.5, dim=2, seed=0) == "b"
        assert float(data["rates.focus"].sel(lam=0.5, dim=2, seed=0)) == 0.5
        assert data["stage"].values.tolist() == ["focus", "focus 2"]
        times = data["stage_time"].sel(seed=0, stage="focus 2")
        assert times.sel(lam=0.5, dim=3) == 10
        assert np.isnan(times.sel(dim=2)).all()
        assert data["plateau_loss"].sel(lam=0.5, dim=3, seed=0).values.tolist() == [0.5, 0.5]
        assert data["verdict"].sel(claim="Thm 1", dim=2, lam=0.5, seed=0) == "fails"


def run_with(label, ran):
    def run(some):
        ran.extend(c.index for c in some)
        return [CellResult(c, True, "done", "", 0, {"summary": {"m": label(c)}}) for c in some]

    return run


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=3),
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    st.floats(-1, 1),
)
def test_a_straight_boundary_is_found_exactly_on_any_grid(sizes, slope, offset):
    """Both sides of a plane are convex, so corners that agree speak for their block."""
    sizes = [n + 1 for n in sizes]
    if math.prod(sizes) > 4000:
        sizes = sizes[:2]
    plan = cells({}, None, [f"k{i}={','.join(map(str, range(n)))}" for i, n in enumerate(sizes)])

    def side(cell):
        at = [v / max(n - 1, 1) - 0.5 for v, n in zip(cell.at.values(), sizes, strict=True)]
        return float(np.dot(at, slope[: len(at)]) - offset)

    ran: list[int] = []
    found = refine(plan, label_of("m>0"), run_with(side, ran))
    assert [r.cell.index for r in found] == list(range(len(plan)))
    assert [r.value["label"] for r in found] == [str(side(c) > 0) for c in plan]
    assert len(ran) == len(set(ran)) == sum(r.ok for r in found)
    assert {r.status for r in found} <= {"done", "spared"}


@pytest.mark.parametrize("tokens", [4, 10])
def test_the_instability_map_takes_a_fifth_of_the_cells(tokens):
    """The same boundary as on the full grid, with at least five times fewer cells."""
    law = [0.4] + [0.6 / (tokens - 1)] * (tokens - 1)
    plan = cells({"pi": law}, None, [f"pi.0={1 / tokens + 0.01}:0.99:65", "lam=0.01:0.99:65"])

    def margin(cell):
        return float(symmetric.instability_margin(cell.at["pi.0"], cell.at["lam"], tokens))

    ran: list[int] = []
    found = refine(plan, label_of("m > 0"), run_with(margin, ran))
    full = [margin(cell) > 0 for cell in plan]
    assert [r.value["label"] for r in found] == [str(each) for each in full]
    assert any(full)
    assert not all(full)
    assert 5 * len(ran) <= len(plan)


def test_a_failed_cell_is_a_label_of_its_own_and_seeds_go_together():
    plan = cells({}, "0:2", "x=" + ",".join(map(str, range(40))))

    def run(some):
        return [
            CellResult(c, True, "done", "", 0, {"summary": {"word": "low"}})
            if c.at["x"] < 29
            else CellResult(c, False, "died", "its process died")
            for c in some
        ]

    found = refine(plan, label_of("word"), run)
    by_place = {(r.cell.at["x"], r.cell.seed): r for r in found}
    assert by_place[28, 0].status == by_place[28, 1].status == "done"
    assert by_place[29, 0].status == by_place[29, 1].status == "died"
    assert all(by_place[x, 0].ok == by_place[x, 1].ok for x in range(40))
    assert sum(r.status == "spared" for r in found) > 40


@pytest.mark.parametrize(
    ("words", "summary", "sentence"),
    [
        ("m", {"m": 0.5}, "say where it changes: m>0"),
        ("n>0", {"m": 0.5}, "no number of the summary"),
        ("w>0", {"w": "a"}, "it has no threshold"),
    ],
)
def test_a_label_that_is_none_is_said(words, summary, sentence):
    (cell,) = cells({}, None, "x=1")
    with pytest.raises(InputError, match="refine") as caught:
        label_of(words)(CellResult(cell, True, "done", "", 0, {"summary": summary}))
    assert sentence in str(caught.value)


def test_labels_that_cannot_be_read_are_refused_before_any_work():
    for words in ("", "a>b>c", "m>x"):
        with pytest.raises(InputError, match="refine"):
            label_of(words)
    with pytest.raises(InputError, match="needs a scanned key"):
        refine(cells({}, "0:2"), label_of("status"), sweep_work.fine)


def slowly(folder, config):
    """Says which process has begun a cell, and takes its time."""
    Path(folder, f"{config['seed']}-{os.getpid()}").touch()
    time.sleep(0.3)
    return sweep_work.fine(config)


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_number(tmp_path, monkeypatch):
    """Two dask workers; each time a cell is well under way its process is killed, once."""
    from distributed import LocalCluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    plan = cells({"x": 2.0}, "0:6")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        on_cluster(cluster.scheduler_address) as executor,
    ):
        killed: list[str] = []

        def kill(done, total, result):
            begun = sorted(p.name for p in tmp_path.iterdir())
            other = [name for name in begun if not name.startswith(f"{result.cell.seed}-")]
            if not killed and other:
                killed.append(other[-1])
                os.kill(int(other[-1].split("-")[1]), signal.SIGKILL)

        work = functools.partial(slowly, str(tmp_path))
        found = sweep(plan, work, executor=executor, progress=kill)
        assert killed
        assert [r.value for r in found] == [sweep_work.fine(c.overrides) for c in plan]

        # The same with real runs: whoever writes the first folder is killed while it solves.
        out, until = tmp_path / "cluster", 2000.0
        watch = threading.Thread(target=_kill_writer, args=(out, killed), daemon=True)
        watch.start()
        there = walk.ensemble(
            "focus-dilution",
            out=out,
            scan="lam=0.6,0.7",
            executor=executor,
            dim=2,
            until=until,
            report=False,
        )
        watch.join(60)
    assert len(killed) == 2
    assert [r.status for r in there.results] == ["done", "done"]
    for result in there.results:
        config = dict(result.cell.overrides)
        alone = walk.run(
            "focus-dilution",
            config,
            out=tmp_path / "alone" / result.cell.name,
            claims=False,
            report=False,
        )
        stored = open_run(result.run).trajectory
        for name in ("time", "loss", "attention"):
            assert np.array_equal(stored[name].values, alone.trajectory[name].values), name


def _kill_writer(folder: Path, killed: list[str]) -> None:
    """Kills the process that holds the lock of a run which has written rows."""
    end = time.monotonic() + 200
    while time.monotonic() < end:
        for lock in folder.glob("*/.lock"):
            pid = lock.read_bytes() if lock.exists() else b""
            if pid and (lock.parent / "journal.jsonl").exists():
                killed.append(f"{lock.parent.name}-{int(pid)}")
                os.kill(int(pid), signal.SIGKILL)
                return
        time.sleep(0.005)


def test_no_scheduler_is_one_sentence(monkeypatch):
    monkeypatch.setattr(_cluster, "PATIENCE", 0.3)
    with pytest.raises(InputError, match="cluster: no scheduler answers"):
        on_cluster("tcp://127.0.0.1:9").__enter__()
