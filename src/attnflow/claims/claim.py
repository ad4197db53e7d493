"""A claim: a statement of a paper with the function that measures it, ready to be checked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnflow._errors import InputError, shown
from attnflow.claims.evidence import read_snippet
from attnflow.claims.made_from import made_from_the_result
from attnflow.claims.measure import Measurement
from attnflow.claims.regime import Condition, Regime
from attnflow.claims.row import Row
from attnflow.claims.verdict import Cause, Part, Strength, Verdict
from attnflow.flows import opinion

if TYPE_CHECKING:
    from attnflow.claims.paper import Paper

WRONG = (Verdict.FAILS, Verdict.HOLDS_CORRECTED)
"""Verdicts that say that something printed is wrong: they have to stay under a second opinion."""


class ClaimDefect(Exception):
    """The check itself is at fault: it has no control, or one that does not flip the verdict."""

    def __init__(self, row: Row):
        self.row = row
        super().__init__(f"{row.id} ({row.part}): {row.defect}")


@dataclass(frozen=True)
class Claim:
    """One statement about one part of a paper, as `Paper.claim` makes it.

    Calling a claim measures it; `check` judges the measurement and gives a row of the ledger.
    """

    id: str
    measure: Callable[[Any], Measurement] = field(repr=False)
    statement: str
    paper: Paper = field(repr=False)
    part: Part = Part.STATEMENT
    regime: Condition | None = field(default=None, repr=False)
    reading: str = ""
    torn: str = ""
    setting: str = ""
    equation: str = ""
    section: str = ""

    @property
    def title(self) -> str:
        """The first paragraph of the statement, on one line."""
        return " ".join(self.statement.split("\n\n")[0].split())

    def __call__(self, study: Any) -> Measurement:
        """Measure without judging."""
        found = self.measure(study)
        if not isinstance(found, Measurement):
            raise InputError(self.id, f"measured {shown(found)}; return equal(...) or its kin")
        return self._as_read(found)

    def check(self, study: Any) -> Row:
        """Evaluate the regime, measure and judge; ask again where something printed is wrong.

        Raises `ClaimDefect` where the check shows nothing; its `row` says why.
        """
        regime = None if self.regime is None else self.regime(_config(study))
        if regime is not None and not regime.inside:
            # At a study's own defaults the hypotheses are meant to hold.
            expected = Verdict.HOLDS if _at_defaults(study) else Verdict.OUT_OF_REGIME
            outside = Verdict.OUT_OF_REGIME
            return self.row(study, outside, regime=regime, note=regime.sentence, expected=expected)
        with opinion.counting() as solves:
            found = self(study)
        if found.correction is not None:
            text = read_snippet(
                self.paper.snippets, found.correction.snippet, self.measure.__name__
            )
            found = replace(found, correction=replace(found.correction, snippet=text))
        again: dict[str, Verdict] = {}
        if found.verdict in WRONG and found.verdict is found.promise and solves[0]:
            again = {o.name: self._again(study, o) for o in (opinion.TIGHTER, opinion.OTHER)}
        row = self.row(study, found.verdict, found, regime=regime, rechecks=again)
        defect = made_from_the_result(self.measure) or _defect(found, again)
        if defect:
            raise ClaimDefect(self.broken(study, defect, found, regime=regime, rechecks=again))
        return row

    def broken(self, study: Any, defect: str, found: Measurement | None = None, **more: Any) -> Row:
        """A row that concludes nothing because the check is at fault; always a surprise."""
        row = self.row(study, Verdict.NOT_CHECKABLE, found, **more)
        note = f"{defect}; {row.note}" if row.note else defect
        return replace(row, defect=defect, note=note, cause=None)

    def row(
        self,
        study: Any,
        verdict: Verdict,
        found: Measurement | None = None,
        *,
        regime: Regime | None = None,
        note: str = "",
        expected: Verdict = Verdict.HOLDS,
        rechecks: dict[str, Verdict] | None = None,
    ) -> Row:
        """The ledger's row for one outcome."""
        shown_ = found or Measurement(verdict, note, relation="", strength=Strength.NUMERIC)
        correction = shown_.correction
        evidence = dict(shown_.evidence)
        if rechecks:
            evidence["rechecks"] = {name: v.value for name, v in rechecks.items()}
        name = getattr(study, "name", None)
        return Row(
            id=self.id,
            part=self.part,
            study=name if isinstance(name, str) else self.paper.study,
            section=self.section,
            title=self.title,
            verdict=verdict,
            cause=Cause(correction.erratum.cause) if correction and verdict in WRONG else None,
            strength=shown_.strength,
            relation=shown_.relation,
            predicted=shown_.predicted,
            measured=shown_.measured,
            tolerance=shown_.tolerance,
            regime=regime,
            note=shown_.sentence,
            expected=found.promise if found else expected,
            reading=self.reading,
            torn=self.torn,
            setting=self.setting,
            guessed=shown_.guessed,
            paper=self.paper.citation,
            equation=self.equation,
            control=shown_.control,
            correction=correction,
            evidence=evidence,
        )

    def _as_read(self, found: Measurement) -> Measurement:
        """A statement that we had to read holds at best as we read it."""
        if not (self.reading or self.torn):
            return found
        best = {Verdict.HOLDS: Verdict.HOLDS_AS_READ}
        verdict, promise = found.verdict, found.promise
        return replace(
            found, verdict=best.get(verdict, verdict), promise=best.get(promise, promise)
        )

    def _again(self, study: Any, how: opinion.Opinion) -> Verdict:
        """The verdict of the same measurement with every solve asked for in another way."""
        with opinion.asking(how):
            return self(study.at() if hasattr(study, "at") else study).verdict


def _defect(found: Measurement, again: dict[str, Verdict]) -> str:
    """Why the check proves nothing, or an empty string."""
    if found.verdict is Verdict.NOT_CHECKABLE:
        return ""
    if found.control is None:
        return "the claim has no negative control, so nothing shows that it can fail"
    # An unexpected `fails` is a finding: its control was chosen for a formula that holds.
    finding = found.verdict is Verdict.FAILS and found.promise is not Verdict.FAILS
    if not found.control.flips and not finding:
        return (
            f"the control does not flip the verdict: {found.control.name}: {found.control.sentence}"
        )
    if found.verdict is Verdict.FAILS and found.correction is None and not finding:
        return "the claim fails without evidence; use refuted(...) or corrected(...)"
    changed = [f"{v} under {name}" for name, v in again.items() if v is not found.verdict]
    if changed:
        return f"the verdict {found.verdict} does not stay: {', '.join(changed)}"
    return ""


def _config(study: Any) -> Any:
    return getattr(study, "config", study)


def _at_defaults(study: Any) -> bool:
    """Whether a study has the config that its class has by default."""
    config = _config(study)
    with suppress(Exception):  # a config without defaults has none to be at
        return bool(type(config)() == config)
    return False
