"""Gradient descent on the weights, taken exactly in their Gram: the steps, and many at once.

The weights take `T <- mu T - H F`, `H <- H - eta T` with `F = N D` (heavy ball as in optax;
Nesterov: `H <- H + eta H F - eta mu T`). F is a function of the Gram, so the Gram of [H, T] moves
by products of p x p matrices; without momentum that is `G <- (I + eta D N) G (I + eta N D)`. Euler
steps of G' would miss the eta^2 term. A minibatch changes F and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from attnflow._errors import InputError, shown, whole
from attnflow._precision import float64
from attnflow.flows.discrete import GradientDescent, Momentum, time_step
from attnflow.flows.layout import Layout, Params
from attnflow.reduce.columns import AnyArray, Gram
from attnflow.reduce.gram_forces import Force

if TYPE_CHECKING:
    from attnflow.reduce.gram_flow import GramFlow

Matrix = Float[AnyArray, "*many p p"]
Trace = tuple[Matrix, Matrix]
"""`T^T H` and `T^T T` of a group, T the weights' trace of gradients."""


class Transform(NamedTuple):
    """The two pure functions of an optax optimiser."""

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Descents:
    """Gradient descents side by side: what was kept of them after each of `steps`."""

    steps: Int[np.ndarray, "row"]
    rows: Any
    """A tree of arrays: the axis of the rows, then those of the starts, then the array's own."""

    @property
    def final(self) -> Any:
        """The last row."""
        return jax.tree.map(lambda x: x[-1], self.rows)


@float64
def gram_descent(
    flow: GramFlow,
    starts: Params | Sequence[Params],
    rate: float,
    steps: int,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    every: int = 1,
    keep: Callable[[Params], Any] = lambda state: state,
    stop: Callable[[Params], Any] | None = None,
) -> Descents:
    """Gradient descent on the weights from many starts in one computation.

    `starts` is a list of states, or one state whose arrays have leading axes (or none).
    `keep(state)` of all of them, a tree of arrays, becomes a row at step 0, after every `every`
    steps and at the last; where `stop(state)` is true of a row it is the last. In NumPy where the
    flow has its `gradient` in closed form and few columns, so that nothing is compiled; else one
    compiled loop. What a start leaves that diverges is not finite.
    """
    steps, every = whole("steps", steps), whole("every", every)
    rule = Rule.of(Momentum(rate, momentum, nesterov))
    state = jax.tree.map(np.asarray, _stacked(starts))
    flow.declaration.check(state)
    walk = (_Host if _in_numpy(flow) else _Compiled)(flow, state, rule)
    at, rows = [0], [keep(state)]
    with np.errstate(over="ignore", invalid="ignore"):
        while at[-1] < steps and not (stop is not None and stop(state)):
            at.append(min(at[-1] + every, steps))
            state = walk(at[-1] - at[-2])
            rows.append(keep(state))
    return Descents(np.array(at), jax.tree.map(lambda *x: np.stack(x), *rows))


@dataclass(frozen=True)
class Rule:
    """How a gradient becomes a step; without momentum there is no trace."""

    rate: float
    momentum: float = 0.0
    nesterov: bool = False

    @classmethod
    def of(cls, optimiser: Any) -> Rule:
        """The rule of an optimiser of `flows.descend` that closes in the Gram."""
        if not isinstance(optimiser, GradientDescent | Momentum):
            raise InputError(
                "optimiser",
                f"{shown(optimiser)}; its steps are not functions of inner products: "
                "GradientDescent or Momentum, or descend on the weights (`.full`)",
            )
        time_step(optimiser)  # checks the numbers
        mu = getattr(optimiser, "momentum", 0.0)
        return cls(float(optimiser.rate), mu, mu > 0 and getattr(optimiser, "nesterov", False))

    def change(self, G: Matrix, F: Force, trace: Trace | None) -> tuple[Matrix, Trace | None]:
        """What one step adds to `G = H^T H`, and the new trace."""
        eta, mu = self.rate, self.momentum
        GF = F.after(G)
        FGF = F.before(GF)
        if trace is None:
            return eta * (GF + _turned(GF)) + eta**2 * FGF, None
        CF = F.after(trace[0])
        C = mu * trace[0] - _turned(GF)  # T^T H and T^T T for the new T and the old H
        B = mu**2 * trace[1] - mu * (CF + _turned(CF)) + FGF
        a, b = (eta, eta * mu) if self.nesterov else (0.0, eta)  # dH = a H F - b T
        CF = F.after(C)
        first = a * GF - b * _turned(C)  # H^T dH
        second = a**2 * FGF - a * b * (CF + _turned(CF)) + b**2 * B  # dH^T dH
        return first + _turned(first) + second, (C + a * CF - b * B, B)

    def plain(self, gradient: Any, trace: Any) -> tuple[Any, Any]:
        """The same for a plain parameter."""
        if trace is None:
            return -self.rate * gradient, None
        trace = gradient + self.momentum * trace
        return -self.rate * (gradient + self.momentum * trace if self.nesterov else trace), trace

    def begin(self, array: Any) -> Any:
        """The trace of a plain parameter at rest; None without momentum."""
        return 0 * array if self.momentum else None

    def begin_gram(self, G: Matrix) -> Trace | None:
        """The trace of a group at rest."""
        return (0 * G, 0 * G) if self.momentum else None


