"""The config of the focus-dilution study. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from attnflow._errors import InputError, positive, shown
from attnflow.studies.config import fits, key, unused
from attnflow.tasks.laws import chain_of
from attnflow.tasks.markov import MarkovChain

SGD_BATCH = 256
"""Sequences in a minibatch of mode sgd when `batch` is not given."""


@dataclass(frozen=True)
class Config:
    """Focus and dilution: one-layer attention on a Markov chain (arXiv 2605.01199)."""

    elsewhere: ClassVar[dict[str, str]] = {"text": "focus-dilution-text"}
    """A file that another study reads: with it, that one is run."""

    pi: tuple[float, ...] = key((0.75, 0.19, 0.05, 0.01), "stationary law, sums to 1", head=True)
    lam: float = key(0.8, "weight of staying, eq. (2): P = lam I + (1 - lam) 1 pi^T", head=True)
    chain_kind: Literal["two-term", "metropolis", "neighbours", "drift"] = key(
        "two-term", "which chain with that law: eq. (2), or one of three others with the same pi"
    )
    transition: tuple[tuple[float, ...], ...] = key(
        (), "any row-stochastic matrix [current, next] instead of pi and lam"
    )
    dim: int = key(16, "hidden dimension m", head=True)
    init_scale: float | Literal["width"] = key(
        1e-3,
        "standard deviation of every initial entry, epsilon; width: 1/dim, as in App. E",
        head=True,
    )
    data: Literal["population", "finite", "sample"] = key(
        "population",
        "population: the limit of Prop. 2.3; finite: exact for `context` tokens; "
        "sample: `sequences` drawn once, as in App. E",
    )
    context: int = key(19, "tokens the model sees before the label (data finite, sample; batches)")
    first: Literal["uniform", "stationary"] = key(
        "uniform", "law of the first token, Def. 2.1 (data finite, sample)"
    )
    sequences: int = key(100_000, "sequences of the sample, and of its test set (data sample)")
    until: float = key(3000.0, "flow time; discrete modes take until / rate steps", head=True)
    rtol: float = key(1e-6, "relative tolerance of the solve (mode flow)")
    mode: Literal["flow", "gd", "sgd", "adam"] = key(
        "flow", "flow, gd or adam on the exact law of the data; sgd on minibatches", head=True
    )
    rate: float = key(0.01, "learning rate of gd, sgd and adam")
    batch: int = key(
        0, f"sequences in a minibatch of a discrete mode; 0: the full batch (sgd: {SGD_BATCH})"
    )
    seed: int = key(0, "of the start, of the sample and of the minibatches", head=True)

    def __post_init__(self) -> None:
        self.chain()
        _at_least("dim", self.dim, 1, "a width is a whole number of at least 1")
        _at_least("batch", self.batch, 0, "sequences in a minibatch, or 0 for the full batch")
        _at_least("context", self.context, 1, "at least one token")
        _at_least("sequences", self.sequences, 1, "at least one sequence")
        _at_least("seed", self.seed, 0, "a seed is a whole number of at least 0")
        positive("init_scale", self.scale)
        for name in ("until", "rate", "rtol"):
            positive(name, getattr(self, name))
        if self.rtol >= 0.1:
            raise InputError("rtol", f"{self.rtol:g}; a relative tolerance is below 0.1")
        if self.mode != "flow" and self.until < self.rate:
            raise InputError("until", f"{self.until:g} is less than one step of {self.rate:g}")
        self._one_leader()
        self._refuse_unused()
        self._check_memory()

    def chain(self) -> MarkovChain:
        if self.transition:
            return MarkovChain.of(self.transition)
        return chain_of(self.chain_kind, self.pi, self.lam)

    def _check_memory(self) -> None:
        """Weights and what a solver keeps of them, the rows of attention, the sample."""
        tokens, copies = len(self.transition or self.pi), 30 if self.mode == "flow" else 6
        fits("pi", f"a law of {tokens} tokens", 8.0 * 3 * 3000 * tokens**2)
        fits("dim", self.dim, 8.0 * copies * 2 * self.dim * (self.dim + tokens))
        if self.data == "sample":
            fits("sequences", self.sequences, 8.0 * 4 * self.sequences * self.context)
        fits("batch", self.batch, 8.0 * 4 * self.batch * self.context * tokens)

    def _refuse_unused(self) -> None:
        if self.transition:
            unused(self, "the transition matrix says it all", "pi", "lam", "chain_kind")
        if self.mode == "flow":
            unused(self, "mode flow takes no optimiser steps", "rate", "batch")
        else:
            unused(self, "only mode flow has a tolerance", "rtol")
        if self.data == "population":
            unused(self, "data population has no first token", "first")
        if self.data != "sample":
            unused(self, f"data {self.data} draws no sample", "sequences")

    def _one_leader(self) -> None:
        """The theory orders tokens by frequency; a chain given as a matrix runs without it."""
        if self.transition:
            return
        top = [i for i, p in enumerate(self.pi) if p > max(self.pi) * (1 - 1e-9)]
        if len(top) > 1:
            which = " and ".join(str(i) for i in top)
            raise InputError(
                "pi",
                f"{shown(self.pi)} ties at the top (tokens {which}); the stages need one "
                "most frequent token (a tied chain runs as a transition matrix)",
            )

    @property
    def scale(self) -> float:
        """The standard deviation of the initial entries."""
        return 1 / self.dim if self.init_scale == "width" else self.init_scale

    @property
    def minibatch(self) -> int:
        """Sequences in a minibatch, 0 for the full batch."""
        return self.batch or (SGD_BATCH if self.mode == "sgd" else 0)


def _at_least(name: str, value: int, least: int, rule: str) -> None:
    if value < least:
        raise InputError(name, f"{value}; {rule}")
