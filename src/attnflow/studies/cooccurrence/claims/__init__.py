"""Claims of the co-occurrence study: what the paper states, measured here.

The theorems are measured on the config's own words at widths that Condition 1 allows
(`common.in_regime`); orders in the width on a family of runs with few samples (`common.family`).
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in, hand_solved
from attnflow.studies.cooccurrence.paper import paper

SECTIONS = (
    "population",  # Section 2
    "theorems",  # 3
    "lemmas",  # 4
    "experiment",  # Appendix A
    "gradients",  # B, C
    "initial",  # D
    "closures",  # beyond the paper
    "early_phase",  # E.3 to E.13
    "end_of_phase_1",  # to E.28
    "late_phase",  # F.2 to F.11
    "attention_in_phase_2",  # to F.20
    "concentration",  # G, H
    "limits",  # beyond the paper
    "runs",
)
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    places = (*(f"{__name__}.{section}" for section in SECTIONS), "attnflow.claims.closures")
    # The MLP is linear: nothing here has gates.
    instruments = hand_solved(paper, uses=("solves", "descents", "kept"))
    return (*claims_in(*map(import_module, places)), *instruments)
