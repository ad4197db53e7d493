"""The saddle ledger on flows whose saddles are known."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import jax.numpy as jnp
import numpy as np
import pytest

from attnflow import Flow, GradientDescent, InputError, Mark, Store, descend, gaussian, integrate
from attnflow.linearise import SavedSaddles, continue_branch, critical_point, saddle_ledger
from attnflow.linearise.escape import algebraic, exponential, predicted_leave
from attnflow.observe.stages import plateaus


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


def learned(theta) -> int:
    """How many singular values of the target a network has."""
    product = reduce(lambda a, i: theta[f"W{i}"] @ a, range(2, len(theta) + 1), theta["W1"])
    return int(np.sum(np.linalg.svd(product, compute_uv=False) > 0.1))


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
        assert saddle.law is not None
        assert saddle.law.span > 2
        assert saddle.exit_ratio == pytest.approx(1, abs=0.05)
        assert learned(saddle.point.theta) == round(3 - rate)
    assert "the start and 2 plateaus, 3 refined" in repr(ledger)
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
    assert first.index == 0
    assert first.law is not None
    assert first.law.name == "algebraic"
    assert first.law.power == pytest.approx(power, abs=3 * first.law.power_error + 0.01)
    assert f"eps^-{layers - 2}" in first.sentence
    assert first.exit_ratio == pytest.approx(1, abs=0.01)


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


@pytest.mark.parametrize(("layers", "scale", "until"), [(3, 1e-2, 2e3), (4, 3e-2, 3e4)])
@pytest.mark.parametrize("seed", [0, 2])
def test_a_deep_network_is_refined_beside_its_leaf_and_left_algebraically(
    layers: int, scale: float, until: float, seed: int
) -> None:
    # A random start is not balanced: its leaf holds no saddle at all, the one beside it counts.
    flow, shapes = network(layers, (3.0, 2.0, 1.0), 3)
    near = {"learned": Mark(flow._loss, 1e-3)}
    solution = integrate(flow, gaussian(shapes, scale, seed), until, stops=near, rtol=1e-8)
    ledger = saddle_ledger(solution)
    assert [w.kind for w in ledger] == ["saddle"] * 3
    assert [w.loss for w in ledger] == pytest.approx([7.0, 2.5, 0.5], abs=1e-3)
    assert [learned(w.point.theta) for w in ledger] == [0, 1, 2]
    for wait in ledger:
        assert wait.law is not None
        assert wait.law.name == "algebraic"
        assert round(wait.law.power) == layers - 1
        assert abs(wait.law.power - (layers - 1)) <= 3 * wait.law.power_error
        assert wait.exit_ratio == pytest.approx(1, abs=0.1)
        assert wait.point.distance < wait.extent


def test_a_slow_start_does_not_converge_by_being_slow() -> None:
    # At 1e-6 the speed of four factors is 1e-18; the start is still a distance from the origin.
    flow = Flow(lambda th: 0.5 * (jnp.prod(th["w"]) - 1) ** 2)
    found = critical_point(flow, {"w": np.full(4, 1e-6)}, within=1e-4)
    assert found.converged
    assert np.abs(found.theta["w"]).max() < 1e-8
    assert found.distance == pytest.approx(2e-6, rel=0.01)


def test_a_point_beyond_the_plateau_is_refused() -> None:
    flow = Flow(lambda th: (th["x"] ** 2 - 1.0) ** 2 / 4)
    near = {"x": np.array(0.8)}
    assert critical_point(flow, near, within=0.3).converged
    refused = critical_point(flow, near, within=0.1)
    assert not refused.converged
    assert refused.spectrum is None
    assert "0.2 away, beyond 0.1" in refused.sentence
    with pytest.raises(InputError, match=r"^within: "):
        critical_point(flow, near, within=0.0)


def test_a_ghost_is_a_bottleneck() -> None:
    # x' = mu + x^2: slow at 0, where a saddle and a node have just vanished.
    flow = Flow(lambda th: -(1e-4 * th["x"] + th["x"] ** 3 / 3) + th["x"] ** 4 / 40)
    ledger = saddle_ledger(integrate(flow, {"x": np.array(-1.0)}, until=400.0, rtol=1e-8))
    (ghost,) = ledger
    assert ghost.kind == "bottleneck"
    assert not ghost.refined
    assert ghost.plateau.speed == pytest.approx(1e-4, rel=1e-3)
    assert ghost.rates == ()
    assert ghost.law is None  # though its speed goes as x^2 behind the narrow place
    row = ghost.as_dict()
    assert row["rate_predicted"] is None
    assert row["index"] is None
    assert ledger.words.startswith("1 plateau, 0 refined")


@pytest.mark.parametrize(
    ("loss", "begin", "until", "power"),
    [
        (lambda x: -(x**4) / 4 + x**6 / 6, 0.02, 4e3, 3),
        (lambda x: x**3 / 3 * jnp.log(x) + x**4, 1e-6, 1e6, None),  # time ~ 1 / (eps log(1/eps))
        (lambda x: -(x**2.5) / 2.5 + x**4 / 4, 1e-4, 1e3, None),
    ],
)
def test_a_degenerate_point_has_a_whole_power_or_no_law(loss, begin, until, power) -> None:
    flow = Flow(lambda th: loss(th["x"]))
    (wait,) = saddle_ledger(integrate(flow, {"x": np.array(begin)}, until, rtol=1e-9))
    assert wait.kind == "saddle"
    if power is None:
        assert wait.law is None
        assert wait.sentence.startswith("no law")
    else:
        assert abs(wait.law.power - power) <= wait.law.power_error < 0.1


HILL = Flow(lambda th: 0.5 * th["y"] ** 2 - 0.5 * th["x"] ** 2 + th["x"] ** 4 / 4)
"""A saddle at the origin between two minima at x = -1 and 1."""


@pytest.mark.parametrize("states", [False, True])
def test_a_run_that_ends_on_a_saddle_still_waits(states: bool) -> None:
    begin = {"x": np.array(1e-6), "y": np.array(1.0)}
    ledger = saddle_ledger(integrate(HILL, begin, until=5.0, store=Store(states=states)))
    (last,) = ledger
    assert last.kind == "still waiting"
    assert last.number == 1
    assert last.as_dict()["leave_predicted"] is None
    assert last.point.index == 1
    assert last.point.distance == pytest.approx(np.hypot(1e-6 * np.exp(5), np.exp(-5)), rel=1e-3)
    assert ledger.words == "1 plateau, 1 refined, still waiting at the end"
    (plateau,) = ledger.plateaus
    assert plateau.open
    assert plateau.words.endswith("still waiting)")
    # Once it has left it is an ordinary saddle, and the minimum where it ends is none.
    (left,) = saddle_ledger(integrate(HILL, begin, until=60.0, store=Store(states=states)))
    assert left.kind == "saddle"
    assert left.law is not None
    assert left.rate_measured == pytest.approx(1.0, rel=1e-3)


def test_a_degenerate_start_still_waits_without_a_mode() -> None:
    flow = Flow(lambda th: 0.5 * (jnp.prod(th["w"]) - 1) ** 2)
    (wait,) = saddle_ledger(integrate(flow, {"w": np.full(4, 1e-2)}, until=1000.0))
    assert (wait.number, wait.kind) == (0, "still waiting")
    assert "without an unstable mode" in wait.sentence


def test_an_exit_that_misses_by_more_than_a_factor_two_is_flagged() -> None:
    flow, shapes = network(2, (2.0,), 3)
    (wait,) = saddle_ledger(integrate(flow, gaussian(shapes, 1e-4, 0), until=20.0, rtol=1e-8))
    assert wait.flag is None
    late = replace(wait, leave_predicted=wait.plateau.leave * 3)
    assert late.flag == "exit predicted 3 times too late"
    early = replace(wait, leave_predicted=wait.plateau.leave / 4)
    assert early.flag == "exit predicted 4 times too early"
    table = SavedSaddles("", [wait.as_dict(), late.as_dict()])
    assert "1 flagged" in table.words
    assert table.worst == pytest.approx(2.0)
    assert "exit predicted 3 times too late" in repr(table)


def test_the_end_of_a_trajectory_counts_only_when_asked() -> None:
    t = np.linspace(0, 10, 200)
    speed = 10 ** -np.minimum(t, 4.0)
    loss = 2 - t / 20
    assert plateaus(t, speed, loss) == []
    (last,) = plateaus(t, speed, loss, end=True)
    assert last.open
    assert last.leave == 10.0
    assert last.enter == pytest.approx(2.0, abs=0.1)
    rising = plateaus(t, speed[::-1], loss, start=True, end=True)
    assert [p.open for p in rising] == [False]


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


def test_the_laws_of_pure_growth_are_told_apart_by_their_residuals() -> None:
    x = np.linspace(-14, -3, 80)
    pure = exponential(x, np.full(80, 0.7), 60, 0.68)
    assert pure is not None
    assert (pure.rate, pure.span) == pytest.approx((0.7, 11.0), rel=1e-10)
    assert exponential(x, np.full(80, 0.7), 60, 0.6) is None  # not at its own rate
    flat = algebraic(x, np.full(80, 0.7), 60)
    assert flat is not None
    assert not flat.holds  # a power of 1 is the exponential
    for q in (2, 3, 5):
        rate = 3 * np.exp((1 - 1 / q) * x)
        law = algebraic(x, rate, 60)
        assert law is not None
        assert law.holds
        assert (law.power, law.residual) == pytest.approx((q, 0.0), abs=1e-8)
        assert law.span == pytest.approx(11 / np.log(10))
        other = exponential(x, rate, 60, rate[60])
        assert other is None or not other.holds
        # t = (1 - exp(-p growth)) / (p rate): the time of the law itself.
        t = np.concatenate([[0], np.cumsum(np.diff(x) / np.sqrt(rate[1:] * rate[:-1]))])
        assert law.wait(x[60] - x[0]) == pytest.approx(t[60], rel=0.01)


def test_a_bend_between_two_laws_is_none() -> None:
    x = np.linspace(-14, 0, 400)
    rate = 1e-3 + np.exp(x / 2)  # exponential below, a power of 2 above, and -13.8 between
    assert law_at(x, rate, 10) is None
    assert law_at(x, rate, 390) == "algebraic"
    slow = 1e-1 + np.exp(x / 2)
    assert law_at(x, slow, 100) == "exponential"
    assert law_at(x, slow, 270) is None
    assert exponential(x, -rate, 30, 1e-3) is None
    # Half an e-fold is too short, and a decade of the speed is the least for a power.
    short = x < x[0] + 0.5
    assert law_at(x[short], np.full(short.sum(), 0.3), 5) is None
    assert law_at(x[-60:], np.exp(x[-60:] / 2), 30) is None


def test_a_power_that_stays_off_a_whole_number_is_no_law() -> None:
    # A correction r^m fades as the power settles; a logarithm and a broken power do not.
    x = np.linspace(-14, -3, 200)
    for rate in (np.exp(x / 2) * (30 - x) ** 0.9, np.exp(x * (1 - 1 / 2.06))):
        law = algebraic(x, rate, 120)
        assert law is not None
        assert law.span > 1
        assert not law.holds
    settling = algebraic(x, np.exp(x / 2) * (1 - np.exp((x + 3) / 2) / 4), 100)
    assert settling is not None
    assert settling.holds
    assert 0 < 2 - settling.power <= settling.power_error


def test_a_mode_ahead_of_its_own_rate_has_passed_to_another_law() -> None:
    x = np.linspace(-8, 0, 200)
    behind, ahead = 1 - np.exp(x) / 4, 1 + np.exp(x) / 4
    at = 190
    law = exponential(x, behind, at, 1.0)
    assert law is not None
    assert law.holds
    passed = exponential(x, ahead, at, 1.0)
    assert passed is None or not passed.holds


def law_at(x: np.ndarray, rate: np.ndarray, at: int) -> str | None:
    seen = exponential(x, rate, at, rate[0]), algebraic(x, rate, at)
    fits = [law for law in seen if law and law.holds]
    assert len(fits) < 2
    return fits[0].name if fits else None


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
