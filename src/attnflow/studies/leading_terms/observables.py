"""What a run observes: how far each weight has gone along its leading term, and across it.

Of every increment `W(s) - W(0)` two lengths are kept, its component along the direction of the
leading term and what is at right angles to it. Cosine, gain and relative error follow from them
without cancellation (`Followed`). Each is seen in three views:

    raw        as it is
    residual   with the direction of the token-shuffled corpus projected out of both
    whitened   rows and columns divided by the square root of their token's frequency
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnflow.corpus.nulls import norm, without
from attnflow.flows.layout import Params
from attnflow.flows.probes import Observable
from attnflow.models.attention_lm import BLOCKS, Weights
from attnflow.models.two_head import namespace
from attnflow.studies.leading_terms.data import Data
from attnflow.studies.leading_terms.terms import directions

VIEWS = ("raw", "residual", "whitened")

Direction = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class View:
    """A linear way of looking at a weight, and the unit vector of its leading term there."""

    look: Callable[[Any], Any]
    unit: Direction
    length: float
    """The length of the direction in this view."""


def views(data: Data) -> dict[str, tuple[View, ...]]:
    """The three views of each weight."""
    terms, nulls = directions(data.theory), directions(data.shuffled)
    root = np.sqrt(np.maximum(data.theory.unigram, 1 / data.theory.positions))
    frequency = np.outer(root, root)

    def seen(name: str) -> tuple[View, ...]:
        size = norm(nulls[name])
        null = nulls[name] / size if size else nulls[name]
        scale = frequency if name != "P" else 1.0
        looks = (lambda m: m, lambda m: m - namespace(m).vdot(null, m) * null, lambda m: m / scale)
        found = []
        for look in looks:
            direction = np.asarray(look(terms[name]))
            size = norm(direction)
            found.append(View(look, direction / size if size else direction, size))
        return tuple(found)

    return {name: seen(name) for name in BLOCKS}


def of(data: Data, start: Weights) -> dict[str, Observable]:
    """Two lengths of each weight: `V_along[layer, view]`, `V_across[layer, view]`."""
    found = {}
    for name, seen in views(data).items():
        layered = name != "W_O"
        dims = ("layer", "view") if layered else ("view",)
        coords: dict[str, Any] = {"view": np.array(VIEWS)}
        if layered:
            coords["layer"] = np.arange(1, len(start[name]) + 1)
        for part, length in (("along", along), ("across", across)):
            found[f"{name}_{part}"] = Observable(
                _lengths(name, seen, start[name], length),
                dims,
                coords,
                "",
                f"length of the increment of {name} {part} its leading term",
            )
    return found


def _lengths(
    name: str, seen: tuple[View, ...], first: np.ndarray, length: Callable[[View, Any], Any]
) -> Callable[[Params], Any]:
    def measure(theta: Params) -> Any:
        moved = theta[name] - first
        xp = namespace(moved)
        if name == "W_O":
            return xp.stack([length(view, moved) for view in seen])
        return xp.stack([xp.stack([length(view, layer) for view in seen]) for layer in moved])

    return measure


def along(view: View, moved: Any) -> Any:
    """The length of an increment along the direction of a view."""
    return namespace(moved).vdot(view.unit, view.look(moved))


def across(view: View, moved: Any) -> Any:
    """The length of what is at right angles to it; squares cannot underflow."""
    xp = namespace(moved)
    looked = view.look(moved)
    rest = looked - xp.vdot(view.unit, looked) * view.unit
    largest = abs(rest).max()
    rest = rest / xp.where(largest > 0, largest, 1.0)
    return largest * xp.sqrt(xp.vdot(rest, rest))


# --- What follows from the two lengths.


@dataclass(frozen=True)
class Followed:
    """One weight of a run beside its leading term, at every row: `[time, layer]`."""

    along: Float[np.ndarray, "time layer"]
    across: Float[np.ndarray, "time layer"]
    length: Float[np.ndarray, "time"]
    """Of the leading term itself, with its exact coefficient."""

    @property
    def norm(self) -> Float[np.ndarray, "time layer"]:
        return np.hypot(self.along, self.across)

    @property
    def cosine(self) -> Float[np.ndarray, "time layer"]:
        """nan while the weight has not moved."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.along / self.norm

    @property
    def gap(self) -> Float[np.ndarray, "time layer"]:
        """1 - cosine, to its full precision."""
        with np.errstate(invalid="ignore", divide="ignore"):
            sine = self.across / self.norm
            return np.where(self.along > 0, sine**2 / (1 + np.abs(self.cosine)), 1 - self.cosine)

    @property
    def gain(self) -> Float[np.ndarray, "time layer"]:
        """The component along the leading term, in units of it."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.along / self.length[:, None]

    @property
    def error(self) -> Float[np.ndarray, "time layer"]:
        """|W - term| / |term|."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.hypot(self.gain - 1, self.across / self.length[:, None])


