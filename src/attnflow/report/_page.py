"""The report of a run: what was run, what came out, which claims hold, and how it was computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnflow.claims import Verdict
from attnflow.claims.export import values, verdict_words
from attnflow.report import _cite, _tables, _words
from attnflow.report._drawings import drawings, slug
from attnflow.report._render import render
from attnflow.report._saddles import saddle_table
from attnflow.report._words import number

if TYPE_CHECKING:
    from attnflow.claims import Citation, Ledger, Row
    from attnflow.walk import Outcome


def page(outcome: Outcome, manifest: Mapping[str, Any]) -> str:
    """One self-contained HTML page about a run; `manifest` gives versions, platform and dates."""
    study = outcome.study
    claims = None if outcome.claims is None else claim_rows(outcome.claims, study.paper)
    return render(
        "page.html",
        study=study,
        reference=_cite.reference(study.paper),
        name=outcome.path.name if outcome.path is not None else "",
        status=outcome.status,
        good=outcome.status in _words.COMPLETE,
        sentence=outcome.sentence,
        answer=_words.answer(outcome),
        facts=key_facts(outcome),
        command=outcome.command or f"attnflow run {study.name}",
        check_command=check_command(outcome),
        figures=drawings(outcome),
        stages=_tables.stages(outcome),
        no_stages=_words.no_stages(outcome),
        no_plateaus=_words.no_plateaus(outcome),
        plateaus=_tables.plateaus(outcome),
        marks=_tables.marks(outcome),
        saddles=saddle_table(outcome.saddles),
        saddles_said="" if outcome.saddles is None else outcome.saddles.words,
        numbers=_tables.numbers(outcome),
        claims=claims,
        counts=[] if outcome.claims is None else verdict_counts(outcome.claims),
        surprises=[] if outcome.claims is None else [r.id for r in outcome.claims.surprises],
        corrections=[c for c in claims or () if c["correction"] is not None],
        work=_tables.work(outcome),
        drift=drift_words(outcome.drift),
        solver=_tables.solver(outcome),
        why=outcome.solver.get("why") or "",
        cross_check=_tables.cross_check(outcome),
        config=_tables.config(outcome),
        versions=_tables.versions(manifest),
        created=manifest.get("created") or "",
        bibtex=_cite.bibliography(outcome),
        notes=outcome.notes,
    )


def key_facts(outcome: Outcome) -> list[tuple[str, str, str]]:
    """The few numbers at the top: name, value, a word about it."""
    facts: list[tuple[str, str, str]] = []
    ends = _words.losses(outcome)
    if ends is not None:
        least = _words.floor(outcome)
        gap = "" if least is None else f"floor {least:.6g}"
        facts.append(("final loss", number(ends[1]), gap))
    none = "no separation" if outcome.status in _words.COMPLETE else "before it ended"
    facts.append(("stages", str(len(outcome.stages)), "" if outcome.stages else none))
    facts.append(("plateaus", str(len(outcome.plateaus)), ""))
    if outcome.claims is not None:
        facts.append(("claims", str(len(outcome.claims)), outcome.claims.summary))
    work = outcome.work
    if "rhs" in work:
        calls = int(work["rhs"] + work.get("jvp", 0))
        seconds = f"{work['seconds']:.3g} s" if "seconds" in work else ""
        facts.append(("evaluations", number(calls), seconds))
    if math.isfinite(outcome.drift):
        facts.append(("drift", f"{outcome.drift:.1e}", "of what is conserved"))
    return facts


def claim_rows(ledger: Ledger, paper: Citation | None = None) -> list[dict[str, Any]]:
    """What the templates show of each row of a ledger; `paper` is the one that goes unsaid."""
    rows = []
    for i, row in enumerate(ledger):
        predicted, measured, tolerance = (text.split(", ") for text in values(row))
        rows.append(
            {
                "row": row,
                "anchor": f"correction-{i}-{slug(row.id)}",
                "words": verdict_words(row),
                "source": _source(row, paper),
                "predicted": predicted,
                "measured": measured,
                "tolerance": tolerance,
                "regime": _regime(row),
                "correction": row.correction,
            }
        )
    return rows


def verdict_counts(ledger: Ledger) -> list[tuple[Verdict, str]]:
    """The verdicts that occur, each with how often."""
    return [(verdict, verdict.counted(n)) for verdict, n in ledger.counts.items() if n]


def drift_words(drift: float) -> str:
    """The drift in one sentence."""
    if not math.isfinite(drift):
        return "Nothing conserved was declared (or the run did not say), so no drift is known."
    return (
        f"The conserved quantities drifted by at most {drift:.2e}: the largest |C(t) − C(0)|, "
        "over the largest squared norm of a factor."
    )


def _source(row: Row, paper: Citation | None) -> str:
    """Paper and equation, without what the page or the claim's id already say."""
    if row.paper is not None and row.paper != paper:
        return row.source
    return "" if row.equation is None or row.equation in row.id else row.equation


def _regime(row: Row) -> str:
    if row.regime is None:
        return ""
    return f"{'inside' if row.regime.inside else 'outside'}: {row.regime.sentence}"


def check_command(outcome: Outcome) -> str:
    """The shell command that measures the claims of this config."""
    command = outcome.command or f"attnflow run {outcome.study.name}"
    return command.replace("attnflow run", "attnflow check", 1)
