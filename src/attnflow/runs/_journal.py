"""The journal of a run: one JSON line after each segment and each checkpoint that is in place."""

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
from attnflow.flows.sinks import Checkpoint, Event, Segment
from attnflow.runs._files import full_disk_said, plain, read_arrays, write_text_atomic

NAME = "journal.jsonl"
_SCALARS = "scalars.json"


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """The entries up to the first line that is torn (a process was killed while writing it)."""
    try:
        lines = (folder / NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = []
    for line in lines[:-1]:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not isinstance(entry, dict) or entry.get("kind") not in ("segment", "checkpoint"):
            break
        entries.append(entry)
    return entries


def append_entry(folder: Path, entry: dict[str, Any]) -> None:
    path = folder / NAME
    with full_disk_said(folder), open(path, "ab") as file:
        before = file.tell()
        try:
            file.write(_line(entry).encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise


def rewrite_journal(folder: Path, entries: Iterable[dict[str, Any]]) -> None:
    write_text_atomic(folder / NAME, "".join(map(_line, entries)))


def is_intact(folder: Path, entry: dict[str, Any]) -> bool:
    """Whether the entry's file is there with the bytes that were written."""
    try:
        return crc(folder / entry["file"]) == entry["crc"]
    except OSError:
        return False


def crc(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def segments_of(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["kind"] == "segment"]


def read_segment(folder: Path, entry: dict[str, Any]) -> Segment:
    columns = read_arrays(folder / entry["file"])
    return Segment(columns, events_from(entry["events"]))


def read_checkpoint(folder: Path, entry: dict[str, Any]) -> Checkpoint:
    arrays = read_arrays(folder / entry["file"])
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


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(plain(entry), allow_nan=False, separators=(",", ":")) + "\n"


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
