"""Tensors in a safetensors file, read one at a time.

The file is eight bytes (the header's length, little-endian), a JSON header that names every tensor
with its dtype, shape and place, and the bytes. The header is checked against the file before
anything is allocated; a tensor is read by its own bytes alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from attnflow._errors import shown

MOST_HEADER = 100_000_000
"""Bytes: the largest header the format allows."""

MOST_TENSORS = 1_000_000
MOST_AXES = 8
PIECE = 1 << 24
"""Bytes that are hashed and looked at together."""

WIDTHS = {"BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "BF16": 2}
WIDTHS |= {f"{kind}{bits}": bits // 8 for kind in "FIU" for bits in (16, 32, 64)}
WIDTHS |= {"I8": 1, "U8": 1}
"""The dtypes of the format, and the bytes of a number."""

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The dtypes of weights, and how NumPy sees their bytes."""

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class Damage(Exception):
    """A file that cannot be believed: what kind of fault it is, and a sentence that says it."""

    def __init__(self, kind: str, sentence: str, file: str = "", tensor: str = ""):
        self.kind, self.sentence, self.file, self.tensor = kind, sentence, file, tensor
        super().__init__(sentence)


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its dtype, shape, and where its bytes begin and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


class TensorFile:
    """A safetensors file whose header has been read and checked.

    `bytes_read` counts what was read of the file so far: its header and the tensors asked for.
    """

    def __init__(self, path: Path, name: str = ""):
        self.path, self.name, self.bytes_read = path, name or path.name, 0
        self._pickled = False
        if not path.is_file():  # a pipe would never end
            self._refuse("absent", "is not a file")
        try:
            self.size = path.stat().st_size
            with open(path, "rb", buffering=0) as file:
                self.entries, self.metadata = self._header(file)
        except OSError as error:
            self._refuse("unreadable", f"cannot be read ({error.strerror})")

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def read(self, name: str) -> np.ndarray:
        """One tensor as float64 (whole numbers as they are)."""
        entry = self.entries[name]
        with open(self.path, "rb", buffering=0) as file:
            raw = self._bytes(file, entry.begin, entry.end - entry.begin)
        return decoded(raw, entry.dtype).reshape(entry.shape)

    def pieces(self, name: str) -> Iterator[bytes | bytearray]:
        """The bytes of one tensor, piece by piece."""
        entry = self.entries[name]
        with open(self.path, "rb", buffering=0) as file:
            for begin in range(entry.begin, entry.end, PIECE):
                yield self._bytes(file, begin, min(PIECE, entry.end - begin))

    def sha256(self) -> str:
        """The digest of the whole file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _bytes(self, file: Any, begin: int, count: int) -> bytearray:
        found = bytearray(count)
        view, at = memoryview(found), 0
        file.seek(begin)
        while at < count:
            got = file.readinto(view[at:])
            if not got:
                self._refuse("truncated", f"ends at byte {begin + at:,}, inside a tensor")
            at += got
        self.bytes_read += count
        return found

    def _header(self, file: Any) -> tuple[dict[str, Entry], dict[str, str]]:
        if self.size < 8:
            self._refuse("truncated", f"has {self.size} bytes; a header alone takes 8")
        head = bytes(self._bytes(file, 0, 8))
        # The same bytes may be the length of an honest header: asked only once it is none.
        self._pickled = head.startswith(_PICKLES)
        length = int.from_bytes(head, "little")
        if length > self.size - 8:
            self._refuse(
                "header", f"says that its header has {length:,} bytes; the file has {self.size:,}"
            )
        if length > MOST_HEADER:
            self._refuse("header", f"has a header of {length:,} bytes; at most {MOST_HEADER:,}")
        try:
            found = json.loads(self._bytes(file, 8, length), object_pairs_hook=_once)
        except _Twice as error:
            self._refuse("duplicate-key", f"names {error.args[0]!r} twice in its header")
        except (ValueError, RecursionError):
            self._refuse("header", "has a header that is not JSON")
        if not isinstance(found, dict):
            self._refuse("header", "has a header that is not a JSON object")
        metadata = found.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            self._refuse("header", "has metadata that is not a JSON object")
        if len(found) > MOST_TENSORS:
            self._refuse("header", f"names {len(found):,} tensors; at most {MOST_TENSORS:,}")
        start = 8 + length
        entries = {name: self._entry(name, value, start) for name, value in found.items()}
        self._check_places(entries, start)
        return entries, {str(k): str(v) for k, v in metadata.items()}

    def _entry(self, name: str, value: Any, start: int) -> Entry:
        """One line of the header, each number of it checked."""
        try:
            dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            self._refuse("header", "lacks dtype, shape or data_offsets", name)
        if not whole or not isinstance(dtype, str) or len(shape) > MOST_AXES:
            self._refuse("header", "has a shape or an offset that is no count", name)
        if dtype not in WIDTHS:
            self._refuse("dtype", f"has the unknown dtype {dtype[:20]!r}", name)
        size = math.prod(shape) * WIDTHS[dtype]
        if end - begin != size:
            self._refuse(
                "header",
                f"takes {size:,} bytes by its shape {shape} and {dtype}, {end - begin:,} by its "
                "offsets",
                name,
            )
        if start + end > self.size:
            self._refuse(
                "truncated", f"ends at byte {start + end:,}; the file ends at {self.size:,}", name
            )
        return Entry(dtype, tuple(shape), start + begin, start + end)

    def _check_places(self, entries: Mapping[str, Entry], start: int) -> None:
        """The tensors fill the file: no two share bytes, none are left over."""
        at, last = start, ""
        for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
            if entry.begin != at:
                what = f"begins inside {last}" if entry.begin < at else "leaves a hole before it"
                self._refuse("header", what, name)
            at, last = entry.end, name
        if at != self.size:
            self._refuse("header", f"has {self.size - at:,} bytes that belong to no tensor")

    def _refuse(self, kind: str, words: str, tensor: str = "") -> NoReturn:
        if self._pickled and kind == "header" and not tensor:
            kind, words = "pickle", "is a pickle (or a torch archive) under another name"
        subject = f"{self.name}: {tensor}" if tensor else self.name
        raise Damage(kind, f"{subject} {words}", self.name, tensor)


def decoded(raw: Any, dtype: str) -> np.ndarray:
    """Bytes as float64; bfloat16 is the upper half of a float32. Whole numbers stay whole."""
    if dtype in FLOATS:
        found = np.frombuffer(raw, FLOATS[dtype])
        if dtype == "BF16":
            found = (found.astype("<u4") << 16).view("<f4")
        return found.astype(np.float64)
    if dtype.startswith("F8"):
        raise Damage("dtype", f"{dtype} is not read; float64, float32, float16 and bfloat16 are")
    if dtype == "BOOL":
        return np.frombuffer(raw, np.bool_)
    return np.frombuffer(raw, f"<{dtype[0].lower()}{WIDTHS[dtype]}")


class Folder:
    """A folder that nothing may leave: paths and symlinks are followed only inside `root`."""

    def __init__(self, path: Path, root: Path):
        self.path, self.root = path, root.resolve()

    def file(self, name: str) -> Path:
        """The real path of a file; leaving the folder is refused with a sentence."""
        inside = "\x00" not in name and not Path(name).is_absolute()
        real = resolved(self.path / name) if inside else None
        if real is None or not real.is_relative_to(self.root):
            raise Damage("escape", f"{shown(name)} leads out of the series' folder", shown(name))
        return real

    def has(self, name: str) -> bool:
        """Whether an entry of that name is there (also one that leads nowhere)."""
        return os.path.lexists(self.path / name)

    def json(self, name: str) -> Any:
        """A JSON file of at most a few megabytes."""
        path = self.file(name)
        if not path.is_file():  # a pipe would never end
            raise Damage("absent", f"{name} is not there", name)
        try:
            if path.stat().st_size > MOST_HEADER:
                raise Damage("config", f"{name} is larger than {MOST_HEADER:,} bytes", name)
            return json.loads(path.read_bytes(), object_pairs_hook=_once)
        except _Twice as error:
            words = f"{name} names {shown(error.args[0])} twice"
            raise Damage("duplicate-key", words, name) from None
        except OSError as error:
            raise Damage("absent", f"{name} cannot be read ({error.strerror})", name) from None
        except (ValueError, RecursionError):
            raise Damage("config", f"{name} is not JSON", name) from None


def resolved(path: Path) -> Path | None:
    """The real path; None for symlinks that lead round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None


class _Twice(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found
