"""Statistics of a corpus from token ids: kernels, shards, a whole text, a large vocabulary."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import ROOT, fresh, sure
from benchmarks._tables import Result, Table, Target

TEXT = ROOT.parent / "shared" / "data" / "tinystories" / "tinystories_sample_5M.txt.gz"
WIKITEXT = ROOT.parent / "shared" / "data" / "wikitext2" / "valid.txt.gz"

COLUMNS = {
    "what": "",
    "how": "",
    "seconds": ".4g",
    "millions a second": ".4g",
    "ratio": ".4g",
    "difference": ".0e",
}


def run(quick: bool = False) -> Result:
    """Each part in a process of its own, with one BLAS thread."""
    result = Result("corpus", __doc__ or "")
    rows = sure(fresh(kernels, blas=1, sequences=256 if quick else 1024))["rows"]
    notes = [
        "V = 1000, T = 200, tokens by Zipf's law; one core. Millions of pairs (t, j) for attention "
        "and contexts, of tokens for bigrams, of counted neighbours for GloVe.",
        "dense: one-hot matrices and one batched einsum (through BLAS) over 8 sequences, "
        "multiplied; ratio: to our first row of the same. Differences are over the largest entry. "
        "Seconds are the processor's.",
    ]
    result.tables.append(Table("kernels", COLUMNS, rows, notes))
    by = {(row["what"], row["how"].split(",")[0]): row for row in rows}
    dense, pairs = by["attention", "dense einsum"], by["attention", "pair by pair"]
    distinct, bigram = by["attention", "distinct tokens"], by["bigram", "compiled"]
    result.targets += [
        _at_least("attention: dense einsum over our kernel", dense["ratio"], 300),
        _at_least("attention, pair by pair: M pairs/s", pairs["millions a second"], 60),
        _at_least("attention, distinct: M pair-equivalents/s", distinct["millions a second"], 120),
        _at_least("bigrams: M tokens/s", bigram["millions a second"], 20),
        _at_least("GloVe windows: NumPy over ours", by["GloVe window", "NumPy"]["ratio"], 1),
    ]
    two = sure(fresh(processes, blas=1, timeout=1800, sequences=8_000 if quick else 400_000))
    ratio = float(np.median(two["ratios"]))
    result.tables.append(
        Table(
            "two shards",
            {"processes": "d", "seconds": ".4g", "ratio": ".3g"},
            [
                {"processes": 1, "seconds": two["one"], "ratio": 1.0},
                {"processes": 2, "seconds": two["two"], "ratio": ratio},
            ],
            [
                f"{two['positions']:,} positions in two blocks, V = 1000, T = 200: the attention "
                "sums, start of the processes and merging included; the same bits. One and two "
                "in turns, medians; ratios "
                + ", ".join(f"{each:.2f}" for each in two["ratios"])
                + "."
            ],
        )
    )
    result.targets.append(_at_least("two shards: one process over two", ratio, 1.7))
    _text(result)
    _large(result, quick)
    return result


def _text(result: Result) -> None:
    if not TEXT.exists():
        return
    text = sure(fresh(whole_text, blas=1, timeout=900))
    row = {**text, "megabytes": text["bytes"] / 1e6, "bound": text["bound"] / 1e6}
    columns = {"tokens": ",d", "tokenising": ".3g", "seconds": ".3g"}
    columns |= {"megabytes": ".4g", "bound": ".4g", "low rank error": ".1e"}
    notes = [
        "TinyStories, 5 MB, BPE of 2,000, T = 200: B, Sigma, Phi, K, G, Q, Delta, C0, Phi2; "
        "seconds to train the tokenizer and encode, seconds for all statistics, compilation "
        "included; the peak of memory above what was there before, and (matrices + 1) V^2 8 bytes.",
        "low rank error: of Q with 24 components of G, relative, WikiText-2 (valid), BPE 2,000, "
        f"T = 64; of this text it is {text['low rank error here']:.1e}, as of the best 24.",
    ]
    result.tables.append(Table("a whole text", columns, [row], notes))
    result.targets += [
        _at_most("TinyStories, all statistics: seconds", text["seconds"], 60),
        _at_most("its peak memory over the bound", text["bytes"] / text["bound"], 1),
        _at_most("rank 24, BPE 2,000: relative error of Q", text["low rank error"], 1e-6),
    ]


def _large(result: Result, quick: bool) -> None:
    tokens = 1_280_000 if quick else 12_800_000
    free = sure(fresh(matrix_free, blas=1, timeout=1800, tokens=tokens))
    columns = {"components of": "", "seconds": ".4g", "first": ".3e", "missed": ".1e"}
    notes = [
        f"V = 50,000, {tokens:,} tokens by Zipf's law, T = 200; no matrix of V x V. missed: the "
        f"norm outside the components. Peak memory {free['gigabytes']:.2f} GB, in all "
        f"{free['seconds']:.0f} s."
    ]
    result.tables.append(Table("leading 24 components", columns, free["rows"], notes))
    result.targets += [
        _at_most("V = 50,000: Q and K, seconds", free["seconds"], 300),
        _at_most("V = 50,000: gigabytes", free["gigabytes"], 6),
    ]


def _at_least(what: str, measured: float, bound: float) -> Target:
    return Target(what, f">= {bound:g}", measured, measured >= bound, ".4g")


def _at_most(what: str, measured: float, bound: float) -> Target:
    return Target(what, f"<= {bound:g}", measured, measured <= bound, ".3g")


def zipf_windows(vocabulary: int, sequences: int, length: int = 200) -> np.ndarray:
    """Tokens drawn one by one, the k-th with a probability of 1/k up to a factor."""
    law = np.cumsum(1 / np.arange(1, vocabulary + 1))
    drawn = np.random.default_rng(0).random((sequences, length + 1)) * law[-1]
    return np.searchsorted(law, drawn).clip(0, vocabulary - 1).astype(np.int32)


def kernels(sequences: int, size: int = 1000, length: int = 200) -> dict[str, Any]:
    """Every kernel beside a peer that NumPy offers, on the same windows."""
    from attnflow.corpus import kernels as ours
    from attnflow.corpus import statistics

    windows = zipf_windows(size, sequences, length)
    table = statistics(windows, size).g
    tokens, pairs = windows[:, 1:].size, windows[:, 1:].size * (length + 1) / 2
    few = windows[:8]
    rows = []

    def row(what, how, call: Callable[[], Any], units, scale=1.0, peer=None, wanted=None):
        seconds = cpu_seconds(call) * scale
        rows.append(
            {
                "what": what,
                "how": how,
                "seconds": seconds,
                "millions a second": units / seconds / 1e6,
                "ratio": 1.0 if peer is None else seconds / rows[peer]["seconds"],
                "difference": None if wanted is None else _difference(call(), wanted),
            }
        )

    row("attention", "distinct tokens", lambda: ours.attention(windows, table), pairs)
    row(
        "attention",
        "pair by pair",
        lambda: ours.attention(windows, table, form="pairs")[0],
        pairs,
        peer=0,
        wanted=ours.attention(windows, table)[0],
    )
    row(
        "attention",
        "dense einsum, extrapolated",
        lambda: dense_attention(few, table),
        pairs,
        scale=sequences / len(few),
        peer=0,
        wanted=ours.attention(few, table)[0],
    )
    row("context", "compiled", lambda: ours.context(windows, size), pairs)
    row("bigram", "compiled", lambda: ours.bigram(windows, size), tokens)
    row(
        "bigram",
        "NumPy, bincount of pair numbers",
        lambda: bincount_bigrams(windows, size),
        tokens,
        peer=4,
        wanted=ours.bigram(windows, size),
    )
    reach = 10
    neighbours = sequences * sum(length + 1 - m for m in range(1, reach + 1))
    row("GloVe window", "compiled", lambda: ours.cooccurrence(windows, size, reach), neighbours)
    row(
        "GloVe window",
        "NumPy, sort and unique",
        lambda: sorted_cooccurrence(windows, size, reach),
        neighbours,
        peer=6,
        wanted=ours.cooccurrence(windows, size, reach),
    )
    return {"rows": rows}


def cpu_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the processor that one call takes, the least of several.

    One thread counts here, so on a quiet machine these are the clock's; on a busy one, where the
    clock also runs for others, they still are.
    """
    call()
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def dense_attention(windows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The definition with one-hot matrices, as one writes it with einsum."""
    size, length = len(table), windows.shape[1] - 1
    X, Y = np.eye(size)[windows[:, :-1]], np.eye(size)[windows[:, 1:]]
    uniform = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
    scores = np.einsum("nty,yx,njx->ntj", Y, table, X, optimize=True)
    mean = np.einsum("tj,ntj->nt", uniform, scores)
    S = uniform * (scores - mean[:, :, None])
    return np.einsum("nta,ntj,njb->ab", X, S, X, optimize=True)


def bincount_bigrams(windows: np.ndarray, size: int) -> np.ndarray:
    number = windows[:, :-1].astype(np.int64) * size + windows[:, 1:]
    return np.bincount(number.ravel(), minlength=size * size).reshape(size, size)


def sorted_cooccurrence(windows: np.ndarray, size: int, reach: int) -> np.ndarray:
    """Every pair as one number, sorted and counted, distance by distance."""
    sums = np.zeros(size * size)
    for m in range(1, reach + 1):
        number = windows[:, m:].astype(np.int64) * size + windows[:, :-m]
        pairs, times = np.unique(number.ravel(), return_counts=True)
        sums[pairs] += times / m
    return sums.reshape(size, size)


def processes(sequences: int, size: int = 1000, rounds: int = 3) -> dict[str, Any]:
    """The same two blocks by one process and by two, in turns; the median of each.

    In turns, because whatever else the machine does then slows both alike.
    """
    from attnflow.corpus import statistics
    from attnflow.corpus.parallel import Blocks

    windows = zipf_windows(size, sequences)
    table = statistics(windows[:500], size).g
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    found = {}
    for _ in range(rounds):
        for name, workers in (("one", 1), ("two", 2)):
            source = Blocks.of(windows, 2, workers=workers)
            began = time.perf_counter()
            found[name] = source.total("attention", size, table, "next")
            seconds[name].append(time.perf_counter() - began)
    same = all(np.array_equal(a, b) for a, b in zip(found["one"], found["two"], strict=True))
    assert same, "two processes gave other sums than one"
    ratios = [one / two for one, two in zip(*seconds.values(), strict=True)]
    medians = {name: float(np.median(each)) for name, each in seconds.items()}
    return {**medians, "ratios": ratios, "positions": windows[:, 1:].size}


def whole_text(size: int = 2000, length: int = 200) -> dict[str, Any]:
    """All statistics of a text, the time and the memory they take."""
    from attnflow.corpus import Corpus, statistics

    began = time.perf_counter()
    corpus = Corpus.read(TEXT, "bpe", size)
    tokenising = time.perf_counter() - began
    windows = corpus.windows(length)
    _ = statistics(windows[:2], size).attention  # its code is not memory of the matrices
    before = _resident_now()
    began = time.perf_counter()
    found = statistics(windows, size)
    _ = found.unigram, found.bigram, found.context, found.value, found.g, found.attention
    _ = found.current_context, found.context2
    largest = float(np.abs(found.interchange).max())
    seconds = time.perf_counter() - began
    used = _peak_since() - before
    here = _low_rank_error(windows, found)
    wiki = Corpus.read(WIKITEXT, "bpe", size)
    rows = wiki.windows(64)
    return {
        "tokens": len(corpus),
        "tokenising": tokenising,
        "seconds": seconds,
        "bytes": used,
        "bound": (7 + 1) * size**2 * 8,
        "largest": largest,
        "low rank error": _low_rank_error(rows, statistics(rows, size)),
        "low rank error here": here,
    }


def _low_rank_error(windows: np.ndarray, dense: Any) -> float:
    from attnflow.corpus.matrix_free import MatrixFree

    found, _ = dense.attention_of(MatrixFree(windows, dense.vocabulary).g.dense())
    return float(np.linalg.norm(found - dense.attention) / np.linalg.norm(dense.attention))


def _resident_now() -> int:
    """Bytes in memory now; the mark of the peak is set back to it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_since() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024


def matrix_free(tokens: int, size: int = 50_000, length: int = 200) -> dict[str, Any]:
    """Leading components of Q and K without a matrix of V x V."""
    from attnflow.corpus.matrix_free import MatrixFree, components

    windows = zipf_windows(size, tokens // length, length)
    began = time.perf_counter()
    free = MatrixFree(windows, size)
    rows = []
    for name, made in (
        ("G", lambda: free.g),
        ("Q", lambda: components(free.attention)),
        ("K", lambda: components(free.value)),
    ):
        start = time.perf_counter()
        found = made()
        rows.append(
            {
                "components of": name,
                "seconds": time.perf_counter() - start,
                "first": float(found.values[0]),
                "missed": found.missed,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rows": rows, "seconds": time.perf_counter() - began, "gigabytes": peak / 1e9}
