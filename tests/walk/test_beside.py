"""Claims measured by two processes: the same ledger, and nothing is lost where one of them dies."""

from __future__ import annotations

import os
import signal

import pytest

from attnflow import beside, studies, walk
from attnflow.claims import Ledger
from attnflow.runs import plain

STUDY = "two-mixture"


@pytest.fixture
def two(monkeypatch) -> None:
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "2")


def some(monkeypatch, count: int):
    """The study with its first claims only."""
    ready = studies.build(STUDY)
    claims = tuple(ready.claims())[:count]
    monkeypatch.setattr(type(ready), "claims", lambda self: claims)
    return ready, claims


def rows(ledger: Ledger) -> list:
    return [(row.id, row.part, row.verdict, row.expected, row.note) for row in ledger]


@pytest.mark.slow
def test_two_processes_give_the_ledger_of_one(two, monkeypatch) -> None:
    ready, claims = some(monkeypatch, 12)
    alone = Ledger.check(claims, ready)
    seen: list[tuple[int, int]] = []
    other = beside.begin(STUDY, ready.config)
    assert other is not None
    while not other._rows:  # it measures from the first claim on
        other._reader.join(0.1)
        assert other._reader.is_alive()
    found = other.ledger(ready, lambda done, total, row: seen.append((done, total)))
    assert rows(found) == rows(alone)
    assert plain(found.records()[-1]) == plain(alone.records()[-1])
    assert all(total == 12 for _, total in seen)
    assert other._process.poll() is not None


@pytest.mark.slow
def test_what_the_other_process_does_not_give_is_measured_here(two, monkeypatch) -> None:
    ready, claims = some(monkeypatch, 4)
    other = beside.begin(STUDY, ready.config)
    assert other is not None
    os.kill(other._process.pid, signal.SIGKILL)
    assert rows(other.ledger(ready)) == rows(Ledger.check(claims, ready))


def test_one_process_where_one_is_asked_for_or_the_study_is_ones_own(monkeypatch) -> None:
    ready = studies.build(STUDY)
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "1")
    assert beside.begin(STUDY, ready.config) is None
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "2")
    assert beside.begin("one's own", ready.config) is None


def test_a_run_that_fails_leaves_no_process(two, monkeypatch) -> None:
    begun = []
    begin = beside.begin
    monkeypatch.setattr(beside, "begin", lambda *a: begun.append(begin(*a)) or begun[-1])
    monkeypatch.setattr(walk, "_solved", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        walk.run(STUDY, progress=False)
    assert begun[0]._process.poll() is not None
