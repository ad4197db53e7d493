"""What several figures of the study use: its stages and plateaus, and the prediction of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnflow.studies.focus_dilution import timeline
from attnflow.studies.focus_dilution.timeline import Timeline

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.observe.stages import Plateau, Stage
    from attnflow.studies.focus_dilution.study import FocusDilution

MAIN = ("condensation", "focus", "dilution", "new direction", "in-manifold split")
"""The main stages: a figure with little room shows these first."""

NUMBERED = 6
"""A map of at most this many tokens also prints its numbers."""

UNIGRAM = 0.1
"""A plateau is the unigram one within this share of the way from that entropy to the floor."""


def first(stages: Sequence[Stage], name: str, upto: float = np.inf) -> Stage | None:
    """The stage of the first cycle with this name, where it lies within the trajectory."""
    found = (s for s in stages if s.name == name and s.cycle == 1 and s.time <= upto)
    return next(found, None)


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
