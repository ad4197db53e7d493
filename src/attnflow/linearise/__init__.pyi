"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .branch import Branch as Branch, continue_branch as continue_branch
from .ledger import saddle_ledger as saddle_ledger, trajectory_ledger as trajectory_ledger
from .lyapunov_schmidt import (
    LyapunovSchmidt as LyapunovSchmidt,
    lyapunov_schmidt as lyapunov_schmidt,
)
from .modes import Spectrum as Spectrum, spectrum as spectrum
from .newton import CriticalPoint as CriticalPoint, critical_point as critical_point
from .records import (
    SaddleLedger as SaddleLedger,
    SaddleTable as SaddleTable,
    SavedSaddles as SavedSaddles,
    Wait as Wait,
)
