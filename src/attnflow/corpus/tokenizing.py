"""Tokenizers: trained on the text itself, or read from a `tokenizer.json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from attnflow._errors import InputError, nearest

KINDS = ("bpe", "char", "spaced-bpe", "word")
"""Tokenizers trained on the text: byte-level BPE whose tokens carry the space before a word; single
characters; BPE with every space and sign a token of its own; whole words between white space."""

MARKS = ("<|endoftext|>", "<unk>")
"""Markers that makers of corpora put into them; a tokenizer may be asked to keep them whole."""

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
USUAL = 1000
"""Tokens of a vocabulary whose size nobody gave."""

Documents = Sequence[str]
Ids = Int32[np.ndarray, "position"]


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary as a person reads it, and the function from text to ids."""

    kind: str
    vocabulary: tuple[str, ...]
    encode: Callable[[str], Ids] = field(repr=False)
    unknown: int | None = None
    """The id of words outside the vocabulary; None where there are none."""
    json: str = field(default="", repr=False)
    """The content of its `tokenizer.json`; empty for words and characters."""


def tokenizer_of(
    kind: str, text: str | Documents, vocabulary: int | None, marks: Sequence[str] = ()
) -> Tokenizer:
    """Train a tokenizer of `vocabulary` tokens on documents, or read the file `kind` names.

    None takes every character (`char`), or as many tokens as the text supports, up to 1,000.
    Of `marks`, those that occur are tokens of a byte-pair vocabulary, never split.

    >>> tokenizer_of("word", "the cat and the dog and the sun", 3).vocabulary
    ('the', 'and', '<unk>')
    """
    check_kind(kind)
    if kind not in KINDS:
        return _from_file(Path(kind))
    if vocabulary is not None and vocabulary < 2:
        raise InputError("vocabulary", f"{vocabulary}; at least 2 tokens")
    documents = [text] if isinstance(text, str) else text
    if kind == "word":
        return _words(documents, vocabulary)
    if kind == "char":
        return _characters(documents, vocabulary)
    return _train(kind, documents, vocabulary, marks)


def check_kind(kind: str) -> None:
    """Refuse what is neither the name of a trained tokenizer nor a file."""
    if kind.endswith(".json"):
        if not Path(kind).is_file():
            raise InputError("tokenizer", f"{kind}: no such file")
    elif kind not in KINDS:
        raise InputError("tokenizer", f"{kind!r}; a tokenizer.json file, or {nearest(kind, KINDS)}")


def _words(documents: Documents, size: int | None) -> Tokenizer:
    """The most frequent words, then `<unk>` for all others, which counts as one of them."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(_spoken(document))
    counts.pop(UNKNOWN, 0)
    most = len(counts) + 1
    size = min(USUAL, most) if size is None else size
    if most < size:
        raise InputError(
            "vocabulary", f"{size}; the text has only {most - 1} different words (and {UNKNOWN})"
        )
    names = (*_ranked(counts)[: size - 1], UNKNOWN)
    return _counted("word", names, _spoken, size - 1)


def _characters(documents: Documents, size: int | None) -> Tokenizer:
    """Every character; where there are too many, the rarest are `<unk>`."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(document)
    size = len(counts) if size is None else size
    if len(counts) < size:
        raise InputError(
            "vocabulary", f"{size}; the text has only {len(counts)} different characters"
        )
    ranked = _ranked(counts)
    if len(counts) == size:
        return _counted("char", tuple(ranked), iter, None)
    return _counted("char", (*ranked[: size - 1], UNKNOWN), iter, size - 1)


