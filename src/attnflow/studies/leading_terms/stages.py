"""The stages of a run: while weights follow their leading terms, and when each leaves them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnflow.models.attention_lm import BLOCKS
from attnflow.observe.stages import Stage
from attnflow.studies.leading_terms.observables import Followed, crossing

COSINE = 0.999
"""A weight has left its leading term when its cosine with it falls below this."""


def find(time: np.ndarray, weights: Mapping[str, Followed]) -> list[Stage]:
    """The stages; of a weight with several layers the first one counts."""
    found = [Stage("leading terms", 0.0, 1, "every weight is its leading term, up to its length")]
    for name in BLOCKS:
        gap = np.nan_to_num(weights[name].gap)
        left = [(t, l) for l in range(gap.shape[1]) if (t := crossing(time, gap[:, l], 1 - COSINE))]
        if left:
            t, layer = min(left)
            where = "" if gap.shape[1] == 1 else f" of layer {layer + 1}"
            words = f"the cosine of {name}{where} with its leading term falls below {COSINE}"
            found.append(Stage(f"{name} leaves", t, 1, words))
    return sorted(found, key=lambda stage: stage.time)
