"""Shapes are checked, draws repeat, closed forms promote nothing: for every test of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jaxtyping
import pytest

# Here, before any test imports attnflow: the hook decorates modules while they are imported.
# (pytest has put this folder on the path, so that `shapes`, `tolerances`, `strategies` are found.)
# What a solve calls thousands of times is left out: checking it takes five times the solve. All is
# checked with SHAPES=all.
HOT = """
flows.driver flows.engines flows.flow flows.gates flows.probes flows.recorder flows.switching
models.two_head models.two_head_gram models.two_head_reduced reduce.columns reduce.gram_descent
reduce.gram_flow reduce.gram_forces
"""
_ROOT = Path(__file__).parents[1] / "src" / "attnflow"
_MODULES = [".".join(p.relative_to(_ROOT).with_suffix("").parts) for p in _ROOT.rglob("*.py")]
_SKIPPED = [] if os.environ.get("SHAPES") == "all" else HOT.split()
jaxtyping.install_import_hook(
    [f"attnflow.{m}" for m in _MODULES if m not in _SKIPPED and not m.endswith("__init__")],
    "shapes.checked",
)

# Two workers already fill two cores; `walk/test_beside.py` asks for two processes itself.
os.environ.setdefault("ATTNFLOW_PROCESSES", "1")

hypothesis.settings.register_profile(
    "attnflow",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "search",
    parent=hypothesis.settings.get_profile("attnflow"),
    derandomize=False,
    max_examples=300,
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "attnflow"))


@pytest.fixture(scope="session")
def opened() -> Iterator[Any]:
    """One Chromium for all browser tests of a process: playwright takes no second one beside it."""
    from report.browser import browser

    with browser() as found:
        yield found


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision for the test's own JAX code (the package never needs it)."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def strict() -> Iterator[None]:
    """No silent promotion of ranks or dtypes: a broadcast by accident is an error."""
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
    ):
        yield
