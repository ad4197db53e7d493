"""Algorithm 1 at infinite width: neurons, attention on the conflicting samples, neurons again."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from attnflow._errors import InputError
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.paths import (
    Path,
    Sliding,
    Switch,
    event_of,
    features,
    main_score,
    solve,
    unpack,
)
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

LOSSES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Where stage 3 is timed."""


def conflicting(task: MixtureClassification) -> MixturePopulation:
    """The samples of stage 2: the distractors' majority speaks against the label, d < 0."""
    orbits = task.orbits
    return orbits.restricted(where=orbits.agreement < 0)


@dataclass(frozen=True)
class ThreeStages:
    """A run of Algorithm 1. Times of stage 2 and 3 count from their beginning."""

    neurons: Path
    attention: Path | None
    convergence: Path | None
    t05: float | None
    """When the first gate shuts; None where none does before T1."""
    duration: float | None
    """T2 - T1; None where the score does not reach its level."""
    times: Mapping[float, float]
    """Stage 3: time to each loss that was reached."""
    sliding: str = ""
    """Where a gate slides: the stage it happens in is not solved here, nor are later ones."""

    @property
    def t1(self) -> float:
        return self.neurons.end

    @property
    def switches(self) -> list[tuple[str, Switch]]:
        """Every switch with the stage it belongs to; its time is that of the whole run."""
        shifts = {"1": 0.0, "2": self.t1, "3": self.t1 + (self.duration or 0.0)}
        parts = {"1": self.neurons, "2": self.attention, "3": self.convergence}
        return [
            (stage, Switch(s.gate, s.time + shifts[stage], s.on))
            for stage, part in parts.items()
            if part is not None
            for s in part.switches
        ]


@functools.lru_cache(maxsize=64)
def three_stages(
    task: MixtureClassification,
    omega: float,
    bias: float,
    t1: float,
    score_stop: float,
    losses: tuple[float, ...] = LOSSES,
    rtol: float = 1e-8,
    wait: float | None = None,
) -> ThreeStages:
    """Algorithm 1: neurons until T1, attention on the conflicting samples until the score
    `c1'S v1` reaches `score_stop`, neurons again until the last of `losses`."""
    K = task.groups
    everything = symmetric_flow(task.orbits, omega, bias)
    hard = symmetric_flow(conflicting(task), omega, bias)
    first = solve(everything, everything.start, t1, train=("neurons",), rtol=rtol)
    closed = [s.time for s in first.switches if not s.on]
    gamma = float(first.final["w"][0])
    if wait is None:
        wait = 200.0 * K
        if gamma > 1e-6:
            wait += 3 * theory.attention_time(gamma, omega, K, score_stop)
    second = third = duration = None
    times: dict[float, float] = {}
    words = ""
    try:
        second = solve(
            hard,
            first.final,
            wait,
            train=("attention",),
            rtol=rtol,
            stop="score",
            marks={"score": (lambda s: main_score(s, K), score_stop)},
        )
        duration = second.marks.get("score")
        if duration is not None:
            third = converge(everything, second.final, losses, rtol=rtol)
            times = {e: third.marks[f"loss {e:g}"] for e in losses if f"loss {e:g}" in third.marks}
    except Sliding as met:
        words = f"stage {2 if second is None else 3}: {met}"
    begun = closed[0] if closed else None
    return ThreeStages(first, second, third, begun, duration, times, words)


def converge(
    flow: SymmetricFlow,
    start: Mapping[str, Any],
    losses: Sequence[float] = LOSSES,
    *,
    rtol: float = 1e-8,
    until: float | None = None,
) -> Path:
    """Stage 3: the neurons alone, until the loss has fallen to the last of `losses`.

    The attention stands still, so that `H_h(X) = Phi_h(X) . (gamma, a)` with constant features:
    two equations.
    """
    if not losses or min(losses) <= 0:
        raise InputError("losses", f"{losses}; positive losses")
    weight, label = flow.tables.weight, flow.tables.label
    phi = features(flow, start)
    gates = (flow.gate_values(start) > 0).astype(float)
    names = flow.gated.names(gates.size)
    sign = np.array([[1.0], [-1.0]])
    levels = sorted({float(e) for e in losses}, reverse=True)

    def heights(w: np.ndarray) -> np.ndarray:
        return phi @ w + flow.bias

    def losses_of(w: np.ndarray) -> float:
        H = heights(w)
        f = (sign * np.maximum(H, 0.0)).sum(axis=0)
        return float(weight @ np.logaddexp(0.0, -label * f))

    time, w, switches, met, pieces = 0.0, np.array(start["w"], dtype=float), [], {}, []
    times, rows = [np.zeros(1)], [w[None]]
    rest = np.concatenate([np.ravel(start["S_sum"]), np.ravel(start["S_diff"])])
    until = 1e4 / levels[-1] * flow.groups if until is None else until
    while True:

        def velocity(_: float, w: np.ndarray, on: np.ndarray = gates) -> np.ndarray:
            H = heights(w) * on
            f = H[0] - H[1]
            a = sign * on * (weight * label * np.exp(-np.logaddexp(0.0, label * f)))
            return np.einsum("hn,hnk->k", a, phi) / (2 * flow.groups)

        sides = np.where(gates.ravel() > 0, 1.0, -1.0)
        watch = [
            event_of(lambda w, i=i, s=s: s * heights(w).ravel()[i], -1) for i, s in enumerate(sides)
        ]
        wanted = [e for e in levels if e not in met]
        watch += [
            event_of(lambda w, e=e: np.log(losses_of(w) / e), -1, ends=e == levels[-1])
            for e in wanted
        ]
        found = solve_ivp(
            velocity,
            (time, until),
            w,
            method="LSODA",
            rtol=rtol,
            atol=rtol,
            events=watch,
            dense_output=True,
        )
        for e, at in zip(wanted, found.t_events[gates.size :], strict=True):
            if len(at):
                met[e] = float(at[0])
        times.append(found.t[1:])
        rows.append(found.y.T[1:])
        pieces.append(_Extended(found.sol, rest))
        time, w = float(found.t[-1]), found.y[:, -1].copy()
        hit = {i for i in range(gates.size) if len(found.t_events[i])}
        if levels[-1] in met or found.status == 0 or not hit:
            break
        near = set(np.flatnonzero(np.abs(heights(w).ravel()) < 1e-9).tolist())
        gates = gates.copy()
        for i in hit | near:
            gates.flat[i] = 1 - gates.flat[i]
            switches.append(Switch(names[i], time, bool(gates.flat[i])))
        ahead = (phi @ velocity(time, w, gates)).ravel()
        for i in hit:
            if ahead[i] * (1 if gates.flat[i] else -1) < 0:
                raise Sliding(time, names[i], unpack(np.concatenate([w, rest])))
    w_rows = np.concatenate(rows)
    states = np.concatenate([w_rows, np.broadcast_to(rest, (len(w_rows), 8))], axis=1)
    marks = {f"loss {e:g}": at for e, at in met.items()}
    return Path(flow, np.concatenate(times), states, tuple(switches), marks, tuple(pieces))


class _Extended:
    """The interpolant of stage 3, with the scores that stand still."""

    def __init__(self, inner: Any, rest: np.ndarray):
        self._inner, self._rest, self.t_max = inner, rest, inner.t_max

    def __call__(self, time: float) -> np.ndarray:
        return np.concatenate([self._inner(time), self._rest])
