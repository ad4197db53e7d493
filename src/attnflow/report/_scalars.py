"""The numbers of a sweep's summaries, and which of them a page draws."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnflow.runs._manifest import flat

if TYPE_CHECKING:
    from attnflow.runs import Ensemble
    from attnflow.runs._statistics import Fit, Slope

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


def prediction_of(name: str, names: Container[str]) -> str | None:
    """The number that a study's closed forms put beside a measured one, by its name.

    A stage has its time in `timeline`, an exit its `rate_predicted`, any other number its own name
    below `predictions`.
    """
    stage = re.fullmatch(r"stages\.(.+)\.time", name)
    candidates = [f"predictions.{name}"]
    candidates += [f"timeline.{stage[1]}"] if stage else []
    candidates += [name.replace("_measured", "_predicted")] if "_measured" in name else []
    return next((each for each in candidates if each in names), None)


def main_slopes(ensemble: Ensemble) -> list[tuple[Slope, Fit, Fit | None]]:
    """Of the main numbers against the scanned parameter: the slope, its best fit, and the fit of
    the same form to what is predicted, where something is."""
    slopes = {s.name: s for s in ensemble.slopes}
    found = []
    for scalar in main_scalars(ensemble, scalars(ensemble)):
        slope = slopes.get(scalar.name)
        if slope is None or slope.best is None:
            continue
        beside = slopes.get(prediction_of(scalar.name, slopes) or "")
        predicted = None if beside is None else beside.fits.get(slope.best)
        found.append((slope, slope.fits[slope.best], predicted))
    return found


def finding(ensemble: Ensemble, most: int = 3) -> str:
    """What a scan found, in a sentence: slopes with their errors, and what was predicted."""
    slopes = main_slopes(ensemble)
    ranked = sorted(slopes, key=lambda s: (s[2] is None, not s[0].name.endswith("time")))
    told = [s for s in ranked if s[2] is not None and s[0].name.endswith("time")]
    chosen = (told or ranked)[:most]  # times that closed forms foresee say most
    said = []
    for slope, fit, predicted in chosen:
        axis = f"log {slope.parameter}" if slope.best in ("log-x", "log-log") else slope.parameter
        what = f"log {slope.name}" if slope.best in ("log-y", "log-log") else slope.name
        error = "" if fit.error is None else f" ± {fit.error:.1g}"
        beside = "" if predicted is None else f" (predicted {predicted.slope:.4g})"
        per = (
            f"each factor of e in {slope.parameter}"
            if axis != slope.parameter
            else f"each unit of {axis}"
        )
        stage = re.fullmatch(r"stages\.(.+)\.time", slope.name)
        if stage and slope.best == "log-x":
            when = "later" if fit.slope > 0 else "earlier"
            foreseen = "" if predicted is None else f" (predicted {abs(predicted.slope):.3g})"
            size = f"{abs(fit.slope):.3g}{error}"
            said.append(f"the stage {stage[1]} begins {size} time units {when} for {per}{foreseen}")
        else:
            said.append(f"{what} changes by {fit.slope:.4g}{error} for {per}{beside}")
    words = "; ".join(said)
    return words[:1].upper() + words[1:]


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
    names = {each.name for group in groups.values() for each in group}
    for group in groups.values():
        group.sort(
            key=lambda s: (
                prediction_of(s.name, names) is None,
                not s.name.endswith(("loss", "time")),
            )
        )
    for group in ("timeline", "predictions"):  # drawn beside what they predict
        groups.pop(group, None)
    chosen: list[Scalar] = groups.pop("loss", [])
    while any(groups.values()) and len(chosen) < most:
        chosen += [group.pop(0) for group in groups.values() if group]
    return chosen[:most]
