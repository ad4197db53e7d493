"""Attention trained with fixed neurons (Appendix A.2), by descent at infinite width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnflow.models.two_head import tables
from attnflow.models.two_head_gram import gram_flow, head_scores, infinite_width_start
from attnflow.reduce import gram_descent
from attnflow.tasks.mixture import MixturePopulation


@dataclass(frozen=True)
class AttentionOnly:
    """One column for each choice of the neurons."""

    losses: Float[np.ndarray, "step draw"]
    accuracy: Float[np.ndarray, "draw"]


def attention_only(
    population: MixturePopulation,
    neurons: Float[np.ndarray, "draw head signal"],
    *,
    omega: float = 0.1,
    bias: float = 0.5,
    rate: float = 1.0,
    steps: int = 200,
) -> AttentionOnly:
    """Descent on keys and queries with each of these neurons kept as they are."""
    flow, t = gram_flow(population, bias, ("neurons",)), tables(population)
    starts = [infinite_width_start(population.groups, omega, w) for w in neurons]
    margins = gram_descent(
        flow,
        starts,
        rate,
        steps,
        keep=lambda s: population.label * t.predictions(s["rest"]["w"], head_scores(s), bias),
    ).rows
    right = margins[-1] > 1e-9
    return AttentionOnly(
        np.logaddexp(0.0, -margins) @ population.weight, 1 - ~right @ population.weight
    )
