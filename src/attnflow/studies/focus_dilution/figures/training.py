"""Curves over flow time: loss, attention, ranks, singular values, embeddings, speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.focus_dilution import data as law
from attnflow.studies.focus_dilution.figures import shared

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

GROUPS = 4
"""Groups that the legend of the loss names; it also names the loss and the levels."""

MODES = 8
"""Singular values that are drawn, at most."""


@draw.styled
def loss(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """The loss and that of each group S_k, from plateau to plateau down to the floor (Fig. 1, 2A).

    Diamonds are the plateaus that the timeline predicts, at their times.
    """
    figure, axes = draw.new(height=4.2)
    t = data["time"].values
    draw.timeline(axes, t, stages)
    tested = "test_loss" in data
    looks, rest = draw.tokens(study.chain.pi.tolist(), 5 if study.chain.tokens <= 5 else GROUPS)
    for k, look in enumerate(looks):
        label = f"S{k}, {look.label}" if look.label else ""
        line = "-" if tested else look.line
        one = replace(look, label=label, line=line, width=1.2)
        draw.curve(axes, t, data["token_loss"].sel(token=k).values, one)
        if tested:
            dashed = replace(one, label="", line="--")
            draw.curve(axes, t, data["test_loss"].sel(token=k).values, dashed)
    draw.curve(axes, t, data["loss"].values, draw.Look("black", "-", "loss", 2.6))
    for (name, level), line in zip(levels(study).items(), ("--", ":"), strict=True):
        axes.axhline(level, color=draw.GREY, lw=1.1, ls=line, label=f"{name} {level:.4f}")
    _predicted_plateaus(axes, study)
    draw.log_y(axes)
    axes.set_ylabel("loss (nats)")
    kind = "groups by last token S_k" + (", test sets dashed" if tested else "")
    draw.title(figure, f"Loss, and its {kind}")
    draw.legend(figure, axes, extra=rest)
    return figure


def levels(study: FocusDilution) -> dict[str, float]:
    """The loss of the best constant and of the best bigram predictor, of what is trained on."""
    contexts = law.training(study.config)
    if contexts is None:
        return {"unigram entropy": study.chain.unigram_entropy, "entropy rate": study.chain.floor}
    labels = contexts.label_law[contexts.label_law > 0]
    unigram = float(-np.sum(labels * np.log(labels)))
    return {"unigram entropy": unigram, "bigram entropy": contexts.bigram_entropy}


def _predicted_plateaus(axes: Axes, study: FocusDilution) -> None:
    """Level and time of each; where times cannot be compared, the levels alone."""
    found = shared.predicted(study).plateaus
    name = "predicted plateaus"
    if not shared.paced(study):
        for i, p in enumerate(found):
            axes.axhline(
                p["loss"], color=draw.COLOURS[7], lw=1.1, ls="-.", label="_" if i else name
            )
        return
    first, last = axes.get_xlim()
    inside = [p for p in found if first <= p["time"] <= last]
    if inside:
        axes.plot(
            [p["time"] for p in inside],
            [p["loss"] for p in inside],
            ls="none",
            marker="D",
            ms=8,
            markerfacecolor="white",
            markeredgecolor="black",
            zorder=5,
            label=name,
        )


@draw.styled
def attention(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Attention of each query to the most frequent token: it focuses, then dilutes (Fig. 2C)."""
    figure, axes = draw.new()
    t = data["time"].values
    lead = int(np.argmax(study.chain.pi))
    looks, rest = draw.tokens(study.chain.pi.tolist())
    draw.timeline(axes, t, stages)
    for query, look in enumerate(looks):
        draw.curve(axes, t, data["attention"].sel(query=query, key=lead).values, look)
    axes.set_ylim(-0.02, 1.05)
    axes.set_ylabel("attention (probability)")
    draw.title(figure, f"Attention of each query token to token {lead}")
    draw.legend(figure, axes, extra=rest)
    return figure


