"""A corpus: one text as token ids, with its vocabulary and its counts."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Int32, Int64

from attnflow._errors import InputError, shown, whole
from attnflow.corpus.reading import COLUMN, Text, read_documents
from attnflow.corpus.tokenizing import tokenizer_of

SPOKEN = {"comma": ",", "whitespace": " ", "newline": "\n"}
"""Names for tokens that a comma-separated list cannot hold, as papers write them."""

Ids: TypeAlias = Int32[np.ndarray, "position"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Token ids of documents in reading order, what they stand for, and how often each occurs.

    `Corpus.read("stories.txt.gz", "bpe", 1000)` trains a tokenizer of 1,000 tokens on the file.
    """

    ids: Ids = field(repr=False)
    vocabulary: tuple[str, ...] = field(repr=False)
    name: str = "text"
    tokenizer: str = "word"
    sha256: str = ""
    unknown: float = 0.0
    """The share of the text that is outside the vocabulary."""
    starts: Int64[np.ndarray, "document"] = field(
        default_factory=lambda: np.zeros(1, np.int64), repr=False
    )
    """The document index: where each begins in `ids`."""
    most_unknown: float = 0.4
    """A larger share of unknown words says little about the text: worth a warning."""

    def __post_init__(self) -> None:
        self.ids.setflags(write=False)

    @classmethod
    def read(
        cls,
        path: str | Path,
        tokenizer: str = "bpe",
        vocabulary: int | None = 1000,
        *,
        column: str = COLUMN,
        padding: int | None = None,
        marks: Sequence[str] = (),
    ) -> Corpus:
        """A file, tokenised: text, JSON lines, Parquet, or token ids in a `.npy` file.

        `column` names the field of JSON lines and tables; `marks` stay whole in byte pairs. Of
        token ids, a vector is one document and each row of a matrix is one; ids equal to `padding`
        are left out, and `vocabulary` is their number (None: the largest id and one). Settings
        that do not fit together are refused in one sentence.
        """
        if Path(path).suffix == ".npy":
            return cls._of_tokens(Path(path), vocabulary, padding)
        return cls.of(read_documents(path, column=column), tokenizer, vocabulary, marks)

    @classmethod
    def of(
        cls,
        text: Text | str,
        tokenizer: str = "bpe",
        vocabulary: int | None = 1000,
        marks: Sequence[str] = (),
    ) -> Corpus:
        """A text in memory, tokenised."""
        if isinstance(text, str):
            text = Text((text,), "text", hashlib.sha256(text.encode()).hexdigest())
        made = tokenizer_of(tokenizer, text.documents, vocabulary, marks)
        parts = [made.encode(document) for document in text.documents]
        ids, size = np.concatenate(parts), len(made.vocabulary)
        if not len(ids):
            raise InputError("text", f"{text.name} holds no token of {tokenizer}")
        if ids.max() >= size or ids.min() < 0:
            raise InputError("tokenizer", f"{tokenizer} yields the id {ids.max()}; 0 to {size - 1}")
        unknown = 0.0 if made.unknown is None else float(np.mean(ids == made.unknown))
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])], dtype=np.int64)
        return cls(ids, made.vocabulary, text.name, made.kind, text.sha256, unknown, starts)

    @classmethod
    def _of_tokens(cls, path: Path, vocabulary: int | None, padding: int | None) -> Corpus:
        if not path.is_file():
            raise InputError("text", f"{path}: no such file")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError):
            raise InputError("text", f"{path} is not an array of token ids") from None
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
            raise InputError(
                "text",
                f"{path} holds {array.dtype} of shape {array.shape}; whole numbers, "
                "a vector or a matrix with a document to a row",
            )
        kept = np.atleast_2d(array)
        keep = np.ones(kept.shape, bool) if padding is None else kept != padding
        ids = kept[keep]
        if not len(ids):
            raise InputError("text", f"{path} holds no tokens")
        size = int(ids.max()) + 1 if vocabulary is None else vocabulary
        if ids.max() >= size or ids.min() < 0:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise InputError("text", f"{path} has the token id {wrong}; 0 to {size - 1}")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        starts = np.cumsum([0, *keep.sum(axis=1)[:-1]], dtype=np.int64)
        names = tuple(str(i) for i in range(size))
        return cls(ids.astype(np.int32), names, path.name, "ids", digest, 0.0, starts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know before trusting numbers from this corpus."""
        if self.unknown <= self.most_unknown:
            return ()
        return (
            f"{self.unknown:.0%} of {self.name} is unknown to its tokenizer: its statistics "
            "are mostly those of one token",
        )

    def windows(
        self, context: int, *, sequences: int | None = None, across: bool = False
    ) -> Int32[np.ndarray, "sequence place"]:
        """Windows of `context + 1` tokens without overlap; what is left of a document is dropped.

        They do not cross from one document to the next unless `across`. `sequences` takes the
        first ones.
        """
        starts = window_starts(self.starts, len(self.ids), context, across=across)
        return self.ids[starts[:sequences, None] + np.arange(context + 1)]

    @property
    def tokens(self) -> int:
        """The size of the vocabulary."""
        return len(self.vocabulary)

    @property
    def counts(self) -> Int64[np.ndarray, "token"]:
        """How often each token occurs."""
        return np.bincount(self.ids, minlength=self.tokens).astype(np.int64)

    def split(
        self, held_out: float = 0.1
    ) -> tuple[Int32[np.ndarray, "trained"], Int32[np.ndarray, "held"]]:
        """The text up to its last part, and that part, which is never trained on."""
        at = round(len(self.ids) * (1 - held_out))
        return self.ids[:at], self.ids[at:]

    def find(self, word: str, field: str = "sequence") -> int:
        """The id of a token by its text; a leading space may be left out.

        Where both spellings exist the more frequent one is taken; `␣the` asks for the one with
        a space. `comma`, `whitespace` and `newline` are names of tokens.
        """
        word = SPOKEN.get(word, word).replace("␣", " ").replace("⏎", "\n")
        number = {token: i for i, token in enumerate(self.vocabulary)}
        found = [number[w] for w in (word, " " + word) if w in number]
        if found:
            counts = self.counts
            return max(found, key=lambda i: counts[i])
        near = difflib.get_close_matches(word, self.vocabulary, n=3, cutoff=0.0)
        raise InputError(
            field,
            f"{shown(word)!r} is not a token of {self.name}; the nearest are "
            + ", ".join(visible(token) for token in near),
        )

    def __len__(self) -> int:
        return len(self.ids)


def window_starts(
    documents: Int64[np.ndarray, "document"], tokens: int, context: int, *, across: bool = False
) -> Int64[np.ndarray, "sequence"]:
    """Where the windows of `context + 1` tokens begin, document by document."""
    length = whole("context", context) + 1
    begins = documents[:1] if across else documents
    sizes = np.diff(np.append(begins, tokens))
    counts = sizes // length
    if not counts.sum():
        raise InputError(
            "context",
            f"{context}; the longest document has {int(sizes.max())} tokens, "
            f"and a window takes {length} (its last token is a label)",
        )
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(begins, counts) + number * length


def visible(token: str) -> str:
    """A token as it is shown in a figure: spaces and line ends have a sign."""
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def windows(
    ids: Int[np.ndarray, "position"], length: int, count: int, *, seed: int = 0
) -> Int32[np.ndarray, "window place"]:
    """`count` windows of `length` tokens at random places, no place twice (fewer in a short text).

    A next-token window of `context` inputs has `length = context + 1`: the last token is the label.
    """
    places = len(ids) - length + 1
    if places < 1:
        raise InputError("text", f"{len(ids)} tokens; one window takes {length}")
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.choice(places, min(count, places), replace=False))
    return ids[starts[:, None] + np.arange(length)].astype(np.int32)
