"""What is measured along a solve: observables and marks, each fused into one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError
from attnflow.flows.flow import UNTRACEABLE, System
from attnflow.flows.layout import Params, Vector
from attnflow.flows.sinks import Event, Shape

RESERVED = ("time", "step", "state", "speed", "parameter")
"""Names of columns and axes that every trajectory has."""


@dataclass(frozen=True)
class Observable:
    """A pure measurement of the parameters, with the names of its axes.

    >>> attention = Observable(model.attention, dims=("query", "key"),
    ...                        coords={"query": tokens, "key": tokens}, units="probability")
    """

    measure: Callable[[Params], Any]
    dims: tuple[str, ...] | None = None
    coords: Mapping[str, Any] = field(default_factory=dict)
    units: str = ""
    label: str = ""


@dataclass(frozen=True)
class Mark:
    """Crossed when `measure(theta) - level` changes sign; a vector is one mark per entry.

    `direction` +1 counts only upward crossings, -1 only downward ones, 0 both.
    """

    measure: Callable[[Params], Any]
    level: float = 0.0
    direction: int = 0


def shared(measure: Callable[[Params], Any]) -> Callable[[Params], Any]:
    """`measure`, computed once per row however many observables call it on the same parameters.

    The compiler does not merge two decompositions of one matrix by itself.
    """
    last: list[Any] = [None, None]

    def once(theta: Params) -> Any:
        if last[0] is not theta:
            last[:] = [theta, measure(theta)]
        return last[1]

    return once


class Observers:
    """All observables of a solve as one compiled function of the flat state."""

    def __init__(self, system: System, observe: Mapping[str, Observable | Callable] | None):
        given = {n: as_observable(o) for n, o in (observe or {}).items()}
        for name, o in given.items():
            if name in RESERVED:
                raise InputError(f"observe.{name}", f"the name is taken; not one of {RESERVED}")
            if not callable(o.measure):
                raise InputError(f"observe.{name}", "not a function of the parameters")
        if system.has_loss and "loss" not in given:
            loss = system.flow._loss
            assert loss is not None
            given = {"loss": Observable(loss, dims=(), label="loss", units="nats"), **given}
        self.given = given
        self._system = system
        layout = system.layout

        def measure(y: Any) -> dict[str, Any]:
            theta = layout.unflatten(y)
            return {n: jnp.asarray(o.measure(theta), dtype=float) for n, o in given.items()}

        shapes = _shapes(measure, system, {f"observe.{n}": o.measure for n, o in given.items()})
        dims: dict[str, tuple[str, ...]] = {}
        coords: dict[str, np.ndarray] = {}
        attrs: dict[str, dict[str, str]] = {}
        sizes: dict[str, int] = {}
        for name, o in given.items():
            shape = shapes[name].shape
            dims[name] = (
                o.dims if o.dims is not None else tuple(f"{name}_{k}" for k in range(len(shape)))
            )
            if len(dims[name]) != len(shape):
                raise InputError(
                    f"observe.{name}", f"dims {dims[name]} for a value of shape {shape}; one each"
                )
            if len({*dims[name], *given, *RESERVED}) < len(dims[name]) + len({*given, *RESERVED}):
                raise InputError(
                    f"observe.{name}",
                    f"dims {dims[name]}; an axis has its own name, not twice the same, not that of "
                    f"an observable and not one of {RESERVED}",
                )
            for dim, size in zip(dims[name], shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise InputError(
                        f"observe.{name}",
                        f"dim {dim!r} has size {size} here and {sizes[dim]} elsewhere",
                    )
            for dim, values in o.coords.items():
                coords[dim] = np.asarray(values)
                if dim not in dims[name] or coords[dim].shape != (sizes[dim],):
                    raise InputError(
                        f"observe.{name}",
                        f"coords of {dim!r} have shape {coords[dim].shape}; the value has "
                        f"{dict(zip(dims[name], shape, strict=True))}",
                    )
            attrs[name] = {k: v for k, v in (("units", o.units), ("long_name", o.label)) if v}
        self.shape = Shape(dims, coords, attrs)
        key = ("observe", tuple((n, o.measure) for n, o in given.items()))
        self._compiled = system.compiled(key, measure)

    def __call__(self, y: Vector) -> dict[str, np.ndarray]:
        values = self._compiled(self._system.sent(y))
        return {name: np.asarray(value) for name, value in values.items()}


class Marks:
    """All marks and stops as one compiled function: the signed distances to their levels."""

    def __init__(self, system: System, marks: Mapping[str, Any], stops: Mapping[str, Any]):
        double = set(marks) & set(stops)
        if double:
            raise InputError(f"stops.{double.pop()}", "also a mark; the names must differ")
        fields = {n: f"marks.{n}" for n in marks} | {n: f"stops.{n}" for n in stops}
        self._system = system
        given = {n: as_mark(m, fields[n]) for n, m in {**marks, **stops}.items()}
        layout = system.layout

        def distance(y: Any) -> dict[str, Any]:
            theta = layout.unflatten(y)
            return {
                n: jnp.ravel(jnp.asarray(m.measure(theta), dtype=float)) - m.level
                for n, m in given.items()
            }

        shapes = _shapes(distance, system, {fields[n]: m.measure for n, m in given.items()})
        self.names: list[str] = []
        self.index: list[int] = []
        directions: list[int] = []
        for name, mark in given.items():
            count = shapes[name].shape[0]
            self.names += [name] * count
            self.index += list(range(count))
            directions += [mark.direction] * count
        self.direction = np.array(directions, dtype=int)
        self.is_stop = np.array([name in stops for name in self.names], dtype=bool)
        self._order = list(given)
        key = ("marks", tuple((n, m.measure, m.level) for n, m in given.items()))
        self._compiled = system.compiled(key, distance)

    def __len__(self) -> int:
        return len(self.names)

    def __call__(self, y: Vector) -> np.ndarray:
        values = self._compiled(self._system.sent(y))
        return np.concatenate([np.asarray(values[name]) for name in self._order])

    def crossed(
        self, old: np.ndarray, new: np.ndarray, when: Callable[[int], float]
    ) -> tuple[list[Event], Event | None]:
        """The events between two states, in order of time, up to the first stop; and that stop.

        A mark that sits exactly on its level has not crossed it; `when(i)` locates crossing i.
        """
        hit = (np.sign(old) * np.sign(new) < 0) | ((new == 0) & (old != 0))
        direction = np.where(old < 0, 1, -1)
        hit &= (self.direction == 0) | (self.direction == direction)
        found = [
            (Event(self.names[i], when(i), int(direction[i]), self.index[i]), self.is_stop[i])
            for i in np.flatnonzero(hit).tolist()
        ]
        stop = min((e for e, ends in found if ends), key=lambda e: e.time, default=None)
        events = sorted((e for e, _ in found), key=lambda e: (e.time, e.name, e.index))
        return [e for e in events if stop is None or e.time <= stop.time], stop


def as_observable(given: Observable | Callable) -> Observable:
    return given if isinstance(given, Observable) else Observable(given)


def as_mark(given: Any, field_name: str) -> Mark:
    mark = given if isinstance(given, Mark) else Mark(given)
    if not callable(mark.measure):
        raise InputError(field_name, "not a function of the parameters")
    if mark.direction not in (-1, 0, 1):
        raise InputError(f"{field_name}.direction", f"{mark.direction}; one of -1, 0, 1")
    if not (isinstance(mark.level, int | float | np.number) and np.isfinite(mark.level)):
        raise InputError(f"{field_name}.level", f"{mark.level!r}; a finite number")
    return mark


def _shapes(function: Callable, system: System, measures: Mapping[str, Callable]) -> Any:
    """The output shapes, or the sentence that says which measurement cannot be compiled."""
    y = jax.ShapeDtypeStruct((system.size,), np.float64)
    try:
        return jax.eval_shape(function, y)
    except UNTRACEABLE:
        for field_name, measure in measures.items():
            try:
                jax.eval_shape(lambda y, f=measure: f(system.layout.unflatten(y)), y)
            except UNTRACEABLE as error:
                raise InputError(
                    field_name,
                    f"not written with jax.numpy, so it cannot be compiled "
                    f"({type(error).__name__})",
                ) from None
        raise
