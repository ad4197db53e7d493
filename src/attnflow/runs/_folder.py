"""A run folder that is being written: claimed by one process, described by its manifest."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from attnflow._errors import InputError, shown
from attnflow.runs import _journal, _lock, _manifest
from attnflow.runs._files import (
    DiskFull,
    full_disk_said,
    plain,
    remove_dir,
    remove_leftovers,
    write_json_atomic,
    write_text_atomic,
)

Exists = Literal["refuse", "resume", "overwrite"]

WORKING = (_journal.NAME, "segments", "checkpoints", "shape.json")
"""What is there only while a run is under way; without the journal the rest means nothing."""

RESULTS = (
    "trajectory.zarr",
    "final.npz",
    "marks.json",
    "stages.json",
    "saddles.json",
    "claims.json",
    "figures",
    "report.html",
)
"""What a finished run may hold beside its manifest; overwriting removes these and nothing else."""


class RunFolder:
    """A claimed run folder; use it as a context manager, so that its end is recorded.

    Inside `with`, an exception leaves a status: Ctrl-C `interrupted`, a full disk `disk full`,
    anything else `failed`. A new folder in which bad input was found before the first segment
    is removed again.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], lock: _lock.Lock):
        self.path = path
        self.changes: tuple[str, ...] = ()
        """What is different from when the run was begun; it may change the last bits."""
        self._manifest = manifest
        self._lock = lock
        self._fresh = False
        self._made: Path | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        study: str,
        config: Mapping[str, Any],
        seed: Any = None,
        solver: Mapping[str, Any] | None = None,
        precision: str = "float64",
        command: str | Sequence[str] = "",
        exists: Exists = "refuse",
    ) -> RunFolder:
        """Claim `path` for a run of this config; bad input is said before anything is written.

        `exists` is what to do with a run that is already there: `refuse`; `resume` it (same
        config only; where there is none a new one begins); `overwrite` it. A resumed run may
        turn out to be `finished`. A folder that holds something else is never touched.
        """
        path = Path(path)
        manifest = _manifest.new_manifest(
            study=study,
            config=config,
            seed=seed,
            solver=solver,
            precision=precision,
            command=command if isinstance(command, str) else shlex.join(command),
        )
        _check(path, manifest, exists)
        made = _make(path)
        try:
            lock = _lock.Lock(path)
        except BaseException:
            _discard(path, made)
            raise
        try:
            # Again, now that nobody else can change it.
            there = _check(path, manifest, exists)
            remove_leftovers(path)
            folder = cls(path, manifest, lock)
            folder._fresh, folder._made = there is None, made
            if there is None:
                folder._write()
            elif exists == "overwrite":
                folder._overwrite(there)
            else:
                folder._go_on(there)
        except BaseException:
            lock.release()
            _discard(path, made)
            raise
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Claim a run that is there, to add to it (a report, claims, a summary)."""
        path = Path(path)
        if _manifest.read_manifest(path) is None:
            raise InputError("run", f"'{path}' is not a run folder (it has no manifest of ours)")
        lock = _lock.Lock(path)
        try:
            manifest = _manifest.read_manifest(path)
            assert manifest is not None
        except BaseException:
            lock.release()
            raise
        return cls(path, manifest, lock)

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self._manifest

    @property
    def finished(self) -> bool:
        """Whether the trajectory is complete; then there is nothing to resume."""
        return bool(self._manifest["finished"])

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest (`status`, `sentence`, `work`, `drift`, `summary`, ...)."""
        for fixed in ("kind", "format", "study", "config", "digest", "created"):
            if fixed in fields:
                raise InputError(fixed, "is fixed when a run is created")
        self._manifest = {**self._manifest, **plain(fields)}
        self._write()

    def pause(self, status: str, sentence: str, **fields: Any) -> None:
        """Record why the run stopped before its end; it can be resumed."""
        self.update(status=status, sentence=sentence, finished=False, **fields)

    def write_json(self, name: str, value: Any) -> None:
        write_json_atomic(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        write_text_atomic(self.path / name, text)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any):
        try:
            if error is None or self.finished:
                return
            bad_input = isinstance(error, InputError) and not isinstance(error, DiskFull)
            if bad_input and self._fresh and not _journal.read_journal(self.path):
                self._take_back()
                return
            # The status is a courtesy: on a full disk it may not fit, and the run stays as it is.
            with suppress(OSError, DiskFull):
                self.pause(*_end(error))
        finally:
            self.close()

    def _take_back(self) -> None:
        remove_parts(self.path, (*WORKING, _manifest.NAME))
        self.close()
        _discard(self.path, self._made)

    def _write(self) -> None:
        self._manifest["updated"] = _manifest.now()
        write_json_atomic(self.path / _manifest.NAME, self._manifest)

    def _go_on(self, there: dict[str, Any]) -> None:
        self._manifest = there
        if self.finished:
            # Left over when a process was killed at the very end.
            remove_parts(self.path, WORKING)
            return
        self.changes = _manifest.changes(there)
        entry = {"at": _manifest.now(), "changes": list(self.changes)}
        self.update(
            status="running",
            sentence="the run is under way (resumed)",
            resumed=[*there.get("resumed", []), entry],
        )

    def _overwrite(self, there: dict[str, Any]) -> None:
        # First not finished, then empty, then new: a kill at any point leaves a run of ours.
        new, self._manifest = self._manifest, there
        self.pause("removed", "the run is being overwritten")
        remove_parts(self.path, (*RESULTS, *WORKING))
        self._manifest = new
        self._write()


