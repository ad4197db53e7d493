"""An attention language model on one-hot tokens: L layers, no embedding, no MLP, no norm.

With one-hot inputs X (T x V) the stream is `h_0 = X`, and for every layer

    A_l = causal softmax(h_{l-1} W_l h_{l-1}^T + DM(P_l)),    DM(P)[t, j] = P[t - j],
    h_l = h_{l-1} + A_l h_{l-1} V_l,

with logits `F = h_L W_O` and the cross-entropy averaged over all positions of all windows
(arXiv 2601.19208). W, V and W_O are V x V, P is a vector over the lags. Weights are a dictionary:
`W_O[current, next]`, `V[layer, context, stream]`, `W[layer, query, key]`, `P[layer, lag]`.

The gradient is written out (Lemma D.7 of the paper) for NumPy and JAX alike. The first layer reads
one-hot rows: its products are gathers and its gradients sums over equal tokens. A model of one
layer that has more tokens than words never multiplies a stream by a matrix at all (`Route`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, whole
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params
from attnflow.models.two_head import namespace

Weights = dict[str, Float[np.ndarray, "..."]]

BLOCKS = ("W_O", "V", "W", "P")

Route = Literal["auto", "table", "gather", "dense"]
"""How the first layer is computed. `gather`: rows of its matrices. `dense`: one-hot rows, as any
other layer. `table`: of a model of one layer, `F = W_O[x] + A (V W_O)[x]`, which replaces products
of the stream with matrices (tokens V^2) by one of two matrices (V^3)."""


def start(vocabulary: int, context: int, layers: int, scale: float = 0.0, seed: int = 0) -> Weights:
    """Weights of zero, or independent Gaussians of standard deviation `scale`."""
    size, lags = whole("vocabulary", vocabulary, 2), whole("context", context)
    count = whole("layers", layers)
    shapes = {
        "W_O": (size, size),
        "V": (count, size, size),
        "W": (count, size, size),
        "P": (count, lags),
    }
    if scale == 0:
        return {name: np.zeros(shape) for name, shape in shapes.items()}
    rng = np.random.default_rng(seed)
    return {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}


def loss(theta: Params, windows: Any, *, shifted: bool = False) -> Any:
    """The cross-entropy of next tokens; plain formulas on one-hot rows, for autodiff.

    `shifted` subtracts the largest score and logit of each row, as the written-out gradient does:
    training needs it, a series around small weights is simpler without.
    """

    def less_largest(z: Any) -> Any:
        return z - jax.lax.stop_gradient(z.max(axis=-1, keepdims=True)) if shifted else z

    x, y = windows[:, :-1], windows[:, 1:]
    size, T = len(theta["W_O"]), x.shape[1]
    h = jax.nn.one_hot(x, size, dtype=theta["W_O"].dtype)
    lag = np.maximum(np.subtract.outer(np.arange(T), np.arange(T)), 0)
    seen = np.tri(T)
    for V, W, P in zip(theta["V"], theta["W"], theta["P"], strict=True):
        score = jnp.einsum("nta,ab,njb->ntj", h, W, h) + P[lag]
        score = jnp.where(seen, score, -jnp.inf) if shifted else score
        weight = jnp.exp(less_largest(score)) * seen
        A = weight / weight.sum(axis=-1, keepdims=True)
        h = h + jnp.einsum("ntj,nja,ab->ntb", A, h, V)
    F = less_largest(h @ theta["W_O"])
    right = (F * jax.nn.one_hot(y, size, dtype=F.dtype)).sum(axis=-1)
    return (jnp.log(jnp.exp(F).sum(axis=-1)) - right).mean()


@final
class Windows:
    """Windows of T + 1 tokens, ready for the written-out loss and gradient.

    >>> data = Windows(np.array([[0, 1, 0], [1, 1, 0]]), vocabulary=2)
    >>> float(data.loss(start(2, 2, layers=1)))
    0.6931471805599453
    """

    def __init__(
        self,
        windows: Int[np.ndarray, "sequence place"],
        vocabulary: int,
        precision: Literal["float64", "float32"] = "float64",
        route: Route = "auto",
    ):
        self.vocabulary = whole("vocabulary", vocabulary, 2)
        given = np.asarray(windows)
        if given.ndim != 2 or given.shape[1] < 2 or not len(given):
            raise InputError("windows", f"shape {given.shape}; rows of at least two tokens")
        if given.min() < 0 or given.max() >= vocabulary:
            raise InputError("windows", f"a token outside 0 to {vocabulary - 1}")
        self.windows, self.precision, self.route = given, precision, route
        self.x, self.y = given[:, :-1], given[:, 1:]
        T = self.x.shape[1]
        self.lag = np.maximum(np.subtract.outer(np.arange(T), np.arange(T)), 0)
        self.seen = np.tri(T, dtype=bool)

    @property
    def context(self) -> int:
        """Positions of a window, T."""
        return self.x.shape[1]

    def loss(self, theta: Params) -> Any:
        """The loss, averaged over positions."""
        theta = self._cast(theta)
        return self._entropy(self._logits(theta, self._forward(theta)))[0]

    def gradient(self, theta: Params) -> tuple[Any, dict[str, Any]]:
        """Loss and gradient (Lemma D.7), each position weighed 1 / (N T)."""
        theta = self._cast(theta)
        layers = self._forward(theta)
        value, R = self._entropy(self._logits(theta, layers))
        xp = namespace(R)
        found = (
            self._back_by_table(theta, layers[0], R)
            if self._tabled(theta)
            else self._back(theta, layers, R)
        )
        scale = -1.0 / self.x.size
        return value, {name: scale * xp.asarray(g, dtype=float) for name, g in found.items()}

    def velocity(self, theta: Params, out: Params | None = None) -> Any:
        """Minus the gradient; into `out` where it is given."""
        found = self.gradient(theta)[1]
        if out is None:
            return {name: -g for name, g in found.items()}
        for name, g in found.items():
            np.negative(g, out=out[name])
        return None

    # --- Forward.

    def _forward(self, theta: Params) -> list[_Layer]:
        """What each layer saw and did; its own output is the last `rest`."""
        xp = namespace(theta["W_O"])
        layers: list[_Layer] = []
        rest: Any = None
        for depth in range(len(theta["V"])):
            V, W, P = (theta[name][depth] for name in ("V", "W", "P"))
            layer = _Layer()
            if depth == 0 and self.route != "dense":
                layer.h = layer.hW = None
                score = W[self.x[:, :, None], self.x[:, None, :]]
                layer.moved = None if self._tabled(theta) else V[self.x]
            else:
                layer.h = self._stream(xp, rest, theta["W_O"].dtype)
                layer.hW = _times(layer.h, W)
                score = layer.hW @ layer.h.swapaxes(1, 2)
                layer.moved = _times(layer.h, V)
            layer.A = self._attention(xp, score + P[self.lag])
            if layer.moved is not None:
                more = layer.A @ layer.moved
                rest = more if rest is None else rest + more
                layer.rest = rest
            layers.append(layer)
        return layers

    def _attention(self, xp: Any, score: Any) -> Any:
        """The causal softmax of `score[sequence, query, key]`."""
        score = xp.where(self.seen, score, -xp.inf)
        weight = xp.exp(score - score.max(axis=-1, keepdims=True))
        return weight / weight.sum(axis=-1, keepdims=True)

    def _logits(self, theta: Params, layers: list[_Layer]) -> Any:
        W_O = theta["W_O"]
        if self._tabled(theta):
            return W_O[self.x] + layers[0].A @ (theta["V"][0] @ W_O)[self.x]
        return W_O[self.x] + _times(layers[-1].rest, W_O)

    def _entropy(self, F: Any) -> tuple[Any, Any]:
        """The loss, and what is missing to the label: `R = Y - softmax(F)`."""
        xp = namespace(F)
        F = F - F.max(axis=-1, keepdims=True)
        weight = xp.exp(F)
        total = weight.sum(axis=-1, keepdims=True)
        right = xp.take_along_axis(F, self.y[..., None], axis=-1)
        value = (xp.log(total) - right).mean(dtype=float)
        return value, self._add_one(xp, -weight / total, self.y)

    # --- Backward.

    def _back(self, theta: Params, layers: list[_Layer], R: Any) -> dict[str, Any]:
        xp = namespace(R)
        size, last = self.vocabulary, layers[-1]
        out = self._summed(xp, R) + _flat(last.rest).T @ _flat(R)
        G = _times(R, theta["W_O"].T)
        found: dict[str, list[Any]] = {"V": [], "W": [], "P": []}
        for depth in reversed(range(len(layers))):
            layer = layers[depth]
            V, W = theta["V"][depth], theta["W"][depth]
            S = self._score_gradient(xp, layer.A, G @ layer.moved.swapaxes(1, 2))
            back = layer.A.swapaxes(1, 2) @ G
            if layer.h is None:
                found["V"].append(self._summed(xp, back))
                found["W"].append(self._pairs(xp, S))
            else:
                Sh = S @ layer.h
                found["V"].append(_flat(layer.h).T @ _flat(back))
                found["W"].append(_flat(layer.h).T @ _flat(Sh))
            found["P"].append(self._by_lag(xp, S))
            if depth:
                G = G + _times(back, V.T) + _times(Sh, W.T) + S.swapaxes(1, 2) @ layer.hW
        assert out.shape == (size, size)
        return {"W_O": out, **{name: xp.stack(each[::-1]) for name, each in found.items()}}

    def _back_by_table(self, theta: Params, layer: _Layer, R: Any) -> dict[str, Any]:
        xp, W_O, V = namespace(R), theta["W_O"], theta["V"][0]
        met = self._summed(xp, layer.A.swapaxes(1, 2) @ R)
        S = self._score_gradient(xp, layer.A, R @ (V @ W_O)[self.x].swapaxes(1, 2))
        return {
            "W_O": self._summed(xp, R) + V.T @ met,
            "V": (met @ W_O.T)[None],
            "W": self._pairs(xp, S)[None],
            "P": self._by_lag(xp, S)[None],
        }

    def _score_gradient(self, xp: Any, A: Any, dA: Any) -> Any:
        """Through the softmax of each row: `S = A * (dA - sum_k A dA)`."""
        met = A * dA
        return met - A * met.sum(axis=-1, keepdims=True)

    # --- One-hot rows: adding them, and X^T applied to something.

    def _stream(self, xp: Any, rest: Any, dtype: Any) -> Any:
        """h = X + rest."""
        if rest is None:
            rest = xp.zeros((*self.x.shape, self.vocabulary), dtype)
        return self._add_one(xp, rest, self.x)

    def _add_one(self, xp: Any, rest: Any, token: Any) -> Any:
        n, t = np.ogrid[: token.shape[0], : token.shape[1]]
        if xp is not np:
            return rest.at[n, t, token].add(1.0)
        found = rest.copy()
        found[n, t, token] += 1.0
        return found

    def _summed(self, xp: Any, rows: Any) -> Any:
        """X^T rows: the sums over equal tokens."""
        if xp is np:
            return np.asarray(self._one_hot.astype(rows.dtype) @ _flat(rows))
        zero = jnp.zeros((self.vocabulary, rows.shape[-1]), rows.dtype)
        return zero.at[self.x.ravel()].add(_flat(rows))

    @cached_property
    def _one_hot(self) -> Any:
        """X^T as a sparse matrix."""
        from scipy.sparse import csr_array

        flat = self.x.ravel()
        places = (flat, np.arange(len(flat)))
        return csr_array((np.ones(len(flat)), places), shape=(self.vocabulary, len(flat)))

    def _pairs(self, xp: Any, S: Any) -> Any:
        """X^T S X, summed over sequences: `[query, key]`."""
        size = self.vocabulary
        places = (self.x[:, :, None] * size + self.x[:, None, :]).ravel()
        if xp is np:
            return np.bincount(places, S.ravel(), size * size).reshape(size, size)
        return jnp.zeros(size * size, S.dtype).at[places].add(S.ravel()).reshape(size, size)

    def _by_lag(self, xp: Any, S: Any) -> Any:
        """The sums of S along each lag; entries beyond the diagonal are zero."""
        each = S.sum(axis=0).ravel()
        if xp is np:
            return np.bincount(self.lag.ravel(), each, self.context)
        return jnp.zeros(self.context, S.dtype).at[self.lag.ravel()].add(each)

    def _tabled(self, theta: Params) -> bool:
        if self.route != "auto":
            return self.route == "table"
        return len(theta["V"]) == 1 and self.vocabulary < self.x.size

    def _cast(self, theta: Params) -> Params:
        if self.precision == "float64":
            return theta
        return {name: block.astype(np.float32) for name, block in theta.items()}


class _Layer:
    """What the way back needs of one layer."""

    A: Any
    """Attention `[sequence, query, key]`."""
    h: Any
    """The stream that came in; None for one-hot rows."""
    hW: Any
    moved: Any
    """h V; None where a table takes its place."""
    rest: Any
    """The stream that went out, less X."""


def _flat(rows: Any) -> Any:
    return rows.reshape(-1, rows.shape[-1])


def _times(rows: Any, matrix: Any) -> Any:
    """`rows @ matrix` as one product; NumPy would make one for each sequence."""
    return (_flat(rows) @ matrix).reshape(*rows.shape[:-1], matrix.shape[-1])


def window_flow(data: Windows) -> Flow:
    """Gradient flow on the loss over these windows, in closed form.

    The rows of W_O and the entries of each P keep their sums: probabilities sum to one.
    """
    return Flow(
        data.loss,
        velocity=data.velocity,
        conserved={
            "row sums of W_O": lambda theta: theta["W_O"].sum(axis=1),
            "sums of P": lambda theta: theta["P"].sum(axis=1),
        },
        scale=1.0,
        name=f"attention language model, {data.vocabulary} tokens",
    )
