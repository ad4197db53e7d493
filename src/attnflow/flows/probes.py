"""What is measured along a solve: observables and marks, fused into one call per state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, shown
from attnflow.flows.flow import System
from attnflow.flows.layout import Params, Shares, Vector
from attnflow.flows.sinks import Shape
from attnflow.flows.users import shape_of, takes_two

RESERVED = ("time", "step", "state", "speed", "parameter", "gates", "gate", "phase")
"""Names of columns and axes that a trajectory has of its own."""


@dataclass(frozen=True)
class Observable:
    """A pure measurement of the parameters, with the names of its axes.

    On a flow with gates a function of two arguments gets the gates' shares as the second. With
    `host` it is NumPy's too, and a flow that runs in NumPy never compiles it.

    >>> import jax
    >>> attention = Observable(
    ...     lambda th: jax.nn.softmax(th["scores"], axis=-1),
    ...     dims=("query", "key"),
    ...     coords={"query": ["a", "b"], "key": ["a", "b"]},
    ...     units="probability",
    ... )
    >>> import attnflow as af
    >>> flow = af.Flow(lambda th: 0.5 * (th["scores"] ** 2).sum())
    >>> start = {"scores": np.eye(2)}
    >>> af.integrate(flow, start, until=1.0, observe={"attention": attention}).trajectory[
    ...     "attention"
    ... ].dims
    ('time', 'query', 'key')
    """

    measure: Callable[..., Any]
    dims: tuple[str, ...] | None = None
    coords: Mapping[str, Any] = field(default_factory=dict)
    units: str = ""
    label: str = ""
    host: bool = False


@dataclass(frozen=True)
class Mark:
    """Crossed when `measure(theta) - level` changes sign; a vector is one mark per entry.

    `direction` +1 counts only upward crossings, -1 only downward ones, 0 both; `host` as in
    `Observable`.
    """

    measure: Callable[..., Any]
    level: float = 0.0
    direction: int = 0
    host: bool = False


def shared(measure: Callable[..., Any]) -> Callable[..., Any]:
    """`measure`, computed once per row however many observables call it on the same parameters
    (and shares).

    The compiler does not merge two decompositions of one matrix by itself.
    """
    last: list[Any] = [None, None]

    def once(theta: Params, *shares: Any) -> Any:
        if last[0] is not theta:
            last[:] = [theta, measure(theta, *shares)]
        return last[1]

    return once


class Probes:
    """All observables, marks and stops of a solve as functions of the flat state (and shares)."""

    def __init__(
        self,
        system: System,
        y: Vector,
        observe: Mapping[str, Any] | None,
        marks: Mapping[str, Any] | None,
        stops: Mapping[str, Any] | None,
    ):
        self._system = system
        rows = _observables(system, observe)
        crossings = _marks(marks, stops)
        self._order = list(crossings)
        self._own_loss = system.has_loss and "loss" not in (observe or {})
        functions = {("row", n): o.measure for n, o in rows.items()}
        functions |= {("mark", n): m.measure for n, (m, _) in crossings.items()}
        fields = {("row", n): f"observe.{n}" for n in rows}
        fields |= {
            ("mark", n): f"{'stops' if s else 'marks'}.{n}" for n, (_, s) in crossings.items()
        }
        hosts = {("row", n) for n, o in rows.items() if o.host}
        hosts |= {("mark", n) for n, (m, _) in crossings.items() if m.host}
        self._fused = _Fused(system, functions, fields, hosts)
        shapes = self._fused.shapes(y)
        self.shape = _shape(rows, {n: shapes["row", n] for n in rows}, _taken(system))
        self.names: list[str] = []
        self.index: list[int] = []
        level, direction, stop = [], [], []
        for name, (mark, ends) in crossings.items():
            count = int(np.prod(shapes["mark", name], dtype=int))
            self.names += [name] * count
            self.index += list(range(count))
            level += [mark.level] * count
            direction += [mark.direction] * count
            stop += [ends] * count
        self.level = np.array(level, dtype=float)
        self.direction = np.array(direction, dtype=int)
        self.is_stop = np.array(stop, dtype=bool)

    def __len__(self) -> int:
        """The number of marks, one per entry of a vector."""
        return len(self.names)

    def row(self, y: Vector, u: Shares | None = None) -> dict[str, np.ndarray]:
        """Every observable at a state."""
        return {name: v for (_, name), v in self._fused(("row",), y, u).items()}

    def first(self, y: Vector, u: Shares | None = None) -> dict[str, np.ndarray]:
        """The row of the start, whose loss must be finite."""
        measured = self.row(y, u)
        if self._own_loss:
            self._system.check_loss(measured["loss"])
        return measured

    def distances(self, y: Vector, u: Shares | None = None) -> Float[np.ndarray, "mark"]:
        """The signed distances of all marks to their levels."""
        return self._distances(self._fused(("mark",), y, u)) if len(self) else np.empty(0)

    def both(self, y: Vector, u: Shares | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Observables and distances in one call."""
        found = self._fused(("row", "mark"), y, u)
        rows = {name: v for (kind, name), v in found.items() if kind == "row"}
        return rows, self._distances(found) if len(self) else np.empty(0)

    def trace_distances(self, y: Any) -> Any:
        """The distances as a traceable function of the flat state."""
        found = self._fused.trace(("mark",), y)
        flat = [jnp.ravel(found["mark", name]) for name in self._order]
        return jnp.concatenate(flat) - self.level

    def _distances(self, found: Mapping[Any, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.ravel(found["mark", n]) for n in self._order]) - self.level


