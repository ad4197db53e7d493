"""Many cells on the local cores; what goes wrong in one is a status of that one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from attnflow._errors import InputError, shown
from attnflow.runs._cells import MOST, Cell
from attnflow.runs._manifest import cpus
from attnflow.runs._signals import ENDING, begin_worker

Work = Callable[[Any], Mapping[str, Any]]
Progress = Callable[[int, int, "CellResult"], None]

_GRACE = 5.0
"""Seconds that running cells have after Ctrl-C to leave a resumable run."""


@dataclass(frozen=True)
class CellResult:
    """What became of a cell: `ok` with the work's own status, or failed, died, cancelled."""

    cell: Cell
    ok: bool
    status: str
    sentence: str
    seconds: float = 0.0
    value: Mapping[str, Any] = field(default_factory=dict)
    """What the work returned."""

    @property
    def summary(self) -> Mapping[str, Any]:
        found = self.value.get("summary")
        return found if isinstance(found, Mapping) else {}

    @property
    def run(self) -> str | None:
        """The folder of the cell's run, if the work named one."""
        found = self.value.get("run")
        return None if found is None else str(found)


def sweep(
    cells: Sequence[Cell],
    work: Work,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    given: Callable[[Cell], Any] = lambda cell: dict(cell.overrides),
) -> list[CellResult]:
    """Run `work(cell.overrides)` for every cell; the results are in the order of the cells.

    `given` says what else of a cell the work is given. It returns a mapping (`status`, `sentence`,
    `summary`, `run`, ...) and can be pickled. By default it runs in fresh processes, one per core;
    any `Executor` is taken instead and left open. `progress(done, total, result)` is called after
    each cell. Ctrl-C cancels the rest and returns what there is.
    """
    with sweeping(work, workers=workers, executor=executor, most=len(cells), given=given) as run:
        return run(cells, progress)


@contextmanager
def sweeping(
    work: Work,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    given: Callable[[Cell], Any] = lambda cell: dict(cell.overrides),
) -> Iterator[Callable[..., list[CellResult]]]:
    """Inside, `run(cells, progress)` is a `sweep` of some cells; the processes stay for the next.

    `most` is the largest number of cells at a time.
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InputError("workers", f"{shown(workers)} is not a whole number of at least 1")
    if executor is None:
        _check_picklable(work)
        pools: _OwnPools | _GivenPool = _OwnPools(min(workers or cpus(), most or MOST))
    else:
        pools = _GivenPool(executor, workers or most or MOST)
    try:
        yield lambda cells, progress=None: _Sweep(cells, work, pools, progress, given).results()
    finally:
        pools.close()


class _Sweep:
    def __init__(
        self,
        cells: Sequence[Cell],
        work: Work,
        pools: _OwnPools | _GivenPool,
        progress: Progress | None,
        given: Callable[[Cell], Any],
    ):
        self._cells = cells
        self._given = given
        self._work = work
        self._pools = pools
        self._progress = progress
        self._waiting: deque[int] = deque(range(len(cells)))
        self._running: dict[Future, tuple[int, Executor]] = {}
        self._done: dict[int, CellResult] = {}
        self._stopping = False

    def results(self) -> list[CellResult]:
        try:
            while self._waiting or self._running:
                self._start()
                self._gather(None)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._cancel()
        cancelled = "the sweep was stopped by hand before this cell ended"
        return [
            self._done.get(k) or CellResult(cell, False, "cancelled", cancelled)
            for k, cell in enumerate(self._cells)
        ]

    def _start(self) -> None:
        while self._waiting and (pool := self._pools.take()) is not None:
            index = self._waiting.popleft()
            try:
                future = pool.submit(_guarded, self._work, self._given(self._cells[index]))
            except Exception as error:  # a pool that was given and is broken or shut down
                self._pools.give_back(pool, broken=True)
                sentence = f"the executor takes no more work ({_sentence(error)})"
                self._store(index, CellResult(self._cells[index], False, "failed", sentence))
                continue
            self._running[future] = (index, pool)

    def _gather(self, timeout: float | None) -> None:
        done, _ = wait(self._running, timeout, return_when=FIRST_COMPLETED)
        for future in done:
            index, pool = self._running.pop(future)
            cell = self._cells[index]
            broken = False
            try:
                result = _result(cell, future.result())
            except (Exception, CancelledError) as error:
                broken = isinstance(error, BrokenExecutor)
                result = _unfinished(cell, error)
            self._pools.give_back(pool, broken=broken)
            if not (broken and self._stopping):
                self._store(index, result)

    def _store(self, index: int, result: CellResult) -> None:
        self._done[index] = result
        if self._progress is not None:
            self._progress(len(self._done), len(self._cells), result)

    def _cancel(self) -> None:
        self._stopping = True
        self._waiting.clear()
        for future in self._running:
            future.cancel()
        self._pools.stop()
        end = time.monotonic() + _GRACE
        while self._running and (left := end - time.monotonic()) > 0:
            self._gather(left)


class _OwnPools:
    """A pool of one process per worker, so that a death is the death of one known cell."""

    def __init__(self, workers: int):
        self._left = workers
        self._idle: list[ProcessPoolExecutor] = []
        self._all: list[ProcessPoolExecutor] = []

    def take(self) -> Executor | None:
        if self._idle:
            return self._idle.pop()
        if self._left == 0:
            return None
        self._left -= 1
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            1, mp_context=context, initializer=begin_worker, initargs=(os.getpid(),)
        )
        self._all.append(pool)
        return pool

    def give_back(self, pool: Executor, *, broken: bool) -> None:
        assert isinstance(pool, ProcessPoolExecutor)
        if broken:
            pool.shutdown(wait=False)
            self._all.remove(pool)
            self._left += 1
        else:
            self._idle.append(pool)

    def stop(self) -> None:
        """Ask the busy ones: a run then ends at its next step and can be resumed."""
        for process in self._busy():
            process.terminate()

    def close(self) -> None:
        for process in self._busy():  # past its grace
            process.kill()
        for pool in self._all:
            pool.shutdown(wait=True, cancel_futures=True)

    def _busy(self) -> list[Any]:
        pools = [pool for pool in self._all if pool not in self._idle]
        return [p for pool in pools for p in (getattr(pool, "_processes", None) or {}).values()]


class _GivenPool:
    """The caller's executor, with at most `width` cells in it at a time."""

    def __init__(self, executor: Executor, width: int):
        self._executor = executor
        self._left = width

    def take(self) -> Executor | None:
        if self._left == 0:
            return None
        self._left -= 1
        return self._executor

    def give_back(self, pool: Executor, *, broken: bool) -> None:
        self._left += 1

    def stop(self) -> None:
        pass

    close = stop