def updates(flow: GramFlow, optimiser: Any, layout: Layout, batch: Any = None) -> Transform:
    """The steps of the weights as an optimiser of the flat state (see `GramFlow.updates`)."""
    rule = Rule.of(optimiser)

    def init(y: Any) -> Any:
        grams = flow.declaration.grams(layout.unflatten(y))
        return {
            "gram": {g: rule.begin_gram(G.matrix) for g, G in grams.items()},
            "rest": rule.begin(y),
        }

    def update(gradient: Any, state: Any, y: Any) -> tuple[Any, Any]:
        theta = layout.unflatten(y)
        if batch is None:
            forces, _ = flow.forces.at(*flow.forces.parts(theta))
        else:
            forces = flow.forces.of_gradient(layout.unflatten(gradient))
        plain, trace = rule.plain(gradient, state["rest"])
        moved, traces = {}, {}
        for group, G in flow.declaration.grams(theta).items():
            change, traces[group] = rule.change(G.matrix, forces[group], state["gram"][group])
            moved[group] = Gram.view(change, G.blocks)
        out = flow.declaration.state(moved, layout.unflatten(plain).get("rest"))
        return layout.join(out), {"gram": traces, "rest": trace}

    return Transform(init, update)


class _Host:
    """All starts side by side in NumPy."""

    def __init__(self, flow: GramFlow, state: Params, rule: Rule):
        self.flow, self.rule = flow, rule
        self.grams, self.rest = flow.forces.parts(state)
        self.traces = {g: rule.begin_gram(G) for g, G in self.grams.items()}
        leaves, self.tree = jax.tree.flatten(self.rest)
        self.plain = [rule.begin(leaf) for leaf in leaves]
        self.speeds = _plain_rates(flow, state)

    def __call__(self, steps: int) -> Params:
        for _ in range(steps):
            self._step()
        blocks = self.flow.declaration.groups
        grams = {g: Gram.view(G, blocks[g]) for g, G in self.grams.items()}
        return self.flow.declaration.state(grams, self.rest)

    def _step(self) -> None:
        forces, gradient = self.flow.forces.at(self.grams, self.rest)
        for group, G in self.grams.items():
            change, self.traces[group] = self.rule.change(G, forces[group], self.traces[group])
            self.grams[group] = G + change
        leaves, gradients = jax.tree.leaves(self.rest), jax.tree.leaves(gradient)
        for i, (leaf, g) in enumerate(zip(leaves, gradients, strict=True)):
            change, self.plain[i] = self.rule.plain(self.speeds[i] * g, self.plain[i])
            leaves[i] = leaf + change
        self.rest = jax.tree.unflatten(self.tree, leaves)


class _Compiled:
    """The update of `flows.descend`, over all starts at once, as one compiled loop."""

    def __init__(self, flow: GramFlow, state: Params, rule: Rule):
        grams = flow.declaration.grams(state)
        self.many = next(iter(grams.values())).upper.shape[:-1]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(self.many) :]), state)
        system = flow.bind(jax.tree.map(lambda x: x[0], flat))
        self.layout = system.layout
        transform = updates(flow, Momentum(rule.rate, rule.momentum, rule.nesterov), self.layout)

        def step(y: Any, trace: Any) -> tuple[Any, Any]:
            change, trace = transform.update(-system.trace_velocity(y), trace, y)
            return y + change, trace

        loop = jax.vmap(step)
        self._run = jax.jit(
            lambda carry, steps: jax.lax.fori_loop(0, steps, lambda _, c: loop(*c), carry)
        )
        y = jax.vmap(self.layout.join)(flat)
        self._carry = y, jax.vmap(transform.init)(y)

    def __call__(self, steps: int) -> Params:
        self._carry = self._run(self._carry, steps)
        state = jax.vmap(self.layout.unflatten)(self._carry[0])
        return jax.tree.map(lambda x: np.reshape(x, (*self.many, *x.shape[1:])), state)


def _in_numpy(flow: GramFlow) -> bool:
    return flow.forces.closed is not None and flow.flow.host


def _plain_rates(flow: GramFlow, state: Params) -> list[float]:
    """The learning rate of each array of the rest."""
    layout = Layout(state)
    rates = layout.per_block(flow.flow.rates, 1.0, "rates").tolist()
    pairs = zip(layout.blocks, rates, strict=True)
    return [rate for block, rate in pairs if block.name.split(".")[0] == "rest"]


def _stacked(starts: Any) -> Params:
    if not isinstance(starts, list | tuple):
        return starts
    if not starts:
        raise InputError("starts", "empty; at least one state")
    return jax.tree.map(lambda *x: np.stack(x), *starts)


def _turned(X: Any) -> Any:
    return X.swapaxes(-1, -2)
