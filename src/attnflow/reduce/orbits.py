"""Symmetry orbits: the fixed subspace of a group of signed permutations of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from attnflow._errors import InputError, shown
from attnflow._precision import float64
from attnflow.flows.flow import Flow, FlowLike
from attnflow.flows.layout import Params
from attnflow.reduce.generators import SignedPermutation, signed_permutation
from attnflow.reduce.reduction import Reduction, gaussian_point, sampler, velocity_at

INVARIANCE = 1e-10
"""How far the loss may differ at a point and at its image, over 1 + |L|."""

POINTS = 3
"""Random points at which every generator is checked."""


@final
class OrbitFlow(Reduction):
    """The flow on the parameters that a group of signed permutations leaves fixed.

    If L is invariant under the group, the velocity is equivariant and the fixed subspace
    invariant. Its coordinates are the orbits: `theta_i = s_i z_k` for i in orbit k (an orbit that
    contains some coordinate with both signs is zero). `z_k'` is the common velocity of orbit k.

    It is *not* minus the gradient of the reduced loss `l(z) = L(lift(z))`: `z` counts every orbit
    once, whatever its size. With `|k|` the size of orbit k and r its rate,
    `z_k' = -(r / |k|) dl/dz_k`.

    generators
        Each one a function theta -> theta that permutes the coordinates and changes signs; or
        `{"W0": {0: order}, "W1": {1: (order, signs)}, "w": -1}`: per block an order (and signs)
        along some axes, or a sign; or a flat `order` or `(order, signs)` of all coordinates.
    like
        Full parameters, for the shapes.
    sample
        Draws the points (from a NumPy generator) at which invariance is checked, for losses that
        are not defined everywhere.

    A state is `{block: orbits whose first coordinate lies in that block}`; `coordinates` says
    which they are.

    >>> import jax.numpy as jnp
    >>> flow = Flow(lambda th: jnp.sum(th["x"] ** 4) + jnp.prod(th["x"]))
    >>> OrbitFlow(flow, [lambda th: {"x": th["x"][::-1]}], {"x": np.zeros(3)}).coordinates
    ['x[0] (2)', 'x[1] (1)']
    """

    @float64
    def __init__(
        self,
        flow: FlowLike,
        generators: Sequence[Any],
        like: Params,
        *,
        sample: Callable[[np.random.Generator], Params] | None = None,
        seed: int = 0,
        name: str | None = None,
    ):
        system = flow.bind(like)
        if callable(generators) or isinstance(generators, Mapping) or not len(generators):
            raise InputError("generators", f"{shown(generators)}; a list of at least one generator")
        group = [
            signed_permutation(g, system.layout, f"generators[{i}]")
            for i, g in enumerate(generators)
        ]
        self.full, self._system = flow, system
        self._check(group, sampler(flow, like, sample), seed)
        label, self._sign = _orbits(group, system.size)
        moving = self._sign != 0
        if not moving.any():
            raise InputError(
                "generators", "leave only the origin fixed; there is nothing to reduce"
            )
        _, self._first, orbit = np.unique(label[moving], return_index=True, return_inverse=True)
        # Numbered by their first coordinates, so that a state lies in the order of the full one.
        order = np.argsort(self._first)
        self._first = np.flatnonzero(moving)[self._first[order]]
        self._orbit = np.zeros(system.size, dtype=np.int32)
        self._orbit[moving] = np.argsort(order)[orbit]
        self.sizes = np.bincount(self._orbit[moving])
        """How many coordinates each orbit has."""
        self._blocks = self._reduced_blocks()
        self.flow = Flow(
            self._trace_loss if system.has_loss else None,
            velocity=self._velocity,
            conserved={n: self._lifted(c) for n, c in system.flow.conserved.items()},
            host=system.flow.host,
            name=name or f"{flow.name}, {len(self.sizes)} orbits",
        )

    @property
    def coordinates(self) -> list[str]:
        """The first coordinate of each orbit and the orbit's size: `W0[1, 2] (6)`."""
        out = []
        for i, size in zip(self._first, self.sizes, strict=True):
            block = next(b for b in self._system.layout.blocks if b.start <= i < b.stop)
            place = np.unravel_index(int(i) - block.start, block.shape) if block.shape else ()
            out.append(f"{block.name}{[int(k) for k in place] if place else ''} ({size})")
        return out

    @float64
    def project(self, theta: Params, near: Params | None = None) -> Params:
        """The mean of every orbit: the nearest point of the fixed subspace."""
        y = self._sign * self._system.layout.flatten(theta)
        moving = self._sign != 0
        sums = np.bincount(self._orbit[moving], weights=y[moving], minlength=len(self.sizes))
        return self._tree(sums / self.sizes)

    @float64
    def lift(self, state: Params) -> Params:
        """The full parameters on the fixed subspace."""
        return self._system.layout.unflatten(self._lift_flat(self._vector(state, np)))

    def distance(self, theta: Params, near: Params | None = None) -> float:
        """The norm of what is not fixed, relative to the norm of `theta`."""
        layout = self._system.layout
        y = layout.flatten(theta)
        off = y - layout.flatten(self.lift(self.project(theta)))
        return float(np.linalg.norm(off) / max(float(np.linalg.norm(y)), 1e-300))

    def sample(self, rng: np.random.Generator, like: Params) -> Params:
        """The projection of a random point of the full flow."""
        if isinstance(self.full, Reduction):
            return self.project(self.full.sample(rng, self.lift(like)))
        return gaussian_point(rng, like)

    def _lift_flat(self, z: Any) -> Any:
        return z[self._orbit] * self._sign

    def _vector(self, state: Params, xp: Any) -> Any:
        return xp.concatenate([xp.asarray(state[name]) for name, _, _ in self._blocks])

    def _tree(self, z: Any) -> dict[str, Any]:
        return {name: z[low:high] for name, low, high in self._blocks}

    def _trace_theta(self, state: Params) -> Any:
        import jax.numpy as jnp

        return self._lift_flat(self._vector(state, jnp))

    def _trace_loss(self, state: Params) -> Any:
        return self._system.trace_loss(self._trace_theta(state))

    def _lifted(self, measure: Callable[[Params], Any]) -> Callable[[Params], Any]:
        return lambda state: measure(self._system.layout.unflatten(self._trace_theta(state)))

    def _velocity(self, state: Params, out: Params | None = None) -> Params:
        """The velocity at the lift, read at the first coordinate of every orbit."""
        if out is None:
            return self._tree(self._system.trace_velocity(self._trace_theta(state))[self._first])
        y = self._lift_flat(self._vector(state, np))
        v = np.empty_like(y)
        self._system.rhs(y, v)
        for name, low, high in self._blocks:
            out[name][:] = v[self._first[low:high]]
        return out

    def _reduced_blocks(self) -> list[tuple[str, int, int]]:
        blocks = []
        for block in self._system.layout.blocks:
            low, high = np.searchsorted(self._first, [block.start, block.stop])
            if high > low:
                blocks.append((block.name, int(low), int(high)))
        return blocks

    def _check(self, group: list[SignedPermutation], draw: Any, seed: int) -> None:
        """Refuse a group that the loss or the velocity does not respect."""
        system, rng = self._system, np.random.default_rng(seed)
        for _ in range(POINTS):
            y = system.layout.flatten(draw(rng))
            v = velocity_at(system, system.layout.unflatten(y))
            loss = system.loss(y) if system.has_loss else 0.0
            for i, g in enumerate(group):
                image = g(y)
                if system.has_loss:
                    gap = abs(system.loss(image) - loss)
                    if not gap <= INVARIANCE * (1 + abs(loss)):
                        raise InputError(
                            f"generators[{i}]",
                            f"changes the loss by {gap:.2g} at a random point; "
                            "a symmetry leaves it as it is",
                        )
                # Rates that differ along an orbit break the symmetry though the loss has it.
                gap = np.abs(velocity_at(system, system.layout.unflatten(image)) - g(v)).max()
                if not gap <= 100 * INVARIANCE * (1 + np.abs(v).max()):
                    raise InputError(
                        f"generators[{i}]",
                        f"does not carry the velocity along (off by {gap:.2g} "
                        "at a random point): rates must be equal along orbits",
                    )


def _orbits(group: list[SignedPermutation], size: int) -> tuple[np.ndarray, np.ndarray]:
    """A label and a sign per coordinate; sign 0 where a coordinate is its own opposite.

    Fixed means `y_i = s_i y_{o_i}` for every generator. The components of the graph on
    (coordinate, sign) that joins `(i, +)` with `(o_i, s_i)` and `(i, -)` with `(o_i, -s_i)` are
    the orbits, each with its mirror image; an orbit that is its own mirror image is zero.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    i = np.arange(size)
    ends: list[np.ndarray] = []
    begins: list[np.ndarray] = []
    for g in group:
        mirrored = g.sign < 0
        begins += [i, i + size]
        ends += [g.order + size * mirrored, g.order + size * ~mirrored]
    rows, columns = np.concatenate(begins), np.concatenate(ends)
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), (2 * size, 2 * size))
    _, component = connected_components(graph, directed=False)
    plus, minus = component[:size], component[size:]
    label = np.minimum(plus, minus)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    sign = np.where(plus == plus[first][inverse], 1.0, -1.0)
    sign[plus == minus] = 0.0
    return label, sign
