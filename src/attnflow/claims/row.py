"""One row of a ledger, and its JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from attnflow._errors import InputError, shown
from attnflow.claims.control import Countercheck
from attnflow.claims.evidence import Correction, Erratum
from attnflow.claims.regime import Regime
from attnflow.claims.values import Value
from attnflow.claims.verdict import Cause, Citation, Part, Strength, Verdict, pick


@dataclass(frozen=True)
class Row:
    """The outcome of one claim; the fields are the keys of its JSON object, in order."""

    id: str
    part: Part
    study: str
    title: str
    verdict: Verdict
    cause: Cause | None
    strength: Strength
    predicted: Value
    measured: Value
    tolerance: Value
    regime: Regime | None
    note: str
    section: str = ""
    relation: str = "="
    expected: Verdict = Verdict.HOLDS
    reading: str = ""
    torn: str = ""
    setting: str = ""
    guessed: str = ""
    paper: Citation | None = None
    equation: str = ""
    control: Countercheck | None = None
    correction: Correction | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    defect: str | None = None

    @property
    def surprising(self) -> bool:
        """Whether the verdict is not the expected one, or the check itself is at fault."""
        return self.verdict is not self.expected or self.defect is not None

    @property
    def source(self) -> str:
        """`Chen et al. 2025, eq 14`; empty where neither is known."""
        paper = self.paper.short if self.paper else ""
        return ", ".join(part for part in (paper, self.equation) if part)

    @property
    def ours(self) -> bool:
        """Whether it is a finding of ours, not a statement of the paper."""
        return self.id.startswith("ours:")

    @property
    def erratum(self) -> Erratum | None:
        """What is wrong in the paper, where this row shows that something is."""
        wrong = self.verdict in (Verdict.FAILS, Verdict.HOLDS_CORRECTED)
        return self.correction.erratum if self.correction and wrong else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this row, with plain values only."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Row:
        """The row of a JSON object; keys of a newer version are left out."""
        if not isinstance(given, Mapping):
            raise InputError("claims", f"{shown(given)} is not a row of a ledger")
        known = {f.name for f in fields(cls)}
        row = {key: value for key, value in given.items() if key in known}
        for key in _WORDS:
            if not isinstance(row.get(key), str):
                raise InputError(key, f"{shown(row.get(key))} in a row of a ledger; it is a text")
        for key, kind in (("part", Part), ("verdict", Verdict), ("strength", Strength)):
            row[key] = pick(kind, row.get(key), key)
        row["expected"] = pick(Verdict, row.get("expected", Verdict.HOLDS), "expected")
        row["cause"] = None if row.get("cause") is None else pick(Cause, row["cause"], "cause")
        for key in ("predicted", "measured", "tolerance"):
            row.setdefault(key, None)
        for key, kind in _NESTED.items():
            row[key] = _nested(kind, row.get(key), key)
        return cls(**row)


_WORDS = ("id", "study", "title", "note")
_NESTED = {"regime": Regime, "paper": Citation, "control": Countercheck, "correction": Correction}


def _nested(kind: type, given: Any, key: str) -> Any:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InputError(key, f"{shown(given)} in a row of a ledger; it is an object")
    known = {f.name for f in fields(kind)}
    if kind is Correction:
        given = {**given, "erratum": _nested(Erratum, given.get("erratum"), "erratum")}
    try:
        return kind(**{k: v for k, v in given.items() if k in known})
    except TypeError:
        lacking = ", ".join(sorted(known - set(given)))
        raise InputError(key, f"lacks {lacking} in a row of a ledger") from None


def _plain(value: Any) -> Any:
    """JSON's own types only; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    number = float(value)
    return number if abs(number) < float("inf") else None
