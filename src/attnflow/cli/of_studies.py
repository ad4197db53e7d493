"""The commands of studies and their runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnflow import studies
from attnflow._errors import InputError
from attnflow.cli.speaking import Flag, console, print_json, print_table, teller
from attnflow.studies import config as configs

Words = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="KEY=VALUE", help="override one config key; repeatable"),
]
Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
RunName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


def list_studies(json: Flag = False) -> int:
    """List the studies.

    Args:
        json: print one JSON value.
    """
    rows = [{"study": name, "title": studies.title(name)} for name in studies.names()]
    if json:
        return print_json(rows)
    options = [", ".join(f"--{key}" for key in studies.inputs(r["study"])) for r in rows]
    shown = [[r["study"], r["title"], o] for r, o in zip(rows, options, strict=True)]
    print_table(["study", "what it is", "its own options"], shown)
    print("\nnext: attnflow run STUDY, attnflow check STUDY, attnflow config STUDY > my.toml")
    return 0


def config(study: Name) -> int:
    """Print a study's config as commented TOML, with the defaults.

    Args:
        study: name of a study, or a Python file that defines one.
    """
    name, kind = studies.find(study)
    print(configs.to_toml(kind(), header=f"attnflow run {name} --config THIS_FILE"), end="")
    return 0


def run(
    study: Name,
    config: Path | None = None,
    overrides: Words = (),
    out: Path | None = None,
    resume: Flag = False,
    overwrite: Flag = False,
    seeds: str | None = None,
    scan: str | None = None,
    workers: int | None = None,
    no_claims: Flag = False,
    json: Flag = False,
) -> int:
    """Run a study: solve, find the stages, check the claims, write the report.

    A finished run is opened, not run again. Files that a study reads are options too
    (`--text FILE`); `attnflow list` names them.

    Args:
        study: name of a study, or a Python file that defines one.
        config: TOML file with config keys (`attnflow config STUDY` prints one).
        out: folder of the run (default: runs/STUDY-DIGEST).
        resume: go on with the interrupted run in that folder.
        overwrite: replace the run in that folder.
        seeds: an ensemble over seeds, `0:16` or `0,3,5`.
        scan: an ensemble over one key, `init_scale=1e-6:1e-2:9:log` or `lam=0.5,0.7,0.9`
            (`attnflow sweep` takes several).
        workers: processes of an ensemble (default: one per core).
        no_claims: do not check the claims.
        json: print one JSON object on standard output.
    """
    if resume and overwrite:
        raise InputError("resume", "given together with --overwrite; keep one of the two")
    exists = "resume" if resume else "overwrite" if overwrite else "open"
    ready = _checked(study, config, overrides)
    name, _ = studies.find(study)
    tell = sys.stderr if json else sys.stdout
    from attnflow import walk
    from attnflow.runs import default_path

    if seeds is not None or scan is not None:
        label = {**configs.as_dict(ready), "seeds": seeds, "scan": scan}
        path = out or default_path(f"{name}-ensemble", label)
        options = {"seeds": seeds, "scan": scan, "exists": exists, "workers": workers}
        return _swept(study, ready, path, tell, json, **options)
    print(f"{name}  {configs.headline(ready)}", file=tell, flush=True)
    path = out or default_path(name, configs.as_dict(ready))
    walk.use_compilation_cache()
    say = teller(tell)
    done = walk.run(study, ready, out=path, exists=exists, claims=not no_claims, say=say)
    for note in (*done.notes, *vars(done).get("undrawn", ())):
        say("note", note)
    if json:
        print_json(done.as_json())
    elif (path / "report.html").exists():
        print(f"report  {path / 'report.html'}")
    if done.status == "interrupted":
        print(f"go on with: {done.command} --resume --out {path}", file=sys.stderr)
        return 130
    return 0 if done.status in ("done", "stopped") else 1


def sweep(
    study: Name,
    over: Annotated[
        tuple[str, ...],
        tyro.conf.UseAppendAction,
        tyro.conf.arg(metavar="KEY=VALUES", help="a scanned key; repeatable"),
    ] = (),
    seeds: str | None = None,
    config: Path | None = None,
    overrides: Words = (),
    out: Path | None = None,
    resume: Flag = False,
    refine: str | None = None,
    predict: Flag = False,
    claims: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    all_claims: Flag = False,
    report: Flag = False,
    workers: int | None = None,
    cluster: str | None = None,
    json: Flag = False,
) -> int:
    """Run a study over a grid of any dimension: `--over init_scale=1e-6:1e-2:9:log --over
    lam=0.2:0.9:8 --seeds 0:4`.

    Every cell is a run of its own; stage times, plateaus, numbers and verdicts of all cells are
    one xarray dataset, `cells.zarr`. `attnflow explore` shows it as a phase diagram.

    Args:
        study: name of a study, or a Python file that defines one.
        seeds: every cell for several seeds, `0:4` or `0,3,5`.
        config: TOML file with config keys.
        out: folder of the sweep (default: runs/STUDY-sweep-DIGEST).
        resume: go on with the interrupted sweep in that folder.
        refine: run only the cells along the boundary of a label: `stages`, `status`, a word of the
            summary, or a number with a threshold (`instability_margin>0`).
        predict: take the closed forms of the study instead of a solve.
        claims: measure the claims whose label or section contains this text in every cell;
            repeatable.
        all_claims: measure every claim in every cell.
        report: draw the figures and the page of every cell.
        workers: processes (default: one per core; on a cluster: as many cells as there are).
        cluster: address of a dask.distributed scheduler (tcp://...); its workers must see the
            folder.
        json: print one JSON object on standard output.
    """
    ready = _checked(study, config, overrides)
    name, _ = studies.find(study)
    if not over and seeds is None:
        raise InputError("over", "nothing is swept; --over lam=0.2:0.9:8, or --seeds 0:4")
    asked = {"seeds": seeds, "over": list(over), "refine": refine, "predict": predict}
    asked["claims"] = ["", *claims] if all_claims else list(claims)
    from attnflow.runs import default_path

    path = out or default_path(f"{name}-sweep", {**configs.as_dict(ready), **asked})
    options: dict[str, Any] = {
        "seeds": seeds,
        "scan": list(over) or None,
        "exists": "resume" if resume else "open",
        "workers": workers,
        "refine": refine,
        "predict": predict,
        "claims": asked["claims"] or None,
        "report": report,
        "again": _as_sweep(refine, predict, claims, all_claims),
    }
    tell = sys.stderr if json else sys.stdout
    if cluster is None:
        return _swept(study, ready, path, tell, json, **options)
    from attnflow.runs import on_cluster

    with on_cluster(cluster) as executor:
        return _swept(study, ready, path, tell, json, executor=executor, **options)


def check(
    study: Name,
    config: Path | None = None,
    overrides: Words = (),
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    export: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = (),
    all: Flag = False,
    json: Flag = False,
) -> int:
    """Measure every claim of a study and print the ledger: how it came out by section, the errata,
    and what is a surprise.

    Args:
        study: name of a study, or a Python file that defines one.
        config: TOML file with config keys.
        only: the claims whose label or section contains this text ("Thm 3.2"); repeatable.
        export: also write the ledger to a file: .json, .md, .tex or .bib by its ending; repeatable.
        all: print every row.
        json: print the ledger as a JSON array.
    """
    ready = _checked(study, config, overrides)
    writers = {".json": "to_json", ".md": "to_markdown", ".tex": "to_latex", ".bib": "to_bibtex"}
    for file in export:
        if file.suffix not in writers:
            raise InputError("export", f"{file}; the ending is one of {', '.join(writers)}")
        if not file.resolve().parent.is_dir():
            raise InputError("export", f"{file}; the folder does not exist")
    from attnflow import walk
    from attnflow._files import write_text_atomic

    walk.use_compilation_cache()
    say = teller(sys.stderr)
    ledger = walk.check(
        study,
        ready,
        only=only,
        progress=lambda done, total, row: say("claims", f"{done}/{total}  {row.id}", passing=True),
    )
    say("claims", ledger.headline)
    for file in export:
        write_text_atomic(file, getattr(ledger, writers[file.suffix])())
    if json:
        print(ledger.to_json())
    else:
        console().print(ledger.terminal(every=all))
    for row in ledger.surprises:
        print(
            f"surprise: {row.id}: {row.verdict}, expected {row.expected}: {row.note}",
            file=sys.stderr,
        )
    return 1 if ledger.surprises else 0


def report(run: RunName, study: Path | None = None, pdf: Flag = False) -> int:
    """Draw the figures and the page of a run again.

    Args:
        run: folder of a run, or its name in runs/.
        study: the Python file of a study of your own, where it has moved.
        pdf: write every figure as PDF too.
    """
    from attnflow import walk
    from attnflow.runs import RunFolder, find_run, open_run

    path = find_run(run)
    with RunFolder.open(path) as folder:
        found = open_run(path)
        if study is not None:
            built = studies.build(str(study), found.config).knowing(events=found.events)
            found = found.replace(built=built)
        for note in found.notes:
            print(f"  note       {note}")
        print(f"report  {walk.write_report(found, folder, pdf=pdf)}")
    return 0


def runs(folder: tyro.conf.Positional[Path] = Path("runs"), json: Flag = False) -> int:
    """List the runs in a folder.

    Args:
        folder: where the runs are.
        json: print one JSON array.
    """
    from attnflow.runs import list_runs

    rows = list_runs(folder)
    if json:
        return print_json([vars(row) for row in rows])
    if not rows:
        print(f"no runs in {folder}/; attnflow run STUDY makes one")
        return 0
    print_table(
        ["run", "study", "seed", "status", "updated", ""],
        [[r.name, r.study, r.seed, r.status, r.updated, r.sentence] for r in rows],
    )
    return 0


def show(run: RunName, json: Flag = False) -> int:
    """Print one run: config, status, stages, claims, work.

    Args:
        run: folder of a run or an ensemble, or its name in runs/ (its beginning is enough).
        json: print everything about it as one JSON object.
    """
    from attnflow.runs import find_run, open_ensemble, open_run

    path = find_run(run)
    if (path / "ensemble.json").exists():
        return _show_ensemble(open_ensemble(path), path, json)
    found = open_run(path)
    if not json:
        print(found)
        return 0
    claims = None if found.claims is None else found.claims.records()
    stages = [s.as_dict() for s in found.stages]
    more = {"status": found.status, "sentence": found.sentence, "stages": stages, "claims": claims}
    marks = [{**vars(event), "step": found.step_of(event.time)} for event in found.events]
    return print_json({**found.manifest, **found.as_json(), **more, "marks": marks})


def _checked(study: str, config: Path | None, words: Sequence[str]) -> Any:
    """The config, checked before JAX is even imported."""
    _, kind = studies.find(study)
    values: dict[str, Any] = configs.load_toml(config) if config is not None else {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError("set", f"{word!r}; written as --set key=value")
        values[key.strip()] = value
    with studies.telling(study):
        return configs.build(kind, values)


def _swept(study: str, ready: Any, path: Path, tell: Any, json: bool, **options: Any) -> int:
    """An ensemble, told cell by cell and shown; the exit status says whether every cell is good."""
    from attnflow import walk
    from attnflow.runs._ensemble import SPARED

    found = walk.ensemble(study, ready, out=path, progress=_cell_teller(tell), **options)
    _show_ensemble(found, path, json)
    cells = [r for r in found.results if r.status != SPARED]
    return 0 if all(r.ok and r.status in ("done", "stopped") for r in cells) else 1


def _as_sweep(
    refine: str | None, predict: bool, claims: Sequence[str], all_claims: bool
) -> Callable[[str], str]:
    """Turns the words of `attnflow run` into those of the sweep."""
    more = [] if refine is None else [f"--refine {shlex.quote(refine)}"]
    more += ["--predict"] if predict else []
    more += [f"--claims {shlex.quote(text)}" for text in claims]
    more += ["--all-claims"] if all_claims else []

    def words(command: str) -> str:
        swept = command.replace("attnflow run", "attnflow sweep", 1).replace(" --scan ", " --over ")
        return " ".join([swept, *more])

    return words


def _show_ensemble(found: Any, path: Path, json: bool, most: int = 18) -> int:
    if json:
        return print_json({**found.json(path), "run": str(path)})
    from attnflow.report._scalars import finding, main_scalars, main_slopes, scalars

    print(f"ensemble of {found.study}: {found.status}; {found.sentence}")
    numbers = scalars(found)
    slopes = main_slopes(found)
    if slopes:
        print_table(
            ["number", "fit", "slope", "error", "predicted", "R2", "n"],
            [
                [s.name, s.best, fit.slope, fit.error, told and told.slope, fit.r2, fit.n]
                for s, fit, told in slopes
            ],
        )
        print(f"\n{finding(found)}.")
    else:
        main = [each.name for each in main_scalars(found, numbers)] or [n.name for n in numbers]
        at = ["at"] if found.keys else []
        shown = [s for s in found.spread if s.name in main][:most]
        print_table(
            ["number", *at, "mean", "sd", "min", "max", "n"],
            [[s.name, *([s.value] if at else []), s.mean, s.sd, s.min, s.max, s.n] for s in shown],
        )
    print(f"report  {path / 'report.html'}  ({len(numbers)} numbers in all)")
    return 0


def _cell_teller(file: Any) -> Callable[[int, int, Any], None]:
    def progress(done: int, total: int, result: Any) -> None:
        words = f"{result.cell.name}  {result.status}  {result.seconds:.1f} s"
        print(f"  {done}/{total}  {words}", file=file, flush=True)

    return progress
