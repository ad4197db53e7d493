"""Solves that the page starts: each a process of its own, which can be stopped and go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow.app._library import Library, Missing, manifest_of
from attnflow.runs import default_path
from attnflow.runs._journal import read_journal
from attnflow.studies import config as configs

GRACE = 5.0
"""Seconds that solves have to leave a resumable run when the server ends."""


@dataclass
class Job:
    """A child process that runs a study into a folder of the library."""

    id: str
    study: str
    process: subprocess.Popen[bytes]
    said: Path
    """What it wrote on standard error."""

    @property
    def running(self) -> bool:
        return self.process.poll() is None


class Jobs:
    """At most one solve per core, each by the same command that a person would type."""

    def __init__(self, library: Library, most: int | None = None):
        self.library = library
        self.most = most or max(1, (os.cpu_count() or 1) - 1)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._words = tempfile.TemporaryDirectory(prefix="attnflow-explore-")

    def start(self, study: str, config: Any) -> dict[str, Any]:
        """Begin the run of a checked config; the id is that of the run it becomes.

        A run of the same config that is there is opened, or resumed.
        """
        name = default_path(study, configs.as_dict(config), self.library.folder).name
        with self._lock:
            self._refuse_more(name)
            file = Path(self._words.name) / f"{name}.toml"
            file.write_text(configs.to_toml(config), encoding="utf-8")
            self._begin(name, study, ["run", study, "--config", str(file)])
        return self.of(name) or {}

    def resume(self, id: str) -> dict[str, Any]:
        """Go on with an interrupted run of the folder."""
        entry = self.library.find(id)
        manifest = manifest_of(entry)
        if entry.row.kind != "run" or entry.row.finished or not manifest or "/" in id:
            raise Missing("This is no interrupted run that can go on from here.")
        from attnflow.app import _whatif

        study, config = _whatif.checked(entry.row.study, _given(manifest))
        with self._lock:
            self._refuse_more(id)
            file = Path(self._words.name) / f"{len(self._jobs)}-resume.toml"
            file.write_text(configs.to_toml(config), encoding="utf-8")
            self._begin(id, study, ["run", study, "--config", str(file)])
        return self.of(id) or {}

    def cancel(self, id: str) -> dict[str, Any]:
        """Stop a solve: it leaves a run that can be resumed."""
        job = self._jobs.get(id)
        if job is None or not job.running:
            raise Missing("Nothing is running under that name.")
        job.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(GRACE)
        return self.of(id) or {}

    def of(self, id: str) -> dict[str, Any] | None:
        """How far the job of a run is; None where none was started here."""
        job = self._jobs.get(id)
        if job is None:
            return None
        told: dict[str, Any] = {"id": id, "study": job.study, "running": job.running}
        told |= self._progress(id)
        if not job.running:
            lines = job.said.read_text("utf-8", "replace").strip().splitlines()
            told["exit"] = job.process.returncode
            told["said"] = lines[-1][:400] if lines and job.process.returncode != 0 else ""
        return told

    def told(self) -> list[dict[str, Any]]:
        return [found for id in list(self._jobs) if (found := self.of(id)) is not None]

    def close(self) -> None:
        """Ask every solve to stop, and end those that do not."""
        running = [job for job in self._jobs.values() if job.running]
        for job in running:
            job.process.send_signal(signal.SIGTERM)
        for job in running:
            try:
                job.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
        self._words.cleanup()

    def _refuse_more(self, id: str) -> None:
        if id in self._jobs and self._jobs[id].running:
            raise InputError("run", "this very config is being solved; see its progress")
        running = [job.id for job in self._jobs.values() if job.running]
        if len(running) >= self.most:
            raise InputError("run", f"{', '.join(running)} is running; wait for it, or cancel it")

    def _begin(self, id: str, study: str, words: list[str]) -> None:
        out = self.library.folder / id
        said = Path(self._words.name) / f"{len(self._jobs)}.txt"
        command = [sys.executable, "-m", "attnflow.cli", *words, "--out", str(out)]
        command += ["--no-claims", "--json", "--resume"]
        with open(said, "wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        self._jobs[id] = Job(id, study, process, said)

    def _progress(self, id: str) -> dict[str, Any]:
        """Where the solve is, by what it has written so far."""
        folder = self.library.folder / id
        try:
            entries, _ = read_journal(folder)
        except (InputError, OSError):
            return {}
        times = [e["time"] for e in entries if isinstance(e.get("time"), int | float)]
        return {"time": max(times)} if times else {}


def _given(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    from attnflow._files import unworded

    return unworded(dict(manifest["config"]))