def _ranked(counts: Counter[str]) -> list[str]:
    """The most frequent first; where two are equal, by code point."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def _counted(
    kind: str, names: tuple[str, ...], split: Callable[[str], Iterator[str]], unknown: int | None
) -> Tokenizer:
    number = {word: i for i, word in enumerate(names)}

    def encode(given: str) -> Ids:
        found = (number.get(word, unknown) for word in split(given))
        return np.fromiter((i for i in found if i is not None), dtype=np.int32)

    return Tokenizer(kind, names, encode, unknown)


def _spoken(text: str) -> Iterator[str]:
    """What stands between white space, and a token for each line end."""
    *lines, last = text.split("\n")
    for line in lines:
        yield from line.split()
        yield END_OF_LINE
    yield from last.split()


def _train(kind: str, documents: Documents, size: int | None, marks: Sequence[str]) -> Tokenizer:
    """Byte-level BPE as the library trains it by default, on whole documents.

    Cut anywhere else, runs of white space at the cuts become other words, and merges change.
    """
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
    marks = [mark for mark in marks if any(mark in text for text in documents)]
    trainer = library.trainers.BpeTrainer(
        vocab_size=size or USUAL, special_tokens=marks, show_progress=False
    )
    model.train_from_iterator(documents, trainer)
    got = model.get_vocab_size()
    if size is not None and got > size:
        raise InputError("vocabulary", f"{size}; the text has {got} different bytes and marks")
    if size is not None and got < size:
        raise InputError("vocabulary", f"{size}; the text is used up by {got} byte-pair tokens")
    return _wrapped(kind, model, _pieces)


def _from_file(path: Path) -> Tokenizer:
    try:
        model = _library().Tokenizer.from_file(str(path))
    except InputError:
        raise
    except Exception:  # the library raises its bare base class
        raise InputError("tokenizer", f"{path} is not a tokenizer.json") from None
    return _wrapped(path.name, model, lambda text: [text])


def _wrapped(kind: str, model: Any, pieces: Callable[[str], Iterable[str]]) -> Tokenizer:
    size = _size(kind, model)
    spelled = [model.id_to_token(i) or f"<{i}>" for i in range(size)]
    unknown = getattr(model.model, "unk_token", None)

    def encode(given: str) -> Ids:
        # One by one: what the library returns takes a hundred bytes a token.
        found = [
            np.array(model.encode(piece, add_special_tokens=False).ids, dtype=np.int32)
            for piece in pieces(given)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    rest = None if unknown is None else model.token_to_id(unknown)
    return Tokenizer(kind, _readable(spelled), encode, rest, model.to_str())


def _readable(spelled: list[str]) -> tuple[str, ...]:
    """Byte-level spelling (`Ġthe`) as text (` the`), except for bytes that are no text alone."""
    decode = _library().decoders.ByteLevel().decode
    names = []
    for word in spelled:
        plain = word if word in MARKS else decode([word])
        names.append(word if "\ufffd" in plain or not plain else plain)
    taken = Counter(names)
    return tuple(n if taken[n] == 1 else w for n, w in zip(names, spelled, strict=True))


def _pieces(text: str, size: int = 1 << 16) -> Iterator[str]:
    """The text cut where its tokens are the same as without a cut, `size` characters or more each.

    That is before a single space inside a line: both tokenizers of ours begin a new word there,
    whatever comes before. A text without such places is one piece.
    """
    at = 0
    while at < len(text):
        cut = _CUT.search(text, at + size)
        end = cut.start() if cut else len(text)
        yield text[at:end]
        at = end


_CUT = re.compile(r"(?<=\w) (?=\w)")


def _size(kind: str, model: Any) -> int:
    """Tokens of a vocabulary; ids beyond the number of its tokens are refused."""
    ids = model.get_vocab().values()
    size = model.get_vocab_size()
    if size < 2:
        raise InputError("tokenizer", f"{kind} has {size} tokens; at least 2")
    if max(ids) >= size:
        raise InputError(
            "tokenizer", f"{kind} has {size} tokens and yields the id {max(ids)}; 0 to {size - 1}"
        )
    return size


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "tokenizer", "byte-level tokenizers need the extra: pip install 'attnflow[corpus]'"
        ) from None
    return tokenizers
