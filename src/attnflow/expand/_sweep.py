"""The velocity along a curve that is given by its Taylor coefficients: the engine of the room."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Float

from attnflow._errors import InputError, shown, whole
from attnflow.expand import _kinks, _rules  # noqa: F401  (they fill the table of rules)
from attnflow.expand._taylor import Stack, Taylor, UnknownPrimitive, primitives
from attnflow.flows.flow import System
from attnflow.flows.layout import Layout, Params, Vector
from attnflow.flows.users import UNTRACEABLE, flow_or_sentence

Curve = Float[np.ndarray, "order parameter"]


class Sweep:
    """`curve -> velocity`, both as coefficients `[order, parameter]`, compiled once.

    The curve is padded with zeros to a fixed number of rows, so one program serves every step of
    a recursion: row k of the velocity depends on rows 0..k of the curve only. `nested` is the
    highest order of the fall-back, whose cost doubles with every order.
    """

    def __init__(self, system: System, order: int, nested: int = 4):
        self.nested = nested
        self.layout: Layout = system.layout
        self.order = order
        self.unknown = ""
        size = jax.ShapeDtypeStruct((system.size,), np.float64)
        try:
            self._program = jax.make_jaxpr(system.trace_velocity)(size)
        except UNTRACEABLE as error:
            raise InputError(
                "velocity",
                f"not written with jax.numpy, so it has no Taylor series ({type(error).__name__})",
            ) from None
        scout = Taylor(order - 1)
        try:
            jax.eval_shape(lambda c: self._taylor(scout, c), self._shape)
        except UnknownPrimitive as unknown:
            self.unknown = unknown.name
            self.order = min(order, nested)
        self.kinks: tuple[str, ...] = tuple(scout.kinks.values())
        self._compiled = jax.jit(self._nested if self.unknown else self._stacked)

    @property
    def note(self) -> str:
        """How the coefficients were computed, when not as asked."""
        if not self.unknown:
            return ""
        held = ""
        if "stop_gradient" in primitives(self._program.jaxpr):
            held = " What is behind stop_gradient counts as constant."
        return (
            f"The velocity uses '{self.unknown}', which has no Taylor rule; its orders up to "
            f"{self.nested} come from nested derivatives and higher ones are not computed.{held}"
        )

    def __call__(self, curve: Curve, probe: Vector | None = None) -> Curve:
        """The velocity's coefficients, as many as the curve has rows."""
        return np.asarray(self._run(curve, probe)[0])

    def switches(self, curve: Curve) -> tuple[Float[np.ndarray, "order gate"], np.ndarray]:
        """The numbers whose signs are the gates, along the curve, and the kink of each."""
        found = self._run(curve, None)[1]
        numbers = [i for i, c in found for _ in range(c.shape[1])]
        rows = [np.asarray(c) for _, c in found] or [np.empty((self.order, 0))]
        return np.concatenate(rows, axis=1), np.array(numbers, dtype=int)

    def sharp(self, curve: Curve) -> list[int]:
        """Which kinks are real: disturbing their decision changes the velocity.

        The maximum that a softmax subtracts is found harmless here. Tried on a generic curve near
        the given one, since at a zero start a gate may be open or shut without any effect.
        """
        if not self.kinks:
            return []
        rng = np.random.default_rng(0)
        start = curve[0]
        scale = float(np.sqrt(np.mean(start**2))) or 1.0
        generic = scale * rng.standard_normal(curve.shape)
        generic[0] = start + 0.1 * generic[0]
        plain = self(generic)
        if not np.isfinite(plain).all():
            generic, plain = curve, self(curve)

        def matters(which: list[int]) -> bool:
            probe = np.zeros(len(self.kinks))
            probe[which] = 1.0
            change = np.abs(self(generic, probe) - plain)
            return not bool(np.all(change <= 1e-8 * np.abs(plain).max(axis=1, keepdims=True)))

        everything = list(range(len(self.kinks)))
        return [i for i in everything if matters([i])] if matters(everything) else []

    def gates(self, kinks: list[int]) -> Callable[[Params], Any]:
        """The function of the parameters whose signs are these kinks' gates."""

        def measure(theta: Params) -> Any:
            taylor = Taylor(0)
            y = self.layout.join(theta)
            taylor.run(self._program.jaxpr, self._program.consts, [Stack(y[None])])
            return jnp.concatenate([c.ravel() for i, c in taylor.switches if i in kinks])

        return measure

    @property
    def _shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.order, self.layout.size), np.float64)

    def _run(self, curve: Curve, probe: Vector | None) -> Any:
        quiet = np.zeros(max(len(self.kinks), 1)) if probe is None else probe
        return self._compiled(curve[: self.order], quiet)

    def _stacked(self, curve: Any, probe: Any) -> Any:
        taylor = Taylor(self.order - 1, probe)
        out = self._taylor(taylor, curve)
        return out, [(i, c.reshape(c.shape[0], -1)) for i, c in taylor.switches]

    def _taylor(self, taylor: Taylor, curve: Any) -> Any:
        out = taylor.run(self._program.jaxpr, self._program.consts, [Stack(curve)])[0]
        return taylor.lift(taylor.settled(out)).c

    def _nested(self, curve: Any, probe: Any) -> Any:
        """The same by repeated forward differentiation in one variable."""
        velocity = jaxpr_as_fun(self._program)

        def along(s: Any) -> Any:
            return velocity(jnp.polyval(curve[::-1], s))[0]

        terms, f = [], along
        for k in range(self.order):
            terms.append(f(0.0) / math.factorial(k))
            f = _derivative(f)
        return jnp.stack(terms), []


