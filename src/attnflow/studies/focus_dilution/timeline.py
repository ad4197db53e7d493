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
from math import exp, lgamma, sqrt
from typing import Any

import numpy as np
import xarray as xr
from scipy.integrate import cumulative_trapezoid

from attnflow.claims import once
from attnflow.flows import Flow, Limits, Mark, Solver, Status, integrate
from attnflow.flows.layout import Params
from attnflow.flows.probes import shared
from attnflow.models.one_layer import token_gradients
from attnflow.observe.stages import Stage, plateaus
from attnflow.studies.focus_dilution import rank_one, stages, theory
from attnflow.tasks.markov import MarkovChain

SADDLES = ("second saddle", "rank-one saddle", "rank-one minimum")
"""Where the flow waits after the origin, in their order."""


@dataclass(frozen=True)
class Reach:
    """How far the rank-one flow is followed, and in which units."""

    tokens: int = 24
    """Laws of up to so many tokens: the propagator has (2d + 2)^2 numbers."""
    steps: int = 10_000
    """Where nothing is learned for long (lam next to 0) it has no end."""
    uniform: float = 1e-12
    """A law whose entries differ by less has no unstable mode."""
    constants: float = 30.0
    """Time, in time constants of both modes times log 1/a0."""
    unit: float = 1e-3
    """The propagator is carried in units of this times the scale of the start: one absolute
    tolerance then serves both, 1e-9 of the scale for the state and 1e-6 for the propagator."""


REACH = Reach()


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


@once
def predict(chain: MarkovChain, dim: int, scale: float, reach: Reach = REACH) -> Timeline:
    """The timeline of a start with entries N(0, scale^2) at width dim.

    For a law without an unstable mode (uniform) there is none: the times are empty.
    """
    if np.ptp(chain.pi) < reach.uniform:
        return Timeline({}, {}, [], float("nan"), sentence="a uniform law does not condense")
    mu0, c = theory.escape_rate(chain), theory.focus_rate(chain)
    rates = {"condensation": mu0, "focus": c, "settling": theory.slowest_contraction(chain)}
    clean = theory.cleanliness(chain)
    a0 = scale * typical_length(dim) / sqrt(2)
    times = {"condensed": float(np.log(theory.CONDENSED / a0) / mu0)}
    if c <= 0 or a0 >= theory.CONDENSED:
        words = "attention does not grow" if c <= 0 else "the start is as large as what it grows to"
        return Timeline(rates, times, [], clean, sentence=words)
    if chain.tokens > reach.tokens:
        words = f"the rank-one flow is followed for up to {reach.tokens} tokens"
        return Timeline(rates, times, [], clean, sentence=words)
    data, grown = _rank_one(chain, dim, scale, a0, reach)
    if data is None:
        return Timeline(rates, times, [], clean, sentence=grown)
    found = stages.find(stages.Signals.of(data), chain.pi)
    waits = plateaus(data["time"].values, data["speed"].values, data["loss"].values)
    first = [s for s in found if s.cycle == 1]
    times |= {s.name: s.time for s in first}
    listed = [{"loss": w.loss, "time": w.time} for w in waits]
    for name, wait in zip(SADDLES, waits, strict=False):
        times[name] = wait.time
    if len(waits) > 1 and "new direction" in times:  # it grows where the flow waits last
        last = data["z"].sel(time=waits[-1].time).values
        rates["new direction"] = float(np.linalg.norm(rank_one.readout_gradient(last, chain), 2))
    return Timeline(rates, times, listed, clean, first, data, grown)


def _rank_one(
    chain: MarkovChain, dim: int, scale: float, a0: float, reach: Reach
) -> tuple[xr.Dataset | None, str]:
    """The rank-one flow and its transverse propagator until a new direction counts."""
    d = chain.tokens
    start = start_of(chain, scale, a0)
    # What the unstable mode leaves of a Gaussian start is of size eps in every direction.
    mode = unstable_mode(chain)
    rest = np.eye(len(mode)) - np.outer(mode, mode)
    size = (typical_length(dim - 1) if dim > 1 else 0.0) / reach.unit  # per unit of U

    @shared
    def second(theta: Params) -> Any:
        """The predicted second singular value of W0."""
        xp, g = rank_one.namespace(theta["z"]), theta["z"][:d]
        unit = g / xp.linalg.norm(g)
        X = (theta["U"] @ rest)[:d]
        return size * xp.linalg.norm(X - unit[:, None] * (unit @ X), 2)

    def aside(theta: Params) -> Any:
        """Above 0 once W0 has a second direction, and at first, where it has all of them."""
        norm = rank_one.namespace(theta["z"]).linalg.norm(theta["z"][:d])
        return second(theta) - 2 * stages.DIRECTION * norm

    constants = 1 / theory.escape_rate(chain) + 1 / theory.focus_rate(chain)
    run = integrate(
        propagated(chain),
        {"z": start, "U": reach.unit * scale * np.eye(len(start))},
        reach.constants * -np.log(a0) * constants,
        observe={"z": lambda theta: theta["z"], "second": second},
        stops={"a new direction": Mark(aside, direction=1)},
        rtol=1e-6,
        solver=Solver(atol=1e-9 * scale),
        limits=Limits(steps=reach.steps),
        progress=False,
    )
    if run.status not in (Status.DONE, Status.STOPPED):
        return None, f"the rank-one flow: {run.sentence}"
    words = f"rank-one flow to t = {run.time:.4g} in {run.work['rhs']:,.0f} evaluations"
    return _observed(chain, run.trajectory), words


