"""Claims of the two-mixture study: what the paper states, measured here.

Statements about K = 2, L = 3 and infinite width are measured there with the config's bias, omega,
T1 and stop of stage 2 (`common`), and are out of regime for other K and L.
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in

SECTIONS = (
    "setting",  # Sections 2 to 4
    "gradients",  # Appendix B
    "symmetry",  # Appendix C
    "stage_one",  # 5.1, Appendix D
    "separability",  # Lemma 5.4
    "stage_two",  # 5.2, Appendix E
    "near_symmetry",
    "signs",
    "attention",  # Thm. E.7, Thm. 4.1
    "expanded",  # Appendices E.5 to E.7
    "stage_three",  # Appendix F, Thm. 4.1 at T3
    "construction",  # Section 6, Lemma 6.1
    "experiments",  # Section 3.1, Appendix A, Observation 1
    "sliding",  # ours, L = 5
    "solves",  # ours, by hand
    "width",  # Appendices G, H
)
"""In the order of the paper, which is the order of the ledger."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    return claims_in(*(import_module(f"{__name__}.{section}") for section in SECTIONS))
