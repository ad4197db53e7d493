"""The rank-one manifold: the flow of width one, and its two-group form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.flows import integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.claims import dilution
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks import MarkovChain
from strategies import chains, seeds
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY

DEFAULT = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
S3 = MarkovChain((0.75, 0.125, 0.125), 0.8)
SOLVED_EQUALLY = 1e-8  # two solves of one trajectory at rtol 1e-11, at equal times


@st.composite
def systems(draw: st.DrawFn) -> TwoGroup:
    d = draw(st.integers(2, 8))
    above = draw(st.floats(0.02, 0.98))
    return TwoGroup(1 / d + (1 - 1 / d) * above, draw(st.floats(0.01, 0.99)), d)


def random_state(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size)


def arrays(theta: OneLayerAttention) -> list[np.ndarray]:
    return [np.asarray(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK)]


def gap(a: OneLayerAttention, b: OneLayerAttention) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(arrays(a), arrays(b), strict=True))


# --- The manifold.


@given(chain=chains, seed=seeds)
def test_the_flow_is_tangent_and_is_that_of_width_one(chain: MarkovChain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = rank_one.state_of(rng.normal(size=2 * chain.tokens + 2))
    alpha, alpha_tilde = rng.normal(size=(2, 5))
    lifted = rank_one.rank_one_lift(state, alpha, alpha_tilde)
    narrow = one_layer.velocity(state, chain)
    size = max(np.abs(w).max() for w in arrays(narrow))
    predicted = rank_one.rank_one_lift(narrow, alpha, alpha_tilde)
    assert gap(one_layer.velocity(lifted, chain), predicted) <= 10 * IDENTITY * (1 + size)


@given(chain=chains, seed=seeds)
def test_the_closed_form_is_minus_the_gradient(chain: MarkovChain, seed: int) -> None:
    z = random_state(2 * chain.tokens + 2, seed)
    v = rank_one.velocity(z, chain)
    scale = CLOSED_FORM_VS_AUTODIFF * (1 + np.abs(v).max())
    model = rank_one.vector(one_layer.velocity(rank_one.state_of(z), chain))
    by_loss = -rank_one.derivative(lambda x: rank_one.loss(x, chain), z)
    assert np.abs(v - model).max() <= scale
    assert np.abs(v - by_loss).max() <= scale


@pytest.mark.parametrize("chain", [DEFAULT, MarkovChain.of([[0.9, 0.1], [0.3, 0.7]])])
def test_complex_steps_give_the_compiled_derivatives(chain: MarkovChain) -> None:
    z = random_state(2 * chain.tokens + 2, 3)
    state, flow = rank_one.state_of(z), population_flow(chain)
    assert flow.loss(state) == pytest.approx(float(rank_one.loss(z, chain)), rel=1e-14)
    compiled = flow.bind(state).jacobian(z)
    assert np.abs(rank_one.jacobian(z, chain) - compiled).max() <= CLOSED_FORM_VS_AUTODIFF
    GM, _ = one_layer.token_gradients(state.readout, state.score, chain)
    assert np.abs(rank_one.readout_gradient(z, chain) - GM).max() <= IDENTITY


# --- Two groups.


@given(system=systems(), seed=seeds)
def test_the_two_group_system_is_the_rank_one_flow(system: TwoGroup, seed: int) -> None:
    z = random_state(6, seed)
    v = rank_one.velocity(system.lift(z), system.chain)
    assert np.abs(system.lift(system.velocity(z)) - v).max() <= 10 * IDENTITY * (
        1 + np.abs(v).max()
    )


@given(system=systems())
def test_the_entry_state_is_critical_and_the_mode_has_its_closed_form(system: TwoGroup) -> None:
    z = rank_one.entry(system)
    assert np.abs(system.velocity(z)).max() < 1e-14 * np.abs(z).max()
    assert abs(system.contrast(z)) < 1e-14
    rate = theory.focus_rate(system.chain)
    if rate < 1e-5:
        return  # the eigenvector of a rate near rounding is rounding
    values, vectors = np.linalg.eig(dilution.linearised(system)[1])
    assert np.real(values).max() == pytest.approx(2 * rate, rel=1e-8)
    v = np.real(vectors[:, np.argmax(np.real(values))])
    assert system.redistribution() == pytest.approx((v[0] / v[4], v[1] / v[4]), rel=1e-5, abs=1e-9)
    assert system.redistribution()[1] < 0  # gamma_low always falls


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_orbits_are_the_six_numbers(d: int) -> None:
    chain = MarkovChain((0.6, *[0.4 / (d - 1)] * (d - 1)), 0.7)
    reduced = rank_one.two_group_flow(chain)
    assert len(reduced.coordinates) == 6
    z = random_state(6, d)
    state = {"W0": z[:2], "W1": z[2:4], "WQ": z[4:5], "WK": z[5:]}
    v = reduced.velocity(state)
    flat = np.concatenate([np.ravel(v[name]) for name in ("W0", "W1", "WQ", "WK")])
    assert np.abs(flat - TwoGroup.of(chain).velocity(z)).max() <= 10 * IDENTITY


def test_reduced_and_full_trajectories_are_one() -> None:
    """The lift at width 4, width one, and the orbits end in the same place at the same time."""
    rng = np.random.default_rng(5)
    system = TwoGroup.of(S3)
    z = rank_one.entry(system, 0.05)
    narrow = rank_one.state_of(system.lift(z))
    alpha, alpha_tilde = rng.normal(size=(2, 4))
    wide = rank_one.rank_one_lift(narrow, alpha, alpha_tilde)
    orbits = rank_one.two_group_flow(S3)
    options = {"until": 60.0, "rtol": 1e-11, "save": [0.0], "progress": False}
    full = integrate(population_flow(S3), wide, **options).final
    one = integrate(population_flow(S3), narrow, **options).final
    six = integrate(orbits, orbits.project(narrow), **options).final
    assert abs(one.WQ[0, 0] - 0.05) > 0.5  # it moved: attention has grown
    assert gap(full, rank_one.rank_one_lift(one, alpha, alpha_tilde)) < SOLVED_EQUALLY
    assert gap(orbits.lift(six), one) < SOLVED_EQUALLY


def test_bad_input_is_refused_in_one_sentence() -> None:
    state = rank_one.state_of(np.ones(8))
    with pytest.raises(InputError, match=r"beta: shape \(2,\) beside gamma \(3,\)"):
        rank_one.rank_one_state(np.ones(3), np.ones(2), 1.0, 1.0)
    with pytest.raises(InputError, match="alpha: 0, 0; a direction"):
        rank_one.rank_one_lift(state, np.zeros(2), np.ones(2))
    with pytest.raises(InputError, match="alpha_tilde"):
        rank_one.rank_one_lift(state, np.ones(2), np.ones(3))
    with pytest.raises(InputError, match="state: width 2; a rank-one state has width 1"):
        rank_one.vector(OneLayerAttention.gaussian(3, 2, 1.0))
    with pytest.raises(InputError, match=r"chain: .* two groups are a two-term chain"):
        rank_one.two_group_flow(DEFAULT)
    with pytest.raises(InputError, match="chain"):
        TwoGroup.of(MarkovChain.of([[0.9, 0.1], [0.3, 0.7]]))
