"""Laws of data: an exact population and a sampler of the same law."""

from attnflow.tasks.markov import MarkovChain

__all__ = ["MarkovChain"]
