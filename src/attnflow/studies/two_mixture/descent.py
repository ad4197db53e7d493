"""Gradient descent at infinite width, exactly, without weights: all of them, or attention alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow.models.two_head import tables
from attnflow.models.two_head_reduced import SymmetricFlow
from attnflow.tasks.mixture import MixturePopulation


@dataclass(frozen=True)
class Descent:
    """Gradient descent at infinite width: the state after each of `steps`."""

    flow: SymmetricFlow
    steps: np.ndarray
    states: list[dict[str, np.ndarray]]

    def series(self, measure: Callable[[dict[str, np.ndarray]], Any]) -> np.ndarray:
        return np.array([measure(state) for state in self.states])


def descend(
    flow: SymmetricFlow,
    rate: float,
    steps: int,
    *,
    every: int = 1,
    stop: Callable[[dict[str, np.ndarray]], bool] | None = None,
) -> Descent:
    """Gradient descent on all weights, exactly, without them.

    In each sector the Gram `G = [[A, S], [S^T, B]]` is 4 x 4 and takes the step
    `G <- (I + eta N) G (I + eta N)`, N = [[0, M], [M^T, 0]]; it starts at omega^2 I. Unlike the
    flow, descent does not keep `A = (omega^4 + S S^T)^(1/2)`.
    """
    eta, eye = float(rate), np.eye(4)
    w = np.zeros(2)
    G: dict[str, np.ndarray] = dict.fromkeys(("S_sum", "S_diff"), flow.omega**2 * eye)

    def state() -> dict[str, np.ndarray]:
        return {"w": w.copy(), **{name: g[:2, 2:].copy() for name, g in G.items()}}

    now = state()
    kept, at = [now], [0]
    for step in range(1, steps + 1):
        dw = flow._velocity(now)["w"]
        total, diff = flow.forces(now)
        w = w + eta * dw
        for name, part in (("S_sum", total), ("S_diff", diff)):
            N = eye.copy()
            N[:2, 2:], N[2:, :2] = eta * part, eta * part.T
            G[name] = N @ G[name] @ N
        now = state()
        ended = stop is not None and stop(now)
        if step % every == 0 or step == steps or ended:
            kept.append(now)
            at.append(step)
        if ended:
            break
    return Descent(flow, np.array(at), kept)


@dataclass(frozen=True)
class AttentionOnly:
    """Attention trained with fixed neurons (Appendix A.2)."""

    losses: Float[np.ndarray, "step"]
    accuracy: float
    scores: Float[np.ndarray, "head key query"]


def attention_only(
    population: MixturePopulation,
    w: Float[np.ndarray, "head signal"],
    *,
    omega: float = 0.1,
    bias: float = 0.5,
    rate: float = 1.0,
    steps: int = 200,
) -> AttentionOnly:
    """Descent on keys and queries with the neurons w kept, in the Gram of [WK, WQ]."""
    D, t = population.dimension, tables(population)
    eye = np.eye(2 * D)
    G = np.stack([omega**2 * eye] * 2)
    losses = []
    for _ in range(steps):
        S = G[:, :D, D:]
        losses.append(float(t.loss(w, S, bias)))
        M = t.forces(w, S, bias)[1].reshape(2, D, D)
        N = np.stack([eye, eye])
        N[:, :D, D:], N[:, D:, :D] = rate * M, rate * M.swapaxes(1, 2)
        G = N @ G @ N
    S = G[:, :D, D:]
    right = population.label * t.predictions(w, S, bias) > 1e-9
    accuracy = float(1 - population.weight[~right].sum())
    return AttentionOnly(np.array([*losses, float(t.loss(w, S, bias))]), accuracy, S)
