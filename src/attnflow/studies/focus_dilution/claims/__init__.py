"""Claims of the focus-dilution study: what the paper states, measured here.

Every claim of Sections 2 and 3 is about the exact population flow. Statements whose hypothesis is
a two-group law are measured on the two-group law with the config's own first entry
(`theory.two_group`), and the regime is evaluated on that law.
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in, hand_solved
from attnflow.studies.focus_dilution.paper import paper

SECTIONS = (
    "population",  # Section 2, Appendix B
    "origin",  # 3.1
    "unigram",  # 3.2
    "focus",
    "rank_one",  # 3.3
    "dilution",
    "symmetric",  # 3.4, Prop. 3.8
    "degenerate",  # 3.4, Appendix D
    "finite_eta",
    "degenerate_proofs",
    "degenerate_lemmas",
    "bilinear",
    "training",  # 4.1, Appendix E
    "cycles",
    "rules",  # ours
    "solves",
)
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    modules = (import_module(f"{__name__}.{section}") for section in SECTIONS)
    return (*claims_in(*modules), *hand_solved(paper))