def _derivative(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda s: jax.jvp(f, (s,), (1.0,))[1]


_SWEEPS: weakref.WeakKeyDictionary[System, dict[int, Sweep]] = weakref.WeakKeyDictionary()


def prepared(flow: Any, theta: Params, order: int, limit: int = 30) -> tuple[Sweep, Vector]:
    """The compiled sweep of a flow (kept for the next call) and the flat start, both checked.

    Beyond `limit` float64 has no digits left for the coefficients of interest.
    """
    flow_or_sentence(flow)
    order = whole("order", order)
    if order > limit:
        raise InputError("order", f"{order}; a whole number from 1 to {limit}")
    system = flow.bind(theta)
    y = system.layout.flatten(theta)
    system.check(y)
    kept = _SWEEPS.setdefault(system, {})
    if order not in kept:
        sweep = Sweep(system, order)
        if sweep.unknown:
            _try_nested(sweep, y)
        kept[order] = sweep
    return kept[order], y


def length(x: np.ndarray) -> Any:
    """The norm along the last axis; squares of large coefficients would overflow."""
    top = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    top = np.where(top > 0, top, 1.0)
    return top[..., 0] * np.linalg.norm(x / top, axis=-1)


def _try_nested(sweep: Sweep, y: Vector) -> None:
    curve = np.zeros((sweep.order, y.size))
    curve[0] = y
    try:
        sweep(curve)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            "flow",
            f"the velocity uses '{sweep.unknown}', which has no Taylor rule, and cannot be "
            f"differentiated forward either ({shown(str(error).splitlines()[0])})",
        ) from None


def rescued(
    compute: Callable[[float], np.ndarray], order: int, axis: int, power: np.ndarray, symbol: str
) -> np.ndarray:
    """`compute(unit)` in units of time `unit`, unscaled; names the order that overflows.

    Coefficients may leave the range of float64 inside a sweep although the wanted ones do not, so
    a failed computation is repeated in a unit of time in which they neither grow nor fall.
    """
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        out = compute(1.0)
        if np.isfinite(out).all():
            return out
        others = tuple(i for i in range(out.ndim) if i != axis)
        size = np.abs(out).max(axis=others)
        first = int(np.argmin(np.isfinite(size)))
        unit = 1.0
        if first >= 2 and size[first - 1] > 0:
            rate = np.log2(size[first - 1] / max(size[1], 1e-300)) / max(first - 2, 1)
            unit = 2.0 ** -round(float(rate))
        scaled = compute(unit)
        out = scaled / unit ** power.astype(float)
    bad = ~np.isfinite(out).all(axis=others)
    if bad.any():
        k = int(np.argmax(bad))
        undefined = np.isnan(np.take(scaled, k, axis=axis)).any()
        what = "is not a number (the velocity is not smooth here)" if undefined else "overflows"
        so = f"at most {k - 1} here" if k > 1 else "there is no series here"
        raise InputError("order", f"{order}; the coefficient of {symbol}^{k} {what}, so {so}")
    return out


def disturbed(
    compute: Callable[[Vector, Callable[[np.ndarray], np.ndarray]], np.ndarray],
    y: Vector,
    exact: np.ndarray,
    delta: float = 2.0**-26,
    seeds: Sequence[int] = (0, 1),
) -> np.ndarray:
    """How far rounding may have moved each coefficient.

    Every input and every intermediate coefficient is disturbed by a relative `delta` of random
    sign, and the response scaled down from `delta` to the precision of float64. Zero entries of
    the start are disturbed by the scale of the other entries, or by 1 where all are zero.
    """
    worst = np.zeros_like(exact)
    scale = float(np.sqrt(np.mean(y * y))) or 1.0
    for seed in seeds:
        rng = np.random.default_rng(seed)

        def shake(c: np.ndarray, rng: np.random.Generator = rng) -> np.ndarray:
            return c * (1 + delta * rng.choice([-1.0, 1.0], size=c.shape))

        start = np.where(y == 0, delta * scale * rng.choice([-1.0, 1.0], size=y.shape), shake(y))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.abs(compute(start, shake) - exact)
        worst = np.maximum(worst, np.where(np.isfinite(moved), moved, 0.0))
    return worst * (np.finfo(float).eps / delta)
