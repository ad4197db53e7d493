"""The statistics of a large vocabulary as a few components each, with their nulls: no V x V array.

What `corpus stats --rank R` stores. A statistic M is `left @ diag(values) @ right.T` with its R
largest singular values; `missed` estimates the norm of what they leave out, relative to M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, Int

from attnflow.corpus.matrix_free import RANK, Factors, MatrixFree, components
from attnflow.corpus.nulls import cosine, halves, permuted, shuffled
from attnflow.corpus.statistics import DIMS

if TYPE_CHECKING:
    import xarray as xr

NAMES = ("bigram", "context", "value", "g", "attention")
"""The matrices that are stored by their components; positions and frequencies are whole."""


@dataclass(frozen=True, eq=False)
class Factored:
    """The leading components of every statistic of these windows."""

    windows: Int[np.ndarray, "sequence place"] = field(repr=False)
    vocabulary: int
    rank: int = RANK

    @cached_property
    def free(self) -> MatrixFree:
        """The operators behind them."""
        return MatrixFree(self.windows, self.vocabulary, self.rank)

    @cached_property
    def factors(self) -> dict[str, Factors]:
        """The components of each matrix, the largest first."""
        operators = {name: getattr(self.free, name) for name in NAMES if name != "g"}
        found = {name: components(each, self.rank) for name, each in operators.items()}
        return {name: found.get(name, self.free.g) for name in NAMES}

    @property
    def position(self) -> Float64[np.ndarray, "lag"]:
        return self.free.position

    def breakdown(self, layers: int, threshold: float = 0.999) -> float:
        """`breakdown_time` from the leading components of `M = B Phi Phi^T`."""
        B, Phi = self.free.bigram, self.free.context
        loop = components(B @ Phi @ Phi.T, self.rank)
        pairs, p = self.free._pairs, self.free.unigram
        # |B|^2 = sum P(a,b)^2 - sum p(a)^2 / V, of sparse counts.
        square = float((pairs.data**2).sum()) / self.free.positions**2
        square -= float(p @ p) / self.vocabulary
        along = float(np.sum(loop.left * B.matmat(loop.right) * loop.values)) / square
        apart = np.sqrt(max(loop.norm**2 - along**2 * square, 0.0) / square)
        if not apart:
            return float("inf")
        return float(np.sqrt(6 * np.tan(np.arccos(threshold)) / (layers * apart)))

    def nulls(self, seed: int = 0) -> dict[str, dict[str, float]]:
        """Cosines of the components with those of null corpora, as `nulls` has them."""
        without_order = Factored(shuffled(self.windows, seed), self.vocabulary, self.rank)
        order = np.random.default_rng(seed).permutation(self.vocabulary)
        found: dict[str, dict[str, float]] = {}
        for name, f in self.factors.items():
            renamed = Factors(f.left[order], f.values, f.right[order])
            total = float(f.left.sum(axis=0) * f.values @ f.right.sum(axis=0))
            found[name] = {
                "shuffled": f.cosine(without_order.factors[name]),
                "permuted": f.cosine(renamed),
                "ones": total / (self.vocabulary * f.norm) if f.norm else float("nan"),
            }
        lags = self.position
        found["position"] = {
            "shuffled": cosine(lags, without_order.position),
            "permuted": cosine(lags, permuted(lags, seed)),
            "ones": cosine(lags, np.ones_like(lags)),
        }
        parts = [Factored(half, self.vocabulary, self.rank) for half in halves(self.windows)]
        for name in NAMES:
            found[name]["halves"] = parts[0].factors[name].cosine(parts[1].factors[name])
        found["position"]["halves"] = cosine(parts[0].position, parts[1].position)
        return found

    def dataset(self, tokens: Sequence[str]) -> xr.Dataset:
        """`NAME_left[row, component]`, `NAME_values[component]`, `NAME_right[column, component]`;
        frequencies, positions and the token list as in the dense store, and every pair that occurs
        with its count."""
        import xarray as xr

        pairs = self.free._pairs.tocoo()
        arrays: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
            "unigram": (("current",), self.free.unigram),
            "position": (("lag",), self.position),
            # Pairs are few: they are stored as they are, beside the components of B.
            "pair_current": (("pair",), pairs.row.astype(np.int32)),
            "pair_next": (("pair",), pairs.col.astype(np.int32)),
            "pair_count": (("pair",), pairs.data.astype(np.int64)),
        }
        for name, f in self.factors.items():
            row, column = DIMS[name]
            arrays[f"{name}_left"] = ((row, f"{name}_component"), f.left)
            arrays[f"{name}_values"] = ((f"{name}_component",), f.values)
            arrays[f"{name}_right"] = ((column, f"{name}_component"), f.right)
        found = xr.Dataset(arrays, {"token": ("token", np.array(list(tokens), dtype=np.str_))})
        missed = {f"{n}_missed": f.missed / (f.norm or 1.0) for n, f in self.factors.items()}
        return found.assign_attrs(
            vocabulary=self.vocabulary,
            context=self.windows.shape[1] - 1,
            sequences=len(self.windows),
            rank=self.rank,
            **missed,
        )
