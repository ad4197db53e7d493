"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .contexts import Contexts as Contexts
from .cooccurrence import Sentences as Sentences, WordCooccurrence as WordCooccurrence
from .laws import (
    chain_of as chain_of,
    exponential_law as exponential_law,
    perturbed_law as perturbed_law,
    two_group_law as two_group_law,
)
from .markov import MarkovChain as MarkovChain
from .mixture import (
    MixtureClassification as MixtureClassification,
    MixturePopulation as MixturePopulation,
)
from .random_chains import RandomChains as RandomChains
from .regression import InContextRegression as InContextRegression
