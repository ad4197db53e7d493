"""The two-head classifier: closed form against autodiff, and every reduction against the full."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import InputError, verify
from attnflow.flows import (
    Every,
    Flow,
    GradientDescent,
    Linear,
    Mark,
    Phase,
    Solver,
    descend,
    integrate,
)
from attnflow.models.two_head import TwoHeadClassifier, tables, velocity, weight_flow
from attnflow.models.two_head_gram import gram_flow, head_scores, infinite_width_start, score_start
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.tasks import MixtureClassification
from tolerances import CLOSED_FORM_VS_AUTODIFF, IDENTITY, OPTAX_LOOP


def by_definition(theta, X, y):
    """log(1 + exp(-y f)) of one sample, written as eq. (1) is."""

    def head(w, WK, WQ):
        scores = X @ WK.T @ WQ @ X.T  # key x query
        return jnp.sum(w @ X.T @ jax.nn.softmax(scores, axis=0))

    H = [head(theta.w[i], theta.WK[i], theta.WQ[i]) + theta.bias for i in range(2)]
    return jax.nn.softplus(-y * (jax.nn.relu(H[0]) - jax.nn.relu(H[1])))


@pytest.mark.parametrize(("K", "L"), [(2, 3), (3, 4), (4, 3)])
def test_the_velocity_is_minus_the_gradient_of_the_definition(K, L, float64):
    population = MixtureClassification(K, L).population
    X, y, q = (jnp.asarray(a) for a in (population.inputs, population.label, population.weight))
    gradient = jax.jit(
        jax.value_and_grad(lambda th: q @ jax.vmap(by_definition, (None, 0, 0))(th, X, y))
    )
    seen = set()
    for seed in range(3):
        theta = TwoHeadClassifier.gaussian(K, 5, 1.5, neurons=0.7, seed=seed)
        loss, g = gradient(theta)
        flow = weight_flow(population)
        assert flow.loss(theta) == pytest.approx(float(loss), abs=IDENTITY)
        v = flow.velocity(theta)
        for name in ("w", "WK", "WQ"):
            assert np.abs(getattr(v, name) + np.asarray(getattr(g, name))).max() < IDENTITY
            assert np.abs(getattr(v, name)).max() > 1e-3
        gates = tables(population).gate_values(theta.w, theta.scores, theta.bias) > 0
        seen |= set(gates.ravel().tolist())
    assert seen == {True, False}


def test_the_printed_line_of_the_minus_neurons_is_wrong():
    # Appendix B.1 prints the attention of the plus head in the gradient of w_-.
    population = MixtureClassification(2, 3).population
    theta = TwoHeadClassifier.gaussian(2, 5, 2.0, neurons=0.7, seed=0)
    t = tables(population)
    S = theta.scores
    right = weight_flow(population).velocity(theta).w[1]
    # Gates and g of the true model, attention of the plus head in both.
    H = t.gate_values(theta.w, S, 0.5)
    f = np.maximum(H[0], 0) - np.maximum(H[1], 0)
    a = (
        population.weight
        * population.label
        / (1 + np.exp(population.label * f))
        * -1.0
        * (H[1] > 0)
    )
    for head, expected in ((1, 0.0), (0, 0.01)):
        p = t.attention(S)[head].sum(axis=2)
        printed = np.einsum("n,nh,nhi->i", a, p, population.inputs)
        gap = np.abs(printed - right).max()
        assert gap < IDENTITY if expected == 0 else gap > expected


def test_losses_by_agreement_and_restriction():
    population = MixtureClassification(3, 4).population
    theta = TwoHeadClassifier.gaussian(3, 6, 1.0, neurons=0.5, seed=4)
    given = tables(population).group_losses(theta.w, theta.scores, theta.bias)
    for d, loss in zip(population.agreements, given, strict=True):
        restricted = weight_flow(population.restricted(agreement=d))
        assert restricted.loss(theta) == pytest.approx(loss, abs=IDENTITY)


def test_algorithm_one_starts_at_its_scale():
    theta = TwoHeadClassifier.gaussian(2, 4000, 0.3, seed=1)
    assert not theta.w.any()
    for gram in (theta.key_scores, theta.query_scores):
        assert np.abs(gram - 0.09 * np.eye(4)).max() < 5 * 0.09 / np.sqrt(4000)
    assert np.abs(theta.scores).max() < 5 * 0.09 / np.sqrt(4000)


@pytest.mark.parametrize(("K", "L"), [(2, 3), (3, 4)])
def test_gram_descent_is_weight_descent(K, L):
    population = MixtureClassification(K, L).population
    theta = TwoHeadClassifier.gaussian(K, 7, 1.0, neurons=0.3, seed=3)
    gram = gram_flow(population)
    reduced = descend(gram, gram.project(theta), 30.0, GradientDescent(0.1), save=Linear(2)).final
    full = descend(weight_flow(population), theta, 30.0, GradientDescent(0.1), save=Linear(2))
    expected = gram.project(full.final)
    for head in ("plus", "minus"):
        gap = reduced["gram"][head].matrix - expected["gram"][head].matrix
        assert np.abs(gap).max() < OPTAX_LOOP
    assert np.abs(reduced["rest"]["w"] - expected["rest"]["w"]).max() < OPTAX_LOOP
    # Euler steps of the Gram flow are not it.
    start = gram.project(theta)
    euler = descend(gram.flow, start, 30.0, GradientDescent(0.1), save=Linear(2)).final
    assert np.abs(euler["rest"]["w"] - expected["rest"]["w"]).max() > 1e-6


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_forces_in_numpy_are_those_by_autodiff(seed):
    """Of the Gram flow, and of its symmetric sectors: 8 x 8 and 4 x 4."""
    task, rng = MixtureClassification(3, 3), np.random.default_rng(seed)
    symmetric = symmetric_flow(task.orbits, 0.3).gram
    for flow, like in (
        (gram_flow(task.population), infinite_width_start(3, 0.3)),
        (symmetric, symmetric.start),
    ):
        system, state = flow.bind(like), flow.sample(rng, like)
        y, out = system.layout.flatten(state), np.empty(system.size)
        system.rhs(y, out)
        with jax.enable_x64(True):
            traced = np.asarray(jax.jit(system.trace_velocity)(y))
        assert np.abs(out - traced).max() < CLOSED_FORM_VS_AUTODIFF * (1 + np.abs(out).max())


def test_tables_take_many_states_at_once():
    population = MixtureClassification(2, 3).population
    t, rng = tables(population), np.random.default_rng(0)
    w, S = rng.standard_normal((3, 5, 2, 4)), rng.standard_normal((3, 5, 2, 4, 4))
    for measure in (t.loss, t.group_losses, t.gate_values, t.predictions):
        many = measure(w, S, 0.5)
        assert np.abs(many[1, 2] - measure(w[1, 2], S[1, 2], 0.5)).max() < IDENTITY
    for many, one in zip(t.forces(w, S, 0.5), t.forces(w[1, 2], S[1, 2], 0.5), strict=True):
        assert np.abs(many[1, 2] - one).max() < IDENTITY
    with jax.enable_x64(True):
        traced = [np.asarray(x) for x in t.forces(jnp.asarray(w), jnp.asarray(S), 0.5)]
    for a, b in zip(t.forces(w, S, 0.5), traced, strict=True):
        assert np.abs(a - b).max() < IDENTITY


def test_gram_flow_is_the_weight_flow():
    # b = 3: no gate switches before t = 8, so both solves are smooth.
    population = MixtureClassification(2, 3).population
    theta = TwoHeadClassifier.gaussian(2, 10, 1.0, bias=3.0, neurons=0.2, seed=3)
    found = verify(weight_flow(population), gram_flow(population, 3.0), theta, 8.0, rtol=1e-10)
    assert found.agrees
    assert max(found.absolute) < 1e-8


def test_the_balance_is_conserved_by_the_flow_and_not_by_descent():
    population = MixtureClassification(2, 3).population
    theta = TwoHeadClassifier.gaussian(2, 6, 0.1, seed=0)
    flow = weight_flow(population)
    assert integrate(flow, theta, 150.0, rtol=1e-9).drift < 1e-10
    assert descend(flow, theta, 150.0, GradientDescent(0.1), save=Linear(2)).drift > 1e-6


@pytest.mark.parametrize(
    ("omega", "duration"),
    [
        (0.3, 58.3405),
        (0.1, 90.1759),
        (0.03, 125.0680),
        (0.01, 156.9302),
        (0.003, 191.8593),
        (0.001, 223.7354),
    ],
)
def test_duration_of_the_attention_stage(omega, duration):
    orbits = MixtureClassification(2, 3).orbits
    neurons = symmetric_flow(orbits, omega, 0.5, ("attention",))
    first = integrate(neurons, neurons.start, 20.0, rtol=1e-10).final
    stage = symmetric_flow(orbits.restricted(agreement=-1), omega, 0.5, ("neurons",))
    stops = {"score": Mark(lambda z: stage.score(z, "c", "v"), 1.0)}
    found = integrate(stage, first, 400.0, stops=stops, rtol=1e-10)
    assert found.time == pytest.approx(duration, abs=1e-4)
    assert stage.score(found.final, "c", "v") == pytest.approx(1.0, abs=1e-10)
    assert np.array_equal(found.final["w"], first["w"])


def test_algorithm_one_as_a_schedule():
    orbits = MixtureClassification(2, 3).orbits
    all_samples = symmetric_flow(orbits, 0.1)
    hard = orbits.reweighted(1.0 * (orbits.agreement < 0))
    conflicting = symmetric_flow(hard, 0.1)
    attention = ("S_sum", "S_diff")
    phases = [
        Phase("neurons", all_samples, 20.0, frozen=attention),
        Phase(
            "attention",
            conflicting,
            400.0,
            frozen=("w",),
            stop=Mark(lambda z: conflicting.score(z, "c", "v"), level=1.0),
        ),
        Phase("convergence", all_samples, 50.0, frozen=attention),
    ]
    solution = integrate(phases, all_samples.start, rtol=1e-10)
    duration = solution.first("attention") - solution.first("neurons")
    assert duration == pytest.approx(90.1759, abs=1e-4)
    switches = [e for e in solution.events if e.name == "minus c1 +v1 +v2"]
    assert [e.direction for e in switches] == [-1, 1]  # shut in stage 1, open again in stage 3
    assert switches[1].time - solution.first("attention") == pytest.approx(34.5, abs=0.1)


def test_joint_descent_at_infinite_width():
    population = MixtureClassification(2, 3).population
    t = tables(population)

    def losses(state):
        return t.group_losses(state["rest"]["w"], head_scores(state), 0.5)

    start = infinite_width_start(2, 0.1)
    how, seen = GradientDescent(0.1), {"loss_d": losses}
    run = descend(gram_flow(population), start, 120.0, how, save=Every(1), observe=seen)
    below = run.trajectory["loss_d"].values[:, 0] <= np.log(2) / 2
    # 1090 where every tenth step is looked at.
    assert 1080 < int(np.argmax(below)) <= 1090


def test_frozen_parts_stand_still():
    population = MixtureClassification(2, 3).population
    theta = TwoHeadClassifier.gaussian(2, 6, 1.0, neurons=0.5, seed=2)
    for part, blocks in (("attention", {"WK", "WQ"}), ("neurons", {"w"})):
        v = weight_flow(population, (part,)).velocity(theta)
        still = {name for name in ("w", "WK", "WQ") if not np.asarray(getattr(v, name)).any()}
        assert still == blocks
        gram = gram_flow(population, 0.5, (part,))
        moved = gram.velocity(gram.project(theta))
        assert bool(moved["rest"]["w"].any()) == (part == "attention")
        assert bool(moved["gram"]["plus"].matrix.any()) == (part == "neurons")


def test_a_solve_with_gates_is_one_that_is_not_told_of_them():
    population = MixtureClassification(2, 3).population
    theta = TwoHeadClassifier.gaussian(2, 6, 0.3, seed=2)
    options = {"rtol": 1e-10, "solver": Solver(atol=1e-12)}
    located = integrate(weight_flow(population), theta, 10.0, **options)
    plain = Flow(velocity=lambda z, out=None: velocity(z, population, out), host=True)
    smooth = integrate(plain, theta, 10.0, **options)
    assert len(located.events) >= 4
    for name in ("w", "WK", "WQ"):
        gap = getattr(located.final, name) - getattr(smooth.final, name)
        assert np.abs(gap).max() < 1e-6


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: TwoHeadClassifier.gaussian(1, 4, 0.1), "groups"),
        (lambda: TwoHeadClassifier.gaussian(2, 0, 0.1), "dim"),
        (lambda: TwoHeadClassifier.gaussian(2, 4, 0.0), "omega"),
        (lambda: TwoHeadClassifier.gaussian(2, 4, 0.1, bias=0.0), "bias"),
        (lambda: TwoHeadClassifier.gaussian(2, 4, 0.1, neurons=-1.0), "neurons"),
        (lambda: weight_flow(MixtureClassification().orbits), "population"),
        (lambda: weight_flow(MixtureClassification().population, ("keys",)), "frozen"),
        (lambda: gram_flow(MixtureClassification().population, -0.5), "bias"),
        (lambda: infinite_width_start(2, -1.0), "omega"),
        (lambda: infinite_width_start(2, 1.0, neurons=np.zeros(4)), "neurons"),
        (lambda: SymmetricFlow(MixtureClassification().population, 0.1), "population"),
        (lambda: SymmetricFlow(MixtureClassification().orbits, 0.1, bias=0), "bias"),
        (
            lambda: symmetric_flow(MixtureClassification(3, 3).orbits, 0.1).project(score_start(2)),
            "theta",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, field):
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
