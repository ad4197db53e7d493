"""Where a solve puts what it observes: a small protocol, so that nothing here imports the disk.

A *flush* hands over rows and never disturbs the engine. A *checkpoint* hands over everything that
is needed to go on; the engine restarts there, so that a resumed solve and an uninterrupted one
take the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Event:
    """A mark or a stop that was crossed: `direction` is +1 upwards, -1 downwards."""

    name: str
    time: float
    direction: int
    index: int = 0
    """Which entry, for a mark whose function returns a vector."""


@dataclass(frozen=True)
class Segment:
    """Rows since the last flush. Every column has the same first axis; `time` is one of them."""

    columns: Mapping[str, np.ndarray]
    events: tuple[Event, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.columns["time"]) if self.columns else 0


@dataclass(frozen=True)
class Checkpoint:
    """A restart point. `arrays` are named float64/int64/uint32 arrays, `scalars` plain numbers."""

    step: int
    time: float
    arrays: Mapping[str, np.ndarray]
    scalars: Mapping[str, float | int]


@dataclass(frozen=True)
class Shape:
    """What the columns mean: dims after the row axis, coordinates of those dims, attributes."""

    dims: Mapping[str, tuple[str, ...]]
    coords: Mapping[str, np.ndarray] = field(default_factory=dict)
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Sink(Protocol):
    """Implemented in memory here and on disk by `attnflow.runs`."""

    def begin(self, shape: Shape) -> Checkpoint | None:
        """Open the sink; returns where to go on (what came after it is dropped), or None."""
        ...

    def flush(self, segment: Segment) -> None: ...

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Called right after a flush: all rows up to the checkpoint have been handed over."""
        ...

    def collect(self) -> Segment:
        """All rows and events so far, in order."""
        ...


class MemorySink:
    """Keeps the rows in memory; nothing to resume."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def begin(self, shape: Shape) -> Checkpoint | None:
        return None

    def flush(self, segment: Segment) -> None:
        self._segments.append(segment)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        pass

    def collect(self) -> Segment:
        return joined(self._segments)


def joined(segments: list[Segment]) -> Segment:
    """The segments end to end."""
    full = [s for s in segments if s.rows]
    names = list(full[0].columns) if full else []
    columns = {name: np.concatenate([s.columns[name] for s in full]) for name in names}
    return Segment(columns, tuple(event for s in segments for event in s.events))


def dataset(rows: Segment, shape: Shape, attrs: Mapping[str, Any] | None = None) -> xr.Dataset:
    """The columns as variables over `time`; a column `step` is a second coordinate of the rows."""
    import xarray as xr

    columns = rows.columns or _no_rows(shape)
    used = {dim for name in columns for dim in shape.dims.get(name, ())}
    coords: dict[str, Any] = {
        dim: (dim, values, dict(shape.attrs.get(dim, {})))
        for dim, values in shape.coords.items()
        if dim in used
    }
    variables: dict[str, Any] = {}
    for name, values in columns.items():
        inner = shape.dims.get(name)
        if inner is None:
            inner = tuple(f"{name}_axis{k}" for k in range(1, np.ndim(values)))
        target = coords if name in ("time", "step") else variables
        target[name] = (("time", *inner), values, dict(shape.attrs.get(name, {})))
    return xr.Dataset(variables, coords, dict(attrs or {}))


def _no_rows(shape: Shape) -> dict[str, np.ndarray]:
    sizes = {dim: len(values) for dim, values in shape.coords.items()}
    return {
        name: np.zeros((0, *(sizes.get(dim, 0) for dim in shape.dims.get(name, ()))))
        for name in dict.fromkeys(["time", *shape.dims])
    }
