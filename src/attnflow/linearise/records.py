"""The rows of a saddle ledger: what is printed, stored with a run and read back."""

from __future__ import annotations

import abc
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from attnflow.observe.stages import Plateau

COLUMNS = (
    "number",
    "kind",
    "loss",
    "enter",
    "leave",
    "leave_predicted",
    "distance",
    "extent",
    "index",
    "law",
    "rate_predicted",
    "rate_measured",
    "efolds",
    "power",
    "power_error",
    "blocks",
    "flag",
    "note",
)


class SaddleTable(abc.ABC):
    """Anything with one record per wait and a sentence about all; prints like a branch table.

    The plateaus are numbered from 1; number 0 is the stretch that the flow starts on, where it
    waits there.
    """

    sentence: str

    @abc.abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """One mapping per wait, in order of time; None where something is not known."""

    def __len__(self) -> int:
        return len(self.records())

    @property
    def plateaus(self) -> list[Plateau]:
        """What a run counts as its plateaus: all but the start."""
        rows = [row for row in self.records() if row["number"] > 0]
        return [
            Plateau(
                loss=row.get("level", row["loss"]),
                time=row["time"],
                enter=row["enter"],
                leave=row["leave"],
                speed=row.get("speed", nan),
                prominence=row.get("prominence", nan),
                open=row.get("kind") == "still waiting",
            )
            for row in rows
        ]

    @property
    def worst(self) -> float | None:
        """How far a predicted wait is off, relatively, at most; None without a prediction."""
        ratios = [
            (r["leave_predicted"] - r["enter"]) / (r["leave"] - r["enter"])
            for r in self.records()
            if r["leave_predicted"] is not None and r["leave"] > r["enter"]
        ]
        return max((abs(ratio - 1) for ratio in ratios), default=None)

    @property
    def words(self) -> str:
        """The ledger in one line."""
        if not len(self):
            return self.sentence.rstrip(".")
        said, rows = [counted(self.records())], self.records()
        if self.worst is not None:
            said.append(f"exits predicted within {100 * self.worst:.2g} %")
        flagged = sum(bool(row.get("flag")) for row in rows)
        said += [f"{flagged} flagged"] if flagged else []
        said += ["still waiting at the end"] if rows[-1].get("kind") == "still waiting" else []
        return ", ".join(said)

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


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """`the start and 3 plateaus, 3 refined`."""
    many = sum(row["number"] > 0 for row in rows)
    named = ["the start"] if len(rows) > many else []
    named += [f"{many} plateau{'s' if many > 1 else ''}"] if many else []
    return f"{' and '.join(named)}, {sum(bool(row['converged']) for row in rows)} refined"


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "-" if value is None else str(value)
