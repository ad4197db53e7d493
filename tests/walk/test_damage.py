"""Any file of a run, damaged in any way, is noticed: a sentence, no traceback, no wrong number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnflow import InputError, walk
from attnflow.cli import main
from attnflow.runs import list_runs, open_run

STUDY = Path(__file__).with_name("spring.py")

SCRIPT = """
import os, sys
from attnflow import walk
from attnflow.flows import recorder
walk.CHECKPOINT_STEPS, recorder.Recorder.FLUSH_ROWS = 15, 10
study, out, how = sys.argv[1:]

def end(fraction, words):
    if fraction > 0.5 and how != "whole":
        if how == "killed":
            os._exit(9)
        raise KeyboardInterrupt

try:
    walk.run(study, out=out, progress=end)
except KeyboardInterrupt:
    sys.exit(1)
"""


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


WAYS = {
    "cut in half": lambda data: data[: len(data) // 2],
    "a byte short": lambda data: data[:-1],
    "a byte long": lambda data: data + b" ",
    "one bit flipped": flipped,
    "zeros": lambda data: bytes(len(data)),
    "emptied": lambda data: b"",
    "not UTF-8": lambda data: b"\xff\xfe" + data[2:],
    "deleted": None,
    "a folder": None,
}


def damage(path: Path, way: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if way == "a folder":
        path.mkdir()
    elif way != "deleted":
        path.write_bytes(WAYS[way](data))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """The same run finished, interrupted and killed."""
    base = tmp_path_factory.mktemp("damage")
    for how in ("whole", "interrupted", "killed"):
        command = [sys.executable, "-c", SCRIPT, str(STUDY), str(base / how), how]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == {"whole": 0, "interrupted": 1, "killed": 9}[how], done.stderr
    return {how: base / how for how in ("whole", "interrupted", "killed")}


def files(folder: Path) -> list[str]:
    found = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return sorted(name for name in found if name != ".lock")


def said(capsys) -> str:
    """What a command printed, whose last line is its sentence if it failed."""
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.out + printed.err


def opened(path: Path) -> str:
    """The sentence about damage that opening a run and reading all of it gives."""
    try:
        run = open_run(path)
        run.trajectory.load()
        _ = run.events, run.stages, run.saddles, run.claims, run.summary
        return " ".join(run.notes)
    except InputError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_damage_to_a_finished_run_is_noticed(made, way, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = open_run(made["whole"]).trajectory.load()
    for k, name in enumerate(files(made["whole"])):
        path = tmp_path / str(k)
        shutil.copytree(made["whole"], path)
        damage(path / name, way)
        drawn = name.startswith(("figures", "report"))
        sentence = opened(path)
        assert name in sentence or "no manifest" in sentence
        assert "\n" not in sentence
        if not drawn and way not in ("one bit flipped", "zeros", "not UTF-8"):  # the size is kept
            assert [row.kind for row in list_runs(path)] in (["broken"], []), name
        for command in (["show", str(path)], ["report", str(path)]):
            status = main(command)
            printed = said(capsys)
            assert status == (0 if drawn else 2), (name, command, printed)
            assert drawn or len(printed.strip().splitlines()) == 1
            assert name in printed or "no manifest" in printed, (name, command, printed)
        if drawn:  # drawn again
            assert open_run(path).notes == ()
            continue
        derived = name in ("stages.json", "saddles.json", "claims.json")
        status = main(["run", str(STUDY), "--out", str(path)])
        printed = said(capsys)
        assert status == (0 if derived else 2), (name, printed)
        assert name in printed or "not a run of ours" in printed
        if derived:  # made again, from the same trajectory
            again = open_run(path)
            assert any(f"{name} was damaged" in note for note in again.notes)
            assert again.stages == open_run(made["whole"]).stages
            assert again.claims is not None
            assert again.trajectory.load().identical(whole)
        shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_damage_to_an_unfinished_run_is_noticed_and_resumed_before_it(
    made, how, way, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(walk, "CHECKPOINT_STEPS", 15)
    monkeypatch.setattr("attnflow.flows.recorder.Recorder.FLUSH_ROWS", 10)
    whole = open_run(made["whole"])
    names = files(made[how])
    middle = [name for name in names if name.startswith("segments")][1:-1]
    spare = [name for name in names if name.startswith("checkpoints")][-3]
    for k, name in enumerate(set(names) - set(middle[1:])):
        path = tmp_path / str(k)
        shutil.copytree(made[how], path)
        damage(path / name, way)
        # A journal without its last line is what a kill may leave; after a pause it is damage.
        torn = how == "killed" and name == "journal.jsonl" and way == "a byte short"
        # So is a line that was only begun, and the checkpoint before the last two may be missing.
        torn |= name == "journal.jsonl" and way == "a byte long"
        torn |= name == spare and way == "deleted"
        sentence = opened(path)
        known = (name, "lost the line", "no manifest")
        assert torn or any(word in sentence for word in known)
        assert (main(["show", str(path)]) == 2) != torn
        assert len(said(capsys).strip().splitlines()) == 1 or torn
        if name == "manifest.json":
            assert main(["run", str(STUDY), "--out", str(path), "--resume"]) == 2
            assert len(said(capsys).strip().splitlines()) == 2  # the heading, and the sentence
        elif name == "journal.jsonl" or way in ("one bit flipped", "deleted", "a folder"):
            again = walk.run(
                str(STUDY), out=path, exists="resume", claims=False, report=False, progress=False
            )
            notes = " ".join(again.notes)
            assert torn or "goes on from" in notes or "starts over" in notes, (name, notes)
            assert again.events == open_run(path).events == whole.events
            stored = open_run(path).trajectory
            for column in whole.trajectory.variables:
                a, b = whole.trajectory[column].values, stored[column].values
                assert np.array_equal(a, b), (name, column)
        shutil.rmtree(path)


@pytest.mark.parametrize("how", ["whole", "interrupted", "killed"])
def test_what_is_not_damaged_opens_without_a_word(made, how) -> None:
    run = open_run(made[how])
    assert run.notes == ()
    assert run.finished == (how == "whole")
    assert run.trajectory.sizes["time"] > 20
    assert [e.name for e in run.events] == ["half"]
    assert (os.path.basename(run.source[0]), run.stages[0].name) == ("spring.py", "slow")


def test_a_missing_chunk_of_the_trajectory_is_no_nan(made, tmp_path) -> None:
    path = tmp_path / "r"
    shutil.copytree(made["whole"], path)
    (path / "trajectory.zarr" / "loss" / "0").unlink()
    with pytest.raises(InputError, match=r"loss/0' is damaged: it is missing"):
        open_run(path)


def test_a_large_trajectory_is_read_through_when_it_is_asked_for(made, tmp_path, monkeypatch):
    path = tmp_path / "r"
    shutil.copytree(made["whole"], path)
    damage(path / "trajectory.zarr" / "loss" / "0", "one bit flipped")
    monkeypatch.setattr("attnflow.runs._manifest.CHECKED", 1000)
    run = open_run(path)
    with pytest.raises(InputError, match="other bytes than were written"):
        _ = run.trajectory
