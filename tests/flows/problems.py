"""Every flow of the project, in one registry: the conformance suite runs over all of them.

A new flow (a reduced system, a mean-field limit) is one more function with `@problem`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.flows import Flow
from attnflow.models import OneLayerAttention, population_flow
from attnflow.models.one_layer import CONSERVED, population_loss
from attnflow.tasks import MarkovChain

PI_A = (0.75, 0.19, 0.05, 0.01)


@dataclass(frozen=True)
class Problem:
    """A flow, a start of O(1) where nothing vanishes by accident, and a time worth solving to."""

    flow: Flow
    start: Any
    until: float = 2.0


_MAKERS: dict[str, Callable[[], Problem]] = {}


def problem(make: Callable[[], Problem]) -> Callable[[], Problem]:
    cached = functools.cache(make)
    _MAKERS[make.__name__] = cached
    return cached


def registry() -> dict[str, Callable[[], Problem]]:
    """Name -> maker, for `pytest.mark.parametrize`."""
    return dict(_MAKERS)


def draw(*shape: int, seed: int = 0, scale: float = 0.7) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(shape)


@problem
def quadratic_bowl() -> Problem:
    k = np.array([0.5, 1.0, 4.0])
    return Problem(Flow(lambda th: 0.5 * (k * th["x"] ** 2).sum()), {"x": draw(3)})


def balance(th: Any) -> Any:
    return th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"]


def product_loss(target: np.ndarray) -> Callable[[Any], Any]:
    return lambda th: 0.5 * jnp.sum((th["W2"] @ th["W1"] - target) ** 2)


@problem
def two_layer_linear() -> Problem:
    flow = Flow(product_loss(draw(2, 3, seed=1)), conserved={"balance": balance})
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem
def two_layer_linear_with_rates() -> Problem:
    flow = Flow(
        product_loss(draw(2, 3, seed=1)),
        rates={"W2": 4.0},
        conserved={
            "balance in the metric": lambda th: th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"] / 4.0
        },
    )
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem
def two_layer_linear_frozen() -> Problem:
    flow = Flow(
        product_loss(draw(2, 3, seed=1)),
        rates={"W2": 0.0},
        conserved={"frozen block": lambda th: th["W2"]},
    )
    return Problem(flow, {"W1": draw(4, 3, seed=2), "W2": draw(2, 4, seed=3)})


@problem
def logistic_regression() -> Problem:
    x, label = draw(20, 3, seed=4), np.sign(draw(20, seed=5))

    def loss(th: Any) -> Any:
        margin = label * (x @ th["w"] + th["bias"])
        return jnp.mean(jax.nn.softplus(-margin))

    return Problem(Flow(loss), {"w": draw(3, seed=6), "bias": draw(seed=7)})


@problem
def population_two_term_chain() -> Problem:
    chain = MarkovChain(PI_A, lam=0.8)
    return Problem(population_flow(chain), OneLayerAttention.gaussian(4, 5, 0.5, seed=1))


@problem
def population_general_chain() -> Problem:
    matrix = np.random.default_rng(8).dirichlet(np.ones(3), size=3)
    chain = MarkovChain.of(matrix)
    return Problem(population_flow(chain), OneLayerAttention.gaussian(3, 4, 0.5, seed=2))


@problem
def population_by_autodiff() -> Problem:
    chain = MarkovChain(PI_A, lam=0.8)
    flow = Flow(lambda theta: population_loss(theta, chain), conserved=CONSERVED)
    return Problem(flow, OneLayerAttention.gaussian(4, 5, 0.5, seed=1))


class Network(eqx.Module):
    """Has what a layout must put aside: an activation among the leaves, a static width."""

    W1: Any
    W2: Any
    activation: Callable
    width: int = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        return self.W2 @ self.activation(self.W1 @ x) / self.width


@problem
def equinox_network() -> Problem:
    x, target = draw(3, 10, seed=9), draw(2, 10, seed=10)
    flow = Flow(lambda net: 0.5 * jnp.mean((net(x) - target) ** 2))
    return Problem(flow, Network(draw(4, 3, seed=11), draw(2, 4, seed=12), jnp.tanh, 4))


@problem
def nested_tree() -> Problem:
    def loss(th: Any) -> Any:
        layers, shift = th
        return 0.5 * sum(jnp.sum(layer["W"] ** 4) for layer in layers) + shift**2

    return Problem(Flow(loss), ([{"W": draw(2)}, {"W": draw(1, 2)}], 0.3))


@problem
def scalar_parameter() -> Problem:
    return Problem(Flow(lambda th: jnp.cosh(th)), np.array(0.8))
