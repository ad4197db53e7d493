"""Statistics of a vocabulary so large that V x V numbers do not fit: operators instead of matrices.

A bigram matrix is sparse plus rank one. `Phi v` is a prefix sum along each window and `Phi^T u`
a suffix sum. `G = B^T B Phi` falls off fast (on text, the sixteenth singular value is a millionth
of the first), so a few components of it, `G ~ R S^T`, give Q as an operator too: with the prefix
sums `s_t = sum_{j<=t} S[x_j]` and `M_t = sum_{j<=t} S[x_j] v[x_j]^T`,

    (Q v)[x_t] += (R[y_t] M_t - (R[y_t] . s_t / t) sum_{j<=t} v[x_j]) / t.

Each product costs one walk through the text. Singular vectors come from random blocks of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from attnflow._errors import InputError, whole
from attnflow.corpus import kernels
from attnflow.corpus.kernels import compiled

Windows = Int[np.ndarray, "sequence place"]

RANK = 24
SPARE = 10
"""Random directions beyond those asked for, and below, rounds of power iteration: together they
leave the components as exact as the gap to the next one allows."""
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Factors:
    """A matrix of low rank, `left @ diag(values) @ right.T`, the largest component first."""

    left: Float64[np.ndarray, "row component"] = field(repr=False)
    values: Float64[np.ndarray, "component"]
    right: Float64[np.ndarray, "column component"] = field(repr=False)
    missed: float = 0.0
    """An estimate of the norm of what the components leave out."""

    @property
    def norm(self) -> float:
        """The Frobenius norm of the components."""
        largest = float(self.values.max(initial=0.0))
        return largest and largest * float(np.linalg.norm(self.values / largest))

    def inner(self, other: Factors) -> float:
        """The sum of products of entries, without the entries."""
        left, right = self.left.T @ other.left, self.right.T @ other.right
        return float(self.values @ (left * right) @ other.values)

    def cosine(self, other: Factors) -> float:
        """The cosine between two matrices, each by its components; nan where one is zero."""
        ours, theirs = self._scaled(), other._scaled()
        if ours is None or theirs is None:
            return float("nan")
        return ours.inner(theirs)

    def _scaled(self) -> Factors | None:
        if not 0 < self.norm < np.inf:
            return None
        return Factors(self.left, self.values / self.norm, self.right)

    def rows(self, index: Int[np.ndarray, "row"]) -> Float64[np.ndarray, "row column"]:
        """Some rows of the matrix, with all their entries."""
        return (self.left[index] * self.values) @ self.right.T

    def dense(self) -> Float64[np.ndarray, "row column"]:
        """The matrix itself, where it fits."""
        return (self.left * self.values) @ self.right.T


@dataclass(frozen=True, eq=False)
class MatrixFree:
    """The statistics of windows as operators (`scipy.sparse.linalg.LinearOperator`).

    `rank` components of G stand for it; on natural text 24 give Q to about 1e-7 of its norm.
    """

    windows: Windows = field(repr=False)
    vocabulary: int
    rank: int = RANK
    seed: int = 0

    def __post_init__(self) -> None:
        size = whole("vocabulary", self.vocabulary, 2)
        whole("rank", self.rank)
        object.__setattr__(self, "windows", kernels.checked(self.windows, size))

    @property
    def positions(self) -> int:
        return self.windows.shape[0] * (self.windows.shape[1] - 1)

    @cached_property
    def unigram(self) -> Float64[np.ndarray, "current"]:
        """How frequent each token is among the inputs."""
        return np.asarray(self._pairs.sum(axis=1)).ravel() / self.positions

    @cached_property
    def _pairs(self) -> Any:
        """Counts `[current, next]`, sparse."""
        from scipy.sparse import coo_array

        now, following = self.windows[:, :-1].ravel(), self.windows[:, 1:].ravel()
        shape = (self.vocabulary, self.vocabulary)
        return coo_array((np.ones(len(now)), (now, following)), shape=shape).tocsr()

    @cached_property
    def _pairs_transposed(self) -> Any:
        return self._pairs.T.tocsr()

    @cached_property
    def bigram(self) -> Any:
        """`B[current, next]`."""

        def times(v: np.ndarray) -> np.ndarray:
            return self._pairs @ v / self.positions - np.outer(self.unigram, v.mean(axis=0))

        def transposed(u: np.ndarray) -> np.ndarray:
            found = self._pairs_transposed @ u / self.positions
            return found - (self.unigram @ u) / self.vocabulary

        return self._operator(times, transposed)

    @cached_property
    def context(self) -> Any:
        """`Phi[next, context]`."""

        def times(v: np.ndarray) -> np.ndarray:
            found = self._walk(_context_times, v)
            return found - found.mean(axis=0)

        def transposed(u: np.ndarray) -> np.ndarray:
            return self._walk(_context_transposed, u - u.mean(axis=0))

        return self._operator(times, transposed)

    @cached_property
    def value(self) -> Any:
        """`K[context, stream] = Phi^T B^T`."""
        return self.context.T @ self.bigram.T

    @cached_property
    def g(self) -> Factors:
        """The leading components of `G[next, context] = B^T B Phi`."""
        return components(self.bigram.T @ self.bigram @ self.context, self.rank, seed=self.seed)

    @cached_property
    def attention(self) -> Any:
        """`Q[query, key]` of the leading components of G."""
        label, context = self.g.left * self.g.values, np.ascontiguousarray(self.g.right)
        return self.attention_of(label, context)

    def attention_of(
        self, label: Float64[np.ndarray, "label _"], context: Float64[np.ndarray, "context _"]
    ) -> Any:
        """The operator Q with the table `label @ context.T` in place of G."""
        if label.shape != context.shape or len(label) != self.vocabulary:
            raise InputError(
                "table", f"of factors {label.shape} and {context.shape}; V x rank each"
            )
        label, context = (np.ascontiguousarray(a, np.float64) for a in (label, context))
        return self._operator(
            lambda v: self._walk(_attention_times, v, label, context),
            lambda u: self._walk(_attention_transposed, u, label, context),
        )

    @cached_property
    def position(self) -> Float64[np.ndarray, "lag"]:
        """`Delta` of the leading components of G, by correlating labels with contexts."""
        label, context = self.g.left * self.g.values, self.g.right
        length = self.windows.shape[1] - 1
        share = 1 / np.arange(1, length + 1)
        sums = np.zeros(2 * length)
        means = np.zeros(length)
        each = max(1, 2_000_000 // (length * self.rank))
        for at in range(0, len(self.windows), each):
            part = self.windows[at : at + each]
            asked = label[part[:, 1:]] * share[:, None]
            read = context[part[:, :-1]]
            product = np.fft.rfft(asked, 2 * length, axis=1)
            product *= np.conj(np.fft.rfft(read, 2 * length, axis=1))
            sums += np.fft.irfft(product.sum(axis=(0, 2)), 2 * length)
            means += np.sum(asked * np.cumsum(read, axis=1), axis=(0, 2)) * share
        # Every lag below t loses the mean of position t.
        return (sums[:length] - np.cumsum(means[::-1])[::-1]) / self.positions

    def _walk(self, loop: Callable[..., Any], v: np.ndarray, *tables: np.ndarray) -> np.ndarray:
        out = np.zeros((self.vocabulary, v.shape[1]))
        compiled(loop)(self.windows, np.ascontiguousarray(v, np.float64), *tables, out)
        return out / self.positions

    def _operator(self, times: Callable[..., Any], transposed: Callable[..., Any]) -> Any:
        from scipy.sparse.linalg import LinearOperator

        of_functions: Any = LinearOperator  # its constructor makes another class of functions

        def block(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda v: function(v.reshape(self.vocabulary, -1)).reshape(v.shape)

        return of_functions(
            shape=(self.vocabulary, self.vocabulary),
            matvec=block(times),
            rmatvec=block(transposed),
            matmat=block(times),
            rmatmat=block(transposed),
            dtype=np.float64,
        )


def components(operator: Any, rank: int = RANK, *, seed: int = 0) -> Factors:
    """The leading singular components of an operator, from products with random blocks."""
    rows, columns = operator.shape
    rank = min(whole("rank", rank), rows, columns)
    width = min(rank + SPARE, rows, columns)
    rng = np.random.default_rng(seed)
    basis = _orthonormal(operator.matmat(rng.normal(size=(columns, width))))
    for _ in range(ROUNDS - 1):
        basis = _orthonormal(operator.matmat(_orthonormal(operator.rmatmat(basis))))
    right, values, turn = np.linalg.svd(operator.rmatmat(basis), full_matrices=False)
    probes = operator.matmat(rng.normal(size=(columns, SPARE)))
    left = (basis @ turn.T)[:, :rank]
    outside = probes - left @ (left.T @ probes)
    missed = float(np.linalg.norm(outside)) / np.sqrt(SPARE)
    return Factors(left, values[:rank], np.ascontiguousarray(right[:, :rank]), missed)


def _orthonormal(block: np.ndarray) -> np.ndarray:
    return np.linalg.qr(block)[0]


def _context_times(windows, v, out):
    rows, places = windows.shape
    width = v.shape[1]
    prefix = np.zeros(width)
    for n in range(rows):
        prefix[:] = 0.0
        for t in range(places - 1):
            share = 1.0 / (t + 1)
            x, y = windows[n, t], windows[n, t + 1]
            for k in range(width):
                prefix[k] += v[x, k]
            for k in range(width):
                out[y, k] += prefix[k] * share


def _context_transposed(windows, u, out):
    rows, places = windows.shape
    width = u.shape[1]
    suffix = np.zeros(width)
    for n in range(rows):
        suffix[:] = 0.0
        for t in range(places - 2, -1, -1):
            share = 1.0 / (t + 1)
            x, y = windows[n, t], windows[n, t + 1]
            for k in range(width):
                suffix[k] += u[y, k] * share
            for k in range(width):
                out[x, k] += suffix[k]


def _attention_times(windows, v, label, context, out):
    rows, places = windows.shape
    width, rank = v.shape[1], label.shape[1]
    outer = np.zeros((rank, width))
    read = np.zeros(rank)
    prefix = np.zeros(width)
    found = np.zeros(width)
    for n in range(rows):
        outer[:] = 0.0
        read[:] = 0.0
        prefix[:] = 0.0
        for t in range(places - 1):
            share = 1.0 / (t + 1)
            x, y = windows[n, t], windows[n, t + 1]
            mean = 0.0
            for k in range(width):
                prefix[k] += v[x, k]
                found[k] = 0.0
            for i in range(rank):
                c, r = context[x, i], label[y, i]
                read[i] += c
                mean += r * read[i]
                for k in range(width):
                    outer[i, k] += c * v[x, k]
                    found[k] += r * outer[i, k]
            mean *= share
            for k in range(width):
                out[x, k] += (found[k] - mean * prefix[k]) * share


def _attention_transposed(windows, u, label, context, out):
    rows, places = windows.shape
    width, rank = u.shape[1], label.shape[1]
    outer = np.zeros((rank, width))
    read = np.zeros(rank)
    mean = np.zeros(places)
    suffix = np.zeros(width)
    found = np.zeros(width)
    for n in range(rows):
        read[:] = 0.0
        for t in range(places - 1):
            mean[t] = 0.0
            x, y = windows[n, t], windows[n, t + 1]
            for i in range(rank):
                read[i] += context[x, i]
                mean[t] += label[y, i] * read[i]
            mean[t] /= t + 1
        outer[:] = 0.0
        suffix[:] = 0.0
        for t in range(places - 2, -1, -1):
            share = 1.0 / (t + 1)
            x, y = windows[n, t], windows[n, t + 1]
            for k in range(width):
                found[k] = 0.0
                suffix[k] += mean[t] * share * u[x, k]
            for i in range(rank):
                c, r = context[x, i], label[y, i] * share
                for k in range(width):
                    outer[i, k] += r * u[x, k]
                    found[k] += c * outer[i, k]
            for k in range(width):
                out[x, k] += found[k] - suffix[k]
