"""Appendix D.3.6: the bilinear form B of the expansion (96), block by block, (129) to (160).

Every block is measured from its own definition (`Case.blocks`), and all together against the third
derivative of the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, compared, equal, every, order
from attnflow.expand.jets import Jet
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    Case,
    S,
    at_each,
    doubled,
    exact,
    here,
    same,
    stated,
    step,
    vanishes,
    var,
)

# -- second differentials ------------------------------------------------------------------------


@stated("Lemma D.11 (eq 129)")
def second_order_taylor(study) -> Measurement:
    r"""$f(\theta+h) = f + df[h] + \frac12 d^2 f[h,h] + O(|h|^3)$: the loss and, (130), its
    gradient."""
    ways, sizes = np.random.default_rng(2).standard_normal((4, 6)), np.geomspace(1e-3, 1e-2, 4)

    def left(c: Case, t: float, second: bool) -> list[float]:
        """What the expansions of loss and gradient leave, over all directions of this size."""
        f, f1, f2, f3 = (c.beside.d("loss", k) for k in range(4))
        gaps: tuple[list[Any], list[Any]] = [], []
        for h in t * ways:
            value, slope = f1 @ h + second * h @ f2 @ h / 2, f2 @ h + second * f3 @ h @ h / 2
            gaps[0].append(c.model.loss(c.beside.theta + h) - f - value)
            gaps[1].append(-c.model.velocity(c.beside.theta + h) - f1 - slope)
        return [float(np.linalg.norm(gap)) for gap in gaps]

    def fitted(c: Case, k: int) -> Measurement:
        how = {"kind": "O", "over": sizes, "power": 3}
        return compared(order, "without the second order", lambda t, r: left(c, t, r)[k], **how)

    return at_each(study, lambda c: every(loss=fitted(c, 0), gradient=fitted(c, 1)))


@step("Lemma D.12")
def spread_of_half(study) -> Measurement:
    r"""At $A = (0, \frac12, \frac12)$ a change $dA = (0, a, -a)$ leaves
    $\mathrm{Var}(A) = \mathrm{diag}(A) - A A^\top$ as it is."""

    def change(A: np.ndarray) -> list[np.ndarray]:
        """Half the difference is the differential: Var is quadratic."""
        steps = np.random.default_rng(0).standard_normal(8)
        return [(var(A + a * S) - var(A - a * S)) / 2 for a in steps]

    other = Control("at (0, 0.6, 0.4)", measured=change(np.array([0, 0.6, 0.4])))
    half = np.array([0, 0.5, 0.5])
    return equal(predicted=0.0, measured=change(half), atol=1e-14, control=other)


@step("eq 131", reading=r"$\gamma_i\gamma_i^\top$, a matrix, is the row $\gamma_i\gamma^\top$")
@exact("beside the point")
def second_attention_differential(c: Case, right: bool):
    r"""$d^2 A_i = d^2(\eta\gamma_i\gamma^\top)\,\mathrm{Var}(A_i)$ at the symmetric point: the
    term with $d\mathrm{Var}(A_i)$ vanishes there."""
    scores = c.eta * doubled(np.einsum("ia,jb->ijab", np.eye(6)[:3], np.eye(6)[:3]))
    spread = np.stack([var(a) for a in here(c, right).A])
    return np.einsum("ijab,ijk->ikab", scores, spread), here(c, right).d("attention", 2)


@step("eq 133")
@exact("+ for the first minus")
def first_readout_differential(c: Case, right: bool):
    r"""$d(\partial L/\partial M) = -\sum_i\pi_i\,d A_i^\top(P_i - \hat P_i) +
    \sum_i\pi_i A_i^\top d\hat P_i$, at any point."""
    c = c.beside
    first = np.einsum("i,ija,ik->jka", c.pi, c.d("attention", 1), c.rest)
    second = np.einsum("i,ij,ika->jka", c.pi, c.A, c.d("prediction", 1))
    return second - (1 if right else -1) * first, c.d("GM", 1)


@step("eq 134")
@exact("1 for the 2")
def second_readout_differential(c: Case, right: bool):
    r"""$d^2(\partial L/\partial M) = -\sum\pi_i\,d^2 A_i^\top(P_i - \hat P_i) +
    2\sum\pi_i\,d A_i^\top d\hat P_i + \sum\pi_i A_i^\top d^2\hat P_i$, at any point."""
    c = c.beside
    first = np.einsum("i,ijab,ik->jkab", c.pi, c.d("attention", 2), c.rest)
    cross = np.einsum("i,ija,ikb->jkab", c.pi, c.d("attention", 1), c.d("prediction", 1))
    last = np.einsum("i,ij,ikab->jkab", c.pi, c.A, c.d("prediction", 2))
    return last - first + doubled(cross) / (1 if right else 2), c.d("GM", 2)


def second_logits(c: Case, two: float = 2) -> np.ndarray:
    """d^2(A_i M) of (136)."""
    M, cross = np.outer(c.gamma, c.beta), np.einsum("ija,jkb->ikab", c.d("attention", 1), c.dM)
    out = np.einsum("ijab,jk->ikab", c.d("attention", 2), M) + two / 2 * doubled(cross)
    return out + np.einsum("ij,jkab->ikab", c.A, c.ddM)


@step("eq 135")
@exact("2 d(AM) dVar, as in a square")
def second_prediction_differential(c: Case, right: bool):
    r"""$d^2\hat P_i = d^2(A_i M)\mathrm{Var}(\hat P_i) + d(A_i M)\,d\mathrm{Var}(\hat P_i)$, at
    any point."""
    c = c.beside
    first = np.einsum("ikab,ikl->ilab", second_logits(c), c.V)
    return first + (1 if right else 2) * c.spread, c.d("prediction", 2)


@step("eq 136")
@exact("1 for the 2")
def second_logit_differential(c: Case, right: bool):
    r"""$d^2(A_i M) = d^2 A_i\,M + 2\,d A_i\,dM + A_i\,d^2 M$, at any point."""
    z = Jet.variables(c.beside.theta, 2)
    A, M = c.model.fields(z).attention, z[:3, None] * z[None, 3:]
    logits = (A[:, :, None] * M[None, :, :]).sum(axis=1)
    return second_logits(c.beside, 2 if right else 1), logits.derivative(2)


@step("eq 137")
@exact("1 for the 2")
def second_product_differential(c: Case, right: bool):
    r"""$d^2(G_M\beta) = (d^2 G_M)\beta + 2\,d G_M\,d\beta$, and likewise for $G_M^\top\gamma$,
    where $G_M = 0$."""
    z, e, (d1, d2) = Jet.variables(c.theta, 2), np.eye(6), (c.d("GM", k) for k in (1, 2))
    GM = c.model.fields(z).GM
    parts = (GM * z[None, 3:]).sum(axis=1), (GM * z[:3, None]).sum(axis=0)
    cross = np.einsum("kja,jb->kab", d1, e[3:]), np.einsum("jka,jb->kab", d1, e[:3])
    ends = np.einsum("kjab,j->kab", d2, c.beta), np.einsum("jkab,j->kab", d2, c.gamma)
    formula = np.concatenate(ends) + doubled(np.concatenate(cross)) / (1 if right else 2)
    return formula, np.concatenate([p.derivative(2) for p in parts])


@step("eq 138")
@exact("without the block of the scores")
def sum_of_blocks(c: Case, right: bool):
    r"""$B$ is the sum of the blocks $B^{(l)}$: six for $\gamma$, four for $\beta$."""
    kept = [(k[0], v) for k, v in c.blocks.items() if right or k != "g6"]
    return np.concatenate([np.sum([v for k, v in kept if k == half], 0) for half in "gb"]), c.B


# -- blocks of gamma -----------------------------------------------------------------------------


def form(
    top: Any = 0.0, low: Any = 0.0, top_row: Any = 0.0, low_rows: Any = 0.0, corner: Any = 0.0
) -> np.ndarray:
    """A symmetric 6 x 6 matrix in (gamma_1, gamma_2, gamma_3, beta) from its blocks."""
    out = np.zeros((6, 6))
    out[0, 0], out[1:3, 1:3], out[3:, 3:] = top, low, corner
    out[0, 3:], out[1:3, 3:] = top_row, low_rows
    out[3:, :3] = out[:3, 3:].T
    return out


UNIT, SPLIT = np.diag([1.0, -1.0]), np.array([[1.0, -1.0], [-1.0, 1.0]])
NOTHING = np.zeros((6, 6))


@step("eq 139", reading=r"the corner of $B_2^{(1)}$ has the factor $1-\pi_1$ twice, (157) once")
@exact("as extracted")
def block_1(c: Case, right: bool):
    r"""$B^{(1)}$, from $2\,d(\partial L/\partial M)\,d\beta$: the corner of $B_2^{(1)}$ is
    $-(1-\pi_1)\gamma_{low}\mathrm{Var}(P_{low})$."""
    top = -c.p * form(top_row=c.beta @ c.V1, corner=2 * c.g1 * c.V1)
    corner = (1 if right else 1 - c.p) * c.gl * c.Vl
    low = -(1 - c.p) * form(low_rows=c.beta @ c.Vl / 4, corner=corner)
    return [top, low, low], c.blocks["g1"]


def antisymmetric(c: Case, V: np.ndarray, row: float) -> list[np.ndarray]:
    """The matrices of (140) and (149); `row` multiplies their off-diagonal blocks."""
    rows = np.outer([1, -1], row * c.beta @ V) / 2
    inner = form(low=UNIT * (c.beta @ V @ c.beta) / 2, low_rows=rows)
    inner = -(1 - c.p) / 2 * c.eta * c.gl * inner
    return [NOTHING, inner, -inner]


@step("eq 140")
@exact("Var(P_1) for Var(P_low)")
def block_2(c: Case, right: bool):
    r"""$B^{(2)}$, from $-2\sum_i\pi_i\,d A_i^\top d P_i\beta$."""
    return antisymmetric(c, c.V[int(right)], c.gl), c.blocks["g2"]


@step("eq 141")
@exact("the pattern of (140)")
def block_3(c: Case, right: bool):
    r"""$B^{(3)}$, from $-2\sum_i\pi_i A_i^\top d A_i\,dM\,\mathrm{Var}(P_i)\beta$."""
    inner = form(low=(c.beta @ c.Vl @ c.beta) * (SPLIT if right else UNIT))
    inner = -(1 - c.p) / 4 * c.eta * c.gl * inner
    return [NOTHING, inner, inner], c.blocks["g3"]


@step("eq 142")
@exact("1/2 for 1/4")
def block_4(c: Case, right: bool):
    r"""$B^{(4)}$, from $-\sum_i\pi_i A_i^\top A_i\,d^2M\,\mathrm{Var}(P_i)\beta$."""
    low = -(1 - c.p) * form(low_rows=c.beta @ c.Vl / (4 if right else 2))
    return [-c.p * form(top_row=c.beta @ c.V1), low, low], c.blocks["g4"]


def cubic(P: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """u dVar(P)[u] beta split by u = s beta + d beta: the s^2, s d beta and d beta^2 parts."""
    V, mean = var(P), P @ b
    top = float(b @ np.diag(b @ V) @ b - 2 * mean * b @ V @ b)
    cross = b**2 @ V + b * (b @ V) - 3 * mean * (b @ V) - (b @ V @ b) * P
    outer, spread = np.outer(P, P * b), np.outer(P, b @ V)
    corner = np.diag(P * b) - (outer + outer.T) / 2 - (spread + spread.T) / 2 - mean * V
    return top, cross, corner


@step(
    "eq 144",
    reading=r"$c_1$ has $\mathrm{diag}(\mathrm{Var}(P_1))$ where the form of $c_3$ below it has "
    r"$\mathrm{diag}(\beta^\top\mathrm{Var}(P_1))$",
)
@exact("as extracted")
def block_5_leader(c: Case, right: bool):
    r"""$B_1^{(5)}$ has $c_1 = \beta^\top\mathrm{diag}(\beta^\top\mathrm{Var}(P_1))\beta -
    2(P_1\beta)|\beta|^2_{\mathrm{Var}(P_1)}$ and $c_2$ as in (143), (144)."""
    b, V, (top, cross, _) = c.beta, c.V1, cubic(c.P1, c.beta)
    if not right:
        top = b @ np.diag(np.diag(V)) @ b - 2 * (c.P1 @ b) * b @ V @ b
    return -c.p * np.append(top, c.g1 * cross / 2), c.blocks["g5"][0, 0, [0, 3, 4, 5]]


@step("eq 145")
@exact("of the lower tokens")
def block_5_corner(c: Case, right: bool):
    r"""$c_3$ in matrix form: the $d\beta^2$ part of $B_1^{(5)}$."""
    corner = cubic(c.P1 if right else c.Pl, c.beta)[2]
    return -c.p * c.g1**2 * corner, c.blocks["g5"][0, 3:, 3:]


@step(
    "eq 146",
    reading=r"$c_4$ and $c_5$ are not given; ours are $c_1/4$ and $c_2/2$ of (144) with the lower "
    r"tokens' $P$ and $\gamma$",
)
@exact("P_1 for P_low")
def block_5_low(c: Case, right: bool):
    r"""$B_2^{(5)} = B_3^{(5)}$ has the shape (146), with $c_4 = \frac14(\beta^\top
    \mathrm{diag}(\beta^\top V)\beta - 2(P\beta)|\beta|^2_V)$ and $c_5 = \frac14\gamma_{low}
    (\beta^{\odot2\top}V + \beta^\top\odot\beta^\top V - 3(P\beta)\beta^\top V - |\beta|^2_V P)$ for
    $P = P_{low}$, $V = \mathrm{Var}(P)$."""
    top, cross, corner = cubic(c.P[int(right)], c.beta)
    inner = form(low=top / 4, low_rows=c.gl * cross / 4, corner=c.gl**2 * corner)
    return -(1 - c.p) / 2 * np.stack([inner, inner]), c.blocks["g5"][1:]


@step(
    "eq 147",
    reading=r"the matrix lacks the $\gamma_{low}^2$ of the quadratic form above it, whose last "
    r"$\mathrm{Var}(P_1)$ is $\mathrm{Var}(P_{low})$",
)
@exact("as extracted")
def block_5_low_corner(c: Case, right: bool):
    r"""$c_6$, the $d\beta^2$ part of $B_2^{(5)}$, carries $\gamma_{low}^2$."""
    c6 = (c.gl**2 if right else 1.0) * cubic(c.Pl, c.beta)[2]
    return -(1 - c.p) / 2 * c6, c.blocks["g5"][1, 3:, 3:]


@step("eq 148")
def second_score_differential(study) -> Measurement:
    r"""$d^2(\partial L/\partial\Phi) = 2\sum\pi_i e_i\,d P_i\,dM^\top\mathrm{Var}(A_i)$ minus a
    term in $d^2M$ at the symmetric point; that second part vanishes against $\gamma$."""

    def parts(c: Case) -> tuple[np.ndarray, np.ndarray]:
        VA = np.stack([var(a) for a in c.A])
        first = np.einsum("i,ika,jkb,ijl->ilab", c.pi, c.d("prediction", 1), c.dM, VA)
        return doubled(first), -np.einsum("i,ik,jkab,ijl->ilab", c.pi, c.rest, c.ddM, VA)

    def total(c: Case, right: bool):
        return parts(c)[0] + (parts(c)[1] if right else 0), c.d("GP", 2)

    def against_gamma(c: Case, right: bool):
        term = parts(c)[int(right)]
        return np.einsum("kjab,j->kab", term + np.swapaxes(term, 0, 1), c.gamma)

    return every(
        sum=same(study, total, "without the second part"),
        second=vanishes(study, against_gamma, "the first part"),
    )


@step("eq 149", reading=r"off the diagonal the factor $\gamma_{low}$ of (140) is lost")
@exact("as extracted")
def block_6(c: Case, right: bool):
    r"""$B^{(6)}$, from the score: off the diagonal it carries
    $\frac12\gamma_{low}\beta^\top\mathrm{Var}(P_{low})$."""
    return antisymmetric(c, c.Vl, c.gl if right else 1.0), c.blocks["g6"]


# -- blocks of beta ------------------------------------------------------------------------------


def second_of_prediction(c: Case) -> np.ndarray:
    """sum_i pi_i d^2 Phat_i^T A_i gamma."""
    return np.einsum("i,ikab,ij,j->kab", c.pi, c.d("prediction", 2), c.A, c.gamma)


@step("eq 150")
@exact("without the second sum")
def beta_terms(c: Case, right: bool):
    r"""$d^2(G_M^\top\gamma) = \sum\pi_i\,d^2\hat P_i^\top A_i\gamma +
    2\sum\pi_i\mathrm{Var}(P_i)\,dM^\top A_i^\top A_i\,d\gamma$."""
    return (c.blocks["b1"] if right else 0) - second_of_prediction(c), c.B[3:]


@step("eq 151")
@exact("their sum for their mean")
def beta_first_term(c: Case, right: bool):
    r"""$2\sum\pi_i\mathrm{Var}(P_i)\,dM^\top A_i^\top A_i\,d\gamma = 2\pi_1\mathrm{Var}(P_1)\,
    d(\gamma_1\beta)\,d\gamma_1$ plus the like for the mean of the lower tokens."""
    changes, out = np.random.default_rng(4).standard_normal((6, 6)), []
    for h in changes:
        plus = (0.5 if right else 1.0) * (h[1] + h[2])
        top = c.p * c.V1 @ (c.g1 * h[3:] + h[0] * c.beta) * h[0]
        out.append(2 * (top + (1 - c.p) * c.Vl @ (c.gl * h[3:] + plus * c.beta) * plus))
    return out, [-c.blocks["b1"] @ h @ h for h in changes]


@step(
    "eq 152",
    reading=r"the lower off-diagonal blocks lack the factor $(1-\pi_1)\gamma_{low}$; those of "
    r"token 1 have theirs, and (155) has it",
)
@exact("as extracted")
def beta_block_1(c: Case, right: bool):
    r"""$B_k^{(1)}$, $k = 4, 5, 6$: the lower off-diagonal is
    $\frac14(1-\pi_1)\gamma_{low}\mathrm{Var}(P_{low})_{k-3}$."""
    factor, out = (1 - c.p) * c.gl if right else 1.0, []
    for top, low in zip(c.V1, c.Vl, strict=True):
        on_gamma = {"top": c.p * top @ c.beta, "low": (1 - c.p) / 4 * low @ c.beta}
        out.append(-2 * form(top_row=c.p * c.g1 * top / 2, low_rows=factor * low / 4, **on_gamma))
    return out, c.blocks["b1"]


@step("eq 153")
@exact("without the first")
def beta_second_differential(c: Case, right: bool):
    r"""$\sum\pi_i\,d^2\hat P_i^\top A_i\gamma$ splits into the $d A\,dM$, the $d^2M$ and the
    $d\mathrm{Var}$ term."""
    names = ("b2", "b3", "b4")[0 if right else 1 :]
    return -np.sum([c.blocks[n] for n in names], axis=0), second_of_prediction(c)


@step("eq 154")
@exact("without its off-diagonal entries")
def beta_block_2(c: Case, right: bool):
    r"""$B_k^{(2)}$, $k = 4, 5, 6$, from $2\,d A_i\,dM\,\mathrm{Var}(P_i)$."""
    pattern = -(1 - c.p) / 2 * c.eta * c.gl**2 * (SPLIT if right else np.eye(2))
    return [form(low=row @ c.beta * pattern) for row in c.Vl], c.blocks["b2"]


@step("eq 155")
@exact("1/2 for 1/4")
def beta_block_3(c: Case, right: bool):
    r"""$B_k^{(3)}$, $k = 4, 5, 6$, from $A_i\,d^2M\,\mathrm{Var}(P_i)$."""
    low, top = 2 * (1 - c.p) * c.gl / (4 if right else 2) * c.Vl, c.p * c.g1 * c.V1
    return [-form(top_row=t, low_rows=l) for t, l in zip(top, low, strict=True)], c.blocks["b3"]


def beta_square(P: np.ndarray) -> np.ndarray:
    """Entry by entry, the matrix of (diag(d beta V) - P^T (d beta V) - V d beta P) d beta."""
    V, out = var(P), []
    for k in range(3):
        first, last = np.outer(np.eye(3)[k], V[k]), np.outer(P, V[k])
        out.append((first + first.T) / 2 - P[k] * V - (last + last.T) / 2)
    return np.stack(out)


@step("eq 156")
@exact("gamma_low^2 for its cube")
def beta_block_4(c: Case, right: bool):
    r"""$B_k^{(4)}$ on $d\beta^2$, $k = 4, 5, 6$, from $d(A_i M)\,d\mathrm{Var}(P_i)$."""
    low = (1 - c.p) * c.gl ** (3 if right else 2) * beta_square(c.Pl)
    return -c.p * c.g1**3 * beta_square(c.P1) - low, c.blocks["b4"][:, 3:, 3:]


# -- Lemma D.13, and the action on q2 ------------------------------------------------------------


def on_q2(c: Case, *names: str) -> np.ndarray:
    """B^(l)(q2, q2)."""
    return np.ravel([c.blocks[n] @ c.R[:, 1] @ c.R[:, 1] for n in names])


@step("Lemma D.13 (eq 157)")
def quadratic_1(study) -> Measurement:
    r"""$B^{(1)}(q_2 y_2, q_2 y_2) = -\frac12 y_2^2(4\pi_1\gamma_1 P_{12},
    2(1-\pi_1)\gamma_{low}P_{low,2}, \ldots)$; $l = 2, 3, 4, 6$ vanish, and for $k = 4, 5, 6$
    $l = 1, 2, 3$ do."""
    quiet = ("g2", "g3", "g4", "g6", "b1", "b2", "b3")

    def value(c: Case, right: bool):
        top, low = c.p * c.g1 * c.P1[1], 2 * (1 - c.p) * c.gl * c.Pl[1]
        return -0.5 * np.array([(4 if right else 2) * top, low, low]), on_q2(c, "g1")

    return every(
        value=same(study, value, "2 for the 4"),
        quiet=vanishes(study, lambda c, right: on_q2(c, *(quiet if right else ("g5",))), "l = 5"),
    )


@step("Lemma D.13 (eq 158)")
@exact("1 for the 2")
def quadratic_5(c: Case, right: bool):
    r"""$B^{(5)}(q_2 y_2, q_2 y_2) = -\frac12 y_2^2(2\pi_1\gamma_1^2 P_{12}(\beta_2 - P_1\beta),
    (1-\pi_1)\gamma_{low}^2 P_{low,2}(\beta_2 - P_{low}\beta), \ldots)$."""
    top = (2 if right else 1) * c.p * c.g1**2 * c.P1[1] * (c.beta[1] - c.P1 @ c.beta)
    low = (1 - c.p) * c.gl**2 * c.Pl[1] * (c.beta[1] - c.Pl @ c.beta)
    return -0.5 * np.array([top, low, low]), on_q2(c, "g5")


@step("Lemma D.13 (eq 159)", reading=r"the factor $y_2^2$ of the lines before is left out")
@exact("1 for the 2")
def quadratic_beta(c: Case, right: bool):
    r"""For $k = 4, 5, 6$ only $l = 4$ acts on $(q_2, q_2)$, with $-\frac12\pi_1\gamma_1^3
    ((0, P_{12}, P_{12}) - 2P_{12}P_1)$ and the like for the lower tokens."""
    one = [P[1] * (np.array([0, 1, 1]) - (2 if right else 1) * P) for P in (c.P1, c.Pl)]
    return -0.5 * (c.p * c.g1**3 * one[0] + (1 - c.p) * c.gl**3 * one[1]), on_q2(c, "b4")


@stated("Lemma D.13 (eq 160)")
@exact("over |gamma|")
def quadratic_on_the_kernel(c: Case, right: bool):
    r"""$\frac12 Q_K^\top B(q_2 y_2, q_2 y_2) = (0, 0, c_1)\,y_2^2/|\theta|$ with $c_1$ of (100)."""
    q, norm = c.R[:, 1], c.norm if right else np.linalg.norm(c.gamma)
    return [0, 0, c.c1 / norm], c.K.T @ (c.B @ q @ q) / 2


@step(
    "Lemma D.15 (c3)",
    reading=r"the last entry lacks its brackets, and the factor $-\pi_1$ belongs to $B_1^{(5)}$: "
    r"the next line has both right",
)
@exact("the last entry as extracted")
def corner_on_s(c: Case, right: bool):
    r"""$c_3(0, 1, -1)^\top = \gamma_1^2 P_{12}(\beta_2 - P_1\beta)(0, 1, -1)^\top$."""
    second = c.beta[1] - c.P1 @ c.beta
    last = -second if right else -c.beta[1] - c.P1 @ c.beta
    formula = c.g1**2 * c.P1[1] * np.array([0, second, last])
    return formula, c.blocks["g5"][0, 3:, 3:] @ S / -c.p


@step("Lemma D.15 (cross term)", reading=r"$e_k$ stands for $e_1$ in the second matrix")
@exact("as extracted")
def cross_matrix(c: Case, right: bool):
    r"""The $d\gamma_1 d\beta$ part of $A_1 dM\,d\mathrm{Var}(P_1)$, entry $k$, stands in the row of
    $\gamma_1$ alone."""
    P, V, b, e, out = c.P1, c.V1, c.beta, np.eye(3), []
    for k in range(3):
        row = (b @ V)[k] * e[k] / 2 - P[k] * b @ V - (V @ b)[k] * P / 2 - (P @ b) * V[k] / 2
        second = np.outer(e[0 if right else k], b[k] * V[k] / 2)
        out.append(c.g1 * (np.outer(e[0], row) + second))
    return out, c.spread[0][:, :3, 3:]


@step("Lemma D.15 (square term)")
@exact("of the lower tokens")
def square_matrix(c: Case, right: bool):
    r"""Entry $k$ of the $d\beta^2$ part is $\frac12(e_k V_k + V_k^\top e_k^\top) - P_k V -
    \frac12(P^\top V_k + V_k^\top P)$ with $P = P_1$, $V = \mathrm{Var}(P_1)$."""
    return beta_square(c.P1 if right else c.Pl), c.spread[0][:, 3:, 3:] / c.g1**2
