"""Every flow of the project, in one registry: the conformance suite runs over all of them.

A new flow (a reduced system, a mean-field limit) is one more function with `@problem`. The suite
also looks through the package for functions that make a flow, and asks for each of them here.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.flows import Flow
from attnflow.models import OneLayerAttention, attention_lm, population_flow, value_mlp
from attnflow.models.one_layer import CONSERVED, population_loss, sequence_loss
from attnflow.models.one_layer_contexts import context_flow, context_loss
from attnflow.models.two_head import TwoHeadClassifier, weight_flow
from attnflow.models.two_head_gram import gram_flow, score_flow, self_scores
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import GramFlow, ManifoldFlow, OrbitFlow
from attnflow.studies.focus_dilution import rank_one
from attnflow.studies.focus_dilution.limit import (
    LimitModel,
    rank_one_weights,
    split_weights,
    weight_velocity,
)
from attnflow.studies.focus_text.config import Config
from attnflow.studies.focus_text.study import FocusDilutionText
from attnflow.tasks import (
    Contexts,
    InContextRegression,
    MarkovChain,
    MixtureClassification,
    WordCooccurrence,
)

PI_A = (0.75, 0.19, 0.05, 0.01)


@dataclass(frozen=True)
class Problem:
    """A flow, a start of O(1) where nothing vanishes by accident, and a time worth solving to."""

    flow: Any
    start: Any
    until: float = 2.0
    full: Flow | None = None
    """The flow that this one reduces; `lift` maps its states there, `project` back."""
    lift: Callable[[Any], Any] | None = None
    project: Callable[[Any], Any] | None = None
    steepest: bool = True
    """Whether the loss falls as fast as the squared speed of the full flow says."""
    closed: Callable[[Any], Any] | None = None
    """The velocity in another formula."""
    symmetries: tuple[Callable[[Any], Any], ...] = ()
    """Isometries of the parameters that leave the loss as it is."""


_MAKERS: dict[str, tuple[Callable[[], Problem], tuple[str, ...]]] = {}
KEPT = (
    *(population_flow, weight_flow, gram_flow, score_flow, symmetric_flow),
    *(value_mlp.weight_flow, value_mlp.reduced_flow, value_mlp.gram_flow),
)
"""Makers that keep the flows that they made."""
CALLED: set[str] = set()
"""What was called while the problems were made: `models.one_layer.population_flow`."""


def problem(*tags: str) -> Callable[[Callable[[], Problem]], Callable[[], Problem]]:
    """Register a problem: `gradient` says that the velocity is minus the gradient of the loss times
    the rates, `full`, `closed` and `symmetries` that the problem has these."""

    def register(make: Callable[[], Problem]) -> Callable[[], Problem]:
        @functools.cache
        def cached() -> Problem:
            for maker in KEPT:
                maker.cache_clear()  # a flow that is kept would not be made again
            sys.setprofile(_note)
            try:
                found = make()
            finally:
                sys.setprofile(None)
            assert {n for n in ("full", "closed", "symmetries") if getattr(found, n)} == {*tags} - {
                "gradient"
            }, make.__name__
            return found

        _MAKERS[make.__name__] = cached, tags
        return cached

    return register


def _note(frame: Any, event: str, _: Any) -> None:
    module = frame.f_globals.get("__name__", "")
    if event == "call" and module.startswith("attnflow."):
        CALLED.add(f"{module.removeprefix('attnflow.')}.{frame.f_code.co_qualname}")


def registry(tag: str = "") -> dict[str, Callable[[], Problem]]:
    """Name -> maker of the problems (with a tag), for `pytest.mark.parametrize`."""
    return {name: make for name, (make, tags) in _MAKERS.items() if not tag or tag in tags}


def draw(*shape: int, seed: int = 0, scale: float = 0.7) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(shape)


def rotation(size: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(draw(size, size, seed=seed))[0]


# --- Losses by autodiff.


@problem("gradient")
def quadratic_bowl() -> Problem:
    k = np.array([0.5, 1.0, 4.0])
    return Problem(Flow(lambda th: 0.5 * (k * th["x"] ** 2).sum()), {"x": draw(3)})


def balance(th: Any) -> Any:
    return th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"]


def product_loss(target: np.ndarray) -> Callable[[Any], Any]:
    return lambda th: 0.5 * jnp.sum((th["W2"] @ th["W1"] - target) ** 2)


@problem("gradient", "symmetries")
def two_layer_linear() -> Problem:
    flow = Flow(product_loss(draw(2, 3, seed=1)), conserved={"balance": balance})
    R = rotation(4)
    turned = (lambda th: {"W1": R @ th["W1"], "W2": th["W2"] @ R.T},)
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)}, symmetries=turned)


@problem("gradient")
def two_layer_linear_with_rates() -> Problem:
    flow = Flow(
        product_loss(draw(2, 3, seed=1)),
        rates={"W2": 4.0},
        conserved={
            "balance in the metric": lambda th: th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"] / 4.0
        },
    )
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem("gradient")
def two_layer_linear_frozen() -> Problem:
    flow = Flow(
        product_loss(draw(2, 3, seed=1)),
        rates={"W2": 0.0},
        conserved={"frozen block": lambda th: th["W2"]},
    )
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem("gradient")
def logistic_regression() -> Problem:
    x, label = draw(20, 3, seed=4), np.sign(draw(20, seed=5))

    def loss(th: Any) -> Any:
        margin = label * (x @ th["w"] + th["bias"])
        return jnp.mean(jax.nn.softplus(-margin))

    return Problem(Flow(loss), {"w": draw(3, seed=6), "bias": draw(seed=7)})


@problem("gradient")
def two_layer_linear_frozen_later() -> Problem:
    flow = Flow(product_loss(draw(2, 3, seed=1))).frozen(("W2",))
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem("gradient")
def rectified_with_gates() -> Problem:
    x, target = draw(2, 6, seed=13), draw(6, seed=14)

    def loss(th: Any, on: Any) -> Any:
        return 0.5 * jnp.mean((th["out"] @ (on * (th["in"] @ x)) - target) ** 2)

    flow = Flow(
        loss,
        gates=lambda th: th["in"] @ x,
        conserved={"balance": lambda th: (th["in"] ** 2).sum(axis=1) - th["out"] ** 2},
    )
    return Problem(flow, {"in": draw(3, 2, seed=15), "out": draw(3, seed=16)})


@problem("gradient")
def in_context_regression() -> Problem:
    task = InContextRegression([2.0, 1.0, 0.5], context=5, noise=0.1)
    return Problem(Flow(lambda th: task.loss(th["W"])), {"W": draw(3, 3, seed=17)})


class Network(eqx.Module):
    """Has what a layout must put aside: an activation among the leaves, a static width."""

    W1: Any
    W2: Any
    activation: Callable
    width: int = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.W2 @ self.activation(self.W1 @ x) / self.width


@problem("gradient")
def equinox_network() -> Problem:
    x, target = draw(3, 10, seed=9), draw(2, 10, seed=10)
    flow = Flow(lambda net: 0.5 * jnp.mean((net(x) - target) ** 2))
    return Problem(flow, Network(draw(4, 3, seed=11), draw(2, 4, seed=12), jnp.tanh, 4))


@problem("gradient")
def nested_tree() -> Problem:
    def loss(th: Any) -> Any:
        layers, shift = th
        return 0.5 * sum(jnp.sum(layer["W"] ** 4) for layer in layers) + shift**2

    return Problem(Flow(loss), ([{"W": draw(2)}, {"W": draw(1, 2)}], 0.3))


@problem("gradient")
def scalar_parameter() -> Problem:
    return Problem(Flow(lambda th: jnp.cosh(th)), np.array(0.8))


# --- One-layer attention.


def turned(theta: OneLayerAttention) -> OneLayerAttention:
    """Other axes for the hidden units, and others for queries and keys."""
    dim = theta.W1.shape[0]
    R, S = rotation(dim, 1), rotation(dim, 2)
    return OneLayerAttention(theta.W0 @ R, R.T @ theta.W1, R.T @ theta.WQ @ S, R.T @ theta.WK @ S)


def minus_gradient(loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Minus the gradient by autodiff, as a formula beside a closed form."""
    return lambda theta: jax.tree.map(
        jnp.negative, jax.grad(loss)(jax.tree.map(jnp.asarray, theta))
    )


