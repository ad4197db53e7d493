"""Whether a control is made from its claim's own result: read off the text of the claim.

The functions of a claim are followed line by line, names replaced by what they were given; then a
control is peeled: signs, numbers beside it, turning, and helpers that do no more than that. What is
left may neither be a number nor be what the result is made of.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Names = Mapping[str, ast.expr]
Reader = ast.FunctionDef | ast.Lambda


def made_from_the_result(measure: Callable[..., Any]) -> str:
    """Which control in the text of a claim is made from its result or is a number, in a sentence.

    Functions of the same module that the claim calls are read too, and helpers of any module that
    a control goes through. Empty where all is well, and where there is no text.

    >>> made_from_the_result(lambda study: None)
    ''
    """
    place = _place(inspect.getmodule(measure) or measure)
    for function in place.functions(getattr(measure, "__name__", "")):
        if fault := _fault(function, place):
            return fault
    return ""


@functools.lru_cache(maxsize=4096)  # what claims share is read once
def _fault(function: ast.FunctionDef, place: _Place) -> str:
    for expression, fault in (*_of_builders(function, place), *_where_not_right(function)):
        return f"the control `{ast.unparse(expression)}` {fault}: measure again"
    return ""


def _of_builders(function: ast.FunctionDef, place: _Place) -> Iterator[tuple[ast.expr, str]]:
    """Controls that builders are called with."""
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
    calls = [n for n in calls if _takes_a_control(n)]
    names = {**place.names, **_followed(function.body)} if calls else {}
    for call in calls:
        given = [*call.args, *(k.value for k in call.keywords)]
        for each in given:
            if not isinstance(each, ast.Call | ast.Name):
                continue
            control = place.control(_put(each, names))
            if control is None:
                continue
            results = [place.forms(_put(x, names), inside=False) for x in given if x is not each]
            for value in _values(control):
                forms = place.forms(value)
                if _constant(forms[-1]):
                    yield value, "is a bare number"
                elif _meets(forms, [form for chain in results for form in chain]):
                    yield value, "is made from the result itself"


def _where_not_right(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
    """What functions `(..., right)` return where not `right`, if it is made from the result."""
    for node in ast.walk(function):
        if not isinstance(node, Reader) or "right" not in [a.arg for a in node.args.args]:
            continue
        if _of_the_paper(node):
            continue
        mine, other = (_parts(node, right) for right in (True, False))
        for one, two in zip(mine, other, strict=False):
            if ast.dump(one) == ast.dump(two):
                continue
            forms = _peeled(two)
            if _constant(forms[-1]):
                yield two, "is a bare number"
            elif _meets(forms, _peeled(one)):
                yield two, "is made from the result itself"


class _Place:
    """The module of a claim: its functions, its names, and those that it imports."""

    def __init__(self, module: Any):
        self.module, tree = module, _tree(module)
        self.known = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        calls = [n for n in tree.body if isinstance(n, ast.Assign) and _is_control(n.value)]
        self.names = _followed(calls)  # controls that several claims share

    def functions(self, name: str) -> list[ast.FunctionDef]:
        """A function and those of the module that it names."""
        found: dict[str, ast.FunctionDef] = {}
        todo = [name]
        while todo:
            name = todo.pop()
            if name in self.known and name not in found:
                found[name] = self.known[name]
                todo += [n.id for n in ast.walk(found[name]) if isinstance(n, ast.Name)]
        return list(found.values())

    def control(self, given: ast.expr) -> ast.Call | None:
        """The `Control(...)` that this is, or that a helper makes."""
        found = given if _is_control(given) else self.inside(given)
        return found if isinstance(found, ast.Call) and _is_control(found) else None

    def forms(self, node: ast.expr, inside: bool = True) -> list[ast.expr]:
        """All that is found on the way to the core of an expression, helpers opened if `inside`."""
        found = _peeled(self._applied(node))
        while inside and len(found) < MOST and (deeper := self.inside(found[-1])) is not None:
            if _constant(_peeled(deeper)[-1]) and _arguments(found[-1]):
                break  # a law of numbers, at another number
            found += _peeled(deeper)
        return found

    def inside(self, node: ast.expr) -> ast.expr | None:
        """What a call of a helper returns, with its arguments put in; None where it has no text."""
        if not isinstance(node, ast.Call):
            return None
        function = node.func if isinstance(node.func, ast.Lambda) else self._defined(node.func)
        told = None if function is None else _returned(function, None)
        if function is None or told is None:
            return None
        names = [a.arg for a in function.args.args]
        given = dict(zip(names, node.args, strict=False))
        given |= {k.arg: k.value for k in node.keywords if k.arg}
        return _put(told, given)

    def _defined(self, name: ast.expr) -> Reader | None:
        if isinstance(name, ast.Name) and name.id in self.known:
            return self.known[name.id]
        found = vars(self.module).get(_named(name)) if isinstance(name, ast.Name) else None
        if isinstance(name, ast.Attribute):
            found = getattr(vars(self.module).get(_named(name.value)), name.attr, None)
        if not isinstance(found, types.FunctionType):
            return None
        for n in _tree(inspect.getmodule(found)).body:
            if isinstance(n, ast.FunctionDef) and n.name == found.__name__:
                return n
            if isinstance(n, ast.Assign) and _named(n.targets[0]) == _named(name):
                return n.value if isinstance(n.value, ast.Lambda) else None
        return None

    def _applied(self, node: ast.expr) -> ast.expr:
        """A function as what it gives at a point, so that two of them can be compared."""
        point = ast.Name("point", ast.Load())
        if isinstance(node, ast.Lambda) and node.args.args:
            return _put(node.body, {node.args.args[0].arg: point})
        if isinstance(node, ast.Name) and self._defined(node) is not None:
            return ast.Call(node, [point], [])
        return node


@functools.lru_cache(maxsize=64)
def _place(module: Any) -> _Place:
    return _Place(module)


@functools.lru_cache(maxsize=64)  # a module of fifty claims is read once, not fifty times
def _tree(module: Any) -> ast.Module:
    """The text of a module; empty where there is none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(module)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _followed(body: Sequence[ast.stmt], right: bool | None = None) -> dict[str, ast.expr]:
    """What names stand for after some lines, as far as they are straight; `if right` is decided."""
    names: dict[str, ast.expr] = {}

    def read(lines: Sequence[ast.stmt]) -> None:
        for line in lines:
            if isinstance(line, ast.Assign):
                for target, value in _pairs(line.targets[0], line.value):
                    names[target] = _put(value, names, right)
                    if isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1]:
                        del names[target]  # to be filled
            elif isinstance(line, ast.AugAssign) and isinstance(line.target, ast.Name):
                old = names.get(line.target.id, ast.Name(line.target.id, ast.Load()))
                names[line.target.id] = ast.BinOp(old, line.op, _put(line.value, names, right))
            elif isinstance(line, ast.FunctionDef):
                told = _returned(line, right)
                if told is not None:
                    names[line.name] = ast.Lambda(line.args, told)
            elif isinstance(line, ast.If) and right is not None and _about_right(line.test):
                turned = isinstance(line.test, ast.UnaryOp)
                read(line.body if right != turned else line.orelse)
            else:
                for node in ast.walk(line):  # given in a loop or a branch: unknown
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        names.pop(node.id, None)

    read(body)
    return names


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, each in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, each)


