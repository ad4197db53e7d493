"""Parameters as equinox modules, their forward maps and their population flows."""

from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.models.two_head import TwoHeadClassifier, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start, score_flow
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.models.value_mlp import ValueMLP

__all__ = [
    "OneLayerAttention",
    "SymmetricFlow",
    "TwoHeadClassifier",
    "ValueMLP",
    "gram_flow",
    "infinite_width_start",
    "population_flow",
    "score_flow",
    "symmetric_flow",
    "weight_flow",
]
