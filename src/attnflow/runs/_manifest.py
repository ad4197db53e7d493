"""What a run says about itself: config, seeds, versions, machine, status."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow.runs._files import plain

KIND = "attnflow-run"
FORMAT = 1
NAME = "manifest.json"

_REQUIRED = {
    "study": str,
    "config": dict,
    "digest": str,
    "created": str,
    "updated": str,
    "finished": bool,
    "status": str,
    "sentence": str,
}
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
    *,
    study: str,
    config: Mapping[str, Any],
    seed: Any,
    solver: Mapping[str, Any] | None,
    precision: str,
    command: str,
) -> dict[str, Any]:
    return {
        "kind": KIND,
        "format": FORMAT,
        "study": study,
        "config": plain(config, words=True),
        "digest": digest(study, config),
        "seed": plain(seed),
        "precision": precision,
        "solver": plain(solver or {}),
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
        "resumed": [],
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


def changes(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """What is different now from when the run was begun: `versions.jax was 0.10.1, is 0.10.2`."""
    now_ = dict(flat(surroundings()))
    then = dict(flat({key: manifest.get(key) for key in surroundings()}))
    return tuple(
        f"{key} was {then.get(key) or 'not set'}, is {now_[key] or 'not set'}"
        for key in now_
        if then.get(key) != now_[key]
    )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run folder, or None where there is none of ours.

    A run of a newer format is an `InputError`, as is a manifest that cannot be read.
    """
    try:
        value = json.loads((folder / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise InputError("run", f"'{folder / NAME}' cannot be read ({error})") from error
    if not isinstance(value, dict) or value.get("kind") != KIND:
        return None
    check_format(value, folder, FORMAT)
    for key, kind in _REQUIRED.items():
        if not isinstance(value.get(key), kind):
            raise InputError("run", f"'{folder / NAME}' is damaged: its '{key}' is missing")
    return value


def check_format(value: Mapping[str, Any], folder: Path, known: int) -> None:
    given = value.get("format")
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InputError("run", f"'{folder}' does not say its format (a whole number)")
    if given > known:
        raise InputError(
            "run",
            f"'{folder}' has format {given} and this attnflow reads up to format {known}; "
            "open it with a newer attnflow",
        )


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
