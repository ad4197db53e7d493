"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .margin import Margin as Margin, largest_margin as largest_margin
from .spectral import (
    alignment as alignment,
    effective_rank as effective_rank,
    entropy_rank as entropy_rank,
    singular_values as singular_values,
    stable_rank as stable_rank,
)
from .stages import (
    Plateau as Plateau,
    Stage as Stage,
    first_time as first_time,
    plateaus as plateaus,
    summit as summit,
)
