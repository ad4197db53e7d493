"""The user's own functions: called once in the abstract, and a sentence for what goes wrong."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from attnflow._errors import InputError, shown

HERE = str(Path(__file__).resolve().parents[1])

UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)
"""What a function raises that is written with NumPy or Python numbers instead of jax.numpy."""


def callable_or_sentence(field: str, given: Any) -> None:
    """Refuse what is neither None nor a function."""
    if given is not None and not callable(given):
        raise InputError(field, f"{shown(given)}; a function of the parameters")


def flow_or_sentence(given: Any) -> None:
    """Refuse what is no flow; a loss alone is the usual slip."""
    if not callable(getattr(given, "bind", None)):
        hint = "write Flow(loss)" if callable(given) else "a Flow, for instance Flow(loss)"
        raise InputError("flow", f"{shown(given)}; {hint}")


def named_functions(field: str, given: Any) -> dict[str, Callable[..., Any]]:
    """Functions by name as they were given; refused where there are no names or no functions."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        example = f"{field}={{'balance': lambda theta: ...}}"
        raise InputError(field, f"{shown(given)}; names with functions, {example}")
    for name, function in given.items():
        callable_or_sentence(f"{field}.{name}", function)
    return dict(given)


def shape_of(field: str, function: Callable[..., Any], state: Any, layout: Any = None) -> Any:
    """The shape of `function(state)` without computing it, or the sentence why there is none."""
    try:
        return jax.eval_shape(lambda y: function(y), state)
    except InputError:
        raise
    except UNTRACEABLE as error:
        raise InputError(
            field,
            f"not written with jax.numpy, so it cannot be compiled ({type(error).__name__})"
            f"{line_of(error)}",
        ) from None
    except Exception as error:
        raise InputError(field, told(error, layout)) from None


def told(error: Exception, layout: Any = None) -> str:
    """What a user's function did wrong: the error, the user's own line, what there is."""
    first = (str(error).strip() or "no message").splitlines()[0]
    words = f"raised {type(error).__name__}: {shown(first, 160)}{line_of(error)}"
    if layout is not None and isinstance(error, KeyError | AttributeError):
        words += f"; the blocks are {', '.join(block.name for block in layout.blocks)}"
    return words


def line_of(error: BaseException) -> str:
    """` (model.py:12: th["W3"] @ x)`: the innermost line that is neither ours nor a library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        foreign = "site-packages" in frame.filename or frame.filename.startswith(HERE)
        if not foreign and "importlib" not in frame.filename:
            code = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f" ({Path(frame.filename).name}:{frame.lineno}: {shown(code, 80)})"
    return ""


def takes_two(function: Callable[..., Any]) -> bool:
    """Whether a measurement asks for the shares besides theta: a second argument, no default."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in plain and p.default is p.empty for p in given) >= 2


def kinks(trace: Callable[[Any], Any], size: int) -> bool:
    """Whether a traceable function of a flat vector has a ReLU, an absolute value or a maximum."""
    jaxpr = jax.make_jaxpr(lambda y: trace(y))(jax.ShapeDtypeStruct((size,), float))
    return _has_kink(jaxpr.jaxpr)


def _has_kink(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("max", "min", "abs", "sign"):
            return True
        if name == "custom_jvp_call":
            inner = str(equation.params.get("name", equation.params.get("call_jaxpr", "")))
            if "relu" in inner:
                return True
            continue  # logaddexp, softplus and their like are smooth
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns") and _has_kink(inner):
                    return True
    return False
