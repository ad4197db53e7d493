"""The commands of corpora."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnflow._errors import InputError, shown, whole
from attnflow.cli.speaking import Flag, print_json, print_table, teller

File = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
STORE, REPORT = "statistics.zarr", "report.html"
LAYERS = (1, 2, 3)


def stats(
    file: File,
    vocab: int | None = None,
    tokenizer: str = "bpe",
    context: int = 64,
    out: Path | None = None,
    tokens: str = "",
    raw: Flag = False,
    across: Flag = False,
    column: str = "text",
    padding: int | None = None,
    rank: int | None = None,
    workers: int = 1,
    cluster: str | None = None,
    resume: Flag = False,
    overwrite: Flag = False,
    json: Flag = False,
) -> int:
    """Count a text exactly: bigrams, contexts, and the attention that training will learn first.

    Writes a folder with `statistics.zarr` (open it with xarray) and `report.html`. A finished
    folder is opened, not counted again.

    Args:
        file: a text (.txt, .txt.gz, one document), .jsonl, .parquet, token ids (.npy), or a folder
            of token shards.
        vocab: tokens of a trained tokenizer (default: up to 1000; char: all).
        tokenizer: word, bpe, spaced-bpe, char, or a tokenizer.json file.
        context: positions T of a window; windows have T + 1 tokens and do not overlap.
        out: folder to write (default: runs/corpus-stats-DIGEST).
        tokens: tokens to list the associations of, comma separated (default: some frequent ones).
        raw: print raw associations instead of whitened ones.
        across: let windows cross from one document to the next.
        column: field of JSON lines, column of Parquet, that holds the text.
        padding: token id of a .npy file that is padding and never counted.
        rank: for a vocabulary whose V x V matrices do not fit: keep so many components of each
            statistic (24 are usual); no matrix is made, and no page.
        workers: processes that count.
        cluster: address of a dask scheduler that counts instead (tcp://HOST:PORT).
        resume: go on with the interrupted count in that folder.
        overwrite: replace what was counted in that folder.
        json: print one JSON object on standard output.
    """
    if resume and overwrite:
        raise InputError("resume", "given together with --overwrite; keep one of the two")
    whole("context", context)
    whole("workers", workers)
    if vocab is not None:
        whole("vocab", vocab, 2)
    config = {"file": file, "vocab": vocab, "tokenizer": tokenizer, "context": context}
    config |= {"across": across, "column": column, "padding": padding}
    if rank is not None:
        config["rank"] = whole("rank", rank)
        if cluster is not None or workers > 1:
            raise InputError("rank", f"{rank}; components are counted here, by one process")
        if tokens or raw:
            raise InputError("rank", f"{rank}; components come without lists of associations")
    say = teller(sys.stderr if json else sys.stdout)
    from attnflow.corpus.parallel import connected

    if cluster is not None:
        with connected(cluster):
            pass
    say("reading", shown(file), passing=True)
    text = _read(
        file,
        vocab,
        tokenizer,
        context,
        across=across,
        column=column,
        padding=padding,
        fitting=_fit_dense if rank is None else lambda size: _fit_factored(size, rank),
    )
    chosen = [text.find(word) for word in tokens.split(",") if word.strip()]
    say("reading", text.words)
    for note in text.notes:
        print(f"warning: {note}", file=sys.stderr)
    exists = "resume" if resume else "overwrite" if overwrite else "open"
    if rank is not None:
        path, summary = _factored(text, config, out, exists, rank, say)
    else:
        path, summary = _counted(
            text, config, out, exists, chosen, workers=workers, cluster=cluster, say=say
        )
    files = {"store": str(path / STORE)}
    if rank is None:
        files["report"] = str(path / REPORT)
    if json:
        return print_json({**summary, "out": str(path), **files, "notes": text.notes})
    _show(summary, raw)
    print("\n" + "\n".join(f"{name:<7} {where}" for name, where in files.items()))
    return 0


COMMANDS: dict[str, Callable[..., int]] = {"stats": stats}


@dataclass(frozen=True, eq=False)
class Counted:
    """A text as it is counted: windows, vocabulary, and what identifies it."""

    windows: Any
    vocabulary: tuple[str, ...]
    find: Callable[[str], int]
    facts: dict[str, Any]
    identity: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        f = self.facts
        return (
            f"{f['name']}: {f['tokens']:,} tokens, vocabulary {len(self.vocabulary):,}, "
            f"{len(self.windows):,} windows"
        )


def _read(
    file: str,
    vocab: int | None,
    tokenizer: str,
    context: int,
    *,
    across: bool,
    column: str,
    padding: int | None,
    fitting: Callable[[int], None],
) -> Counted:
    from attnflow._files import sha256
    from attnflow.corpus import Corpus
    from attnflow.corpus.shards import Shards

    if Path(file).is_dir():
        shards = Shards(Path(file))
        corpus = Corpus(
            shards.read(0, shards.tokens),
            shards.vocabulary,
            shards.name,
            shards.index["tokenizer"],
            shards.sha256,
            shards.index["unknown"],
            shards.starts,
        )
    else:
        fitting(vocab or 0)
        corpus = Corpus.read(file, tokenizer, vocab, column=column, padding=padding)
    size = len(corpus.vocabulary)
    if vocab is not None and vocab != size:
        raise InputError("vocab", f"{vocab}; {corpus.tokenizer} brings its own {size} tokens")
    fitting(size)
    identity = {"text": corpus.sha256}
    if Path(tokenizer).is_file():
        identity["tokenizer"] = sha256(Path(tokenizer))
    facts = {
        "name": corpus.name,
        "tokens": len(corpus),
        "documents": len(corpus.starts),
        "tokenizer": corpus.tokenizer,
        "unknown": corpus.unknown,
    }
    windows = corpus.windows(context, across=across)
    return Counted(
        windows,
        corpus.vocabulary,
        lambda word: corpus.find(word.strip(), "tokens"),
        facts,
        identity,
        corpus.notes,
    )


def _fit_dense(size: int) -> None:
    from attnflow.studies.config import fits

    # Five matrices, those of the null corpora, and what is being computed.
    other = "a smaller one, or --rank 24, which keeps components and makes no matrix"
    fits("vocab", size, 8.0 * 16 * size**2, other)


def _fit_factored(size: int, rank: int) -> None:
    from attnflow.studies.config import fits

    fits("rank", rank, 8.0 * 60 * size * (rank + 10))


def _factored(
    text: Counted, config: dict[str, Any], out: Path | None, exists: Any, rank: int, say: Any
) -> tuple[Path, dict[str, Any]]:
    """The folder with the components of the statistics and its summary, counted or found."""
    from attnflow.corpus.factored import Factored
    from attnflow.runs import RunFolder, default_path
    from attnflow.runs._manifest import new_manifest

    path = out or default_path("corpus-stats", config)
    manifest = new_manifest("corpus-stats", config, identity=text.identity)
    with RunFolder.create(path, manifest, exists) as folder:
        if folder.finished:
            say("opened", "counted before; --overwrite counts again")
            return path, dict(folder.manifest["summary"])
        found = Factored(text.windows, len(text.vocabulary), rank)
        say("counting", f"{rank} components of each statistic", passing=True)
        data = found.dataset(text.vocabulary)
        data["windows"] = (("sequence", "place"), text.windows)
        say("counting", f"{found.free.positions:,} positions, {rank} components of each statistic")
        summary = {
            **text.facts,
            "vocabulary": len(text.vocabulary),
            "context": data.attrs["context"],
            "sequences": data.attrs["sequences"],
            "rank": rank,
            "missed": {n: data.attrs[f"{n}_missed"] for n in found.factors},
            "null": found.nulls(),
            "breakdown": {layers: found.breakdown(layers) for layers in LAYERS},
        }
        folder.store(
            {STORE: lambda temp: _write_zarr(data, temp)},
            summary=summary,
            status="done",
            sentence=f"{found.free.positions:,} positions counted",
            finished=True,
        )
        return path, summary


def _counted(
    text: Counted,
    config: dict[str, Any],
    out: Path | None,
    exists: Any,
    chosen: Sequence[int],
    *,
    workers: int,
    cluster: str | None,
    say: Callable[..., None],
) -> tuple[Path, dict[str, Any]]:
    """The folder of the statistics and its summary, counted now or found finished."""
    from attnflow._files import remove_parts
    from attnflow.corpus import Statistics, breakdown_time, nulls
    from attnflow.corpus.associations import associations, notable
    from attnflow.corpus.parallel import Blocks
    from attnflow.report import corpus_page
    from attnflow.runs import RunFolder, default_path
    from attnflow.runs._manifest import new_manifest

    path = out or default_path("corpus-stats", config)
    options = "".join(
        f" --{key} {value}"
        for key, value in config.items()
        if key != "file" and value not in (None, False, "text")
    )
    command = f"attnflow corpus stats {config['file']}{options}".replace(" True", "")
    manifest = new_manifest("corpus-stats", config, command=command, identity=text.identity)
    with RunFolder.create(path, manifest, exists) as folder:
        summary = dict(folder.manifest["summary"])
        if folder.finished and not chosen:
            say("opened", "counted before; --overwrite counts again")
            return path, summary

        def progress(kernel: str, done: int, of: int) -> None:
            say("counting", f"{kernel}  {_bar(done, of)}  {done}/{of} blocks", passing=True)

        def source(windows: Any) -> Blocks:
            return Blocks.of(
                windows,
                workers=workers,
                cluster=cluster,
                folder=path / "partials",
                progress=progress,
            )

        size = len(text.vocabulary)
        theory = Statistics(source(text.windows), size, text.vocabulary)
        data = theory.dataset()
        data["windows"] = (("sequence", "place"), text.windows)
        say("counting", f"{theory.positions:,} positions, {size:,} x {size:,} associations")
        found = nulls(text.windows, theory, source=source)
        say("nulls", "shuffled, renamed, ones, two halves")
        times = {layers: breakdown_time(theory, layers) for layers in LAYERS}
        chosen = list(chosen) or notable(theory, text.vocabulary)
        lists = {
            kind: {
                text.vocabulary[token]: {
                    basis: [
                        text.vocabulary[a.token]
                        for a in associations(theory, basis, token, whitened=kind == "whitened")
                    ]
                    for basis in ("bigram", "interchange", "context", "attention")
                }
                for token in chosen
            }
            for kind in ("whitened", "raw")
        }
        summary = {
            **text.facts,
            "vocabulary": size,
            "context": theory.length,
            "sequences": theory.sequences,
            "null": found,
            "breakdown": times,
            "associations": lists,
        }
        facts = {**text.facts, "notes": text.notes, "command": command, "breakdown": times}
        facts["created"] = manifest["created"]
        page = corpus_page(theory, found, chosen, facts)
        folder.store(
            {STORE: lambda temp: _write_zarr(data, temp), REPORT: page},
            summary=summary,
            status="done",
            sentence=f"{theory.positions:,} positions counted",
            finished=True,
        )
        remove_parts(path, ["partials"])
        return path, summary


def _write_zarr(data: Any, folder: Path) -> None:
    """Format 2, consolidated, as the trajectories of runs are."""
    data.to_zarr(folder, mode="w", zarr_format=2, consolidated=True, write_empty_chunks=True)


def _bar(done: int, of: int, width: int = 20) -> str:
    full = round(width * done / of)
    return "█" * full + "░" * (width - full)


def _show(summary: dict[str, Any], raw: bool) -> None:
    kinds = ("shuffled", "permuted", "ones", "halves")
    print("\ncosine of each statistic with its nulls, and between two halves of the text")
    print_table(
        ["statistic", *kinds],
        [[name, *(_number(row[k]) for k in kinds)] for name, row in summary["null"].items()],
    )
    if "missed" in summary:
        print("\npart of each that the components leave out (estimated)")
        print_table(
            ["statistic", "missed"], [[n, _number(m)] for n, m in summary["missed"].items()]
        )
    _show_lists(summary, raw)
    times = ", ".join(f"{_number(t)} (L = {n})" for n, t in summary["breakdown"].items())
    print(f"\nthe output weight should leave its leading term at t = {times}")


def _show_lists(summary: dict[str, Any], raw: bool) -> None:
    from attnflow.corpus import visible

    if "associations" not in summary:
        return
    lists = summary["associations"]["raw" if raw else "whitened"]
    print(f"\nassociations, {'raw' if raw else 'whitened'}")
    bases = ("bigram", "interchange", "context")
    print_table(
        ["token", "is followed by", "is used like", "comes after"],
        [
            [visible(token), *(" ".join(visible(t) for t in rows[b][:5]) for b in bases)]
            for token, rows in lists.items()
        ],
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
