"""A small study to make claims about: a circle of radius r, drawn by a careless author."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from attnflow.claims import Citation, Claim, Erratum, Measurement, Paper

# Shared cores: a slow example is no failure. Whatever else is set elsewhere stays.
settings.register_profile("claims", settings(deadline=None))
settings.load_profile("claims")

CITATION = Citation(
    key="archimedes250",
    authors=("Archimedes", "of Syracuse, Dositheus"),
    title="Measurement of a circle & 50% more",
    year=250,
    venue="Sand_Letters",
    arxiv="0000.00001",
)

SNIPPET = """from math import pi
r, n = 2.0, 100_000
quarter = sum((r**2 - (r * (k + 0.5) / n) ** 2) ** 0.5 * r / n for k in range(n))
area = 4 * quarter
assert abs(area - pi * r**2) < 1e-3 < abs(area - 2 * pi * r**2)
print(f"{area:.3f}")
"""


@dataclass(frozen=True)
class Config:
    radius: float = 2.0


@dataclass(frozen=True)
class Circle:
    """A study in the ledger's eyes: anything with a name and a config."""

    config: Config = Config()
    name: str = "circle"

    @property
    def radius(self) -> float:
        return self.config.radius


@pytest.fixture
def circle() -> Circle:
    return Circle()


@pytest.fixture
def large() -> Circle:
    """The same at another config than the default one."""
    return Circle(Config(11.0))


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    (tmp_path / "measure.py").write_text(SNIPPET)
    (tmp_path / "shared.py").write_text("assert 3 % 2 == 1\n")
    return Paper("circle", citation=CITATION, snippets=tmp_path)


@pytest.fixture
def made(paper: Paper) -> Callable[..., Claim]:
    """`made(measurement, **options)`: a claim that always measures the same."""

    def make(measurement: Measurement | Any, id: str = "Prop 1", **options: Any) -> Claim:
        def measure(study):
            """The area is what it is."""
            return measurement

        return paper.claim(id, **options)(measure)

    return make


@pytest.fixture
def wrong() -> dict[str, Any]:
    """What `corrected` is told beside the two measurements."""
    erratum = Erratum("double", "the area is printed twice as large", cause="constant")
    return {"text": "A = 2 pi r^2", "correct": "A = pi r^2", "erratum": erratum}
