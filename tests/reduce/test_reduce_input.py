"""Bad input is one sentence; a comparison that fails is a value."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from invariant_losses import draw, product_loss

from attnflow import InputError
from attnflow.flows import Flow, GradientDescent, Momentum, descend, integrate
from attnflow.reduce import Gram, GramFlow, gram, verify

BLOCKS = {"K": 2, "Q": 3}
WEIGHTS = {"K": draw(4, 2), "Q": draw(4, 3, seed=1)}


def flow(**options: Any) -> GramFlow:
    return GramFlow(product_loss(draw(2, 3)), BLOCKS, **options)


def test_the_lenses_refuse_weights_where_a_state_is_meant() -> None:
    with pytest.raises(InputError, match=r"start: K, Q; a state is"):
        integrate(flow(), WEIGHTS, 1.0)
    with pytest.raises(InputError, match=r"start.gram: .*a Gram with the columns"):
        integrate(flow(), {"gram": np.eye(5)}, 1.0)
    other = GramFlow(lambda G: jnp.sum(G.matrix), {"K": 3, "Q": 2})
    with pytest.raises(InputError, match=r"start.gram"):
        flow().velocity(other.infinite_width(1.0))


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.eye(4), r"gram: shape \(4, 4\); the blocks have 5 columns"),
        (np.diag([1.0, 1.0, 1.0, 1.0, -0.1]), "gram: has the eigenvalue -0.1"),
        (np.eye(5) + np.triu(np.ones((5, 5)), 1), "gram: not symmetric"),
        (np.full((5, 5), np.nan), "gram: a NaN"),
        ("abc", "gram: abc"),
    ],
)
def test_what_is_no_gram_is_refused(matrix: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        flow().state(matrix)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"K": draw(4, 2), "QQ": draw(4, 3)}, r"weights.Q: missing; did you mean 'QQ'"),
        ({"K": draw(2, 4), "Q": draw(4, 3)}, r"weights.K: shape \(2, 4\); width x 2 \(transpose"),
        ({"K": draw(5, 2), "Q": draw(4, 3)}, "weights: widths"),
        ({"K": draw(4, 2) * np.inf, "Q": draw(4, 3)}, "weights.K: a NaN"),
        ({"K": "x", "Q": draw(4, 3)}, "weights.K: x"),
        (3, "weights: 3; a dictionary"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        flow().project(weights)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (None, "blocks: none given"),
        ({}, "blocks: empty"),
        (0, "blocks: 0; a whole number"),
        ({"K": 0}, "blocks.K: 0; a whole number"),
        ({"a.b": 1}, "without dots"),
        ({"K": 1, "head": {"Q": 2}}, "groups and bare blocks together"),
        ("KQ", "names and sizes"),
    ],
)
def test_what_declares_no_blocks_is_refused(blocks: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GramFlow(product_loss(draw(2, 3)), blocks)


def test_wrong_names_get_the_nearest_one() -> None:
    with pytest.raises(InputError, match="'W' is not a block of columns; known: K, Q"):
        flow(balanced=[("W", "Q")])
    with pytest.raises(InputError, match="neither frozen"):
        flow(balanced=[("K", "Q")], rates={"K": 0.0})
    with pytest.raises(InputError, match="kind: 'spectra' is not one; did you mean 'spectral'"):
        flow(balanced=[("K", "Q", "spectra")])
    wrong = flow(rates={"QK": 2.0})
    with pytest.raises(InputError, match=r"rates\.QK: no such block"):
        integrate(wrong, wrong.infinite_width(1.0), 1.0)
    with pytest.raises(InputError, match=r"rates.K: -1.0; a rate is finite"):
        flow(rates={"K": -1.0})
    with pytest.raises(InputError, match=r"scale\.Kx: no such block; did you mean 'K'"):
        flow().infinite_width({"Kx": 1.0})
    with pytest.raises(InputError, match="scale: -1"):
        flow().infinite_width(-1)
    asks = GramFlow(lambda G: jnp.sum(G["K", "V"]), BLOCKS)
    with pytest.raises(InputError, match="'V' is not a block of columns; known: K, Q"):
        asks.velocity(asks.infinite_width(1.0))


def test_a_width_below_the_rank_is_refused_and_the_rank_is_enough() -> None:
    state = flow().project({"K": draw(3, 2), "Q": draw(3, 3, seed=1)})
    with pytest.raises(InputError, match=r"width: 2; these inner products have rank 3"):
        flow().lift(state, width=2)
    assert flow().lift(state, width=3)["Q"].shape == (3, 3)


def test_a_loss_that_is_no_number_or_no_jax_is_refused() -> None:
    vector = GramFlow(lambda G: G["K", "Q"][0], BLOCKS)
    with pytest.raises(InputError, match=r"loss: returns \(3,\); a loss returns one number"):
        vector.velocity(vector.infinite_width(1.0))
    host = GramFlow(lambda G: float(np.sum(G["K", "Q"])), BLOCKS)
    with pytest.raises(InputError, match=r"loss: not written with jax\.numpy"):
        integrate(host, host.infinite_width(1.0), 1.0)
    with pytest.raises(InputError, match="loss: 3; a function"):
        GramFlow(3, BLOCKS)  # type: ignore[arg-type]


def test_descent_and_verification_check_their_numbers() -> None:
    start = flow().infinite_width(0.5)
    for optimiser, words in (
        (GradientDescent(-1.0), "rate: -1"),
        (Momentum(0.1, 1.0), "momentum: 1"),
        (Momentum(0.1, "x"), "momentum: x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=words):
            descend(flow(), start, 1.0, optimiser)
    with pytest.raises(InputError, match="until: 2, 1; a time, or increasing times"):
        verify(flow().full, flow(), WEIGHTS, [2.0, 1.0])
    with pytest.raises(InputError, match=r"reduced: .*a GramFlow"):
        verify(flow().full, flow().full, WEIGHTS, 1.0)  # type: ignore[arg-type]


def test_a_start_off_the_reduced_set_is_refused() -> None:
    from attnflow.reduce import OrbitFlow

    even = Flow(lambda th: jnp.sum(th["x"] ** 4))
    reduced = OrbitFlow(even, [lambda th: {"x": th["x"][::-1]}], {"x": np.zeros(2)})
    with pytest.raises(InputError, match=r"start: lies off the reduced set by 0\.\d+"):
        verify(even, reduced, {"x": np.array([1.0, 0.5])}, 1.0)


def test_a_gram_is_made_of_blocks_of_one_width() -> None:
    with pytest.raises(InputError, match="weights: widths"):
        gram({"K": draw(4, 2), "Q": draw(5, 2)})
    with pytest.raises(InputError, match="weights: "):
        gram({})
    with pytest.raises(InputError, match="'V' is not a block of columns"):
        Gram(np.eye(2), {"K": 2})["V"]
