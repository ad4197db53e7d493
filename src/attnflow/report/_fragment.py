"""What a notebook shows of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from attnflow.report import _tables, _words
from attnflow.report._drawings import first_drawing
from attnflow.report._page import check_command, claim_rows, drift_words, verdict_counts
from attnflow.report._render import render, text
from attnflow.report._words import number

if TYPE_CHECKING:
    from attnflow.walk import Outcome


def fragment(outcome: Outcome) -> str:
    """A piece of HTML with loss, stages, claims, work and drift; its styles stay inside it."""
    claims = outcome.claims
    return render(
        "fragment.html",
        fragment_css=Markup(text("fragment.css")),
        title=outcome.study.title,
        path="" if outcome.path is None else str(outcome.path),
        status=outcome.status,
        sentence=outcome.sentence,
        answer=_words.answer(outcome),
        drawing=first_drawing(outcome),
        stages=_tables.stages(outcome),
        claims=None if claims is None else claim_rows(claims),
        counts=[] if claims is None else verdict_counts(claims),
        check_command=check_command(outcome),
        work="Work: " + (", ".join(f"{k} {number(v, 4)}" for k, v in outcome.work.items()) or "–"),
        drift=drift_words(outcome.drift),
        notes=outcome.notes,
    )
