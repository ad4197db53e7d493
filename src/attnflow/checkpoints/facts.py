"""What one pass over a checkpoint leaves: digests, norms and a sample of every tensor.

The pass reads piece by piece. The sample of a tensor is the same places at every step and for
every tensor of that size, so that distances and angles between steps need no second reading.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow._files import read_arrays, sha256, write_arrays_atomic
from attnflow.checkpoints.architectures import BUFFER, Layout
from attnflow.checkpoints.model import check_shapes, unknown_tensors
from attnflow.checkpoints.series import Place, Series, Step
from attnflow.checkpoints.tensors import Damage, decoded
from attnflow.checkpoints.weights import Weights

MOST_SAMPLED = 4096
BUDGET = 1 << 26
"""Numbers kept of a whole series: the samples are smaller where there is more to keep."""

NORMS = re.compile(r"(norm|ln_\w+|ln\d*)\.?(weight|gain)?$|layernorm", re.IGNORECASE)


@dataclass(frozen=True)
class TensorFacts:
    """What is known of a tensor at one step; `sample` is float32, `norm` of the whole tensor."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    norm: float
    nonfinite: int
    constant: bool
    sample: np.ndarray = field(repr=False)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def matrix(self) -> bool:
        """Large enough, and with axes enough, for its direction to mean something."""
        return len(self.shape) > 1 and self.size >= 64


@dataclass
class Facts:
    """A checkpoint after one pass: its tensors, the digests of its files, and what was wrong."""

    place: Place
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    layout: Layout | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    """What makes it unreadable; empty for a checkpoint that can be analysed."""
    doubts: list[Damage] = field(default_factory=list)

    @property
    def step(self) -> Step:
        return self.place.step


def examine(series: Series, place: Place, cache: Path | None = None) -> Facts:
    """One pass over a checkpoint; whatever is wrong with it is part of the result.

    With a `cache` folder what the pass found is kept there, and a checkpoint whose files are as
    they were is not read again.
    """
    found = Facts(place)
    try:
        weights = place.weights()
        found.doubts += weights.doubts
        found.metadata = weights.metadata
        found.layout = place.layout(weights, series.mapping)
        if found.layout is not None:
            check_shapes(found.layout, weights)
            for name in unknown_tensors(found.layout, weights.entries)[:1]:
                words = f"{name} is no part of a {found.layout.architecture} model of this config"
                found.doubts.append(Damage("foreign-tensor", words, weights.file_of(name), name))
        most = sample_size(len(weights.entries), len(series))
        sign = f"{signature(place)}-{most}"
        kept = None if cache is None else cache / f"{_slug(place)}.npz"
        if kept is None or not _restore(found, kept, sign):
            for name, path in weights.files.items():
                found.files[name] = sha256(path)
            for name, entry in weights.entries.items():
                if not BUFFER.search(name) and (entry.is_float or found.layout is None):
                    found.tensors[name] = _facts(weights, name, most)
            if kept is not None:
                with suppress(OSError, InputError):  # without a cache it is read again
                    _store(found, kept, sign)
    except Damage as damage:
        found.damage.append(damage)
    except OSError as error:
        found.damage.append(Damage("unreadable", f"cannot be read ({error.strerror})"))
    for name, tensor in found.tensors.items():
        if tensor.nonfinite:
            words = f"{name} has {tensor.nonfinite:,} entries that are not finite numbers"
            found.damage.append(Damage("nonfinite", words, tensor.file, name))
    return found


def sample_size(tensors: int, steps: int) -> int:
    """How many numbers of a tensor are kept."""
    return int(np.clip(BUDGET // max(tensors * steps, 1), 256, MOST_SAMPLED))


def is_gain(facts: Facts, name: str) -> bool:
    """Whether a tensor is the gain of a norm, which every initialisation sets to one constant."""
    if facts.layout is not None and not facts.layout.partial:
        return any(
            source.name == name and part.endswith(".gain")
            for part, source in facts.layout.sources.items()
        )
    return bool(NORMS.search(name)) and not name.endswith("bias")


def _facts(weights: Weights, name: str, most: int) -> TensorFacts:
    entry = weights.entries[name]
    places = _places(int(np.prod(entry.shape)), most)
    digest, square, nonfinite, at = hashlib.sha256(), 0.0, 0, 0
    low, high = np.inf, -np.inf
    sample: list[np.ndarray] = []
    for raw in weights.pieces(name):
        digest.update(raw)
        values = decoded(raw, entry.dtype).astype(np.float64)
        good = np.isfinite(values)
        nonfinite += int(values.size - np.count_nonzero(good))
        values = np.where(good, values, 0.0)
        if values.size:
            low, high = min(low, values.min()), max(high, values.max())
            square += float(values @ values)
        first, last = np.searchsorted(places, (at, at + values.size))
        sample.append(values[places[first:last] - at].astype(np.float32))
        at += values.size
    return TensorFacts(
        weights.file_of(name),
        entry.dtype,
        entry.shape,
        digest.hexdigest(),
        float(np.sqrt(square)),
        nonfinite,
        bool(low == high),
        np.concatenate(sample) if sample else np.zeros(0, np.float32),
    )


def _places(size: int, most: int) -> np.ndarray:
    """Which entries of a tensor of this size are kept: all of a small one."""
    if size <= most:
        return np.arange(size)
    return np.unique(np.random.default_rng(size).integers(0, size, most))


def signature(place: Place) -> str:
    """Names, sizes and times of a checkpoint's files: whether it is as it was at the last pass."""
    found: list[Any] = []
    paths = sorted(place.path.iterdir()) if place.path.is_dir() else [place.path]
    for path in paths:
        try:
            stat = path.stat()
            found.append((path.name, str(path.resolve()), stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append((path.name, "", -1, -1))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _slug(place: Place) -> str:
    return hashlib.sha256(str(place.path.absolute()).encode()).hexdigest()[:16]


def _store(facts: Facts, path: Path, sign: str) -> None:
    tensors = {name: asdict(tensor) for name, tensor in facts.tensors.items()}
    samples = {f"sample/{i}": t.pop("sample") for i, t in enumerate(tensors.values())}
    said = json.dumps({"signature": sign, "files": facts.files, "tensors": tensors})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays_atomic(path, {"said": np.frombuffer(said.encode(), np.uint8), **samples})


def _restore(facts: Facts, path: Path, sign: str) -> bool:
    """Fill in what an earlier pass over the same files found."""
    try:
        arrays = read_arrays(path.read_bytes())
        said = json.loads(arrays["said"].tobytes())
    except Exception:  # a cache that cannot be read is no cache
        return False
    if said["signature"] != sign:
        return False
    facts.files = said["files"]
    for i, (name, tensor) in enumerate(said["tensors"].items()):
        shape = tuple(tensor.pop("shape"))
        facts.tensors[name] = TensorFacts(**tensor, shape=shape, sample=arrays[f"sample/{i}"])
    return True
