"""A run on a screen and in a notebook."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnflow._tables import html_table
from attnflow.studies.config import brief

if TYPE_CHECKING:
    from attnflow.runs._run import Run

PARTS = ("work", "stages", "plateaus", "saddles", "claims")


def lines(run: Run, parts: Sequence[str] = PARTS) -> Iterator[tuple[str, str]]:
    """What came out, line by line: a word and what there is to say."""
    for part in parts:
        if part == "work":
            yield str(run.solver.get("engine") or "solve"), _work(run)
        elif part == "stages":
            for cycle in sorted({s.cycle for s in run.stages}) or [1]:
                found = [
                    f"{s.name} {s.when.removeprefix('t = ')}"
                    for s in run.stages
                    if s.cycle == cycle
                ]
                name = "stages" if cycle == 1 else f"cycle {cycle}"
                yield name, " · ".join(found) or "no separation"
        elif part == "plateaus":
            steps = [[run.step_of(t) for t in (p.enter, p.leave)] for p in run.plateaus]
            waits = [
                f"{p.loss:.5f} ({p.enter:.4g} to {p.leave:.4g})"
                if begin is None
                else f"{p.loss:.5f} (steps {begin} to {end})"
                for p, (begin, end) in zip(run.plateaus, steps, strict=True)
            ]
            yield part, " · ".join(waits) or "none"
        elif part == "saddles" and run.saddles is not None:
            yield part, run.saddles.words
        elif part == "claims" and run.claims is not None:
            yield part, run.claims.headline


def screen(run: Run, rows: int = 22) -> str:
    """The run on one screen of a terminal."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns - 14)
    config = "  ".join(f"{key}={brief(value)}" for key, value in run.config.items())
    told = [("config", config)]
    if "loss" in run.trajectory and run.trajectory.sizes["time"]:
        first, last = run.trajectory["loss"].values[[0, -1]]
        told.append(("loss", f"{first:.6g} to {last:.6g}"))
    told += [*lines(run), *(("note", note) for note in run.notes)]
    end = [("folder", str(run.path))] if run.path is not None else []
    end += [("again", run.command)] if run.command else []
    above = [line for each in told for line in _wrapped(*each, width)]
    below = [line for each in end for line in _wrapped(*each, width)]
    room = rows - len(below) - 1
    above = above if len(above) <= room else [*above[: room - 1], "  ..."]
    return "\n".join([f"Run of {run.study}", *above, *below])


def html(run: Run) -> str:
    """The run in a notebook: facts, the loss, and the ledger to unfold."""
    facts: list[tuple[str, Any]] = [*lines(run), *(("note", note) for note in run.notes)]
    facts += [("folder", run.path)] if run.path is not None else []
    parts = [html_table([], facts, f"Run of {run.study}"), _picture(run)]
    if run.claims is None:
        parts.append("<p>The claims were not checked.</p>")
    else:
        summary = f"<summary>{len(run.claims)} claims</summary>"
        parts.append(f"<details>{summary}{run.claims._repr_html_()}</details>")
    return f"<div>{''.join(parts)}</div>"


def _work(run: Run) -> str:
    calls = run.work.get("rhs", 0) + run.work.get("jvp", 0)
    drift = "" if math.isnan(run.drift) else f", drift {run.drift:.1e}"
    seconds = run.work.get("seconds", 0)
    return f"{run.status}: {run.sentence} {calls:,.0f} evaluations, {seconds:.2f} s{drift}"


def _wrapped(name: str, words: str, width: int) -> list[str]:
    """At most three lines."""
    found = textwrap.wrap(words, width, max_lines=3, placeholder=" ...") or [""]
    return [f"  {name if k == 0 else '':<10} {line}" for k, line in enumerate(found)]


def _picture(run: Run) -> str:
    """The study's figure of the loss (or its first one), where it can be drawn."""
    from attnflow.draw import svg_text

    try:
        functions = run.built.figures()
        name = "loss" if "loss" in functions else next(iter(functions))
        figure = functions[name](run.trajectory, run.stages)
        # Several outputs of one notebook share a page, and an id has one meaning in a page.
        return svg_text(figure, f"af-{abs(hash((run.path, run.command, id(run)))):x}-", name)
    except Exception:
        return ""
