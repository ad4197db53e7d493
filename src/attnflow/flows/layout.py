"""How a pytree of parameters lies in one flat vector: engines see vectors, users see trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, nearest

Params: TypeAlias = Any
"""A pytree of float arrays: a dict, a tuple, an equinox module."""

Vector: TypeAlias = Float[np.ndarray, "size"]

Shares: TypeAlias = Float[np.ndarray, "gate"]
"""One number in [0, 1] per gate: 0 off, 1 on, between them while it slides."""


@dataclass(frozen=True)
class Block:
    """One array of the tree: its path (`W0`, `layers.0.W`), shape and place in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Layout:
    """The bijection between a pytree of parameters and a float64 vector.

    Leaves that are not numbers (an activation function, a name) are kept aside and put back.
    `unflatten` gives views of the vector, NumPy or JAX, whichever it is given.
    """

    def __init__(self, theta: Params):
        paths, self._tree = jax.tree_util.tree_flatten_with_path(theta)
        self._fixed: list[Any] = []
        blocks: list[Block] = []
        at = 0
        for path, leaf in paths:
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
            if not isinstance(leaf, np.ndarray | jax.Array | np.generic | float | int | complex):
                self._fixed.append(leaf)
                continue
            dtype = getattr(leaf, "dtype", None) or np.result_type(leaf)
            if not np.issubdtype(dtype, np.floating):
                raise InputError(
                    f"start.{name}",
                    f"dtype {dtype}; parameters are float arrays (write 1.0 rather than 1)",
                )
            shape = np.shape(leaf)
            size = int(np.prod(shape, dtype=int))
            blocks.append(Block(name, shape, at, at + size))
            self._fixed.append(blocks[-1])
            at += size
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.size = at
        if at == 0:
            raise InputError("start", "no float array in it; a flow needs at least one parameter")

    @property
    def signature(self) -> Any:
        """Hashable: two starts with the same signature share compiled functions."""
        aside = tuple(None if isinstance(leaf, Block) else id(leaf) for leaf in self._fixed)
        return self._tree, self.blocks, aside

    def flatten(self, theta: Params) -> Vector:
        """The tree as a new float64 vector."""
        y = np.empty(self.size)
        for block, leaf in zip(self.blocks, self._numbers(theta, "start"), strict=True):
            y[block.start : block.stop] = np.asarray(leaf, dtype=np.float64).ravel()
        return y

    def unflatten(self, y: Any) -> Params:
        """The vector as a tree of views (same array type as `y`)."""
        leaves = [
            y[leaf.start : leaf.stop].reshape(leaf.shape) if isinstance(leaf, Block) else leaf
            for leaf in self._fixed
        ]
        return jax.tree_util.tree_unflatten(self._tree, leaves)

    def stacked(self, blocks: Sequence[Any]) -> Params:
        """The tree with one array per block, such as one with a further first axis."""
        arrays = iter(blocks)
        leaves = [next(arrays) if isinstance(leaf, Block) else leaf for leaf in self._fixed]
        return jax.tree_util.tree_unflatten(self._tree, leaves)

    def join(self, theta: Params, field: str = "theta") -> jax.Array:
        """The tree as one JAX vector: `flatten` for traced code."""
        import jax.numpy as jnp

        return jnp.concatenate([jnp.ravel(leaf) for leaf in self._numbers(theta, field)])

    def numpy(self, y: Vector) -> Params:
        """The vector as a tree of NumPy copies, safe to keep."""
        return self.unflatten(np.array(y, dtype=np.float64))

    def per_block(self, values: dict[str, float], default: float, field: str) -> np.ndarray:
        """One number per block; a key names a block or everything below a path."""
        out = np.full(len(self.blocks), default)
        names = [block.name for block in self.blocks]
        for key, value in values.items():
            hit = [i for i, n in enumerate(names) if n == key or n.startswith(key + ".")]
            if not hit:
                raise InputError(f"{field}.{key}", f"no such block; {nearest(key, names)}")
            out[hit] = value
        return out

    def _numbers(self, theta: Params, field: str) -> list[Any]:
        leaves, tree = jax.tree_util.tree_flatten(theta)
        if tree != self._tree:
            raise InputError(field, f"structure {tree} where the flow was bound to {self._tree}")
        numbers = []
        for leaf, block in zip(leaves, self._fixed, strict=True):
            if not isinstance(block, Block):
                continue
            # A transposed matrix has the right size and the wrong meaning.
            if np.shape(leaf) != block.shape:
                raise InputError(
                    f"{field}.{block.name}", f"shape {np.shape(leaf)}; the block's is {block.shape}"
                )
            numbers.append(leaf)
        return numbers


def squared_norm(y: Vector) -> float:
    """|y|^2 without BLAS: a threaded dot product stalls when the other core is busy."""
    return float(np.einsum("i,i", y, y))
