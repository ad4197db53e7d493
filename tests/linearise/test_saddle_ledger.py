"""The saddle ledger on flows whose saddles are known."""

from __future__ import annotations

from functools import reduce

import jax.numpy as jnp
import numpy as np
import pytest

from attnflow import Flow, GradientDescent, InputError, descend, gaussian, integrate
from attnflow.linearise import continue_branch, saddle_ledger
from attnflow.linearise.escape import algebraic_law, exponential_window, predicted_leave


def network(layers: int, singular: tuple[float, ...], width: int) -> tuple[Flow, dict]:
    """A deep linear network that learns a diagonal target."""
    k = len(singular)
    sizes = [k, *[width] * (layers - 1), k]
    shapes = {f"W{i}": (sizes[i], sizes[i - 1]) for i in range(1, layers + 1)}
    target = jnp.diag(jnp.asarray(singular))

    def loss(th):
        product = reduce(lambda a, i: th[f"W{i}"] @ a, range(2, layers + 1), th["W1"])
        return 0.5 * jnp.sum((product - target) ** 2)

    conserved = {
        f"balance {i}": (
            lambda th, i=i: th[f"W{i}"] @ th[f"W{i}"].T - th[f"W{i + 1}"].T @ th[f"W{i + 1}"]
        )
        for i in range(1, layers)
    }
    return Flow(loss, conserved=conserved), shapes


def test_a_linear_network_waits_at_each_singular_value() -> None:
    flow, shapes = network(2, (3.0, 2.0, 1.0), 3)
    solution = integrate(flow, gaussian(shapes, 1e-6, 1), until=16.0, rtol=1e-9)
    ledger = saddle_ledger(solution)
    losses = [s.loss for s in ledger]
    assert losses == pytest.approx([7.0, 2.5, 0.5], abs=1e-6)
    for saddle, rate in zip(ledger, (3.0, 2.0, 1.0), strict=True):
        assert saddle.point.converged
        assert saddle.point.speed < 1e-9
        assert saddle.rate_predicted == pytest.approx(rate, rel=1e-3)
        assert saddle.rate_measured == pytest.approx(rate, rel=0.02)
        assert saddle.growth is not None
        assert saddle.growth.exists
        assert saddle.leave_predicted == pytest.approx(saddle.plateau.leave, rel=0.05)
    assert "3 plateaus, 3 refined" in repr(ledger)
    assert "<table>" in ledger._repr_html_()


def test_escape_times_scale_like_log_one_over_eps() -> None:
    flow, shapes = network(2, (2.0,), 3)
    scales = np.array([1e-3, 1e-4, 1e-5, 1e-6])
    times = []
    for scale in scales:
        half = {"half": lambda th: jnp.sum(th["W2"] @ th["W1"]) - 1.0}
        solution = integrate(flow, gaussian(shapes, scale, 0), until=20.0, stops=half, rtol=1e-9)
        times.append(solution.time)
    slope = np.polyfit(-np.log(scales), times, 1)[0]
    assert slope == pytest.approx(1 / 2.0, rel=1e-3)  # the factor pair grows at rate s


@pytest.mark.parametrize(("layers", "power"), [(3, 2.0), (4, 3.0)])
def test_a_degenerate_saddle_is_left_algebraically(layers: int, power: float) -> None:
    flow, shapes = network(layers, (1.0,), 1)
    start = {name: np.full(shape, 0.02) for name, shape in shapes.items()}
    until = 1.3 * 0.02 ** -(layers - 2) / (layers - 2)
    ledger = saddle_ledger(integrate(flow, start, until=until, rtol=1e-9))
    first = ledger[0]
    assert first.rates == ()
    assert first.algebraic is not None
    assert first.algebraic.power == pytest.approx(power, rel=0.1)
    assert first.algebraic.factors == layers
    assert f"eps^-{layers - 2}" in first.sentence
    assert first.leave_predicted == pytest.approx(first.plateau.leave, rel=0.05)


