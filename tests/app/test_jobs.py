"""Solves that the page starts: a process each, which stops resumably and goes on."""

from __future__ import annotations

import time

import pytest

from attnflow._errors import InputError
from attnflow.app import Library
from attnflow.app._jobs import Jobs
from attnflow.app._library import Missing
from attnflow.runs import open_run
from attnflow.studies import configured


def until(true, seconds=120.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_solve_is_cancelled_and_goes_on(tmp_path):
    (tmp_path / "runs").mkdir()
    library = Library(tmp_path / "runs")
    jobs = Jobs(library, most=1)
    study, config = configured("focus-dilution", dim=2, mode="gd", rate=1e-3, until=300.0)
    try:
        id = jobs.start(study, config)["id"]
        with pytest.raises(InputError, match="this very config"):
            jobs.start(study, config)
        with pytest.raises(InputError, match="is running"):
            jobs.start(*configured("focus-dilution", dim=3))
        until(lambda: (jobs.of(id) or {}).get("time", 0) > 0)
        jobs.cancel(id)
        stopped = open_run(tmp_path / "runs" / id)
        assert (stopped.finished, stopped.status) == (False, "interrupted")
        before = stopped.trajectory.sizes["time"]
        assert before > 0
        with pytest.raises(Missing):
            jobs.cancel(id)
        until(lambda: library.find(id).row.status == "interrupted")
        assert jobs.resume(id)["running"]
    finally:
        jobs.close()


def test_what_is_no_interrupted_run_does_not_go_on(tmp_path):
    jobs = Jobs(Library(tmp_path))
    try:
        with pytest.raises(Missing):
            jobs.resume("../elsewhere")
    finally:
        jobs.close()
