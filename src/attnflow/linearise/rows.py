"""The solver's own rows on a plateau: states, velocities and how fast the speed grows.

Laws of escape are read off accepted steps. They lie dense where the flow is fast, so a blow-up has
its rows too, which samples uniform in time would miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from attnflow.flows.driver import integrate
from attnflow.flows.flow import FlowLike, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.options import Limits, Solver, Store
from attnflow.flows.schedule import Every
from attnflow.flows.solution import Status
from attnflow.observe.stages import Plateau

if TYPE_CHECKING:
    import xarray as xr

MOST_ROWS = 240
"""More rows of one escape than this are thinned out."""

PAST = 0.98
"""The way out of a plateau ends where the speed has fallen to this share of its maximum."""

BEYOND = 1.01
"""A tighter solve may leave a plateau a little later: it goes on until this multiple of it."""


@dataclass(frozen=True)
class Escape:
    """The rows from the entry of a plateau to the fastest moment after it."""

    system: System
    time: Float[np.ndarray, "row"]
    speed: Float[np.ndarray, "row"]
    states: Float[np.ndarray, "row parameter"]
    slowest: int
    leave: int
    """The first row at which the plateau has been left."""
    level: float
    """The speed at which it is left."""

    @classmethod
    def of(cls, system: System, data: xr.Dataset, plateau: Plateau) -> Escape:
        """Of a trajectory with its states, and one of its own plateaus."""
        t, speed = data["time"].values, data["speed"].values
        first = int(np.searchsorted(t, plateau.enter))
        slowest = int(np.searchsorted(t, plateau.time))
        level = plateau.speed * 10 ** (0.5 * plateau.prominence)
        past = np.flatnonzero(speed[slowest:] >= level * (1 - 1e-9))
        leave = slowest + int(past[0]) if len(past) else len(t) - 1
        running = np.maximum.accumulate(speed[leave:])
        over = np.flatnonzero(~(speed[leave:] >= PAST * running))
        last = leave + (int(over[0]) if len(over) else len(t) - leave)
        last = max(leave, leave + int(np.argmax(speed[leave:last])))
        keep = np.arange(first, last + 1)
        if len(keep) > MOST_ROWS:
            spread = np.linspace(first, last, MOST_ROWS).astype(int)
            keep = np.unique(np.concatenate([spread, [slowest, leave]]))
        at = np.searchsorted(keep, [slowest, leave])
        states = data["state"].values[keep]
        return cls(system, t[keep], speed[keep], states, int(at[0]), int(at[1]), level)

    @property
    def near(self) -> Float[np.ndarray, "parameter"]:
        """The slowest state."""
        return self.states[self.slowest]

    @cached_property
    def extent(self) -> float:
        """The diameter of the ball around the slowest state that holds those of the plateau."""
        away = self.states[: self.leave + 1] - self.near
        return 2 * float(np.linalg.norm(away, axis=1).max())

    @cached_property
    def velocity(self) -> Float[np.ndarray, "row parameter"]:
        return np.stack([velocity(self.system, y) for y in self.states])

    @cached_property
    def growth(self) -> Float[np.ndarray, "row"]:
        """d log s / dt = v J v / s^2 from the slowest row on, by central differences along v; NaN
        before.

        From the state and not from neighbouring rows: times and speeds of a solve differ by too
        little where it is slow, and by too much where it is fast.
        """
        found = np.full(len(self.time), np.nan)
        for i in range(self.slowest, len(found)):
            found[i] = growth_rate(self.system, self.states[i], self.velocity[i])
        return found


def growth_rate(system: System, y: Vector, v: Vector) -> float:
    """How fast log(speed) grows at a state with the velocity v."""
    speed, size = float(np.linalg.norm(v)), float(np.linalg.norm(y)) or 1.0
    if not speed > 0:
        return float("nan")
    ahead = v * (1e-6 * size / speed)
    moved = velocity(system, y + ahead) - velocity(system, y - ahead)
    return float(v @ moved) / (2e-6 * size * speed)


def velocity(system: System, y: Vector) -> Vector:
    out = np.empty_like(y)
    system.rhs(y, out)
    return out


def with_states(
    flow: FlowLike, start: Params, data: xr.Dataset, upto: int, rtol: float, engine: str
) -> tuple[xr.Dataset, str]:
    """The trajectory with the state of every accepted step up to row `upto`; solved again if it has
    none. And what went wrong, if it did."""
    if "state" in data:
        return data, ""
    steps = int(data["step"].values[upto]) if "step" in data.coords else 10_000
    again = integrate(
        flow,
        start,
        until=min(float(data["time"].values[-1]), BEYOND * float(data["time"].values[upto])),
        save=Every(1),
        rtol=rtol,
        # What `auto` chooses depends on `until`, and Adams may take a million steps.
        solver=Solver(engine, "bdf" if engine == "cvode" else "auto"),
        store=Store(states=True),
        # Right after a late escape the time left may be 1e6 times what is of interest.
        limits=Limits(steps=4 * steps + 1000),
        progress=False,
    )
    if again.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return again.trajectory, "" if again.status.complete else again.sentence
