"""Sums over a corpus in blocks of windows: on local processes, or on a cluster by its address.

Blocks are added in their order, whoever counted them and when, so that the sums do not depend on
the number of workers, on their speed, or on whether one was killed: its block is counted again.
With a folder, the sums of every block are kept there under a digest of all they depend on, and
what has been counted before is not counted again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from attnflow._errors import InputError, shown, whole
from attnflow._files import read_arrays, remove, write_arrays_atomic
from attnflow.corpus.shards import Shards
from attnflow.corpus.statistics import InMemory, Sums, sums_of

BLOCK = 4_000_000
"""Positions of a block: seconds of work against the V x V numbers that it returns."""

ROUNDS = 5
"""How often blocks are handed out again when workers are lost."""

ANSWER = 10.0
"""Seconds a scheduler has to answer."""

Windows = Int[np.ndarray, "sequence place"]
Progress = Callable[[str, int, int], None]
Job = tuple[str, Windows, int, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Windows in blocks, as a source of `Statistics`.

    `load(i)` gives the windows of block i. `cluster` is the address of a dask scheduler; without
    one, `workers` processes of this machine count (1: this process). `progress(kernel, done, all)`
    is called after each block.
    """

    load: Callable[[int], Windows] = field(repr=False)
    sizes: Sequence[int]
    length: int
    workers: int = 1
    cluster: str | None = None
    folder: Path | None = None
    progress: Progress = field(default=lambda kernel, done, of: None, repr=False)

    @classmethod
    def of(cls, windows: Windows, blocks: int | None = None, **options: Any) -> Blocks:
        """Windows in memory, in `blocks` parts of nearly equal size."""
        edges = _edges(len(windows), windows.shape[1] - 1, blocks)
        return cls(
            lambda i: windows[edges[i] : edges[i + 1]],
            np.diff(edges).tolist(),
            windows.shape[1] - 1,
            **options,
        )

    @classmethod
    def of_shards(
        cls,
        shards: Shards,
        context: int,
        *,
        across: bool = False,
        blocks: int | None = None,
        **options: Any,
    ) -> Blocks:
        """The windows of shards on the disk, read block by block."""
        starts = shards.window_starts(context, across=across)
        edges = _edges(len(starts), context, blocks)
        return cls(
            lambda i: shards.windows(starts[edges[i] : edges[i + 1]], context),
            np.diff(edges).tolist(),
            context,
            **options,
        )

    def __post_init__(self) -> None:
        whole("workers", self.workers)

    @property
    def sequences(self) -> int:
        return sum(self.sizes)

    def total(self, kernel: str, vocabulary: int, *given: Any) -> Sums:
        """The sums of a kernel over all windows."""
        count = len(self.sizes)
        if count == 1 and self.folder is None and self.cluster is None:
            found = InMemory(self.load(0)).total(kernel, vocabulary, *given)
            self.progress(kernel, 1, 1)
            return found
        with _folder(self.folder) as folder:
            files = [folder / f"{kernel}-{i:05d}.npz" for i in range(count)]
            if self.folder is not None:
                marks = [_digest(value) for value in given]
                labels = [_digest(self.load(i), vocabulary, *marks) for i in range(count)]
                files = [
                    f.with_stem(f"{f.stem}-{x[:16]}") for f, x in zip(files, labels, strict=True)
                ]
            missing = [i for i, file in enumerate(files) if _whole(file) is None]
            done = count - len(missing)
            for _ in self._counted(kernel, vocabulary, given, {i: files[i] for i in missing}):
                done += 1
                self.progress(kernel, done, count)
            return _merged(files)

    def _counted(
        self, kernel: str, vocabulary: int, given: tuple[Any, ...], files: dict[int, Path]
    ) -> Iterator[int]:
        """Counts the blocks of these numbers into their files; yields each when it is there."""
        if self.cluster is not None:
            return _on_cluster(self.cluster, self.load, kernel, vocabulary, given, files)
        if self.workers == 1 or len(files) <= 1:  # nothing left where all is on disk
            return _here(self.load, kernel, vocabulary, given, files)
        return _on_processes(self.workers, self.load, kernel, vocabulary, given, files)


def _here(load, kernel, vocabulary, given, files) -> Iterator[int]:
    for i, file in files.items():
        _write(file, sums_of(kernel, load(i), vocabulary, *given))
        yield i


