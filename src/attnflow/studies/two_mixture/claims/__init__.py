"""Claims of the two-mixture study: what the paper states, measured here.

Statements about K = 2, L = 3 and infinite width are measured there with the config's bias, omega,
T1 and stop of stage 2 (`common`), and are out of regime for other K and L.
"""

from importlib import import_module

from attnflow.claims import Claim, claims_in, hand_solved
from attnflow.studies.two_mixture.paper import paper

STATED = "setting gradients symmetry stage_one separability stage_two near_symmetry signs attention"
SECTIONS = f"{STATED} expanded stage_three construction experiments sliding width".split()
"""In the order of the paper, which is the order of the ledger; what is ours alone near the end."""


def everything() -> tuple[Claim, ...]:
    """All claims of the study."""
    places = (*(f"{__name__}.{section}" for section in SECTIONS), "attnflow.claims.closures")
    return (*claims_in(*map(import_module, places)), *hand_solved(paper))
