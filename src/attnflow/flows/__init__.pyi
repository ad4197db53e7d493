"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .discrete import (
    Adam as Adam,
    GradientDescent as GradientDescent,
    Momentum as Momentum,
    Optimiser as Optimiser,
    descend as descend,
)
from .driver import integrate as integrate
from .flow import Flow as Flow, FlowLike as FlowLike, System as System
from .gates import Mode as Mode
from .layout import Layout as Layout
from .options import Limits as Limits, Solver as Solver, Store as Store
from .phases import Phase as Phase
from .probes import Mark as Mark, Observable as Observable
from .quadratic import quadratic_invariants as quadratic_invariants
from .schedule import Every as Every, Linear as Linear, Log as Log
from .sinks import Event as Event
from .solution import Solution as Solution, Status as Status
from .starts import gaussian as gaussian
