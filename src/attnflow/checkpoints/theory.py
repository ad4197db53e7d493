"""What a corpus predicts about attention and stream, by descent and by Adam, and its nulls.

The tables of arXiv 2601.19208 (`attnflow.corpus.statistics`): `Q[query, key]` for attention,
`K[context, stream]` for values and stream rows, the bigram `B[current, next]`; whitened forms with
both axes divided by the square root of the tokens' frequency; and the first steps of Adam, whose
updates are entrywise signs of the same maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, nearest
from attnflow.checkpoints.likeness import Prepared

Table = Float[np.ndarray, "token token"]

QK_THEORIES = ("Q", "Q-whitened", "Q-adam", "Q-adam-linear", "bigram")
ROW_THEORIES = ("K", "K-whitened", "K-adam", "bigram")
THEORIES = tuple(dict.fromkeys((*QK_THEORIES, *ROW_THEORIES)))
NULLS = ("shuffled", "permuted", "transposed", "ones", "step0")


@dataclass(frozen=True)
class Adam:
    """The optimiser's constants; eps decides whether small gradients still give whole signs."""

    rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def update(self, gradient: Table, step: int) -> Table:
        """The first non-zero update of a block, at this step, with the bias-corrected constants.

        `c_m g / (sqrt(c_v) |g| + eps)`, `c_m = (1 - b1) / (1 - b1^s)`, `c_v` alike.
        """
        c_m = (1 - self.b1) / (1 - self.b1**step)
        c_v = (1 - self.b2) / (1 - self.b2**step)
        return c_m * gradient / (np.sqrt(c_v) * np.abs(gradient) + self.eps)


@dataclass(frozen=True)
class CorpusStore:
    """Windows of token ids with what the ids stand for, as `attnflow corpus stats` stores them."""

    windows: Int[np.ndarray, "sequence place"] = field(repr=False)
    tokens: int
    name: str = ""

    @cached_property
    def seen(self) -> Int[np.ndarray, "token"]:
        """The tokens that occur."""
        return np.unique(self.windows)


STORES = ("statistics.zarr", "corpus.zarr")
"""What a store is called in the folder of `corpus stats`, and in that of a trained series."""


def open_corpus(store: str | PathLike[str]) -> CorpusStore:
    """A corpus store (zarr, written by `attnflow corpus stats`), opened with plain xarray.

    The folder that holds it is taken too: that of `corpus stats`, or of a trained series.
    """
    import xarray as xr

    path = Path(store)
    path = next((path / n for n in STORES if (path / n).is_dir()), path)
    if not path.exists():
        raise InputError("corpus", f"'{path}': no such store; attnflow corpus stats makes one")
    try:
        data = xr.open_zarr(path, chunks=None)
        windows = np.asarray(data["windows"].values) if "windows" in data else None
    except Exception as error:  # zarr raises many kinds for a folder that is none
        words = type(error).__name__
        raise InputError("corpus", f"'{path}' is not a zarr store ({words})") from None
    if windows is None:
        found = ", ".join(map(str, data.data_vars)) or "nothing"
        raise InputError("corpus", f"'{path}' holds {found}; no windows of token ids")
    if windows.ndim != 2 or windows.dtype.kind not in "iu" or windows.shape[1] < 2:
        raise InputError("corpus", f"'{path}': windows are whole numbers, sequence x place")
    if not windows.size:
        raise InputError("corpus", f"'{path}' holds no window")
    tokens = data.attrs.get("vocabulary") or data.sizes.get("token") or int(windows.max()) + 1
    if not isinstance(tokens, int | np.integer):
        raise InputError("corpus", f"'{path}': its vocabulary is {tokens!r}; a whole number")
    if windows.min() < 0 or windows.max() >= int(tokens):
        raise InputError("corpus", f"'{path}': a window holds ids outside its vocabulary")
    return CorpusStore(windows.astype(np.int32), int(tokens), path.name)