@problem("gradient", "closed", "symmetries")
def population_two_term_chain() -> Problem:
    chain = MarkovChain(PI_A, lam=0.8)
    return Problem(
        population_flow(chain),
        OneLayerAttention.gaussian(4, 5, 0.5, seed=1),
        closed=minus_gradient(lambda theta: population_loss(theta, chain)),
        symmetries=(turned,),
    )


@problem("gradient", "symmetries")
def population_general_chain() -> Problem:
    matrix = np.random.default_rng(8).dirichlet(np.ones(3), size=3)
    chain = MarkovChain.of(matrix)
    start = OneLayerAttention.gaussian(3, 4, 0.5, seed=2)
    return Problem(population_flow(chain), start, symmetries=(turned,))


@problem("gradient")
def population_by_autodiff() -> Problem:
    chain = MarkovChain(PI_A, lam=0.8)
    flow = Flow(lambda theta: population_loss(theta, chain), conserved=CONSERVED)
    return Problem(flow, OneLayerAttention.gaussian(4, 5, 0.5, seed=1))


@problem("gradient", "closed")
def attention_language_model() -> Problem:
    windows = np.random.default_rng(0).integers(0, 4, (3, 5))
    return Problem(
        attention_lm.window_flow(attention_lm.Windows(windows, 4)),
        attention_lm.start(4, 4, 2, scale=0.5, seed=1),
        closed=minus_gradient(lambda theta: attention_lm.loss(theta, windows)),
    )


