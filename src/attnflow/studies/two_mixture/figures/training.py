"""Curves of the run itself: losses, neurons, scores, who does the work, and the margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.two_mixture import observables
from attnflow.studies.two_mixture import stages as rules

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.two_mixture.study import TwoMixture

MARGINS = 60
"""Rows at which the margin is drawn: each is a small optimisation."""


@draw.styled
def losses(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Loss of each kind of sample: d = y times the sum of distractor signs (Fig. 1a)."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    draw.curve(axes, t, data["loss"].values, draw.Look("#000000", "-", "population", 1.2))
    for i, d in enumerate(data["agreement"].values.tolist()):
        words = f"d = {d}" + _words(d, study.config.length)
        draw.curve(axes, t, data["group_loss"].sel(agreement=d).values, i, words)
    axes.axhline(np.log(2) / 2, color=draw.GREY, lw=0.7, ls=":")
    axes.set_ylabel("loss (nats)")
    axes.set_ylim(bottom=0)
    draw.title(figure, "Consistent samples first, conflicting ones later")
    draw.legend(figure, axes, extra="dotted: half of ln 2")
    return figure


def _words(d: int, length: int) -> str:
    return {1: " (consistent)", -1: " (conflicting)"}.get(d, "") if length == 3 else ""


@draw.styled
def neurons(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Alignment of the plus head's neurons with group and classification signals (Fig. 1b)."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    w = data["neuron"].sel(head="plus")
    for i, name in enumerate(_few(w["signal"].values.tolist(), 4)):
        draw.curve(axes, t, w.sel(signal=name).values, i, f"w.{name}")
    axes.set_ylabel("alignment of the neurons (1)")
    draw.title(figure, "Neurons align with v at once, with c after the first gates shut")
    draw.legend(figure, axes)
    return figure


@draw.styled
def scores(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Attention scores of the plus head with key c1, and two others (Fig. 1c)."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    S = data["score"].sel(head="plus")
    pairs = [("c1", "v1"), ("c1", "v2"), ("v1", "c1"), ("v1", "v1"), ("c1", "c1")]
    for i, (key, query) in enumerate(pairs):
        draw.curve(axes, t, S.sel(key=key, query=query).values, i, f"{key}'S {query}")
    axes.set_ylabel("score (key' S query)")
    draw.title(figure, "The scores that grow join a group with its signal")
    draw.legend(figure, axes)
    return figure


@draw.styled
def all_scores(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """All attention scores of the plus head, by the kind of key and query (Fig. 4)."""
    figure, grid = draw.new(2, 2, height=5.2)
    t = data["time"].values
    S = data["score"].sel(head="plus")
    K = study.config.groups
    for axes, (key, query) in zip(grid.ravel(), ("cc", "cv", "vc", "vv"), strict=True):
        draw.timeline(axes, t, stages, names=False, label=False)
        if key == "v":
            axes.set_xlabel("flow time t (steps × rate)")
        for i in range(K):
            for j in range(K):
                values = S.sel(key=f"{key}{i + 1}", query=f"{query}{j + 1}").values
                look = draw.Look(draw.COLOURS[int(i != j)], draw.LINES[int(i != j)], "", 1.2)
                draw.curve(axes, t, values, look)
        axes.set_title(f"key {key}, query {query}")
        axes.set_ylabel("score (1)")
    for name, k in (("same group", 0), ("different groups", 1)):
        grid[0, 0].plot([], [], color=draw.COLOURS[k], linestyle=draw.LINES[k], label=name)
    draw.title(figure, f"All {4 * K * K} scores of the plus head")
    draw.legend(figure, grid[0, 0])
    return figure


@draw.styled
def share(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """The attention's share of the loss decrease, and the gates that are on."""
    figure, (axes, below) = draw.new(2, 1, height=4.6)
    t = data["time"].values
    powers = {n: data[n].values for n in ("neuron_power", "attention_power")}
    draw.timeline(axes, t, stages, label=False)
    draw.curve(axes, t, observables.share(powers), 0)
    axes.axhline(rules.MAJORITY, color=draw.GREY, lw=0.7, ls=":")
    axes.set_ylabel("attention's share q (1)")
    axes.set_ylim(0, 1)
    draw.timeline(below, t, stages, names=False)
    gates = data["gates"].values
    below.step(t, gates.mean(axis=1), where="pre", color=draw.COLOURS[1])
    below.set_ylabel("gates that are on (share)")
    below.set_ylim(-0.03, 1.03)
    draw.title(figure, "Who lowers the loss: attention where q > 1/2")
    return figure


@draw.styled
def margin(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """The largest margin of the attention feature (eq. 2) over training, both gate conventions."""
    figure, axes = draw.new()
    t = data["time"].values
    draw.timeline(axes, t, stages)
    # Equal distances on the logarithmic axis.
    marks = np.geomspace(max(t[t > 0][0], t[-1] / 1e4), t[-1], MARGINS)
    rows = np.unique(np.clip(np.searchsorted(t, marks), 0, len(t) - 1))
    found = [study.margins(data, int(row)) for row in rows]
    for i, (name, words) in enumerate((("all_on", "all gates on"), ("actual", "actual gates"))):
        draw.curve(axes, t[rows], [m[name].value for m in found], i, words)
    axes.set_ylabel("largest margin (feature length)")
    draw.title(figure, "From not separable to well separated")
    draw.legend(figure, axes)
    return figure


def _few(names: list[str], most: int) -> list[str]:
    """The first c and v signals, at most so many."""
    half = len(names) // 2
    keep = min(most // 2, half)
    return [*names[:keep], *names[half : half + keep]]
