"""Symmetric critical points at finite eta (Prop. 3.8), when they break, and the saddles visited.

On a two-group law `r_1 = r_2 = 0` makes dL/dM and dL/dPhi vanish exactly. With
`P_11 = lam + (1 - lam) pi_1`, `P_i1 = (1 - lam) pi_1` and `L_i = ln((d - 1) P_i1 / (1 - P_i1))` it
asks `m_i Dbeta = L_i`: two equations for five numbers (gamma_1, gamma_low, beta_1, beta_low, eta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnflow._errors import InputError, positive, shown, whole
from attnflow.claims import once
from attnflow.flows import Mark, Solution, Status
from attnflow.flows.probes import shared
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain


def log_odds(system: TwoGroup) -> tuple[Any, Any]:
    """L_1, L_2: log-odds of token 1 against one lower token, after token 1 and after the others."""
    low = system.tokens - 1
    first = [np.log(low * P / (1 - P)) for P in system.first]
    return first[0], first[1]


def two_group_loss(system: TwoGroup) -> float:
    """The loss where r_1 = r_2 = 0: the best that tells token 1 from the rest, and no more."""
    low, weights = system.tokens - 1, (system.pi1, 1 - system.pi1)
    return float(
        -sum(
            w * (P * np.log(P) + (1 - P) * np.log((1 - P) / low))
            for w, P in zip(weights, system.first, strict=True)
        )
    )


def symmetric_state(system: TwoGroup, sharpness: Any, scale: Any = 1.0) -> np.ndarray:
    """The critical point with `eta Dgamma^2 = sharpness` and `Dgamma = scale`.

    With `gamma_1 = a Dgamma`, `xi_1 = sigma(h + a k)`, `xi_2 = sigma(h + (a - 1) k)`, `h` the
    log-odds of pi_1 and k the sharpness, what is left is one equation for a,
    `L_2 (a - 1 + xi_1) = L_1 (a - 1 + xi_2)`. It has a root for every k > 0, and one only where
    L_2 < 0. Batches over `pi1`, `lam` of the system and over both arguments.
    """
    L1, L2 = log_odds(system)
    h, k = np.log(system.pi1 / (1 - system.pi1)), np.asarray(sharpness, dtype=np.float64)
    if not (np.all(k > 0) and np.all(np.asarray(scale) > 0)):
        raise InputError("sharpness", f"{shown(np.ravel(k).tolist())}; sharpness and scale are > 0")

    def miss(a: Any) -> Any:
        x1, x2 = rank_one.sigmoid(h + a * k), rank_one.sigmoid(h + (a - 1) * k)
        return L2 * (a - 1 + x1) - L1 * (a - 1 + x2)

    gap = L1 - L2
    low, high = 1 - (L1 + np.abs(L2)) / gap + 0 * k, 1 + np.maximum(L2, 0) / gap + 0 * k
    for _ in range(60):  # one equation in many cells at once; falls from + to - over the bracket
        middle = (low + high) / 2
        above = miss(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    a = (low + high) / 2
    x1, x2 = rank_one.sigmoid(h + a * k), rank_one.sigmoid(h + (a - 1) * k)
    B = gap / ((x1 - x2) * scale)
    root, d = np.sqrt(k) / scale, system.tokens
    parts = [scale * a, scale * (a - 1), B * (d - 1) / d, -B / d, root, root]
    return np.stack(np.broadcast_arrays(*parts), axis=-1).astype(np.float64)


def balanced_state(system: TwoGroup, eta: float) -> np.ndarray:
    """The critical point at this eta on the leaf of small starts.

    There `|gamma|^2 = |beta|^2 + 2 eta`, `sum beta = 0`, `lambda_Q = lambda_K`: what is left of the
    family is one number.
    """
    from scipy.optimize import brentq

    eta, d = positive("eta", eta), system.tokens

    def state(log_k: float) -> np.ndarray:
        k = np.exp(log_k)
        return symmetric_state(system, k, np.sqrt(k / eta))

    def off(log_k: float) -> float:
        z = state(log_k)
        return float(z[0] ** 2 + (d - 1) * z[1] ** 2 - z[2] ** 2 - (d - 1) * z[3] ** 2 - 2 * eta)

    return state(float(brentq(off, -30.0, 40.0, xtol=1e-14, rtol=1e-14)))  # type: ignore[arg-type]


def antisymmetric_hessian(system: TwoGroup, z: np.ndarray) -> np.ndarray:
    """The Hessian in `(x, y)`: gamma and beta of the lower tokens moved by x e and y e.

    e is any unit vector that sums to zero: d - 2 copies. With p the law's lower entry and
    `g = eta Dgamma^2 xi_2 (1 - xi_2)` it is
    `[[p g^2 Dbeta^2 P_21 (1 - P_21), -p g lam], [-p g lam, pi_1 m_1^2 P_12 + (1-pi_1) m_2^2 Q]]`,
    `P_12 = (1 - P_11)/(d - 1)`, `Q = (1 - P_21)/(d - 1)`.
    """
    low, (P11, P21) = system.tokens - 1, system.first
    p, (_, x2), (m1, m2) = (1 - system.pi1) / low, system.attention(z), system.averages(z)
    g = z[..., 4] * z[..., 5] * (z[..., 0] - z[..., 1]) ** 2 * x2 * (1 - x2)
    cross = -p * g * system.lam
    embedding = p * g**2 * (z[..., 2] - z[..., 3]) ** 2 * P21 * (1 - P21)
    readout = system.pi1 * m1**2 * (1 - P11) / low + (1 - system.pi1) * m2**2 * (1 - P21) / low
    rows = [np.stack([embedding, cross], -1), np.stack([cross, readout], -1)]
    return np.stack(rows, axis=-2)


def antisymmetric_rate(system: TwoGroup, z: np.ndarray) -> Any:
    """Minus the lowest eigenvalue: the growth rate of a split of the lower tokens, if > 0."""
    H = antisymmetric_hessian(system, z)
    (a, b), c = (H[..., 0, 0], H[..., 1, 1]), H[..., 0, 1]
    # det over the other root: the difference of two nearly equal numbers would lose the sign.
    return -(a * b - c**2) / ((a + b) / 2 + np.hypot((a - b) / 2, c))


def instability_margin(pi1: Any, lam: Any, tokens: int) -> Any:
    """`lam^2 (1-pi_1)/(d-1) - P_21 (1-P_21) [pi_1 L_1^2 P_12 + (1-pi_1) L_2^2 Q]`.

    Positive where the determinant of `antisymmetric_hessian` is negative: the symmetric critical
    points are strict saddles at every finite eta, although the data are symmetric.
    """
    system = TwoGroup(pi1, lam, tokens)
    low, (P11, P21), (L1, L2) = tokens - 1, system.first, log_odds(system)
    bracket = pi1 * L1**2 * (1 - P11) / low + (1 - pi1) * L2**2 * (1 - P21) / low
    return lam**2 * (1 - pi1) / low - P21 * (1 - P21) * bracket


def instability_map(pi1_grid: Any, lam_grid: Any, tokens: int) -> xr.Dataset:
    """Where symmetric data break their symmetry inside rank one: a phase map over (pi_1, lam).

    `margin` is `instability_margin`; `unstable` its sign; `infinite` says where the family reaches
    eta = infinity with the attention that the proof of Prop. 3.8 asks for, `(1-lam) pi_1 < 1/d`.
    """
    d = whole("tokens", tokens, 3)
    pi1, lam = (np.asarray(x, dtype=np.float64) for x in (pi1_grid, lam_grid))
    for name, grid, least in (("pi1_grid", pi1, 1 / d), ("lam_grid", lam, 0.0)):
        if grid.ndim != 1 or not grid.size or not ((grid > least) & (grid < 1)).all():
            values = shown(np.ravel(grid).tolist())
            raise InputError(name, f"{values}; a list of numbers between {least:.4g} and 1")
    first, stay = pi1[:, None], lam[None, :]
    margin = instability_margin(first, stay, d)
    return xr.Dataset(
        {
            "margin": (("pi1", "lam"), margin),
            "unstable": (("pi1", "lam"), margin > 0),
            "infinite": (("pi1", "lam"), (1 - stay) * first < 1 / d),
        },
        coords={"pi1": pi1, "lam": lam},
        attrs={"tokens": d},
    )


# --- The saddles that a flow from a small start visits while it has rank one.


@dataclass(frozen=True)
class Saddle:
    """A critical point that the flow visits: its loss, and the rate at which it is left."""

    name: str
    loss: float
    rate: float
    """0 where no linear mode leaves it: a minimum, or a degenerate point."""
    mode: str
    """What grows at that rate."""
    z: np.ndarray
    """The rank-one state `(gamma, beta, lambda_Q, lambda_K)`."""
    critical: bool = True
    """False for a slow passage that has no critical point nearby, as one at eta = infinity."""


ENTRY = 1e-3
"""lambda_Q with which the unigram point is left, at most; smaller where it is left slowly."""

FALLEN = 1e-3
"""Share of what is left above the floor by which the loss must fall before a slow point counts."""


@once
def visited_saddles(chain: MarkovChain) -> tuple[Saddle, ...]:
    """Origin, unigram point and what the rank-one flow meets after it, from the chain alone.

    The last one is left through a new direction, at the largest singular value of dL/dM, or
    is a minimum. A split of equal tokens is given a small fixed asymmetry, as any start would.
    """
    d, zero = chain.tokens, np.zeros(2 * chain.tokens + 2)
    found = [
        Saddle(
            "origin", float(np.log(d)), theory.escape_rate(chain), "embedding and read-out", zero
        )
    ]
    if not found[0].rate > 1e-12:
        return tuple(found)
    c = theory.focus_rate(chain)
    z = rank_one.vector(theory.unigram_point(chain, 1))
    found.append(Saddle("unigram", chain.unigram_entropy, abs(c), "attention", z.copy()))
    if not abs(c) > 1e-12:
        return tuple(found)
    groups = _equal_tokens(chain)
    entry = min(ENTRY, abs(c) / 100)
    z[-2:] = entry, np.copysign(entry, c)
    z[:d] *= np.sqrt(1 + 2 * entry**2 / (z[:d] @ z[:d]))
    for _ in range(d):
        longest = 1e4 + 100 / found[-1].rate
        slow = _follow(chain, z, groups, rest=1e-3 * entry * abs(c), longest=longest)
        if slow is None:
            break
        saddle, unstable = _saddle(chain, slow)
        found.append(saddle)
        if saddle.mode != "split within rank one":
            break
        towards = unstable @ (unstable.T @ (slow - saddle.z))
        z = slow
        if np.linalg.norm(towards) < 1e-6:  # a symmetry keeps the flow from seeing this mode
            groups = np.arange(d)
            generic = np.concatenate([np.linspace(1, 2, d), np.zeros(d + 2)])
            kick = unstable @ (unstable.T @ generic)
            z = slow + 1e-4 * kick / np.linalg.norm(kick)
    return tuple(found)


def _saddle(chain: MarkovChain, slow: np.ndarray) -> tuple[Saddle, np.ndarray]:
    """The saddle at or near a slow point, with its unstable directions within rank one."""
    z, speed = _critical(chain, slow)
    gap = abs(float(rank_one.loss(z, chain)) - float(rank_one.loss(slow, chain)))
    critical = speed < 1e-11 and gap < 1e-2 * (chain.unigram_entropy - chain.floor)
    z = z if critical else slow
    J = rank_one.jacobian(z, chain)
    values, vectors = np.linalg.eigh((J + J.T) / 2)
    within = float(values[-1]) if values[-1] > 1e-10 else 0.0
    off = float(np.linalg.norm(rank_one.readout_gradient(z, chain), 2))
    off = off if off > 1e-10 else 0.0
    low = z[1 : chain.tokens]
    if _two_groups(chain) and np.ptp(low) < 1e-9:
        name = "two-group optimum"
    else:
        name = (
            "rank-one passage"
            if not critical
            else ("rank-one saddle" if within else "rank-one optimum")
        )
    mode = "split within rank one" if within > off else "new direction" if off else "none"
    saddle = Saddle(name, float(rank_one.loss(z, chain)), max(within, off), mode, z, bool(critical))
    return saddle, vectors[:, values > (1 - 1e-6) * values[-1]]


def _follow(
    chain: MarkovChain, z: np.ndarray, groups: np.ndarray, *, rest: float, longest: float
) -> np.ndarray | None:
    """The first slow point of the rank-one flow from z: at rest, or where it is slowest.

    Tokens of one group are kept equal, so that rounding cannot break a symmetry. Where it is
    still slowing down at the end it is returned as it is; None where it never left.
    """
    d, (_, first) = chain.tokens, np.unique(groups, return_index=True)
    n = len(first)
    read = np.concatenate([first, d + first, [2 * d, 2 * d + 1]])
    lifted = np.concatenate([groups, n + groups, [2 * n, 2 * n + 1]])
    moved = lambda x: rank_one.velocity(x, chain)  # noqa: E731
    flow = rank_one.vector_flow(lambda y: moved(y[..., lifted])[..., read], "equal tokens")
    above = float(rank_one.loss(z, chain))
    enough, atol = above - FALLEN * (above - chain.floor), 1e-12

    @shared
    def look(theta: Any) -> tuple[Any, Any, Any]:
        """The loss that is still to fall, the speed, and how fast it grows (in squares)."""
        x = theta["z"][lifted]
        v = moved(x)
        left = rank_one.loss(x, chain) - enough
        return left, (v**2).sum(), (v * rank_one.along(moved, x, v)).sum()

    def over(theta: Any) -> Any:
        left, _, growth = look(theta)
        return rank_one.namespace(left).where(left < 0, growth, 1.0)

    def resting(theta: Any) -> Any:
        left, speed, _ = look(theta)
        still = max(rest, atol)  # below it a speed is the error of the solve
        return rank_one.namespace(left).maximum(speed - still**2, left)

    def slowest(theta: Any) -> Any:
        _, speed, growth = look(theta)
        return rank_one.namespace(speed).where(speed < (top / 2) ** 2, growth, -1.0)

    def solve(y: np.ndarray, **stops: Mark) -> Solution:
        return rank_one.solve(flow, y, longest, rtol=1e-9, atol=atol, stops=stops)

    # First over the top, once something was learned; from there to rest, or to the least speed.
    run = solve(z[read], over=Mark(over, direction=-1))
    if run.status is not Status.STOPPED:
        return None
    top = float(run.trajectory["speed"].max())
    run = solve(run.final["z"], rest=Mark(resting, direction=-1), least=Mark(slowest, direction=1))
    slow = run.status is Status.STOPPED or run.trajectory["speed"].values[-1] < 1e-3 * top
    return run.final["z"][lifted] if slow else None


def _critical(chain: MarkovChain, z: np.ndarray) -> tuple[np.ndarray, float]:
    """The critical point on the leaf of z, and its residual: Levenberg-Marquardt, damped by it."""
    d, n = chain.tokens, len(z)

    def conserved(x: np.ndarray) -> np.ndarray:
        balance = (x[..., :d] ** 2).sum(-1) - (x[..., d:] ** 2).sum(-1)
        return np.stack([balance, x[..., -2] ** 2 - x[..., -1] ** 2, x[..., d : 2 * d].sum(-1)], -1)

    leaf = conserved(z)

    def miss(x: np.ndarray) -> np.ndarray:
        return np.concatenate([rank_one.velocity(x, chain), conserved(x) - leaf], axis=-1)

    r, J, damping = miss(z), rank_one.derivative(miss, z), 1.0
    for _ in range(150):
        size = float(np.linalg.norm(r))
        if size < 1e-14 or damping > 1e12:
            break
        ridge = np.sqrt(damping) * size * np.eye(n)
        step = np.linalg.lstsq(np.vstack([J, ridge]), np.concatenate([r, np.zeros(n)]))[0]
        moved = miss(z - step)
        if np.linalg.norm(moved) < size:
            z, r, damping = z - step, moved, max(damping / 4, 1e-6)
            J = rank_one.derivative(miss, z)
        else:
            damping *= 8
    return z, float(np.linalg.norm(r))


def _equal_tokens(chain: MarkovChain) -> np.ndarray:
    """Group numbers: tokens that a two-term chain does not tell apart share one."""
    if chain.lam is None:
        return np.arange(chain.tokens)
    return np.unique(np.round(chain.pi, 12), return_inverse=True)[1]


def _two_groups(chain: MarkovChain) -> bool:
    return chain.lam is not None and bool(np.ptp(chain.pi[1:]) < 1e-12)
