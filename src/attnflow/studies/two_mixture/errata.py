"""What is wrong in the paper, once for all the rows that show it."""

from attnflow.claims import Erratum

QUARTER = Erratum("quarter", "the weight 1/4 of a sample in the population loss is missing", cause="constant")
