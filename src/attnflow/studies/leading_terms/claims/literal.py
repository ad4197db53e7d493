"""The paper's definitions word by word, on one-hot rows: what the library's kernels must equal.

Nothing here is shared with `corpus`, `models` or `terms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Array = Float[np.ndarray, "..."]
Windows = Int[np.ndarray, "sequence place"]


def one_hot(tokens: Int[np.ndarray, "..."], size: int) -> Array:
    return np.eye(size)[tokens]


def uniform(T: int) -> Array:
    """A0[t, j] = 1/t for j <= t."""
    return np.array([[1 / (t + 1) if j <= t else 0.0 for j in range(T)] for t in range(T)])


def sequences(windows: Windows, size: int) -> list[tuple[Array, Array]]:
    """X and Y of every sequence."""
    return [(one_hot(row[:-1], size), one_hot(row[1:], size)) for row in windows]


def statistics(windows: Windows, size: int) -> dict[str, Array]:
    """B, Sigma, Phi, K, G, Q, Delta, C0 and Phi2 as the text defines them."""
    T = windows.shape[1] - 1
    A0, n = uniform(T), len(windows) * T
    each = sequences(windows, size)
    B = sum(X.T @ (Y - 1 / size) for X, Y in each) / n
    Phi = sum((Y - 1 / size).T @ A0 @ X for X, Y in each) / n
    G = B.T @ B @ Phi
    return {
        "bigram": B,
        "interchange": B.T @ B,
        "context": Phi,
        "value": Phi.T @ B.T,
        "g": G,
        **attention(windows, size, G),
        "current_context": sum(X.T @ A0.T @ X for X, _ in each) / n,
        "context2": sum((Y - 1 / size).T @ A0 @ A0 @ X for X, Y in each) / n,
    }


def attention(windows: Windows, size: int, table: Array, centred: bool = True) -> dict[str, Array]:
    """Q and Delta by the Jacobian of each row's softmax (diag(p) - p p^T)."""
    T = windows.shape[1] - 1
    A0, n = uniform(T), len(windows) * T
    Q, Delta = np.zeros((size, size)), np.zeros(T)
    for X, Y in sequences(windows, size):
        scores = (Y - 1 / size) @ table @ X.T
        S = np.zeros((T, T))
        for t in range(T):
            J = np.diag(A0[t]) - centred * np.outer(A0[t], A0[t])
            S[t] = J @ scores[t]
            for j in range(t + 1):
                Delta[t - j] += S[t, j] / n
        Q += X.T @ S @ X / n
    return {"attention": Q, "position": Delta}


def gradients(theta: dict[str, Array], windows: Windows, **without: bool) -> dict[str, Array]:
    """Lemma D.7, (126)-(131), sequence by sequence; `without` leaves out a part of (127)."""
    W_O, V, W, P = (theta[name] for name in ("W_O", "V", "W", "P"))
    size, L, T = len(W_O), len(V), windows.shape[1] - 1
    found = {name: np.zeros_like(m) for name, m in theta.items()}
    for X, Y in sequences(windows, size):
        h, A = [X], []
        for l in range(L):
            A.append(_attention(h[l] @ W[l] @ h[l].T, P[l]))
            h.append(h[l] + A[l] @ h[l] @ V[l])
        F = h[L] @ W_O
        p = np.array([_softmax(row) for row in F])
        R = Y - p
        found["W_O"] -= h[L].T @ R
        G = R @ W_O.T
        for l in reversed(range(L)):
            M = G @ V[l].T @ h[l].T
            S = np.zeros((T, T))
            for t in range(T):
                J = np.diag(A[l][t]) - np.outer(A[l][t], A[l][t])
                S[t] = J @ M[t]
            found["V"][l] -= h[l].T @ A[l].T @ G
            found["W"][l] -= h[l].T @ S @ h[l]
            for t in range(T):
                for j in range(t + 1):
                    found["P"][l, t - j] -= S[t, j]
            direct = A[l].T @ G @ V[l].T
            queries, keys = S @ h[l] @ W[l].T, S.T @ h[l] @ W[l]
            G = G + direct * (not without.get("values"))
            G = G + (queries + keys) * (not without.get("scores"))
    return {name: g / (len(windows) * T) for name, g in found.items()}


def _attention(scores: Array, P: Array) -> Array:
    T = len(scores)
    A = np.zeros((T, T))
    for t in range(T):
        A[t, : t + 1] = _softmax(np.array([scores[t, j] + P[t - j] for j in range(t + 1)]))
    return A


def _softmax(z: Array) -> Array:
    """One over the sums of exponentials of differences: nothing overflows to nan."""
    with np.errstate(over="ignore"):
        return np.array([1 / np.exp(z - each).sum() for each in z])


def loss(theta: dict[str, Array], windows: Windows) -> float:
    """The cross-entropy, position by position."""
    found = []
    for X, Y in sequences(windows, len(theta["W_O"])):
        h = X
        for V, W, P in zip(theta["V"], theta["W"], theta["P"], strict=True):
            h = h + _attention(h @ W @ h.T, P) @ h @ V
        for row, label in zip(h @ theta["W_O"], Y, strict=True):
            found.append(np.logaddexp.reduce(row) - row @ label)
    return float(np.mean(found))


def adam(
    slope: Callable[[dict[str, Array]], dict[str, Array]],
    theta: dict[str, Array],
    rule: Any,
    steps: int,
) -> dict[str, Array]:
    """Adam with its bias corrections, and AdamW's decay (Kingma & Ba; Loshchilov & Hutter)."""
    m = {name: 0 * x for name, x in theta.items()}
    v = {name: 0 * x for name, x in theta.items()}
    for s in range(1, steps + 1):
        for name, g in slope(theta).items():
            m[name] = rule.b1 * m[name] + (1 - rule.b1) * g
            v[name] = rule.b2 * v[name] + (1 - rule.b2) * g * g
            first, second = m[name] / (1 - rule.b1**s), v[name] / (1 - rule.b2**s)
            step = first / (np.sqrt(second) + rule.eps) + rule.decay * theta[name]
            theta = {**theta, name: theta[name] - rule.rate * step}
    return theta


def cosine(one: Any, other: Any) -> float:
    a, b = np.ravel(one), np.ravel(other)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def size(array: Any) -> float:
    return float(np.sqrt(np.sum(np.asarray(array) ** 2)))
