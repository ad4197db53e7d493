"""What is said of a row, the same on a page, in a terminal and in an export."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnflow.claims.evidence import Correction, Erratum
from attnflow.claims.row import Row
from attnflow.claims.values import Value
from attnflow.claims.verdict import Part, Strength, Verdict

OURS = "Ours: what the paper does not state"
"""Title of the rows whose id begins with `ours:`."""
REST = "Statements"
"""Title of the rows of a paper that name no section."""


def sections(rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
    """The rows by the paper's sections, in the order in which they occur; ours at the end."""
    found: dict[str, tuple[Row, ...]] = {}
    for row in sorted(rows, key=lambda row: row.ours):
        title = OURS if row.ours else row.section or REST
        found[title] = (*found.get(title, ()), row)
    return found


def errata(rows: Iterable[Row]) -> dict[Erratum, tuple[Row, ...]]:
    """What is wrong in the paper, with the rows that show it."""
    found: dict[Erratum, tuple[Row, ...]] = {}
    for row in rows:
        if row.erratum is not None:
            found[row.erratum] = (*found.get(row.erratum, ()), row)
    return found


def counted(rows: Iterable[Row]) -> str:
    """`41 hold, 6 hold corrected, 2 fail (3 errata), 1 not checkable`."""
    rows = tuple(rows)
    wrong, words = len(errata(rows)), ""
    for verdict in Verdict:
        n = sum(row.verdict is verdict for row in rows)
        words += f", {verdict.counted(n)}" if n else ""
        words += f" ({_many(wrong, 'errata')})" if wrong and verdict is Verdict.FAILS else ""
    return words[2:] or "no claims"


def summary(rows: Sequence[Row]) -> str:
    """`counted`, and the surprises by name."""
    return "; ".join([counted(rows), *_surprises(rows)])


def headline(rows: Sequence[Row]) -> str:
    """`150 hold, 23 as read, 13 consistent · 3 errata · 2 fail: Prop 3.4, Prop 3.8`."""
    failing = [row for row in rows if row.verdict is Verdict.FAILS]
    wrong = len(errata(rows))
    many = {v: sum(row.verdict is v for row in rows) for v in Verdict if v is not Verdict.FAILS}
    first, *rest = [v.counted(n) for v, n in many.items() if n] or ["no claims"]
    parts = [", ".join([first, *(re.sub("holds? ", "", words) for words in rest)])]
    parts += [_many(wrong, "errata")] if wrong else []
    parts += [f"{Verdict.FAILS.counted(len(failing))}: {_few(failing)}"] if failing else []
    return " · ".join([*parts, *_surprises(rows)])


def label(row: Row) -> str:
    """`Prop 3.4 (eq 14), constant`: the id, and the part where it is not the statement."""
    return row.id if row.part is Part.STATEMENT else f"{row.id}, {row.part}"


def verdict_words(row: Row) -> str:
    """`holds corrected (constant)`, with what was expected where it is a surprise."""
    words = row.verdict.label + (f" ({row.cause})" if row.cause else "")
    if row.defect:
        return f"{words}, defect: {row.defect}"
    return f"{words}, expected {row.expected.label}" if row.surprising else words


@dataclass(frozen=True)
class Compared:
    """What is predicted (and how closely) and what was measured, in words.

    `name` says which it is where a row has several.
    """

    predicted: str
    measured: str
    within: str = ""
    name: str = ""


def compared(row: Row) -> list[Compared]:
    """The comparison of a row as its relation reads: `at most 1e-12` and `2.7e-16`.

    A row that says several things at once has one for each of them.
    """
    sides = row.relation, row.predicted, row.measured, row.tolerance
    return _compared(*sides, {"strength": row.strength, **row.evidence})


def columns(row: Row) -> tuple[str, str]:
    """Predicted and measured as two short texts."""
    predicted, measured = [], []
    for each in compared(row):
        name = f"{each.name}: " if each.name else ""
        within = f" ({each.within})" if each.within else ""
        predicted.append(name + each.predicted + within)
        measured.append(name + each.measured)
    return "; ".join(predicted), "; ".join(measured)


def facts(row: Row) -> list[tuple[str, str]]:
    """What lies behind a row, by name: how it was read and measured, and what must fail."""
    found = [
        ("outcome", row.note),
        ("our reading", row.reading),
        ("put together", row.torn),
        ("measured on", row.setting),
        ("settings guessed", row.guessed),
    ]
    if row.regime is not None:
        where = "inside" if row.regime.inside else "outside"
        found.append(("regime", f"{where}: {row.regime.sentence}"))
    if row.control is not None:
        flips = "the verdict flips" if row.control.flips else "the verdict does not flip"
        found.append(("control", f"{row.control.name}: {row.control.sentence}; {flips}"))
    found.append(("measured again", _rechecked(row)))
    return [(name, text) for name, text in found if text]


def correction_facts(correction: Correction) -> list[tuple[str, str]]:
    """The named texts of a correction, in reading order."""

    def with_error(text: str, error: float | None) -> str:
        return text if error is None else f"{text} [error {error:.3g}]"

    found = [("printed", with_error(correction.printed, correction.printed_error))]
    if correction.corrected:
        found.append(("corrected", with_error(correction.corrected, correction.corrected_error)))
    if correction.counterexample:
        found.append(("counterexample", correction.counterexample))
    erratum = correction.erratum
    return [*found, ("cause", str(erratum.cause)), ("erratum", erratum.title)]


