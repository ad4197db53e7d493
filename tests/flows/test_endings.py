"""However a solve ends, it ends in a value: a status, a sentence, a last row, no exception."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from problems import PI_A

from attnflow.flows import (
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Solver,
    Status,
    descend,
    integrate,
)
from attnflow.flows.engines import has_cvode
from attnflow.models import OneLayerAttention, population_flow
from attnflow.tasks import MarkovChain
from tolerances import SINGULAR_TIME

needs_cvode = pytest.mark.skipif(not has_cvode(), reason="scikit-sundae has no wheel here")
METHODS = [
    pytest.param({"solver": Solver("cvode", "bdf")}, marks=needs_cvode, id="bdf"),
    pytest.param({"solver": Solver("cvode", "adams")}, marks=needs_cvode, id="adams"),
    pytest.param({"solver": Solver("scipy", "lsoda")}, id="lsoda"),
    pytest.param({"solver": Solver("scipy", "dop853")}, id="dop853"),
]
one = {"x": np.array([1.0])}
bowl = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())


def host_flow(before_each: Any) -> Flow:
    """x' = -x, with a Python function called before each evaluation of an engine."""

    def velocity(th: Any, out: Any = None) -> Any:
        if out is None:
            return {"x": -th["x"]}
        before_each()
        out["x"][:] = -th["x"]
        return out

    return Flow(velocity=velocity, host=True)


@pytest.mark.parametrize("save", [Every(1), [0.5], [1.5], Linear(3)], ids=str)
@pytest.mark.parametrize("options", METHODS)
def test_a_blow_up_in_finite_time_is_a_value(options, save):
    flow = Flow(velocity=lambda th: {"x": th["x"] ** 2})  # 1 / (1 - t)
    solution = integrate(flow, one, 2.0, save=save, **options)
    assert solution.status in (Status.FAILED, Status.STALLED, Status.DIVERGED)
    assert not solution.status.complete
    assert solution.sentence
    assert solution.time == pytest.approx(1.0, abs=SINGULAR_TIME)
    assert np.isfinite(solution.final["x"]).all()
    assert solution.trajectory["speed"].values[-1] == pytest.approx(solution.final["x"][0] ** 2)


@pytest.mark.parametrize("options", METHODS)
def test_growth_beyond_floating_point_is_a_value(options):
    flow, start = Flow(velocity=lambda th: {"x": th["x"]}), {"x": np.full(1, 1e140)}
    solution = integrate(flow, start, 1e3, save=[1.0], **options)
    assert solution.status in (Status.DIVERGED, Status.FAILED, Status.STALLED)
    assert np.isfinite(solution.final["x"]).all()
    assert solution.trajectory["time"].values[-1] == solution.time > 1


@pytest.mark.parametrize("options", METHODS)
def test_a_velocity_that_turns_nan_is_a_value(options):
    flow = Flow(velocity=lambda th: {"x": jnp.where(th["x"] < 2.0, 1.0, jnp.nan)})
    solution = integrate(flow, one, 3.0, **options)
    assert solution.status in (Status.FAILED, Status.STALLED)
    assert solution.time == pytest.approx(1.0, abs=SINGULAR_TIME)
    assert solution.final["x"][0] == pytest.approx(2.0, abs=SINGULAR_TIME)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"solver": Solver("cvode", "bdf")}, marks=needs_cvode, id="bdf"),
        pytest.param({"solver": Solver("cvode", "adams")}, marks=needs_cvode, id="adams"),
        pytest.param({"solver": Solver("scipy", "lsoda")}, id="lsoda"),
    ],
)
def test_chattering_on_a_discontinuity_stalls_instead_of_running_for_ever(options):
    flow = Flow(lambda th: jnp.abs(th["x"]).sum() + 1e-2 * th["y"].sum())
    start = {"x": np.ones(1), "y": np.ones(1)}
    solution = integrate(flow, start, 10.0, save=Every(100), **options)
    assert solution.status is Status.STALLED
    assert "the velocity may be discontinuous there" in solution.sentence
    assert solution.time == pytest.approx(1.0, abs=SINGULAR_TIME)
    assert solution.work["steps"] <= 3000


