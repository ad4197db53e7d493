"""Tokenizers: trained on the text itself, or read from a `tokenizer.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from attnflow._errors import InputError, nearest

KINDS = ("bpe", "spaced-bpe", "word")
"""Tokenizers trained on the text: byte-level BPE whose tokens carry the space before a word; the
same with every space and sign a token of its own; whole words between spaces."""

MARKS = ("<|endoftext|>", "<unk>")
"""Markers that corpora contain: each is one token and never split."""

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
PIECE = 1 << 16
"""Characters handed to the library at a time, up to the next line end."""

Ids = Int32[np.ndarray, "position"]


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary as a person reads it, and the function from text to ids."""

    kind: str
    vocabulary: tuple[str, ...]
    encode: Callable[[str], Ids] = field(repr=False)
    unknown: int | None = None
    """The id of words outside the vocabulary; None where there are none."""


def tokenizer_of(kind: str, text: str, vocabulary: int) -> Tokenizer:
    """Train a tokenizer of `vocabulary` tokens on a text, or read the file `kind` names.

    >>> tokenizer_of("word", "the cat and the dog and the sun", 3).vocabulary
    ('the', 'and', '<unk>')
    """
    check_kind(kind)
    if kind not in KINDS:
        return _from_file(Path(kind))
    if vocabulary < 2:
        raise InputError("vocabulary", f"{vocabulary}; at least 2 tokens")
    return _words(text, vocabulary) if kind == "word" else _train(kind, text, vocabulary)


def check_kind(kind: str) -> None:
    """Refuse what is neither the name of a trained tokenizer nor a file."""
    if kind.endswith(".json"):
        if not Path(kind).is_file():
            raise InputError("tokenizer", f"{kind}: no such file")
    elif kind not in KINDS:
        raise InputError("tokenizer", f"{kind!r}; a tokenizer.json file, or {nearest(kind, KINDS)}")


def _words(text: str, size: int) -> Tokenizer:
    """The most frequent words between spaces; the rest is one token, a line end another."""
    counts = Counter(_spoken(text))
    rest = counts.pop(UNKNOWN, 0)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    has_rest = rest > 0 or len(ranked) > size
    if len(ranked) + has_rest < size:
        raise InputError(
            "vocabulary", f"{size}; the text has only {len(ranked) + has_rest} different words"
        )
    names = (*ranked[: size - 1], UNKNOWN) if has_rest else tuple(ranked)
    unknown = size - 1 if has_rest else None
    number = {word: i for i, word in enumerate(names)}

    def encode(given: str) -> Ids:
        found = (number.get(word, unknown) for word in _spoken(given))
        return np.array([i for i in found if i is not None], dtype=np.int32)

    return Tokenizer("word", names, encode, unknown)


def _spoken(text: str) -> Iterator[str]:
    """Words and line ends; a text of one line has none."""
    for line in text.splitlines(keepends=True):
        yield from line.split()
        if line.endswith("\n"):
            yield END_OF_LINE


def _train(kind: str, text: str, size: int) -> Tokenizer:
    library = _library()
    pre, models = library.pre_tokenizers, library.models
    model = library.Tokenizer(models.BPE())
    if kind == "bpe":
        model.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    else:
        alone = pre.Split(library.Regex(r"\s|[^\w\s]"), "isolated")
        model.pre_tokenizer = pre.Sequence(
            [alone, pre.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    marks = [mark for mark in MARKS if mark in text]
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, special_tokens=marks, show_progress=False
    )
    model.train_from_iterator(_pieces(text), trainer)
    got = model.get_vocab_size()
    if got > size:
        raise InputError("vocabulary", f"{size}; the text has {got} different bytes and marks")
    if got < size:
        raise InputError("vocabulary", f"{size}; the text is used up by {got} byte-pair tokens")
    return _wrapped(kind, model)


def _from_file(path: Path) -> Tokenizer:
    try:
        model = _library().Tokenizer.from_file(str(path))
    except InputError:
        raise
    except Exception:  # the library raises its bare base class
        raise InputError("tokenizer", f"{path} is not a tokenizer.json") from None
    return _wrapped(path.name, model)


def _wrapped(kind: str, model: Any) -> Tokenizer:
    spelled = [model.id_to_token(i) for i in range(model.get_vocab_size())]
    unknown = getattr(model.model, "unk_token", None)

    def encode(given: str) -> Ids:
        found = model.encode_batch(list(_pieces(given)), add_special_tokens=False)
        return np.concatenate([np.array(piece.ids, dtype=np.int32) for piece in found])

    return Tokenizer(
        kind, _readable(spelled), encode, None if unknown is None else model.token_to_id(unknown)
    )


def _readable(spelled: list[str]) -> tuple[str, ...]:
    """Byte-level spelling (`Ġthe`) as text (` the`), except for bytes that are no text alone."""
    decode = _library().decoders.ByteLevel().decode
    names = []
    for word in spelled:
        plain = word if word in MARKS else decode([word])
        names.append(word if "\ufffd" in plain or not plain else plain)
    taken = Counter(names)
    return tuple(n if taken[n] == 1 else w for n, w in zip(names, spelled, strict=True))


def _pieces(text: str) -> Iterator[str]:
    """The text cut after line ends (or after spaces, where lines are long)."""
    at = 0
    while at < len(text):
        end = at + PIECE
        if end < len(text):
            cut = max(text.rfind("\n", at, end), 0) or text.rfind(" ", at, end)
            end = cut + (text[cut] == "\n") if cut > at else end
        yield text[at:end]
        at = end


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "tokenizer", "byte-level tokenizers need the extra: pip install 'attnflow[corpus]'"
        ) from None
    return tokenizers
