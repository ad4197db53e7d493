"""One-layer attention on a finite law of contexts: exact finite length, or a compressed sample.

The loss of eq. (3) for sequences of finite length is a sum over (last token, counts, label), so
its gradients in M and Phi are closed forms over the rows of a `Contexts` table, at a cost that
does not depend on how many sequences the table stands for.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from attnflow._precision import float64
from attnflow.flows.flow import Flow
from attnflow.models.one_layer import (
    CONSERVED,
    AnyArray,
    OneLayerAttention,
    _namespace,
    _softmax,
    move,
    speed,
)
from attnflow.tasks.contexts import Contexts


def context_attention(Phi: Any, contexts: Contexts) -> Float[AnyArray, "row key"]:
    """Attention of each context's last token, summed over the positions of equal tokens.

    `A_rj ~ n_rj exp(Phi[last_r, j])`: a token that occurs n times is attended n times.
    """
    return _softmax(_namespace(Phi), Phi[contexts.last] + contexts.log_counts)


def _row_losses(M: Any, Phi: Any, contexts: Contexts) -> Any:
    xp = _namespace(M)
    logits = context_attention(Phi, contexts) @ M
    logits = logits - logits.max(axis=1, keepdims=True)
    logs = logits - xp.log(xp.exp(logits).sum(axis=1, keepdims=True))
    return -(contexts.weights * logs).sum(axis=1)


@float64
def context_loss(theta: OneLayerAttention, contexts: Contexts) -> Float[AnyArray, ""] | float:
    """Cross-entropy at the last token over the whole table, eq. (3)."""
    return _row_losses(theta.readout, theta.score, contexts).sum()


@float64
def group_losses(theta: OneLayerAttention, contexts: Contexts) -> Float[AnyArray, "current"]:
    """Mean cross-entropy over the sequences whose last input is k: the group S_k of Appendix E."""
    rows = _row_losses(theta.readout, theta.score, contexts)[:, None]
    total = _by_last(_namespace(rows), rows, contexts)[:, 0]
    return total / np.maximum(contexts.last_law, 1e-300)


def mean_attention(theta: OneLayerAttention, contexts: Contexts) -> Float[AnyArray, "query key"]:
    """Attention averaged over the contexts that end in each query token."""
    xp = _namespace(theta.W0)
    mass = contexts.weights.sum(axis=1)[:, None]
    weighted = mass * context_attention(theta.score, contexts)
    return _by_last(xp, weighted, contexts) / np.maximum(contexts.last_law, 1e-300)[:, None]


def context_gradients(M: Any, Phi: Any, contexts: Contexts) -> tuple[Any, Any]:
    """`dL/dM[token, next]` and `dL/dPhi[query, key]` of the loss of a table.

    Eq. (5) before its limit: `GM = -sum_r A_r^T R_r`, and `GP` collects
    `-R_r M^T Var(A_r)` in the row of the query, with `R_r` the weight times the residual.
    """
    xp = _namespace(M)
    A = context_attention(Phi, contexts)
    mass = contexts.weights.sum(axis=1)[:, None]
    R = contexts.weights - mass * _softmax(xp, A @ M)
    spread = A * (R @ M.T)
    GP = A * spread.sum(axis=1, keepdims=True) - spread
    return -(A.T @ R), _by_last(xp, GP, contexts)


def context_flow(contexts: Contexts, name: str = "") -> Flow:
    """The gradient flow on a table, with the same conservation laws as the population flow."""

    def gradients(M: Any, Phi: Any) -> tuple[Any, Any]:
        return context_gradients(M, Phi, contexts)

    return Flow(
        lambda theta: context_loss(theta, contexts),
        velocity=lambda theta, out=None: move(theta, gradients, out),
        speed=lambda theta: speed(theta, gradients),
        conserved=CONSERVED,
        host=True,
        name=name or f"one-layer attention, {contexts.rows:,} contexts",
    )


def _by_last(xp: Any, rows: Any, contexts: Contexts) -> Any:
    """Sum of the rows of each last token (rows are sorted by it)."""
    if xp is np:
        total = np.zeros((contexts.tokens, rows.shape[1]))
        present, starts = np.unique(contexts.last, return_index=True)
        total[present] = np.add.reduceat(rows, starts, axis=0)
        return total
    return jax.ops.segment_sum(rows, contexts.last, contexts.tokens, indices_are_sorted=True)
