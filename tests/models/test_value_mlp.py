"""Attention under a linear MLP: closed forms against autodiff, and four ways to solve one flow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import InputError
from attnflow.flows import GradientDescent, descend, integrate
from attnflow.models.value_mlp import (
    Initialisation,
    ValueMLP,
    bag_flow,
    correlations,
    gram_flow,
    initialisation,
    reduced_flow,
    tables,
    weight_flow,
)
from attnflow.reduce import gram_descent
from attnflow.tasks import Sentences, WordCooccurrence
from tolerances import CLOSED_FORM_VS_AUTODIFF

END_POINT = 1e-10  # three representations at rtol 1e-12
DESCENT = 1e-12  # some hundred steps in other variables
DRIFT = 1e-11

WORDS, DIM, NEURONS = 9, 12, 8


def sentences(seed: int = 0, tokens: str = "iid") -> Sentences:
    return WordCooccurrence(5, WORDS).training(12, tokens, seed)  # type: ignore[arg-type]


def weights(seed: int = 0, output: float = 3.0) -> ValueMLP:
    return Initialisation(0.5, 0.5, output).model(WORDS, DIM, NEURONS, seed)


def loss_as_written(theta: ValueMLP, X: Sentences) -> Any:
    """Eq. (1) and (2), sample by sample, from one-hot words."""
    total = 0.0
    for token, y, w in zip(X.token, X.label, X.weight, strict=True):
        x = jnp.eye(WORDS)[:, token]
        p = jax.nn.softmax((theta.WK @ x).T @ (theta.WQ @ x) / np.sqrt(DIM), axis=0)
        F = (theta.a @ theta.W @ theta.WV @ x @ p).sum()
        total = total + w * jnp.logaddexp(0.0, -y * F)
    return total


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["iid", "within"]))
def test_closed_forms_are_the_gradient_of_eq_2(seed, tokens):
    """Weights, forces and Gram, with repeated words and without."""
    X, theta = sentences(seed, tokens), weights(seed)
    with jax.enable_x64(True):
        told = jax.grad(loss_as_written)(jax.tree.map(jnp.asarray, theta), X)
        told = jax.tree.map(np.asarray, told)
    moved = weight_flow(X, DIM).velocity(theta)
    for name in ("W", "WV", "WK", "WQ"):
        scale = max(1.0, abs(getattr(told, name)).max())
        gap = abs(getattr(moved, name) + getattr(told, name)).max()
        assert gap <= CLOSED_FORM_VS_AUTODIFF * scale, name
    flow = gram_flow(X, DIM, float(theta.a @ theta.a))
    z = correlations(flow.velocity(flow.project(theta)))
    dW, dV, dK, dQ = (-getattr(told, name) for name in ("W", "WV", "WK", "WQ"))
    u, du = theta.W.T @ theta.a, dW.T @ theta.a
    pairs = {
        "U": 2 * u @ du,
        "G": du @ theta.WV + u @ dV,
        "VV": dV.T @ theta.WV + theta.WV.T @ dV,
        "S": dK.T @ theta.WQ + theta.WK.T @ dQ,
        "KK": dK.T @ theta.WK + theta.WK.T @ dK,
        "QQ": dQ.T @ theta.WQ + theta.WQ.T @ dQ,
    }
    for name, wanted in pairs.items():
        scale = max(1.0, abs(wanted).max())
        assert abs(getattr(z, name) - wanted).max() <= CLOSED_FORM_VS_AUTODIFF * scale, name


def test_the_set_of_repeated_words_is_not_empty():
    assert any(sentences(seed).repeats for seed in range(5))


def test_the_forces_are_those_written_out():
    """Appendix C's six equations from phi and A, place by place."""
    X, theta = sentences(1), weights(1)
    S, G = theta.WK.T @ theta.WQ, theta.a @ theta.W @ theta.WV
    phi, A = np.zeros(WORDS), np.zeros((WORDS, WORDS))
    for token, y, w in zip(X.token, X.label, X.weight, strict=True):
        z = S[np.ix_(token, token)] / np.sqrt(DIM)
        p = np.exp(z) / np.exp(z).sum(axis=0)
        F = (G[token] @ p).sum()
        for l in range(5):
            for h in range(5):
                pull = w * y / (1 + np.exp(y * F)) * p[h, l]
                phi[token[h]] += pull
                A[token[h], token[l]] += pull * (G[token[h]] - G[token] @ p[:, l]) / np.sqrt(DIM)
    found = tables(X, DIM).forces(G, S)
    assert found[0] == pytest.approx(phi, abs=1e-15)
    assert found[1] == pytest.approx(A, abs=1e-15)


