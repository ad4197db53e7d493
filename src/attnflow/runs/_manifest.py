"""What a run says about itself: identity, config, versions, machine, files, status."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attnflow._errors import InputError, shown
from attnflow._files import plain, read_sealed, reason, sha256

KIND = "attnflow-run"
FORMAT = 2
NAME = "manifest.json"
CHECKED = 2**30
"""Bytes that are read through whenever a run is opened, about a second; of more than that only the
sizes are looked at, and the trajectory is read through when it is asked for."""

_PACKAGES = ("attnflow", "jax", "jaxlib", "numpy", "scipy", "scikit-sundae")
_VARIABLES = (
    "XLA_FLAGS",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def new_manifest(
    study: str,
    config: Mapping[str, Any],
    *,
    seed: Any = None,
    command: str = "",
    identity: Mapping[str, str] | None = None,
    source: Sequence[str] = (),
) -> dict[str, Any]:
    """The manifest of a run that begins.

    `identity` are the hashes of what decides the run besides its config (the study's code, the
    text, the tokenizer); `source` is where the file of a study of one's own is.
    """
    return {
        "kind": KIND,
        "format": FORMAT,
        "study": study,
        "config": plain(config, words=True),
        "digest": digest(study, config),
        "identity": dict(identity or {}),
        "source": list(source),
        "seed": plain(seed),
        "precision": "float64",
        "solver": {},
        **surroundings(),
        "command": command,
        "created": now(),
        "updated": now(),
        "finished": False,
        "status": "running",
        "sentence": "the run is under way",
        "work": {},
        "drift": None,
        "summary": {},
        "notes": [],
        "files": {},
        "entries": 0,
    }


def digest(study: str, config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of study and config, whatever the order of the keys."""
    text = json.dumps([study, plain(config, words=True)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def surroundings() -> dict[str, Any]:
    """What can change the last bits: versions, platform, flags, threads, cores."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = ""
    return {
        "versions": versions,
        "platform": {"system": platform.system(), "machine": platform.machine()},
        "environment": {name: os.environ.get(name, "") for name in _VARIABLES},
        "cpus": cpus(),
    }


def changes(manifest: Mapping[str, Any]) -> list[str]:
    """What is different now from when the run was begun, in sentences."""
    now_ = dict(flat(surroundings()))
    then = dict(flat({key: manifest.get(key) for key in surroundings()}))
    return [
        f"resumed under other conditions, the last bits may differ: {key} was "
        f"{then.get(key) or 'not set'}, is {now_[key] or 'not set'}"
        for key in now_
        if then.get(key) != now_[key]
    ]


def difference(there: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What makes the run `there` another one than `new`; empty where they are the same."""
    if there["study"] != new["study"]:
        return f"its study is {there['study']}, not {new['study']}"
    old, asked = dict(flat(there["config"])), dict(flat(new["config"]))
    for key in [*asked, *old]:
        if old.get(key) != asked.get(key):
            return f"its {key} is {shown(old.get(key))}, not {shown(asked.get(key))}"
    for key in dict.fromkeys([*new["identity"], *there["identity"]]):
        if there["identity"].get(key) != new["identity"].get(key):
            return f"{key} has changed since (its hash is another one)"
    return ""


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run folder, or None where there is none of ours.

    A manifest that is damaged, or of another format, is an `InputError`.
    """
    return read_sealed(folder / NAME, KIND, FORMAT)


def hashed(folder: Path, names: Any) -> dict[str, list[Any]]:
    """Size and SHA-256 of files, and of every file below folders, by path below `folder`."""
    found = {}
    for name in names:
        top = folder / name
        for path in sorted(p for p in top.rglob("*") if p.is_file()) if top.is_dir() else [top]:
            if path.is_file():
                key = path.relative_to(folder).as_posix()
                found[key] = [path.stat().st_size, sha256(path)]
    return found


def damaged(folder: Path, files: Mapping[str, Any], read: bool = True) -> dict[str, str]:
    """What is wrong with files that are not as the manifest has them; `read` their bytes too."""
    found = {}
    for name, (size, digest_) in files.items():
        path = folder / name
        try:
            if not path.is_file():
                found[name] = "is not a file any more" if path.exists() else "is missing"
            elif path.stat().st_size != size:
                found[name] = f"has {path.stat().st_size:,} bytes instead of {size:,}"
            elif read and sha256(path) != digest_:
                found[name] = "has other bytes than were written"
        except OSError as error:
            found[name] = f"cannot be read ({reason(error)})"
    return found


def refuse_damage(folder: Path, damage: Mapping[str, str]) -> None:
    """Say the first of it."""
    for name, what in damage.items():
        more = f" (and {len(damage) - 1} more files)" if len(damage) > 1 else ""
        raise InputError("run", f"'{folder / name}' is damaged: it {what}{more}")


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists under dotted names: `plateaus.0.loss`.

    An entry of a list that has a `name` (and a `cycle`) goes by it, not by its place: a run that
    misses one stage must not shift the others.
    """
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = [(_label(inner, k), inner) for k, inner in enumerate(value)]
    else:
        yield prefix, value
        return
    for key, inner in items:
        yield from flat(inner, f"{prefix}.{key}" if prefix else str(key))


def _label(entry: Any, place: int) -> str:
    if not (isinstance(entry, Mapping) and isinstance(entry.get("name"), str)):
        return str(place)
    cycle = entry.get("cycle", 1)
    return entry["name"] if cycle == 1 else f"{entry['name']} {cycle}"


def cpus() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
