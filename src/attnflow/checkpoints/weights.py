"""The weights of one checkpoint, whichever files hold them, by name and one at a time."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from attnflow.checkpoints.tensors import Damage, Entry, Folder, TensorFile, decoded

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OLD_SINGLE, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


STRAY = re.compile(r"model[\w.-]*\.safetensors")
"""How the shards of a model are called: an adapter's or an optimiser's file is none."""


class Weights(Protocol):
    """Names, dtypes and shapes without reading a tensor; then one tensor at a time."""

    entries: dict[str, Entry]
    files: dict[str, Path]
    """The files by name, as the checkpoint calls them."""
    metadata: dict[str, str]
    doubts: list[Damage]
    """What is readable and still not right."""

    def read(self, name: str) -> np.ndarray: ...
    def pieces(self, name: str) -> Iterator[bytes | bytearray]: ...
    def file_of(self, name: str) -> str: ...


def open_weights(folder: Folder) -> Weights:
    """The weights of a Hugging Face-layout folder; `Damage` where they cannot be believed."""
    found = [name for name in (SINGLE, INDEX, OLD_SINGLE, OLD_INDEX) if folder.has(name)]
    if not found:
        pickles = sorted(p.name for p in _files(folder.path) if p.suffix in PICKLES)
        if pickles:
            raise Damage(
                "pickle", f"{pickles[0]} is a pickle; weights are .safetensors", pickles[0]
            )
        raise Damage("absent", f"there is no {SINGLE} and no {INDEX}")
    if found[0] == SINGLE:
        weights = Safetensors([_opened(folder, SINGLE)])
        if INDEX in found:
            weights.doubts.append(
                Damage("mixed", f"{SINGLE} and {INDEX} are both there; the first is read", INDEX)
            )
        else:
            weights.doubts += _strays(folder, weights, SINGLE)
        return weights
    if found[0] == INDEX:
        return _sharded(folder)
    from attnflow.checkpoints.pickles import TorchWeights

    return TorchWeights(folder, found[0])


PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


class Safetensors:
    """One safetensors file, or the shards of one model."""

    def __init__(self, shards: Sequence[TensorFile]):
        self.shards = {shard.name: shard for shard in shards}
        self.files = {shard.name: shard.path for shard in shards}
        self.metadata = dict(shards[0].metadata) if len(shards) == 1 else {}
        self.doubts: list[Damage] = []
        self.entries: dict[str, Entry] = {}
        self._home: dict[str, TensorFile] = {}
        for shard in shards:
            for name, entry in shard.entries.items():
                if name in self.entries:
                    raise Damage("mixed", f"{name} is in two shards", shard.name, name)
                self.entries[name], self._home[name] = entry, shard

    @property
    def bytes_read(self) -> int:
        return sum(shard.bytes_read for shard in self.shards.values())

    def read(self, name: str) -> np.ndarray:
        return self._home[name].read(name)

    def pieces(self, name: str) -> Iterator[bytes | bytearray]:
        return self._home[name].pieces(name)

    def file_of(self, name: str) -> str:
        return self._home[name].name


def _opened(folder: Folder, name: str) -> TensorFile:
    path = folder.file(name)
    if not path.is_file():
        raise Damage("absent", f"{name} is not there", name)
    return TensorFile(path, name)


def _sharded(folder: Folder) -> Safetensors:
    """The shards that an index names, and whether they hold what it says."""
    index = folder.json(INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    good = isinstance(places, dict) and all(isinstance(n, str) for n in places.values())
    if not good or not places:
        raise Damage("index", f"{INDEX} has no weight_map of names to files", INDEX)
    names = sorted(set(places.values()))
    for name in names:
        if not name.endswith(".safetensors"):
            raise Damage("pickle", f"{INDEX} names {name}, which is not .safetensors", INDEX)
    absent = [name for name in names if not folder.file(name).is_file()]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise Damage("absent", f"{INDEX} names {absent[0]}{more}, which is not there", absent[0])
    weights = Safetensors([_opened(folder, name) for name in names])
    for tensor, file in places.items():
        if tensor not in weights.entries or weights.file_of(tensor) != file:
            raise Damage(
                "mixed", f"{INDEX} says that {tensor} is in {file}, and it is not", file, tensor
            )
    for tensor in weights.entries:
        if tensor not in places:
            file = weights.file_of(tensor)
            weights.doubts.append(
                Damage("mixed", f"{file} holds {tensor}, which {INDEX} does not name", file, tensor)
            )
    weights.doubts += _strays(folder, weights, INDEX)
    return weights


def _strays(folder: Folder, weights: Safetensors, read: str) -> list[Damage]:
    """Shards that lie in the folder and are not read: left over from another model or saving."""
    names = (p.name for p in sorted(_files(folder.path)))
    left = [n for n in names if STRAY.fullmatch(n) and n not in weights.files]
    return [Damage("mixed", f"{n} lies beside {read} and is no part of it", n) for n in left[:1]]


class Llama2c:
    """A llama2.c `.bin` (version 0): seven int32, then float32 tensors in a fixed order.

    `dim, hidden, layers, heads, kv heads, vocabulary, length`; a negative vocabulary says that the
    output is not the embedding. The names below are ours.
    """

    def __init__(self, path: Path, name: str = ""):
        self.name = name or path.name
        self.files, self.metadata, self.doubts = {self.name: path}, {}, []
        self.path, self.bytes_read = path, 28
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(28)
        if len(head) < 28:
            raise Damage("truncated", f"{self.name} has {size} bytes; a header takes 28", self.name)
        self.header = struct.unpack("<7i", head)
        dim, hidden, layers, heads, kv_heads, signed, length = self.header
        vocabulary, limit = abs(signed), 1 << 24
        small = all(0 < n < limit for n in (dim, hidden, layers, heads, kv_heads, length))
        if not small or not 0 < vocabulary < limit or dim % heads or heads % kv_heads:
            raise Damage("header", f"{self.name} has no header of llama2.c", self.name)
        kv = dim // heads * kv_heads
        table = (length, dim // heads // 2)
        shapes = {
            "embedding": (vocabulary, dim),
            "attention_norm": (layers, dim),
            "wq": (layers, dim, dim),
            "wk": (layers, kv, dim),
            "wv": (layers, kv, dim),
            "wo": (layers, dim, dim),
            "ffn_norm": (layers, dim),
            "w1": (layers, hidden, dim),
            "w2": (layers, dim, hidden),
            "w3": (layers, hidden, dim),
            "norm": (dim,),
            "rotary_cos": table,
            "rotary_sin": table,
        }
        if signed < 0:
            shapes["output"] = (vocabulary, dim)
        self.entries, at = {}, 28
        for tensor, shape in shapes.items():
            end = at + 4 * int(np.prod(shape, dtype=object))
            self.entries[tensor] = Entry("F32", shape, at, end)
            at = end
        if at != size:
            words = f"{self.name} has {size:,} bytes; its header asks for {at:,}"
            raise Damage("truncated" if size < at else "header", words, self.name)

    def read(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        raw = self._bytes(entry.begin, entry.end)
        return decoded(raw, entry.dtype).reshape(entry.shape)

    def pieces(self, name: str) -> Iterator[bytes]:
        entry = self.entries[name]
        yield self._bytes(entry.begin, entry.end)

    def file_of(self, name: str) -> str:
        return self.name

    def _bytes(self, begin: int, end: int) -> bytes:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(begin)
            raw = file.read(end - begin)
        self.bytes_read += len(raw)
        return raw


def looks_like_llama2c(path: Path) -> bool:
    """Whether its header alone is llama2.c's, be the file whole or not."""
    if not path.is_file():
        return False
    try:
        Llama2c(path)
    except Damage as damage:
        return damage.kind == "truncated" and path.stat().st_size >= 28
    except OSError:
        return False
    return True


