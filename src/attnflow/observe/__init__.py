"""Pure measurements of parameters, and the stages found from them."""

from attnflow.observe.margin import Margin, largest_margin
from attnflow.observe.spectral import (
    alignment,
    effective_rank,
    entropy_rank,
    singular_values,
    stable_rank,
)
from attnflow.observe.stages import Plateau, Stage, first_time, plateaus, summit

__all__ = [
    "Margin",
    "Plateau",
    "Stage",
    "alignment",
    "effective_rank",
    "entropy_rank",
    "first_time",
    "largest_margin",
    "plateaus",
    "singular_values",
    "stable_rank",
    "summit",
]
