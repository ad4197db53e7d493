"""Claims measured by two processes: one beside this from the first claim on, this from the last.

The other process runs `python -m attnflow.beside`, so that nobody's script is run twice. It begins
while this one still solves, and where it fails the claims are measured here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow import studies
from attnflow.runs._signals import begin_worker
from attnflow.studies import config as configs

if TYPE_CHECKING:
    from attnflow.claims import Claim, Ledger, Row
    from attnflow.studies.study import Study

Progress = Callable[[int, int, Any], None]


def begin(study: str, config: Any) -> Beside | None:
    """The process beside, or None where there is one core, a tracer, or nothing to find it by.

    `ATTNFLOW_PROCESSES=1` keeps everything in one process. A debugger or a coverage tool sees all
    that is measured for the same reason.
    """
    most = os.environ.get("ATTNFLOW_PROCESSES", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    several = (int(most) if most.isdigit() else cores or 1) > 1
    if not several or sys.gettrace() is not None or not studies.built_in(study):
        return None
    return Beside(study, configs.as_dict(config))


class Beside:
    """A process that measures the claims of a study in their order, and writes a row a line."""

    def __init__(self, study: str, config: dict[str, Any]):
        self._rows: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnflow.beside", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # two processes fill two cores
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        with suppress(OSError):  # one that died at once is noticed by its rows
            self._process.stdin.write(json.dumps({"study": study, "config": config}))
            self._process.stdin.close()

    def ledger(self, ready: Study, progress: Progress | None = None) -> Ledger:
        """The ledger of the study: claims from the last on are measured here until both meet."""
        from attnflow.claims import Ledger, Row

        claims = list(ready.claims())
        mine: list[Row] = []
        try:
            while len(claims) - 1 - len(mine) > len(self._rows) and self._reader.is_alive():
                mine.insert(0, _one(claims[-1 - len(mine)], ready))
                _told(progress, len(mine) + len(self._rows), len(claims), mine[0])
            rest = len(claims) - len(mine)
            while len(self._rows) < rest and self._reader.is_alive():
                self._reader.join(0.05)
            theirs = [Row.from_dict(row) for row in self._rows[:rest]]
        finally:
            self.end()
        for each in claims[len(theirs) : rest]:
            theirs.append(_one(each, ready))
            _told(progress, len(mine) + len(theirs), len(claims), theirs[-1])
        return Ledger((*theirs, *mine))

    def end(self) -> None:
        """End the process, whether it is done or not."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, suppress(ValueError):
            for line in lines:
                self._rows.append(json.loads(line))


def use_compilation_cache() -> None:
    """Keep compiled functions between commands; a global JAX setting, so only the command line
    (and a sweep's workers, which are its own processes) calls this."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    settings = {
        "jax_compilation_cache_dir": str(Path(base) / "attnflow" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
        else:  # read when JAX is loaded, if it is at all
            os.environ[name.upper()] = str(value)


def _one(each: Claim, ready: Study) -> Row:
    from attnflow.claims import Ledger

    return Ledger.check([each], ready)[0]


def _told(progress: Progress | None, done: int, total: int, row: Any) -> None:
    if progress is not None:
        progress(done, total, row)


def _main(parent: int) -> None:
    from attnflow.claims import Ledger

    given = json.load(sys.stdin)
    begin_worker(parent)
    use_compilation_cache()
    rows, sys.stdout = sys.stdout, sys.stderr  # what a claim prints is not a row
    ready = studies.build(given["study"], given["config"])

    def write(done: int, total: int, row: Row) -> None:
        rows.write(json.dumps(row.to_dict(), allow_nan=False) + "\n")
        rows.flush()

    Ledger.check(ready.claims(), ready, write)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
