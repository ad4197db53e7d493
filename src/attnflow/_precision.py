"""Float64, scoped: every public callable that touches JAX enters the scope itself.

`jax.enable_x64` is thread-local and a jitted function called outside it silently drops to
float32, so the scope is entered at our borders and the caller's own setting is never changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with JAX in double precision, in whichever thread it is called."""

    @functools.wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped
