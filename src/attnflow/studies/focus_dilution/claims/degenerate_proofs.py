"""The proof of Theorem D.3, equations (103) to (109)."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Correction, Measurement, claim, corrected, equal, fact
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    CORRECTED,
    EXPECTED,
    HERE,
    Case,
    cases,
    same,
    snippet,
    stacked,
    vanishes,
)
from attnflow.studies.focus_dilution.limit import rank_one_weights, split_weights


@claim("Thm D.3", part="proof-step", expected=EXPECTED, **HERE)
def second_order_cancels(study) -> Measurement:
    """At theta = q2 y2 the second-order terms of the kernel equation cancel."""

    def terms(case: Case, y: float) -> np.ndarray:
        q = case.R[:, 1] * y
        quadratic = 0.5 * np.einsum("kab,a,b", case.B, q, q)
        size = np.linalg.norm(case.K.T @ quadratic)
        return case.K.T @ (quadratic + case.J1 @ q + 0.5 * case.f2) / size

    y2 = np.sqrt(2)
    return vanishes(
        study,
        lambda c: terms(c, y2 * c.c),
        lambda c: terms(c, 1.1 * y2 * c.c),
        note="the control has y2 off by a tenth",
    )


@claim("Thm D.3 (perturbed Hessian)", part="proof-step", expected=CORRECTED, **HERE)
def sign_of_the_perturbed_hessian(study) -> Measurement:
    """-Hess L = J0 + delta H1 + O(delta^2) at the perturbed point."""

    def hessian(case: Case) -> np.ndarray:
        return -case.jacobian(case.deltas[0])

    def series(case: Case) -> np.ndarray:
        return case.J0 + case.deltas[0] * case.H1

    measured = stacked(study, hessian)
    return corrected(
        printed=equal(stacked(study, series), measured, rtol=1e-4),
        right=equal(
            -stacked(study, series),
            measured,
            rtol=1e-4,
            note="at delta = p/1000; the next term is of relative order 1e-6",
        ),
        correction=Correction(
            printed="Hess L(theta, delta) = J0 + delta H1 + O(delta^2)",
            corrected="-Hess L(theta, delta) = J0 + delta H1 + O(delta^2), as in (161): "
            "J0 = -Hess L",
            cause="extraction-or-typo",
            snippet=snippet("""
                loss = lambda z: -np.sum(pi[:, None] * T * np.log(model(z[:3], z[3:])[1]))
                z, h, e = np.append(g, b), 1e-4, np.eye(6)
                H = sum(u * v * (np.array([[loss(z + h * (u * x + v * y)) for x in e] for y in e]))
                        for u in (1, -1) for v in (1, -1)) / (4 * h * h)
                V1, Vl = (np.diag(r) - np.outer(r, r) for r in model(g, b)[1][:2])
                J0 = -(p * g[0] ** 2 * V1 + (1 - p) * g[1] ** 2 * Vl)      # beta block of (111)
                print(np.abs(H[3:, 3:] - J0).max(), np.abs(H[3:, 3:] + J0).max())
                assert np.abs(H[3:, 3:] + J0).max() < 1e-5 < np.abs(H[3:, 3:] - J0).max()
            """),
        ),
    )


@claim("Thm D.3 (eq 103)", part="proof-step", expected=EXPECTED, **HERE)
def block_form(study) -> Measurement:
    """In the basis (Q_K, Q_R) J0 has only its range block, and delta H1 has no kernel block."""

    def blocks(case: Case, delta: float) -> np.ndarray:
        Q = np.column_stack([case.K, case.R])
        J = Q.T @ (case.J0 + delta * case.H1) @ Q
        return np.concatenate([J[:3, :3].ravel(), (Q.T @ case.J0 @ Q)[:3].ravel()])

    return vanishes(
        study,
        lambda c: blocks(c, 1.0),
        lambda c: c.K.T @ c.H1 @ c.R,
        note="the control is the coupling E",
    )


@claim("Thm D.3 (eq 105)", part="proof-step", expected=EXPECTED, **HERE)
def slaved_range_part(study) -> Measurement:
    """A mode born from the kernel carries y = -delta Lambda^-1 E^T x on the range."""

    def modes(case: Case, sign: float) -> tuple[np.ndarray, np.ndarray]:
        d = case.fine[0]
        J = case.jacobian(d)
        values, vectors = np.linalg.eigh((J + J.T) / 2)
        small = vectors[:, np.argsort(np.abs(values))[:3]]
        x, y = case.K.T @ small, case.R.T @ small
        E = case.K.T @ case.H1 @ case.R
        rule = -sign * d * np.linalg.solve(case.R.T @ case.J0 @ case.R, E.T)
        return rule, y @ np.linalg.inv(x)

    return same(
        study,
        lambda c: modes(c, 1.0)[0] / c.fine[0],
        lambda c: modes(c, 1.0)[1] / c.fine[0],
        lambda c: modes(c, -1.0)[0] / c.fine[0],
        rtol=2e-2,
        note="at delta = p/10000, to O(delta)",
    )


@claim("Thm D.3 (eq 106)", part="proof-step", expected=CORRECTED, **HERE)
def small_eigenvalue_equation(study) -> Measurement:
    """Small eigenvalues are those of delta^2 (Q_K^T H2 Q_K - E Lambda^-1 E^T), H2 the second order
    of the Jacobian along the path: it is of the same order and cancels the second term.
    """

    def orders(case: Case) -> tuple[np.ndarray, np.ndarray]:
        d, K = case.deltas[0], case.K
        around = [case.jacobian(s * d) for s in (1, -1)]
        second = K.T @ (around[0] + around[1] - 2 * case.J0) @ K / (2 * d**2)
        E = K.T @ case.H1 @ case.R
        return second, -E @ np.linalg.solve(case.R.T @ case.J0 @ case.R, E.T)

    def rates(m: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh((m + m.T) / 2)

    measured = stacked(study, lambda c: c.tangential(c.deltas[0]) / c.deltas[0] ** 2)
    printed = stacked(study, lambda c: rates(orders(c)[1]))
    right = stacked(study, lambda c: rates(np.sum(orders(c), axis=0)))
    size = float(np.abs(printed).max())
    return corrected(
        printed=equal(printed, measured, atol=5e-3 * size),
        right=equal(
            right,
            measured,
            atol=5e-3 * size,
            control=printed,
            note="eigenvalues over delta^2 at delta = p/1000",
        ),
        correction=Correction(
            printed="(delta G - delta^2 E Lambda^-1 E^T) x = lambda x + O(delta^3)",
            corrected="(delta G + delta^2 (Q_K^T H2 Q_K - E Lambda^-1 E^T)) x = lambda x + "
            "O(delta^3), J = J0 + delta H1 + delta^2 H2; lambda = O(delta^2) stays true",
            cause="false",
            snippet="""
                import numpy as np
                L, E, G2 = -2.0, 0.7, -0.3          # J = [[G2 d^2, E d], [E d, L]]: G = 0
                for d in (1e-2, 1e-3):
                    J = np.array([[G2 * d**2, E * d], [E * d, L]])
                    small = np.linalg.eigvalsh(J)[-1] / d**2
                    print("measured", small, "printed", -E * E / L, "right", G2 - E * E / L)
                    assert abs(small - (G2 - E * E / L)) < 1e-3 < abs(small + E * E / L)
            """,
        ),
    )


@claim("Thm D.3 (eq 108)", part="proof-step", expected=CORRECTED, **HERE)
def transverse_linearisation(study) -> Measurement:
    """On the rank-one manifold the modes off it close among themselves, as in (108)."""
    rng = np.random.default_rng(3)
    change = rng.standard_normal(20)
    predicted, measured, shapes = [], [], []
    for case in cases(study):
        theta = case.theta + 0.2 * rng.standard_normal(6)
        W0, _, WQ, WK = split_weights(rank_one_weights(case.model, theta, 2), 3, 2)
        f = case.model.fields(theta)
        d0, d1, dQ, dK = split_weights(change, 3, 2)
        moved = split_weights(case.weight_jacobian(theta, 0.0) @ change, 3, 2)
        query, key = f.GP.T @ W0 @ WQ, f.GP @ W0 @ WK
        predicted += [
            -f.GM @ d1[1] - key @ dQ[1] - query @ dK[1],
            -d0[:, 1] @ f.GM,
            -d0[:, 1] @ key,
            -d0[:, 1] @ query,
        ]
        measured += [moved[0][:, 1], moved[1][1], moved[2][1], moved[3][1]]
        shapes.append((-d0.T @ key).shape == moved[2][1].shape)
    right = np.concatenate(predicted)
    return corrected(
        printed=fact(all(shapes), sentence="left a row of length m, right an m x m matrix"),
        right=equal(
            right,
            np.concatenate(measured),
            rtol=1e-11,
            control=1.001 * right,
            note="random points of the manifold, where GP is not zero",
        ),
        correction=Correction(
            printed="d(alpha_perp^T dWQ)/dt = -dW0^T GP W0 WK, and likewise for WK",
            corrected="d(alpha_perp^T dWQ)/dt = -alpha_perp^T dW0^T GP W0 WK, likewise for WK",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                d0, GP, W0, WK = (rng.normal(size=s) for s in ((3, 2), (3, 3), (3, 2), (2, 2)))
                row = np.array([0.0, 1.0])                   # alpha_perp^T
                print("left", (row @ rng.normal(size=(2, 2))).shape)
                print("printed", (d0.T @ GP @ W0 @ WK).shape)
                print("right", (row @ d0.T @ GP @ W0 @ WK).shape)
            """,
        ),
    )


@claim("Thm D.3 (eq 109)", part="proof-step", expected=EXPECTED, **HERE)
def main_transverse_term(study) -> Measurement:
    """At the perturbed point the transverse modes see only dL/dM: all of WQ, WK drops out."""

    def block(case: Case, theta: np.ndarray, delta: float) -> np.ndarray:
        GM = case.model.fields(theta, delta).GM
        predicted = np.zeros((10, 10))
        predicted[:3, 3:6], predicted[3:6, :3] = -GM, -GM.T
        return case.transverse(theta, delta) - predicted

    return vanishes(
        study,
        lambda c: block(c, c.path[2].theta, c.deltas[2]),
        lambda c: block(c, c.theta + np.arange(6) / 10, c.deltas[2]),
        note="the control is at a point where GP is not zero",
    )
