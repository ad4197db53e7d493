"""Starts: where a flow begins."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnflow._errors import InputError


def gaussian(
    shapes: Mapping[str, tuple[int, ...]], scale: float = 1e-3, seed: int = 0
) -> dict[str, np.ndarray]:
    """Independent normal entries of standard deviation `scale`, one array per name.

    >>> gaussian({"W1": (2, 3)}, scale=1e-3, seed=0)["W1"].shape
    (2, 3)
    """
    if not (np.isfinite(scale) and scale >= 0):
        raise InputError("scale", f"{scale}; a standard deviation is finite and at least 0")
    rng = np.random.default_rng(seed)
    return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}
