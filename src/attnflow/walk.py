"""The walk of a run: config, study, flow, trajectory, stages, claims, report. No step reaches back.

`run` is what a notebook calls and what the command line calls; `check` only measures claims;
`ensemble` repeats a run over seeds and over one parameter.
"""

from __future__ import annotations

import functools
import os
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnflow import studies
from attnflow._errors import InputError
from attnflow.flows.options import Store
from attnflow.studies import config as configs

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.claims import Ledger
    from attnflow.flows.sinks import Event
    from attnflow.flows.solution import Solution
    from attnflow.linearise import SaddleTable
    from attnflow.observe.stages import Plateau, Stage
    from attnflow.runs import Ensemble, RunFolder
    from attnflow.studies.study import Study

CHECKPOINT_STEPS = 250
"""Accepted steps between two restarts of a run on disk. The default study takes a tenth more
evaluations for them (2,779 against 2,540)."""

Said = Callable[[str, str], None]
"""Called with the name of a finished step and a few words about it."""


@dataclass(frozen=True)
class Outcome:
    """A finished (or interrupted) run: everything a notebook, a report or a program asks for."""

    study: Study
    trajectory: xr.Dataset
    status: str
    sentence: str
    stages: list[Stage]
    events: tuple[Event, ...]
    work: Mapping[str, float]
    drift: float
    solver: Mapping[str, Any]
    claims: Ledger | None = None
    saddles: SaddleTable | None = None
    """Where the flow waited and how it left: a `SaddleLedger`, or its records for a stored run."""
    path: Path | None = None
    solution: Solution | None = field(default=None, repr=False)
    command: str = ""
    notes: tuple[str, ...] = ()
    """What the reader should know, such as a resume under other XLA flags."""

    @property
    def config(self) -> Any:
        return self.study.config

    @property
    def loss(self) -> float:
        """The last loss that was observed."""
        return float(self.trajectory["loss"].values[-1])

    @cached_property
    def plateaus(self) -> list[Plateau]:
        """The plateaus of the saddle ledger, so that every count is the same; without one, of the
        speed alone."""
        return (
            self.study.plateaus(self.trajectory) if self.saddles is None else self.saddles.plateaus
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.study.summary(self.trajectory, self.stages, self.saddles)

    @property
    def figure_functions(self) -> dict[str, Callable[..., Figure]]:
        """The functions behind `figures`: the study's own and, with a ledger, its saddles."""
        from attnflow.draw import bound
        from attnflow.report import saddles_over_loss

        found: dict[str, Callable[..., Figure]] = dict(self.study.figures())
        if self.saddles is not None and len(self.saddles):
            found.setdefault("saddles", bound(saddles_over_loss, saddles=self.saddles))
        return found

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure of the study, drawn from this run; one that cannot be drawn is left out."""
        drawn: dict[str, Figure] = {}
        for name, draw in self.figure_functions.items():
            try:
                drawn[name] = draw(self.trajectory, self.stages)
            except Exception as error:
                # A picture must not cost the reader the rest of the run.
                warnings.warn(f"figure {name}: {type(error).__name__}: {error}", stacklevel=2)
        return drawn

    def as_json(self) -> dict[str, Any]:
        """The object that `run --json` prints."""
        return {
            "run": None if self.path is None else str(self.path),
            "study": self.study.name,
            "status": self.status,
            "loss": self.loss,
            "config": configs.as_dict(self.config),
            "summary": self.summary,
            "work": dict(self.work),
            "drift": self.drift,
        }

    def __repr__(self) -> str:
        stages = " · ".join(f"{s.name} {s.time:.4g}" for s in self.stages) or "no separation"
        claims = f"; claims: {self.claims.summary}" if self.claims is not None else ""
        where = f"; {self.path}" if self.path else ""
        return (
            f"Outcome({self.study.name}, {self.status}: {self.sentence} loss {self.loss:.6g}; "
            f"stages: {stages}{claims}{where})"
        )

    def _repr_html_(self) -> str:
        from attnflow.report import fragment

        return fragment(self)


def build(study: str, config: Any = None, **keys: Any) -> Study:
    """The study of a name (or of a Python file) with a checked config.

    `config` is a TOML file, a mapping or a config object; `keys` override it.
    """
    name, kind = studies.find(study)
    if config is None:
        values: dict[str, Any] = {}
    elif isinstance(config, str | os.PathLike):
        values = configs.load_toml(Path(config))
    elif isinstance(config, Mapping):
        values = dict(config)
    elif isinstance(config, kind):
        values = configs.as_dict(config)
    else:
        raise InputError("config", f"{type(config).__name__}; a TOML file, a mapping or a Config")
    checked = configs.build(kind, {**values, **keys})
    return studies.load(name)(checked)


def run(
    study: str,
    config: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    exists: Literal["refuse", "resume", "overwrite"] = "refuse",
    claims: bool = True,
    report: bool = True,
    progress: Any = None,
    say: Said | None = None,
    **keys: Any,
) -> Outcome:
    """Run a study: `attnflow.run("focus-dilution", pi=(0.6, 0.3, 0.1), seed=1)`.

    In memory by default; with `out` the run is a folder that anyone can open, resumable after an
    interruption (`exists="resume"`). `claims=False` skips the checks, `report=False` the page.
    A flow of up to 1,000 parameters also gets its saddle ledger.
    """
    ready = build(study, config, **keys)
    say = say or (lambda step, words: None)
    command = command_of(ready, study)
    if out is None:
        outcome = _outcome(ready, ready.solve(progress=progress), command)
        say(str(outcome.solver["engine"]), _worked(outcome))
        return _finish(outcome, None, claims, False, say)

    from attnflow.runs import DiskSink, RunFolder, finalise

    settings = configs.as_dict(ready.config)
    with RunFolder.create(
        out,
        study=ready.name,
        config=settings,
        seed=getattr(ready.config, "seed", None),
        command=command,
        exists=exists,
    ) as folder:
        if folder.finished:
            outcome = reopen(folder.path, ready)
            if outcome.claims is not None and (folder.path / "report.html").exists():
                return outcome
            return _finish(outcome, folder, claims, report, say)
        solution = ready.solve(
            store=Store(sink=DiskSink(folder), every=CHECKPOINT_STEPS), progress=progress
        )
        outcome = replace(
            _outcome(ready, solution, command), path=folder.path, notes=_notes(folder.changes)
        )
        facts = {"work": outcome.work, "drift": outcome.drift, "solver": outcome.solver}
        say(solution.solver["engine"], _worked(outcome))
        if not solution.status.complete:
            folder.pause(outcome.status, outcome.sentence, **facts)
            if report and outcome.status != "interrupted":
                write_report(outcome, folder)
            return outcome
        _write_final(folder, solution)
        finalise(folder, status=outcome.status, sentence=outcome.sentence, **facts)
        return _finish(outcome, folder, claims, report, say)


def check(study: str, config: Any = None, *, progress: Any = None, **keys: Any) -> Ledger:
    """Measure every claim of a study: the ledger, with `surprises` where a verdict is not the
    expected one."""
    from attnflow.claims import Ledger

    ready = build(study, config, **keys)
    return Ledger.check(ready.claims(), ready, progress=progress)


def reopen(path: str | os.PathLike[str], ready: Study | None = None) -> Outcome:
    """A run on disk as an `Outcome`, without solving anything."""
    from attnflow.claims import Ledger
    from attnflow.linearise import SavedSaddles
    from attnflow.observe.stages import Stage
    from attnflow.runs import open_run

    stored = open_run(path)
    if ready is None:
        ready = build(stored.study, stored.config)
    ready.events = tuple(stored.marks)
    facts = stored.manifest
    known = stored.stages
    if known is not None:
        stages = [Stage(**s) for s in known]
    else:
        stages = ready.stages(stored.trajectory) if stored.trajectory.sizes["time"] > 1 else []
    changes = [c for resume in facts.get("resumed", []) for c in resume.get("changes", [])]
    ledger = Path(path) / "claims.json"
    saddles = stored.read_json("saddles.json")
    drift = facts.get("drift")
    return Outcome(
        study=ready,
        trajectory=stored.trajectory,
        status=stored.status,
        sentence=stored.sentence,
        stages=stages,
        events=ready.events,
        work=facts.get("work") or {},
        drift=float("nan") if drift is None else drift,
        solver=facts.get("solver") or {},
        claims=Ledger.load(ledger) if ledger.exists() else None,
        saddles=None if saddles is None else SavedSaddles.of(saddles),
        path=Path(path),
        command=facts.get("command", ""),
        notes=_notes(changes),
    )


def write_report(outcome: Outcome, folder: RunFolder) -> Path:
    """Figures (SVG and PDF) and the page of a run."""
    from attnflow import report
    from attnflow.runs import replacing_dir

    with replacing_dir(folder.path / "figures") as figures:
        report.write_figures(outcome.figures, figures)
    folder.write_text("report.html", report.page(outcome, folder.manifest))
    return folder.path / "report.html"


def ensemble(
    study: str,
    config: Any = None,
    *,
    seeds: Any = None,
    scan: str | None = None,
    out: str | os.PathLike[str],
    resume: bool = False,
    workers: int | None = None,
    executor: Any = None,
    progress: Any = None,
    **keys: Any,
) -> Ensemble:
    """The same run over seeds and over one parameter, on the local cores.

    `seeds="0:16"`, `scan="init_scale=1e-6:1e-2:9:log"`. Each cell is a run of its own below
    `out`; one cell's failure is its status. Spreads over seeds and fitted slopes over the scan
    are part of the result.
    """
    from attnflow.runs import Ensemble, begin_ensemble, cells, sweep

    ready = build(study, config, **keys)
    base = configs.as_dict(ready.config)
    grid = cells(base, seeds, scan, known=base)
    for cell in grid:  # every cell's config is checked before any work starts
        configs.build(type(ready.config), cell.overrides)
    words = [command_of(ready, study)]
    words += [f"--seeds {seeds}"] if seeds is not None else []
    words += [f"--scan {shlex.quote(scan)}"] if scan is not None else []
    command = " ".join(words)
    folder = begin_ensemble(
        out, ready.name, grid, command=command, exists="resume" if resume else "refuse"
    )
    names = {_key(cell.overrides): cell.name for cell in grid}
    work = functools.partial(_cell, study, str(folder), names)
    results = sweep(grid, work, workers=workers, executor=executor, progress=progress)
    found = Ensemble.of(ready.name, results, command)
    found.save(folder)
    from attnflow import report
    from attnflow.runs import write_text_atomic

    write_text_atomic(folder / "report.html", report.ensemble_page(found))
    return found


def command_of(ready: Study, study: str) -> str:
    """The shell command that runs this config again."""
    words = configs.as_arguments(ready.config, type(ready.config)())
    return f"attnflow run {shlex.quote(study)} {words}".strip()


def use_compilation_cache() -> None:
    """Keep compiled functions between commands; a global JAX setting, so only the command line
    (and a sweep's workers, which are its own processes) calls this."""
    import jax

    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "attnflow" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _outcome(ready: Study, solution: Solution, command: str) -> Outcome:
    ready.solution = solution  # claims that ask for the study's own solve get this one
    rows = solution.trajectory.sizes["time"]
    stages = ready.stages(solution.trajectory) if rows > 1 else []
    return Outcome(
        study=ready,
        trajectory=solution.trajectory,
        status=str(solution.status),
        sentence=solution.sentence,
        stages=stages,
        events=solution.events,
        work=solution.work,
        drift=solution.drift,
        solver={**solution.solver, "rtol": solution.rtol, "atol": solution.atol},
        solution=solution,
        command=command,
    )


def _finish(
    outcome: Outcome, folder: RunFolder | None, claims: bool, report: bool, say: Said
) -> Outcome:
    """Stages, saddles, claims and report of a solved run."""
    for cycle in sorted({s.cycle for s in outcome.stages}) or [1]:
        found = [s for s in outcome.stages if s.cycle == cycle]
        words = " · ".join(f"{s.name} {s.time:.4g}" for s in found) or "no separation"
        say("stages" if cycle == 1 else f"cycle {cycle}", words)
    if outcome.saddles is None:
        outcome = replace(outcome, saddles=_saddles(outcome))
    say("plateaus", " · ".join(p.words for p in outcome.plateaus) or "none")
    if outcome.saddles is not None:
        say("saddles", outcome.saddles.words)
        if folder is not None:
            folder.write_json("saddles.json", outcome.saddles.as_json())
    if folder is not None:
        folder.write_json("stages.json", [s.as_dict() for s in outcome.stages])
        folder.update(summary=outcome.summary)
    if claims and outcome.claims is None:
        from attnflow.claims import Ledger

        ledger = Ledger.check(outcome.study.claims(), outcome.study)
        outcome = replace(outcome, claims=ledger)
        if folder is not None:
            ledger.save(folder.path / "claims.json")
    if outcome.claims is not None:
        say("claims", outcome.claims.summary)
    if folder is not None and report:
        write_report(outcome, folder)
    return outcome


def _saddles(outcome: Outcome) -> SaddleTable | None:
    """The saddle ledger of a flow that reached its end; None for other runs."""
    config, engine = outcome.config, outcome.solver.get("engine")
    done = outcome.status in ("done", "stopped") and outcome.trajectory.sizes["time"] > 1
    if getattr(config, "mode", "flow") != "flow" or engine is None or not done:
        return None
    return outcome.study.saddles(
        outcome.trajectory,
        rtol=outcome.solver.get("rtol", 1e-8),
        engine=engine,
        final=None if outcome.solution is None else outcome.solution.final,
    )


def _notes(changes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"resumed under other conditions, the last bits may differ: {c}" for c in changes)


def _worked(outcome: Outcome) -> str:
    work = outcome.work
    evaluations = work.get("rhs", 0) + work.get("jvp", 0)
    drift = f", drift {outcome.drift:.1e}" if outcome.drift == outcome.drift else ""
    return (
        f"{outcome.status}: {outcome.sentence} {evaluations:,.0f} evaluations, "
        f"{work.get('seconds', 0):.2f} s{drift}"
    )


def _write_final(folder: RunFolder, solution: Solution) -> None:
    """The last parameters, by block name: what one needs to go on from a run elsewhere."""
    import numpy as np

    from attnflow.runs import write_arrays_atomic

    layout = solution._layout
    y = layout.flatten(solution.final)
    blocks = {b.name: np.reshape(y[b.start : b.stop], b.shape) for b in layout.blocks}
    write_arrays_atomic(folder.path / "final.npz", blocks)


def _cell(study: str, folder: str, names: Mapping[str, str], overrides: Mapping) -> dict[str, Any]:
    """One cell of an ensemble, in a process of its own."""
    use_compilation_cache()
    path = Path(folder) / names[_key(overrides)]
    outcome = run(
        study, overrides, out=path, exists="resume", claims=False, report=True, progress=False
    )
    told = outcome.as_json()
    return {
        **told,
        "summary": {"loss": told["loss"], **told["summary"]},
        "sentence": outcome.sentence,
    }


def _key(overrides: Mapping[str, Any]) -> str:
    import json

    return json.dumps(overrides, sort_keys=True, default=str)
