"""What the claims share: corpora of three sizes, and trainings that are made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Int

from attnflow.corpus import Statistics, statistics
from attnflow.expand import DescentSeries, descent_series
from attnflow.flows import Flow
from attnflow.flows.discrete import Adam
from attnflow.models import attention_lm as lm
from attnflow.models.attention_lm import Weights
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.paper import paper

DEPTHS = (1, 2, 3)
TINY = (5, 4, 3, 1)
"""Vocabulary, positions, windows and seed of the smallest corpus."""


@dataclass(frozen=True, eq=False)
class Ground:
    """Windows of a synthetic corpus, with its statistics."""

    windows: Int[np.ndarray, "sequence place"]
    size: int

    @property
    def context(self) -> int:
        return self.windows.shape[1] - 1


def chain(size: int, context: int, count: int, seed: int) -> Ground:
    """Zipfian tokens in which each prefers some followers: frequencies, order and contexts."""
    rng = np.random.default_rng(seed)
    law = 1 / np.arange(1, size + 1)
    rows = rng.dirichlet(0.3 * law / law.sum() * size, size) + 1e-3
    rows /= rows.sum(axis=1, keepdims=True)
    total = np.cumsum(rows, axis=1)
    windows = np.empty((count, context + 1), dtype=np.int64)
    windows[:, 0] = rng.integers(0, size, count)
    for t in range(context):
        u = rng.random(count)[:, None]
        windows[:, t + 1] = np.minimum((total[windows[:, t]] < u).sum(axis=1), size - 1)
    return Ground(windows, size)


@paper.once
def small(study: Any) -> Ground:
    """So small that every definition can be written out: V = 17, T = 9, N = 12."""
    return chain(17, 9, 12, seed=5)


@paper.once
def tiny(study: Any) -> Ground:
    """For exact Taylor coefficients of all weights: V = 5, T = 4, N = 3."""
    return chain(*TINY)


@functools.cache
def tiny_flow(layers: int) -> tuple[Flow, Weights]:
    """The flow on the tiny corpus, from its loss alone, and the zero start; its expansions in time
    and in steps share one program."""
    ground = chain(*TINY)
    flow = Flow(lambda theta: lm.loss(theta, ground.windows))
    return flow, lm.start(ground.size, ground.context, layers)


@paper.once
def in_steps(study: Any, layers: int) -> DescentSeries:
    """Descent on the tiny corpus expanded in its rate, exactly in the number of steps."""
    return descent_series(*tiny_flow(layers), 6)


@paper.once
def middle(study: Any) -> Ground:
    """V = 48: trained far enough that next orders show."""
    return chain(48, 16, 48, seed=2)


@paper.once
def large(study: Any) -> Ground:
    """V = 500 and T = 60, as the theorem asks."""
    return chain(500, 60, 4, seed=3)


@paper.once
def counted(study: Any, name: str) -> Statistics:
    """The statistics of one of the corpora."""
    ground = GROUNDS[name](study)
    return statistics(ground.windows, ground.size)


@paper.once
def defined(study: Any, name: str) -> dict[str, np.ndarray]:
    """The same by their definitions, on one-hot rows."""
    ground = GROUNDS[name](study)
    return literal.statistics(ground.windows, ground.size)


GROUNDS = {"small": small, "tiny": tiny, "middle": middle, "large": large}


@paper.once
def trained(
    study: Any,
    name: str,
    layers: int,
    steps: int,
    rate: float,
    scale: float = 0.0,
    adam: Adam | None = None,
) -> Weights:
    """Weights after full-batch training on one of the corpora, on the library's own gradient.

    The steps are written out: nothing is compiled for each rule.
    """
    ground = GROUNDS[name](study)
    data = lm.Windows(ground.windows, ground.size)
    theta = lm.start(ground.size, ground.context, layers, scale, seed=7)
    if adam is not None:
        return by_rule(data, theta, adam, steps)
    for _ in range(steps):
        found = data.gradient(theta)[1]
        theta = {block: m - rate * found[block] for block, m in theta.items()}
    return theta


def by_rule(data: lm.Windows, theta: Weights, adam: Adam, steps: int) -> Weights:
    """The weights after so many steps of Adam, written out as its authors print it.

    One row compares it with optax, whose dispatch costs ten times the steps themselves.
    """
    return literal.adam(lambda at: data.gradient(at)[1], theta, adam, steps)


@functools.cache
def slope_of_loss(name: str, layers: int) -> Callable[[Weights], Weights]:
    """The gradient that JAX derives from the loss on a corpus, compiled once for all claims."""
    windows = GROUNDS[name](None).windows
    derived = jax.jit(jax.grad(lambda theta: lm.loss(theta, windows)))

    def found(theta: Weights) -> Weights:
        with jax.enable_x64(True):
            return {block: np.asarray(g) for block, g in derived(theta).items()}

    return found


@paper.once
def by_autodiff(
    study: Any, name: str, layers: int, steps: int, rate: float | tuple[float, ...]
) -> Weights:
    """Descent from zero written out, on the gradient that JAX derives from the loss."""
    ground = GROUNDS[name](study)
    theta = lm.start(ground.size, ground.context, layers)
    for each in rate if isinstance(rate, tuple) else (rate,) * steps:
        found = slope_of_loss(name, layers)(theta)
        theta = {block: m - each * found[block] for block, m in theta.items()}
    return theta


@paper.once
def autodiff(study: Any, name: str, layers: int, scale: float = 0.4) -> tuple[Weights, Weights]:
    """Weights of order one, and the gradient there as JAX derives it."""
    ground = GROUNDS[name](study)
    theta = lm.start(ground.size, ground.context, layers, scale, seed=1)
    return theta, slope_of_loss(name, layers)(theta)


PLAIN: dict[str, Any] = {
    "mode": "gd",
    "layers": 3,
    "rate": 2.0,
    "steps": 24,
    "init_scale": 0.0,
    "batch": 16,
    "b1": 0.9,
    "b2": 0.999,
    "eps": 1e-8,
    "decay": 0.0,
    "rtol": 1e-8,
    "precision": "float64",
    "theory": "same",
}


def on_text(study: Any, **keys: Any) -> Any:
    """The study on its own text: descent from zero with three layers past the foreseen breakdown.

    24 steps reach 1.05 to 2.1 times its time; the rate is a power of two, 2 on built-in stories.
    """
    return study.at(**{**PLAIN, "rate": pace(study), **keys})


@paper.once
def pace(study: Any) -> float:
    """The rate of `on_text`, from the time of breakdown that the statistics foresee."""
    foreseen = study.at(**PLAIN).breakdown
    return float(2.0 ** np.clip(np.round(np.log2(foreseen / 16)), -20, 20))


@dataclass(frozen=True, eq=False)
class Course:
    """A descent on the text of `on_text`: what a run of the study observes, and some weights."""

    rows: xr.Dataset
    weights: Mapping[int, Weights]
    """After half the foreseen time of breakdown, and at the end."""


def half(study: Any) -> int:
    """Steps of the shared descent to half the foreseen time of breakdown: 6 to 11."""
    return round(on_text(study).breakdown / pace(study) / 2)


def reach(study: Any) -> int:
    """Enough steps to pass the foreseen time, and never fewer than 24."""
    return max(24, int(np.ceil(1.4 * on_text(study).breakdown / pace(study))))


@paper.once
def course(study: Any) -> Course:
    """The descent of `on_text`, written out: nothing is compiled, and each gradient also gives the
    loss of its row."""
    ready, steps, rate = on_text(study), reach(study), pace(study)
    theta = ready.start
    loss, seen, kept = [], [], {}
    for k in range(steps + 1):
        value, slope = ready.windows.gradient(theta)
        loss.append(float(value))
        seen.append({name: each.measure(theta) for name, each in ready.observe.items()})
        if k in (half(study), steps):
            kept[k] = theta
        theta = {block: m - rate * slope[block] for block, m in theta.items()}
    found = {
        name: (("time", *(each.dims or ())), np.array([row[name] for row in seen]))
        for name, each in ready.observe.items()
    }
    coords = {"time": rate * np.arange(steps + 1), **ready.observe["V_along"].coords}
    return Course(xr.Dataset({**found, "loss": ("time", loss)}, coords), kept)


@paper.once
def descended(study: Any, steps: int, rate: float, batch: int = 0) -> Weights:
    """Weights after descent on the text of `on_text`, written out; with `batch` on the minibatches
    that a run of mode sgd draws."""
    ready = on_text(study, rate=rate, steps=steps, **({"mode": "sgd"} if batch else {}))
    data, size = ready.data, ready.data.corpus.tokens
    theta = ready.start
    for k in range(steps):
        seen = lm.Windows(data.windows[ready.drawn[k]], size) if batch else ready.windows
        slope = seen.gradient(theta)[1]
        theta = {block: m - rate * slope[block] for block, m in theta.items()}
    return theta


def layers_of(name: str, weight: np.ndarray) -> list[np.ndarray]:
    return [weight] if name == "W_O" else list(weight)
