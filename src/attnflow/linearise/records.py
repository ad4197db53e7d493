"""The rows of a saddle ledger: what is printed, stored with a run and read back."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow._tables import html_table, text_table
from attnflow.linearise.escape import Law
from attnflow.linearise.newton import CriticalPoint
from attnflow.observe.stages import Plateau

MISSED = 2.0
"""A predicted wait is flagged when it is off by more than this factor."""

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
                speed=row.get("speed", math.nan),
                prominence=row.get("prominence", math.nan),
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
        rows = self._cells()
        return "\n".join([self.sentence, *([text_table(COLUMNS, rows)] if rows else [])])

    def _repr_html_(self) -> str:
        return html_table([c.replace("_", " ") for c in COLUMNS], self._cells(), self.sentence)


@dataclass(frozen=True)
class Wait:
    """One plateau of a trajectory, the critical point behind it and the law by which it is left."""

    number: int
    """From 1; 0 is the stretch that the flow starts on."""
    plateau: Plateau
    kind: str
    """`saddle`; `still waiting` where the run ends on one; `bottleneck`, a slow stretch without a
    critical point of its own; `unknown` where the search was not decided."""
    point: CriticalPoint | None
    """None where the plateau was not found again at the tighter tolerance."""
    extent: float
    """The diameter of the plateau; a critical point further from its slowest state is refused."""
    rates: tuple[float, ...] = ()
    """The distinct unstable rates that could act during the plateau, largest first."""
    blocks: str = ""
    """Which weights move in the leading mode, with their shares."""
    law: Law | None = None
    """None where no law has a window, or neither fits."""
    leave_predicted: float = float("nan")
    sentence: str = ""

    @property
    def refined(self) -> bool:
        return self.point is not None and self.point.converged

    @property
    def loss(self) -> float:
        """Of the refined point; of the trajectory where there is none."""
        return self.point.loss if self.point and self.point.converged else self.plateau.loss

    @property
    def index(self) -> int | None:
        """How many unstable modes the point has; none where they were too slow to act."""
        return (
            self.point.index
            if self.point and (self.rates or self.plateau.open)
            else (0 if self.refined else None)
        )

    @property
    def rate_predicted(self) -> float:
        """Of the refined point, where its mode was seen to grow exponentially."""
        return self.rates[0] if self.rates and self._is("exponential") else float("nan")

    @property
    def rate_measured(self) -> float:
        return self.law.rate if self.law and self._is("exponential") else float("nan")

    @property
    def exit_ratio(self) -> float:
        """The predicted wait over the measured one."""
        waited = self.plateau.leave - self.plateau.enter
        return (self.leave_predicted - self.plateau.enter) / waited if waited > 0 else float("nan")

    @property
    def flag(self) -> str | None:
        """What is wrong with the predicted exit, if it misses by more than a factor of two."""
        ratio = self.exit_ratio
        if math.isnan(ratio) or 1 / MISSED <= ratio <= MISSED:
            return None
        late, factor = ("late", ratio) if ratio > 1 else ("early", 1 / max(ratio, 1e-300))
        return f"exit predicted {factor:.3g} times too {late}"

    def _is(self, law: str) -> bool:
        return self.law is not None and self.law.name == law

    def as_dict(self) -> dict[str, Any]:
        """The row of the ledger; None where something is not known."""
        law, point = self.law, self.point
        powers = law is not None and law.name == "algebraic"
        row = {
            "number": self.number,
            "kind": self.kind,
            "loss": self.loss,
            "level": self.plateau.loss,
            "time": self.plateau.time,
            "enter": self.plateau.enter,
            "leave": self.plateau.leave,
            "leave_predicted": self.leave_predicted,
            "speed": self.plateau.speed,
            "prominence": self.plateau.prominence,
            "converged": self.refined,
            "distance": point.distance if point else None,
            "extent": self.extent,
            "gradient": point.speed if point else None,
            "index": self.index,
            "nullity": point.nullity if point else None,
            "rates": list(self.rates),
            "blocks": self.blocks,
            "law": law.name if law else None,
            "rate_predicted": self.rate_predicted,
            "rate_measured": self.rate_measured,
            "efolds": law.span if law and not powers else 0.0,
            "power": law.power if law and powers else None,
            "power_error": law.power_error if law and powers else None,
            "flag": self.flag,
            "note": self.sentence,
        }
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


@dataclass(frozen=True, repr=False)
class SaddleLedger(SaddleTable):
    """Every plateau of a trajectory, in order, with the critical point behind it."""

    saddles: tuple[Wait, ...]
    sentence: str

    def __iter__(self) -> Iterator[Wait]:
        return iter(self.saddles)

    def __len__(self) -> int:
        return len(self.saddles)

    def __getitem__(self, k: int) -> Wait:
        return self.saddles[k]

    def records(self) -> list[dict[str, Any]]:
        return [saddle.as_dict() for saddle in self.saddles]


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
