"""The forces on hidden weights that a loss sees through their Gram: `H' = H N D`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow.flows.layout import Params
from attnflow.flows.users import UNTRACEABLE
from attnflow.reduce.columns import AnyArray, Gram, slices
from attnflow.reduce.declaration import ONLY, Declaration

Matrices: TypeAlias = dict[str, Any]
"""`Float[Array, "*many p p"]` per group, NumPy or JAX."""

Matrix = Float[AnyArray, "*many p p"]


@final
class Force:
    """`F = N D` of one group, by those of its blocks that are not zero, at most one a column.

    A loss that reads `K^T Q` alone has two blocks, half of F: products with it cost half as much,
    and where one of the blocks is a single column, a p-th.
    """

    def __init__(self, size: int, blocks: Sequence[tuple[slice, slice, Any]]):
        self.size, self.blocks = size, sorted(blocks, key=lambda b: b[1].start)

    def after(self, G: Matrix) -> Matrix:
        """`G F`."""
        parts, at = [], 0
        for rows, columns, block in self.blocks:
            parts += _gap(G, at, columns.start)
            left = G[..., :, rows]
            parts.append(left * block if left.shape[-1] == 1 else left @ block)
            at = columns.stop
        parts += _gap(G, at, self.size)
        return (np if isinstance(parts[0], np.ndarray) else jnp).concatenate(parts, axis=-1)

    def before(self, X: Matrix) -> Matrix:
        """`F^T X`."""
        return self.after(X.swapaxes(-1, -2)).swapaxes(-1, -2)

    @property
    def matrix(self) -> Matrix:
        """F itself."""
        first = self.blocks[0][2]
        eye = np.eye(self.size) * np.ones((*first.shape[:-2], 1, 1))
        return self.after(eye if isinstance(first, np.ndarray) else jnp.asarray(eye))


def _gap(G: Any, start: int, stop: int) -> list[Any]:
    """Columns of zeros where no block lies."""
    return [0 * G[..., :, start:stop]] if stop > start else []


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
        self._compiled = jax.jit(self._gradients)

    def loss(self, state: Params) -> Any:
        """L of a state, traceable."""
        return self._loss(*self._seen(*self.parts(state)))

    def parts(self, state: Params) -> tuple[Matrices, Any]:
        """The matrices of a state, and its rest."""
        return {g: G.matrix for g, G in self.declaration.grams(state).items()}, state.get("rest")

    def at(self, matrices: Matrices, rest: Any) -> tuple[dict[str, Force], Any]:
        """The forces and dL/drest, in the array type of what is given.

        By the closed form, with any leading axes, or by autodiff where there is none or it is
        written for NumPy alone and this is traced.
        """
        traced = any(isinstance(x, jax.Array) for x in jax.tree.leaves((matrices, rest)))
        if self.closed is not None:
            try:
                return self._closed(matrices, rest)
            except UNTRACEABLE:
                if not traced:
                    raise
        found = (self._gradients if traced else self._compiled)(matrices, rest)
        gradients, of_rest = found if traced else jax.tree.map(np.asarray, found)
        return {g: self._whole(g, -(x + x.T)) for g, x in gradients.items()}, of_rest

    def of_gradient(self, gradient: Params) -> dict[str, Force]:
        """The forces from a gradient in the coordinates of a state.

        A coordinate off the diagonal stands for two entries of G, one on it for a single one.
        """
        grams = self.declaration.grams(gradient)
        return {g: self._whole(g, -G.matrix * (1 + np.eye(G.size))) for g, G in grams.items()}

    def _closed(self, matrices: Matrices, rest: Any) -> tuple[dict[str, Force], Any]:
        assert self.closed is not None
        found = self.closed(*self._seen(matrices, rest))
        parts, of_rest = (found, None) if rest is None else found
        parts = parts if self.declaration.grouped else {ONLY: parts}
        return {g: self._of_blocks(g, parts[g]) for g in matrices}, of_rest

    def _gradients(self, matrices: Matrices, rest: Any) -> tuple[Matrices, Any]:
        loss = lambda *given: self._loss(*self._seen(*given))  # noqa: E731
        return jax.grad(loss, argnums=(0, 1))(matrices, rest)

    def _whole(self, group: str, N: Any) -> Force:
        p = len(self.diagonals[group])
        return Force(p, [(slice(0, p), slice(0, p), N * self.diagonals[group])])

    def _of_blocks(self, group: str, blocks: Mapping[tuple[str, str], Any]) -> Force:
        rates, at = self.diagonals[group], slices(self.declaration.groups[group])
        found: dict[tuple[str, str], Any] = {}
        for (left, right), g in blocks.items():
            for key, x in (((left, right), -g), ((right, left), -g.swapaxes(-1, -2))):
                found[key] = found[key] + x if key in found else x
        if len({right for _, right in found}) < len(found):  # two blocks in a column: as a whole
            xp = np if isinstance(next(iter(found.values())), np.ndarray) else jnp
            return self._whole(group, _dense(found, self.declaration.groups[group], xp))
        moved = {key: x * rates[at[key[1]]] for key, x in found.items()}
        return Force(len(rates), [(at[a], at[b], x) for (a, b), x in moved.items()])

    def _seen(self, matrices: Matrices, rest: Any) -> tuple[Any, ...]:
        """What the loss is called with."""
        seen: Any = {g: Gram.view(m, self.declaration.groups[g]) for g, m in matrices.items()}
        if not self.declaration.grouped:
            (seen,) = matrices.values() if self.declaration.raw else seen.values()
        return (seen,) if rest is None else (seen, rest)


def _dense(found: Mapping[tuple[str, str], Any], blocks: Any, xp: Any) -> Any:
    """The whole matrix of some blocks."""
    many = next(iter(found.values())).shape[:-2]

    def row(a: str, s: int) -> list[Any]:
        return [found.get((a, b), xp.zeros((*many, s, n))) for b, n in blocks]

    return xp.concatenate([xp.concatenate(row(a, s), axis=-1) for a, s in blocks], axis=-2)
