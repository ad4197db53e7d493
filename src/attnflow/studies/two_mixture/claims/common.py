"""What the claims share: regimes, stage 2 solved, and exact derivatives.

Statements of the paper are about K = 2, L = 3 and infinite width (Def. 5.1). They are measured
there, with the config's bias, omega, T1 and stop of stage 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnflow.claims import Regime, condition
from attnflow.flows.driver import integrate
from attnflow.flows.options import Solver
from attnflow.flows.probes import Mark
from attnflow.flows.solution import Solution
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

SMALL = 0.5
"""The constant C of Condition 1, `omega < C < 1`: the paper does not give one."""

TALL = 5.0
"""The largest bias: the paper wants a small one, and stage 1.1 lasts e^{2b}/2."""

MODERATE = 1.5
"""Stops of stage 2 up to which "scores bounded by a constant C" (Lemmas E.1 to E.5) is taken."""

LATER = 1.2
"""What T1 is over T0.5 at least, so that the group signals have been learnt."""

OMEGAS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Scales over which orders in omega are fitted."""

GRID = 96
"""Times of stage 2 at which signs and ratios are looked at."""

C1, C2, V1, V2 = range(4)
"""Coordinates at K = 2."""

TWO = MixtureClassification(2, 3)

EXPLICIT = Solver("scipy", "dop853")
"""Who solves stages 1 and 2: few large steps, as nothing in them is stiff."""


# --- Regimes: Section 4 and 5 are about K = 2, L = 3 and infinite width.


@condition
def condition_one(config: Config) -> Regime:
    """Condition 1: omega below a constant C < 1; the dimension is infinite.

    How small omega has to be depends on the neurons: above some 4 gamma/a the asymmetry of the
    classification signals outgrows the scores of the groups (a claim of `stage_two`).
    """
    return _small(config, config.omega)


@condition
def small_orders(config: Config) -> Regime:
    """Condition 1 for the scales that orders are fitted over."""
    return _small(config, max(config.omega, OMEGAS[0]))


def _small(config: Config, omega: float) -> Regime:
    gamma, a = theory.neurons(config.t1, config.bias)
    most = min(SMALL, 2 * gamma / a)
    words = f"omega = {omega:.4g} < C = min({SMALL:g}, 2 gamma/a) = {most:.4g}, m = inf"
    return Regime(bool(0 < omega < most), f"Condition 1: {words}")


@condition
def three_tokens(config: Config) -> Regime:
    """L = 3 and b > 0 with any number of groups."""
    words = f"L = {config.length} (3), 0 < b = {config.bias:.4g} <= {TALL:g}"
    return Regime(config.length == 3 and 0 < config.bias <= TALL, words)


@condition
def two_groups(config: Config) -> Regime:
    return Regime(config.groups == 2, f"K = {config.groups} (2), m = inf")


@condition
def late_t1(config: Config) -> Regime:
    """T1 lies beyond T0.5, in units of K/2."""
    gate = theory.gate_time(config.bias)
    words = f"T1 = {config.t1:.4g} is well after T0.5 = {gate:.4g}"
    return Regime(config.t1 > LATER * gate, words)


@condition
def bounded_scores(config: Config) -> Regime:
    words = f"scores up to {config.score_stop:.3g} <= {MODERATE:g}"
    return Regime(config.score_stop <= MODERATE, words)


two_mixtures = three_tokens & two_groups
past_gates = two_mixtures & late_t1
three_tokens_past_gates = three_tokens & late_t1
staged = past_gates & small_orders & bounded_scores
"""Stage 2 under Condition 1, ended while scores are bounded by a constant."""


# --- Stage 2, solved on the ten variables.


@dataclass(frozen=True, eq=False)
class StageTwo:
    """Stage 2 at K = 2: scores and self-scores of the plus head at times after T1.

    Matrices are `[time, key, query]` in the coordinates c1, c2, v1, v2.
    """

    gamma: float
    a: float
    bias: float
    omega: float
    length: float
    """T2 - T1."""
    times: np.ndarray
    S: np.ndarray
    A: np.ndarray
    B: np.ndarray
    M: np.ndarray

    @property
    def w(self) -> np.ndarray:
        """w of both heads."""
        return neurons_of(self.gamma, self.a)

    @functools.cached_property
    def rates(self) -> dict[str, np.ndarray]:
        return gram_rates(self.S, self.A, self.B, self.M)

    @functools.cached_property
    def attention(self) -> np.ndarray:
        """p[time, head, sample, key, query] at the samples of `TWO.population`."""
        return forward(self.w, both_heads(self.S), TWO.population, self.bias)[0]

    def p(self, sample: str, query: int, key: int, head: int = 0) -> np.ndarray:
        """p over time; tokens by position (0: c, 1: own v, 2: other v)."""
        return self.attention[:, head, SAMPLES.index(sample), key, query]


