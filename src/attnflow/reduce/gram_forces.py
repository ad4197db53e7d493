"""The forces on hidden weights that a loss sees through their Gram: `H' = H N D`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import jax
import numpy as np

from attnflow.flows.layout import Params
from attnflow.reduce.columns import Gram
from attnflow.reduce.declaration import ONLY, Declaration

Matrices: TypeAlias = dict[str, Any]
"""`Float[Array, "*many p p"]` per group, NumPy or JAX."""


@final
class Forces:
    """`F = N D` of each group, `N = -(g + g^T)`, `g = dL/dG`, and the gradient in the rest.

    D is the diagonal of the learning rates of the columns; those of the rest are not in it.
    """

    def __init__(
        self,
        declaration: Declaration,
        rates: Mapping[str, float],
        loss: Callable[..., Any],
        gradient: Callable[..., Any] | None,
    ):
        self.declaration, self.closed = declaration, gradient
        self.diagonals, self.plain = declaration.per_column(rates, 1.0)
        """Rates of the columns of each group, and the keys that name no column."""
        self._loss = loss
        self._compiled = jax.jit(self.traced)

    def loss(self, state: Params) -> Any:
        """L of a state, traceable."""
        return self._loss(*self._seen(*self.parts(state)))

    def parts(self, state: Params) -> tuple[Matrices, Any]:
        """The matrices of a state, and its rest."""
        return {g: G.matrix for g, G in self.declaration.grams(state).items()}, state.get("rest")

    def traced(self, matrices: Matrices, rest: Any) -> tuple[Matrices, Any]:
        """The forces and dL/drest by autodiff."""
        loss = lambda *given: self._loss(*self._seen(*given))  # noqa: E731
        gradients, of_rest = jax.grad(loss, argnums=(0, 1))(matrices, rest)
        return {g: -(x + x.T) * self.diagonals[g] for g, x in gradients.items()}, of_rest

    def host(self, matrices: Matrices, rest: Any) -> tuple[Matrices, Any]:
        """The same in NumPy: by the closed form, with any leading axes, or compiled."""
        if self.closed is None:
            return jax.tree.map(np.asarray, self._compiled(matrices, rest))
        found = self.closed(*self._seen(matrices, rest))
        parts, of_rest = (found, None) if rest is None else found
        parts = parts if self.declaration.grouped else {ONLY: parts}
        return {g: self._assembled(g, parts[g], matrices[g]) for g in matrices}, of_rest

    def of_gradient(self, gradient: Params) -> Matrices:
        """The forces from a gradient in the coordinates of a state.

        A coordinate off the diagonal stands for two entries of G, one on it for a single one.
        """
        grams = self.declaration.grams(gradient)
        return {g: -G.matrix * (1 + np.eye(G.size)) * self.diagonals[g] for g, G in grams.items()}

    def _assembled(self, group: str, blocks: Mapping[tuple[str, str], Any], like: Any) -> Any:
        N = Gram.view(np.zeros(like.shape), self.declaration.groups[group])
        for (left, right), g in blocks.items():
            N[left, right][:] -= g
            N[right, left][:] -= g.swapaxes(-1, -2)
        return N.matrix * self.diagonals[group]

    def _seen(self, matrices: Matrices, rest: Any) -> tuple[Any, ...]:
        """What the loss is called with."""
        seen: Any = {g: Gram.view(m, self.declaration.groups[g]) for g, m in matrices.items()}
        if not self.declaration.grouped:
            (seen,) = matrices.values() if self.declaration.raw else seen.values()
        return (seen,) if rest is None else (seen, rest)
