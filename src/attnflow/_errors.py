"""The one error of the borders: a sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class InputError(ValueError):
    """Bad input, said in one sentence before any work starts.

    The command line prints it and exits with status 2; in Python it is a `ValueError`.

    >>> raise InputError("dim", "0 is not a width; dim is a whole number of at least 1")
    Traceback (most recent call last):
    attnflow._errors.InputError: dim: 0 is not a width; dim is a whole number of at least 1
    """

    def __init__(self, field: str, sentence: str):
        self.field = field
        self.sentence = sentence
        super().__init__(f"{field}: {sentence}")

    def __reduce__(self):  # so that it survives the way back from a worker process
        return type(self), (self.field, self.sentence)


def shown(value: object, most: int = 60) -> str:
    """The value as the user would have typed it, cut to a readable length."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        text = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in value)
    else:
        text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # one line
    return text if len(text) <= most else text[: most - 1] + "…"


def positive(field: str, value: object) -> float:
    """The value as a positive, finite float, or the sentence that says why it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, f"{shown(value)}; a positive, finite number") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(field, f"{shown(value)}; a positive, finite number")
    return number


def whole(field: str, value: object, least: int = 1) -> int:
    """The value as a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise InputError(field, f"{shown(value)}; a whole number of at least {least}")
    return int(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """`(did you mean 'x'?)` for the nearest known word, else the list of known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(known) if known else "none are known"


def named_arguments(
    moved: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A call with a keyword that the function has not gets a sentence instead of a TypeError.

    `moved` says for some of them what to write instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [n for n in inspect.signature(function).parameters if n not in ("self", "cls")]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    hint = (moved or {}).get(name) or nearest(name, known)
                    raise InputError(name, f"no such argument; {hint}")
            return function(*args, **kwargs)

        return checked

    return decorate
