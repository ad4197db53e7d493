"""Training runs that the claims of Section 4.1 follow, with their weights at every row.

What is measured of the weights is written out here in NumPy, apart from the study's observables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from attnflow.flows import Adam, Flow, Linear, Solution, Store, descend, integrate
from attnflow.models.one_layer import OneLayerAttention, move, prediction, velocity
from attnflow.models.one_layer_contexts import context_gradients, context_loss
from attnflow.observe.stages import Stage
from attnflow.studies.focus_dilution import data, stages
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.laws import chain_of
from attnflow.tasks.markov import MarkovChain

LAWS = {
    "4.1": MarkovChain((0.75, 0.19, 0.05, 0.01), 0.8),
    "E": MarkovChain((8 / 15, 4 / 15, 2 / 15, 1 / 15), 0.8),
    "ours": MarkovChain((0.6, 0.25, 0.1, 0.05), 0.7),
}
"""The law of Section 4.1, that of Appendix E, and one that neither the paper nor the rules saw."""

EQUAL = MarkovChain((0.75, 0.125, 0.125), 0.8)
"""Two rare tokens that are equally frequent."""

INPUTS = 19
"""Tokens that the model of Appendix E sees before the label."""

WIDTH, SCALE, RATE, STEPS, EVERY = 64, 1 / 256, 6e-4, 420, 6
"""Adam: entries as in Appendix E, at a quarter of its width and four times its rate."""

DIM, SMALL = 16, 1e-6
"""The gradient flow: where chance moves the stages of a single start by less than 2 %."""


@dataclass(frozen=True)
class Followed:
    """A run: its rows, the weights there and the loss."""

    chain: MarkovChain
    t: np.ndarray
    loss: np.ndarray
    speed: np.ndarray
    W0: np.ndarray
    W1: np.ndarray
    WQ: np.ndarray
    WK: np.ndarray

    @classmethod
    def of(cls, chain: MarkovChain, run: Solution, states: list, loss, unit: float = 1.0):
        """The rows of a solve: its states, and their loss by `loss(theta)`."""
        weights = {n: np.array([getattr(s, n) for s in states]) for n in ("W0", "W1", "WQ", "WK")}
        losses = np.array([float(loss(s)) for s in states])
        t, speed = run.trajectory["time"].values / unit, run.trajectory["speed"].values
        return cls(chain, t, losses, speed, **weights)

    def theta(self, row: int) -> OneLayerAttention:
        return OneLayerAttention(self.W0[row], self.W1[row], self.WQ[row], self.WK[row])

    @cached_property
    def attention(self) -> np.ndarray:
        """`[row, query, key]` of the long-context limit, eq. (5)."""
        scores = np.einsum(
            "tim,tmk,tnk,tjn->tij", self.W0, self.WQ, self.WK, self.W0, optimize=True
        )
        weights = self.chain.pi * np.exp(scores - scores.max(axis=2, keepdims=True))
        return weights / weights.sum(axis=2, keepdims=True)

    @cached_property
    def norms(self) -> np.ndarray:
        return np.linalg.norm(self.W0, axis=2)

    def singular(self, name: str) -> np.ndarray:
        return np.linalg.svd(getattr(self, name), compute_uv=False)

    def heat(self, name: str, row: int) -> float:
        """Mean |C(i, j)| of the condensation heat map (App. E.2) between the hidden neurons."""
        w = getattr(self, name)[row]
        w = w.T if name == "W0" else w
        units = w / np.linalg.norm(w, axis=1, keepdims=True)
        return float(np.abs(units @ units.T).mean())

    @cached_property
    def off(self) -> np.ndarray:
        """`[row, token]`: how much of an embedding is off the leader's direction (Fig. 2 D3)."""
        lead = self.W0[:, 0] / self.norms[:, :1]
        along = np.einsum("tim,tm->ti", self.W0, lead)
        return np.linalg.norm(self.W0 - along[:, :, None] * lead[:, None], axis=2)

    def stable(self, name: str, row: int) -> float:
        """|W|_F^2 / |W|_2^2 at a row."""
        w = getattr(self, name)[row]
        return float(np.sum(w**2) / np.linalg.norm(w, 2) ** 2)

    @cached_property
    def stages(self) -> list[Stage]:
        s = self.singular("W0")
        p = s / s.sum(axis=1, keepdims=True)
        signals = stages.Signals(
            t=self.t,
            loss=self.loss,
            rank=np.exp(-np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1)),
            stable=np.sum(s**2, axis=1) / s[:, 0] ** 2,
            embedding=s,
            query=self.singular("WQ")[:, : self.chain.tokens],
            attention=self.attention,
            norms=self.norms,
        )
        return stages.find(signals, self.chain.pi)

    def stage(self, name: str, cycle: int = 1) -> Stage:
        """What the rules find; its time is nan where they do not."""
        found = (s for s in self.stages if (s.name, s.cycle) == (name, cycle))
        return next(found, Stage(name, np.nan, cycle))

    def time(self, name: str, cycle: int = 1) -> float:
        return self.stage(name, cycle).time

    def at(self, name: str, cycle: int = 1) -> int:
        """The row nearest to a stage, the last where the rules do not find it."""
        gap = np.abs(self.t - self.time(name, cycle))
        return len(self.t) - 1 if np.isnan(gap).any() else int(np.argmin(gap))


