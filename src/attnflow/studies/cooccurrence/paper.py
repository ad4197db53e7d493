"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "cooccurrence",
    citation=Citation(
        key="yang2024cooccurrence",
        authors=("Hongru Yang", "Bhavya Kailkhura", "Zhangyang Wang", "Yingbin Liang"),
        title="Training Dynamics of Transformers to Recognize Word Co-occurrence via Gradient Flow "
        "Analysis",
        year=2024,
        venue="NeurIPS",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={},
)
