"""One flow: velocities on pytrees, solved by ODE engines or discrete optimisers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnflow.flows.discrete import Adam, Descent, GradientDescent, Momentum, descend
    from attnflow.flows.driver import integrate
    from attnflow.flows.flow import Flow, FlowLike, System
    from attnflow.flows.gated import integrate_gated
    from attnflow.flows.gates import GatedFlow, GatedSolution
    from attnflow.flows.layout import Layout
    from attnflow.flows.probes import Mark, Observable
    from attnflow.flows.quadratic import quadratic_invariants
    from attnflow.flows.schedule import Every, Linear, Log
    from attnflow.flows.sinks import Event
    from attnflow.flows.solution import Solution, Status
    from attnflow.flows.staging import Phase, StagedSolution, staged
    from attnflow.flows.starts import gaussian

# Imported on first use: `attnflow.flows.sinks` must be importable without JAX.
_HOME = {
    "Flow": "flow",
    "FlowLike": "flow",
    "System": "flow",
    "Layout": "layout",
    "integrate": "driver",
    "Observable": "probes",
    "Mark": "probes",
    "Every": "schedule",
    "Linear": "schedule",
    "Log": "schedule",
    "Event": "sinks",
    "Solution": "solution",
    "Status": "solution",
    "descend": "discrete",
    "Descent": "discrete",
    "GradientDescent": "discrete",
    "Momentum": "discrete",
    "Adam": "discrete",
    "quadratic_invariants": "quadratic",
    "gaussian": "starts",
    "GatedFlow": "gates",
    "GatedSolution": "gates",
    "integrate_gated": "gated",
    "Phase": "staging",
    "StagedSolution": "staging",
    "staged": "staging",
}

__all__ = [
    "Adam",
    "Descent",
    "Event",
    "Every",
    "Flow",
    "FlowLike",
    "GatedFlow",
    "GatedSolution",
    "GradientDescent",
    "Layout",
    "Linear",
    "Log",
    "Mark",
    "Momentum",
    "Observable",
    "Phase",
    "Solution",
    "StagedSolution",
    "Status",
    "System",
    "descend",
    "gaussian",
    "integrate",
    "integrate_gated",
    "quadratic_invariants",
    "staged",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
