"""One-layer attention (arXiv 2605.01199, Def. 2.2) and its exact population flow on a chain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._errors import InputError
from attnflow._precision import float64
from attnflow.flows.flow import Flow
from attnflow.flows.probes import Observable, shared
from attnflow.tasks.markov import MarkovChain

PAPER = "arXiv 2605.01199"

AnyArray: TypeAlias = Array | np.ndarray
"""Engines compute with NumPy arrays, everything traced with JAX ones; one formula serves both."""


class OneLayerAttention(eqx.Module):
    """Embedding, one attention head without values, read-out: `softmax(Z WQ WK^T Z^T) Z W1`.

    `Z = W0[tokens]`; the logits at a position are the attended embeddings times `W1`.
    """

    W0: Float[AnyArray, "token dim"]
    W1: Float[AnyArray, "dim token"]
    WQ: Float[AnyArray, "dim dim"]
    WK: Float[AnyArray, "dim dim"]

    @classmethod
    def gaussian(cls, tokens: int, dim: int, scale: float, seed: int = 0) -> OneLayerAttention:
        """Every entry N(0, scale^2), in float64; `scale = 1/dim` is the second start of App. E."""
        if not isinstance(dim, int | np.integer) or dim < 1:
            raise InputError("dim", f"{dim} is not a width; dim is a whole number of at least 1")
        if not (np.isfinite(scale) and scale > 0):
            raise InputError("init_scale", f"{scale}; a positive standard deviation")
        rng = np.random.default_rng(seed)
        shapes = [(tokens, dim), (dim, tokens), (dim, dim), (dim, dim)]
        return cls(*(scale * rng.standard_normal(shape) for shape in shapes))  # type: ignore[misc]

    @property
    def score(self) -> Float[AnyArray, "query key"]:
        """Phi = W0 WQ WK^T W0^T: the score of each key token for each query token."""
        return (self.W0 @ self.WQ) @ (self.W0 @ self.WK).T

    @property
    def readout(self) -> Float[AnyArray, "token next"]:
        """M = W0 W1: what an attended token adds to the logits."""
        return self.W0 @ self.W1

    def logits(self, tokens: Int[AnyArray, "position"]) -> Float[AnyArray, "next"]:
        """Next-token logits at the last position of a sequence."""
        z = self.W0[tokens]
        scores = (z[-1] @ self.WQ) @ (z @ self.WK).T
        return jax.nn.softmax(scores) @ z @ self.W1


def attention(theta: OneLayerAttention, pi: Any) -> Float[AnyArray, "query key"]:
    """The token-level attention of the long-context limit (Prop. 2.3): `A_ij ~ pi_j exp Phi_ij`."""
    xp = _namespace(theta.W0)
    return _softmax(xp, theta.score + xp.log(pi)[None, :])


def prediction(theta: OneLayerAttention, pi: Any) -> Float[AnyArray, "current next"]:
    """The model's next-token law for each current token (Prop. 2.3)."""
    xp = _namespace(theta.W0)
    return _softmax(xp, attention(theta, pi) @ theta.readout)


@float64
def token_losses(theta: OneLayerAttention, chain: MarkovChain) -> Float[AnyArray, "current"]:
    """Cross-entropy given each current token: `L = sum_i pi_i L_i`."""
    xp = _namespace(theta.W0)
    z = attention(theta, chain.pi) @ theta.readout
    z = z - z.max(axis=1, keepdims=True)
    logs = z - xp.log(xp.exp(z).sum(axis=1, keepdims=True))
    return -(chain.transition * logs).sum(axis=1)


@float64
def population_loss(theta: OneLayerAttention, chain: MarkovChain) -> Float[AnyArray, ""] | float:
    """The exact loss for infinitely many, infinitely long sequences (Prop. 2.3)."""
    return chain.pi @ token_losses(theta, chain)


