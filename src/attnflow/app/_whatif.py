"""What if: a study's typed config from the browser, and what its closed forms say of it.

Only studies that are built in, only their own keys, never a file: a browser names neither code
nor paths.
"""

from __future__ import annotations

import dataclasses
import threading
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnflow import studies as known
from attnflow._errors import InputError, nearest, shown
from attnflow.studies import config as configs

POINTS = 400
"""Rows of a predicted curve that are sent."""

_ONE = threading.Lock()
"""One forecast at a time: they share what they have computed."""


def names() -> list[str]:
    """The studies that a browser may ask for: built in, and reading no file."""
    return [n for n in known.names() if known.built_in(n) and not configs.described_files(_kind(n))]


def studies() -> list[dict[str, Any]]:
    """Each study with its keys: what they are, what they take, and their defaults."""
    return [{"study": n, "title": known.title(n), "keys": _keys(_kind(n))} for n in names()]


def checked(study: str, given: Mapping[str, Any]) -> tuple[str, Any]:
    """The study and a checked config; everything else is refused with a sentence."""
    if study not in names():
        raise InputError("study", f"'{shown(study)}'; {nearest(study, names())}")
    return known.configured(study, given)


def predicted(study: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What closed forms say of a config, and the words that run it."""
    name, config = checked(study, given)
    with _ONE:
        found = known.build(name, config).forecast()
    words = configs.as_arguments(config, type(config)())
    given_keys = {k: v for k, v in configs.as_dict(config).items() if k in given}
    usual = configs.as_dict(type(config)())
    keys = {k: v for k, v in given_keys.items() if v != usual[k]}
    python = "".join(f", {k}={tuple(v) if isinstance(v, list) else v!r}" for k, v in keys.items())
    return {
        "times": dict(found.times),
        "rates": dict(found.rates),
        "numbers": dict(found.numbers),
        "sentence": found.sentence,
        "curves": _curves(found.curves),
        "command": f"attnflow run {name} {words}".strip(),
        "python": f'import attnflow as af\nrun = af.run("{name}"{python})',
    }


def _kind(name: str) -> Any:
    return known.find(name)[1]


def _keys(kind: Any) -> list[dict[str, Any]]:
    hints = typing.get_type_hints(kind)
    found = []
    for f in dataclasses.fields(kind):
        hint = hints[f.name]
        default = list(f.default) if isinstance(f.default, tuple) else f.default
        told = {"name": f.name, "doc": f.metadata.get("doc", ""), "default": default}
        told |= {"takes": configs.describe(hint), "head": bool(f.metadata.get("head"))}
        found.append(told | _control(hint))
    return found


def _control(hint: Any) -> dict[str, Any]:
    """Which control a key gets: a choice, a number (whole or not), a list, or text."""
    options = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = list(typing.get_args(hint))
    words = [w for o in options if typing.get_origin(o) is typing.Literal for w in o.__args__]
    if words and len(options) == 1:
        return {"control": "choice", "options": words}
    for kind, control in ((bool, "flag"), (float, "number"), (int, "whole")):
        if kind in options:
            return {"control": control, "words": words}
    inner = [a for o in options if typing.get_origin(o) is tuple for a in typing.get_args(o)]
    return {"control": "list" if inner and inner[0] is float else "text"}


def _curves(data: Any) -> dict[str, Any] | None:
    """Predicted curves over time, at most `POINTS` rows, even in their number."""
    if data is None:
        return None
    rows = np.unique(np.linspace(0, data.sizes["time"] - 1, POINTS).round().astype(int))
    told: dict[str, Any] = {"time": data["time"].values[rows]}
    for name, each in data.data_vars.items():
        if each.dims == ("time",):
            told[str(name)] = each.values[rows]
        elif name == "attention":
            told["attention"] = each.values[rows]
    return told