def on_contexts(contexts: Contexts) -> Problem:
    return Problem(
        context_flow(contexts),
        OneLayerAttention.gaussian(contexts.tokens, 4, 0.5, seed=3),
        closed=minus_gradient(lambda theta: context_loss(theta, contexts)),
        symmetries=(turned,),
    )


@problem("gradient", "closed", "symmetries")
def contexts_of_finite_length() -> Problem:
    return on_contexts(Contexts.of_chain(MarkovChain((0.6, 0.3, 0.1), 0.7), 4, "uniform"))


@problem("gradient", "closed", "symmetries")
def contexts_of_a_sample() -> Problem:
    chain = MarkovChain((0.6, 0.3, 0.1), 0.7)
    return on_contexts(Contexts.of_sample(chain.sample(200, 6, seed=1, first="uniform"), 3))


@problem("gradient", "symmetries")
def sequences() -> Problem:
    tokens = MarkovChain((0.6, 0.3, 0.1), 0.7).sample(30, 5, seed=2)
    flow = Flow(lambda theta: sequence_loss(theta, tokens), conserved=CONSERVED)
    return Problem(flow, OneLayerAttention.gaussian(3, 4, 0.5, seed=4), symmetries=(turned,))


@problem("gradient", "symmetries")
def held_out_text() -> Problem:
    drawn = np.random.default_rng(0).choice(4, 600, p=(0.4, 0.3, 0.2, 0.1))
    text = " ".join(np.array(["the", "cat", "and", "dog"])[drawn])
    sizes = {"vocabulary": 4, "context": 5, "test_sample": 6, "held_out": 40, "dim": 4}
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "words.txt").write_text(text)
        study = FocusDilutionText(
            Config(text=str(file), tokenizer="word", precision="float64", **sizes)
        )
    start = OneLayerAttention.gaussian(4, 4, 0.5, seed=5)
    return Problem(study.flow, start, symmetries=(turned,))


# --- The rank-one manifold and the limit model of focus-dilution.

GROUPS = MarkovChain((0.6, 0.2, 0.2), 0.7)


@problem("gradient", "closed", "symmetries")
def rank_one_flow() -> Problem:
    def closed(theta: OneLayerAttention) -> OneLayerAttention:
        return rank_one.state_of(rank_one.velocity(rank_one.vector(theta), GROUPS))

    def swapped(theta: OneLayerAttention) -> OneLayerAttention:
        order = np.array([0, 2, 1])  # equally frequent tokens
        return OneLayerAttention(theta.W0[order], theta.W1[:, order], theta.WQ, theta.WK)

    start = rank_one.state_of(draw(8, seed=6))
    return Problem(population_flow(GROUPS), start, closed=closed, symmetries=(swapped,))


@problem("full", "closed")
def rank_one_manifold() -> Problem:
    a, at = (x / np.linalg.norm(x) for x in (draw(3, seed=7), draw(3, seed=8)))
    pair = np.outer(a, at)

    def lifted(z: Any) -> OneLayerAttention:  # eq. (18)
        g, b = z["gamma"], z["beta"]
        return OneLayerAttention(g[:, None] * a, a[:, None] * b, z["query"] * pair, z["key"] * pair)

    def closed(z: Any) -> Any:
        moved = rank_one.velocity(np.concatenate([np.ravel(z[n]) for n in names]), GROUPS)
        return dict(zip(names, (moved[:3], moved[3:6], moved[6], moved[7]), strict=True))

    names = {"gamma": 3, "beta": 3, "query": (), "key": ()}
    start = {
        n: draw(*np.atleast_1d(k).astype(int), seed=i) for i, (n, k) in enumerate(names.items())
    }
    flow = ManifoldFlow(population_flow(GROUPS), lifted, start, name="rank-one manifold")
    return Problem(flow, start, closed=closed, full=flow.full, lift=flow.lift)


