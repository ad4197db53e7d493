"""Taylor arithmetic over a jaxpr: every value becomes the stack of its coefficients in time.

`jax.experimental.jet` unrolls a product of two series of order K into (K+1)^2/2 products, and the
compiler then needs half a minute for order 8 of a one-layer attention model. Here a value is one
array `[order, ...]` and a product one contraction along `order`, so the compiled program hardly
grows with the order. What has no rule here is handed to `jet`, one primitive at a time; what `jet`
does not know either is an `UnknownPrimitive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental.jet import jet
from jax.extend.core import Literal

CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}
"""Primitives that only wrap a jaxpr. The series is that of what is computed: hand-written
derivative rules do not enter."""


TRANSPARENT = {
    "reshape",
    "broadcast_in_dim",
    "squeeze",
    "stop_gradient",
    "convert_element_type",
    "copy",
    "transpose",
    "slice",
    "max",
    "min",
    "select_n",
    "is_finite",
    "eq",
    "ne",
    "gt",
    "ge",
    "lt",
    "le",
    "jit",
    "pjit",
    "closed_call",
}
"""What a maximum may pass through and still be only the maximum."""


class UnknownPrimitive(Exception):
    """A primitive that depends on the parameters and has no Taylor rule."""

    def __init__(self, name: str):
        self.name = name
        super().__init__(name)


@dataclass(frozen=True)
class Stack:
    """The coefficients of one value: `c[k]` multiplies t^k."""

    c: Any
    kink: int | None = None
    """Set while the value is the plain result of a `max`: a probe has not been added to it yet."""
    positive: bool = False
    """Known to be positive for every parameter, as an exponential is."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.c.shape[1:]


@dataclass
class Taylor:
    """One pass over a jaxpr in series of `order`; collects where the function is not smooth.

    `probe[i]` disturbs the i-th decision (a maximum is moved, a comparison turned round). A
    decision that changes nothing, like the maximum that a softmax subtracts, is no kink.
    """

    order: int
    probe: Any = None
    kinks: dict[int, str] = field(default_factory=dict)
    """Primitive by identity of its equation."""
    switches: list[tuple[int, Any]] = field(default_factory=list)
    """Which decision, and the stack of the number whose sign decides."""
    inside: int = 0
    """Depth of loops: values found in there cannot be handed out."""

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The outputs; each argument is a plain array or a `Stack`."""
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        for eqn in jaxpr.eqns:
            values = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            out = self.equation(eqn, values)
            env.update(zip(eqn.outvars, out, strict=True))
        return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def equation(self, eqn: Any, values: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        moving = any(isinstance(v, Stack) for v in values)
        if moving and name not in TRANSPARENT:
            values = [self.settled(v) for v in values]
        rule = RULES.get(f"{name}:{called(eqn)}") or RULES.get(name)
        if name in CALLS and not (moving and rule):
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values)
        if moving:
            out = (rule or _by_jet)(self, eqn, values)
        else:
            out = eqn.primitive.bind(*values, **eqn.params)
        return out if eqn.primitive.multiple_results else [out]

    def lift(self, value: Any, shape: tuple[int, ...] | None = None) -> Stack:
        """A constant as a series, and a scalar spread over the shape of its partners."""
        if not isinstance(value, Stack):
            value = jnp.asarray(value)
            value = Stack(jnp.zeros((self.order + 1, *value.shape), value.dtype).at[0].set(value))
        if shape is not None and value.shape != shape:
            value = replace(value, c=jnp.broadcast_to(self._grown(value, shape), self._full(shape)))
        return value

    def decide(self, eqn: Any, difference: Any = None) -> int:
        """Note a decision of the sign of `difference`; returns its number."""
        key = id(eqn)
        number = list(self.kinks).index(key) if key in self.kinks else len(self.kinks)
        self.kinks.setdefault(key, eqn.primitive.name)
        if difference is not None and not self.inside:
            self.switches.append((number, difference))
        return number

    def probed(self, number: int) -> Any:
        """How much decision `number` is disturbed: 0 in a normal pass."""
        return 0.0 if self.probe is None else self.probe[number]

    def settled(self, value: Any) -> Any:
        """A maximum that is about to be used, with its probe added."""
        if not isinstance(value, Stack) or value.kink is None:
            return value
        return replace(value, c=value.c.at[0].add(0.37 * self.probed(value.kink)), kink=None)

    def _full(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.order + 1, *shape)

    def _grown(self, value: Stack, shape: tuple[int, ...]) -> Any:
        return value.c.reshape(
            self.order + 1, *(1,) * (len(shape) - len(value.shape)), *value.shape
        )


Rule = Callable[[Taylor, Any, list[Any]], Any]

RULES: dict[str, Rule] = {}
"""Rule by name of the primitive, filled by `_rules` and `_kinks`."""


def aligned(t: Taylor, eqn: Any, values: list[Any]) -> list[Stack]:
    shape = eqn.outvars[0].aval.shape
    return [t.lift(v, shape) for v in values]


def is_positive(value: Any) -> bool:
    return value.positive if isinstance(value, Stack) else bool(np.all(known(value) > 0))


def known(value: Any) -> np.ndarray:
    """The numbers of a constant, or NaN if they only exist inside the compiled program."""
    return np.asarray(np.nan) if isinstance(value, Tracer) else np.asarray(value)


def called(eqn: Any) -> str:
    """The name of the function that a call wraps, as its author wrote it."""
    inner = eqn.params.get("call_jaxpr")
    info = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
    return getattr(info, "func_name", "") if info is not None else ""


def primitives(jaxpr: Any) -> set[str]:
    """The names of all primitives in it, calls and loops included."""
    found: set[str] = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found |= primitives(inner)
    return found


def _by_jet(t: Taylor, eqn: Any, values: list[Any]) -> Any:
    """One primitive by `jax.experimental.jet`, which takes and gives lists of coefficients."""
    moving = [i for i, v in enumerate(values) if isinstance(v, Stack)]
    bind: Callable[..., Any] = eqn.primitive.bind

    def alone(*given: Any) -> Any:
        full = list(values)
        for i, value in zip(moving, given, strict=True):
            full[i] = value
        return bind(*full, **eqn.params)

    heads = [values[i].c[0] for i in moving]
    if any(not jnp.issubdtype(h.dtype, jnp.floating) for h in heads):
        raise UnknownPrimitive(eqn.primitive.name)
    # jet refuses empty series, so order 0 runs as order 1 and drops the last term.
    order = max(t.order, 1)
    tails = [
        [
            values[i].c[k] if k <= t.order else jnp.zeros_like(values[i].c[0])
            for k in range(1, order + 1)
        ]
        for i in moving
    ]
    try:
        head, tail = jet(alone, heads, tails, factorial_scaled=False)
    except (KeyError, NotImplementedError, AssertionError, TypeError):
        raise UnknownPrimitive(eqn.primitive.name) from None
    if not eqn.primitive.multiple_results:
        return Stack(jnp.stack([head, *tail])[: t.order + 1])
    return [
        Stack(jnp.stack([h, *terms])[: t.order + 1]) for h, terms in zip(head, tail, strict=True)
    ]