def turned(X: Any) -> Any:
    return np.swapaxes(X, -1, -2)


def gram_rates(S: Any, A: Any, B: Any, M: Any) -> dict[str, np.ndarray]:
    """S', A', B' of Appendix B.2."""
    key, query = M @ turned(S), turned(M) @ S
    return {"S": M @ B + A @ M, "A": key + turned(key), "B": query + turned(query)}


def stacked(A: Any, S: Any, B: Any) -> np.ndarray:
    """[[A, S], [S^T, B]]."""
    rows = np.concatenate([A, S], -1), np.concatenate([turned(S), B], -1)
    return np.concatenate(rows, -2)


def root(w4: float, X: np.ndarray) -> np.ndarray:
    """`(w4 I + X)^(1/2)` of symmetric matrices."""
    values, U = np.linalg.eigh(w4 * np.eye(X.shape[-1]) + X)
    return (U * np.sqrt(np.maximum(values, 0))[..., None, :]) @ turned(U)


def written(w: Any, S: Any, omega: float, pop: MixturePopulation, bias: float) -> SimpleNamespace:
    """Eq. (1) at infinite width with its losses, forces and powers, at a state or at many."""
    (p, H, f), (dw, M) = forward(w, S, pop, bias), force(w, S, pop, bias)
    A, B = root(omega**4, S @ turned(S)), root(omega**4, turned(S) @ S)
    dS, each, d = M @ B + A @ M, np.log1p(np.exp(-pop.label * f)), pop.agreement
    given = np.transpose([pop.weight * (d == x) / pop.weight[d == x].sum() for x in pop.agreements])
    power, losses = (dw**2).sum((-1, -2)), {"loss": each @ pop.weight, "given": each @ given}
    powers = power, (M * dS).sum((-1, -2, -3))
    return SimpleNamespace(p=p, height=H + bias, dw=dw, dS=dS, A=A, B=B, power=powers, **losses)


def neurons_of(gamma: Any, a: Any) -> np.ndarray:
    """w[..., head, signal] at K = 2 (Lemma C.4)."""
    gamma, a = np.broadcast_arrays(gamma, a)
    return np.stack([np.stack([gamma, gamma, s * a, s * a], axis=-1) for s in (1, -1)], axis=-2)


def both_heads(S: np.ndarray) -> np.ndarray:
    """The minus head's scores are the mirror image v -> -v (Lemma C.4)."""
    return np.stack([S, MIRROR * S], axis=-3)


@paper.once
def stage_two(gamma: float, a: float, bias: float, omega: float, stop: float, groups=2) -> Solution:
    """Attention on the conflicting samples until the score is reached: its time is T2 - T1."""
    hard = MixtureClassification(groups, 3).orbits.restricted(agreement=-1)
    flow = symmetric_flow(hard, omega, bias, ("neurons",))
    return integrate(
        flow,
        dict(flow.start, w=np.array([gamma, a])),
        4 * theory.attention_time(gamma, omega, groups, stop) + 1000 * groups,
        stops={"score": Mark(lambda state: flow.score(state, "c", "v"), stop)},
        rtol=1e-9,
        solver=EXPLICIT,
        progress=False,
    )


@paper.once
def run_at(bias: float, omega: float, t1: float, stop: float) -> StageTwo:
    """Stage 2 from the closed form of stage 1."""
    gamma, a = (float(x) for x in theory.neurons(t1, bias))
    found = stage_two(gamma, a, bias, omega, stop)
    times = np.linspace(0.0, found.time, GRID)
    states = found.states(times)
    total, diff = states["S_sum"], states["S_diff"]
    S = lifted(total, diff)
    A, B = (lifted(*pair) for pair in zip(roots(total, omega), roots(diff, omega), strict=True))
    M = force(neurons_of(gamma, a), both_heads(S), CONFLICTING, bias)[1][:, 0]
    return StageTwo(gamma, a, bias, omega, found.time, times, S, A, B, M)