def token_gradients(M: Any, Phi: Any, chain: MarkovChain) -> tuple[Any, Any]:
    """`dL/dM[token, next]` and `dL/dPhi[query, key]` of the population loss, eq. (5).

    Takes NumPy or JAX arrays, whichever it is given.
    """
    xp = _namespace(M)
    pi = chain.pi[:, None]
    A = _softmax(xp, Phi + xp.log(chain.pi)[None, :])
    R = pi * (chain.transition - _softmax(xp, A @ M))
    spread = A * (R @ M.T)
    return -(A.T @ R), A * spread.sum(axis=1, keepdims=True) - spread


def velocity(
    theta: OneLayerAttention, chain: MarkovChain, out: OneLayerAttention | None = None
) -> OneLayerAttention:
    """The population flow in closed form, eq. (4) in the form (31) of App. B.2.

    `W0' = -GM W1^T - GP W0 WK WQ^T - GP^T W0 WQ WK^T`, `W1' = -W0^T GM`,
    `WQ' = -W0^T GP W0 WK`, `WK' = -W0^T GP^T W0 WQ`. With `out` it fills NumPy arrays in place:
    the two rank-`token` updates then cost one write of each matrix and nothing else.
    """
    return move(theta, lambda M, Phi: token_gradients(M, Phi, chain), out)


def move(
    theta: OneLayerAttention,
    gradients: Callable[[Any, Any], tuple[Any, Any]],
    out: OneLayerAttention | None = None,
) -> OneLayerAttention:
    """Minus the gradient in the four matrices, from `gradients(M, Phi) = (dL/dM, dL/dPhi)`.

    Eq. (4) holds for any data, which enter only through these two token-level gradients.
    """
    dW0, *factors = _factors(theta, gradients)
    minus = -theta.W0.T
    if out is None:
        return OneLayerAttention(dW0, *(minus @ factor for factor in factors))
    out.W0[:] = dW0  # type: ignore[index]
    for block, factor in zip((out.W1, out.WQ, out.WK), factors, strict=True):
        np.matmul(minus, factor, out=block)  # type: ignore[call-overload]
    return out


def speed(theta: OneLayerAttention, gradients: Callable[[Any, Any], tuple[Any, Any]]) -> float:
    """The norm of what `move` gives, without its two `dim x dim` matrices.

    `|W0^T F| = |R F|` where `W0^T = Q R`: as exact, and free of the width's square.
    """
    dW0, *factors = _factors(theta, gradients)
    R = np.linalg.qr(theta.W0.T, mode="r")
    return float(np.sqrt(sum(np.vdot(x, x) for x in (dW0, *(R @ factor for factor in factors)))))


def _factors(
    theta: OneLayerAttention, gradients: Callable[[Any, Any], tuple[Any, Any]]
) -> tuple[Any, Any, Any, Any]:
    """W0', and the F of each `W' = -W0^T F`: of W1, WQ and WK."""
    W0, W1, WQ, WK = theta.W0, theta.W1, theta.WQ, theta.WK
    queries, keys = W0 @ WQ, W0 @ WK
    GM, GP = gradients(W0 @ W1, queries @ keys.T)
    from_keys, from_queries = GP @ keys, GP.T @ queries
    dW0 = -(GM @ W1.T) - from_keys @ WQ.T - from_queries @ WK.T
    return dW0, GM, from_keys, from_queries


CONSERVED = {
    # Exact along the flow: neighbouring factors keep their balance.
    "embedding balance": lambda th: (
        th.W0.T @ th.W0 - th.W1 @ th.W1.T - th.WQ @ th.WQ.T - th.WK @ th.WK.T
    ),
    "query-key balance": lambda th: th.WQ.T @ th.WQ - th.WK.T @ th.WK,
    "read-out row sums": lambda th: th.W1.sum(axis=1),
}


@functools.lru_cache(maxsize=64)
def population_flow(chain: MarkovChain) -> Flow:
    """The gradient flow of the population loss in closed form, with its conserved quantities.

    Equal chains share one flow and its compiled functions.
    """
    return Flow(
        lambda theta: population_loss(theta, chain),
        velocity=lambda theta, out=None: velocity(theta, chain, out),
        speed=lambda theta: speed(theta, lambda M, Phi: token_gradients(M, Phi, chain)),
        conserved=CONSERVED,
        host=True,
        name="one-layer attention, population",
    )