@problem("full", "closed")
def two_group_flow() -> Problem:
    flow = rank_one.two_group_flow(GROUPS)
    blocks = {"W0": slice(0, 2), "W1": slice(2, 4), "WQ": slice(4, 5), "WK": slice(5, 6)}

    def closed(state: Any) -> Any:
        z = np.concatenate([np.asarray(state[name]) for name in blocks])
        moved = rank_one.TwoGroup.of(GROUPS).velocity(z)
        return {name: moved[at] for name, at in blocks.items()}

    z = draw(6, seed=9)
    start = {name: z[at] for name, at in blocks.items()}
    return embedded(flow, start, closed=closed)


LIMIT = LimitModel(0.6, 0.7, 2.0)


def limit_loss(w: Any) -> Any:
    W0, W1, WQ, WK = split_weights(w, 3, 2)
    return LIMIT.of(W0 @ W1, W0 @ WQ @ WK.T @ W0.T, 0.02).loss


@problem("gradient", "closed")
def limit_model_of_all_weights() -> Problem:
    flow = Flow(limit_loss, velocity=lambda w: weight_velocity(LIMIT, w, 2, 0.02))
    return Problem(flow, draw(20, seed=10), closed=minus_gradient(limit_loss))


@problem("gradient", "full", "closed")
def limit_model() -> Problem:
    def project(w: np.ndarray) -> np.ndarray:
        W0, W1, *_ = split_weights(w, 3, 2)
        return np.concatenate([W0[:, 0], W1[0]])

    flow = Flow(
        lambda z: LIMIT.loss(z, 0.02),
        velocity=lambda z: LIMIT.velocity(z, 0.02),
        conserved={"read-out sum": lambda z: z[3:].sum()},
    )
    return Problem(
        flow,
        LIMIT.symmetric_point() + draw(6, seed=11, scale=0.2),
        full=limit_model_of_all_weights().flow,
        lift=lambda z: rank_one_weights(LIMIT, z, 2),
        project=project,
        steepest=False,  # eta moves with the weights and stands still here
        closed=minus_gradient(lambda z: LIMIT.loss(z, 0.02)),
    )


# --- Reductions of any loss.


def embedded(flow: Any, start: Any, **more: Any) -> Problem:
    """A reduction to an invariant subset."""
    return Problem(flow, start, full=flow.full, lift=flow.lift, **more)


def quotient(flow: Any, weights: Any, **more: Any) -> Problem:
    """A reduction to what the loss sees of the weights."""
    given = {"full": flow.full, "lift": flow.lift, "project": flow.project, **more}
    return Problem(flow, flow.project(weights), **given)


def columns(*names: str, width: int = 6, size: int = 2) -> dict[str, np.ndarray]:
    return {name: draw(width, size, seed=20 + i) for i, name in enumerate(names)}


def read_by_products(G: Any) -> Any:
    return 0.5 * jnp.sum((jnp.sin(G["K", "Q"]) - 0.4) ** 2)


@problem("full")
def gram_of_one_block() -> Problem:
    A, B = draw(3, 3, seed=30), draw(3, 3, seed=31)
    flow = GramFlow(lambda G: 0.5 * jnp.sum((jnp.tanh(G @ A) - B) ** 2) + jnp.sum(G * B), 3)
    return quotient(flow, draw(5, 3, seed=32), until=0.5)


@problem("full")
def gram_of_keys_and_queries() -> Problem:
    flow = GramFlow(
        read_by_products, {"K": 2, "Q": 2}, balanced=[("K", "Q"), ("K", "Q", "spectral")]
    )
    return quotient(flow, columns("K", "Q"))


@problem("full")
def gram_with_rates() -> Problem:
    flow = GramFlow(read_by_products, {"K": 2, "Q": 2}, rates={"Q": 3.0}, balanced=[("K", "Q")])
    return quotient(flow, columns("K", "Q"))


@problem("full")
def gram_with_a_frozen_block() -> Problem:
    frozen = {"frozen block": lambda state: state["gram"]["Q"]}
    flow = GramFlow(read_by_products, {"K": 2, "Q": 2}, rates={"Q": 0.0}, conserved=frozen)
    return quotient(flow, columns("K", "Q"))


