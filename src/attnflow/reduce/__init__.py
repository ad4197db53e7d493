"""The reducing lens: which few numbers carry a flow exactly? Every answer is a flow again."""

from attnflow.reduce.columns import Gram, gram
from attnflow.reduce.gram_descent import Descents, gram_descent
from attnflow.reduce.gram_flow import GramFlow
from attnflow.reduce.manifold import Foot, ManifoldFlow
from attnflow.reduce.orbits import OrbitFlow
from attnflow.reduce.reduction import Reduction
from attnflow.reduce.verify import Verification, verify

__all__ = [
    "Descents",
    "Foot",
    "Gram",
    "GramFlow",
    "ManifoldFlow",
    "OrbitFlow",
    "Reduction",
    "Verification",
    "gram",
    "gram_descent",
    "verify",
]
