"""Spectra of linearised flows against closed forms, dense against matrix-free."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import Flow, InputError
from attnflow.linearise import critical_point, spectrum
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.tasks import MarkovChain

SINGULAR = np.array([3.0, 2.0, 1.0])


def two_layer(width: int = 4, **more) -> tuple[Flow, dict]:
    def loss(th):
        return 0.5 * jnp.sum((th["W2"] @ th["W1"] - jnp.diag(jnp.asarray(SINGULAR))) ** 2)

    flow = Flow(
        loss,
        conserved={"balance": lambda th: th["W1"] @ th["W1"].T - th["W2"].T @ th["W2"]},
        **more,
    )
    return flow, {"W1": np.zeros((width, 3)), "W2": np.zeros((3, width))}


def test_the_origin_of_a_linear_network_has_rates_plus_and_minus_the_singular_values() -> None:
    flow, origin = two_layer(width=2)
    found = spectrum(flow, origin)
    assert found.complete
    assert found.symmetric
    expected = np.sort(np.concatenate([np.repeat(SINGULAR, 2), np.repeat(-SINGULAR, 2)]))[::-1]
    assert found.rates == pytest.approx(expected, abs=1e-12)
    assert found.index() == 6
    assert found.weights[0] == pytest.approx([0.5, 0.5], abs=1e-10)
    assert found.residuals.max() < 1e-12


@settings(max_examples=10)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_random_quadratics_give_their_own_eigenvalues(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((n, n))
    a = a + a.T
    flow = Flow(lambda th: 0.5 * th["x"] @ jnp.asarray(a) @ th["x"])
    found = spectrum(flow, {"x": np.zeros(n)})
    assert found.rates == pytest.approx(np.sort(-np.linalg.eigvalsh(a))[::-1], abs=1e-10)


def test_block_speeds_make_it_symmetric_in_the_metric() -> None:
    flow, origin = two_layer(width=2, rates={"W2": 4.0})
    found = spectrum(flow, origin)
    assert found.symmetric
    # Speeds 1 and 4 on the two factors: the rates are the geometric mean, 2 s.
    assert found.rates[:2] == pytest.approx([6.0, 6.0], abs=1e-10)
    assert found.residuals.max() < 1e-10
    assert found.weights[0] == pytest.approx([0.2, 0.8], abs=1e-10)


def test_a_frozen_block_does_not_move() -> None:
    flow, origin = two_layer(width=2, rates={"W2": 0.0})
    found = spectrum(flow, origin)
    assert found.rates == pytest.approx(np.zeros(6), abs=1e-12)
    assert (found.weights[:, 1] == 0).all()


def test_a_chosen_block_alone() -> None:
    chain = MarkovChain((0.75, 0.125, 0.125), 0.8)
    point = theory.unigram_point(chain, 3)
    found = spectrum(population_flow(chain), point, block=("WQ", "WK"))
    c = theory.focus_rate(chain)
    assert found.rates[0] == pytest.approx(c, rel=1e-12)
    assert found.rates[-1] == pytest.approx(-c, rel=1e-12)
    assert found.index() == 3
    with pytest.raises(InputError, match=r"did you mean"):
        spectrum(population_flow(chain), point, block="WQQ")


def test_matrix_free_agrees_with_dense_at_width_16() -> None:
    chain = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
    rng = np.random.default_rng(0)
    point = theory.unigram_point(chain, 16, rng.standard_normal(16))
    noise = OneLayerAttention.gaussian(4, 16, 1e-3, 3)
    near = OneLayerAttention(
        *(
            a + b
            for a, b in zip(
                (point.W0, point.W1, point.WQ, point.WK),
                (noise.W0, noise.W1, noise.WQ, noise.WK),
                strict=True,
            )
        )
    )
    flow = population_flow(chain)
    dense = spectrum(flow, near, top=5, bottom=2, method="dense")
    free = spectrum(flow, near, top=5, bottom=2, method="krylov")
    assert free.products <= 200
    assert free.rates == pytest.approx(dense.rates, abs=1e-8)
    assert free.residuals.max() < 1e-7


def test_bad_input_names_the_field() -> None:
    flow, origin = two_layer()
    with pytest.raises(InputError, match=r"^top: "):
        spectrum(flow, origin, top=-1)
    with pytest.raises(InputError, match=r"^method: "):
        spectrum(flow, origin, method="denes")
    with pytest.raises(InputError, match=r"^start"):
        spectrum(flow, {**origin, "W1": np.full((4, 3), np.nan)})
    with pytest.raises(InputError, match=r"^loss: "):
        spectrum(Flow(lambda th: th["x"]), {"x": np.zeros(2)})


def test_newton_stays_on_the_leaf_of_the_conserved_quantities() -> None:
    # The first mode half learned, with unequal factors: its leaf holds a saddle of its own.
    flow, _ = two_layer(width=3)
    near = {
        "W1": np.outer([1.9, 0.3, 0.1], [1.0, 0, 0]),
        "W2": np.outer([1.0, 0, 0], [1.1, 0, 0.2]),
    }
    held = critical_point(flow, near)
    assert held.converged, held.sentence
    assert held.speed < 1e-10
    assert max(held.conserved.values()) < 1e-10
    assert held.loss == pytest.approx(0.5 * (4 + 1), abs=1e-9)  # the first mode is learned
    free = critical_point(flow, near, hold=False)
    system = flow.bind(near)
    moved = [
        np.abs(
            system.conserved(system.layout.flatten(p.theta))["balance"]
            - system.conserved(system.layout.flatten(near))["balance"]
        ).max()
        for p in (held, free)
    ]
    assert moved[0] < 1e-10 < moved[1]


def test_a_double_well_has_its_three_critical_points() -> None:
    flow = Flow(lambda th: (th["x"] ** 2 - 1.0) ** 2 / 4)
    for near, where, index in ((0.1, 0.0, 1), (0.8, 1.0, 0), (-1.3, -1.0, 0)):
        found = critical_point(flow, {"x": np.array(near)})
        assert found.theta["x"] == pytest.approx(where, abs=1e-10)
        assert found.index == index


def test_a_search_that_cannot_converge_is_a_status() -> None:
    flow = Flow(lambda th: jnp.sum(jnp.exp(th["x"])))  # no critical point at finite x
    found = critical_point(flow, {"x": np.zeros(2)}, max_iterations=8)
    assert not found.converged
    assert found.index is None
    assert "above the tolerance" in found.sentence
    assert "not converged" in repr(found)
