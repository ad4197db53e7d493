"""The two-head ReLU softmax classifier, eq. (1) of the two-mixture paper, and its exact flow.

    f(X) = relu(H_+(X) + b) - relu(H_-(X) + b),   H(X) = sum_l w^T X softmax(X^T WK^T WQ x_l)

Everywhere the first axis of an array is the head (0: plus, 1: minus), `S[key, query]` are the
scores `WK^T WQ`, and the coordinates are those of `tasks.mixture`: `c_k`, then `v_k`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._errors import InputError, nearest, positive, shown, whole
from attnflow.flows.flow import Flow
from attnflow.tasks.mixture import MixturePopulation

AnyArray: TypeAlias = Array | np.ndarray
HEADS = ("plus", "minus")
SIGNS = np.array([[1.0], [-1.0]])
PARTS = {"neurons": ("w",), "attention": ("WK", "WQ")}
"""What a stage of Algorithm 1 freezes."""


class TwoHeadClassifier(eqx.Module):
    """The weights of both heads: neurons `w`, keys `WK`, queries `WQ`; the bias is fixed."""

    w: Float[AnyArray, "head coordinate"]
    WK: Float[AnyArray, "head dim coordinate"]
    WQ: Float[AnyArray, "head dim coordinate"]
    bias: float = eqx.field(static=True, default=0.5)

    @classmethod
    def gaussian(
        cls,
        groups: int,
        dim: int,
        omega: float,
        *,
        bias: float = 0.5,
        neurons: float = 0.0,
        seed: int = 0,
    ) -> TwoHeadClassifier:
        """Algorithm 1: `WK, WQ ~ N(0, omega^2 / m)` with m = dim, and w = 0.

        `neurons` is the standard deviation of w where it starts Gaussian (Appendix A.2).
        """
        D, m = 2 * whole("groups", groups, least=2), whole("dim", dim)
        omega, bias = positive("omega", omega), checked_bias(bias)
        if not (np.isfinite(neurons) and neurons >= 0):
            raise InputError("neurons", f"{shown(neurons)}; a standard deviation of at least 0")
        rng = np.random.default_rng(seed)
        WK, WQ = (omega / np.sqrt(m) * rng.standard_normal((2, m, D)) for _ in range(2))
        return cls(neurons * rng.standard_normal((2, D)), WK, WQ, bias)

    @property
    def scores(self) -> Float[AnyArray, "head key query"]:
        """S = WK^T WQ."""
        return self.WK.swapaxes(1, 2) @ self.WQ

    @property
    def key_scores(self) -> Float[AnyArray, "head key key2"]:
        """A = WK^T WK, the key self-scores."""
        return self.WK.swapaxes(1, 2) @ self.WK

    @property
    def query_scores(self) -> Float[AnyArray, "head query query2"]:
        """B = WQ^T WQ, the query self-scores."""
        return self.WQ.swapaxes(1, 2) @ self.WQ


@final
@dataclass(frozen=True, eq=False)
class Tables:
    """For each token the place of its neuron value in `w`, for each pair that of its score in `S`.

    With these places the forward map and its gradient are the same code for the full model (one
    number per coordinate) and for the symmetric reduction (one number per orbit).
    `w` and `S` may have leading axes, for many states at once.
    """

    value_at: np.ndarray  # head sample position
    value_sign: np.ndarray
    score_at: np.ndarray  # head sample key query
    score_sign: np.ndarray
    sizes: tuple[int, int]
    label: np.ndarray
    weight: np.ndarray
    agreement: np.ndarray

    def attention(self, S: Any) -> Any:
        """p[head, sample, key, query]: the attention of each query, a softmax over keys."""
        xp = namespace(S)
        z = self.score_sign * _flat(S, self.sizes[1])[..., self.score_at]
        e = xp.exp(z - z.max(axis=-2, keepdims=True))
        return e / e.sum(axis=-2, keepdims=True)

    def gate_values(self, w: Any, S: Any, bias: float) -> Any:
        """H + b of each head and sample: the gate is on where it is positive."""
        values = self.value_sign * _flat(w, self.sizes[0])[..., self.value_at]
        return (self.attention(S) * values[..., None]).sum(axis=(-2, -1)) + bias

    def predictions(self, w: Any, S: Any, bias: float, gates: Any = None) -> Any:
        """f of each sample; `gates`, where given, replace the actual ones."""
        H = self.gate_values(w, S, bias)
        on = (H > 0) if gates is None else gates
        return (SIGNS * (on * H)).sum(axis=-2)

    def sample_losses(self, w: Any, S: Any, bias: float, gates: Any = None) -> Any:
        """log(1 + exp(-y f))."""
        return namespace(w).logaddexp(0.0, -self.label * self.predictions(w, S, bias, gates))

    def loss(self, w: Any, S: Any, bias: float, gates: Any = None) -> Any:
        """The expectation over the weighted samples."""
        return (self.weight * self.sample_losses(w, S, bias, gates)).sum(axis=-1)

    def group_losses(self, w: Any, S: Any, bias: float) -> Any:
        """The mean loss given d, for each value of d in increasing order."""
        is_d = self.agreement == np.unique(self.agreement)[:, None]
        share = is_d * self.weight
        return self.sample_losses(w, S, bias) @ (share / share.sum(axis=1, keepdims=True)).T

    def forces(self, w: Any, S: Any, bias: float, gates: Any = None) -> tuple[Any, Any]:
        """`-dL/dw` and `M = -dL/dS`, flat (Appendix B.1 with the attention of each head's own).

        `M = sum_n a_n sum_{l,h} p_lh (w.x_h - w.X p_l) x_h x_l^T` with
        `a_n = +- q_n y_n g(y_n f_n) gate_n`. `gates` replaces `1[H + b > 0]` where given.
        """
        xp = namespace(w)
        values = self.value_sign * _flat(w, self.sizes[0])[..., self.value_at]
        p = self.attention(S)
        attended = (p * values[..., None]).sum(axis=-2)
        H = attended.sum(axis=-1) + bias
        on = (H > 0) if gates is None else gates
        f = (SIGNS * (on * H)).sum(axis=-2, keepdims=True)
        g = xp.exp(-xp.logaddexp(0.0, self.label * f))
        a = SIGNS * on * (self.weight * self.label * g)
        dw = self.value_sign * a[..., None] * p.sum(axis=-1)
        spread = values[..., None] - attended[..., None, :]
        M = self.score_sign * a[..., None, None] * p * spread
        return collect(self.value_at, dw, self.sizes[0]), collect(self.score_at, M, self.sizes[1])


@functools.lru_cache(maxsize=64)
def tables(population: MixturePopulation) -> Tables:
    """The tables of the full model: w is head x D, S is head x D x D, both row by row."""
    if population.representatives:
        raise InputError(
            "population",
            "one sample per orbit; that is exact for the symmetric reduction only "
            "(SymmetricFlow), the full model needs every sample (population or sample)",
        )
    D, token, sign = population.dimension, population.token, population.sign
    head = np.arange(2)[:, None, None]
    pair = token[:, :, None] * D + token[:, None, :]
    value_sign = np.broadcast_to(sign, (2, *sign.shape))
    score_sign = np.einsum("nk,nq->nkq", sign, sign)
    return Tables(
        head * D + token,
        value_sign,
        head[..., None] * D * D + pair,
        np.broadcast_to(score_sign, (2, *score_sign.shape)),
        (2 * D, 2 * D * D),
        population.label,
        population.weight,
        population.agreement,
    )


def velocity(
    theta: TwoHeadClassifier,
    population: MixturePopulation,
    out: TwoHeadClassifier | None = None,
    gates: Any = None,
) -> TwoHeadClassifier:
    """The population flow in closed form: `w' = -dL/dw`, `WK' = WQ M^T`, `WQ' = WK M`."""
    dw, M = tables(population).forces(theta.w, theta.scores, theta.bias, gates)
    M = M.reshape(2, population.dimension, population.dimension)
    moved = dw.reshape(theta.w.shape), theta.WQ @ M.swapaxes(1, 2), theta.WK @ M
    if out is None:
        return TwoHeadClassifier(*moved, theta.bias)
    out.w[:], out.WK[:], out.WQ[:] = moved  # type: ignore[index]
    return out


def balance(theta: TwoHeadClassifier) -> Any:
    """`WK WK^T - WQ WQ^T` of each head: constant along the joint flow."""
    return theta.WK @ theta.WK.swapaxes(1, 2) - theta.WQ @ theta.WQ.swapaxes(1, 2)


@functools.lru_cache(maxsize=64)
def weight_flow(population: MixturePopulation, frozen: tuple[str, ...] = ()) -> Flow:
    """The gradient flow of the weights on a population, in closed form, with its ReLU gates.

    `frozen` names parts that stand still: `("attention",)` is stage 1 and 3 of Algorithm 1,
    `("neurons",)` stage 2 (on `population.restricted(agreement=-1)`) and Appendix A.2.
    """
    t = tables(population)
    return Flow(
        lambda theta, on: t.loss(theta.w, theta.scores, theta.bias, on),
        velocity=lambda theta, on, out=None: velocity(theta, population, out, on),
        gates=lambda theta: t.gate_values(theta.w, theta.scores, theta.bias),
        gate_names=gate_names(population),
        rates={block: 0.0 for part in checked_parts(frozen) for block in PARTS[part]},
        conserved={} if "attention" in frozen else {"key-query balance": balance},
        host=True,
        name="two-head classifier, weights",
    )


def gate_names(population: MixturePopulation) -> tuple[str, ...]:
    """`plus c1 +v1 -v2`: the gate of each head on each sample, in the order of `gate_values`."""
    return tuple(f"{head} {sample}" for head in HEADS for sample in population.names())


def checked_bias(bias: Any) -> float:
    """b > 0: with w = 0 at the start a gate at or below 0 never learns."""
    try:
        return positive("bias", bias)
    except InputError:
        raise InputError(
            "bias", f"{shown(bias)}; a positive number: at w = 0 every gate is on only for b > 0"
        ) from None


def checked_parts(frozen: Sequence[str]) -> tuple[str, ...]:
    """Names of parts that stand still."""
    for part in frozen:
        if part not in PARTS:
            raise InputError("frozen", f"{part!r} is not one; {nearest(str(part), PARTS)}")
    return tuple(frozen)


def collect(at: np.ndarray, values: Any, size: int) -> Any:
    """The sum of `values` at each place; leading axes of `values` stay."""
    many = values.shape[: values.ndim - at.ndim]
    if not isinstance(values, np.ndarray):
        flat = values.reshape(*many, at.size)
        return jnp.zeros((*many, size)).at[..., at.reshape(-1)].add(flat)
    places, count = at.reshape(-1), math.prod(many)
    if many:
        places = (places + size * np.arange(count)[:, None]).reshape(-1)
    return np.bincount(places, values.reshape(-1), count * size).reshape(*many, size)


def _flat(x: Any, size: int) -> Any:
    """The last axes of x, which have `size` numbers, as one."""
    axis, found = x.ndim, 1
    while found < size:
        axis -= 1
        found *= x.shape[axis]
    return x.reshape(*x.shape[:axis], size)


def namespace(x: Any) -> Any:
    """NumPy for NumPy arrays, jax.numpy for the rest: one formula serves engine and autodiff."""
    return np if isinstance(x, np.ndarray) else jnp
