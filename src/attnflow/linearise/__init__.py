"""Where a flow waits, and which mode frees it: critical points, spectra, escapes, branches."""

from attnflow.linearise.branch import Branch, continue_branch
from attnflow.linearise.ledger import Saddle, SaddleLedger, saddle_ledger
from attnflow.linearise.modes import Spectrum, spectrum
from attnflow.linearise.newton import CriticalPoint, critical_point

__all__ = [
    "Branch", "CriticalPoint", "Saddle", "SaddleLedger", "Spectrum", "continue_branch",
    "critical_point", "saddle_ledger", "spectrum",
]  # fmt: skip
