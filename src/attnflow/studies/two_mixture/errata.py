"""What is wrong in the paper, once for all the rows that show it."""

from attnflow.claims import Erratum

QUARTER = Erratum(
    "quarter", "the weight 1/4 of a sample in the population loss is missing", cause="constant"
)

CONSTRUCTION = Erratum(
    "construction",
    "the transformer that Lemma 6.1 prints has f = +1 on every sample",
    cause="false",
)
BERNSTEIN = Erratum(
    "bernstein",
    "the second form of Bernstein's bound needs t^2/(4V) for t^2/(2V)",
    cause="constant",
)
DOUBLED = Erratum(
    "doubled-at-t1",
    "near symmetry is applied at T1, where the products that it makes equal are still 0",
    cause="missing-hypothesis",
)
DIAGONAL = Erratum(
    "diagonal-at-t1",
    "the squared norms of keys and queries are omega^2 at T1, not 0",
    cause="false",
)
MINUS_HEAD = Erratum(
    "minus-head",
    "the terms of the minus head's classification signals have the opposite sign",
    cause="sign",
)