@problem("full")
def gram_of_groups_with_a_rest() -> Problem:
    A = draw(2, 2, seed=33)

    def loss(G: Any, rest: Any) -> Any:
        read = [jnp.tanh(G[head]["K", "Q"] @ A) @ rest["w"] for head in ("plus", "minus")]
        return 0.5 * jnp.sum((read[0] - read[1] - 1.0) ** 2) + 0.05 * rest["bias"] ** 2

    blocks = {"K": 2, "Q": 2}
    flow = GramFlow(loss, {"plus": blocks, "minus": blocks}, rates={"plus.K": 2.0, "w": 0.5})
    weights = {
        "plus": columns("K", "Q"),
        "minus": columns("K", "Q", width=3),
        "w": draw(2, seed=34),
        "bias": np.array(0.3),
    }
    return quotient(flow, weights)


@problem("full")
def orbits_of_a_permutation() -> Problem:
    full = Flow(
        lambda th: jnp.sum(th["x"] ** 4) - jnp.prod(th["x"]) + th["y"] ** 2 * jnp.sum(th["x"] ** 2)
    )
    flow = OrbitFlow(full, [{"x": {0: np.array([1, 0, 2])}}], {"x": np.ones(3), "y": np.array(1.0)})
    return embedded(flow, flow.project({"x": draw(3, seed=35), "y": np.array(0.4)}))


@problem("full")
def ray_of_matrices() -> Problem:
    full = Flow(lambda th: jnp.sum((th["W"] @ th["W"].T - np.eye(2)) ** 2))
    flow = ManifoldFlow(full, lambda z: {"W": jnp.exp(z) * jnp.eye(2)}, like=np.array(0.1))
    return embedded(flow, np.array(-0.7))


# --- The two-head classifier.

TWO, THREE = MixtureClassification(2, 3), MixtureClassification(3, 3)
OMEGA, BIAS = 0.6, 0.5


def heads(groups: int = 2, seed: int = 1) -> TwoHeadClassifier:
    return TwoHeadClassifier.gaussian(groups, 5, 0.8, bias=BIAS, neurons=0.8, seed=seed)


def turned_heads(theta: TwoHeadClassifier) -> TwoHeadClassifier:
    R = rotation(theta.WK.shape[1], 3)
    return TwoHeadClassifier(theta.w, R @ theta.WK, R @ theta.WQ, theta.bias)


def relabelled(theta: TwoHeadClassifier) -> TwoHeadClassifier:
    order = np.array([1, 0, 3, 2])
    return TwoHeadClassifier(
        theta.w[:, order], theta.WK[..., order], theta.WQ[..., order], theta.bias
    )


def mirrored(theta: TwoHeadClassifier) -> TwoHeadClassifier:
    flip = np.array([1.0, 1.0, -1.0, -1.0])
    return TwoHeadClassifier(
        theta.w[::-1] * flip, theta.WK[::-1] * flip, theta.WQ[::-1] * flip, theta.bias
    )


@problem("gradient", "symmetries")
def two_head_weights() -> Problem:
    symmetries = (turned_heads, relabelled, mirrored)
    return Problem(weight_flow(TWO.population), heads(), symmetries=symmetries)


@problem("gradient")
def two_head_neurons_alone() -> Problem:
    return Problem(weight_flow(TWO.population, ("attention",)), heads(seed=2))


@problem("gradient")
def two_head_attention_alone() -> Problem:
    return Problem(weight_flow(TWO.population, ("neurons",)), heads(seed=3))


def of_scores(state: Any, omega: float = OMEGA) -> TwoHeadClassifier:
    """Weights of the infinite-width Gram that has these scores."""
    S = np.asarray(state["S"])
    A, B = self_scores(S, omega)
    G = np.concatenate([np.concatenate([A, S], 2), np.concatenate([S.swapaxes(1, 2), B], 2)], 1)
    values, vectors = np.linalg.eigh(G)
    H = np.sqrt(np.maximum(values, 0))[..., None] * vectors.swapaxes(1, 2)
    D = S.shape[1]
    return TwoHeadClassifier(np.asarray(state["w"]), H[..., :D], H[..., D:], BIAS)


def to_scores(theta: TwoHeadClassifier) -> dict[str, np.ndarray]:
    return {"w": np.asarray(theta.w), "S": np.asarray(theta.scores)}


