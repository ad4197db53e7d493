"""Softmax attention under a linear MLP, eq. (1) of the co-occurrence paper, and its exact flows.

    F(X) = sum_l a^T W WV X softmax(X^T WK^T WQ x_l / sqrt m)

Everywhere `G[word] = a^T W WV mu` is the MLP's value of a word, `S[key, query] = WK^T WQ` are the
scores, and words are orthonormal. With `u = W^T a`, the only combination of W that F sees,

    u' = |a|^2 WV phi,  WV' = u phi^T,  WK' = WQ A^T,  WQ' = WK A,    phi = -dL/dG, A = -dL/dS,

so u moves at the rate |a|^2 beside the other weights (`reduced_flow`, cost free of the number of
neurons), and all of it closes in the Grams of [u, WV] and [WK, WQ] (`gram_flow`, cost free of both
widths; flow and descent). At infinite width attention stays uniform (`bag_flow`).
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from attnflow._errors import InputError, nearest, positive, whole
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params
from attnflow.models.two_head import collect, namespace
from attnflow.reduce.gram_flow import GramFlow
from attnflow.tasks.cooccurrence import Sentences

AnyArray: TypeAlias = Array | np.ndarray


class ValueMLP(eqx.Module):
    """The weights of eq. (1); the output layer `a` is not trained."""

    W: Float[AnyArray, "neuron dim"]
    WV: Float[AnyArray, "dim word"]
    WK: Float[AnyArray, "dim word"]
    WQ: Float[AnyArray, "dim word"]
    a: Float[AnyArray, "neuron"]

    @property
    def reduced(self) -> dict[str, Any]:
        """The state of `reduced_flow`."""
        return {"u": self.W.T @ self.a, "WV": self.WV, "WK": self.WK, "WQ": self.WQ}


# --- Initialisations.


@final
@dataclass(frozen=True)
class Initialisation:
    """The standard deviations of W (s1) and of WV, WK, WQ (s0), and of what a is made.

    `uniform` weights are uniform instead of Gaussian. `output` is |a|^2; a has entries of one
    size and random sign, or is uniform with |a|^2 = `output` on average.
    """

    s0: float
    s1: float
    output: float
    uniform: bool = False
    uniform_output: bool = False

    def draw(self, vocab: int, dim: int, neurons: int, seed: int = 0) -> dict[str, Any]:
        """u, WV, WK, WQ and the realised |a|^2 (`rate`), without ever drawing a Gaussian W."""
        rng = np.random.default_rng(seed)
        a = self._output(rng, neurons)
        WV, WK, WQ = (self.s0 * self._unit(rng, dim, vocab) for _ in range(3))
        if self.uniform:
            u = self.s1 * self._unit(rng, neurons, dim).T @ a
        else:
            u = self.s1 * np.linalg.norm(a) * rng.standard_normal(dim)
        return {"u": u, "WV": WV, "WK": WK, "WQ": WQ, "rate": float(a @ a)}

    def model(self, vocab: int, dim: int, neurons: int, seed: int = 0) -> ValueMLP:
        """All weights."""
        rng = np.random.default_rng(seed)
        a = self._output(rng, neurons)
        WV, WK, WQ = (self.s0 * self._unit(rng, dim, vocab) for _ in range(3))
        return ValueMLP(self.s1 * self._unit(rng, neurons, dim), WV, WK, WQ, a)

    def expected(self, vocab: int, dim: int) -> dict[str, Any]:
        """The expected Grams, without fluctuations: `G = S = 0`, `VV = KK = QQ = s0^2 m I`."""
        value = np.diag([self.s1**2 * dim * self.output, *[self.s0**2 * dim] * vocab])
        attention = self.s0**2 * dim * np.eye(2 * vocab)
        return {"value": value, "attention": attention}

    def _unit(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        if self.uniform:
            return np.sqrt(3.0) * rng.uniform(-1.0, 1.0, shape)
        return rng.standard_normal(shape)

    def _output(self, rng: np.random.Generator, neurons: int) -> np.ndarray:
        size = np.sqrt(self.output / neurons)
        if self.uniform_output:
            return np.sqrt(3.0) * size * rng.uniform(-1.0, 1.0, neurons)
        return size * rng.choice([-1.0, 1.0], neurons)


INITIALISATIONS = ("condition", "torch", "kaiming", "torch-output", "kaiming-output")
"""Condition 1 (`s0 = k0/sqrt(L m)`, `s1 = k1/sqrt(m1)`, a = +-1) and four readings of "Kaiming":
`torch.nn.Linear`'s own, uniform with variance 1/(3 fan-in), and `kaiming_normal_`, variance
2/fan-in; each with a = +-1, or with an output layer of size 1/sqrt(m1) (`-output`)."""


def initialisation(
    name: str,
    *,
    vocab: int,
    dim: int,
    neurons: int,
    length: int,
    k0: float = 1.0,
    k1: float = 1.0,
    output: float | None = None,
) -> Initialisation:
    """A named initialisation; `output` replaces its |a|^2."""
    if name not in INITIALISATIONS:
        raise InputError("init", f"{name!r} is not one; {nearest(name, INITIALISATIONS)}")
    d, m, m1 = whole("vocab", vocab), whole("dim", dim), whole("neurons", neurons)
    k0, k1, L = positive("k0", k0), positive("k1", k1), whole("length", length)
    norm = None if output is None else positive("output", output)
    if name == "condition":
        return Initialisation(k0 / np.sqrt(L * m), k1 / np.sqrt(m1), norm or float(m1))
    uniform, small = name.startswith("torch"), name.endswith("-output")
    s0, s1 = (1 / np.sqrt(3 * f) if uniform else np.sqrt(2 / f) for f in (d, m))
    own = (1 / 3 if uniform else 1.0) if small else float(m1)
    return Initialisation(s0, s1, norm or own, uniform, uniform and small and norm is None)


# --- Loss and forces in the space of words.


@final
@dataclass(frozen=True, eq=False)
class Tables:
    """Which value and which score each place of each sentence reads; repeated words add up."""

    sentences: Sentences
    temperature: float
    """sqrt m, which divides the scores."""

    @functools.cached_property
    def pair(self) -> np.ndarray:
        """Where `S[x_h, x_l]` lies in the flat scores: sample x key x query."""
        x = self.sentences.token
        return x[:, :, None] * self.sentences.vocab + x[:, None, :]

    def attention(self, S: Any) -> Any:
        """p[sample, key, query], a softmax over keys."""
        z = S.reshape(*S.shape[:-2], -1)[..., self.pair] / self.temperature
        e = namespace(S).exp(z - z.max(axis=-2, keepdims=True))
        return e / e.sum(axis=-2, keepdims=True)

    def margins(self, G: Any, S: Any) -> Any:
        """y F of each sample."""
        mass = self.attention(S).sum(axis=-1)
        return self.sentences.label * (mass * G[..., self.sentences.token]).sum(axis=-1)

    def loss(self, G: Any, S: Any) -> Any:
        """eq. (2)."""
        margins = self.margins(G, S)
        return (self.sentences.weight * namespace(G).logaddexp(0.0, -margins)).sum(axis=-1)

    def forces(self, G: Any, S: Any) -> tuple[Any, Any]:
        """`phi[word] = -dL/dG` and `A[key, query] = -dL/dS`:

        `phi = sum_i w_i g_i y_i (attention on the word)`,
        `A = sum_i w_i g_i y_i sum_{l,h} p_lh (G(x_h) - sum_h' p_lh' G(x_h')) / sqrt m`.
        """
        xp, X = namespace(G), self.sentences
        p, values = self.attention(S), G[..., X.token]
        attended = (p * values[..., None]).sum(axis=-2)
        g = xp.exp(-xp.logaddexp(0.0, X.label * attended.sum(axis=-1)))
        r = (X.weight * X.label * g)[..., None]
        phi = collect(X.token, r * p.sum(axis=-1), X.vocab)
        spread = r[..., None] * p * (values[..., None] - attended[..., None, :])
        A = collect(self.pair, spread / self.temperature, X.vocab**2)
        return phi, A.reshape(*A.shape[:-1], X.vocab, X.vocab)


@functools.lru_cache(maxsize=32)
def tables(sentences: Sentences, dim: int) -> Tables:
    """The tables of a training set at the width m, which divides the scores by sqrt m."""
    return Tables(sentences, float(np.sqrt(whole("dim", dim))))


# --- Flows.


@functools.lru_cache(maxsize=16)
def weight_flow(sentences: Sentences, dim: int) -> Flow:
    """The flow of every weight (Appendix B)."""
    t = tables(sentences, dim)

    def loss(theta: ValueMLP) -> Any:
        return t.loss(theta.a @ theta.W @ theta.WV, theta.WK.T @ theta.WQ)

    def velocity(theta: ValueMLP, out: ValueMLP | None = None) -> ValueMLP:
        u = theta.W.T @ theta.a
        phi, A = t.forces(u @ theta.WV, theta.WK.T @ theta.WQ)
        outer = namespace(u).outer
        moved = outer(theta.a, theta.WV @ phi), outer(u, phi), theta.WQ @ A.T, theta.WK @ A
        found = ValueMLP(*moved, theta.a)  # whatever stands for a: its rate is 0
        if out is None:
            return found
        for name in ("W", "WV", "WK", "WQ", "a"):
            getattr(out, name)[:] = getattr(found, name)
        return out

    return Flow(
        loss,
        velocity=velocity,
        rates={"a": 0.0},
        conserved={
            "key-query balance": lambda th: th.WK @ th.WK.T - th.WQ @ th.WQ.T,
            "neuron-value balance": lambda th: th.W.T @ th.W - th.WV @ th.WV.T,
            "idle neurons": idle_part,
        },
        host=True,
        name="attention and linear MLP, weights",
    )


@functools.lru_cache(maxsize=16)
def reduced_flow(sentences: Sentences, dim: int, rate: float, frozen: bool = False) -> Flow:
    """The flow of u = W^T a, WV, WK and WQ; `rate` is |a|^2, `frozen` keeps the attention."""
    t = tables(sentences, dim)

    def loss(theta: Params) -> Any:
        return t.loss(theta["u"] @ theta["WV"], theta["WK"].T @ theta["WQ"])

    def velocity(theta: Params, out: Params | None = None) -> Params:
        u, WV, WK, WQ = (theta[name] for name in ("u", "WV", "WK", "WQ"))
        phi, A = t.forces(u @ WV, WK.T @ WQ)
        outer = namespace(u).outer
        moved = {"u": WV @ phi, "WV": outer(u, phi), "WK": WQ @ A.T, "WQ": WK @ A}
        if out is None:
            return moved
        for name, value in moved.items():
            out[name][:] = value
        return out

    return Flow(
        loss,
        velocity=velocity,
        rates={"u": positive("rate", rate), **({"WK": 0.0, "WQ": 0.0} if frozen else {})},
        conserved={
            "value balance": lambda th: th["u"][:, None] * th["u"] / rate - th["WV"] @ th["WV"].T,
            "key-query balance": lambda th: th["WK"] @ th["WK"].T - th["WQ"] @ th["WQ"].T,
        },
        host=True,
        name="attention and linear MLP, reduced",
    )


@functools.lru_cache(maxsize=16)
def gram_flow(
    sentences: Sentences, dim: int, rate: float, frozen: bool = False, idle: int = 0
) -> GramFlow:
    """The closed system of `U = |u|^2`, G, VV, S, KK and QQ (Appendix C), at any width.

    Two groups of columns, `value` [u, V] and `attention` [K, Q]; u moves at the rate |a|^2. dim
    enters only by sqrt m in the softmax. `project` takes a `ValueMLP` or a reduced state. With
    `idle` neurons the rows of `(I - aa'/|a|^2) W`, which stand still, are columns N of `value`:
    the products of each neuron with itself, others and values follow from them.
    """
    t, d = tables(sentences, dim), sentences.vocab

    def gradient(grams: Any) -> Any:
        phi, A = t.forces(values(grams), scores(grams))
        return {"value": {("u", "V"): -phi[..., None, :]}, "attention": {("K", "Q"): -A}}

    return GramFlow(
        lambda grams: t.loss(values(grams), scores(grams)),
        {"value": {"u": 1, "V": d, **({"N": idle} if idle else {})}, "attention": {"K": d, "Q": d}},
        rates={"value.u": positive("rate", rate), **({"attention": 0.0} if frozen else {})},
        balanced=[("value.u", "value.V"), *([] if frozen else [("attention.K", "attention.Q")])],
        columns=with_neurons if idle else columns,
        gradient=gradient,
        name="attention and linear MLP, Gram",
    )


def values(grams: Any) -> Any:
    """G[word] of the Grams of a state."""
    return grams["value"]["u", "V"][..., 0, :]


def scores(grams: Any) -> Any:
    """S[key, query] of the Grams of a state."""
    return grams["attention"]["K", "Q"]


def columns(theta: ValueMLP | Params) -> dict[str, Any]:
    """The weights as the blocks of the Gram flow."""
    state = theta.reduced if isinstance(theta, ValueMLP) else theta
    return {
        "value": {"u": state["u"][:, None], "V": state["WV"]},
        "attention": {"K": state["WK"], "Q": state["WQ"]},
    }


def with_neurons(theta: ValueMLP) -> dict[str, Any]:
    """The same with the part of each neuron that no training moves."""
    found = columns(theta)
    return {**found, "value": {**found["value"], "N": idle_part(theta).T}}


def idle_part(theta: ValueMLP) -> Any:
    """`(I - aa'/|a|^2) W`, which no training moves."""
    return theta.W - theta.a[:, None] * (theta.a @ theta.W) / (theta.a @ theta.a)


def bag_flow(
    bags: Float[np.ndarray, "sample word"],
    label: Float[np.ndarray, "sample"],
    weight: Float[np.ndarray, "sample"],
) -> Flow:
    """Infinite width, time tau: attention stays uniform, `dG/dtau = phi`.

    That is logistic regression on bags of words, without an offset.
    """
    signed = label[:, None] * bags

    def loss(G: Any) -> Any:
        return (weight * namespace(G).logaddexp(0.0, -(signed @ G))).sum()

    def velocity(G: Any, out: Any = None) -> Any:
        xp = namespace(G)
        phi = (weight * xp.exp(-xp.logaddexp(0.0, signed @ G))) @ signed
        if out is None:
            return phi
        out[:] = phi
        return out

    return Flow(loss, velocity=velocity, host=True, scale=1.0, name="infinite width")


# --- Reading a state.


class Correlations:
    """What a state of `reduced_flow` says of words: U, G, VV, S, KK, QQ, each when asked for."""

    def __init__(self, state: Params):
        self.state = state

    @functools.cached_property
    def U(self) -> Any:
        """|u|^2, the double sum of `a_i a_j w_i.w_j`."""
        return self.state["u"] @ self.state["u"]

    @functools.cached_property
    def G(self) -> Any:
        """The MLP's value of each word."""
        return self.state["u"] @ self.state["WV"]

    @functools.cached_property
    def VV(self) -> Any:
        return self.state["WV"].T @ self.state["WV"]

    @functools.cached_property
    def S(self) -> Any:
        """score[key, query]."""
        return self.state["WK"].T @ self.state["WQ"]

    @functools.cached_property
    def KK(self) -> Any:
        return self.state["WK"].T @ self.state["WK"]

    @functools.cached_property
    def QQ(self) -> Any:
        return self.state["WQ"].T @ self.state["WQ"]

    def pushed(self, phi: Any) -> Any:
        """`VV phi`."""
        return self.state["WV"].T @ (self.state["WV"] @ phi)

    def first(self, words: int) -> Correlations:
        """The same of the first words alone."""
        few = {name: self.state[name][:, :words] for name in ("WV", "WK", "WQ")}
        return Correlations({**few, "u": self.state["u"]})


@final
class GramCorrelations(Correlations):
    """The same of a state of `gram_flow`."""

    def __init__(self, state: Params):
        value, attention = (state["gram"][name] for name in ("value", "attention"))
        self.U, self.G, self.VV = value["u"][0, 0], value["u", "V"][0], value["V"]
        self.S, self.KK, self.QQ = attention["K", "Q"], attention["K"], attention["Q"]

    def pushed(self, phi: Any) -> Any:
        return self.VV @ phi

    def first(self, words: int) -> Correlations:
        few = copy.copy(self)
        few.G = self.G[:words]
        few.VV, few.S, few.KK, few.QQ = (
            x[:words, :words] for x in (self.VV, self.S, self.KK, self.QQ)
        )
        return few


def correlations(state: Params) -> Correlations:
    """What a state says of words, whichever flow it belongs to; traceable."""
    return (GramCorrelations if "gram" in state else Correlations)(state)
