"""attnflow: a laboratory for how attention is learned.

One flow, four lenses: integrate it, linearise it, reduce it, expand it. The papers are studies.

>>> import attnflow as af
>>> run = af.run("focus-dilution", pi=(0.6, 0.3, 0.1), until=500)
>>> run.trajectory["loss"]; run.stages; run.claims
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnflow import claims, models, observe, tasks
    from attnflow.claims import Ledger, Verdict, claim
    from attnflow.expand import descent_series, series
    from attnflow.flows import (
        Adam,
        Every,
        Flow,
        GradientDescent,
        Limits,
        Linear,
        Log,
        Mark,
        Momentum,
        Observable,
        Phase,
        Solution,
        Solver,
        Status,
        Store,
        descend,
        gaussian,
        integrate,
        quadratic_invariants,
    )
    from attnflow.linearise import (
        continue_branch,
        critical_point,
        lyapunov_schmidt,
        saddle_ledger,
        spectrum,
    )
    from attnflow.reduce import GramFlow, ManifoldFlow, OrbitFlow, gram, verify
    from attnflow.runs import Run, compare, list_runs, open_run
    from attnflow.studies import register
    from attnflow.studies.study import Study
    from attnflow.tasks import MarkovChain, MixtureClassification
    from attnflow.walk import Outcome, check, ensemble, run

# On first use, so that `import attnflow` and `attnflow --help` load neither JAX nor SciPy.
_HOME = {
    **dict.fromkeys(
        (
            "Adam",
            "Every",
            "Flow",
            "GradientDescent",
            "Limits",
            "Linear",
            "Log",
            "Mark",
            "Momentum",
            "Observable",
            "Phase",
            "Solution",
            "Solver",
            "Status",
            "Store",
            "descend",
            "gaussian",
            "integrate",
            "quadratic_invariants",
        ),
        "attnflow.flows",
    ),
    **dict.fromkeys(
        ("continue_branch", "critical_point", "lyapunov_schmidt", "saddle_ledger", "spectrum"),
        "attnflow.linearise",
    ),
    **dict.fromkeys(("GramFlow", "ManifoldFlow", "OrbitFlow", "gram", "verify"), "attnflow.reduce"),
    **dict.fromkeys(("descent_series", "series"), "attnflow.expand"),
    **dict.fromkeys(("Ledger", "Verdict", "claim"), "attnflow.claims"),
    **dict.fromkeys(("Run", "compare", "list_runs", "open_run"), "attnflow.runs"),
    **dict.fromkeys(("Outcome", "check", "ensemble", "run"), "attnflow.walk"),
    "register": "attnflow.studies",
    "Study": "attnflow.studies.study",
    "MarkovChain": "attnflow.tasks",
    "MixtureClassification": "attnflow.tasks",
}
_ROOMS = (
    "claims",
    "expand",
    "flows",
    "linearise",
    "models",
    "observe",
    "reduce",
    "report",
    "runs",
    "studies",
    "tasks",
)

__all__ = [
    "Adam",
    "Every",
    "Flow",
    "GradientDescent",
    "GramFlow",
    "InputError",
    "Ledger",
    "Limits",
    "Linear",
    "Log",
    "ManifoldFlow",
    "Mark",
    "MarkovChain",
    "MixtureClassification",
    "Momentum",
    "Observable",
    "OrbitFlow",
    "Outcome",
    "Phase",
    "Run",
    "Solution",
    "Solver",
    "Status",
    "Store",
    "Study",
    "Verdict",
    "check",
    "claim",
    "claims",
    "compare",
    "continue_branch",
    "critical_point",
    "descend",
    "descent_series",
    "ensemble",
    "gaussian",
    "gram",
    "integrate",
    "list_runs",
    "lyapunov_schmidt",
    "models",
    "observe",
    "open_run",
    "quadratic_invariants",
    "register",
    "run",
    "saddle_ledger",
    "series",
    "spectrum",
    "tasks",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return importlib.import_module(f"attnflow.{name}")
    raise AttributeError(f"module 'attnflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
