"""Leading terms: how an attention language model begins, from the statistics of its corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from attnflow.claims import Paper
from attnflow.corpus import Statistics, breakdown_time, cosine
from attnflow.draw import Figures, Story
from attnflow.flows.discrete import Adam
from attnflow.flows.flow import Flow
from attnflow.flows.options import Solver
from attnflow.flows.probes import Observable
from attnflow.flows.solution import Solution
from attnflow.models import attention_lm as lm
from attnflow.models.attention_lm import BLOCKS, Weights
from attnflow.observe.stages import Stage
from attnflow.studies.leading_terms import observables, optimised, stages
from attnflow.studies.leading_terms.config import Config
from attnflow.studies.leading_terms.data import Data, prepare
from attnflow.studies.leading_terms.observables import Followed
from attnflow.studies.leading_terms.paper import paper
from attnflow.studies.leading_terms.terms import (
    Terms,
    flow_coefficients,
    leading_coefficients,
    repeated,
)
from attnflow.studies.study import Study

ROWS = 100
"""Up to so many steps each is observed; of more, evenly and logarithmically spaced ones."""


@final
class LeadingTerms(Study):
    """Training from zero (or nearly) on windows of a text, beside its closed-form weights."""

    name: ClassVar[str] = "leading-terms"
    title: ClassVar[str] = "Leading terms: the first weights of an attention language model"
    Config: ClassVar[type] = Config
    paper: ClassVar[Paper | None] = paper

    config: Config
    data: Data

    def __init__(self, config: Config):
        super().__init__(config)
        self.data = prepare(config)  # refuses here what cannot run: no run folder is made

    @cached_property
    def windows(self) -> lm.Windows:
        """The training set with its loss and gradient."""
        c = self.config
        return lm.Windows(self.data.windows, self.data.corpus.tokens, c.precision)

    @cached_property
    def flow(self) -> Flow:
        return lm.window_flow(self.windows)

    @cached_property
    def start(self) -> Weights:
        c = self.config
        return lm.start(self.data.corpus.tokens, c.context, c.layers, c.init_scale, c.seed)

    @cached_property
    def observe(self) -> Mapping[str, Observable]:
        return observables.of(self.data, self.start)

    @cached_property
    def views(self) -> dict[str, tuple[observables.View, ...]]:
        return observables.views(self.data)

    @property
    def save(self) -> np.ndarray:
        """The steps after which a run is observed, as times (a flow at the same ones)."""
        steps = self.config.steps
        even = np.linspace(0, steps, min(ROWS, steps) + 1)
        early = np.geomspace(1, steps, min(ROWS // 2, steps))
        return np.unique(np.round(np.concatenate([even, early]))) * self.config.rate

    def solve(self, **options: Any) -> Solution:
        if self.config.mode == "flow":
            options = {"solver": self.solver, **options}
        return super().solve(**{"save": self.save, **options})

    @property
    def solver(self) -> Solver:
        """The absolute tolerance follows the smallest that grows: W, whose term is t^4/8 Q."""
        last = leading_coefficients(self.config.steps, self.config.rate)["W"]
        size = last * float(np.abs(self.data.theory.attention).max())
        return Solver(atol=max(self.config.rtol * min(1.0, size), 1e-300))

    def optimiser(self) -> Any:
        c = self.config
        if c.mode == "adam":
            return Adam(c.rate, b1=c.b1, b2=c.b2, eps=c.eps, decay=c.decay)
        return super().optimiser()

    def batch(self, theta: Any, key: Any) -> Any:
        """The loss on a minibatch of mode sgd."""
        drawn = jnp.asarray(self.data.windows)[self._drawn(key)]
        dtype = self.config.precision
        cast = {n: m.astype(dtype) for n, m in theta.items()}
        return lm.loss(cast, drawn, shifted=True).astype(float)

    def _drawn(self, key: Any) -> Any:
        count = len(self.data.windows)
        return jax.random.choice(key, count, (self.config.batch,), replace=False)

    @cached_property
    def drawn(self) -> list[np.ndarray]:
        """The windows of every step's minibatch, drawn again from the keys of the steps."""
        key = jax.random.key(self.config.seed)
        draw = jax.jit(lambda k: self._drawn(jax.random.fold_in(key, k)))
        with jax.enable_x64(True):
            return [np.asarray(draw(k)) for k in range(self.config.steps)]

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        return stages.find(trajectory["time"].values, self.followed(trajectory))

    def story(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
        """How well every weight follows what was counted before training, and until when."""
        followed = self.followed(trajectory)
        curves = {
            name: np.nanmin(np.nan_to_num(f.cosine, nan=1.0), 1) for name, f in followed.items()
        }
        worst = min(curves, key=lambda name: curves[name][-1])
        left = next((s for s in stages if s.name.endswith(" leaves")), None)
        words = "Every weight grew along the matrix that was counted in the corpus before training"
        if left is None:
            words += f", and still does at the end (least cosine {curves[worst][-1]:.4f}, {worst})."
        else:
            words += f" until {left.when}, when {left.name.split()[0]} left it (cosine 0.999);"
            words += f" at the end the least cosine is {curves[worst][-1]:.3f} ({worst})."
        return Story(words, curves, "least cosine of a layer", None, "loss (nats)")

    def saddles(self, trajectory: xr.Dataset, **options: Any) -> None:
        """None: the zero start is left at once, and the model is too large for dense spectra."""
        return None

    def claims(self):
        from attnflow.studies.leading_terms import claims

        return claims.everything()

    def figures(self) -> Figures:
        from attnflow.studies.leading_terms import figures

        return figures.of(self)

    # --- Predictions.

    def coefficients(self, time: np.ndarray) -> dict[str, np.ndarray]:
        """The factor of each leading term at these times: binomials, or powers along a flow."""
        c = self.config
        each = [
            flow_coefficients(t)
            if c.mode == "flow"
            else leading_coefficients(round(t / c.rate), c.rate)
            for t in time.tolist()
        ]
        return {name: np.array([row[name] for row in each]) for name in BLOCKS}

    @cached_property
    def terms(self) -> Terms:
        """The terms at the end of the run, to every known order."""
        from attnflow.expand.clock import Continuous, Steps

        c, d = self.config, self.data
        clock = Continuous(c.until) if c.mode == "flow" else Steps.equal(c.steps, c.rate)
        return Terms(d.theory_windows, d.theory, c.layers, clock)

    @cached_property
    def breakdown(self) -> float:
        """When W_O leaves its leading term, before any training."""
        return breakdown_time(self.data.theory, self.config.layers, stages.COSINE)

    @cached_property
    def schedule(self) -> Weights:
        """The leading terms of the batches that this run of mode sgd saw."""
        c, d = self.config, self.data
        at = optimised.of_batches(d.windows, d.corpus.tokens, self.drawn)
        return repeated(optimised.leading(optimised.Descent(c.rate), c.steps, at), c.layers)

    def adam_terms(self, adam: Adam) -> Weights:
        """The leading terms under Adam, after the steps of this run."""

        def all_of_it(k: int) -> Statistics:
            return self.data.theory

        found = optimised.leading(optimised.Moments(adam), self.config.steps, all_of_it)
        return repeated(found, self.config.layers)

    # --- What is measured of them.

    def followed(self, trajectory: xr.Dataset, view: str = "raw") -> dict[str, Followed]:
        """Every weight of a trajectory beside its leading term."""
        coefficient = self.coefficients(trajectory["time"].values)
        return observables.followed(trajectory, coefficient, self.views, view)

    def measured_breakdown(self, trajectory: xr.Dataset) -> float | None:
        """When the cosine of W_O fell below 0.999."""
        gap = np.nan_to_num(self.followed(trajectory)["W_O"].gap[:, 0])
        return observables.crossing(trajectory["time"].values, gap, 1 - stages.COSINE)

    @cached_property
    def trained(self) -> Weights:
        """The weights at the end of the run."""
        return {name: np.asarray(m) for name, m in self.solution.final.items()}

    def cosines(self, terms: Weights) -> dict[str, list[float]]:
        """Of the increments at the end with some terms, by weight and layer."""
        moved = {name: m - self.start[name] for name, m in self.trained.items()}
        return {
            name: [
                cosine(a, b)
                for a, b in zip(_layers(name, moved[name]), _layers(name, terms[name]), strict=True)
            ]
            for name in BLOCKS
        }

    def theories(self) -> dict[str, dict[str, list[float]]]:
        """Cosines with the leading terms of plain descent and of Adam (with this config's)."""
        c = self.config
        adam = self.optimiser() if c.mode == "adam" else Adam(c.rate)
        return {
            "descent": self.cosines(self.terms.leading()),
            "adam": self.cosines(self.adam_terms(adam)),
        }

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        last = {view: self.followed(trajectory, view) for view in observables.VIEWS}

        def ends(view: str, part: str) -> dict[str, list[float]]:
            return {n: getattr(f, part)[-1].tolist() for n, f in last[view].items()}

        time = trajectory["time"].values
        theories = self.theories()
        found = {
            "text": {
                "name": self.data.corpus.name,
                "tokens": len(self.data.corpus),
                "vocabulary": self.data.corpus.tokens,
                "windows": len(self.data.windows),
                "unknown": self.data.corpus.unknown,
            },
            "loss": float(trajectory["loss"].values[-1]),
            "cosine": ends("raw", "cosine"),
            "null": self.data.nulls,
            "cosine_residual": ends("residual", "cosine"),
            "cosine_whitened": ends("whitened", "cosine"),
            "gain": ends("raw", "gain"),
            "error": ends("raw", "error"),
            "exponent": {
                n: [
                    observables.norm_exponent(time[time > 0][4:], size[time > 0][4:])
                    for size in f.norm.T
                ]
                for n, f in last["raw"].items()
            },
            "causal": observables.causal(
                self.windows.loss, self.start, self.trained, self._with_start()
            ),
            "breakdown_predicted": self.breakdown,
            "breakdown_measured": self.measured_breakdown(trajectory),
            "theories": theories,
            "follows": follows(theories),
        }
        if self.config.mode == "sgd":
            found["cosine_schedule"] = self.cosines(self.schedule)
        return found

    def _with_start(self) -> Weights:
        return self.terms.leading()


def follows(theories: Mapping[str, Mapping[str, list[float]]]) -> str:
    """The theory whose terms the trained weights are closer to, on average over the weights."""

    def mean(name: str) -> float:
        each = [np.nanmean(c) for c in theories[name].values() if np.isfinite(c).any()]
        return float(np.mean(each)) if each else float("-inf")

    return max(theories, key=mean)


def _layers(name: str, weight: np.ndarray) -> np.ndarray:
    return weight[None] if name == "W_O" else weight
