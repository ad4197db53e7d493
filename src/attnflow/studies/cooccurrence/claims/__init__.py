"""Claims of the co-occurrence study: what the paper states, measured here."""

from importlib import import_module

from attnflow.claims import Claim, claims_in

SECTIONS: tuple[str, ...] = ()
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    return claims_in(*(import_module(f"{__name__}.{section}") for section in SECTIONS))