class _Fused:
    """Named functions of (theta, shares): in NumPy where they are NumPy's, else compiled once."""

    NATIVE: ClassVar[int] = 256
    """Up to so many numbers, what NumPy can measure of a closed form is not compiled."""

    def __init__(
        self,
        system: System,
        functions: Mapping[tuple[str, str], Callable[..., Any]],
        fields: Mapping[tuple[str, str], str],
        hosts: set[tuple[str, str]],
    ):
        self._system, self._functions, self._fields = system, dict(functions), fields
        self._hosts = hosts
        gated = system.gates is not None
        self._two = {key: gated and takes_two(f) for key, f in functions.items()}
        self._here: set[Any] = set()
        self._buffer: Vector | None = None

    def shapes(self, y: Vector) -> dict[Any, tuple[int, ...]]:
        """The shape of every value; also finds out which functions stay in NumPy."""
        found: dict[Any, tuple[int, ...]] = {}
        state = jax.ShapeDtypeStruct((self._system.size,), np.float64)
        for key, function in self._functions.items():
            if not callable(function):
                raise InputError(
                    self._fields[key], f"{shown(function)}; a function of the parameters"
                )
            value = self._native(key, y)
            if isinstance(value, np.ndarray | np.generic | float | int):
                self._here.add(key)
                found[key] = np.shape(value)
                continue
            shape = shape_of(
                self._fields[key],
                lambda z, key=key: self._traced(key, z, None),
                state,
                self._system.layout,
            )
            if not hasattr(shape, "shape"):
                raise InputError(self._fields[key], f"returns {shown(shape)}; an array or a number")
            found[key] = shape.shape
        return found

    def __call__(
        self, kinds: tuple[str, ...], y: Vector, u: Shares | None
    ) -> dict[Any, np.ndarray]:
        wanted = [key for key in self._functions if key[0] in kinds]
        here = [key for key in wanted if key in self._here]
        there = [key for key in wanted if key not in self._here]
        found = {}
        if here:
            theta = self._system.layout.unflatten(y)
            shares = self._shares(theta, u, np)
            found = {k: np.asarray(self._call(k, theta, shares), dtype=float) for k in here}
        if there:
            name = ("probes", tuple((k, self._functions[k]) for k in there))
            compiled = self._system.compiled(name, lambda y, u: self._trace(there, y, u))
            values = compiled(self._sent(y), u)
            # A copy: a value may be a view of the buffer.
            found |= {key: np.array(v) for key, v in zip(there, values, strict=True)}
        return found

    def _sent(self, y: Vector) -> Any:
        """`y` for a compiled call: at 64 bytes, where JAX reads it without a copy of its own."""
        if self._system.gates is not None:
            return self._system.sent(y)
        if self._buffer is None:
            room = np.empty(y.nbytes + 64, np.uint8)
            first = -room.ctypes.data % 64
            self._buffer = room[first : first + y.nbytes].view(np.float64)
        self._buffer[:] = y  # the values of the last call were all read before
        return self._buffer

    def trace(self, kinds: tuple[str, ...], y: Any) -> dict[Any, Any]:
        wanted = [key for key in self._functions if key[0] in kinds]
        return dict(zip(wanted, self._trace(wanted, y, None), strict=True))

    def _trace(self, keys: list[Any], y: Any, u: Any) -> tuple[Any, ...]:
        theta = self._system.layout.unflatten(y)
        shares = self._shares(theta, u, jnp)
        return tuple(jnp.asarray(self._call(k, theta, shares), dtype=float) for k in keys)

    def _traced(self, key: Any, y: Any, u: Any) -> Any:
        theta = self._system.layout.unflatten(y)
        return jnp.asarray(self._call(key, theta, self._shares(theta, u, jnp)), dtype=float)

    def _native(self, key: Any, y: Vector) -> Any:
        """The value in NumPy: of what is written for it, and of systems so small that nothing
        should be compiled."""
        if not (
            self._system.flow.host and (self._system.size <= self.NATIVE or key in self._hosts)
        ):
            return None
        theta = self._system.layout.unflatten(y)
        try:
            return self._call(key, theta, self._shares(theta, None, np))
        except Exception:  # written for JAX alone; tracing it says what is wrong
            return None

    def _call(self, key: Any, theta: Params, shares: tuple[Any, ...]) -> Any:
        function = self._functions[key]
        return function(theta, *shares) if self._two[key] else function(theta)

    def _shares(self, theta: Params, u: Any, xp: Any) -> tuple[Any, ...]:
        gates = self._system.gates
        if gates is None:
            return ()
        u = (gates.values(theta, xp) > 0) * 1.0 if u is None else u
        return (gates.unflatten(u),)


