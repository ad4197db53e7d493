"""Figures of the focus-dilution study: the panels of Fig. 1 and 2, and maps of what is predicted.

`of` names them in the order in which a report shows them. Each is a function of a trajectory and
its stages; the first line of its docstring is its caption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnflow import draw
from attnflow.studies.focus_dilution.figures import maps, panels, prediction, training, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.studies.focus_dilution.study import FocusDilution


def of(study: FocusDilution) -> draw.Figures:
    """The figures that make sense for this config, by file name.

    Times of a flow are predicted, so Adam's steps get no timeline. The maps need a two-term chain,
    and a law that condenses.
    """
    config, chain = study.config, study.chain
    table, paced = config.data != "population", config.mode != "adam"
    uneven, two_term = bool(np.ptp(chain.pi) > 1e-12), chain.lam is not None
    chosen: dict[str, tuple[Callable[..., Figure], bool]] = {
        "loss": (training.loss, True),
        "setting": (panels.setting, True),
        "attention": (training.attention, True),
        "attention-maps": (panels.attention_maps, True),
        "attention-maps-data": (panels.data_attention_maps, table),
        "entropy": (training.entropy, True),
        "condensation": (weights.condensation, True),
        "ranks": (training.ranks, True),
        "singular": (training.singular, True),
        "embeddings": (training.embeddings, True),
        "embedding-paths": (weights.embedding_paths, True),
        "amplitudes": (prediction.amplitudes, True),
        "timeline": (prediction.timeline, uneven and paced),
        "speed": (training.speed, True),
        "map-instability": (maps.instability, two_term and chain.tokens >= 3),
        "map-cleanliness": (maps.cleanliness, two_term and uneven and paced),
        "map-length": (maps.length, two_term),
    }
    return {name: draw.bound(f, study=study) for name, (f, fits) in chosen.items() if fits}
