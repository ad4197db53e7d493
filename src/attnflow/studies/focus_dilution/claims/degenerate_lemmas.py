"""The derivative toolbox of Appendix D.3: Lemmas D.4 to D.10 and D.14 to D.16."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_most, every, order, sign
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    LOW,
    Case,
    S,
    at_each,
    exact,
    here,
    same,
    stacked,
    stated,
    step,
    vanishes,
    zero,
)

ON_GAMMA = np.append(S, np.zeros(3))
"""d gamma_2 - d gamma_3 as a row."""

# -- Lemmas D.4 to D.8 ---------------------------------------------------------------------------


@stated("Lemma D.4")
def gradients_vanish(study) -> Measurement:
    r"""At the constructed point $\partial L/\partial M = 0$ and $\partial L/\partial\Phi = 0$, and
    the predictions are $P_1$ and $\frac12(P_2 + P_3)$."""

    def gradients(c: Case, right: bool):
        return np.stack([here(c, right).d("GM", 0), here(c, right).d("GP", 0)])

    def rows(c: Case, right: bool):
        back, away = (1 - c.l) * c.p, (1 - c.l) * c.small
        stay, mean = c.l + away, (c.l / 2 if right else 0) + away
        return [[c.l + back, away, away], [back, mean, mean if right else stay]], c.P[:2]

    return every(
        gradients=vanishes(study, gradients, "beside"), rows=same(study, rows, "each its own law")
    )


def attention_change(c: Case, weight: float = 0.25) -> np.ndarray:
    """dA_i of Lemma D.5 (1), as [query, key, parameter]."""
    out = np.zeros((3, 3, 6))
    out[1:] = weight * c.eta * c.gl * np.outer(S, ON_GAMMA)
    return out


@stated("Lemma D.5 (1)")
@exact("1/2, the attention itself, for 1/4")
def attention_variation(c: Case, right: bool):
    r"""$d A_1 = 0$ and $d A_i = \eta\gamma_{low}(0, \frac14(d\gamma_2 - d\gamma_3),
    -\frac14(d\gamma_2 - d\gamma_3))$ for $i \ne 1$."""
    return attention_change(c, 0.25 if right else 0.5), c.d("attention", 1)


def prediction_change(c: Case) -> np.ndarray:
    """dP_i = A_i dM Var(P_i) of Lemma D.5 (2)."""
    return np.einsum("ij,jka,ikl->ila", c.A, c.dM, c.V)


@stated("Lemma D.5 (2)")
@exact("diag(P) for Var(P)")
def prediction_variation(c: Case, right: bool):
    r"""$d P_i = A_i\,dM\,\mathrm{Var}(P_i)$, so $d P_2 = d P_3$."""
    without = np.einsum("ij,jka,ik->ika", c.A, c.dM, c.P)
    return prediction_change(c) if right else without, c.d("prediction", 1)


@stated("Lemma D.5 (3)")
def gradient_variations(study) -> Measurement:
    r"""$d(\partial L/\partial M) = \sum_i\pi_i A_i^\top d P_i$ and
    $d(\partial L/\partial\Phi) = 0$."""

    def readout(c: Case, right: bool):
        pi = c.pi if right else np.full(3, 1 / 3)
        return np.einsum("i,ij,ika->jka", pi, c.A, prediction_change(c)), c.d("GM", 1)

    return every(
        M=same(study, readout, "tokens equally likely"),
        Phi=vanishes(study, lambda c, right: here(c, right).d("GP", 1), "beside"),
    )


@stated("Lemma D.6 (eq 111)")
@exact("1/2 for 1/4 in c_2")
def hessian_blocks(c: Case, right: bool):
    r"""$J_0$ has the block form (111) with $c_1, c_2, v_1, v_2$ and $C$."""
    p, b, out = c.p, c.beta, np.zeros((6, 6))
    v1, v2 = p * c.g1 * b @ c.V1, (1 - p) / 2 * c.gl * b @ c.Vl
    out[0, 0] = p * b @ c.V1 @ b
    out[1:3, 1:3] = (0.25 if right else 0.5) * (1 - p) * b @ c.Vl @ b
    out[0, 3:] = out[3:, 0] = v1
    out[1:3, 3:], out[3:, 1:3] = v2, np.stack([v2, v2], axis=1)
    out[3:, 3:] = p * c.g1**2 * c.V1 + (1 - p) * c.gl**2 * c.Vl
    return -out, c.J0


@step("Lemma D.6 (eq 116)")
@exact("the sum of the gammas for their mean")
def hessian_as_squares(c: Case, right: bool):
    r"""The quadratic form of $J_0$ is minus the two weighted squares of (116)."""
    changes, squares = np.random.default_rng(5).standard_normal((8, 6)), []
    for h in changes:
        u = h[0] * c.beta + c.g1 * h[3:]
        w = (0.5 if right else 1.0) * (h[1] + h[2]) * c.beta + c.gl * h[3:]
        squares.append(-c.p * u @ c.V1 @ u - (1 - c.p) * w @ c.Vl @ w)
    return squares, [h @ c.J0 @ h for h in changes]


@stated("Lemma D.6")
def hessian_sign(study) -> Measurement:
    r"""$J_0$ is negative semidefinite: the point is a degenerate minimum in $(\gamma, \beta)$."""

    def top(right: bool) -> float:
        return stacked(study, lambda c: np.linalg.eigvalsh(here(c, right).J0)[-1]).max()

    return at_most(bound=1e-13, measured=top(True), control=Control("beside", top(False)))


@stated("Lemma D.7 (eq 119)")
def readout_gradient_in_delta(study) -> Measurement:
    r"""$\partial_\delta(\partial L/\partial M) = -\lambda\hat e\,s - (1-\lambda)
    (\pi_1, \frac12(1-\pi_1), \frac12(1-\pi_1))^\top s$ with $s = (0, 1, -1)$, and
    $\partial_\delta(\partial L/\partial\Phi) = 0$."""

    def readout(c: Case, right: bool):
        masses = c.l * LOW + (1 - c.l) * (c.pi if right else LOW)
        return -np.outer(masses, S), c.d("GM", 0, 1)

    return every(
        M=same(study, readout, "token 1 left out"),
        Phi=vanishes(study, lambda c, right: here(c, right).d("GP", 0, 1), "beside"),
    )


@stated("Lemma D.7 (eq 117)")
@exact("gamma_1 for the mean of gamma")
def first_order_forcing(c: Case, right: bool):
    r"""$f_1 = (\lambda\gamma_{low} + (1-\lambda)(\pi_1\gamma_1 + (1-\pi_1)\gamma_{low}))\,
    (0, 0, 0, 0, 1, -1)$."""
    drive = c.drive if right else c.l * c.gl + (1 - c.l) * c.g1
    return np.append(np.zeros(3), drive * S), c.f1


@stated("Lemma D.7 (eq 118)")
def projected_forcing(study) -> Measurement:
    r"""$Q_R^\top f_1 = (0, \sqrt2(\lambda\gamma_{low} + (1-\lambda)(\pi_1\gamma_1 +
    (1-\pi_1)\gamma_{low})), 0)$ and $Q_K^\top f_1 = 0$."""

    def on_range(c: Case, right: bool):
        drive = c.drive if right else (1 - c.l) * c.pi @ c.gamma
        return [0, np.sqrt(2) * drive, 0], c.R.T @ c.f1

    return every(
        range=same(study, on_range, "without lambda gamma_low"),
        kernel=vanishes(study, lambda c, right: (c.K if right else c.R).T @ c.f1, "on the range"),
    )


@step("Lemma D.7 (attention)")
def attention_in_delta(study) -> Measurement:
    r"""$\partial_\delta A_i = (0, 1, -1)/(1-\pi_1)$ for $i \ne 1$, $\partial_\delta A_1 = 0$, and
    $\partial_\delta P_i = 0$."""

    def attention(c: Case, right: bool):
        return np.outer([0, 1, 1], S) / (1 - c.p if right else c.small), c.d("attention", 0, 1)

    return every(
        attention=same(study, attention, "over pi_2"),
        prediction=vanishes(study, lambda c, right: here(c, right).d("prediction", 0, 1), "beside"),
    )


@stated("Lemma D.8 (eq 120)")
def range_block(study) -> Measurement:
    r"""$\Lambda_R = Q_R^\top J_0 Q_R$ is nonsingular with $(2, 2)$ entry $-c_1$, alone in its
    row."""

    def row(c: Case, right: bool):
        other = c.p * c.g1**2 * c.V1[1, 1] + (1 - c.p) * c.gl**2 * c.Vl[1, 1]
        return [0, -(c.c1 if right else other), 0], c.R[:, 1] @ c.J0 @ c.R

    def top(c: Case, basis: np.ndarray) -> float:
        return np.linalg.eigvalsh(basis.T @ c.J0 @ basis)[-1]

    return every(
        row=same(study, row, "Var_22 for P_2"),
        nonsingular=sign(
            predicted=-1,
            measured=stacked(study, lambda c: top(c, c.R)),
            margin=1e-9,
            control=Control("on the kernel", stacked(study, lambda c: top(c, c.K))),
        ),
    )


# -- Lemmas D.9 and D.10 -------------------------------------------------------------------------


def block_A(c: Case) -> np.ndarray:
    """A of (123)."""
    return np.outer([c.p * (1 - c.l), c.kappa / 2, c.kappa / 2], S)


def mixed(c: Case, way: int = 1) -> np.ndarray:
    """J1 of (121)-(123)."""
    b, V, out = c.beta, c.Vl, np.zeros((6, 6))
    out[1, 1], out[2, 2] = -b @ V @ b, b @ V @ b
    out[:3, 3:] = -c.gl * np.outer(S, b @ V) + way * block_A(c)
    out[3:, :3] = out[:3, 3:].T
    return out


@stated("Lemma D.9 (eqs 121-123)")
@exact("-A for A")
def mixed_operator(c: Case, right: bool):
    r"""$J_1 = \partial_\delta J_0$ has the blocks (122) and the off-diagonal $A$ of (123)."""
    return mixed(c, 1 if right else -1), c.J1


def six_terms(c: Case) -> list[np.ndarray]:
    """The six terms of (124) from exact derivatives of attention and prediction."""
    pi, dA, dP = c.pi, c.d("attention", 1), c.d("prediction", 1)
    rest_delta = (1 - c.l) * np.outer(np.ones(3), S) - c.d("prediction", 0, 1)
    return [
        -np.einsum("i,ija,ik->jka", S, dA, c.rest),
        -np.einsum("i,ija,ik->jka", pi, c.d("attention", 1, 1), c.rest),
        -np.einsum("i,ija,ik->jka", pi, dA, rest_delta),
        np.einsum("i,ij,ika->jka", S, c.A, dP),
        np.einsum("i,ij,ika->jka", pi, c.d("attention", 0, 1), dP),
        np.einsum("i,ij,ika->jka", pi, c.A, c.d("prediction", 1, 1)),
    ]


@step("Lemma D.9 (eq 124)")
def sum_of_six_terms(study) -> Measurement:
    r"""$\partial_\delta d(\partial L/\partial M)$ is a sum of six terms; the first and the third
    vanish on $\beta$ and $\gamma$, the fourth is zero."""

    def total(c: Case, right: bool):
        terms = six_terms(c.beside)  # there none of them vanishes
        return sum(terms if right else terms[:1] + terms[2:]), c.beside.d("GM", 1, 1)

    def silent(c: Case, right: bool):
        terms = six_terms(c)
        first, third = (terms[0], terms[2]) if right else (terms[4], terms[5])
        on_beta = np.einsum("njka,k->nja", [first, third], c.beta)
        on_gamma = np.einsum("njka,j->nka", [first, third], c.gamma)
        return np.concatenate([on_beta.ravel(), on_gamma.ravel(), terms[3].ravel()])

    return every(
        sum=same(study, total, "without the second"),
        silent=vanishes(study, silent, "the fifth and the sixth"),
    )


@step("Lemma D.9 (item 2)")
def attention_spread_in_delta(study) -> Measurement:
    r"""$\partial_\delta\mathrm{Var}(A_i) = 0$, so $\partial_\delta d A_i = 0$: no term 2.

    The factor in front of the vanishing bracket is $1/(1-\pi_1)$, not $1-\pi_1$; nothing follows
    from it."""

    def spread(c: Case, right: bool):
        A, dA = here(c, right).A[1], here(c, right).d("attention", 0, 1)[1]
        return np.diag(dA) - np.outer(dA, A) - np.outer(A, dA)

    def attention(c: Case, right: bool):
        return here(c, right).d("attention", 1, 1) * (1 - c.p)

    return every(
        spread=vanishes(study, spread, "beside"), attention=vanishes(study, attention, "beside")
    )


@step("Lemma D.9 (item 3)", reading="the minus sign of the left side is lost on the right")
@exact("as extracted")
def third_term_sign(c: Case, right: bool):
    r"""Term 3 of (124) is $-\sum_i\pi_i\,d A_i^\top (0, 1-\lambda, -(1-\lambda))$; it vanishes on
    $\beta$ and $\gamma$ either way."""
    way = -1 if right else 1
    formula = way * np.einsum("i,ija,k->jka", c.pi, attention_change(c), (1 - c.l) * S)
    return formula, six_terms(c)[2]


@step("Lemma D.9 (eq 125)")
@exact("token 1 for the lower ones")
def fifth_term(c: Case, right: bool):
    r"""Term 5 of (124) is $(0, 1, -1)^\top A_{low}\,dM\,\mathrm{Var}(P_{low})$."""
    return np.einsum("j,ka->jka", S, prediction_change(c)[int(right)]), six_terms(c)[4]


@step("Lemma D.9 (eq 126)")
@exact("Var(P_1) for Var(P_low)")
def sixth_term(c: Case, right: bool):
    r"""Term 6 of (124) is $A_{low}^\top (0, 1, -1)\,d\gamma\,\beta^\top\mathrm{Var}(P_{low})$."""
    V = c.V[int(right)]
    return np.einsum("j,k,a->jka", LOW, c.beta @ V, ON_GAMMA), six_terms(c)[5]


@step("Lemma D.9 (eq 127)")
def collected_terms(study) -> Measurement:
    r"""Applied to $\beta$ the mixed derivative of $\partial L/\partial M$ is (127);
    $\partial_\delta d(\partial L/\partial\Phi) = 0$."""

    def on_beta(c: Case, right: bool):
        b, V, out = c.beta, c.Vl, np.zeros((3, 6))
        out[1, 1], out[2, 2] = b @ V @ b, -b @ V @ b
        out[:, 3:] = np.outer(S, b @ V) * (c.gl if right else c.g1)
        return out, np.einsum("jka,k->ja", c.d("GM", 1, 1), b)

    return every(
        M=same(study, on_beta, "gamma_1 for gamma_low"),
        Phi=vanishes(study, lambda c, right: here(c, right).d("GP", 1, 1), "beside"),
    )


@step("Lemma D.9 (eq 128)")
@exact("without lambda's own part")
def readout_block(c: Case, right: bool):
    r"""$\partial_\delta(\partial L/\partial M)\,d\beta = -A\,d\beta$ with the block $A$ of
    (123)."""
    moving = np.outer((1 - c.l) * c.pi, S)
    return -block_A(c) if right else -moving, c.d("GM", 0, 1)


@stated("Lemma D.10")
@exact("lambda alone on gamma_low")
def mixed_on_the_kernel(c: Case, right: bool):
    r"""$Q_K^\top J_1 q_2 = -\frac{\sqrt2}{|\theta|}(0, 0, \pi_1\gamma_1(1-\lambda) +
    \gamma_{low}(\lambda + (1-\pi_1)(1-\lambda)))$."""
    inner = c.p * c.g1 * (1 - c.l) + c.gl * (c.kappa if right else c.l)
    return [0, 0, -np.sqrt(2) * inner / c.norm], c.K.T @ c.J1 @ c.R[:, 1]


# -- Lemmas D.14 to D.16 -------------------------------------------------------------------------


@stated("Lemma D.14")
@zero("of dL/dM itself")
def second_delta_derivative(c: Case, right: bool):
    r"""$f_2 = \partial_\delta^2(-\nabla L) = 0$, although $\partial_\delta^2(\partial L/\partial
    M)$ is not."""
    return c.f2 if right else c.d("GM", 0, 2)


def joint(c: Case, *, B: bool = True, C: bool = True, half: float = 0.5) -> np.ndarray:
    """(0, B; B^T, C) of (171), (172): what theta = q2 y2 adds to the Jacobian, over -c delta."""
    p, b, out = c.p, c.beta, np.zeros((6, 6))

    def pattern(P: np.ndarray) -> np.ndarray:
        m = np.diag((P[1] - 2 * P[1] ** 2) * S)
        m[0, :] = m[:, 0] = -P[0] * P[1] * S
        return m

    if B:
        first = p * c.P1[1] * (2 * c.g1 + c.g1**2 * (b[1] - c.P1 @ b))
        second = (1 - p) * c.Pl[1] * (c.gl + half * c.gl**2 * (b[1] - c.Pl @ b))
        out[:3, 3:] = np.outer([first, second, second], S)
        out[3:, :3] = out[:3, 3:].T
    if C:
        out[3:, 3:] = p * c.g1**3 * pattern(c.P1) + (1 - p) * c.gl**3 * pattern(c.Pl)
    return out


@stated("Lemma D.15 (eq 162)")
@exact("1 for 1/2 in the lower rows of B")
def first_order_hessian(c: Case, right: bool):
    r"""$H_1 = -c\,(0, B; B^\top, C) + J_1$ per unit of $\delta$, with $B$ and $C$ of the
    display."""
    return -c.c * joint(c, half=0.5 if right else 1.0) + mixed(c), c.H1


@stated("Lemma D.15 (eq 161)")
def perturbed_hessian(study) -> Measurement:
    r"""$-\nabla^2 L$ at the perturbed point is $J_0 + H_1$ up to $O(\delta^2)$."""

    def remainder(c: Case, **part: bool) -> list[float]:
        H1 = -c.c * joint(c, **part) + mixed(c)
        return [float(np.linalg.norm(c.jacobian(d) - c.J0 - d * H1)) for d in c.fine]

    def fitted(c: Case) -> Measurement:
        without = Control("without C", measured=remainder(c, C=False))
        return order("O", x=c.fine, y=remainder(c), power=2, tol=0.05, control=without)

    return at_each(study, fitted)


@stated("Lemma D.16")
@zero("range by kernel")
def kernel_block_vanishes(c: Case, right: bool):
    r"""$Q_K^\top H_1 Q_K = 0$, and so do its three parts: $B$, $C$ and $J_1$ on the kernel."""
    pieces = (c.H1, joint(c, C=False), joint(c, B=False), c.J1)
    return np.stack([(c.K if right else c.R).T @ m @ c.K for m in pieces])
