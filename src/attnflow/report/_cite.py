"""Whom a run cites: the papers of its claims and the method that solved it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnflow.claims import Citation
from attnflow.claims.export import bibtex_entry

if TYPE_CHECKING:
    from attnflow.runs import Run

SUNDIALS = Citation(
    key="hindmarsh2005sundials",
    authors=(
        "Hindmarsh, Alan C.",
        "Brown, Peter N.",
        "Grant, Keith E.",
        "Lee, Steven L.",
        "Serban, Radu",
        "Shumaker, Dan E.",
        "Woodward, Carol S.",
    ),
    title="SUNDIALS: Suite of nonlinear and differential/algebraic equation solvers",
    year=2005,
    venue="ACM Transactions on Mathematical Software",
)

SCIPY = Citation(
    key="virtanen2020scipy",
    authors=("Virtanen, Pauli", "Gommers, Ralf", "Oliphant, Travis E.", "others"),
    title="SciPy 1.0: fundamental algorithms for scientific computing in Python",
    year=2020,
    venue="Nature Methods",
)

ENGINES = {"cvode": SUNDIALS, "scipy": SCIPY}


def papers(run: Run) -> list[Citation]:
    """The study's paper, those its claims cite, and the solver's, each once."""
    cited = [run.built.citation]
    cited += [row.paper for row in run.claims or ()]
    cited.append(ENGINES.get(str(run.solver.get("engine"))))
    return list({paper.key: paper for paper in cited if paper is not None}.values())


def bibliography(run: Run) -> str:
    """BibTeX of `papers`."""
    return "\n".join(bibtex_entry(paper) for paper in papers(run)).strip()


def reference(paper: Citation | None) -> dict[str, Any] | None:
    """Authors, title and where to find it, as a page's head says it."""
    if paper is None:
        return None
    where = paper.venue or (f"arXiv {paper.arxiv}" if paper.arxiv else "")
    if paper.venue and paper.arxiv:
        where += f", arXiv {paper.arxiv}"
    return {"short": paper.short, "title": paper.title, "where": where}
