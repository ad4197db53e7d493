"""The commands of checkpoint series: audit, compare, train-series."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from attnflow._errors import InputError
from attnflow.cli.speaking import Flag, print_json, print_table, teller

if TYPE_CHECKING:
    from attnflow.checkpoints import Audit, Comparison, Series

Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def audit(
    folder: Folder, mapping: Path | None = None, out: Path | None = None, json: Flag = False
) -> int:
    """Look at every checkpoint of a series before it is analysed: ok, flag or refuse, and why.

    Args:
        folder: folder of the series, or a local hub cache.
        mapping: file (TOML or JSON) that names the tensors of an attention-only model.
        out: folder of the audit's page and of its passes (default: runs/audit-DIGEST).
        json: print one JSON object on standard output.
    """
    from attnflow import checkpoints, report
    from attnflow._files import write_json_atomic, write_text_atomic

    say = teller(sys.stderr if json else sys.stdout)
    series = checkpoints.open(folder, mapping)
    place = out or _default(folder, "audit")
    found = _audited(series, place, say)
    page = place / "report.html"
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_json_atomic(place / "audit.json", found.as_json())
        write_text_atomic(page, report.audit_page(found, Path(folder).resolve().name))
    except (OSError, InputError) as error:
        if out is not None:
            raise InputError("out", f"'{out}' cannot be written ({error})") from None
        say("note", "no page was written: this folder cannot be written to")
    if json:
        print_json(found.as_json())
    else:
        _show_audit(found)
        print(f"report  {page}")
        print(f"next: attnflow checkpoints compare {folder} --corpus STORE")
    return 0 if found.ok else 1


def compare(
    folder: Folder,
    corpus: Path | None = None,
    mapping: Path | None = None,
    rows: Several = (),
    form: Several = (),
    theory: Several = (),
    seen: Flag = False,
    shuffled_seed: int = 0,
    permuted_seed: int = 0,
    adam_rate: float = 1e-3,
    adam_eps: float = 1e-8,
    out: Path | None = None,
    overwrite: Flag = False,
    json: Flag = False,
) -> int:
    """Compare a series, step by step, with what its corpus predicts: cosines beside their nulls.

    What was interrupted goes on when the command is given again. Without a corpus the one that
    `attnflow train-series` leaves in the folder is taken; where there is none, only what the
    weights alone say is measured.

    Args:
        folder: folder of the series, or a local hub cache.
        corpus: store of the corpus (`attnflow corpus stats FILE --out STORE`).
        mapping: file (TOML or JSON) that names the tensors of an attention-only model.
        rows: stream rows, single_token (default) or embedding; repeatable.
        form: qk, qk-key, ov, mid or post (default: all); repeatable.
        theory: Q, Q-whitened, Q-adam, K, K-whitened, K-adam, bigram (default: all); repeatable.
        seen: only tokens that occur in the corpus are rows.
        shuffled_seed: seed of the shuffled corpus.
        permuted_seed: seed of the permuted theory.
        adam_rate: learning rate of the Adam theory.
        adam_eps: eps of the Adam theory.
        out: folder of the run (default: runs/checkpoints-DIGEST).
        overwrite: replace the run in that folder.
        json: print one JSON array on standard output.
    """
    from attnflow import checkpoints
    from attnflow.checkpoints.measure import FORMS
    from attnflow.checkpoints.theory import THEORIES

    say = teller(sys.stderr if json else sys.stdout)
    series = checkpoints.open(folder, mapping)
    asked = checkpoints.Asked(
        tuple(rows) or ("single_token",),
        tuple(form) or FORMS,
        tuple(theory) or THEORIES,
        seen,
        checkpoints.Seeds(
            _seed("shuffled-seed", shuffled_seed), _seed("permuted-seed", permuted_seed)
        ),
        checkpoints.Adam(rate=adam_rate, eps=adam_eps),
    )
    own = Path(folder) / "corpus.zarr"
    store = corpus or (own if own.exists() else None)
    opened = None if store is None else checkpoints.open_corpus(store)
    audited = _audited(series, _default(folder, "audit"), say)
    config = {
        "series": str(folder),
        "corpus": "" if store is None else str(store),
        "mapping": "" if mapping is None else str(mapping),
        "rows": asked.rows,
        "forms": asked.forms,
        "theories": asked.theories,
        "seen": seen,
        "shuffled_seed": shuffled_seed,
        "permuted_seed": permuted_seed,
        "adam_rate": adam_rate,
        "adam_eps": adam_eps,
        "data": _digest(audited, opened),
        "until": float(max((s for s in series.steps if isinstance(s, int)), default=0)),
    }
    found, path = _compared(series, opened, asked, audited, config, out, overwrite, say)
    if json:
        print_json(list(found.records()))
    else:
        _show_comparison(found)
        for note in found.notes:
            say("note", note)
        print(f"report  {path / 'report.html'}")
    return 0 if found.ok else 1


def train_series(
    text: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="TEXT")] = None,
    out: Path = Path("series"),
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    context: int = 64,
    vocabulary: int = 800,
    positions: Literal["none", "learned"] = "none",
    tied: Flag = False,
    init: float = 0.03,
    embedding: float = 0.015,
    optimiser: Literal["adamw", "sgd"] = "adamw",
    rate: float = 1e-3,
    decay: float = 0.01,
    batch: int = 32,
    steps: int = 512,
    every: int = 128,
    seed: int = 0,
    json: Flag = False,
) -> int:
    """Train a small GPT on a text and save its early steps as a series of checkpoints.

    Steps 0, 1, 2, 4, ... up to `every`, then every so many, in the GPT-2 layout of Hugging Face.
    What was interrupted goes on when the command is given again.

    Args:
        text: a .txt or .txt.gz file; without one the built-in stories.
        out: folder of the series.
        layers: number of layers.
        width: width of the stream.
        heads: heads of a layer.
        context: tokens of a window.
        vocabulary: tokens of the byte-pair vocabulary, trained on the text.
        positions: none (a table of zeros) or learned.
        tied: the output is the embedding.
        init: standard deviation of the first weights.
        embedding: standard deviation of the first embedding.
        optimiser: adamw or sgd.
        rate: learning rate.
        decay: weight decay of matrices (adamw).
        batch: windows of a step.
        steps: the last step.
        every: distance of the saved steps, once it is no longer doubling.
        seed: of the weights and of the batches.
        json: print one JSON object on standard output.
    """
    from attnflow import checkpoints

    recipe = checkpoints.Recipe(
        layers=layers,
        width=width,
        heads=heads,
        context=context,
        vocabulary=vocabulary,
        positions=positions,
        tied=tied,
        init=init,
        embedding=embedding,
        optimiser=optimiser,
        rate=rate,
        decay=decay,
        batch=batch,
        steps=steps,
        every=every,
        seed=seed,
    )
    say = teller(sys.stderr if json else sys.stdout)
    series = checkpoints.train_series(
        text,
        out,
        recipe,
        lambda step, last, loss: say("train", f"{step}/{last}  loss {loss:.4f}", passing=True),
    )
    say("train", f"{len(series)} checkpoints, steps {series.steps[0]} to {series.steps[-1]}")
    if json:
        return print_json({"series": str(out), "steps": series.steps})
    print(f"next: attnflow checkpoints compare {out}")
    return 0


def _audited(series: Series, out: Path, say: Callable[..., None]) -> Audit:
    from collections import Counter

    from attnflow import checkpoints

    found = checkpoints.audit(
        series,
        lambda done, total, step: say("audit", f"{done}/{total}  step {step}", passing=True),
        out / "passes",
    )
    counts = Counter(step.verdict for step in found.steps)
    words = [f"{counts[v]} {v}" for v in ("ok", "flag", "refuse") if counts[v]]
    say("audit", ", ".join([*words, *(fault["sentence"] for fault in found.series)]))
    return found


def _compared(
    series: Series,
    corpus: Any,
    asked: Any,
    audited: Audit,
    config: dict[str, Any],
    out: Path | None,
    overwrite: bool,
    say: Callable[..., None],
) -> tuple[Comparison, Path]:
    """The comparison as a run on disk: rows stream into it, and the page is drawn at the end."""
    from attnflow import checkpoints, walk
    from attnflow.checkpoints.compare import Comparison
    from attnflow.runs import DiskSink, RunFolder, default_path, finalise, new_manifest, open_run
    from attnflow.runs._manifest import read_manifest
    from attnflow.studies import config as configs
    from attnflow.studies import configured, identity

    _, checked = configured("checkpoints", config)
    config = configs.as_dict(checked)
    path = out or default_path("checkpoints", config)
    command = "attnflow " + " ".join(sys.argv[1:])
    manifest = new_manifest(
        "checkpoints", config, command=command, identity=identity("checkpoints", checked)
    )
    there = read_manifest(path) if path.exists() else None
    going = "resume" if there is not None and not there["finished"] else "open"
    with RunFolder.create(path, manifest, "overwrite" if overwrite else going) as folder:
        if folder.finished:
            run = open_run(path)
            say("opened", f"a finished comparison of {run.manifest['created']}")
            notes = [n for n in run.notes if n.startswith("step ")]
            return Comparison(run.trajectory, audited, notes), path
        began = time.monotonic()
        found = checkpoints.compare(
            series,
            corpus,
            asked,
            audited=audited,
            sink=DiskSink(folder),
            progress=lambda k, n, step: say("compare", f"{k}/{n}  step {step}", passing=True),
        )
        seconds = time.monotonic() - began
        count = found.trajectory.sizes["time"]
        words = f"{count} of {len(series)} checkpoints were measured."
        say("compare", words)
        work = {"steps": count, "seconds": seconds}
        finalise(folder, status="done", sentence=words, work=work, solver={}, notes=found.notes)
        run = open_run(path)
        stages = run.built.stages(run.trajectory)
        summary = run.built.summary(run.trajectory, stages)
        folder.store({"stages.json": [s.as_dict() for s in stages]}, summary=summary)
        folder.store({"audit.json": audited.as_json()})
        walk.write_report(open_run(path), folder)
    return found, path


def _seed(name: str, value: int) -> int:
    if value < 0:
        raise InputError(name, f"{value}; a whole number of at least 0")
    return value


def _default(folder: Path, kind: str) -> Path:
    digest = hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()
    return Path("runs") / f"{kind}-{digest[:8]}"


def _digest(audited: Audit, corpus: Any) -> str:
    """Of the bytes that a comparison rests on."""
    found = hashlib.sha256()
    for step in audited.steps:
        found.update(repr((step.step, sorted(step.files.items()))).encode())
    if corpus is not None:
        found.update(corpus.windows.tobytes())
    return found.hexdigest()


def _show_audit(found: Audit) -> None:
    rows = [[s.step, s.verdict, s.why] for s in found.steps]
    print_table(["step", "verdict", "why"], rows)
    for fault in found.series:
        print(f"series  {fault['kind']}: {fault['sentence']}")


def _show_comparison(found: Comparison) -> None:
    from attnflow.checkpoints import curves

    means = [c for c in curves(found.trajectory) if c["head"] == "mean"]
    if not means:
        print("no corpus was compared; the page shows what the weights alone say")
        return
    head = ["form", "theory", "layer", "best step", "cos", "highest null", "cka", "verdict"]
    keys = ("form", "theory", "layer", "step", "cos", "null", "cka", "verdict")
    print_table(head, [[_short(c[k]) for k in keys] for c in means])


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value
