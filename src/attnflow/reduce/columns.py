"""Column blocks of hidden weights and the Gram matrix of all their inner products."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import jax
import numpy as np
from jaxtyping import Array, Float

from attnflow._errors import InputError, nearest, shown, whole

Blocks: TypeAlias = tuple[tuple[str, int], ...]
"""Names and sizes of the column blocks, in the order of the columns."""

AnyArray: TypeAlias = Array | np.ndarray

PSD_TOLERANCE = 1e-9
"""How far below 0 an eigenvalue may be, and how asymmetric a Gram, over the largest eigenvalue:
rounding and the error of a solve, nothing more."""


@final
@jax.tree_util.register_pytree_with_keys_class
class Gram:
    """`G = H^T H` for hidden weights H (width x p) whose columns come in named blocks.

    `G["K", "Q"]` is `K^T Q`, `G["K"]` is `K^T K`, `G.matrix` is the whole. As a pytree it is the
    p(p+1)/2 numbers of its upper triangle, so that a flow of it has no redundant coordinates.
    Many Grams at once have leading axes in front of these.

    >>> G = Gram(np.eye(3), {"K": 1, "Q": 2})
    >>> G["K", "Q"]
    array([[0., 0.]])
    """

    def __init__(self, matrix: Any, blocks: Mapping[str, int] | Blocks):
        self.blocks = declared(blocks)
        self._matrix: Any = checked(matrix, sum(size for _, size in self.blocks))
        self._upper: Any = None

    @classmethod
    def view(cls, matrix: Any, blocks: Blocks) -> Gram:
        """The same without checks, for traced code: any array type, symmetric or not."""
        gram = object.__new__(cls)
        gram.blocks, gram._matrix, gram._upper = blocks, matrix, None
        return gram

    @property
    def size(self) -> int:
        """p, the number of columns."""
        return sum(size for _, size in self.blocks)

    @property
    def matrix(self) -> Float[AnyArray, "*many p p"]:
        """The p x p matrix, same array type as what it was made of."""
        if self._matrix is None:
            self._matrix = _take(self._upper, _places(self.size)[0])
        return self._matrix

    @property
    def upper(self) -> Float[AnyArray, "*many pairs"]:
        """The upper triangle, row by row: the coordinates of the reduced flow."""
        return self._packed()

    def fill(self, matrix: np.ndarray) -> None:
        """Write a symmetric matrix into the triangle, in place."""
        matrix.take(_places(len(matrix))[1], out=self._upper, mode="clip")

    def __getitem__(self, names: str | tuple[str, str]) -> Float[AnyArray, "*many left right"]:
        left, right = (names, names) if isinstance(names, str) else names
        return self.matrix[..., self.columns(left), self.columns(right)]

    def permute(self, order: Sequence[int], signs: Sequence[float] | None = None) -> Gram:
        """The Gram after `H -> H[:, order] * signs`: how a relabelling of the columns acts."""
        at, sign = np.asarray(order), np.ones(self.size) if signs is None else np.asarray(signs)
        return Gram.view(self.matrix[..., at[:, None], at] * np.outer(sign, sign), self.blocks)

    def columns(self, name: str) -> slice:
        """Where the columns of a block lie."""
        known = slices(self.blocks)
        if name in known:
            return known[name]
        raise InputError("gram", f"{name!r} is not a block of columns; {nearest(str(name), known)}")

    def _packed(self) -> Any:
        # Unannotated: tree utilities put anything where the leaf was.
        if self._upper is None:
            m = self._matrix
            self._upper = _take(m.reshape(*m.shape[:-2], self.size**2), _places(self.size)[1])
        return self._upper

    def __repr__(self) -> str:
        return f"Gram({', '.join(f'{name}: {size}' for name, size in self.blocks)})"

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("upper"), self._packed()),), self.blocks

    def tree_flatten(self) -> Any:
        return (self._packed(),), self.blocks

    @classmethod
    def tree_unflatten(cls, blocks: Blocks, children: Any) -> Gram:
        gram = object.__new__(cls)
        gram.blocks, gram._matrix, gram._upper = blocks, None, children[0]
        return gram


def gram(weights: Mapping[str, Any]) -> Gram:
    """The Gram of column blocks, each width x size: `gram({"K": WK, "Q": WQ})`."""
    if not isinstance(weights, Mapping) or not weights:
        raise InputError("weights", f"{shown(weights)}; a dictionary of arrays, each width x size")
    arrays = {name: hidden(name, array) for name, array in weights.items()}
    return project(arrays, tuple((n, a.shape[1]) for n, a in arrays.items()))


def project(arrays: Mapping[str, np.ndarray], blocks: Blocks, xp: Any = np) -> Gram:
    """`H^T H` of checked blocks; one matrix product over the width."""
    widths = {name: arrays[name].shape[0] for name, _ in blocks}
    if len(set(widths.values())) > 1:
        raise InputError("weights", f"widths {shown(str(widths))}; blocks of one Gram share theirs")
    stacked = xp.concatenate([arrays[name] for name, _ in blocks], axis=1)
    return Gram.view(stacked.T @ stacked, blocks)


def hidden(name: str, array: Any, size: int | None = None) -> np.ndarray:
    """One block of columns as float64, or the sentence that says why it is none."""
    try:
        out = np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"weights.{name}", f"{shown(array)}; a width x size array") from None
    if out.ndim != 2 or (size is not None and out.shape[1] != size):
        expected = "width x size" if size is None else f"width x {size}"
        hint = " (transpose it?)" if out.ndim == 2 and out.shape[0] == size else ""
        raise InputError(f"weights.{name}", f"shape {out.shape}; {expected}{hint}")
    if not np.isfinite(out).all():
        raise InputError(f"weights.{name}", "a NaN or infinite entry; weights are finite")
    return out


def declared(blocks: Any) -> Blocks:
    """Names and sizes, checked."""
    pairs = tuple(blocks.items()) if isinstance(blocks, Mapping) else tuple(blocks)
    if not pairs:
        raise InputError("blocks", "empty; name at least one block of columns and its size")
    for name, size in pairs:
        if not isinstance(name, str) or not name or "." in name:
            raise InputError("blocks", f"{name!r}; a name is a non-empty word without dots")
        whole(f"blocks.{name}", size)
    return tuple((name, int(size)) for name, size in pairs)


@functools.lru_cache(maxsize=256)
def slices(blocks: Blocks) -> dict[str, slice]:
    """Where the columns of each block lie."""
    ends = np.cumsum([size for _, size in blocks]).tolist()
    return {n: slice(end - size, end) for (n, size), end in zip(blocks, ends, strict=True)}


def checked(matrix: Any, p: int) -> np.ndarray:
    """A symmetric positive semidefinite p x p matrix as float64, or the sentence."""
    try:
        m = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("gram", f"{shown(matrix)}; a {p} x {p} matrix") from None
    if m.shape != (p, p):
        raise InputError("gram", f"shape {m.shape}; the blocks have {p} columns, so {(p, p)}")
    if not np.isfinite(m).all():
        raise InputError("gram", "a NaN or infinite entry; inner products are finite")
    skew = float(np.abs(m - m.T).max())
    if skew > PSD_TOLERANCE * np.abs(m).max():
        raise InputError("gram", f"not symmetric (entries differ by {skew:.2g}); H^T H is")
    m = 0.5 * (m + m.T)
    values = np.linalg.eigvalsh(m)
    if values[0] < -PSD_TOLERANCE * max(values[-1], 0.0):
        raise InputError(
            "gram", f"has the eigenvalue {values[0]:.3g}; H^T H is positive semidefinite"
        )
    return m


def _take(numbers: AnyArray, index: np.ndarray) -> Any:
    """`numbers[..., index]`, which JAX need not check."""
    if isinstance(numbers, np.ndarray):
        return numbers.take(index, axis=-1)
    return numbers.at[..., index].get(mode="promise_in_bounds")


@functools.lru_cache(maxsize=256)
def _places(p: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each entry of the matrix lies in the triangle, and the triangle in the flat matrix."""
    rows, columns = np.triu_indices(p)
    index = np.empty((p, p), dtype=np.int32)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows), dtype=np.int32)
    return index, (rows * p + columns).astype(np.int32)
