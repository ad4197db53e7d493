"""Flows at infinite width in ten numbers, solved without compilation.

The same flow as `SymmetricFlow.gated`, from switch to switch of its gates; `integrate_gated` is
the general solver, needed where a gate slides (`Sliding` says so). Here a whole run takes a tenth
of a second, so that scans, predictions and claims can afford it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from attnflow.models.two_head import namespace
from attnflow.models.two_head_reduced import SymmetricFlow, symmetric_flow
from attnflow.tasks.mixture import MixtureClassification

HALF = float(np.log(2) / 2)
"""Half of the loss at the start."""

Ten = Float[np.ndarray, "10"]


class Sliding(Exception):
    """A gate neither closes nor opens: the exact flow slides on its surface."""

    def __init__(self, time: float, gate: str, state: dict[str, np.ndarray]):
        self.time, self.gate, self.state = time, gate, state
        super().__init__(f"the gate {gate} slides from t = {time:.6g} on")


@dataclass(frozen=True)
class Switch:
    """A gate that went on or off; the gate is that of a representative, with label +1."""

    gate: str
    time: float
    on: bool


@dataclass(frozen=True)
class Path:
    """A solved stretch: states at the solver's own steps, switches, and the marks that were met."""

    flow: SymmetricFlow
    time: np.ndarray
    states: np.ndarray
    switches: tuple[Switch, ...] = ()
    marks: Mapping[str, float] = field(default_factory=dict)
    _pieces: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def end(self) -> float:
        return float(self.time[-1])

    @property
    def final(self) -> dict[str, np.ndarray]:
        return unpack(self.states[-1])

    def at(self, time: float) -> dict[str, np.ndarray]:
        """The state at a time, by the solver's own interpolant."""
        i = int(np.searchsorted([p.t_max for p in self._pieces], time))
        return unpack(self._pieces[min(i, len(self._pieces) - 1)](time))

    def series(self, measure: Callable[[dict[str, np.ndarray]], Any]) -> np.ndarray:
        """A function of the state along the steps."""
        return np.array([measure(unpack(y)) for y in self.states])


def pack(state: Mapping[str, Any]) -> Ten:
    return np.concatenate([np.ravel(state[n]) for n in ("w", "S_sum", "S_diff")])


def unpack(y: Ten) -> dict[str, np.ndarray]:
    return {"w": y[:2], "S_sum": y[2:6].reshape(2, 2), "S_diff": y[6:].reshape(2, 2)}


def main_score(state: Mapping[str, Any], groups: int) -> Any:
    """`c_1' S v_1` of the plus head: the diagonal of the block (key c, query v)."""
    return ((groups - 1) * state["S_diff"][0, 1] + state["S_sum"][0, 1]) / groups


def other_score(state: Mapping[str, Any], groups: int) -> Any:
    """`c_1' S v_2` of the plus head."""
    return (state["S_sum"][0, 1] - state["S_diff"][0, 1]) / groups


def solve(
    flow: SymmetricFlow,
    start: Mapping[str, Any],
    until: float,
    *,
    train: Sequence[str] = ("neurons", "attention"),
    marks: Mapping[str, tuple[Callable[[dict[str, np.ndarray]], float], float]] | None = None,
    stop: str | None = None,
    rtol: float = 1e-8,
) -> Path:
    """Solve from switch to switch; `marks` are names with a function and its level.

    `train` names what moves. The first crossing of each mark is kept; that of `stop` ends it.
    """
    marks = dict(marks or {})
    moving = np.repeat([part in train for part in ("neurons", "attention")], [2, 8])
    gates = (flow.gate_values(start) > 0).astype(float)
    names = flow.gated.names(gates.size)
    memo: list[Any] = [None, None]

    def heights(y: Ten) -> np.ndarray:
        if memo[0] is None or not np.array_equal(memo[0], y):
            memo[:] = [y.copy(), flow.gate_values(unpack(y)).ravel()]
        return memo[1]

    def field_of(held: np.ndarray) -> Callable[[float, Ten], Ten]:
        return lambda t, y: np.where(moving, pack(flow._velocity(unpack(y), None, held)), 0.0)

    t, y = 0.0, pack(start)
    met: dict[str, float] = {}
    times, rows, switches, pieces = [np.zeros(1)], [y[None]], [], []
    while t < until:
        sides = np.where(gates.ravel() > 0, 1.0, -1.0)
        watch = [event_of(lambda y, i=i, s=s: s * heights(y)[i], -1) for i, s in enumerate(sides)]
        wanted = [name for name in marks if name not in met]
        for name in wanted:
            measure, level = marks[name]
            watch.append(
                event_of(lambda y, m=measure, c=level: m(unpack(y)) - c, 0, ends=name == stop)
            )
        found = solve_ivp(
            field_of(gates),
            (t, until),
            y,
            method="DOP853",
            rtol=rtol,
            atol=rtol * flow.omega**2,
            events=watch,
            dense_output=True,
        )
        if found.status < 0:
            raise RuntimeError(f"solve at t = {found.t[-1]:.6g}: {found.message}")
        for name, at in zip(wanted, found.t_events[gates.size :], strict=True):
            if len(at):
                met[name] = float(at[0])
        times.append(found.t[1:])
        rows.append(found.y.T[1:])
        pieces.append(found.sol)
        t, y = float(found.t[-1]), found.y[:, -1].copy()
        if found.status == 0 or (stop in met and met[stop] >= t):
            break
        hit = [i for i in range(gates.size) if len(found.t_events[i])]
        near = np.flatnonzero(np.abs(heights(y)) < 1e-9)
        gates = gates.copy()
        for i in {*hit, *near.tolist()}:
            gates.flat[i] = 1 - gates.flat[i]
            switches.append(Switch(names[i], t, bool(gates.flat[i])))
        _crosses(field_of(gates), heights, y, gates, [*hit], names, t)
    return Path(
        flow, np.concatenate(times), np.concatenate(rows), tuple(switches), met, tuple(pieces)
    )


