"""A caller's functions are the caller's own: whole before, between and after every lens.

The lenses work in double precision and the caller, as JAX comes, in single precision, on the same
functions and the same NumPy arrays. Neither may see a number that was made for the other.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import attnflow as af
from tolerances import IDENTITY

Loss = Callable[[Any], Any]
SINGLE = 1e-5  # a loss in the caller's single precision against the same in double
START = {"x": 0.1 + np.arange(9.0).reshape(3, 3) / 30}
TABLE = np.random.default_rng(0).standard_normal((3, 3))  # no entry is a float32

ARRAYS: dict[str, Callable[[], Any]] = {
    "float64": lambda: np.array(TABLE),
    "float32": lambda: TABLE.astype(np.float32),
    "int": lambda: np.rint(3 * TABLE).astype(int),
    "jax": lambda: jnp.asarray(TABLE),
}


def matmul(B: Any) -> Loss:
    return lambda th: jnp.sum((th["x"] @ B - 1.0) ** 2)


def where(B: Any) -> Loss:
    return lambda th: jnp.sum((jnp.where(B > 0, B, 0.0) * th["x"] - 1) ** 2)


def einsum(B: Any) -> Loss:
    return lambda th: jnp.mean((jnp.einsum("ij,jk->ik", th["x"], B) - B) ** 2)


def softplus(B: Any) -> Loss:
    return lambda th: jnp.mean(jax.nn.softplus(-B * th["x"]) + 0.1 * th["x"] ** 2)


def compiled(B: Any) -> Loss:
    """JAX keeps what is compiled inside a loss for as long as the loss lives."""
    product = jax.jit(lambda x: x @ B)
    return jax.jit(lambda th: jnp.sum((product(th["x"]) - B) ** 2))


def scanned(B: Any) -> Loss:
    def row(total: Any, x: Any) -> Any:
        return total + jnp.sum((B @ x - B[0]) ** 2), None

    return lambda th: jax.lax.scan(row, 0.0 * jnp.sum(th["x"]), th["x"])[0]


def custom(B: Any) -> Loss:
    @jax.custom_jvp
    def half_square(x: Any) -> Any:
        return 0.5 * jnp.sum((x * B) ** 2)

    half_square.defjvp(lambda p, t: (half_square(*p), jnp.sum(p[0] * B**2 * t[0])))
    return lambda th: half_square(th["x"] - 1.0)


WRITTEN = (matmul, where, einsum, softplus)


def together(B: Any) -> Loss:
    """Two kinds of array in one loss, one of them twice."""
    terms = [matmul(B), where(B), einsum(ARRAYS["int"]())]
    return lambda th: sum(term(th) for term in terms) / len(terms)


def numbers(tree: Any) -> np.ndarray:
    """All numbers of a result, and the proof that each one came in double precision."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    assert all(leaf.dtype in (np.float64, np.complex128) for leaf in leaves)
    assert leaves
    return np.concatenate([leaf.ravel() for leaf in leaves])


def integrate(loss: Loss) -> Any:
    solution = af.integrate(
        af.Flow(loss, conserved={"loss again": lambda th: 0.0 * loss(th)}),
        START,
        until=0.3,
        observe={"again": loss, "root": af.flows.Observable(lambda th: jnp.sqrt(1 + loss(th)))},
        marks={"half": lambda th: loss(th) - 0.5 * loss(START)},
        stops={"tenth": af.Mark(loss, level=1e-3)},
    )
    rows = [solution.trajectory[n].values for n in ("loss", "again", "root", "speed")]
    return rows, [e.time for e in solution.events], solution.final


def descend(loss: Loss) -> Any:
    solution = af.descend(
        af.Flow(loss), START, 0.2, af.Momentum(0.01), batch=lambda th, key: loss(th)
    )
    return solution.trajectory["loss"].values, solution.final


def saddle(loss: Loss) -> tuple[af.Flow, dict[str, np.ndarray]]:
    """The loss beside a saddle in w, near which it waits; `w0^2 - w1^2` is conserved."""
    flow = af.Flow(lambda th: (1.0 - th["w"][0] * th["w"][1]) ** 2 + 1e-3 * loss(th))
    return flow, {**START, "w": np.array([1e-3, 2e-3])}


def saddle_ledger(loss: Loss) -> Any:
    flow, start = saddle(loss)
    ledger = af.saddle_ledger(af.integrate(flow, start, until=10.0))
    return [found.point.theta for found in ledger.saddles]


def quadratic_invariants(loss: Loss) -> Any:
    flow, start = saddle(loss)
    return [invariant(start) for invariant in af.flows.quadratic_invariants(flow, start)]


