"""Claims of the study of leading terms: what the paper states, measured here.

What holds for any corpus is measured on small synthetic ones (`common.small`, `common.middle`,
`common.large`), whatever the config's text; what is said about trained models on the config's own.
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in, hand_solved
from attnflow.studies.leading_terms.paper import paper

SECTIONS = (
    "definitions",  # Section 4, Appendix A
    "gradients",  # Lemmas 1.1, D.2, D.7
    "steps",  # the first steps, Appendix D.1
    "theorem",  # Theorem 4.1, bounds and their induction
    "gaussian",  # the start of the theorem
    "experiments",  # Section 5, Appendix B
    "orders",  # beyond the paper: next orders
    "expansions",  # beyond the paper: the general lens on flows solved by hand
    "limits",  # beyond the paper: nulls, breakdown, sampling
    "measures",  # beyond the paper: what a run measures, by hand
    "counting",  # beyond the paper: words, windows, built-in stories
    "optimisers",  # beyond the paper: Adam, schedules
)
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    modules = (import_module(f"{__name__}.{section}") for section in SECTIONS)
    return (*claims_in(*modules), *hand_solved(paper))
