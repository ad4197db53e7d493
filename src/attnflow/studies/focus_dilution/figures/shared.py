"""What several figures of the study use: heat maps, moments, and the prediction of a run."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.studies.focus_dilution import timeline
from attnflow.studies.focus_dilution.timeline import Timeline

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from attnflow.observe.stages import Plateau, Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

MAIN = ("condensation", "focus", "dilution", "new direction", "in-manifold split")
"""Stages that a figure with room for few shows first."""

NUMBERED = 6
"""Up to this many tokens a map also says its numbers."""

UNIGRAM = 0.1
"""A plateau is the unigram one within this share of the way from that entropy to the floor."""

SMALL = 8.0
"""Points of the smallest text: it is still read where a page is as wide as a telephone."""


def heat(axes: Axes, values: np.ndarray, *, numbers: bool, cmap: str = "cividis") -> Any:
    """A matrix of probabilities as a picture, with its numbers where there are few."""
    image = axes.imshow(values, vmin=0, vmax=1, cmap=cmap, interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        if numbers and np.isfinite(value):
            shade = "black" if value > 0.6 else "white"
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=SMALL,
                color=shade,
                in_layout=False,
            )
    step = 1 + (max(values.shape) - 1) // 8
    axes.set_xticks(range(0, values.shape[1], step))
    axes.set_yticks(range(0, values.shape[0], step))
    axes.spines[:].set_visible(False)
    return image


def named(stage: Stage) -> str:
    """`focus`, and `focus 2` in the second cycle."""
    return stage.name if stage.cycle == 1 else f"{stage.name} {stage.cycle}"


def first(stages: Sequence[Stage], name: str, upto: float = np.inf) -> Stage | None:
    """The stage of the first cycle with this name, where it lies within the trajectory."""
    found = (s for s in stages if s.name == name and s.cycle == 1 and s.time <= upto)
    return next(found, None)


def said(axes: Axes, words: str) -> None:
    """A sentence in an axes that has nothing to show."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, fill(words, 44), ha="center", va="center", transform=axes.transAxes)


def waits(data: xr.Dataset, study: FocusDilution) -> list[Plateau]:
    """The measured plateaus from the unigram one on; empty where the run never waited there."""
    level, floor = study.chain.unigram_entropy, study.chain.floor
    found = study.plateaus(data)
    near = (i for i, p in enumerate(found) if abs(p.loss - level) < UNIGRAM * (level - floor))
    return found[next(near, len(found)) :]


def predicted(study: FocusDilution, scale: float | None = None) -> Timeline:
    """The timeline of this config (or of another scale of its start), in times of a flow."""
    if scale is None:
        return study.timeline
    return timeline.predict(study.chain, study.config.dim, scale)


def paced(study: FocusDilution) -> bool:
    """Whether the run's time is that of a flow: Adam's is not."""
    return study.config.mode != "adam"
