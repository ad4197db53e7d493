"""The derivative toolbox of Appendix D.3: Lemmas D.4 to D.10 and D.14 to D.16."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    at_most,
    claim,
    corrected,
    equal,
    every,
    exponent,
    positive,
)
from attnflow.expand.jets import Jet
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    CONSISTENT,
    CORRECTED,
    EXPECTED,
    HERE,
    LOW,
    Case,
    S,
    at_each,
    same,
    stacked,
    vanishes,
    var,
)

# -- Lemmas D.4 to D.8 ---------------------------------------------------------------------------


@claim("Lemma D.4", expected=EXPECTED, **HERE)
def gradients_vanish(study) -> Measurement:
    """At the constructed point dL/dM = 0 and dL/dPhi = 0, and P_1, (P_2 + P_3)/2 are matched."""

    def gradients(case: Case, delta: float) -> np.ndarray:
        theta = case.theta + delta * np.array([0, 1, 2, 0, 0, 1])
        f = case.model.fields(theta)
        return np.concatenate([f.GM.ravel(), f.GP.ravel()])

    def rows(case: Case) -> np.ndarray:
        P = case.model.transition()
        return np.array([P[0], P[1:].mean(axis=0), P[1:].mean(axis=0)])

    return every(
        gradients=vanishes(study, lambda c: gradients(c, 0.0), lambda c: gradients(c, 0.05)),
        rows=same(study, rows, lambda c: c.P, lambda c: c.model.transition()),
    )


def _attention_change(case: Case) -> np.ndarray:
    """dA_i of Lemma D.5 (1), as [query, key, parameter]."""
    out = np.zeros((3, 3, 6))
    out[1:] = case.eta * case.gl / 4 * np.outer(S, np.append(S, np.zeros(3)))
    return out


@claim("Lemma D.5 (1)", expected=EXPECTED, **HERE)
def attention_variation(study) -> Measurement:
    """dA_1 = 0 and dA_i = eta g_low (0, (dg_2 - dg_3)/4, -(dg_2 - dg_3)/4) for i != 1."""
    return same(
        study,
        _attention_change,
        lambda c: c.jets.attention.derivative(1)[:, :, :6],
        lambda c: 2 * _attention_change(c),
    )


def _readout_change(case: Case) -> np.ndarray:
    """dM = d gamma beta^T + gamma d beta^T, as [token, next, parameter]."""
    out = np.zeros((3, 3, 6))
    for k in range(3):
        out[k, :, k] = case.beta
        out[:, k, 3 + k] = case.gamma
    return out


def prediction_change(case: Case) -> np.ndarray:
    """dP_i = A_i dM Var(P_i) of Lemma D.5 (2)."""
    spread = np.stack([var(p) for p in case.P])
    return np.einsum("ij,jka,ikl->ila", case.A, _readout_change(case), spread)


@claim("Lemma D.5 (2)", expected=EXPECTED, **HERE)
def prediction_variation(study) -> Measurement:
    """dP_i = A_i dM Var(P_i), and dP_2 = dP_3."""

    def measured(case: Case) -> np.ndarray:
        return case.jets.prediction.derivative(1)[:, :, :6]

    return every(
        formula=same(study, prediction_change, measured, lambda c: prediction_change(c)[:, ::-1]),
        equal=vanishes(
            study,
            lambda c: measured(c)[1] - measured(c)[2],
            lambda c: measured(c)[0] - measured(c)[2],
        ),
    )


@claim("Lemma D.5 (3)", expected=EXPECTED, **HERE)
def gradient_variations(study) -> Measurement:
    """d(dL/dM) = sum_i pi_i A_i^T dP_i and d(dL/dPhi) = 0."""

    def formula(case: Case, pi: np.ndarray) -> np.ndarray:
        return np.einsum("i,ij,ika->jka", pi, case.A, prediction_change(case))

    def beside(case: Case) -> np.ndarray:
        z = Jet.variables(case.theta + np.arange(6) / 10, 1)
        return case.model.fields(z).GP.derivative(1)

    return every(
        M=same(
            study,
            lambda c: formula(c, c.pi),
            lambda c: c.jets.GM.derivative(1)[:, :, :6],
            lambda c: formula(c, c.pi[::-1]),
        ),
        Phi=vanishes(
            study,
            lambda c: c.jets.GP.derivative(1)[:, :, :6],
            beside,
            note="the control is at a point beside",
        ),
    )


@claim("Lemma D.6 (eq 111)", expected=EXPECTED, **HERE)
def hessian_blocks(study) -> Measurement:
    """J0 has the block form (111) with c_1, c_2, v_1, v_2 and C."""

    def printed(case: Case, quarter: float) -> np.ndarray:
        p, b = case.p, case.beta
        v1, v2 = p * case.g1 * b @ case.V1, (1 - p) / 2 * case.gl * b @ case.Vl
        out = np.zeros((6, 6))
        out[0, 0] = p * b @ case.V1 @ b
        out[1:3, 1:3] = quarter * (1 - p) * b @ case.Vl @ b
        out[0, 3:] = out[3:, 0] = v1
        out[1:3, 3:], out[3:, 1:3] = v2, np.stack([v2, v2], axis=1)
        out[3:, 3:] = p * case.g1**2 * case.V1 + (1 - p) * case.gl**2 * case.Vl
        return -out

    return same(study, lambda c: printed(c, 0.25), lambda c: c.J0, lambda c: printed(c, 0.5))


@claim("Lemma D.6 (eq 116)", part="proof-step", expected=EXPECTED, **HERE)
def hessian_as_squares(study) -> Measurement:
    """The quadratic form of J0 is minus the two weighted squares of (116)."""
    changes = np.random.default_rng(5).standard_normal((8, 6))

    def squares(case: Case, h: np.ndarray, half: float) -> float:
        plus = half * (h[1] + h[2])
        u, w = h[0] * case.beta + case.g1 * h[3:], plus * case.beta + case.gl * h[3:]
        return float(-case.p * u @ case.V1 @ u - (1 - case.p) * w @ case.Vl @ w)

    return same(
        study,
        lambda c: [squares(c, h, 0.5) for h in changes],
        lambda c: [h @ c.J0 @ h for h in changes],
        lambda c: [squares(c, h, 1.0) for h in changes],
    )


@claim("Lemma D.6", expected=EXPECTED, **HERE)
def hessian_sign(study) -> Measurement:
    """J0 is negative semidefinite: the point is a degenerate minimum in (gamma, beta)."""

    def top(case: Case, shift: float) -> float:
        theta = case.theta + shift * np.array([0.0, 1.0, -1.0, 0.0, 0.0, 0.0])
        theta = theta + shift * np.array([0.3, 0, 0, 0, 0.5, -0.5])
        return float(np.linalg.eigvalsh(case.evaluate(theta, 0.0)[1][:, :6])[-1])

    return at_most(
        stacked(study, lambda c: top(c, 0.0)).max(),
        1e-13,
        control=stacked(study, lambda c: top(c, 0.3)).max(),
        note="largest eigenvalue; the control is at a point beside",
    )


@claim("Lemma D.7 (eq 119)", expected=EXPECTED, **HERE)
def readout_gradient_in_delta(study) -> Measurement:
    """d(dL/dM)/d delta = -lam e^ S - (1-lam) (pi1, (1-pi1)/2, (1-pi1)/2)^T S, S = (0, 1, -1)."""
    return every(
        M=same(
            study,
            lambda c: c.readout_slope,
            lambda c: c.jets.GM.derivative(1)[:, :, 6],
            lambda c: c.readout_slope.T,
        ),
        Phi=vanishes(
            study,
            lambda c: c.jets.GP.derivative(1)[:, :, 6],
            lambda c: c.jets.GM.derivative(1)[:, :, 6],
        ),
    )


@claim("Lemma D.7 (eq 117)", expected=EXPECTED, **HERE)
def first_order_forcing(study) -> Measurement:
    """f1 = (lam g_low + (1-lam)(pi1 g_1 + (1-pi1) g_low)) (0, 0, 0, 0, 1, -1)."""
    return every(
        f1=same(
            study,
            lambda c: np.append(np.zeros(3), c.drive * S),
            lambda c: c.f1,
            lambda c: np.append(np.zeros(3), c.l * c.gl * S),
        ),
        beta=vanishes(
            study,
            lambda c: c.jets.GM.derivative(1)[:, :, 6] @ c.beta,
            lambda c: c.gamma @ c.jets.GM.derivative(1)[:, :, 6],
        ),
    )


@claim("Lemma D.7 (eq 118)", expected=EXPECTED, **HERE)
def projected_forcing(study) -> Measurement:
    """Q_R^T f1 = (0, sqrt 2 (lam g_low + (1-lam)(pi1 g_1 + (1-pi1) g_low)), 0); Q_K^T f1 = 0."""
    return every(
        range=same(
            study,
            lambda c: [0, np.sqrt(2) * c.drive, 0],
            lambda c: c.R.T @ c.f1,
            lambda c: [0, c.drive, 0],
        ),
        kernel=vanishes(study, lambda c: c.K.T @ c.f1, lambda c: c.R.T @ c.f1),
    )


@claim("Lemma D.7 (attention)", part="proof-step", expected=EXPECTED, **HERE)
def attention_in_delta(study) -> Measurement:
    """dA_i/d delta = (0, 1, -1)/(1 - pi1) for i != 1, dA_1/d delta = 0, and dP_i/d delta = 0."""

    def formula(case: Case, power: int) -> np.ndarray:
        return np.outer([0, 1, 1], S) / (1 - case.p) ** power

    return every(
        attention=same(
            study,
            lambda c: formula(c, 1),
            lambda c: c.jets.attention.derivative(1)[:, :, 6],
            lambda c: formula(c, 2),
        ),
        prediction=vanishes(
            study,
            lambda c: c.jets.prediction.derivative(1)[:, :, 6],
            lambda c: c.jets.attention.derivative(1)[:, :, 6],
        ),
    )


@claim("Lemma D.8 (eq 120)", expected=EXPECTED, **HERE)
def range_block(study) -> Measurement:
    """Lambda_R = Q_R^T J0 Q_R is nonsingular with (2, 2) entry -c_1, alone in its row."""

    def middle(case: Case) -> np.ndarray:
        return case.R[:, 1] @ case.J0 @ case.R

    return every(
        row=same(study, lambda c: [0, -c.c1, 0], middle, lambda c: [0, c.c1, 0]),
        nonsingular=positive(
            stacked(study, lambda c: -np.linalg.eigvalsh(c.R.T @ c.J0 @ c.R)[-1]),
            margin=1e-9,
            control=stacked(study, lambda c: -np.linalg.eigvalsh(c.K.T @ c.J0 @ c.K)[-1]),
            note="the control is the kernel block",
        ),
    )


# -- Lemmas D.9 and D.10 -------------------------------------------------------------------------


def _mixed(case: Case, sign: float = 1.0) -> np.ndarray:
    """J1 of (121)-(123)."""
    b, V, out = case.beta, case.Vl, np.zeros((6, 6))
    out[1, 1], out[2, 2] = -b @ V @ b, b @ V @ b
    out[:3, 3:] = -case.gl * np.outer(S, b @ V) - sign * case.readout_slope
    out[3:, :3] = out[:3, 3:].T
    return out


@claim("Lemma D.9 (eqs 121-123)", expected=EXPECTED, **HERE)
def mixed_operator(study) -> Measurement:
    """J1 = d J0/d delta has the blocks (122) and the off-diagonal A of (123)."""
    return same(study, _mixed, lambda c: c.J1, lambda c: _mixed(c, -1.0))


def _gm_mixed(case: Case) -> np.ndarray:
    """d^2 GM/(d delta d theta) by autodiff, as [token, next, parameter]."""
    return case.jets.GM.derivative(2)[:, :, :6, 6]


def _gm_terms(case: Case) -> list[np.ndarray]:
    """The six terms of (124) from autodiff derivatives of attention and prediction."""
    A, P, pi = case.jets.attention, case.jets.prediction, case.pi
    dpi, rest = S, case.model.transition() - case.P
    dA, dP = A.derivative(1), P.derivative(1)
    rest_delta = (1 - case.l) * np.outer(np.ones(3), S) - dP[:, :, 6]
    return [
        -np.einsum("i,ija,ik->jka", dpi, dA[:, :, :6], rest),
        -np.einsum("i,ija,ik->jka", pi, A.derivative(2)[:, :, :6, 6], rest),
        -np.einsum("i,ija,ik->jka", pi, dA[:, :, :6], rest_delta),
        np.einsum("i,ij,ika->jka", dpi, case.A, dP[:, :, :6]),
        np.einsum("i,ij,ika->jka", pi, dA[:, :, 6], dP[:, :, :6]),
        np.einsum("i,ij,ika->jka", pi, case.A, P.derivative(2)[:, :, :6, 6]),
    ]


@claim("Lemma D.9 (eq 124)", part="proof-step", expected=EXPECTED, **HERE)
def six_terms(study) -> Measurement:
    """d^2 GM/(d delta d theta) is a sum of six terms; 1 and 3 vanish on beta and gamma, 4 is 0."""

    def paired(term: np.ndarray, case: Case) -> np.ndarray:
        rows = np.einsum("jka,k->ja", term, case.beta), np.einsum("jka,j->ka", term, case.gamma)
        return np.concatenate([r.ravel() for r in rows])

    def silent(case: Case) -> np.ndarray:
        terms = _gm_terms(case)
        return np.concatenate([paired(terms[0], case), paired(terms[2], case), terms[3].ravel()])

    return every(
        sum=same(study, lambda c: sum(_gm_terms(c)), _gm_mixed, lambda c: sum(_gm_terms(c)[1:])),
        silent=vanishes(study, silent, lambda c: paired(_gm_terms(c)[4], c)),
    )


@claim("Lemma D.9 (item 2)", part="proof-step", expected=CORRECTED, **HERE)
def attention_spread_in_delta(study) -> Measurement:
    """d Var(A_i)/d delta = (diag(S) - S e^ - e^ S)/(1 - pi1) = 0, S = (0, 1, -1): no term 2."""
    measured = stacked(study, lambda c: np.diag(c.jets.attention.derivative(1)[1, :, 6]))
    zero = np.abs(stacked(study, lambda c: _gm_terms(c)[1])).max()
    bracket = np.diag(S) - np.outer(S, LOW) - np.outer(LOW, S)
    return corrected(
        printed=equal(stacked(study, lambda c: (1 - c.p) * np.diag(S)), measured, rtol=1e-11),
        right=every(
            prefactor=equal(
                stacked(study, lambda c: np.diag(S) / (1 - c.p)),
                measured,
                rtol=1e-11,
                control=stacked(study, lambda c: (1 - c.p) * np.diag(S)),
            ),
            zero=at_most(
                max(zero, np.abs(bracket).max()),
                1e-13,
                control=np.abs(stacked(study, lambda c: _gm_terms(c)[4])).max(),
            ),
        ),
        correction=Correction(
            printed="d Var(A_i)/d delta = (1 - pi1) [diag(0, 1, -1) - ...] = 0",
            corrected="d Var(A_i)/d delta = [diag(0, 1, -1) - ...]/(1 - pi1) = 0; the bracket is "
            "zero, so nothing follows from it",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                p, h = 0.75, 1e-6
                low = lambda d: np.array([(1 - p) / 2 + d, (1 - p) / 2 - d]) / (1 - p)
                slope = (low(h) - low(-h)) / (2 * h)          # dA_i/d delta, equal scores
                print("measured", slope[0], "printed", 1 - p, "right", 1 / (1 - p))
                assert abs(slope[0] - 1 / (1 - p)) < 1e-8
            """,
        ),
    )