def crossings(
    old: np.ndarray, new: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which distances crossed 0 in a wanted direction (0: either), and in which direction each."""
    hit = (np.sign(old) * np.sign(new) < 0) | ((new == 0) & (old != 0))
    direction = np.where(old < 0, 1, -1)
    return hit & ((wanted == 0) | (wanted == direction)), direction


def _mapping(field: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            field, f"{shown(given)}; names with functions, {field}={{'norm': lambda theta: ...}}"
        )
    return dict(given)


def _observables(system: System, observe: Mapping[str, Any] | None) -> dict[str, Observable]:
    given = {
        n: o if isinstance(o, Observable) else Observable(o)
        for n, o in _mapping("observe", observe).items()
    }
    for name in given:
        if name in (taken := _taken(system)):
            raise InputError(f"observe.{name}", f"the name is taken; not one of {taken}")
    if system.has_loss and "loss" not in given:
        loss = system.flow._loss
        assert loss is not None
        own = Observable(loss, dims=(), label="loss", host=system.flow.host)
        given = {"loss": own, **given}
    return given


def _marks(marks: Any, stops: Any) -> dict[str, tuple[Mark, bool]]:
    marks, stops = _mapping("marks", marks), _mapping("stops", stops)
    for name in set(marks) & set(stops):
        raise InputError(f"stops.{name}", "also a mark; the names must differ")
    found = {n: (as_mark(m, f"marks.{n}"), False) for n, m in marks.items()}
    return found | {n: (as_mark(m, f"stops.{n}"), True) for n, m in stops.items()}


def as_mark(given: Any, field_name: str) -> Mark:
    """A function as a mark at level 0; a sentence for what is none."""
    mark = given if isinstance(given, Mark) else Mark(given)
    if not callable(mark.measure):
        raise InputError(field_name, f"{shown(mark.measure)}; a function of the parameters")
    if mark.direction not in (-1, 0, 1):
        raise InputError(f"{field_name}.direction", f"{mark.direction}; one of -1, 0, 1")
    if not (isinstance(mark.level, int | float | np.number) and np.isfinite(mark.level)):
        raise InputError(f"{field_name}.level", f"{mark.level!r}; a finite number")
    return mark


def _taken(system: System) -> tuple[str, ...]:
    """The names of a trajectory's own columns; those of gates only where the flow has some."""
    gated = system.gates is not None
    return tuple(name for name in RESERVED if gated or not name.startswith("gate"))


def _shape(
    rows: Mapping[str, Observable], shapes: Mapping[str, tuple[int, ...]], reserved: tuple[str, ...]
) -> Shape:
    """The axes of all observables, checked against each other."""
    dims: dict[str, tuple[str, ...]] = {}
    coords: dict[str, np.ndarray] = {}
    attrs: dict[str, dict[str, str]] = {}
    sizes: dict[str, int] = {}
    for name, o in rows.items():
        shape = shapes[name]
        axes = o.dims if o.dims is not None else tuple(f"{name}_{k}" for k in range(len(shape)))
        if len(axes) != len(shape):
            raise InputError(
                f"observe.{name}", f"dims {axes} for a value of shape {shape}; one each"
            )
        taken = {*rows, *reserved}
        if len({*axes, *taken}) < len(axes) + len(taken):
            raise InputError(
                f"observe.{name}",
                f"dims {axes}; an axis has its own name, not twice the same, not that of an "
                f"observable and not one of {reserved}",
            )
        for dim, size in zip(axes, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise InputError(
                    f"observe.{name}",
                    f"dim {dim!r} has size {size} here and {sizes[dim]} elsewhere",
                )
        for dim, values in o.coords.items():
            coords[dim] = np.asarray(values)
            if dim not in axes or coords[dim].shape != (sizes[dim],):
                raise InputError(
                    f"observe.{name}",
                    f"coords of {dim!r} have shape {coords[dim].shape}; the value has "
                    f"{dict(zip(axes, shape, strict=True))}",
                )
        dims[name] = axes
        attrs[name] = {k: v for k, v in (("units", o.units), ("long_name", o.label)) if v}
    return Shape(dims, coords, attrs)
