"""Lyapunov-Schmidt reduction: what becomes of a degenerate critical point when a parameter moves.

At a critical point with singular (symmetric) Jacobian `J0` the implicit function theorem fails.
Split `theta = theta0 + K x + R y` into kernel and range of J0: the range equation
`R^T v(theta, p) = 0` can be solved for `y = zeta(x, p)`, and what is left, the reduced equation
`K^T v(theta0 + K x + R zeta(x, p), p) = 0`, has only as many unknowns as the kernel has dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown
from attnflow._precision import float64
from attnflow.flows.layout import Layout, Params, Vector

Evaluation = tuple[np.ndarray, np.ndarray]
"""The velocity [n] and its Jacobian [n, n + 1] in (theta, p)."""


@dataclass(frozen=True)
class RangeSolution:
    """`y = zeta(x, p)`: where the range equation holds, and how well."""

    x: np.ndarray
    p: float
    y: np.ndarray
    theta: Params
    residual: float
    """|R^T v|: zero to rounding where it converged."""
    speed: float
    """|v|: what the reduced equation still leaves."""
    iterations: int
    converged: bool
    sentence: str


@dataclass(frozen=True)
class LyapunovSchmidt:
    """The reduction of one family at one point: bases, first order, and the solver."""

    theta0: Params
    p0: float
    kernel: Float[np.ndarray, "state kernel"]
    """Orthonormal basis of ker J0 in its columns."""
    range: Float[np.ndarray, "state range"]
    """Orthonormal basis of its orthogonal complement, the range of J0."""
    rates: np.ndarray
    """Eigenvalues of J0, largest first."""
    first_order: Float[np.ndarray, "range"]
    """d zeta / dp at the point: `-(R^T J0 R)^-1 R^T f1`, `f1 = dv/dp`."""
    forcing: Float[np.ndarray, "kernel"]
    """K^T f1: where it is not zero the point is lost at first order in p."""
    speed: float
    """|v| at the point: the reduction is about a critical point only where this is zero."""
    critical: bool
    sentence: str
    evaluate: Callable[[Vector, float], Evaluation] = field(repr=False)
    layout: Layout = field(repr=False)

    @property
    def dimension(self) -> int:
        """dim ker J0."""
        return self.kernel.shape[1]

    def at(self, x: Any, y: Any) -> Vector:
        """theta0 + K x + R y as one flat vector."""
        return self.layout.flatten(self.theta0) + self.kernel @ x + self.range @ y

    @float64
    def solve(
        self,
        x: Any,
        p: float,
        *,
        max_iterations: int = 50,
        damping: Sequence[float] = (1.0, 0.5, 0.25, 0.0625, 0.0078125),
        rounding: float = 64.0,
    ) -> RangeSolution:
        """Solve the range equation for y by damped Newton, from the first-order guess.

        It has converged within `rounding` units of what the equation can be computed to; of the
        steps by `damping` the first is taken that comes nearer. A search that fails is a value:
        `converged` is False and `sentence` says how far it came.
        """
        x, p = self._coordinates(x), _parameter(p)
        with np.errstate(all="ignore"):  # far away it may overflow; the residual says so
            return self._newton(x, p, max_iterations, damping, rounding)

    def _newton(
        self, x: np.ndarray, p: float, most: int, damping: Sequence[float], rounding: float
    ) -> RangeSolution:
        R, y = self.range, (p - self.p0) * self.first_order
        velocity, jacobian = self.evaluate(self.at(x, y), p)
        residual, iterations = float(np.linalg.norm(R.T @ velocity)), 0
        scale = float(np.abs(self.rates).max(initial=1.0))
        unit = np.finfo(float).eps * scale * max(1.0, float(np.linalg.norm(self.at(x, y))))
        while iterations < most and np.isfinite(residual) and residual > unit:
            block = R.T @ jacobian[:, :-1] @ R
            if not np.isfinite(block).all():
                break
            step = np.linalg.lstsq(block, -(R.T @ velocity), rcond=None)[0]
            for share in damping:
                trial = y + share * step
                new_velocity, new_jacobian = self.evaluate(self.at(x, trial), p)
                new = float(np.linalg.norm(R.T @ new_velocity))
                if np.isfinite(new) and new < residual:
                    break
            else:  # at rounding, or stuck: the residual says which
                break
            y, residual, velocity, jacobian = trial, new, new_velocity, new_jacobian
            iterations += 1
        converged = bool(np.isfinite(residual) and residual <= rounding * unit)
        words = f"range equation solved to {residual:.1e} in {iterations} steps"
        if not converged:
            words = f"stopped at {residual:.1e} after {iterations} steps: no solution near (x, p)"
        theta, speed = self.layout.numpy(self.at(x, y)), float(np.linalg.norm(velocity))
        return RangeSolution(x, p, y, theta, residual, speed, iterations, converged, words)

    def zeta(self, x: Any, p: float) -> Float[np.ndarray, "range"]:
        """The range solution; NaN where there is none near by."""
        found = self.solve(x, p)
        return found.y if found.converged else np.full(len(found.y), np.nan)

    @float64
    def reduced(self, x: Any, p: float) -> Float[np.ndarray, "kernel"]:
        """The left side of the reduced equation, `K^T v`; NaN where zeta does not exist."""
        found = self.solve(x, p)
        if not found.converged:
            return np.full(self.dimension, np.nan)
        return self.kernel.T @ self.evaluate(self.layout.flatten(found.theta), found.p)[0]

    @float64
    def jacobian(self, x: Any, p: float) -> Float[np.ndarray, "state state"]:
        """J at (K x + R zeta, p); NaN where zeta does not exist."""
        found = self.solve(x, p)
        n = self.layout.size
        if not found.converged:
            return np.full((n, n), np.nan)
        return self.evaluate(self.layout.flatten(found.theta), found.p)[1][:, :-1]

    def tangential(self, x: Any, p: float) -> np.ndarray:
        """The rates at (K x + R zeta, p) that come out of the kernel: the `dimension` ones
        whose modes lie most along it, largest first."""
        J = self.jacobian(x, p)
        if not np.isfinite(J).all():
            return np.full(self.dimension, np.nan)
        values, modes = np.linalg.eigh((J + J.T) / 2)
        share = np.sum((self.kernel.T @ modes) ** 2, axis=0)
        return np.sort(values[np.argsort(-share)[: self.dimension]])[::-1]

    def __repr__(self) -> str:
        return (
            f"LyapunovSchmidt(kernel of dimension {self.dimension} in {self.layout.size}, "
            f"{self.sentence})"
        )

    def _coordinates(self, x: Any) -> np.ndarray:
        try:
            given = np.atleast_1d(np.asarray(x, dtype=np.float64))
        except (TypeError, ValueError):
            given = np.array([])
        if given.shape != (self.dimension,) or not np.isfinite(given).all():
            raise InputError(
                "x", f"{shown(x)}; one finite number for each of {self.dimension} kernel directions"
            )
        return given


@float64
def lyapunov_schmidt(
    family: Callable[[Params, Any], Any],
    at: Params,
    p: float = 0.0,
    *,
    kernel: Float[np.ndarray, "state kernel"] | None = None,
    range: Float[np.ndarray, "state range"] | None = None,
    host: bool = False,
    tolerance: float = 1e-9,
) -> LyapunovSchmidt:
    """Reduce `family(theta, p)` at the critical point `at` of parameter `p`.

    family
        A loss (the flow is its gradient flow), or a velocity: a tree like theta. With
        `host=True` it takes a flat vector and p and returns, as NumPy arrays, the velocity [n]
        and its Jacobian [n, n + 1] in (theta, p); then nothing is compiled.
    kernel, range
        Bases of your own, orthonormal, in the columns; by default eigenvectors of J0.
    tolerance
        Eigenvalues below it, relative to the largest, count as zero; so does the speed.

    >>> def pitchfork(th, p):
    ...     return th["x"]**4 - p * th["x"]**2 / 2 + (th["y"] - th["x"]**2)**2 / 2
    >>> ls = lyapunov_schmidt(pitchfork, {"x": np.array(0.0), "y": np.array(0.0)})
    >>> ls.dimension, bool(abs(ls.reduced([0.1], 0.04)[0]) < 1e-15)   # x = sqrt(p)/2 is a root
    (1, True)
    >>> [round(float(ls.tangential([x], 0.04)[0]), 3) for x in (0.1, 0.0)]   # stable, unstable
    [-0.077, 0.04]
    """
    p = _parameter(p)
    if not (isinstance(tolerance, int | float | np.floating) and 0 < tolerance < 1):
        raise InputError("tolerance", f"{shown(tolerance)}; a number between 0 and 1")
    layout = Layout(at)
    evaluate = _on_host(family, layout) if host else _traced(family, layout)
    theta0 = layout.flatten(at)
    with np.errstate(all="ignore"):
        velocity, whole = evaluate(theta0, p)
        speed = float(np.linalg.norm(velocity))
    J0, f1 = whole[:, :-1], whole[:, -1]
    scale = max(1.0, float(np.abs(J0).max(initial=0.0)))
    if not (np.isfinite(whole).all() and np.isfinite(velocity).all()):
        raise InputError("at", "the velocity or its Jacobian is not finite there")
    if np.abs(J0 - J0.T).max() > 1e-9 * scale:
        raise InputError("family", "its Jacobian is not symmetric there; give a gradient flow")
    rates, modes = np.linalg.eigh((J0 + J0.T) / 2)
    largest = float(np.abs(rates).max())
    zero = np.abs(rates) <= tolerance * (largest or 1.0)
    K = _basis("kernel", kernel, modes[:, zero], scale)
    R = _basis("range", range, modes[:, ~zero], scale)
    if K.shape[1] + R.shape[1] == layout.size and np.abs(K.T @ R).max(initial=0.0) > 1e-9:
        raise InputError("range", "its columns are not orthogonal to the kernel")
    first = np.linalg.solve(R.T @ J0 @ R, -(R.T @ f1))
    critical = speed <= tolerance * scale * max(1.0, float(np.linalg.norm(theta0)))
    words = "critical" if critical else f"not critical: speed {speed:.2e}"
    return LyapunovSchmidt(
        theta0=layout.numpy(theta0),
        p0=p,
        kernel=K,
        range=R,
        rates=rates[::-1],
        first_order=first,
        forcing=K.T @ f1,
        speed=speed,
        critical=critical,
        sentence=f"{words}, rates {rates[-1]:.3g} to {rates[0]:.3g}",
        evaluate=evaluate,
        layout=layout,
    )


def _traced(family: Any, layout: Layout) -> Callable[[Vector, float], Evaluation]:
    """Velocity and Jacobian of a traceable loss or velocity, compiled once together."""

    def raw(z: Any) -> Any:
        return family(layout.unflatten(z[:-1]), z[-1])

    shape = jax.ShapeDtypeStruct((layout.size + 1,), np.float64)
    # A bare scalar is a loss; a velocity is a tree like theta.
    is_loss = getattr(jax.eval_shape(raw, shape), "shape", None) == ()

    def velocity(z: Any) -> Any:
        if is_loss:
            return -jax.grad(lambda w: jnp.asarray(raw(w)))(z)[:-1]
        return layout.join(raw(z), "velocity")

    compiled = jax.jit(lambda z: (velocity(z), jax.jacfwd(velocity)(z)))

    def evaluate(y: Vector, p: float) -> Evaluation:
        value, jacobian = compiled(np.append(y, p))
        return np.asarray(value), np.asarray(jacobian)

    return evaluate


def _on_host(family: Any, layout: Layout) -> Callable[[Vector, float], Evaluation]:
    def evaluate(y: Vector, p: float) -> Evaluation:
        value, jacobian = family(y, p)
        n = layout.size
        if np.shape(value) != (n,) or np.shape(jacobian) != (n, n + 1):
            raise InputError(
                "family",
                f"returned shapes {np.shape(value)} and {np.shape(jacobian)}; a velocity "
                f"({n},) and its Jacobian ({n}, {n + 1}) in (theta, p)",
            )
        return np.asarray(value), np.asarray(jacobian)

    return evaluate


def _parameter(p: Any) -> float:
    real = isinstance(p, int | float | np.integer | np.floating) and not isinstance(p, bool)
    if not (real and np.isfinite(p)):
        raise InputError("p", f"{shown(p)}; a finite value of the parameter")
    return float(p)


def _basis(name: str, given: Any, found: np.ndarray, scale: float) -> np.ndarray:
    """The basis that was asked for, checked against the one that was found."""
    if given is None:
        return found
    basis = np.asarray(given, dtype=np.float64)
    if basis.shape != found.shape:
        raise InputError(name, f"shape {basis.shape}; the {name} of J0 takes {found.shape}")
    if np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0.0) > 1e-9:
        raise InputError(name, "its columns are not orthonormal")
    off = basis - found @ (found.T @ basis)
    if np.abs(off).max(initial=0.0) > 1e-7 * scale:
        raise InputError(name, f"its columns leave the {name} of J0 by {np.abs(off).max():.1e}")
    return basis
