"""A run that is killed at any point and resumed gives the same bits as one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attnflow.runs import open_run

SCRIPT = """
import sys
from attnflow import walk
walk.CHECKPOINT_STEPS = 40
kind, path = sys.argv[1:]
keys = dict(until=400.0, dim=8) if kind == "flow" else dict(
    mode=kind, until=20.0, dim=4, rate=0.005, batch=8, context=6)
walk.run("focus-dilution", keys, out=path, exists="resume", claims=False, report=False,
         progress=False)
"""


def start(kind: str, path: Path) -> subprocess.Popen:
    # Compiled once for all of them.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(path.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    words = [sys.executable, "-c", SCRIPT, kind, str(path)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | cache)


def finished(process: subprocess.Popen) -> None:
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flow", "sgd"])
def test_a_killed_run_resumes_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    finished(start(kind, tmp_path / "whole"))
    rng = random.Random(7)
    kills = 0
    path = tmp_path / "killed"
    for _ in range(2):
        process = start(kind, path)
        # Wait until it has begun to write, then let it live for a random moment.
        while process.poll() is None and not (path / "journal.jsonl").exists():
            time.sleep(0.02)
        size = (path / "journal.jsonl").stat().st_size if path.exists() else 0
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            journal = path / "journal.jsonl"
            if not journal.exists() or journal.stat().st_size > size:
                break
            time.sleep(0.005)
        time.sleep(rng.random() * 0.15)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills > 0, "the run was over before it could be killed"
    finished(start(kind, path))

    whole, resumed = open_run(tmp_path / "whole"), open_run(path)
    assert resumed.finished
    assert set(whole.trajectory.variables) == set(resumed.trajectory.variables)
    for name in whole.trajectory.variables:
        a, b = whole.trajectory[name].values, resumed.trajectory[name].values
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name
    assert whole.marks == resumed.marks
    assert whole.manifest["drift"] == resumed.manifest["drift"]
    work = {k: v for k, v in whole.manifest["work"].items() if k != "seconds"}
    assert work.items() <= resumed.manifest["work"].items()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_its_kin_leave_a_resumable_run(ending, tmp_path: Path) -> None:
    path = tmp_path / "r"
    keys = ("until=1e6", "dim=64", "rtol=1e-9")
    words = ["run", "focus-dilution", "--out", str(path), "--no-claims"]
    words += [word for key in keys for word in ("--set", key)]
    # A shell or nohup may have told this process, and so its children, to ignore a signal.
    code = (
        "import signal, sys\nfrom attnflow.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"sys.exit(main({words!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (path / "journal.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(ending)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if ending == signal.SIGINT else -ending), said
    assert "--resume" in said
    assert "Traceback" not in said
    stored = open_run(path)
    assert (stored.status, stored.finished) == ("interrupted", False)
    assert stored.trajectory.sizes["time"] > 0
