"""Every `>>>` example of the package is run, in its module's own names, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(SRC.rglob("*.py")) if ">>> " in path.read_text()}


@pytest.mark.parametrize("name", FILES)
def test_the_examples_of_a_docstring_run(name):
    """All that are written are found too: a wrapper may hide a docstring, and its example."""
    lines = FILES[name].read_text().splitlines()
    written = sum(line.lstrip().startswith(">>> ") for line in lines)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted == written
    assert found.failed == 0


def test_no_example_is_skipped():
    """None needs it so far; whoever adds the first says why here."""
    assert [name for name, path in FILES.items() if "doctest: +SKIP" in path.read_text()] == []
