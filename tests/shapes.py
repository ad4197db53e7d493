"""The type checker that the import hook of `conftest.py` puts on every function of the package.

It is beartype on the annotations that say a shape, and on nothing else. The scalars at the
borders (`until`, `engine`, `lam`, ...) are left to the package's own sentences, which beartype
would pre-empt, and protocols cannot be checked while running.
"""

from __future__ import annotations

import copy
import types
import typing
from typing import Any

import beartype
import jaxtyping


def checked(thing: Any, **options: Any) -> Any:
    """`thing`, with the shapes among its annotations checked at every call."""
    if not isinstance(thing, types.FunctionType):
        return beartype.beartype(thing)
    hints = {name: _hint(hint, thing) for name, hint in thing.__annotations__.items()}
    shapes = {name: hint for name, hint in hints.items() if _shaped(hint)}
    if not shapes:
        return thing
    bare = types.FunctionType(
        thing.__code__, thing.__globals__, thing.__name__, thing.__defaults__, thing.__closure__
    )
    bare.__kwdefaults__ = copy.copy(thing.__kwdefaults__)
    bare.__qualname__, bare.__module__ = thing.__qualname__, thing.__module__
    bare.__annotations__ = shapes
    return beartype.beartype(bare)


def _hint(hint: Any, function: types.FunctionType) -> Any:
    if not isinstance(hint, str):
        return hint
    import sys

    try:
        return eval(hint, vars(sys.modules[function.__module__]))
    except NameError:  # imported for static checkers only, or local: not a shape
        return Any


def _shaped(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(_shaped(part) for part in typing.get_args(hint))
