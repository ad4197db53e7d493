"""Claims of the co-occurrence study: what the paper states, measured here.

The theorems are measured on the config's own words at widths that Condition 1 allows
(`common.in_regime`); orders in the width on a family of runs with few samples (`common.family`).
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in

SECTIONS = (
    "population",  # Section 2
    "theorems",  # 3
    "lemmas",  # 4
    "experiment",  # Appendix A
    "gradients",  # B, C
    "initial",  # D
    "closures",  # beyond the paper
    "early_phase",  # E
    "late_phase",  # F
    "concentration",  # G, H
    "limits",  # beyond the paper
)
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    return claims_in(*(import_module(f"{__name__}.{section}") for section in SECTIONS))
