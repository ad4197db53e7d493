"""Focus and dilution on real text (arXiv 2605.01199, Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attnflow.claims import Paper
from attnflow.corpus import visible
from attnflow.draw import Figures
from attnflow.flows.flow import Flow
from attnflow.flows.probes import Observable
from attnflow.flows.solution import Solution
from attnflow.models.one_layer import OneLayerAttention
from attnflow.observe.stages import Stage
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_text.config import Config
from attnflow.studies.focus_text.data import Data, prepare
from attnflow.studies.focus_text.model import SELF, observables, window_loss
from attnflow.studies.focus_text.phases import AttentionPhase, in_order, phases, retraction
from attnflow.studies.study import Study

ROWS = 60
"""Observations spaced evenly, and as many logarithmically: the first phases pass quickly."""


@final
class FocusDilutionText(Study):
    """One-layer attention trained on a text by Adam on minibatches, as in Section 4.2."""

    name: ClassVar[str] = "focus-dilution-text"
    title: ClassVar[str] = "Focus and dilution on your own text"
    Config: ClassVar[type] = Config
    paper: ClassVar[Paper | None] = paper

    config: Config
    data: Data

    def __init__(self, config: Config):
        super().__init__(config)
        self.data = prepare(config)  # refuses here what cannot run: no run folder is made

    @cached_property
    def flow(self) -> Flow:
        """The loss on the held-out windows; it is observed, never trained on."""
        windows, precision = self.data.held_out, self.config.precision
        return Flow(
            lambda theta: window_loss(theta, windows, precision),
            name="one-layer attention, held-out text",
        )

    @cached_property
    def start(self) -> OneLayerAttention:
        c = self.config
        return OneLayerAttention.gaussian(self.data.corpus.tokens, c.dim, c.scale, c.seed)

    @cached_property
    def observe(self) -> Mapping[str, Observable]:
        return observables(self.data, self.config.precision)

    @property
    def save(self) -> np.ndarray:
        """Times of observation: evenly spaced ones and logarithmic ones together."""
        steps = self.config.steps
        even = np.linspace(0, steps, min(ROWS, steps) + 1)
        early = np.geomspace(1, steps, min(ROWS, steps))
        return np.unique(np.round(np.concatenate([even, early]))) * self.config.rate

    @property
    def stochastic(self) -> bool:
        return True

    def batch(self, theta: OneLayerAttention, key: Any) -> Any:
        """The loss on windows at random places of the training text, eq. (3)."""
        c, train = self.config, jnp.asarray(self.data.train)
        at = jax.random.randint(key, (c.batch, 1), 0, len(train) - c.context)
        return window_loss(theta, train[at + jnp.arange(c.context + 1)], c.precision)

    def solve(self, **options: Any) -> Solution:
        return super().solve(**{"save": self.save, **options})

    def phases(self, trajectory: xr.Dataset, query: int = -1) -> list[AttentionPhase]:
        """The four phases of Fig. 3 (A1), seen or not, for one token of the chosen input."""
        law = self.data.law[list(self.data.sequence)]
        names = self._spelled(self.data.sequence)
        return phases(trajectory["attention"].values[:, query], law, names, query)

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        time = trajectory["time"].values
        return [phase.stage(time) for phase in self.phases(trajectory) if phase.seen]

    def claims(self):
        from attnflow.claims import claims_in
        from attnflow.studies.focus_text import claims

        return claims_in(claims)

    def figures(self) -> Figures:
        from attnflow.studies.focus_text import figures

        return figures.of(self.data.unigram, self.data.bigram, self.config.context)

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        c, data = self.config, self.data
        steps = np.round(trajectory["time"].values / c.rate).astype(int)
        drop = retraction(trajectory["embedding_norm"].values)
        sample = trajectory["self_attention"].values
        names = self._spelled(data.tracked)
        return {
            "text": {
                "name": data.corpus.name,
                "sha256": data.corpus.sha256,
                "tokens": len(data.corpus),
                "vocabulary": data.corpus.tokens,
                "unknown": data.corpus.unknown,
            },
            "epochs": c.steps * c.batch / (len(data.train) - c.context),
            "unigram": data.unigram,
            "bigram": data.bigram,
            "sequence": self._spelled(data.sequence),
            "tracked": {n: float(data.law[i]) for n, i in zip(names, data.tracked, strict=True)},
            "phases": [
                {
                    "name": p.name,
                    "step": None if p.begin is None else int(steps[p.begin]),
                    "seen": p.seen,
                    "evidence": p.evidence,
                    "confidence": p.confidence,
                }
                for p in self.phases(trajectory)
            ],
            "phases_seen": in_order(self.phases(trajectory)),
            "phases_of_each": {
                name: in_order(self.phases(trajectory, k))
                for k, name in enumerate(data.names(data.sequence).tolist())
            },
            "retraction": dict(zip(names, drop.tolist(), strict=True)),
            "self_attending": [int((sample[k] >= SELF).sum()) for k in (0, -1)],
        }

    def _spelled(self, ids: Sequence[int]) -> list[str]:
        return [visible(self.data.corpus.vocabulary[i]) for i in ids]
