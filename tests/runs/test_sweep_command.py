"""`attnflow sweep` as it is typed: verdicts of every cell, a sweep that was killed, a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnflow import walk
from attnflow.cli import main
from attnflow.runs import open_run

SMALL = ["--set", "dim=2", "--set", "until=30"]


def opened(folder: Path) -> xr.Dataset:
    return xr.load_dataset(folder / "cells.zarr", engine="zarr")


def test_claims_are_measured_in_every_cell(tmp_path, capsys):
    out = tmp_path / "swept"
    words = ["--over", "lam=0.5,0.8", "--claims", "Prop 3.3", "--out", str(out), "--json"]
    assert main(["sweep", "focus-dilution", *words, "--workers", "1", *SMALL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in told["cells"]] == ["done", "done"]
    verdicts = opened(out)["verdict"]
    for lam in (0.5, 0.8):
        alone = walk.check("focus-dilution", only=["Prop 3.3"], lam=lam, dim=2, until=30.0)
        want = {row.id: row.verdict.value for row in alone}
        cell = verdicts.sel(lam=lam)
        # A claim is called by its label, with its part where that is not the statement.
        labels = [str(name).split(", ")[0] for name in cell["claim"].values]
        assert dict(zip(labels, cell.values, strict=True)) == want
        assert len(want) == 2


def test_a_sweep_that_was_killed_goes_on_to_the_same_numbers(tmp_path, capsys):
    words = ["sweep", "focus-dilution", "--over", "lam=0.4:0.8:4", "--workers", "1", "--json"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "attnflow.cli", *words, "--out", str(killed), *SMALL]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        first = _finished(killed, process)
        os.killpg(process.pid, signal.SIGKILL)
    assert 0 < len(first) < 4
    stamps = {name: _written(killed / name) for name in first}
    assert main([*words, "--out", str(killed), "--resume", *SMALL]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in told["cells"]] == ["done"] * 4
    for name, stamp in stamps.items():
        assert _written(killed / name) == stamp, "it was solved again"
    assert main([*words, "--out", str(whole), *SMALL]) == 0
    xr.testing.assert_identical(_numbers(opened(killed)), _numbers(opened(whole)))


def _written(run: Path) -> int:
    """When the trajectory of a finished run was stored."""
    return (run / "trajectory.zarr" / ".zmetadata").stat().st_mtime_ns


def _finished(folder: Path, process: subprocess.Popen) -> list[str]:
    """The names of the cells that are finished, once there is one."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        done = []
        for path in folder.glob("*/manifest.json"):
            try:
                done += [path.parent.name] if json.loads(path.read_bytes())["finished"] else []
            except (OSError, ValueError):
                continue
        if done:
            return done
        time.sleep(0.01)
    raise AssertionError(f"no cell was finished; the sweep ended with {process.poll()}")


def _numbers(data: xr.Dataset) -> xr.Dataset:
    """What does not depend on where and how fast it was computed."""
    gone = [n for n in data.variables if "seconds" in str(n) or str(n) == "run"]
    return data.drop_vars(gone).drop_attrs()


@pytest.mark.slow
def test_cells_go_to_a_cluster_by_its_address(tmp_path, capsys):
    """Two dask workers of which one is killed while it solves: no number changes."""
    from distributed import LocalCluster

    out = tmp_path / "cluster"
    words = ["--over", "lam=0.6,0.7", "--set", "dim=2", "--set", "until=2000", "--json"]
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        import threading

        from test_grids import _kill_writer

        killed: list[str] = []
        watch = threading.Thread(target=_kill_writer, args=(out, killed), daemon=True)
        watch.start()
        address = cluster.scheduler_address
        assert (
            main(["sweep", "focus-dilution", *words, "--out", str(out), "--cluster", address]) == 0
        )
        watch.join(60)
    assert len(killed) == 1
    told = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in told["cells"]] == ["done", "done"]
    for k, lam in enumerate((0.6, 0.7)):
        alone = walk.run(
            "focus-dilution",
            out=tmp_path / f"alone-{k}",
            claims=False,
            report=False,
            lam=lam,
            dim=2,
            until=2000.0,
        )
        stored = open_run(out / told["cells"][k]["run"]).trajectory
        for name in ("time", "loss", "attention"):
            assert np.array_equal(stored[name].values, alone.trajectory[name].values), name


def test_an_address_without_a_scheduler_is_one_sentence(tmp_path, capsys, monkeypatch):
    from attnflow.runs import _cluster

    monkeypatch.setattr(_cluster, "PATIENCE", 0.3)
    words = ["--over", "lam=0.6,0.7", "--cluster", "tcp://127.0.0.1:9"]
    assert main(["sweep", "focus-dilution", *words, "--out", str(tmp_path / "x")]) == 2
    assert "no scheduler answers" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
