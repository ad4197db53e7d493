"""Two-mixture of linear classification: a two-head ReLU transformer, three stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import xarray as xr

from attnflow.claims import Paper
from attnflow.draw import Figures, Story
from attnflow.flows.discrete import GradientDescent, descend
from attnflow.flows.driver import integrate
from attnflow.flows.phases import Phase
from attnflow.flows.probes import Mark, Observable
from attnflow.flows.schedule import Every, Linear, Schedule
from attnflow.flows.sinks import Event
from attnflow.flows.solution import Solution
from attnflow.models.two_head import TwoHeadClassifier, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.observe.stages import Stage
from attnflow.studies.study import Forecast, Study
from attnflow.studies.two_mixture import algorithm, margin, observables, stages, theory
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixturePopulation


@final
class TwoMixture(Study):
    """The population flow of eq. (1), all weights at once or stage by stage."""

    name: ClassVar[str] = "two-mixture"
    title: ClassVar[str] = "Two-mixture of linear classification: three stages of learning"
    Config: ClassVar[type] = Config
    paper: ClassVar[Paper | None] = paper

    config: Config

    @cached_property
    def task(self):
        return self.config.task()

    @cached_property
    def population(self) -> MixturePopulation:
        """One sample per orbit where the state is symmetric, else every sample."""
        return self.task.orbits if self.config.symmetric else self.task.population

    @cached_property
    def symmetric(self) -> SymmetricFlow:
        """The infinite-width flow of this config in ten numbers, whatever the mode."""
        return symmetric_flow(self.task.orbits, self.config.omega, self.config.bias)

    @property
    def flow(self) -> Any:
        c = self.config
        if c.symmetric:
            return self.symmetric
        if c.infinite:
            return gram_flow(self.population, c.bias)
        return weight_flow(self.population)

    @cached_property
    def start(self) -> Any:
        c = self.config
        if c.symmetric:
            return self.symmetric.start
        if c.infinite:
            return infinite_width_start(c.groups, c.omega)
        dim = int(c.dim)
        return TwoHeadClassifier.gaussian(c.groups, dim, c.omega, bias=c.bias, seed=c.seed)

    @cached_property
    def view(self) -> observables.View:
        c = self.config
        if c.symmetric:
            return observables.SymmetricView(self.symmetric)
        kind = observables.GramView if c.infinite else observables.WeightView
        return kind(self.population, c.bias)

    @cached_property
    def observe(self) -> Mapping[str, Observable]:
        return observables.of(self.view, gates=isinstance(self.view, observables.GramView))

    @cached_property
    def marks(self) -> Mapping[str, Mark]:
        """`half d`: the loss given d falls to ln2 / 2; in mode staged also losses of stage 3."""
        found = algorithm.halves(self.view.group_losses, self.population)
        if self.config.mode == "staged":
            found |= algorithm.loss_marks(self.view.loss)
        return found

    @property
    def save(self) -> Schedule:
        return Linear(self.rows) if self.config.mode == "gd" else Every(1)

    @property
    def rows(self) -> int:
        """A tenth of the steps of descent."""
        return max(2, min(2000, round(self.config.horizon / self.config.rate / 10) + 1))

    def optimiser(self) -> GradientDescent:
        return GradientDescent(self.config.rate)

    @cached_property
    def main_score(self) -> Callable[[Any], Any]:
        """`c_k' S v_k` of the plus head, mean over groups and (mirrored) heads."""
        K, view, reduced = self.config.groups, self.view, self.symmetric
        if self.config.symmetric:
            return lambda state: reduced.score(state, "c", "v")

        def mean(state: Any) -> Any:
            S = view.scores(state)
            return sum((S[0, k, K + k] - S[1, k, K + k]) / 2 for k in range(K)) / K

        return mean

    def solve(self, **options: Any) -> Solution:
        """Train as `config.mode` says."""
        c = self.config
        common = {"observe": self.observe, "marks": self.marks, "save": self.save, **options}
        if c.mode == "gd":
            return descend(self.flow, self.start, c.horizon, self.optimiser(), **common)
        common.setdefault("rtol", c.rtol)
        if c.mode == "staged":
            return integrate(self.phases(), self.start, **common)
        return integrate(self.flow, self.start, c.horizon, **common)

    def phases(self) -> list[Phase]:
        """Algorithm 1: neurons on all samples, attention on the conflicting ones, neurons."""
        c = self.config

        def flow_of(population: MixturePopulation, frozen: tuple[str, ...]) -> Any:
            if c.symmetric:
                return symmetric_flow(population, c.omega, c.bias, frozen)
            return weight_flow(population, frozen)

        score = Mark(self.main_score, c.score_stop, 1)
        return algorithm.schedule(
            flow_of, self.population, t1=c.t1, score=score, wait=c.horizon, until=c.horizon
        )

    @cached_property
    def three_stages(self) -> algorithm.ThreeStages:
        """Algorithm 1 at infinite width with this config's numbers."""
        c = self.config
        return algorithm.three_stages(self.task, c.omega, c.bias, c.t1, c.score_stop, rtol=1e-10)

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        return stages.find(trajectory)

    def saddles(self, trajectory: xr.Dataset, **options: Any) -> None:
        """None: the gates make the field jump, and the flow ends at infinity."""
        return None

    def claims(self):
        from attnflow.studies.two_mixture import claims

        return claims.everything()

    def figures(self) -> Figures:
        from attnflow.studies.two_mixture import figures

        return figures.of(self)

    def story(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
        """Easy samples first by the neurons, then attention pairs groups with signals."""
        when = {s.name: s.when for s in stages}
        words = "The neurons learned the samples whose signals agree, and left the others at chance"
        if "attention" in when:
            words += f"; attention began to pair each group with its signal at {when['attention']}"
            if "convergence" in when:
                words += f", and from {when['convergence']} on all samples are learned together"
        else:
            words += "; attention did not begin to work before the end"
        loss = trajectory["group_loss"]
        curves = {
            ("conflicting samples" if float(k) < 0 else "consistent samples"): loss.sel(
                agreement=k
            ).values
            for k in loss["agreement"].values
        }
        maps = trajectory["attention"].values[:, 0, -1]
        return Story(words + ".", curves, "loss (nats)", maps, "loss (nats)")

    def margins(self, trajectory: xr.Dataset, row: int = -1) -> dict[str, margin.Margin]:
        """The largest margin at a row of a trajectory, for both gate conventions."""
        c = self.config
        if c.groups > observables.SHOWN:  # the rows have only the first groups: all are alike
            state = self._state_of(trajectory.isel(time=row))
            make = margin.symmetric_features
            Z = {g: make(self.symmetric, state, g) for g in ("all_on", "actual")}
        else:
            w, S = (trajectory[n].values[row] for n in ("neuron", "score"))
            if c.symmetric:
                state = self.symmetric.project({"w": w, "S": S})
                make = margin.symmetric_features
                Z = {g: make(self.symmetric, state, g) for g in ("all_on", "actual")}
            else:
                make = margin.signed_features
                Z = {g: make(self.population, w, S, c.bias, g) for g in ("all_on", "actual")}
        return {g: margin.largest_margin(z) for g, z in Z.items()}

    def _state_of(self, row: xr.Dataset) -> dict[str, np.ndarray]:
        """The ten numbers from the first groups of a symmetric run with many of them."""
        K, kept = self.config.groups, observables.SHOWN
        S = row["score"].values[0].reshape(2, kept, 2, kept)
        same, other = S[:, 0, :, 0], S[:, 0, :, 1]
        w = row["neuron"].values[0][[0, kept]]
        return {"w": w, "S_sum": same + (K - 1) * other, "S_diff": same - other}

    def half_times(self) -> dict[str, float | None]:
        """When the loss given d has fallen to ln2 / 2, for each d: of descent the first step."""
        met = {e.name: e.time for e in reversed(self.events)}
        return {str(d): met.get(f"half {d}") for d in self.population.agreements}

    def forecast(self) -> Forecast:
        """Stage lengths of Algorithm 1 in closed form (L = 3), from (b, omega, K) alone.

        The neurons' curves are those of stage 1 under uniform attention, up to T1.
        """
        c = self.config
        if c.length != 3 or c.omega >= 1:
            return Forecast(sentence="the closed forms are for L = 3 and omega below 1")
        told = theory.stage_times(c.bias, c.omega, c.groups, t1=c.t1, stop=c.score_stop)
        t = np.linspace(0, c.t1, 200)
        gamma, a = theory.neurons(t, c.bias, c.groups)
        times = {"gates shut (T0.5)": told["T0.5"], "stage 2 begins (T1)": c.t1}
        times["stage 2 ends (T2)"] = c.t1 + told["T2-T1"]
        rates = {"attention": theory.growth_rate(float(gamma[-1]), c.groups)}
        numbers = {
            "gamma_t1": float(gamma[-1]),
            "a_t1": float(a[-1]),
            "stage2_slope": told["slope"],
            "best_t1": theory.best_t1(c.bias, c.omega, c.groups),
        }
        curves = {"gamma": ("time", gamma), "a": ("time", a)}
        return Forecast(times, rates, numbers, xr.Dataset(curves, {"time": t}))

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        found = self.margins(trajectory)
        told = self._schedule(trajectory)
        half, more = self.half_times(), {}
        if self.config.mode == "gd":
            lr = self.config.rate
            more["half_steps"] = {d: None if t is None else round(t / lr) for d, t in half.items()}
        return {
            **told,
            "half_times": half,
            **more,
            "predictions": self.predictions(),
            "margin": found["all_on"].value,
            "margins": {name: {"margin": m.value, "at_most": m.upper} for name, m in found.items()},
            "stages": [s.as_dict() for s in stages],
            "gates": _switches(trajectory),
        }

    def predictions(self) -> dict[str, float | None]:
        """Stage lengths of Algorithm 1 from (b, omega, K) and the margin at T2 (L = 3).

        `stage3` is that to a loss of .01; `best_t1` makes stages 1 and 2 together shortest.
        """
        c, run = self.config, self.three_stages
        if c.length != 3:
            return {}
        size = None if run.t2 is None else margin.margin(self.symmetric, run.at_t2).value
        told = theory.stage_times(
            c.bias, c.omega, c.groups, t1=c.t1, stop=c.score_stop, margin=size or None
        )
        known = {
            "t05": told["T0.5"],
            "stage2_duration": told["T2-T1"],
            "stage2_slope": told["slope"],
            "margin_t2": size,
            "stage3_time_0.01": told.get("T3-T2"),
            "best_t1": theory.best_t1(c.bias, c.omega, c.groups) if c.omega < 1 else None,
        }
        return {n: v if v is not None and np.isfinite(v) else None for n, v in known.items()}

    def _schedule(self, trajectory: xr.Dataset) -> dict[str, Any]:
        """The times of Algorithm 1: of the run itself in mode staged, else at infinite width."""
        if "phase" in trajectory:
            return _measured_schedule(trajectory, self.events)
        run = self.three_stages
        gamma, a = run.at_t1["w"].tolist()
        return {
            "t05": run.t05,
            "gamma_t1": gamma,
            "a_t1": a,
            "stage2_duration": run.duration,
            "stage3_time": {f"{loss:g}": t for loss, t in run.times.items()},
            **({"sliding": run.sliding} if run.sliding else {}),
        }


def _measured_schedule(data: xr.Dataset, events: Sequence[Event]) -> dict[str, Any]:
    """The times of a run that was staged."""
    first = data.isel(time=data["phase"].values == 0)
    shut = stages.first_shut(first)
    w = first["neuron"].values[-1]
    kept = w.shape[1] // 2
    ends = {e.name: e.time for e in events if e.name in ("neurons", "attention")}
    t2 = ends.get("attention")
    falls = {} if t2 is None else algorithm.fall_times(events, t2)
    return {
        "t05": None if shut is None else shut[0],
        "gamma_t1": float(w[:, :kept].mean()),
        "a_t1": float((w[0, kept:] - w[1, kept:]).mean() / 2),
        "stage2_duration": None if t2 is None else t2 - ends["neurons"],
        "stage3_time": {f"{e:g}": t for e, t in falls.items()},
    }


def _switches(data: xr.Dataset) -> list[dict[str, Any]]:
    """By another name: a summary's argument is called stages."""
    return stages.switches(data)
