"""The border of a study: one frozen dataclass per study, checked here, round-tripping through TOML.

All that the command line, a file, a sweep and the explorer speak is a mapping of keys to values.
Nothing here imports JAX.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from attnflow._errors import InputError, nearest, shown

C = TypeVar("C")


MOST = 2**20
"""Bytes of a config file: one that is larger is something else."""


def key(default: Any, doc: str, *, head: bool = False, file: bool = False) -> Any:
    """A config field with its one-line explanation.

    A `head` key stands in the first line that a run prints. A `file` key may name a file that the
    study reads: it is an option of the command line, and the file's hash is part of a run.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, "head": head, "file": file})


def unused(config: Any, why: str, *names: str) -> None:
    """Refuse a value, other than the default, of a key that the rest of the config ignores."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.name in names and value != f.default:
            raise InputError(f.name, f"{shown(value)} would be ignored: {why}; leave it out")


STEPPING = ("gd", "sgd", "adam", "steps")
"""Modes whose rows are steps of an optimiser; all others solve a flow."""


def step_length(config: Mapping[str, Any]) -> float | None:
    """The time of one step of an optimiser (its rate); None where a flow is solved.

    A config without a mode trains by an optimiser if it has a rate.
    """
    mode, rate = config.get("mode"), config.get("rate")
    if mode is not None and mode not in STEPPING:
        return None
    return 1.0 if mode == "steps" else rate or None


def build(kind: type[C], values: Mapping[str, Any]) -> C:
    """A checked config from values of the right types, or of text as on the command line."""
    import pydantic

    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise InputError(name, f"no such key; {nearest(name, known)}")
        hint = hints[name]
        value = _from_text(value, hint) if isinstance(value, str) else _tupled(value)
        try:
            adapter = pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(strict=False))
            checked[name] = adapter.validate_python(_strict(value, hint))
        except pydantic.ValidationError:
            raise InputError(name, f"{shown(value)}; {describe(hint)}") from None
        if isinstance(checked[name], int) and abs(checked[name]) >= 2**63:
            raise InputError(name, f"{shown(checked[name])}; a whole number below 2^63")
    return kind(**checked)


def load_toml(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file (a flat table)."""
    path = Path(path)
    try:
        # Not a device or a pipe, which may never end.
        if path.exists() and not path.is_file():
            raise InputError("config", f"{path} is not a file; a TOML file")
        if path.stat().st_size > MOST:
            size = path.stat().st_size
            raise InputError(
                "config", f"{path} has {size:,} bytes; a TOML file of at most {MOST:,}"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise InputError("config", f"{path}: {reason}; a TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("config", f"{path} is not TOML: {error}") from None


def as_dict(config: Any) -> dict[str, Any]:
    """Plain values: tuples as lists, ready for JSON and TOML."""
    return {k: _listed(v) for k, v in dataclasses.asdict(config).items()}


def to_toml(config: Any, *, header: str = "") -> str:
    """The config as TOML; `build(kind, tomllib.loads(...))` gives it back exactly."""
    lines = [f"# {line}" for line in header.splitlines()]
    for f in dataclasses.fields(config):
        if f.metadata.get("doc"):
            lines.append(f"\n# {f.metadata['doc']}")
        lines.append(f"{f.name} = {_toml(_listed(getattr(config, f.name)))}")
    return "\n".join(lines).lstrip("\n") + "\n"


def as_arguments(config: Any, default: Any) -> str:
    """The `--set` words that turn the default config into this one."""
    words = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if value != getattr(default, f.name):
            words.append(f"--set {f.name}={shlex.quote(_argument(value))}")
    return " ".join(words)


def headline(config: Any) -> str:
    """The keys of a config that say most about a run, in a line."""
    fields = dataclasses.fields(config)
    marked = [f for f in fields if f.metadata.get("head")] or fields[:8]
    told = {f.name: _listed(getattr(config, f.name)) for f in marked}
    # "", () and 0.0 stand for what is chosen later.
    given = {k: v for k, v in told.items() if v or isinstance(v, int)}
    return "  ".join(f"{name}={brief(value)}" for name, value in given.items())


def brief(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, list):
        return "(" + shown(" ".join(map(brief, value))) + ")"
    return f"{value:g}" if isinstance(value, float) else shown(value)


def files(config: Any) -> dict[str, Path]:
    """The files that a config names, by key."""
    named = {key: Path(getattr(config, key)) for key in described_files(config)}
    return {key: path for key, path in named.items() if path.is_file()}


def described_files(kind: Any) -> dict[str, str]:
    """The keys that may name a file, each with its explanation."""
    return {f.name: f.metadata["doc"] for f in dataclasses.fields(kind) if f.metadata.get("file")}


def fits(field: str, value: Any, bytes: float, other: str = "a smaller one") -> None:
    """Refuse, before any work, what would not fit into this machine's memory."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        there = 2**40
    if bytes > there:
        raise InputError(
            field,
            f"{shown(value)} takes about {bytes / 2**30:,.0f} GiB of memory and this machine "
            f"has {there / 2**30:,.0f}; {other}",
        )


def describe(hint: Any) -> str:
    """What a field takes, in words."""
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(str(a) for a in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if typing.get_origin(inner) is tuple:
            return "rows of numbers: 0.9,0.1;0.2,0.8"
        return "a list of numbers: 0.7,0.2,0.1"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(hint, str(hint))


def _from_text(text: str, hint: Any) -> Any:
    """`0.6,0.25` for a list, `1,2;3,4` for rows; the rest is left to the type."""
    if typing.get_origin(hint) is not tuple:
        return text if hint is str else text.strip()
    inner = typing.get_args(hint)[0]
    text = text.strip().strip("[]()")
    if typing.get_origin(inner) is tuple:
        rows = [row.strip(" []()") for row in text.split(";")]
        return tuple(tuple(_numbers(row)) for row in rows if row)
    return tuple(_numbers(text))


def _numbers(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _strict(value: Any, hint: Any) -> Any:
    """Turn down what pydantic would convert: 1.0 for a whole number, true for 1."""
    wants = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )
    if isinstance(value, bool) and bool not in wants:
        return object()
    if isinstance(value, float) and int in wants and float not in wants:
        return object()
    return value


def _tupled(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(_tupled(v) for v in value) if isinstance(value, list | tuple) else value


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, list | tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return str(value)
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)  # the same escapes, but for one character
        return quoted.replace("\x7f", "\\u007f")
    return str(value)


def _argument(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ";".join(_argument(row) for row in value)
    if isinstance(value, tuple):
        return ",".join(_argument(v) for v in value)
    return repr(value) if isinstance(value, float) else str(value)
