"""Figures: the beginning of a training beside what corpus statistics foresee.

`of` names them in the order in which a report shows them. Each is a function of a trajectory and
its stages; the first line of its docstring is its caption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import draw
from attnflow.corpus import visible
from attnflow.draw import Panel
from attnflow.models.attention_lm import BLOCKS
from attnflow.studies.leading_terms import observables
from attnflow.studies.leading_terms.associations import BASES, associations, chosen_tokens

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnflow.observe.stages import Stage
    from attnflow.studies.leading_terms.study import LeadingTerms

NAMES = {"W_O": "output W_O", "V": "values V", "W": "attention W", "P": "positions P"}
MOST_POINTS = 4000
"""Entries of a weight that a scatter shows: the largest ones."""


def of(study: LeadingTerms) -> draw.Figures:
    """The figures by file name."""
    chosen = {
        "cosines": cosines,
        "weights": weights,
        "lengths": lengths,
        "interventions": interventions,
        "associations": table,
    }
    return {name: draw.bound(f, study=study) for name, f in chosen.items()}


@draw.styled
@draw.shows(
    "Fig 4",
    "Table 2",
    "Thm 4.1 (informal)",
    "ours: cosines within the window",
    "ours: cosines at t = 3.4",
)
def cosines(data: xr.Dataset, stages: list[Stage], study: LeadingTerms) -> Figure:
    """Counting pairs of words foretells what the model learns first: cosine of every learned weight
    with its closed form (worst layer), dotted the same closed form without word order; the dashed
    line is when it was to end, computed before training."""
    followed = study.followed(data)
    nulls = study.data.nulls["shuffled"]

    def also(axes: Any) -> None:
        for i, name in enumerate(BLOCKS):
            axes.axhline(nulls[name], color=draw.COLOURS[i], ls=":", lw=1.0)
        axes.axvline(study.breakdown, color="black", ls="--", lw=1.0)

    lines = [(NAMES[n], np.nanmin(_masked(f.cosine), axis=1)) for n, f in followed.items()]
    panels = (
        Panel("cosine (1)", lines, limits=(None, 1.03), also=also),
        Panel("loss (nats)", [(draw.Look("#000000", "-", "", 1.2), data["loss"].values)]),
    )
    return draw.over_time(data, stages, "Weights begin as corpus statistics say", *panels)


def _masked(cosine: np.ndarray) -> np.ndarray:
    """Before it moves a weight has no cosine; its column is drawn from where it has one."""
    return np.where(np.isfinite(cosine), cosine, 1.0)


@draw.styled
@draw.shows("Thm 4.1 (informal)", "Thm 4.1 (binomials)")
def weights(data: xr.Dataset, stages: list[Stage], study: LeadingTerms) -> Figure:
    """Learned entries at the end of the run over those of the closed form, layer 1; on the line
    they are equal."""
    known, trained = study.terms.leading(), study.trained
    figure, grid = draw.new(1, 3, height=3.2)
    for axes, name, colour in zip(grid, ("W_O", "V", "W"), draw.COLOURS, strict=False):
        first: Any = () if name == "W_O" else 0
        x = known[name][first].ravel()
        y = (trained[name] - study.start[name])[first].ravel()
        most = np.argsort(-np.abs(x))[:MOST_POINTS]
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, ends, color=draw.GREY, lw=1.0)
        axes.plot(x[most], y[most], ".", ms=2, color=colour, rasterized=True)
        axes.set_xlabel(f"closed form of {name} (1)")
        axes.ticklabel_format(style="sci", scilimits=(-2, 2))
    grid[0].set_ylabel("learned (1)")
    draw.title(figure, f"Entry by entry at {draw.moment(data['time'].values[-1])}")
    return figure


@draw.styled
@draw.shows("Thm 4.1 (binomials)", "ours: norms grow like t, t^2, t^4")
def lengths(data: xr.Dataset, stages: list[Stage], study: LeadingTerms) -> Figure:
    """Length of every weight's increment (layer 1) and, dashed, of its closed form: they grow as
    t, t², t⁴ and t⁴, so that outputs come first and attention last."""
    followed = study.followed(data)
    t = data["time"].values

    def also(axes: Any) -> None:
        for i, name in enumerate(BLOCKS):
            size = followed[name].length
            axes.plot(t[size > 0], size[size > 0], color=draw.COLOURS[i], ls="--", lw=0.9)

    lines = [
        (NAMES[n], np.where(f.norm[:, 0] > 0, f.norm[:, 0], np.nan)) for n, f in followed.items()
    ]
    panel = Panel("length of the increment (1)", lines, log=True, also=also)
    return draw.over_time(data, stages, "Outputs first, attention last", panel)


@draw.styled
@draw.shows("Table 3", "ours: replaced by its leading term")
def interventions(data: xr.Dataset, stages: list[Stage], study: LeadingTerms) -> Figure:
    """By how much the loss rises when one weight is changed at the end of the run (worst layer):
    replaced by its closed form, that form at the learned length, freed of it, or set to zero."""
    found = observables.causal(
        study.windows.loss, study.start, study.trained, study.terms.leading()
    )
    figure, axes = draw.new()
    width = 0.8 / len(observables.CHANGES)
    for i, kind in enumerate(observables.CHANGES):
        rises = [max(max(found[name][kind]), 1e-12) for name in BLOCKS]
        axes.bar(np.arange(4) + i * width, rises, width, color=draw.COLOURS[i], label=kind)
    axes.set_yscale("log")
    axes.set_xticks(np.arange(4) + 0.3, [NAMES[name] for name in BLOCKS])
    axes.set_ylabel("rise of the loss (nats)")
    draw.title(figure, "Outputs matter most, attention least")
    draw.legend(figure, axes)
    return figure


@draw.styled
@draw.shows(
    "Fig 5",
    "Section 4 (bigram mapping)",
    "Section 4 (interchangeability mapping)",
    "Section 4 (context mapping)",
)
def table(data: xr.Dataset, stages: list[Stage], study: LeadingTerms) -> Figure:
    """The nearest tokens of some words under each mapping of the corpus (frequencies divided
    out): what tends to follow, what it can be exchanged for, what stands before it (Fig. 5)."""
    corpus, found = study.data.corpus, study.data.theory
    words = chosen_tokens(found, 6)
    figure, axes = draw.new(height=0.42 * (len(words) + 1) * 1.6)
    axes.axis("off")
    rows = [
        [
            ", ".join(visible(corpus.vocabulary[j]) for j in associations(found, i, basis, 5))
            for basis in BASES
        ]
        for i in words
    ]
    made = axes.table(
        cellText=rows,
        rowLabels=[visible(corpus.vocabulary[i]) for i in words],
        colLabels=list(BASES.values()),
        loc="center",
        cellLoc="left",
    )
    made.auto_set_font_size(False)
    made.set_fontsize(draw.SMALL)
    made.scale(1, 1.5)
    draw.title(figure, "What the corpus associates")
    return figure