def _surprises(rows: Sequence[Row]) -> list[str]:
    found = [row for row in rows if row.surprising]
    return [f"{_many(len(found), 'surprises')}: {_few(found)}"] if found else []


def _many(n: int, noun: str) -> str:
    """`3 errata`, `1 erratum`, `1 surprise`."""
    return f"{n} {noun if n != 1 else {'errata': 'erratum'}.get(noun, noun[:-1])}"


def _few(rows: Sequence[Row]) -> str:
    """The labels of the first three."""
    return ", ".join([*(row.id for row in rows[:3]), *(["..."] if rows[3:] else [])])


def shown_value(value: Value, digits: int = 6) -> str:
    """A value in a table's cell: six digits, a dash for none, an array by its largest entry."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        array = _array(value)
        if array is not None and (array.ndim > 1 or array.size > 6):
            entries = array[np.isfinite(array)]
            largest = float(entries[np.abs(entries).argmax()]) if entries.size else None
            return f"{_shape(array)} array, largest {shown_value(largest, digits)}"
        inner = ", ".join(shown_value(v, digits) for v in value[:6])
        return f"({inner}{', …' if len(value) > 6 else ''})"
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def _compared(
    relation: str, predicted: Value, measured: Value, tolerance: Value, evidence: Mapping[str, Any]
) -> list[Compared]:
    if relation == "each":
        parts, sides = _parts(evidence), (predicted, measured, tolerance)
        if all(isinstance(side, list) and len(side) == len(parts) for side in sides):
            return [
                replace(said, name=f"{name}, {said.name}" if said.name else name)
                for (name, part), p, m, t in zip(parts.items(), *sides, strict=True)  # type: ignore[arg-type]
                for said in _compared(part["relation"], p, m, t, part)
            ]
    says, found, within = shown_value(predicted), shown_value(measured), []
    spread = f" ± {evidence['stderr']:.2g}" if evidence.get("stderr") is not None else ""
    if relation in _FITTED:
        return [Compared(f"{_FITTED[relation]} {says}", f"fitted {found}{spread}")]
    if relation in ("rises", "falls") and isinstance(measured, list) and len(measured) == 2:
        return [Compared(relation, "from " + " to ".join(map(shown_value, measured)))]
    if not isinstance(predicted, bool):
        within = _within(relation, tolerance)
    worst = _worst(relation, predicted, measured, tolerance)
    if worst is not None:
        says, found, shape = worst
        within = [*within, f"worst of {shape}"]
    if evidence.get("strength") == Strength.STATISTICAL:
        found += f"{spread} over {evidence.get('repeats', '?')} repeats"
    if relation == "sign":
        says = says.replace("-1", "negative").replace("1", "positive")
    elif relation in ("at most", "at least"):
        says = f"{relation} {says}"
    return [Compared(says, found, ", ".join(within))]


def _worst(
    relation: str, predicted: Value, measured: Value, tolerance: Value
) -> tuple[str, str, str] | None:
    """Predicted and measured in the entry of arrays that is nearest to failing, and their shape."""
    p, m, t = (_array(side) for side in (predicted, measured, tolerance))
    if p is None or m is None or max(p.size, m.size) <= 3:
        return None
    try:
        p, m = np.broadcast_arrays(p, m)
        with np.errstate(all="ignore"):  # a ledger may come from anywhere
            short = {"=": abs(m - p), "at most": m - p, "at least": p - m, "sign": -p * m}
            excess = short[relation] - (0.0 if t is None else t)
    except (KeyError, ValueError):
        return None
    at = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), m.shape)
    says, found = (shown_value(None if np.isnan(x[at]) else float(x[at])) for x in (p, m))
    return says, found, _shape(m)


def _within(relation: str, tolerance: Value) -> list[str]:
    """`within 1e-12`; `slack .01` of a bound."""
    array = _array(tolerance)
    if array is None or not (array > 0).any():
        return []
    word = "within" if relation == "=" else "slack"
    return [f"{word} {shown_value(float(np.nanmax(array)), 2)}"]


def _parts(evidence: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What the parts of several at once are, by name; those of what is right in a correction."""
    inner = evidence.get("corrected")
    if isinstance(inner, Mapping) and "relation" not in inner:
        evidence = inner
    return {k: v for k, v in evidence.items() if isinstance(v, Mapping) and "relation" in v}


def _array(value: Value) -> np.ndarray | None:
    """A number or nested list of numbers as an array with nan for none; None for any other."""
    try:
        array = np.asarray(value, dtype=object)
        if any(isinstance(x, str | bool | list) for x in array.flat):
            return None
        return array.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _shape(array: np.ndarray) -> str:
    return "×".join(map(str, array.shape))


def _rechecked(row: Row) -> str:
    """`stays holds corrected ten times tighter and under the second engine`."""
    again = row.evidence.get("rechecks")
    if not isinstance(again, Mapping) or not again:
        return ""
    how = {name: f"under {name}" if name.startswith("the ") else name for name in again}
    stays = [how[name] for name, verdict in again.items() if verdict == row.verdict]
    turns = [f"{v} {how[name]}" for name, v in again.items() if v != row.verdict]
    said = [f"stays {' and '.join(stays)}"] if stays else []
    return "; ".join([*said, *(f"becomes {each}" for each in turns)])


_FITTED = {"Theta": "Θ, power", "O": "O, power", "Omega": "Ω, power", "slope": "slope"}
