"""Numbers and arrays on their way into a row: checked once, then plain JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow._errors import InputError, shown

Value = float | bool | str | list[Any] | None
"""What a row stores: a number, a truth value, a word, a nested list, or None (not finite)."""


def plain(value: ArrayLike) -> Value:
    """A number or array as JSON knows it: floats and lists, None where it is not finite."""
    array = np.asarray(value)
    if array.dtype == bool:
        return array.tolist()
    return _nulled(numbers("value", value).tolist())


def numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """The value as a float64 array with at least one entry."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            name, f"{shown(value)} is not a real number or an array of real numbers"
        ) from None
    if array.size == 0:
        raise InputError(name, "is empty, and a claim about nothing always holds")
    return array


def finite(x: float) -> float | None:
    """The number, or None where it is not finite."""
    return x if np.isfinite(x) else None


def _nulled(value: Any) -> Any:
    if isinstance(value, list):
        return [_nulled(v) for v in value]
    return finite(value)