def _files(path: Path) -> list[Path]:
    try:
        return [p for p in path.iterdir() if not p.is_dir()]
    except OSError:
        return []


def read_llama2c_tokenizer(path: Path) -> tuple[list[bytes], list[float]]:
    """llama2.c's tokenizer: an int32, then score (float32), length (int32) and bytes of each."""
    raw, at = path.read_bytes(), 4
    pieces: list[bytes] = []
    scores: list[float] = []
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        if length < 0 or at + 8 + length > len(raw):
            raise Damage("truncated", f"{path.name} is not a whole tokenizer", path.name)
        pieces.append(raw[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    return pieces, scores


def encode_llama2c(text: str, pieces: Sequence[bytes], scores: Sequence[float]) -> list[int]:
    """Text as ids: a space first, then characters (or their bytes), the best pair merged first.

    No mark for the beginning is added. Merging goes word by word: no piece of this tokenizer
    crosses the space before a word.
    """
    number = {piece: i for i, piece in enumerate(pieces)}
    raw = (" " + text).encode()
    ids: list[int] = []
    known: dict[bytes, list[int]] = {}
    for word in _words(raw):
        if word not in known:
            known[word] = _merged(word, number, scores, pieces)
        ids += known[word]
    return ids


def _words(raw: bytes) -> Iterator[bytes]:
    start = 0
    for i in range(1, len(raw)):
        if raw[i : i + 1] == b" " and raw[i - 1 : i] != b" ":
            yield raw[start:i]
            start = i
    yield raw[start:]


def _merged(
    word: bytes, number: dict[bytes, int], scores: Sequence[float], pieces: Sequence[bytes]
) -> list[int]:
    ids: list[int] = []
    for character in word.decode():
        piece = character.encode()
        ids += [number[piece]] if piece in number else [3 + byte for byte in piece]
    while True:
        best: tuple[float, int, int] | None = None
        for i in range(len(ids) - 1):
            joined: Any = number.get(pieces[ids[i]] + pieces[ids[i + 1]])
            if joined is not None and (best is None or scores[joined] > best[0]):
                best = scores[joined], i, joined
        if best is None:
            return ids
        _, i, joined = best
        ids[i : i + 2] = [joined]
