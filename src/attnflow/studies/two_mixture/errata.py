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