def event_of(function: Callable[[Any], float], direction: int, ends: bool = True) -> Any:
    """An event of `solve_ivp`; `ends` where it is terminal."""

    def event(t: float, y: np.ndarray) -> float:
        return float(function(y))

    event.terminal, event.direction = ends, direction  # type: ignore[attr-defined]
    return event


def _crosses(velocity: Any, heights: Any, y: Ten, gates: Any, hit: Any, names: Any, t: float):
    """Whether the field behind the switch leads away from it; else the flow slides."""
    v = velocity(t, y)
    step = 1e-7 / max(float(np.linalg.norm(v)), 1e-300)
    rate = heights(y + step * v) - heights(y - step * v)
    for i in hit:
        if rate[i] * (1 if gates.flat[i] else -1) < 0:
            raise Sliding(t, names[i], unpack(y))


def joint(
    task: MixtureClassification,
    omega: float,
    bias: float,
    until: float,
    *,
    loss: float | None = None,
    rtol: float = 1e-8,
) -> Path:
    """All weights by gradient flow; marks `half d` where the loss given d falls to ln2 / 2.

    With `loss` the solve ends where the population loss has fallen to it.
    """
    flow = symmetric_flow(task.orbits, omega, bias)
    marks: dict[str, Any] = {
        f"half {d}": ((lambda s, i=i: flow.group_losses(s)[i]), HALF)
        for i, d in enumerate(task.orbits.agreements)
    }
    if loss is not None:
        marks["loss"] = flow.loss_of, loss
    return solve(
        flow, flow.start, until, marks=marks, stop=None if loss is None else "loss", rtol=rtol
    )


@functools.lru_cache(maxsize=64)
def learning(groups: int, omega: float, bias: float) -> Path:
    """The joint flow of K groups (L = 3) until its loss is .05."""
    task = MixtureClassification(groups, 3)
    return joint(task, omega, bias, 1500.0 * groups, loss=0.05, rtol=1e-7)


def features(flow: SymmetricFlow, state: Mapping[str, Any]) -> Float[np.ndarray, "head sample 2"]:
    """Phi: `H_h(X) = Phi_h(X) . (gamma, a)`, the attention feature along c and along v."""
    t = flow.tables
    seen = flow.attention(state).sum(axis=3) * t.value_sign
    return np.stack([(seen * (t.value_at == kind)).sum(axis=2) for kind in (0, 1)], axis=-1)


def powers(flow: SymmetricFlow, state: Mapping[str, Any]) -> tuple[Any, Any]:
    """`|grad_w L|^2` and `|grad_att L|^2`, the parts of `-dL/dt`; traceable.

    A number of w stands for K entries in each head; the sum sector of a matrix is one symmetric
    direction of the groups, the difference sector K - 1 of them. `|grad_att|^2 = <M, S'>`.
    """
    K, v = flow.groups, flow._velocity(dict(state))
    total, diff = forces(flow, state)
    attention = (total * v["S_sum"]).sum() + (K - 1) * (diff * v["S_diff"]).sum()
    return 2 * K * (v["w"] ** 2).sum(), 2 * attention


def forces(flow: SymmetricFlow, state: Mapping[str, Any]) -> tuple[Any, Any]:
    """M = -dL/dS in the sum sector and in the difference sector, 2 x 2 each."""
    K = flow.groups
    off = (state["S_sum"] - state["S_diff"]) / K
    numbers = namespace(off).stack([state["S_diff"] + off, off]).reshape(-1)
    M = flow.tables.forces(state["w"], numbers, flow.bias)[1].reshape(2, 2, 2) / (2 * K)
    return M[0] + M[1], M[0] - M[1] / (K - 1)


def meeting(flow: SymmetricFlow, until: float) -> tuple[float, np.ndarray, str]:
    """Where the joint flow first meets a gate from both sides, or else its last switch.

    Returns the time, the gate's rate `d(H + b)/dt` while on and while off, and its name. The flow
    slides where the first is negative and the second positive.
    """
    try:
        path = solve(flow, flow.start, until)
    except Sliding as met:
        time, gate, state = met.time, met.gate, met.state
    else:
        time, gate = path.switches[-1].time, path.switches[-1].gate
        state = path.at(time)
    y = pack(state)
    index = flow.gated.names(2 * len(flow.population)).index(gate)
    gates = (flow.gate_values(unpack(y)) > 0).astype(float)
    rates = []
    for on in (1.0, 0.0):
        gates.flat[index] = on
        v = pack(flow._velocity(unpack(y), None, gates))
        step = 1e-6 / float(np.linalg.norm(v))
        ahead, behind = (flow.gate_values(unpack(y + s * step * v)).flat[index] for s in (1, -1))
        rates.append(float(ahead - behind) / (2 * step))
    return time, np.array(rates), gate
