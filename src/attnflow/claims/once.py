"""Measured once: what several claims and figures need is computed once per config and argument.

Inside `sharing(folder)` processes that measure the claims of one study together also hand each
other what they computed, through files that only they can read and that go with the folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attnflow.flows import opinion

P = ParamSpec("P")
R = TypeVar("R")

MOST = 512
"""Results that are remembered, the oldest forgotten first."""

_KEPT: dict[tuple, tuple[Any, int]] = {}
_FOLDER: list[Path] = []


def once(function: Callable[P, R]) -> Callable[P, R]:
    """`function(study, *arguments)`, computed once per config of the study, arguments and opinion.

    Other arguments are hashable. What it returns is shared: nobody may change it. The solves it
    took count for everyone who uses it, so that a second opinion is asked where there are any.
    """

    @functools.wraps(function)
    def shared(*args: P.args, **kwargs: P.kwargs) -> R:
        key = _key(function, args, kwargs)
        if key not in _KEPT:
            while len(_KEPT) >= MOST:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[key] = _found(key, lambda: function(*args, **kwargs))
        value, solves = _KEPT[key]
        opinion.rests_on(solves)
        return value

    return shared


@contextmanager
def sharing(folder: Path | None) -> Iterator[None]:
    """Inside, what is measured once is measured once for all processes that share this folder."""
    if folder is not None:
        _FOLDER.append(folder)
    try:
        yield
    finally:
        if folder is not None:
            _FOLDER.pop()


def _key(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """A study counts by its kind and its config, every other argument by its value."""
    known = [(type(a), a.config) if hasattr(a, "config") else a for a in args]
    named = (function.__module__, function.__qualname__)
    return (*named, *known, tuple(sorted(kwargs.items())), opinion.current())


def _found(key: tuple, work: Callable[[], Any]) -> tuple[Any, int]:
    if not _FOLDER:
        return _computed(work)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    place = _FOLDER[-1] / name
    try:
        with open(f"{place}.busy", "x") as busy:  # one process takes it, the others wait
            busy.write(str(os.getpid()))
    except OSError:
        return _waited(place) or _computed(work)
    try:
        found = _computed(work)
        _hand_over(place, found)
        return found
    except BaseException:
        _hand_over(place, None)
        raise


def _computed(work: Callable[[], Any]) -> tuple[Any, int]:
    with opinion.counting() as solves:
        value = work()
    return value, solves[0]


def _hand_over(place: Path, found: tuple[Any, int] | None) -> None:
    """Write a result beside and rename it; an empty file says that it cannot be handed over."""
    try:
        data = b"" if found is None else pickle.dumps(found)
    except Exception:  # a closure, a compiled function: everyone computes their own
        data = b""
    with suppress(OSError):
        beside = Path(f"{place}.{os.getpid()}")
        beside.write_bytes(data)
        os.replace(beside, place)


def _waited(place: Path) -> tuple[Any, int] | None:
    """What another process hands over; None where it has nothing to give, or is gone."""
    with suppress(OSError, ValueError):
        while not place.exists():
            owner = Path(f"{place}.busy").read_text()
            if owner:
                os.kill(int(owner), 0)  # raises where that process is gone
            time.sleep(0.02)
        data = place.read_bytes()
        return pickle.loads(data) if data else None
    return None
