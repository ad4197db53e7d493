"""The integrator against closed forms, its engines against each other, and its outputs."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from problems import balance, draw, product_loss, two_layer_linear

from attnflow.flows import (
    Every,
    Flow,
    Linear,
    Log,
    Observable,
    Solver,
    Status,
    Store,
    descend,
    integrate,
)
from attnflow.flows.engines import has_cvode
from tolerances import (
    DRIFT_PER_RTOL,
    FITTED_SLOPE,
    IDENTITY,
    SECOND_ENGINE_UNITS,
    SOLVED,
    SOLVED_TIGHTLY,
    TOLERANCE_UNITS,
)

needs_cvode = pytest.mark.skipif(not has_cvode(), reason="scikit-sundae has no wheel here")

ENGINES = [
    pytest.param("cvode", "bdf", "difference", marks=needs_cvode),
    pytest.param("cvode", "bdf", "exact", marks=needs_cvode),
    pytest.param("cvode", "adams", "auto", marks=needs_cvode),
    ("scipy", "lsoda", "exact"),
    ("scipy", "lsoda", "difference"),
    ("scipy", "bdf", "exact"),
    ("scipy", "radau", "exact"),
    ("scipy", "dop853", "auto"),
    ("scipy", "rk45", "auto"),
]

K = np.array([0.5, 1.0, 3.0])
bowl = Flow(lambda th: 0.5 * (K * th["x"] ** 2).sum(), name="bowl")
bowl_start = {"x": np.array([1.0, -2.0, 0.5])}


def bowl_exact(t: float) -> np.ndarray:
    return bowl_start["x"] * np.exp(-K * t)


logistic = Flow(velocity=lambda th: {"p": th["p"] * (1 - th["p"])}, name="logistic")
P0 = 1e-3


def logistic_exact(t: float) -> np.ndarray:
    return np.array([1 / (1 + (1 / P0 - 1) * np.exp(-t))])


# Balanced rank-one layers of a linear network: the product's singular value p obeys
# p' = 2 p (s - p), here with s = 1.5 and p(0) = 1e-4.
u, v, r = (w / np.linalg.norm(w) for w in (draw(2, seed=1), draw(3, seed=2), draw(4, seed=3)))
S, A = 1.5, 1e-2
network = Flow(product_loss(S * np.outer(u, v)), conserved={"balance": balance})
network_start = {"W1": A * np.outer(r, v), "W2": A * np.outer(u, r)}


def network_exact(t: float) -> np.ndarray:
    a = np.sqrt(S / (1 + (S / A**2 - 1) * np.exp(-2 * S * t)))
    return np.concatenate([a * np.outer(r, v).ravel(), a * np.outer(u, r).ravel()])


CASES = {
    "bowl": (bowl, bowl_start, bowl_exact, 3.0),
    "logistic": (logistic, {"p": np.array([P0])}, logistic_exact, 12.0),
    "network": (network, network_start, network_exact, 5.0),
}


def units(solution, exact: np.ndarray) -> float:
    """The error of the final state in units of the tolerance."""
    y = solution.flow.bind(solution.start).layout.flatten(solution.final)
    weights = solution.rtol * np.abs(exact) + solution.atol
    return float(np.sqrt(np.mean(((y - exact) / weights) ** 2)))


@pytest.mark.parametrize(("engine", "method", "jacobian"), ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_error_in_units_of_tolerance_and_work_are_both_bounded(case, engine, method, jacobian):
    flow, start, exact, until = CASES[case]
    # atol as for a start of the size of the end: the closed forms grow by orders of magnitude.
    solution = integrate(
        flow,
        start,
        until,
        rtol=1e-6,
        solver=Solver(atol=1e-8, engine=engine, method=method, jacobian=jacobian),
        save=Every(10_000),
    )
    assert solution.status is Status.DONE
    assert units(solution, exact(until)) <= TOLERANCE_UNITS
    size = flow.bind(start).size
    assert solution.work["rhs"] <= 800
    assert solution.work["jvp"] <= 800 if engine == "cvode" else 40 * size
    assert 5 <= solution.work["steps"] <= solution.work["rhs"]
    assert (solution.solver["engine"], solution.solver["method"]) == (engine, method)


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        pytest.param("cvode", "bdf", marks=needs_cvode),
        pytest.param("cvode", "adams", marks=needs_cvode),
        ("scipy", "lsoda"),
        ("scipy", "dop853"),
    ],
)
def test_error_falls_in_proportion_to_the_tolerance(engine, method):
    rtols = np.logspace(-4, -10, 7)
    errors, work = [], []
    for rtol in rtols:
        solution = integrate(
            logistic,
            {"p": np.array([P0])},
            5.0,
            rtol=rtol,
            solver=Solver(engine=engine, method=method),
            save=Every(10_000),
        )
        errors.append(abs(solution.final["p"][0] - logistic_exact(5.0)[0]))
        work.append(solution.work["rhs"])
    slope = np.polyfit(np.log(rtols), np.log(errors), 1)[0]
    assert slope == pytest.approx(1.0, abs=FITTED_SLOPE)
    assert work[-1] > work[0]


@needs_cvode
def test_engines_methods_and_jacobians_agree_on_one_flow():
    case = two_layer_linear()
    reference = integrate(
        case.flow, case.start, 4.0, rtol=1e-10, solver=Solver(engine="scipy", method="dop853")
    )
    layout = case.flow.bind(case.start).layout
    exact = layout.flatten(reference.final)
    for engine, method, jacobian in [p.values if hasattr(p, "values") else p for p in ENGINES]:
        solution = integrate(
            case.flow,
            case.start,
            4.0,
            solver=Solver(engine=engine, method=method, jacobian=jacobian),
        )
        assert units(solution, exact) <= TOLERANCE_UNITS, (engine, method, jacobian)


@needs_cvode
def test_exact_products_are_counted_as_products_and_differences_as_evaluations():
    case = two_layer_linear()
    exact, difference = (
        integrate(case.flow, case.start, 5.0, solver=Solver(method="bdf", jacobian=kind))
        for kind in ("exact", "difference")
    )
    assert exact.work["jvp"] > 0
    assert difference.work["jvp"] == 0
    assert (
        exact.work["rhs"]
        < difference.work["rhs"]
        <= 1.5 * sum(exact.work[k] for k in ("rhs", "jvp"))
    )


@needs_cvode
def test_engine_is_chosen_by_how_long_the_solve_is_and_says_so():
    short = integrate(bowl, bowl_start, 1.0)
    long = integrate(bowl, bowl_start, 100.0)
    assert (short.solver["method"], long.solver["method"]) == ("adams", "bdf")
    assert "time constants" in short.solver["why"]


def test_without_cvode_scipy_integrates_and_says_so(monkeypatch):
    monkeypatch.setattr("attnflow.flows.engines.has_cvode", lambda: False)
    solution = integrate(bowl, bowl_start, 1.0)
    assert solution.solver["engine"] == "scipy"
    assert "no wheel" in solution.solver["why"]
    assert units(solution, bowl_exact(1.0)) <= TOLERANCE_UNITS


@needs_cvode
def test_cross_check_reports_the_second_engine_in_units_of_the_tolerance():
    case = two_layer_linear()
    solution = integrate(
        case.flow,
        case.start,
        4.0,
        solver=Solver(cross_check=True),
        observe={"W1": lambda th: th["W1"]},
    )
    assert solution.cross_check is not None
    assert set(solution.cross_check) == {"loss", "speed", "W1", "final state"}
    assert 0 < max(solution.cross_check.values()) <= SECOND_ENGINE_UNITS
    loose = integrate(case.flow, case.start, 4.0, rtol=1e-3, solver=Solver(cross_check=True))
    assert loose.cross_check["final state"] <= SECOND_ENGINE_UNITS
    assert "second engine" in solution._repr_html_()


@needs_cvode
def test_cross_check_of_a_solve_that_never_moved_is_no_exception():
    flow = Flow(velocity=lambda th: {"x": jnp.where(th["x"] == 1.0, 1.0, jnp.nan)})
    solution = integrate(
        flow, {"x": np.ones(1)}, 1.0, solver=Solver(cross_check=True, method="bdf")
    )
    assert solution.status in (Status.FAILED, Status.STALLED)
    assert solution.time < 1e-9


def test_absolute_tolerance_follows_the_scale_of_the_start():
    for scale in (1e-8, 1.0, 1e5):
        solution = integrate(bowl, {"x": scale * np.ones(3)}, 0.1, rtol=1e-5)
        assert solution.atol == pytest.approx(1e-5 * scale, rel=IDENTITY)
    assert integrate(bowl, {"x": np.zeros(3)}, 0.1, rtol=1e-5).atol == 1e-5
    assert integrate(bowl, {"x": np.ones(3)}, 0.1, solver=Solver(atol=1e-3)).atol == 1e-3


def test_a_small_start_is_resolved_to_relative_accuracy():
    # With a fixed absolute tolerance of 1e-9 this escape from a saddle would be noise.
    flow = Flow(lambda th: -0.5 * (th["x"] ** 2).sum())
    solution = integrate(flow, {"x": np.array([1e-12, -2e-12])}, 5.0)
    assert solution.final["x"] == pytest.approx([1e-12 * np.exp(5), -2e-12 * np.exp(5)], rel=SOLVED)


def test_drift_is_measured_against_the_largest_squared_norm():
    solution = integrate(network, network_start, 5.0, rtol=1e-7)
    assert 0 < solution.drift <= DRIFT_PER_RTOL * 1e-7
    assert solution.drifts == {"balance": solution.drift}


# Outputs


def final_bits(**options) -> bytes:
    case = two_layer_linear()
    solution = integrate(case.flow, case.start, 6.0, **options)
    return case.flow.bind(case.start).layout.flatten(solution.final).tobytes()


@pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])
def test_looking_never_changes_the_trajectory(engine):
    bare = final_bits(solver=Solver(engine=engine), save=Every(10_000))
    norm = {"norm": lambda th: jnp.linalg.norm(th["W1"])}
    assert final_bits(solver=Solver(engine=engine), observe=norm) == bare
    assert final_bits(solver=Solver(engine=engine), observe=norm, save=Linear(37)) == bare
    assert final_bits(solver=Solver(engine=engine), save=Log(50), store=Store(states=True)) == bare
    assert final_bits(solver=Solver(engine=engine), marks={"m": lambda th: th["W1"] - 0.5}) == bare
    assert final_bits(solver=Solver(engine=engine), progress=lambda fraction, words: None) == bare


@needs_cvode
def test_output_within_rounding_of_a_step_end_loses_no_step():
    steps = integrate(bowl, bowl_start, 3.0, solver=Solver(method="bdf")).trajectory
    ends = steps["time"].values[1:-1]
    near = np.unique(np.concatenate([np.nextafter(ends, 0), ends, np.nextafter(ends, 9)]))
    looked = integrate(bowl, bowl_start, 3.0, solver=Solver(method="bdf"), save=near)
    assert looked.work["steps"] == steps["step"].values[-1]
    assert looked.trajectory["step"].values[-1] == steps["step"].values[-1]
    at_ends = looked.trajectory.sel(time=ends)["loss"].values
    assert np.array_equal(at_ends, steps["loss"].values[1:-1])


def test_flushes_never_change_the_trajectory(monkeypatch):
    bare = final_bits(save=Linear(37))
    monkeypatch.setattr("attnflow.flows.recorder.Recorder.FLUSH_ROWS", 1)
    assert final_bits(save=Linear(37)) == bare
    monkeypatch.setattr("attnflow.flows.recorder.Recorder.FLUSH_SECONDS", 0.0)
    assert final_bits(save=Linear(37)) == bare


@pytest.mark.parametrize(
    ("save", "times"),
    [
        (Linear(5), [0, 0.5, 1, 1.5, 2]),
        (Log(3, first=0.02), [0, 0.02, 0.2, 2]),
        ([0.0, 0.3, 2.0], [0, 0.3, 2]),
        ([0.25, 1.0], [0.25, 1, 2]),
        (np.array([1.5]), [1.5, 2]),
        ((2.0,), [2.0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])
def test_rows_lie_at_the_scheduled_times_and_the_last_one_at_the_end(engine, save, times):
    solution = integrate(bowl, bowl_start, 2.0, save=save, solver=Solver(engine=engine), rtol=1e-9)
    rows = solution.trajectory["time"].values
    assert rows == pytest.approx(times, abs=IDENTITY)
    assert rows[-1] == 2.0 == solution.time
    loss = [0.5 * (K * bowl_exact(t) ** 2).sum() for t in times]
    assert solution.trajectory["loss"].values == pytest.approx(loss, rel=SOLVED_TIGHTLY)


def test_every_kth_step_is_a_row_and_so_is_the_last():
    every = integrate(bowl, bowl_start, 2.0).trajectory
    third = integrate(bowl, bowl_start, 2.0, save=Every(3)).trajectory
    last = int(every["step"].values[-1])
    assert every["step"].values.tolist() == list(range(last + 1))
    assert third["step"].values.tolist() == sorted({*range(0, last + 1, 3), last})
    assert third["time"].values[-1] == 2.0


def test_trajectory_names_its_axes_and_carries_labels():
    x = Observable(lambda th: th["x"], ("token",), {"token": ["a", "b", "c"]}, "nats", "a vector")
    plain = {"unnamed": lambda th: jnp.outer(th["x"], th["x"])}
    data = integrate(bowl, bowl_start, 1.0, observe={"x": x, **plain}).trajectory
    assert data["x"].dims == ("time", "token")
    assert data["x"].attrs == {"units": "nats", "long_name": "a vector"}
    assert data["x"].sel(token="b").values[0] == -2.0
    assert data["unnamed"].dims == ("time", "unnamed_0", "unnamed_1")
    assert data["speed"].values[0] == pytest.approx(np.linalg.norm(K * bowl_start["x"]))
    assert "state" not in data
    assert data["time"].dtype == np.float64


def test_rows_are_values_of_their_own_states():
    """A compiled call reads the state from one buffer; no row may be a view of it."""
    flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    seen = {"all": lambda th: th["x"], "some": lambda th: th["x"][:3]}
    start = {"x": np.linspace(1.0, 2.0, 400)}
    run = integrate(flow, start, 2.0, observe=seen, store=Store(states=True))
    assert run.trajectory.sizes["time"] > 5
    assert np.array_equal(run.trajectory["all"].values, run.trajectory["state"].values)
    assert np.array_equal(run.trajectory["some"].values, run.trajectory["state"].values[:, :3])


def test_a_flow_without_a_loss_has_a_speed_and_no_loss():
    data = integrate(logistic, {"p": np.array([P0])}, 1.0).trajectory
    assert set(data.data_vars) == {"speed"}


def test_kept_states_give_the_parameters_at_a_row():
    solution = integrate(bowl, bowl_start, 2.0, save=Linear(5), store=Store(states=True))
    assert solution.trajectory["state"].dims == ("time", "parameter")
    assert np.array_equal(solution.at(0.0)["x"], bowl_start["x"])
    assert np.array_equal(solution.at(1.5)["x"], solution.trajectory["state"].values[3])
    assert np.array_equal(solution.at(2.0)["x"], solution.final["x"])


def test_parameters_at_any_other_time_are_solved_for_again():
    solution = integrate(bowl, bowl_start, 2.0, save=[0.5], rtol=1e-8)
    for t in (0.0, 0.123, 0.5, 1.999, 2.0):
        assert solution.at(t)["x"] == pytest.approx(bowl_exact(t), rel=SOLVED_TIGHTLY)
    with pytest.raises(ValueError, match=r"^times: 2.5"):
        solution.at(2.5)


def test_a_discrete_run_gives_the_parameters_of_the_nearest_step():
    run = descend(bowl, bowl_start, 1.0, save=Linear(3), store=Store(states=True))
    assert np.array_equal(run.at(0.5)["x"], run.trajectory["state"].values[1])
    every = descend(bowl, bowl_start, 1.0, save=Every(1), store=Store(states=True))
    assert np.array_equal(run.at(0.3)["x"], every.trajectory["state"].values[30])


def test_states_of_the_rows_are_those_of_a_second_solve():
    solution = integrate(network, network_start, 5.0)
    rows = solution.states()
    times = solution.trajectory["time"].values[[3, 7]]
    forgotten = dataclasses.replace(solution, _kept=None).states(times)
    for name, array in rows.items():
        assert array.shape == (solution.trajectory.sizes["time"], *network_start[name].shape)
        assert np.array_equal(array[[3, 7]], forgotten[name])


def test_a_solution_shows_itself():
    solution = integrate(network, network_start, 5.0)
    assert repr(solution).startswith("Solution(done: reached t = 5.")
    html = solution._repr_html_()
    assert "<svg" in html
    assert "drift" in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_progress_is_called_with_rising_fractions_that_end_at_one():
    seen: list[float] = []
    integrate(bowl, bowl_start, 2.0, progress=lambda fraction, words: seen.append(fraction))
    assert all(0 <= f <= 1 for f in seen)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_pipe_stays_quiet_and_a_bar_can_be_asked_for(capfd):
    integrate(bowl, bowl_start, 2.0)
    assert capfd.readouterr() == ("", "")
    integrate(bowl, bowl_start, 2.0, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "integrate" in err
