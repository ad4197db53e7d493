"""The page of a corpus: its words, what its statistics tie together, and what chance would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.corpus import Statistics, visible
from attnflow.corpus.associations import BASES, RARE, associations
from attnflow.report._drawings import drawing
from attnflow.report._render import render
from attnflow.report._words import Table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAPPED = 60
"""Words on the map."""
GRID = 24
"""Tokens along each side of the picture of bigrams."""

MEANING = {
    "bigram": "B: what follows what",
    "context": "Φ: what comes before what",
    "value": "K: the value term",
    "g": "G: the value term read by labels",
    "attention": "Q: the attention term",
    "position": "Δ: attention by distance",
}


def corpus_page(
    theory: Statistics,
    nulls: Mapping[str, Mapping[str, float]],
    chosen: Sequence[int],
    facts: Mapping[str, Any],
) -> str:
    """One self-contained HTML page about the statistics of a corpus."""
    names = [visible(token) for token in theory.tokens or []]
    figures = [("words", frequencies(theory, names)), ("bigrams", bigrams(theory, names))]
    figures += [("map", word_map(theory, names)), ("distance", by_distance(theory))]
    captions = {
        "words": "How often each token occurs, by rank. A straight line is Zipf’s law.",
        "bigrams": "The most frequent tokens: who follows whom more (orange) or less (violet) "
        "often than by chance, as log2 of the ratio to p(a) p(b); grey: never.",
        "map": "Tokens near each other follow the same tokens: the first two components of the "
        "whitened bigram matrix, each token scaled to length one.",
        "distance": "The position term Δ: how much more than on average training will at first "
        "attend to a token that many places back.",
    }
    return render(
        "corpus.html",
        name=facts["name"],
        facts=_facts(theory, facts),
        notes=facts["notes"],
        command=facts["command"],
        figures=[drawing(name, figure, captions[name]) for name, figure in figures],
        whitened=_lists(theory, names, chosen, True),
        raw=_lists(theory, names, chosen, False),
        nulls=_null_table(nulls),
        breakdown=_breakdown(facts["breakdown"]),
        created=facts["created"],
    )


def _facts(theory: Statistics, facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        ("tokens", f"{facts['tokens']:,}", f"{facts['documents']:,} documents"),
        ("vocabulary", f"{theory.vocabulary:,}", facts["tokenizer"]),
        ("windows", f"{theory.sequences:,}", f"of {theory.length} positions"),
        ("unknown", f"{facts['unknown']:.1%}", "of the text"),
    ]


def _lists(theory: Statistics, names: Sequence[str], chosen: Sequence[int], whitened: bool):
    tables = []
    for token in chosen:
        rows = []
        for basis, meaning in BASES.items():
            found = associations(theory, basis, token, whitened=whitened)
            rows.append([meaning, basis, ", ".join(names[a.token] for a in found) or "nothing"])
        count = int(theory.counts[token])
        tables.append(Table(f"{names[token]}  ({count:,} times)", ["", "basis", "tokens"], rows))
    return tables


def _null_table(nulls: Mapping[str, Mapping[str, float]]) -> Table:
    kinds = ["shuffled", "permuted", "ones", "halves"]
    rows = [[MEANING[name], *(number(row[k]) for k in kinds)] for name, row in nulls.items()]
    head = ["statistic", "tokens shuffled", "tokens renamed", "all ones", "two halves"]
    return Table("Cosine of each statistic with its nulls", head, rows, frozenset({1, 2, 3, 4}))


def _breakdown(times: Mapping[int, float]) -> Table:
    rows = [[str(layers), number(t)] for layers, t in times.items()]
    return Table("Predicted breakdown", ["layers", "t at cosine 0.999"], rows, frozenset({0, 1}))


@draw.styled
def frequencies(theory: Statistics, names: Sequence[str]) -> Figure:
    """Rank and frequency."""
    figure, axes = draw.new()
    counts = np.sort(theory.counts[theory.counts > 0])[::-1]
    axes.loglog(np.arange(1, len(counts) + 1), counts, color=draw.COLOURS[0], label="tokens")
    axes.loglog([1, len(counts)], [counts[0], counts[0] / len(counts)], color=draw.GREY, ls="--")
    order = np.argsort(-theory.counts, kind="stable")
    for rank in (1, 3, 10, 30, 100, 300, 1000):
        if rank <= len(counts):
            axes.annotate(
                draw.plain(names[order[rank - 1]]),
                (rank, counts[rank - 1]),
                xytext=(4, 5),
                textcoords="offset points",
                fontsize=draw.SMALL,
            )
    axes.set(xlabel="rank", ylabel="times")
    draw.title(figure, "Words by frequency")
    return figure


@draw.styled
def bigrams(theory: Statistics, names: Sequence[str]) -> Figure:
    """Who follows whom, against chance."""
    figure, axes = draw.new(height=5.2)
    order = np.argsort(-theory.counts, kind="stable")[: min(GRID, theory.vocabulary)]
    p = theory.unigram[order]
    together = theory.bigram[np.ix_(order, order)] + p[:, None] / theory.vocabulary
    following = theory.bigram.sum(axis=0)[order] + 1 / theory.vocabulary
    chance = p[:, None] * following[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(np.clip(together, 0, None) / chance)
    ratio = np.where(together > 0.5 / theory.positions, ratio.clip(-4, 4), np.nan)
    axes.set_facecolor("#dddddd")  # of pairs that never occur
    image = axes.imshow(ratio, cmap="PuOr_r", vmin=-4, vmax=4, interpolation="nearest")
    shown = [draw.plain(names[i]) for i in order]
    axes.set_xticks(range(len(order)), shown, rotation=90, fontsize=draw.SMALL)
    axes.set_yticks(range(len(order)), shown, fontsize=draw.SMALL)
    axes.set(xlabel="next", ylabel="current")
    figure.colorbar(image, ax=axes, label="log2 of the ratio to chance", shrink=0.8)
    draw.title(figure, "Bigrams of the most frequent tokens")
    return figure


@draw.styled
def word_map(theory: Statistics, names: Sequence[str]) -> Figure:
    """Tokens by what they follow."""
    figure, axes = draw.new(height=5.2)
    order = np.argsort(-theory.counts, kind="stable")
    order = order[theory.counts[order] >= RARE][:MAPPED]
    if len(order) < 3:
        draw.note(axes, "Too few frequent tokens for a map.")
        return figure
    seen = theory.unigram > 0
    rows = theory.bigram[np.ix_(seen, order)] / np.sqrt(theory.unigram[seen, None])
    columns = rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    _, _, turned = np.linalg.svd(columns - columns.mean(axis=1, keepdims=True), full_matrices=False)
    x, y = turned[:2]
    axes.scatter(x, y, s=8, color=draw.COLOURS[0])
    for i, token in enumerate(order):
        axes.annotate(
            draw.plain(names[token]),
            (x[i], y[i]),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=draw.SMALL,
        )
    axes.set(xlabel="first component", ylabel="second component", xticks=[], yticks=[])
    draw.title(figure, "Tokens that follow the same tokens")
    return figure


@draw.styled
def by_distance(theory: Statistics) -> Figure:
    """The position term."""
    figure, axes = draw.new()
    most = min(theory.length, 40)
    axes.axhline(0, color=draw.GREY, lw=0.8)
    axes.plot(range(most), theory.position[:most], marker="o", ms=3, color=draw.COLOURS[1])
    axes.set(xlabel="lag (places back)", ylabel="Δ")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    draw.title(figure, "First pull of attention, by distance")
    return figure
