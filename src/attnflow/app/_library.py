"""What is on disk: runs and ensembles by their names, read again when they have changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from attnflow import studies
from attnflow._errors import InputError
from attnflow.runs import Ensemble, Run, list_runs, open_ensemble, open_run, plain
from attnflow.runs._journal import NAME as JOURNAL
from attnflow.runs._list import RunRow
from attnflow.runs._manifest import NAME as MANIFEST
from attnflow.runs._manifest import read_manifest
from attnflow.studies import config as configs

KEPT = 16
"""Opened runs that are remembered."""

LOADED = 256 * 2**20
"""Bytes up to which a trajectory is held in memory; a larger one is read from disk, row by row."""

FRESH = 0.5
"""Seconds for which a list of the folder is good."""


class Missing(LookupError):
    """There is no such thing here; the message is a sentence."""


@dataclass(frozen=True)
class Entry:
    """A run or an ensemble in the folder; `id` is all that a browser may name."""

    id: str
    row: RunRow

    @property
    def path(self) -> Path:
        return self.row.path


class Library:
    """The runs in a folder. Browsers name runs by id; ids are looked up, never joined to a path."""

    def __init__(self, folder: str | PathLike[str] = "runs"):
        self.folder = Path(folder)
        list_runs(self.folder)  # refuses a file
        self._lock = threading.RLock()
        self._listed: tuple[float, dict[str, Entry]] = (-1.0, {})
        self._opened: OrderedDict[Path, tuple[Any, Any]] = OrderedDict()

    def entries(self) -> dict[str, Entry]:
        """Everything at the top of the folder, oldest first."""
        with self._lock:
            at, found = self._listed
            if time.monotonic() - at > FRESH:
                found = {row.name: Entry(row.name, row) for row in list_runs(self.folder)}
                self._listed = (time.monotonic(), found)
            return found

    def find(self, id: str) -> Entry:
        """The entry of an id: a name in the folder, or `ensemble/cell`."""
        known = self.entries()
        if id in known:
            return known[id]
        above, slash, name = id.rpartition("/")
        if slash and above in known and known[above].row.kind == "ensemble":
            inside = {p.name: p for p in known[above].path.iterdir() if p.is_dir()}
            rows = list_runs(inside[name]) if name in inside else []
            if rows and rows[0].path == inside[name]:
                return Entry(id, rows[0])
        raise Missing("There is no such run here (any more).")

    def run(self, id: str) -> Run:
        """The run of an id, opened; one that is being written is opened again as it grows."""
        entry = self.find(id)
        if entry.row.kind != "run":
            raise Missing(f"This is not a run: {entry.row.sentence or entry.row.kind}.")
        return self._cached(entry.path, (MANIFEST, JOURNAL), _loaded)

    def ensemble(self, id: str) -> Ensemble:
        entry = self.find(id)
        if entry.row.kind != "ensemble":
            raise Missing("This is not an ensemble.")
        return self._cached(entry.path, ("ensemble.json",), open_ensemble)

    def _cached(self, path: Path, names: tuple[str, ...], read: Any) -> Any:
        with self._lock:
            seal = tuple(_stamp(path / name) for name in names)
            if path in self._opened and self._opened[path][0] == seal:
                self._opened.move_to_end(path)
                return self._opened[path][1]
            found = read(path)
            self._opened[path] = (seal, found)
            while len(self._opened) > KEPT:
                self._opened.popitem(last=False)
            return found


def manifest_of(entry: Entry) -> Mapping[str, Any]:
    """What a run says of itself; empty for what is not, or no longer, a run."""
    try:
        return (read_manifest(entry.path) if entry.row.kind == "run" else None) or {}
    except (InputError, OSError):
        return {}


def differences(study: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys in which a config is not the study's default; all of them where that is unknown."""
    if not studies.built_in(study):
        return dict(config)
    usual = plain(configs.as_dict(studies.find(study)[1]()), words=True)
    return {key: value for key, value in config.items() if usual.get(key) != value}


def _loaded(path: Path) -> Run:
    run = open_run(path)
    try:
        data = run.trajectory
    except InputError:  # it has written nothing yet
        return run
    return run.replace(trajectory=data.load()) if data.nbytes <= LOADED else run


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
