"""Figures of the two-mixture study: those of the paper by their description, and the laws.

`of` names them in the order in which a report shows them. Each is a function of a trajectory and
its stages; the first line of its docstring is its caption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnflow import draw
from attnflow.studies.two_mixture.figures import laws, maps, training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.studies.two_mixture.study import TwoMixture


def of(study: TwoMixture) -> draw.Figures:
    """The figures that make sense for this config, by file name.

    Those of K = 2 and of the laws are at L = 3; the laws need a start that is small enough for
    stages and a T1 beyond T0.5.
    """
    c, run = study.config, study.three_stages
    three = c.length == 3
    staged = three and c.omega < 1 and run.duration is not None
    chosen: dict[str, tuple[Callable[..., Figure], bool]] = {
        "losses": (training.losses, True),
        "neurons": (training.neurons, True),
        "scores": (training.scores, True),
        "attention-maps": (maps.attention_maps, True),
        "attention-only": (laws.attention_only, c.groups == 2 and three),
        "all-scores": (training.all_scores, c.groups <= 4),
        "score-map": (maps.score_map, True),
        "more-groups": (laws.more_groups, staged),
        "share": (training.share, True),
        "margin": (training.margin, True),
        "stage-2-law": (laws.stage_two, staged),
        "stage-3-law": (laws.stage_three, staged),
        "width": (laws.width, staged and c.groups == 2),
        "groups": (laws.groups, staged),
    }
    return {name: draw.bound(f, study=study) for name, (f, fits) in chosen.items() if fits}
