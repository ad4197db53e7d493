"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "two-mixture",
    citation=Citation(
        key="twomixture2025",
        authors=("Anonymous",),
        title="Transformers Provably Learn Two-Mixture of Linear Classification via Gradient Flow",
        year=2025,
        venue="ICLR",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={},
)
