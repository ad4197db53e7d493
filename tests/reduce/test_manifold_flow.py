"""Invariant manifolds: the flow on them, and the rank-one manifold of one-layer attention."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from invariant_losses import draw

from attnflow import InputError
from attnflow.flows import Flow, Solver, integrate
from attnflow.models import OneLayerAttention, population_flow
from attnflow.models.one_layer import token_gradients
from attnflow.reduce import ManifoldFlow, verify
from attnflow.tasks import MarkovChain
from strategies import chains
from tolerances import CLOSED_FORM_VS_AUTODIFF, SUM_OF_MANY

DIM = 3


def unit(seed: int) -> np.ndarray:
    a = draw(DIM, seed=seed)
    return a / np.linalg.norm(a)


def rank_one(z: Any) -> OneLayerAttention:
    """arXiv 2605.01199, Prop. 3.6: every matrix along fixed unit vectors a and a~."""
    a, b = unit(1), unit(2)
    return OneLayerAttention(
        jnp.outer(z["gamma"], a),
        jnp.outer(a, z["beta"]),
        z["lQ"] * jnp.outer(a, b),
        z["lK"] * jnp.outer(a, b),
    )


def coordinates(tokens: int, seed: int = 3, scale: float = 0.5) -> dict[str, np.ndarray]:
    return {
        "gamma": draw(tokens, seed=seed, scale=scale),
        "beta": draw(tokens, seed=seed + 1, scale=scale),
        "lQ": draw(seed=seed + 2, scale=scale),
        "lK": draw(seed=seed + 3, scale=scale),
    }


@settings(max_examples=3)
@given(chains)
def test_the_rank_one_manifold_is_invariant_for_any_law(chain: MarkovChain) -> None:
    z = coordinates(chain.tokens)
    reduced = ManifoldFlow(population_flow(chain), rank_one, z)
    assert reduced.residual <= SUM_OF_MANY
    # eq. (20) in general form: eta' = -(lQ^2 + lK^2) gamma^T GP gamma with eta = lQ lK.
    theta, v = reduced.lift(z), reduced.velocity(z)
    _, GP = token_gradients(theta.readout, theta.score, chain)
    force = z["gamma"] @ GP @ z["gamma"]
    moved = v["lQ"] * z["lK"] + z["lQ"] * v["lK"]
    assert moved == pytest.approx(
        -(z["lQ"] ** 2 + z["lK"] ** 2) * force, abs=CLOSED_FORM_VS_AUTODIFF
    )
    printed = -2 * z["lQ"] * z["lK"] * force
    assert abs(moved - printed) > 1e3 * CLOSED_FORM_VS_AUTODIFF * abs(force)


def test_the_rank_one_flow_is_the_population_flow() -> None:
    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), lam=0.8)
    flow, z = population_flow(chain), coordinates(4)
    reduced = ManifoldFlow(flow, rank_one, z)
    solver = Solver("scipy", "dop853")
    found = verify(flow, reduced, reduced.lift(z), [0.5, 2.0], rtol=1e-10, solver=solver)
    assert found.agrees
    assert max(found.absolute) <= 1e-10
    assert found.parameters == (2 * 12 + 2 * 9, 10)
    assert max(found.distance) <= 1e-10
    solution = integrate(reduced, z, 4.0, rtol=1e-9)
    assert set(solution.drifts) == set(flow.conserved)
    assert solution.drift <= 1e-7
    assert solution.trajectory["loss"].values[-1] < solution.trajectory["loss"].values[0]


def test_a_curved_manifold_is_followed_and_projected_onto() -> None:
    """A loss of the radius alone: every ray is invariant, in polar coordinates too."""
    flow = Flow(lambda th: (jnp.sum(th["x"] ** 2) - 1.0) ** 2)

    def polar(z: Any) -> Any:
        r, phi = z["r"], z["phi"]
        return {"x": jnp.stack([r * jnp.cos(phi), r * jnp.sin(phi), 0.0 * r])}

    like = {"r": np.array(0.5), "phi": np.array(0.3)}
    reduced = ManifoldFlow(
        flow,
        polar,
        like,
        sample=lambda rng: {"r": rng.uniform(0.5, 2, ()), "phi": rng.uniform(0, 6, ())},
    )
    v = reduced.velocity(like)
    assert v["r"] == pytest.approx(-4 * 0.5 * (0.25 - 1.0))
    assert abs(v["phi"]) <= 1e-14
    near = {"x": np.array([1.2 * np.cos(0.7), 1.2 * np.sin(0.7), 0.1])}
    foot = reduced.foot(near)
    assert foot.converged
    assert foot.state["r"] == pytest.approx(1.2, rel=1e-12)
    assert foot.state["phi"] == pytest.approx(0.7, rel=1e-10)
    assert foot.distance == pytest.approx(0.1 / np.hypot(1.2, 0.1), rel=1e-12)


def test_a_search_that_does_not_converge_is_a_value() -> None:
    flow = Flow(lambda th: jnp.sum(th["x"] ** 2))
    ray = ManifoldFlow(flow, lambda z: {"x": z * np.array([1.0, 2.0])}, np.array(1.0))
    bent = ManifoldFlow(flow, lambda z: {"x": jnp.exp(z) * np.array([1.0, 2.0])}, np.array(0.1))
    assert ray.foot({"x": np.array([2.0, 4.0])}).converged
    # The nearest point of the open half line to a point behind it does not exist.
    foot = bent.foot({"x": np.array([-1.0, -2.0])})
    assert not foot.converged
    assert foot.distance == pytest.approx(1.0)
    assert "start nearer" in foot.sentence


def test_a_manifold_that_is_left_is_refused_with_the_part_that_leaves() -> None:
    flow = Flow(lambda th: jnp.sum((th["x"] - np.array([1.0, 2.0])) ** 2))
    with pytest.raises(InputError, match=r"parametrisation: is not invariant: 0\.\d+ of the"):
        ManifoldFlow(flow, lambda z: {"x": z * jnp.ones(2)}, np.array(0.1))


def test_redundant_coordinates_are_refused() -> None:
    flow = Flow(lambda th: jnp.sum(th["x"] ** 2))
    two = {"a": np.array(1.0), "b": np.array(1.0)}
    with pytest.raises(InputError, match="rank 1 with 2 coordinates"):
        ManifoldFlow(flow, lambda z: {"x": z["a"] * z["b"] * jnp.ones(3)}, two)
    with pytest.raises(InputError, match="4 coordinates for 3 parameters"):
        ManifoldFlow(flow, lambda z: {"x": z[:3]}, np.ones(4))


def test_a_parametrisation_outside_jax_or_its_domain_is_refused() -> None:
    flow = Flow(lambda th: jnp.sum(th["x"] ** 2))
    with pytest.raises(InputError, match=r"not written with jax\.numpy"):
        ManifoldFlow(flow, lambda z: {"x": np.full(3, float(z))}, np.array(1.0))
    with pytest.raises(InputError, match="a function of z"):
        ManifoldFlow(flow, 3, np.array(1.0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give sample="):
        ManifoldFlow(flow, lambda z: {"x": jnp.sqrt(z) * jnp.ones(2)}, np.array(0.01))