def default_path(
    study: str, config: Mapping[str, Any], root: str | os.PathLike[str] = "runs"
) -> Path:
    """`runs/<study>-<digest>`: four hex digits, more where those name something else already."""
    digest = _manifest.digest(study, config)
    for digits in range(4, len(digest)):
        path = Path(root) / f"{study}-{digest[:digits]}"
        try:
            there = _manifest.read_manifest(path)
        except InputError:
            continue
        if there["digest"] == digest if there else _is_free(path):
            return path
    return Path(root) / f"{study}-{digest}"


def remove_parts(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if (path / name).is_dir():
            remove_dir(path / name)
        else:
            (path / name).unlink(missing_ok=True)


def _check(path: Path, new: Mapping[str, Any], exists: Exists) -> dict[str, Any] | None:
    """The manifest of the run to resume or overwrite, None for a free place, or a sentence."""
    if exists not in ("refuse", "resume", "overwrite"):
        raise InputError("exists", f"'{shown(exists)}' is not one of refuse, resume, overwrite")
    if path.exists() and not path.is_dir():
        raise InputError("out", f"'{path}' is a file; name a folder")
    there = _manifest.read_manifest(path)
    if there is None:
        if not _is_free(path):
            raise InputError(
                "out",
                f"'{path}' is not empty and is not a run of ours; name a new folder, "
                "nothing was written",
            )
        return None
    if exists == "overwrite":
        return there
    if there["digest"] != new["digest"]:
        raise InputError("out", f"'{path}' holds another run: {_difference(there, new)}")
    if exists == "refuse":
        state = "a finished run" if there["finished"] else "an unfinished run"
        raise InputError(
            "out",
            f"'{path}' already holds {state} of this config, begun {there['created']}; "
            "resume it, overwrite it, or name another folder",
        )
    return there


def _difference(there: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if there["study"] != new["study"]:
        return f"its study is {there['study']}, not {new['study']}"
    old, asked = dict(_manifest.flat(there["config"])), dict(_manifest.flat(new["config"]))
    for key in [*asked, *old]:
        if old.get(key) != asked.get(key):
            return f"its {key} is {shown(old.get(key))}, not {shown(asked.get(key))}"
    return "its config differs"


def _is_free(path: Path) -> bool:
    """Empty, but for what a process leaves that was killed before it wrote its manifest."""
    if not path.is_dir():
        return not path.exists()
    names = {child.name for child in path.iterdir()} - {_lock.NAME}
    return all(n.startswith(f".{_manifest.NAME}.") and n.endswith(".tmp") for n in names)


def _make(path: Path) -> Path | None:
    """Make the folder; returns the outermost one that was made, None if it was there."""
    if path.exists():
        return None
    outermost = path
    while not outermost.parent.exists():
        outermost = outermost.parent
    with full_disk_said(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _discard(path, outermost)
            if isinstance(error, FileExistsError | NotADirectoryError | PermissionError):
                raise InputError(
                    "out", f"'{path}' cannot be made ({error.strerror}); name another folder"
                ) from error
            raise
    return outermost


def _discard(path: Path, outermost: Path | None) -> None:
    """Take back the empty folders that `_make` made."""
    with suppress(OSError):
        while outermost is not None:
            if path.exists():
                path.rmdir()
            if path == outermost:
                return
            path = path.parent


def _end(error: BaseException) -> tuple[str, str]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "stopped by hand; resume goes on from the last checkpoint"
    if isinstance(error, DiskFull):
        return "disk full", error.sentence
    return "failed", f"{type(error).__name__}: {error}".splitlines()[0]
