"""The proof of Theorem D.3, equations (103) to (109)."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Erratum, Measurement, against, corrected, equal
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    BESIDE,
    Case,
    exact,
    odd_modes,
    stacked,
    step,
    zero,
)
from attnflow.studies.focus_dilution.limit import rank_one_weights, split_weights


@step("Thm D.3")
@zero("y_2 without its sqrt(2)")
def second_order_cancels(c: Case, right: bool):
    r"""At $\theta = q_2 y_2$ the second-order terms of the kernel equation cancel."""
    q = c.R[:, 1] * (np.sqrt(2) if right else 1.0)  # over c delta
    return c.K.T @ (c.c * c.B @ q @ q / 2 + c.J1 @ q + c.f2 / (2 * c.c))


@step(
    "Thm D.3 (perturbed Hessian)",
    reading=r"the left side lacks its minus sign: $J_0 = -\nabla^2 L$, and (161) has it",
)
@against("as extracted", equal, rtol=1e-5, note="central differences, delta = p/10000")
def sign_of_the_perturbed_hessian(study, right: bool):
    r"""$-\nabla^2 L(\theta,\delta) = J_0 + \delta H_1 + O(\delta^2)$ at the perturbed point."""

    def hessian(c: Case) -> np.ndarray:
        """Its part that is even in delta, and its slope."""
        d, way = c.fine[0], 0.5 if right else -0.5
        up, down = way * c.jacobian(d), way * c.jacobian(-d)
        return np.stack([up + down, (up - down) / d])

    return stacked(study, lambda c: np.stack([c.J0, c.H1])), stacked(study, hessian)


@step("Thm D.3 (eq 103)")
@zero("the block E, of kernel and range")
def block_form(c: Case, right: bool):
    r"""In the basis $(Q_K, Q_R)$ $J_0$ has only its range block, and $H_1$ has no kernel block."""
    return c.K.T @ np.hstack([c.H1 @ (c.K if right else c.R), c.J0 @ c.K, c.J0 @ c.R])


@step("Thm D.3 (eq 105)")
@against("the diagonal of Lambda alone", equal, rtol=1e-5, note="central difference of the modes")
def slaved_range_part(study, right: bool):
    r"""A mode born from the kernel carries $y = -\delta\Lambda^{-1}E^\top x$ on the range."""

    def carried(c: Case, d: float) -> np.ndarray:
        values, vectors = np.linalg.eigh(c.jacobian(d))
        small = vectors[:, np.argsort(np.abs(values))[:3]]
        return c.R.T @ small @ np.linalg.inv(c.K.T @ small) / (2 * d)

    def rule(c: Case) -> np.ndarray:
        Lambda = c.R.T @ c.J0 @ c.R
        return -np.linalg.solve(Lambda if right else np.diag(np.diag(Lambda)), c.E.T)

    modes = stacked(study, lambda c: carried(c, c.fine[0]) + carried(c, -c.fine[0]))
    return stacked(study, rule), modes


@step("Thm D.3 (eq 106)")
def small_eigenvalue_equation(study) -> Measurement:
    r"""Small eigenvalues solve
    $(\delta G - \delta^2 E\Lambda^{-1}E^\top)x = \lambda x + O(\delta^3)$.

    The second order $H_2$ of the Jacobian along the path is of the same size and cancels the term
    that is printed; $\lambda = O(\delta^2)$ stays true."""

    def orders(case: Case, *, second: bool) -> np.ndarray:
        d, K = case.deltas[0], case.K
        m = -case.E @ np.linalg.solve(case.R.T @ case.J0 @ case.R, case.E.T)
        if second:
            around = case.jacobian(d) + case.jacobian(-d) - 2 * case.J0
            m = m + K.T @ around @ K / (2 * d**2)
        return np.linalg.eigvalsh((m + m.T) / 2)

    measured = stacked(study, lambda c: c.tangential[0] / c.deltas[0] ** 2)
    printed, right = (stacked(study, lambda c, s=s: orders(c, second=s)) for s in (False, True))
    size, note = 3e-3 * float(np.abs(printed).max()), "eigenvalues over delta^2 at delta = p/1000"
    return corrected(
        printed=equal(predicted=printed, measured=measured, atol=size),
        right=equal(predicted=right, measured=measured, atol=size, note=note),
        text=r"$(\delta G - \delta^2 E\Lambda^{-1}E^\top) x = \lambda x + O(\delta^3)$",
        correct=r"$(\delta G + \delta^2 (Q_K^\top H_2 Q_K - E\Lambda^{-1}E^\top)) x = \lambda x +"
        r" O(\delta^3)$ with $J = J_0 + \delta H_1 + \delta^2 H_2$",
        erratum=Erratum(
            "second-order-hessian",
            "(106) claims the order delta^2 of the small eigenvalues without the second order of "
            "the Hessian, which (103) leaves in its O(delta^2)",
            cause="false",
        ),
    )


@step(
    "Thm D.3 (eq 108)",
    reading=r"the lines of $W_Q$ and $W_K$ lack $\alpha_\perp^\top$ on the right: "
    r"a row stands for a matrix",
)
@exact("queries and keys exchanged")
def transverse_linearisation(c: Case, right: bool):
    r"""On the rank-one manifold the modes off it close among themselves, as in (108)."""
    theta, change = c.beside.theta, np.random.default_rng(3).standard_normal(20)
    W0, _, WQ, WK = split_weights(rank_one_weights(c.model, theta, 2), 3, 2)
    d0, d1, dQ, dK = split_weights(change, 3, 2)
    f = c.model.fields(theta)
    GP = f.GP if right else f.GP.T
    query, key = GP.T @ W0 @ WQ, GP @ W0 @ WK
    moved = -f.GM @ d1[1] - key @ dQ[1] - query @ dK[1]
    formula = np.concatenate([moved, *(-d0[:, 1] @ G for G in (f.GM, key, query))])
    return formula, (c.weight_jacobian(theta, 0.0) @ change)[odd_modes()]


@step("Thm D.3 (eq 109)")
@zero("beside")
def main_transverse_term(c: Case, right: bool):
    r"""At the perturbed point the transverse modes see only $\partial L/\partial M$: all of
    $W_Q$, $W_K$ drops out."""
    theta, delta = c.path[2].theta + (0.0 if right else BESIDE), c.deltas[2]
    GM, formula = c.model.fields(theta, delta).GM, np.zeros((10, 10))
    formula[:3, 3:6], formula[3:6, :3] = -GM, -GM.T
    return c.transverse(theta, delta) - formula
