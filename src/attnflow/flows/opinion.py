"""A second opinion on what rests on a solve: every solve is tighter, or by the other engine.

A claim that calls a printed statement wrong is measured again in this way. The solves that a
measurement rests on are counted, so that one without any is not measured again for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from attnflow.flows.options import Solver, has_cvode


@dataclass(frozen=True)
class Opinion:
    """What is different about every solve: the tolerance divided, the engine exchanged."""

    name: str = "as asked"
    tighter: float = 1.0
    other_engine: bool = False


TIGHTER = Opinion("ten times tighter", tighter=10.0)
OTHER = Opinion("the second engine", other_engine=True)

_NOW: ContextVar[Opinion] = ContextVar("opinion", default=Opinion())  # noqa: B039  (frozen)
_RESTS: ContextVar[list[int] | None] = ContextVar("solves", default=None)


def current() -> Opinion:
    """The opinion that solves are asked for here."""
    return _NOW.get()


@contextmanager
def asking(opinion: Opinion) -> Iterator[None]:
    """Inside, every `integrate` is solved as this opinion says."""
    token = _NOW.set(opinion)
    try:
        yield
    finally:
        _NOW.reset(token)


@contextmanager
def counting() -> Iterator[list[int]]:
    """Inside, `[n]` counts the solves that what is measured rests on, remembered ones included."""
    count = [0]
    token = _RESTS.set(count)
    try:
        yield count
    finally:
        _RESTS.reset(token)


def rests_on(solves: int = 1) -> None:
    """What is measured here rests on so many more solves."""
    count = _RESTS.get()
    if count is not None:
        count[0] += solves


def applied(rtol: float, solver: Solver) -> tuple[float, Solver]:
    """The tolerance and the solver of a solve that was asked for here."""
    rests_on()
    opinion = _NOW.get()
    if opinion.tighter != 1.0:
        atol = None if solver.atol is None else solver.atol / opinion.tighter
        rtol, solver = rtol / opinion.tighter, replace(solver, atol=atol)
    if opinion.other_engine:
        engine = "cvode" if solver.engine == "scipy" and has_cvode() else "scipy"
        solver = replace(solver, engine=engine, method="auto", jacobian="auto")
    return rtol, solver
