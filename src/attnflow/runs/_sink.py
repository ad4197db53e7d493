"""The sink on disk: segments and checkpoints as `.npz`, each followed by a journal line."""

from __future__ import annotations

from typing import Any

from attnflow._errors import InputError
from attnflow.flows.sinks import Checkpoint, Segment, Shape
from attnflow.runs import _journal, _trajectory
from attnflow.runs._files import plain, remove_dir, remove_leftovers, write_arrays_atomic
from attnflow.runs._folder import RunFolder
from attnflow.runs._manifest import now

_KEPT = 2


class DiskSink:
    """Implements `attnflow.flows.sinks.Sink` in a run folder.

    What the journal does not mention does not exist: a file that was renamed into place by a
    process killed before its journal line is overwritten later.
    """

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._path = folder.path
        self._entries: list[dict[str, Any]] = []

    def begin(self, shape: Shape) -> Checkpoint | None:
        """Drop what came after the last intact checkpoint and return it (None: from the start)."""
        if self._folder.finished:
            raise InputError("run", f"'{self._path}' is finished; there is nothing to resume")
        _trajectory.check_shape(shape)
        kept = _up_to_last_intact_checkpoint(self._path, _journal.read_journal(self._path))
        if kept:
            self._check_same_columns(shape)
        # A trajectory here is from a process killed between building it and saying so.
        remove_dir(self._path / _trajectory.ZARR)
        (self._path / "marks.json").unlink(missing_ok=True)
        _journal.rewrite_journal(self._path, kept)
        self._entries = kept
        for part in ("segments", "checkpoints"):
            (self._path / part).mkdir(exist_ok=True)
            remove_leftovers(self._path / part)
            self._remove_others(part, [entry["file"] for entry in kept])
        _trajectory.write_shape(self._path, shape)
        return _journal.read_checkpoint(self._path, kept[-1]) if kept else None

    def flush(self, segment: Segment) -> None:
        if not segment.rows and not segment.events:
            return
        _trajectory.check_names(segment.columns)
        index = len(_journal.segments_of(self._entries))
        ends = segment.columns["time"][[0, -1]].tolist() if segment.rows else [None, None]
        self._store(
            f"segments/{index:05d}.npz",
            segment.columns,
            {
                "kind": "segment",
                "rows": segment.rows,
                "first": ends[0],
                "last": ends[1],
                "events": [plain(event) for event in segment.events],
            },
        )

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        index = sum(entry["kind"] == "checkpoint" for entry in self._entries)
        self._store(
            f"checkpoints/{index:05d}.npz",
            _journal.checkpoint_arrays(checkpoint),
            {"kind": "checkpoint", "step": checkpoint.step, "time": checkpoint.time},
        )
        recent = [e["file"] for e in self._entries if e["kind"] == "checkpoint"][-_KEPT:]
        self._remove_others("checkpoints", recent)

    def collect(self) -> Segment:
        return _trajectory.read_rows(self._path)

    def _store(self, file: str, arrays: Any, entry: dict[str, Any]) -> None:
        path = self._path / file
        write_arrays_atomic(path, arrays)
        entry = {**entry, "file": file, "crc": _journal.crc(path), "at": now()}
        # In this order an interrupt in between skips a number, and never uses one twice.
        self._entries.append(entry)
        _journal.append_entry(self._path, entry)

    def _check_same_columns(self, shape: Shape) -> None:
        stored = _trajectory.shape_json(_trajectory.read_shape(self._path))
        asked = _trajectory.shape_json(shape)
        for part in ("dims", "coords"):
            for name in [*stored[part], *asked[part]]:
                if stored[part].get(name) != asked[part].get(name):
                    raise InputError(
                        "run",
                        f"'{self._path}' cannot be resumed: its '{name}' is no longer observed in "
                        "the same way; overwrite it, or name another folder",
                    )

    def _remove_others(self, part: str, keep: list[str]) -> None:
        for path in (self._path / part).glob("*.npz"):
            if f"{part}/{path.name}" not in keep:
                path.unlink()


def _up_to_last_intact_checkpoint(path: Any, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that a resume keeps; a damaged segment ends them, older checkpoints are gone."""
    kept = 0
    for position, entry in enumerate(entries):
        intact = _journal.is_intact(path, entry)
        if entry["kind"] == "checkpoint" and intact:
            kept = position + 1
        elif entry["kind"] == "segment" and not intact:
            break
    return entries[:kept]
