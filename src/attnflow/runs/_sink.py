"""The sink on disk: segments and checkpoints as `.npz`, each followed by a journal line."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow._files import (
    plain,
    remove,
    remove_leftovers,
    remove_parts,
    write_arrays_atomic,
    write_json_atomic,
)
from attnflow.flows.sinks import Checkpoint, Segment, Shape
from attnflow.runs import _journal, _trajectory
from attnflow.runs._folder import RunFolder
from attnflow.runs._manifest import now


class DiskSink:
    """Implements `attnflow.flows.sinks.Sink` in a run folder.

    What the journal does not mention does not exist: a file that was renamed into place by a
    process killed before its journal line is overwritten later.
    """

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._path = folder.path
        self._entries: list[_journal.Entry] = []

    def begin(self, shape: Shape) -> Checkpoint | None:
        """Drop what came after the last intact checkpoint and return it (None: from the start)."""
        if self._folder.finished:
            raise InputError("run", f"'{self._path}' is finished; there is nothing to resume")
        _trajectory.check_shape(shape)
        entries, wrong = _journal.read_journal(self._path, self._folder.manifest["entries"])
        kept, last, broken = _intact(self._path, entries)
        if last is not None:
            self._check_same_columns(shape, kept[0])
        self._folder.update(entries=0)
        self._say(entries, last, wrong or broken)
        for name in (_journal.NAME, _trajectory.SHAPE):
            if (self._path / name).is_dir():  # a folder is not replaced by a file
                remove(self._path / name)
        for part in _journal.PARTS:
            (self._path / part).mkdir(exist_ok=True)
            remove_leftovers(self._path / part)
        names = {
            f"{part}/{p.name}" for part in _journal.PARTS for p in (self._path / part).iterdir()
        }
        dropped = sorted(names - {entry["file"] for entry in kept})
        head = self._file(_trajectory.SHAPE, _trajectory.shape_json(shape), kind="shape")
        self._entries = [{**head, "dropped": dropped}, *kept[1:]]
        _journal.rewrite_journal(self._path, self._entries)
        remove_parts(self._path, dropped)
        return last

    def flush(self, segment: Segment) -> None:
        if not segment.rows and not segment.events:
            return
        _trajectory.check_names(segment.columns)
        index = len(_journal.of_kind(self._entries, "segment"))
        self._store(
            f"segments/{index:05d}.npz",
            segment.columns,
            kind="segment",
            rows=segment.rows,
            events=[plain(event) for event in segment.events],
        )

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        index = len(_journal.of_kind(self._entries, "checkpoint"))
        self._store(
            f"checkpoints/{index:05d}.npz",
            _journal.checkpoint_arrays(checkpoint),
            kind="checkpoint",
            step=checkpoint.step,
            time=checkpoint.time,
        )
        # One more than is looked for: should this line be lost, the two before it are still there.
        for entry in _journal.of_kind(self._entries, "checkpoint")[-4:-3]:
            remove(self._path / entry["file"])

    def collect(self) -> Segment:
        return _trajectory.read_working(self._path)[0]

    def _store(self, file: str, content: Any, **facts: Any) -> None:
        # In this order an interrupt in between skips a number, and never uses one twice.
        self._entries.append(self._file(file, content, **facts))
        _journal.append_entry(self._path, self._entries[-1])

    def _file(self, file: str, content: Any, **facts: Any) -> _journal.Entry:
        path = self._path / file
        (write_json_atomic if file == _trajectory.SHAPE else write_arrays_atomic)(path, content)
        return {**facts, "file": file, "crc": zlib.crc32(path.read_bytes()), "at": now()}

    def _check_same_columns(self, shape: Shape, entry: _journal.Entry) -> None:
        stored = _trajectory.shape_json(_trajectory.read_shape(self._path, entry))
        asked = _trajectory.shape_json(shape)
        for part in ("dims", "coords"):
            for name in [*stored[part], *asked[part]]:
                if stored[part].get(name) != asked[part].get(name):
                    raise InputError(
                        "run",
                        f"'{self._path}' cannot be resumed: its '{name}' is no longer observed in "
                        "the same way; overwrite it, or name another folder",
                    )

    def _say(self, entries: list[_journal.Entry], last: Checkpoint | None, wrong: str) -> None:
        """What a reader has to know of a resume: damage, and a run that begins once more."""
        if last is not None:
            where = f"the run goes on from time {last.time:.6g}"
        else:
            where = "the run starts over"
        if wrong:
            self._folder.note(f"{wrong}; {where}")
        elif last is None and _journal.of_kind(entries, "segment"):
            self._folder.note(f"there was no checkpoint yet; {where}")


def _intact(
    path: Path, entries: list[_journal.Entry]
) -> tuple[list[_journal.Entry], Checkpoint | None, str]:
    """The entries up to the last checkpoint that can be read, it, and what is damaged.

    A damaged shape or segment ends them; older checkpoints are gone anyway.
    """
    end, last, wrong = 0, None, ""
    for entry in _journal.kept(path, entries):
        try:
            if entry["kind"] == "checkpoint":
                last, end = _journal.read_checkpoint(path, entry), entries.index(entry) + 1
            else:
                _journal.content(path, entry)
        except InputError as error:
            wrong = wrong or error.sentence
            if entry["kind"] != "checkpoint":
                break
    return entries[:end], last, wrong
