"""The config of the co-occurrence study. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from attnflow._errors import InputError, positive, whole
from attnflow.studies.config import fits, key, unused
from attnflow.tasks.cooccurrence import WordCooccurrence


@dataclass(frozen=True)
class Config:
    """Word co-occurrence: attention under a linear MLP learns in two phases."""

    samples: int = key(60, "training samples n; Assumption 2.3 needs whole classes", head=True)
    length: int = key(5, "words per sample L", head=True)
    vocab: int = key(0, "vocabulary d; 0: the smallest that `tokens` needs", head=True)
    dim: int = key(128, "embedding dimension m", head=True)
    neurons: int = key(256, "neurons m1", head=True)
    tokens: Literal["distinct", "within", "iid"] = key(
        "distinct",
        "irrelevant words: all different (Assumption 2.3), different within a sample, or any",
        head=True,
    )
    targets: int = key(2, "number of target words k; only samples with all of them are positive")
    proportions: tuple[float, ...] = key(
        (), "share of each class, subsets of the targets from the largest; empty: 1/2, rest equal"
    )
    init: Literal["condition", "torch", "kaiming", "torch-output", "kaiming-output", "expected"] = (
        key(
            "condition",
            "condition: Condition 1 with k0, k1; readings of Kaiming: torch, kaiming (a = +-1), "
            "torch-output, kaiming-output (a of size 1/sqrt m1); expected: Condition 1, no noise",
            head=True,
        )
    )
    k0: float = key(0.3, "scale of WV, WK, WQ: entries N(0, k0^2 / (L m))", head=True)
    k1: float = key(1.0, "scale of W: entries N(0, k1^2 / m1)", head=True)
    output: float = key(0.0, "|a|^2 of the fixed output layer; 0: as init says (m1 for a = +-1)")
    attention: Literal["trained", "frozen"] = key("trained", "frozen: keys and queries stand still")
    mode: Literal["flow", "gd", "infinite-width", "scalar"] = key(
        "flow",
        "flow, or gd (descent); infinite-width: m to infinity, uniform attention; scalar: also n",
        head=True,
    )
    until: float = key(
        0.0,
        "where a run ends, in tau = (|W'a|^2 + |a|^2 s0^2 m) t; 0: 1e4, or 1e6 in the limits",
        head=True,
    )
    rate: float = key(0.01, "learning rate of gd; time is steps times rate")
    rtol: float = key(1e-8, "relative tolerance of the solve")
    seed: int = key(0, "seed of training words and weights")

    def __post_init__(self) -> None:
        for name in ("k0", "k1", "rate", "rtol"):
            positive(name, getattr(self, name))
        if self.until != 0:
            positive("until", self.until)
        if self.rtol >= 0.1:
            raise InputError("rtol", f"{self.rtol:g}; below 0.1")
        if self.output != 0:
            positive("output", self.output)
        for name in ("samples", "length", "dim", "neurons"):
            whole(name, getattr(self, name))
        whole("vocab", self.vocab, least=0)
        whole("seed", self.seed, least=0)
        if self.words < self.needed:
            words = {"distinct": "all irrelevant words different", "within": "none of them twice"}
            raise InputError(
                "vocab",
                f"{self.vocab}; {words.get(self.tokens, 'irrelevant words')} "
                f"(tokens = {self.tokens}) needs at least {self.needed}",
            )
        if self.init in ("torch", "kaiming", "torch-output", "kaiming-output"):
            unused(self, f"init = {self.init} has scales of its own", "k0", "k1")
        if self.mode == "gd":
            unused(self, "mode gd has no tolerance", "rtol")
        else:
            unused(self, f"mode {self.mode} takes no steps", "rate")
        if self.mode != "scalar":
            self._check_sizes()

    def _check_sizes(self) -> None:
        n, L, d, m = (float(x) for x in (self.samples, self.length, self.words, self.dim))
        long = "length" if self.length > self.samples else "samples"
        fits(long, getattr(self, long), 8 * 3 * n * (d + 8 * L * L))
        if self.infinite:
            return
        wide = "vocab" if self.words > self.dim else "dim"
        value = self.words if wide == "vocab" else self.dim
        fits(wide, value, 8 * 30 * min(m * d, d * d) + 8 * 4 * (m * d + d * d))
        if self.init in ("torch", "torch-output"):
            fits("neurons", self.neurons, 8 * 2 * self.neurons * m)

    def task(self) -> WordCooccurrence:
        """The law of the data."""
        return replace(self._law, vocab=self.words)

    @property
    def _law(self) -> WordCooccurrence:
        """The law with any vocabulary."""
        least = max(1, self.targets) + 2
        return WordCooccurrence(self.length, least, self.targets, self.proportions)

    @property
    def needed(self) -> int:
        """The smallest vocabulary of this mode; refuses what makes no whole classes."""
        self._law.counts(self.samples)
        return self._law.needed(self.samples, self.tokens)

    @property
    def words(self) -> int:
        """d, the vocabulary."""
        return self.vocab or self.needed

    @property
    def end(self) -> float:
        """`until`, or the mode's own."""
        return self.until or (1e6 if self.infinite else 1e4)

    @property
    def infinite(self) -> bool:
        """Whether attention stays uniform and time is tau."""
        return self.mode in ("infinite-width", "scalar")
