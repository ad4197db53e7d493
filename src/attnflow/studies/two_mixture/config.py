"""The config of the two-mixture study. No JAX here: the command line reads it at start-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnflow._errors import InputError, positive, shown, whole
from attnflow.studies.config import key, unused
from attnflow.tasks.mixture import LISTING, MixtureClassification

WIDEST = 4096
"""Largest finite dim: beyond it the infinite width is within a few per cent of everything."""


@dataclass(frozen=True)
class Config:
    """Two-mixture of linear classification: a two-head ReLU transformer learns in three stages."""

    groups: int = key(2, "number of groups K; the paper's theory has 2", head=True)
    length: int = key(3, "tokens per sample L; the paper's theory has 3", head=True)
    bias: float = key(0.5, "the fixed bias b of eq. (1), positive", head=True)
    omega: float = key(
        0.1, "scale of the attention's start: entries N(0, omega^2 / dim)", head=True
    )
    dim: int | float | Literal["inf"] = key(
        "inf", "embedding dimension m, or inf (Def. 5.1)", head=True
    )
    mode: Literal["flow", "staged", "gd"] = key(
        "flow",
        "flow: all weights by gradient flow; staged: Algorithm 1; gd: all by descent",
        head=True,
    )
    rate: float = key(0.1, "learning rate of gd; time is steps times rate")
    t1: float = key(20.0, "T1, where stage 1 of Algorithm 1 ends")
    score_stop: float = key(1.0, "stage 2 of Algorithm 1 ends when the score c1'S v1 reaches this")
    until: float = key(
        0.0,
        "flow time; of mode staged that of stage 3 and the longest wait for stage 2; "
        "0: long enough for the last stage, growing with K and log 1/omega",
        head=True,
    )
    rtol: float = key(1e-8, "relative tolerance of the solve (flow, staged)")
    seed: int = key(0, "of the start at a finite dim", head=True)

    def __post_init__(self) -> None:
        task = self.task()
        positive("omega", self.omega)
        if not (math.isfinite(self.bias) and self.bias > 0):
            raise InputError(
                "bias",
                f"{shown(self.bias)}; a positive number: at w = 0 every gate is on only "
                "for b > 0, and with b <= 0 nothing learns",
            )
        self._check_dim()
        for name in ("rate", "t1", "score_stop", "rtol"):
            positive(name, getattr(self, name))
        if self.rtol >= 0.1:
            raise InputError("rtol", f"{self.rtol:g}; a relative tolerance is below 0.1")
        if not (math.isfinite(self.until) and self.until >= 0):
            raise InputError("until", f"{self.until:g}; a time of at least 0 (0: chosen for you)")
        if self.mode == "gd" and 0 < self.until < self.rate:
            raise InputError("until", f"{self.until:g} is less than one step of {self.rate:g}")
        whole("seed", self.seed, least=0)
        if self.mode == "gd":
            unused(self, "mode gd has no tolerance", "rtol")
        else:
            unused(self, f"mode {self.mode} takes no optimiser steps", "rate")
        if self.infinite:
            unused(self, "nothing is random at an infinite dim", "seed")
        if not self.symmetric and task.count > LISTING.samples:
            raise InputError(
                "groups" if self.groups > self.length else "length",
                f"K = {self.groups}, L = {self.length} has {task.count:,} distinct samples, more "
                f"than the {LISTING.samples:,} that are listed; the orbit form (dim=inf, mode flow "
                "or staged) has one sample per orbit, MixtureClassification.sample(n) draws some",
            )
        if self.symmetric:
            _ = task.orbits  # refuses a length with too many of them

    def _check_dim(self) -> None:
        if self.dim == "inf" or self.dim == math.inf:
            object.__setattr__(self, "dim", "inf")
            return
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or self.dim < 1:
            raise InputError("dim", f"{shown(self.dim)}; a whole number of at least 1, or inf")
        if self.dim > WIDEST:
            raise InputError(
                "dim", f"{self.dim}; at most {WIDEST}, or inf, which is the limit of large dim"
            )

    def task(self) -> MixtureClassification:
        return MixtureClassification(self.groups, self.length)

    @property
    def infinite(self) -> bool:
        """Whether the width is infinite."""
        return self.dim == "inf"

    @property
    def symmetric(self) -> bool:
        """Whether ten numbers carry the run: the flow at infinite width."""
        return self.infinite and self.mode != "gd"

    @property
    def horizon(self) -> float:
        """`until`, or one that is long enough: the last stage begins after (K - 1) log 1/omega."""
        if self.until > 0:
            return self.until
        waits = 150.0 * self.groups * max(1.0, math.log10(1 / self.omega))
        return 20 * waits if self.mode == "staged" else waits
