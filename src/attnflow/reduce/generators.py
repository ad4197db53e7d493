"""Generators of a symmetry, in whichever way a user writes them, as signed permutations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow._errors import InputError, nearest, shown
from attnflow.flows.layout import Block, Layout, Vector


@dataclass(frozen=True)
class SignedPermutation:
    """`(g y)_i = sign_i y_{order_i}` on flat vectors."""

    order: np.ndarray
    sign: np.ndarray

    def __call__(self, y: Vector) -> Vector:
        return self.sign * y[self.order]


def signed_permutation(given: Any, layout: Layout, field: str) -> SignedPermutation:
    """The generator as a signed permutation of the flat coordinates, or the sentence."""
    if isinstance(given, SignedPermutation):
        return given
    if callable(given):
        return _of_function(given, layout, field)
    if isinstance(given, Mapping):
        return _of_blocks(given, layout, field)
    order, sign = _order_and_signs(given, layout.size, field)
    return SignedPermutation(order, sign)


def _of_function(function: Any, layout: Layout, field: str) -> SignedPermutation:
    """Read off the images of the numbers 1 .. n, then tried on other numbers."""
    n = layout.size

    def image(y: Vector) -> Vector:
        out = function(layout.numpy(y))
        try:
            return layout.flatten(out)
        except InputError as error:
            raise InputError(field, f"returns another shape: {error}") from None

    numbers = image(np.arange(1.0, n + 1))
    order = (
        np.abs(numbers).astype(int, casting="unsafe") - 1 if np.isfinite(numbers).all() else None
    )
    if order is None or not np.array_equal(np.sort(np.abs(numbers)), np.arange(1.0, n + 1)):
        raise InputError(
            field,
            "is not a signed permutation: every parameter must come out once, as it is or "
            "with its sign changed",
        )
    found = SignedPermutation(order, np.sign(numbers))
    probe = np.random.default_rng(0).standard_normal(n)
    if not np.array_equal(image(probe), found(probe)):
        raise InputError(field, "is not linear: a signed permutation treats all values alike")
    return found


def _of_blocks(given: Mapping[str, Any], layout: Layout, field: str) -> SignedPermutation:
    """`{"W0": {0: order}, "W1": {1: (order, signs)}, "w": -1}`; other blocks stay."""
    order, sign = np.arange(layout.size), np.ones(layout.size)
    known: dict[str, Block] = {block.name: block for block in layout.blocks}
    for name, action in given.items():
        if name not in known:
            raise InputError(f"{field}.{name}", f"no such block; {nearest(str(name), known)}")
        block = known[name]
        here = np.arange(block.start, block.stop).reshape(block.shape)
        signs = np.ones(block.shape)
        if not isinstance(action, Mapping):
            if np.ndim(action) != 0 or action not in (1, -1):
                raise InputError(
                    f"{field}.{name}",
                    f"{shown(action)}; 1, -1, or {{axis: order}} with an order "
                    "of the entries along that axis",
                )
            signs = signs * action
            action = {}
        for axis, along in action.items():
            if not isinstance(axis, int) or not 0 <= axis < len(block.shape):
                raise InputError(f"{field}.{name}", f"axis {axis!r}; the shape is {block.shape}")
            o, s = _order_and_signs(along, block.shape[axis], f"{field}.{name}")
            shape = [1] * len(block.shape)
            shape[axis] = -1
            here, signs = here.take(o, axis), signs.take(o, axis) * s.reshape(shape)
        order[block.start : block.stop] = here.ravel()
        sign[block.start : block.stop] = signs.ravel()
    return SignedPermutation(order, sign)


def _order_and_signs(given: Any, size: int, field: str) -> tuple[np.ndarray, np.ndarray]:
    """`order`, or `(order, signs)`, of `size` entries."""
    pair = isinstance(given, tuple) and len(given) == 2 and all(np.ndim(x) == 1 for x in given)
    try:
        order = np.asarray(given[0] if pair else given)
        signs = np.asarray(given[1] if pair else np.ones(size), dtype=np.float64)
        whole = np.issubdtype(order.dtype, np.integer)
        good = whole and order.ndim == 1 and np.array_equal(np.sort(order), np.arange(size))
    except (TypeError, ValueError):
        good, order, signs = False, np.empty(0), np.empty(0)
    if not good:
        raise InputError(field, f"{shown(given)}; not a permutation of 0 .. {size - 1}")
    if signs.shape != (size,) or not np.isin(signs, (1.0, -1.0)).all():
        raise InputError(field, f"signs {shown(signs)}; {size} numbers, each 1 or -1")
    return order.astype(int), signs
