"""A compared series as a study: what a run of it shows. `checkpoints.compare` makes the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._errors import InputError
from attnflow.checkpoints.compare import NO_EVIDENCE, curves
from attnflow.observe.stages import Stage, first_time
from attnflow.studies.checkpoints import figures
from attnflow.studies.checkpoints.config import Config
from attnflow.studies.study import Study

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.draw import Figures

FEWER = 0.8
"""QK forms condense once their effective rank is below this share of its first value."""
SHARPER = 0.05
"""Attention focuses once its entropy is so much (of the largest there can be) below the first."""
WIDER = 0.02
"""It dilutes again once the entropy is so much above its least value."""


class Checkpoints(Study):
    """Stages and figures of a series that was compared with its corpus."""

    name = "checkpoints"
    title = "Real models over training"
    Config = Config

    @property
    def flow(self) -> Any:
        raise InputError("study", READ)

    @property
    def start(self) -> Any:
        raise InputError("study", READ)

    def solve(self, **options: Any) -> Any:
        raise InputError("study", READ)

    def saddles(self, *args: Any, **options: Any) -> None:
        return None

    def claims(self) -> Sequence[Any]:
        return ()

    def figures(self) -> Figures:
        return figures.FIGURES

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        """Does this model condense, focus, dilute? From ranks and entropies, layer by layer."""
        time = trajectory["time"].values
        found = []
        for layer in trajectory["layer"].values:
            one = trajectory.sel(layer=layer)
            rank = one["qk_rank"].mean("head").values
            entropy = one["attention_entropy"].mean("head").values
            found += _condensed(time, rank, layer) + _focused(time, entropy, layer)
        return sorted(found, key=lambda stage: stage.time)

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        """The best curve of each form and theory (mean over heads), and the doubtful steps."""
        flagged = trajectory["step"].values[trajectory["flagged"].values > 0]
        best: dict[str, Any] = {"flagged steps": [int(step) for step in flagged]}
        means = [c for c in curves(trajectory) if c["head"] == "mean"]
        for curve in means:
            name = f"{curve['form']} {curve['theory']} layer {curve['layer']}"
            words = f"{curve['verdict']}: cos {curve['cos']:.3f} at step {curve['step']}"
            best[name] = f"{words}, highest null {curve['null']:.3f}"
        best["curves with evidence"] = sum(c["verdict"] != NO_EVIDENCE for c in means)
        return best


READ = "a series is read, not solved; attnflow checkpoints compare DIR --corpus STORE"


def _condensed(time: np.ndarray, rank: np.ndarray, layer: Any) -> list[Stage]:
    if not rank[0] > 0:
        return []
    fall = rank / rank[0]
    at = first_time(time, -fall, level=-FEWER, hold=1)
    if at is None:
        return []
    words = f"layer {layer}: effective rank of qk {rank[0]:.3g} at first, {rank.min():.3g} at least"
    return [Stage("condensation", at, int(layer) + 1, words)]


def _focused(time: np.ndarray, entropy: np.ndarray, layer: Any) -> list[Stage]:
    sharper = entropy[0] - entropy
    at = first_time(time, sharper, level=SHARPER, hold=1)
    if at is None:
        return []
    least = int(np.argmin(entropy))
    words = f"layer {layer}: entropy of attention {entropy[0]:.3f} at first, {entropy[least]:.3f}"
    found = [Stage("focus", at, int(layer) + 1, f"{words} at least")]
    again = first_time(
        time, entropy - entropy[least], level=WIDER, after=float(time[least]), hold=1
    )
    if again is not None:
        words = f"layer {layer}: entropy of attention back to {entropy[-1]:.3f}"
        found.append(Stage("dilution", again, int(layer) + 1, words))
    return found
