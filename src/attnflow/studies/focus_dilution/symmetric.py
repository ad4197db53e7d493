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
from attnflow.flows import Mark
from attnflow.observe.stages import plateaus
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


def symmetric_state(
    system: TwoGroup, sharpness: Any, scale: Any = 1.0, *, halvings: int = 60
) -> np.ndarray:
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

    def attended(a: Any) -> tuple[Any, Any]:
        return rank_one.sigmoid(h + a * k), rank_one.sigmoid(h + (a - 1) * k)

    gap = L1 - L2  # a is between these bounds, as both attentions are shares
    low, high = 1 - (L1 + np.abs(L2)) / gap, 1 + np.maximum(L2, 0) / gap
    for _ in range(halvings):  # one equation in many cells at once; falls over the bracket
        a = (low + high) / 2
        x1, x2 = attended(a)
        above = L2 * (a - 1 + x1) > L1 * (a - 1 + x2)
        low, high = np.where(above, a, low), np.where(above, high, a)
    a, (x1, x2) = low, attended(low)
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


@dataclass(frozen=True)
class Pace:
    """How the rank-one flow is followed from one saddle to the next."""

    entry: float = 0.01
    """lambda_Q with which the unigram point is left, over the rate at which it grows."""
    rest: float = 1e-3
    """At rest: a speed that is smaller than at the entry by this factor,"""
    noise: float = 1e-12
    """or smaller than this, the error of the solve."""
    learned: float = 1e-3
    """Share of what is above the floor by which the loss falls before a slow point counts."""
    longest: float = 1000.0
    """The time it is followed for, in time constants of the saddle before."""
    slower: float = 0.05
    """Decades by which a slow point is slower than what comes before and after it."""
    unseen: float = 1e-6
    """A flow this near to the saddle along its unstable modes does not see them: a symmetry."""
    kick: float = 1e-4
    """How far it is then put along them."""
    zero: float = 1e-10
    """A rate or a difference below it is none."""
    steps: int = 30
    """Newton's steps towards a critical point."""
    near: float = 1e-2
    """A critical point belongs to a slow point if their losses differ by less than this share of
    what the unigram leaves to learn."""


STANDARD = Pace()


@once
def visited_saddles(chain: MarkovChain, pace: Pace = STANDARD) -> tuple[Saddle, ...]:
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
    if not found[0].rate > pace.zero:
        return tuple(found)
    c = theory.focus_rate(chain)
    z = rank_one.vector(theory.unigram_point(chain, 1))
    found.append(Saddle("unigram", chain.unigram_entropy, abs(c), "attention", z.copy()))
    if not abs(c) > pace.zero:
        return tuple(found)
    groups = _equal_tokens(chain)
    entry = pace.entry * c
    z[-2:] = abs(entry), entry
    z[:d] *= np.sqrt(1 + 2 * entry**2 / (z[:d] @ z[:d]))  # on the leaf of small starts
    rest = max(pace.rest * float(np.linalg.norm(rank_one.velocity(z, chain))), pace.noise)
    for _ in range(d):
        slow = _follow(chain, z, groups, pace.longest / found[-1].rate, rest, pace)
        if slow is None:
            break
        saddle, unstable = _saddle(chain, slow, pace)
        found.append(saddle)
        if saddle.mode != "split within rank one":
            break
        z = slow
        if np.linalg.norm(unstable.T @ (slow - saddle.z)) < pace.unseen:
            groups = np.arange(d)
            kick = unstable @ (unstable[:d].T @ groups)
            z = slow + pace.kick * kick / np.linalg.norm(kick)
    return tuple(found)


