"""The stages predicted from (pi, lam, m, eps) alone.

The flow from a small start stays next to the rank-one manifold of eq. (18) until its new
direction appears, so its first cycle is that of the rank-one flow from the typical size of the
unstable component: `a0 = eps E|chi_m| / sqrt 2` along (q, u) for the embedding, the same for the
attention mode. What leaves the manifold is linear until then: the propagator of eq. (108) along
the rank-one flow carries the Gaussian start to a predicted second singular value. The stages are
then read off by the same rules as those of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import exp, lgamma, sqrt
from typing import Any

import numpy as np
import xarray as xr
from scipy.integrate import solve_ivp

from attnflow.models.one_layer import token_gradients
from attnflow.observe.stages import Stage, plateaus
from attnflow.studies.focus_dilution import stages, theory
from attnflow.tasks.markov import MarkovChain

TOKENS, EVALUATIONS = 24, 60_000
"""The propagator has (2d + 2)^2 numbers, and its solve takes their square in memory; where nothing
is learned for long (lam next to 0) it has no end."""


class _TooLong(Exception):
    pass


@dataclass(frozen=True)
class Timeline:
    """Predicted rates, times by name, and the plateaus of the reduced flow."""

    rates: dict[str, float]
    times: dict[str, float]
    plateaus: list[dict[str, float]]
    cleanliness: float
    stages: list[Stage] = field(default_factory=list)
    trajectory: xr.Dataset | None = field(default=None, repr=False)
    sentence: str = ""


def typical_length(dim: int) -> float:
    """E|x| for a standard normal vector of length dim."""
    return sqrt(2) * exp(lgamma((dim + 1) / 2) - lgamma(dim / 2))


@lru_cache(maxsize=64)
def predict(chain: MarkovChain, dim: int, scale: float) -> Timeline:
    """The timeline of a start with entries N(0, scale^2) at width dim.

    For a law without an unstable mode (uniform) there is none: the times are empty.
    """
    if np.ptp(chain.pi) < 1e-12:
        return Timeline({}, {}, [], float("nan"), sentence="a uniform law does not condense")
    mu0, c = theory.escape_rate(chain), theory.focus_rate(chain)
    rates = {"condensation": mu0, "focus": c, "settling": theory.slowest_contraction(chain)}
    clean = theory.cleanliness(chain)
    a0 = scale * typical_length(dim) / sqrt(2)
    times = {"condensed": float(np.log(theory.CONDENSED / a0) / mu0)}
    if c <= 0 or a0 >= theory.CONDENSED:
        words = "attention does not grow" if c <= 0 else "the start is as large as what it grows to"
        return Timeline(rates, times, [], clean, sentence=words)
    if chain.tokens > TOKENS:
        words = f"the rank-one flow is followed for up to {TOKENS} tokens"
        return Timeline(rates, times, [], clean, sentence=words)
    try:
        data, grown = _rank_one(chain, dim, scale, a0)
    except _TooLong:
        words = f"the rank-one flow takes more than {EVALUATIONS:,} evaluations"
        return Timeline(rates, times, [], clean, sentence=words)
    found = stages.find(data, chain.pi, None)
    waits = plateaus(data["time"].values, data["speed"].values, data["loss"].values)
    first = [s for s in found if s.cycle == 1]
    times |= {s.name: s.time for s in first if s.name != "attention onset"}
    for name, wait in zip(("second saddle", "rank-one saddle"), waits, strict=False):
        times[name] = wait.time
    listed = [{"loss": w.loss, "time": w.time} for w in waits]
    t = data["time"].values
    if "new direction" in times and "dilution" in times:
        # On the manifold the flow ends at its minimum: it is nearest where it is slowest.
        begun = max(times["dilution"], waits[-1].time if len(waits) > 1 else 0.0)
        inside = (t > begun) & (t <= times["new direction"])
        slow = np.flatnonzero(inside)[int(np.argmin(data["speed"].values[inside]))]
        name = "rank-one saddle" if len(waits) < 2 else "rank-one minimum"
        times[name] = float(t[slow])
        listed.append({"loss": float(data["loss"].values[slow]), "time": float(t[slow])})
        rates["new direction"] = float(data["force"].values[slow])
    return Timeline(rates, times, listed, clean, first, data, grown)


def _rank_one(chain: MarkovChain, dim: int, scale: float, a0: float) -> tuple[xr.Dataset, str]:
    """The rank-one flow and its transverse propagator until a new direction counts."""
    d, pi = chain.tokens, chain.pi
    v = pi - 1 / d
    q, u = pi / np.linalg.norm(pi), v / np.linalg.norm(v)
    n, calls = 2 * d + 2, count()

    def split(y: np.ndarray) -> tuple[Any, ...]:
        return y[:d], y[d : 2 * d], y[2 * d], y[2 * d + 1], y[n:].reshape(n, n)

    def forces(g: np.ndarray, b: np.ndarray, lq: float, lk: float) -> tuple[Any, Any]:
        return token_gradients(np.outer(g, b), lq * lk * np.outer(g, g), chain)

    def rhs(t: float, y: np.ndarray) -> np.ndarray:
        if next(calls) > EVALUATIONS:
            raise _TooLong
        g, b, lq, lk, U = split(y)
        GM, GP = forces(g, b, lq, lk)
        from_key, from_query = GP @ g, GP.T @ g
        drive = float(g @ from_key)
        J = np.zeros((n, n))  # eq. (108): x, y, and the parts of WQ and WK that feed on them
        J[:d, d : 2 * d], J[d : 2 * d, :d] = -GM, -GM.T
        J[:d, 2 * d] = J[2 * d, :d] = -lk * from_key
        J[:d, 2 * d + 1] = J[2 * d + 1, :d] = -lq * from_query
        out = np.empty_like(y)
        out[:d] = -GM @ b - lq * lk * (from_key + from_query)
        out[d : 2 * d] = -GM.T @ g
        out[2 * d], out[2 * d + 1] = -lk * drive, -lq * drive
        out[n:] = (J @ U).ravel()
        return out

    # What the unstable mode leaves of a Gaussian start is of size eps in every direction.
    mode = np.concatenate([q, u, [0, 0]]) / sqrt(2)
    rest = np.eye(n) - np.outer(mode, mode)
    other = typical_length(dim - 1) if dim > 1 else 0.0

    def second(g: np.ndarray, U: np.ndarray) -> float:
        """The predicted second singular value of W0."""
        unit = g / max(np.linalg.norm(g), 1e-300)
        X = (U @ rest)[:d]
        X = X - np.outer(unit, unit @ X)
        return scale * other * float(np.linalg.norm(X, 2))

    def leaves(t: float, y: np.ndarray) -> float:
        g, *_, U = split(y)
        size = float(np.linalg.norm(g))
        return second(g, U) - 2 * stages.DIRECTION * size if size > condensed else -1.0

    # Only after condensation: before it, every direction is as large as the first.
    condensed = 0.5 * float(np.linalg.norm(np.asarray(theory.unigram_point(chain, 1).W0)))
    leaves.terminal = True  # type: ignore[attr-defined]
    ripple = (-1.0) ** np.arange(d)
    ripple -= q * (q @ ripple)
    start = np.concatenate(
        [
            a0 * q + scale * ripple / max(np.linalg.norm(ripple), 1e-300),
            a0 * u,
            [a0, a0],
            np.eye(n).ravel(),
        ]
    )
    c = theory.focus_rate(chain)
    horizon = 3 * abs(np.log(a0)) / theory.escape_rate(chain) + 30 * abs(np.log(a0)) / c
    fine = np.concatenate([np.full(n, 1e-7 * scale), np.full(n * n, 1e-4)])
    solved = solve_ivp(
        rhs, (0, horizon), start, method="LSODA", rtol=1e-6, atol=fine, events=leaves
    )
    t = solved.t
    rows = [split(y) for y in solved.y.T]
    loss, attention, force, speed = [], [], [], []
    for g, b, lq, lk, _ in rows:
        scores = lq * lk * np.outer(g, g) + np.log(pi)
        A = np.exp(scores - scores.max(axis=1, keepdims=True))
        A /= A.sum(axis=1, keepdims=True)
        z = np.outer(A @ g, b)
        logs = z - z.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        loss.append(-np.sum(pi[:, None] * chain.transition * logs))
        attention.append(A)
        force.append(np.linalg.norm(forces(g, b, lq, lk)[0], 2))
    for at, y in zip(t, solved.y.T, strict=True):
        speed.append(np.linalg.norm(rhs(at, y)[:n]))
    gammas = np.array([g for g, *_ in rows])
    sizes = np.linalg.norm(gammas, axis=1)
    seconds = np.array([second(g, U) for g, *_, U in rows])
    query = np.array([[lq, a0] for _, _, lq, _, _ in rows])
    data = xr.Dataset(
        {
            "loss": ("time", np.array(loss)),
            "speed": ("time", np.array(speed)),
            "force": ("time", np.array(force)),
            "effective_rank": (("time", "matrix"), np.ones((len(t), 1))),
            "stable_rank": (("time", "matrix"), 1 + (seconds / sizes)[:, None] ** 2),
            "singular_W0": (("time", "mode"), np.stack([sizes, seconds], axis=1)),
            "singular_WQ": (("time", "query_mode"), query),
            "attention": (("time", "query", "key"), np.array(attention)),
            "embedding_norm": (("time", "token"), np.abs(gammas)),
        },
        coords={"time": t, "matrix": ["W0"]},
    )
    words = f"rank-one flow to t = {t[-1]:.4g} in {solved.nfev} evaluations"
    return data, words
