"""Dies at every file operation of `finalise` in turn (in a fork), and opens what is left.

Prints one line per operation: its number, whether the child died, and whether the folder opened
to the same numbers, before and after resuming and finalising it again.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import xarray as xr
import zarr  # noqa: F401 - imported before forking
from fake_producer import folder_for, produce

from attnflow.runs import DiskSink, finalise, open_run

STEPS = 30
OPERATIONS = ("replace", "rename", "unlink", "rmdir", "mkdir")


def main(base: Path) -> None:
    template = base / "template"
    with folder_for(template) as run:
        produce(DiskSink(run), STEPS)
    number, died = 0, True
    while died:
        path = base / f"dies-at-{number}"
        shutil.copytree(template, path)
        died = in_fork(lambda: finish(path, dies_at=number)) != 0  # noqa: B023
        fine = in_fork(lambda: check_and_resume(path, template)) == 0  # noqa: B023
        print(number, int(died), int(fine), flush=True)
        number += 1


def finish(path: Path, dies_at: int) -> None:
    left = [dies_at]
    for name in OPERATIONS:
        setattr(os, name, dying(getattr(os, name), left))
    with folder_for(path, exists="resume") as run:
        finalise(run, status="finished", sentence="done", work={"rhs": 7})


def dying(operation, left):
    inside = [0]

    def run(*args, **kwargs):
        # Within the folder that zarr is still filling one death in ten is enough.
        if ".trajectory.zarr." in os.path.dirname(str(args[0])):
            inside[0] += 1
            if inside[0] % 10:
                return operation(*args, **kwargs)
        if left[0] == 0:
            os._exit(9)
        left[0] -= 1
        return operation(*args, **kwargs)

    return run


def check(path: Path, template: Path) -> None:
    expected = open_run(template)
    found = open_run(path)
    xr.testing.assert_identical(found.trajectory.load(), expected.trajectory)
    assert found.marks == expected.marks
    assert found.status in ("finished", "killed", "running")


def check_and_resume(path: Path, template: Path) -> None:
    check(path, template)
    with folder_for(path, exists="resume") as run:
        if not run.finished:
            produce(DiskSink(run), STEPS)
            finalise(run, status="finished", sentence="done")
    check(path, template)
    names = sorted(p.name for p in path.iterdir())
    assert names == ["manifest.json", "marks.json", "trajectory.zarr"], names


def in_fork(task) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            task()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
