"""Gates of a flow: where they are, how they are named, and how fast their guards move.

A ReLU makes a velocity jump where its argument, the guard, is zero. Between two switches the
gates are held and the field is smooth. At a switch the flow crosses, or the fields of both sides
point to the surface: then the exact flow (Filippov's) slides on it, with a share in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError
from attnflow.flows.layout import Layout, Params, Vector
from attnflow.flows.users import shape_of


@dataclass(frozen=True)
class Mode:
    """A stretch of a solve with one smooth field."""

    begins: float
    ends: float
    on: tuple[bool, ...]
    """Of every gate; a sliding gate is neither and says False."""
    sliding: tuple[str, ...] = ()
    share: tuple[tuple[float, float], ...] = ()
    """Of each sliding gate, at the beginning and at the end: the weight of the field with the
    gate on in Filippov's convex combination."""


class Gates:
    """The guards of a flow as its author wrote them, and their names."""

    def __init__(self, guards: Callable[[Params], Any], names: Sequence[str] | None = None):
        self.guards = guards
        self.names = None if names is None else tuple(names)

    def bind(self, layout: Layout, y: Vector | None) -> BoundGates:
        """The gates on parameters of one layout; at `y` where nothing should be traced."""
        return BoundGates(self, layout, y)


class BoundGates:
    """Gates as one flat vector."""

    def __init__(self, gates: Gates, layout: Layout, y: Vector | None):
        self._guards = gates.guards
        shapes = None if y is None else self._native(layout.unflatten(y))
        if shapes is None:
            state = jax.ShapeDtypeStruct((layout.size,), np.float64)
            with jax.enable_x64(True):
                shapes = shape_of(
                    "gates", lambda y: gates.guards(layout.unflatten(y)), state, layout
                )
        paths, self._tree = jax.tree_util.tree_flatten_with_path(shapes)
        if not paths:
            raise InputError("gates", "returns nothing; one number per gate, positive where on")
        self._shapes = [leaf.shape for _, leaf in paths]
        self._sizes = [int(np.prod(shape, dtype=int)) for shape in self._shapes]
        self.count = sum(self._sizes)
        given = [
            (jax.tree_util.keystr(path, simple=True, separator="."), k)
            for (path, _), size in zip(paths, self._sizes, strict=True)
            for k in range(size)
        ]
        self.names = gates.names or tuple(f"{name or 'gate'} {k}" for name, k in given)
        if len(self.names) != self.count or len(set(self.names)) < self.count:
            raise InputError(
                "gate_names", f"{len(self.names)} names for {self.count} gates; one each"
            )

    def _native(self, theta: Params) -> Any:
        """The guards in NumPy; None where they are written for JAX alone."""
        try:
            found = self._guards(theta)
        except Exception:  # tracing them says what is wrong
            return None
        leaves = jax.tree_util.tree_leaves(found)
        return found if all(isinstance(leaf, np.ndarray) for leaf in leaves) else None

    def values(self, theta: Params, xp: Any) -> Any:
        """The guards, flat; `xp` is numpy or jax.numpy."""
        leaves = jax.tree_util.tree_leaves(self._guards(theta))
        return xp.concatenate([xp.ravel(xp.asarray(leaf)) for leaf in leaves])

    def unflatten(self, u: Any) -> Any:
        """A flat vector of shares in the shape of the guards."""
        at, leaves = 0, []
        for shape, size in zip(self._shapes, self._sizes, strict=True):
            leaves.append(u[at : at + size].reshape(shape))
            at += size
        return jax.tree_util.tree_unflatten(self._tree, leaves)


STENCIL = np.array([-1 / 60, 3 / 20, -3 / 4, 3 / 4, -3 / 20, 1 / 60])
POINTS = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])


def guard_rate(
    guards: Callable[[Vector], np.ndarray], y: Vector, v: Vector
) -> Float[np.ndarray, "gate"]:
    """The derivative of the guards along `v` by central differences of sixth order.

    Where nothing may be compiled. The points lie a hundredth of the state's size apart: the
    truncation is below 1e-14 of a smooth guard, and so is the rounding.
    """
    size = float(np.abs(v).max())
    if size == 0:
        return np.zeros_like(guards(y))
    step = 1e-2 * max(float(np.abs(y).max()), 1e-2) / size
    return np.tensordot(STENCIL, [guards(y + k * step * v) for k in POINTS], 1) / step
