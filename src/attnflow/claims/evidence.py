"""The evidence against what is printed: it and what is right side by side, and a snippet.

Rows of one cause share an `Erratum`. A snippet is a Python file of at most 20 lines beside the
study that shows the difference without importing it; it asserts or prints.
"""

from __future__ import annotations

import ast
import contextlib
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow.claims.control import Countercheck
from attnflow.claims.measure import Measurement
from attnflow.claims.verdict import Cause, Verdict, pick

MOST_LINES = 20
"""Most lines of a snippet."""


@dataclass(frozen=True)
class Erratum:
    """One thing that is wrong in a paper, however many rows it touches.

    >>> Erratum("quarter", "the weight 1/4 of a sample is missing", cause="constant").cause
    <Cause.CONSTANT: 'constant'>
    """

    key: str
    title: str
    cause: Cause | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", pick(Cause, self.cause, "cause"))
        if not (self.key.strip() and self.title.strip()):
            raise InputError("erratum", "needs a key and a sentence that says what is wrong")


@dataclass(frozen=True)
class Correction:
    """The printed formula, the right one (or a counterexample), the erratum, and the snippet."""

    printed: str
    corrected: str
    counterexample: str
    erratum: Erratum
    snippet: str = ""
    printed_error: float | None = None
    corrected_error: float | None = None

    def run(self) -> str:
        """What the snippet prints in a fresh namespace; an assertion that fails is raised."""
        return run_snippet(self.snippet)


def corrected(
    *,
    printed: Measurement,
    right: Measurement,
    text: str,
    correct: str,
    erratum: Erratum,
    snippet: str = "",
) -> Measurement:
    """`holds-corrected` when the printed formula fails and the right one holds.

    `text` and `correct` are the two formulas. When the printed one holds after all the verdict is
    `holds`, when both fail it is `fails`: each is a surprise. Where `right` has no control of its
    own, the printed formula is its control. `snippet` names a file of the study's `snippets`, by
    default the one that is called like the claim's function.
    """
    correction = Correction(
        _text("text", text), _text("correct", correct), "", erratum, snippet,
        printed.error, right.error,
    )  # fmt: skip
    promise = Verdict.HOLDS_CORRECTED
    if Verdict.NOT_CHECKABLE in (printed.verdict, right.verdict):
        return replace(right, verdict=Verdict.NOT_CHECKABLE, promise=promise)
    if printed.good:
        words = f"what is printed holds: {printed.sentence}"
        if right.good:
            words += f"; so does what was thought right, not told apart here: {right.sentence}"
        control = printed.control or _as_control(right, "what was thought right", printed)
        return replace(printed, sentence=words, control=control, promise=promise)
    evidence = {"printed": printed, "corrected": right}
    return replace(
        right,
        verdict=promise if right.good else Verdict.FAILS,
        sentence=f"printed: {printed.sentence}; corrected: {right.sentence}",
        control=right.control or _as_control(printed, "as printed", right),
        evidence={k: {"error": m.error, **m.evidence} for k, m in evidence.items()},
        correction=correction,
        promise=promise,
    )


def refuted(
    *, printed: Measurement, text: str, counterexample: str, erratum: Erratum, snippet: str = ""
) -> Measurement:
    """`fails`, with its counterexample, when what is printed fails; a surprise when it holds.

    The control of a refuted claim is a setting or formula for which the same check does hold.
    """
    found = replace(printed, promise=Verdict.FAILS)
    if printed.verdict is not Verdict.FAILS:
        return found
    shown = _text("counterexample", counterexample)
    return replace(
        found,
        correction=Correction(_text("text", text), "", shown, erratum, snippet, printed.error),
    )


def not_reproduced(*, found: Measurement, guessed: str) -> Measurement:
    """`not-reproduced` when an experiment comes out otherwise; `guessed` are settings not printed.

    The control is a setting in which the same check does come out as reported.
    """
    verdict = Verdict.NOT_REPRODUCED if found.verdict is Verdict.FAILS else found.verdict
    words = _text("guessed", guessed)
    return replace(found, verdict=verdict, promise=Verdict.NOT_REPRODUCED, guessed=words)


def observed(*, found: Measurement, guessed: str) -> Measurement:
    """What data that nobody has seen before show: nothing was foreseen, so nothing surprises.

    It holds or is consistent as it was found, and an experiment that comes out otherwise is
    `not-reproduced`, with the settings that were guessed. Its control has to flip all the same.

    >>> from attnflow.claims import Control, at_least
    >>> low = at_least(bound=0.5, measured=0.1, control=Control("at its end", 0.9))
    >>> observed(found=low, guessed="the tokenizer").promise
    <Verdict.NOT_REPRODUCED: 'not-reproduced'>
    """
    told = not_reproduced(found=found, guessed=guessed)
    words = told.guessed if told.verdict is Verdict.NOT_REPRODUCED else ""
    return replace(told, promise=told.verdict, guessed=words)


def run_snippet(snippet: str) -> str:
    """Run a snippet in a fresh namespace and return what it printed."""
    told = io.StringIO()
    namespace: dict[str, Any] = {"__name__": "__snippet__"}
    with contextlib.redirect_stdout(told):
        exec(compile(snippet, "<snippet>", "exec"), namespace)
    return told.getvalue()


def read_snippet(folder: Path | None, name: str, function: str) -> str:
    """The text of a snippet: a file of the folder, or the text itself where it has lines."""
    text = name
    if "\n" not in name:
        file = None if folder is None else folder / f"{name or function}.py"
        if file is None or not file.is_file():
            where = "the paper has no folder of snippets" if file is None else f"{file} is missing"
            raise InputError("snippet", f"{where}; what is called wrong is shown in a few lines")
        text = file.read_text(encoding="utf-8")
    text = text.strip("\n")
    check_snippet(text)
    return text


def check_snippet(snippet: str) -> None:
    """Reject a snippet that is empty, too long, not Python, or imports a study."""
    lines = snippet.splitlines()
    if not snippet.strip():
        raise InputError("snippet", "is empty; give a few lines that show the difference")
    if len(lines) > MOST_LINES:
        raise InputError("snippet", f"has {len(lines)} lines; at most {MOST_LINES} are allowed")
    try:
        tree = ast.parse(snippet)
    except SyntaxError as error:
        raise InputError("snippet", f"is not Python: {error.msg}, line {error.lineno}") from None
    for module in _imported(tree):
        if module.startswith("attnflow.studies"):
            raise InputError("snippet", f"imports {module}; it has to stand without the study")


def _imported(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _as_control(other: Measurement, name: str, against: Measurement) -> Countercheck:
    flips = other.good is not against.good
    return Countercheck(name, flips, other.sentence, other.predicted, other.measured)


def _text(name: str, words: str) -> str:
    if not words.strip():
        raise InputError(name, "is empty; a reader compares the two formulas")
    return " ".join(words.split())
