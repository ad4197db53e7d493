"""A claim: a statement of a paper with the function that measures it.

@claim("Prop 3.4 (eq 14)", part="constant", regime=nonuniform, study="focus-dilution")
def attention_growth_rate(study):
    \"\"\"At the second critical point the attention block grows at rate c.\"\"\"
    return equal(predicted=rate(study.chain), measured=top_eigenvalue(study), rtol=1e-10,
                 control=rate(study.chain.with_lam(0.9 * study.chain.lam)))
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnflow._errors import InputError, nearest, shown
from attnflow.claims.measure import Measurement
from attnflow.claims.row import Row
from attnflow.claims.verdict import Cause, Citation, Part, Regime, Strength, Verdict, pick

Predicate = Callable[[Any], Regime | bool]
"""A regime: a function of the study that says whether the hypotheses hold."""


class ClaimDefect(Exception):
    """The check itself is at fault: it has no control, or one that does not flip the verdict."""

    def __init__(self, row: Row):
        self.row = row
        super().__init__(f"{row.id} ({row.part}): {row.defect}")


@dataclass(frozen=True)
class Claim:
    """One statement about one part of a paper, ready to be checked against a study.

    Calling a claim measures it; `check` judges the measurement and gives a row of the ledger.
    """

    id: str
    measure: Callable[[Any], Measurement] = field(repr=False)
    statement: str
    part: Part = Part.STATEMENT
    strength: Strength | None = None
    paper: Citation | None = None
    equation: str | None = None
    regime: Predicate | None = field(default=None, repr=False)
    expected: Verdict | Callable[[Any], Verdict | str] = Verdict.HOLDS
    recheck: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict, repr=False)
    study: str | None = None

    @property
    def title(self) -> str:
        """The first paragraph of the statement, on one line."""
        return " ".join(self.statement.split("\n\n")[0].split())

    def __call__(self, study: Any) -> Measurement:
        """Measure without judging."""
        found = self.measure(study)
        if not isinstance(found, Measurement):
            raise InputError(self.id, f"measured {shown(found)}; return equal(...) or its kin")
        return found

    def check(self, study: Any) -> Row:
        """Evaluate the regime, measure, judge, and measure again where a recheck is given.

        Raises `ClaimDefect` where the check shows nothing; its `row` says why.
        """
        regime = self._regime(study)
        if regime is not None and not regime.inside:
            return self.row(study, Verdict.OUT_OF_REGIME, regime=regime, note=regime.sentence)
        found = self(study)
        verdicts = {name: self._again(study, how).verdict for name, how in self.recheck.items()}
        row = self.row(study, found.verdict, found, regime=regime, rechecks=verdicts)
        defect = _defect(found, row.expected, verdicts)
        if defect:
            raise ClaimDefect(self.broken(study, defect, found, regime=regime, rechecks=verdicts))
        return row

    def broken(self, study: Any, defect: str, found: Measurement | None = None, **more: Any) -> Row:
        """A row that concludes nothing because the check is at fault; always a surprise."""
        row = self.row(study, Verdict.NOT_CHECKABLE, found, **more)
        note = f"{defect}; {row.note}" if row.note else defect
        return Row(**{**vars(row), "defect": defect, "note": note, "cause": None})

    def row(
        self,
        study: Any,
        verdict: Verdict,
        found: Measurement | None = None,
        *,
        regime: Regime | None = None,
        note: str = "",
        rechecks: Mapping[str, Verdict] | None = None,
    ) -> Row:
        """The ledger's row for one outcome."""
        correction = found.correction if found else None
        wrong = verdict in (Verdict.FAILS, Verdict.HOLDS_CORRECTED)
        evidence = dict(found.evidence) if found else {}
        if rechecks:
            evidence["rechecks"] = {name: v.value for name, v in rechecks.items()}
        paper = self.paper or getattr(study, "paper", None)
        return Row(
            id=self.id,
            part=self.part,
            study=_name_of(study, self.study),
            title=self.title,
            verdict=verdict,
            cause=Cause(correction.cause) if correction and wrong else None,
            strength=self.strength or (found.strength if found else Strength.NUMERIC),
            predicted=found.predicted if found else None,
            measured=found.measured if found else None,
            tolerance=found.tolerance if found else None,
            regime=regime,
            note=note or (found.sentence if found else ""),
            expected=self._expected(study),
            paper=paper if isinstance(paper, Citation) else None,
            equation=self.equation,
            control=found.control if found else None,
            correction=correction,
            evidence=evidence,
        )

    def _expected(self, study: Any) -> Verdict:
        if isinstance(self.expected, Verdict):
            return self.expected
        return pick(Verdict, self.expected(study), "expected")

    def _regime(self, study: Any) -> Regime | None:
        if self.regime is None:
            return None
        answer = self.regime(study)
        if isinstance(answer, Regime):
            return Regime(bool(answer.inside), answer.sentence)
        if isinstance(answer, bool | np.bool_):
            return Regime(bool(answer), _sentence_of(self.regime))
        raise InputError("regime", f"{shown(answer)} is neither a Regime nor True or False")

    def _again(self, study: Any, how: Callable[[Any], Any]) -> Measurement:
        other = how(study)
        return other if isinstance(other, Measurement) else self(other)