@claim("Lemma D.9 (item 3)", part="proof-step", expected=CORRECTED, **HERE)
def third_term_sign(study) -> Measurement:
    """Term 3 of (124) is -sum_i pi_i dA_i^T (0, 1-lam, -(1-lam))."""

    def formula(case: Case) -> np.ndarray:
        dA = _attention_change(case)
        return np.einsum("i,ija,k->jka", case.pi, dA, (1 - case.l) * S)

    measured = stacked(study, lambda c: _gm_terms(c)[2])
    return corrected(
        printed=equal(stacked(study, formula), measured, rtol=1e-11),
        right=equal(-stacked(study, formula), measured, rtol=1e-11),
        correction=Correction(
            printed="-sum pi_i dA_i^T d_delta(P_i - Phat_i) = sum pi_i dA_i^T (0, 1-lam, -(1-lam))",
            corrected="= -sum pi_i dA_i^T (0, 1-lam, -(1-lam)); it vanishes on beta and on gamma "
            "either way",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                p, lam, h = 0.75, 0.8, 1e-6
                law = lambda d: np.array([p, (1 - p) / 2 + d, (1 - p) / 2 - d])
                row = lambda d: lam * np.eye(3)[1] + (1 - lam) * law(d)
                slope = (row(h) - row(-h)) / (2 * h)      # d P_2/d delta; that of Phat_2 is 0
                print("d(P - Phat)/d delta =", slope, "so the term keeps its minus sign")
                assert np.allclose(slope, [0, 1 - lam, -(1 - lam)], atol=1e-8)
            """,
        ),
    )


@claim("Lemma D.9 (eq 125)", part="proof-step", expected=EXPECTED, **HERE)
def fifth_term(study) -> Measurement:
    """Term 5 of (124) is (0, 1, -1)^T A_low dM Var(P_low)."""

    def formula(case: Case, way: np.ndarray) -> np.ndarray:
        return np.einsum("j,ka->jka", way, prediction_change(case)[1])

    return same(
        study, lambda c: formula(c, S), lambda c: _gm_terms(c)[4], lambda c: formula(c, LOW)
    )


@claim("Lemma D.9 (eq 126)", part="proof-step", expected=EXPECTED, **HERE)
def sixth_term(study) -> Measurement:
    """Term 6 of (124) is A_low^T (0, 1, -1) d gamma beta^T Var(P_low)."""

    def formula(case: Case, way: np.ndarray) -> np.ndarray:
        return np.einsum("j,k,a->jka", way, case.beta @ case.Vl, np.append(S, np.zeros(3)))

    return same(
        study, lambda c: formula(c, LOW), lambda c: _gm_terms(c)[5], lambda c: formula(c, S)
    )


@claim("Lemma D.9 (eq 127)", part="proof-step", expected=EXPECTED, **HERE)
def collected_terms(study) -> Measurement:
    """Applied to beta the mixed derivative of GM is (127); d^2 GP/(d delta d theta) = 0."""

    def formula(case: Case) -> np.ndarray:
        b, V, out = case.beta, case.Vl, np.zeros((3, 6))
        out[1, 1], out[2, 2] = b @ V @ b, -b @ V @ b
        out[:, 3:] = case.gl * np.outer(S, b @ V)
        return out

    return every(
        M=same(
            study,
            formula,
            lambda c: np.einsum("jka,k->ja", _gm_mixed(c), c.beta),
            lambda c: -formula(c),
        ),
        Phi=vanishes(study, lambda c: c.jets.GP.derivative(2)[:, :, :6, 6], _gm_mixed),
    )


@claim("Lemma D.9 (eq 128)", part="proof-step", expected=EXPECTED, **HERE)
def readout_block(study) -> Measurement:
    """d(dL/dM)/d delta d beta = -A d beta with the block A of (123)."""

    def A(case: Case) -> np.ndarray:
        return np.outer([case.p * (1 - case.l), case.kappa / 2, case.kappa / 2], S)

    return same(study, lambda c: -A(c), lambda c: c.jets.GM.derivative(1)[:, :, 6], A)


@claim("Lemma D.10", expected=EXPECTED, **HERE)
def mixed_on_the_kernel(study) -> Measurement:
    """Q_K^T J1 q2 = -(sqrt 2/|theta|) (0, 0, pi1 g_1 (1-lam) + g_low (lam + (1-pi1)(1-lam)))."""

    def formula(case: Case, factor: float) -> list[float]:
        inner = case.p * case.g1 * (1 - case.l) + case.gl * case.kappa
        return [0.0, 0.0, -factor * inner / case.norm]

    return same(
        study,
        lambda c: formula(c, np.sqrt(2)),
        lambda c: c.K.T @ c.J1 @ c.R[:, 1],
        lambda c: formula(c, 1.0),
    )


# -- Lemmas D.14 to D.16 -------------------------------------------------------------------------


@claim("Lemma D.14", expected=EXPECTED, **HERE)
def second_delta_derivative(study) -> Measurement:
    """f2 = d^2(-grad L)/d delta^2 = 0, although d^2(dL/dM)/d delta^2 is not."""
    return vanishes(
        study,
        lambda c: c.f2,
        lambda c: c.jets.GM.derivative(2)[:, :, 6, 6],
        note="the control is d^2(dL/dM)/d delta^2 itself",
    )


def _perturbed(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """B of (171) and C of (172): what theta = q2 y2 adds to the Jacobian, over -c delta."""
    p, b = case.p, case.beta
    top, low = case.P1[1], case.Pl[1]
    B = np.zeros((3, 3))
    B[0] = (2 * p * case.g1 * top + p * case.g1**2 * top * (b[1] - case.P1 @ b)) * S
    inner = (1 - p) * case.gl * low + (1 - p) / 2 * case.gl**2 * low * (b[1] - case.Pl @ b)
    B[1] = B[2] = inner * S

    def pattern(P: np.ndarray) -> np.ndarray:
        out = np.diag((P[1] - 2 * P[1] ** 2) * S)
        out[0, :] = out[:, 0] = -P[0] * P[1] * S
        return out

    C = p * case.g1**3 * pattern(case.P1) + (1 - p) * case.gl**3 * pattern(case.Pl)
    return B, C


def _joint(B: np.ndarray, C: np.ndarray) -> np.ndarray:
    return np.block([[np.zeros((3, 3)), B], [B.T, C]])


@claim("Lemma D.15 (eq 162)", expected=EXPECTED, **HERE)
def first_order_hessian(study) -> Measurement:
    """H1 = -c ((0, B; B^T, 0) + (0, 0; 0, C)) + J1 per unit of delta, B and C of (171), (172)."""
    return same(
        study,
        lambda c: -c.c * _joint(*_perturbed(c)) + _mixed(c),
        lambda c: c.H1,
        lambda c: c.c * _joint(*_perturbed(c)) + _mixed(c),
    )


@claim("Lemma D.15 (eq 161)", strength="fit", expected=CONSISTENT, **HERE)
def perturbed_hessian(study) -> Measurement:
    """-Hess L at the perturbed point is J0 + H1 up to O(delta^2)."""

    def remainder(case: Case, slope: float) -> list[float]:
        H1 = slope * (-case.c * _joint(*_perturbed(case)) + _mixed(case))
        return [float(np.linalg.norm(case.jacobian(d) - case.J0 - d * H1)) for d in case.fine]

    return at_each(
        study,
        lambda c: exponent(c.fine, remainder(c, 1.0), 2.0, tol=0.05, control_y=remainder(c, 0.9)),
    )


@claim("Lemma D.16", expected=EXPECTED, **HERE)
def kernel_block_vanishes(study) -> Measurement:
    """Q_K^T H1 Q_K = 0, and so do its three parts: B, C and J1 on the kernel."""

    def parts(case: Case) -> np.ndarray:
        B, C = _perturbed(case)
        zero = np.zeros((3, 3))
        pieces = (case.H1, _joint(B, zero), _joint(zero, C), case.J1)
        return np.stack([case.K.T @ m @ case.K for m in pieces])

    return vanishes(study, parts, lambda c: c.R.T @ c.H1 @ c.K, note="the control is Q_R^T H1 Q_K")
