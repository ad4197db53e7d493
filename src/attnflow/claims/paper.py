"""A paper: who wrote it, where its snippets are, its notation; and the claims about it.

paper = Paper("focus-dilution", citation=FOCUS, snippets=Path(__file__).parent / "snippets")

@paper.claim("Prop 3.4 (eq 14)", part="constant", regime=nonuniform)
def attention_growth_rate(study):
    \"\"\"At the second critical point the attention block grows at rate c.\"\"\"
    rates = spectrum(study.flow, study.second_critical_point(), block=("WQ", "WK"))
    return equal(predicted=theory.focus_rate(study.chain), measured=rates.max(), rtol=1e-10,
                 control=Control("staying as likely as moving", theory.focus_rate(other)))
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from attnflow._errors import InputError, nearest, shown
from attnflow.claims.claim import Claim
from attnflow.claims.measure import Measurement
from attnflow.claims.once import once
from attnflow.claims.regime import Condition
from attnflow.claims.verdict import Citation, Part, pick


@dataclass(frozen=True)
class Paper:
    """A study's paper (or a user's own question) and how its claims are declared.

    `notation` explains the letters of the claims, TeX to words, for the page.
    """

    study: str
    citation: Citation | None = None
    snippets: Path | None = None
    notation: Mapping[str, str] = field(default_factory=dict)

    once: ClassVar = staticmethod(once)
    """`@paper.once`: measured once per config and arguments, see `attnflow.claims.once`."""

    def __post_init__(self) -> None:
        if self.citation is not None and not isinstance(self.citation, Citation):
            raise InputError("citation", f"{shown(self.citation)} is not a Citation")

    def claim(
        self,
        id: str,
        *,
        part: Part | str = Part.STATEMENT,
        regime: Condition | None = None,
        reading: str = "",
        torn: str = "",
        setting: str = "",
        equation: str = "",
    ) -> Callable[[Callable[[Any], Measurement]], Claim]:
        """Turn `measure(study) -> Measurement` into a `Claim`; its docstring is the statement.

        - `id`: the paper's label in full (`Prop 3.4 (eq 14)`), or `ours: ...`.
        - `regime`: a condition of the config, see `attnflow.claims.condition`.
        - `reading`: the text at hand is garbled or has an evident slip; what we read. The best
          verdict is then `holds-as-read`.
        - `torn`: a display that the extraction tore; what we put together, and from what. The same.
        - `setting`: where it is measured, if not on the study itself (`limit model, eta = inf`).
        - `equation`: by default read from the id.
        """
        check_id(id)
        if regime is not None and not isinstance(regime, Condition):
            raise InputError("regime", f"{shown(regime)}; decorate its function with @condition")

        def made(measure: Callable[[Any], Measurement]) -> Claim:
            statement = inspect.getdoc(measure) or ""
            if not statement.strip():
                raise InputError(id, "has no statement; say it in the docstring of its function")
            return Claim(
                id=id,
                measure=measure,
                statement=statement,
                paper=self,
                part=pick(Part, part, "part"),
                regime=regime,
                reading=" ".join(reading.split()),
                torn=" ".join(torn.split()),
                setting=setting,
                equation=equation or _equation_in(id),
            )

        return made

    def family(
        self, rows: Mapping[str, tuple[Any, ...]], **options: Any
    ) -> Callable[[Callable[..., Measurement]], tuple[Claim, ...]]:
        """Claims of one shape, measured by `measure(study, *arguments)`, with options of `claim`.

        `rows` gives each id its statement and the arguments; an empty statement is the docstring.

        @paper.family({"eq 7": ("The keys are mirrored.", "K"), "eq 8": ("So are queries.", "Q")})
        def mirrored(study, block): ...
        """

        def made(measure: Callable[..., Measurement]) -> tuple[Claim, ...]:
            def row(id: str, statement: str, *arguments: Any) -> Claim:
                @functools.wraps(measure)
                def one(study: Any) -> Measurement:
                    return measure(study, *arguments)

                one.__doc__ = statement or measure.__doc__
                return self.claim(id, **options)(one)

            return tuple(row(id, *given) for id, given in rows.items())

        return made


def claims_in(*modules: ModuleType) -> tuple[Claim, ...]:
    """The claims that modules define, one by one or as families, in the order of their text.

    The first line of a module's docstring is the section of its claims on the page.
    """
    found: dict[tuple[str, Part], Claim] = {}
    for module in modules:
        section = (module.__doc__ or "").strip().split("\n")[0].rstrip(".")
        values = (v if isinstance(v, tuple) else (v,) for v in vars(module).values())
        for value in chain.from_iterable(values):
            if isinstance(value, Claim) and value.measure.__module__ == module.__name__:
                key = (value.id, value.part)
                if key in found and found[key].measure is not value.measure:
                    raise InputError("id", f"'{value.id}' ({value.part}) is claimed twice")
                found[key] = replace(value, section=section)
    return tuple(found.values())


def check_id(id: str) -> None:
    """Reject an id that is not the paper's own label in full, nor one of ours."""
    if isinstance(id, str) and _ID.fullmatch(id):
        return
    word = str(id).split(" ")[0]
    hint = "for instance 'Prop 3.4 (ii)', 'Lemma E.6', 'eq 14', 'Fig 2C', or 'ours: ...'"
    if word.isalpha() and word not in _KINDS and (close := nearest(word, _KINDS)).startswith("did"):
        hint = close
    raise InputError("id", f"'{shown(id)}' is not a paper's label in full ({hint})")


def _equation_in(id: str) -> str:
    found = re.search(rf"\beqs? {_NUMBERS}", id)
    return found.group() if found else ""


_KINDS_TEXT = """
Theorem Thm Proposition Prop Lemma Corollary Cor Definition Def Assumption Hypothesis Remark Claim
Conjecture Example Observation Fact Algorithm Alg Appendix App Section Sec Figure Fig Table
Footnote Condition Cond eq eqs
"""
_KINDS = _KINDS_TEXT.split()
_NUMBER = r"(?:[A-Z]{0,2}\.?\d+(?:\.\d+)*[A-Za-z]?'?|[A-Z])"
_NUMBERS = rf"{_NUMBER}(?:[-–/]{_NUMBER})*"
_LABEL = rf"(?:{'|'.join(_KINDS)}) {_NUMBERS}"
_ID = re.compile(rf"(?:{_LABEL}|Abstract)(?: \([^()\n]+\)|, {_LABEL})*|ours: ?\S[^\n]*")
