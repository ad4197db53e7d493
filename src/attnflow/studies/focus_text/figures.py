"""Figures of the study on real text: functions of a trajectory and its stages (Fig. 3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.draw import Panel
from attnflow.studies.focus_text.model import SELF

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage


SHOWN = 10
"""Times at which the test sample is shown."""


def of(unigram: float, bigram: float, context: int) -> draw.Figures:
    """The study's figures, by file name; the first line of a docstring is the caption."""
    return {
        "loss": draw.bound(loss, unigram=unigram, bigram=bigram),
        "attention": attention,
        "norms": norms,
        "sample": sample,
        "entropy": draw.bound(entropy, context=context),
        "gaps": gaps,
        "ranks": ranks,
    }


@draw.styled
def loss(data: xr.Dataset, stages: list[Stage], unigram: float, bigram: float) -> Figure:
    """Held-out loss, with the loss of the unigram and the bigram predictor on the same windows."""
    levels = {f"unigram {unigram:.3f}": unigram, f"bigram {bigram:.3f}": bigram}
    panel = Panel("held-out loss (nats)", [("loss", data["loss"].values)], levels)
    return draw.over_time(data, stages, "Held-out loss", panel)


@draw.styled
def attention(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Attention of the chosen input's last token to every token of it (Fig. 3 A1, B)."""
    *others, (query, own) = draw.each(data["attention"].isel(query=-1))
    curves = [*others, (f"{query} (itself)", own)]
    panel = Panel("attention (probability)", curves, limits=(-0.02, 1.05))
    return draw.over_time(data, stages, f"Attention of {query}", panel)


@draw.styled
def norms(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Norm of the embedding of each tracked token: where one falls, it retracts (Fig. 3 A2)."""
    panel = Panel("embedding norm (weights)", draw.each(data["embedding_norm"]), log=True)
    return draw.over_time(data, stages, "Embeddings of the tracked tokens", panel)


@draw.styled
def sample(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """A held-out sample across training; tokens that give themselves 0.75 are framed (Fig. 3 C)."""
    from matplotlib.patches import Rectangle

    values = data["self_attention"].values
    names = [draw.plain(n.split(" (")[0] or n) for n in data["place"].values]
    picks = np.unique(np.round(np.linspace(0, len(values) - 1, SHOWN)).astype(int))
    figure, axes = draw.new(height=1.6 + 0.26 * len(picks))
    image = axes.imshow(values[picks], vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for row, column in zip(*np.nonzero(values[picks] >= SELF), strict=True):
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=draw.COLOURS[1], lw=1.6)
        axes.add_patch(box)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(picks)), [f"{data['time'].values[k]:.3g}" for k in picks], fontsize=8)
    axes.set_ylabel("time (steps × rate)")
    axes.set_xlabel("token of the sample")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="self-attention", pad=0.02)
    draw.title(figure, f"Tokens that attend to themselves (framed: ≥ {SELF})")
    return figure


@draw.styled
def entropy(data: xr.Dataset, stages: list[Stage], context: int) -> Figure:
    """How spread held-out attention is, and how much of it goes where."""
    spread = [("", data["attention_entropy"].values)]
    where = {
        "to the 3 most frequent, beyond their share": "focus",
        "to itself": "self_mean",
        f"windows with at least {SELF} to itself": "self_share",
    }
    panels = (
        Panel("entropy (nats)", spread, {"": math.log(context)}),
        Panel(
            "held-out attention (share)", [(words, data[n].values) for words, n in where.items()]
        ),
    )
    words = "Held-out attention: entropy (dashed: uniform) and where it goes"
    return draw.over_time(data, stages, words, *panels, height=5.8)


@draw.styled
def gaps(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """How far predictions are from the unigram law and from the bigram row of the last token."""
    curves = [
        ("from the unigram law", data["unigram_gap"].values),
        ("from the bigram row", data["bigram_gap"].values),
    ]
    panel = Panel("KL to the prediction (nats)", curves)
    return draw.over_time(data, stages, "From a unigram to a bigram predictor", panel)


@draw.styled
def ranks(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Effective rank (participation ratio of the squared singular values) of every matrix."""
    panel = Panel("effective rank (directions)", draw.each(data["effective_rank"]), log=True)
    return draw.over_time(data, stages, "Effective ranks", panel)
