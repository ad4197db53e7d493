"""The Gram of the weights carries the flow: any width, rates, groups and plain parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariant_losses import draw, product_loss, random_gram_loss, two_heads_loss, two_heads_weights

from attnflow.flows import Flow, Layout, Solver, integrate
from attnflow.reduce import Gram, GramFlow, gram, verify
from strategies import seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY, STANDARD_ERRORS

EXACT = {"rtol": 1e-12, "solver": Solver("scipy", "dop853")}
COMPARED = {**EXACT, "rtol": 1e-10}  # `verify` solves at 1e-12 too, just above rounding
CLOSURE = 1e-10  # two solves at rtol 1e-12: the figure to reach
FITTED = 0.05  # an exponent fitted over averages of random draws


@settings(max_examples=3)
@given(st.integers(1, 5), seeds)
def test_gram_flow_is_the_flow_of_the_weights_at_every_width(p: int, seed: int) -> None:
    flow = GramFlow(random_gram_loss(p, seed % 1000), p)
    for width in (p, 40):
        weights = {"H": draw(width, p, seed=seed, scale=width**-0.5)}
        found = verify(flow.full, flow, weights, 1.0, **COMPARED)
        assert found.agrees, found
        assert max(found.absolute) <= CLOSURE * max(1, np.sum(weights["H"] ** 2))


@settings(max_examples=6)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), seeds)
def test_gram_velocity_is_the_velocity_of_the_weights(k: int, q: int, width: int, seed: int):
    rates = {"K": 3.0, "Q": 0.5}
    f = random_gram_loss(k + q, seed % 1000)
    flow = GramFlow(lambda G: f(G.matrix), {"K": k, "Q": q}, rates=rates)
    weights = {"K": draw(width, k, seed=seed), "Q": draw(width, q, seed=seed + 1)}
    moved = flow.full.velocity(weights)
    H, dH = (np.concatenate([th["K"], th["Q"]], axis=1) for th in (weights, moved))
    found = flow.velocity(flow.project(weights))["gram"].matrix
    expected = dH.T @ H + H.T @ dH
    assert np.abs(found - expected).max() <= CLOSED_FORM_VS_AUTODIFF * max(
        1, np.abs(expected).max()
    )


def test_a_frozen_block_and_unequal_rates_close_too() -> None:
    f = random_gram_loss(6)
    blocks = {"a": 2, "b": 3, "c": 1}
    flow = GramFlow(lambda G: f(G.matrix), blocks, rates={"a": 4.0, "b": 0.0})
    weights = {n: draw(5, s, seed=i, scale=0.4) for i, (n, s) in enumerate(blocks.items())}
    found = verify(flow.full, flow, weights, 1.0, **COMPARED)
    assert found.agrees
    assert max(found.absolute) <= CLOSURE
    end = integrate(flow, flow.project(weights), 1.0, **EXACT).final
    assert np.abs(end["gram"]["b"] - weights["b"].T @ weights["b"]).max() <= IDENTITY
    assert np.abs(end["gram"]["a", "b"] - weights["a"].T @ weights["b"]).max() > 1e-2


def test_a_gram_below_full_rank_is_left_at_twice_the_top_force() -> None:
    """Why a Gram flow narrower than p is followed for a while only: the rate is known."""
    flow = GramFlow(random_gram_loss(5, 3), 5)
    start = flow.project({"H": draw(1, 5, seed=1)})
    state = integrate(flow, flow.state(start["gram"].matrix + 1e-9 * np.eye(5)), 1.0, **EXACT).final
    later = integrate(flow, state, 0.25, **EXACT).final
    with jax.enable_x64(True):
        force = [np.linalg.eigvalsh(flow.trace_forces(s)[""])[-1] for s in (state, later)]
    second = [np.linalg.eigvalsh(s["gram"].matrix)[-2] for s in (state, later)]
    grown = np.log(second[1] / second[0])
    assert grown == pytest.approx(2 * 0.25 * np.mean(force), rel=0.02)


def test_two_groups_of_different_width_and_plain_parameters_close() -> None:
    p = 3
    weights = two_heads_weights(p, widths=(4, 6))
    blocks = {"plus": {"K": p, "Q": p}, "minus": {"K": p, "Q": p}}
    flow = GramFlow(
        two_heads_loss(p),
        blocks,
        rates={"plus.K": 2.0, "minus": 0.5, "w": 3.0},
        balanced=[("plus.K", "plus.Q"), ("minus.K", "minus.Q")],
    )
    found = verify(flow.full, flow, weights, 1.0, **COMPARED)
    assert found.agrees
    assert max(found.absolute) <= CLOSURE
    assert found.parameters == (3 * 2 * 4 + 3 * 2 * 6 + 4, 2 * 21 + 4)
    solution = integrate(flow, flow.project(weights), 5.0, rtol=1e-9)
    assert len(solution.drifts) == 4
    assert solution.drift <= 1e-6


def test_two_layer_linear_network_follows_the_exact_singular_values() -> None:
    """`s' = 2 s (sigma - s)` per mode for balanced, aligned factors."""
    u, _ = np.linalg.qr(draw(3, 3, seed=1))
    v, _ = np.linalg.qr(draw(3, 3, seed=2))
    sigma, s0, t = np.array([3.0, 1.5, 0.5]), np.array([0.02, 0.01, 0.03]), 1.7
    target = u @ np.diag(sigma) @ v.T
    frame, _ = np.linalg.qr(draw(7, 3, seed=3))
    weights = {"out": frame * np.sqrt(s0) @ u.T, "in": frame * np.sqrt(s0) @ v.T}
    flow = GramFlow(
        lambda G: 0.5 * jnp.sum((G["out", "in"] - target) ** 2),
        {"out": 3, "in": 3},
        balanced=[("out", "in")],
    )
    solution = integrate(flow, flow.project(weights), t, **EXACT)
    found = u.T @ solution.final["gram"]["out", "in"] @ v
    expected = sigma / (1 + (sigma / s0 - 1) * np.exp(-2 * sigma * t))
    assert np.abs(found - np.diag(expected)).max() <= 1e-10
    assert solution.drift <= 1e-10


def test_balances_are_constant_in_all_forms_and_fix_the_spectrum() -> None:
    flow = GramFlow(
        product_loss(draw(2, 3)),
        {"K": 2, "Q": 3},
        rates={"Q": 2.5},
        balanced=[("K", "Q", "trace", "frobenius", "spectral")],
    )
    start = flow.project({"K": draw(6, 2, seed=1), "Q": draw(6, 3, seed=2)})
    solution = integrate(flow, start, 4.0, rtol=1e-10)
    assert set(solution.drifts) == {f"K-Q {kind}" for kind in ("trace", "frobenius", "spectral")}
    J = np.diag([1, 1, -0.4, -0.4, -0.4])

    def eigenvalues(state: Any) -> np.ndarray:
        return np.sort(np.linalg.eigvals(J @ state["gram"].matrix).real)

    assert np.abs(eigenvalues(solution.final) - eigenvalues(start)).max() <= 1e-7
    assert np.abs(solution.final["gram"].matrix - start["gram"].matrix).max() > 0.1
    with jax.enable_x64(True):
        forms = {kind: flow.balance("K", "Q", kind) for kind in ("trace", "frobenius", "spectral")}
        before, after = (
            {k: np.asarray(c(s)) for k, c in forms.items()} for s in (start, solution.final)
        )
    G = start["gram"]
    assert before["trace"] == pytest.approx(np.trace(G["K"]) - 0.4 * np.trace(G["Q"]))
    assert before["frobenius"] == pytest.approx(
        np.sum(G["K"] ** 2) - 0.8 * np.sum(G["K", "Q"] ** 2) + 0.16 * np.sum(G["Q"] ** 2)
    )
    for kind, value in before.items():
        assert after[kind] == pytest.approx(value, rel=1e-7), kind


def test_a_balance_that_the_loss_breaks_is_seen_to_drift() -> None:
    f = random_gram_loss(4)
    flow = GramFlow(lambda G: f(G.matrix), {"K": 2, "Q": 2}, balanced=[("K", "Q")])
    start = flow.project({"K": draw(5, 2, seed=1), "Q": draw(5, 2, seed=2)})
    assert integrate(flow, start, 1.0, rtol=1e-8).drift > 1e-3


def test_infinite_width_is_the_mean_over_draws() -> None:
    flow = GramFlow(product_loss(draw(2, 2)), {"K": 2, "Q": 2})
    expected = flow.infinite_width({"K": 0.5, "Q": 2.0})["gram"].matrix
    rng, width, count = np.random.default_rng(3), 50, 400
    scales = np.array([0.5, 0.5, 2.0, 2.0])
    draws = np.empty((count, 4, 4))
    for G in draws:
        H = rng.standard_normal((width, 4)) * scales / np.sqrt(width)
        G[:] = flow.project({"K": H[:, :2], "Q": H[:, 2:]})["gram"].matrix
    error = draws.std(axis=0, ddof=1) / np.sqrt(count)
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= STANDARD_ERRORS * error)


def test_finite_width_leaves_the_infinite_one_as_one_over_its_root() -> None:
    flow = GramFlow(product_loss(draw(2, 2)), {"K": 2, "Q": 2})
    system = flow.bind(flow.infinite_width(0.3))
    widths, count = np.array([64, 256, 1024, 4096]), 64
    starts = [system.layout.flatten(flow.infinite_width(0.3))]
    for width in widths:
        for seed in range(count):
            H = draw(width, 4, seed=seed, scale=0.3 * width**-0.5)
            starts.append(system.layout.flatten(flow.project({"K": H[:, :2], "Q": H[:, 2:]})))
    with jax.enable_x64(True):
        limit, *ends = np.asarray(jax.jit(jax.vmap(runge_kutta(system)))(np.array(starts)))
    gaps = np.reshape(ends - limit, (len(widths), -1))
    off = np.sqrt(np.mean(gaps**2, axis=1))
    slope, _ = np.polyfit(np.log(widths), np.log(off), 1)
    assert slope == pytest.approx(-0.5, abs=FITTED)


def runge_kutta(system: Any, until: float = 3.0, steps: int = 60) -> Any:
    """Classical steps of a fixed length, for many small flows at once."""
    h, f = until / steps, system.trace_velocity

    def step(_: Any, y: Any) -> Any:
        a = f(y)
        b = f(y + h / 2 * a)
        c = f(y + h / 2 * b)
        return y + h / 6 * (a + 2 * b + 2 * c + f(y + h * c))

    return lambda y: jax.lax.fori_loop(0, steps, step, y)


@settings(max_examples=10)
@given(st.integers(1, 5), st.integers(1, 12), seeds)
def test_lift_has_the_gram_that_it_was_given(p: int, width: int, seed: int) -> None:
    flow = GramFlow(lambda G, rest: jnp.sum(G) + rest["w"], p)
    rank = min(p, width)
    state = flow.project({"H": draw(rank, p, seed=seed), "w": np.array(0.5)})
    for chosen in (None, 5):
        lifted = flow.lift(state, width, seed=chosen)
        assert lifted["H"].shape == (width, p)
        assert lifted["w"] == 0.5
        again = flow.project(lifted)["gram"].matrix
        scale = np.abs(again).max()
        assert np.abs(again - state["gram"].matrix).max() <= 10 * p * IDENTITY * scale


def test_a_model_with_its_own_layout_is_read_through_columns() -> None:
    target = draw(2, 3, seed=1)
    full = Flow(lambda th: 0.5 * jnp.sum((th["W2"] @ th["W1"] - target) ** 2))
    start = {"W1": draw(4, 3, seed=2, scale=0.5), "W2": draw(2, 4, seed=3, scale=0.5)}
    flow = GramFlow(
        lambda G: 0.5 * jnp.sum((G["out", "in"] - target) ** 2),
        {"out": 2, "in": 3},
        columns=lambda th: {"out": th["W2"].T, "in": th["W1"]},
    )
    found = verify(full, flow, start, 2.0, **COMPARED)
    assert found.agrees
    assert max(found.absolute) <= CLOSURE


def test_a_start_made_of_grams_declares_the_blocks() -> None:
    K, Q = draw(5, 2, seed=1), draw(5, 3, seed=2)
    flow = GramFlow(lambda G: jnp.sum(G["K", "Q"] ** 2), start=gram({"K": K, "Q": Q}))
    assert flow.declaration.names == ["K", "Q"]
    assert np.abs(flow.start["gram"]["K", "Q"] - K.T @ Q).max() <= IDENTITY
    assert integrate(flow, flow.start, 0.1).status == "done"


def test_the_state_is_the_upper_triangle_and_reads_as_a_matrix() -> None:
    G = Gram(np.array([[2.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 1.0]]), {"K": 1, "Q": 2})
    layout = Layout({"gram": G})
    assert [b.name for b in layout.blocks] == ["gram.upper"]
    y = layout.flatten({"gram": G})
    assert np.array_equal(y, [2.0, 1.0, 0.5, 3.0, 0.2, 1.0])
    again = layout.unflatten(y)["gram"]
    assert np.array_equal(again.matrix, G.matrix)
    assert np.array_equal(again["Q"], G.matrix[1:, 1:])
    swapped = G.permute([0, 2, 1], [1, -1, 1])
    assert np.array_equal(swapped["K", "Q"], [[-0.5, 1.0]])
    assert swapped["Q"][0, 1] == -0.2


def test_products_with_the_jacobian_are_differences_of_velocities() -> None:
    flow = GramFlow(random_gram_loss(3), 3)
    start = flow.project({"H": draw(4, 3)})
    system = flow.bind(start)
    y, v, out = system.layout.flatten(start), draw(6, seed=1), np.empty(6)
    system.jvp(y, v, out)
    low, high, h = np.empty(6), np.empty(6), 1e-5
    system.rhs(y - h * v, low)
    system.rhs(y + h * v, high)
    assert np.abs(out - (high - low) / (2 * h)).max() <= 1e-6
    assert np.abs(system.jacobian(y) @ v - out).max() <= 1e-12
