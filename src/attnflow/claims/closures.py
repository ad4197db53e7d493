"""Instruments: the Gram closure against the weights that it stands for.

Every study that moves by inner products can list these rows beside its own: a quartic loss of
column blocks, written once in the Gram and once in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from attnflow._precision import float64
from attnflow.claims.measure import Measurement, equal, identity
from attnflow.claims.paper import Paper
from attnflow.claims.twice import against, compared
from attnflow.flows.discrete import GradientDescent
from attnflow.reduce import gram_descent
from attnflow.reduce.columns import Gram
from attnflow.reduce.gram_flow import GramFlow

paper = Paper("instruments")
WIDTH = 4
RATE, STEPS, SEEDS = 0.1, 3, (2, 3)
RATES = {"K": 0.7, "Q": 1.3, "u": 0.4, "w": 0.5}
Weights = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`L = sum |X^T Y - w_0 C|^2 / 2 + w_1^2 / 2` over some pairs (X, Y) of column blocks."""

    blocks: Mapping[str, int]
    pairs: tuple[tuple[str, str], ...]

    def target(self, pair: tuple[str, str]) -> np.ndarray:
        m, n = (self.blocks[name] for name in pair)
        return np.cos(1.0 + np.arange(m * n)).reshape(m, n)

    def weights(self, seed: int) -> Weights:
        rng = np.random.default_rng(seed)
        drawn = {name: rng.standard_normal((WIDTH, n)) / 2 for name, n in self.blocks.items()}
        return {**drawn, "w": np.array([0.8, -0.6])}

    def loss(self, theta: Weights) -> Any:
        """Of the weights: nothing of the reduction is in it."""
        w, parts = theta["w"], [(theta[a].T @ theta[b], self.target((a, b))) for a, b in self.pairs]
        return sum(((x - w[0] * c) ** 2).sum() for x, c in parts) / 2 + w[1] ** 2 / 2

    def pull(self, theta: Weights, rates: Mapping[str, float]) -> Weights:
        """Minus the rates times the gradient in the weights, exact by complex steps."""
        out = {name: np.empty(x.shape) for name, x in theta.items()}
        for name, x in theta.items():
            for k in np.ndindex(x.shape):
                near = x.astype(complex)
                near[k] += 1e-150j
                slope = self.loss({**theta, name: near}).imag / 1e-150
                out[name][k] = -rates.get(name, 1.0) * slope
        return out

    def flow(self) -> GramFlow:
        def loss(G: Any, rest: Any) -> Any:
            w, parts = rest["w"], [(G[pair], self.target(pair)) for pair in self.pairs]
            return sum(((x - w[0] * c) ** 2).sum() for x, c in parts) / 2 + w[1] ** 2 / 2

        def gradient(G: Any, rest: Any) -> Any:
            w0 = rest["w"][..., :1]
            errors = {p: G[p] - w0[..., None] * self.target(p) for p in self.pairs}
            of_w0 = -sum((e * self.target(p)).sum(axis=(-2, -1)) for p, e in errors.items())
            return errors, {"w": np.stack([of_w0, rest["w"][..., 1]], axis=-1)}

        known = {name: rate for name, rate in RATES.items() if name in (*self.blocks, "w")}
        balanced = [self.pairs[0]] if len(self.pairs) == 1 else []
        return GramFlow(loss, self.blocks, rates=known, balanced=balanced, gradient=gradient)

    def product(self, left: Weights, right: Weights) -> np.ndarray:
        one, two = (np.concatenate([x[n] for n in self.blocks], axis=1) for x in (left, right))
        return one.T @ two


CASES = (
    Case({"A": 1, "K": 2, "E": 1, "Q": 3, "Z": 2}, (("K", "Q"),)),  # columns that no force moves
    Case({"u": 1, "Q": 3}, (("u", "Q"),)),  # a product with a single column
    Case({"K": 2, "Q": 3, "R": 2}, (("K", "Q"), ("K", "R"), ("K", "K"))),  # all in one column
)
EXCHANGED = {**RATES, "K": RATES["Q"], "Q": RATES["K"], "u": 1.0}


def numbers(state: Any) -> np.ndarray:
    return np.concatenate([np.ravel(state["gram"].matrix), np.ravel(state["rest"]["w"])])


