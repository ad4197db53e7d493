"""Lyapunov-Schmidt reduction against families whose range solution is known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

import attnflow as af
from attnflow._errors import InputError
from attnflow.expand.jets import Jet
from attnflow.linearise import LyapunovSchmidt, lyapunov_schmidt
from strategies import answer, rubbish, seeds
from tolerances import IDENTITY, SOLVED_LINEAR_SYSTEM


def pitchfork(th: Any, p: Any) -> Any:
    """The range equation is y = x^2 exactly; what is left is p x - 4 x^3."""
    return th["x"] ** 4 - p * th["x"] ** 2 / 2 + (th["y"] - th["x"] ** 2) ** 2 / 2


ORIGIN = {"x": np.array(0.0), "y": np.array(0.0)}


@pytest.fixture(scope="module")
def reduced_pitchfork() -> LyapunovSchmidt:
    return lyapunov_schmidt(pitchfork, ORIGIN)


class Known:
    """L = |y - h(x, p)|^2_D/2 + r(x, p) in rotated coordinates: zeta = h, reduced = -dr/dx."""

    def __init__(self, seed: int, kernel: int, size: int):
        rng = np.random.default_rng(seed)
        self.kernel, self.size = kernel, size
        self.Q = ortho_group.rvs(size, random_state=rng)
        self.stiff = rng.uniform(0.5, 2.0, size - kernel) * rng.choice([-1, 1], size - kernel)
        self.linear = rng.standard_normal(size - kernel)
        self.square = rng.standard_normal((size - kernel, kernel))
        self.cubic = rng.standard_normal(kernel)

    def h(self, x: Any, p: Any) -> Any:
        return self.linear * p + ((x * x)[None, :] * self.square).sum(axis=1)

    def force(self, x: Any, p: Any) -> Any:
        """-dr/dx of r = sum c x^4/4 - p x^2/2."""
        return -self.cubic * x**3 + p * x

    def loss(self, theta: Any, p: Any) -> Any:
        z = (theta[None, :] * self.Q.T).sum(axis=1)
        x, y = z[: self.kernel], z[self.kernel :]
        off = y - self.h(x, p)
        rest = self.cubic * (x * x * x * x) / 4 - p * (x * x) / 2
        return (self.stiff * off * off).sum(axis=0) / 2 + rest.sum(axis=0)

    def family(self, theta: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
        z = Jet.variables(np.append(theta, p), 2)
        loss = self.loss(z[:-1], z[-1])
        return -loss.derivative(1)[:-1], -loss.derivative(2)[:-1]

    def reduction(self) -> LyapunovSchmidt:
        K, R = self.Q[:, : self.kernel], self.Q[:, self.kernel :]
        return lyapunov_schmidt(self.family, np.zeros(self.size), kernel=K, range=R, host=True)


known = st.builds(Known, seeds, st.integers(1, 2), st.integers(3, 5))


@given(known, st.floats(-0.2, 0.2), st.floats(-0.3, 0.3))
def test_the_range_solution_is_the_known_one(family: Known, p: float, x: float) -> None:
    ls, at = family.reduction(), np.full(family.kernel, x)
    found = ls.solve(at, p)
    assert found.converged, found.sentence
    np.testing.assert_allclose(found.y, family.h(at, p), atol=SOLVED_LINEAR_SYSTEM)
    np.testing.assert_allclose(ls.first_order, family.linear, atol=SOLVED_LINEAR_SYSTEM)
    np.testing.assert_allclose(ls.reduced(at, p), family.force(at, p), atol=SOLVED_LINEAR_SYSTEM)
    assert ls.critical
    assert np.abs(ls.forcing).max() < IDENTITY


@given(known)
def test_bases_are_found_without_being_told(family: Known) -> None:
    ls = lyapunov_schmidt(family.family, np.zeros(family.size), host=True)
    Q = np.column_stack([ls.kernel, ls.range])
    assert ls.dimension == family.kernel
    np.testing.assert_allclose(Q.T @ Q, np.eye(family.size), atol=IDENTITY)
    own = family.Q[:, : family.kernel]
    np.testing.assert_allclose(ls.kernel @ ls.kernel.T, own @ own.T, atol=SOLVED_LINEAR_SYSTEM)


@given(known, st.floats(-0.2, 0.2))
def test_tangential_rates_at_the_trivial_solution(family: Known, p: float) -> None:
    """At x = 0 the kernel block is p I and uncoupled, so its rates are exactly p."""
    rates = family.reduction().tangential(np.zeros(family.kernel), p)
    np.testing.assert_allclose(rates, p, atol=SOLVED_LINEAR_SYSTEM)


def test_a_traced_loss_gives_what_the_host_gives(reduced_pitchfork: LyapunovSchmidt) -> None:
    ls = reduced_pitchfork
    assert ls.dimension == 1
    sign = ls.kernel[0, 0]
    for x, p in ((0.1, 0.04), (0.2, -0.1), (0.05, 0.3)):
        assert ls.reduced([x], p)[0] * sign == pytest.approx(
            sign * p * sign * x - 4 * x**3, abs=IDENTITY
        )
        assert abs(ls.zeta([x], p)[0]) == pytest.approx(x**2, abs=IDENTITY)


def test_a_velocity_is_as_good_as_a_loss(reduced_pitchfork: LyapunovSchmidt) -> None:
    def velocity(th: Any, p: Any) -> Any:
        off = th["y"] - th["x"] ** 2
        return {"x": p * th["x"] - 4 * th["x"] ** 3 + 2 * th["x"] * off, "y": -off}

    ls = af.linearise.lyapunov_schmidt(velocity, ORIGIN)
    theta = {k: float(v) for k, v in ls.solve([0.1], 0.02).theta.items()}
    same = {k: float(v) for k, v in reduced_pitchfork.solve([0.1], 0.02).theta.items()}
    assert theta == pytest.approx(same, abs=IDENTITY)


def fold(theta: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """The range equation y + y^2 + p = 0 has no real solution beyond p = 1/4."""
    x, y = theta
    return (
        np.array([-(x**3), -y - y**2 - p]),
        np.array([[-3 * x**2, 0, 0], [0, -1 - 2 * y, -1.0]]),
    )


def test_no_solution_is_a_value() -> None:
    ls = lyapunov_schmidt(fold, np.zeros(2), host=True)
    assert ls.solve([0.0], 0.2).converged
    lost = ls.solve([0.0], 1.0)
    assert not lost.converged
    assert "no solution" in lost.sentence
    for nothing in (
        ls.zeta([0.0], 1.0),
        ls.reduced([0.0], 1.0),
        ls.tangential([0.0], 1.0),
        ls.jacobian([0.0], 1.0),
    ):
        assert np.isnan(nothing).all()


def test_an_empty_kernel_is_the_implicit_function_theorem() -> None:
    ls = lyapunov_schmidt(
        lambda y, p: (np.array([p - y[0]]), np.array([[-1.0, 1.0]])), np.zeros(1), host=True
    )
    assert ls.dimension == 0
    assert ls.solve([], 0.3).y == pytest.approx(ls.first_order * 0.3)
    assert ls.tangential([], 0.3).shape == (0,)


def test_a_point_that_is_not_critical_is_said() -> None:
    ls = lyapunov_schmidt(fold, np.array([0.5, 0.0]), host=True)
    assert not ls.critical
    assert "not critical" in repr(ls)


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"kernel": np.zeros((2, 2))}, "kernel"),
        ({"kernel": np.array([[2.0], [0.0]])}, "kernel"),
        ({"kernel": np.array([[0.0], [1.0]])}, "kernel"),
        ({"range": np.array([[1.0], [0.0]])}, "range"),
        ({"p": float("nan")}, "p"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_bad_input_names_its_field(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        lyapunov_schmidt(fold, np.zeros(2), **{"host": True, **keys})
    assert error.value.field == field


def test_a_flow_that_is_no_gradient_flow_is_refused() -> None:
    turn = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    with pytest.raises(InputError, match="not symmetric"):
        lyapunov_schmidt(lambda y, p: (turn[:, :2] @ y, turn), np.zeros(2), host=True)
    with pytest.raises(InputError, match="returned shapes"):
        lyapunov_schmidt(lambda y, p: (y, np.eye(2)), np.zeros(2), host=True)


@settings(max_examples=50)
@given(rubbish)
def test_rubbish_is_refused_with_a_sentence(value: Any) -> None:
    ls = lyapunov_schmidt(fold, np.zeros(2), host=True)
    found = answer(lambda: ls.solve(value, 0.1))
    assert isinstance(found, InputError) or found.converged in (True, False)
    found = answer(lambda: ls.solve([0.1], value))
    assert isinstance(found, InputError) or found.converged in (True, False)
    found = answer(lambda: lyapunov_schmidt(fold, np.zeros(2), value, host=True))
    assert isinstance(found, InputError | LyapunovSchmidt)
