"""What every ledger rests on: solves and descents, on systems that are solved by hand.

Each system has one strength c. What is predicted is written out for it; the control is the same
system with another strength.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnflow.claims.claim import Claim
from attnflow.claims.control import Control
from attnflow.claims.instruments.descending import DESCENTS
from attnflow.claims.instruments.gating import GATES
from attnflow.claims.instruments.keeping import KEPT
from attnflow.claims.instruments.solving import SOLVES
from attnflow.claims.measure import Measurement, equal
from attnflow.claims.paper import Paper

INSTRUMENTS = {"solves": SOLVES, "gates": GATES, "descents": DESCENTS, "kept": KEPT}


def hand_solved(
    paper: Paper, uses: Sequence[str] = ("solves", "gates", "descents")
) -> tuple[Claim, ...]:
    """The claims about what a study `uses` of `integrate` and `descend`, for its ledger.

    `"solves"`, `"gates"` (ReLU gates that switch and slide), `"descents"`, and `"kept"`: what is
    stored, taken up again and told.
    """
    rows = {f"ours: {name}": row for use in uses for name, row in INSTRUMENTS[use].items()}

    @paper.family(rows, setting="a system solved by hand")
    def by_hand(study: Any, system: Any) -> Measurement:
        (known, found), there = system(2.0), system(2.5)[1]
        other = Control("another strength", measured=there)
        return equal(
            predicted=known, measured=found, rtol=1e-7, atol=1e-9, each=True, control=other
        )

    return tuple(replace(claim, section="Ours: the instruments") for claim in by_hand)
