"""Taylor rules for functions that are not smooth, and for loops; every decision is recorded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attnflow.expand._taylor import RULES, Rule, Stack, Taylor, aligned, is_positive, known


def _compare(t: Taylor, eqn: Any, values: list[Any]) -> Any:
    """A comparison is constant along the series; its sign may switch later."""
    name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
    heads = [v.c[0] if isinstance(v, Stack) else v for v in values]
    out = eqn.primitive.bind(*heads, **eqn.params)
    constant = [v for v in values if not isinstance(v, Stack)]
    certain = any(is_positive(v) for v in values) and constant and np.all(known(constant[0]) == 0)
    if name in ("eq", "ne", "is_finite") or certain:
        return out
    a, b = (t.lift(v, shape) for v in values)
    number = t.decide(eqn, a.c - b.c)
    return jnp.logical_xor(out, t.probed(number) != 0)


def _greatest(sign: int) -> Rule:
    def rule(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
        for value, other in (values, values[::-1]):
            # `max(-inf, x)`, as library code writes it, decides nothing.
            if not isinstance(value, Stack) and np.all(known(value) == -sign * np.inf):
                return other
        # A kink inside a maximum must not hide behind it.
        a, b = aligned(t, eqn, [t.settled(v) for v in values])
        difference = sign * (a.c - b.c)
        number = t.decide(eqn, difference)
        weight = jnp.heaviside(difference[0], 0.5)
        return Stack(weight * a.c + (1 - weight) * b.c, kink=number)

    return rule


def _clamp(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    low, x, high = aligned(t, eqn, values)
    above, below = x.c - low.c, high.c - x.c
    number = t.decide(
        eqn,
        jnp.concatenate([above.reshape(t.order + 1, -1), below.reshape(t.order + 1, -1)], axis=1),
    )
    inner = jnp.where(above[0] < 0, low.c, jnp.where(below[0] < 0, high.c, x.c))
    return Stack(inner, kink=number)


def _reduce_greatest(sign: int) -> Rule:
    def rule(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
        u, axes = values[0].c, tuple(eqn.params["axes"])
        head = eqn.primitive.bind(u[0], **eqn.params)
        at = (u[0] == jnp.expand_dims(head, axes)).astype(u.dtype)
        weight = at / at.sum(axis=axes, keepdims=True)
        out = (weight * u).sum(axis=tuple(a + 1 for a in axes))
        return Stack(out.at[0].set(head), kink=t.decide(eqn))

    return rule


def _absolute(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    u = values[0]
    if u.positive:
        return u
    number = t.decide(eqn, u.c)
    return Stack(jnp.sign(u.c[0]) * u.c * (1 - 2 * t.probed(number)))


def _sign(t: Taylor, eqn: Any, values: list[Any]) -> Any:
    u = values[0]
    out = jnp.sign(u.c[0])
    return out if u.positive else out * (1 - 2 * t.probed(t.decide(eqn, u.c)))


def _step(t: Taylor, eqn: Any, values: list[Any]) -> Any:
    """floor, ceil, round: constant between its steps."""
    number = t.decide(eqn)
    return eqn.primitive.bind(values[0].c[0], **eqn.params) + t.probed(number)


def _select(t: Taylor, eqn: Any, values: list[Any]) -> Stack:
    which, *cases = values
    stacks = [t.lift(v, eqn.outvars[0].aval.shape) for v in cases]
    kinks = {v.kink for v in stacks if v.kink is not None}
    if len(kinks) == 1 and sum(isinstance(v, Stack) for v in cases) == 1:
        return Stack(
            jax.vmap(lambda *c: lax.select_n(which, *c))(*(s.c for s in stacks)), kink=kinks.pop()
        )
    stacks = [t.settled(s) for s in stacks]
    return Stack(jax.vmap(lambda *c: lax.select_n(which, *c))(*(s.c for s in stacks)))


def _scan(t: Taylor, eqn: Any, values: list[Any]) -> list[Any]:
    """A loop of fixed length over stacks: every float it carries becomes a series."""
    p = eqn.params
    n, m = p["num_consts"], p["num_carry"]
    body = p["jaxpr"]

    def is_float(v: Any) -> bool:
        return jnp.issubdtype((v.c if isinstance(v, Stack) else jnp.asarray(v)).dtype, jnp.floating)

    consts = values[:n]
    lifted = [t.lift(v) if is_float(v) else v for v in values[n:]]
    kinds = [isinstance(v, Stack) for v in lifted]
    carry = [v.c if isinstance(v, Stack) else v for v in lifted[:m]]
    xs = [jnp.moveaxis(v.c, 0, 1) if isinstance(v, Stack) else v for v in lifted[m:]]
    floats: list[bool] = []

    def step(state: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        given = [Stack(v) if k else v for k, v in zip(kinds, [*state, *x], strict=True)]
        out = [t.settled(o) for o in t.run(body.jaxpr, body.consts, [*consts, *given])]
        out = [t.lift(o) if is_float(o) else o for o in out]
        floats[:] = [isinstance(o, Stack) for o in out]
        plain = [o.c if isinstance(o, Stack) else o for o in out]
        return plain[:m], plain[m:]

    t.inside += 1
    last, ys = lax.scan(step, carry, xs, length=p["length"], reverse=p["reverse"])
    t.inside -= 1
    ys = [jnp.moveaxis(y, 1, 0) if f else y for f, y in zip(floats[m:], ys, strict=True)]
    return [Stack(v) if f else v for f, v in zip(floats, [*last, *ys], strict=True)]


RULES.update(
    {
        **dict.fromkeys(["gt", "ge", "lt", "le", "eq", "ne", "is_finite"], _compare),
        "max": _greatest(+1),
        "min": _greatest(-1),
        "clamp": _clamp,
        "reduce_max": _reduce_greatest(+1),
        "reduce_min": _reduce_greatest(-1),
        "abs": _absolute,
        "sign": _sign,
        **dict.fromkeys(["floor", "ceil", "round"], _step),
        "select_n": _select,
        "scan": _scan,
    }
)
