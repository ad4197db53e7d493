"""What the first steps of an attention language model read from its corpus (arXiv 2601.19208).

With one-hot inputs X (T x V), labels Y, `U = 1/V` everywhere, uniform attention A0 and `mean` over
the N sequences and T positions:

    bigram          B = mean X^T (Y - U)              [current, next]
    interchange     Sigma = B^T B                     [next, next]
    context         Phi = mean (Y - U)^T A0 X         [next, context]
    value           K = Phi^T B^T                     [context, stream]
    g               G = Sigma Phi = B^T B Phi         [next, context]
    attention       Q = mean X^T S X                  [query, key]
    position        Delta = sums of mean S by lag     [lag]
    current_context C0 = mean X^T A0^T X              [context, current]
    context2        Phi2 = mean (Y - U)^T A0^2 X      [next, context]

where `S[t, j] = (G[y_t, x_j] - mean_{k<=t} G[y_t, x_k]) / t` for j <= t. Rows of B and of Q,
columns of Phi, Phi2 and of G, and Delta sum to zero.

The raw sums come from a *source*: windows in memory (`InMemory`), or shards on the disk that
processes or a cluster go through (`shards.py`). They are additive, so both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float64, Int, Int64

from attnflow._errors import InputError, whole
from attnflow.corpus import kernels

if TYPE_CHECKING:
    import xarray as xr

Windows = Int[np.ndarray, "sequence place"]
Sums = tuple[np.ndarray, ...]

KERNELS: dict[str, Callable[..., Any]] = {
    "bigram": kernels.bigram,
    "context": kernels.context,
    "context2": kernels.context2,
    "current_context": kernels.current_context,
    "attention": lambda windows, _, table, labels="next": kernels.attention(windows, table, labels),
}
"""The sums over windows that a source can be asked for: `kernel(windows, vocabulary, ...)`."""

DIMS = {
    "unigram": ("current",),
    "bigram": ("current", "next"),
    "interchange": ("next", "next"),
    "context": ("next", "context"),
    "value": ("context", "stream"),
    "g": ("next", "context"),
    "attention": ("query", "key"),
    "position": ("lag",),
    "current_context": ("context", "current"),
    "context2": ("next", "context"),
}
"""The axes of each statistic. All but `lag` run over the vocabulary."""

STORED = ("unigram", "bigram", "context", "value", "g", "attention", "position")


class Source(Protocol):
    """Windows, wherever they are, and sums over them."""

    @property
    def sequences(self) -> int: ...

    @property
    def length(self) -> int:
        """Positions of a window: T, one less than its tokens."""
        ...

    def total(self, kernel: str, vocabulary: int, *given: Any) -> Sums:
        """The sums of that kernel over all windows."""
        ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """Windows in memory."""

    windows: Windows

    @property
    def sequences(self) -> int:
        return len(self.windows)

    @property
    def length(self) -> int:
        return self.windows.shape[1] - 1

    def total(self, kernel: str, vocabulary: int, *given: Any) -> Sums:
        return sums_of(kernel, self.windows, vocabulary, *given)


def sums_of(kernel: str, windows: Windows, vocabulary: int, *given: Any) -> Sums:
    """The sums of one kernel over windows in memory, as a tuple of arrays."""
    found = KERNELS[kernel](windows, vocabulary, *given)
    return found if isinstance(found, tuple) else (found,)


def statistics(
    windows: Windows, vocabulary: int, tokens: Sequence[str] | None = None
) -> Statistics:
    """The statistics of windows of T + 1 token ids (inputs `row[:-1]`, labels `row[1:]`).

    >>> found = statistics(np.array([[0, 1, 0, 2]]), vocabulary=3)
    >>> found.bigram.round(3).tolist()
    [[-0.222, 0.111, 0.111], [0.222, -0.111, -0.111], [0.0, 0.0, 0.0]]
    """
    size = whole("vocabulary", vocabulary, 2)
    return Statistics(InMemory(kernels.checked(windows, size)), size, tokens)


@dataclass(frozen=True, eq=False)
class Statistics:
    """The statistics of a corpus; each is computed when it is first asked for, and kept."""

    source: Source = field(repr=False)
    vocabulary: int
    tokens: Sequence[str] | None = field(default=None, repr=False)
    """What the ids stand for; their numbers where none are given."""

    def __post_init__(self) -> None:
        if self.tokens is not None and len(self.tokens) != self.vocabulary:
            raise InputError("tokens", f"{len(self.tokens)} for a vocabulary of {self.vocabulary}")

    @property
    def sequences(self) -> int:
        return self.source.sequences

    @property
    def length(self) -> int:
        """Positions of a window, T."""
        return self.source.length

    @property
    def positions(self) -> int:
        """Pairs of an input and its label: N T."""
        return self.sequences * self.length

    @cached_property
    def counts(self) -> Int64[np.ndarray, "current"]:
        """How often each token is an input."""
        return self.source.total("bigram", self.vocabulary)[0].sum(axis=1)

    @property
    def unigram(self) -> Float64[np.ndarray, "current"]:
        """How frequent each token is among the inputs: `p(a)`."""
        return self.counts / self.positions

    @cached_property
    def bigram(self) -> Float64[np.ndarray, "current next"]:
        """`B[a, b] = P(a, b) - p(a) / V`."""
        (pairs,) = self.source.total("bigram", self.vocabulary)
        vars(self)["counts"] = pairs.sum(axis=1)
        return _centred(np.divide(pairs, self.positions), axis=1)

    @property
    def interchange(self) -> Float64[np.ndarray, "next next"]:
        """`Sigma = B^T B`: tokens that follow the same tokens."""
        return self.bigram.T @ self.bigram

    @cached_property
    def context(self) -> Float64[np.ndarray, "next context"]:
        """`Phi`: what the text before a label has more of than before the others."""
        (sums,) = self.source.total("context", self.vocabulary)
        return _centred(np.divide(sums, self.positions, out=sums), axis=0)

    @cached_property
    def value(self) -> Float64[np.ndarray, "context stream"]:
        """`K = Phi^T B^T`."""
        return self.context.T @ self.bigram.T

    @cached_property
    def g(self) -> Float64[np.ndarray, "next context"]:
        """`G = B^T B Phi = B^T K^T`."""
        return _centred(self.bigram.T @ self.value.T, axis=0)  # of rounding: the sums are zero

    @property
    def attention(self) -> Float64[np.ndarray, "query key"]:
        """`Q`."""
        return self._attention[0]

    @property
    def position(self) -> Float64[np.ndarray, "lag"]:
        """`Delta`."""
        return self._attention[1]

    @cached_property
    def _attention(self) -> tuple[np.ndarray, np.ndarray]:
        return self.attention_of(self.g)

    @cached_property
    def current_context(self) -> Float64[np.ndarray, "context current"]:
        """`C0`: what has come before (and at) each token."""
        (sums,) = self.source.total("current_context", self.vocabulary)
        return np.divide(sums, self.positions, out=sums).T

    @cached_property
    def context2(self) -> Float64[np.ndarray, "next context"]:
        """`Phi2`: the context that two layers of uniform attention see."""
        (sums,) = self.source.total("context2", self.vocabulary)
        return _centred(np.divide(sums, self.positions, out=sums), axis=0)

    def attention_of(
        self, table: Float64[np.ndarray, "label context"], labels: str = "next"
    ) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "lag"]]:
        """`(Q, Delta)` with another table in place of G; see `attention_term`."""
        query_key, lag = self.source.total("attention", self.vocabulary, table, labels)
        return query_key / self.positions, lag / self.positions

    def dataset(self, names: Sequence[str] = STORED) -> xr.Dataset:
        """The statistics as named arrays; `token` lists the vocabulary in the order of its ids."""
        import xarray as xr

        arrays = {name: (DIMS[name], getattr(self, name)) for name in names}
        tokens = self.tokens or [str(i) for i in range(self.vocabulary)]
        found = xr.Dataset(
            arrays, coords={"token": ("token", np.array(list(tokens), dtype=np.str_))}
        )
        return found.assign_attrs(
            vocabulary=self.vocabulary, context=self.length, sequences=self.sequences
        )


def attention_term(
    windows: Windows, table: Float64[np.ndarray, "label context"], labels: str = "next"
) -> tuple[Float64[np.ndarray, "query key"], Float64[np.ndarray, "lag"]]:
    """`Q = mean X^T S X` and `Delta` (mean of S summed along each lag) for any table.

    `S[t, j] = (table[y_t, x_j] - mean_{k<=t} table[y_t, x_k]) / t`: the gradient of attention
    scores at uniform attention when the logits' gradient meets a value table. The table of plain
    descent is G; `labels="current"` reads `table[x_t, .]` instead.
    """
    source = InMemory(kernels.checked(windows, len(table)))
    return Statistics(source, len(table)).attention_of(table, labels)


def context_term(windows: Windows, vocabulary: int) -> Float64[np.ndarray, "next context"]:
    """`Phi = mean (Y - U)^T A0 X`."""
    return statistics(windows, vocabulary).context


def bigram_counts(windows: Windows, vocabulary: int) -> Int64[np.ndarray, "current next"]:
    """How often each token follows each within a window."""
    return kernels.bigram(windows, whole("vocabulary", vocabulary))


def _centred(array: np.ndarray, axis: int) -> np.ndarray:
    """Minus its mean along an axis, in place: this is what `- U` does.

    The mean is summed in extended precision: the sums that are zero would show its rounding.
    """
    array -= array.mean(axis=axis, keepdims=True, dtype=np.longdouble).astype(np.float64)
    return array
