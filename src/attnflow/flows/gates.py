"""Flows with gates: smooth between switches, and what is exact where a gate cannot decide.

A ReLU makes a velocity jump where its argument is zero. Between two switches the gates are held
fixed and the field is smooth. At a switch the flow crosses, or the fields of both sides point to
the surface: then the exact flow (Filippov) slides on it, with the gate a share between 0 and 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from attnflow._errors import InputError
from attnflow.flows.flow import Flow, System
from attnflow.flows.layout import Params
from attnflow.flows.staging import StagedSolution, freeze

ROUNDING = 1e-9
"""What a share may lie outside [0, 1] and a rate beyond 0, relative to the largest."""


@dataclass(frozen=True)
class Mode:
    """A stretch of a gated solve with one smooth field."""

    begins: float
    ends: float
    on: tuple[bool, ...]
    """Of every gate; a sliding gate is neither and says False."""
    sliding: tuple[str, ...] = ()
    share: tuple[tuple[float, float], ...] = ()
    """Of each sliding gate, at the beginning and at the end: the weight of the field with the
    gate on in Filippov's convex combination."""


@dataclass(frozen=True, repr=False)
class GatedSolution(StagedSolution):
    """A solve from switch to switch. An event of a gate's name is a switch (+1 on, -1 off);
    `sliding NAME` begins (+1) and ends (-1) a stretch on the surface."""

    modes: tuple[Mode, ...] = ()

    def at(self, time: float) -> Params:
        """The parameters at a time."""
        return super().at(time)["theta"]

    @property
    def sliding(self) -> tuple[Mode, ...]:
        """The stretches on a surface."""
        return tuple(mode for mode in self.modes if mode.sliding)


@final
class GatedFlow:
    """A velocity with gates: `velocity(theta, gates)`, `gates(theta)` positive where one is on.

    `gates` comes as 0 and 1 (or a share between them) per gate, and on its own surface the
    velocity is affine in a gate, as it is for ReLUs. `plain` is the same flow with the gates
    where theta puts them: its loss, rates, name and `host` are taken over, and it is what
    gradient descent and every other lens see. `scale` is the size of what must be resolved, for
    the absolute tolerance.

    >>> jump = lambda th, g, out=None: {"x": 1.0 - 3.0 * g}
    >>> plain = Flow(velocity=lambda th: jump(th, (th["x"] > 0) * 1.0), name="jump")
    >>> flow = GatedFlow(jump, gates=lambda th: th["x"], plain=plain)
    >>> integrate_gated(flow, {"x": np.array([-1.0])}, until=2.0).sliding[0].share
    ((0.333..., 0.333...),)
    """

    def __init__(
        self,
        velocity: Callable[..., Params],
        gates: Callable[[Params], Any],
        plain: Flow,
        *,
        names: Sequence[str] | None = None,
        scale: float | None = None,
    ):
        self._velocity, self.gates, self.plain, self.scale = velocity, gates, plain, scale
        self._names = None if names is None else tuple(names)
        self._frozen: dict[tuple[str, ...], GatedFlow] = {}

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def conserved(self) -> Mapping[str, Callable[[Params], Any]]:
        return self.plain.conserved

    def bind(self, start: Params) -> System:
        """As a plain flow: the gates are where the parameters put them."""
        return self.plain.bind(start)

    def names(self, count: int) -> tuple[str, ...]:
        """One name per gate."""
        if self._names is not None and len(self._names) != count:
            raise InputError("names", f"{len(self._names)} names for {count} gates; one each")
        return self._names or tuple(f"gate {i}" for i in range(count))

    def freeze(self, blocks: tuple[str, ...]) -> GatedFlow:
        """The same with some blocks standing still."""
        if blocks not in self._frozen:
            self._frozen[blocks] = GatedFlow(
                self._velocity,
                self.gates,
                freeze(self.plain, blocks),
                names=self._names,
                scale=self.scale,
            )
        return self._frozen[blocks]

    def integrate(self, start: Params, until: float, **options: Any) -> GatedSolution:
        """`integrate_gated` of this flow."""
        from attnflow.flows.gated import integrate_gated

        return integrate_gated(self, start, until, **options)

    @functools.cached_property
    def held(self) -> Flow:
        """The smooth flow of `{"theta": ..., "gates": ...}`: the gates are data, and stay."""

        def velocity(state: Params, out: Params | None = None) -> Params:
            if out is None:
                moved = self._velocity(state["theta"], state["gates"])
                return {"theta": moved, "gates": jnp.zeros_like(state["gates"])}
            self._velocity(state["theta"], state["gates"], out["theta"])
            out["gates"][:] = 0.0
            return out

        loss = self.plain._loss
        return Flow(
            None if loss is None else inner(loss),
            velocity=velocity,
            rates={("theta." + k) if k != "theta" else k: r for k, r in self.plain.rates.items()},
            conserved={name: inner(c) for name, c in self.conserved.items()},
            host=self.plain.host,
            name=self.name,
        )

    @functools.cached_property
    def _sliding(self) -> dict[Any, tuple[Flow, Callable[[Params], Any]]]:
        return {}

    def sliding(self, system: System, on: tuple[int, ...]) -> tuple[Flow, Callable[[Params], Any]]:
        """Filippov's flow on the surfaces of the gates `on`, and the shares of these gates.

        `v = v_off + sum_i u_i (v_i - v_off)` with u such that no gate on its surface moves.
        """
        key = system.layout.signature, on
        if key not in self._sliding:
            layout, at = system.layout, np.asarray(on)
            first = next(b.start for b in layout.blocks if b.name == "gates")
            base = self.held

            def value(y: Any) -> Any:
                return jnp.ravel(self.gates(layout.unflatten(y)["theta"]))[at]

            def field(y: Any) -> tuple[Any, Any]:
                off = y.at[first + at].set(0.0)
                v = system.trace_velocity(off)
                step = jnp.stack(
                    [system.trace_velocity(off.at[first + i].set(1.0)) - v for i in on]
                )
                rate = jax.jvp(value, (off,), (v,))[1]
                rates = jax.vmap(lambda d: jax.jvp(value, (off,), (d,))[1], out_axes=1)(step)
                # One gate needs no decomposition, which is slow to compile.
                inverse = jnp.linalg.pinv(rates, rtol=ROUNDING) if len(on) > 1 else 1.0 / rates
                share = inverse @ -rate
                return v + share @ step, share

            flow = Flow(
                base._loss,
                velocity=lambda state: layout.unflatten(field(layout.join(state))[0]),
                conserved={},
                name=self.name,
            )
            self._sliding[key] = flow, lambda state: field(layout.join(state))[1]
        return self._sliding[key]


@functools.lru_cache(maxsize=512)
def inner(measure: Callable[[Params], Any]) -> Callable[[Params], Any]:
    """A function of theta as one of `{"theta", "gates"}`.

    Cached, so that what was compiled for one solve serves the next.
    """
    return lambda state: measure(state["theta"])