def _returned(function: Reader, right: bool | None) -> ast.expr | None:
    """The one thing that a function returns, names replaced; None where that is not known."""
    found = _values_returned(function)
    if len(found) != 1:
        return None
    lines = [] if isinstance(function, ast.Lambda) else function.body
    told = _put(found[0], _followed(lines, right), right)
    given = {n.id for line in lines for n in _names(line, ast.Store)}
    unknown = {n.id for n in _names(told, ast.Load)} - {n.id for n in _names(told, ast.Store)}
    return None if given & unknown else told


def _values_returned(function: Reader) -> list[ast.expr]:
    if isinstance(function, ast.Lambda):
        return [function.body]
    inner = [n for f in function.body if isinstance(f, ast.FunctionDef) for n in ast.walk(f)]
    found = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n not in inner]
    return [n.value for n in found if n.value is not None]


def _names(node: ast.AST, how: type[ast.expr_context]) -> Iterator[ast.Name]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, how))


def _put(node: Any, names: Names, right: bool | None = None) -> Any:
    """Names replaced by what they stand for, `x if right else y` decided where that is known.

    Nothing is changed in place, so that expressions share their parts.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id, node)
    if isinstance(node, ast.IfExp) and right is not None and _named(node.test) == "right":
        return _put(node.body if right else node.orelse, names, right)
    if isinstance(node, ast.Lambda):
        own = {a.arg for a in node.args.args}
        inner = {n: v for n, v in names.items() if n not in own}
        return ast.Lambda(node.args, _put(node.body, inner, right))
    if isinstance(node, list):
        found = [_put(each, names, right) for each in node]
        return node if all(x is y for x, y in zip(found, node, strict=True)) else found
    if not isinstance(node, ast.AST) or isinstance(node, ast.Constant | ast.expr_context):
        return node
    old = dict(ast.iter_fields(node))
    new = {field: _put(value, names, right) for field, value in old.items()}
    return node if all(new[k] is v for k, v in old.items()) else type(node)(**new)


def _peeled(node: ast.expr) -> list[ast.expr]:
    """An expression, then without signs, numbers beside it, turning, one after the other."""
    found = [node]
    while (node := _beneath(found[-1])) is not found[-1] and len(found) < MOST:
        found.append(node)
    return found


def _beneath(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.UnaryOp):
        return node.operand
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add | ast.Sub) and _same(node.left, node.right):
            return node.left
        return _beside(node, node.left, node.right)
    if isinstance(node, ast.Attribute) and node.attr in ("T", "real"):
        return node.value
    if isinstance(node, ast.Subscript) and "::-1" in ast.unparse(node.slice):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.value if node.func.attr in _METHODS else node
    if isinstance(node, ast.Call) and _named(node.func) in _PLAIN and node.args:
        return node.args[0]
    if isinstance(node, ast.Call) and _named(node.func) in _ARITHMETIC and len(node.args) == 2:
        return _beside(node, *node.args)
    return node


def _beside(node: ast.expr, left: ast.expr, right: ast.expr) -> ast.expr:
    """The side that is no number, where the other is one."""
    if _constant(left) == _constant(right):
        return node
    return right if _constant(left) else left


def _same(one: ast.expr, two: ast.expr) -> bool:
    return ast.dump(_peeled(one)[-1]) == ast.dump(_peeled(two)[-1])


def _meets(forms: list[ast.expr], results: list[ast.expr]) -> bool:
    seen = {ast.dump(each) for each in results if not _constant(_peeled(each)[-1])}
    return any(ast.dump(form) in seen for form in forms)


def _parts(function: Reader, right: bool) -> list[ast.expr]:
    """All that a function returns where `right` is known, the entries of tuples one by one."""
    names = {} if isinstance(function, ast.Lambda) else _followed(function.body, right)
    told = [_put(value, names, right) for value in _values_returned(function)]
    return [e for value in told for e in (value.elts if isinstance(value, ast.Tuple) else [value])]


def _of_the_paper(function: Reader) -> bool:
    """Whether the control is what the paper prints: that may be a multiple of what is right."""
    calls = [d for d in getattr(function, "decorator_list", []) if isinstance(d, ast.Call)]
    names = [str(d.args[0].value) for d in calls if d.args and isinstance(d.args[0], ast.Constant)]
    return any(name.startswith(("as printed", "as extracted")) for name in names)


def _values(control: ast.Call) -> list[ast.expr]:
    return [*control.args[1:], *(k.value for k in control.keywords if k.arg != "name")]


def _arguments(call: ast.expr) -> bool:
    """Whether a call is given more than the study."""
    given = [*call.args, *call.keywords] if isinstance(call, ast.Call) else []
    return any(_named(each) != "study" for each in given)


def _is_control(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _named(node.func) == "Control"


def _takes_a_control(call: ast.Call) -> bool:
    return any(k.arg == "control" for k in call.keywords) or any(map(_is_control, call.args))


def _about_right(test: ast.expr) -> bool:
    return _named(test.operand if isinstance(test, ast.UnaryOp) else test) == "right"


def _constant(node: ast.AST) -> bool:
    """Whether it is made of numbers and capital names only."""
    if isinstance(node, ast.Call) and _named(node.func) in ("full", "zeros", "ones", "full_like"):
        return all(_constant(a) for a in node.args[1:])
    if isinstance(node, ast.Call) and _named(node.func) in ("zeros_like", "ones_like"):
        return True
    if isinstance(node, ast.Name | ast.Attribute) and _named(node) != "T":
        if not isinstance(getattr(node, "value", ast.Name("np", ast.Load())), ast.Name):
            return False  # of what a call gives
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


MOST = 40
"""Steps into an expression after which it is left alone."""

_METHODS = {"copy", "transpose", "conj", "ravel", "tolist"}
_PLAIN = {"negative", "flip", "transpose", "asarray", "array", "float", "abs", "reciprocal", "roll"}
"""Functions that give back what they are given, or turn it."""
_ARITHMETIC = {"add", "subtract", "multiply", "divide", "true_divide", "power"}
