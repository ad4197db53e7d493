"""Controls: what must come out differently, measured again.

A control is another setting, or another formula that a careful reader might have meant, with a
name. What is made from the result itself shows nothing and is refused, by its value where that
tells (`refuse_copies`), by the text of the claim otherwise (`made_from_the_result`).
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow._errors import InputError, shown
from attnflow.claims.values import Value


@dataclass(frozen=True, eq=False)
class Control:
    """`Control("staying as likely as moving", theory.focus_rate(other_chain))`.

    The value takes the place of what the builder is about: a formula's prediction (`equal`,
    `identity`, `slope`, `order`, `statistical`), or the quantity that is bounded, signed, counted
    or watched (all others). `predicted=` and `measured=` say it in full, also both.
    """

    name: str
    value: Any = None
    predicted: Any = None
    measured: Any = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip()):
            raise InputError("control", "has no name; say what is different about it")
        if all(x is None for x in (self.value, self.predicted, self.measured)):
            raise InputError("control", f"'{self.name}' has no value; give what is measured there")

    def sides(self, side: str) -> tuple[Any, Any]:
        """`(predicted, measured)`, None where the claim's own is kept; `side` takes the value."""
        given = {"predicted": self.predicted, "measured": self.measured}
        if self.value is not None:
            if given[side] is not None:
                raise InputError("control", f"'{self.name}' gives what is {side} twice")
            given[side] = self.value
        return given["predicted"], given["measured"]


@dataclass(frozen=True)
class Countercheck:
    """How a control came out: whether it flipped the verdict, and its numbers."""

    name: str
    flips: bool
    sentence: str
    predicted: Value = None
    measured: Value = None


def given_control(control: Any) -> Control | None:
    """The control of a builder, or a sentence that says how to write one."""
    if control is None or isinstance(control, Control):
        return control
    raise InputError("control", f'{shown(control)}; write Control("what is different", value)')


def refuse_copies(control: Control, given: NDArray, result: NDArray) -> None:
    """Refuse an array that is the result times nearly 1, inverted, or turned and shifted.

    Single numbers are not judged here: any two are multiples of each other.
    """
    if given.shape != result.shape or len(np.unique(result)) < 3 or not np.isfinite(given).all():
        return
    if np.array_equal(given, result):  # a side that is kept: whether it flips is seen
        return
    allowed = 1e-12 * np.abs(given).max()
    if result.ndim == 2 and result.T.shape == given.shape:
        shift = given - result.T
        if np.ptp(shift) <= allowed < abs(shift.mean()):
            raise InputError("control", f"'{control.name}' is the result turned and shifted")
    product = given * result
    if product.any() and np.ptp(product) <= 1e-12 * np.abs(product).max():
        raise InputError("control", f"'{control.name}' is the result inverted")
    factor = float(np.vdot(result, given) / np.vdot(result, result))
    if np.abs(given - factor * result).max() <= allowed and 0 < abs(factor - 1) < 0.05:
        raise InputError("control", f"'{control.name}' is the result times {factor:g}")


def made_from_the_result(measure: Callable[..., Any]) -> str:
    """Which control in the text of a claim is made from its result or is a number, in a sentence.

    Functions of the same module that the claim calls are read too. Empty where all is well, and
    where there is no text.

    >>> made_from_the_result(lambda study: None)
    ''
    """
    for function in _functions(measure):
        local = _assigned(function)
        for call in _calls(function):
            for control in _own_controls(call, local):
                for expression in _values(control):
                    fault = _fault(expression, call, control, local)
                    if fault:
                        return f"the control `{ast.unparse(expression)}` {fault}: measure again"
        for expression, fault in _where_not_right(function, local):
            return f"the control `{ast.unparse(expression)}` {fault}: measure again"
    return ""


def _functions(measure: Callable[..., Any]) -> list[ast.FunctionDef]:
    """The syntax of a claim's function and of those of its module that it calls."""
    known = _text(inspect.getmodule(measure) or measure)
    found: dict[str, ast.FunctionDef] = {}
    todo = [getattr(measure, "__name__", "")]
    while todo:
        name = todo.pop()
        if name in known and name not in found:
            found[name] = known[name]
            todo += [n.id for n in ast.walk(known[name]) if isinstance(n, ast.Name)]
    return list(found.values())


