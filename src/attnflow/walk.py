"""The walk of a run: config, study, solve, stages, saddles, claims, report. No step reaches back.

`run` is what a notebook calls and what the command line calls; `check` only measures claims;
`ensemble` repeats a run over seeds and over one parameter.
"""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import beside, studies
from attnflow._files import write_arrays_atomic, write_text_atomic
from attnflow.beside import use_compilation_cache
from attnflow.flows.options import Store
from attnflow.runs import (
    Cell,
    CellResult,
    DiskSink,
    Ensemble,
    Run,
    RunFolder,
    begin_ensemble,
    cells,
    finalise,
    label_of,
    new_manifest,
    open_run,
    plain,
    stoppable,
    sweeping,
)
from attnflow.runs import refine as refined
from attnflow.runs._folder import Exists
from attnflow.runs._show import lines
from attnflow.studies import build
from attnflow.studies import config as configs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.claims import Ledger
    from attnflow.flows.solution import Solution
    from attnflow.studies.study import Study

CHECKPOINT_STEPS = 250
"""Accepted steps between two restarts of a run on disk. The default study takes a tenth more
evaluations for them (2,779 against 2,540)."""

Said = Callable[..., None]
"""Called with the name of a finished step and a few words about it; `passing=True` says that more
words about the same step will follow."""


def run(
    study: str,
    config: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    exists: Exists = "open",
    claims: bool = True,
    report: bool = True,
    progress: Any = None,
    say: Said | None = None,
    **keys: Any,
) -> Run:
    """Run a study: `attnflow.run("focus-dilution", pi=(0.6, 0.3, 0.1), seed=1)`.

    In memory by default; with `out` the run is a folder that anyone can open. A finished run that
    is there is opened, not run again; `exists` may also be `resume` (for an interrupted one) or
    `overwrite`. `claims=False` skips the checks, `report=False` the page. A flow of up to 1,000
    parameters also gets its saddle ledger.
    """
    name, checked = studies.configured(study, config, **keys)
    wanted = _Wanted(claims, report, say or (lambda step, words, passing=False: None))
    if out is None:
        place, wanted = _Memory(_manifest(study, name, checked)), replace(wanted, report=False)
        with _beside(name, checked, wanted.task) as other:
            found = _solved(build(study, checked), place, progress, other)
            return _finished(found, place, other, wanted)
    return _on_disk(study, name, checked, out, exists, progress, wanted, wanted.task)


def _on_disk(
    study: str,
    name: str,
    checked: Any,
    out: str | os.PathLike[str],
    exists: Exists,
    progress: Any,
    wanted: _Wanted,
    task: beside.Task | None,
) -> Run:
    """A run in a folder; `task` is what is done by a process beside, if anything."""
    manifest = _manifest(study, name, checked, out)
    with stoppable(), RunFolder.create(out, manifest, exists) as folder:
        if folder.finished:
            found = open_run(folder.path)
            wanted.say("opened", f"a finished run of {found.manifest['created']}, not run again")
            measured = wanted.claims and found.claims is None
            with _beside(name, checked, "claims" if measured else None) as other:
                return _finished(found, folder, other, wanted)
        with _beside(name, checked, task) as other:
            found = _solved(build(study, checked), folder, progress, other)
            if found.finished:
                return _finished(found, folder, other, wanted)
        _tell(wanted.say, found, "work")
        if wanted.report and found.status != "interrupted":
            write_report(found, folder)
        return found


def check(
    study: str, config: Any = None, *, only: Sequence[str] = (), progress: Any = None, **keys: Any
) -> Ledger:
    """Measure every claim of a study: the ledger, with `surprises` where a verdict is not the
    expected one. `only` are texts: the claims whose label or section contains one of them."""
    name, checked = studies.configured(study, config, **keys)
    with _beside(name, checked, "claims", only) as other:
        return _measured(build(study, checked), other, progress, only)


def write_report(found: Run, folder: RunFolder, drawn: Any = None, pdf: bool = False) -> Path:
    """Figures and the page of a run; `drawn` are the study's figures, or their SVG, where they
    are made. With `pdf` the figures are also written as PDF."""
    from attnflow import draw, report

    drawn = report.figures(found, drawn)
    own = found.built.figures() if set(drawn) - {"saddles", "story"} else {}
    shows = {name: getattr(f, "shows", ()) for name, f in own.items() if name in drawn}
    parts = {
        "figures": lambda path: draw.write_figures(drawn, path, pdf, shows),
        "report.html": report.page(found, drawn),
    }
    folder.store(parts)
    return folder.path / "report.html"


