"""The rooms stand in one order, and imports go downwards only.

Every import counts: at the top of a module, inside a function, and under TYPE_CHECKING. A function
that imports a later room hides a cycle, and a type that is only named there belongs further down.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import attnflow

ROOT = Path(attnflow.__file__).parent

ROOMS = (
    "_errors",
    "_files",
    "_precision",
    "_tables",
    "tasks",
    "corpus",
    "flows",
    "observe",
    "reduce",
    "models",
    "linearise",
    "expand",
    "claims",
    "checkpoints",
    "draw",
    "studies",
    "runs",
    "report",
    "beside",
    "walk",
    "app",
    "cli",
)

OF_NO_ROOM = {"__init__", "__version__"}
"""The table of public names, which reaches into every room and belongs to none."""


def imports(source: str, typing: bool = True) -> Iterator[tuple[str, int]]:
    """Every module that a source names in an import, wherever it stands, and the line."""
    tree = ast.parse(source)
    only_typing = {id(n) for block in ast.walk(tree) if _typing(block) for n in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in only_typing and not typing:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def rooms_of(source: str) -> Iterator[tuple[str, int]]:
    """The rooms that a source imports, each with its line."""
    for name, line in imports(source):
        package, *rest = name.split(".")
        if package == "attnflow" and rest and rest[0] not in OF_NO_ROOM:
            yield rest[0], line


def room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


FILES = sorted(p for p in ROOT.rglob("*.py") if room(p) not in OF_NO_ROOM)


def upwards(source: str, here: str) -> list[str]:
    """What a source in a room imports from a later one."""
    at = ROOMS.index(here)
    return [f"line {n}: {other}" for other, n in rooms_of(source) if ROOMS.index(other) > at]


def test_every_file_stands_in_a_room():
    assert {room(p) for p in FILES} <= set(ROOMS)


@pytest.mark.parametrize("here", ROOMS)
def test_imports_go_downwards_only(here):
    files = [p for p in FILES if room(p) == here]
    found = {str(p.relative_to(ROOT)): upwards(p.read_text(), here) for p in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_modules_import_each_other():
    """Imports inside functions count; a name from a room's table is an import of its module."""
    paths = {_module(p): p for p in FILES}
    graph = {here: {*_modules(path, paths)} - {here} for here, path in paths.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(paths)  # or a CycleError


def _module(path: Path) -> str:
    parts = ("attnflow", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def _modules(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for name, _ in imports(path.read_text(), typing=False):
        module = name if name in known else name.rpartition(".")[0]
        if module in known:
            yield module
            yield _home(name, known[module], known)


def _home(name: str, package: Path, known: dict[str, Path]) -> str:
    """The module that a room's table has a name from, where it is loaded on first use."""
    own = name.rpartition(".")[2]
    found = f"{_module(package)}.{_table(package.with_suffix('.pyi')).get(own)}"
    return found if found in known else _module(package)


@functools.cache
def _table(stub: Path) -> dict[str, str]:
    """Name -> module of what the table of a room, its `__init__.pyi`, lists."""
    tree = ast.parse(stub.read_text() if stub.is_file() else "")
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


@pytest.mark.parametrize("table", sorted(ROOT.rglob("__init__.pyi")), ids=lambda p: p.parent.name)
def test_a_table_lists_a_name_once_and_is_all_that_its_room_imports(table):
    lines = [n for n in ast.parse(table.read_text()).body if isinstance(n, ast.ImportFrom)]
    names = [alias.name for line in lines for alias in line.names]
    assert len(names) == len(set(names))
    assert all(line.level == 1 for line in lines)
    room = table.with_suffix(".py").read_text()
    assert not [name for name, _ in imports(room) if name.startswith("attnflow")]


def test_a_name_from_a_table_leads_to_its_module():
    known = {_module(p): p for p in FILES}
    assert _home("attnflow.flows.Linear", ROOT / "flows/__init__.py", known) == (
        "attnflow.flows.schedule"
    )
    assert _home("attnflow.flows.probes.Mark", ROOT / "flows/probes.py", known) == (
        "attnflow.flows.probes"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import attnflow.studies.study",
        "from attnflow import studies",
        "def f():\n    from attnflow.studies import study",
        "if TYPE_CHECKING:\n    from attnflow.studies.study import Study",
    ],
)
def test_an_import_upwards_is_seen_wherever_it_stands(source):
    assert upwards(source, "flows")
    assert upwards(source, "studies") == upwards(source, "cli") == []
