"""The numbers of a sweep's summaries, and which of them a page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnflow.runs._manifest import flat

if TYPE_CHECKING:
    from attnflow.runs import Ensemble

MOST = 6
"""Figures on a page; every other number is in the tables."""


@dataclass(frozen=True)
class Scalar:
    """A number of the cells' summaries: its dotted name and its values by cell."""

    name: str
    values: Mapping[int, float]


def scalars(ensemble: Ensemble) -> list[Scalar]:
    """Every finite number of the summaries, in the order in which they occur."""
    found: dict[str, dict[int, float]] = {}
    for k, result in enumerate(ensemble.results):
        if not result.ok:
            continue
        for name, value in flat(dict(result.summary)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                continue
            if math.isfinite(value):
                found.setdefault(name, {})[k] = float(value)
    return [Scalar(name, values) for name, values in found.items()]


def main_scalars(ensemble: Ensemble, found: Iterable[Scalar]) -> list[Scalar]:
    """The numbers worth a figure: those that vary, taken in turn from each group of the summary.

    A loss comes first; then one of `plateaus`, one of `stages`, and so on. A number that most
    cells lack is left to the tables.
    """
    most, enough = MOST, max(2, sum(r.ok for r in ensemble.results) / 2)
    groups: dict[str, list[Scalar]] = {}
    for each in found:
        y = np.array(list(each.values.values()))
        if len(y) >= enough and np.ptp(y) > 1e-9 * np.abs(y).max():
            groups.setdefault(each.name.split(".")[0], []).append(each)
    for group in groups.values():
        group.sort(key=lambda s: not s.name.endswith(("loss", "time")))
    chosen: list[Scalar] = groups.pop("loss", [])
    while any(groups.values()) and len(chosen) < most:
        chosen += [group.pop(0) for group in groups.values() if group]
    return chosen[:most]
