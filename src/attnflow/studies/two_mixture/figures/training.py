"""Curves of the run itself: losses, neurons, scores, who does the work, and the margin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.draw import Panel
from attnflow.studies.two_mixture import observables
from attnflow.studies.two_mixture import stages as rules

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.two_mixture.study import TwoMixture

MARGINS = 60
"""Rows at which the margin is drawn: each is a small optimisation."""


@draw.styled
@draw.shows("Fig 1", "Thm 4.1 (loss at T3)", "App A.4 (Fig 5-7)")
def losses(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Loss of each kind of sample: d = y times the sum of distractor signs (Fig. 1a)."""
    kinds = data["agreement"].values.tolist()
    looks = [
        draw.Look.of(i, f"d = {d}" + _words(d, study.config.length)) for i, d in enumerate(kinds)
    ]
    whole = (draw.Look("#000000", "-", "population", 1.2), data["loss"].values)
    curves = [whole, *zip(looks, data["group_loss"].values.T, strict=True)]
    panel = Panel("loss (nats)", curves, {"half of ln 2": np.log(2) / 2}, limits=(0, None))
    words = "Consistent samples first, conflicting ones later"
    return draw.over_time(data, stages, words, panel)


def _words(d: int, length: int) -> str:
    return {1: " (consistent)", -1: " (conflicting)"}.get(d, "") if length == 3 else ""


@draw.styled
@draw.shows("Thm 4.1 (T1)", "Thm 4.1 (alignment with v at T3)", "Thm 4.1 (alignment with c at T3)")
def neurons(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Alignment of the plus head's neurons with group and classification signals (Fig. 1b)."""
    w = data["neuron"].sel(head="plus")
    names = _few(w["signal"].values.tolist(), 4)
    curves = [(f"w.{name}", w.sel(signal=name).values) for name in names]
    words = "Neurons align with v at once, with c after the first gates shut"
    return draw.over_time(data, stages, words, Panel("alignment of the neurons (1)", curves))


@draw.styled
@draw.shows(
    "Thm 4.1 (T2 - T1)",
    "Thm 4.1 (concentration, signal queries)",
    "Thm 4.1 (concentration, group query)",
)
def scores(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """Attention scores of the plus head with key c1, and two others (Fig. 1c)."""
    S = data["score"].sel(head="plus")
    pairs = [("c1", "v1"), ("c1", "v2"), ("v1", "c1"), ("v1", "v1"), ("c1", "c1")]
    curves = [(f"{key}'S {query}", S.sel(key=key, query=query).values) for key, query in pairs]
    words = "The scores that grow join a group with its signal"
    return draw.over_time(data, stages, words, Panel("score (key' S query)", curves))


@draw.styled
@draw.shows(
    "App A.3 (Fig 4)",
    "Thm 4.1 (near symmetry, signal queries)",
    "Thm 4.1 (near symmetry, group query)",
)
def all_scores(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """All attention scores of the plus head, by the kind of key and query (Fig. 4)."""
    figure, grid = draw.new(2, 2, height=5.2)
    t = data["time"].values
    S = data["score"].sel(head="plus")
    K = study.config.groups
    for axes, (key, query) in zip(grid.ravel(), ("cc", "cv", "vc", "vv"), strict=True):
        draw.timeline(axes, t, stages, names=False, label=False)
        if key == "v":
            axes.set_xlabel(draw.time_name())
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
@draw.shows("ours: the stages of joint training", "ours: the powers add to -dL/dt")
def share(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """The attention's share of the loss decrease, and the gates that are on."""
    q = observables.share({n: data[n].values for n in ("neuron_power", "attention_power")})
    on = data["gates"].values.mean(axis=1)

    def steps(axes: Axes) -> None:
        axes.step(data["time"].values, on, where="pre", color=draw.COLOURS[1])

    panels = (
        Panel("attention's share q (1)", [("", q)], {"": rules.MAJORITY}, limits=(0, 1)),
        Panel("gates that are on (share)", [], limits=(-0.03, 1.03), also=steps),
    )
    words = "Who lowers the loss: attention where q > 1/2"
    return draw.over_time(data, stages, words, *panels, height=4.6)


@draw.styled
@draw.shows("Lemma 5.4 (initial margin)", "ours: three numbers carry the margin for any K")
def margin(data: xr.Dataset, stages: list[Stage], study: TwoMixture) -> Figure:
    """The largest margin of the attention feature (eq. 2) over training, both gate conventions."""
    t = data["time"].values
    # Equal distances on the logarithmic axis.
    marks = np.geomspace(max(t[t > 0][0], t[-1] / 1e4), t[-1], MARGINS)
    rows = np.unique(np.clip(np.searchsorted(t, marks), 0, len(t) - 1))
    found = [study.margins(data, int(row)) for row in rows]
    names = {"all_on": "all gates on", "actual": "actual gates"}
    curves = [(words, [m[name].value for m in found]) for name, words in names.items()]
    panel = Panel("largest margin (feature length)", curves)
    few = data.isel(time=rows)
    return draw.over_time(few, stages, "From not separable to well separated", panel)


def _few(names: list[str], most: int) -> list[str]:
    """The first c and v signals, at most so many."""
    half = len(names) // 2
    keep = min(most // 2, half)
    return [*names[:keep], *names[half : half + keep]]
