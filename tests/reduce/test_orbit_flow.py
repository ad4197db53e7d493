"""The fixed subspace of a symmetry is invariant, and its orbits carry the flow on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariant_losses import draw

from attnflow import InputError
from attnflow.flows import Flow, Solver, integrate
from attnflow.models import OneLayerAttention, population_flow
from attnflow.reduce import GramFlow, OrbitFlow, verify
from attnflow.tasks import MarkovChain
from strategies import seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY

COMPARED = {"rtol": 1e-10, "solver": Solver("scipy", "dop853")}  # and 1e-12, above rounding
CLOSURE = 1e-10


def symmetric_loss(group: list[Any], seed: int = 0) -> Any:
    """A random smooth function of {"x": (5,), "W": (2, 3)}, averaged over a whole group."""
    A, B = draw(11, 11, seed=seed, scale=0.4), draw(11, seed=seed + 1)

    def flat(th: Any) -> Any:
        return jnp.concatenate([jnp.ravel(th["W"]), th["x"]])

    def image(g: Any, y: np.ndarray) -> np.ndarray:
        return np.asarray(flat(g({"W": y[:6].reshape(2, 3), "x": y[6:]})))

    actions = np.array([[image(g, y) for y in np.eye(11)] for g in group])  # [g, from, to]

    def loss(th: Any) -> Any:
        images = flat(th) @ actions
        return jnp.mean(jnp.tanh(images @ A.T + B) @ B) + 0.1 * jnp.sum(flat(th) ** 2)

    return loss


def flip(th: Any) -> Any:
    """Swaps two entries with a change of sign, and the rows of W."""
    x = th["x"]
    return {"x": jnp.stack([-x[1], -x[0], x[2], -x[3], x[4]]), "W": th["W"][::-1]}


def turn(th: Any) -> Any:
    """A cycle of order three along the columns of W."""
    return {"x": th["x"], "W": th["W"][:, jnp.array([1, 2, 0])]}


def identity(th: Any) -> Any:
    return th


GROUP = [
    lambda th, f=f, k=k: f(turn(turn(th)) if k == 2 else turn(th) if k else th)
    for f in (identity, flip)
    for k in range(3)
]
SYMMETRIC = Flow(symmetric_loss(GROUP))
LIKE = {"x": np.zeros(5), "W": np.zeros((2, 3))}


def test_orbits_carry_a_random_signed_permutation_invariant_flow() -> None:
    flow = SYMMETRIC
    reduced = OrbitFlow(flow, [flip, turn], LIKE)
    assert reduced.coordinates == ["W[0, 0] (6)", "x[0] (2)", "x[2] (1)", "x[4] (1)"]
    state = {"W": np.array([0.4]), "x": np.array([0.7, -0.3, 0.2])}
    start = reduced.lift(state)
    assert np.array_equal(start["x"], [0.7, -0.7, -0.3, 0.0, 0.2])
    found = verify(flow, reduced, start, [1.0, 3.0], **COMPARED)
    assert found.agrees
    assert max(found.absolute) <= CLOSURE
    assert max(found.distance) <= IDENTITY


def test_the_reduced_velocity_is_the_gradient_over_the_orbit_sizes() -> None:
    reduced = OrbitFlow(Flow(symmetric_loss(GROUP), rates={"W": 3.0}), [flip, turn], LIKE)
    state = {"W": np.array([0.4]), "x": np.array([0.7, -0.3, 0.2])}
    system = reduced.bind(state)
    z = system.layout.flatten(state)
    with jax.enable_x64(True):
        slope = np.asarray(jax.jit(jax.grad(system.trace_loss))(z))
    expected = -np.array([3.0, 1.0, 1.0, 1.0]) * slope / reduced.sizes
    found = system.layout.flatten(reduced.velocity(state))
    assert np.abs(found - expected).max() <= CLOSED_FORM_VS_AUTODIFF


@settings(max_examples=5)
@given(st.integers(2, 6), seeds)
def test_a_function_and_a_declaration_of_one_generator_agree(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order, signs = rng.permutation(n), rng.choice([-1.0, 1.0], n)
    flow = Flow(lambda th: jnp.sum(jnp.cos(th["A"])) + jnp.sum(th["A"] ** 2) ** 2)
    like = {"A": np.zeros((n, n))}

    def act(th: Any) -> Any:
        A = np.asarray(th["A"])[order] * signs[:, None]
        return {"A": A[:, order] * signs[None, :]}

    declared = {"A": {0: (order, signs), 1: (order, signs)}}
    one, other = OrbitFlow(flow, [act], like), OrbitFlow(flow, [declared], like)
    assert one.coordinates == other.coordinates
    theta = {"A": rng.standard_normal((n, n))}
    fixed = one.lift(one.project(theta))
    assert np.array_equal(fixed["A"], other.lift(other.project(theta))["A"])
    assert np.abs(act(fixed)["A"] - fixed["A"]).max() <= IDENTITY
    assert one.distance(fixed) <= IDENTITY


def test_a_host_flow_stays_in_numpy_and_keeps_its_conserved_quantities() -> None:
    """Equal rare tokens are exchangeable: a one-layer attention flow on half the numbers."""
    chain = MarkovChain((0.7, 0.15, 0.15), lam=0.8)
    flow, like = population_flow(chain), OneLayerAttention.gaussian(3, 2, 0.5, seed=1)
    swap = {"W0": {0: [0, 2, 1]}, "W1": {1: [0, 2, 1]}}
    reduced = OrbitFlow(flow, [swap], like)
    assert reduced.flow.host
    start = reduced.lift(reduced.project(like))
    found = verify(flow, reduced, start, 3.0, rtol=1e-10)
    assert found.agrees
    assert found.parameters == (20, 16)
    solution = integrate(reduced, reduced.project(like), 3.0, rtol=1e-9)
    assert set(solution.drifts) == set(flow.conserved)
    assert solution.drift <= 1e-6


def test_orbits_of_a_gram_flow_reduce_it_once_more() -> None:
    """A loss that does not tell two tokens apart: the Gram of the weights, and its orbits."""
    p = 3
    order = [1, 0, 2, 4, 3, 5]
    gram = GramFlow(
        lambda G: jnp.sum(jnp.log(1 + (G["K", "Q"] - np.diag([1.0, 1.0, 2.0])) ** 2)),
        {"K": p, "Q": p},
    )
    like = gram.infinite_width(0.5)
    reduced = OrbitFlow(gram, [lambda s: {"gram": s["gram"].permute(order)}], like)
    found = verify(gram, reduced, like, 2.0, **COMPARED)
    assert found.agrees
    assert found.parameters == (21, 13)


def test_a_wrong_symmetry_is_refused() -> None:
    def swap(th: Any) -> Any:
        return {"x": th["x"][::-1], "W": th["W"]}

    with pytest.raises(InputError, match=r"generators\[1\]: changes the loss by"):
        OrbitFlow(SYMMETRIC, [turn, swap], LIKE)


def test_rates_that_differ_along_an_orbit_are_refused() -> None:
    flow = Flow(lambda th: th["a"] ** 2 + th["b"] ** 2, rates={"a": 2.0})
    like = {"a": np.array(0.1), "b": np.array(0.2)}
    with pytest.raises(InputError, match="rates must be equal along orbits"):
        OrbitFlow(flow, [lambda th: {"a": th["b"], "b": th["a"]}], like)


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (lambda th: {"x": 2 * th["x"], "W": th["W"]}, "not a signed permutation"),
        (lambda th: {"x": 0 * th["x"], "W": th["W"]}, "not a signed permutation"),
        (lambda th: {"x": th["x"][:3], "W": th["W"]}, "another shape"),
        (lambda th: {"x": np.where(th["x"] > 2, th["x"], -th["x"]), "W": th["W"]}, "not linear"),
        ({"y": -1}, r"generators\[0\].y: no such block"),
        ({"x": 3}, "1, -1, or"),
        ({"x": {1: [0, 1]}}, "axis 1; the shape is"),
        ({"W": {1: [0, 0, 1]}}, r"not a permutation of 0 .. 2"),
        ({"W": {1: ([0, 2, 1], [1, 0, 1])}}, "each 1 or -1"),
        ([0, 1, 2], r"not a permutation of 0 .. 10"),
        ("abc", r"not a permutation of 0 .. 10"),
    ],
)
def test_what_is_no_signed_permutation_is_refused(generator: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        OrbitFlow(SYMMETRIC, [generator], LIKE)


def test_a_group_that_fixes_only_the_origin_is_refused() -> None:
    flow = Flow(lambda th: jnp.sum(th["x"] ** 2))
    with pytest.raises(InputError, match="only the origin"):
        OrbitFlow(flow, [{"x": -1}], {"x": np.zeros(2)})
    with pytest.raises(InputError, match="a list of at least one"):
        OrbitFlow(flow, [], {"x": np.zeros(2)})
