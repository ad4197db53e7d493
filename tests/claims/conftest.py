"""A small study to make claims about: a circle of radius r, drawn by a careless author."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import settings

from attnflow.claims import Citation, Correction

# Shared cores: a slow example is no failure. Whatever else is set elsewhere stays.
settings.register_profile("claims", settings(deadline=None))
settings.load_profile("claims")

PAPER = Citation(
    key="archimedes250",
    authors=("Archimedes", "of Syracuse, Dositheus"),
    title="Measurement of a circle & 50% more",
    year=250,
    venue="Sand_Letters",
    arxiv="0000.00001",
)


@dataclass(frozen=True)
class Circle:
    """A study in the ledger's eyes: anything with a name and, if it likes, a paper."""

    radius: float = 2.0
    digits: int = 15
    name: str = "circle"
    paper: Citation | None = PAPER


@pytest.fixture
def circle() -> Circle:
    return Circle()


@pytest.fixture
def correction() -> Correction:
    return Correction(
        printed="A = 2 pi r^2",
        corrected="A = pi r^2",
        cause="constant",
        snippet="""
            from math import pi
            r, n = 2.0, 100_000
            quarter = sum((r**2 - (r * (k + 0.5) / n) ** 2) ** 0.5 * r / n for k in range(n))
            area = 4 * quarter
            assert abs(area - pi * r**2) < 1e-3 < abs(area - 2 * pi * r**2)
            print(f"{area:.3f}")
        """,
    )


_fresh = itertools.count()


@pytest.fixture
def fresh_study() -> str:
    """A study name that nobody has registered claims for."""
    return f"study-{next(_fresh)}"
