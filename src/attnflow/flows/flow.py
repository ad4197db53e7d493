"""The one object: a velocity on a pytree of parameters, usually minus the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError, shown
from attnflow._precision import float64
from attnflow.flows.layout import Layout, Params, Vector

Scalar = Callable[[Params], Any]

UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)
"""What a function raises that is written with NumPy or Python numbers instead of jax.numpy."""


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

    `host=True` says that `velocity(theta, out)` is written for NumPy arrays too and fills `out`:
    engines then call it without leaving NumPy. It must still trace under JAX with `out=None`.

    >>> flow = Flow(lambda th: 0.5 * (th["x"] ** 2).sum())
    >>> flow.velocity({"x": np.array([2.0])})
    {'x': array([-2.])}
    """

    def __init__(
        self,
        loss: Scalar | None = None,
        *,
        velocity: Callable[..., Params] | None = None,
        rates: Mapping[str, float] | None = None,
        conserved: Mapping[str, Callable[[Params], Any]] | None = None,
        host: bool = False,
        name: str = "flow",
    ):
        if loss is None and velocity is None:
            raise InputError("loss", "neither loss nor velocity given; a flow needs one of them")
        if host and velocity is None:
            raise InputError("host", "True without a velocity; only a closed form runs in NumPy")
        for block, rate in (rates or {}).items():
            if not (isinstance(rate, int | float | np.number) and np.isfinite(rate) and rate >= 0):
                raise InputError(f"rates.{block}", f"{rate!r}; a rate is finite and at least 0")
        self.name = name
        self.rates = dict(rates or {})
        self.conserved = dict(conserved or {})
        self.host = host
        self._loss = loss
        self._velocity = velocity
        self._bound: dict[Any, System] = {}

    def bind(self, start: Params) -> System:
        """The flow on flat vectors laid out like `start`, compiled once per layout."""
        layout = Layout(start)
        if layout.signature not in self._bound:
            self._bound[layout.signature] = System(self, layout)
        return self._bound[layout.signature]

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
        rates = f", rates={self.rates}" if self.rates else ""
        keeps = f", conserves {', '.join(self.conserved)}" if self.conserved else ""
        return f"Flow({self.name!r}, {given}{rates}{keeps})"


class System:
    """A flow bound to a layout: NumPy float64 vectors in and out, one compiled function each."""

    def __init__(self, flow: Flow, layout: Layout):
        self.flow = flow
        self.layout = layout
        self.size = layout.size
        self.has_loss = flow._loss is not None
        speeds = layout.per_block(flow.rates, 1.0, "rates")
        self.speeds = [(b, s) for b, s in zip(layout.blocks, speeds, strict=True) if s != 1.0]
        self._rhs = jax.jit(self.trace_velocity)
        self._jvp = jax.jit(lambda y, v: jax.jvp(self.trace_velocity, (y,), (v,))[1])
        self._jacobian = jax.jit(jax.jacfwd(self.trace_velocity))
        self._loss = jax.jit(self.trace_loss)
        self._conserved = jax.jit(self._trace_conserved)
        self._compiled: dict[Any, Any] = {}
        self._sent: tuple[Any, Any] = (None, None)

    def compiled(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` of the flat vector, compiled once per key for as long as the flow lives."""
        try:
            return self._compiled.setdefault(key, jax.jit(function))
        except TypeError:  # a measurement that cannot be hashed is compiled anew
            return jax.jit(function)

    def sent(self, y: Vector) -> Any:
        """`y` as a JAX array; marks and observables of one state share the copy."""
        kept = self._sent  # one read and one write: another thread may be solving too
        if kept[0] is not y:
            kept = self._sent = (y, jax.device_put(y))
        return kept[1]

    def trace_loss(self, y: Any) -> Any:
        """L as a traceable function of the flat vector."""
        if self.flow._loss is None:
            raise InputError("loss", f"{self.flow.name} was made from a velocity without a loss")
        return self.flow._loss(self.layout.unflatten(y))

    def trace_velocity(self, y: Any) -> Any:
        """theta' as a traceable function of the flat vector."""
        if self.flow._velocity is not None:
            out = self.layout.join(self.flow._velocity(self.layout.unflatten(y)), "velocity")
        else:
            out = -jax.grad(self.trace_loss)(y)
        return self.trace_metric(out)

    def trace_metric(self, out: Any) -> Any:
        """Each block of a flat gradient or velocity, times its rate."""
        for block, speed in self.speeds:
            out = out.at[block.start : block.stop].multiply(speed)
        return out

    @float64
    def rhs(self, y: Vector, out: Vector) -> None:
        """Write theta'(y) into `out`."""
        if not self.flow.host:
            out[:] = self._rhs(y)
            return
        velocity = self.flow._velocity
        assert velocity is not None
        velocity(self.layout.unflatten(y), out=self.layout.unflatten(out))
        for block, speed in self.speeds:
            out[block.start : block.stop] *= speed

    @float64
    def jvp(self, y: Vector, v: Vector, out: Vector) -> None:
        """Write the exact Jacobian product into `out`."""
        out[:] = self._jvp(y, v)

    @float64
    def jacobian(self, y: Vector) -> np.ndarray:
        """The dense Jacobian of the velocity: `[moved, by]`."""
        return np.asarray(self._jacobian(y))

    @float64
    def loss(self, y: Vector) -> float:
        return float(self._loss(y))

    @float64
    def conserved(self, y: Vector) -> dict[str, np.ndarray]:
        """Every conserved quantity at `y`."""
        return {name: np.asarray(c) for name, c in self._conserved(y).items()}

    def _trace_conserved(self, y: Any) -> dict[str, Any]:
        theta = self.layout.unflatten(y)
        return {name: jnp.asarray(c(theta)) for name, c in self.flow.conserved.items()}

    @float64
    def check(self, y: Vector) -> None:
        """Refuse, in one sentence, a start or a flow that cannot be solved."""
        bad = [b.name for b in self.layout.blocks if not np.isfinite(y[b.start : b.stop]).all()]
        if bad:
            raise InputError(f"start.{bad[0]}", "a NaN or infinite entry; a start is finite")
        if self.has_loss:
            try:
                shape = jax.eval_shape(self.trace_loss, y)
            except UNTRACEABLE as error:
                raise InputError(
                    "loss",
                    f"not written with jax.numpy, so it cannot be differentiated "
                    f"({type(error).__name__})",
                ) from None
            if getattr(shape, "shape", None) != ():
                raise InputError(
                    "loss",
                    f"returns shape {shown(str(getattr(shape, 'shape', type(shape))))}; "
                    "a loss returns one number",
                )
        out = np.empty_like(y)
        self.rhs(y, out)
        bad = [b.name for b in self.layout.blocks if not np.isfinite(out[b.start : b.stop]).all()]
        if bad:
            raise InputError(
                "flow",
                f"the velocity of {bad[0]} is NaN or infinite at the start; "
                "a flow must be finite there",
            )