def pair(loss: Loss) -> tuple[af.Flow, dict[str, np.ndarray]]:
    """Two copies of the model: the loss is symmetric in them, and the diagonal is invariant."""
    flow = af.Flow(lambda th: loss({"x": th["x"]}) + loss({"x": th["y"]}))
    return flow, {"x": START["x"], "y": START["x"]}


def orbits(loss: Loss) -> Any:
    flow, start = pair(loss)
    reduced = af.OrbitFlow(flow, [lambda th: {"x": th["y"], "y": th["x"]}], start)
    return reduced.velocity(reduced.project(start)), verified(flow, reduced, start)


def manifold(loss: Loss) -> Any:
    flow, start = pair(loss)
    reduced = af.ManifoldFlow(flow, lambda z: {"x": z["z"], "y": z["z"]}, {"z": START["x"]})
    return reduced.velocity(reduced.project(start)), verified(flow, reduced, start)


def gram(loss: Loss) -> Any:
    reduced = af.GramFlow(lambda G: loss({"x": G}), 3)
    weights = START["x"] + np.eye(3)
    return reduced.velocity(reduced.project(weights)), verified(reduced.full, reduced, weights)


def verified(flow: Any, reduced: Any, start: Any) -> list[float]:
    verification = af.verify(flow, reduced, start, 0.05)
    assert verification.status == "agrees", verification.sentence
    return list(verification.times)


def family(loss: Loss) -> Callable[[Any, Any], Any]:
    """The loss with a spring, and a bifurcation at p = 0 of a u that feels where x rests."""

    def with_spring(th: Any, p: Any) -> Any:
        x, u = th["x"], th["u"]
        return loss(th) + jnp.sum(2.0 * x**2 - p * x) + u**4 + u**3 * jnp.sum(x) - p * u**2

    return with_spring


def resting(loss: Loss) -> Any:
    flow = af.Flow(lambda th: family(loss)(th, 0.0))
    return af.critical_point(flow, {**START, "u": np.array(0.0)}, top=1).theta


def continue_branch(loss: Loss) -> Any:
    return af.linearise.continue_branch(family(loss), resting(loss), -0.02, -0.01, step=0.01).states


def lyapunov_schmidt(loss: Loss) -> Any:
    return af.linearise.lyapunov_schmidt(family(loss), resting(loss)).reduced(0.1, 0.01)


LENSES: dict[str, Callable[[Loss], Any]] = {
    "velocity": lambda loss: af.Flow(loss).velocity(START),
    "integrate": integrate,
    "descend": descend,
    "series": lambda loss: af.series(af.Flow(loss), START, order=3).coefficients,
    "descent_series": lambda loss: af.expand.descent_series(af.Flow(loss), START, 2)(5, 0.01),
    "spectrum": lambda loss: af.spectrum(af.Flow(loss), START, top=2).rates,
    "critical_point": lambda loss: af.critical_point(af.Flow(loss), START, top=1).theta,
    "saddle_ledger": saddle_ledger,
    "quadratic_invariants": quadratic_invariants,
    "orbits": orbits,
    "manifold": manifold,
    "gram": gram,
    "continue_branch": continue_branch,
    "lyapunov_schmidt": lyapunov_schmidt,
}
FEW = ("integrate", "spectrum")


class Caller:
    """Calls a loss in every way, keeps what it has compiled, and knows the right answers."""

    def __init__(self, loss: Loss, fresh: Loss, dtype: Any = np.float32):
        self.dtype = dtype
        both = jax.value_and_grad(loss)
        self.values = [loss, jax.jit(loss)]
        self.slopes = [both, jax.jit(both)]
        with jax.enable_x64(True):
            self.right = jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(fresh))(START))

    def calls(self) -> None:
        """Eagerly and compiled long ago, with and without gradient; and lowered anew."""
        for value in self.values:
            self.check(value(START), self.right[0])
        for slope in self.slopes:
            jax.tree.map(self.check, slope(START), self.right)
        jax.jit(lambda th: self.slopes[0](th)).lower(START)

    def check(self, found: Any, right: Any) -> None:
        assert found.dtype == self.dtype
        np.testing.assert_allclose(found, right, rtol=SINGLE, atol=SINGLE)


