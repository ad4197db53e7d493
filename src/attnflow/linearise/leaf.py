"""The equations of a critical point on a leaf, and the least-squares steps towards one.

A leaf is where the conserved quantities keep the values they have at one point. The equations
are `velocity = 0` and `C(y) = C(leaf)`; a step solves both, linearised and damped.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, lapack

from attnflow._precision import float64
from attnflow.flows.flow import System
from attnflow.flows.layout import Vector
from attnflow.linearise.modes import DENSE

LEAF_WEIGHT = 100.0
"""Rows that keep a step on the leaf weigh this much more than those that slow the flow, once both
are of one size."""

ON_LEAF = 1e-13
"""A point is on the leaf when no conserved quantity is further off than this, in squared norms of
the point or of the one that names the leaf."""

MOST_LINEARISED = 4
"""Jacobians of the conserved quantities on the way to the leaf."""

ROUNDING = 1e-13
"""Normal equations of a matrix A are trusted with a damping above this times the squared norm of
A: the square of the condition is then still resolved, and a correction removes what is lost."""


class Equations:
    """The velocity, to be made zero, and C(y) - C(leaf), to be kept zero."""

    def __init__(self, system: System, leaf: Vector, hold: bool):
        self.system = system
        self.dense = system.size <= DENSE
        self._names = list(system.flow.conserved) if hold else []
        self._reference = system.conserved(leaf) if hold else {}
        self._rows = {n: _independent(system, n) for n in self._names}
        self._velocity = _Products(system, "velocity", system.trace_velocity)
        self._held = _Products(system, "conserved", self._trace_held)
        self._values = self.held(leaf)
        self._size = float(leaf @ leaf)
        self._chord: tuple[np.ndarray, Any] | None = None

    def velocity(self, y: Vector) -> np.ndarray:
        out = np.empty_like(y)
        self.system.rhs(y, out)
        return out

    def held(self, y: Vector) -> np.ndarray:
        """Every independent entry of the conserved quantities, as rows of a least squares."""
        if not self._names:
            return np.empty(0)
        now = self.system.conserved(y)
        return np.concatenate([np.ravel(now[n])[i] * w for n, (i, w) in self._rows.items()])

    def off(self, y: Vector) -> dict[str, float]:
        """How far each conserved quantity is from the leaf."""
        now = self.system.conserved(y) if self._names else {}
        return {n: float(np.abs(now[n] - self._reference[n]).max()) for n in self._names}

    def step(self, y: Vector, velocity: np.ndarray, damping: float) -> np.ndarray:
        """argmin |J d + v|^2 + damping |d|^2 along the leaf (heavily weighted rows)."""
        off = self.held(y) - self._values
        if not self.dense:
            maps = [(self._velocity, 1.0, velocity)]
            maps += [(self._held, LEAF_WEIGHT, off)] if self._names else []
            return _least_squares(maps, y, damping)
        matrix = self.system.jacobian(y)
        target = -velocity
        size = float(np.linalg.norm(matrix))
        if self._names:
            held = self._linearise(y)
            # Near a degenerate saddle of small weights J is smaller than dC by any factor.
            weight = LEAF_WEIGHT * size / (float(np.linalg.norm(held)) or 1.0)
            matrix = np.vstack([matrix, weight * held])
            target = np.concatenate([target, -weight * off])
        return damped_least_squares(matrix, target, max(damping, (1e-14 * size) ** 2))

    def onto_leaf(self, y: Vector) -> Vector:
        """The nearest point of the leaf, by Gauss-Newton steps of least norm.

        The Jacobian of the last step is tried first, and stays while the distance falls tenfold.
        """
        stale, fresh = self._chord is not None, 0
        off = self.held(y) - self._values
        while (size := float(np.abs(off).max(initial=0.0))) > ON_LEAF * max(
            self._size, float(y @ y)
        ):
            if not stale:
                fresh += 1
                if fresh > MOST_LINEARISED or not np.isfinite(size):
                    break
            if not self.dense:
                trial = y + _least_squares([(self._held, 1.0, off)], y, 1e-14)
            else:
                if not stale:
                    self._linearise(y)
                if self._chord is None:
                    break
                held, factor = self._chord
                trial = y - held.T @ cho_solve(factor, off, check_finite=False)
            new = self.held(trial) - self._values
            falls = np.abs(new).max() <= 0.1 * size
            if stale and not falls:
                stale = False
                continue
            y, off = trial, new
            stale = self.dense and bool(falls)
        return y

    def _linearise(self, y: Vector) -> np.ndarray:
        """The Jacobian of the held rows at `y`, kept with the factor of its small Gram matrix."""
        held = self._held.jacobian(y)
        gram = held @ held.T
        # Rows may depend on each other (two balances share a trace): a rounding error of damping,
        # and more where that error comes out larger.
        size = float(gram.diagonal().max(initial=0.0)) or 1.0
        for damping in (1e-14, 1e-12, 1e-10):
            with suppress(np.linalg.LinAlgError):
                factor = cho_factor(
                    gram + damping * size * np.eye(len(gram)), lower=True, check_finite=False
                )
                self._chord = held, factor
                break
        return held

    def _trace_held(self, y: Any) -> Any:
        theta = self.system.layout.unflatten(y)
        conserved = self.system.flow.conserved
        return jnp.concatenate(
            [jnp.ravel(jnp.asarray(conserved[n](theta)))[i] * w for n, (i, w) in self._rows.items()]
        )


def _independent(system: System, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Which entries of a conserved quantity say something of their own, and their weights.

    Balances are symmetric matrices: their upper triangle says it all, and an entry off the
    diagonal weighs sqrt(2), so that sums of squares stay what they are.
    """
    y = np.random.default_rng(2).standard_normal(system.size)
    value = system.conserved(y)[name]
    indices = np.arange(value.size)
    if value.ndim == 2 and value.shape[0] == value.shape[1] > 1:
        size = max(float(np.abs(value).max(initial=0.0)), 1e-300)
        if np.abs(value - value.T).max() <= 1e-13 * size:
            upper = np.triu(indices.reshape(value.shape) + 1)
            kept = upper[upper > 0] - 1
            on = kept // len(value) == kept % len(value)
            return kept, np.where(on, 1.0, np.sqrt(2.0))
    return indices, np.ones(value.size)


