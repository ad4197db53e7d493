# ruff: noqa: F401  (the names are exported below, on first use)
"""One flow: velocities on pytrees, solved by ODE engines or discrete optimisers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnflow.flows.discrete import Adam, GradientDescent, Momentum, Optimiser, descend
    from attnflow.flows.driver import integrate
    from attnflow.flows.flow import Flow, FlowLike, System
    from attnflow.flows.gates import Mode
    from attnflow.flows.layout import Layout
    from attnflow.flows.options import Limits, Solver, Store
    from attnflow.flows.phases import Phase
    from attnflow.flows.probes import Mark, Observable
    from attnflow.flows.quadratic import quadratic_invariants
    from attnflow.flows.schedule import Every, Linear, Log
    from attnflow.flows.sinks import Event
    from attnflow.flows.solution import Solution, Status
    from attnflow.flows.starts import gaussian

# Imported on first use: `attnflow.flows.sinks` must be importable without JAX.
_ROOMS = {
    "discrete": "Adam GradientDescent Momentum Optimiser descend",
    "driver": "integrate",
    "flow": "Flow FlowLike System",
    "gates": "Mode",
    "layout": "Layout",
    "options": "Limits Solver Store",
    "phases": "Phase",
    "probes": "Mark Observable",
    "quadratic": "quadratic_invariants",
    "schedule": "Every Linear Log",
    "sinks": "Event",
    "solution": "Solution Status",
    "starts": "gaussian",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
