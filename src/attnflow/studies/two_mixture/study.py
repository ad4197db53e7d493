"""Two-mixture of linear classification: a two-head ReLU transformer, three stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
import xarray as xr

from attnflow.claims import Citation
from attnflow.flows.discrete import GradientDescent, descend
from attnflow.flows.probes import Mark, Observable
from attnflow.flows.schedule import Every, Linear, Schedule
from attnflow.flows.sinks import Segment, Shape
from attnflow.flows.solution import Solution
from attnflow.flows.staging import Phase, staged
from attnflow.models.two_head import TwoHeadClassifier, gated_weight_flow, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.observe.stages import Stage
from attnflow.studies.study import Study
from attnflow.studies.two_mixture import algorithm, margin, observables, paths, stages, theory
from attnflow.studies.two_mixture.algorithm import LOSSES
from attnflow.studies.two_mixture.config import Config
from attnflow.studies.two_mixture.paths import HALF
from attnflow.tasks.mixture import MixturePopulation

PAPER = Citation(
    key="twomixture2025",
    authors=("Anonymous",),
    title="Transformers Provably Learn Two-Mixture of Linear Classification via Gradient Flow",
    year=2025,
    venue="ICLR",
)

FROZEN = {
    "neurons": {"symmetric": ("S_sum", "S_diff"), "weights": ("WK", "WQ")},
    "attention": {"symmetric": ("w",), "weights": ("w",)},
}
"""What stands still while a part is trained, by the kind of state."""


@final
class TwoMixture(Study):
    """The population flow of eq. (1), all weights at once or stage by stage."""

    name: ClassVar[str] = "two-mixture"
    title: ClassVar[str] = "Two-mixture of linear classification: three stages of learning"
    Config: ClassVar[type] = Config
    paper: ClassVar[Citation | None] = PAPER

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
            return self.symmetric.gated
        if c.infinite:
            return gram_flow(self.population, c.bias)
        if c.mode == "gd":
            return weight_flow(self.population)
        return gated_weight_flow(self.population)

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
        return observables.of(self.view, gates=self.config.mode == "gd")

    @property
    def save(self) -> Schedule:
        return Every(1)

    @property
    def rows(self) -> int:
        """A tenth of the steps of descent, so that half times are exact to a step."""
        return max(2, min(2000, round(self.config.horizon / self.config.lr / 10) + 1))

    def optimiser(self) -> GradientDescent:
        return GradientDescent(self.config.lr)

    @cached_property
    def main_score(self) -> Callable[[Any], Any]:
        """`c_k' S v_k` of the plus head, mean over groups and (mirrored) heads."""
        K, view = self.config.groups, self.view
        if self.config.symmetric:
            return lambda state: paths.main_score(state, K)

        def mean(state: Any) -> Any:
            S = view.scores(state)
            return sum((S[0, k, K + k] - S[1, k, K + k]) / 2 for k in range(K)) / K

        return mean

    def solve(self, **options: Any) -> Solution:
        """Train as `config.mode` says. A flow is solved in memory and then handed to the sink."""
        c = self.config
        common = {"observe": self.observe, "marks": self.marks, **options}
        if c.mode == "gd":
            return self._descend(common)
        sink = common.pop("sink", None)
        common.pop("checkpoint_every", None)  # a run of seconds is started again, not resumed
        common.setdefault("save", self.save)
        common.setdefault("rtol", c.rtol)
        if c.mode == "staged":
            solution = staged(self.phases(), self.start, **common)
            at = solution.trajectory["phase"]
            solution = replace(
                solution,
                trajectory=solution.trajectory.reset_coords("phase").assign(
                    phase=at.astype(float).drop_vars("phase")
                ),
            )
        else:
            solution = self.flow.integrate(self.start, c.horizon, **common)
        if sink is not None:
            _deliver(solution, sink)
        return solution

    def _descend(self, common: dict[str, Any]) -> Solution:
        c = self.config
        common.setdefault("save", Linear(self.rows))
        if c.infinite:
            steps = max(1, round(c.horizon / c.lr))
            return self.flow.descend(self.start, c.lr, steps, **common)
        return descend(self.flow, self.start, c.horizon, self.optimiser(), **common)

    def phases(self) -> list[Phase]:
        """Algorithm 1: neurons on all samples, attention on the conflicting ones, neurons."""
        c = self.config
        kind = "symmetric" if c.symmetric else "weights"
        # Weight 0 instead of leaving samples out: the gates of every phase are the same ones.
        hard = self.population.reweighted(
            np.where(self.population.agreement < 0, self.population.weight, 0.0)
        )
        on_hard: Any = (
            symmetric_flow(hard, c.omega, c.bias).gated if c.symmetric else gated_weight_flow(hard)
        )
        stop = Mark(self.main_score, c.score_stop, 1)
        return [
            Phase("neurons", self.flow, c.t1, frozen=FROZEN["neurons"][kind]),
            Phase("attention", on_hard, c.horizon, stop, FROZEN["attention"][kind]),
            Phase("convergence", self.flow, c.horizon, frozen=FROZEN["neurons"][kind]),
        ]

    @cached_property
    def three_stages(self) -> algorithm.ThreeStages | None:
        """Algorithm 1 at infinite width with this config's numbers; None where a gate slides."""
        c = self.config
        try:
            return algorithm.three_stages(
                self.task, c.omega, c.bias, c.t1, c.score_stop, rtol=1e-10
            )
        except paths.Sliding:
            return None

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        return stages.find(trajectory)

    def saddles(self, trajectory: xr.Dataset, **options: Any) -> None:
        """None: the gates make the field jump, and the flow ends at infinity."""
        return None

    def claims(self):
        from attnflow.studies.two_mixture import claims  # noqa: F401  (registers them)

        return super().claims()

    def figures(self) -> Mapping[str, Callable[[xr.Dataset, list[Stage]], Any]]:
        from attnflow.studies.two_mixture import figures

        return figures.of(self)

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

    def half_times(self, trajectory: xr.Dataset) -> dict[str, float | None]:
        """When the loss given d has fallen to ln2 / 2, for each d."""
        t = trajectory["time"].values
        return {
            str(d): stages.first_fall(t, trajectory["group_loss"].sel(agreement=d).values, HALF)
            for d in trajectory["agreement"].values.tolist()
        }

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: Any = None
    ) -> dict[str, Any]:
        found = self.margins(trajectory)
        told = self._schedule(trajectory)
        more = {}
        if self.config.mode == "gd":
            more["half_steps"] = _half_steps(trajectory)
        return {
            **told,
            "half_times": self.half_times(trajectory),
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
        size = None
        if run is not None and run.duration is not None and run.attention is not None:
            size = margin.margin(self.symmetric, run.attention.final).value
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
            return _measured_schedule(trajectory, self.config.groups)
        run = self.three_stages
        if run is None:
            return dict.fromkeys(("t05", "gamma_t1", "a_t1", "stage2_duration")) | {
                "stage3_time": {}
            }
        gamma, a = run.neurons.final["w"].tolist()
        return {
            "t05": run.t05,
            "gamma_t1": gamma,
            "a_t1": a,
            "stage2_duration": run.duration,
            "stage3_time": {f"{loss:g}": t for loss, t in run.times.items()},
            **({"sliding": run.sliding} if run.sliding else {}),
        }


def _measured_schedule(data: xr.Dataset, groups: int) -> dict[str, Any]:
    """The times of a run that was staged."""
    phase, t = data["phase"].values, data["time"].values
    first = data.isel(time=phase == 0)
    shut = stages.first_shut(first)
    w = first["neuron"].values[-1]
    kept = w.shape[1] // 2
    last = data.isel(time=phase == 2)
    t1, t2 = (float(t[phase <= k][-1]) for k in range(2))
    done = last.sizes["time"] > 0
    falls = (
        {f"{e:g}": stages.first_fall(last["time"].values, last["loss"].values, e) for e in LOSSES}
        if done
        else {}
    )
    return {
        "t05": None if shut is None else shut[0],
        "gamma_t1": float(w[:, :kept].mean()),
        "a_t1": float((w[0, kept:] - w[1, kept:]).mean() / 2),
        "stage2_duration": t2 - t1 if done else None,
        "stage3_time": {e: at - t2 for e, at in falls.items() if at is not None},
    }


def _half_steps(data: xr.Dataset) -> dict[str, int | None]:
    """The first recorded step at which the loss given d is at most ln2 / 2."""
    found: dict[str, int | None] = {}
    for d in data["agreement"].values.tolist():
        below = np.flatnonzero(data["group_loss"].sel(agreement=d).values <= HALF)
        found[str(d)] = int(data["step"].values[below[0]]) if len(below) else None
    return found


def _switches(data: xr.Dataset) -> list[dict[str, Any]]:
    """By another name: a summary's argument is called stages."""
    return stages.switches(data)


def _deliver(solution: Solution, sink: Any) -> None:
    """Hand a finished solve to a sink, in one segment."""
    data = solution.trajectory
    names = ["time", *(n for n in ("step",) if n in data.coords), *map(str, data.data_vars)]
    inner = {n: tuple(map(str, data[n].dims[1:])) for n in names}
    used = {dim for dims in inner.values() for dim in dims}
    shape = Shape(
        {n: dims for n, dims in inner.items() if n not in ("time", "step")},
        {str(d): data[d].values for d in used if d in data.coords},
        {n: {str(k): v for k, v in data[n].attrs.items()} for n in names if data[n].attrs},
    )
    sink.begin(shape)
    sink.flush(Segment({n: data[n].values for n in names}, solution.events))
