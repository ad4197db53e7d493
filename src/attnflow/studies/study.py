"""A study: a task, a model, what is observed, its stages, its claims and its figures.

A study is one file (or small folder) with a frozen `Config` and a final class below `Study`.
The base class knows how to train in every mode, so that a study only says what is its own.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attnflow._errors import InputError, nearest

if TYPE_CHECKING:
    import xarray as xr

    from attnflow.claims import Citation, Claim
    from attnflow.draw import Figures
    from attnflow.flows.flow import FlowLike
    from attnflow.flows.layout import Params
    from attnflow.flows.probes import Mark, Observable
    from attnflow.flows.schedule import Schedule
    from attnflow.flows.sinks import Event
    from attnflow.flows.solution import Solution
    from attnflow.linearise import SaddleLedger, SaddleTable
    from attnflow.observe.stages import Plateau, Stage


class Study(abc.ABC):
    """One paper, or a user's own question, ready to run.

    Subclasses are final and set `name`, `title`, `Config`; they give `flow` and `start` and
    whatever of the rest they have. `config` carries at least `until`, `rtol`, `mode`.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    Config: ClassVar[type]
    paper: ClassVar[Citation | None] = None

    def __init__(self, config: Any):
        self.config = config

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
        """This study's claims: the ones registered under its name."""
        from attnflow.claims import claims_of

        return claims_of(self.name)

    def figures(self) -> Figures:
        """Functions of the trajectory and its stages; the name is the file name.

        The first line of a function's docstring is its caption. Decorate it with
        `attnflow.draw.styled` to draw in the house style.
        """
        return {}

    def summary(
        self, trajectory: xr.Dataset, stages: Sequence[Stage], saddles: SaddleTable | None = None
    ) -> dict[str, Any]:
        """The study's own numbers, for `run --json`; `saddles` is the ledger where there is one."""
        return {}

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

    @cached_property
    def solution(self) -> Solution:
        """The solve of this config, in memory."""
        return self.solve()

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


def plateaus_of(trajectory: xr.Dataset) -> list[Plateau]:
    """Where a trajectory waited, from its speed and loss; empty when it never did."""
    from attnflow.observe.stages import plateaus

    if "loss" not in trajectory or "speed" not in trajectory:
        return []
    t, speed, loss = (trajectory[n].values for n in ("time", "speed", "loss"))
    return plateaus(t, speed, loss)
