"""Parameters as equinox modules, their forward maps and their population flows."""

from attnflow.models.one_layer import OneLayerAttention, population_flow

__all__ = ["OneLayerAttention", "population_flow"]