def followed(
    trajectory: xr.Dataset,
    coefficient: Mapping[str, Float[np.ndarray, "time"]],
    seen: Mapping[str, tuple[View, ...]],
    view: str = "raw",
) -> dict[str, Followed]:
    """Every weight of a trajectory beside its leading term; `coefficient[name][row]`."""
    found = {}
    for name in BLOCKS:
        along, across = (
            trajectory[f"{name}_{part}"].sel(view=view).values for part in ("along", "across")
        )
        if name == "W_O":
            along, across = along[:, None], across[:, None]
        length = coefficient[name] * seen[name][VIEWS.index(view)].length
        found[name] = Followed(along, across, length)
    return found


def crossing(
    time: Float[np.ndarray, "time"], gap: Float[np.ndarray, "time"], limit: float
) -> float | None:
    """When `1 - cosine` first rises above a limit, by interpolation of both logarithms."""
    late = np.flatnonzero((gap > limit) & (time > 0))
    if not len(late):
        return None
    k = int(late[0])
    if k == 0 or time[k - 1] <= 0 or not gap[k - 1] > 0:
        return float(time[k])
    low, high = np.log(gap[k - 1]), np.log(gap[k])
    part = (np.log(limit) - low) / (high - low)
    return float(np.exp(np.log(time[k - 1]) + part * np.log(time[k] / time[k - 1])))


def norm_exponent(time: np.ndarray, size: np.ndarray) -> float:
    """The slope of log |W| on log t."""
    rows = (time > 0) & (size > 0)
    if rows.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(time[rows]), np.log(size[rows]), 1)[0])


# --- Interventions on trained weights.

CHANGES = ("replace", "rescale", "remove", "zero")


def changed(kind: str, moved: np.ndarray, term: np.ndarray) -> np.ndarray:
    """An increment after an intervention, given its leading term.

    replace: the term takes its place. rescale: the term, as long as the increment. remove: the
    increment without its component along the term. zero: nothing.
    """
    if kind == "replace":
        return term
    if kind == "rescale":
        return term * (norm(moved) / norm(term)) if norm(term) else np.zeros_like(moved)
    if kind == "remove":
        return without(moved, term)
    return np.zeros_like(moved)


def causal(
    loss: Callable[[Weights], float], start: Weights, trained: Weights, terms: Weights
) -> dict[str, dict[str, list[float]]]:
    """By how much the loss rises when one weight of one layer is changed (Appendix B)."""
    base = float(loss(trained))
    found: dict[str, dict[str, list[float]]] = {}
    for name in BLOCKS:
        found[name] = {}
        for kind in CHANGES:
            rises = []
            for layer in range(1 if name == "W_O" else len(trained[name])):
                at: Any = () if name == "W_O" else layer
                moved = trained[name][at] - start[name][at]
                other = {n: np.array(m) for n, m in trained.items()}
                other[name][at] = start[name][at] + changed(kind, moved, terms[name][at])
                rises.append(float(loss(other)) - base)
            found[name][kind] = rises
    return found