@draw.styled
def entropy(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Entropy of each query's attention, between one key and the law of the tokens (Fig. 2D1)."""
    figure, axes = draw.new()
    t = data["time"].values
    looks, rest = draw.tokens(study.chain.pi.tolist())
    draw.timeline(axes, t, stages)
    for query, look in enumerate(looks):
        draw.curve(axes, t, data["attention_entropy"].sel(token=query).values, look)
    level = study.chain.unigram_entropy
    axes.axhline(level, color=draw.GREY, lw=1.1, ls="--", label=f"entropy of π, {level:.4f}")
    axes.set_ylabel("entropy of attention (nats)")
    draw.title(figure, "Entropy of each query token's attention")
    draw.legend(figure, axes, extra=rest)
    return figure


@draw.styled
def ranks(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Effective and stable rank of every matrix: condensation is the fall to one.

    Effective is exp of the entropy of the singular values, stable their squares' sum over the
    first's; both are 1 for a matrix of rank one.
    """
    figure, (top, low) = draw.new(2, 1, height=5.4)
    t = data["time"].values
    draw.timeline(top, t, stages, label=False)
    draw.timeline(low, t, stages, names=False)
    for axes, name in ((top, "effective"), (low, "stable")):
        for i, matrix in enumerate(data["matrix"].values):
            values = data[f"{name}_rank"].sel(matrix=matrix).values
            draw.curve(axes, t, values, i, str(matrix))
        draw.log_y(axes)
        axes.set_ylabel(f"{name} rank (directions)")
    draw.title(figure, "Ranks: condensation is the fall to one")
    draw.legend(figure, top)
    return figure


@draw.styled
def singular(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Singular values of W0 and WQ: the directions appear one after the other."""
    figure, (top, low) = draw.new(2, 1, height=5.4)
    t = data["time"].values
    draw.timeline(top, t, stages, label=False)
    draw.timeline(low, t, stages, names=False)
    for axes, name in ((top, "W0"), (low, "WQ")):
        values = data[f"singular_{name}"].values
        for i in range(min(values.shape[1], MODES)):
            draw.curve(axes, t, values[:, i], i, f"mode {i + 1}")
        draw.log_y(axes)
        axes.set_ylabel(f"σ of {name} (weights)")
    draw.title(figure, "Singular values, largest first")
    draw.legend(figure, top)
    return figure


@draw.styled
def embeddings(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Norm of each token's embedding, and of its part off the leader's direction (Fig. 2D2, D3).

    The leader is the most frequent token; it has no part off its own direction.
    """
    figure, (top, low) = draw.new(2, 1, height=5.8)
    t = data["time"].values
    lead = int(np.argmax(study.chain.pi))
    looks, rest = draw.tokens(study.chain.pi.tolist())
    draw.timeline(top, t, stages, label=False)
    draw.timeline(low, t, stages, names=False)
    for i, look in enumerate(looks):
        draw.curve(top, t, data["embedding_norm"].sel(token=i).values, look)
        if i != lead:
            draw.curve(low, t, data["off_axis"].sel(token=i).values, look)
    for axes in (top, low):
        draw.log_y(axes)
    top.set_ylabel("norm (weights)")
    low.set_ylabel(f"part off token {lead} (weights)")
    draw.title(figure, "Embeddings: retraction, then a new direction")
    draw.legend(figure, top, extra=rest)
    return figure


@draw.styled
def speed(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Speed of the flow and force on the read-out: the flow waits where the speed dips."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    draw.curve(axes, t, data["speed"].values, 0, "speed |θ′| (weights per time)")
    draw.curve(axes, t, data["force_M"].values, 1, "force, largest singular value of ∂L/∂M (nats)")
    draw.log_y(axes)
    axes.set_ylabel("size (units in the legend)")
    draw.title(figure, "Speed of the flow: it waits where this dips")
    draw.legend(figure, axes)
    return figure
