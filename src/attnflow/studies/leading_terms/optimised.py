"""Leading terms of any optimiser: its own rule, applied to the leading gradients.

Close to the zero start the gradients are triangular, whatever the rule that turns them into steps:

    -dL/dW_O = B,    -dL/dV = Phi^T W_O^T,    -dL/dW, -dL/dP = Q[W_O^T V^T]

in every layer. Descent at one rate gives the binomials of `terms.py`; a schedule of rates and
minibatches give running sums over the batches that were drawn; Adam gives signs between the maps.
As long as no sign of a gradient changes, Adam's W_O after s steps is `s eta B / (|B| + eps)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np
from jaxtyping import Float, Int

from attnflow.corpus import Statistics, statistics
from attnflow.flows.discrete import Adam
from attnflow.studies.leading_terms.terms import directions

Block = Float[np.ndarray, "..."]


class Rule(Protocol):
    """What one step adds to a block, given the step's number from 0 and minus the gradient."""

    def step(self, name: str, k: int, block: Block, push: Block) -> Block: ...


@final
class Descent:
    """`rate_k push`: one rate, or one for each step."""

    def __init__(self, rates: float | Sequence[float]):
        self.rates = rates

    def step(self, name: str, k: int, block: Block, push: Block) -> Block:
        rate = self.rates if isinstance(self.rates, int | float) else self.rates[k]
        return rate * push


@final
class Moments:
    """Adam's rule, `m / (sqrt(v) + eps)` with its bias corrections, and AdamW's decay.

    Entries of a gradient below `rounding` of its largest are zeros: pairs that never met. The real
    gradient has terms of the next order there, of which Adam makes full steps; they are outside
    the leading terms.
    """

    def __init__(self, adam: Adam, rounding: float = 1e-12):
        self.adam, self.rounding = adam, rounding
        self.first: dict[str, Any] = {}
        self.second: dict[str, Any] = {}

    def step(self, name: str, k: int, block: Block, push: Block) -> Block:
        a = self.adam
        # Signs are taken of it: what rounding left of a zero must not count as one.
        push = np.where(np.abs(push) > self.rounding * np.abs(push).max(), push, 0.0)
        self.first[name] = a.b1 * self.first.get(name, 0.0) + (1 - a.b1) * push
        self.second[name] = a.b2 * self.second.get(name, 0.0) + (1 - a.b2) * push**2
        m = self.first[name] / (1 - a.b1 ** (k + 1))
        v = self.second[name] / (1 - a.b2 ** (k + 1))
        return a.rate * (m / (np.sqrt(v) + a.eps) - a.decay * block)


def leading(
    rule: Rule, steps: int, batch: Callable[[int], Statistics]
) -> dict[str, Float[np.ndarray, "..."]]:
    """The leading terms after so many steps of a rule, for one layer.

    `batch(k)` are the statistics of what step k sees: always the same ones for a full batch.
    """
    weights: dict[str, Any] = {}
    for k in range(steps):
        found = batch(k)
        weights = weights or {name: 0 * m for name, m in directions(found).items()}
        W_O, V = weights["W_O"], weights["V"]
        table = W_O.T @ V.T
        # The uniform baseline drops out of descent's own tables, not of signs.
        table -= table.mean(axis=0)
        W, P = found.attention_of(table)
        push = {"W_O": found.bigram, "V": found.context.T @ W_O.T, "W": W, "P": P}
        for name, each in push.items():
            weights[name] = weights[name] + rule.step(name, k, weights[name], each)
    return weights


def of_batches(
    windows: Int[np.ndarray, "sequence place"], vocabulary: int, drawn: Sequence[np.ndarray]
) -> Callable[[int], Statistics]:
    """The statistics of each step's minibatch, given the rows that it drew."""
    return lambda k: statistics(windows[drawn[k]], vocabulary)


def adam_signs(found: Statistics, adam: Adam, steps: int) -> Float[np.ndarray, "current next"]:
    """W_O under Adam in closed form: `S = B / (|B| + eps)` times `s eta`, or with decay lambda
    `(1 - (1 - eta lambda)^s) / lambda`."""
    S = found.bigram / (np.abs(found.bigram) + adam.eps)
    if not adam.decay:
        return steps * adam.rate * S
    return -np.expm1(steps * np.log1p(-adam.rate * adam.decay)) / adam.decay * S
