"""Files that are either whole or not there: written beside, synced, renamed."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attnflow._errors import InputError

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as file:
                arrays[entry.removesuffix(".npy")] = np.lib.format.read_array(file)
    return arrays


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end, or leaves no trace."""
    temp = _beside(path)
    with full_disk_said(path.parent):
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
def replacing_dir(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new empty folder to fill that takes the place of `path` at the end, or leaves no trace."""
    path = Path(path)
    temp = _beside(path)
    with full_disk_said(path.parent):
        try:
            temp.mkdir()
            yield temp
            replace_dir(temp, path)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise


def replace_dir(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename the folder `source` to `target`, whose old contents are removed afterwards."""
    source, target = Path(source), Path(target)
    for folder, _, names in os.walk(source):
        for name in names:
            with open(Path(folder, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))
    away = _moved_away(target)
    os.rename(source, target)
    sync_folder(target.parent)
    shutil.rmtree(away, ignore_errors=True)


def remove_dir(path: Path) -> None:
    """Remove a folder in one step as seen from outside: it is renamed away first."""
    shutil.rmtree(_moved_away(path), ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was still writing in `folder` (the caller holds its lock)."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def full_disk_said(folder: Path) -> Iterator[None]:
    """Turns the system's "no space left" into a `DiskFull` sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(folder) from error
        raise


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut (only where a folder can be opened)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
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


def _moved_away(path: Path) -> Path:
    away = _beside(path)
    if path.exists():
        os.rename(path, away)
        sync_folder(path.parent)
    return away


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_turn)}.tmp")
