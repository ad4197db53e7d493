"""The rows of a saddle ledger: what is printed, stored with a run and read back."""

from __future__ import annotations

import abc
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = (
    "number",
    "loss",
    "enter",
    "leave",
    "leave_predicted",
    "gradient",
    "index",
    "rate_predicted",
    "rate_measured",
    "efolds",
    "blocks",
    "note",
)


class SaddleTable(abc.ABC):
    """Anything with one record per saddle and a sentence about all; prints like a branch table."""

    sentence: str

    @abc.abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """One mapping per saddle, in order of time; None where something is not known."""

    def __len__(self) -> int:
        return len(self.records())

    @property
    def refined(self) -> int:
        """How many of them were refined to critical points."""
        return sum(bool(row["converged"]) for row in self.records())

    @property
    def worst(self) -> float | None:
        """The largest relative difference of a predicted and a measured rate; None without one."""
        pairs = [(r["rate_predicted"], r["rate_measured"]) for r in self.records()]
        return max((abs(p / m - 1) for p, m in pairs if p is not None and m), default=None)

    @property
    def words(self) -> str:
        """The ledger in one line."""
        if not len(self):
            return self.sentence.rstrip(".")
        said = f"{len(self)} visited, {self.refined} refined"
        worst = self.worst
        return said if worst is None else f"{said}, exits predicted within {100 * worst:.2g} %"

    def as_json(self) -> dict[str, Any]:
        """What `saddles.json` of a run holds; `SavedSaddles.of` reads it."""
        return {"sentence": self.sentence, "saddles": self.records()}

    def _cells(self) -> list[list[str]]:
        return [[_word(row.get(c)) for c in COLUMNS] for row in self.records()]

    def __repr__(self) -> str:
        rows = [list(COLUMNS), *self._cells()]
        widths = [max(len(r[k]) for r in rows) for k in range(len(COLUMNS))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        return "\n".join([self.sentence, *(line.rstrip() for line in lines if len(rows) > 1)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{c.replace('_', ' ')}</th>" for c in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
            for row in self._cells()
        )
        return f"<p>{html.escape(self.sentence)}</p><table><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True, repr=False)
class SavedSaddles(SaddleTable):
    """A saddle ledger as a run keeps it: its records, without points and spectra."""

    sentence: str
    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> SavedSaddles:
        return cls(stored["sentence"], tuple(stored["saddles"]))

    def records(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "-" if value is None else str(value)
