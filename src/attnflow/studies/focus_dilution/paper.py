"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "focus-dilution",
    citation=Citation(
        key="chen2026focus",
        authors=("Zheng-An Chen", "Pengxiao Lin", "Zhi-Qin John Xu", "Tao Luo"),
        title="Focus and Dilution: The Multi-stage Learning Process of Attention",
        year=2026,
        arxiv="2605.01199",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={
        r"\pi": "stationary law of the chain, a vector over $d$ tokens",
        r"\lambda": r"weight of staying: $P = \lambda I + (1-\lambda)\mathbf 1\pi^\top$",
        "P": r"transitions, $P_{ij}$ from token $i$ to $j$; $\hat P$ what the model predicts",
        "V": r"$\mathrm{diag}(\pi) - \pi\pi^\top$, the variance of the law",
        "l": r"$\log\pi$ with its mean taken off",
        "W_0, W_1": "embedding ($d$ by $m$) and read-out ($m$ by $d$)",
        "W_Q, W_K": r"queries and keys; $W_{QK} = W_Q W_K^\top$",
        "M": "$W_0 W_1$, the read-out of tokens",
        r"\Phi": r"$W_0 W_{QK} W_0^\top$, the scores of tokens",
        r"G_M, G_\Phi": r"$\partial L/\partial M$ and $\partial L/\partial\Phi$",
        "A_i": "attention of a context that ends in token $i$, a law over tokens",
        "a": "unit vector in $m$ dimensions that the weights condense on",
        "q, u": r"$\pi/|\pi|$ and $(\pi - \mathbf 1/d)/|\pi - \mathbf 1/d|$",
        r"\varepsilon": "scale of the start",
        r"\mu_0": r"$|\pi||\pi - \mathbf 1/d|$, the rate out of the origin",
        r"\kappa_1": "size of $W_0$ and of $W_1$ at the second critical point",
        "c": "rate at which attention grows there",
        r"\gamma, \beta": r"$W_0 = \gamma a^\top$ and $W_1 = a\beta^\top$ on the rank-one manifold",
        r"\eta": r"$\lambda_Q\lambda_K$, the product of the sizes of $W_Q$ and $W_K$ there",
        r"\gamma_{low}": r"$\gamma$ of the lower tokens of a two-group law",
        r"\Delta\gamma, \Delta\beta": "token 1 less a lower token",
        r"\xi_i": "attention to token 1 of contexts that end in token $i$",
        r"\delta": "how far the lower tokens are from equally frequent (Section 3.4)",
    },
)
