"""Figures of the focus-dilution study: functions of a trajectory and its stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _figures as draw
from attnflow.tasks.markov import MarkovChain

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage

Drawing = Callable[["xr.Dataset", "list[Stage]"], "Figure"]

NUMBERED = 6
"""Up to this many tokens the attention maps also say their numbers."""

MOST_MAPS = 12
"""Attention maps in one figure: of more stages, the first ones and the end."""


def of(chain: MarkovChain) -> Mapping[str, Drawing]:
    """The study's figures, by file name; the first line of a docstring is the caption."""
    return {
        "loss": draw.bound(loss, chain=chain),
        "attention": draw.bound(attention, chain=chain),
        "attention-maps": draw.bound(attention_maps, chain=chain),
        "ranks": ranks,
        "embeddings": draw.bound(embeddings, chain=chain),
        "speed": speed,
    }


@draw.styled
def loss(data: xr.Dataset, stages: list[Stage], chain: MarkovChain) -> Figure:
    """The loss falls from plateau to plateau, from the unigram entropy down to the entropy rate."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    draw.curve(axes, t, data["loss"].values, 0, "loss")
    levels = {"unigram entropy": chain.unigram_entropy, "entropy rate (floor)": chain.floor}
    for (name, level), line in zip(levels.items(), ("--", ":"), strict=True):
        axes.axhline(level, color=draw.GREY, lw=1.1, ls=line, label=f"{name} {level:.4f}")
    axes.set_ylabel("population loss (nats)")
    draw.title(figure, "Loss, with the stages as bands")
    draw.legend(figure, axes)
    return figure


@draw.styled
def attention(data: xr.Dataset, stages: list[Stage], chain: MarkovChain) -> Figure:
    """Attention of each query to the most frequent token: it focuses, then dilutes."""
    figure, axes = draw.new()
    t = data["time"].values
    lead = int(np.argmax(chain.pi))
    looks, rest = draw.tokens(chain.pi.tolist())
    draw.timeline(axes, t, stages)
    for query, look in enumerate(looks):
        draw.curve(axes, t, data["attention"].sel(query=query, key=lead).values, look)
    axes.set_ylim(-0.02, 1.05)
    axes.set_ylabel("attention (probability)")
    draw.title(figure, f"Attention of each query token to token {lead}")
    draw.legend(figure, axes, extra=rest)
    return figure


@draw.styled
def attention_maps(data: xr.Dataset, stages: list[Stage], chain: MarkovChain) -> Figure:
    """The whole attention map at the start, at the beginning of each stage and at the end."""
    t = data["time"].values
    shown = sorted(stages, key=lambda s: s.time)[: MOST_MAPS - 2]
    moments = [("start", float(t[0]))]
    moments += [(s.name if s.cycle == 1 else f"{s.name} {s.cycle}", s.time) for s in shown]
    moments += [("end", float(t[-1]))] if len(t) > 1 else []
    columns = min(3, len(moments))
    rows = math.ceil(len(moments) / columns)
    figure, grid = draw.new(rows, columns, height=0.6 + 1.95 * rows)
    panels = np.atleast_1d(grid).ravel()
    image: Any = None
    for axes, (name, time) in zip(panels, moments, strict=False):
        weights = data["attention"].sel(time=time, method="nearest").values
        image = axes.imshow(weights, vmin=0, vmax=1, cmap="cividis")
        for (q, k), w in np.ndenumerate(weights):
            if chain.tokens <= NUMBERED and np.isfinite(w):
                shade = "black" if w > 0.6 else "white"
                axes.text(k, q, f"{w:.2f}", ha="center", va="center", fontsize=7.5, color=shade)
        axes.set_title(f"{name}, t = {time:.4g}", fontsize=8.5)
        ticks = range(0, chain.tokens, 1 + (chain.tokens - 1) // 8)
        axes.set_xticks(ticks)
        axes.set_yticks(ticks)
        axes.spines[:].set_visible(False)
    for axes in panels[len(moments) :]:
        axes.remove()
    for i in range(len(moments)):
        if i % columns == 0:
            panels[i].set_ylabel("query (token)")
        if i + columns >= len(moments):
            panels[i].set_xlabel("key (token)")
    figure.colorbar(image, ax=panels[: len(moments)].tolist(), label="attention (probability)",
                    shrink=0.8, pad=0.02)  # fmt: skip
    draw.title(figure, "Attention maps")
    return figure


@draw.styled
def ranks(data: xr.Dataset, stages: list[Stage]) -> Figure:
    """Entropy effective rank of every matrix: condensation is the fall to one."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    for i, name in enumerate(data["matrix"].values):
        draw.curve(axes, t, data["effective_rank"].sel(matrix=name).values, i, str(name))
    draw.log_y(axes)
    axes.set_ylabel("effective rank (directions)")
    draw.title(figure, "Effective ranks: condensation is the fall to one")
    draw.legend(figure, axes)
    return figure


@draw.styled
def embeddings(data: xr.Dataset, stages: list[Stage], chain: MarkovChain) -> Figure:
    """Norm of each token's embedding, and of its part off token 0's direction."""
    figure, (top, low) = draw.new(2, 1, height=5.8)
    t = data["time"].values
    looks, rest = draw.tokens(chain.pi.tolist())
    draw.timeline(top, t, stages, label=False)
    draw.timeline(low, t, stages, names=False)
    for i, look in enumerate(looks):
        draw.curve(top, t, data["embedding_norm"].sel(token=i).values, look)
        if i > 0:  # token 0 has no part off its own direction
            draw.curve(low, t, data["off_axis"].sel(token=i).values, look)
    for axes in (top, low):
        draw.log_y(axes)
    top.set_ylabel("norm (weights)")
    low.set_ylabel("part off token 0 (weights)")
    draw.title(figure, "Embeddings: retraction, then a new direction")
    draw.legend(figure, top, extra=rest)
    return figure


@draw.styled
def speed(data: xr.Dataset, stages: list[Stage]) -> Figure:
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
