"""The setting, and maps of attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.studies.focus_dilution import data as law
from attnflow.studies.focus_dilution.figures import shared

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

MOST_MAPS = 9
"""Attention maps in one figure: start, end, and of more stages the main ones first."""

MOST_BARS = 8
"""Groups S_k that are drawn, the most frequent ones."""


@draw.styled
@draw.shows("Def 2.1", "App E.1 (groups S_k)")
@draw.of_config
def setting(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """The law π, the transition matrix, and the groups S_k by last token (Fig. 1, left)."""
    chain, contexts = study.chain, law.training(study.config)
    figure, grid = draw.new(2, 2, height=5.2)
    bars, matrix, below = grid[0, 0], grid[0, 1], grid[1, 0]
    grid[1, 1].remove()
    below.set_subplotspec(grid[1, 0].get_subplotspec().get_gridspec()[1, :])
    looks, rest = draw.tokens(chain.pi.tolist())
    ids = np.arange(chain.tokens)
    bars.bar(ids, chain.pi, color=[look.colour for look in looks], width=0.75)
    bars.set_xticks(ids[:: 1 + (chain.tokens - 1) // 8])
    bars.set_xlabel("token (number)")
    bars.set_ylabel("π (probability)")
    image = draw.heat(matrix, chain.transition, numbers=chain.tokens <= shared.NUMBERED)
    matrix.set_xlabel("next token (number)")
    matrix.set_ylabel("current (token)")
    figure.colorbar(image, ax=matrix, label="transition (probability)", shrink=0.9)
    labels = chain.transition
    share = chain.pi
    if contexts is not None:
        share = contexts.last_law
        labels = contexts.bigram / np.maximum(share, 1e-300)[:, None]
    shown = np.sort(np.argsort(-chain.pi, kind="stable")[:MOST_BARS])
    left = np.zeros(len(shown))
    for j, look in enumerate(looks):
        wide = labels[shown, j]
        below.barh(
            np.arange(len(shown)),
            wide,
            left=left,
            color=look.colour,
            height=0.72,
            edgecolor="white",
            lw=0.8,
            label=look.label or "_",
        )
        left += wide
    below.set_yticks(range(len(shown)), [f"S{k} ({share[k]:.3g})" for k in shown])
    below.invert_yaxis()
    below.set_xlim(0, 1)
    below.set_ylabel("group (its share)")
    below.set_xlabel("law of the label, given the last token (probability)")
    draw.title(figure, "The setting: law, chain, and groups of sequences")
    draw.legend(figure, below, extra=rest)
    return figure


@draw.styled
@draw.shows("Fig 2C", "Sec 4.1 (stage II)")
def attention_maps(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """The whole attention map at the start, at the beginning of stages and at the end (Fig. 2C)."""
    return _maps(data, stages, "attention", "Attention maps, in the limit of long contexts")


@draw.styled
@draw.shows("Fig 2C", "Sec 4.1 (stage II)")
def data_attention_maps(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Attention averaged over the training contexts that end in each query (Fig. 2C)."""
    return _maps(data, stages, "data_attention", "Attention maps, averaged over the data")


def _maps(data: xr.Dataset, stages: list[Stage], name: str, title: str) -> Figure:
    moments = _moments(data["time"].values, stages)
    tokens = data.sizes["query"]
    columns = min(3, len(moments))
    rows = math.ceil(len(moments) / columns)
    figure, grid = draw.new(rows, columns, height=0.6 + 1.8 * rows)
    panels = np.atleast_1d(grid).ravel()
    image: Any = None
    for axes, (words, time) in zip(panels, moments, strict=False):
        weights = data[name].sel(time=time, method="nearest").values
        image = draw.heat(axes, weights, numbers=tokens <= shared.NUMBERED)
        axes.set_title(f"{words}\n{draw.moment(time)}", fontsize=8.5)
    for axes in panels[len(moments) :]:
        axes.remove()
    for i in range(len(moments)):
        if i % columns == 0:
            panels[i].set_ylabel("query (token)")
        else:
            panels[i].set_yticks([])
        if i + columns >= len(moments):
            panels[i].set_xlabel("key (token)")
        else:
            panels[i].set_xticks([])
    figure.colorbar(
        image,
        ax=panels[: len(moments)].tolist(),
        label="attention (probability)",
        shrink=0.8,
        pad=0.02,
    )
    draw.title(figure, title)
    return figure


def _moments(t: np.ndarray, stages: list[Stage]) -> list[tuple[str, float]]:
    """Start, stages and end, the main stages where there are too many."""
    room = MOST_MAPS - 2
    order = sorted(stages, key=lambda s: (s.name not in shared.MAIN, s.time))
    shown = stages if len(stages) <= room else order[:room]
    moments = [("start", float(t[0]))]
    moments += [(draw.numbered(s), s.time) for s in sorted(shown, key=lambda s: s.time)]
    return moments + ([("end", float(t[-1]))] if len(t) > 1 else [])
