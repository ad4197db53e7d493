"""Elementary functions of a truncated power series: arrays `[order, ...]` in, the same out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def cauchy(product: Callable[[Any, Any], Any], u: Any, w: Any, large: int = 1 << 20) -> Any:
    """`out[k] = sum_j product(u[k-j], w[j])` for any bilinear `product`.

    A Toeplitz copy of more than `large` numbers is not made: the product runs term by term.
    """
    n = len(u)
    if n * min(u.size, w.size) > large:
        total = jax.vmap(lambda x: product(x, w[0]))(u)
        for j in range(1, n):
            total = total.at[j:].add(jax.vmap(lambda x, j=j: product(x, w[j]))(u[: n - j]))
        return total
    if u.size <= w.size:
        return jax.vmap(lambda x: jax.vmap(product)(x, w).sum(axis=0))(_toeplitz(u))
    return jax.vmap(lambda y: jax.vmap(product)(u, y).sum(axis=0))(_toeplitz(w))


def divided(a: Any, b: Any) -> Any:
    """a / b."""
    a = jnp.broadcast_to(a, b.shape) if a.shape[0] == b.shape[0] else _padded(a, b)
    head = b[0]
    return _grow(a[0] / head, b.shape[0], lambda k, v: (a[k] - _at(v, b, k)) / head)


def exponential(u: Any) -> Any:
    """exp(u): v' = v u'."""
    du = _slope(u)
    return _grow(jnp.exp(u[0]), u.shape[0], lambda k, v: _at(du, v, k) / k)


def power(u: Any, r: Any, head: Callable[[Any], Any] | None = None) -> Any:
    """u^r for a constant r: u v' = r u' v."""
    du = _slope(u)
    first = head(u[0]) if head is not None else u[0] ** r
    return _grow(
        first, u.shape[0], lambda k, v: (r * _at(du, v, k) - _at(u, _slope(v), k)) / (k * u[0])
    )


def sigmoid(u: Any) -> Any:
    """1/(1 + e^-u): v' = v (1-v) u'."""
    return _riccati(u, jax.nn.sigmoid(u[0]), jax.nn.sigmoid(u[0]) * jax.nn.sigmoid(-u[0]), 1.0)


def tangent(u: Any) -> Any:
    """tanh u: v' = (1 - v^2) u'."""
    return _riccati(u, jnp.tanh(u[0]), 1 / jnp.cosh(u[0]) ** 2, 0.0)


def sine_cosine(u: Any, sign: int) -> tuple[Any, Any]:
    """sin and cos (`sign` -1) or sinh and cosh (+1) together: s' = c u', c' = sign s u'."""
    du, n = _slope(u), u.shape[0]
    s, c = (jnp.sin, jnp.cos) if sign < 0 else (jnp.sinh, jnp.cosh)

    def step(k: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        s, c = pair
        return s.at[k].set(_at(du, c, k) / k), c.at[k].set(sign * _at(du, s, k) / k)

    start = (jnp.zeros_like(u).at[0].set(s(u[0])), jnp.zeros_like(u).at[0].set(c(u[0])))
    return lax.fori_loop(1, n, step, start)


def chained(value: Any, derivative: Any, u: Any) -> Any:
    """f(u) from its value at order 0 and the series of f'(u): v' = f'(u) u'."""
    n = u.shape[0]
    product = cauchy(lax.mul, jnp.broadcast_to(derivative, u.shape), _slope(u))
    weights = 1.0 / jnp.maximum(jnp.arange(n, dtype=u.dtype), 1)
    return (product * weights.reshape(n, *(1,) * (u.ndim - 1))).at[0].set(value)


def _riccati(u: Any, value: Any, slope: Any, linear: float) -> Any:
    """v' = e u' with e = constant + linear v - v^2, grown together with v."""
    du, n = _slope(u), u.shape[0]

    def step(k: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        v, e = pair
        v = v.at[k].set(_at(du, e, k) / k)
        return v, e.at[k].set(linear * v[k] - _at(v, v, k))

    start = (jnp.zeros_like(u).at[0].set(value), jnp.zeros_like(u).at[0].set(slope))
    return lax.fori_loop(1, n, step, start)[0]


def _grow(first: Any, n: int, term: Callable[[Any, Any], Any]) -> Any:
    """A series from its value, one coefficient after the other (`v[k]` is still 0 in `term`)."""
    start = jnp.zeros((n, *first.shape), first.dtype).at[0].set(first)
    return lax.fori_loop(1, n, lambda k, v: v.at[k].set(term(k, v)), start)


def _at(a: Any, b: Any, k: Any) -> Any:
    """`sum_{j <= k} a[j] b[k-j]` for a traced k."""
    j = jnp.arange(a.shape[0])
    mask = (j <= k).reshape(-1, *(1,) * (a.ndim - 1))
    return jnp.where(mask, a * b[(k - j) % a.shape[0]], 0.0).sum(axis=0)


def _slope(u: Any) -> Any:
    """`k u[k]`: t times the derivative. Row 0 is set, since a mask makes it 0 * -inf."""
    k = jnp.arange(u.shape[0], dtype=u.dtype).reshape(-1, *(1,) * (u.ndim - 1))
    return (u * k).at[0].set(0.0)


def _toeplitz(u: Any) -> Any:
    """`[k, j] -> u[k-j]`, zero above the diagonal."""
    k = jnp.arange(u.shape[0])
    lag = k[:, None] - k[None, :]
    mask = (lag >= 0).reshape(*lag.shape, *(1,) * (u.ndim - 1))
    return jnp.where(mask, u[jnp.maximum(lag, 0)], 0.0)


def _padded(a: Any, b: Any) -> Any:
    return jnp.zeros_like(b).at[: a.shape[0]].set(a)