def claim(
    id: str,
    *,
    part: Part | str = Part.STATEMENT,
    strength: Strength | str | None = None,
    paper: Citation | None = None,
    equation: str | None = None,
    regime: Predicate | None = None,
    expected: Verdict | str | Callable[[Any], Verdict | str] = Verdict.HOLDS,
    recheck: Mapping[str, Callable[[Any], Any]] | None = None,
    study: str | None = None,
) -> Callable[[Callable[[Any], Measurement]], Claim]:
    """Turn `measure(study) -> Measurement` into a `Claim`; its docstring is the statement.

    - `id`: the paper's label in full (`Prop 3.4 (eq 14)`), or `ours: ...`.
    - `strength`: by default what the measurement's builder says.
    - `paper`: by default the study's own `paper`; `equation`: by default read from the id.
    - `expected`: a verdict, or a function of the study that names one.
    - `recheck`: name -> function of the study that gives another study (tighter tolerance, second
      solver) to measure again, or a measurement; the verdict must stay the same.
    - `study`: registers the claim, see `claims_of`.
    """
    check_id(id)
    made_part = pick(Part, part, "part")
    made_strength = None if strength is None else pick(Strength, strength, "strength")
    made_expected = expected if callable(expected) else pick(Verdict, expected, "expected")
    if paper is not None and not isinstance(paper, Citation):
        raise InputError("paper", f"{shown(paper)} is not a Citation")

    def made(measure: Callable[[Any], Measurement]) -> Claim:
        statement = inspect.getdoc(measure) or ""
        if not statement.strip():
            raise InputError(id, "has no statement; say it in the docstring of its function")
        found = Claim(
            id=id,
            measure=measure,
            statement=statement,
            part=made_part,
            strength=made_strength,
            paper=paper,
            equation=equation or _equation_in(id),
            regime=regime,
            expected=made_expected,
            recheck=dict(recheck or {}),
            study=study,
        )
        if study is not None:
            _register(study, found)
        return found

    return made


def claims_of(study: str) -> tuple[Claim, ...]:
    """The claims registered for a study, in the order in which they were written."""
    return tuple(_REGISTRY.get(study, {}).values())


def check_id(id: str) -> None:
    """Reject an id that is not the paper's own label in full, nor one of ours."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return
    word = str(id).split(" ")[0]
    hint = "for instance 'Prop 3.4 (ii)', 'Lemma E.6', 'eq 14', 'Fig 2C', or 'ours: ...'"
    if word.isalpha() and word not in _KINDS and (close := nearest(word, _KINDS)).startswith("did"):
        hint = close
    raise InputError("id", f"'{shown(id)}' is not a paper's label in full ({hint})")


def _defect(found: Measurement, expected: Verdict, rechecks: Mapping[str, Verdict]) -> str:
    """Why the check proves nothing, or an empty string."""
    if found.verdict is Verdict.NOT_CHECKABLE:
        return ""
    if found.control is None:
        return "the claim has no negative control, so nothing shows that it can fail"
    # An unexpected `fails` is a finding: its control was chosen for a formula that holds.
    finding = found.verdict is Verdict.FAILS and expected is not Verdict.FAILS
    if not found.control.flips and not finding:
        return f"the control does not flip the verdict: {found.control.sentence}"
    if found.verdict is Verdict.FAILS and found.correction is None and not finding:
        return "the claim fails without evidence; use refuted(...) or corrected(...)"
    changed = [f"{v} under {name}" for name, v in rechecks.items() if v is not found.verdict]
    if changed:
        return f"the verdict {found.verdict} does not stay: {', '.join(changed)}"
    return ""


FILES = "attnflow_user_"
"""How the modules of study files are called."""


def _register(study: str, new: Claim) -> None:
    """Add a claim; a cell or module that is run again replaces its own claim, nobody else's.

    All claims of an edited study file (or of a copy) take the place of those of the last one.
    """
    known = _REGISTRY.setdefault(study, {})
    module = _origin(new)[0]
    for key, there in [*known.items()] if module.startswith(FILES) else ():
        if _origin(there)[0].startswith(FILES) and _origin(there)[0] != module:
            del known[key]
    old = known.get((new.id, new.part))
    if old is not None and _origin(old) != _origin(new):
        raise InputError("id", f"'{new.id}' ({new.part}) is already claimed for study {study}")
    known[new.id, new.part] = new


def _origin(found: Claim) -> tuple[str, str]:
    return found.measure.__module__, found.measure.__qualname__


def _name_of(study: Any, default: str | None) -> str:
    name = getattr(study, "name", None)
    return name if isinstance(name, str) else default or type(study).__name__


def _sentence_of(predicate: Callable[..., Any]) -> str:
    text = inspect.getdoc(predicate) or getattr(predicate, "__name__", "regime").replace("_", " ")
    return " ".join(text.split("\n\n")[0].split())


def _equation_in(id: str) -> str | None:
    found = re.search(rf"\beqs? {_NUMBERS}", id)
    return found.group() if found else None


_REGISTRY: dict[str, dict[tuple[str, Part], Claim]] = {}

_KINDS_TEXT = """
Theorem Thm Proposition Prop Lemma Corollary Cor Definition Def Assumption Hypothesis Remark Claim
Conjecture Example Observation Fact Algorithm Alg Appendix App Section Sec Figure Fig Table
Footnote eq eqs
"""
_KINDS = _KINDS_TEXT.split()
_NUMBER = r"(?:[A-Z]{0,2}\.?\d+(?:\.\d+)*[A-Za-z]?'?|[A-Z])"
_NUMBERS = rf"{_NUMBER}(?:[-–/]{_NUMBER})*"
_LABEL = rf"(?:{'|'.join(_KINDS)}) {_NUMBERS}"
_ID = re.compile(rf"(?:{_LABEL}|Abstract)(?: \([^()\n]+\)|, {_LABEL})*|ours: ?\S[^\n]*")