def ensemble(
    study: str,
    config: Any = None,
    *,
    seeds: Any = None,
    scan: str | Sequence[str] | None = None,
    out: str | os.PathLike[str],
    exists: Exists = "open",
    workers: int | None = None,
    executor: Any = None,
    progress: Any = None,
    refine: str | None = None,
    predict: bool = False,
    claims: Sequence[str] | None = None,
    report: bool = True,
    again: Callable[[str], str] = lambda words: words,
    **keys: Any,
) -> Ensemble:
    """The same run over seeds and over any number of parameters, on the local cores.

    `seeds="0:16"`, `scan=["init_scale=1e-6:1e-2:9:log", "lam=0.2:0.9:8"]`. Each cell is a run of
    its own below `out`; one cell's failure is its status. Stage times, plateaus and every number
    of the summaries are one dataset (`Ensemble.dataset`, `cells.zarr`), with spreads over seeds
    and, for one scanned parameter, fitted slopes.

    `refine` is a label of the summary (`stages`, `instability_margin>0`): only cells along the
    boundary between two labels are run. `predict` takes the study's closed forms instead of a
    solve. `claims` are texts: the claims whose label or section contains one are measured in
    every cell ("" means all). `report=False` draws no page per cell. `executor` is any
    `concurrent.futures.Executor`, that of a cluster included; its workers must see `out`.
    """
    name, checked = studies.configured(study, config, **keys)
    base = configs.as_dict(checked)
    grid = cells(base, seeds, scan, known=base)
    label = None if refine is None else label_of(refine)
    if refine is None:  # every cell's config is checked before any work starts
        for cell in grid:
            configs.build(type(checked), cell.overrides)
    words = [command_of(study, checked)]
    words += [f"--seeds {seeds}"] if seeds is not None else []
    several = [] if scan is None else [scan] if isinstance(scan, str) else list(scan)
    words += [f"--scan {shlex.quote(each)}" for each in several]
    command = again(" ".join(words))
    out = Path(out).resolve()
    there = begin_ensemble(out, name, grid, command=command, exists=exists)
    if there is not None:
        return there
    wanted = None if claims is None else tuple(claims)
    work = functools.partial(_predicted if predict else _cell, study, str(out), wanted, report)
    kept = _Kept(name, grid, command, refine or "", out, progress)
    with (
        stoppable(),
        sweeping(
            work, workers=workers, executor=executor, most=len(grid), given=_named_cell
        ) as run_cells,
    ):

        def run_some(some: Sequence[Cell]) -> list[CellResult]:
            return run_cells(some, kept.progress)

        results = run_some(grid) if label is None else refined(grid, label, run_some)
        found = Ensemble.of(name, results, command, refine or "")
        found.save(out)
        from attnflow import report as pages

        write_text_atomic(out / "report.html", pages.ensemble_page(found))
    return found


class _Kept:
    """Tells of cells as they end, and writes what there is every few seconds: a sweep that is
    running can be looked at, and one that is killed has lost nothing that is not in its cells."""

    EVERY = 3.0

    def __init__(
        self, study: str, grid: Sequence[Cell], command: str, refined: str, out: Path, told: Any
    ):
        self._about = study, command, refined
        self._grid, self._out, self._told = grid, out, told
        self._done: dict[int, CellResult] = {}
        self._written = time.monotonic()

    def progress(self, done: int, total: int, result: CellResult) -> None:
        self._done[result.cell.index] = result
        if self._told is not None:
            self._told(done, total, result)
        if time.monotonic() - self._written > self.EVERY:
            study, command, refined = self._about
            waiting = (CellResult(cell, False, "waiting", "not run yet") for cell in self._grid)
            results = [self._done.get(each.cell.index, each) for each in waiting]
            Ensemble.of(study, results, command, refined).save(self._out, grid=False)
            self._written = time.monotonic()


def command_of(study: str, config: Any) -> str:
    """The shell command that runs this config again."""
    words = configs.as_arguments(config, type(config)())
    return f"attnflow run {shlex.quote(study)} {words}".strip()


def _manifest(study: str, name: str, config: Any, out: Any = None) -> dict[str, Any]:
    """What is known of a run before it begins."""
    file = studies.source(name)
    return new_manifest(
        name,
        configs.as_dict(config),
        seed=getattr(config, "seed", None),
        command=command_of(study, config),
        identity=studies.identity(name, config),
        source=[] if file is None else [str(file), os.path.relpath(file, out or ".")],
    )


