"""Section 4 and Appendix A: the three mappings and what is composed of them."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Claim, Control, Measurement, at_most, equal
from attnflow.corpus import attention_term, shuffled, statistics
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import counted, defined, large, small
from attnflow.studies.leading_terms.paper import paper


def _defined(id: str, name: str, words: str, bar: float) -> Claim:
    def measure(study) -> Measurement:
        ground = small(study)
        without_order = literal.statistics(shuffled(ground.windows), ground.size)
        return equal(
            predicted=defined(study, "small")[name],
            measured=getattr(counted(study, "small"), name),
            rtol=0.0,
            atol=bar,
            control=Control("the shuffled corpus", without_order[name]),
        )

    measure.__doc__ = words
    return paper.claim(id, setting="V = 17, T = 9, N = 12")(measure)


bigram = _defined(
    "Section 4 (bigram mapping)",
    "bigram",
    r"$\bar B = \frac{1}{NT}\sum_i X_i^\top (Y_i - U)$, current by next: counted from token ids it"
    " is what one-hot rows give.",
    1e-15,
)
interchange = _defined(
    "Section 4 (interchangeability mapping)",
    "interchange",
    r"$\Sigma_{\bar B} = \bar B^\top \bar B$, next by next.",
    1e-15,
)
context = _defined(
    "Section 4 (context mapping)",
    "context",
    r"$\bar\Phi = \frac{1}{NT}\sum_i (Y_i - U)^\top A_0 X_i$, next by context.",
    1e-15,
)
value = _defined(
    "eq 48",
    "value",
    r"$\bar\Phi^\top \bar B^\top$: the leading term of the values, context by stream.",
    1e-15,
)
table = _defined(
    "App A (two-step chain)", "g", r"$\bar G = \Sigma_{\bar B}\bar\Phi$, next by context.", 1e-15
)
attention = _defined(
    "App A (token-to-token correlation)",
    "attention",
    r"$\bar Q$, query by key: each row of $(Y_i - U)\bar G X_i^\top$ through the Jacobian of"
    " uniform attention, summed over tokens.",
    1e-19,
)
position = _defined(
    "App A (relative positions)", "position", r"$\Delta$: the same summed along each lag.", 1e-19
)
current_context = _defined(
    "ours: contexts of current tokens",
    "current_context",
    r"$C_0 = \frac{1}{NT}\sum_i X_i^\top A_0^\top X_i$, context by current.",
    1e-15,
)
context2 = _defined(
    "ours: contexts of two layers",
    "context2",
    r"$\Phi_2 = \frac{1}{NT}\sum_i (Y_i - U)^\top A_0^2 X_i$, next by context.",
    1e-15,
)


@paper.claim("ours: attention term of current tokens", setting="V = 17, T = 9, N = 12")
def attention_of_current_tokens(study) -> Measurement:
    """The kernel with labels x in place of y is the literal sum for the rows X_i, for any table."""
    ground = small(study)
    rng = np.random.default_rng(0)
    given = rng.standard_normal((ground.size, ground.size))
    Q, _ = attention_term(ground.windows, given, "current")
    rows = np.zeros((ground.size, ground.size))
    A0 = literal.uniform(ground.context)
    for X, _ in literal.sequences(ground.windows, ground.size):
        scores = X @ given @ X.T
        S = A0 * (scores - (A0 * scores).sum(axis=1, keepdims=True))
        rows += X.T @ S @ X / (len(ground.windows) * ground.context)
    other, _ = attention_term(ground.windows, given)
    return equal(predicted=rows, measured=Q, rtol=1e-13, control=Control("labels y", other))


def _sums(id: str, name: str, axis: int, words: str, other: str) -> Claim:
    def measure(study) -> Measurement:
        array, wrong = (getattr(counted(study, "small"), n) for n in (name, other))

        def relative(a: np.ndarray, along: int) -> float:
            return float(np.abs(a.sum(axis=along)).max() / np.abs(a).max())

        return at_most(
            bound=1e-14,
            measured=relative(array, axis),
            control=Control("along the other axis", relative(wrong, (1 - axis) % wrong.ndim)),
        )

    measure.__doc__ = words
    return paper.claim(id, setting="V = 17, T = 9, N = 12")(measure)


rows_of_B = _sums("ours: rows of B sum to zero", "bigram", 1, "Rows of B sum to 0.", "bigram")
columns_of_Phi = _sums(
    "ours: columns of Phi sum to zero", "context", 0, "Columns of Phi sum to 0.", "context"
)
columns_of_G = _sums(
    "ours: columns of G sum to zero",
    "g",
    0,
    "Columns of G sum to 0, so that the uniform baseline drops out of its rows.",
    "g",
)
rows_of_Q = _sums("ours: rows of Q sum to zero", "attention", 1, "Rows of Q sum to 0.", "attention")


@paper.claim("ours: Delta sums to zero", setting="V = 17, T = 9, N = 12")
def sum_of_Delta(study) -> Measurement:
    """Delta sums to 0: a softmax only moves attention from one lag to another."""
    ground, found = small(study), counted(study, "small")
    bare = literal.attention(ground.windows, ground.size, found.g, centred=False)["position"]

    def relative(lags: np.ndarray) -> float:
        return float(abs(lags.sum()) / np.abs(lags).max())

    return at_most(
        bound=1e-14,
        measured=relative(found.position),
        control=Control("without the softmax's mean", relative(bare)),
    )


@paper.claim("eq 94 (entries of Q and Delta)", part="proof-step", setting="V = 500, T = 60")
def entries(study) -> Measurement:
    r"""$\max_{km}|\bar Q_{km}|, \max_m|\Delta_m| \leq 1$."""
    found = counted(study, "large")
    largest = [float(np.abs(a).max()) for a in (found.attention, found.position)]
    # A table of ones and minus ones is no product of probabilities.
    signs = np.sign(found.g) * 1e3
    other = attention_term(large(study).windows, signs)
    control = [float(np.abs(a).max()) for a in other]
    return at_most(bound=1.0, measured=largest, control=Control("a table of size 1000", control))


@paper.claim("eq 46 (Hardy)", part="proof-step")
def averaging_matrix(study) -> Measurement:
    r"""$\lVert A_0\rVert \leq 2$ for every T (the discrete Hardy inequality)."""
    norms = [float(np.linalg.norm(literal.uniform(T), 2)) for T in (1, 8, 60, 400)]
    # Without the division by the position the matrix of ones below the diagonal grows with T.
    sums = [float(np.linalg.norm(np.tri(T), 2)) for T in (8, 60, 400)]
    return at_most(bound=2.0, measured=norms, control=Control("sums, not means", sums))


@paper.claim("ours: first position sees only itself", setting="V = 17, T = 9, N = 12")
def first_position(study) -> Measurement:
    """A window of one position has no attention to learn: Q and Delta of T = 1 are zero."""
    ground = small(study)
    one = statistics(ground.windows[:, :2], ground.size)
    two = statistics(ground.windows[:, :3], ground.size)
    return at_most(
        bound=1e-18,
        measured=float(np.abs(one.attention).max()),
        control=Control("T = 2", float(np.abs(two.attention).max())),
    )
