"""Symmetric critical points: the family, when it breaks, and the saddles that are visited."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.flows import integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.observe.stages import plateaus
from attnflow.studies.focus_dilution import rank_one, symmetric, theory
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks import MarkovChain
from tolerances import CLOSED_FORM_VS_AUTODIFF, PRINTED

DEFAULT = MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8)
S3 = MarkovChain((0.75, 0.125, 0.125), 0.8)
STATE_OF_ORDER_ONE = 1e-12  # forces of rounding size at states of order one to ten


@st.composite
def laws(draw: st.DrawFn, least: int = 2) -> TwoGroup:
    d = draw(st.integers(least, 8))
    above = draw(st.floats(0.02, 0.98))
    return TwoGroup(1 / d + (1 - 1 / d) * above, draw(st.floats(0.02, 0.98)), d)


sharpnesses = st.floats(0.1, 40.0)
scales = st.floats(0.5, 3.0)


def split_direction(d: int) -> np.ndarray:
    e = np.zeros(d)
    e[1:3] = np.array([1.0, -1.0]) / np.sqrt(2)
    return e


# --- The family and its Hessian.


@given(law=laws(), sharpness=sharpnesses, scale=scales)
def test_both_forces_vanish_at_every_member(law: TwoGroup, sharpness: float, scale: float) -> None:
    z = symmetric.symmetric_state(law, sharpness, scale)
    assert z[4] * z[5] * (z[0] - z[1]) ** 2 == pytest.approx(sharpness)
    assert np.abs(law.residuals(z)).max() < 1e-13 * (1 + sharpness)
    state = rank_one.state_of(law.lift(z))
    GM, GP = one_layer.token_gradients(state.readout, state.score, law.chain)
    size = 1 + np.abs(state.readout).max()
    assert np.abs(GM).max() < STATE_OF_ORDER_ONE * size
    assert np.abs(GP).max() < STATE_OF_ORDER_ONE * size**2
    assert float(rank_one.loss(law.lift(z), law.chain)) == pytest.approx(
        symmetric.two_group_loss(law), rel=1e-12
    )


@given(law=laws(), eta=st.floats(0.05, 10.0))
def test_the_balanced_member_lies_on_the_leaf_of_small_starts(law: TwoGroup, eta: float) -> None:
    z = symmetric.balanced_state(law, eta)
    x, d = law.lift(z), law.tokens
    assert z[4] * z[5] == pytest.approx(eta)
    assert x[d : 2 * d].sum() == pytest.approx(0, abs=1e-12)
    assert x[:d] @ x[:d] == pytest.approx(x[d:] @ x[d:], rel=1e-9)
    assert np.abs(law.residuals(z)).max() < 1e-10


@given(law=laws(3), sharpness=sharpnesses, scale=scales)
def test_the_two_by_two_hessian_is_the_antisymmetric_block(
    law: TwoGroup, sharpness: float, scale: float
) -> None:
    z, d = symmetric.symmetric_state(law, sharpness, scale), law.tokens
    J = rank_one.jacobian(law.lift(z), law.chain)
    e = split_direction(d)
    basis = np.stack([np.r_[e, np.zeros(d + 2)], np.r_[np.zeros(d), e, 0, 0]], axis=1)
    H = symmetric.antisymmetric_hessian(law, z)
    size = 1 + np.abs(J).max()
    assert np.abs(-basis.T @ J @ basis - H).max() < STATE_OF_ORDER_ONE * size
    # The block is invariant: the Jacobian leads nowhere else from it.
    assert np.abs(J @ basis - basis @ (basis.T @ J @ basis)).max() < STATE_OF_ORDER_ONE * size
    rate = symmetric.antisymmetric_rate(law, z)
    assert rate == pytest.approx(-np.linalg.eigvalsh(H)[0], rel=1e-6, abs=1e-11 * size)
    margin = symmetric.instability_margin(law.pi1, law.lam, d)
    if abs(margin) > 1e-9 and abs(rate) > 1e-200:
        assert (rate > 0) == (margin > 0)


def test_the_rate_at_the_symmetric_point_of_three_tokens() -> None:
    system = TwoGroup.of(S3)
    rates = [
        float(symmetric.antisymmetric_rate(system, symmetric.balanced_state(system, eta)))
        for eta in (0.8, 1.394, 2.0, 3.0, 5.0)
    ]
    expected = [0.024514779, 0.023072619, 0.010657340, 1.4871715e-4, 8.262326e-13]
    assert rates == pytest.approx(expected, rel=1e-6)
    assert symmetric.two_group_loss(system) == pytest.approx(0.427850, abs=PRINTED)


def test_where_the_proof_has_no_point_the_rate_does_not_die() -> None:
    """(1 - lam) pi1 > 1/d and unstable: the lower tokens keep attending to token 1."""
    law = TwoGroup(0.278125, 0.475, 8)
    assert symmetric.instability_margin(law.pi1, law.lam, 8) > 0
    assert law.first[1] > 1 / 8
    rates = [
        float(symmetric.antisymmetric_rate(law, symmetric.balanced_state(law, eta)))
        for eta in (1.0, 4.0, 16.0, 64.0)
    ]
    assert all(b > a for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize(("d", "share"), [(3, 0.44), (4, 0.434), (8, 0.393)])
def test_the_phase_map_has_a_name_for_every_axis(d: int, share: float) -> None:
    n = 40
    pi1, lam = np.linspace(1 / d, 1, n + 2)[1:-1], np.linspace(0, 1, n + 2)[1:-1]
    found = symmetric.instability_map(pi1, lam, d)
    assert found["unstable"].dims == ("pi1", "lam")
    assert float(found["unstable"].mean()) == pytest.approx(share, abs=1e-3)
    assert ((found["margin"] > 0) == found["unstable"]).all()
    # More staying breaks the symmetry, never less of it: one border per pi1.
    borders = np.diff(found["unstable"].values.astype(int), axis=1)
    assert (borders >= 0).all()


def test_bad_grids_and_states_are_refused() -> None:
    with pytest.raises(InputError, match="tokens: 2; a whole number of at least 3"):
        symmetric.instability_map([0.6], [0.5], 2)
    with pytest.raises(InputError, match=r"pi1_grid: .* between 0.3333 and 1"):
        symmetric.instability_map([0.2, 0.6], [0.5], 3)
    with pytest.raises(InputError, match="lam_grid"):
        symmetric.instability_map([0.6], [], 3)
    with pytest.raises(InputError, match="sharpness"):
        symmetric.symmetric_state(TwoGroup.of(S3), 0.0)
    with pytest.raises(InputError, match="eta"):
        symmetric.balanced_state(TwoGroup.of(S3), -1.0)


# --- The saddles.


@pytest.mark.parametrize(
    ("chain", "losses", "rates"),
    [
        (S3, [0.735622, 0.427850, 0.423619], [0.0662578, 0.0230765, 0.0112382]),
        (DEFAULT, [0.727139, 0.490720], [0.1276555, 0.061016]),
    ],
)
def test_saddles_have_their_known_losses_and_rates(chain, losses, rates) -> None:
    origin, *rest = symmetric.visited_saddles(chain)
    assert origin.rate == pytest.approx(theory.escape_rate(chain))
    assert [s.loss for s in rest] == pytest.approx(losses, abs=2 * PRINTED)
    assert [s.rate for s in rest] == pytest.approx(rates, abs=2e-6)
    for s in rest:
        assert np.abs(rank_one.velocity(s.z, chain)).max() < 1e-12


def test_symmetric_data_are_left_by_a_split_and_then_by_a_new_direction() -> None:
    names = [(s.name, s.mode) for s in symmetric.visited_saddles(S3)]
    assert names == [
        ("origin", "embedding and read-out"),
        ("unigram", "attention"),
        ("two-group optimum", "split within rank one"),
        ("rank-one optimum", "new direction"),
    ]
    end = symmetric.visited_saddles(S3)[-1].z
    assert abs(end[1] - end[2]) > 0.5  # the equal tokens have parted


def test_the_plateau_of_the_default_law_is_a_saddle_within_rank_one_too() -> None:
    """The rank-one flow itself would go on to 0.4855; the new direction comes first."""
    s = symmetric.visited_saddles(DEFAULT)[-1]
    J = rank_one.jacobian(s.z, DEFAULT)
    within = np.linalg.eigvalsh((J + J.T) / 2)[-1]
    assert s.name == "rank-one saddle"
    assert 1e-3 < within < 0.1 * s.rate


@pytest.mark.parametrize("chain", [S3, DEFAULT, MarkovChain((0.5, 0.2, 0.2, 0.1), 0.8)])
def test_rates_are_those_of_the_whole_flow(chain: MarkovChain) -> None:
    e = np.eye(2)[0]
    for s in symmetric.visited_saddles(chain):
        if not s.critical:
            continue
        theta = rank_one.rank_one_lift(rank_one.state_of(s.z), e, e)
        system = population_flow(chain).bind(theta)
        J = system.jacobian(system.layout.flatten(theta))
        assert np.linalg.eigvalsh((J + J.T) / 2)[-1] == pytest.approx(s.rate, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("chain", "names"),
    [
        (MarkovChain((1 / 3, 1 / 3, 1 / 3), 0.5), ["origin"]),
        (MarkovChain((0.75, 0.25), 0.8), ["origin", "unigram", "two-group optimum"]),
        (MarkovChain((0.8, 0.1, 0.1), 0.3), ["origin", "unigram", "two-group optimum"]),
        (MarkovChain.of([[0.9, 0.1], [0.3, 0.7]]), ["origin", "unigram", "rank-one optimum"]),
        (
            MarkovChain((8 / 15, 4 / 15, 2 / 15, 1 / 15), 0.8),
            ["origin", "unigram", "rank-one passage"],
        ),
    ],
)
def test_other_laws_end_where_they_should(chain: MarkovChain, names: list[str]) -> None:
    visited = symmetric.visited_saddles(chain)
    assert [s.name for s in visited] == names
    losses = [s.loss for s in visited]
    assert all(b < a for a, b in itertools.pairwise(losses))
    if names[-1].endswith("optimum"):  # no linear mode is left
        assert visited[-1].rate == 0


def test_the_two_group_flow_from_a_tiny_start_stops_at_a_finite_eta() -> None:
    orbits = rank_one.two_group_flow(S3)
    start = {
        "W0": np.array([2e-4, 1e-4]),
        "W1": np.array([1e-4, -0.5e-4]),
        "WQ": np.array([1e-5]),
        "WK": np.array([1e-5]),
    }
    solution = integrate(orbits, start, until=500.0, rtol=1e-9, save=[0.0], progress=False)
    end = solution.final
    eta = float(end["WQ"][0] * end["WK"][0])
    predicted = symmetric.visited_saddles(S3)[2]
    assert orbits.loss(end) == pytest.approx(predicted.loss, abs=1e-9)
    assert eta == pytest.approx(float(predicted.z[-1] * predicted.z[-2]), abs=1e-3)
    assert eta == pytest.approx(1.394, abs=1e-3)


def test_the_whole_flow_waits_at_the_predicted_losses() -> None:
    """Width 4, a start of 1e-4, exactly symmetric data: three plateaus, in order."""
    start = OneLayerAttention.gaussian(3, 4, 1e-4, 0)
    t = integrate(population_flow(S3), start, until=1100.0, rtol=1e-7, progress=False).trajectory
    found = plateaus(t["time"].values, t["speed"].values, t["loss"].values)
    predicted = [s.loss for s in symmetric.visited_saddles(S3)[1:]]
    assert [p.loss for p in found[:3]] == pytest.approx(predicted, abs=1e-3)


def test_complex_steps_agree_with_the_compiled_jacobian() -> None:
    """What the regime map is measured with, against the compiled flow of width one."""
    system = TwoGroup.of(S3)
    z = symmetric.symmetric_state(system, 4.0, 2.0)
    state = rank_one.state_of(system.lift(z))
    J = population_flow(S3).bind(state).jacobian(system.lift(z))
    top = np.linalg.eigvalsh((J + J.T) / 2)[-1]
    assert float(symmetric.antisymmetric_rate(system, z)) == pytest.approx(
        top, abs=CLOSED_FORM_VS_AUTODIFF
    )