@needs_cvode
def test_a_solve_far_into_logarithmic_time_is_no_stall():
    chain = MarkovChain(PI_A, lam=0.8)
    start = OneLayerAttention.gaussian(4, 3, 1e-2, seed=0)
    options = {"save": Every(10_000), "rtol": 1e-8, "limits": Limits(steps=2000)}
    assert integrate(population_flow(chain), start, 1e9, **options).status is Status.DONE


def test_step_limit_is_a_status_and_shows_where_it_ended():
    solution = integrate(bowl, one, 100.0, limits=Limits(steps=7), save=[50.0])
    assert solution.status is Status.STEP_LIMIT
    assert "7 steps" in solution.sentence
    assert solution.work["steps"] == 7
    assert solution.trajectory["time"].values.tolist() == [solution.time]
    assert 0 < solution.time < 100


def test_a_limit_met_by_the_last_step_does_not_count():
    steps = integrate(bowl, one, 1.0).work["steps"]
    assert integrate(bowl, one, 1.0, limits=Limits(steps=int(steps))).status is Status.DONE
    assert (
        integrate(bowl, one, 1.0, limits=Limits(steps=int(steps) - 1)).status is Status.STEP_LIMIT
    )


def test_time_limit_is_a_status():
    flow = host_flow(lambda: time.sleep(0.01))
    solution = integrate(
        flow,
        one,
        1e3,
        limits=Limits(seconds=0.1),
        solver=Solver(method="bdf" if has_cvode() else "auto"),
    )
    assert solution.status is Status.TIME_LIMIT
    assert "0.1 s" in solution.sentence
    assert solution.time > 0


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C as Python handles it, also where a shell has told this process to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])
def test_ctrl_c_leaves_a_solution_and_the_handler_as_it_was(engine):
    calls = [0]

    def interrupt() -> None:
        calls[0] += 1
        if calls[0] == 40:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    solution = integrate(host_flow(interrupt), one, 1e3, solver=Solver(engine=engine), rtol=1e-9)
    assert solution.status is Status.INTERRUPTED
    assert solution.sentence.startswith("interrupted at t = ")
    assert solution.time > 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("heard")
def test_ctrl_c_reaches_a_discrete_run():
    calls = [0]

    def interrupt(fraction: float, words: str) -> None:
        calls[0] += 1
        if calls[0] == 5:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    run = descend(bowl, one, 1.0, GradientDescent(0.01), save=Linear(21), progress=interrupt)
    assert run.status is Status.INTERRUPTED
    assert run.time == pytest.approx(0.3)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("heard")
def test_a_second_ctrl_c_raises_as_usual():
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        integrate(host_flow(interrupt), one, 1e3, solver=Solver(engine="scipy", method="dop853"))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_worker_thread_integrates_without_signal_handlers():
    answers: list[Any] = []
    worker = threading.Thread(target=lambda: answers.append(integrate(bowl, one, 1.0)))
    worker.start()
    worker.join()
    assert answers[0].status is Status.DONE


@pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])
def test_an_error_in_a_users_velocity_is_the_users_error(engine):
    calls = [0]

    def fail() -> None:
        calls[0] += 1
        if calls[0] > 30:
            raise ZeroDivisionError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError, match="mine"):
        integrate(host_flow(fail), one, 10.0, solver=Solver(engine=engine), rtol=1e-9)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_diverging_descent_ends_with_its_last_finite_state():
    flow = Flow(lambda th: (th["x"] ** 4).sum())
    run = descend(flow, {"x": np.array([10.0])}, 10.0, GradientDescent(0.1), save=Every(1))
    assert run.status is Status.DIVERGED
    assert np.isfinite(run.final["x"]).all()
    assert np.isfinite(run.trajectory["loss"].values[:-1]).all()
    assert run.trajectory["time"].values[-1] == run.time


def test_a_descent_of_millions_of_steps_is_no_stall():
    run = descend(bowl, one, 3e6, GradientDescent(1.0), save=Linear(3000))
    assert run.status is Status.DONE
    assert run.work["steps"] == 3_000_000
