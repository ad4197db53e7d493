"""The names of this room, once: `__init__.py` loads each of them on first use."""

from .columns import Gram as Gram, gram as gram
from .gram_descent import Descents as Descents, gram_descent as gram_descent
from .gram_flow import GramFlow as GramFlow
from .manifold import Foot as Foot, ManifoldFlow as ManifoldFlow
from .orbits import OrbitFlow as OrbitFlow
from .reduction import Reduction as Reduction
from .verify import Verification as Verification, verify as verify