def _on_processes(workers, load, kernel, vocabulary, given, files) -> Iterator[int]:
    """Workers write their sums themselves: a pipe would take as long as the counting."""
    left = dict(files)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="attnflow-") as scratch:
        tables = _laid_down(Path(scratch), given)
        for _ in range(ROUNDS):
            pool = futures.ProcessPoolExecutor(min(workers, len(left)), mp_context=context)
            try:
                jobs = {
                    pool.submit(_count_into, file, kernel, load(i), vocabulary, tables): i
                    for i, file in left.items()
                }
                for job in futures.as_completed(jobs):
                    job.result()
                    del left[jobs[job]]
                    yield jobs[job]
            except BrokenProcessPool:  # a worker was killed; what it held is counted again
                for i in [i for i, file in left.items() if _whole(file) is not None]:
                    del left[i]
                    yield i
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
            if not left:
                return
    raise InputError(
        "workers", f"they were killed {ROUNDS} times in a row; is there enough memory?"
    )


def _laid_down(folder: Path, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Large tables as files, which the workers map into their memory, once for all of them."""
    laid = []
    for number, value in enumerate(given):
        if isinstance(value, np.ndarray):
            path = folder / f"{number}.npy"
            np.save(path, value)
            value = path
        laid.append(value)
    return tuple(laid)


def _count_into(file: Path, kernel: str, windows: Windows, vocabulary: int, tables: Any) -> None:
    given = [np.load(t, mmap_mode="r") if isinstance(t, Path) else t for t in tables]
    _write(file, sums_of(kernel, windows, vocabulary, *given))


def _on_cluster(address, load, kernel, vocabulary, given, files) -> Iterator[int]:
    """Sums come back through the scheduler: its machines need no disk in common with ours."""
    left = dict(files)
    with connected(address) as client:
        from distributed import as_completed

        for _ in range(ROUNDS):
            tables = [
                client.scatter(value, broadcast=True, hash=False)
                if isinstance(value, np.ndarray)
                else value
                for value in given
            ]
            jobs = {
                client.submit(
                    sums_of,
                    kernel,
                    client.scatter(load(i), hash=False),
                    vocabulary,
                    *tables,
                    pure=False,
                    retries=2,
                ): i
                for i in left
            }
            for job in as_completed(list(jobs), loop=client.loop):
                found = _result(job)
                if found is not None:  # else lost with a worker: the next round has it again
                    i = jobs[job]
                    _write(left.pop(i), found)
                    yield i
                job.release()
            if not left:
                return
    raise InputError("cluster", f"{address} lost its workers {ROUNDS} times in a row")


def _result(job: Any) -> Sums | None:
    """What a worker has counted, None where the worker was lost first."""
    try:
        return job.result()
    except futures.CancelledError:
        return None
    except Exception as error:
        if type(error).__module__.startswith(("distributed", "dask")):
            return None
        raise InputError("cluster", f"a worker said: {type(error).__name__}: {error}") from None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler there, or the sentence that there is none."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "cluster", "a cluster needs the extra: pip install 'attnflow[sweep]'"
        ) from None
    if "://" not in address:
        raise InputError("cluster", f"{shown(address)}; tcp://HOST:PORT of a dask scheduler")
    try:
        client = Client(address, timeout=ANSWER, set_as_default=False)
    except (OSError, TimeoutError, ValueError, ImportError) as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError("cluster", f"no scheduler answers at {address!r} ({words})") from None
    try:
        yield client
    finally:
        client.close()


def _edges(sequences: int, length: int, blocks: int | None) -> np.ndarray:
    if blocks is None:
        blocks = -(-sequences * length // BLOCK)
    return np.linspace(0, sequences, min(whole("blocks", blocks), sequences) + 1).astype(int)


def _folder(given: Path | None) -> AbstractContextManager[Path]:
    if given is None:
        return _scratch()
    given.mkdir(parents=True, exist_ok=True)
    return nullcontext(given)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="attnflow-") as name:
        yield Path(name)


def _write(file: Path, sums: Sums) -> None:
    write_arrays_atomic(file, {str(k): array for k, array in enumerate(sums)})


def _whole(file: Path) -> Sums | None:
    """The sums in a file that is there and undamaged (each array has its checksum inside)."""
    try:
        found = read_arrays(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        remove(file)
        return None
    return tuple(found[str(k)] for k in range(len(found)))


def _merged(files: Sequence[Path]) -> Sums:
    """The sums of all blocks, added in their order."""
    total: Sums = ()
    for file in files:
        found = _whole(file)
        if found is None:
            raise InputError("out", f"'{file}' is damaged or gone; go on with --resume")
        if not total:
            total = tuple(np.array(array) for array in found)
        else:
            for whole_sum, array in zip(total, found, strict=True):
                whole_sum += array
    return total


def _digest(*values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            found.update(f"{value.dtype.str}{value.shape}".encode())
            found.update(np.ascontiguousarray(value).data)
        else:
            found.update(repr(value).encode())
    return found.hexdigest()
