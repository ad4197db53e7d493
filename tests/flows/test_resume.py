"""A solve killed anywhere and resumed gives the rows of an uninterrupted one, bit for bit."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.flows import (
    Adam,
    Every,
    Flow,
    GradientDescent,
    Limits,
    Linear,
    Mark,
    Momentum,
    Solver,
    Status,
    Store,
    descend,
    integrate,
)
from attnflow.flows.engines import has_cvode
from attnflow.flows.sinks import Checkpoint, Segment, Shape, joined
from tolerances import SOLVED

needs_cvode = pytest.mark.skipif(not has_cvode(), reason="scikit-sundae has no wheel here")


class Killed(Exception):
    pass


class FakeDisk:
    """A sink that outlives the process: what was not checkpointed is lost at the next `begin`."""

    def __init__(self, die_at_call: int = -1) -> None:
        self.saved: list[Segment] = []
        self.pending: list[Segment] = []
        self.last: Checkpoint | None = None
        self.calls = 0
        self.die_at_call = die_at_call

    def begin(self, shape: Shape) -> Checkpoint | None:
        self.pending = []
        return self.last

    def flush(self, segment: Segment) -> None:
        self._live()
        self.pending.append(segment)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._live()
        copies = {name: np.array(a) for name, a in checkpoint.arrays.items()}
        assert all(type(x) in (int, float) for x in checkpoint.scalars.values())
        self.last = Checkpoint(checkpoint.step, checkpoint.time, copies, dict(checkpoint.scalars))
        self.saved, self.pending = self.saved + self.pending, []

    def collect(self) -> Segment:
        return joined(self.saved + self.pending)

    def _live(self) -> None:
        self.calls += 1
        if self.calls == self.die_at_call:
            raise Killed


class Mortal:
    """A host flow (two coupled logistic factors) that dies at a chosen evaluation."""

    def __init__(self) -> None:
        self.calls = 0
        self.die_at = -1
        self.flow = Flow(
            lambda th: 0.5 * ((th["a"] * th["b"] - 1.0) ** 2).sum(),
            velocity=self.velocity,
            conserved={"balance": lambda th: th["a"] ** 2 - th["b"] ** 2},
            host=True,
        )

    def velocity(self, th: Any, out: Any = None) -> Any:
        gap = 1.0 - th["a"] * th["b"]
        if out is None:
            return {"a": gap * th["b"], "b": gap * th["a"]}
        self.calls += 1
        if self.calls == self.die_at:
            raise Killed
        out["a"][:] = gap * th["b"]
        out["b"][:] = gap * th["a"]
        return out


mortal = Mortal()
start = {"a": np.array([0.1, 0.02, 0.3]), "b": np.array([0.1, 0.05, -0.2])}


def solve(sink: FakeDisk, engine: str, every: int, die_at: int = -1, **options: Any) -> Any:
    mortal.calls, mortal.die_at = 0, die_at
    return integrate(
        mortal.flow,
        start,
        12.0,
        store=Store(sink=sink, every=every, states=True),
        solver=Solver(engine=engine, method="bdf" if engine == "cvode" else "lsoda"),
        marks={"half": Mark(lambda th: th["a"] * th["b"], level=0.5)},
        **options,
    )


def same(a: Any, b: Any) -> bool:
    """Bit-equal rows, events, work (but not seconds) and drift."""
    work = [{k: v for k, v in s.work.items() if k != "seconds"} for s in (a, b)]
    columns = [{k: v.values.tobytes() for k, v in s.trajectory.variables.items()} for s in (a, b)]
    finals = [[leaf.tobytes() for leaf in jax.tree.leaves(s.final)] for s in (a, b)]
    return bool(
        columns[0] == columns[1]
        and a.events == b.events
        and finals[0] == finals[1]
        and work[0] == work[1]
        and a.drifts == b.drifts
        and a.status is b.status
    )


@functools.cache
def uninterrupted(engine: str, every: int, save: Any) -> tuple[Any, int]:
    """The whole solve, and how many evaluations it took."""
    return solve(FakeDisk(), engine, every, save=save), mortal.calls


@pytest.mark.parametrize("engine", [pytest.param("cvode", marks=needs_cvode), "scipy"])
@settings(max_examples=8)
@given(
    every=st.sampled_from([20, 50]),
    save=st.sampled_from([Every(1), Every(4), Linear(23)]),
    deaths=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3),
)
def test_a_solve_killed_at_any_evaluation_resumes_to_the_same_bits(engine, every, save, deaths):
    whole, calls = uninterrupted(engine, every, save)
    assert whole.status is Status.DONE
    assert whole.work["restarts"] >= 1
    disk = FakeDisk()
    for part in deaths:
        with contextlib.suppress(Killed):
            solve(disk, engine, every, die_at=max(3, int(part * calls)), save=save)
    assert same(whole, solve(disk, engine, every, save=save))


@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_a_solve_killed_while_the_sink_writes_resumes_to_the_same_bits(call):
    engine = "cvode" if has_cvode() else "scipy"
    whole, _ = uninterrupted(engine, 20, Every(1))
    disk = FakeDisk(die_at_call=call)
    with pytest.raises(Killed):
        solve(disk, engine, 20, save=Every(1))
    assert same(whole, solve(disk, engine, 20, save=Every(1)))


def test_a_finished_piece_is_resumable_and_an_ended_one_is_not():
    engine = "cvode" if has_cvode() else "scipy"
    disk = FakeDisk()
    cut = solve(disk, engine, 20, limits=Limits(steps=33))
    assert cut.status is Status.STEP_LIMIT
    assert cut.resumable
    rest = solve(disk, engine, 20)
    assert not rest.resumable
    assert same(rest, solve(FakeDisk(), engine, 20))


def test_checkpoints_restart_the_engine_and_cost_only_work():
    engine = "cvode" if has_cvode() else "scipy"
    often, never = (solve(FakeDisk(), engine, every) for every in (20, 10_000))
    assert often.work["restarts"] > never.work["restarts"] == 0
    assert often.work["rhs"] > never.work["rhs"]
    for name in ("a", "b"):
        assert often.final[name] == pytest.approx(never.final[name], rel=SOLVED)


noisy = Flow(lambda th: 0.5 * ((th["a"] * th["b"] - 1.0) ** 2).sum())


def batch(th: Any, key: Any) -> Any:
    kept = jax.random.bernoulli(key, 0.5, (3,))
    return jnp.sum(kept * (th["a"] * th["b"] - 1.0) ** 2)


@pytest.mark.parametrize(
    ("optimiser", "stochastic"),
    [
        (GradientDescent(0.05), None),
        (Momentum(0.01), None),
        (Adam(0.01), None),
        (Adam(0.01), batch),
    ],
    ids=["gd", "momentum", "adam", "adam-batch"],
)
def test_a_killed_descent_resumes_to_the_same_bits(optimiser, stochastic):
    def run(sink: FakeDisk) -> Any:
        return descend(
            noisy,
            start,
            3.0,
            optimiser,
            batch=stochastic,
            seed=7,
            store=Store(sink=sink, every=9),
            save=Linear(20),
            marks={"half": Mark(lambda th: th["a"] * th["b"], 0.5)},
        )

    whole = run(FakeDisk())
    assert whole.status is Status.DONE
    for call in (2, 5):
        disk = FakeDisk(die_at_call=call)
        with pytest.raises(Killed):
            run(disk)
        assert same(whole, run(disk)), call
