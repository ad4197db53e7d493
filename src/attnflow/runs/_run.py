"""Opening runs: a value per run, a row per folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, shown
from attnflow.flows.sinks import Event
from attnflow.runs import _ensemble, _html, _journal, _lock, _manifest, _trajectory
from attnflow.runs._files import unworded

if TYPE_CHECKING:
    import xarray as xr


class Run:
    """A run on disk, read lazily; `open_run` makes it."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]):
        self.path = path
        self.manifest = manifest

    @property
    def study(self) -> str:
        return self.manifest["study"]

    @cached_property
    def config(self) -> dict[str, Any]:
        return unworded(self.manifest["config"])

    @property
    def finished(self) -> bool:
        return self.manifest["finished"]

    @property
    def status(self) -> str:
        return self._state[0]

    @property
    def sentence(self) -> str:
        return self._state[1]

    @property
    def summary(self) -> dict[str, Any]:
        return self.manifest.get("summary") or {}

    @cached_property
    def trajectory(self) -> xr.Dataset:
        """Everything observed, over `time`; of an unfinished run what there is so far."""
        attrs = {key: self.manifest[key] for key in ("study", "digest")}
        return _trajectory.read_trajectory(self.path, attrs)

    @cached_property
    def marks(self) -> list[Event]:
        """Marks and stops that were crossed, in order of time."""
        rows = self.read_json("marks.json")
        if rows is None:
            entries = _journal.segments_of(_journal.read_journal(self.path))
            rows = [row for entry in entries for row in entry["events"]]
        return list(_journal.events_from(rows))

    @cached_property
    def stages(self) -> Any:
        """`stages.json`, or None."""
        return self.read_json("stages.json")

    @cached_property
    def claims(self) -> Any:
        """`claims.json`, or None."""
        return self.read_json("claims.json")

    def read_json(self, name: str) -> Any:
        """A JSON file of the run, or None where it has none of that name."""
        try:
            return json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise InputError("run", f"'{self.path / name}' cannot be read ({error})") from error

    @property
    def _state(self) -> tuple[str, str]:
        return state(self.path, self.manifest)

    def _facts(self) -> dict[str, Any]:
        manifest = self.manifest
        config = ", ".join(f"{key}={shown(value)}" for key, value in self.config.items())
        facts = {
            "status": f"{self.status}: {self.sentence}",
            "config": config,
            "work": ", ".join(f"{k} {v}" for k, v in (manifest.get("work") or {}).items()),
            "drift": manifest.get("drift"),
            "summary": ", ".join(f"{k} {shown(v)}" for k, v in self.summary.items()),
            "folder": self.path,
            "run again": manifest.get("command"),
        }
        return {key: value for key, value in facts.items() if value not in (None, "")}

    def __repr__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts))
        return f"Run of {self.study}\n" + "\n".join(
            f"  {key:<{width}}  {value}" for key, value in facts.items()
        )

    def _repr_html_(self) -> str:
        return _html.table(list(self._facts().items()), caption=f"Run of {self.study}")


@dataclass(frozen=True)
class RunRow:
    """One line of a list of runs; `kind` is `run`, `ensemble` or `broken`."""

    name: str
    path: Path
    kind: str
    study: str
    status: str
    sentence: str
    seed: Any
    created: str
    updated: str
    finished: bool
    summary: Mapping[str, Any]


def open_run(path: str | PathLike[str]) -> Run:
    """The run in a folder, finished or not; it is only read."""
    path = Path(path)
    manifest = _manifest.read_manifest(path)
    if manifest is None:
        what = (
            "is not a run folder (it has no manifest of ours)" if path.exists() else "is not there"
        )
        raise InputError("run", f"'{path}' {what}")
    return Run(path, manifest)


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


def state(path: Path, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Status and sentence; `killed` for a run that says it is running and has no process."""
    status, sentence = manifest["status"], manifest["sentence"]
    if status != "running" or _lock.is_locked(path):
        return status, sentence
    entries = _journal.read_journal(path)
    saved = [entry["time"] for entry in entries if entry["kind"] == "checkpoint"]
    where = f"its last checkpoint at time {saved[-1]:.6g}" if saved else "the start"
    return "killed", f"it ended without a word; resume goes on from {where}"


def _row(path: Path) -> RunRow | None:
    try:
        manifest = _manifest.read_manifest(path)
        if manifest is None:
            ensemble = _ensemble.read_ensemble(path)
            return _ensemble_row(path, ensemble) if ensemble else _lost(path)
        status, sentence = state(path, manifest)
        return RunRow(
            path.name,
            path,
            "run",
            manifest["study"],
            status,
            sentence,
            manifest.get("seed"),
            manifest["created"],
            max(manifest["updated"], _last_written(path / _journal.NAME)),
            manifest["finished"],
            manifest.get("summary") or {},
        )
    except InputError as error:
        return _broken(path, error.sentence)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return _broken(path, f"it cannot be read ({type(error).__name__}: {error})")


def _ensemble_row(path: Path, value: Mapping[str, Any]) -> RunRow:
    done = sum(bool(cell["ok"]) for cell in value["cells"])
    sentence = f"{done} of {len(value['cells'])} cells have a result"
    return RunRow(
        path.name,
        path,
        "ensemble",
        value["study"],
        value["status"],
        sentence,
        value.get("seeds"),
        value["created"],
        value["updated"],
        value["status"] == "finished",
        {},
    )


def _lost(path: Path) -> RunRow | None:
    parts = [name for name in (_trajectory.ZARR, _journal.NAME) if (path / name).exists()]
    return _broken(path, f"it has {parts[0]} and no manifest.json") if parts else None


def _broken(path: Path, sentence: str) -> RunRow:
    return RunRow(path.name, path, "broken", "", "broken", sentence, None, "", "", False, {})


def _last_written(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