@problem("full")
def two_head_gram() -> Problem:
    flow = gram_flow(TWO.population, BIAS)

    def lift(state: Any) -> TwoHeadClassifier:
        found = flow.lift(state)
        K, Q = (np.stack([found[head][name] for head in ("plus", "minus")]) for name in "KQ")
        return TwoHeadClassifier(found["w"], K, Q, BIAS)

    return quotient(flow, heads(seed=4), full=weight_flow(TWO.population), lift=lift)


@problem("full")
def two_head_scores() -> Problem:
    return Problem(
        score_flow(TWO.population, OMEGA, BIAS),
        {"w": draw(2, 4, seed=40), "S": draw(2, 4, 4, seed=41)},
        full=weight_flow(TWO.population),
        lift=of_scores,
        project=to_scores,
    )


@problem("full")
def two_head_symmetric() -> Problem:
    flow = symmetric_flow(THREE.orbits, OMEGA, BIAS)
    shapes = {"w": (2,), "S_sum": (2, 2), "S_diff": (2, 2)}
    return Problem(
        flow,
        {name: draw(*shape, seed=42 + i) for i, (name, shape) in enumerate(shapes.items())},
        full=weight_flow(THREE.population),
        lift=lambda state: of_scores(flow.lift(state)),
        project=lambda theta: flow.project(to_scores(theta)),
    )


@problem("full")
def two_head_symmetric_gram() -> Problem:
    flow = symmetric_flow(THREE.orbits, OMEGA, BIAS).gram
    weights = {name: columns("K", "Q") for name in ("sum", "diff")}
    return quotient(flow, {**weights, "w": draw(2, seed=45)})


# --- Attention under a linear MLP.

SENTENCES = WordCooccurrence(length=4, vocab=6).training(12, "iid", seed=1)  # words repeat
VALUE_DIM, OUTPUT = 7, 2.5


def value_weights(seed: int = 1) -> value_mlp.ValueMLP:
    drawn = value_mlp.Initialisation(0.6, 0.5, OUTPUT).model(6, VALUE_DIM, 5, seed)
    return value_mlp.ValueMLP(drawn.W, drawn.WV, 2 * drawn.WK, 2 * drawn.WQ, drawn.a)


def turned_values(theta: value_mlp.ValueMLP) -> value_mlp.ValueMLP:
    """Other axes for the values, and others for keys and queries."""
    R, Q = rotation(VALUE_DIM, 4), rotation(VALUE_DIM, 5)
    return value_mlp.ValueMLP(theta.W @ R.T, R @ theta.WV, Q @ theta.WK, Q @ theta.WQ, theta.a)


def turned_reduced(state: Any) -> Any:
    R, Q = rotation(VALUE_DIM, 4), rotation(VALUE_DIM, 5)
    return {
        "u": R @ state["u"],
        "WV": R @ state["WV"],
        "WK": Q @ state["WK"],
        "WQ": Q @ state["WQ"],
    }


@problem("gradient", "symmetries")
def value_mlp_weights() -> Problem:
    flow = value_mlp.weight_flow(SENTENCES, VALUE_DIM)
    return Problem(flow, value_weights(), symmetries=(turned_values,))


@problem("gradient", "symmetries")
def value_mlp_reduced() -> Problem:
    flow = value_mlp.reduced_flow(SENTENCES, VALUE_DIM, OUTPUT)
    return Problem(flow, value_weights(2).reduced, symmetries=(turned_reduced,))


@problem("gradient")
def value_mlp_attention_frozen() -> Problem:
    flow = value_mlp.reduced_flow(SENTENCES, VALUE_DIM, OUTPUT, frozen=True)
    return Problem(flow, value_weights(3).reduced)


@problem("full")
def value_mlp_gram() -> Problem:
    flow = value_mlp.gram_flow(SENTENCES, VALUE_DIM, OUTPUT)
    start = flow.project(value_weights(4))
    return Problem(flow, start, full=flow.full, lift=flow.lift, project=flow.declaration.project)


@problem("full")
def value_mlp_gram_frozen() -> Problem:
    flow = value_mlp.gram_flow(SENTENCES, VALUE_DIM, OUTPUT, frozen=True)
    start = flow.project(value_weights(5))
    return Problem(flow, start, full=flow.full, lift=flow.lift, project=flow.declaration.project)


@problem("gradient")
def value_mlp_infinite_width() -> Problem:
    X = SENTENCES
    return Problem(value_mlp.bag_flow(X.bags, X.label, X.weight), draw(6, seed=12))
