"""One writer per folder."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from attnflow._errors import InputError
from attnflow._files import writing

try:
    import fcntl
except ImportError:  # Windows has no flock: there, nothing keeps two writers apart.
    fcntl = None

NAME = ".lock"
_HELD = {errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN}


class Lock:
    """Holds `folder/.lock` until `release`; the system lets go of it when the process dies."""

    def __init__(self, folder: Path):
        self._path = folder / NAME
        with writing(folder):
            self._file = _acquired(folder, self._path)
            self._file.truncate(0)
            self._file.write(str(os.getpid()).encode())
            self._file.flush()

    def release(self) -> None:
        if not self._file.closed:
            with suppress(OSError):
                self._path.unlink()
            if fcntl:
                # Said aloud, because a forked child may still share the open file.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def is_locked(folder: Path) -> bool:
    """Whether a living process is writing in the folder."""
    try:
        with open(folder / NAME, "rb") as file:
            return not _try(file, exclusive=False)
    except OSError:
        return False


def _acquired(folder: Path, path: Path):
    for attempt in range(10):
        file = open(path, "a+b")  # noqa: SIM115 - stays open while the lock is held
        # A reader's short look at the lock is not a writer: try again for a moment.
        if _try(file, exclusive=True):
            if _is_at(file, path):
                return file
        elif attempt >= 5:
            holder = _holder(path)
            file.close()
            raise InputError(
                "out",
                f"'{folder}' is being written by {holder}; wait for it, or name another folder",
            )
        file.close()
        time.sleep(0.02)
    raise InputError("out", f"'{folder}' could not be locked; try again")


def _try(file, *, exclusive: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks at all; there the run goes on without one.
        return error.errno not in _HELD
    return True


def _is_at(file, path: Path) -> bool:
    """False when the last holder removed the file between our opening and our locking it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        return f"process {int(path.read_bytes())}"
    except (OSError, ValueError):
        return "another process"