def lifted(total: np.ndarray, diff: np.ndarray) -> np.ndarray:
    """4 x 4 matrices from their two sectors (K = 2)."""
    equal, other = (total + diff) / 2, (total - diff) / 2
    return np.kron(equal, np.eye(2)) + np.kron(other, 1 - np.eye(2))


def roots(S: np.ndarray, omega: float) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a sector: `(omega^4 + S S^T)^(1/2)` and `(omega^4 + S^T S)^(1/2)`, 2 x 2."""
    square, det = (S * S).sum(axis=(1, 2)), np.linalg.det(S)
    r = np.sqrt(omega**8 + omega**4 * square + det**2)
    scale = np.sqrt(2 * omega**4 + square + 2 * r)[:, None, None]
    diagonal = (omega**4 + r)[:, None, None] * np.eye(2)
    return (S @ turned(S) + diagonal) / scale, (turned(S) @ S + diagonal) / scale


def second_stages(study, omegas: Sequence[float] = OMEGAS) -> list[StageTwo]:
    """Stage 2 over scales of the start, the rest as in the config."""
    c = study.config
    return [run_at(float(c.bias), float(w), float(c.t1), float(c.score_stop)) for w in omegas]


def second_stage(study) -> StageTwo:
    """Stage 2 with the config's numbers."""
    return second_stages(study, [study.config.omega])[0]


# --- The model from its inputs alone, and exact derivatives.


CONFLICTING = TWO.population.restricted(agreement=-1)
SAMPLES = TWO.population.names()
MIRROR = np.kron(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.ones((2, 2)))
SIGNS = np.array([[1.0], [-1.0]])


def forward(w: Any, S: Any, population: MixturePopulation, bias: float) -> tuple[Any, Any, Any]:
    """p[..., head, sample, key, query], H[..., head, sample] and f, written out from eq. (1).

    Analytic in w and S where no gate switches, so that complex steps differentiate it.
    """
    X = population.inputs  # sample position coordinate
    z = np.einsum("nka,...hab,nqb->...hnkq", X, S, X, optimize=True)
    e = np.exp(z - np.real(z).max(axis=-2, keepdims=True))
    p = e / e.sum(axis=-2, keepdims=True)
    H = np.einsum("...ha,nka,...hnkq->...hn", w, X, p, optimize=True)
    on = np.real(H) + bias > 0
    f = (SIGNS * on * (H + bias)).sum(axis=-2)
    return p, H, f


def force(w: Any, S: Any, population: MixturePopulation, bias: float) -> tuple[Any, Any]:
    """`-dL/dw[..., head, a]` and `M = -dL/dS[..., head, a, b]`, the sums of Appendix B.1."""
    X = population.inputs
    p, H, f = forward(w, S, population, bias)
    g = 1 / (1 + np.exp(population.label * f))
    on = np.real(H) + bias > 0
    c = SIGNS * on * (population.weight * population.label * g)[..., None, :]
    values = np.einsum("...ha,nka->...hnk", w, X)
    spread = values[..., None] - np.einsum("...hnk,...hnkq->...hnq", values, p)[..., None, :]
    dw = np.einsum("...hn,...hnkq,nka->...ha", c, p, X, optimize=True)
    M = np.einsum("...hn,...hnkq,nka,nqb->...hab", c, p * spread, X, X, optimize=True)
    return dw, M


def loss(w: Any, S: Any, population: MixturePopulation, bias: float) -> Any:
    """E log(1 + exp(-y f))."""
    f = forward(w, S, population, bias)[2]
    return (population.weight * np.log1p(np.exp(-population.label * f))).sum()


def derivative(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """The gradient of a real-analytic scalar function, exact by complex steps."""
    out, h = np.empty(x.shape), 1e-150
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1j * h
        out[k] = np.imag(function(z)) / h
    return out


def score_force(w: Any, S: Any, population: MixturePopulation, bias: float) -> np.ndarray:
    """`M = -dL/dS` of the plus head from the loss alone, by complex steps."""
    return -derivative(lambda X: loss(w, np.stack([X, S[1]]), population, bias), S[0])
