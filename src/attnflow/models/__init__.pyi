"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .one_layer import OneLayerAttention as OneLayerAttention, population_flow as population_flow
from .two_head import TwoHeadClassifier as TwoHeadClassifier, weight_flow as weight_flow
from .two_head_gram import (
    gram_flow as gram_flow,
    infinite_width_start as infinite_width_start,
    score_flow as score_flow,
)
from .two_head_reduced import SymmetricFlow as SymmetricFlow, symmetric_flow as symmetric_flow
from .value_mlp import ValueMLP as ValueMLP
