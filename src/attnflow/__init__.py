"""attnflow: a laboratory for how attention is learned.

One flow, four lenses: integrate it, linearise it, reduce it, expand it. The papers are studies.
The names below are the everyday ones; everything else is found in its room (`af.flows`, ...).

>>> import attnflow as af
>>> run = af.run("focus-dilution", pi=(0.6, 0.3, 0.1), until=100, claims=False)
>>> run.trajectory["attention"].dims
('time', 'query', 'key')
>>> [stage.name for stage in run.stages]
['condensation']
"""

import os

import lazy_loader

__version__ = "0.2.0"

# `__init__.pyi` is the table of public names. They load on first use: `import attnflow` and
# `attnflow --help` load neither JAX nor SciPy.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except AttributeError:
        # Asked for by tools, or by `from attnflow import walk`: nothing is loaded for them.
        here = os.path.join(__path__[0], name)
        known = name.startswith("_") or os.path.isdir(here) or os.path.isfile(here + ".py")
        found = "" if known else "".join(_places(name)[:1])
        raise AttributeError(f"module 'attnflow' has no attribute {name!r}{found}") from None


def _places(name: str) -> list[str]:
    """Which rooms have a name; a room's table is read, and none of its modules."""
    rooms = [room for room in __all__ if os.path.isdir(os.path.join(__path__[0], room))]
    tables = {room: getattr(_load(room), "__all__", ()) for room in rooms}
    return [f"; it is `attnflow.{room}.{name}`" for room in rooms if name in tables[room]]