@functools.lru_cache(maxsize=32)  # a module of fifty claims is read once, not fifty times
def _text(module: Any) -> dict[str, ast.FunctionDef]:
    """The functions of a module by name; none where there is no text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(module)))
    except (OSError, TypeError, SyntaxError):
        return {}
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (n for n in ast.walk(function) if isinstance(n, ast.Call))


def _own_controls(call: ast.Call, local: dict[str, ast.expr]) -> list[ast.Call]:
    """The `Control(...)` that a builder is called with, also by a name."""
    given = [*call.args, *(k.value for k in call.keywords)]
    found = [local.get(_named(g), g) if isinstance(g, ast.Name) else g for g in given]
    return [g for g in found if isinstance(g, ast.Call) and _named(g.func) == "Control"]


def _values(control: ast.Call) -> list[ast.expr]:
    return [*control.args[1:], *(k.value for k in control.keywords if k.arg != "name")]


def _assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Names that are given a value once in the function, by that value."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _fault(
    expression: ast.expr, call: ast.Call, control: ast.Call, local: dict[str, ast.expr]
) -> str:
    made = _core(expression, local)
    if _constant(made):
        return "is a bare number"
    mine = [a for a in call.args if a is not control]
    mine += [k.value for k in call.keywords if k.value is not control and k.arg != "control"]
    results = [_core(each, local) for each in mine]
    if any(ast.dump(made) == ast.dump(r) for r in results if not _constant(r)):
        return "is made from the result itself"
    return ""


def _where_not_right(
    function: ast.FunctionDef, local: dict[str, ast.expr]
) -> Iterator[tuple[ast.expr, str]]:
    """What functions `(..., right)` return where not `right`, if it is made from the result."""
    for node in ast.walk(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        if "right" not in [a.arg for a in node.args.args]:
            continue
        inside = [node.body] if isinstance(node, ast.Lambda) else _returned(node)
        for value in inside:
            for part in value.elts if isinstance(value, ast.Tuple) else [value]:
                mine, other = (_Where(right).visit(copy.deepcopy(part)) for right in (True, False))
                if ast.dump(mine) == ast.dump(other):
                    continue
                made = _core(other, local)
                if _constant(made):
                    yield other, "is a bare number"
                elif ast.dump(made) == ast.dump(_core(mine, local)):
                    yield other, "is made from the result itself"


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    return [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]


class _Where(ast.NodeTransformer):
    """`x if right else y` with `right` known."""

    def __init__(self, right: bool):
        self.right = right

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if _named(node.test) != "right":
            return node
        return node.body if self.right else node.orelse


def _core(node: ast.expr, local: dict[str, ast.expr]) -> ast.expr:
    """What is left of an expression without signs, numbers beside it, turning and reversing."""
    while True:
        if isinstance(node, ast.Name) and node.id in local:
            value, local = local[node.id], {k: v for k, v in local.items() if k != node.id}
            node = value
        elif isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(node, ast.BinOp) and _constant(node.left) != _constant(node.right):
            node = node.right if _constant(node.left) else node.left
        elif isinstance(node, ast.Attribute | ast.Subscript) and _turns(node):
            node = node.value
        elif isinstance(node, ast.Call) and _named(node.func) in _PLAIN and node.args:
            node = node.args[0]
        else:
            return node


def _turns(node: ast.Attribute | ast.Subscript) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("T", "real")
    return "::-1" in ast.unparse(node.slice)


def _constant(node: ast.AST) -> bool:
    """Whether it is made of numbers and capital names only."""
    if isinstance(node, ast.Call) and _named(node.func) in ("full", "zeros", "ones", "full_like"):
        return all(_constant(a) for a in node.args[1:])
    if isinstance(node, ast.Call) and _named(node.func) in ("zeros_like", "ones_like"):
        return True
    if isinstance(node, ast.Name | ast.Attribute) and _named(node) != "T":
        return _named(node).isupper() or ast.unparse(node) in ("np.pi", "np.inf", "math.pi")
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.Tuple | ast.List):
        return all(_constant(e) for e in node.elts)
    return isinstance(node, ast.Constant)


def _named(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


_PLAIN = {"negative", "flip", "transpose", "asarray", "array", "float", "abs", "reciprocal", "roll"}
"""Functions that give back what they are given, or turn it."""
