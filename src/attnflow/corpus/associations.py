"""Which tokens a statistic ties to a token: the rows of its matrices, read as word lists.

Raw rows are mostly lists of frequent words. Whitened ones are those of `D^-1/2 M D^-1/2` with
`D = diag(p)`, minus what frequencies alone would give (its parts along `sqrt(p)`, on either side);
of a table of counts that is correspondence analysis. Tokens that occur fewer than `RARE` times are
left out of whitened lists, where a single occurrence would lead them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from attnflow._errors import InputError, nearest
from attnflow.corpus.statistics import Statistics

RARE = 5

BASES = {
    "bigram": "what follows it",
    "interchange": "what could stand in its place",
    "context": "what has been said before it comes",
    "value": "what its presence makes the stream hold",
    "attention": "what it looks for",
}
"""The bases in which a token has a list, and what it means."""


@dataclass(frozen=True)
class Association:
    """A token that stands high in the row of another, and how high."""

    token: int
    strength: float


def associations(
    theory: Statistics, basis: str, token: int, count: int = 8, *, whitened: bool = True
) -> list[Association]:
    """The `count` tokens with the largest entries in the row of a token under one basis.

    `interchange` compares tokens by what they follow: the whitened view is the cosine between
    columns of B whose rows are whitened. A token is never in its own list there.
    """
    if basis not in BASES:
        raise InputError("basis", f"{basis!r}; {nearest(basis, BASES)}")
    if not 0 <= token < theory.vocabulary:
        raise InputError("token", f"{token}; 0 to {theory.vocabulary - 1}")
    row = _row(theory, basis, token, whitened)
    if whitened:
        row[theory.counts < RARE] = -np.inf
    order = np.argsort(-row, kind="stable")[:count]
    return [Association(int(i), float(row[i])) for i in order if row[i] > 0]


def _row(
    theory: Statistics, basis: str, token: int, whitened: bool
) -> Float64[np.ndarray, "token"]:
    B, p, scale = theory.bigram, theory.unigram, _inverse_root(theory)
    if basis == "interchange" and whitened:
        along = B[p > 0].sum(axis=0)  # the part of D^-1/2 B along sqrt(p)
        squares = np.einsum("ab,ab,a->b", B, B, scale**2)
        # A token that nothing leads to lies along sqrt(p): what is left of it is rounding.
        rest = squares - along**2
        sizes = np.sqrt(np.where(rest > 1e-12 * squares, rest, 0.0))
        sizes *= sizes[token]
        row = B.T @ (B[:, token] * scale**2) - along * along[token]
        row = np.divide(row, sizes, out=np.zeros_like(row), where=sizes > 0)
    elif basis == "interchange":
        row = B.T @ B[:, token]
    else:
        matrix = getattr(theory, basis)
        row = np.array(matrix[token])
        if whitened:
            seen = p > 0
            columns, own = matrix[seen].sum(axis=0), row[seen].sum()
            row += p * (p[token] * columns[seen].sum() - own) - p[token] * columns
            row *= scale * scale[token]
    if basis == "interchange":
        row[token] = -np.inf
    return row


def _inverse_root(theory: Statistics) -> Float64[np.ndarray, "token"]:
    """`p^-1/2`, zero for tokens that never occur."""
    p = theory.unigram
    return np.where(p > 0, 1 / np.sqrt(np.where(p > 0, p, 1.0)), 0.0)


def notable(theory: Statistics, names: Sequence[str], count: int = 6) -> list[int]:
    """Tokens worth a list: words of at least three letters, the most frequent first, spread out."""
    order = np.argsort(-theory.counts, kind="stable")
    words = [int(i) for i in order if theory.counts[i] >= RARE and _is_word(str(names[i]))]
    words = words or [int(i) for i in order if theory.counts[i] > 0]
    # From the frequent to the rarer: equal steps on the scale of ranks, which is logarithmic.
    most = min(len(words), 50 * count)
    ranks = np.unique(np.geomspace(1, most, min(count, most)).astype(int)) - 1
    return [words[i] for i in ranks]


def _is_word(token: str) -> bool:
    return len(token.strip()) >= 3 and token.strip().isalpha()
