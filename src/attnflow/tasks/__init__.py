"""Laws of data: an exact population or exact moments, and a sampler of the same law."""

from attnflow.tasks.contexts import Contexts
from attnflow.tasks.cooccurrence import Sentences, WordCooccurrence
from attnflow.tasks.laws import chain_of, exponential_law, perturbed_law, two_group_law
from attnflow.tasks.markov import MarkovChain
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation
from attnflow.tasks.random_chains import RandomChains
from attnflow.tasks.regression import InContextRegression

__all__ = [
    "Contexts",
    "InContextRegression",
    "MarkovChain",
    "MixtureClassification",
    "MixturePopulation",
    "RandomChains",
    "Sentences",
    "WordCooccurrence",
    "chain_of",
    "exponential_law",
    "perturbed_law",
    "two_group_law",
]
