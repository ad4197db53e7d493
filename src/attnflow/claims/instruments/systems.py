"""What the systems solved by hand share: a flow of a few numbers, its solve, a sink that breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.flows import Flow, Limits, integrate
from attnflow.flows.sinks import joined
from attnflow.flows.solution import Solution

RTOL = 1e-9
Numbers = tuple[Sequence[float], Sequence[float]]
"""What is predicted and what a solve tells."""


def flow_of(field: Any, guards: Any = None, **options: Any) -> Flow:
    """`x' = field(x)`, or `field(x, on)` with the gates that are on where `guards(x) > 0`."""

    def velocity(theta: Any, *on: Any, out: Any) -> None:
        out["x"][:] = field(theta["x"], *on)

    gates = None if guards is None else lambda theta: np.asarray(guards(theta["x"]))
    return Flow(velocity=velocity, gates=gates, host=True, **options)


def begin(start: Any) -> dict[str, np.ndarray]:
    return {"x": np.array(start, dtype=float)}


def solved(flow: Any, start: Any, until: float | None = None, **options: Any) -> Solution:
    how = {"rtol": RTOL, "progress": False, "limits": Limits(seconds=1e6)}
    return integrate(flow, begin(start), until, **how | options)


def told(run: Solution) -> list[float]:
    """Events, stretches between switches with their shares, first and last row, and the end."""
    events = [(e.time, e.direction, e.index, e.name.startswith("sliding")) for e in run.events]
    modes = [(m.begins, m.ends, *m.on, *np.ravel(m.share)) for m in run.modes]
    ends = (*run.trajectory["time"].values[[0, -1]], *run.final["x"], run.resumable)
    return [float(x) for row in (*events, *modes, ends) for x in row]


class Sink:
    """Keeps rows up to its last checkpoint, for a second solve; it breaks after some of them."""

    def __init__(self, most: float = np.inf):
        self.segments: list[Any] = []
        self.kept, self.most = 0, most
        self.last: Any = None

    def begin(self, shape: Any) -> Any:
        del self.segments[self.kept :]
        return self.last

    def flush(self, segment: Any) -> None:
        self.segments.append(segment)

    def checkpoint(self, checkpoint: Any) -> None:
        self.last, self.kept, self.most = checkpoint, len(self.segments), self.most - 1
        if self.most == 0:
            raise KeyboardInterrupt

    def collect(self) -> Any:
        return joined(self.segments)
