"""A series of checkpoints: which steps a folder holds, and one of them as a model."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from attnflow._errors import InputError, nearest, shown
from attnflow.checkpoints.architectures import Layout, layout_of, llama2c_layout, mapped_layout
from attnflow.checkpoints.model import Model
from attnflow.checkpoints.tensors import Damage, Folder, TensorFile, resolved
from attnflow.checkpoints.weights import (
    INDEX,
    OLD_INDEX,
    OLD_SINGLE,
    SINGLE,
    Llama2c,
    Safetensors,
    Weights,
    looks_like_llama2c,
    open_weights,
)

_STEP = re.compile(r"(?:(?:global[-_]?)?step|checkpoint|ckpt|iter)?[-_]?(\d+)", re.IGNORECASE)
_STEP_AT_END = re.compile(r"step[-_]?(\d+)$", re.IGNORECASE)
_HOLDS = ("config.json", SINGLE, INDEX, OLD_SINGLE, OLD_INDEX)
MAPPINGS = ("mapping.toml", "mapping.json")

Step = int | str
"""The number of a step; a name (`main`, `final`) where a checkpoint has no number."""


@dataclass(frozen=True)
class Place:
    """Where a checkpoint lies, and the folder that it may not leave."""

    step: Step
    path: Path
    root: Path

    @property
    def numbered(self) -> bool:
        return isinstance(self.step, int)

    def weights(self) -> Weights:
        """Its weights; `Damage` where they cannot be believed."""
        self.check()
        if self.path.is_dir():
            return open_weights(Folder(self.path, self.root))
        if self.path.suffix == ".bin":
            return Llama2c(self.path)
        return Safetensors([TensorFile(self.path)])

    def check(self) -> None:
        """It is there, and inside its folder."""
        real = resolved(self.path)
        if real is None or not real.is_relative_to(self.root.resolve()):
            raise Damage("escape", f"{self.path.name} leads out of the series' folder")
        if not self.path.exists():
            raise Damage("absent", f"{self.path.name} is not there")

    def layout(self, weights: Weights, mapping: Mapping[str, Any] | None = None) -> Layout | None:
        """What its config (or the mapping) says; None for a bare file of tensors."""
        if mapping is not None:
            return mapped_layout(mapping)
        if isinstance(weights, Llama2c):
            return llama2c_layout(weights.header)
        if not self.path.is_dir():
            return None
        try:
            return layout_of(self.config(), weights.entries)
        except Damage as damage:
            damage.file = damage.file or "config.json"
            raise

    def config(self) -> dict[str, Any]:
        folder = Folder(self.path, self.root)
        if not folder.has("config.json"):
            raise Damage("config", "there is no config.json, and no config is assumed")
        found = folder.json("config.json")
        if not isinstance(found, dict):
            raise Damage("config", "config.json is not a JSON object", "config.json")
        return found


@dataclass(frozen=True)
class Series:
    """Checkpoints in the order of their steps: `series[128]` is a model, `series.steps` the list.

    A step that cannot be read raises an `InputError` when it is asked for, and only then: the rest
    of the series stays readable.
    """

    path: Path
    places: tuple[Place, ...]
    mapping: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def steps(self) -> list[Step]:
        return [place.step for place in self.places]

    def __getitem__(self, step: Step) -> Model:
        place = self.place(step)
        try:
            return self.model(place)
        except Damage as damage:
            raise InputError(f"step {step}", damage.sentence) from None

    def __iter__(self) -> Iterator[Model]:
        return (self[place.step] for place in self.places)

    def __len__(self) -> int:
        return len(self.places)

    def place(self, step: Step) -> Place:
        """Where a step lies."""
        step = step if isinstance(step, str) else int(step)
        for place in self.places:
            if place.step == step and type(place.step) is type(step):
                return place
        words = nearest(str(step), map(str, self.steps))
        raise InputError("step", f"{shown(step)} is not in the series; {words}")

    def model(self, place: Place) -> Model:
        """One checkpoint as a model; `Damage` where it is none."""
        weights = place.weights()
        layout = place.layout(weights, self.mapping)
        if layout is None:
            raise Damage("config", "a bare file of tensors has no config; give a mapping file")
        return Model(place.step, layout, weights)

    @cached_property
    def tokenizer(self) -> Path | None:
        """The series' own `tokenizer.json`, where there is one."""
        for folder in (self.path, *(p.path for p in self.places)):
            if (folder / "tokenizer.json").is_file():
                return folder / "tokenizer.json"
        return None

    @cached_property
    def planned(self) -> list[int] | None:
        """The steps that whoever made the series says it has (`series.json`); None if unsaid."""
        path = self.path / "series.json"
        if not path.is_file():  # a pipe would never end
            return None
        try:
            found = json.loads(path.read_bytes())["steps"]
            return [int(step) for step in found]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def open_series(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    mapping: str | PathLike[str] | Mapping[str, Any] | None = None,
) -> Series:
    """The series in a folder, a local hub cache, or a list of checkpoint folders.

    `mapping` names the tensors of an attention-only model (TOML or JSON, or a dictionary);
    `mapping.toml` in the series' folder is found by itself.
    """
    if not isinstance(path, str | PathLike):
        places = [place for each in path for place in _places(Path(each))]
        where = Path(path[0]).parent if path else Path()
    else:
        where = Path(path)
        places = _places(where)
    if not places:
        raise InputError("series", f"'{where}' holds no checkpoint; {EXPECTED}")
    places.sort(key=lambda p: (not p.numbered, p.step))
    return Series(where, tuple(places), _mapping(mapping, where))


