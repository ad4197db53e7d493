"""Claims of the focus-dilution study: what the paper states, measured here.

Every claim of Sections 2 and 3 is about the exact population flow. Statements whose hypothesis is
a two-group law are measured on the two-group law with the config's own first entry
(`theory.two_group`), and the regime is evaluated on that law.
"""

from attnflow.studies.focus_dilution.claims import origin, population, unigram

__all__ = ["origin", "population", "unigram"]
