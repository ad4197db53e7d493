"""Gradient descent and momentum on the weights, taken exactly in their Gram."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp

from attnflow.flows.discrete import Momentum
from attnflow.reduce.columns import Gram


class Transform(NamedTuple):
    """The two pure functions of an optax optimiser."""

    init: Any
    update: Any


@dataclass(frozen=True)
class GramMomentum(Momentum):
    """The optimiser of `flows.descend` whose steps are those of the weights.

    The weights take `T <- mu T - H N D`, `H <- H - eta T` (heavy ball as in optax; Nesterov:
    `H <- H + eta H N D - eta mu T`), so `[H, T] <- [H, T] A` with a 2p x 2p matrix A of Gram
    quantities, and the Gram of [H, T] moves by `A^T . A`. Without momentum that is
    `G <- (I + eta D N) G (I + eta N D)`. Euler steps of G' would miss the eta^2 term.
    """

    flow: Any = field(default=None, repr=False, compare=False)
    layout: Any = field(default=None, repr=False, compare=False)

    def transform(self) -> Transform:
        flow, layout, eta, mu = self.flow, self.layout, self.rate, self.momentum

        def init(y: Any) -> Any:
            grams = flow.declaration.grams(layout.unflatten(y))
            return {
                # T^T H and T^T T of each group, T = 0; the rest keeps an ordinary trace.
                "gram": {g: (jnp.zeros((G.size,) * 2),) * 2 for g, G in grams.items()},
                "rest": jnp.zeros_like(y),
            }

        def update(gradient: Any, state: Any, y: Any) -> tuple[Any, Any]:
            trace = gradient + mu * state["rest"]
            plain = -eta * (gradient + mu * trace if self.nesterov else trace)
            theta = layout.unflatten(y)
            out = layout.unflatten(plain)
            grams, kept, moved = flow.declaration.grams(theta), {}, {}
            for group, ND in flow.trace_forces(theta).items():
                G = grams[group]
                TH, TT = state["gram"][group]
                change, kept[group] = _step(G.matrix, TH, TT, ND, eta, mu, self.nesterov)
                moved[group] = Gram.view(change, G.blocks)
            out = flow.declaration.state(moved, out.get("rest"))
            return layout.join(out), {"gram": kept, "rest": trace}

        return Transform(init, update)


def _step(G: Any, TH: Any, TT: Any, ND: Any, eta: float, mu: float, nesterov: bool) -> Any:
    """One step of the Gram of [H, T]: the change of `H^T H`, and the new `T^T H` and `T^T T`."""
    eye, zero = jnp.eye(G.shape[0]), jnp.zeros_like(G)
    traced = jnp.concatenate([-ND, mu * eye])  # T in terms of [H, T]
    if nesterov:
        change = jnp.concatenate([eta * ND, zero]) - eta * mu * traced
    else:
        change = -eta * traced
    both = jnp.block([[G, TH.T], [TH, TT]])
    first = both @ change  # [H, T]^T dH
    cross = first[: G.shape[0]]
    weights = jnp.concatenate([eye, zero]) + change
    return (
        cross + cross.T + change.T @ first,
        (traced.T @ both @ weights, traced.T @ both @ traced),
    )
