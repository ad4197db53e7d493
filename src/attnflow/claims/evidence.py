"""The evidence against a printed formula: it and the right one side by side, and a snippet."""

from __future__ import annotations

import ast
import contextlib
import io
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from attnflow._errors import InputError
from attnflow.claims.measure import Control, Measurement
from attnflow.claims.verdict import Cause, Verdict, pick

MOST_LINES = 20
"""Most lines of a snippet."""


@dataclass(frozen=True)
class Correction:
    """The printed formula, the right one (or a counterexample), the cause, and a snippet.

    The snippet is plain Python of at most 20 lines that shows the difference without importing a
    study; it asserts or prints. The measured errors are filled in by `corrected` and `refuted`.
    """

    printed: str
    corrected: str | None
    cause: Cause | str
    snippet: str
    counterexample: str = ""
    printed_error: float | None = None
    corrected_error: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", pick(Cause, self.cause, "cause"))
        object.__setattr__(self, "snippet", textwrap.dedent(self.snippet).strip("\n"))
        if not self.printed.strip():
            raise InputError("printed", "is empty; quote the formula as it is printed")
        if not (self.corrected or self.counterexample).strip():
            raise InputError("corrected", "is empty; give the right formula or a counterexample")
        check_snippet(self.snippet)

    def run(self) -> str:
        """What the snippet prints in a fresh namespace; an assertion that fails is raised."""
        return run_snippet(self.snippet)


def corrected(*, printed: Measurement, right: Measurement, correction: Correction) -> Measurement:
    """`holds-corrected` when the printed formula fails and the right one holds.

    When the printed one holds after all the verdict is `holds`; when both fail it is `fails`.
    Where `right` has no control of its own, the printed formula is its control.
    """
    correction = replace(correction, printed_error=printed.error, corrected_error=right.error)
    if not (correction.corrected or "").strip():
        raise InputError("corrected", "is empty; without a right formula use refuted(...)")
    if Verdict.NOT_CHECKABLE in (printed.verdict, right.verdict):
        return right if right.verdict is Verdict.NOT_CHECKABLE else printed
    if printed.good:
        words = f"what is printed holds: {printed.sentence}"
        if right.good:
            words += f"; so does what was thought right, not told apart here: {right.sentence}"
        control = printed.control or _as_control(right, against=printed)
        return replace(printed, sentence=words, control=control)
    control = right.control or _as_control(printed, against=right)
    words = f"printed: {printed.sentence}; corrected: {right.sentence}"
    evidence = {"printed": printed, "corrected": right}
    return replace(
        right,
        verdict=Verdict.HOLDS_CORRECTED if right.good else Verdict.FAILS,
        sentence=words,
        control=control,
        evidence={k: dict(m.evidence) for k, m in evidence.items() if m.evidence},
        correction=correction,
    )


def refuted(*, printed: Measurement, correction: Correction) -> Measurement:
    """`fails`, with its counterexample, when the printed formula fails; `holds` when it does not.

    The control of a refuted claim is a setting or formula for which the same check does hold.
    """
    if printed.verdict is not Verdict.FAILS:
        return printed
    return replace(printed, correction=replace(correction, printed_error=printed.error))


def run_snippet(snippet: str) -> str:
    """Run a snippet in a fresh namespace and return what it printed."""
    said = io.StringIO()
    namespace: dict[str, Any] = {"__name__": "__snippet__"}
    with contextlib.redirect_stdout(said):
        exec(compile(snippet, "<snippet>", "exec"), namespace)
    return said.getvalue()


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


def _as_control(other: Measurement, *, against: Measurement) -> Control:
    flips = other.good is not against.good
    return Control(flips, other.sentence, other.predicted, other.measured)
