"""The options that every solve takes, continuous or discrete: how, where to, how far."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, positive, shown, whole

if TYPE_CHECKING:
    from attnflow.flows.sinks import Sink


@dataclass(frozen=True)
class Solver:
    """Who solves the smooth pieces.

    engine, method, jacobian
        `cvode` (`bdf`, `adams`; products by `difference` or `exact`) or `scipy` (`lsoda`,
        `radau`, `bdf`, `dop853`, `rk45`); `auto` chooses and says why in `solution.solver`.
    atol
        The absolute tolerance; by default it follows the scale of the start (or of the flow).
    cross_check
        Solve again with the second engine and report the differences in units of the tolerance.
    """

    engine: str = "auto"
    method: str = "auto"
    jacobian: str = "auto"
    atol: float | None = None
    cross_check: bool = False


@dataclass(frozen=True)
class Store:
    """Where the rows go, and what can be resumed from.

    sink
        Memory by default; `attnflow.runs.DiskSink` for a run on disk.
    every
        After how many accepted steps the engine restarts from a stored state. A resumed solve
        replays from the last one, so it gives the numbers of an uninterrupted solve with the
        same `every`. At a switch of a gate, and where a phase ends, a state is stored anyway.
    states
        Whether the rows have the whole state as a column.
    """

    sink: Sink | None = None
    every: int | None = None
    states: bool = False

    def __post_init__(self) -> None:
        if self.every is not None:
            whole("store.every", self.every)


@dataclass(frozen=True)
class Limits:
    """How far a solve may go: accepted steps, seconds, switches of gates."""

    steps: int | None = None
    seconds: float | None = None
    switches: int = 1000

    def __post_init__(self) -> None:
        if self.steps is not None:
            whole("limits.steps", self.steps)
        if self.seconds is not None:
            positive("limits.seconds", self.seconds)
        whole("limits.switches", self.switches)


MOVED = {
    **{n: f"write solver=Solver({n}=...)" for n in ("engine", "method", "jacobian", "atol")},
    "cross_check": "write solver=Solver(cross_check=True)",
    "sink": "write store=Store(sink=...)",
    "checkpoint_every": "write store=Store(every=...)",
    "keep_states": "write store=Store(states=True)",
    "max_steps": "write limits=Limits(steps=...)",
    "max_seconds": "write limits=Limits(seconds=...)",
}
"""Where options are that used to be arguments of their own."""


def has_cvode() -> bool:
    """Whether scikit-sundae is installed (it has no wheel for Intel macs or Linux aarch64)."""
    return importlib.util.find_spec("sksundae") is not None


def option(name: str, given: Any, kind: type) -> Any:
    """`given` as an option object, `kind()` for None; a word is a `Solver`'s engine."""
    if given is None:
        return kind()
    if kind is Solver and isinstance(given, str):
        return Solver(given)
    if not isinstance(given, kind):
        raise InputError(name, f"{shown(given)}; write {name}={kind.__name__}(...)")
    return given
