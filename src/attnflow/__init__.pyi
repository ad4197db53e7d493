"""The public names, once: `__init__.py` loads each of them on first use (lazy_loader)."""

from . import (
    checkpoints as checkpoints,
    claims as claims,
    corpus as corpus,
    draw as draw,
    expand as expand,
    flows as flows,
    linearise as linearise,
    models as models,
    observe as observe,
    reduce as reduce,
    report as report,
    runs as runs,
    studies as studies,
    tasks as tasks,
)
from ._errors import InputError as InputError
from .expand import series as series
from .flows import (
    Adam as Adam,
    Flow as Flow,
    GradientDescent as GradientDescent,
    Limits as Limits,
    Mark as Mark,
    Momentum as Momentum,
    Phase as Phase,
    Solution as Solution,
    Solver as Solver,
    Store as Store,
    descend as descend,
    gaussian as gaussian,
    integrate as integrate,
)
from .linearise import (
    critical_point as critical_point,
    saddle_ledger as saddle_ledger,
    spectrum as spectrum,
)
from .reduce import (
    GramFlow as GramFlow,
    ManifoldFlow as ManifoldFlow,
    OrbitFlow as OrbitFlow,
    gram as gram,
    verify as verify,
)
from .runs import Run as Run, compare as compare, open_run as open_run
from .studies import register as register
from .studies.study import Study as Study
from .walk import check as check, ensemble as ensemble, run as run

__version__: str
