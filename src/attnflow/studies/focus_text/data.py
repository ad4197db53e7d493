"""What a run takes from its text before it trains: ids, windows, tracked tokens, levels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int, Int32

from attnflow._errors import InputError
from attnflow.corpus import Bigrams, Corpus, read_text, visible, window_frequency, windows
from attnflow.corpus.tokenizing import END_OF_LINE, MARKS
from attnflow.studies.focus_text.config import Config

FREQUENT = 3
"""Tracked tokens of each kind: the most frequent ones and medium-frequency ones (Section 4.2)."""

MEDIUM = 0.10
"""A medium-frequency token occurs in more than this share of the windows. Read as a share of all
tokens, the paper's "frequency > 10 %" would leave one or no token of a natural text."""

NOT_MEDIUM = 10
"""The most frequent tokens, which are not drawn as medium ones."""

HELD_OUT = 0.1
"""The share of the text, at its end, that is never trained on."""


@dataclass(frozen=True, eq=False)
class Data:
    """A text, split and counted; token axes are ids of the corpus."""

    corpus: Corpus
    train: Int32[np.ndarray, "position"]
    held_out: Int32[np.ndarray, "window place"]
    law: Float[np.ndarray, "token"]
    bigrams: Bigrams
    tracked: tuple[int, ...]
    """The most frequent tokens, then the medium ones, each by falling frequency."""
    sequence: tuple[int, ...]
    """The chosen input; the query is its last token."""
    sample: Int32[np.ndarray, "sampled"]
    unigram: float
    """Loss of the unigram law on the labels of the held-out windows."""
    bigram: float
    """Loss of the bigram predictor on the same labels."""

    @property
    def frequent(self) -> tuple[int, ...]:
        return self.tracked[:FREQUENT]

    def names(self, ids: Sequence[int]) -> np.ndarray:
        """The tokens as labels of an axis; a token that comes again is numbered."""
        seen: dict[str, int] = {}
        labels = []
        for i in ids:
            name = visible(self.corpus.vocabulary[i])
            seen[name] = seen.get(name, 0) + 1
            labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
        return np.array(labels)


def prepare(config: Config) -> Data:
    """Read, tokenise and count; refuses in one sentence a text that the config does not fit."""
    if not config.text:
        raise InputError("text", "none given; name a .txt or .txt.gz file with --set text=FILE")
    size = len(read_text(config.text).content.encode())
    if size <= config.context:  # said before a vocabulary is looked for in it
        raise InputError(
            "text",
            f"{os.path.basename(config.text)} has {size} bytes, shorter than one context "
            f"of {config.context} tokens and its label",
        )
    corpus = _corpus(
        config.text, os.stat(config.text).st_mtime_ns, config.tokenizer, config.vocabulary
    )
    used = int(np.count_nonzero(corpus.counts))
    if used < min(corpus.tokens / 2, len(corpus)):
        raise InputError(
            "tokenizer",
            f"{config.tokenizer} has {corpus.tokens} tokens and {corpus.name} uses {used} of them; "
            "at least half must occur",
        )
    train, rest = corpus.split(HELD_OUT)
    needed = max(config.context + 1, config.test_sample)
    if len(rest) < needed:
        raise InputError(
            "text",
            f"{corpus.name} has {len(corpus):,} tokens, of which {len(rest):,} are held "
            f"out; context {config.context} and test_sample {config.test_sample} take {needed}",
        )
    bigrams = Bigrams(train, corpus.tokens)
    tracked = track(corpus, train, config.context, config.seed)
    held_out = windows(rest, config.context + 1, config.held_out, seed=0)
    last, label = held_out[:, -2], held_out[:, -1]
    rows = bigrams.rows(last)
    start = len(rest) // 2 - config.test_sample // 2
    return Data(
        corpus=corpus,
        train=train,
        held_out=held_out,
        law=bigrams.law,
        bigrams=bigrams,
        tracked=tracked,
        sequence=tuple(corpus.find(word) for word in config.words) or tracked,
        sample=rest[start : start + config.test_sample],
        unigram=float(-np.mean(np.log(bigrams.law[label]))),
        bigram=float(-np.mean(np.log(rows[np.arange(len(label)), label]))),
    )


def track(
    corpus: Corpus, train: Int[np.ndarray, "position"], context: int, seed: int
) -> tuple[int, ...]:
    """The three most frequent tokens and three medium-frequency ones, drawn by the seed.

    Marks of the corpus' makers (`<unk>`, ends of lines and texts) are not followed. Where fewer
    than three tokens occur in 10 % of the windows, the next most frequent ones are taken.
    """
    often = window_frequency(train, corpus.tokens, context)
    marks = {i for i, t in enumerate(corpus.vocabulary) if t in (*MARKS, END_OF_LINE)}
    ranked = np.argsort(-np.bincount(train, minlength=corpus.tokens), kind="stable").tolist()
    order = [i for i in ranked if i not in marks]
    frequent, rest = order[:FREQUENT], order[FREQUENT:]
    medium = [i for i in order[NOT_MEDIUM:] if often[i] > MEDIUM]
    if len(medium) < FREQUENT:
        medium = (medium + [i for i in rest if i not in medium])[:FREQUENT]
    drawn = set(np.random.default_rng(seed).permutation(medium)[:FREQUENT].tolist())
    return (*frequent, *(i for i in rest if i in drawn))


@lru_cache(maxsize=2)
def _corpus(path: str, changed: int, tokenizer: str, vocabulary: int) -> Corpus:
    """A file as it was at the time `changed`: two studies of one text read it once."""
    return Corpus.read(path, tokenizer, vocabulary)
