"""The journal of a run: one JSON line after each file of it that is in place.

The first line is the shape of the columns, then come segments and checkpoints. Every line ends with
its own checksum and names that of its file, so that damage is told from a line that a killed
process left half-written.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow._files import plain, read_arrays, reason, write_text_atomic, writing
from attnflow.flows.sinks import Checkpoint, Event

NAME = "journal.jsonl"
PARTS = ("segments", "checkpoints")
_SCALARS = "scalars.json"
_SUM = ',"sum":'

Entry = dict[str, Any]


def read_journal(folder: Path, least: int = 0) -> tuple[list[Entry], str]:
    """The entries up to the first line that is not whole, and what is wrong there.

    Nothing is wrong with a torn last line, whose process was killed while writing it, unless
    `least` lines are known to have been there.
    """
    there = {f"{part}/{p.name}" for part in PARTS for p in (folder / part).glob("*.npz")}
    try:
        lines = (folder / NAME).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    except OSError as error:
        return [], f"'{folder / NAME}' cannot be read ({reason(error)})"
    entries: list[Entry] = []
    for line in lines:
        entry = _entry(line)
        if entry is None:
            return entries, f"'{folder / NAME}' is damaged in line {len(entries) + 1}"
        entries.append(entry)
    known = {file for entry in entries for file in (entry["file"], *entry.get("dropped", ()))}
    lost = sorted(there - known)
    if lost[1:]:  # one may have no line: a process can be killed between a file and its line
        return entries, f"'{folder / NAME}' has lost the line of {lost[0]}"
    short = len(entries) < least
    return entries, f"'{folder / NAME}' has lost its last lines" if short else ""


def append_entry(folder: Path, entry: Entry) -> None:
    path = folder / NAME
    with writing(folder), open(path, "ab") as file:
        before = file.tell()
        try:
            file.write(_line(entry).encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise


def rewrite_journal(folder: Path, entries: Iterable[Entry]) -> None:
    write_text_atomic(folder / NAME, "".join(map(_line, entries)))


def of_kind(entries: Iterable[Entry], kind: str) -> list[Entry]:
    return [entry for entry in entries if entry["kind"] == kind]


def kept(folder: Path, entries: list[Entry]) -> list[Entry]:
    """The entries whose files are there, or have to be: of the checkpoints only the last two."""
    older = [entry["file"] for entry in of_kind(entries, "checkpoint")[:-2]]
    gone = {file for file in older if not (folder / file).exists()}
    return [entry for entry in entries if entry["file"] not in gone]


def content(folder: Path, entry: Entry) -> bytes:
    """The bytes of an entry's file; other ones than were written are an `InputError`."""
    path = folder / entry["file"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError("run", f"'{path}' cannot be read ({reason(error)})") from None
    if zlib.crc32(data) != entry["crc"]:
        raise InputError("run", f"'{path}' is damaged: it has other bytes than were written")
    return data


def read_checkpoint(folder: Path, entry: Entry) -> Checkpoint:
    arrays = read_arrays(content(folder, entry))
    scalars = json.loads(arrays.pop(_SCALARS).tobytes())
    return Checkpoint(scalars.pop("step"), scalars.pop("time"), arrays, scalars["scalars"])


def checkpoint_arrays(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint as arrays; its numbers are JSON inside, which keeps large whole numbers."""
    if _SCALARS in checkpoint.arrays:
        raise InputError("checkpoint", f"an array may not be called '{_SCALARS}'")
    scalars = {
        "step": _number(checkpoint.step),
        "time": _number(checkpoint.time),
        "scalars": {name: _number(x) for name, x in checkpoint.scalars.items()},
    }
    text = np.frombuffer(json.dumps(scalars).encode(), np.uint8)
    return {**checkpoint.arrays, _SCALARS: text}


def events_from(rows: Iterable[dict[str, Any]]) -> tuple[Event, ...]:
    return tuple(
        Event(row["name"], float(row["time"]), row["direction"], row["index"]) for row in rows
    )


def _entry(line: bytes) -> Entry | None:
    body, _, total = line.rpartition(_SUM.encode())
    if not body or total != b"%d}" % zlib.crc32(body):
        return None
    return json.loads(body + b"}")


def _line(entry: Entry) -> str:
    body = json.dumps(plain(entry), separators=(",", ":"), allow_nan=False)[:-1]
    return f"{body}{_SUM}{zlib.crc32(body.encode())}}}\n"


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
