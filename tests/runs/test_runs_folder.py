"""Creating, claiming and describing a run folder."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_producer import CONFIG, SHAPE, STUDY, folder_for, produce

from attnflow._errors import InputError
from attnflow._files import write_sealed
from attnflow.flows.sinks import MemorySink
from attnflow.runs import DiskFull, DiskSink, default_path, finalise, find_run, list_runs, open_run
from attnflow.runs._manifest import FORMAT, digest


def tree(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def whole_run(path, exists="open"):
    with folder_for(path, exists=exists) as run:
        produce(DiskSink(run))
        finalise(run, status="finished", sentence="reached the end", work={"rhs": 3}, drift=1e-9)
    return path


def test_the_manifest_says_everything_needed_to_run_again(tmp_path):
    with folder_for(tmp_path / "r", command="attnflow run fake", identity={"fake.py": "abc"}):
        pass
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert manifest["format"] == FORMAT
    assert manifest["study"] == STUDY
    assert manifest["digest"] == digest(STUDY, CONFIG)
    assert manifest["config"] == {"seed": 3, "dim": 4, "until": "inf"}
    assert manifest["command"] == "attnflow run fake"
    assert manifest["identity"] == {"fake.py": "abc"}
    assert set(manifest["versions"]) == {
        *("python", "attnflow", "jax", "jaxlib", "numpy", "scipy", "scikit-sundae")
    }
    assert "XLA_FLAGS" in manifest["environment"]
    assert manifest["cpus"] >= 1
    assert manifest["precision"] == "float64"
    assert manifest["created"].endswith("+00:00")
    assert open_run(tmp_path / "r").config == CONFIG


def test_the_room_imports_neither_jax_nor_scipy_nor_xarray():
    code = (
        "import sys, attnflow.runs\n"
        "print([m for m in ('jax', 'scipy', 'xarray', 'zarr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest("s", {"a": 1, "b": (0.5, 2)}) == digest("s", {"b": [0.5, 2], "a": 1})
    assert digest("s", {"a": 1}) != digest("s", {"a": 2}) != digest("t", {"a": 2})


def test_the_default_name_is_study_and_digest_and_grows_where_it_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hexes = digest(STUDY, CONFIG)
    first, second = (Path("runs") / f"fake-{hexes[:digits]}" for digits in (4, 5))
    assert default_path(STUDY, CONFIG) == first
    first.mkdir(parents=True)
    (first / "notes.txt").write_text("mine")
    assert default_path(STUDY, CONFIG) == second
    with folder_for(second):
        pass
    assert default_path(STUDY, CONFIG) == second


@pytest.mark.parametrize("exists", ["open", "resume", "overwrite"])
@pytest.mark.parametrize("content", [None, "{}", '{"kind": "something-else", "format": 1}'])
def test_a_folder_that_is_not_ours_is_never_touched(tmp_path, exists, content):
    (tmp_path / "thesis.tex").write_text("years of work")
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    before = tree(tmp_path)
    with pytest.raises(InputError, match="not a run of ours"):
        folder_for(tmp_path, exists=exists)
    assert tree(tmp_path) == before


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path):
    (tmp_path / "f").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        folder_for(tmp_path / "f")
    with pytest.raises(InputError, match="cannot be written"):
        folder_for(tmp_path / "f" / "deeper")


@pytest.mark.parametrize("exists", ["open", "resume", "overwrite"])
def test_a_run_of_a_newer_format_names_both_versions(tmp_path, exists):
    path = whole_run(tmp_path / "r")
    manifest = json.loads((path / "manifest.json").read_text())
    write_sealed(path / "manifest.json", {**manifest, "format": FORMAT + 6})
    before = tree(path)
    for attempt in (lambda: folder_for(path, exists=exists), lambda: open_run(path)):
        with pytest.raises(InputError, match=rf"format {FORMAT + 6} .* reads format {FORMAT}\b"):
            attempt()
    assert tree(path) == before


def test_a_finished_run_is_opened_and_never_begun_again(tmp_path):
    path = whole_run(tmp_path / "r")
    for exists in ("open", "resume"):
        with folder_for(path, exists) as run:
            assert run.finished
            with pytest.raises(InputError, match="nothing to resume"):
                DiskSink(run).begin(SHAPE)
    assert open_run(path).finished


def test_an_unfinished_run_is_only_resumed_when_asked(tmp_path):
    with folder_for(tmp_path / "r"):
        pass
    with pytest.raises(InputError, match="holds an unfinished run of this config"):
        folder_for(tmp_path / "r")


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_of_another_identity_is_neither_opened_nor_resumed_and_it_is_said_why(
    tmp_path, finished
):
    known = {"fake.py": "abc", "text a.txt": "def"}
    with folder_for(tmp_path / "r", identity=known) as run:
        produce(DiskSink(run))
        if finished:
            finalise(run, status="finished", sentence="reached the end")
    before = tree(tmp_path)
    for changes, words in (
        ({"config": {**CONFIG, "dim": 5}}, "its dim is 4, not 5"),
        ({"identity": {**known, "fake.py": "xyz"}}, "fake.py has changed since"),
        ({"identity": {**known, "text a.txt": "xyz"}}, "text a.txt has changed since"),
        ({"identity": {"fake.py": "abc"}}, "text a.txt has changed since"),
    ):
        for exists in ("open", "resume"):
            with pytest.raises(InputError, match=words):
                folder_for(tmp_path / "r", exists, **{"identity": known, **changes})
    assert tree(tmp_path) == before


def test_overwriting_leaves_only_the_new_run_and_the_files_that_are_not_ours(tmp_path):
    path = whole_run(tmp_path / "r")
    (path / "report.html").write_text("old")
    (path / "figures").mkdir()
    (path / "my notes.txt").write_text("keep")
    with folder_for(path, exists="overwrite") as run:
        assert not run.finished
    assert tree(path) == ["manifest.json", "my notes.txt"]


def test_a_second_writer_gets_a_sentence_and_a_reader_reads(tmp_path):
    with folder_for(tmp_path / "r") as run:
        with pytest.raises(InputError, match=f"being written by process {os.getpid()}"):
            folder_for(tmp_path / "r", exists="resume")
        assert open_run(run.path).status == "running"
    with folder_for(tmp_path / "r", exists="resume"):
        pass
    assert not (tmp_path / "r" / ".lock").exists()


def test_a_run_without_its_process_is_listed_as_killed(tmp_path):
    with folder_for(tmp_path / "r"):
        pass
    assert open_run(tmp_path / "r").status == "killed"


def test_bad_input_found_before_the_first_segment_leaves_nothing(tmp_path):
    def attempt():
        with folder_for(tmp_path / "new" / "r") as run:
            DiskSink(run).begin(SHAPE)
            raise InputError("start", "has a NaN")

    with pytest.raises(InputError, match="has a NaN"):
        attempt()
    assert tree(tmp_path) == []


def test_an_error_or_ctrl_c_leaves_a_status_and_a_resumable_run(tmp_path):
    def attempt(path, error):
        with folder_for(path) as run:
            produce(DiskSink(run))
            raise error

    for error, status in ((KeyboardInterrupt(), "interrupted"), (ValueError("x\ny"), "failed")):
        path = tmp_path / status
        with pytest.raises(type(error)):
            attempt(path, error)
        found = open_run(path)
        assert (found.status, found.finished) == (status, False)
        assert found.trajectory.sizes["time"] == 120


class Full:
    """`os.fsync` on a disk that is full from the n-th call on."""

    def __init__(self, allowed):
        self.allowed, self.fsync = allowed, os.fsync

    def __call__(self, handle):
        self.allowed -= 1
        if self.allowed < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(handle)


@pytest.mark.parametrize("allowed", [0, 2, *range(4, 13), 27, 61, 95, 120])
def test_a_full_disk_is_one_sentence_and_leaves_a_resumable_folder(tmp_path, monkeypatch, allowed):
    path = tmp_path / "r"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Full(allowed))
        with pytest.raises(DiskFull, match="no space left to write in"):
            whole_run(path)
    assert not [name for name in tree(tmp_path) if name.endswith(".tmp")]
    if path.exists():
        assert not open_run(path).finished
    whole_run(path, "resume")
    loss = MemorySink()
    produce(loss)
    found = open_run(path).trajectory["loss"].values
    assert found.tobytes() == loss.collect().columns["loss"].tobytes()


def test_a_full_disk_while_making_the_folder_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Full(0))
    with pytest.raises(DiskFull):
        folder_for(tmp_path / "a" / "b")
    assert tree(tmp_path) == []


def test_a_resume_says_what_has_changed_around_it(tmp_path, monkeypatch):
    with folder_for(tmp_path / "r"):
        pass
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with folder_for(tmp_path / "r", exists="resume") as run:
        expected = (
            "resumed under other conditions, the last bits may differ: "
            "environment.XLA_FLAGS was not set, is --xla_cpu_enable_fast_math=true"
        )
        assert run.manifest["notes"] == [expected]
    assert open_run(tmp_path / "r").notes == (expected,)


def test_non_finite_numbers_of_the_summary_are_null(tmp_path):
    with folder_for(tmp_path / "r") as run:
        run.update(summary={"loss": float("nan"), "x": [1.0, float("inf")]}, drift=float("nan"))
        with pytest.raises(InputError, match="fixed when a run is created"):
            run.update(config={})
    text = (tmp_path / "r" / "manifest.json").read_text()
    value = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert (value["summary"], value["drift"]) == ({"loss": None, "x": [1.0, None]}, None)


def test_lists_are_tolerant_of_broken_folders(tmp_path):
    whole_run(tmp_path / "good")
    for name, text in (("cut", '{"kind": "attnflow-run", "for'), ("bare", "x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    bare = json.dumps({"kind": "attnflow-run", "format": FORMAT})
    (tmp_path / "bare" / "manifest.json").write_text(bare)
    (tmp_path / "lost" / "trajectory.zarr").mkdir(parents=True)
    (tmp_path / "holiday photos").mkdir()
    (tmp_path / "file.txt").write_text("x")
    rows = list_runs(tmp_path)
    assert [(row.name, row.kind) for row in rows] == [
        ("good", "run"),
        ("bare", "broken"),
        ("cut", "broken"),
        ("lost", "broken"),
    ]
    assert rows[0].status == "finished"
    assert all(row.sentence for row in rows)
    assert list_runs(tmp_path / "good")[0].name == "good"
    assert list_runs(tmp_path / "nowhere") == []


def test_a_run_is_found_by_its_name_or_a_beginning_of_it(tmp_path):
    for name in ("fake-12ab", "fake-12cd", "other-1"):
        whole_run(tmp_path / name)
    assert find_run(tmp_path / "other-1") == tmp_path / "other-1"
    assert find_run("fake-12ab", tmp_path) == tmp_path / "fake-12ab"
    assert find_run("oth", tmp_path) == tmp_path / "other-1"
    with pytest.raises(InputError, match="fake-12ab, fake-12cd; say which"):
        find_run("fake", tmp_path)
    with pytest.raises(InputError, match=r"no run in .* begins so; there are fake-12ab"):
        find_run("nothing", tmp_path)


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["y" * 200] * 30), "\0"])
def test_a_path_that_no_folder_can_have_is_a_sentence(tmp_path, path):
    for attempt in (lambda: folder_for(tmp_path / path), lambda: open_run(tmp_path / path)):
        with pytest.raises(InputError):
            attempt()
    assert tree(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch, call, number):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(InputError, match=r"cannot be written \(.*\); name another folder"):
        whole_run(tmp_path / "a" / "r")
    assert tree(tmp_path) == []


def test_opening_what_is_not_a_run_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        open_run(tmp_path)
    with pytest.raises(InputError, match="is not there"):
        open_run(tmp_path / "nowhere")
    with folder_for(tmp_path / "r"):
        pass
    with pytest.raises(InputError, match="no rows yet"):
        _ = open_run(tmp_path / "r").trajectory
