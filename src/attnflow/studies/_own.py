"""A study in a user's file: loaded, checked, and its mistakes told with the user's own line."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, shown

if TYPE_CHECKING:
    from attnflow.studies.study import Study

_HERE = str(Path(__file__).parents[1])
_LIBRARY = ("site-packages", "dist-packages", "<frozen", sysconfig.get_path("stdlib"), _HERE)
_WRITE = {
    "name": 'name = "my-study"',
    "Config": "Config = Config, a frozen dataclass with the keys of the study",
    "flow": "a property `flow` that returns af.Flow(loss)",
    "start": 'a property `start` that returns the first parameters, such as {"W": array}',
    "until": 'until: float = key(40.0, "flow time")',
    "rtol": 'rtol: float = key(1e-6, "relative tolerance")',
    "mode": 'mode: str = key("flow", "how to train")',
}
"""What to write for what is missing."""

FILES = "attnflow_user_"
"""How the modules of study files are called."""

_LOADED: dict[str, str] = {}
"""The module of each study that was in a file."""

_FOLDERS: list[str] = []
"""The folder of the study that was loaded last, where it imports from its own folder."""


def load(path: Path) -> type[Study]:
    """The one study that a file defines; every way to fail is one sentence with its line."""
    if not path.is_file():
        raise InputError("study", f"{path}: no such file")
    from attnflow.studies.study import Study

    # By content: a file that was edited is another module, and so is one of the same name.
    helpers = beside(path)
    content = b"".join(file.read_bytes() for file in (path, *helpers.values()))
    digest = hashlib.sha256(str(path.resolve()).encode() + content).hexdigest()
    name = f"{FILES}{path.stem}_{digest[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        linecache.checkcache(str(path))
        _let_import(str(path.resolve().parent), helpers)
        try:
            with telling(own=True):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    found = [
        value
        for value in vars(sys.modules[name]).values()
        if isinstance(value, type) and issubclass(value, Study) and value.__module__ == name
    ]
    if len(found) != 1:
        listed = f" ({', '.join(f'{c.__name__} in line {_line(c)}' for c in found)})" * bool(found)
        raise InputError(
            "study",
            f"{path} defines {len(found)} studies{listed}; write exactly one class below af.Study, "
            "with name, Config, flow and start",
        )
    last = _LOADED.get(getattr(found[0], "name", ""), name)
    if last != name:  # should that file come back, its claims have to be registered again
        sys.modules.pop(last, None)
    _LOADED[getattr(found[0], "name", "")] = name
    return found[0]


def beside(path: Path) -> dict[str, Path]:
    """The modules that a file imports from its own folder, directly or through each other."""
    from modulefinder import ModuleFinder  # only studies in files need it

    folder = path.resolve().parent
    finder = ModuleFinder([str(folder)])
    with suppress(SyntaxError):  # told when the file is loaded
        finder.run_script(str(path))
    files = {n: getattr(m, "__file__", None) for n, m in sorted(finder.modules.items())}
    return {n: Path(f) for n, f in files.items() if f is not None and n != "__main__"}


def _let_import(folder: str, helpers: dict[str, Path]) -> None:
    """Lets a study import from its own folder, as a script may; libraries come first."""
    for old in _FOLDERS:
        sys.path.remove(old)
    _FOLDERS[:] = [folder] if helpers and folder not in sys.path else []
    sys.path.extend(_FOLDERS)
    for name in helpers:  # edited since, or another study's of the same name
        known = getattr(sys.modules.get(name), "__file__", None)
        if known is not None and not any(part in known for part in _LIBRARY):
            del sys.modules[name]
            linecache.checkcache(known)


def check(study: type[Study]) -> None:
    """Refuse a class that lacks what a run needs, with the words to write."""
    from attnflow.studies.study import Study

    for name in ("name", "Config"):
        if not hasattr(study, name):
            raise _lacks(study, name)
    if not re.fullmatch(r"\w[\w.-]{0,79}", str(study.name)):
        raise InputError(
            "name",
            f"{shown(repr(study.name))} of {study.__name__}; letters, digits, '-', '_' and '.', "
            "at most 80: it becomes the name of a folder",
        )
    for name in sorted(getattr(study, "__abstractmethods__", ())):
        raise _lacks(study, name)
    if not dataclasses.is_dataclass(study.Config):
        raise _lacks(study, "Config", "whose Config is not a dataclass")
    for f in dataclasses.fields(study.Config):
        if f.default is f.default_factory is dataclasses.MISSING:
            raise _lacks(study.Config, f.name, f"in which '{f.name}' has no default")
    if study.solve is Study.solve:
        for name in ("until", "rtol", "mode"):
            if not hasattr(study.Config, name):
                raise _lacks(study.Config, name)


@contextmanager
def telling(own: bool) -> Iterator[None]:
    """Turns what a user's own study raises into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not own:
            raise
        raise InputError("study", told(error)) from error


def told(error: BaseException) -> str:
    """`model.py:12: theta["W3"] @ x: KeyError: 'W3'`: the user's own line and what went wrong."""
    if isinstance(error, InputError):
        return str(error)
    words = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, SyntaxError) and error.filename:
        code = (error.text or "").strip()
        place = f"{Path(error.filename).name}:{error.lineno}: {shown(code, 80)}: "
        return f"{place}{type(error).__name__}: {error.msg}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(part in frame.filename for part in _LIBRARY):
            place = f"{Path(frame.filename).name}:{frame.lineno}: {shown(frame.line or '', 80)}: "
            return f"{place}{type(error).__name__}: {shown(words, 160)}"
    return f"{type(error).__name__}: {shown(words, 160)}"


def file_of(study: type[Any]) -> Path | None:
    """The file that a class was written in."""
    try:
        found = inspect.getsourcefile(study)
    except TypeError:
        return None
    return Path(found).resolve() if found and Path(found).is_file() else None


def _lacks(kind: type, name: str, how: str = "") -> InputError:
    file = file_of(kind)
    place = f"{file.name}:{_line(kind)}: " if file else ""
    write = _WRITE.get(name) or f"{name}: float = key(1.0, ...)"
    return InputError(
        "study", f"{place}class {kind.__name__} {how or f'has no `{name}`'}; write {write}"
    )


def _line(kind: type) -> int:
    try:
        return inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return 0
