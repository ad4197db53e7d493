"""The journal, the sink and the end of a run, with kills in between."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from fake_producer import SHAPE, folder_for, produce
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnflow._errors import InputError
from attnflow.flows.sinks import Checkpoint, Event, MemorySink, Segment, Shape, dataset
from attnflow.runs import DiskSink, finalise, open_run

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path):
    with folder_for(tmp_path / "r") as run:
        yield run


def same(a: Segment, b: Segment) -> bool:
    return (
        a.events == b.events
        and list(a.columns) == list(b.columns)
        and all(
            a.columns[n].dtype == b.columns[n].dtype
            and a.columns[n].shape == b.columns[n].shape
            and a.columns[n].tobytes() == b.columns[n].tobytes()
            for n in a.columns
        )
    )


def in_memory(steps=120) -> Segment:
    sink = MemorySink()
    produce(sink, steps)
    return sink.collect()


def resumed(folder) -> Segment:
    sink = DiskSink(folder)
    produce(sink)
    return sink.collect()


def test_the_disk_gives_back_what_memory_does(folder):
    sink = DiskSink(folder)
    produce(sink)
    assert same(sink.collect(), in_memory())


def test_only_the_last_checkpoints_are_kept(folder):
    produce(DiskSink(folder))
    names = sorted(p.name for p in (folder.path / "checkpoints").iterdir())
    assert names == ["00003.npz", "00004.npz", "00005.npz"]


def test_a_resume_drops_what_came_after_the_last_checkpoint(folder):
    produce(DiskSink(folder), steps=95)
    found = DiskSink(folder).begin(SHAPE)
    assert found is not None
    assert (found.step, found.scalars["big"]) == (80, 2**100)
    assert DiskSink(folder).collect().rows == 80
    assert same(resumed(folder), in_memory())


def test_without_a_checkpoint_everything_is_dropped(folder):
    produce(DiskSink(folder), steps=15)
    sink = DiskSink(folder)
    assert sink.begin(SHAPE) is None
    assert sink.collect().rows == 0
    assert list((folder.path / "segments").iterdir()) == []


def test_a_torn_journal_line_is_ignored(folder):
    produce(DiskSink(folder))
    journal = folder.path / "journal.jsonl"
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert b'"kind":"checkpoint"' in lines[-1]
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        journal.write_bytes(whole[:-cut])
        folder.update(notes=[])
        found = DiskSink(folder).begin(SHAPE)
        assert found is not None
        assert found.step == 100
        assert folder.manifest["notes"] == []  # a kill is no damage
        journal.write_bytes(b"".join(lines[:-6]))
        assert same(resumed(folder), in_memory())


def test_kill_between_rename_and_journal_leaves_the_previous_checkpoint(folder):
    produce(DiskSink(folder))
    journal = folder.path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert (folder.path / "checkpoints" / "00005.npz").exists()
    found = DiskSink(folder).begin(SHAPE)
    assert found is not None
    assert found.step == 100
    assert not (folder.path / "checkpoints" / "00005.npz").exists()
    assert same(resumed(folder), in_memory())


def test_a_damaged_checkpoint_is_passed_over(folder):
    produce(DiskSink(folder))
    (folder.path / "checkpoints" / "00005.npz").write_bytes(b"PK damaged")
    found = DiskSink(folder).begin(SHAPE)
    assert found is not None
    assert found.step == 100
    assert same(resumed(folder), in_memory())


def test_a_damaged_segment_before_both_checkpoints_means_from_the_start(folder):
    produce(DiskSink(folder))
    (folder.path / "segments" / "00002.npz").unlink()
    assert DiskSink(folder).begin(SHAPE) is None
    assert same(resumed(folder), in_memory())


def test_a_run_whose_observables_changed_is_not_resumed(folder):
    produce(DiskSink(folder))
    other = Shape({**SHAPE.dims, "norm": ()}, SHAPE.coords)
    with pytest.raises(InputError, match="'norm' is no longer observed in the same way"):
        DiskSink(folder).begin(other)


def test_a_column_named_like_a_dimension_is_refused(folder):
    with pytest.raises(InputError, match="has the name of a column"):
        DiskSink(folder).begin(Shape({"time": (), "token": (), "norm": ("token",)}))


@pytest.mark.parametrize("name", ["", ".", "..", ".zattrs", "a/b", "a\\b", "a\0", "LOSS"])
def test_a_name_that_could_not_be_stored_at_the_end_is_refused_at_the_start(folder, name):
    with pytest.raises(InputError, match="observables"):
        DiskSink(folder).begin(Shape({"time": (), "loss": (), name: ()}))


def test_an_unfinished_run_opens_from_its_segments_and_a_finished_one_from_zarr(folder):
    produce(DiskSink(folder))
    before = open_run(folder.path)
    assert before.trajectory.sizes == {"time": 120, "key": 3, "query": 2}
    assert before.trajectory["score"].dims == ("time", "key", "query")
    assert list(before.trajectory["key"].values) == ["a", "b", "c"]
    assert before.trajectory["step"].dims == ("time",)
    assert "step" in before.trajectory.coords
    finalise(folder, status="finished", sentence="done", summary={"loss": 0.3})
    after = open_run(folder.path)
    xr.testing.assert_identical(after.trajectory.load(), before.trajectory)
    assert after.marks == before.marks != ()
    assert after.summary == {"loss": 0.3}
    names = sorted(p.name for p in folder.path.iterdir() if p.name != ".lock")
    assert names == ["manifest.json", "marks.json", "trajectory.zarr"]


def test_a_finished_run_opens_without_us(folder):
    produce(DiskSink(folder))
    finalise(folder, status="finished", sentence="done")
    plain = xr.open_zarr(folder.path / "trajectory.zarr", chunks=None)
    assert plain["loss"].values.tobytes() == in_memory().columns["loss"].tobytes()
    assert json.loads((folder.path / "marks.json").read_text())[0]["name"] == "high"
    assert json.loads((folder.path / "trajectory.zarr" / ".zgroup").read_text())["zarr_format"] == 2


def test_a_run_with_no_rows_can_be_finalised(folder):
    DiskSink(folder).begin(SHAPE)
    finalise(folder, status="stalled", sentence="it never moved")
    assert open_run(folder.path).trajectory.sizes["time"] == 0


names = st.text("abcxyz_αβ0. file", min_size=1, max_size=6).filter(
    lambda n: n[0] != "." and n not in ("time", "step")
)
kinds = st.sampled_from([np.dtype("f8"), np.dtype("i8"), np.dtype("?"), np.dtype("u4")])


@st.composite
def observations(draw):
    dims = draw(
        st.lists(st.sampled_from(["token", "key", "query", "layer"]), unique=True, max_size=3)
    )
    sizes = {dim: draw(st.integers(1, 3)) for dim in dims}
    columns = draw(st.dictionaries(names, st.tuples(kinds, st.permutations(dims)), max_size=3))
    shape = {"time": (), "step": ()}
    shape.update({name: tuple(inner) for name, (_, inner) in columns.items()})
    coords = {d: draw(hnp.arrays("f8", n)) for d, n in sizes.items() if draw(st.booleans())}
    rows = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    segments = []
    for n in rows:
        data = {"time": draw(hnp.arrays("f8", n, elements=st.floats(0, 1e9)))}
        data["step"] = np.arange(n)
        for name, (kind, inner) in columns.items():
            data[name] = draw(hnp.arrays(kind, (n, *(sizes[d] for d in inner))))
        events = draw(
            st.lists(st.builds(Event, names, st.floats(0, 1e300), st.sampled_from([-1, 1])))
        )
        segments.append(Segment(data, tuple(events)))
    return Shape(shape, coords), segments


@settings(max_examples=25, deadline=None)
@given(observations())
def test_any_columns_come_back_bit_for_bit(given_):
    shape, segments = given_
    memory = MemorySink()
    with tempfile.TemporaryDirectory() as base, folder_for(Path(base) / "r") as folder:
        sink = DiskSink(folder)
        sink.begin(shape)
        for segment in segments:
            sink.flush(segment)
            memory.flush(segment)
        expected = memory.collect()
        assert same(sink.collect(), expected)
        before = open_run(folder.path).trajectory
        finalise(folder, status="finished", sentence="done")
        found = open_run(folder.path)
        after = found.trajectory.load()
        assert tuple(found.marks) == expected.events
        assert dict(after.sizes) == dict(before.sizes)
        for name, column in expected.columns.items():
            assert after[name].dims == ("time", *shape.dims[name])
            assert after[name].values.tobytes() == column.tobytes()
            assert after[name].dtype == column.dtype
        for dim in set(shape.coords) & set(after.dims):
            assert after[dim].values.tobytes() == shape.coords[dim].tobytes()


arrays = st.one_of(
    *(
        hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, min_side=0))
        for kind in ("f8", "i8", "u4")
    )
)
scalars = st.one_of(st.floats(allow_nan=False), st.integers())


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(names, arrays, max_size=3), st.dictionaries(names, scalars, max_size=3))
def test_any_checkpoint_comes_back_bit_for_bit(state, numbers):
    given_ = Checkpoint(7, 0.1 + 0.2, state, numbers)
    with tempfile.TemporaryDirectory() as base, folder_for(Path(base) / "r") as folder:
        sink = DiskSink(folder)
        sink.begin(SHAPE)
        sink.checkpoint(given_)
        found = DiskSink(folder).begin(SHAPE)
        assert found is not None
        assert (found.step, found.time, found.scalars) == (7, 0.1 + 0.2, numbers)
        assert list(found.arrays) == list(state)
        for name, array in state.items():
            assert found.arrays[name].dtype == array.dtype
            assert found.arrays[name].shape == array.shape
            assert found.arrays[name].tobytes() == array.tobytes()


def test_a_column_without_declared_dims_gets_names_for_its_axes():
    rows = Segment({"time": np.arange(2.0), "w": np.zeros((2, 3, 4))})
    assert dataset(rows, Shape({}))["w"].dims == ("time", "w_axis1", "w_axis2")


def test_a_producer_killed_at_random_points_ends_in_identical_bytes(tmp_path):
    path = tmp_path / "killed"
    chance = random.Random(5)
    command = [sys.executable, str(HERE / "fake_producer.py"), str(path)]
    # At most 30 steps before each of the first three kills, of 120 in all.
    for _ in range(3 + chance.randrange(4)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, bufsize=0, **pipes) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"." * chance.randint(15, 30))
            child.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.1))
            child.kill()
        assert child.returncode in (-signal.SIGKILL, 0)
    subprocess.run(command, input=b"." * 120, check=True, capture_output=True)
    assert open_run(path).status == "ready"
    whole = tmp_path / "whole"
    with folder_for(whole) as run:
        produce(DiskSink(run))
    for part in ("segments", "checkpoints"):
        expected = {p.name: p.read_bytes() for p in (whole / part).iterdir()}
        assert {p.name: p.read_bytes() for p in (path / part).iterdir()} == expected
    for one in (path, whole):
        with folder_for(one, exists="resume") as run:
            finalise(run, status="finished", sentence="done")
    xr.testing.assert_identical(open_run(path).trajectory.load(), open_run(whole).trajectory.load())
    assert open_run(path).marks == open_run(whole).marks


@pytest.mark.slow
def test_a_kill_at_any_file_operation_of_finalise_leaves_an_openable_run(tmp_path):
    command = [sys.executable, str(HERE / "die_in_finalise.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert len(rows) > 30
    assert [row for row in rows if row[2] != 1] == [], done.stderr
    assert [row[1] for row in rows] == [1] * (len(rows) - 1) + [0]
