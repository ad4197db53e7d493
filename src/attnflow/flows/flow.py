"""The one object: a velocity on a pytree of parameters, usually minus the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, named_arguments, shown
from attnflow._precision import float64
from attnflow.flows.gates import Gates, guard_rate
from attnflow.flows.layout import Layout, Params, Shares, Vector
from attnflow.flows.users import callable_or_sentence, named_functions, shape_of

Scalar = Callable[..., Any]


class FlowLike(Protocol):
    """What every lens asks of a flow: full model, reduced system and mean-field limit alike."""

    @property
    def name(self) -> str: ...

    @property
    def conserved(self) -> Mapping[str, Callable[[Params], Any]]: ...

    def bind(self, start: Params) -> System: ...


@final
class Flow:
    """`theta' = -rates * grad L(theta)` on any pytree of float arrays.

    Made from a scalar `loss` by autodiff, or from a closed-form `velocity` (then `loss` is
    optional, and only observed). `rates` is the learning rate of each block, a metric:
    `{"W2": 4.0}` makes `W2` move four times as fast, 0 freezes it. `conserved` names smooth
    functions that stay constant along the flow; every solve reports how far they drifted.

    gates
        For a loss with ReLUs (or a velocity that jumps): a function of theta that is positive
        where a gate is on, one number per gate (an array, or a dictionary of arrays). The loss is
        then `loss(theta, on)` with `on` of the same shape, and a ReLU in it is `on * h`; a
        closed form is `velocity(theta, on)`. `integrate` goes from switch to switch, and along
        the surface `h = 0` where neither side leads away from it: there a gate is a share
        between 0 and 1, and the velocity must be affine in it. Everything else sees the gates
        where theta puts them.
    host
        `velocity(theta, out=...)` is written for NumPy arrays too and fills `out`: engines then
        call it without leaving NumPy. It must still trace under JAX with `out=None`.
    speed
        The norm of a closed form where that is cheaper than the velocity itself; on NumPy arrays.
    scale
        The size of what must be resolved, for the absolute tolerance (default: the start's).

    >>> flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> flow.velocity({"x": np.array([2.0])})
    {'x': array([-2.])}
    """

    @named_arguments()
    def __init__(
        self,
        loss: Scalar | None = None,
        *,
        velocity: Callable[..., Params] | None = None,
        gates: Callable[[Params], Any] | None = None,
        gate_names: Sequence[str] | None = None,
        rates: Mapping[str, float] | None = None,
        conserved: Mapping[str, Callable[[Params], Any]] | None = None,
        host: bool = False,
        speed: Callable[[Params], float] | None = None,
        scale: float | None = None,
        name: str = "flow",
    ):
        if loss is None and velocity is None:
            raise InputError("loss", "neither loss nor velocity given; a flow needs one of them")
        functions = {"loss": loss, "velocity": velocity, "gates": gates, "speed": speed}
        for field, given in functions.items():
            callable_or_sentence(field, given)
        for field, given in (("host", host), ("speed", speed)):
            if given and velocity is None:
                raise InputError(field, "given without a velocity; only a closed form has one")
        for block, rate in (rates or {}).items():
            if not (isinstance(rate, int | float | np.number) and np.isfinite(rate) and rate >= 0):
                raise InputError(f"rates.{block}", f"{rate!r}; a rate is finite and at least 0")
        self.name, self.host, self.scale = name, host, scale
        self.rates = dict(rates or {})
        self.conserved = named_functions("conserved", conserved)
        self.gates = None if gates is None else Gates(gates, gate_names)
        self._loss, self._velocity, self._speed = loss, velocity, speed
        self._bound: dict[Any, System] = {}
        self._frozen: dict[tuple[str, ...], Flow] = {}

    def bind(self, start: Params) -> System:
        """The flow on flat vectors laid out like `start`, compiled once per layout."""
        layout = Layout(start)
        if layout.signature not in self._bound:
            self._bound[layout.signature] = System(self, layout, layout.flatten(start))
        return self._bound[layout.signature]

    def frozen(self, blocks: tuple[str, ...]) -> Flow:
        """The same flow with some blocks standing still; what they conserved is not declared."""
        if not blocks:
            return self
        if blocks not in self._frozen:
            flow = Flow(
                self._loss,
                velocity=self._velocity,
                rates={**self.rates, **dict.fromkeys(blocks, 0.0)},
                host=self.host,
                scale=self.scale,
                name=self.name,
            )
            flow.gates = self.gates
            self._frozen[blocks] = flow
        return self._frozen[blocks]

    def loss(self, theta: Params) -> float:
        """L(theta), in float64."""
        system = self.bind(theta)
        return system.loss(system.layout.flatten(theta))

    def velocity(self, theta: Params) -> Params:
        """theta', in float64, as a tree like `theta`."""
        system = self.bind(theta)
        y = system.layout.flatten(theta)
        out = np.empty_like(y)
        system.rhs(y, out)
        return system.layout.unflatten(out)

    def jvp(self, theta: Params, direction: Params) -> Params:
        """The derivative of the velocity at `theta` along `direction`."""
        system = self.bind(theta)
        out = np.empty(system.size)
        system.jvp(system.layout.flatten(theta), system.layout.flatten(direction), out)
        return system.layout.unflatten(out)

    def __repr__(self) -> str:
        given = "closed-form velocity" if self._velocity is not None else "loss by autodiff"
        gates = ", gates" if self.gates is not None else ""
        rates = f", rates={self.rates}" if self.rates else ""
        keeps = f", conserves {', '.join(self.conserved)}" if self.conserved else ""
        return f"Flow({self.name!r}, {given}{gates}{rates}{keeps})"


class System:
    """A flow bound to a layout: NumPy float64 vectors in and out, one compiled function each.

    Where the flow has gates, `u` is the flat vector of their shares; without it (None) the gates
    are where the state puts them.
    """

    NATIVE: ClassVar[int] = 64
    """Up to so many numbers a closed form is measured in NumPy too: compiling costs more than a
    whole solve."""
    SMALLEST: ClassVar[float] = 1e-146
    """Squares of smaller numbers have lost digits to underflow."""

    def __init__(self, flow: Flow, layout: Layout, y: Vector):
        self.flow, self.layout, self.size = flow, layout, layout.size
        self.has_loss = flow._loss is not None
        self.native = flow.host and layout.size <= self.NATIVE
        self.gates = (
            None if flow.gates is None else flow.gates.bind(layout, y if self.native else None)
        )
        speeds = layout.per_block(flow.rates, 1.0, "rates")
        self.speeds = [(b, s) for b, s in zip(layout.blocks, speeds, strict=True) if s != 1.0]
        self._rhs = jax.jit(lambda y, u: self.trace_velocity(y, u))
        self._jvp = jax.jit(lambda y, v: jax.jvp(self.trace_velocity, (y,), (v,))[1])
        self._jacobian = jax.jit(lambda y: jax.jacfwd(self.trace_velocity)(y))
        self._loss = jax.jit(lambda y: self.trace_loss(y))
        self._conserved = jax.jit(lambda y: self._trace_conserved(y))
        self._guards = jax.jit(lambda y: self.trace_guards(y))
        self._guard_rate = jax.jit(lambda y, v: jax.jvp(self.trace_guards, (y,), (v,))[1])
        self._sound, self._conserved_here = False, True
        self._compiled: dict[Any, Any] = {}
        self._sent: tuple[Any, Any] = (None, None)

    def compiled(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` of the flat vector, compiled once per key for as long as the flow lives."""
        try:
            if key not in self._compiled:  # `jax.jit` alone costs as much as a small call
                self._compiled[key] = jax.jit(function)
            return self._compiled[key]
        except TypeError:  # a measurement that cannot be hashed is compiled anew
            return jax.jit(function)

    def sent(self, y: Vector) -> Any:
        """`y` as a JAX array; everything that measures one state shares the copy."""
        kept = self._sent  # one read and one write: another thread may be solving too
        if kept[0] is not y:
            kept = self._sent = (y, jax.device_put(y))
        return kept[1]

    def trace_guards(self, y: Any) -> Any:
        """The guards of all gates, flat: a gate is on where its guard is positive."""
        assert self.gates is not None
        return self.gates.values(self.layout.unflatten(y), jnp)

    def shares(self, y: Any, u: Any = None) -> tuple[Any, ...]:
        """What loss and velocity get besides theta: nothing, or the gates as their author wrote."""
        if self.gates is None:
            return ()
        if u is None:
            u = (self.gates.values(self.layout.unflatten(y), jnp) > 0) * 1.0
        return (self.gates.unflatten(u),)

    def trace_loss(self, y: Any, u: Any = None) -> Any:
        """L as a traceable function of the flat vector."""
        if self.flow._loss is None:
            raise InputError("loss", f"{self.flow.name} was made from a velocity without a loss")
        return self.flow._loss(self.layout.unflatten(y), *self.shares(y, u))

    def trace_velocity(self, y: Any, u: Any = None) -> Any:
        """theta' as a traceable function of the flat vector."""
        if self.flow._velocity is not None:
            moved = self.flow._velocity(self.layout.unflatten(y), *self.shares(y, u))
            out = self.layout.join(moved, "velocity")
        else:
            out = -jax.grad(lambda z: self.trace_loss(z, u))(y)
        return self.trace_metric(out)

    def trace_metric(self, out: Any) -> Any:
        """Each block of a flat gradient or velocity, times its rate."""
        for block, speed in self.speeds:
            out = out.at[block.start : block.stop].multiply(speed)
        return out

    @float64
    def rhs(self, y: Vector, out: Vector, u: Shares | None = None) -> None:
        """Write theta'(y), with the shares u, into `out`."""
        if not self.flow.host:
            out[:] = self._rhs(y, u)
            return
        velocity, theta = self.flow._velocity, self.layout.unflatten(y)
        assert velocity is not None
        more = ()
        if self.gates is not None:
            u = (self.gates.values(theta, np) > 0) * 1.0 if u is None else u
            more = (self.gates.unflatten(u),)
        velocity(theta, *more, out=self.layout.unflatten(out))
        for block, speed in self.speeds:
            out[block.start : block.stop] *= speed

    @property
    def knows_speed(self) -> bool:
        """Whether the norm of the velocity has a closed form of its own: not for other rates."""
        return self.flow._speed is not None and not self.speeds and self.gates is None

    @float64
    def speed(self, y: Vector) -> float:
        """|theta'(y)| by that closed form."""
        assert self.flow._speed is not None
        return float(self.flow._speed(self.layout.unflatten(y)))

    @float64
    def guards(self, y: Vector) -> Float[np.ndarray, "gate"]:
        """The guards of all gates at `y`."""
        if self.gates is not None and self.native:
            return self.gates.values(self.layout.unflatten(y), np)
        return np.asarray(self._guards(self.sent(y)))

    @float64
    def guard_rate(self, y: Vector, v: Vector) -> Float[np.ndarray, "gate"]:
        """How fast the guards move where the state moves by `v`."""
        if self.native:
            return guard_rate(self.guards, y, v)
        return np.asarray(self._guard_rate(y, v))

    @float64
    def jvp(self, y: Vector, v: Vector, out: Vector) -> None:
        """Write the exact Jacobian product into `out`."""
        out[:] = self._jvp(y, v)

    @float64
    def jacobian(self, y: Vector) -> Float[np.ndarray, "moved by"]:
        """The dense Jacobian of the velocity."""
        return np.asarray(self._jacobian(y))

    @float64
    def loss(self, y: Vector) -> float:
        return float(self._loss(y))

    @float64
    def conserved(self, y: Vector) -> dict[str, np.ndarray]:
        """Every conserved quantity at `y`; in NumPy where flow and quantities are NumPy's."""
        found: Any = None
        if self.flow.host and self._conserved_here:
            theta = self.layout.unflatten(y)
            found = {name: c(theta) for name, c in self.flow.conserved.items()}
            numbers = np.ndarray | np.generic | float
            self._conserved_here = all(isinstance(c, numbers) for c in found.values())
        found = found if self._conserved_here and found is not None else self._conserved(y)
        return {name: np.asarray(c) for name, c in found.items()}

    def _trace_conserved(self, y: Any) -> dict[str, Any]:
        theta = self.layout.unflatten(y)
        return {name: jnp.asarray(c(theta)) for name, c in self.flow.conserved.items()}

    @float64
    def check(self, y: Vector) -> None:
        """Refuse, in one sentence, a start or a flow that cannot be solved."""
        self._check_start(y)
        if not self._sound:
            self._check_functions(y)
        out = np.empty_like(y)
        self.rhs(y, out)
        bad = [b.name for b in self.layout.blocks if not np.isfinite(out[b.start : b.stop]).all()]
        if bad:
            raise InputError(
                "flow",
                f"the velocity of {bad[0]} is NaN or infinite at the start; a flow must be finite "
                "there",
            )
        self._sound = True

    @staticmethod
    def check_loss(value: Any) -> None:
        """Refuse a loss that is no number at the start: its gradient may be one, and mislead."""
        if not np.isfinite(value):
            raise InputError("loss", f"{float(value)} at the start; a loss must be finite there")

    def _check_functions(self, y: Vector) -> None:
        """Trace loss and velocity once: a sentence for what goes wrong in them."""
        state = jax.ShapeDtypeStruct((self.size,), np.float64)
        if self.has_loss and not self._is_number(y):
            shape = shape_of("loss", self.trace_loss, state, self.layout)
            if getattr(shape, "shape", None) != ():
                given = shown(str(getattr(shape, "shape", type(shape))))
                raise InputError("loss", f"returns shape {given}; a loss returns one number")
        if not self.flow.host:
            shape_of("velocity", self.trace_velocity, state, self.layout)

    def _is_number(self, y: Vector) -> bool:
        """Whether the loss of a small closed form is a number in NumPy: nothing to trace then."""
        if not self.native:
            return False
        theta, gates = self.layout.unflatten(y), self.gates
        more = () if gates is None else (gates.unflatten((gates.values(theta, np) > 0) * 1.0),)
        try:
            value = self.flow._loss(theta, *more)  # type: ignore[misc]
        except Exception:  # tracing it says what is wrong
            return False
        return isinstance(value, float | np.floating | np.ndarray) and np.shape(value) == ()

    def _check_start(self, y: Vector) -> None:
        bad = [b.name for b in self.layout.blocks if not np.isfinite(y[b.start : b.stop]).all()]
        if bad:
            raise InputError(f"start.{bad[0]}", "a NaN or infinite entry; a start is finite")
        largest = float(np.abs(y).max())
        if 0 < largest < self.SMALLEST:
            raise InputError(
                "start",
                f"its largest entry is {largest:.2g}, whose square underflows; at least "
                f"{self.SMALLEST:.0e} (or exactly 0)",
            )
