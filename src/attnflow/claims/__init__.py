"""Claims: every statement of a paper as a prediction, a measurement, a control and a verdict.

A claim is a function of a study that returns a `Measurement`; the `Ledger` checks many of them
and prints, saves and exports the rows. A check that could not have failed is a defect, not a
verdict.
"""

from attnflow.claims.against import against, compared
from attnflow.claims.claim import Claim, ClaimDefect
from attnflow.claims.control import Control, Countercheck
from attnflow.claims.evidence import (
    Correction,
    Erratum,
    corrected,
    not_reproduced,
    observed,
    refuted,
    run_snippet,
)
from attnflow.claims.fit import Line, fit_line, order, slope, statistical
from attnflow.claims.ledger import Ledger
from attnflow.claims.measure import (
    Measurement,
    always,
    at_least,
    at_most,
    equal,
    every,
    fact,
    identity,
    monotone,
    not_checkable,
    sign,
)
from attnflow.claims.once import once
from attnflow.claims.paper import Paper, claims_in
from attnflow.claims.regime import Condition, Regime, condition
from attnflow.claims.row import Row
from attnflow.claims.verdict import Cause, Citation, Part, Strength, Verdict

__all__ = [
    "Cause",
    "Citation",
    "Claim",
    "ClaimDefect",
    "Condition",
    "Control",
    "Correction",
    "Countercheck",
    "Erratum",
    "Ledger",
    "Line",
    "Measurement",
    "Paper",
    "Part",
    "Regime",
    "Row",
    "Strength",
    "Verdict",
    "against",
    "always",
    "at_least",
    "at_most",
    "claims_in",
    "compared",
    "condition",
    "corrected",
    "equal",
    "every",
    "fact",
    "fit_line",
    "identity",
    "monotone",
    "not_checkable",
    "not_reproduced",
    "observed",
    "once",
    "order",
    "refuted",
    "run_snippet",
    "sign",
    "slope",
    "statistical",
]