def _saddle(chain: MarkovChain, slow: np.ndarray, pace: Pace) -> tuple[Saddle, np.ndarray]:
    """The saddle at or near a slow point, with its unstable directions within rank one."""
    z, speed = _critical(chain, slow, pace)
    gap = abs(float(rank_one.loss(z, chain)) - float(rank_one.loss(slow, chain)))
    critical = speed < pace.zero and gap < pace.near * (chain.unigram_entropy - chain.floor)
    z = z if critical else slow
    values, vectors = np.linalg.eigh(rank_one.jacobian(z, chain))
    off = float(np.linalg.norm(rank_one.readout_gradient(z, chain), 2))
    within, off = (x if x > pace.zero else 0.0 for x in (float(values[-1]), off))
    if _two_groups(chain) and np.ptp(z[1 : chain.tokens]) < pace.zero:
        name = "two-group optimum"
    elif critical:
        name = "rank-one saddle" if within else "rank-one optimum"
    else:
        name = "rank-one passage"
    mode = "split within rank one" if within > off else "new direction" if off else "none"
    saddle = Saddle(name, float(rank_one.loss(z, chain)), max(within, off), mode, z, critical)
    return saddle, vectors[:, values > values[-1] - pace.zero]


def _follow(
    chain: MarkovChain, z: np.ndarray, groups: np.ndarray, longest: float, rest: float, pace: Pace
) -> np.ndarray | None:
    """The first slow point of the rank-one flow from z, or where it comes to rest.

    Tokens of one group are kept equal, so that rounding cannot break a symmetry. None where
    it neither slows down nor comes to rest.
    """
    d, (_, first) = chain.tokens, np.unique(groups, return_index=True)
    n = len(first)
    read = np.concatenate([first, d + first, [2 * d, 2 * d + 1]])
    lifted = np.concatenate([groups, n + groups, [2 * n, 2 * n + 1]])
    moved = lambda y: rank_one.velocity(y[..., lifted], chain)[..., read]  # noqa: E731
    flow = rank_one.vector_flow(moved, "equal tokens")
    above = float(rank_one.loss(z, chain))
    enough = above - pace.learned * (above - chain.floor)

    def awake(theta: Any) -> Any:
        """Above 0 until something was learned, and while it moves."""
        x = theta["z"][lifted]
        speed = (rank_one.velocity(x, chain) ** 2).sum()
        return rank_one.namespace(x).maximum(speed - rest**2, rank_one.loss(x, chain) - enough)

    stops = {"rest": Mark(awake, direction=-1)}
    rows = rank_one.solve(flow, z[read], longest, rtol=1e-9, atol=pace.noise, stops=stops)
    path, t = rows.trajectory["z"].values[:, lifted], rows.trajectory["time"].values
    loss = rank_one.loss(path, chain)
    path, t, loss = (x[loss < enough] for x in (path, t, loss))
    speed = np.linalg.norm(rank_one.velocity(path, chain), axis=1)
    waits = plateaus(t, speed, loss, prominence=pace.slower, end=True)
    return path[np.searchsorted(t, waits[0].time)] if waits else None


def _critical(chain: MarkovChain, z: np.ndarray, pace: Pace) -> tuple[np.ndarray, float]:
    """A critical point on the leaf of z and near it, as they come in families; its residual.

    Levenberg and Marquardt's method with the residual itself as damping (Yamashita, Fukushima).
    """
    d = chain.tokens

    def conserved(x: np.ndarray) -> np.ndarray:
        balance = (x[..., :d] ** 2).sum(-1) - (x[..., d:] ** 2).sum(-1)
        return np.stack([balance, x[..., -2] ** 2 - x[..., -1] ** 2, x[..., d : 2 * d].sum(-1)], -1)

    leaf = conserved(z)

    def miss(x: np.ndarray) -> np.ndarray:
        return np.concatenate([rank_one.velocity(x, chain), conserved(x) - leaf], axis=-1)

    for _ in range(pace.steps):
        r, J = miss(z), rank_one.derivative(miss, z)
        ridge = np.linalg.norm(r) * np.eye(len(z))
        z = z - np.linalg.lstsq(np.vstack([J, ridge]), np.append(r, 0 * z))[0]
    return z, float(np.linalg.norm(miss(z)))


def _equal_tokens(chain: MarkovChain) -> np.ndarray:
    """Group numbers: tokens that a two-term chain does not tell apart share one."""
    if chain.lam is None:
        return np.arange(chain.tokens)
    return np.unique(chain.pi, return_inverse=True)[1]


def _two_groups(chain: MarkovChain) -> bool:
    return chain.lam is not None and bool(np.ptp(_equal_tokens(chain)[1:]) == 0)
