"""Curves over flow time: loss, attention, ranks, singular values, embeddings, speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.draw import Panel
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
@draw.shows(
    "Sec 4.1 (order of the stages)",
    "Sec 4.1 (the pattern repeats)",
    "App E (final loss)",
    "App E.1 (groups S_k)",
    "ours: rare groups get worse during focus",
)
def loss(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """The loss and that of each group S_k, from plateau to plateau down to the floor (Fig. 1, 2A).

    Diamonds are the plateaus that the timeline predicts, at their times.
    """
    tested = "test_loss" in data
    looks, rest = draw.tokens(study.chain.pi.tolist(), 5 if study.chain.tokens <= 5 else GROUPS)
    curves = []
    for k, look in enumerate(looks):
        label = f"S{k}, {look.label}" if look.label else ""
        one = replace(look, label=label, line="-" if tested else look.line, width=1.2)
        curves.append((one, data["token_loss"].sel(token=k).values))
        if tested:
            dashed = replace(one, label="", line="--")
            curves.append((dashed, data["test_loss"].sel(token=k).values))
    curves.append((draw.Look("black", "-", "loss", 2.6), data["loss"].values))
    panel = Panel(
        "loss (nats)",
        curves,
        {f"{name} {level:.4f}": level for name, level in levels(study).items()},
        log=True,
        also=lambda axes: _predicted_plateaus(axes, study),
    )
    kind = "groups by last token S_k" + (", test sets dashed" if tested else "")
    words = f"Loss, and its {kind}"
    return draw.over_time(data, stages, words, panel, extra=rest, height=4.2)


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
@draw.shows(
    "Section 3.1 (attention stays small)",
    "Sec 4.1 (stage II)",
    "Fig 2C",
    "ours: focus is where attention turns",
    "ours: focus is weak under gradient flow",
)
def attention(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Attention of each query to the most frequent token: it focuses, then dilutes (Fig. 2C)."""
    lead = int(np.argmax(study.chain.pi))
    looks, rest = draw.tokens(study.chain.pi.tolist())
    given = data["attention"].sel(key=lead).values
    panel = Panel("attention (probability)", zip(looks, given.T, strict=True), limits=(-0.02, 1.05))
    words = f"Attention of each query token to token {lead}"
    return draw.over_time(data, stages, words, panel, extra=rest)


@draw.styled
@draw.shows("Fig 2D (1)")
def entropy(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Entropy of each query's attention, between one key and the law of the tokens (Fig. 2D1)."""
    looks, rest = draw.tokens(study.chain.pi.tolist())
    level = study.chain.unigram_entropy
    curves = zip(looks, data["attention_entropy"].values.T, strict=True)
    panel = Panel("entropy of attention (nats)", curves, {f"entropy of π, {level:.4f}": level})
    words = "Entropy of each query token's attention"
    return draw.over_time(data, stages, words, panel, extra=rest)


@draw.styled
@draw.shows(
    "Sec 4.1 (stage I, outer layers)",
    "Sec 4.1 (stage I, attention)",
    "Sec 4.1 (stage II)",
    "Sec 4.1 (stage III, rank one)",
)
def ranks(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Effective and stable rank of every matrix: condensation is the fall to one.

    Effective is exp of the entropy of the singular values, stable their squares' sum over the
    first's; both are 1 for a matrix of rank one.
    """
    panels = [
        Panel(f"{kind} rank (directions)", draw.each(data[f"{kind}_rank"]), log=True)
        for kind in ("effective", "stable")
    ]
    return draw.over_time(data, stages, "Ranks: condensation is the fall to one", *panels)


@draw.styled
@draw.shows(
    "Section 3.1 (single unstable direction)", "Sec 4.1 (stage IV)", "Thm 3.9 (fast normal)"
)
def singular(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Singular values of W0 and WQ: the directions appear one after the other."""
    panels = []
    for name in ("W0", "WQ"):
        values = data[f"singular_{name}"].values.T[:MODES]
        curves = [(f"mode {i + 1}", one) for i, one in enumerate(values)]
        panels.append(Panel(f"σ of {name} (weights)", curves, log=True))
    return draw.over_time(data, stages, "Singular values, largest first", *panels)


@draw.styled
@draw.shows(
    "Sec 4.1 (stage III)",
    "Sec 4.1 (stage III, App E)",
    "Sec 4.1 (stage IV)",
    "Sec 4.1 (after stage IV)",
    "ours: retraction is a change of sign",
)
def embeddings(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Norm of each token's embedding, and of its part off the leader's direction (Fig. 2D2, D3).

    The leader is the most frequent token; it has no part off its own direction.
    """
    lead = int(np.argmax(study.chain.pi))
    looks, rest = draw.tokens(study.chain.pi.tolist())
    norms, off = (list(zip(looks, data[n].values.T, strict=True)) for n in _EMBEDDING)
    off.pop(lead)
    panels = (
        Panel("norm (weights)", norms, log=True),
        Panel(f"part off token {lead} (weights)", off, log=True),
    )
    words = "Embeddings: retraction, then a new direction"
    return draw.over_time(data, stages, words, *panels, extra=rest, height=5.8)


_EMBEDDING = ("embedding_norm", "off_axis")


@draw.styled
@draw.shows("ours: the plateaus of a drawn speed")
def speed(data: xr.Dataset, stages: list[Stage], study: FocusDilution) -> Figure:
    """Speed of the flow and force on the read-out: the flow waits where the speed dips."""
    curves = [
        ("speed |θ′| (weights per time)", data["speed"].values),
        ("force, largest singular value of ∂L/∂M (nats)", data["force_M"].values),
    ]
    panel = Panel("size (units in the legend)", curves, log=True)
    return draw.over_time(data, stages, "Speed of the flow: it waits where this dips", panel)
