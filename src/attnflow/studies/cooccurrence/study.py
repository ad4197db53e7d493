"""Word co-occurrence: attention under a linear MLP, two phases, automatic balancing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import xarray as xr

from attnflow.claims import Paper
from attnflow.draw import Figures, Story
from attnflow.flows.discrete import descend
from attnflow.flows.driver import integrate
from attnflow.flows.options import Solver
from attnflow.flows.probes import Mark, Observable
from attnflow.flows.schedule import Every, Log, Schedule
from attnflow.flows.solution import Solution
from attnflow.models import value_mlp
from attnflow.models.value_mlp import Initialisation, initialisation
from attnflow.observe.stages import Stage
from attnflow.studies.cooccurrence import observables, stages, theory
from attnflow.studies.cooccurrence.config import Config
from attnflow.studies.cooccurrence.paper import paper
from attnflow.studies.study import Forecast, Study
from attnflow.tasks.cooccurrence import Sentences, WordCooccurrence

EXPERIMENT: dict[str, Any] = {"tokens": "iid", "vocab": 64, "init": "torch-output"}
"""Appendix A beside the defaults (n = 60, L = 5, m = 128, m1 = 256, rate .01): words of dimension
64 with repeats, and the one reading of "Kaiming" that shows the described curves."""

EPOCHS = 30_000
"""Steps of Appendix A."""


@final
class Cooccurrence(Study):
    """Gradient flow or descent on eq. (2), and its limits of infinite width and many samples."""

    name: ClassVar[str] = "cooccurrence"
    title: ClassVar[str] = "Word co-occurrence: two phases, gradients balance by themselves"
    Config: ClassVar[type] = Config
    paper: ClassVar[Paper | None] = paper

    config: Config

    @cached_property
    def task(self) -> WordCooccurrence:
        return self.config.task()

    @cached_property
    def sentences(self) -> Sentences:
        """The training set."""
        c = self.config
        return self.task.training(c.samples, c.tokens, c.seed)

    @cached_property
    def initialisation(self) -> Initialisation:
        c = self.config
        sizes = {"vocab": c.words, "dim": c.dim, "neurons": c.neurons, "length": c.length}
        name = "condition" if c.init == "expected" else c.init
        return initialisation(name, **sizes, k0=c.k0, k1=c.k1, output=c.output or None)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """u, WV, WK, WQ and the rate |a|^2 of this seed."""
        c = self.config
        return self.initialisation.draw(c.words, c.dim, c.neurons, c.seed)

    @property
    def output(self) -> float:
        """The realised |a|^2."""
        return self.initialisation.output if self.config.init == "expected" else self.drawn["rate"]

    @property
    def by_gram(self) -> bool:
        """Whether the Grams carry the run: they are the smaller state where m > d."""
        return self.config.init == "expected" or self.config.dim > self.config.words

    @cached_property
    def flow(self) -> Any:
        c = self.config
        if c.infinite:
            return value_mlp.bag_flow(*self.bags[:3])
        make = value_mlp.gram_flow if self.by_gram else value_mlp.reduced_flow
        return make(self.sentences, c.dim, self.output, c.attention == "frozen")

    @cached_property
    def start(self) -> Any:
        c = self.config
        if c.infinite:
            return np.zeros(self.bags[0].shape[1])
        if c.init == "expected":
            return self.flow.state(self.initialisation.expected(c.words, c.dim))
        weights = {name: self.drawn[name] for name in ("u", "WV", "WK", "WQ")}
        return self.flow.project(weights) if self.by_gram else weights

    @cached_property
    def bags(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bags of words, labels, weights and membership: of samples, or of classes (scalar)."""
        if self.config.mode == "scalar":
            law = np.array([float(p) for p in self.task.law])
            return self.task.relevant, self.task.label, law, np.eye(len(law))
        X = self.sentences
        return X.bags, X.label, X.weight, X.membership

    @cached_property
    def tau(self) -> float:
        """Natural time of one unit of the run's: `U0 + |a|^2 s0^2 m`, or 1 where time is tau."""
        c, init = self.config, self.initialisation
        if c.infinite:
            return 1.0
        if c.init == "expected":
            U0 = init.s1**2 * c.dim * self.output
        else:
            U0 = float(self.drawn["u"] @ self.drawn["u"])
        return float(U0 + self.output * init.s0**2 * c.dim)

    @property
    def horizon(self) -> float:
        """`until` in the run's own time."""
        return self.config.end / self.tau

    @cached_property
    def view(self) -> observables.View:
        if self.config.infinite:
            return observables.BagView(*self.bags)
        return observables.StateView(self.sentences, self.config.dim, self.output, self.start)

    @cached_property
    def observe(self) -> Mapping[str, Observable]:
        return observables.of(self.view, self.task)

    def story(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
        """Words first: which classes are right when, and whether attention had to move."""
        second = next((s for s in stages if s.name == "phase 2"), None)
        words = "The layer above attention learned the words first"
        if second is not None and second.time > 0:
            words += f": every class is right on average from {second.when} on"
        if self.config.infinite:
            words += "; at infinite width attention stays uniform."
        else:
            moved = float(trajectory["softmax_change"].values.max())
            words += f"; until the end attention moved its weights by at most {moved:.2g}."
        margin = trajectory["class_margin"]
        curves = {str(c): margin.sel({"class": c}).values for c in margin["class"].values}
        return Story(words, curves, "margin of each class", None, "loss (nats)")

    @cached_property
    def marks(self) -> Mapping[str, Mark]:
        return observables.marks(self.view, self.task)

    @property
    def save(self) -> Schedule:
        """Descent is observed at equal distances of log time, a flow at its own steps."""
        if self.config.mode != "gd":
            return Every(1)
        return Log(400, first=max(self.config.rate, self.horizon / 1e5))

    def solve(self, **options: Any) -> Solution:
        """Train as `config.mode` says, up to `horizon`."""
        c = self.config
        common = {"observe": self.observe, "marks": self.marks, "save": self.save, **options}
        if c.mode == "gd":
            return descend(self.flow, self.start, self.horizon, self.optimiser(), **common)
        common.setdefault("rtol", c.rtol)
        common.setdefault("solver", self.solver)
        return integrate(self.flow, self.start, self.horizon, **common)

    @property
    def solver(self) -> Solver:
        """The absolute tolerance follows the smallest that grows: a score, s0^2 sqrt m at first."""
        if self.config.infinite:
            return Solver()
        c, s0 = self.config, self.initialisation.s0
        return Solver(atol=c.rtol * min(1.0, float(s0**2 * np.sqrt(c.dim))))

    @cached_property
    def experiment(self) -> dict[str, Cooccurrence]:
        """Appendix A, exactly: as `flow` and as `gd`, to the same time."""
        base = Cooccurrence(Config(**EXPERIMENT, seed=self.config.seed))
        until = base.tau * base.config.rate * EPOCHS
        return {mode: base.at(mode=mode, until=until) for mode in ("flow", "gd")}

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        rate = self.config.rate if self.config.mode == "gd" else None
        return stages.find(self.events, self.tau, rate)

    def saddles(self, trajectory: xr.Dataset, **options: Any) -> None:
        """None: the flow waits nowhere and ends at infinity."""
        return None

    def claims(self):
        from attnflow.studies.cooccurrence import claims

        return claims.everything()

    def figures(self) -> Figures:
        from attnflow.studies.cooccurrence import figures

        return figures.of(self)

    # --- Predictions and what is measured of them.

    @cached_property
    def law(self) -> theory.MarginLaw:
        """The max-margin law of this training set (of many samples in mode scalar)."""
        c = self.config
        if c.mode == "scalar":
            return theory.class_law(self.task)
        if c.tokens == "distinct":
            return theory.class_law(self.task, c.samples)
        return theory.sample_law(self.sentences)

    def times(self) -> dict[str, float]:
        """T0.5, T1, T1_all and T1_G in tau."""
        return {n: t * self.tau for n, t in stages.last_crossings(self.events).items()}

    def slope(self, trajectory: xr.Dataset) -> float:
        """gamma^2 as measured: of 1/loss on the integral of U dt, last decade."""
        t, loss = trajectory["time"].values, trajectory["loss"].values
        U = trajectory["neuron_norm"].values if "neuron_norm" in trajectory else 1.0
        return observables.last_decade_slope(t, loss, U)

    def ratio(self, trajectory: xr.Dataset) -> np.ndarray:
        """R at every row."""
        return observables.gradient_ratio(trajectory["gradient_sum"].values, self.task)

    @cached_property
    def population(self) -> observables.Population:
        """Loss and error over the law of the data, at the end of the run."""
        c, final = self.config, self.solution.final
        if c.mode == "scalar":
            margins = self.task.label * (self.task.relevant @ final)
            return observables.weighed(margins, self.bags[2])
        if c.infinite:
            return observables.bag_population(self.task, final, c.seed)
        found = value_mlp.correlations(final)
        G, S = np.asarray(found.G), np.asarray(found.S)

        def margin(sentences: Sentences) -> np.ndarray:
            return observables.margins_of(sentences, c.dim, G, S)

        return observables.population(self.task, margin, c.seed)

    def forecast(self) -> Forecast:
        """The late law of the largest margin, and the samples from which on it generalises."""
        law, config = theory.class_law(self.task, self.config.samples), self.config
        safe = theory.safe_samples(self.task)
        numbers = {
            "gamma2": law.gamma2,
            "r_star": law.r_star,
            "safe_samples": float("nan") if safe is None else float(safe),
            "spare_samples": float("nan") if safe is None else float(config.samples - safe),
        }
        numbers |= {f"share_{k}": float(share) for k, share in enumerate(law.shares)}
        if config.tokens != "distinct":
            return Forecast(numbers=numbers, sentence="as if all irrelevant words were different")
        return Forecast(numbers=numbers)

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        law, population = self.law, self.population
        return {
            "gamma2": law.gamma2,
            "r_star": law.r_star,
            "shares": law.shares.tolist(),
            "slope_measured": self.slope(trajectory),
            "r_measured": float(self.ratio(trajectory)[-1]),
            **self.times(),
            "population_loss": population.loss,
            "population_error": population.error,
            "population_stderr": population.loss_error,
            "population_worst": population.worst,
            "safe_samples": theory.safe_samples(self.task),
        }
