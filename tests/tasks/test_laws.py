"""Laws by their shape, and chains that share one law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow._errors import InputError
from attnflow.tasks import chain_of, exponential_law, perturbed_law, two_group_law
from attnflow.tasks.laws import CHAINS
from strategies import lams, laws
from tolerances import IDENTITY, SOLVED_LINEAR_SYSTEM


@given(kind=st.sampled_from(sorted(CHAINS)), pi=laws(), lam=lams)
def test_every_kind_of_chain_has_the_law_it_was_given(kind, pi, lam):
    chain = chain_of(kind, pi, lam)
    assert np.abs(pi @ chain.transition - pi).max() <= IDENTITY
    assert chain.pi == pytest.approx(pi, rel=SOLVED_LINEAR_SYSTEM)
    assert (chain.transition >= 0).all()


def test_the_four_chains_of_one_law_differ():
    pi = (0.75, 0.19, 0.05, 0.01)
    found = [chain_of(kind, pi, 0.8) for kind in CHAINS]
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            assert np.abs(a.transition - b.transition).max() > 0.01
    joint = found[-1].pi[:, None] * found[-1].transition
    assert np.abs(joint - joint.T).max() > 1e-4  # drift is not reversible, the others are
    for chain in found[:-1]:
        joint = chain.pi[:, None] * chain.transition
        assert np.abs(joint - joint.T).max() <= IDENTITY


@given(first=st.floats(0.4, 0.95), tokens=st.integers(3, 7))
def test_the_perturbed_law_is_eq_1(first, tokens):
    low = (1 - first) / (tokens - 1)
    shape = np.linspace(1, -1, tokens - 1)
    law = perturbed_law(first, tokens, 0.3 * low, shape.tolist())
    assert law == pytest.approx(np.concatenate([[first], low + 0.3 * low * shape]), abs=IDENTITY)
    assert two_group_law(first, tokens) == pytest.approx([first, *[low] * (tokens - 1)])


def test_the_exponential_law_is_normalised_by_its_sum():
    assert exponential_law(4) * 15 == pytest.approx([8, 4, 2, 1], abs=IDENTITY * 15)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: two_group_law(0.3, 3), "first"),
        (lambda: two_group_law(0.75, 1), "tokens"),
        (lambda: perturbed_law(0.75, 3, 0.2), "delta"),
        (lambda: perturbed_law(0.75, 3, 0.01, [1.0, 1.0]), "shape"),
        (lambda: exponential_law(1), "tokens"),
        (lambda: exponential_law(4, 1.0), "ratio"),
        (lambda: chain_of("two-terms", (0.5, 0.5), 0.8), "chain"),
    ],
)
def test_bad_laws_are_refused_by_name(call, field):
    with pytest.raises(InputError) as refused:
        call()
    assert refused.value.field == field
