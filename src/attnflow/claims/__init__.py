"""Claims: every statement of a paper as a prediction, a measurement, a control and a verdict.

A claim is a function of a study that returns a `Measurement`; the `Ledger` checks many of them
and prints, saves and exports the rows. A check that could not have failed is a defect, not a
verdict.
"""

from .claim import Claim, ClaimDefect, claim, claims_of
from .evidence import Correction, corrected, refuted, run_snippet
from .fit import Line, exponent, fit_line, slope, statistical
from .ledger import Ledger
from .measure import (
    Control,
    Measurement,
    at_least,
    at_most,
    equal,
    every,
    fact,
    negative,
    not_checkable,
    positive,
)
from .row import Row
from .verdict import Cause, Citation, Part, Regime, Strength, Verdict

__all__ = [
    "Cause",
    "Citation",
    "Claim",
    "ClaimDefect",
    "Control",
    "Correction",
    "Ledger",
    "Line",
    "Measurement",
    "Part",
    "Regime",
    "Row",
    "Strength",
    "Verdict",
    "at_least",
    "at_most",
    "claim",
    "claims_of",
    "corrected",
    "equal",
    "every",
    "exponent",
    "fact",
    "fit_line",
    "negative",
    "not_checkable",
    "positive",
    "refuted",
    "run_snippet",
    "slope",
    "statistical",
]
