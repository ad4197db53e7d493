"""A corpus: one text as token ids, with its vocabulary and its counts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Int32, Int64

from attnflow._errors import InputError, shown
from attnflow.corpus.reading import Text, read_text
from attnflow.corpus.tokenizing import tokenizer_of

MOST_UNKNOWN = 0.4
"""Largest share of unknown words: a corpus with more says little about its text."""

SPOKEN = {"comma": ",", "whitespace": " ", "newline": "\n"}
"""Names for tokens that a comma-separated list cannot hold, as papers write them."""

Ids: TypeAlias = Int32[np.ndarray, "position"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Token ids of a text in reading order, what they stand for, and how often each occurs.

    `Corpus.read("stories.txt.gz", "bpe", 1000)` trains a tokenizer of 1,000 tokens on the file.
    """

    ids: Ids = field(repr=False)
    vocabulary: tuple[str, ...] = field(repr=False)
    name: str = "text"
    tokenizer: str = "word"
    sha256: str = ""
    unknown: float = 0.0
    """The share of the text that is outside the vocabulary."""

    def __post_init__(self) -> None:
        self.ids.setflags(write=False)

    @classmethod
    def read(cls, path: str | Path, tokenizer: str = "bpe", vocabulary: int = 1000) -> Corpus:
        """A text file, tokenised. Settings that do not fit together are refused in one sentence."""
        return cls.of(read_text(path), tokenizer, vocabulary)

    @classmethod
    def of(cls, text: Text | str, tokenizer: str = "bpe", vocabulary: int = 1000) -> Corpus:
        """A text in memory, tokenised."""
        if isinstance(text, str):
            text = Text(text, "text", "")
        made = tokenizer_of(tokenizer, text.content, vocabulary)
        ids = made.encode(text.content)
        size = len(made.vocabulary)
        used = int(np.count_nonzero(np.bincount(ids, minlength=size)))
        if used < min(size / 2, len(ids)):
            raise InputError(
                "tokenizer",
                f"{tokenizer} has {size} tokens and {text.name} uses {used} of them; "
                "at least half must occur",
            )
        unknown = 0.0 if made.unknown is None else float(np.mean(ids == made.unknown))
        if unknown > MOST_UNKNOWN:
            raise InputError(
                "tokenizer",
                f"{unknown:.0%} of {text.name} is unknown to it; at most "
                f"{MOST_UNKNOWN:.0%}: take a larger vocabulary or a tokenizer of this text",
            )
        return cls(ids, made.vocabulary, text.name, made.kind, text.sha256, unknown)

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
