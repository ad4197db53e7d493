"""Figures of the study on real text: functions of a trajectory and its stages (Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.focus_text.model import SELF

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage

Drawing = Callable[["xr.Dataset", "list[Stage]"], "Figure"]

SHOWN = 10
"""Times at which the test sample is shown."""


def of(unigram: float, bigram: float, context: int) -> Mapping[str, Drawing]:
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
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    draw.curve(axes, t, data["loss"].values, 0, "loss")
    levels = {"unigram": unigram, "bigram": bigram}
    for (name, level), line in zip(levels.items(), ("--", ":"), strict=True):
        axes.axhline(level, color=draw.GREY, lw=1.1, ls=line, label=f"{name} {level:.3f}")
    axes.set_ylabel("held-out loss (nats)")
    draw.title(figure, "Held-out loss")
    draw.legend(figure, axes)
    return figure


@draw.styled
def attention(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Attention of the chosen input's last token to every token of it (Fig. 3 A1, B)."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    names = [_safe(n) for n in data["key"].values]
    for i, name in enumerate(names):
        word = f"{name} (itself)" if i == len(names) - 1 else name
        draw.curve(axes, t, data["attention"].values[:, -1, i], i, word)
    axes.set_ylim(-0.02, 1.05)
    axes.set_ylabel("attention (probability)")
    draw.title(figure, f"Attention of {names[-1]}")
    draw.legend(figure, axes)
    return figure


@draw.styled
def norms(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Norm of the embedding of each tracked token: where one falls, it retracts (Fig. 3 A2)."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    for i, name in enumerate(data["tracked"].values):
        draw.curve(axes, t, data["embedding_norm"].values[:, i], i, _safe(name))
    draw.log_y(axes)
    axes.set_ylabel("embedding norm (weights)")
    draw.title(figure, "Embeddings of the tracked tokens")
    draw.legend(figure, axes)
    return figure


@draw.styled
def sample(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """A held-out sample across training; tokens that give themselves 0.75 are framed (Fig. 3 C)."""
    from matplotlib.patches import Rectangle

    values = data["self_attention"].values
    names = [_safe(n.split(" (")[0] or n) for n in data["place"].values]
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
    figure, (top, low) = draw.new(2, 1, height=5.8)
    t = data["time"].values
    draw.timeline(top, t, stages, label=False)
    draw.timeline(low, t, stages, names=False)
    draw.curve(top, t, data["attention_entropy"].values, 0)
    top.axhline(math.log(context), color=draw.GREY, lw=1.1, ls="--")
    top.set_ylabel("entropy (nats)")
    draw.curve(low, t, data["focus"].values, 1, "to the 3 most frequent, beyond their share")
    draw.curve(low, t, data["self_mean"].values, 2, "to itself")
    draw.curve(low, t, data["self_share"].values, 3, f"windows with at least {SELF} to itself")
    low.set_ylabel("held-out attention")
    draw.title(figure, "Held-out attention: entropy (dashed: uniform) and where it goes")
    draw.legend(figure, low)
    return figure


@draw.styled
def gaps(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """How far predictions are from the unigram law and from the bigram row of the last token."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    draw.curve(axes, t, data["unigram_gap"].values, 0, "from the unigram law")
    draw.curve(axes, t, data["bigram_gap"].values, 1, "from the bigram row")
    axes.set_ylabel("KL to the prediction (nats)")
    draw.title(figure, "From a unigram to a bigram predictor")
    draw.legend(figure, axes)
    return figure


@draw.styled
def ranks(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Effective rank (participation ratio of the squared singular values) of every matrix."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    for i, name in enumerate(data["matrix"].values):
        draw.curve(axes, t, data["effective_rank"].sel(matrix=name).values, i, str(name))
    draw.log_y(axes)
    axes.set_ylabel("effective rank (directions)")
    draw.title(figure, "Effective ranks")
    draw.legend(figure, axes)
    return figure


def _safe(name: object) -> str:
    """A token as a label: a leading underscore or a dollar sign means something to matplotlib."""
    text = str(name).replace("$", r"\$")
    return f"“{text}”" if text.startswith("_") else text
