"""Counting in blocks: the same numbers whoever counts, and when."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from attnflow._errors import InputError
from attnflow.corpus import Corpus, Statistics, statistics
from attnflow.corpus.parallel import Blocks
from attnflow.corpus.shards import Shards, write_shards
from attnflow.corpus.statistics import DIMS

SIZE = 23


def random_windows(seed: int = 0, sequences: int = 40, length: int = 12) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, SIZE, (sequences, length + 1))
    return drawn.astype(np.int32)


@given(strategies.seeds, st.integers(1, 9))
def test_parts_add_up_to_the_whole(seed: int, blocks: int) -> None:
    windows = random_windows(seed)
    whole = statistics(windows, SIZE)
    merged = Statistics(Blocks.of(windows, blocks), SIZE)
    for name in DIMS:
        wanted = getattr(whole, name)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(
            getattr(merged, name), wanted, rtol=0, atol=1e-14 * scale, err_msg=name
        )
    np.testing.assert_array_equal(merged.counts, whole.counts)


def test_two_workers_with_nothing_left_to_count(tmp_path: Path) -> None:
    windows = random_windows(2)
    first = Blocks.of(windows, 3, workers=1, folder=tmp_path).total("bigram", SIZE)
    again = Blocks.of(windows, 3, workers=2, folder=tmp_path).total("bigram", SIZE)
    np.testing.assert_array_equal(first[0], again[0])


def test_a_killed_process_changes_nothing() -> None:
    windows = random_windows(1)
    killed = []

    def kill_one(kernel: str, done: int, of: int) -> None:
        workers = multiprocessing.active_children()
        if workers and done == 1 and kernel not in killed:
            killed.append(kernel)
            os.kill(workers[0].pid or 0, signal.SIGKILL)

    source = Blocks.of(windows, 6, workers=2, progress=kill_one)
    (found,) = source.total("context", SIZE)
    assert killed == ["context"]
    (one,) = Blocks.of(windows, 6).total("context", SIZE)
    np.testing.assert_array_equal(found, one)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_that_loses_a_worker_counts_the_same() -> None:
    distributed = pytest.importorskip("distributed")
    windows = random_windows(2)
    wanted = Statistics(Blocks.of(windows, 8), SIZE)
    killed: list[int] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:

        def kill_one(kernel: str, done: int, of: int) -> None:
            if kernel == "attention" and done == 2 and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.pid)
                os.kill(worker.process.pid, signal.SIGKILL)

        source = Blocks.of(windows, 8, cluster=cluster.scheduler_address, progress=kill_one)
        found = source.total("attention", SIZE, wanted.g, "next")
    for sums, one in zip(
        found, Blocks.of(windows, 8).total("attention", SIZE, wanted.g, "next"), strict=True
    ):
        np.testing.assert_array_equal(sums, one)
    assert killed


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_scheduler_that_does_not_answer_is_said(monkeypatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("attnflow.corpus.parallel.ANSWER", 0.3)
    source = Blocks.of(random_windows(), 2, cluster="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match=r"cluster: no scheduler answers at 'tcp://127.0.0.1:9'"):
        source.total("bigram", SIZE)


def test_what_was_counted_is_not_counted_again(tmp_path: Path, monkeypatch) -> None:
    windows = random_windows(3)
    counted = []

    def stopping(kernel: str, done: int, of: int) -> None:
        counted.append((kernel, done))
        if (kernel, done) == ("attention", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _ = Statistics(Blocks.of(windows, 4, folder=tmp_path, progress=stopping), SIZE).attention
    assert len(list(tmp_path.glob("attention-*.npz"))) == 2
    damaged = next(tmp_path.glob("context-00001-*.npz"))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    counted.clear()
    again = Blocks.of(
        windows,
        4,
        folder=tmp_path,
        progress=lambda kernel, done, of: counted.append((kernel, done)),
    )
    found = Statistics(again, SIZE).attention
    assert counted == [("context", 4), ("attention", 3), ("attention", 4)]
    np.testing.assert_array_equal(found, Statistics(Blocks.of(windows, 4), SIZE).attention)
    # Other windows are other sums, though the folder is the same.
    other = Statistics(Blocks.of(random_windows(4), 4, folder=tmp_path), SIZE).attention
    np.testing.assert_array_equal(
        other, Statistics(Blocks.of(random_windows(4), 4), SIZE).attention
    )


def corpus_of(sizes=(50, 3, 71, 26)) -> Corpus:
    ids = np.random.default_rng(0).integers(0, SIZE, sum(sizes)).astype(np.int32)
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    return Corpus(ids, tuple(f"w{i}" for i in range(SIZE)), starts=starts)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("each", [1000, 37, 8])
def test_shards_hold_the_same_windows(tmp_path: Path, across: bool, each: int) -> None:
    corpus = corpus_of()
    shards = write_shards(corpus, tmp_path / "tokens", each)
    assert len(shards.index["shards"]) == -(-len(corpus) // each)
    assert shards.vocabulary == corpus.vocabulary
    wanted = corpus.windows(6, across=across)
    opened = Shards(tmp_path / "tokens")
    source = Blocks.of_shards(opened, 6, across=across, blocks=3)
    assert source.sequences == len(wanted)
    np.testing.assert_array_equal(np.concatenate([source.load(i) for i in range(3)]), wanted)
    np.testing.assert_array_equal(Statistics(source, SIZE).bigram, statistics(wanted, SIZE).bigram)
    # Memory-mapped NumPy files, for everyone.
    first = np.load(tmp_path / "tokens" / "tokens-00000.npy", mmap_mode="r")
    np.testing.assert_array_equal(first, corpus.ids[:each])


def test_a_shard_that_changed_under_us_is_refused(tmp_path: Path) -> None:
    shards = write_shards(corpus_of(), tmp_path / "tokens", 60)
    shards.read(0, 150)
    file = tmp_path / "tokens" / "tokens-00001.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))
    with pytest.raises(InputError, match=r"tokens-00001.npy' has changed"):
        shards.read(0, 150)
    assert len(shards.read(0, 60)) == 60
    file.unlink()
    with pytest.raises(InputError, match="is gone"):
        Shards(tmp_path / "tokens").read(0, 150)
    with pytest.raises(InputError, match="no folder of token shards"):
        Shards(tmp_path)
    with pytest.raises(InputError, match="already there"):
        write_shards(corpus_of(), tmp_path / "tokens")
