"""Invariant manifolds given by a parametrisation, and the flow on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, shown
from attnflow._precision import float64
from attnflow.flows.flow import Flow, FlowLike
from attnflow.flows.layout import Layout, Params
from attnflow.flows.users import UNTRACEABLE
from attnflow.reduce.reduction import Reduction, gaussian_point, velocity_at

RANK = 1e-10
"""Smallest over largest singular value of the parametrisation's derivative that counts as full."""


@dataclass(frozen=True)
class Foot:
    """The nearest point of a manifold: where a search ended, and whether it had converged."""

    state: Params
    distance: float
    """|phi(z) - theta| over |theta|."""
    converged: bool
    sentence: str


@final
class ManifoldFlow(Reduction):
    """The flow on an invariant manifold `theta = phi(z)`: `z' = Dphi(z)^+ v(phi(z))`.

    Invariant means that the velocity v is tangent, `v(phi(z)) = Dphi(z) z'`. That is checked at
    `like` and at random points: `residual` is the largest `|v - Dphi z'| / |v|` found.

    parametrisation
        phi, written with jax.numpy: coordinates z (a pytree) -> parameters of the full flow. Its
        derivative must have full column rank: no coordinate may be redundant.
    like
        Coordinates for the shapes, and the first guess of `project`.
    sample
        Draws the coordinates (from a NumPy generator) for the check; default `like` plus standard
        normal numbers.

    >>> flow = Flow(lambda th: jnp.sum((th["W"] @ th["W"].T - np.eye(2)) ** 2))
    >>> ray = ManifoldFlow(flow, lambda z: {"W": z * jnp.eye(2)}, like=np.array(0.1))
    >>> round(float(ray.velocity(np.array(0.5))), 12)
    1.5
    """

    @float64
    def __init__(
        self,
        flow: FlowLike,
        parametrisation: Callable[[Params], Params],
        like: Params,
        *,
        sample: Callable[[np.random.Generator], Params] | None = None,
        points: int = 5,
        tolerance: float = 1e-8,
        seed: int = 0,
        name: str | None = None,
    ):
        if not callable(parametrisation):
            raise InputError("parametrisation", f"{shown(parametrisation)}; a function of z")
        self.full, self.parametrisation = flow, parametrisation
        self._layout = Layout(like)
        self._like = self._layout.numpy(self._layout.flatten(like))
        try:
            theta = parametrisation(jax.tree.map(jnp.asarray, self._like))
            self._system = flow.bind(jax.tree.map(np.asarray, theta))
            self._jacobian = jax.jit(jax.jacfwd(self._trace_phi))
            self._phi = jax.jit(self._trace_phi)
            self._phi(self._layout.flatten(like))
        except UNTRACEABLE as error:
            raise InputError(
                "parametrisation",
                f"not written with jax.numpy, so it cannot be differentiated "
                f"({type(error).__name__})",
            ) from None
        if self._layout.size > self._system.size:
            raise InputError(
                "parametrisation",
                f"{self._layout.size} coordinates for {self._system.size} "
                "parameters; a reduction has fewer",
            )
        self.residual = self._check(sample or self._around, points, seed)
        """The largest part of the velocity that was not tangent, relative to the velocity."""
        if not self.residual <= tolerance:
            raise InputError(
                "parametrisation",
                f"is not invariant: {self.residual:.2g} of the velocity (in "
                f"norm, at the worst of {points + 1} points) leaves the manifold; at most "
                f"{tolerance:g}",
            )
        self._inverse = self._constant_inverse(seed)
        system = self._system
        self.flow = Flow(
            self._trace_loss if system.has_loss else None,
            velocity=self._trace_velocity,
            conserved={n: self._lifted(c) for n, c in system.flow.conserved.items()},
            name=name or f"{flow.name}, {self._layout.size} coordinates",
        )

    @float64
    def lift(self, state: Params) -> Params:
        """phi(z)."""
        return self._system.layout.numpy(np.asarray(self._phi(self._layout.flatten(state))))

    def project(self, theta: Params, near: Params | None = None) -> Params:
        """The coordinates of the point of the manifold nearest to `theta`; see `foot`."""
        return self.foot(theta, near).state

    def distance(self, theta: Params, near: Params | None = None) -> float:
        """How far `theta` lies off the manifold, relative to its norm."""
        return self.foot(theta, near).distance

    @float64
    def foot(self, theta: Params, near: Params | None = None) -> Foot:
        """The nearest point by nonlinear least squares from `near` (default: `like`)."""
        from scipy.optimize import least_squares

        target = self._system.layout.flatten(theta)
        scale = max(float(np.linalg.norm(target)), 1e-300)

        def miss(z: np.ndarray) -> np.ndarray:
            return (np.asarray(self._phi(z)) - target) / scale

        def slope(z: np.ndarray) -> np.ndarray:
            return np.asarray(self._jacobian(z)) / scale

        z = self._layout.flatten(self._like if near is None else near)
        # 2e-16 would never be met; Gauss-Newton steps then polish to rounding.
        tight = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-14)
        found = least_squares(miss, z, jac=slope, method="lm", **tight)  # pyright: ignore
        z = found.x
        for _ in range(3):
            step = np.linalg.lstsq(slope(z), miss(z), rcond=None)[0]
            if not np.linalg.norm(miss(z - step)) < np.linalg.norm(miss(z)):
                break
            z = z - step
        tangential = float(np.linalg.norm(slope(z).T @ miss(z)))
        bound = 1e-8 * max(float(np.linalg.norm(slope(z))), 1e-300)
        converged = bool(tangential <= bound)
        distance = float(np.linalg.norm(miss(z)))
        sentence = (
            f"the nearest point is off by {distance:.2g} of the norm."
            if converged
            else f"no nearest point was found after {found.nfev} evaluations (off by "
            f"{distance:.2g} of the norm): start nearer, with near=."
        )
        return Foot(self._layout.numpy(z), distance, converged, sentence)

    def sample(self, rng: np.random.Generator, like: Params) -> Params:
        """Random coordinates of order one."""
        return gaussian_point(rng, like)

    def _around(self, rng: np.random.Generator) -> Params:
        like = self._layout.flatten(self._like)
        return self._layout.unflatten(like + rng.standard_normal(self._layout.size))

    def _trace_phi(self, z: Any) -> Any:
        theta = self.parametrisation(self._layout.unflatten(z))
        return self._system.layout.join(theta, "parametrisation")

    def _trace_loss(self, state: Params) -> Any:
        return self._system.trace_loss(self._trace_phi(self._layout.join(state)))

    def _lifted(self, measure: Callable[[Params], Any]) -> Callable[[Params], Any]:
        unflatten = self._system.layout.unflatten
        return lambda state: measure(unflatten(self._trace_phi(self._layout.join(state))))

    def _trace_velocity(self, state: Params) -> Params:
        z = self._layout.join(state)
        if self._inverse is not None:
            v = self._system.trace_velocity(self._trace_phi(z))
            return self._layout.unflatten(self._inverse @ v)
        # QR rather than the normal equations: they would square the condition of Dphi.
        q, r = jnp.linalg.qr(jax.jacfwd(self._trace_phi)(z))
        v = self._system.trace_velocity(self._trace_phi(z))
        return self._layout.unflatten(jax.scipy.linalg.solve_triangular(r, q.T @ v))

    def _constant_inverse(self, seed: int) -> np.ndarray | None:
        """`Dphi^+` once and for all where phi is affine, as it often is: no factorisation later."""
        here = self._layout.flatten(self._like)
        J = np.asarray(self._jacobian(here))
        rng = np.random.default_rng(seed)
        for scale in (1e-3, 1.0, 1e3, 1e6):  # a kink or a curve shows at one of them
            there = np.asarray(self._jacobian(here + scale * rng.standard_normal(len(here))))
            if not np.abs(there - J).max() <= 1e-14 * np.abs(J).max():
                return None
        return np.linalg.pinv(J)

    def _check(self, draw: Any, points: int, seed: int) -> float:
        """The largest normal part of the velocity, relative; refuses redundant coordinates."""
        rng = np.random.default_rng(seed)
        worst = 0.0
        for state in (self._like, *(draw(rng) for _ in range(points))):
            z = self._layout.flatten(state)
            theta, J = np.asarray(self._phi(z)), np.asarray(self._jacobian(z))
            if not (np.isfinite(theta).all() and np.isfinite(J).all()):
                raise InputError(
                    "parametrisation",
                    "NaN or infinite, or not differentiable, at a point drawn "
                    "for the check; give sample=, a function of a NumPy generator",
                )
            left, singular, _ = np.linalg.svd(J, full_matrices=False)
            rank = int(np.sum(singular > RANK * singular[0]))
            if rank < len(z):
                raise InputError(
                    "parametrisation",
                    f"its derivative has rank {rank} with {len(z)} coordinates; "
                    "no coordinate may be redundant",
                )
            v = velocity_at(self._system, self._system.layout.unflatten(theta))
            off = v - left @ (left.T @ v)
            size = float(np.linalg.norm(v))
            worst = max(worst, float(np.linalg.norm(off)) / size if size > 0 else 0.0)
        return worst
