"""The command line: it speaks to a person; with `--json` it speaks to a program.

Nothing heavy is imported before a command needs it: `attnflow --help` loads neither JAX nor SciPy.
Exit status 0: done. 1: a claim came out as a surprise, or a run did not reach its end. 2: bad
usage or input, said in one sentence on standard error. 130: interrupted.
"""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnflow import __version__, studies
from attnflow._errors import InputError, nearest

Words = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="KEY=VALUE", help="override one config key; repeatable"),
]
Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
Flag = tyro.conf.FlagCreatePairsOff[bool]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Before NumPy loads: on matrices of this size a threaded BLAS waits for its threads, and on a
    # busy machine fifty times longer than it computes. Whoever sets the variable is heeded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments in (["--version"], ["-V"]):
        print(f"attnflow {__version__}")
        return 0
    commands = {
        "list": list_studies,
        "config": config,
        "run": run,
        "check": check,
        "report": report,
        "runs": runs,
        "show": show,
    }
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        return _refuse(
            InputError("command", f"{arguments[0]!r}; {nearest(arguments[0], commands)}")
        )
    try:
        return tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="attnflow",
            description="A laboratory for how attention is learned: gradient flows of small "
            "transformers, and every theorem an executable check.",
            args=arguments or ["--help"],
        )
    except InputError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def list_studies(json: Flag = False) -> int:
    """List the studies.

    Args:
        json: print one JSON value.
    """
    rows = [{"study": name, "title": studies.title(name)} for name in studies.names()]
    if json:
        return _print_json(rows)
    _table(["study", "what it is"], [[r["study"], r["title"]] for r in rows])
    print("\nnext: attnflow run STUDY, attnflow check STUDY, attnflow config STUDY > my.toml")
    return 0


def config(study: Name) -> int:
    """Print a study's config as commented TOML, with the defaults.

    Args:
        study: name of a study, or a Python file that defines one.
    """
    from attnflow.studies import config as configs

    name, kind = studies.find(study)
    print(configs.to_toml(kind(), header=f"attnflow run {name} --config THIS_FILE"), end="")
    return 0