def test_the_degenerate_escape_time_has_the_predicted_exponent() -> None:
    flow, _ = network(3, (1.0,), 1)
    scales = np.array([0.004, 0.008, 0.016, 0.032])
    times = []
    for scale in scales:
        start = {f"W{i}": np.full((1, 1), scale) for i in (1, 2, 3)}
        half = {"half": lambda th: jnp.sum(th["W3"] @ th["W2"] @ th["W1"]) - 0.5}
        times.append(integrate(flow, start, until=2 / scale, stops=half, rtol=1e-9).time)
    slope = np.polyfit(np.log(scales), np.log(times), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.03)


def test_a_flow_that_never_waits_has_no_separation() -> None:
    flow = Flow(lambda th: 0.5 * jnp.sum(th["x"] ** 2))
    ledger = saddle_ledger(integrate(flow, {"x": np.ones(3)}, until=5.0))
    assert len(ledger) == 0
    assert "no separation" in repr(ledger)


def test_a_discrete_run_is_refused() -> None:
    flow = Flow(lambda th: 0.5 * jnp.sum(th["x"] ** 2))
    run = descend(flow, {"x": np.ones(2)}, until=1.0, optimiser=GradientDescent(0.1))
    with pytest.raises(InputError, match=r"^source: "):
        saddle_ledger(run)


def test_the_window_of_a_pure_exponential_is_all_of_it() -> None:
    t = np.linspace(0, 10, 80)
    found = exponential_window(t, 1e-6 * np.exp(0.7 * t))
    assert found.rate == pytest.approx(0.7, rel=1e-10)
    assert found.efolds == pytest.approx(7.0, rel=0.1)
    assert not exponential_window(t, np.ones(80)).exists
    assert algebraic_law(t, np.exp(0.7 * t)) is None


def test_the_predicted_leave_solves_the_linear_flow() -> None:
    rates, components = np.array([0.5, 0.2]), np.array([1e-4, 3e-3])
    t = predicted_leave(rates, components, 2.0, 0.1) - 2.0
    speed = np.sqrt(np.sum((rates * components * np.exp(rates * t)) ** 2))
    assert speed == pytest.approx(0.1, rel=1e-10)


def test_the_cusp_has_its_two_folds() -> None:
    for a in (0.5, 1.0, 2.0):
        branch = continue_branch(
            lambda th, b, a=a: th["x"] ** 4 / 4 - a * th["x"] ** 2 / 2 - b * th["x"],
            {"x": np.array(-2.0)},
            -2.0,
            2.0,
            name="b",
        )
        expected = 2 * (a / 3) ** 1.5
        assert [s.kind for s in branch.special] == ["fold", "fold"]
        assert [s.parameter for s in branch.special] == pytest.approx([expected, -expected], 1e-8)
        assert (branch.special[0].before, branch.special[0].after) == (0, 1)
        assert branch.complete
        gradient = branch.states[:, 0] ** 3 - a * branch.states[:, 0] - branch.parameter
        assert np.abs(gradient).max() < 1e-10
        assert set(branch.dataset.data_vars) == {"b", "loss", "index", "rate", "state"}


def test_a_pitchfork_is_a_branch_point() -> None:
    branch = continue_branch(
        lambda th, a: th["x"] ** 4 / 4 - a * th["x"] ** 2 / 2, {"x": np.array(1e-3)}, -1.0, 1.0
    )
    assert [s.kind for s in branch.special] == ["branch point"]
    assert branch.special[0].parameter == pytest.approx(0.0, abs=1e-8)
    assert branch.rate == pytest.approx(branch.parameter, abs=1e-9)


def test_a_branch_without_a_beginning_is_a_status() -> None:
    branch = continue_branch(lambda th, p: th["x"] + p, {"x": np.array(0.0)}, 0.0, 1.0)
    assert not branch.complete
    assert "no critical point" in branch.sentence
    with pytest.raises(InputError, match=r"^stop: "):
        continue_branch(lambda th, p: th["x"] ** 2, {"x": np.array(0.0)}, 0.0, 0.0)
