"""The Taylor rules: what each primitive does to a stack of coefficients.

Linear primitives act on every coefficient alike, products are Cauchy products along the order,
and elementary functions follow the recursion of the differential equation they solve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attnflow.expand._functions import (
    cauchy,
    chained,
    divided,
    exponential,
    power,
    sigmoid,
    sine_cosine,
    tangent,
)
from attnflow.expand._taylor import (
    RULES,
    TRANSPARENT,
    Rule,
    Stack,
    Taylor,
    UnknownPrimitive,
    aligned,
    is_positive,
)

KEEPS_SIGN = {
    "reshape",
    "broadcast_in_dim",
    "squeeze",
    "stop_gradient",
    "copy",
    "transpose",
    "slice",
    "reduce_sum",
    "rev",
    "gather",
}


def _linear(moving: tuple[int, ...] | None = None) -> Rule:
    """Linear in the arguments at these places together (default: all); the others are constant."""

    def rule(t: Taylor, eqn: Any, values: list[Any]) -> Any:
        places = range(len(values)) if moving is None else moving
        if any(isinstance(v, Stack) for i, v in enumerate(values) if i not in places):
            raise UnknownPrimitive(eqn.primitive.name)
        lifted = [t.lift(v) if i in places else v for i, v in enumerate(values)]
        axes = [0 if i in places else None for i in range(len(values))]
        given = [v.c if isinstance(v, Stack) else v for v in lifted]
        out = jax.vmap(lambda *a: eqn.primitive.bind(*a, **eqn.params), axes)(*given)
        if eqn.primitive.multiple_results:
            return [Stack(o) for o in out]
        first = values[0]
        same = eqn.primitive.name in TRANSPARENT and len(values) == 1
        return Stack(
            out,
            kink=first.kink if same and isinstance(first, Stack) else None,
            positive=eqn.primitive.name in KEEPS_SIGN and getattr(first, "positive", False),
        )

    return rule


def _identity(t: Taylor, eqn: Any, values: list[Any]) -> Any:
    return values if eqn.primitive.multiple_results else values[0]


def _sum(sign: int) -> Rule:
    def rule(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
        a, b = aligned(t, eqn, values)
        both = sign > 0 and all(is_positive(v) for v in values)
        return Stack(a.c + b.c if sign > 0 else a.c - b.c, positive=both)

    return rule


def _product(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    """Bilinear: a constant factor acts on every coefficient, two series by Cauchy's product."""
    a, b = values
    both = eqn.primitive.name == "mul" and all(is_positive(v) for v in values)
    if eqn.primitive.name == "mul" and isinstance(a, Stack) and isinstance(b, Stack):
        a, b = aligned(t, eqn, values)

    def bind(x: Any, y: Any) -> Any:
        return eqn.primitive.bind(x, y, **eqn.params)

    if isinstance(a, Stack) and isinstance(b, Stack):
        return Stack(cauchy(bind, a.c, b.c), positive=both)
    if isinstance(a, Stack):
        return Stack(jax.vmap(lambda x: bind(x, b))(a.c), positive=both)
    return Stack(jax.vmap(lambda y: bind(a, y))(b.c), positive=both)


