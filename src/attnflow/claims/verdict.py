"""The words of a ledger: verdicts, parts, strengths, causes and citations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from attnflow._errors import InputError, nearest, shown


class Verdict(StrEnum):
    """What a check concluded."""

    HOLDS = "holds"
    """The prediction is met within the stated tolerance."""
    HOLDS_AS_READ = "holds-as-read"
    """The text at hand is garbled or has an evident slip; our reading is stated and holds."""
    CONSISTENT = "consistent"
    """An order-only statement: the fitted exponent agrees over a stated range."""
    HOLDS_CORRECTED = "holds-corrected"
    """What is printed is wrong; what is right is stated and holds."""
    FAILS = "fails"
    """The prediction is not met, and the counterexample is shown."""
    NOT_REPRODUCED = "not-reproduced"
    """An experiment whose settings are not all printed came out otherwise; the guesses are said."""
    OUT_OF_REGIME = "out-of-regime"
    """The hypotheses do not hold here, so nothing was measured."""
    NOT_CHECKABLE = "not-checkable"
    """Nothing could be concluded, for the reason in the note."""

    @property
    def symbol(self) -> str:
        """One sign per verdict, so that colour is never the only difference."""
        return _LOOK[self][0]

    @property
    def colour(self) -> str:
        """A colour of the Okabe-Ito palette, which colour-blind readers can tell apart."""
        return _LOOK[self][1]

    @property
    def label(self) -> str:
        """The verdict in words: `holds corrected`."""
        return self.value.replace("-", " ")

    def counted(self, n: int) -> str:
        """`1 holds`, `41 hold`, `23 hold as read`, `6 hold corrected`, `1 not checkable`."""
        words = self.label
        if n != 1:
            words = words.replace("holds", "hold").replace("fails", "fail")
        return f"{n} {words}"


class Part(StrEnum):
    """Which part of a statement a claim is about."""

    STATEMENT = "statement"
    HYPOTHESIS = "hypothesis"
    CONSTANT = "constant"
    PROOF_STEP = "proof-step"
    EXPERIMENT = "experiment"


class Strength(StrEnum):
    """What was done: an identity at points, numbers within a tolerance, a fit, repeats."""

    EXACT = "exact"
    NUMERIC = "numeric"
    FIT = "fit"
    STATISTICAL = "statistical"


class Cause(StrEnum):
    """What is wrong, where something is."""

    CONSTANT = "constant"
    MISSING_HYPOTHESIS = "missing-hypothesis"
    SIGN = "sign"
    FALSE = "false"


@dataclass(frozen=True)
class Citation:
    """A paper that a row of the ledger cites."""

    key: str
    authors: tuple[str, ...]
    title: str
    year: int
    venue: str = ""
    arxiv: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.authors, str):
            raise InputError("authors", f"'{self.authors}' is one string; give a tuple of names")
        if not self.key or any(c in self.key for c in " ,{}%#\\~\"'\n\t"):
            raise InputError("key", f"'{self.key}' is not a BibTeX key; use letters, digits, - _ :")
        object.__setattr__(self, "authors", tuple(self.authors))

    @property
    def short(self) -> str:
        """`Chen et al. 2025`, `Chen and Luo 2025`."""
        names = [_surname(a) for a in self.authors]
        if not names:
            return f"{self.title} {self.year}"
        if len(names) > 2:
            return f"{names[0]} et al. {self.year}"
        return f"{' and '.join(names)} {self.year}"


E = TypeVar("E", bound=StrEnum)


def pick(kind: type[E], value: object, field: str) -> E:
    """The member of an enumeration that a word names, or a sentence with the nearest one."""
    try:
        return kind(value)
    except ValueError:
        hint = nearest(str(value), [m.value for m in kind])
        what = f"a {kind.__name__.lower()}"
        raise InputError(field, f"'{shown(value)}' is not {what} ({hint})") from None


def _surname(author: str) -> str:
    """`Chen` of `Chen, Zheng-An` and of `Zheng-An Chen`."""
    name = author.split(",")[0].strip() if "," in author else author.strip().rpartition(" ")[2]
    return name or author


_LOOK = {
    Verdict.HOLDS: ("✓", "#009E73"),
    Verdict.HOLDS_AS_READ: ("☑", "#0072B2"),
    Verdict.CONSISTENT: ("≈", "#56B4E9"),
    Verdict.HOLDS_CORRECTED: ("✎", "#E69F00"),
    Verdict.FAILS: ("✗", "#D55E00"),
    Verdict.NOT_REPRODUCED: ("≠", "#B8860B"),
    Verdict.OUT_OF_REGIME: ("○", "#999999"),
    Verdict.NOT_CHECKABLE: ("?", "#CC79A7"),
}
