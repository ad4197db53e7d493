"""Word co-occurrence: classes, training sets, the exact law against Def. 2.1, bad input."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import InputError
from attnflow.tasks import WordCooccurrence
from tolerances import IDENTITY, STANDARD_ERRORS, SUM_OF_MANY


@st.composite
def tasks(draw: st.DrawFn) -> WordCooccurrence:
    k = draw(st.integers(1, 3))
    length = draw(st.integers(max(3, k + 1), 6))
    return WordCooccurrence(length, k + 1 + draw(st.integers(6, 12)), k)


def test_classes_are_subsets_from_the_largest():
    task = WordCooccurrence()
    assert task.classes == ((0, 1), (0,), (1,), ())
    assert task.names == ("both", "only 1", "only 2", "none")
    assert task.label.tolist() == [1, -1, -1, -1]
    assert task.counts(60).tolist() == [30, 10, 10, 10]
    three = WordCooccurrence(5, 64, 3)
    assert three.classes[:4] == ((0, 1, 2), (0, 1), (0, 2), (1, 2))
    assert three.law == (Fraction(1, 2), *[Fraction(1, 14)] * 7)
    assert three.step == 14


def test_proportions_as_rounded_decimals_are_the_fractions_meant():
    given = (0.5, 0.1666667, 0.1666667, 0.1666666)
    assert WordCooccurrence(proportions=given).counts(60).tolist() == [30, 10, 10, 10]
    assert WordCooccurrence(proportions=(0.4, 0.3, 0.2, 0.1)).counts(30).tolist() == [12, 9, 6, 3]


def test_the_vocabulary_of_distinct_words():
    assert [WordCooccurrence(5).needed(n, "distinct") for n in (6, 60, 120)] == [19, 163, 323]
    assert WordCooccurrence(5).needed(60, "within") == 7
    assert WordCooccurrence(5).needed(60, "iid") == 4


@settings(max_examples=30, deadline=None)
@given(tasks(), st.sampled_from(["distinct", "within", "iid"]), st.integers(0, 99))
def test_a_training_set_keeps_what_its_mode_promises(task, tokens, seed):
    n = task.step
    if tokens == "distinct":
        task = WordCooccurrence(task.length, task.needed(n, tokens), task.targets)
    X = task.training(n, tokens, seed)
    k = task.targets
    assert np.bincount(X.kind).tolist() == task.counts(n).tolist()
    assert X.weight.sum() == pytest.approx(1, abs=IDENTITY)
    assert (X.bags.sum(axis=1) == task.length).all()
    assert (X.bags[:, : k + 1] == task.relevant[X.kind]).all()
    assert (X.label == np.where(X.bags[:, :k].all(axis=1), 1, -1)).all()
    if tokens == "distinct":
        assert (X.bags[:, k + 1 :].sum(axis=0) <= 1).all()
    if tokens == "within":
        assert X.repeats == 0
    assert task.training(n, tokens, seed) == X


def test_independent_words_repeat():
    X = WordCooccurrence(6, 5).training(12, "iid", 0)
    assert X.repeats > 0


def brute_force(task: WordCooccurrence) -> dict[tuple[int, ...], float]:
    """Def. 2.1 without positions: every sequence of irrelevant words, one by one."""
    first, found = task.targets + 1, {}
    words = range(first, task.vocab)
    for subset, p in zip(task.classes, task.law, strict=True):
        size = task.length - 1 - len(subset)
        for drawn in product(words, repeat=size):
            bag = (*subset, task.targets, *sorted(drawn))
            found[bag] = found.get(bag, 0.0) + float(p) / len(words) ** size
    return found


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 2), st.integers(3, 5), st.integers(1, 4))
def test_the_population_is_definition_2_1(k, length, words):
    task = WordCooccurrence(length, k + 1 + words, k)
    X, told = task.population, brute_force(task)
    assert len(X) == task.count == len(told)
    listed = zip(map(tuple, X.token.tolist()), X.weight.tolist(), strict=True)
    assert dict(listed) == pytest.approx(told, rel=SUM_OF_MANY)
    assert X.weight.sum() == pytest.approx(1, abs=1e-12)


def test_bags_of_groups_are_the_population_where_a_group_is_alike():
    task = WordCooccurrence(5, 10)
    groups = np.repeat([0, 1, 2], [4, 2, 1])
    value = np.array([0.3, -0.7, 1.1])
    G = np.concatenate([[0.5, 0.2, -0.4], value[groups]])
    bags = task.bags(np.array([4, 2, 1]))
    F = (task.relevant @ G[:3])[bags.kind] + bags.times @ value
    X = task.population
    for moment in (1, 2, 3):
        told = X.weight @ (X.bags @ G) ** moment
        assert bags.weight @ F**moment == pytest.approx(told, rel=SUM_OF_MANY)


def test_the_sampler_draws_the_population():
    task = WordCooccurrence(5, 9)
    X, exact = task.sample(40_000, seed=3), task.population
    assert X.weight.sum() == pytest.approx(1, abs=SUM_OF_MANY)
    told = exact.weight @ exact.bags**2
    for c, p in enumerate(task.law):
        assert X.weight[X.kind == c].sum() == pytest.approx(float(p))
    spread = np.sqrt(X.weight @ X.bags**4 / len(X))
    assert (abs(X.weight @ X.bags**2 - told) <= STANDARD_ERRORS * spread + IDENTITY).all()


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: WordCooccurrence(2), "length", "at least 3"),
        (lambda: WordCooccurrence(3, 64, 3), "length", "at least 4"),
        (lambda: WordCooccurrence(5, 3), "vocab", "at least 4"),
        (lambda: WordCooccurrence(targets=9), "targets", "at most 8"),
        (lambda: WordCooccurrence(proportions=(0.5, 0.5)), "proportions", "4 classes"),
        (lambda: WordCooccurrence(proportions=(0.5, 0.2, 0.2, 0.2)), "proportions", "1.1"),
        (lambda: WordCooccurrence(proportions=(1.0, 0, 0, 0)), "proportions", "positive"),
        (lambda: WordCooccurrence().training(61, "iid"), "samples", "nearest is 60"),
        (lambda: WordCooccurrence().training(2, "iid"), "samples", "nearest is 6"),
        (lambda: WordCooccurrence().training(60), "vocab", "at least 163"),
        (lambda: WordCooccurrence(5, 6).training(60, "within"), "vocab", "at least 7"),
        (lambda: WordCooccurrence(5, 163).population, "population", "29,746,360"),
        (lambda: WordCooccurrence(30).bags(np.ones(40, dtype=int)), "population", "sentences"),
        (lambda: WordCooccurrence().training(60, "all"), "tokens", "distinct, within or iid"),
    ],
)
def test_bad_input_is_one_sentence(make, field, words):
    with pytest.raises(InputError, match=words) as error:
        make()
    assert error.value.field == field
