"""The limit model of Appendix D: no attention between the leader and the rest (eta -> infinity).

On the rank-one manifold `M = gamma beta^T`, `Phi = eta gamma gamma^T`; with gamma_1 > 0 > gamma_i
and large eta the leader attends to itself alone, `A_1 = e_1`, and every other token to the others,
`A_ij ~ pi_j exp(eta gamma_i gamma_j)` over j != 1. Parameters are `theta = (gamma, beta)`; eta is
held fixed. The law is `pi(delta) = (pi1, p + delta, p - delta, p, ...)`, `p = (1 - pi1)/(d - 1)`,
eq. (94), and `P = lam I + (1 - lam) 1 pi^T`.

Formulas are written once, for NumPy arrays, JAX arrays and `Jet`s (exact derivatives without
compilation: a compiled third derivative of this little model costs seconds, a jet milliseconds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, positive, shown, whole
from attnflow.expand.jets import Jet

Matrix = Float[np.ndarray, "row column"]


class Fields(NamedTuple):
    """What the model computes at one point: `attention[query, key]`, `prediction[current, next]`,
    the loss, and its gradients `dL/dM[token, next]`, `dL/dPhi[query, key]`."""

    attention: Any
    prediction: Any
    loss: Any
    GM: Any
    GP: Any


@dataclass(frozen=True)
class LimitModel:
    """The masked model on `tokens` tokens, token 1 the most frequent.

    >>> model = LimitModel(0.75, 0.8, eta=3.0)
    >>> theta = model.symmetric_point()
    >>> bool(np.abs(model.velocity(theta)).max() < 1e-15)
    True
    """

    pi1: float
    lam: float
    eta: float
    tokens: int = 3

    def __post_init__(self) -> None:
        for name in ("pi1", "lam"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(name, f"{shown(getattr(self, name))}; strictly between 0 and 1")
        positive("eta", self.eta)
        whole("tokens", self.tokens, 3)

    def law(self, delta: Any = 0.0) -> Any:
        """pi(delta), eq. (94): the second token gains delta, the third loses it."""
        p = (1 - self.pi1) / (self.tokens - 1)
        base, way = np.full(self.tokens, p), np.zeros(self.tokens)
        base[0], way[1], way[2] = self.pi1, 1.0, -1.0
        return base + delta * way

    def transition(self, delta: Any = 0.0) -> Any:
        """P = lam I + (1 - lam) 1 pi(delta)^T, rows = current token."""
        return self.lam * np.eye(self.tokens) + (1 - self.lam) * self.law(delta)[None, :]

    def of(self, M: Any, Phi: Any, delta: Any = 0.0) -> Fields:
        """Everything from the read-out M and the score Phi; gradients as in eq. (5)."""
        xp = _namespace(M)
        pi, P, open_ = self.law(delta), self.transition(delta), self._open
        A = _normalised(xp, open_ * pi[None, :], Phi * open_)
        logits = (A[:, :, None] * M[None, :, :]).sum(axis=1)
        predicted = _normalised(xp, np.ones((self.tokens, self.tokens)), logits)
        rest = pi[:, None] * (P - predicted)
        GM = -(A[:, :, None] * rest[:, None, :]).sum(axis=0)
        spread = A * (rest[:, None, :] * M[None, :, :]).sum(axis=2)
        GP = A * spread.sum(axis=1)[:, None] - spread
        loss = -(pi[:, None] * P * xp.log(predicted)).sum(axis=0).sum(axis=0)
        return Fields(A, predicted, loss, GM, GP)

    def fields(self, theta: Any, delta: Any = 0.0) -> Fields:
        """Everything at a point of the rank-one manifold, `theta = (gamma, beta)` in one vector."""
        g, b = theta[: self.tokens], theta[self.tokens :]
        return self.of(g[:, None] * b[None, :], self.eta * (g[:, None] * g[None, :]), delta)

    def loss(self, theta: Any, delta: Any = 0.0) -> Any:
        """L(theta, delta)."""
        return self.fields(theta, delta).loss

    def velocity(self, theta: Any, delta: Any = 0.0) -> Any:
        """-grad_theta L = -(GM beta + eta (GP + GP^T) gamma, GM^T gamma), eq. (20)."""
        g, b = theta[: self.tokens], theta[self.tokens :]
        f = self.fields(theta, delta)
        both = f.GP + f.GP.T
        dg = (f.GM * b[None, :]).sum(axis=1) + self.eta * (both * g[None, :]).sum(axis=1)
        db = (f.GM * g[:, None]).sum(axis=0)
        return -_joined([dg, db])

    def symmetric_point(self, gap: float = 0.0) -> Float[np.ndarray, "parameter"]:
        """The degenerate point of Prop. 3.8: the leader's law exact, the others' average matched.

        `gamma_1 (beta_1 - beta_low) = ln(P_11/P_12)`, `gamma_low (beta_1 - beta_low) =
        ln(P_21/mean P_2j)`, `beta^T 1 = 0`. The scaling (gamma s, beta/s) is free and fixed by
        `|gamma|^2 - |beta|^2 = gap`: 0 in Prop. D.1, 2 eta for a flow from a small start.
        """
        d, top, low = self.tokens, *self.log_odds
        if not top > 0 > low:
            first = self.transition()[:, 0]
            raise InputError(
                "pi1",
                f"{self.pi1:g} with lam = {self.lam:g}: the point needs P_11 = {first[0]:.4g} > "
                f"1/{d} > (1 - lam) pi1 = {first[1]:.4g}",
            )
        size, share = top**2 + (d - 1) * low**2, (d - 1) / d
        # |gamma|^2 = size/s and |beta|^2 = share s with s = (beta_1 - beta_low)^2.
        s = 2 * size / (gap + math.sqrt(gap**2 + 4 * share * size))
        gamma = np.full(d, low) / math.sqrt(s)
        gamma[0] = top / math.sqrt(s)
        beta = np.full(d, -1 / d) * math.sqrt(s)
        beta[0] += math.sqrt(s)
        return np.concatenate([gamma, beta])

    @property
    def log_odds(self) -> tuple[float, float]:
        """ln(P_i1/mean of the others) for the leader and for the average of the other tokens."""
        P, d = self.transition(), self.tokens
        rows = P[0], P[1:].mean(axis=0)
        return tuple(float(np.log(r[0] * (d - 1) / (1 - r[0]))) for r in rows)  # type: ignore[return-value]

    @cached_property
    def _open(self) -> Matrix:
        mask = np.ones((self.tokens, self.tokens))
        mask[0, 1:] = mask[1:, 0] = 0.0
        return mask


def weight_velocity(model: LimitModel, weights: Any, dim: int, delta: Any = 0.0) -> Any:
    """The flow (31) of all four matrices of width `dim` in the limit model, as one flat vector.

    `weights` is (W0, W1, WQ, WK) raveled and joined; what the transverse eigenvalue is taken from.
    """
    W0, W1, WQ, WK = split_weights(weights, model.tokens, dim)
    queries, keys = _times(W0, WQ), _times(W0, WK)
    f = model.of(_times(W0, W1), _times(queries, keys.T), delta)
    dW0 = _times(f.GM, W1.T) + _times(_times(f.GP, keys), WQ.T)
    dW0 = dW0 + _times(_times(f.GP.T, queries), WK.T)
    parts = [dW0, _times(W0.T, f.GM), _times(W0.T, _times(f.GP, keys))]
    parts.append(_times(W0.T, _times(f.GP.T, queries)))
    return -_joined([p.reshape(-1) for p in parts])


def split_weights(weights: Any, tokens: int, dim: int) -> list[Any]:
    """W0 [token, dim], W1 [dim, token], WQ and WK [dim, dim] of one flat vector."""
    shapes = [(tokens, dim), (dim, tokens), (dim, dim), (dim, dim)]
    ends = np.cumsum([0, *(a * b for a, b in shapes)])
    cuts = zip(shapes, ends[:-1], ends[1:], strict=True)
    return [weights[a:b].reshape(*shape) for shape, a, b in cuts]


def rank_one_weights(model: LimitModel, theta: np.ndarray, dim: int) -> np.ndarray:
    """Weights on the rank-one manifold at theta: everything along the first hidden direction."""
    d, e = model.tokens, np.eye(dim)[0]
    inner = math.sqrt(model.eta) * np.outer(e, e)
    blocks = (np.outer(theta[:d], e), np.outer(e, theta[d:]), inner, inner)
    return np.concatenate([b.ravel() for b in blocks])


def _namespace(x: Any) -> Any:
    """NumPy for arrays and jets, jax.numpy for the rest."""
    return np if isinstance(x, np.ndarray | Jet) else jnp


def _normalised(xp: Any, weights: Any, z: Any) -> Any:
    """Rows of `weights exp(z)` divided by their sums; shifted so that nothing overflows."""
    plain = z.value if isinstance(z, Jet) else z
    e = weights * xp.exp(z - plain.max(axis=1)[:, None])
    return e / e.sum(axis=1)[:, None]


def _times(a: Any, b: Any) -> Any:
    return (a[:, :, None] * b[None, :, :]).sum(axis=1)


def _joined(parts: list[Any]) -> Any:
    if any(isinstance(part, Jet) for part in parts):
        return Jet.concatenate(parts)
    first, *_ = parts
    return _namespace(first).concatenate(parts)