def _guarded(work: Work, given: Any) -> tuple[str, Any, float]:
    """Runs in the worker. Exceptions come back as sentences: not every exception can be pickled."""
    begin = time.perf_counter()
    # Within a cell Ctrl-C and the parent's word to end are the work's; between cells they are not.
    main = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *ENDING) if main}
    for each in before:
        signal.signal(each, signal.default_int_handler)
    try:
        value = work(given)
        if not isinstance(value, Mapping):
            return "failed", f"the work returned {shown(value)}, not a mapping", _since(begin)
        return "ok", dict(value), _since(begin)
    except KeyboardInterrupt:
        return "cancelled", "stopped by hand", _since(begin)
    except Exception as error:
        return "failed", _sentence(error), _since(begin)
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _result(cell: Cell, outcome: tuple[str, Any, float]) -> CellResult:
    status, value, seconds = outcome
    if status != "ok":
        return CellResult(cell, False, status, value, seconds)
    status = str(value.get("status") or "finished")
    return CellResult(cell, True, status, str(value.get("sentence") or ""), seconds, value)


def _unfinished(cell: Cell, error: BaseException) -> CellResult:
    if isinstance(error, CancelledError):
        return CellResult(cell, False, "cancelled", "stopped by hand before it began")
    if isinstance(error, BrokenExecutor):
        sentence = "its process died (killed, out of memory, or a crash in compiled code)"
        return CellResult(cell, False, "died", sentence)
    return CellResult(cell, False, "failed", _sentence(error))


def _sentence(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _check_picklable(work: Work) -> None:
    try:
        pickle.dumps(work)
    except Exception as error:
        raise InputError(
            "work",
            f"{shown(work)} cannot be sent to another process ({_sentence(error)}); "
            "define it at the top of a module, or give an executor of threads",
        ) from error


def _since(begin: float) -> float:
    return time.perf_counter() - begin