def unstable_mode(chain: MarkovChain) -> np.ndarray:
    """`(q, u, 0, 0)/sqrt 2` with `q = pi/|pi|`, `u = v/|v|`: what grows at the origin."""
    parts = chain.pi, chain.pi - 1 / chain.tokens
    return np.concatenate([*(x / np.linalg.norm(x) for x in parts), [0, 0]]) / sqrt(2)


def start_of(chain: MarkovChain, scale: float, a0: float) -> np.ndarray:
    """Where the rank-one flow starts: a0 along each mode, and in the embedding a ripple of size
    `scale` beside it, without which equally frequent tokens would stay equal."""
    d, mode = chain.tokens, unstable_mode(chain)
    ripple = np.resize([1.0, -1.0], d)
    ripple -= 2 * mode[:d] * (mode[:d] @ ripple)
    start = sqrt(2) * a0 * mode
    start[:d] += scale * ripple / np.linalg.norm(ripple)
    start[-2:] = a0
    return start


def propagated(chain: MarkovChain) -> Flow:
    """The rank-one flow `z' = J(z) z`, and `U' = J(z) U` of eq. (108) beside it.

    J moves x and y off the manifold, and the parts of WQ and WK that feed on them.
    """
    d = chain.tokens

    def velocity(theta: Params, out: Params | None = None) -> Params:
        z, xp = theta["z"], rank_one.namespace(theta["z"])
        g, b, q, k = z[:d], z[d : 2 * d], z[-2], z[-1]
        GM, GP = token_gradients(g[:, None] * b, q * k * (g[:, None] * g), chain)
        by_key, by_query = k * (GP @ g), q * (GP.T @ g)
        both = xp.concatenate([z[:, None], theta["U"]], axis=1)
        x, y, query, key = both[:d], both[d : 2 * d], both[-2], both[-1]
        from_scores = by_key[:, None] * query + by_query[:, None] * key
        moved = -xp.concatenate(
            [GM @ y + from_scores, GM.T @ x, (by_key @ x)[None], (by_query @ x)[None]]
        )
        if out is None:
            return {"z": moved[:, 0], "U": moved[:, 1:]}
        out["z"][:], out["U"][:] = moved[:, 0], moved[:, 1:]
        return out

    return Flow(velocity=velocity, host=True, name="rank one with its propagator")


def _observed(chain: MarkovChain, rows: xr.Dataset) -> xr.Dataset:
    """What the stages are read from, as a run of the full flow has it."""
    d, z, second = chain.tokens, rows["z"].values, rows["second"].values
    gammas = z[:, :d]
    sizes = np.linalg.norm(gammas, axis=1)
    # What leaves the manifold moves too, W0 and W1 alike, and lowers the loss by the square of its
    # speed: the flow is slowest before that outgrows what is left of the motion on the manifold.
    t = rows["time"].values
    leaving = np.sqrt(2) * np.gradient(second, t)
    speed = np.hypot(np.linalg.norm(rank_one.velocity(z, chain), axis=1), leaving)
    gained = cumulative_trapezoid(leaving**2, t, initial=0)
    return xr.Dataset(
        {
            "loss": ("time", rank_one.loss(z, chain) - gained),
            "speed": ("time", speed),
            "z": (("time", "coordinate"), z),
            "effective_rank": (("time", "matrix"), np.ones((len(z), 1))),
            "stable_rank": (("time", "matrix"), 1 + (second / sizes)[:, None] ** 2),
            "singular_W0": (("time", "mode"), np.stack([sizes, second], axis=1)),
            # The start's other query modes are not followed: no onset of attention is read off.
            "singular_WQ": (("time", "query_mode"), np.zeros((len(z), 2))),
            "attention": (("time", "query", "key"), rank_one.attention(z, chain)),
            "embedding_norm": (("time", "token"), np.abs(gammas)),
        },
        coords={"time": t, "matrix": ["W0"]},
    )
