"""The names of this room, once: `__init__.py` loads each of them on first use."""

from ._library import Library as Library
from ._serve import Server as Server, serve as serve
