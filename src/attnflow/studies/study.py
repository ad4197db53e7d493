"""A study: a task, a model, what is observed, its stages, its claims and its figures.

A study is one file (or small folder) with a frozen `Config` and a final class below `Study`.
The base class knows how to train in every mode, so that a study only says what is its own.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from attnflow._errors import InputError, nearest
from attnflow.flows import opinion
from attnflow.studies.config import as_dict, step_length

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.claims import Citation, Claim, Paper
    from attnflow.draw import Figures, Story
    from attnflow.flows.flow import FlowLike
    from attnflow.flows.layout import Params
    from attnflow.flows.probes import Mark, Observable
    from attnflow.flows.schedule import Schedule
    from attnflow.flows.sinks import Event
    from attnflow.flows.solution import Solution
    from attnflow.linearise import SaddleLedger, SaddleTable
    from attnflow.observe.stages import Plateau, Stage


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What closed forms say of a config before any solve: for sliders, and for sweeps."""

    times: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """When the stages come, by name, in the time of a run."""
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Thresholds, levels and other numbers."""
    curves: xr.Dataset | None = None
    """Predicted observables over `time`, under the names that a run has."""
    sentence: str = ""

    @property
    def summary(self) -> dict[str, Any]:
        """All but the curves; what is not finite is None."""
        parts = {"times": self.times, "rates": self.rates, **self.numbers}
        return {name: _finite(value) for name, value in parts.items()}


class Study(abc.ABC):
    """One paper, or a user's own question, ready to run.

    Subclasses are final and set `name`, `title`, `Config`; they give `flow` and `start` and
    whatever of the rest they have. `config` carries at least `until`, `rtol`, `mode`.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    Config: ClassVar[type]
    paper: ClassVar[Paper | None] = None

    def __init__(self, config: Any):
        self.config = config

    @property
    def citation(self) -> Citation | None:
        """Whom the study cites."""
        return None if self.paper is None else self.paper.citation

    @property
    @abc.abstractmethod
    def flow(self) -> FlowLike: ...

    @property
    @abc.abstractmethod
    def start(self) -> Params: ...

    @property
    def observe(self) -> Mapping[str, Observable | Callable]:
        return {}

    @property
    def marks(self) -> Mapping[str, Mark | Callable]:
        return {}

    @property
    def save(self) -> Schedule:
        """When a solve of mode flow is observed."""
        from attnflow.flows.schedule import Every

        return Every(1)

    @property
    def rows(self) -> int:
        """How often a discrete run is observed, at equal distances."""
        return 400

    @property
    def stochastic(self) -> bool:
        """Whether a discrete mode trains on minibatches (of `batch`)."""
        return self.config.mode == "sgd"

    def batch(self, theta: Params, key: Any) -> Any:
        """The minibatch loss of mode `sgd`; a study without one refuses the mode."""
        raise InputError("mode", f"'sgd': {self.name} has no minibatch loss")

    def stages(self, trajectory: xr.Dataset) -> list[Stage]:
        return []

    def claims(self) -> Sequence[Claim]:
        """This study's claims: those of the module that defines it."""
        from attnflow.claims import claims_in

        return claims_in(sys.modules[type(self).__module__])

    def figures(self) -> Figures:
        """Functions of the trajectory and its stages; the name is the file name.

        The first line of a function's docstring is its caption. Decorate it with
        `attnflow.draw.styled` to draw in the house style.
        """
        return {}

    def story(self, trajectory: xr.Dataset, stages: Sequence[Stage]) -> Story:
        """What came out in one plain sentence, and the curves that show it below the loss.

        By default: how often the loss waited, and the first observables that are numbers.
        """
        from attnflow.draw import Story

        waits = len(self.plateaus(trajectory))
        times = {0: "without waiting", 1: "after one wait", 2: "after two waits"}
        ends = [float(trajectory["loss"].values[k]) for k in (0, -1)]
        words = f"The loss fell from {ends[0]:.4g} to {ends[1]:.4g} "
        words += times.get(waits, f"after {waits} waits") + "."
        plain = {str(n): v for n, v in trajectory.items() if n not in ("loss", "speed")}
        numbers = {n: v.values for n, v in plain.items() if v.dims == ("time",)}
        rows = {n: v for n, v in plain.items() if v.ndim == 2 and v.dims[0] == "time"}
        if not numbers and rows:
            name, first = next(iter(rows.items()))
            numbers = {f"{name} {k}": first.values[:, k] for k in range(first.shape[1])}
        shown = dict(list(numbers.items())[:6])
        return Story(words, shown, "observed" if len(shown) != 1 else next(iter(shown)))

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: SaddleTable | None = None
    ) -> dict[str, Any]:
        """The study's own numbers, for `run --json`; `saddles` is the ledger where there is one."""
        return {}

    def forecast(self) -> Forecast:
        """What closed forms say of this config; empty where the study has none."""
        return Forecast()

    def saddles(
        self,
        trajectory: xr.Dataset,
        *,
        rtol: float,
        engine: str = "auto",
        final: Params | None = None,
    ) -> SaddleLedger | None:
        """The saddle ledger of a finished flow; None where the dense spectra would be too large.

        `final` is the state at its end, where it is at hand: it may still wait there. A study
        that wants no ledger in its runs returns None.
        """
        from attnflow.linearise import trajectory_ledger
        from attnflow.linearise.modes import DENSE

        system = self.flow.bind(self.start)
        if not system.has_loss or system.size > DENSE:
            return None
        return trajectory_ledger(
            self.flow, self.start, trajectory, rtol=min(rtol, 1e-8), engine=engine, final=final
        )

    def plateaus(self, trajectory: xr.Dataset) -> list[Plateau]:
        """Where the trajectory waited; empty when it never did."""
        return plateaus_of(trajectory)

    def waits(
        self, trajectory: xr.Dataset, saddles: SaddleTable | None = None
    ) -> list[dict[str, Any]]:
        """The plateaus for a summary, each with its exit rate where the ledger has it.

        `rate_predicted` is the top rate of the refined critical point, `rate_measured` the growth
        of its mode; None where the point was not refined, or it was not left exponentially.
        """
        known = {} if saddles is None else {row["time"]: row for row in saddles.records()}
        found = self.plateaus(trajectory) if saddles is None else saddles.plateaus
        names = ("rate_predicted", "rate_measured")
        return [{**p.as_dict(), **{n: known.get(p.time, {}).get(n) for n in names}} for p in found]

    @property
    def solution(self) -> Solution:
        """The solve of this config, in memory: made once."""
        if "solution" not in vars(self):
            vars(self)["solution"] = self.solve()
        opinion.rests_on()
        return vars(self)["solution"]

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The marks that the solve of this config crossed."""
        return self.solution.events

    def knowing(self, **known: Any) -> Study:
        """The same study, for which the `solution` or the `events` of a run are known already.

        What was computed for this study so far (its flow, its start) is shared.
        """
        other = copy.copy(self)
        vars(other).update(known)
        return other

    def at(self, **keys: Any) -> Self:
        """The same study at another config: `study.at(dim=64, seed=3).solution`.

        One study per config: whoever asks again gets what was computed for it.
        """
        known = [f.name for f in dataclasses.fields(self.config)]
        for name in keys:
            if name not in known:
                raise InputError(name, f"is not a key of {self.name}; {nearest(name, known)}")
        config = dataclasses.replace(self.config, **keys)
        if config == self.config and opinion.current() == opinion.Opinion():
            return self
        key = (type(self), config, opinion.current())
        if key not in _AT:
            while len(_AT) >= 64:
                del _AT[next(iter(_AT))]
            _AT[key] = type(self)(config)
        return _AT[key]

    def until(self, mark: str) -> Solution:
        """The solve of this config up to a mark of the study: its `time` is when it is crossed."""
        if mark not in self.marks:
            raise InputError("mark", f"{mark!r} is not a mark; {nearest(mark, list(self.marks))}")
        if mark not in self._until:
            others = {name: each for name, each in self.marks.items() if name != mark}
            stop = {mark: self.marks[mark]}
            self._until[mark] = self.solve(marks=others, stops=stop, progress=False)
        opinion.rests_on()
        return self._until[mark]

    @cached_property
    def _until(self) -> dict[str, Solution]:
        return {}

    def solve(self, **options: Any) -> Solution:
        """Train as `config.mode` says; `options` go to `integrate` or `descend`."""
        from attnflow.flows import Linear, descend, integrate

        config, mode = self.config, self.config.mode
        common = {"observe": self.observe, "marks": self.marks, **options}
        if mode == "flow":
            common.setdefault("save", self.save)
            common.setdefault("rtol", config.rtol)
            return integrate(self.flow, self.start, config.until, **common)
        common.setdefault("save", Linear(self.rows))
        if self.stochastic:
            common |= {"batch": self.batch, "seed": config.seed}
        return descend(self.flow, self.start, config.until, self.optimiser(), **common)

    def optimiser(self) -> Any:
        """The discrete optimiser of `config.mode`, at `config.rate`."""
        from attnflow.flows import Adam, GradientDescent

        known = {"gd": GradientDescent, "sgd": GradientDescent, "adam": Adam}
        if self.config.mode not in known:
            modes = ("flow", *known)
            raise InputError("mode", f"{self.config.mode!r}; {nearest(self.config.mode, modes)}")
        return known[self.config.mode](rate=self.config.rate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config})"


_AT: dict[tuple, Any] = {}
"""The studies that `at` made, the oldest forgotten first."""


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return float(value) if value is not None and math.isfinite(value) else None


def stages_of(study: Study, trajectory: xr.Dataset) -> list[Stage]:
    """The stages of a trajectory; where it is made of an optimiser's steps, with their steps."""
    import numpy as np

    found = study.stages(trajectory) if trajectory.sizes["time"] > 1 else []
    if step_length(as_dict(study.config)) is None or "step" not in trajectory.coords:
        return found
    t, steps = trajectory["time"].values, trajectory["step"].values
    return [dataclasses.replace(s, step=round(np.interp(s.time, t, steps))) for s in found]


def plateaus_of(trajectory: xr.Dataset) -> list[Plateau]:
    """Where a trajectory waited, from its speed and loss; empty when it never did."""
    from attnflow.observe.stages import plateaus

    if "loss" not in trajectory or "speed" not in trajectory:
        return []
    t, speed, loss = (trajectory[n].values for n in ("time", "speed", "loss"))
    return plateaus(t, speed, loss)
