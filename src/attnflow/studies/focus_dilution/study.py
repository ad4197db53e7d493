"""Focus and dilution: one-layer attention on a Markov chain (arXiv 2605.01199)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attnflow.claims import Paper
from attnflow.draw import Figures, Story
from attnflow.flows.flow import Flow
from attnflow.flows.probes import Mark, Observable
from attnflow.flows.schedule import Every, Log, Schedule
from attnflow.flows.solution import Solution
from attnflow.models.one_layer import OneLayerAttention
from attnflow.observe.stages import Stage
from attnflow.studies.focus_dilution import data, observables, stages, symmetric, theory, timeline
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.study import Forecast, Study

WIDE = 64
"""Widths above this are observed at 200 times instead of every step: spectra cost dim^3."""


@final
class FocusDilution(Study):
    """The population flow of one-layer attention, from a small start to the entropy rate."""

    name: ClassVar[str] = "focus-dilution"
    title: ClassVar[str] = "Focus and dilution: one-layer attention on a Markov chain"
    Config: ClassVar[type] = Config
    paper: ClassVar[Paper | None] = paper

    config: Config

    @cached_property
    def chain(self):
        return self.config.chain()

    @cached_property
    def flow(self) -> Flow:
        return data.flow(self.config)

    @cached_property
    def start(self) -> OneLayerAttention:
        c = self.config
        return OneLayerAttention.gaussian(self.chain.tokens, c.dim, c.scale, c.seed)

    @property
    def timeline(self) -> timeline.Timeline:
        """The stages predicted from the law, the width and the scale of the start alone."""
        return timeline.predict(self.chain, self.config.dim, self.config.scale)

    @property
    def observe(self) -> Mapping[str, Observable]:
        return observables.of(self.chain, data.training(self.config), data.test(self.config))

    @property
    def marks(self) -> Mapping[str, Mark]:
        chain = self.chain

        def amplitude(theta: OneLayerAttention) -> Any:
            return jnp.linalg.norm(theory.condensed_amplitude(theta, chain))

        return {"condensed": Mark(amplitude, theory.CONDENSED, 1)}

    @property
    def save(self) -> Schedule:
        return (
            Every(1) if self.config.dim <= WIDE else Log(200, first=min(0.1, self.config.until / 2))
        )

    @property
    def rows(self) -> int:
        return 400 if self.config.dim <= WIDE else 150

    def solve(self, **options: Any) -> Solution:
        """As every study; a discrete run is observed densely at first, as its stages come."""
        if self.config.mode != "flow":
            steps = round(self.config.until / self.config.rate)
            rows = np.unique(np.round(steps * np.linspace(0, 1, self.rows) ** 2))
            options.setdefault("save", rows * self.config.rate)
        return super().solve(**options)

    @property
    def stochastic(self) -> bool:
        return self.config.minibatch > 0

    @cached_property
    def _batch(self) -> Callable[[OneLayerAttention, Any], Any]:
        return data.minibatch(self.config)

    def batch(self, theta: OneLayerAttention, key: Any) -> Any:
        """Cross-entropy of a random batch of sequences, eq. (3)."""
        return self._batch(theta, key)

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        """Condensation, focus, dilution, retraction and new direction, cycle by cycle."""
        waits = self.plateaus(trajectory) if self.config.mode == "flow" else None
        return stages.find(stages.Signals.of(trajectory), self.chain.pi, waits)

    def claims(self):
        from attnflow.studies.focus_dilution import claims

        return claims.everything()

    def figures(self) -> Figures:
        from attnflow.studies.focus_dilution import figures

        return figures.of(self)

    def story(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
        from attnflow.studies.focus_dilution import story

        return story.told(self, trajectory, stages)

    def snapshots(self, times: Sequence[float]) -> list[OneLayerAttention]:
        """The parameters at these times, in the order given; they are remembered.

        Where every step is a row, at the rows nearest to them: nothing is solved again.
        """
        wanted = tuple(float(t) for t in times)
        if wanted and self.config.mode == "flow" and self.config.dim <= WIDE:
            rows = self.solution.trajectory["time"].values
            wanted = tuple(float(rows[np.abs(rows - t).argmin()]) for t in wanted)
        if wanted and wanted not in self._snapshots:
            states = self.solution.states(wanted)
            self._snapshots[wanted] = [
                jax.tree.map(lambda a, k=k: a[k], states) for k in range(len(wanted))
            ]
        return self._snapshots.get(wanted, [])

    @cached_property
    def _snapshots(self) -> dict[tuple[float, ...], list[OneLayerAttention]]:
        return {}

    def forecast(self) -> Forecast:
        """The timeline of the first cycle, its rates, and where the law lies on the maps.

        `instability_margin` is that of the law with the same first entry and the rest evenly:
        above 0 equally rare tokens part within rank one.
        """
        told, chain = self.timeline, self.chain
        numbers = {
            "unigram_entropy": chain.unigram_entropy,
            "floor": chain.floor,
            "cleanliness": told.cleanliness,
        }
        if chain.lam is not None and chain.tokens >= 3:
            margin = symmetric.instability_margin(float(chain.pi.max()), chain.lam, chain.tokens)
            numbers["instability_margin"] = float(margin)
        times = dict(sorted(told.times.items(), key=lambda item: item[1]))
        return Forecast(times, told.rates, numbers, told.trajectory, told.sentence)

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        told = self.timeline
        times = dict(told.times)
        if "condensed" in times:  # this start's own component is known
            times["condensed"] = theory.condensation_time(self.start, self.chain, theory.CONDENSED)
        return {
            "plateaus": self.waits(trajectory, saddles),
            "stages": [s.as_dict() for s in stages],
            "timeline": times,
            "rates": told.rates,
            "cleanliness": told.cleanliness if np.isfinite(told.cleanliness) else None,
            "unigram_entropy": self.chain.unigram_entropy,
            "floor": self.chain.floor,
        }
