"""A ledger as Markdown, LaTeX and BibTeX text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnflow.claims.evidence import Correction
from attnflow.claims.row import Row
from attnflow.claims.values import Value
from attnflow.claims.verdict import Citation


def markdown(rows: Sequence[Row]) -> str:
    """A table of the rows, then each correction with its snippet."""
    head = ("Claim", "Part", "Statement", "Verdict", "Predicted", "Measured", "Tolerance", "Source")
    lines = [_bar(head), _bar(["---"] * len(head))]
    for row in rows:
        verdict = f"{row.verdict.symbol} {verdict_words(row)}"
        cells = (row.id, row.part, row.title, verdict, *values(row), row.source)
        lines.append(_bar([md(cell) for cell in cells]))
    for row in rows:
        if row.correction is not None:
            lines += ["", f"### {md(row.id)} ({row.part})", "", *_correction_md(row.correction)]
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[Row]) -> str:
    """A longtable with booktabs rules; corrections follow their row."""
    head = ["Claim", "Statement", "Verdict", "Predicted", "Measured", "Tolerance", "Source"]
    lines = [
        r"% \usepackage{booktabs,longtable}",
        r"\begin{longtable}{p{.12\linewidth}p{.28\linewidth}p{.12\linewidth}lllp{.12\linewidth}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
    ]
    for row in rows:
        cells = [f"{row.id} ({row.part})", row.title, verdict_words(row), *values(row)]
        lines.append(" & ".join([*(tex(c) for c in cells), _cite(row)]) + r" \\")
        if row.correction is not None:
            text = tex("; ".join(f"{k}: {v}" for k, v in correction_facts(row.correction)))
            lines.append(rf"\multicolumn{{7}}{{p{{.95\linewidth}}}}{{\small {text}}} \\")
    return "\n".join([*lines, r"\end{longtable}"]) + "\n"


def bibtex(rows: Sequence[Row]) -> str:
    """One entry per cited paper, in the order of first citation."""
    papers = {row.paper.key: row.paper for row in rows if row.paper is not None}
    return "\n".join(bibtex_entry(paper) for paper in papers.values())


def verdict_words(row: Row) -> str:
    """`holds corrected (constant)`, with what was expected where it is a surprise."""
    words = row.verdict.label + (f" ({row.cause})" if row.cause else "")
    if row.defect:
        return f"{words}, defect: {row.defect}"
    return f"{words}, expected {row.expected.label}" if row.surprising else words


def values(row: Row) -> tuple[str, str, str]:
    """Predicted, measured and tolerance as short texts."""
    return shown_value(row.predicted), shown_value(row.measured), shown_value(row.tolerance, 2)


def shown_value(value: Value, digits: int = 6) -> str:
    """A value in a table's cell: six digits, a dash for none, an array by its largest entry."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        shape, entries = _array(value)
        if shape and (len(shape) > 1 or len(value) > 6):
            largest = max(entries, key=abs, default=None)
            return f"{'×'.join(map(str, shape))} array, largest {shown_value(largest, digits)}"
        inner = ", ".join(shown_value(v, digits) for v in value[:6])
        return f"({inner}{', …' if len(value) > 6 else ''})"
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def md(text: str) -> str:
    """Plain text as Markdown shows it, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", " ".join(text.split()))


def tex(text: str) -> str:
    """Plain text as LaTeX shows it, on one line; Greek and common signs become mathematics."""
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


def _array(value: list) -> tuple[tuple[int, ...], list[float]]:
    """The shape and the finite entries of a nested list of numbers; no shape where it is ragged."""
    if not any(isinstance(v, list) for v in value):
        numeric = all(v is None or isinstance(v, int | float) for v in value)
        return ((len(value),) if numeric else ()), [v for v in value if v is not None]
    inner = [_array(v) if isinstance(v, list) else ((), []) for v in value]
    shapes = {shape for shape, _ in inner}
    if len(shapes) != 1 or () in shapes:
        return (), []
    return (len(value), *shapes.pop()), [x for _, entries in inner for x in entries]


def correction_facts(correction: Correction) -> list[tuple[str, str]]:
    """The named texts of a correction, in reading order."""

    def with_error(text: str, error: float | None) -> str:
        return text if error is None else f"{text} [error {error:.3g}]"

    facts = [("printed", with_error(correction.printed, correction.printed_error))]
    if correction.corrected:
        facts.append(("corrected", with_error(correction.corrected, correction.corrected_error)))
    if correction.counterexample:
        facts.append(("counterexample", correction.counterexample))
    erratum = correction.erratum
    return [*facts, ("cause", str(erratum.cause)), ("erratum", erratum.title)]


def _correction_md(correction: Correction) -> list[str]:
    longest = max((len(run) for run in re.findall(r"`+", correction.snippet)), default=0)
    fence = "`" * max(3, longest + 1)
    facts = [f"- {name}: {md(text)}" for name, text in correction_facts(correction)]
    return [*facts, "", f"{fence}python", correction.snippet, fence]


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cite(row: Row) -> str:
    cite = rf"\cite{{{row.paper.key}}}" if row.paper else ""
    return ", ".join(part for part in (cite, tex(row.equation)) if part)


def bibtex_entry(paper: Citation) -> str:
    fields = {
        "author": " and ".join(tex(a) for a in paper.authors),
        "title": f"{{{tex(paper.title)}}}",
        "year": str(paper.year),
        "journal" if paper.venue else "": tex(paper.venue),
        "eprint" if paper.arxiv else "": paper.arxiv,
        "archiveprefix" if paper.arxiv else " ": "arXiv",
    }
    kind = "article" if paper.venue else "misc"
    body = "".join(f"  {k} = {{{v}}},\n" for k, v in fields.items() if k.strip())
    return f"@{kind}{{{paper.key},\n{body}}}\n"


_SIGNS = """
α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu
ξ xi π pi ρ rho σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega Γ Gamma Δ Delta Θ Theta
Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega ≤ le ≥ ge ≠ ne ≈ approx ± pm × times · cdot → to
∞ infty ∂ partial ∇ nabla √ surd ∈ in ∼ sim ∝ propto ‖ | ℓ ell
"""
_PAIRS = _SIGNS.split()
_TEX = {
    **{c: "\\" + c for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"{\char96}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "−": r"\ensuremath{-}",
    "′": r"\ensuremath{'}",
    "²": r"\ensuremath{^2}",
    **{c: rf"\ensuremath{{\{name}}}" for c, name in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)},
}
