"""The two-head classifier without its weights: Gram flow (Appendix B.2) and infinite width."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from attnflow._errors import InputError, positive, whole
from attnflow.flows.flow import Flow
from attnflow.flows.layout import Params
from attnflow.models.two_head import (
    HEADS,
    TwoHeadClassifier,
    checked_bias,
    checked_parts,
    gate_names,
    namespace,
    tables,
)
from attnflow.reduce.columns import Gram
from attnflow.reduce.gram_flow import GramFlow
from attnflow.tasks.mixture import MixturePopulation


@functools.lru_cache(maxsize=64)
def gram_flow(
    population: MixturePopulation, bias: float = 0.5, frozen: tuple[str, ...] = ()
) -> GramFlow:
    """The closed system of neurons, scores and self-scores (Appendix B.2), at any width.

    Per head the Gram of `[WK, WQ]`: `G = [[A, S], [S^T, B]]`, `G' = N G + G N` with
    `N = [[0, M], [M^T, 0]]`. Descent on it is gradient descent on the weights, exactly.
    `project` takes a `TwoHeadClassifier`; the rest of a state is `{"w": head x D}`.
    """
    t, D, bias = tables(population), population.dimension, checked_bias(bias)
    rates: dict[str, float] = {}
    if "attention" in checked_parts(frozen):
        rates |= dict.fromkeys(HEADS, 0.0)
    if "neurons" in frozen:
        rates["w"] = 0.0

    def gradient(grams: Any, rest: Any) -> Any:
        w, S = rest["w"], _scores(grams)
        dw, M = t.forces(w, S, bias)
        heads = enumerate(np.moveaxis(M.reshape(S.shape), -3, 0))
        return {HEADS[i]: {("K", "Q"): -m} for i, m in heads}, {"w": -dw.reshape(w.shape)}

    return GramFlow(
        lambda grams, rest: t.loss(rest["w"], _scores(grams), bias),
        {head: {"K": D, "Q": D} for head in HEADS},
        rates=rates,
        balanced=() if "attention" in frozen else [(f"{h}.K", f"{h}.Q") for h in HEADS],
        columns=columns,
        gradient=gradient,
        name="two-head classifier, Gram",
    )


def columns(theta: TwoHeadClassifier) -> dict[str, Any]:
    """The weights as the blocks of the Gram flow."""
    named = {h: {"K": theta.WK[i], "Q": theta.WQ[i]} for i, h in enumerate(HEADS)}
    return {**named, "w": theta.w}


def infinite_width_start(groups: int, omega: float, neurons: Any = None) -> Params:
    """Def. 5.1: the expected Gram of Algorithm 1's start, `A = B = omega^2 I`, `S = 0`, `w = 0`."""
    D, omega = 2 * whole("groups", groups, least=2), positive("omega", omega)
    w = np.zeros((2, D)) if neurons is None else _neurons(neurons, D)
    blocks = {"K": D, "Q": D}
    return {
        "gram": {head: Gram(omega**2 * np.eye(2 * D), blocks) for head in HEADS},
        "rest": {"w": w},
    }


def head_scores(state: Params) -> Any:
    """S[head, key, query] of a state of the Gram flow."""
    return _scores(state["gram"])


def _scores(grams: Any) -> Any:
    each = [grams[head]["K", "Q"] for head in HEADS]
    return namespace(each[0]).stack(each, axis=-3)


def self_scores(S: Any, omega: float) -> tuple[Any, Any]:
    """A and B at infinite width: `(omega^4 I + S S^T)^(1/2)` and `(omega^4 I + S^T S)^(1/2)`.

    `(J G)^2 = omega^4 I` at the start, and the spectrum of `J G`, J = diag(I, -I), is constant
    (Lax pair), so it holds at all times: the self-scores are functions of the scores.
    """
    xp = namespace(S)
    U, s, Vt = xp.linalg.svd(S)
    root = xp.sqrt(omega**4 + s**2)
    Ut, V = U.swapaxes(-1, -2), Vt.swapaxes(-1, -2)
    return (U * root[..., None, :]) @ Ut, (V * root[..., None, :]) @ Vt


@functools.lru_cache(maxsize=64)
def score_flow(
    population: MixturePopulation, omega: float, bias: float = 0.5, frozen: tuple[str, ...] = ()
) -> Flow:
    """Infinite width with the self-scores eliminated: `{"w": head x D, "S": head x D x D}`.

    `w' = -dL/dw`, `S' = M B + A M` with A and B from `self_scores`; 16 scores where the Gram of
    K = 2 has 36 numbers per head.
    """
    t, omega, bias = tables(population), positive("omega", omega), checked_bias(bias)
    return Flow(
        lambda theta, on: t.loss(theta["w"], theta["S"], bias, on),
        velocity=lambda theta, on, out=None: _moved(theta, t, omega, bias, out, on),
        gates=lambda theta: t.gate_values(theta["w"], theta["S"], bias),
        gate_names=gate_names(population),
        rates=_rates(frozen),
        host=True,
        name="two-head classifier, infinite width",
    )


def score_start(groups: int, neurons: Any = None) -> Params:
    """w = 0 (or as given) and S = 0."""
    D = 2 * whole("groups", groups, least=2)
    w = np.zeros((2, D)) if neurons is None else _neurons(neurons, D)
    return {"w": w, "S": np.zeros((2, D, D))}


def _moved(
    theta: Params, t: Any, omega: float, bias: float, out: Params | None, gates: Any = None
) -> Params:
    w, S = theta["w"], theta["S"]
    dw, M = t.forces(w, S, bias, gates)
    M = M.reshape(S.shape)
    A, B = self_scores(S, omega)
    if out is None:
        return {"w": dw.reshape(w.shape), "S": M @ B + A @ M}
    out["w"][:] = dw.reshape(w.shape)
    out["S"][:] = M @ B + A @ M
    return out


def _rates(frozen: tuple[str, ...]) -> dict[str, float]:
    blocks = {"neurons": "w", "attention": "S"}
    return {blocks[part]: 0.0 for part in checked_parts(frozen)}


def _neurons(given: Any, D: int) -> np.ndarray:
    w = np.asarray(given, dtype=np.float64)
    if w.shape != (2, D) or not np.isfinite(w).all():
        raise InputError("neurons", f"shape {w.shape}; finite numbers, head x coordinate {(2, D)}")
    return w
