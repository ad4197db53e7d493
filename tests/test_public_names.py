"""The public names: few, found in one table, and nothing else leaks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import attnflow as af


def test_every_name_loads_and_nothing_leaks() -> None:
    names = dir(af)
    assert sorted(af.__all__) == names
    assert all(getattr(af, name) is not None for name in names)
    rooms = [name for name in names if isinstance(getattr(af, name), ModuleType)]
    assert len(names) - len(rooms) <= 35


def test_every_room_lists_its_own_names() -> None:
    for name in dir(af):
        room = getattr(af, name)
        if isinstance(room, ModuleType):
            assert all(hasattr(room, own) for own in room.__all__), name


@pytest.mark.parametrize(
    "name",
    [
        "claims.once",
        "draw.style",
        "linearise.lyapunov_schmidt",
        "reduce.gram_descent",
        "reduce.verify",
    ],
)
def test_a_function_is_not_hidden_by_the_module_of_its_name(name: str) -> None:
    importlib.import_module(f"attnflow.{name}")
    room, own = name.split(".")
    assert callable(getattr(getattr(af, room), own))


def test_a_name_of_a_room_is_pointed_to() -> None:
    with pytest.raises(AttributeError, match=r"it is `attnflow\.linearise\.lyapunov_schmidt`"):
        _ = af.lyapunov_schmidt
    with pytest.raises(AttributeError, match=r"no attribute .nothing_of_ours.$"):
        _ = af.nothing_of_ours


def test_the_import_loads_no_solver() -> None:
    code = "import attnflow, sys; print(sorted({'jax', 'numpy', 'scipy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