def _solved(
    ready: Study, place: RunFolder | _Memory, progress: Any, other: beside.Beside | None
) -> Run:
    """The run of a study up to its trajectory, which is stored where it is on disk; the `other`
    process may draw it then."""
    on_disk = isinstance(place, RunFolder)
    store = Store(sink=DiskSink(place), every=CHECKPOINT_STEPS) if on_disk else Store()
    with studies.telling(ready.name):
        solution = ready.solve(progress=progress, store=store)
    if other is not None and solution.status.complete:
        other.give(solution)
    facts = {
        "status": str(solution.status),
        "sentence": solution.sentence,
        "finished": solution.status.complete,
        "work": plain(solution.work),
        "drift": plain(solution.drift),
        "solver": plain({**solution.solver, "rtol": solution.rtol, "atol": solution.atol}),
    }
    if not on_disk:
        place.store({}, **facts)
    elif solution.status.complete:
        write_arrays_atomic(place.path / "final.npz", _blocks(solution))
        finalise(place, **facts)
    else:
        place.pause(**facts)
    built = ready.knowing(solution=solution)
    known = {"trajectory": solution.trajectory, "events": solution.events, "built": built}
    return Run(place.manifest, place.path, **known)


class _Memory:
    """What a folder is to a run on disk, for one that is only in memory."""

    path = None

    def __init__(self, manifest: Mapping[str, Any]):
        self.manifest = manifest

    def store(self, parts: Mapping[str, Any], **fields: Any) -> None:
        self.manifest = {**self.manifest, **fields}


@dataclass(frozen=True)
class _Wanted:
    """What is made of a solve, and who is told."""

    claims: bool
    report: bool
    say: Said

    @property
    def task(self) -> beside.Task | None:
        """What a process beside this one does: the longest part."""
        return "claims" if self.claims else "figures" if self.report else None


def _finished(
    found: Run, place: RunFolder | _Memory, other: beside.Beside | None, wanted: _Wanted
) -> Run:
    """What follows a solve that is done: each part is made where it is not there yet, and said."""
    say, there = wanted.say, {name.split("/")[0] for name in place.manifest["files"]}
    measure = wanted.claims and found.claims is None
    folder = place if wanted.report and isinstance(place, RunFolder) else None
    if measure or not {"report.html", "figures"} <= there:
        there.discard("report.html")
    _tell(say, found, "work")
    if "stages.json" not in there:
        found = _described(found, place, say, other)
    else:
        _tell(say, found, "stages", "plateaus", "saddles")
    drawn = None
    if folder is not None and "report.html" not in there:
        drawn, lost = _drawn(found, other)  # while the first claims are measured beside
        found = found.replace(undrawn=lost)
    if measure:

        def passing(done: int, total: int, row: Any) -> None:
            say("claims", f"{done}/{total}  {row.id}", passing=True)

        ledger = _measured(found.built, other, passing)
        found = found.replace(claims=ledger)
        place.store({"claims.json": ledger.records()})
    _tell(say, found, "claims")
    found = Run(place.manifest, place.path, **found.known)
    if folder is not None and drawn is not None:
        try:
            write_report(found, folder, drawn)
        except Exception as error:  # a page must not cost the run either
            folder.note(f"the report could not be written: {studies.told(error)}")
            found = Run(place.manifest, place.path, **found.known)
    return found


