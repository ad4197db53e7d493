"""Four lenses on a model nobody wrote a paper about: a gated product of two linear maps.

python examples/your_own_model.py
"""

import jax.numpy as jnp
import numpy as np

import attnflow as af

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 40, 3))
Y = X @ np.diag([2.0, 1.0, 0.3]) + 0.1 * Y


def loss_of_gram(G):  # the model sees its hidden weights only through their inner products
    return 0.5 * jnp.mean(jnp.sum((X @ G["in", "out"] - Y) ** 2, axis=1))


def loss(theta):
    return 0.5 * jnp.mean(jnp.sum((X @ theta["in"].T @ theta["out"] - Y) ** 2, axis=1))


balance = {"balance": lambda th: th["in"] @ th["in"].T - th["out"] @ th["out"].T}
flow = af.Flow(loss, conserved=balance)
start = af.gaussian({"in": (20, 3), "out": (20, 3)}, scale=1e-4)

solution = af.integrate(flow, start, until=40.0)  # 1. integrate
print(solution)
print(af.saddle_ledger(solution))  # 2. linearise: where it waited, which mode freed it
gram = af.GramFlow(loss_of_gram, {"in": 3, "out": 3})  # 3. reduce: 6 x 6 numbers at any width
print(af.verify(flow, gram, start, until=4.0))
print(af.series(flow, start, order=6).leading())  # 4. expand: the first terms in time
