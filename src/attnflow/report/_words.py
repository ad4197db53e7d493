"""Numbers and sentences as a page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnflow.runs import Run


@dataclass(frozen=True)
class Table:
    """A table's caption, heads and cells; the columns in `numeric` are aligned to the right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    numeric: frozenset[int] = frozenset()


def number(value: Any, digits: int = 6) -> str:
    """A number to `digits` digits, a dash for none, anything else as text."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        whole = int(value)
        if abs(whole) < 10**9:
            return f"{whole:,}".replace(",", "\u202f") if abs(whole) >= 10**4 else str(whole)
    if isinstance(value, list | tuple):
        return ", ".join(number(v, digits) for v in value) or "–"
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:.{digits}g}" if math.isfinite(value) else _NOT_FINITE[str(value)]


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def losses(run: Run) -> tuple[float, float] | None:
    """The first and the last loss, where one is observed."""
    if "loss" not in run.trajectory or not run.trajectory.sizes.get("time"):
        return None
    values = run.trajectory["loss"].values
    return float(values[0]), float(values[-1])


def floor(run: Run) -> float | None:
    """The least loss there can be, where the study says it."""
    value = run.summary.get("floor")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def answer(run: Run) -> list[str]:
    """How the run ended, in plain sentences: the loss, the plateaus, the claims."""
    said = [s for s in (_loss_sentence(run), "" if run.stages else no_stages(run)) if s]
    waits = run.plateaus
    if waits:
        where = listed([f"{p.loss:.4f}" for p in waits])
        many = "one plateau, at loss" if len(waits) == 1 else f"{len(waits)} plateaus, at losses"
        said.append(f"It waited on {many} {where}.")
    if run.claims is not None:
        said.append(f"Claims: {run.claims.summary}.")
    return said


def _loss_sentence(run: Run) -> str:
    ends = losses(run)
    if ends is None:
        return ""
    first, last = ends
    if not math.isfinite(last):
        return f"The last loss is not a finite number; the first was {first:.6g}."
    words = f"The loss {'fell' if last < first else 'went'} from {first:.6g} to {last:.6g}"
    least = floor(run)
    if least is None:
        return words + "."
    gap = last - least
    return f"{words}, {abs(gap):.3g} {'above' if gap >= 0 else 'below'} its floor {least:.6g}."


def no_stages(run: Run) -> str:
    """The sentence for a run without stages."""
    if run.finished:  # only then is the absence of something a finding
        return "No stage was told apart in this run (no separation)."
    return "No stage was told apart before the run ended."


def no_plateaus(run: Run) -> str:
    """The sentence for a run without plateaus."""
    if run.finished:
        return "The speed has no minimum that stands out: the flow never waited."
    return "The speed had no minimum that stands out before the run ended."


def named(stage: Any) -> str:
    """`focus`, and `focus 2` in the second cycle."""
    return stage.name if stage.cycle == 1 else f"{stage.name} {stage.cycle}"


UNBROKEN = "\u00a0"
"""A space at which no line is broken."""

_NOT_FINITE = {"nan": "not a number", "inf": "∞", "-inf": "−∞"}
