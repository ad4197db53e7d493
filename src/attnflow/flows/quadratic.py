"""A search for quadratic conserved quantities of a flow nobody has analysed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import FlowLike
from attnflow.flows.layout import Params

SEARCH_LIMIT = 60
"""Largest number of parameters searched over all of theta (x) theta."""

VERIFIED = 100
"""At fresh points dC/dt may be this many times the tolerance of the search."""


@dataclass(frozen=True)
class QuadraticInvariant:
    """`C(theta) = theta^T A theta + b.theta`, constant along the flow at every sampled point."""

    matrix: np.ndarray
    linear: np.ndarray
    residual: float
    """max |dC/dt| over fresh points, for (A, b) and its products with (theta, theta') of norm 1."""
    layout: Any

    @float64
    def __call__(self, theta: Params) -> Any:
        y = self.layout.join(theta)
        return y @ jnp.asarray(self.matrix) @ y + jnp.asarray(self.linear) @ y


@float64
def quadratic_invariants(
    flow: FlowLike, like: Params, *, seed: int = 0, tolerance: float = 1e-9
) -> list[QuadraticInvariant]:
    """All quadratic (and linear) functions that the flow conserves, by linear algebra.

    `dC/dt = (2 A theta + b) . theta'` is linear in (A, b): at enough random points the conserved
    ones are the null space of one matrix. Each is verified at fresh points. `like` gives the
    shapes; up to 60 parameters (the null space has n(n+3)/2 unknowns).

    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: (th["a"] * th["b"] - 1.0) ** 2)
    >>> [found] = quadratic_invariants(flow, {"a": np.ones(()), "b": np.ones(())})
    >>> np.allclose(found.matrix / found.matrix[0, 0], [[1, 0], [0, -1]])  # a^2 - b^2
    True
    """
    system = flow.bind(like)
    n = system.size
    if n > SEARCH_LIMIT:
        raise InputError("like", f"{n} parameters; the search takes at most {SEARCH_LIMIT}")
    pairs = np.triu_indices(n)
    unknowns = len(pairs[0]) + n
    rng = np.random.default_rng(seed)

    def rows(count: int) -> np.ndarray:
        matrix = np.empty((count, unknowns))
        out = np.empty(n)
        for row in matrix:
            y = rng.standard_normal(n)
            system.rhs(y, out)
            mixed = np.outer(y, out)
            mixed = mixed + mixed.T
            row[: len(pairs[0])] = np.where(pairs[0] == pairs[1], 0.5, 1.0) * mixed[pairs]
            row[len(pairs[0]) :] = out
            row /= max(float(np.linalg.norm(row)), 1e-300)
        return matrix

    # A third more points than unknowns: an accidental null vector does not survive them.
    _, singular, right = np.linalg.svd(rows(unknowns + unknowns // 3 + 8), full_matrices=True)
    singular = np.concatenate([singular, np.zeros(unknowns - len(singular))])
    null = right[singular <= tolerance * singular[0]]
    fresh = rows(unknowns)
    found = []
    for vector in null:
        matrix = np.zeros((n, n))
        matrix[pairs] = 0.5 * vector[: len(pairs[0])]
        matrix = matrix + matrix.T - np.diag(np.diag(matrix))
        residual = float(np.max(np.abs(fresh @ vector)))
        if residual > VERIFIED * tolerance:
            continue
        linear = vector[len(pairs[0]) :].copy()
        found.append(QuadraticInvariant(matrix, linear, residual, system.layout))
    return found