def damped_least_squares(matrix: np.ndarray, target: np.ndarray, damping: float) -> np.ndarray:
    """argmin |A d - b|^2 + damping |d|^2 for a dense A.

    By Cholesky of the normal equations while the damping is well above their rounding errors
    (five times as fast), by QR of the stacked rows below, since the normal equations square the
    condition.

    >>> damped_least_squares(np.array([[2.0]]), np.array([1.0]), 1.0)
    array([0.4])
    """
    columns = matrix.shape[1]
    routines: Any = blas
    normal = routines.dsyrk(1.0, matrix.T, lower=1)  # one triangle, in half the time
    if damping > ROUNDING * float(normal.diagonal().max(initial=0.0)):
        normal[np.diag_indices(columns)] += damping
        try:
            factor = cho_factor(normal, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            pass
        else:
            found = np.zeros(columns)
            for _ in range(2):
                rest = matrix.T @ (target - matrix @ found) - damping * found
                found += cho_solve(factor, rest, check_finite=False)
            return found
    stacked = np.zeros((len(matrix) + columns, columns), order="F")
    stacked[: len(matrix)] = matrix
    stacked[len(matrix) :][np.diag_indices(columns)] = np.sqrt(damping)
    wanted = np.concatenate([target, np.zeros(columns)])
    routines = lapack
    work = int(routines.dgels_lwork(len(stacked), columns, 1)[0])
    _, solved, failed = routines.dgels(stacked, wanted, lwork=work, overwrite_a=1, overwrite_b=1)
    return np.full(columns, np.nan) if failed else np.ravel(solved)[:columns]


class _Products:
    """A function of the flat vector: its Jacobian, or products with it; compiled once per flow."""

    def __init__(self, system: System, name: str, function: Any):
        def once(what: str, made: Any) -> Any:
            return system.compiled(("leaf", name, what), made)

        self._jacobian = once("jacobian", jax.jacrev(function))
        self._push = once("push", lambda y, v: jax.jvp(function, (y,), (v,))[1])
        self._pull = once("pull", lambda y, u: jax.vjp(function, y)[1](u)[0])

    @float64
    def jacobian(self, y: Vector) -> np.ndarray:
        return np.asarray(self._jacobian(y))

    @float64
    def push(self, y: Vector, v: np.ndarray) -> np.ndarray:
        return np.asarray(self._push(y, np.ravel(v)))

    @float64
    def pull(self, y: Vector, u: np.ndarray) -> np.ndarray:
        return np.asarray(self._pull(y, np.ravel(u)))


def _least_squares(
    maps: list[tuple[_Products, float, np.ndarray]], y: Vector, damping: float
) -> Any:
    """argmin sum_k w_k^2 |J_k d + r_k|^2 + damping |d|^2 for a large state: LSMR on products."""
    from scipy.sparse import linalg

    sparse: Any = linalg

    target = -np.concatenate([w * r for _, w, r in maps])
    sizes = np.cumsum([0, *[len(r) for _, _, r in maps]])

    def push(v: np.ndarray) -> np.ndarray:
        return np.concatenate([w * m.push(y, v) for m, w, _ in maps])

    def pull(u: np.ndarray) -> np.ndarray:
        u = np.ravel(u)
        parts = zip(maps, sizes[:-1], sizes[1:], strict=True)
        return np.sum([w * m.pull(y, u[a:b]) for (m, w, _), a, b in parts], axis=0)

    operator = sparse.LinearOperator(
        (len(target), len(y)), matvec=push, rmatvec=pull, dtype=np.float64
    )
    return sparse.lsmr(
        operator, target, damp=np.sqrt(damping), atol=1e-12, btol=1e-12, maxiter=500
    )[0]
