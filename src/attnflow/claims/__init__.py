"""Claims: every statement of a paper as a prediction, a measurement, a control and a verdict.

A claim is a function of a study that returns a `Measurement`; the `Ledger` checks many of them
and prints, saves and exports the rows. A check that could not have failed is a defect, not a
verdict.
"""

from attnflow.claims.claim import Claim, ClaimDefect, claim, claims_of
from attnflow.claims.evidence import Correction, corrected, refuted, run_snippet
from attnflow.claims.fit import Line, exponent, fit_line, slope, statistical
from attnflow.claims.ledger import Ledger
from attnflow.claims.measure import (
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
from attnflow.claims.row import Row
from attnflow.claims.verdict import Cause, Citation, Part, Regime, Strength, Verdict

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
