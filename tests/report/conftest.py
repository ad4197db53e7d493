"""One small run, a ledger with every verdict, and an ensemble: made once."""

from __future__ import annotations

import pytest

from attnflow.claims import (
    Citation,
    Correction,
    Countercheck,
    Erratum,
    Ledger,
    Regime,
    Row,
    Verdict,
)
from attnflow.claims.verdict import Cause, Part, Strength
from attnflow.runs import Cell, CellResult, Ensemble, Run, cells
from attnflow.walk import run

MANIFEST = {
    "created": "2026-01-02T03:04:05+00:00",
    "versions": {"python": "3.11.7", "attnflow": "0.1.0", "scikit-sundae": ""},
    "platform": {"system": "Linux", "machine": "x86_64"},
    "environment": {"XLA_FLAGS": "--xla_example", "OMP_NUM_THREADS": ""},
    "cpus": 2,
    "precision": "float64",
}

PAPER = Citation("other2025", ("Ada Other",), "Another paper", 2025, arxiv="2501.00001")

CORRECTION = Correction(
    printed="W0' = -GM W1^T - GP W0 WQ^T",
    corrected="W0' = -GM W1^T - GP W0 W_QK^T" + f" or ${' + '.join(['W_Q W_K'] * 20)}$",
    counterexample="",
    erratum=Erratum("key", "a <b>K</b> is missing", cause="constant"),
    snippet="assert 1 + 1 == 2  # <b>not markup</b>",
    printed_error=0.112,
    corrected_error=5e-16,
)


def row(verdict: Verdict, **changes) -> Row:
    given = {
        "id": f"Prop ({verdict.value})",
        "part": Part.STATEMENT,
        "study": "focus-dilution",
        "title": f"A statement that {verdict.label}.",
        "verdict": verdict,
        "cause": None,
        "strength": Strength.NUMERIC,
        "predicted": 0.5,
        "measured": [0.5, 1e-14],
        "tolerance": 1e-12,
        "regime": Regime(True, "the law is not uniform"),
        "note": "error 0",
        "expected": verdict,
        "paper": PAPER,
        "equation": "eq 14",
        "control": Countercheck("another law", True, "error 0.1, allowed 1e-12", None, None),
    }
    return Row(**{**given, **changes})


@pytest.fixture(scope="session")
def ledger() -> Ledger:
    rows = [row(v) for v in Verdict if v is not Verdict.HOLDS_CORRECTED]
    cause = Cause.CONSTANT
    rows.append(row(Verdict.HOLDS_CORRECTED, cause=cause, correction=CORRECTION))
    rows.append(
        row(Verdict.FAILS, id="Surprise", expected=Verdict.HOLDS, section="Section 3: later")
    )
    title = r"Ours with $\frac{\partial L}{\partial \Phi} \le \lambda^2$ and $\broken{x}$ for 5$."
    given = {"id": "ours: a bound", "relation": "at most", "predicted": 1e-12, "measured": 2.7e-16}
    rows.insert(0, row(Verdict.HOLDS, title=title, strength=Strength.EXACT, tolerance=0.0, **given))
    return Ledger(tuple(rows))


@pytest.fixture(scope="session")
def bare() -> Run:
    """A finished run whose claims were not checked."""
    found = run("focus-dilution", until=60.0, dim=4, claims=False, progress=False)
    return Run({**found.manifest, **MANIFEST}, **found.known)


@pytest.fixture(scope="session")
def outcome(bare: Run, ledger: Ledger) -> Run:
    return bare.replace(claims=ledger)


def result(cell: Cell) -> CellResult:
    if cell.seed == 1 and cell.value == 1e-2:
        return CellResult(cell, False, "failed", "ValueError: <b>bold</b>", 0.5)
    scale = float(cell.overrides.get("init_scale", 1e-3))
    summary = {
        "plateaus": [{"loss": 0.7 + scale, "time": 40.0 + (cell.seed or 0)}],
        "stages": [{"name": "focus", "cycle": 1, "time": 3 / scale**0.5 + (cell.seed or 0)}],
        "floor": 0.3,
    }
    value = {"summary": summary, "run": f"/elsewhere/{cell.name}"}
    return CellResult(cell, True, "done", "reached t = 60.", 1.0, value)


@pytest.fixture(scope="session")
def scan() -> Ensemble:
    grid = cells({"init_scale": 1e-3}, "0:3", "init_scale=1e-4:1e-2:3:log")
    return Ensemble.of("focus-dilution", [result(c) for c in grid], "attnflow run x --scan <s>")


@pytest.fixture(scope="session")
def repeats() -> Ensemble:
    grid = cells({"init_scale": 1e-3}, "0:4")
    return Ensemble.of("focus-dilution", [result(c) for c in grid], "attnflow run x --seeds 0:4")