def run(
    study: Name,
    config: Path | None = None,
    overrides: Words = (),
    text: Path | None = None,
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

    Args:
        study: name of a study, or a Python file that defines one.
        config: TOML file with config keys (`attnflow config STUDY` prints one).
        text: train on this .txt or .txt.gz file (focus-dilution only).
        out: folder of the run (default: runs/STUDY-DIGEST).
        resume: go on with the interrupted run in that folder.
        overwrite: replace the run in that folder.
        seeds: an ensemble over seeds, `0:16` or `0,3,5`.
        scan: an ensemble over one key, `init_scale=1e-6:1e-2:9:log` or `lam=0.5,0.7,0.9`.
        workers: processes of an ensemble (default: one per core).
        no_claims: do not check the claims.
        json: print one JSON object on standard output.
    """
    from attnflow import walk
    from attnflow.runs import default_path
    from attnflow.studies import config as configs

    if resume and overwrite:
        raise InputError("resume", "given together with --overwrite; keep one of the two")
    study, keys = _on_text(study, text, _keys(overrides))
    ready = _checked(study, config, keys)
    if seeds is not None or scan is not None:
        return _ensemble(study, config, keys, out, resume, seeds, scan, workers, json)
    settings = configs.as_dict(ready)
    name, _ = studies.find(study)
    path = out or default_path(name, settings)
    exists = "resume" if resume else "overwrite" if overwrite or out is None else "refuse"
    if out is None and not resume and not overwrite:
        _refuse_unfinished(path)
    say = _say(json)
    print(f"{name}  {_headline(ready)}", file=sys.stderr if json else sys.stdout, flush=True)
    walk.use_compilation_cache()
    outcome = walk.run(study, ready, out=path, exists=exists, claims=not no_claims, say=say)
    for note in outcome.notes:
        say("note", note)
    if json:
        _print_json(outcome.as_json())
    elif (path / "report.html").exists():
        print(f"report  {path / 'report.html'}")
    if outcome.status == "interrupted":
        print(f"go on with: {outcome.command} --resume --out {path}", file=sys.stderr)
        return 130
    return 0 if outcome.status in ("done", "stopped") else 1


def check(
    study: Name,
    config: Path | None = None,
    overrides: Words = (),
    text: Path | None = None,
    export: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = (),
    json: Flag = False,
) -> int:
    """Measure every claim of a study and print the ledger.

    Args:
        study: name of a study, or a Python file that defines one.
        config: TOML file with config keys.
        text: measure the claims about training on this text (focus-dilution only).
        export: also write the ledger to a file: .json, .md, .tex or .bib by its ending; repeatable.
        json: print the ledger as a JSON array.
    """
    from attnflow import walk
    from attnflow.runs import write_text_atomic

    study, keys = _on_text(study, text, _keys(overrides))
    ready = _checked(study, config, keys)
    writers = {".json": "to_json", ".md": "to_markdown", ".tex": "to_latex", ".bib": "to_bibtex"}
    for file in export:
        if file.suffix not in writers:
            raise InputError("export", f"{file}; the ending is one of {', '.join(writers)}")
        if not file.resolve().parent.is_dir():
            raise InputError("export", f"{file}; the folder does not exist")
    walk.use_compilation_cache()
    tell = sys.stderr.isatty()

    def progress(done: int, total: int, row: Any) -> None:
        if tell:
            print(f"\r  {done}/{total}  {row.id:<40.40}", end="", file=sys.stderr, flush=True)

    ledger = walk.check(study, ready, progress=progress)
    if tell:
        print(f"\r{'':60}\r", end="", file=sys.stderr)
    for file in export:
        write_text_atomic(file, getattr(ledger, writers[file.suffix])())
    if json:
        print(ledger.to_json())
    else:
        _console().print(ledger.rich_table())
    for row in ledger.surprises:
        print(
            f"surprise: {row.id}: {row.verdict}, expected {row.expected}: {row.note}",
            file=sys.stderr,
        )
    return 1 if ledger.surprises else 0


def report(run: Folder) -> int:
    """Draw the figures and the page of a run again.

    Args:
        run: folder of a run.
    """
    from attnflow import walk
    from attnflow.runs import RunFolder

    with RunFolder.open(run) as folder:
        print(f"report  {walk.write_report(walk.reopen(run), folder)}")
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
        return _print_json([vars(row) for row in rows])
    if not rows:
        print(f"no runs in {folder}/; attnflow run STUDY makes one")
        return 0
    _table(
        ["run", "study", "seed", "status", "updated", ""],
        [[r.name, r.study, r.seed, r.status, r.updated, r.sentence] for r in rows],
    )
    return 0


def show(run: Folder, json: Flag = False) -> int:
    """Print one run: config, status, stages, claims, work.

    Args:
        run: folder of a run.
        json: print its manifest, stages and marks as one JSON object.
    """
    from attnflow.claims import Ledger
    from attnflow.runs import open_ensemble, open_run

    if (run / "ensemble.json").exists():
        found = open_ensemble(run)
        if json:
            return _print_json(found.json())
        print(f"ensemble of {found.study}: {found.status}; {found.sentence}")
        _table(
            ["number", "mean", "sd", "min", "max", "n"],
            [[s.name, s.mean, s.sd, s.min, s.max, s.n] for s in found.spread],
        )
        return 0
    stored = open_run(run)
    if json:
        return _print_json(
            {
                **stored.manifest,
                "run": str(run),
                "stages": stored.stages,
                "marks": [vars(m) for m in stored.marks],
            }
        )
    print(stored)
    for stage in stored.stages or []:
        print(f"  {stage['name']:<16} {stage['time']:.6g}   {stage['evidence']}")
    if (run / "claims.json").exists():
        _console().print(Ledger.load(run / "claims.json").rich_table())
    return 0


def _ensemble(
    study: str,
    config: Path | None,
    keys: dict,
    out: Path | None,
    resume: bool,
    seeds: str | None,
    scan: str | None,
    workers: int | None,
    json: bool,
) -> int:
    from attnflow import walk
    from attnflow.runs import default_path

    name, _ = studies.find(study)
    label = {"study": name, **keys, "config": str(config), "seeds": seeds, "scan": scan}
    path = out or default_path(f"{name}-ensemble", label)
    tell = sys.stderr if json else sys.stdout

    def progress(done: int, total: int, result: Any) -> None:
        words = f"{result.cell.name}  {result.status}  {result.seconds:.1f} s"
        print(f"  {done}/{total}  {words}", file=tell, flush=True)

    values = walk.configs.load_toml(config) if config else {}
    found = walk.ensemble(
        study,
        {**values, **keys},
        seeds=seeds,
        scan=scan,
        out=path,
        resume=resume,
        workers=workers,
        progress=progress,
    )
    if json:
        _print_json({**found.json(path), "run": str(path)})
    else:
        _table(
            ["number", *(["at"] if found.parameter else []), "mean", "sd", "min", "max", "n"],
            [
                [s.name, *([s.value] if found.parameter else []), s.mean, s.sd, s.min, s.max, s.n]
                for s in found.spread
            ],
        )
        print(f"{found.sentence}\nreport  {path / 'report.html'}")
    return 0 if all(r.ok and r.status in ("done", "stopped") for r in found.results) else 1


def _checked(study: str, config: Path | None, keys: dict[str, str]) -> Any:
    """The config, checked before JAX is even imported."""
    from attnflow.studies import config as configs

    _, kind = studies.find(study)
    values = configs.load_toml(config) if config is not None else {}
    return configs.build(kind, {**values, **keys})


def _keys(words: Sequence[str]) -> dict[str, str]:
    keys = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError("set", f"{word!r}; written as --set key=value")
        keys[key.strip()] = value
    return keys


def _on_text(study: str, text: Path | None, keys: dict[str, str]) -> tuple[str, dict[str, str]]:
    """`focus-dilution --text FILE` is `focus-dilution-text --set text=FILE`."""
    if text is None:
        return study, keys
    if study not in ("focus-dilution", "focus-dilution-text"):
        raise InputError("text", f"{text} with {study}; only focus-dilution trains on a text")
    if "text" in keys:
        raise InputError("text", f"{text}, and --set text={keys['text']}; keep one of the two")
    return "focus-dilution-text", {**keys, "text": str(text)}


def _refuse_unfinished(path: Path) -> None:
    """A run that was interrupted is worth more than the space it takes: ask."""
    from attnflow.runs import open_run

    try:
        stored = open_run(path)
    except InputError:
        return
    if not stored.finished:
        raise InputError(
            "out",
            f"{path} holds an unfinished run of this config ({stored.status}); "
            "add --resume to go on with it or --overwrite to begin again",
        )


def _headline(config: Any) -> str:
    from attnflow.studies import config as configs

    values = configs.as_dict(config)
    shown = ["text", "pi", "lam", "vocabulary", "groups", "length", "bias", "omega", "dim"]
    shown += ["init_scale", "until", "steps", "mode", "seed"]
    first = [k for k in shown if k in values and (k, values[k]) != ("until", 0.0)]
    return "  ".join(f"{k}={_short(values[k])}" for k in first)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "(" + " ".join(_short(v) for v in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _say(json: bool) -> Any:
    file = sys.stderr if json else sys.stdout
    return lambda step, words: print(f"  {step:<10} {words}", file=file, flush=True)


def _print_json(value: Any) -> int:
    from attnflow.runs import plain

    print(jsonlib.dumps(plain(value), indent=2, allow_nan=False))
    return 0


def _console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=160)


def _table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row))
    _console().print(table)


def _refuse(error: InputError) -> int:
    print(str(error), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
