"""The report of a run: what was run, what came out, which claims hold, and how it was computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnflow.report import _cite, _tables, _words
from attnflow.report._claims import claims
from attnflow.report._drawings import drawings, figures, story
from attnflow.report._render import render
from attnflow.report._saddles import saddle_table
from attnflow.report._words import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnflow.runs import Run


def page(run: Run, drawn: Mapping[str, Figure | str] | None = None) -> str:
    """One self-contained HTML page about a run; `drawn` are its figures, if they are known."""
    study, manifest = run.built, run.manifest
    paper = getattr(study, "paper", None)
    notation = {} if paper is None else paper.notation
    told = story(run) if "loss" in run.trajectory else None
    loss = "loss" if told is None else told.loss
    shown = drawings(run, figures(run) if drawn is None else drawn)
    ledger = None if run.claims is None else claims(run.claims, study.citation, notation)
    return render(
        "page.html",
        study=study.name,
        title=study.title or study.name,
        reference=_cite.reference(study.citation),
        name=run.path.name if run.path is not None else "",
        status=run.status,
        good=run.finished,
        sentence=run.sentence,
        story=told.sentence if told is not None and run.finished else "",
        first=next((d for d in shown if d.name == "story"), None),
        news=[] if ledger is None else ledger.news,
        answer=_words.answer(run),
        facts=key_facts(run),
        command=run.command or f"attnflow run {run.study}",
        check_command=check_command(run),
        figures=[d for d in shown if d.name != "story"],
        stages=_tables.stages(run),
        no_stages=_words.no_stages(run),
        no_plateaus=_words.no_plateaus(run),
        plateaus=_tables.plateaus(run, loss),
        marks=_tables.marks(run),
        saddles=saddle_table(run.saddles, loss),
        saddles_said="" if run.saddles is None else run.saddles.words,
        numbers=_tables.numbers(run),
        claims=ledger,
        work=_tables.work(run),
        drift=drift_words(run.drift),
        solver=_tables.solver(run),
        why=run.solver.get("why") or "",
        config=_tables.config(run),
        versions=_tables.versions(manifest),
        created=manifest.get("created") or "",
        bibtex=_cite.bibliography(run),
        notes=(*run.notes, *run.undrawn),
    )


def key_facts(run: Run) -> list[tuple[str, str, str]]:
    """The few numbers at the top: name, value, a word about it."""
    facts: list[tuple[str, str, str]] = []
    ends = _words.losses(run)
    if ends is not None:
        least = _words.floor(run)
        gap = "" if least is None else f"floor {least:.6g}"
        facts.append(("final loss", number(ends[1]), gap))
    none = "no separation" if run.finished else "before it ended"
    facts.append(("stages", str(len(run.stages)), "" if run.stages else none))
    facts.append(("plateaus", str(len(run.plateaus)), ""))
    if run.claims is not None:
        facts.append(("claims", str(len(run.claims)), run.claims.summary))
    work = run.work
    if "rhs" in work:
        calls = int(work["rhs"] + work.get("jvp", 0))
        seconds = f"{work['seconds']:.3g} s" if "seconds" in work else ""
        facts.append(("evaluations", number(calls), seconds))
    if math.isfinite(run.drift):
        facts.append(("drift", f"{run.drift:.1e}", "of what is conserved"))
    return facts


def drift_words(drift: float) -> str:
    """The drift in one sentence."""
    if not math.isfinite(drift):
        return "Nothing conserved was declared (or the run did not say), so no drift is known."
    return (
        f"The conserved quantities drifted by at most {drift:.2e}: the largest |C(t) − C(0)|, "
        "over the largest squared norm of a factor."
    )


def check_command(run: Run) -> str:
    """The shell command that measures the claims of this config."""
    command = run.command or f"attnflow run {run.study}"
    return command.replace("attnflow run", "attnflow check", 1)