@paper.claim("ours: the Gram moves as its weights do")
@against("the rates of two blocks exchanged", equal, rtol=1e-12)
def gram_velocity(study, right: bool) -> Any:
    """Where a loss reads the inner products of some column blocks, each with a rate of its own, the
    closed velocity of all inner products is that which the gradient in the weights gives."""

    def both(case: Case) -> tuple[np.ndarray, np.ndarray]:
        theta, flow = case.weights(1), case.flow()
        pull = case.pull(theta, RATES if right else EXCHANGED)
        half = case.product(theta, pull)
        told = np.r_[np.ravel(half + half.T), pull["w"]]
        return told, numbers(flow.velocity(flow.project(theta)))

    return tuple(map(np.concatenate, zip(*map(both, CASES), strict=True)))


def stepped(case: Case, seed: int, momentum: float, nesterov: bool) -> np.ndarray:
    """Some steps of the weights by hand."""
    theta = case.weights(seed)
    trace = {name: np.zeros_like(x) for name, x in theta.items()}
    for _ in range(STEPS):
        pull = case.pull(theta, RATES)
        trace = {n: momentum * trace[n] + pull[n] for n in theta}
        ahead = {n: momentum * trace[n] + pull[n] for n in theta} if nesterov else trace
        theta = {n: theta[n] + RATE * ahead[n] for n in theta}
    return np.r_[np.ravel(case.product(theta, theta)), theta["w"]]


@paper.claim("ours: descent in the Gram is descent of the weights")
@against("momentum with the other look-ahead", equal, rtol=1e-12)
def gram_steps(study, right: bool) -> Any:
    """So are its steps, those of heavy ball and of Nesterov too, for several starts side by side;
    without momentum also as an optimiser of the flat state."""

    def both(case: Case) -> tuple[np.ndarray, np.ndarray]:
        flow = case.flow()
        starts = [flow.project(case.weights(seed)) for seed in SEEDS]
        told, found = [stepped(case, SEEDS[0], 0.0, False)], [plainly(flow, starts[0])]
        for ahead in (False, True):
            how = {"momentum": 0.6, "nesterov": ahead}
            end = gram_descent(flow, starts, RATE, STEPS, every=1, **how).final
            found += [numbers(jax.tree.map(lambda x, i=i: x[i], end)) for i in range(len(SEEDS))]
            told += [stepped(case, seed, 0.6, ahead is right) for seed in SEEDS]
        return np.concatenate(told), np.concatenate(found)

    return tuple(map(np.concatenate, zip(*map(both, CASES), strict=True)))


@float64
def plainly(flow: GramFlow, start: Any) -> np.ndarray:
    """Some steps of the optimiser that `flows.descend` takes."""
    system = flow.bind(start)
    y, steps = system.layout.flatten(start), flow.updates(GradientDescent(RATE), system.layout)
    trace = steps.init(y)
    for _ in range(STEPS):
        pull = np.empty(system.size)
        system.rhs(y, pull)
        change, trace = steps.update(-pull, trace, y)
        y = y + np.asarray(change)
    return numbers(system.layout.unflatten(y))


@paper.claim("ours: the balance of two blocks in their Gram")
def balances(study) -> Measurement:
    """The trace and the norm of K K^T / r_K - Q Q^T / r_Q, read off the inner products, are those
    of the weights, and the closed flow does not change them."""

    def measured(case: Case, right: bool) -> Any:
        theta, flow, [(a, b)] = case.weights(4), case.flow(), case.pairs
        state = flow.project(theta)
        moved = flow.velocity(state)["gram"].matrix
        near = dict(
            state, gram=Gram.view(state["gram"].matrix + 1e-100j * moved, state["gram"].blocks)
        )
        rates = [RATES[name] if right else 1.0 for name in (a, b)]
        M = theta[a] @ theta[a].T / rates[0] - theta[b] @ theta[b].T / rates[1]
        kept = [[f(state), f(near).imag / 1e-100] for f in flow.conserved.values()]
        return [[np.trace(M), 0.0], [(M * M).sum(), 0.0]], kept

    return compared(identity, "rates of one", measured, over=CASES[:2])


@paper.claim("ours: the expected Gram")
@against("the scale without its square", identity, over=CASES[:2])
def expected_gram(study, case: Case, right: bool) -> Any:
    """At infinite width the columns are orthogonal and as long as their scales: the Gram of an
    orthonormal frame times the scales (1 where none is given)."""
    scales = {next(iter(case.blocks)): 0.3}
    long = np.concatenate([np.full(n, scales.get(name, 1.0)) for name, n in case.blocks.items()])
    frame = np.linalg.qr(np.random.default_rng(5).standard_normal((12, len(long))))[0]
    H = frame * (long if right else np.sqrt(long))
    return H.T @ H, case.flow().infinite_width(scales, {"w": np.zeros(2)})["gram"].matrix
