"""What a person waits for: the default runs from the shell to the page, cold and warm."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._measure import ROOT
from benchmarks._tables import Result, Table, Target

STUDIES = ("focus-dilution", "two-mixture")
MOST = {("cold", True): 20.0, ("warm", True): 12.0, ("warm", False): 6.0}
"""Seconds on two quiet cores, by the compilation cache (empty or filled) and claims or not."""

COLUMNS = {
    "command": "",
    "cache": "",
    "seconds": ".3g",
    "at most": ".3g",
    "CPU seconds": ".3g",
    "cores used": ".2g",
    "load before": ".2g",
}


def run(quick: bool = False) -> Result:
    """Each default run with an empty cache, then again (the least of several) with a full one."""
    result = Result("waiting", __doc__ or "")
    rows: list[dict[str, Any]] = []
    for study in STUDIES:
        with tempfile.TemporaryDirectory() as place:
            for cache, claims in (("cold", True), ("warm", True), ("warm", False)):
                repeats = 1 if quick or cache == "cold" else 3
                found = [measure(study, claims, Path(place)) for _ in range(repeats)]
                least = min(found, key=lambda one: one["seconds"])
                most = MOST[cache, claims]
                rows.append({"cache": cache, "at most": most, **least})
                words = f"{least['command']}, {cache}"
                met = least["seconds"] <= most
                result.targets.append(Target(words, f"<= {most:g} s", least["seconds"], met))
    notes = [
        "cold: with an empty compilation cache; warm: after such a run, the least of three.",
        "CPU seconds are user and system time of the command and of the process beside it.",
    ]
    result.tables.append(Table("from the shell to the page", COLUMNS, rows, notes))
    return result


def measure(study: str, claims: bool, place: Path) -> dict[str, Any]:
    """One run in a new folder of `place`, with the compilation cache of `place`."""
    arguments = ["run", study, *([] if claims else ["--no-claims"])]
    command = [sys.executable, "-m", "attnflow.cli", *arguments]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=place) as out:
        before, began = _cpu(), time.perf_counter()
        done = subprocess.run(
            [*command, "--out", str(Path(out) / "run")],
            cwd=ROOT,
            env={**os.environ, "XDG_CACHE_HOME": str(place)},
            capture_output=True,
            text=True,
        )
        seconds, cpu = time.perf_counter() - began, _cpu() - before
    if done.returncode not in (0, 1):
        raise RuntimeError(f"attnflow {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
    return {
        "command": " ".join(arguments),
        "seconds": seconds,
        "CPU seconds": cpu,
        "cores used": cpu / seconds,
        "load before": load,
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
