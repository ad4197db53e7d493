"""The largest margin of the attention feature: certificates, conventions, the symmetric form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from attnflow._errors import InputError
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.studies.two_mixture import algorithm
from attnflow.studies.two_mixture.margin import (
    largest_margin,
    margin,
    signed_features,
    symmetric_features,
)
from attnflow.tasks.mixture import MixtureClassification

TWO = MixtureClassification(2, 3)
DUALITY = 1e-9


def feasible(Z: np.ndarray) -> bool:
    """Whether some u has `Z u >= 1`, by a linear program: an independent answer."""
    found = linprog(
        np.zeros(Z.shape[1]), A_ub=-Z, b_ub=-np.ones(len(Z)), bounds=(None, None), method="highs"
    )
    return found.status == 0


@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 12), d=st.integers(1, 5), shift=st.floats(0, 3)
)
def test_both_certificates_enclose_the_margin(seed, n, d, shift):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, d)) + shift * np.eye(d)[0]
    found = largest_margin(Z)
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1)
    # The dual weights bound every direction, this one and random ones.
    assert found.upper == pytest.approx(np.linalg.norm(found.weights @ Z), abs=1e-12)
    for u in rng.standard_normal((20, d)):
        assert (Z @ u).min() / np.linalg.norm(u) <= found.upper + DUALITY
    assert found.separable == feasible(Z)
    if found.separable:
        assert np.linalg.norm(found.direction) == pytest.approx(1)
        assert (Z @ found.direction).min() == pytest.approx(found.lower)
        assert found.lower == pytest.approx(found.upper, rel=1e-7)


@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(2, 4),
    length=st.integers(3, 4),
    gates=st.sampled_from(["all_on", "actual"]),
)
@example(seed=47, groups=8, length=3, gates="all_on")  # where nnls stops at a worse margin
def test_three_numbers_per_orbit_have_the_margin_of_all_samples(seed, groups, length, gates):
    task = MixtureClassification(groups, length)
    flow = symmetric_flow(task.orbits, 0.1, 0.5)
    state = flow.sample(np.random.default_rng(seed), flow.start)
    lifted = flow.lift(state)
    full = signed_features(task.population, lifted["w"], lifted["S"], 0.5, gates)
    few = symmetric_features(flow, state, gates)
    assert largest_margin(few).upper == pytest.approx(largest_margin(full).upper, abs=1e-8)


def test_the_feature_is_that_of_equation_two():
    """`[w_+, w_-, 1] . F(X) = f(X)` with the actual gates."""
    model = TwoHeadClassifier.gaussian(2, 5, 1.0, bias=0.3, neurons=1.0, seed=3)
    population = TWO.population
    F = signed_features(population, model.w, model.scores, 0.3, "actual")
    weights = np.concatenate([np.asarray(model.w).ravel(), [1.0]])
    from attnflow.models.two_head import tables

    f = tables(population).predictions(np.asarray(model.w), np.asarray(model.scores), 0.3)
    np.testing.assert_allclose(F @ weights, population.label * f, atol=1e-14)


def test_uniform_attention_is_not_separable_and_stage_two_makes_it_so():
    run = algorithm.three_stages(TWO, 0.1, 0.5, 20.0, 1.0)
    hard = symmetric_flow(TWO.orbits.restricted(agreement=-1), 0.1, 0.5)
    before = margin(hard, run.at_t1)
    flow = symmetric_flow(TWO.orbits, 0.1, 0.5)
    assert margin(flow, flow.start).value == 0.0
    assert margin(flow, run.at_t1, "actual").value == 0.0
    after = margin(flow, run.at_t2)
    assert after.value == pytest.approx(0.4334, abs=1e-4)
    assert after.lower == pytest.approx(after.upper, rel=1e-9)
    assert before.upper < 1e-12  # the conflicting samples alone
    # 1/margin^2 is the constant of Theorem F.3.
    assert 1e-3 * run.times[1e-3] == pytest.approx(1 / after.value**2, rel=0.01)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: largest_margin(np.zeros((0, 3))), "features"),
        (lambda: largest_margin(np.full((2, 2), np.nan)), "features"),
        (lambda: signed_features(TWO.population, np.ones(4), np.ones((2, 4, 4)), 0.5), "scores"),
        (
            lambda: signed_features(TWO.population, np.ones((2, 4)), np.ones((2, 4, 4)), 0.5, "on"),
            "gates",
        ),
        (
            lambda: signed_features(
                TWO.population, np.ones((2, 4)), np.ones((2, 4, 4)), 0.5, np.ones((2, 3))
            ),
            "gates",
        ),
    ],
)
def test_bad_features_are_refused_in_a_sentence(call, field):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.field == field