def _quotient(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    a, b = values
    both = all(is_positive(v) for v in values)
    if not isinstance(b, Stack):
        return Stack(a.c / jnp.asarray(b), positive=both)
    a, b = aligned(t, eqn, values)
    return Stack(divided(a.c, b.c), positive=both)


def _elementwise(function: Callable[[Any], Any], positive: bool = False) -> Rule:
    return lambda t, eqn, values: Stack(function(values[0].c), positive=positive)


def _by_derivative(derivative: Callable[[Any], Any]) -> Rule:
    """f(u) from the series of f'(u); the value itself by the primitive, to its full precision."""

    def rule(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
        u = values[0].c
        return Stack(chained(eqn.primitive.bind(u[0], **eqn.params), derivative(u), u))

    return rule


def _shift(u: Any, constant: float) -> Any:
    return u.at[0].add(constant)


def _square(u: Any) -> Any:
    return cauchy(lax.mul, u, u)


def _whole_power(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    u, n = values[0].c, eqn.params["y"]
    out, base, m = None, u, abs(n)
    while m:
        if m % 2:
            out = base if out is None else cauchy(lax.mul, out, base)
        m //= 2
        base = _square(base) if m else base
    out = jnp.zeros_like(u).at[0].set(1.0) if out is None else out
    return Stack(out if n >= 0 else _inverse(out), positive=values[0].positive)


def _power(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    base, exponent = values
    if not isinstance(exponent, Stack):
        return Stack(power(base.c, jnp.asarray(exponent)), positive=base.positive)
    base, exponent = aligned(t, eqn, values)
    log = chained(jnp.log(base.c[0]), divided(jnp.ones_like(base.c[:1]), base.c), base.c)
    return Stack(exponential(cauchy(lax.mul, exponent.c, log)))


def _logaddexp(t: Taylor, eqn: Any, values: list[Any]) -> list[Stack]:
    """log(e^x + e^y): smooth, though it is computed with a maximum and an absolute value."""
    shape = eqn.outvars[0].aval.shape
    x, y = (t.lift(t.settled(v), shape).c for v in values)
    left = chained(jnp.logaddexp(x[0], y[0]), sigmoid(x - y), x)
    return [Stack(left + chained(jnp.zeros_like(y[0]), sigmoid(y - x), y))]


def _inverse(u: Any) -> Any:
    return divided(jnp.zeros_like(u).at[0].set(1.0), u)


RULES.update(
    {
        **dict.fromkeys(
            [
                "neg",
                "reshape",
                "squeeze",
                "transpose",
                "broadcast_in_dim",
                "slice",
                "reduce_sum",
                "rev",
                "cumsum",
                "convert_element_type",
                "concatenate",
                "pad",
                "split",
                "real",
                "imag",
                "fft",
                "reduce_window_sum",
                "expand_dims",
                "stack",
                "unstack",
            ],
            _linear(),
        ),
        **dict.fromkeys(["gather", "dynamic_slice", "scatter-mul"], _linear((0,))),
        "dynamic_update_slice": _linear((0, 1)),
        **dict.fromkeys(["scatter-add", "scatter"], _linear((0, 2))),
        "triangular_solve": _linear((1,)),
        **dict.fromkeys(["stop_gradient", "copy", "device_put", "optimization_barrier"], _identity),
        **dict.fromkeys(["add", "add_any"], _sum(+1)),
        "sub": _sum(-1),
        **dict.fromkeys(["mul", "dot_general", "conv_general_dilated"], _product),
        "div": _quotient,
        "exp": _elementwise(exponential, positive=True),
        "exp2": _elementwise(lambda u: exponential(u * np.log(2)), positive=True),
        "expm1": _by_derivative(exponential),
        "log": _by_derivative(_inverse),
        "log1p": _by_derivative(lambda u: _inverse(_shift(u, 1))),
        "logistic": _elementwise(sigmoid, positive=True),
        "tanh": _elementwise(tangent),
        "sin": _elementwise(lambda u: sine_cosine(u, -1)[0]),
        "cos": _elementwise(lambda u: sine_cosine(u, -1)[1]),
        "sinh": _elementwise(lambda u: sine_cosine(u, +1)[0]),
        "cosh": _elementwise(lambda u: sine_cosine(u, +1)[1], positive=True),
        "tan": _elementwise(lambda u: divided(*sine_cosine(u, -1))),
        "atan": _by_derivative(lambda u: _inverse(_shift(_square(u), 1))),
        "asin": _by_derivative(lambda u: power(_shift(-_square(u), 1), -0.5)),
        "acos": _by_derivative(lambda u: -power(_shift(-_square(u), 1), -0.5)),
        "asinh": _by_derivative(lambda u: power(_shift(_square(u), 1), -0.5)),
        "erf": _by_derivative(lambda u: 2 / np.sqrt(np.pi) * exponential(-_square(u))),
        "erfc": _by_derivative(lambda u: -2 / np.sqrt(np.pi) * exponential(-_square(u))),
        "sqrt": _elementwise(lambda u: power(u, 0.5)),
        "rsqrt": _elementwise(lambda u: power(u, -0.5), positive=True),
        "cbrt": _elementwise(lambda u: power(u, 1 / 3, jnp.cbrt)),
        "square": lambda t, eqn, values: replace(values[0], c=_square(values[0].c)),
        "integer_pow": _whole_power,
        "pow": _power,
        "custom_jvp_call:logaddexp": _logaddexp,
    }
)
