"""The papers, one study each; and the user's own, registered or in a file.

Names and configs are known without importing JAX; a study itself is loaded on use.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, nearest

if TYPE_CHECKING:
    from attnflow.studies.study import Study

__all__ = ["Entry", "find", "load", "names", "register", "title"]


@dataclass(frozen=True)
class Entry:
    """Where a study lives: its config class (light) and its study class (loads JAX)."""

    name: str
    config: str
    study: str

    def load_config(self) -> type:
        return _load(self.config)

    def load(self) -> type[Study]:
        return _load(self.study)

    @property
    def title(self) -> str:
        return (self.load_config().__doc__ or self.name).strip().splitlines()[0]


_BUILT_IN = {
    "focus-dilution": Entry(
        "focus-dilution",
        "attnflow.studies.focus_dilution.config:Config",
        "attnflow.studies.focus_dilution.study:FocusDilution",
    ),
    "focus-dilution-text": Entry(
        "focus-dilution-text",
        "attnflow.studies.focus_text.config:Config",
        "attnflow.studies.focus_text.study:FocusDilutionText",
    ),
    "two-mixture": Entry(
        "two-mixture",
        "attnflow.studies.two_mixture.config:Config",
        "attnflow.studies.two_mixture.study:TwoMixture",
    ),
}
_OWN: dict[str, type[Study]] = {}


def names() -> list[str]:
    """Every study that can be run by name."""
    return sorted({*_BUILT_IN, *_OWN})


def title(name: str) -> str:
    """One line about a study."""
    return _OWN[name].title if name in _OWN else _BUILT_IN[name].title


def register(study: type[Study]) -> type[Study]:
    """Make a study of your own known by its `name` (also a class decorator)."""
    if study.name in _BUILT_IN:
        raise InputError("name", f"{study.name!r} is built in; choose another name")
    _OWN[study.name] = study
    return study


def find(name: str) -> tuple[str, Any]:
    """The full name of a study and its config class, by name or by the path of a Python file."""
    if name.endswith(".py"):
        name = _from_file(Path(name))
    if name in _OWN:
        return name, _OWN[name].Config
    if name not in _BUILT_IN:
        raise InputError("study", f"{name!r} is not known; {nearest(name, names())}")
    return name, _BUILT_IN[name].load_config()


def load(name: str) -> type[Study]:
    """The study class of a name that `find` returned."""
    return _OWN[name] if name in _OWN else _BUILT_IN[name].load()


def _load(where: str) -> Any:
    module, attribute = where.split(":")
    return getattr(importlib.import_module(module), attribute)


def _from_file(path: Path) -> str:
    """Import a user's file; it must define (and thereby register) exactly one study."""
    if not path.is_file():
        raise InputError("study", f"{path}: no such file")
    from attnflow.studies.study import Study

    module_name = f"attnflow_user_{path.stem}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    module = sys.modules[module_name]
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Study) and value.__module__ == module_name
    ]
    if len(own) != 1:
        raise InputError("study", f"{path} defines {len(own)} studies; a file has exactly one")
    register(own[0])
    return own[0].name
