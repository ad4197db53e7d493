"""From switch to switch: which gates are on, which slide, and the smooth field in between.

At a switch every gate on its surface crosses, slides, or turns back, and the choice must be
consistent: behind a crossing the field leads away from the surface, and on it Filippov's convex
combination `v = v_off + sum_i u_i (v_i - v_off)`, with the shares u that keep all sliding guards at
zero, has its shares in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow.flows.flow import System
from attnflow.flows.gates import Mode
from attnflow.flows.layout import Shares, Vector, squared_norm
from attnflow.flows.sinks import Event

SHARE_TOLERANCE = 1e-9
"""What a share may lie outside [0, 1] and a rate beyond 0, relative to the largest."""
SURFACE_TOLERANCE = 1e-12
"""Gates this close to 0 switch at the same instant: by symmetry, and rounding must not choose."""

Units = list[tuple[int, ...]]


class Field:
    """What an engine solves: the flow, with the gates of the present mode held or sliding."""

    def __init__(self, system: System):
        self.system, self.size = system, system.size
        self.gated = system.gates is not None
        count = system.gates.count if system.gates is not None else 0
        self.on = np.zeros(count)
        self.units: Units = []
        """Sets of gates that slide together."""
        self.modes: list[tuple[Any, ...]] = []
        self._velocity = np.empty(self.size)

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.system.gates is None else self.system.gates.names

    @property
    def sliding(self) -> tuple[int, ...]:
        return tuple(i for unit in self.units for i in unit)

    def rhs(self, y: Vector, out: Vector) -> None:
        """The velocity of the present mode."""
        if self.units:
            out[:] = self._combined(y, self.on, self.sliding)[0]
        else:
            self.system.rhs(y, out, self.on if self.gated else None)

    def speed(self, y: Vector) -> float:
        """The norm of that velocity."""
        if self.system.knows_speed:
            return self.system.speed(y)
        self.rhs(y, self._velocity)
        return float(np.sqrt(squared_norm(self._velocity)))

    def jvp(self, y: Vector, v: Vector, out: Vector) -> None:
        self.system.jvp(y, v, out)

    def jacobian(self, y: Vector) -> np.ndarray:
        return self.system.jacobian(y)

    def shares(self, y: Vector) -> Shares | None:
        """Every gate's share at a state: 0, 1, or between them while it slides."""
        if not self.gated:
            return None
        if not self.units:
            return self.on
        u = self.on.copy()
        u[list(self.sliding)] = self._combined(y, self.on, self.sliding)[1]
        return u

    def distances(self, y: Vector, u: Shares | None) -> Float[np.ndarray, "gate"]:
        """How far each gate is from a switch: its guard, or its share's distance to 0 and 1."""
        if not self.gated:
            return np.empty(0)
        assert u is not None
        d = (2.0 * self.on - 1.0) * self.system.guards(y)
        at = list(self.sliding)
        d[at] = np.minimum(u[at], 1.0 - u[at])
        return d

    def begin(self, y: Vector) -> str | None:
        """The mode at a start; a sentence where there is none."""
        if not self.gated:
            return None
        guards = self.system.guards(y)
        self.on, self.units = (guards > 0) * 1.0, []
        near = tuple(np.flatnonzero(np.abs(guards) <= SURFACE_TOLERANCE).tolist())
        return self._settle(y, [near] if near else [])

    def switch(self, y: Vector, hit: Sequence[int]) -> str | None:
        """Go over to the mode behind a switch of the gates `hit`; a sentence if none fits."""
        sliding = self.sliding
        u = self.shares(y)
        assert u is not None
        leaving = [i for i in hit if i in sliding]
        if leaving:
            self._leave(u, leaving)
            if not set(hit) - set(sliding):
                return None
        d = self.distances(y, self.shares(y))
        free = [i for i in range(len(d)) if i not in sliding]
        near = {i for i in free if d[i] <= SURFACE_TOLERANCE} | (set(hit) - set(sliding))
        return self._settle(y, [*self.units, tuple(sorted(near))])

    def changes(self, t: float, before: Shares, slid: Sequence[int]) -> list[Event]:
        """The events of a switch: a gate's name (+1 on, -1 off), `sliding NAME` (+1, -1)."""
        after, found = self.sliding, []
        for i, name in enumerate(self.names):
            if (i in after) != (i in slid):
                found.append(Event(f"sliding {name}", t, 1 if i in after else -1, i))
            elif before[i] != self.on[i]:
                found.append(Event(name, t, 1 if before[i] == 0 else -1, i))
        return found

    def note(self, begins: float, ends: float, first: Shares | None, last: Shares | None) -> None:
        """Keep a stretch of the present mode, with the shares at its two ends."""
        if self.gated and first is not None and last is not None:
            slide = np.zeros(len(self.on))
            slide[list(self.sliding)] = 1.0
            self.modes.append((begins, ends, *self.on, *slide, *first, *last))

    def listed(self) -> tuple[Mode, ...]:
        """The stretches so far."""
        n, names, found = len(self.on), self.names, []
        for begins, ends, *rest in self.modes:
            on, slide, first, last = (np.array(rest[k * n : (k + 1) * n]) for k in range(4))
            at = np.flatnonzero(slide).tolist()
            found.append(
                Mode(
                    float(begins),
                    float(ends),
                    tuple(((on > 0) & (slide == 0)).tolist()),
                    tuple(names[i] for i in at),
                    tuple((float(first[i]), float(last[i])) for i in at),
                )
            )
        return tuple(found)

    def save(self) -> dict[str, np.ndarray]:
        """The mode, for a checkpoint."""
        if not self.gated:
            return {}
        unit = np.full(len(self.on), -1.0)
        for k, members in enumerate(self.units):
            unit[list(members)] = k
        width = 2 + 4 * len(self.on)
        table = np.array(self.modes, dtype=float).reshape(-1, width)
        return {"gates.on": self.on, "gates.unit": unit, "gates.modes": table}

    def load(self, arrays: Any) -> None:
        if not self.gated:
            return
        unit = np.asarray(arrays["gates.unit"])
        self.on = np.array(arrays["gates.on"], dtype=float)
        count = int(unit.max(initial=-1)) + 1
        self.units = [tuple(np.flatnonzero(unit == k).tolist()) for k in range(count)]
        self.modes = [tuple(row) for row in np.asarray(arrays["gates.modes"]).tolist()]

    def _settle(self, y: Vector, units: Units) -> str | None:
        """Find the mode in which every gate on its surface goes where it says, or stays."""
        units = [unit for unit in units if unit]
        if not units:
            return None
        for split in (units, [(i,) for unit in units for i in unit]):
            # Crossing first, then sliding, then turning back; what slid goes on sliding first.
            choices = [
                ("slide", "on", "off") if unit in self.units else ("flip", "slide", "stay")
                for unit in split
            ]
            if len(split) <= 6:
                for choice in product(*choices):
                    if self._consistent(y, split, choice):
                        return None
        names = ", ".join(self.names[i] for unit in units for i in unit)
        return f"no field is consistent where these gates meet: {names}."

    def _consistent(self, y: Vector, units: Units, choice: Sequence[str]) -> bool:
        on = self.on.copy()
        slide = [u for u, c in zip(units, choice, strict=True) if c == "slide"]
        for unit, c in zip(units, choice, strict=True):
            at = list(unit)
            if c == "flip":
                on[at] = 1.0 - on[at]
            elif c in ("on", "off"):
                on[at] = 1.0 if c == "on" else 0.0
        at = tuple(i for unit in slide for i in unit)
        v, share = self._combined(y, on, at)
        if not ((share >= -SHARE_TOLERANCE) & (share <= 1 + SHARE_TOLERANCE)).all():
            return False
        rate = self.system.guard_rate(y, v)
        # Where every gate slides all of `rate` is rounding: its size is that of the field beside.
        beside = self.system.guard_rate(y, self._combined(y, on, ())[0])
        slack = SHARE_TOLERANCE * max(
            np.abs(rate).max(initial=0.0), np.abs(beside).max(initial=0.0)
        )
        for unit in units:
            for i in unit:
                away = abs(rate[i]) if unit in slide else rate[i] * (1 - 2 * on[i])
                if not away <= slack:
                    return False
        on[list(at)] = 0.0
        self.on, self.units = on, slide
        return True

    def _combined(
        self, y: Vector, on: Shares, slide: tuple[int, ...]
    ) -> tuple[Vector, Float[np.ndarray, "sliding"]]:
        """Filippov's velocity with the gates `slide` on their surfaces, and their shares."""
        at = list(slide)
        u = on.copy()
        u[at] = 0.0
        off = np.empty(self.size)
        self.system.rhs(y, off, u)
        if not at:
            return off, np.empty(0)
        steps = np.empty((len(at), self.size))
        for row, i in zip(steps, at, strict=True):
            u[i] = 1.0
            self.system.rhs(y, row, u)
            u[i] = 0.0
        steps -= off
        rate = self.system.guard_rate(y, off)[at]
        rates = np.array([self.system.guard_rate(y, step)[at] for step in steps])
        share = np.linalg.pinv(rates.T, rtol=SHARE_TOLERANCE) @ -rate
        return off + share @ steps, share

    def _leave(self, u: Shares, leaving: Sequence[int]) -> None:
        """A share reached 0 or 1: the gates of its unit are off or on, others go on sliding."""
        stay = []
        for unit in self.units:
            at = list(unit)
            if set(at) & set(leaving):
                self.on[at] = (u[at] > 0.5) * 1.0
            else:
                stay.append(unit)
        self.units = stay
