"""The ledger: the rows of a study's claims, printed, exported and saved."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from attnflow._errors import InputError, nearest
from attnflow.claims import export, show, words
from attnflow.claims.claim import Claim, ClaimDefect
from attnflow.claims.evidence import Erratum
from attnflow.claims.row import Row
from attnflow.claims.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Group

Progress = Callable[[int, int, Row], None]
"""Called after each claim with how many are done, how many there are, and the row."""


@dataclass(frozen=True, repr=False)
class Ledger:
    """Rows in the order in which they were checked.

    >>> Ledger.check([], study=None).summary
    'no claims'
    """

    rows: tuple[Row, ...] = ()

    @classmethod
    def check(cls, claims: Iterable[Claim], study: Any, progress: Progress | None = None) -> Ledger:
        """Check every claim against a study.

        A claim that raises, or whose check is at fault, becomes a surprising row; the others go on.
        """
        claims = tuple(claims)
        _once(claims)
        rows: list[Row] = []
        for done, each in enumerate(claims, start=1):
            rows.append(_checked(each, study))
            if progress is not None:
                progress(done, len(claims), rows[-1])
        return cls(tuple(rows))

    @property
    def surprises(self) -> tuple[Row, ...]:
        """The rows whose verdict is not the expected one, or whose check is at fault."""
        return tuple(row for row in self.rows if row.surprising)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many rows have each verdict, zeros included."""
        return {v: sum(row.verdict is v for row in self.rows) for v in Verdict}

    @property
    def errata(self) -> dict[Erratum, tuple[Row, ...]]:
        """What is wrong in the paper, with the rows that show it."""
        return words.errata(self.rows)

    @property
    def sections(self) -> dict[str, tuple[Row, ...]]:
        """The rows by the paper's sections, in the order in which they occur; ours at the end."""
        return words.sections(self.rows)

    @property
    def summary(self) -> str:
        """`41 hold, 6 hold corrected, 2 fail (3 errata), 1 not checkable; 1 surprise: Prop 3.4`."""
        return words.summary(self.rows)

    @property
    def headline(self) -> str:
        """`150 hold, 23 as read, 13 consistent · 3 errata · 2 fail: Prop 3.4, Prop 3.8`."""
        return words.headline(self.rows)

    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON objects."""
        return [row.to_dict() for row in self.rows]

    def to_json(self, indent: int | None = 2) -> str:
        """The rows as a JSON array; numbers that are not finite are null."""
        return json.dumps(self.records(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Ledger:
        """The ledger that `to_json` wrote."""
        try:
            given = json.loads(text)
        except ValueError as error:
            raise InputError("claims", f"is not JSON: {error}") from None
        if not isinstance(given, list):
            raise InputError("claims", "is not an array of rows")
        return cls(tuple(Row.from_dict(row) for row in given))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON array beside and rename it, so that the file is whole or not there."""
        path = Path(path)
        beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with open(beside, "x", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger saved at a path."""
        path = Path(path)
        try:
            return cls.from_json(path.read_bytes())
        except FileNotFoundError:
            raise InputError("claims", f"there is no file {path}") from None
        except InputError as error:
            raise InputError(f"{path}: {error.field}", error.sentence) from None

    def to_markdown(self) -> str:
        """A table per section, then each correction with its snippet; `$...$` is mathematics."""
        return export.markdown(self.rows)

    def to_latex(self) -> str:
        """A document that compiles on its own; it cites by the keys of `to_bibtex`."""
        return export.latex(self.rows)

    def to_bibtex(self) -> str:
        """One entry per paper that a row cites."""
        return export.bibtex(self.rows)

    def terminal(self, every: bool = False) -> Group:
        """What `attnflow check` prints: a screen of it, or with `every` all rows."""
        return show.terminal(self.rows, every)

    def __repr__(self) -> str:
        return f"Ledger({len(self)} claims: {self.summary})"

    def _repr_html_(self) -> str:
        return show.html(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: str) -> Row: ...
    def __getitem__(self, at: int | str) -> Row:
        """A row by its place, or the first row with an id."""
        if isinstance(at, int):
            return self.rows[at]
        for row in self.rows:
            if row.id == at:
                return row
        raise KeyError(at)

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(self.rows + other.rows)


def selected(claims: Iterable[Claim], only: Sequence[str]) -> tuple[Claim, ...]:
    """The claims whose id or section contains one of these texts; all where none is given."""
    claims, wanted = tuple(claims), [text.casefold() for text in only]
    for text, low in zip(only, wanted, strict=True):
        if not any(low in f"{c.id} {c.section}".casefold() for c in claims):
            hint = nearest(text, [c.id for c in claims])
            raise InputError("only", f"'{text}' is in no claim's label or section; {hint}")
    if not wanted:
        return claims
    return tuple(c for c in claims if any(t in f"{c.id} {c.section}".casefold() for t in wanted))


def _checked(each: Claim, study: Any) -> Row:
    try:
        return each.check(study)
    except ClaimDefect as defect:
        return defect.row
    except Exception as error:
        return each.broken(study, _sentence(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _once(claims: tuple[Claim, ...]) -> None:
    seen: set[tuple[str, str]] = set()
    for each in claims:
        if not isinstance(each, Claim):
            raise InputError("claims", f"{each!r} is no claim; decorate it with @paper.claim(...)")
        if (each.id, each.part) in seen:
            raise InputError("claims", f"'{each.id}' ({each.part}) is given twice")
        seen.add((each.id, each.part))