def _described(
    found: Run, place: RunFolder | _Memory, say: Said, other: beside.Beside | None
) -> Run:
    """The run with its stages, saddles and summary; what cannot be computed is a note."""
    from attnflow.studies.study import stages_of

    ready, data, notes = found.built, found.trajectory, list(found.notes)

    def attempt(what: str, work: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return work()
        except Exception as error:  # what is computed from a run must not cost the run
            notes.append(f"the {what} could not be computed: {studies.told(error)}")
            return otherwise

    stages = attempt("stages", lambda: stages_of(ready, data), [])
    found = found.replace(stages=stages)
    _tell(say, found, "stages")
    saddles = attempt("saddles", lambda: _saddles(found), None)
    found = found.replace(saddles=saddles)
    if other is not None and saddles:
        other.give(saddles)
    _tell(say, found, "plateaus", "saddles")
    summary = attempt("summary", lambda: ready.summary(data, stages, saddles), {})
    parts: dict[str, Any] = {"stages.json": [s.as_dict() for s in stages]}
    parts |= {} if saddles is None else {"saddles.json": saddles.as_json()}
    place.store(parts, summary=plain(summary), notes=notes)
    return Run(place.manifest, place.path, **found.known)


def _saddles(found: Run) -> Any:
    """The saddle ledger of a flow that reached its end; None for other runs."""
    mode, engine = getattr(found.built.config, "mode", "flow"), found.solver.get("engine")
    if mode != "flow" or engine is None or found.trajectory.sizes["time"] < 2:
        return None
    solution = vars(found.built).get("solution")
    final = None if solution is None else solution.final
    rtol = found.solver["rtol"]
    return found.built.saddles(found.trajectory, rtol=rtol, engine=engine, final=final)


@contextmanager
def _beside(
    name: str, config: Any, task: beside.Task | None, only: Sequence[str] = ()
) -> Iterator[beside.Beside | None]:
    """A process that begins with a task beside this one; None where there is no task or core."""
    other = beside.begin(name, config, task, only) if task is not None else None
    try:
        yield other
    finally:
        if other is not None:
            other.end()


def _measured(
    ready: Study, other: beside.Beside | None, progress: Any, only: Sequence[str] = ()
) -> Ledger:
    from attnflow.claims import Ledger
    from attnflow.claims.ledger import selected

    claims = selected(ready.claims(), only)
    if other is not None:
        return other.ledger(ready, claims, progress)
    return Ledger.check(claims, ready, progress)


def _drawn(
    found: Run, other: beside.Beside | None
) -> tuple[Mapping[str, Figure | str], tuple[str, ...]]:
    """The study's figures, or their SVG, and a sentence for each that failed."""
    if other is None or other.task != "figures":
        return found.figures, found.undrawn
    lost: list[str] = []
    functions = found.figure_functions(lost)
    order = beside.drawing_order(functions) + (["saddles"] if found.saddles else [])

    def here(name: str) -> Figure | None:  # that of the saddles is drawn with the page
        return None if name == "saddles" else found.draw(name, lost)

    drawn = other.figures(order, here)
    return {name: drawn[name] for name in (*functions, "saddles") if name in drawn}, tuple(lost)


def _tell(say: Said, found: Run, *parts: str) -> None:
    for step, words in lines(found, parts):
        say(step, words)


def _blocks(solution: Solution) -> dict[str, np.ndarray]:
    """The last parameters, by block name: what one needs to go on from a run elsewhere."""
    layout = solution._layout
    y = layout.flatten(solution.final)
    return {b.name: np.reshape(y[b.start : b.stop], b.shape) for b in layout.blocks}


def _named_cell(cell: Cell) -> tuple[str, dict[str, Any]]:
    return cell.name, dict(cell.overrides)


def _cell(
    study: str,
    folder: str,
    claims: tuple[str, ...] | None,
    report: bool,
    given: tuple[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One cell of an ensemble, in a process of its own."""
    use_compilation_cache()
    path = Path(folder) / given[0]
    name, checked = studies.configured(study, given[1])
    wanted = _Wanted(claims=False, report=report, say=lambda step, words, passing=False: None)
    # Nothing beside it: the cells fill the cores.
    found = _on_disk(study, name, checked, path, "resume", False, wanted, None)
    told = found.as_json()
    summary = {"loss": told["loss"], **told["summary"]}
    parts: dict[str, Any] = {}
    if found.finished:
        parts["stages"] = [s.as_dict() for s in found.stages]
        parts["plateaus"] = plain([p.as_dict() for p in found.plateaus])
    if claims is not None and found.finished:
        parts["claims"] = _verdicts(found.built, claims)
    return {**told, "summary": summary, "sentence": found.sentence, **parts}


def _predicted(
    study: str,
    folder: str,
    claims: tuple[str, ...] | None,
    report: bool,
    given: tuple[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """What the closed forms of a study say of one cell; nothing is solved or written."""
    ready = build(study, given[1])
    found = ready.forecast()
    parts = {} if claims is None else {"claims": _verdicts(ready, claims)}
    told = {"status": "done", "sentence": found.sentence or "predicted, not solved"}
    return {**told, "summary": plain(found.summary), **parts}


def _verdicts(ready: Study, claims: tuple[str, ...]) -> dict[str, str]:
    """The verdicts of the claims that one of the texts names, by label."""
    from attnflow.claims.words import label

    ledger = _measured(ready, None, None, [text for text in claims if text])
    return {label(row): row.verdict.value for row in ledger}
