"""The paper of this study: whom it cites, its notation and its snippets."""

from pathlib import Path

from attnflow.claims import Citation, Paper

paper = Paper(
    "two-mixture",
    citation=Citation(
        key="twomixture2025",
        authors=("Hongru Yang", "Zhangyang Wang", "Jason D. Lee", "Yingbin Liang"),
        title="Transformers Provably Learn Two-Mixture of Linear Classification via Gradient Flow",
        year=2025,
        venue="ICLR",
    ),
    snippets=Path(__file__).parent / "snippets",
    notation={
        "c_k, v_k": "token of group $k$, and its classification signal",
        "X_{k,s,s'}": "sample of group $k$ and label $s$ with the signals $s v_k$ and $s' v_{k'}$",
        "K, L, m": "groups, tokens of a sample, width",
        "f, H_+, H_-": "output, and what its two heads say before their ReLU",
        "b": "bias of the heads",
        "y, g": r"label, and $1/(1 + e^{yf})$, minus the slope of the loss",
        "w_+, w_-": "value vectors of the heads",
        r"\gamma, a": r"$w_+^\top c_k$ and $w_+^\top v_k$",
        "S": r"$W_K^\top W_Q$ of a head: $\nu^\top S\mu$ is the score of key $\nu$ for query $\mu$",
        "A, B": r"$W_K^\top W_K$ and $W_Q^\top W_Q$: products of keys and of queries",
        "G": "Gram matrix of keys and queries, made of $A$, $S$, $B$",
        "p": "softmax of the scores of a sample",
        r"\omega": r"scale of the attention's start: entries $N(0, \omega^2/m)$",
        r"\mu, \nu": "any two of the tokens and signals",
        "T_{0.5}": "end of stage 1.1, when the first gates shut",
        "T_1, T_2, T_3": "ends of the three stages of Algorithm 1",
        r"\epsilon": "loss at which stage 3 ends",
    },
)
