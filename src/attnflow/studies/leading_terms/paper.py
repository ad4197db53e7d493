"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "leading-terms",
    citation=Citation(
        key="im2026leading",
        authors=("Shawn Im", "Changdae Oh", "Zhen Fang", "Sharon Li"),
        title="How Do Transformers Learn to Associate Tokens: Gradient Leading Terms Bring "
        "Mechanistic Interpretability",
        year=2026,
        venue="ICLR",
        arxiv="2601.19208",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={
        r"\bar B": "bigrams [current, next]: how much more often a pair occurs than 1/V says",
        r"\bar\Phi": "contexts [next, context]: what the text before a label has more of",
        r"\Sigma_{\bar B}": "interchangeable tokens [next, next]: they follow the same tokens",
        r"\bar G": "Sigma Phi [next, context]",
        r"\bar Q": "attention [query, key] of the leading term",
        r"\Delta": "positions [lag] of the leading term",
        r"\eta, s": "rate and number of steps; t = s eta",
    },
)
