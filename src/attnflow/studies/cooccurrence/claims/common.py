"""What the claims share: the regimes of the paper, and runs that are solved once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import xarray as xr

from attnflow.claims import Claim, Control, Measurement, Regime, always, condition, every
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence import theory
from attnflow.studies.cooccurrence.config import Config
from attnflow.studies.cooccurrence.paper import paper

WIDTH, NEURONS, UNTIL = 1024, 16, 1e3
"""m, m1 and the last tau of the run on the config's own words: Condition 1 wants m >= m1, L^2."""

PLAIN: dict[str, Any] = {
    "init": "condition",
    "mode": "flow",
    "attention": "trained",
    "output": 0.0,
    "rate": 0.01,
}
"""Gradient flow from the Gaussian start of Condition 1 with a = +-1."""


# --- The hypotheses, of the config alone.


@condition
def two_targets(config: Config) -> Regime:
    law = config.task().law
    inside = law == (Fraction(1, 2), *[Fraction(1, 6)] * 3)
    return Regime(inside, f"Def. 2.1: two targets, classes 1/2, 1/6, 1/6, 1/6 ({len(law)} classes)")


@condition
def all_different(config: Config) -> Regime:
    words = f"Assumption 2.3 (ii): all irrelevant words are different (tokens = {config.tokens})"
    return Regime(config.tokens == "distinct", words)


assumption = two_targets & all_different
"""Assumption 2.3; that classes have their exact sizes is checked with the config."""


@condition
def gaussian_start(config: Config) -> Regime:
    inside = config.init in ("condition", "expected") and config.output in (0, config.neurons)
    return Regime(inside, f"Gaussian start with a = +-1 (init = {config.init})")


@condition
def enough_samples(config: Config) -> Regime:
    n, L = config.samples, config.length
    return Regime(n >= L**2, f"Condition 1: n = {n} >= L^2 = {L**2}")


@condition
def wide(config: Config) -> Regime:
    least = 4 * max(NEURONS, config.length**2)
    words = f"Condition 1: m = {WIDTH} >= 4 max(m1 = {NEURONS}, L^2) = {least}"
    return Regime(least <= WIDTH, words)


@condition
def small_start(config: Config) -> Regime:
    """Def. E.2 starts from small outputs; k0 k1 is their standard deviation."""
    spread = config.k0 * config.k1
    words = f"Condition 1: s0 = k0/sqrt(L m), s1 = k1/sqrt(m1), F(0) of spread {spread:.3g} <= 1"
    return Regime(spread <= 1 and config.k1 >= 0.3, words)


condition_1 = gaussian_start & wide & small_start & enough_samples
"""Condition 1, with its logarithms as k0 and k1."""

phase_1 = assumption & condition_1
"""Defs. E.1, E.2 and E.18: where phase 1 and its box are defined."""


@condition
def balanced(config: Config) -> Regime:
    r = theory.class_law(config.task(), config.samples).r_star
    words = f"Def. F.1: the order of the gradients' sums lasts, R* = {r:.4g} > 1"
    return Regime(r > 1, words)


phase_2 = phase_1 & balanced
"""Def. F.1: where phase 2 and its box are defined."""


# --- Runs, solved once.


@dataclass(frozen=True)
class Run:
    """A solved run in the time tau, with what it started from and where it ended."""

    rows: xr.Dataset
    tau: np.ndarray
    times: dict[str, float]
    """T0.5, T1 (by class means), T1_all and T1_G in tau."""
    stages: dict[str, float]
    """When each stage begins, in tau."""
    unit: float
    """tau of one unit of time, `U0 + |a|^2 s0^2 m`."""
    s0: float
    s1: float
    start: dict[str, np.ndarray]
    """U, G, VV, S, KK, QQ."""
    final: dict[str, np.ndarray]

    @property
    def T1(self) -> float:
        """The end of phase 1: all samples are right, and by their relevant words alone."""
        return max(self.times.values())

    @property
    def first(self) -> np.ndarray:
        """Which rows lie in phase 1."""
        return self.tau <= self.T1

    @property
    def second(self) -> np.ndarray:
        """Which rows lie in phase 2."""
        return self.tau >= self.T1

    def __getitem__(self, name: str) -> np.ndarray:
        return self.rows[name].values


def inside(study: Any) -> Any:
    """The study on its own words, at widths that Condition 1 allows."""
    return study.at(**PLAIN, dim=WIDTH, neurons=NEURONS, until=UNTIL)


@paper.once
def in_regime(study: Any) -> Run:
    """The run of `inside`."""
    return solved(inside(study))


def solved(ready: Any) -> Run:
    """The run of a study of finite width."""
    rows, init = ready.solution.trajectory, ready.initialisation
    return Run(
        rows=rows,
        tau=rows["time"].values * ready.tau,
        times=ready.times(),
        stages={s.name: s.time * ready.tau for s in ready.stages(rows)},
        unit=ready.tau,
        s0=init.s0,
        s1=init.s1,
        start=_words(ready.start),
        final=_words(ready.solution.final),
    )


def _words(state: Any) -> dict[str, np.ndarray]:
    found = value_mlp.correlations(state)
    return {n: np.asarray(getattr(found, n)) for n in ("U", "G", "VV", "S", "KK", "QQ")}


# --- Checks; a check is a function of the study.

Check = Callable[[Any], Measurement]
Series = Callable[[Run], Any]


def through(of: Series, other: tuple[str, Series], **bound: Any) -> Check:
    """A bound on a series at all times of phase 2 of the run of `inside`."""

    def check(study: Any) -> Measurement:
        run = in_regime(study)
        control = Control(other[0], other[1](run))
        return always(times=run.tau, measured=of(run), after=run.T1, control=control, **bound)

    return check


def each(**checks: Check) -> Check:
    """All of several checks."""
    return lambda study: every(**{name: check(study) for name, check in checks.items()})


def declared(module: str, regime: Any, id: str, statement: str, check: Check, **keys: Any) -> Claim:
    """A row of a table of claims; it belongs to the module of the table."""

    def measure(study: Any) -> Measurement:
        return check(study)

    measure.__doc__, measure.__module__ = statement, module
    return paper.claim(id, regime=regime, **keys)(measure)
