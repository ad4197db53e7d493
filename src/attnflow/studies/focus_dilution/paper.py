"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "focus-dilution",
    citation=Citation(
        key="focusdilution2026",
        authors=("Anonymous",),
        title="Focus and Dilution: The Multi-stage Learning Process of Attention",
        year=2026,
        arxiv="2605.01199",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={},
)
