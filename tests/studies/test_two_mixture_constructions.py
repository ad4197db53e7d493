"""Hand-made weights: exact enumeration, the printed Lemma 6.1 and its repair, a user's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from attnflow._errors import InputError
from attnflow.models.two_head import TwoHeadClassifier
from attnflow.studies.two_mixture import constructions
from attnflow.studies.two_mixture.constructions import (
    Construction,
    corrected,
    examine,
    printed,
    resigned,
    transposed,
)
from attnflow.tasks.mixture import MixtureClassification


def by_hand(construction: Construction, length: int) -> np.ndarray:
    """y f of every sample, written out from eq. (1) token by token."""
    population = MixtureClassification(construction.groups, length).population
    out = []
    for tokens, signs, y in zip(population.token, population.sign, population.label, strict=True):
        X = signs[:, None] * np.eye(population.dimension)[tokens]
        heads = []
        for w, S in zip(construction.w, construction.S, strict=True):
            total = 0.0
            for query in X:
                z = np.array([key @ S @ query for key in X])
                p = np.exp(z - z.max())
                total += (p / p.sum()) @ (X @ w)
            heads.append(total)
        if construction.relu:
            heads = [max(h + construction.bias, 0.0) for h in heads]
        out.append(y * (heads[0] - heads[1]))
    return np.array(out)


@pytest.mark.parametrize("make", [printed, transposed, resigned, corrected])
@pytest.mark.parametrize(("groups", "length"), [(2, 3), (3, 4)])
def test_the_checker_agrees_with_eq_one_written_out(make, groups, length):
    built = make(groups, 1.5)
    expected = by_hand(built, length)
    found = examine(built, length)
    assert found.smallest == pytest.approx(expected.min(), abs=tolerances.SUM_OF_MANY)
    assert len(found.failing) == int((expected <= 1e-9).sum())
    assert found.samples == len(expected)


def test_the_printed_construction_says_plus_one_to_everything():
    for groups in (2, 3, 8):
        built = constructions.printed(groups, 40.0)
        task = MixtureClassification(groups, 3)
        np.testing.assert_allclose(built.predictions(task), 1.0, atol=1e-12)
        found = examine(built)
        assert found.accuracy == pytest.approx(0.5)
        assert not found.solves
        assert all(" -v" in name for name in found.failing)
    np.testing.assert_allclose(
        constructions.transposed(2, 40.0).predictions(MixtureClassification(2, 3)), -1.0, atol=1e-12
    )


def test_changing_the_second_sign_repairs_three_tokens_only():
    assert examine(constructions.resigned(4), 3).solves
    assert examine(constructions.resigned(4), 4).accuracy == pytest.approx(0.75)


@given(groups=st.integers(2, 8), length=st.integers(3, 5), scale=st.floats(0.05, 20))
def test_the_corrected_construction_solves_any_number_of_groups(groups, length, scale):
    if MixtureClassification(groups, length).count > 3000:
        length = 3
    assert examine(constructions.corrected(groups, scale), length).solves


def test_the_size_of_the_corrected_construction():
    for groups in range(2, 9):
        assert examine(constructions.corrected(groups)).smallest == pytest.approx(0.461, abs=5e-4)
    for length, expected in {3: (0.461, 0.905, 0.9999), 4: (0.336, 0.862, 0.9999)}.items():
        sizes = [examine(constructions.corrected(3, C), length).smallest for C in (1.0, 3.0, 10.0)]
        assert sizes == pytest.approx(expected, abs=1e-3)


def test_weights_of_ones_own_are_checked_and_named():
    model = TwoHeadClassifier.gaussian(3, 4, 0.5, neurons=1.0, seed=2)
    found = examine(Construction.of(model, "mine"), 4)
    assert found.name == "mine"
    assert found.accuracy < 1
    assert set(found.failing) <= set(MixtureClassification(3, 4).population.names())
    assert "mine: fails on" in repr(found)
    nothing = examine(Construction(np.zeros((2, 4)), np.zeros((2, 4, 4))))
    assert nothing.accuracy == 0.0  # f = 0 decides nothing


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: Construction(np.ones(4), np.ones((2, 4, 4))), "w", "2 heads x 2K signals"),
        (lambda: Construction(np.ones((2, 5)), np.ones((2, 5, 5))), "w", "(2, 5)"),
        (lambda: Construction(np.ones((2, 2)), np.ones((2, 2, 2))), "w", "K >= 2"),
        (lambda: Construction(np.ones((2, 4)), np.ones((2, 4, 5))), "S", "4 keys x 4 queries"),
        (lambda: Construction(np.ones((2, 4)), np.full((2, 4, 4), np.inf)), "w, S", "finite"),
        (lambda: Construction("ab", np.ones((2, 4, 4))), "w", "numbers"),
        (lambda: Construction(np.ones((2, 4)), np.ones((2, 4, 4)), np.nan), "bias", "finite"),
        (lambda: constructions.corrected(1), "groups", "at least 2"),
        (lambda: constructions.corrected(2, -1.0), "scale", "positive"),
        (
            lambda: constructions.corrected(2).predictions(MixtureClassification(3, 3)),
            "task",
            "K = 2",
        ),
        (lambda: examine(constructions.corrected(8), 9), "population", "1,240,320"),
    ],
)
def test_wrong_shapes_are_refused_in_a_sentence(make, field, words):
    with pytest.raises(InputError) as error:
        make()
    assert error.value.field == field
    assert words in error.value.sentence
