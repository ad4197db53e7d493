"""The config of the focus-dilution study. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnflow._errors import InputError
from attnflow.studies.config import key
from attnflow.tasks.markov import MarkovChain


@dataclass(frozen=True)
class Config:
    """Focus and dilution: one-layer attention on a Markov chain (arXiv 2605.01199)."""

    pi: tuple[float, ...] = key((0.75, 0.19, 0.05, 0.01), "stationary law, sums to 1")
    lam: float = key(0.8, "weight of staying, eq. (2): P = lam I + (1 - lam) 1 pi^T")
    transition: tuple[tuple[float, ...], ...] = key(
        (), "any row-stochastic matrix [current, next] instead of pi and lam"
    )
    dim: int = key(16, "hidden dimension m")
    init_scale: float = key(1e-3, "standard deviation of every initial entry, epsilon")
    until: float = key(3000.0, "flow time; discrete modes take until / rate steps")
    rtol: float = key(1e-6, "relative tolerance of the solve (mode flow)")
    mode: Literal["flow", "gd", "sgd", "adam"] = key(
        "flow", "flow, gd or adam on the exact population, sgd on sampled sequences"
    )
    rate: float = key(0.01, "learning rate of gd, sgd and adam")
    batch: int = key(256, "sequences in a minibatch (mode sgd)")
    context: int = key(64, "tokens the model sees before the label (mode sgd)")
    seed: int = key(0, "of the start and of the minibatches")

    def __post_init__(self) -> None:
        self.chain()
        _at_least("dim", self.dim, 1, "a width is a whole number of at least 1")
        _at_least("batch", self.batch, 1, "at least one sequence")
        _at_least("context", self.context, 1, "at least one token")
        _at_least("seed", self.seed, 0, "a seed is a whole number of at least 0")
        for name in ("init_scale", "until", "rate", "rtol"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(name, f"{value:g}; a positive, finite number")
        if self.rtol >= 0.1:
            raise InputError("rtol", f"{self.rtol:g}; a relative tolerance is below 0.1")
        if self.mode != "flow" and self.until < self.rate:
            raise InputError("until", f"{self.until:g} is less than one step of {self.rate:g}")

    def chain(self) -> MarkovChain:
        if self.transition:
            return MarkovChain.of(self.transition)
        return MarkovChain(self.pi, self.lam)


def _at_least(name: str, value: int, least: int, rule: str) -> None:
    if value < least:
        raise InputError(name, f"{value}; {rule}")
