"""Shapes are checked, draws repeat, closed forms promote nothing: for every test of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import jax
import jaxtyping
import pytest

# Here, before any test imports attnflow: the hook decorates modules while they are imported.
# (pytest has put this folder on the path, so that `shapes`, `tolerances`, `strategies` are found.)
jaxtyping.install_import_hook("attnflow", "shapes.checked")

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
