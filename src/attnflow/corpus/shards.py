"""Token ids on the disk: memory-mapped shards with a document index, known by their hashes.

A folder of shards is `tokens-00000.npy`, `tokens-00001.npy`, ... (int32), `documents.npy` (where
each document begins, int64) and `index.json` (vocabulary, sizes, SHA-256 of each file). Anyone can
read it with NumPy. A shard is read through and compared with its hash when it is first used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from attnflow._errors import InputError, whole
from attnflow._files import read_sealed, replacing, replacing_dir, sha256, write_sealed
from attnflow.corpus.corpus import Corpus, window_starts

KIND, FORMAT, INDEX, DOCUMENTS = "attnflow-tokens", 1, "index.json", "documents.npy"
EACH = 1 << 24
"""Tokens of a shard: 64 MiB."""


def write_shards(corpus: Corpus, folder: str | Path, each: int = EACH) -> Shards:
    """A corpus as a folder of shards of `each` tokens, whole or not there."""
    whole("each", each)
    folder = Path(folder)
    if folder.exists():
        raise InputError("out", f"'{folder}' is already there; name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_dir(folder) as temp:
        shards = []
        for number, at in enumerate(range(0, len(corpus.ids), each)):
            part = corpus.ids[at : at + each].astype(np.int32)
            shards.append({**_written(temp, f"tokens-{number:05d}.npy", part), "tokens": len(part)})
        index = {
            "kind": KIND,
            "format": FORMAT,
            "name": corpus.name,
            "tokenizer": corpus.tokenizer,
            "text": corpus.sha256,
            "unknown": corpus.unknown,
            "vocabulary": list(corpus.vocabulary),
            "documents": _written(temp, DOCUMENTS, corpus.starts),
            "shards": shards,
        }
        write_sealed(temp / INDEX, index)
    return Shards(folder)


def _written(folder: Path, name: str, array: np.ndarray) -> dict[str, str]:
    with replacing(folder / name) as file:
        np.save(file, array)
    return {"file": name, "sha256": sha256(folder / name)}


@dataclass(frozen=True, eq=False)
class Shards:
    """A folder that `write_shards` has written, opened for reading."""

    folder: Path
    _stamps: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        _ = self.index

    @cached_property
    def index(self) -> dict[str, Any]:
        found = read_sealed(self.folder / INDEX, KIND, FORMAT)
        if found is None:
            raise InputError("text", f"'{self.folder}' is no folder of token shards")
        return found

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return tuple(self.index["vocabulary"])

    @property
    def name(self) -> str:
        return self.index["name"]

    @property
    def tokens(self) -> int:
        """How many tokens there are in all."""
        return sum(shard["tokens"] for shard in self.index["shards"])

    @cached_property
    def sha256(self) -> str:
        """A digest of the index, and by it of every file."""
        return sha256(self.folder / INDEX)

    @cached_property
    def starts(self) -> Int64[np.ndarray, "document"]:
        """The document index."""
        entry = self.index["documents"]
        _check(self.folder / entry["file"], entry["sha256"])
        return np.load(self.folder / entry["file"], mmap_mode="r")

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([shard["tokens"] for shard in self.index["shards"]])

    def shard(self, number: int) -> Int32[np.ndarray, "position"]:
        """The ids of one shard, memory-mapped; refused if the file is not what was written."""
        entry = self.index["shards"][number]
        path = self.folder / entry["file"]
        try:
            status = path.stat()
        except OSError:
            raise InputError("text", f"'{path}' is gone; write the shards again") from None
        stamp = (status.st_size, status.st_mtime_ns)
        if self._stamps.get(number) != stamp:  # new to us, or touched since
            _check(path, entry["sha256"])
            self._stamps[number] = stamp
        return np.load(path, mmap_mode="r")

    def read(self, begin: int, end: int) -> Int32[np.ndarray, "position"]:
        """The ids from one position to another, across shards."""
        first, last = np.searchsorted(self._ends, [begin, end - 1], side="right")
        parts = []
        for number in range(first, last + 1):
            at = 0 if number == 0 else int(self._ends[number - 1])
            ids = self.shard(number)
            parts.append(ids[max(begin - at, 0) : end - at])
        return np.concatenate(parts) if len(parts) > 1 else np.array(parts[0])

    def window_starts(self, context: int, *, across: bool = False) -> Int64[np.ndarray, "sequence"]:
        """Where the windows begin, as `Corpus.windows` cuts them."""
        return window_starts(np.asarray(self.starts), self.tokens, context, across=across)

    def windows(
        self, starts: Int64[np.ndarray, "sequence"], context: int
    ) -> Int32[np.ndarray, "sequence place"]:
        """The windows that begin there."""
        first = int(starts[0])
        ids = self.read(first, int(starts[-1]) + context + 1)
        return ids[(starts - first)[:, None] + np.arange(context + 1)]


def _check(path: Path, wanted: str) -> None:
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        raise InputError("text", f"'{path}' is gone; write the shards again") from None
    if found != wanted:
        raise InputError("text", f"'{path}' has changed since it was written; write it again")