def walk(written: Any, array: str, lenses: Any, dtype: Any = np.float32) -> None:
    """One loss through the lenses with its caller at work; another one, the caller comes last."""
    make = ARRAYS[array]
    untouched, busy = written(make()), written(make())
    right = {name: numbers(LENSES[name](untouched)) for name in lenses}
    Caller(untouched, written(make()), dtype).calls()
    caller = Caller(busy, written(make()), dtype)
    caller.calls()
    for name in lenses:
        np.testing.assert_array_equal(numbers(LENSES[name](busy)), right[name], err_msg=name)
        caller.calls()


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    """JAX's constants live as long as what was compiled with them: here, through the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("share", range(3))  # each a third of the lenses, to run side by side
def test_a_loss_is_whole_before_between_and_after_every_lens(share: int) -> None:
    walk(together, "float64", list(LENSES)[share::3])


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("written", WRITTEN)
def test_however_it_is_written_over_whatever_array(written: Any, array: str) -> None:
    walk(written, array, ("velocity",))


@pytest.mark.parametrize("written", [compiled, scanned, custom])
def test_a_loss_that_is_compiled_or_has_its_own_derivative(written: Any) -> None:
    walk(written, "float64", ("velocity", "spectrum"))


def test_the_velocity_is_the_closed_form_after_the_caller_compiled_the_loss() -> None:
    """Not rounded to the caller's precision: what is compared above with itself is also right."""
    B, x = ARRAYS["float64"](), START["x"]
    loss = jax.jit(matmul(B))
    loss(START)
    np.testing.assert_allclose(
        af.Flow(loss).velocity(START)["x"], -2 * (x @ B - 1) @ B.T, rtol=100 * IDENTITY
    )


@pytest.mark.parametrize("second", ["lenses", "caller"])
def test_lenses_and_caller_in_two_threads_at_once(second: str) -> None:
    make = ARRAYS["float64"]
    loss = einsum(make())
    right = {name: numbers(LENSES[name](einsum(make()))) for name in FEW}
    caller = Caller(loss, einsum(make()))
    done, failures = threading.Event(), []

    def lenses() -> None:
        for name in FEW:
            np.testing.assert_array_equal(numbers(LENSES[name](loss)), right[name])

    def calls() -> None:
        while not done.is_set():
            caller.calls()

    def reported(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)
        finally:
            done.set()

    there, here = (lenses, calls) if second == "lenses" else (calls, lenses)
    thread = threading.Thread(target=reported, args=(there,))
    thread.start()
    reported(here)
    thread.join()
    assert not failures, failures


@pytest.mark.parametrize(
    "script",
    [
        "t.walk(t.where, 'float64', t.FEW, np.float64); assert jax.config.jax_enable_x64",
        "t.switching()",
    ],
)
def test_a_caller_in_double_precision(script: str) -> None:
    """In a process of its own, since the caller's switch is global."""
    first = "import gc, jax, numpy as np; gc.disable(); jax.config.update('jax_enable_x64', True)"
    subprocess.run(
        [sys.executable, "-c", f"{first}; import test_callers_functions as t; {script}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "tests"])},
        cwd=Path(__file__).parent.parent,
        check=True,
    )


def switching() -> None:
    """A caller who turns double precision on and off between solves."""
    make = ARRAYS["float64"]
    loss, right = where(make()), numbers(LENSES["integrate"](where(make())))
    callers = {True: Caller(loss, where(make()), np.float64), False: Caller(loss, where(make()))}
    for wide in (False, True, False, True):
        jax.config.update("jax_enable_x64", wide)
        callers[wide].calls()
        np.testing.assert_array_equal(numbers(LENSES["integrate"](loss)), right)
        callers[wide].calls()


TYPES = ("float64", "float32", "float16", "int64", "int32", "uint8", "complex128", "bool")


@given(
    x=arrays.arrays(
        st.sampled_from(TYPES), arrays.array_shapes(min_dims=0, max_side=3), elements=st.just(1)
    ),
    scopes=st.lists(st.booleans(), min_size=2, max_size=4),
)
def test_an_array_is_one_constant_in_each_precision(x: np.ndarray, scopes: list[bool]) -> None:
    x = (np.arange(x.size).reshape(x.shape) / 7).astype(x.dtype)
    held = []
    for wide in scopes:
        with jax.enable_x64(wide):
            held.append((wide, jax.jit(lambda: jnp.ravel(x))))
            for scope, function in held:
                with jax.enable_x64(scope):
                    out, dtype = function(), jax.dtypes.canonicalize_dtype(x.dtype)
                assert out.dtype == dtype
                np.testing.assert_array_equal(out, x.ravel().astype(dtype))


def test_an_array_that_is_used_twice_is_stored_once() -> None:
    B = ARRAYS["float64"]()
    for wide in (False, True):
        with jax.enable_x64(wide):
            traced = jax.make_jaxpr(lambda x: jnp.sum(x @ B) + jnp.sum(x * B))(START["x"])
        assert len(traced.consts) == 1


def test_what_is_no_array_of_numbers_is_still_refused_by_jax() -> None:
    with pytest.raises(TypeError) as refused:
        jax.lax.neg(np.array([object()]))
    assert "object is not a valid JAX array type" in str(refused.value.__cause__)
