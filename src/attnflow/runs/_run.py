"""A run: one value, whether it is in memory or on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow import studies
from attnflow._errors import InputError
from attnflow._files import unworded
from attnflow.runs import _folder, _journal, _lock, _manifest, _show, _trajectory
from attnflow.runs._list import state
from attnflow.studies.config import step_length

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.claims import Ledger
    from attnflow.draw import Figures
    from attnflow.flows.sinks import Event
    from attnflow.linearise import SaddleTable
    from attnflow.observe.stages import Plateau, Stage
    from attnflow.studies.study import Study


class Run:
    """A run of a study: what was asked, what came out, and how it was computed.

    `attnflow.run` gives one and `open_run` gives one back from its folder, with the same
    attributes. What is on disk is read when it is asked for, and JAX is loaded only by what needs
    the study itself (`built`, `figures`, the stages of an unfinished run).
    """

    def __init__(self, manifest: Mapping[str, Any], path: Path | None = None, **known: Any):
        self.manifest = manifest
        self.path = path
        self.known = known
        """What is in memory; the rest is in the folder."""
        for name in known:
            if not hasattr(type(self), name):
                raise TypeError(f"a run has no '{name}'")
        vars(self).update(known)  # a cached property that is already known is not read

    def replace(self, **known: Any) -> Run:
        """The same run with other values of some attributes."""
        return Run(self.manifest, self.path, **{**self.known, **known})

    @cached_property
    def study(self) -> str:
        """The name of the study."""
        return self.manifest["study"]

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every key of the config with its value."""
        return unworded(self.manifest["config"])

    @cached_property
    def built(self) -> Study:
        """The study itself, built again from the config."""
        where = studies.locate(self.study, self.path, self.source)
        return studies.build(where, self.config).knowing(events=self.events)

    @cached_property
    def source(self) -> tuple[str, ...]:
        """Where the file of a study of one's own was: its path, and that from the run's folder."""
        return tuple(self.manifest["source"])

    @cached_property
    def finished(self) -> bool:
        """Whether it reached its end; else it can be resumed."""
        return self.manifest["finished"]

    @cached_property
    def status(self) -> str:
        return self._state[0]

    @cached_property
    def sentence(self) -> str:
        return self._state[1]

    @cached_property
    def _state(self) -> tuple[str, str]:
        return state(self.path, self.manifest)

    @cached_property
    def trajectory(self) -> xr.Dataset:
        """Everything observed, over `time`; of an unfinished run what there is so far."""
        assert self.path is not None
        if not _read_through(self.manifest):
            files = self.manifest["files"]
            zarr = {n: f for n, f in files.items() if n.startswith(_trajectory.ZARR)}
            _manifest.refuse_damage(self.path, _manifest.damaged(self.path, zarr))
        attrs = {key: self.manifest[key] for key in ("study", "digest")}
        return _trajectory.read_trajectory(self.path, attrs)

    @property
    def loss(self) -> float:
        """The last loss that was observed."""
        return float(self.trajectory["loss"].values[-1])

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Marks and stops that were crossed, in order of time."""
        assert self.path is not None
        rows = self._json("marks.json")
        if rows is None:
            found, shape = _trajectory.read_working(self.path)
            if shape is not None:
                return found.events
            rows = open_run(self.path)._json("marks.json")  # finished in the meantime
        return _journal.events_from(rows or ())

    @property
    def marks(self) -> tuple[Event, ...]:
        """The same as `events`."""
        return self.events

    def step_of(self, time: float) -> int | None:
        """The optimiser's step at a time of the run; None for a flow, which takes none."""
        rate = step_length(self.config)
        return None if rate is None else round(time / rate)

    @cached_property
    def stages(self) -> list[Stage]:
        from attnflow.observe.stages import Stage
        from attnflow.studies.study import stages_of

        rows = self._json("stages.json")
        if rows is not None:
            return [Stage(**row) for row in rows]
        return stages_of(self.built, self.trajectory)

    @cached_property
    def plateaus(self) -> list[Plateau]:
        """Where the trajectory waited; empty when it never did."""
        from attnflow.studies.study import plateaus_of

        return plateaus_of(self.trajectory) if self.saddles is None else self.saddles.plateaus

    @cached_property
    def saddles(self) -> SaddleTable | None:
        """Where the flow waited and how it left; None where no ledger was made."""
        rows = self._json("saddles.json")
        if rows is None:
            return None
        from attnflow.linearise import SavedSaddles

        return SavedSaddles.of(rows)

    @cached_property
    def claims(self) -> Ledger | None:
        """The ledger; None where the claims were not checked."""
        from attnflow.claims import Ledger

        rows = self._json("claims.json")
        return None if rows is None else Ledger.from_json(json.dumps(rows))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The study's own numbers."""
        return self.manifest["summary"]

    @cached_property
    def work(self) -> dict[str, float]:
        """Evaluations, steps and seconds of the solve."""
        return self.manifest["work"]

    @cached_property
    def drift(self) -> float:
        """How far what is conserved has moved; NaN where nothing conserved was declared."""
        found = self.manifest["drift"]
        return math.nan if found is None else found

    @cached_property
    def solver(self) -> dict[str, Any]:
        return self.manifest["solver"]

    @cached_property
    def command(self) -> str:
        """The shell command that runs this again."""
        return self.manifest["command"]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know, such as a resume under other XLA flags."""
        return tuple(self.manifest["notes"])

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The study's figures, drawn from this run; `undrawn` says which could not be drawn."""
        return self._drawn[0]

    @cached_property
    def undrawn(self) -> tuple[str, ...]:
        """A sentence for each figure that failed: a picture must not cost the rest of a run."""
        return self._drawn[1]

    @cached_property
    def _drawn(self) -> tuple[dict[str, Figure], tuple[str, ...]]:
        lost: list[str] = []
        drawn = {name: self.draw(name, lost) for name in self.figure_functions(lost)}
        return {name: one for name, one in drawn.items() if one is not None}, tuple(lost)

    def figure_functions(self, lost: list[str]) -> Figures:
        """The study's figure functions; none where that fails, with a sentence added to `lost`."""
        try:
            return self.built.figures()
        except Exception as error:
            lost.append(f"the figures were not drawn: {studies.told(error)}")
            return {}

    def draw(self, name: str, lost: list[str]) -> Figure | None:
        """One of the study's figures; None where it fails, with a sentence added to `lost`."""
        try:
            from attnflow.draw import in_steps

            with in_steps(step_length(self.config)):
                return self.built.figures()[name](self.trajectory, self.stages)
        except Exception as error:
            lost.append(f"the figure {name} was not drawn: {studies.told(error)}")
            return None

    def as_json(self) -> dict[str, Any]:
        """The object that `run --json` prints."""
        return {
            "run": None if self.path is None else str(self.path),
            "study": self.study,
            "status": self.status,
            "loss": self.loss if "loss" in self.trajectory else None,
            "config": self.config,
            "summary": self.summary,
            "work": self.work,
            "drift": self.drift,
        }

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else self.path
        return f"Run({self.study}, {self.status}: {self.sentence} {where})"

    def __str__(self) -> str:
        return _show.screen(self)

    def _repr_html_(self) -> str:
        return _show.html(self)

    def _json(self, name: str) -> Any:
        """A JSON file of the run; None where the manifest does not know it."""
        if self.path is None or name not in self.manifest["files"]:
            return None
        return json.loads((self.path / name).read_bytes())


def open_run(path: str | PathLike[str]) -> Run:
    """The run in a folder, finished or not; it is only read, and damage is an `InputError`.

    A damaged page or figure is a note: `attnflow report` draws it again.
    """
    path = Path(path)
    manifest = _folder.read_run(path)
    damage = _manifest.damaged(path, manifest["files"], _read_through(manifest))
    _manifest.refuse_damage(path, _folder.undrawn(damage))
    if not manifest["finished"]:
        _check_working(path, manifest)
    notes = [f"{n} is damaged (it {w}); attnflow report draws it again" for n, w in damage.items()]
    return Run(manifest, path, **({"notes": (*manifest["notes"], *notes)} if notes else {}))


def _read_through(manifest: Mapping[str, Any]) -> bool:
    return sum(size for size, _ in manifest["files"].values()) <= _manifest.CHECKED


def _check_working(path: Path, manifest: Mapping[str, Any]) -> None:
    """The journal and every file it names; of a run that is being written, as far as it is."""
    entries, wrong = _journal.read_journal(path, manifest["entries"])
    if wrong:
        raise InputError("run", f"{wrong}; a resume begins before the damage")
    if not _lock.is_locked(path):
        for entry in _journal.kept(path, entries):
            _journal.content(path, entry)