def test_weights_reduced_and_gram_end_at_the_same_place():
    X, theta = sentences(2), weights(2)
    rate = float(theta.a @ theta.a)
    flow, reduced = gram_flow(X, DIM, rate), reduced_flow(X, DIM, rate)
    ends = [
        integrate(weight_flow(X, DIM), theta, 3.0, rtol=1e-12).final,
        integrate(reduced, theta.reduced, 3.0, rtol=1e-12).final,
        integrate(flow, flow.project(theta), 3.0, rtol=1e-12).final,
    ]
    full, *others = [correlations(flow.project(ends[0])), *map(correlations, ends[1:])]
    for other in others:
        for name in ("U", "G", "VV", "S", "KK", "QQ"):
            wanted = getattr(full, name)
            gap = abs(getattr(other, name) - wanted).max() / max(1.0, abs(wanted).max())
            assert gap <= END_POINT, name
    u = ends[1]["u"] - theta.reduced["u"]  # all of W follows from u
    W = theta.W + np.outer(theta.a, u) / rate
    assert abs(ends[0].W - W).max() <= END_POINT


def test_descent_closes_in_the_gram():
    X, theta = sentences(3), weights(3)
    flow = gram_flow(X, DIM, float(theta.a @ theta.a))
    steps, rate = 200, 0.05
    full = descend(weight_flow(X, DIM), theta, steps * rate, GradientDescent(rate)).final
    told = flow.project(full)["gram"]
    compiled = descend(flow, flow.project(theta), steps * rate, GradientDescent(rate)).final
    host = gram_descent(flow, flow.project(theta), rate, steps, every=steps).final
    for end in (compiled, host):
        for group in ("value", "attention"):
            found = np.asarray(end["gram"][group].matrix)
            assert abs(found - told[group].matrix).max() <= DESCENT
    euler = flow.project(theta)["gram"]["value"].matrix  # the eta^2 terms are needed
    assert abs(told["value"].matrix - euler).max() > 0.1


def test_what_is_conserved_stays():
    X, theta = sentences(4), weights(4)
    rate = float(theta.a @ theta.a)
    gram = gram_flow(X, DIM, rate)
    starts = {
        weight_flow(X, DIM): theta,
        reduced_flow(X, DIM, rate): theta.reduced,
        gram: gram.project(theta),
    }
    for flow, start in starts.items():
        drifts = integrate(flow, start, 20.0, rtol=1e-12).drifts
        assert len(drifts) >= 2
        assert max(drifts.values()) <= DRIFT, drifts


def test_frozen_attention_stands_still_and_the_rest_learns():
    X, theta = sentences(5), weights(5)
    rate = float(theta.a @ theta.a)
    flow, reduced = gram_flow(X, DIM, rate, True), reduced_flow(X, DIM, rate, True)
    a = correlations(integrate(flow, flow.project(theta), 2.0, rtol=1e-10).final)
    b = correlations(integrate(reduced, theta.reduced, 2.0, rtol=1e-10).final)
    assert abs(a.S - theta.WK.T @ theta.WQ).max() < 1e-13
    assert pytest.approx(b.G, abs=1e-8) == a.G
    assert abs(a.G - theta.a @ theta.W @ theta.WV).max() > 0.01


def test_infinite_width_is_the_limit_of_the_expected_start():
    X, k0 = WordCooccurrence(5, 163).training(60), 0.5
    phi = bag_flow(X.bags, X.label, X.weight).velocity(np.zeros(163))
    gaps = []
    for dim in (10**4, 10**6):
        init = initialisation("condition", vocab=163, dim=dim, neurons=9, length=5, k0=k0)
        flow = gram_flow(X, dim, init.output)
        moved = correlations(flow.velocity(flow.state(init.expected(163, dim))))
        rate = init.s1**2 * dim * init.output + init.output * init.s0**2 * dim
        gaps.append(abs(moved.G / rate - phi).max())
    assert max(gaps) <= 1e-14  # at the start exactly, whatever the width
    assert phi[:3] == pytest.approx([1 / 6, 1 / 6, 0.0], abs=1e-15)


@pytest.mark.parametrize(
    "name", ["condition", "torch", "kaiming", "torch-output", "kaiming-output"]
)
def test_initialisations_have_their_scales(name):
    sizes = {"vocab": 300, "dim": 400, "neurons": 500}
    init = initialisation(name, **sizes, length=4, k0=0.5, k1=2.0)
    theta = init.model(300, 400, 500, seed=1)
    told = {
        "condition": (0.5**2 / (4 * 400), 2.0**2 / 500, 500.0),
        "torch": (1 / 900, 1 / 1200, 500.0),
        "kaiming": (2 / 300, 2 / 400, 500.0),
        "torch-output": (1 / 900, 1 / 1200, 1 / 3),
        "kaiming-output": (2 / 300, 2 / 400, 1.0),
    }[name]
    found = (theta.WK.var(), theta.W.var(), float(theta.a @ theta.a))
    assert found == pytest.approx(told, rel=0.06)
    drawn = init.draw(300, 400, 500, seed=1)
    U0 = told[1] * 400 * told[2]
    assert drawn["u"] @ drawn["u"] == pytest.approx(U0, rel=0.3)
    assert drawn["WV"].var() == pytest.approx(told[0], rel=0.02)


def test_bad_input_is_one_sentence():
    with pytest.raises(InputError, match="did you mean 'kaiming'"):
        initialisation("kaimin", vocab=4, dim=4, neurons=4, length=4)
    with pytest.raises(InputError, match="k0"):
        initialisation("condition", vocab=4, dim=4, neurons=4, length=4, k0=-1.0)
