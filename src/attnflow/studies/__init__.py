"""The papers, one study each; and the user's own, registered or in a file.

Names and configs are known without importing JAX; a study itself is loaded on use.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, nearest
from attnflow.studies import _own
from attnflow.studies import config as configs
from attnflow.studies._own import told

if TYPE_CHECKING:
    from attnflow.studies.study import Study

__all__ = [
    "build",
    "built_in",
    "configured",
    "find",
    "identity",
    "inputs",
    "locate",
    "names",
    "register",
    "source",
    "telling",
    "title",
    "told",
]

_BUILT_IN = {
    "checkpoints": ("checkpoints", "Checkpoints"),
    "cooccurrence": ("cooccurrence", "Cooccurrence"),
    "focus-dilution": ("focus_dilution", "FocusDilution"),
    "focus-dilution-text": ("focus_text", "FocusDilutionText"),
    "leading-terms": ("leading_terms", "LeadingTerms"),
    "two-mixture": ("two_mixture", "TwoMixture"),
}
"""The folder of each study, with its `config` (light) and its `study` (loads JAX)."""

_NOT_SOLVED = frozenset({"checkpoints"})
"""Those whose runs come from elsewhere (`attnflow checkpoints compare`): they are only drawn."""

_OWN: dict[str, type[Study]] = {}


def names() -> list[str]:
    """Every study that can be run by name."""
    return sorted({*_BUILT_IN, *_OWN} - _NOT_SOLVED)


def built_in(name: str) -> bool:
    """Whether a study is one of ours, which any process finds by its name."""
    return name in _BUILT_IN


def title(name: str) -> str:
    """One line about a study."""
    own = getattr(_OWN.get(name), "title", "")
    return own or (find(name)[1].__doc__ or name).strip().splitlines()[0]


def register(study: type[Study]) -> type[Study]:
    """Make a study of your own known by its `name` (also a class decorator)."""
    _own.check(study)
    if study.name in _BUILT_IN:
        raise InputError("name", f"{study.name!r} is built in; choose another name")
    _OWN[study.name] = study
    return study


def find(study: str) -> tuple[str, Any]:
    """The full name of a study and its config class, by name or by the path of a Python file."""
    if study.endswith(".py"):
        study = register(_own.load(Path(study))).name
    if study in _OWN:
        return study, _OWN[study].Config
    if study not in _BUILT_IN:
        raise InputError("study", f"{study!r} is not known; {nearest(study, names())}")
    return study, _module(study, "config").Config


def configured(study: str, config: Any = None, **keys: Any) -> tuple[str, Any]:
    """The name of a study (or of the one in a Python file) and a checked config of it.

    `config` is a TOML file, a mapping or a config object; `keys` override it.
    """
    name, kind = find(study)
    if config is None:
        values: dict[str, Any] = {}
    elif isinstance(config, str | os.PathLike):
        values = configs.load_toml(Path(config))
    elif isinstance(config, Mapping):
        values = dict(config)
    elif isinstance(config, kind):
        values = configs.as_dict(config)
    else:
        raise InputError("config", f"{type(config).__name__}; a TOML file, a mapping or a Config")
    with telling(name):
        return name, configs.build(kind, {**values, **keys})


def build(study: str, config: Any = None, **keys: Any) -> Study:
    """The study that `configured` names, ready to run: this loads JAX."""
    name, checked = configured(study, config, **keys)
    with telling(name):
        return _class(name)(checked)


def telling(name: str) -> AbstractContextManager[None]:
    """Inside, what a study of one's own raises becomes one sentence with the user's line."""
    return _own.telling(own=name not in _BUILT_IN)


def identity(name: str, config: Any) -> dict[str, str]:
    """Hashes of what decides a run besides its config: the study's code and the files it reads."""
    file = source(name)
    if file is None and name in _BUILT_IN:
        folder = Path(__file__).parent / _BUILT_IN[name][0]
        code = {"attnflow": version("attnflow")}
        code[f"studies/{folder.name}"] = _hash(sorted(folder.rglob("*.py")))
    elif file is None:
        code = {}
    else:
        names = (file, *_own.beside(file).values())
        code = {each.relative_to(file.parent).as_posix(): _hash([each]) for each in names}
    read = configs.files(config)
    return code | {f"{key} {path.name}": _hash([path]) for key, path in read.items()}


def source(name: str) -> Path | None:
    """The Python file of a study of one's own, where it has one."""
    return _own.file_of(_OWN[name]) if name in _OWN else None


def locate(name: str, folder: Path | None, places: tuple[str, ...]) -> str:
    """What `build` takes for the study of a run: its name, or the file it was in.

    `places` are the file's path and that from the run's folder, so that both may be moved.
    """
    if name in names() or not places:
        return name
    tried = [Path(places[0]), *([folder / places[-1]] if folder else []), Path(places[0]).name]
    for path in map(Path, tried):
        if path.is_file():
            return str(path)
    raise InputError(
        "study",
        f"the file of {name} was {places[0]} and is not there any more; "
        "say where it is now with --study FILE",
    )


def inputs(study: str) -> dict[str, tuple[str, str]]:
    """The files that a study reads, by option: which study reads it, and what it is."""
    name, kind = find(study)
    own = {key: (name, words) for key, words in configs.described_files(kind).items()}
    for key, other in getattr(kind, "elsewhere", {}).items():
        own[key] = (other, configs.described_files(find(other)[1])[key])
    return own


def _class(name: str) -> type[Study]:
    if name in _OWN:
        return _OWN[name]
    return getattr(_module(name, "study"), _BUILT_IN[name][1])


def _module(name: str, part: str) -> Any:
    return importlib.import_module(f"attnflow.studies.{_BUILT_IN[name][0]}.{part}")


def _hash(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        try:
            found.update(file.read_bytes())
        except OSError as error:
            raise InputError("study", f"{file} cannot be read ({error.strerror})") from None
    return found.hexdigest()
