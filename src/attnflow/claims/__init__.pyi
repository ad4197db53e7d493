"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .claim import Claim as Claim, ClaimDefect as ClaimDefect
from .control import Control as Control, Countercheck as Countercheck
from .evidence import (
    Correction as Correction,
    Erratum as Erratum,
    corrected as corrected,
    not_reproduced as not_reproduced,
    observed as observed,
    refuted as refuted,
    run_snippet as run_snippet,
)
from .fit import (
    Line as Line,
    fit_line as fit_line,
    order as order,
    slope as slope,
    statistical as statistical,
)
from .instruments import hand_solved as hand_solved
from .ledger import Ledger as Ledger
from .measure import (
    Measurement as Measurement,
    always as always,
    at_least as at_least,
    at_most as at_most,
    equal as equal,
    every as every,
    fact as fact,
    identity as identity,
    monotone as monotone,
    not_checkable as not_checkable,
    sign as sign,
)
from .once import once as once
from .paper import Paper as Paper, claims_in as claims_in
from .regime import Condition as Condition, Regime as Regime, condition as condition
from .row import Row as Row
from .twice import against as against, compared as compared
from .verdict import (
    Cause as Cause,
    Citation as Citation,
    Part as Part,
    Strength as Strength,
    Verdict as Verdict,
)
