"""Float64, scoped: every public callable that touches JAX enters the scope itself.

`jax.enable_x64` is thread-local and a jitted function called outside it silently drops to
float32, so the scope is entered at our borders and the caller's own setting is never changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with JAX in double precision, in whichever thread it is called."""

    @functools.wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped


def keep_precisions_apart() -> None:
    """Give JAX a constant per NumPy array *and precision*, where it has one per array.

    A NumPy array inside a traced function becomes a constant, float32 or float64 as the scope
    says. JAX hands out the same constant again while anything compiled still holds it, in
    whichever scope it is asked: a loss over a float64 array that is compiled here then fails in
    the caller's single precision, and one that the caller has compiled fails here, or comes
    rounded. So two such memories take the place of the one. Compiled calls never come here, and
    a JAX that keeps the precisions apart is left as it is.
    """
    from jax._src import config, dtypes, literals
    from jax._src.lib import weakref_lru_cache  # pyright: ignore[reportPrivateImportUsage]

    def constant(x: np.ndarray) -> Any:
        dtypes.check_valid_dtype(x.dtype)
        return literals.TypedNdArray(np.asarray(x, dtypes.canonicalize_dtype(x.dtype)))

    probe = np.zeros(1)
    with jax.enable_x64(True):
        wide = dtypes.canonicalize_value(probe)
    with jax.enable_x64(False):
        apart = dtypes.canonicalize_value(probe) is not wide
    if not apart:
        memory = [weakref_lru_cache.weak_key_weak_value_cache(constant) for _ in range(2)]
        dtypes.register_canonicalize_value_handler(
            np.ndarray, lambda x: memory[config.enable_x64.value](x)
        )


# There is no public way, so these are JAX's private names; if they move, only this is lost.
with contextlib.suppress(ImportError, AttributeError):
    keep_precisions_apart()
