"""A ledger as Markdown, as a LaTeX document and as BibTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from attnflow.claims.evidence import Correction
from attnflow.claims.mathematics import mathml, typeset
from attnflow.claims.row import Row
from attnflow.claims.verdict import Citation
from attnflow.claims.words import columns, correction_facts, label, sections, summary, verdict_words

HEAD = ("Claim", "Statement", "Verdict", "Predicted", "Measured")


def markdown(rows: Sequence[Row]) -> str:
    """A table per section, then each correction with its snippet; `$...$` stays mathematics."""
    lines: list[str] = []
    for title, found in sections(rows).items():
        lines += [f"## {_md(title)}", "", _bar(HEAD), _bar(["---"] * len(HEAD))]
        for row in found:
            verdict = f"{row.verdict.symbol} {verdict_words(row)}"
            cells = (label(row), row.title, verdict, *columns(row))
            lines.append(_bar([_md(cell) for cell in cells]))
        lines.append("")
    for row in rows:
        if row.correction is not None:
            lines += [f"### {_md(label(row))}", "", *_correction_md(row.correction), ""]
    return "\n".join(lines)


def latex(rows: Sequence[Row]) -> str:
    """A document that compiles on its own: a longtable by sections, and the papers it cites."""
    papers = {row.paper.key: row.paper for row in rows if row.paper is not None}
    cited = ", ".join(rf"\cite{{{key}}}" for key in papers)
    lines = [
        *_PREAMBLE,
        rf"\noindent {_tex(summary(rows))}." + (f" Papers: {cited}." if papers else ""),
        *_TABLE,
    ]
    for title, found in sections(rows).items():
        lines.append(_wide(rf"\textbf{{{_tex(title)}}}", "[.6ex]"))
        for row in found:
            cells = [_tex(label(row)), _tex(row.title), _tex(verdict_words(row))]
            if row.paper is not None and len(papers) > 1:
                cells[0] += rf" \cite{{{row.paper.key}}}"
            lines.append(" & ".join([*cells, *(_tex(c) for c in columns(row))]) + r" \\")
            if row.correction is not None:
                said = "; ".join(f"{k}: {v}" for k, v in correction_facts(row.correction))
                lines.append(_wide(rf"\small {_tex(said)}"))
    lines.append(r"\end{longtable}")
    if papers:
        items = (rf"\bibitem{{{key}}} {_reference(paper)}" for key, paper in papers.items())
        lines += [r"\begin{thebibliography}{9}", *items, r"\end{thebibliography}"]
    return "\n".join([*lines, r"\end{document}"]) + "\n"


def bibtex(rows: Sequence[Row]) -> str:
    """One entry per cited paper, in the order of first citation."""
    papers = {row.paper.key: row.paper for row in rows if row.paper is not None}
    return "\n".join(bibtex_entry(paper) for paper in papers.values())


def md(text: str) -> str:
    """Plain text as Markdown shows it, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", re.sub(r"\s+", " ", text))


def tex(text: str) -> str:
    """Plain text as LaTeX shows it, on one line; Greek and common signs become mathematics."""
    return "".join(_TEX.get(c) or _letter(c) for c in re.sub(r"\s+", " ", text))


def _md(text: str) -> str:
    return typeset(text, md, lambda formula: _md_formula(formula) or md(f"${formula}$"))


def _tex(text: str) -> str:
    return typeset(text, tex, lambda formula: _tex_formula(formula) or tex(f"${formula}$"))


def _md_formula(formula: str) -> str:
    """A formula that no table and no mark-up around it can mistake."""
    if not mathml(formula):
        return ""
    for sign, name in _MARKS.items():
        formula = formula.replace(sign, name)
    return f"${' '.join(formula.split())}$"


def _tex_formula(formula: str) -> str:
    """A formula that cannot end its cell or its line."""
    bare = re.sub(r"\\.", "", formula)
    if not mathml(formula) or re.search(r"[%#~]", bare):
        return ""
    if "&" in bare and r"\begin" not in formula:
        return ""
    return f"${''.join(c if c.isascii() else tex(c) for c in ' '.join(formula.split()))}$"


def _letter(c: str) -> str:
    """A character that every installation of LaTeX can set; any other by its code point."""
    if (c.isascii() and c.isprintable()) or ("À" <= c <= "ÿ" and c.isalpha()):
        return c
    parts = "".join(p for p in unicodedata.normalize("NFKD", c) if not unicodedata.combining(p))
    if parts != c and parts.isascii() and parts.isprintable():
        return "".join(_TEX.get(p, p) for p in parts)
    return rf"\texttt{{U+{ord(c):04X}}}"


def _wide(text: str, after: str = "") -> str:
    return rf"\multicolumn{{{len(HEAD)}}}{{p{{.97\linewidth}}}}{{{text}}} \\{after}"


def _reference(paper: Citation) -> str:
    where = [paper.venue, str(paper.year), f"arXiv {paper.arxiv}" if paper.arxiv else ""]
    authors = ", ".join(tex(a) for a in paper.authors)
    return rf"{authors}. \emph{{{tex(paper.title)}}}. {tex(', '.join(w for w in where if w))}."


def _correction_md(correction: Correction) -> list[str]:
    longest = max((len(run) for run in re.findall(r"`+", correction.snippet)), default=0)
    fence = "`" * max(3, longest + 1)
    facts = [f"- {name}: {_md(text)}" for name, text in correction_facts(correction)]
    return [*facts, "", f"{fence}python", correction.snippet, fence]


def _bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


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
_MARKS = {r"\|": r"\Vert ", "|": r"\vert ", "<": r"\lt ", ">": r"\gt ", "](": "]{}("}
_PREAMBLE = r"""
\documentclass[a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{amsmath,amssymb,array,booktabs,longtable}
\usepackage[margin=1.5cm,landscape]{geometry}
\begin{document}
\footnotesize
""".strip().split("\n")
_TABLE = r"""
\begin{longtable}{
  >{\raggedright\arraybackslash}p{.16\linewidth}
  >{\raggedright\arraybackslash}p{.36\linewidth}
  >{\raggedright\arraybackslash}p{.10\linewidth}
  >{\raggedright\arraybackslash}p{.15\linewidth}
  >{\raggedright\arraybackslash}p{.13\linewidth}
}
\toprule
Claim & Statement & Verdict & Predicted & Measured \\
\midrule
\endhead
\bottomrule
\endfoot
""".strip().split("\n")
