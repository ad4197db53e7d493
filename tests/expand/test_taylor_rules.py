"""Each rule of the Taylor arithmetic, and the safe functions, against nested derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

from attnflow.expand import safe
from attnflow.expand._taylor import Stack, Taylor

X = np.array([0.3, -0.2, 0.7])
A = np.arange(1.0, 4.0)


def scan_sum(x):
    return jax.lax.scan(lambda c, a: (jnp.tanh(c * a + a), c * a), 0.2, x)[1]


GROUPS = {
    "elementary": [
        lambda x: jnp.exp(x) * jnp.expm1(x) + jnp.exp2(x),
        lambda x: jnp.log(2 + x) * jnp.log1p(x),
        lambda x: jnp.tanh(x) + jax.nn.sigmoid(x),
        lambda x: jnp.sin(x) * jnp.cos(x) + jnp.tan(x),
        lambda x: jnp.sinh(x) + jnp.cosh(x) + jnp.arcsinh(x),
        lambda x: jnp.arctan(x) + jnp.arcsin(x) * jnp.arccos(x),
    ],
    "algebraic": [
        lambda x: jnp.sqrt(1 + x) + jnp.cbrt(2 + x) + jax.lax.rsqrt(1 + x),
        lambda x: x**5 + x**-3 + (1 + x) ** 2.5 + x**0,
        lambda x: (1.5 + x) ** (x * x),
        lambda x: x / (1 + x * x) + 1 / x + x / 3,
        lambda x: x / jnp.linalg.norm(x),
        lambda x: jnp.outer(x, x) @ jnp.eye(3)[:, ::-1] @ x + jnp.einsum("i,j,i->j", x, x, x),
    ],
    "by jet": [
        lambda x: jax.scipy.special.erfinv(x) + jnp.arctan2(x, 1 + x) + jnp.cumprod(x),
        lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfc(2 * x),
    ],
    "structure": [
        lambda x: x[jnp.array([2, 0, 0])] * x.at[1].set(x[0] ** 2).at[2].add(x[1]) * x[::-1],
        lambda x: (x * x).at[1:].multiply(3.0),
        lambda x: jnp.concatenate([jax.lax.dynamic_slice(x, (1,), (2,)) ** 2, x[:1]]),
        scan_sum,
        jax.grad(lambda x: scan_sum(x).sum()),
        jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(x) ** 2)(x).sum()),
    ],
    "pieces": [
        lambda x: jnp.where(x > 0, x * x, jnp.sin(x)) + jnp.maximum(x, x * x) + jnp.abs(x),
        lambda x: jnp.clip(x * x, 0.02, 0.3) + jnp.minimum(x, 0.1 * x),
        lambda x: jnp.max(x * x) * x + jnp.min(x * x * x) + jnp.sign(x) * x,
        lambda x: jax.lax.clamp(-0.5, x, 0.5) ** 2 + jnp.floor(x) * x,
    ],
    "layers": [
        jax.grad(lambda x: (jax.nn.gelu(x) * A).sum() + (jax.nn.silu(x) * A).sum()),
        jax.grad(lambda x: (jax.nn.softplus(x) * A).sum()),
        jax.grad(lambda x: (jax.nn.log_softmax(x) * A).sum()),
        jax.grad(lambda x: (jax.nn.softmax(x) * A).sum()),
        jax.grad(lambda x: jax.nn.logsumexp(x) ** 2),
        lambda x: jnp.logaddexp(x, 2 * x),
    ],
}


@pytest.mark.parametrize("group", GROUPS)
def test_rules_give_the_coefficients_that_interpolation_finds(group, float64):
    def f(x):
        return jnp.stack([jnp.broadcast_to(g(x), (3,)) for g in GROUPS[group]])

    curve = 0.1 * np.random.default_rng(0).standard_normal((6, 3))
    curve[0] = X
    program = jax.make_jaxpr(f)(X)
    taylor = Taylor(5)
    got = jax.jit(lambda c: taylor.run(program.jaxpr, program.consts, [Stack(c)])[0].c)(curve)
    # Chebyshev points on |s| <= 0.3, where no piece changes
    s = 0.3 * np.cos(np.pi * (np.arange(26) + 0.5) / 26)
    values = jax.jit(jax.vmap(f))(np.polynomial.polynomial.polyval(s, curve).T)
    fitted = np.polynomial.chebyshev.chebfit(s / 0.3, np.asarray(values).reshape(26, -1), 24)
    want = np.stack([np.polynomial.chebyshev.cheb2poly(c)[:6] for c in fitted.T], axis=1)
    got = np.asarray(got).reshape(6, -1) * 0.3 ** np.arange(6.0)[:, None]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-10 * np.abs(want).max())


def test_a_large_product_runs_term_by_term_with_the_same_numbers(float64):
    from attnflow.expand import _functions

    rng = np.random.default_rng(0)
    u, w = rng.standard_normal((5, 3, 4)), rng.standard_normal((5, 4, 2))
    at_once = _functions.cauchy(jnp.matmul, jnp.asarray(u), jnp.asarray(w))
    by_term = _functions.cauchy(jnp.matmul, jnp.asarray(u), jnp.asarray(w), large=1)
    np.testing.assert_allclose(by_term, at_once, rtol=1e-13)


# -- safe functions -------------------------------------------------------------------------------

PAIRS = {
    "softplus": (safe.softplus, jax.nn.softplus),
    "log_softmax": (safe.log_softmax, jax.nn.log_softmax),
    "softmax": (safe.softmax, jax.nn.softmax),
    "logsumexp": (safe.logsumexp, lambda x: jax.nn.logsumexp(x, axis=-1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_safe_functions_have_the_values_and_slopes_of_jax(name, float64):
    x = np.array([[0.0, 0.0, 0.0], X, [800.0, -800.0, 3.0]])

    def both(f):
        return jax.jit(lambda x: (f(x), jax.grad(lambda x: (f(x).T * A).sum())(x)))(x)

    (value, slope), (their_value, their_slope) = map(both, PAIRS[name])
    np.testing.assert_allclose(value, their_value, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(slope, their_slope, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", PAIRS)
def test_plain_jet_of_a_safe_gradient_is_right_at_ties_too(name, float64):
    ours, theirs = PAIRS[name]
    x, u = np.array([[0.0, 0.0, 0.0], X]), np.array([[1.0, 0.5, -2.0], [0.3, 1.0, 1.0]])

    def slope(f):
        return jax.grad(lambda x: (f(x).T * A[:2]).sum())

    series = [u, 0 * u]
    got = jax.jit(lambda x: jet(slope(ours), (x,), (series,), factorial_scaled=False)[1])(x)
    first = jax.jacfwd(lambda s: slope(theirs)(x + s * u))
    want = jax.jit(lambda s: [first(s), jax.jacfwd(first)(s) / 2])(0.0)
    np.testing.assert_allclose(got, want, atol=1e-13)


def test_softplus_keeps_its_digits_in_both_tails(float64):
    np.testing.assert_allclose(safe.softplus(-50.0), np.exp(-50.0), rtol=1e-15)
    np.testing.assert_allclose(safe.softplus(1e6), 1e6)
    np.testing.assert_allclose(jax.grad(safe.softplus)(-50.0), np.exp(-50.0), rtol=1e-14)


def test_a_mask_of_minus_infinity_has_no_weight(float64):
    x = jnp.array([1.0, -jnp.inf, 2.0])
    np.testing.assert_allclose(safe.softmax(x), jax.nn.softmax(x), rtol=1e-15)
    assert np.isfinite(jax.grad(lambda x: safe.softmax(x)[0])(x)).all()