EXPECTED = (
    "folders step0, step1, ... with config.json and model.safetensors, a hub cache "
    "(models--...), or files step_100.safetensors"
)


def _places(path: Path) -> list[Place]:
    if not path.exists():
        raise InputError("series", f"'{path}': no such folder")
    if path.is_file():
        return [Place(_number(path.stem) or path.stem, path, path.parent)]
    caches = sorted(p for p in path.glob("models--*") if (p / "snapshots").is_dir())
    if len(caches) > 1:
        names = ", ".join(p.name for p in caches[:4])
        raise InputError("series", f"'{path}' holds several models; name one of {names}")
    path = caches[0] if caches else path
    if (path / "snapshots").is_dir():
        return _hub(path)
    root = path
    if path.parent.name == "snapshots" and (path.parents[1] / "blobs").is_dir():
        root = path.parents[1]  # a snapshot's files lie in the cache's blobs
    if any((path / name).exists() or (path / name).is_symlink() for name in _HOLDS):
        number = _number(path.name)
        return [Place(path.name if number is None else number, path, root)]
    found = []
    for child in sorted(path.iterdir()):
        number = _number(child.stem if child.suffix in (".safetensors", ".bin") else child.name)
        step = number if number is not None else child.stem if child.is_file() else child.name
        if child.is_dir() or child.is_symlink():
            if number is not None or any((child / name).exists() for name in _HOLDS):
                found.append(Place(step, child, root))
        elif child.suffix == ".safetensors" or (
            child.suffix == ".bin" and looks_like_llama2c(child)
        ):
            found.append(Place(step, child, root))
    return found


def _hub(path: Path) -> list[Place]:
    """The revisions of a local hub cache: `refs/step128` holds the name of a snapshot."""
    found, seen = [], set()
    refs = path / "refs"
    for ref in sorted(p for p in refs.rglob("*") if p.is_file()) if refs.is_dir() else []:
        commit = ref.read_text(errors="replace").strip()
        name = ref.relative_to(refs).as_posix()
        number = _number(name)
        safe = re.fullmatch(r"[\w.-]{1,80}", commit) and commit.strip(".")
        snapshot = path / "snapshots" / (commit if safe else "unnamed")
        found.append(Place(name if number is None else number, snapshot, path))
        seen.add(commit)
    for snapshot in sorted((path / "snapshots").iterdir()):
        if snapshot.name not in seen:
            number = _number(snapshot.name) if len(snapshot.name) < 20 else None
            found.append(Place(snapshot.name if number is None else number, snapshot, path))
    return found


def _number(name: str) -> int | None:
    found = _STEP.fullmatch(name) or _STEP_AT_END.search(name)
    return int(found[1]) if found and len(found[1]) < 16 else None


def _mapping(given: Any, where: Path) -> Mapping[str, Any] | None:
    if isinstance(given, Mapping):
        return given
    if given is None:
        there = [where / name for name in MAPPINGS if (where / name).is_file()]
        if not there:
            return None
        given = there[0]
    path = Path(given)
    try:
        raw = path.read_bytes()
        found = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
    except OSError as error:
        raise InputError("mapping", f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError("mapping", f"{path} is neither TOML nor JSON") from None
    try:
        mapped_layout(found)
    except Damage as damage:
        raise InputError("mapping", damage.sentence.removeprefix("mapping: ")) from None
    return found