class Theory:
    """The tables that a corpus predicts, each computed when it is first asked for."""

    def __init__(self, corpus: CorpusStore, tokens: int | None = None, adam: Adam | None = None):
        from attnflow.corpus import statistics

        self.corpus, self.adam = corpus, adam or Adam()
        self.tokens = tokens or corpus.tokens
        if self.tokens < corpus.tokens and int(corpus.windows.max()) >= self.tokens:
            raise InputError(
                "corpus",
                f"{corpus.name} has ids up to {int(corpus.windows.max())}; the model's vocabulary "
                f"has {self.tokens}: was it made with the model's own tokenizer?",
            )
        self._statistics = statistics(corpus.windows, self.tokens)
        self._found: dict[str, Table] = {}

    def __getitem__(self, name: str) -> Table:
        if name not in THEORIES:
            raise InputError("theory", f"{name!r}; {nearest(name, THEORIES)}")
        if name not in self._found:
            self._found[name] = self._table(name)
        return self._found[name]

    def _table(self, name: str) -> Table:
        known = self._statistics
        if name == "Q":
            return known.attention
        if name == "K":
            return known.value
        if name == "bigram":
            return known.bigram
        if name.endswith("-whitened"):
            return self._whitened(self[name.removesuffix("-whitened")])
        value, query_key = self._adam
        if name == "K-adam":
            return value
        return query_key if name == "Q-adam-linear" else self._sign(query_key)

    def _whitened(self, table: Table) -> Table:
        law = self._statistics.unigram
        root = np.divide(1.0, np.sqrt(law), out=np.zeros_like(law), where=law > 0)
        return root[:, None] * table * root

    @cached_property
    def _adam(self) -> tuple[Table, Table]:
        """The first value step and the first attention gradient under Adam from zero.

        Step 1: `W_O = eta S0`, `S0 = B / (|B| + eps)`; step 2: `V` from `g = eta Phi^T S0^T`;
        step 3: the attention kernel with `G_S = W_O(2)^T V(2)^T` in place of G.
        """
        known, rate = self._statistics, self.adam.rate
        first = rate * self.adam.update(known.bigram, 1)
        value = rate * self.adam.update(known.context.T @ first.T, 2)
        return value, known.attention_of((2 * first).T @ value.T)[0]

    def _sign(self, query_key: Table) -> Table:
        return self.adam.update(query_key, 3)


@dataclass(frozen=True)
class Seeds:
    """Of the shuffled corpus and of the permuted theory."""

    shuffled: int = 0
    permuted: int = 0


class Predictions:
    """Theories and their nulls, restricted to the tokens compared and ready to be compared."""

    def __init__(self, theory: Theory, seeds: Seeds | None = None, kept: np.ndarray | None = None):
        from attnflow.corpus import shuffled

        self.theory, self.seeds, self.kept = theory, seeds or Seeds(), kept
        windows = shuffled(theory.corpus.windows, self.seeds.shuffled)
        corpus = CorpusStore(windows, theory.corpus.tokens, theory.corpus.name)
        self._shuffled = Theory(corpus, theory.tokens, theory.adam)
        self._ready: dict[tuple[str, str, bool], Prepared] = {}

    def tables(self, name: str, flipped: bool = False) -> Iterator[tuple[str, Prepared]]:
        """`("theory", ...)` and its nulls by name; `flipped` for the key side (transposed)."""
        for null in ("theory", "shuffled", "permuted", "transposed", "ones"):
            key = (name, null, flipped)
            if key not in self._ready:
                self._ready[key] = self._prepared(name, null, flipped)
            yield null, self._ready[key]

    def _prepared(self, name: str, null: str, flipped: bool) -> Prepared:
        if null == "ones":  # every token the same: the covariance of ones
            count = self.theory.tokens if self.kept is None else len(self.kept)
            return Prepared.covering(np.ones((count, 1)))
        table = (self._shuffled if null == "shuffled" else self.theory)[name]
        if null == "permuted":
            order = np.random.default_rng(self.seeds.permuted).permutation(len(table))
            table = table[np.ix_(order, order)]
        if flipped != (null == "transposed"):
            table = table.T
        if self.kept is not None:
            table = table[np.ix_(self.kept, self.kept)]
        return Prepared.of(table)


def described() -> Mapping[str, str]:
    """What each theory is, in a line."""
    return {
        "Q": "attention term of plain descent",
        "Q-whitened": "the same, both axes divided by the root of the frequency",
        "Q-adam": "first attention step under Adam, entrywise signs",
        "Q-adam-linear": "its gradient, where eps keeps Adam linear",
        "K": "value term of plain descent",
        "K-whitened": "the same, whitened",
        "K-adam": "first value step under Adam",
        "bigram": "what follows each token",
    }


def as_plain(theory: Theory) -> dict[str, Any]:
    return {"tokens": theory.tokens, "adam": vars(theory.adam)}