@paper.once
def flowed(
    law: str, kind: str = "two-term", dim: int = DIM, scale: float = SMALL, until: float = 0.0
) -> Followed:
    """The population flow from a small start, until a little after its new direction."""
    chain = EQUAL if law == "equal" else LAWS[law]
    assert chain.lam is not None
    chain = chain_of(kind, chain.pi, chain.lam)
    start = OneLayerAttention.gaussian(chain.tokens, dim, scale, 0)
    # In NumPy from end to end: to compile the loss of a chain takes longer than to solve it.
    flow = Flow(velocity=lambda theta, out=None: velocity(theta, chain, out), host=True)
    until, keep = until or UNTIL[law], Store(states=True)
    run = integrate(flow, start, until, rtol=1e-6, store=keep, progress=False)
    return Followed.of(chain, run, _states(run, flow, start), lambda theta: _loss(theta, chain))


UNTIL = {"4.1": 345.0, "E": 505.0, "ours": 475.0}
"""A little after the new direction of each law."""


@paper.once
def trained() -> dict[str, Followed]:
    """Both laws of the paper under Adam, on all contexts of Appendix E's length with their weights.

    Adam treats each entry by itself, so that two trainings side by side are one solve.
    """
    tables = {law: data.finite_length(LAWS[law], INPUTS, "uniform") for law in ("4.1", "E")}
    first = tables["4.1"]
    weights = np.stack([table.weights for table in tables.values()])
    one = OneLayerAttention.gaussian(first.tokens, WIDTH, SCALE, 0)
    start = jax.tree.map(lambda w: np.stack([w, w]), one)

    def moved(theta: OneLayerAttention, weights: Any) -> OneLayerAttention:
        # The contexts are the same, their weights are not.
        rows = SimpleNamespace(
            last=first.last, log_counts=first.log_counts, tokens=first.tokens, weights=weights
        )
        return move(theta, lambda M, Phi: context_gradients(M, Phi, rows))  # type: ignore[arg-type]

    flow = Flow(velocity=lambda theta: jax.vmap(moved)(theta, weights))
    save, keep = Linear(STEPS // EVERY + 1), Store(states=True)
    run = descend(flow, start, STEPS * RATE, Adam(RATE), save=save, store=keep, progress=False)
    states = _states(run, flow, start)

    def alone(k: int, law: str) -> Followed:
        own = [jax.tree.map(lambda w: w[k], state) for state in states]
        return Followed.of(LAWS[law], run, own, lambda th: context_loss(th, tables[law]), RATE)

    return {law: alone(k, law) for k, law in enumerate(tables)}


def _states(run: Solution, flow: Flow, start) -> list:
    layout = flow.bind(start).layout
    return [layout.numpy(y) for y in run.trajectory["state"].values]


def _loss(theta: OneLayerAttention, chain: MarkovChain) -> float:
    """Prop. 2.3 in NumPy."""
    return float(
        -np.sum(chain.pi[:, None] * chain.transition * np.log(prediction(theta, chain.pi)))
    )
