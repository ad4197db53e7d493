"""The page of an audit: the verdict on every step, the rules, and the digests of the files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from attnflow.checkpoints.audit import RULES
from attnflow.report._render import render
from attnflow.report._words import Table

if TYPE_CHECKING:
    from attnflow.checkpoints import Audit


def audit_page(found: Audit, name: str) -> str:
    """One self-contained HTML page about an audited series."""
    counts = Counter(step.verdict for step in found.steps)
    said = ", ".join(f"{counts[v]} {v}" for v in ("ok", "flag", "refuse") if counts[v])
    steps = [(str(s.step), s.verdict, s.why or "–") for s in found.steps]
    rules = [(kind, verdict, words) for kind, (verdict, words) in RULES.items()]
    files = [(str(s.step), file, sha) for s in found.steps for file, sha in s.files.items()]
    return render(
        "audit.html",
        name=name,
        answer=said,
        series=found.series,
        steps=Table("Verdict on every step", ("step", "verdict", "why"), steps, frozenset({0})),
        rules=Table("What each rule demands", ("rule", "if broken", "demand"), rules),
        files=Table("SHA-256 of every file", ("step", "file", "digest"), files, frozenset({0})),
    )
