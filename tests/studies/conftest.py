"""What several tests of the studies look at, made once: ledgers a session, runs a worker."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnflow import walk
from attnflow.claims import Ledger
from attnflow.runs import Run


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ledger]:
    """`ledger(study, keys, *sections)`: the claims of these sections, measured once a session.

    A section is the module of a claim; without any, all claims are measured. Another worker that
    needs the same ledger waits for it and reads it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @functools.cache
    def measured(told: str) -> Ledger:
        name, keys, sections = json.loads(told)
        path = folder / f"ledger-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
        with _alone(path.with_suffix(".lock")):
            if not path.exists():
                study = walk.build(name, keys)
                claims = [
                    claim
                    for claim in study.claims()
                    if not sections or claim.measure.__module__.rpartition(".")[2] in sections
                ]
                Ledger.check(claims, study).save(path)
        return Ledger.load(path)

    return lambda name, keys, *sections: measured(json.dumps([name, keys, sections]))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Only one worker at a time comes here."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def outcome() -> Callable[..., Run]:
    """`outcome(study, **keys)`: a run without claims, once a worker."""

    @functools.cache
    def ran(name: str, keys: tuple[tuple[str, Any], ...]) -> Run:
        return walk.run(name, claims=False, progress=False, **dict(keys))

    return lambda name, **keys: ran(name, tuple(sorted(keys.items())))
