"""Regimes: the hypotheses of a statement as predicates of the config alone, composed with `&`.

@condition
def nonuniform(config):
    spread = np.ptp(config.chain().pi)
    return Regime(spread > 0, f"the law is not uniform (its entries span {spread:.3g})")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow._errors import InputError, shown


@dataclass(frozen=True)
class Regime:
    """Whether a config lies inside a claim's hypotheses, and the sentence that says why.

    >>> Regime(0.75 > 0.5, "the largest entry of pi is 0.75 > 1/2").inside
    True
    """

    inside: bool
    sentence: str


@dataclass(frozen=True)
class Condition:
    """A predicate of a config. It never sees the study, so that no solve can decide a regime and a
    broken run cannot hide behind it."""

    parts: tuple[Callable[[Any], Regime | bool], ...]

    def __call__(self, config: Any) -> Regime:
        """Every part in its order, up to the first that the config is outside of."""
        sentences = []
        for part in self.parts:
            found = _judged(part, config)
            if not found.inside:
                return found
            sentences.append(found.sentence)
        return Regime(True, "; ".join(sentences))

    def __and__(self, other: Condition) -> Condition:
        return Condition(tuple(dict.fromkeys((*self.parts, *other.parts))))


def condition(function: Callable[[Any], Regime | bool]) -> Condition:
    """`function(config)` as a regime; one that returns True or False is told by its docstring."""
    return Condition((function,))


def _judged(part: Callable[[Any], Regime | bool], config: Any) -> Regime:
    answer = part(config)
    if isinstance(answer, Regime):
        return Regime(bool(answer.inside), answer.sentence)
    if isinstance(answer, bool | np.bool_):
        text = inspect.getdoc(part) or getattr(part, "__name__", "regime").replace("_", " ")
        return Regime(bool(answer), " ".join(text.split("\n\n")[0].split()))
    raise InputError("regime", f"{shown(answer)} is neither a Regime nor True or False")
