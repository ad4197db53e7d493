"""A run folder that is being written: claimed by one process, described by its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from attnflow._errors import InputError, shown
from attnflow._files import (
    DiskFull,
    plain,
    remove_leftovers,
    remove_parts,
    replacing_dir,
    write_json_atomic,
    write_sealed,
    write_text_atomic,
    writing,
)
from attnflow.runs import _journal, _lock, _manifest, _trajectory

Exists = Literal["open", "resume", "overwrite"]

WORKING = (_journal.NAME, *_journal.PARTS, _trajectory.SHAPE, "partials")
"""What is there only while a run is under way; without the journal the rest means nothing."""

SOLVED = (_trajectory.ZARR, "final.npz", "marks.json", "statistics.zarr")
"""What the solve (or the counting of a corpus) leaves."""

DERIVED = ("stages.json", "saddles.json", "claims.json", "figures", "report.html")
"""What is made from it, and can be made again."""


class RunFolder:
    """A claimed run folder; use it as a context manager, so that its end is recorded.

    Inside `with`, an exception leaves a status: Ctrl-C `interrupted`, a full disk `disk full`,
    anything else `failed`. A new folder in which bad input was found before the first segment
    is removed again.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], lock: _lock.Lock):
        self.path = path
        self._manifest = manifest
        self._lock = lock
        self._fresh = False
        self._made: Path | None = None

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], manifest: Mapping[str, Any], exists: Exists = "open"
    ) -> RunFolder:
        """Claim `path` for the run of a new manifest; bad input is said before anything is written.

        `exists` is what to do with a run that is already there: `open` it where it is finished,
        `resume` it where it is not, `overwrite` it. Only a run of the same identity is opened or
        resumed, and a folder that holds something else is never touched.
        """
        path, manifest = Path(path), dict(manifest)
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
        read_run(path)
        lock = _lock.Lock(path)
        try:
            return cls(path, read_run(path), lock)
        except BaseException:
            lock.release()
            raise

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self._manifest

    @property
    def finished(self) -> bool:
        """Whether the trajectory is complete; then there is nothing to resume."""
        return bool(self._manifest["finished"])

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest (`status`, `sentence`, `work`, `drift`, `summary`, ...)."""
        for fixed in ("kind", "format", "study", "config", "digest", "identity", "created"):
            if fixed in fields:
                raise InputError(fixed, "is fixed when a run is created")
        self._manifest = {**self._manifest, **plain(fields)}
        self._write()

    def note(self, sentence: str) -> None:
        """Add a sentence for the readers of the run."""
        if sentence not in self._manifest["notes"]:
            self.update(notes=[*self._manifest["notes"], sentence])

    def store(self, parts: Mapping[str, Any], **fields: Any) -> None:
        """Write parts of the run, and record their sizes and hashes together with `fields`.

        A part is text, a function that fills a folder, or a value that becomes JSON. A kill in
        between leaves a part that the manifest does not know, which counts as not there.
        """
        self._forget(parts)
        for name, value in parts.items():
            if isinstance(value, str):
                write_text_atomic(self.path / name, value)
            elif callable(value):
                _fill(self.path / name, value)
            else:
                write_json_atomic(self.path / name, value)
        self.record(parts, **fields)

    def record(self, names: Any, **fields: Any) -> None:
        """Record the files of parts as they are now, together with `fields`."""
        found = _manifest.hashed(self.path, names)
        self.update(files={**self._manifest["files"], **found}, **fields)

    def pause(self, **facts: Any) -> None:
        """Record why the run stopped (`status`, `sentence`) before its end; it can be resumed."""
        entries, _ = _journal.read_journal(self.path)
        self.update(**{**facts, "finished": False, "entries": len(entries)})

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any):
        try:
            if error is None or self.finished:
                return
            bad_input = isinstance(error, InputError) and not isinstance(error, DiskFull)
            # The status is a courtesy: on a full disk it may not fit, and the run stays as it is.
            with suppress(OSError, InputError):
                if bad_input and self._fresh and not _rows(self.path):
                    remove_parts(self.path, (*WORKING, _manifest.NAME))
                    self.close()
                    _discard(self.path, self._made)
                else:
                    self.pause(**_end(error))
        finally:
            self.close()

    def _write(self) -> None:
        self._manifest["updated"] = _manifest.now()
        write_sealed(self.path / _manifest.NAME, self._manifest)

    def _go_on(self, there: dict[str, Any]) -> None:
        self._manifest = there
        if not self.finished:
            remove_parts(self.path, (*SOLVED, *DERIVED))
            self.update(
                status="running",
                sentence="the run is under way (resumed)",
                files={},
                notes=list(dict.fromkeys([*there["notes"], *_manifest.changes(there)])),
            )
            return
        remove_parts(self.path, WORKING)  # left when a process was killed at the very end
        damage = _manifest.damaged(self.path, there["files"])
        lost = {name: what for name, what in damage.items() if name.split("/")[0] in DERIVED}
        _manifest.refuse_damage(self.path, {n: w for n, w in damage.items() if n not in lost})
        again = {name.split("/")[0] for name in lost}
        again |= (
            {"stages.json", "saddles.json"} if again & {"stages.json", "saddles.json"} else set()
        )
        self._forget(again | {"figures", "report.html"} if again else again)
        for name, what in lost.items():
            self.note(f"{name} was damaged and made again: it {what}")

    def _forget(self, names: Any) -> None:
        files = self._manifest["files"]
        left = {name: f for name, f in files.items() if name.split("/")[0] not in set(names)}
        if left != files:
            self.update(files=left)
            remove_parts(self.path, names)

    def _overwrite(self, there: dict[str, Any]) -> None:
        # First not finished, then empty, then new: a kill at any point leaves a run of ours.
        new, self._manifest = self._manifest, there
        self.update(
            status="removed", sentence="the run is being overwritten", finished=False, files={}
        )
        remove_parts(self.path, (*SOLVED, *DERIVED, *WORKING))
        self._manifest = new
        self._write()


def finalise(folder: RunFolder, **facts: Any) -> None:
    """Build `trajectory.zarr` and `marks.json`, record the facts, then remove the segments.

    The facts go into the manifest (`status`, `sentence`, `work`, `drift`). After a kill at any
    point the folder opens: the segments go only when the trajectory is in place and the manifest
    says so.
    """
    path = folder.path
    if not folder.finished:
        rows, shape = _trajectory.read_working(path)
        assert shape is not None
        attrs = {key: folder.manifest[key] for key in ("study", "digest")}
        write_json_atomic(path / "marks.json", rows.events)
        _trajectory.write_trajectory(path, _trajectory.dataset(rows, shape, attrs))
    folder.record(SOLVED, **{**facts, "finished": True, "entries": 0})
    remove_parts(path, WORKING)


def read_run(path: Path) -> dict[str, Any]:
    """The manifest of a run that is there."""
    manifest = _manifest.read_manifest(path)
    if manifest is None:
        what = (
            "is not a run folder (it has no manifest of ours)" if path.exists() else "is not there"
        )
        raise InputError("run", f"'{path}' {what}")
    return manifest


def undrawn(damage: Mapping[str, str]) -> dict[str, str]:
    """Of damaged files those that are not only drawn from the others (the figures, the page)."""
    return {n: w for n, w in damage.items() if n.split("/")[0] not in ("figures", "report.html")}


def default_path(
    study: str, config: Mapping[str, Any], folder: str | os.PathLike[str] = "runs"
) -> Path:
    """`runs/<study>-<digest>`: four hex digits, more where those name something else already."""
    digest = _manifest.digest(study, config)
    for digits in range(4, len(digest)):
        path = Path(folder) / f"{study}-{digest[:digits]}"
        try:
            there = _manifest.read_manifest(path)
            if there["digest"] == digest if there else _is_free(path):
                return path
        except (InputError, OSError):
            return path  # damaged, or not ours to read: whoever writes there is told
    return Path(folder) / f"{study}-{digest}"


def _check(path: Path, new: Mapping[str, Any], exists: Exists) -> dict[str, Any] | None:
    """The manifest of the run to open, resume or overwrite, None for a free place."""
    if exists not in ("open", "resume", "overwrite"):
        raise InputError("exists", f"'{shown(exists)}' is not one of open, resume, overwrite")
    with writing(path):
        if path.exists() and not path.is_dir():
            raise InputError("out", f"'{path}' is a file; name a folder")
        there = _manifest.read_manifest(path)
        if there is None and not _is_free(path):
            raise InputError(
                "out",
                f"'{path}' is not empty and is not a run of ours; name a new folder, "
                "nothing was written",
            )
    if there is None or exists == "overwrite":
        return there
    other = _manifest.difference(there, new)
    if other:
        raise InputError(
            "out", f"'{path}' holds another run: {other}; overwrite it, or name another folder"
        )
    if exists == "open" and not there["finished"]:
        raise InputError(
            "out",
            f"'{path}' holds an unfinished run of this config ({there['status']}); "
            "resume it (--resume) or overwrite it (--overwrite)",
        )
    return there


def _rows(path: Path) -> bool:
    return bool(_journal.of_kind(_journal.read_journal(path)[0], "segment"))


def _fill(path: Path, fill: Callable[[Path], Any]) -> None:
    with replacing_dir(path) as temp:
        fill(temp)


def _is_free(path: Path) -> bool:
    """Nothing there, or only what a process left that was killed before it wrote its manifest."""
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
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            _discard(path, outermost)
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


def _end(error: BaseException) -> dict[str, str]:
    if isinstance(error, KeyboardInterrupt):
        status, words = "interrupted", "stopped by hand; resume goes on from the last checkpoint"
    elif isinstance(error, DiskFull):
        status, words = "disk full", error.sentence
    else:
        status, words = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
    return {"status": status, "sentence": words}
