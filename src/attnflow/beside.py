"""Claims measured, or figures drawn, by two processes: one beside this from the first on, this from
the last.

The other process runs `python -m attnflow.beside`, so that nobody's script is run twice. It begins
while this one still solves: with the claims at once, with the figures when it is given the solve.
What it does not do is done here.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attnflow import studies
from attnflow.runs._signals import begin_worker
from attnflow.studies import config as configs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.claims import Claim, Ledger
    from attnflow.draw import Figures
    from attnflow.flows.solution import Solution
    from attnflow.linearise import SaddleTable
    from attnflow.studies.study import Study

Task = Literal["claims", "figures"]
Progress = Callable[[int, int, Any], None]
FEW = 4
"""So many figures are drawn by the other process in the time in which this one begins to draw."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def begin(
    study: str, config: Any, task: Task = "claims", only: Sequence[str] = ()
) -> Beside | None:
    """The process beside, or None where there is one core, a tracer, or nothing to find it by.

    `only` chooses claims by their label or section. What claims share is computed by one of the two
    processes and handed to the other (`attnflow.claims.once`).

    `ATTNFLOW_PROCESSES=1` keeps everything in one process. A debugger or a coverage tool sees all
    that is done for the same reason.
    """
    most = os.environ.get("ATTNFLOW_PROCESSES", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    several = (int(most) if most.isdigit() else cores or 1) > 1
    if not several or sys.gettrace() is not None or not studies.built_in(study):
        return None
    return Beside(task, study, configs.as_dict(config), only)


class Beside:
    """A process that measures the claims of a study, or draws its figures, in their order, and
    writes a line for each."""

    def __init__(self, task: Task, study: str, config: dict[str, Any], only: Sequence[str] = ()):
        self.task = task
        self._rows: list[Any] = []
        self._writer: threading.Thread | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attnflow.beside", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # two processes fill two cores
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._mates = tempfile.TemporaryDirectory(prefix="attnflow-", ignore_cleanup_errors=True)
        self._write((task, study, config, self._mates.name, tuple(only)))

    def give(self, given: Solution | SaddleTable) -> None:
        """What figures are drawn from: first the solve, then its saddles if it has any."""
        if self.task != "figures":
            return
        from attnflow.flows.solution import Solution  # not before: this begins before JAX is loaded

        if isinstance(given, Solution):
            given = replace(given, flow=None, _again={})  # functions do not go through a pipe
        before = self._writer

        def write() -> None:
            if before is not None:
                before.join()
            self._write(given)

        # In a thread: the other process may still be loading what it needs.
        self._writer = threading.Thread(target=write, daemon=True)
        self._writer.start()

    def ledger(
        self, ready: Study, claims: Sequence[Claim], progress: Progress | None = None
    ) -> Ledger:
        """The ledger of these claims: from the last on they are measured here until both meet."""
        from attnflow.claims import Ledger, Row
        from attnflow.claims.once import sharing

        def here(each: Any) -> Row:
            return Ledger.check([each], ready)[0]

        with sharing(Path(self._mates.name)):
            return Ledger(tuple(self._shared(claims, here, Row.from_dict, progress)))

    def figures(
        self, names: Sequence[str], here: Callable[[str], Figure | None]
    ) -> dict[str, Figure | str]:
        """These figures in the order of `drawing_order`, or their SVG: from the last on they are
        drawn `here` until both meet, and so is each that the other process could not draw."""
        here = functools.cache(here)  # one that fails here fails once
        shared = self._shared(names, here, lambda row: row, least=FEW)
        found = dict(zip(names, shared, strict=True))
        drawn = {name: here(name) if one is None else one for name, one in found.items()}
        return {name: one for name, one in drawn.items() if one is not None}

    def _shared(
        self,
        items: Sequence[Item],
        here: Callable[[Item], Result],
        read: Callable[[Any], Result],
        progress: Progress | None = None,
        least: int = 0,
    ) -> list[Result]:
        """The result of every item, from the last on computed here until both meet; all of the
        other process where it has at most `least` to go."""
        mine: list[Result] = []
        told = progress or (lambda done, total, result: None)
        try:
            share = len(items) - len(self._rows) > least
            while (
                share and len(items) - 1 - len(mine) > len(self._rows) and self._reader.is_alive()
            ):
                mine.insert(0, here(items[-1 - len(mine)]))
                told(len(mine) + len(self._rows), len(items), mine[0])
            rest = len(items) - len(mine)
            while len(self._rows) < rest and self._reader.is_alive():
                self._reader.join(0.05)
            theirs = [read(row) for row in self._rows[:rest]]
        finally:
            self.end()
        for each in items[len(theirs) : rest]:
            theirs.append(here(each))
            told(len(mine) + len(theirs), len(items), theirs[-1])
        return [*theirs, *mine]

    def end(self) -> None:
        """End the process, whether it is done or not."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._mates.cleanup()
        assert self._process.stdin is not None
        with suppress(OSError):  # of what it has not read
            self._process.stdin.close()

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()
        except Exception:  # one that died at once, or waits in vain, gives no rows
            self._process.kill()

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


def drawing_order(figures: Figures) -> list[str]:
    """Names of figures in the order in which they are drawn: first those of the config alone."""
    return sorted(figures, key=lambda name: not getattr(figures[name], "of_config", False))


def _rows(task: Task, ready: Study, mates: Path, only: Sequence[str]) -> Iterator[Any]:
    """A value that is written as JSON for each claim or figure of a study."""
    if task == "claims":
        from attnflow.claims import Ledger
        from attnflow.claims.ledger import selected
        from attnflow.claims.once import sharing

        with sharing(mates):
            for each in selected(ready.claims(), only):
                yield Ledger.check([each], ready)[0].to_dict()
        return
    from attnflow.draw import in_steps, new, styled, svg
    from attnflow.studies.study import stages_of

    svg(styled(lambda: new()[0])())  # loads what figures need while the other process solves
    functions: Any = ready.figures()
    order = drawing_order(functions)
    early = [name for name in order if getattr(functions[name], "of_config", False)]
    for name in early:
        yield _attempt(lambda name=name: svg(functions[name](None, [])))
    solution = replace(pickle.load(sys.stdin.buffer), flow=ready.flow)
    data = solution.trajectory
    functions = ready.knowing(solution=solution, events=solution.events).figures()
    stages = stages_of(ready, data)
    for name in order[len(early) :]:
        with in_steps(configs.step_length(configs.as_dict(ready.config))):
            drawn = _attempt(lambda name=name: svg(functions[name](data, stages)))
        yield drawn
    saddles = pickle.load(sys.stdin.buffer)
    from attnflow.report import saddles_over_loss

    yield _attempt(
        lambda: svg(saddles_over_loss(data, stages, saddles, ready.story(data, stages).loss))
    )


def _attempt(draw: Callable[[], str]) -> str | None:
    """None where it fails: the other process says why."""
    try:
        return draw()
    except Exception:
        return None


def _main(parent: int) -> None:
    task, study, config, mates, only = pickle.load(sys.stdin.buffer)
    begin_worker(parent)
    use_compilation_cache()
    rows, sys.stdout = sys.stdout, sys.stderr  # what a claim prints is not a row
    for row in _rows(task, studies.build(study, config), Path(mates), only):
        rows.write(json.dumps(row, allow_nan=False) + "\n")
        rows.flush()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
