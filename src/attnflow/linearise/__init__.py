"""Where a flow waits, and which mode frees it: critical points, spectra, escapes, branches."""

from attnflow.linearise.branch import Branch, continue_branch
from attnflow.linearise.ledger import saddle_ledger, trajectory_ledger
from attnflow.linearise.lyapunov_schmidt import LyapunovSchmidt, lyapunov_schmidt
from attnflow.linearise.modes import Spectrum, spectrum
from attnflow.linearise.newton import CriticalPoint, critical_point
from attnflow.linearise.records import SaddleLedger, SaddleTable, SavedSaddles, Wait

__all__ = [
    "Branch",
    "CriticalPoint",
    "LyapunovSchmidt",
    "SaddleLedger",
    "SaddleTable",
    "SavedSaddles",
    "Spectrum",
    "Wait",
    "continue_branch",
    "critical_point",
    "lyapunov_schmidt",
    "saddle_ledger",
    "spectrum",
    "trajectory_ledger",
]
