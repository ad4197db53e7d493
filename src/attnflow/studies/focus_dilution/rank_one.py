"""The rank-one manifold of Section 3.3: the same model at width one, and its two-group form.

On `W0 = g a^T`, `W1 = a b^T`, `WQ = q a at^T`, `WK = k a at^T` with unit vectors a, at (eq. 18)
the read-out is `M = g b^T` and the score `Phi = eta g g^T`, `eta = q k`: what a model of width one
has. So the flow on the manifold is `population_flow(chain)` on an `OneLayerAttention` of width
one, for every law; `g`, `b`, `q`, `k` are the paper's gamma, beta, lambda_Q, lambda_K.

Vectors of a state are `(g_1 .. g_d, b_1 .. b_d, q, k)`, with any batch axes in front.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, shown
from attnflow.flows import Flow, Solution, Solver, integrate
from attnflow.flows.layout import Params
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.reduce import OrbitFlow
from attnflow.studies.focus_dilution import theory
from attnflow.tasks.markov import MarkovChain


def rank_one_state(gamma: Any, beta: Any, query: float, key: float) -> OneLayerAttention:
    """The model of width one with embedding gamma, read-out beta, `WQ = query`, `WK = key`."""
    g, b = np.array(gamma, dtype=np.float64), np.array(beta, dtype=np.float64)
    if g.ndim != 1 or g.shape != b.shape:
        raise InputError("beta", f"shape {b.shape} beside gamma {g.shape}; one entry per token")
    scalar = lambda x: np.full((1, 1), float(x))  # noqa: E731
    return OneLayerAttention(g[:, None], b[None, :], scalar(query), scalar(key))  # type: ignore[arg-type]


def rank_one_lift(
    state: OneLayerAttention, alpha: np.ndarray, alpha_tilde: np.ndarray
) -> OneLayerAttention:
    """eq. (18): the point of the manifold with directions `alpha`, `alpha_tilde` (made unit)."""
    a, at = (np.asarray(x, dtype=np.float64) for x in (alpha, alpha_tilde))
    for name, x in (("alpha", a), ("alpha_tilde", at)):
        if x.ndim != 1 or x.shape != a.shape or not np.linalg.norm(x) > 0:
            raise InputError(name, f"{shown(np.ravel(x).tolist())}; a direction, one entry per dim")
    a, at = a / np.linalg.norm(a), at / np.linalg.norm(at)
    _one_wide(state)
    W0, W1, WQ, WK = (np.asarray(w) for w in (state.W0, state.W1, state.WQ, state.WK))
    return OneLayerAttention(W0 * a, a[:, None] * W1, WQ * np.outer(a, at), WK * np.outer(a, at))  # type: ignore[arg-type]


def two_group_flow(chain: MarkovChain) -> OrbitFlow:
    """The six numbers gamma_1, gamma_low, beta_1, beta_low, lambda_Q, lambda_K of Section 3.3.

    The orbits of the permutations of the lower tokens, eq. (80), on the rank-one flow: those of
    one cycle through all of them.
    """
    _check_two_group(chain)
    cycle = np.r_[0, np.roll(np.arange(1, chain.tokens), 1)]
    like = theory.unigram_point(chain, dim=1)
    generators = [{"W0": {0: cycle}, "W1": {1: cycle}}]
    return OrbitFlow(population_flow(chain), generators, like, name="two-group rank-one flow")


# --- Any law, for NumPy and JAX arrays: batched, and written for derivatives by complex step.


def vector(state: OneLayerAttention) -> np.ndarray:
    """A state of width one as `(gamma, beta, lambda_Q, lambda_K)`."""
    _one_wide(state)
    blocks = (state.W0, state.W1, state.WQ, state.WK)
    return np.concatenate([np.ravel(np.asarray(w)) for w in blocks])


def state_of(z: np.ndarray) -> OneLayerAttention:
    """The state of width one of a vector."""
    d = (len(z) - 2) // 2
    return rank_one_state(z[:d], z[d : 2 * d], z[-2], z[-1])


def attention(z: np.ndarray, chain: MarkovChain) -> Any:
    """A `[query, key]` on the manifold."""
    g, _, q, k = _split(z)
    return _softmax((q * k)[..., None] * g[..., :, None] * g[..., None, :] + np.log(chain.pi))


def loss(z: np.ndarray, chain: MarkovChain) -> Any:
    """The population loss on the manifold."""
    xp, (g, b, _, _) = namespace(z), _split(z)
    logits = (attention(z, chain) @ g[..., None]) * b[..., None, :]
    shift = np.real(logits).max(axis=-1, keepdims=True)
    log_p = logits - shift - xp.log(xp.exp(logits - shift).sum(axis=-1, keepdims=True))
    return -(chain.pi[:, None] * chain.transition * log_p).sum(axis=(-2, -1))


def velocity(z: np.ndarray, chain: MarkovChain | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """eq. (20) written out, with lambda_Q and lambda_K kept apart.

    With `m = A g`, `R_i = pi_i (P_i - p_i)`, `s = R b` and `V_i = g^T Var(A_i) g`:
    `g' = A^T s + eta (s V + sum_i g_i s_i Var(A_i) g)`, `b' = R^T m`, `q' = k sum g s V`, `k'`
    likewise. `chain` may be a pair `(pi, P)` with batch axes.
    """
    pi, P = (chain.pi, chain.transition) if isinstance(chain, MarkovChain) else chain
    g, b, q, k = _split(z)
    eta = q * k
    A = _softmax(eta[..., None] * g[..., :, None] * g[..., None, :] + np.log(pi)[..., None, :])
    m = (A * g[..., None, :]).sum(axis=-1)
    R = pi[..., :, None] * (P - _softmax(m[..., :, None] * b[..., None, :]))
    s = (R * b[..., None, :]).sum(axis=-1)
    centred = g[..., None, :] - m[..., :, None]
    V = (A * centred**2).sum(axis=-1)
    from_scores = s * V + ((g * s)[..., :, None] * A * centred).sum(axis=-2)
    drive = (g * s * V).sum(axis=-1, keepdims=True)
    return namespace(z).concatenate(
        [
            (A * s[..., :, None]).sum(axis=-2) + eta * from_scores,
            (R * m[..., :, None]).sum(axis=-2),
            k * drive,
            q * drive,
        ],
        axis=-1,
    )


def vector_flow(velocity: Callable[[Any], Any], name: str) -> Flow:
    """The flow `z' = velocity(z)` of one vector, on `{"z": z}`; in NumPy, nothing is compiled."""

    def moved(theta: Params, out: Params | None = None) -> Params:
        if out is None:
            return {"z": velocity(theta["z"])}
        out["z"][:] = velocity(theta["z"])
        return out

    return Flow(velocity=moved, host=True, name=name)


def solve(flow: Flow, z: np.ndarray, until: float, *, atol: float, **options: Any) -> Solution:
    """Solve a flow of one vector by LSODA; `z` is observed."""
    how, seen = Solver("scipy", "lsoda", "difference", atol), {"z": lambda theta: theta["z"]}
    return integrate(flow, {"z": z}, until, observe=seen, solver=how, progress=False, **options)


def derivative(
    function: Callable[[np.ndarray], Any], z: np.ndarray, *, step: float = 1e-20
) -> np.ndarray:
    """`d function / d z` by complex step, `[..., output, input]` (or `[..., input]`).

    Nothing is subtracted, so that it is exact to rounding.
    """
    moved = np.imag(function(z[..., None, :] + 1j * step * np.eye(z.shape[-1]))) / step
    return np.swapaxes(moved, -1, -2) if moved.ndim > z.ndim else moved


def jacobian(z: np.ndarray, chain: MarkovChain) -> np.ndarray:
    """Of the velocity on the manifold: `[moved, by]`."""
    return derivative(lambda x: velocity(x, chain), z)


def readout_gradient(z: np.ndarray, chain: MarkovChain) -> np.ndarray:
    """dL/dM `[token, next]` at a state, eq. (5): its top singular value is the rate off rank one.

    A direction orthogonal to alpha does not reach the scores, so embedding x and read-out y off
    the manifold obey `x' = -GM y`, `y' = -GM^T x`.
    """
    (g, b, _, _), A = _split(z), attention(z, chain)
    R = chain.pi[:, None] * (chain.transition - _softmax((A @ g)[:, None] * b))
    return -(A.T @ R)


# --- Two groups: token 1 and d - 1 lower tokens with equal gamma and beta, eqs. (82) to (89).


@dataclass(frozen=True)
class TwoGroup:
    """The closed system of App. C.3 in `z = (gamma_1, gamma_low, beta_1, beta_low, q, k)`.

    `pi1` and `lam` are numbers, or arrays for many laws at once.
    """

    pi1: Any
    lam: Any
    tokens: int

    @classmethod
    def of(cls, chain: MarkovChain) -> TwoGroup:
        _check_two_group(chain)
        assert chain.lam is not None
        return cls(float(chain.pi[0]), chain.lam, chain.tokens)

    @property
    def first(self) -> tuple[float, float]:
        """P_11 and P_i1: the chances of token 1 after token 1 and after a lower one."""
        back = (1 - self.lam) * self.pi1
        return self.lam + back, back

    def lift(self, z: np.ndarray) -> np.ndarray:
        """The state vector of all tokens."""
        low = self.tokens - 1
        return np.concatenate(
            [
                z[..., :1],
                np.repeat(z[..., 1:2], low, -1),
                z[..., 2:3],
                np.repeat(z[..., 3:4], low, -1),
                z[..., 4:],
            ],
            axis=-1,
        )

    def attention(self, z: np.ndarray) -> tuple[Any, Any]:
        """xi_1, xi_2 of eqs. (82), (83): the attention of both groups to token 1."""
        a, b, eta = z[..., 0], z[..., 1], z[..., 4] * z[..., 5]
        odds = np.log(self.pi1 / (1 - self.pi1))
        return sigmoid(odds + eta * a * (a - b)), sigmoid(odds + eta * b * (a - b))

    def averages(self, z: np.ndarray) -> tuple[Any, Any]:
        """m_i = A_i gamma = gamma_low + xi_i Dgamma."""
        x1, x2 = self.attention(z)
        return z[..., 1] + x1 * (z[..., 0] - z[..., 1]), z[..., 1] + x2 * (z[..., 0] - z[..., 1])

    def prediction(self, z: np.ndarray) -> tuple[Any, Any]:
        """p_i of eq. (84): the predicted chance of token 1."""
        gap, odds = z[..., 2] - z[..., 3], np.log(self.tokens - 1)
        m1, m2 = self.averages(z)
        return sigmoid(m1 * gap - odds), sigmoid(m2 * gap - odds)

    def residuals(self, z: np.ndarray) -> tuple[Any, Any]:
        """r_i = P_i1 - p_i, eq. (86)."""
        return tuple(P - p for P, p in zip(self.first, self.prediction(z), strict=True))  # type: ignore[return-value]

    def from_readout(self, z: np.ndarray) -> tuple[Any, Any]:
        """eq. (87): what M does to gamma_1 and gamma_low."""
        (x1, x2), (r1, r2), gap = self.attention(z), self.residuals(z), z[..., 2] - z[..., 3]
        w1, w2 = self.pi1 * r1, (1 - self.pi1) * r2
        low = (w1 * (1 - x1) + w2 * (1 - x2)) / (self.tokens - 1)
        return gap * (w1 * x1 + w2 * x2), gap * low

    def from_scores(self, z: np.ndarray, *, printed: bool = False) -> tuple[Any, Any]:
        """eqs. (88), (89): what Phi does to gamma_1 and gamma_low.

        The last term of (88) is `(1 - pi_1) r_2 xi_2 (1 - xi_2) gamma_low Dgamma`; `printed` leaves
        out the factor gamma_low, as the text does.
        """
        (x1, x2), (r1, r2) = self.attention(z), self.residuals(z)
        a, b = z[..., 0], z[..., 1]
        D, push = a - b, z[..., 4] * z[..., 5] * (z[..., 2] - z[..., 3])
        w1, w2 = self.pi1 * r1 * x1 * (1 - x1), (1 - self.pi1) * r2 * x2 * (1 - x2)
        first = w1 * (D**2 + a * D) + w2 * (D if printed else b * D)
        return push * first, push * (w2 * (D**2 - b * D) - w1 * a * D) / (self.tokens - 1)

    def velocity(self, z: np.ndarray) -> np.ndarray:
        """The closed system: (87) to (89) for gamma, and beta and the lambdas beside them."""
        (x1, x2), (r1, r2), (m1, m2) = self.attention(z), self.residuals(z), self.averages(z)
        M, S = self.from_readout(z), self.from_scores(z)
        w1, w2 = self.pi1 * r1, (1 - self.pi1) * r2
        a, b, q, k = z[..., 0], z[..., 1], z[..., 4], z[..., 5]
        up = w1 * m1 + w2 * m2
        spread = w1 * a * x1 * (1 - x1) + w2 * b * x2 * (1 - x2)
        drive = (z[..., 2] - z[..., 3]) * (a - b) ** 2 * spread
        return namespace(z).stack(
            [M[0] + S[0], M[1] + S[1], up, -up / (self.tokens - 1), k * drive, q * drive], axis=-1
        )

    def contrast(self, z: np.ndarray) -> Any:
        """(1 - pi_1) gamma_1 - (d - 1) pi_1 gamma_low, eq. (21)."""
        return (1 - self.pi1) * z[..., 0] - (self.tokens - 1) * self.pi1 * z[..., 1]

    def contrast_force(self) -> float:
        """3 lam pi1^2 (1 - pi1)^2 Dbeta Dgamma^2 of eq. (90), at the entry state."""
        z = entry(self)
        spread = self.pi1 * (1 - self.pi1)
        return float(3 * self.lam * spread**2 * (z[2] - z[3]) * (z[0] - z[1]) ** 2)

    def redistribution(self) -> tuple[float, float]:
        """The unstable mode at the entry state, `(gamma_1, gamma_low)` per unit of eta.

        gamma_low always falls; gamma_1 rises where `3 lam V^2 Dgamma^2 > pi_1 S`, with
        `V = pi_1 (1 - pi_1)` and S the mean of the change of the predictions.
        """
        z, p, d = entry(self), self.pi1, self.tokens
        D, B, V, low = z[0] - z[1], z[2] - z[3], p * (1 - p), (1 - p) / (d - 1)
        m, rate = z[1] + p * D, 2 * theory.focus_rate(self.chain)
        force = self.contrast_force()
        squares = p**2 + (d - 1) * low**2
        S = (
            V
            * (
                B * force * (p - low)
                + m * d / (d - 1) * self.lam * V**2 * D**3
                + rate * V * D**2 * B * m
            )
            / (rate + V * (B**2 * squares + m**2 * d / (d - 1)))
        )
        return (force - B * p * S) / rate, -(force + B * (1 - p) * S) / ((d - 1) * rate)

    @property
    def chain(self) -> MarkovChain:
        low = (1 - self.pi1) / (self.tokens - 1)
        return MarkovChain((self.pi1, *[low] * (self.tokens - 1)), self.lam)


def entry(system: TwoGroup, score: float = 0.0) -> np.ndarray:
    """The entry state (19) of the dilution phase, with `lambda_Q = lambda_K = score`."""
    point = theory.unigram_point(system.chain, 1)
    g, b = np.asarray(point.W0)[:2, 0], np.asarray(point.W1)[0, :2]
    return np.array([g[0], g[1], b[0], b[1], score, score])


def sigmoid(x: Any) -> Any:
    """`1 / (1 + exp(-x))`, for complex x too."""
    xp, below = namespace(x), np.real(x) < 0
    e = xp.exp(xp.where(below, x, -x))  # so that nothing overflows
    return xp.where(below, e, 1) / (1 + e)


def _split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    d = (z.shape[-1] - 2) // 2
    return z[..., :d], z[..., d : 2 * d], z[..., -2:-1], z[..., -1:]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = namespace(x).exp(x - np.real(x).max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def namespace(x: Any) -> Any:
    """jax.numpy for JAX arrays, NumPy for the rest: its scalars and Python's too."""
    return jnp if isinstance(x, jax.Array) else np


def _one_wide(state: OneLayerAttention) -> None:
    if np.shape(state.WQ) != (1, 1):
        raise InputError("state", f"width {np.shape(state.WQ)[0]}; a rank-one state has width 1")


def _check_two_group(chain: MarkovChain) -> None:
    if chain.lam is None or np.ptp(chain.pi[1:]) > 1e-12:
        raise InputError(
            "chain", f"{chain!r}; two groups are a two-term chain with pi2 = ... = pid"
        )
