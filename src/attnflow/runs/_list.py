"""The runs in a folder: a row for each, and a run by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow.runs import _ensemble, _folder, _journal, _lock, _manifest, _trajectory


@dataclass(frozen=True)
class RunRow:
    """One line of a list of runs; `kind` is `run`, `ensemble` or `broken`."""

    name: str
    path: Path
    kind: str = "broken"
    study: str = ""
    status: str = "broken"
    sentence: str = ""
    seed: Any = None
    created: str = ""
    updated: str = ""
    finished: bool = False


def find_run(name: str | PathLike[str], folder: str | PathLike[str] = "runs") -> Path:
    """The folder of a run by its path, by the name that a list of runs has, or by its beginning."""
    if Path(name).is_dir():
        return Path(name)
    known = {row.name: row.path for row in list_runs(folder)}
    found = [n for n in known if n == str(name)] or [n for n in known if n.startswith(str(name))]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise InputError("run", f"'{name}' begins the names of {', '.join(found[:5])}; say which")
    listed = f"; there are {', '.join(list(known)[:5])}" if known else ""
    raise InputError("run", f"'{name}' is no folder, and no run in {folder}/ begins so{listed}")


def list_runs(folder: str | PathLike[str] = "runs") -> list[RunRow]:
    """The runs and ensembles in a folder (or the folder itself), oldest first, broken ones last.

    Folders that have nothing of ours are left out; a folder that is not there has no runs.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError("runs", f"'{folder}' is a file, not a folder of runs")
    own = _row(folder)
    if own is not None:
        return [own]
    children = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.exists() else []
    rows = [row for path in children if (row := _row(path)) is not None]
    return sorted(rows, key=lambda row: (row.kind == "broken", row.created, row.name))


def state(path: Path | None, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Status and sentence; `killed` for a run that says it is running and has no process."""
    status, sentence = manifest["status"], manifest["sentence"]
    if status != "running" or path is None or _lock.is_locked(path):
        return status, sentence
    saved = _journal.of_kind(_journal.read_journal(path)[0], "checkpoint")
    where = f"its last checkpoint at time {saved[-1]['time']:.6g}" if saved else "the start"
    return "killed", f"it ended without a word; resume goes on from {where}"


def _row(path: Path) -> RunRow | None:
    try:
        manifest = _manifest.read_manifest(path)
        if manifest is None:
            ensemble = _ensemble.read_ensemble(path)
            return _ensemble_row(path, ensemble) if ensemble else _lost(path)
        damage = _manifest.damaged(path, manifest["files"], read=False)
        _manifest.refuse_damage(path, _folder.undrawn(damage))
        status, sentence = state(path, manifest)
        same = {key: manifest[key] for key in ("study", "seed", "created", "finished")}
        updated = max(manifest["updated"], _last_written(path / _journal.NAME))
        return RunRow(
            path.name, path, "run", status=status, sentence=sentence, updated=updated, **same
        )
    except (InputError, OSError) as error:
        return RunRow(path.name, path, sentence=getattr(error, "sentence", str(error)))


def _ensemble_row(path: Path, value: Mapping[str, Any]) -> RunRow:
    same = {key: value[key] for key in ("study", "status", "sentence", "created", "updated")}
    finished = value["status"] == "finished"
    return RunRow(path.name, path, "ensemble", seed=value["seeds"], finished=finished, **same)


def _lost(path: Path) -> RunRow | None:
    parts = [name for name in (_trajectory.ZARR, _journal.NAME) if (path / name).exists()]
    return RunRow(path.name, path, sentence=f"it has {parts[0]} and no manifest") if parts else None


def _last_written(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