@float64
def sequence_loss(theta: OneLayerAttention, tokens: Any) -> Float[AnyArray, ""]:
    """Cross-entropy at the last token of each sequence, eq. (3): inputs, then the label."""
    theta, tokens = jax.tree.map(jnp.asarray, theta), jnp.asarray(tokens)
    logits = jax.vmap(theta.logits)(tokens[:, :-1])
    return -jnp.mean(
        jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), tokens[:, -1:], axis=1)
    )


def observables(chain: MarkovChain) -> dict[str, Observable]:
    """The measurements of a run; `token`, `query` and `key` axes carry token numbers."""
    from attnflow.observe import entropy_rank, singular_values
    from attnflow.observe.spectral import share_of_top

    ids, first = np.arange(chain.tokens), int(np.argmax(chain.pi))
    spectra = shared(
        lambda theta: [singular_values(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK)]
    )

    def norms(theta: OneLayerAttention) -> Any:
        blocks = (theta.W0, theta.W1, theta.WQ, theta.WK)
        return jnp.stack([jnp.linalg.norm(w) for w in blocks])

    def off_axis(theta: OneLayerAttention) -> Any:
        lead = theta.W0[first] / jnp.linalg.norm(theta.W0[first])
        return jnp.linalg.norm(theta.W0 - jnp.outer(theta.W0 @ lead, lead), axis=1)

    def singular(name: str, dim: str, top: str = "") -> Observable:
        k = names.index(name)
        measure = lambda th: spectra(th)[k][: chain.tokens]  # noqa: E731
        return Observable(measure, (dim,), label=f"{top}singular values of {name}")

    names = ["W0", "W1", "WQ", "WK"]
    of_token = functools.partial(Observable, dims=("token",), coords={"token": ids})
    of_matrix = functools.partial(Observable, dims=("matrix",), coords={"matrix": np.array(names)})
    return {
        "token_loss": of_token(
            lambda th: token_losses(th, chain), units="nats", label="loss given the current token"
        ),
        "attention": Observable(
            lambda th: attention(th, chain.pi),
            dims=("query", "key"),
            coords={"query": ids, "key": ids},
            units="probability",
            label="attention of the long-context limit",
        ),
        "effective_rank": of_matrix(
            lambda th: jnp.stack([entropy_rank(s) for s in spectra(th)]),
            label="entropy effective rank",
        ),
        "stable_rank": of_matrix(
            lambda th: jnp.stack([share_of_top(s) for s in spectra(th)]), label="stable rank"
        ),
        "norm": of_matrix(norms, label="Frobenius norm"),
        "singular_W0": singular("W0", "mode"),
        "singular_W1": singular("W1", "mode"),
        "singular_WQ": singular("WQ", "query_mode", "leading "),
        "singular_WK": singular("WK", "query_mode", "leading "),
        "attention_entropy": of_token(
            lambda th: entropy(attention(th, chain.pi)),
            units="nats",
            label="entropy of a query's attention",
        ),
        "embedding": Observable(
            lambda th: th.W0, ("token", "dim"), {"token": ids}, label="the embedding of each token"
        ),
        "embedding_norm": of_token(
            lambda th: jnp.linalg.norm(th.W0, axis=1), label="norm of a row of W0"
        ),
        "off_axis": of_token(off_axis, label="embedding off the leader's direction"),
        "force_M": Observable(
            lambda th: jnp.linalg.norm(token_gradients(th.readout, th.score, chain)[0], ord=2),
            dims=(),
            label="largest singular value of dL/dM",
        ),
    }


def entropy(weights: Any) -> Any:
    """-sum p log p of each row."""
    return -jnp.sum(weights * jnp.log(jnp.where(weights > 0, weights, 1.0)), axis=-1)


def _namespace(x: Any) -> Any:
    """NumPy for NumPy arrays, jax.numpy for the rest: one formula serves engine and autodiff."""
    return np if isinstance(x, np.ndarray) else jnp


def _softmax(xp: Any, z: Any) -> Any:
    e = xp.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
