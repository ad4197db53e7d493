"""Files that are either whole or not there: written beside, synced, renamed."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attnflow._errors import InputError

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_SEAL = re.compile(rb'"seal": "([0-9a-f]{64})"\n}\n\Z')
_turn = itertools.count()


class DiskFull(InputError):
    """No space left: what was complete stays, what was half-written is gone."""

    def __init__(self, folder: Path):
        self.folder = folder
        super().__init__(
            "disk",
            f"no space left to write in '{folder}'; free some and resume, nothing there is damaged",
        )

    def __reduce__(self):
        return (DiskFull, (self.folder,))


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """The value as strict JSON (non-finite numbers are null; arrays are lists)."""
    write_text_atomic(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """An object whose last key, `seal`, is the SHA-256 of the file's other bytes."""
    text = json.dumps(plain({**value, "seal": ""}), indent=2, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    write_text_atomic(path, f'{text[: -len(_END)]}"seal": "{digest}"\n}}\n')


def read_sealed(path: Path, kind: str, format: int) -> dict[str, Any] | None:
    """The object of that kind that `write_sealed` wrote, or None where there is none of ours."""
    try:
        data = path.read_bytes()
        value = json.loads(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise InputError("run", f"'{path}' cannot be read ({reason(error)})") from None
    if not isinstance(value, dict) or value.get("kind") != kind:
        return None
    given = value.get("format")
    if type(given) is not int or given != format:
        newer = type(given) is int and given > format
        cure = "open it with a newer attnflow" if newer else "run it again"
        raise InputError(
            "run", f"'{path}' has format {given!r} and this attnflow reads format {format}; {cure}"
        )
    found = _SEAL.search(data)
    bare = b"" if found is None else data[: found.start(1)] + data[found.end(1) :]
    if found is None or hashlib.sha256(bare).hexdigest().encode() != found[1]:
        raise InputError("run", f"'{path}' is damaged: it is not as it was written")
    del value["seal"]
    return value


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    with replacing(Path(path)) as file:
        # A lone surrogate (an undecodable byte of a command line) becomes the escape JSON has too.
        file.write(text.encode("utf-8", "backslashreplace"))


def write_arrays_atomic(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An uncompressed `.npz`; the same arrays give the same bytes.

    `numpy.savez` takes the names as keywords, so that one called `file` cannot be written.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as file:
                arrays[entry.removesuffix(".npy")] = np.lib.format.read_array(file)
    return arrays


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end, or leaves no trace."""
    temp = _beside(path)
    with writing(path.parent):
        try:
            with open(temp, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except BaseException:
            with suppress(OSError):
                temp.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def replacing_dir(path: Path) -> Iterator[Path]:
    """A new empty folder to fill that takes the place of `path` at the end, or leaves no trace."""
    temp = _beside(path)
    with writing(path.parent):
        try:
            temp.mkdir()
            yield temp
            for folder, _, names in os.walk(temp):
                for name in names:
                    with open(Path(folder, name), "rb") as file:
                        os.fsync(file.fileno())
                sync_folder(Path(folder))
            away = _moved_away(path)
            os.rename(temp, path)
            sync_folder(path.parent)
            remove(away)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_parts(folder: Path, names: Any) -> None:
    """Remove files and folders, each in one step as seen from outside: renamed away first."""
    for name in names:
        remove(_moved_away(folder / name))


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was still writing in `folder` (the caller holds its lock)."""
    for path in folder.glob(".*.tmp"):
        remove(path)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the system says while writing in a folder into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(folder) from error
        raise InputError(
            "out", f"'{folder}' cannot be written ({reason(error)}); name another folder"
        ) from error


def reason(error: BaseException) -> str:
    """An error's words in one line."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return words.splitlines()[0]


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut (where the system can do that)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
                raise
        finally:
            os.close(handle)


def plain(value: Any, *, words: bool = False) -> Any:
    """The value in JSON's types; non-finite numbers as null, or as the words inf, -inf, nan."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else (str(value) if words else None)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(x, words=words) for key, x in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(x, words=words) for x in value]
    return str(value)


def unworded(value: Any) -> Any:
    """Undoes `plain(..., words=True)`: the words inf, -inf and nan are numbers again."""
    if isinstance(value, str):
        return float(value) if value in ("inf", "-inf", "nan") else value
    if isinstance(value, dict):
        return {key: unworded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [unworded(x) for x in value]
    return value


_END = '"seal": ""\n}\n'


def _moved_away(path: Path) -> Path:
    away = _beside(path)
    if path.exists() or path.is_symlink():
        os.rename(path, away)
        sync_folder(path.parent)
    return away


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_turn)}.tmp")
