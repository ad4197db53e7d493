"""Claims and figures of two processes: those of one, and nothing is lost where one of them dies."""

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
    found = other.ledger(ready, claims, lambda done, total, row: seen.append((done, total)))
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
    assert rows(other.ledger(ready, claims)) == rows(Ledger.check(claims, ready))


def test_one_process_where_one_is_asked_for_or_the_study_is_ones_own(monkeypatch) -> None:
    ready = studies.build(STUDY)
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "1")
    assert beside.begin(STUDY, ready.config) is None
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "2")
    assert beside.begin("one's own", ready.config) is None


def test_a_run_that_fails_leaves_no_process(two, monkeypatch) -> None:
    others = begun(monkeypatch)
    monkeypatch.setattr(walk, "_solved", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        walk.run(STUDY, progress=False)
    assert others[0]._process.poll() is not None


SHORT = {"until": 60.0, "dim": 4}


def begun(monkeypatch) -> list[beside.Beside]:
    """The processes beside that are begun from now on."""
    found: list[beside.Beside] = []
    begin = beside.begin

    def noted(*given):
        other = begin(*given)
        found.extend([] if other is None else [other])
        return other

    monkeypatch.setattr(beside, "begin", noted)
    return found


def drawn(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


@pytest.mark.slow
def test_figures_of_two_processes_are_those_of_one(two, monkeypatch, tmp_path) -> None:
    others = begun(monkeypatch)
    monkeypatch.setattr(beside, "FEW", 100)  # all by the other process
    given = {"claims": False, "progress": False, **SHORT}
    found = walk.run("focus-dilution", out=tmp_path / "two", **given)
    monkeypatch.setenv("ATTNFLOW_PROCESSES", "1")
    walk.run("focus-dilution", out=tmp_path / "one", **given)
    (other,) = others
    assert all(isinstance(row, str) for row in other._rows)
    assert len(other._rows) == len(found.built.figures()) + 1  # and that of the saddles
    assert drawn(tmp_path / "two") == drawn(tmp_path / "one")
    assert other._process.poll() is not None


@pytest.mark.slow
def test_figures_that_the_other_process_does_not_draw_are_drawn_here(
    two, monkeypatch, tmp_path
) -> None:
    others = begun(monkeypatch)
    solved = walk._solved

    def killing(*given):
        os.kill(others[0]._process.pid, signal.SIGKILL)
        return solved(*given)

    monkeypatch.setattr(walk, "_solved", killing)
    kind = type(studies.build("focus-dilution"))
    figures = kind.figures
    monkeypatch.setattr(kind, "figures", lambda self: {**figures(self), "loss": lambda *_: 1 / 0})
    found = walk.run("focus-dilution", out=tmp_path / "r", claims=False, progress=False, **SHORT)
    names = {*found.built.figures(), "saddles", "story"} - {"loss"}
    assert set(drawn(tmp_path / "r")) == {f"{name}.svg" for name in names} | {"shows.json"}
    assert len(found.undrawn) == 1  # said once
