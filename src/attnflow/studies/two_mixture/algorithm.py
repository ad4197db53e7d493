"""Joint training and Algorithm 1 at infinite width, each as one solve of ten numbers.

Algorithm 1: neurons, attention on the conflicting samples, neurons again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow._errors import InputError
from attnflow.claims import once
from attnflow.flows.driver import integrate
from attnflow.flows.layout import Params
from attnflow.flows.phases import Phase
from attnflow.flows.probes import Mark, shared
from attnflow.flows.sinks import Event
from attnflow.flows.solution import Solution
from attnflow.models.two_head import gate_names
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

HALF = float(np.log(2) / 2)
"""Half of the loss at the start."""

LOSSES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Where stage 3 is timed."""


def halves(group_losses: Callable[[Params], Any], population: MixturePopulation) -> dict[str, Mark]:
    """Marks `half d`: where the loss given d falls to ln2 / 2."""
    each = shared(group_losses)
    return {
        f"half {d}": Mark(lambda state, i=i: each(state)[i], HALF, -1)
        for i, d in enumerate(population.agreements)
    }


def loss_marks(loss: Callable[[Params], Any], losses: Sequence[float] = LOSSES) -> dict[str, Mark]:
    """Marks `loss e`: where the population loss falls to e."""
    return {f"loss {e:g}": Mark(loss, float(e), -1) for e in losses}


def fall_times(
    events: Sequence[Event], after: float, losses: Sequence[float] = LOSSES
) -> dict[float, float]:
    """How long after a time each of the losses was first reached, of those that were."""
    met = {e.name: e.time - after for e in reversed(events) if e.time > after}
    return {e: met[f"loss {e:g}"] for e in losses if f"loss {e:g}" in met}


def joint(
    task: MixtureClassification,
    omega: float,
    bias: float,
    until: float,
    *,
    loss: float | None = None,
    rtol: float = 1e-8,
) -> Solution:
    """All weights by gradient flow, with the marks of `halves` and what `stages.find` reads.

    With `loss` the solve stops where the population loss has fallen to it.
    """
    flow = symmetric_flow(task.orbits, omega, bias)
    powers = shared(flow.powers)
    return integrate(
        flow,
        flow.start,
        until,
        observe={
            "loss": flow.loss_of,
            "group_loss": flow.group_losses,
            "neuron_power": lambda state, on: powers(state, on)[0],
            "attention_power": lambda state, on: powers(state, on)[1],
        },
        marks=halves(flow.group_losses, task.orbits),
        stops=None if loss is None else {"loss": Mark(flow.loss_of, loss, -1)},
        rtol=rtol,
        progress=False,
    )


@once
def learning(groups: int, omega: float, bias: float) -> Solution:
    """The joint flow of K groups (L = 3) until its loss is .05."""
    return joint(MixtureClassification(groups, 3), omega, bias, 1500.0 * groups, loss=0.05)


def schedule(
    flow_of: Callable[[MixturePopulation, tuple[str, ...]], Any],
    population: MixturePopulation,
    *,
    t1: float,
    score: Mark,
    wait: float,
    until: float,
    end: Mark | None = None,
) -> list[Phase]:
    """Algorithm 1: neurons on all samples until T1, attention on the conflicting ones until the
    score is reached, neurons again. `flow_of` makes the flow of a population with frozen parts."""
    # Weight 0 instead of leaving samples out: the gates of every phase are the same ones.
    hard = population.reweighted(np.where(population.agreement < 0, population.weight, 0.0))
    neurons = flow_of(population, ("attention",))
    return [
        Phase("neurons", neurons, t1),
        Phase("attention", flow_of(hard, ("neurons",)), wait, score),
        Phase("convergence", neurons, until, end),
    ]


@dataclass(frozen=True, eq=False)
class ThreeStages:
    """A run of Algorithm 1, solved through all its stages."""

    flow: SymmetricFlow
    solution: Solution
    losses: tuple[float, ...]

    @property
    def t1(self) -> float:
        return self.solution.phases[0].ends

    @property
    def t2(self) -> float | None:
        """None where the score does not reach its level."""
        found = self.solution.first("attention")
        return found if np.isfinite(found) else None

    @property
    def t05(self) -> float | None:
        """When the first gate shuts; None where none does before T1."""
        return next((e.time for e in self.switches if e.direction == -1 and e.time < self.t1), None)

    @property
    def duration(self) -> float | None:
        """T2 - T1."""
        return None if self.t2 is None else self.t2 - self.t1

    @property
    def times(self) -> dict[float, float]:
        """Stage 3: time from T2 to each loss that was reached."""
        if self.t2 is None:
            return {}
        return fall_times(self.solution.events, self.t2, self.losses)

    @property
    def switches(self) -> list[Event]:
        """Every gate that went on (+1) or off (-1), of a representative with label +1."""
        names = gate_names(self.flow.population)
        return [e for e in self.solution.events if e.name in names]

    @property
    def sliding(self) -> str:
        """Which gates slid, and when; empty where none did."""
        return "; ".join(
            f"{', '.join(m.sliding)} from t = {m.begins:.6g} to {m.ends:.6g}"
            for m in self.solution.sliding
        )

    @functools.cached_property
    def at_t1(self) -> Params:
        return self.solution.at(self.t1)

    @functools.cached_property
    def at_t2(self) -> Params:
        assert self.t2 is not None
        return self.solution.at(self.t2)


@once
def three_stages(
    task: MixtureClassification,
    omega: float,
    bias: float,
    t1: float,
    score_stop: float,
    losses: tuple[float, ...] = LOSSES,
    rtol: float = 1e-8,
    longest: float = 1e9,
) -> ThreeStages:
    """Algorithm 1: neurons until T1, attention on the conflicting samples until the score
    `c1'S v1` reaches `score_stop`, neurons again until the smallest of `losses`. No stage
    needs `longest`: they end at a score and at a loss."""
    if not losses or min(losses) <= 0:
        raise InputError("losses", f"{losses}; positive losses")
    flow = symmetric_flow(task.orbits, omega, bias)
    marks = loss_marks(flow.loss_of, losses)
    phases = schedule(
        lambda population, frozen: symmetric_flow(population, omega, bias, frozen),
        task.orbits,
        t1=t1,
        score=Mark(lambda state: flow.score(state, "c", "v"), score_stop, 1),
        wait=longest,
        until=longest,
        end=marks[f"loss {min(losses):g}"],
    )
    return ThreeStages(
        flow, integrate(phases, flow.start, marks=marks, rtol=rtol, progress=False), losses
    )
