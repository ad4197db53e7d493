"""Focus and dilution: one-layer attention on a Markov chain (arXiv 2605.01199)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attnflow.claims import Citation
from attnflow.flows.flow import Flow
from attnflow.flows.probes import Mark, Observable
from attnflow.flows.schedule import Every, Log, Schedule
from attnflow.models.one_layer import (
    OneLayerAttention,
    observables,
    population_flow,
    sequence_loss,
)
from attnflow.observe.stages import Stage, first_time
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.study import Study

PAPER = Citation(
    key="focusdilution2026",
    authors=("Anonymous",),
    title="Focus and Dilution: The Multi-stage Learning Process of Attention",
    year=2026,
    arxiv="2605.01199",
)

WIDE = 64
"""Widths above this are observed at 200 times instead of every step: spectra cost dim^3."""

CONDENSED = 0.05
"""Level of the condensed amplitude whose time is predicted from the linearisation."""


@final
class FocusDilution(Study):
    """The population flow of one-layer attention, from a small start to the entropy rate."""

    name: ClassVar[str] = "focus-dilution"
    title: ClassVar[str] = "Focus and dilution: one-layer attention on a Markov chain"
    Config: ClassVar[type] = Config
    paper: ClassVar[Citation | None] = PAPER

    config: Config

    @cached_property
    def chain(self):
        return self.config.chain()

    @cached_property
    def flow(self) -> Flow:
        return population_flow(self.chain)

    @cached_property
    def start(self) -> OneLayerAttention:
        c = self.config
        return OneLayerAttention.gaussian(self.chain.tokens, c.dim, c.init_scale, c.seed)

    @property
    def observe(self) -> Mapping[str, Observable]:
        return observables(self.chain)

    @property
    def marks(self) -> Mapping[str, Mark]:
        pi, v = self.chain.pi, self.chain.pi - 1 / self.chain.tokens
        q, u = pi / np.linalg.norm(pi), v / np.linalg.norm(v)
        return {
            "condensed": Mark(
                lambda th: jnp.linalg.norm(th.W0.T @ q + th.W1 @ u) / 2, CONDENSED, direction=1
            ),
        }

    @property
    def save(self) -> Schedule:
        return (
            Every(1) if self.config.dim <= WIDE else Log(200, first=min(0.1, self.config.until / 2))
        )

    def batch(self, theta: OneLayerAttention, key: Any) -> Any:
        """Cross-entropy on freshly sampled sequences, eq. (3); the first token is uniform."""
        chain, c = self.chain, self.config
        steps = jnp.log(jnp.asarray(chain.transition))
        first, rest = jax.random.split(key)

        def step(token: Any, k: Any) -> tuple[Any, Any]:
            following = jax.random.categorical(k, steps[token], axis=-1)
            return following, following

        begin = jax.random.randint(first, (c.batch,), 0, chain.tokens)
        _, others = jax.lax.scan(step, begin, jax.random.split(rest, c.context))
        return sequence_loss(theta, jnp.concatenate([begin[None], others]).T)

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        """The four stages of the first cycle, each by the evidence the paper names for it."""
        t = trajectory["time"].values
        loss = trajectory["loss"].values
        ranks = trajectory["effective_rank"].sel(matrix="W0").values
        s = trajectory["singular_W0"].values
        ratio = s[:, 1] / s[:, 0]
        order = np.argsort(-self.chain.pi)
        lead, rest = int(order[0]), order[1:]
        weights = self.chain.pi[rest] / self.chain.pi[rest].sum()
        on_lead = trajectory["attention"].values[:, :, lead]
        own, others = on_lead[:, lead], on_lead[:, rest] @ weights

        found: list[Stage] = []

        def add(name: str, holds: np.ndarray, evidence: str) -> None:
            after = found[-1].time if found else -np.inf
            when = first_time(t, holds, after=after)
            if when is not None:
                found.append(Stage(name, when, 1, evidence))

        add("condensation", (ranks < 1.10) & (loss < 0.98 * loss[0]), "effective rank of W0 < 1.10")
        if not found:
            return []
        add("focus", own > own[0] + 0.05 * (1 - own[0]), "the leader attends to itself")
        add("dilution", np.maximum.accumulate(others) - others > 0.05,
            "the others' attention to the leader fell by 0.05")  # fmt: skip
        add("new direction", (ratio > 0.10) & (np.minimum.accumulate(ratio) < 0.05),
            "second singular value of W0 above a tenth of the first")  # fmt: skip
        return found

    def claims(self):
        from attnflow.studies.focus_dilution import claims  # noqa: F401  (registers them)

        return super().claims()

    def figures(self) -> Mapping[str, Callable[[xr.Dataset, list[Stage]], Any]]:
        from attnflow.studies.focus_dilution import figures

        return figures.of(self.chain)

    def summary(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> dict[str, Any]:
        start = self.start
        return {
            "plateaus": [p.as_dict() for p in self.plateaus(trajectory)],
            "stages": [{"name": s.name, "cycle": s.cycle, "time": s.time} for s in stages],
            "timeline": {
                "condensed": theory.condensation_time(start, self.chain, CONDENSED),
                "escape_rate": theory.escape_rate(self.chain),
                "focus_rate": theory.focus_rate(self.chain),
            },
            "unigram_entropy": self.chain.unigram_entropy,
            "floor": self.chain.floor,
        }
