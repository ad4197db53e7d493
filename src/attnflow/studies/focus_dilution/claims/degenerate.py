"""Theorem 3.9 and Appendix D.2: the degenerate point, its reduction, and its two scales."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_most,
    compared,
    equal,
    every,
    order,
    sign,
)
from attnflow.expand.jets import Jet
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    BESIDE,
    LOW,
    Case,
    S,
    at_each,
    cases,
    exact,
    here,
    same,
    stacked,
    stated,
    step,
    vanishes,
    zero,
)
from attnflow.studies.focus_dilution.limit import rank_one_weights, split_weights, weight_velocity
from attnflow.tasks.markov import MarkovChain

# -- the limit, and the expansion ----------------------------------------------------------------


@step("App D.1 (attention)")
@exact("at a score of -20")
def attention_at_large_eta(c: Case, right: bool):
    r"""Where scores between token 1 and the others go to $-\infty$, as for large $\eta$ and
    $\gamma_1\gamma_{i\ne 1} < 0$, token 1 attends to itself alone and the others to each other:
    attention, prediction, loss and gradients are the limit model's."""
    rng, delta = np.random.default_rng(6), 0.3 * c.small
    M, Phi = rng.standard_normal((3, 3)), 0.3 * rng.standard_normal((3, 3))
    limit = c.model.of(M, Phi, delta)
    Phi[0, 1:] = Phi[1:, 0] = -800.0 if right else -20.0
    chain = MarkovChain((c.p, c.small + delta, c.small - delta), c.l)
    model = OneLayerAttention(np.eye(3), M, Phi, np.eye(3))  # type: ignore[arg-type]
    A, P = one_layer.attention(model, chain.pi), one_layer.prediction(model, chain.pi)
    loss = -np.sum(chain.pi[:, None] * chain.transition * np.log(P))
    full = (A, P, loss, *one_layer.token_gradients(M, Phi, chain))
    return np.concatenate([np.ravel(x) for x in limit]), np.concatenate([np.ravel(x) for x in full])


@step("App D.3 (vector field)")
@exact("queries and keys exchanged")
def vector_field(c: Case, right: bool):
    r"""$-\nabla L = (-G_M\beta - \eta(G_\Phi + G_\Phi^\top)\gamma, -G_M^\top\gamma)$ on the
    manifold, and the flow (31) of all weights is $-\nabla L$ too."""
    theta, delta = c.beside.theta, c.small / 5
    weights = rank_one_weights(c.model, theta, 2) + 0.1 * np.sin(np.arange(20))
    W0, W1, WQ, WK = split_weights(Jet.variables(weights, 1), 3, 2)
    queries, keys = times(W0, WQ), times(W0, WK)
    score = times(queries, keys.T) if right else times(keys, queries.T)
    losses = (
        c.model.loss(Jet.variables(theta, 1), delta),
        c.model.of(times(W0, W1), score, delta)[2],
    )
    on_manifold = weight_velocity(c.model, rank_one_weights(c.model, theta, 2), 2, delta)
    lifted = [x[..., 0] for x in split_weights(on_manifold, 3, 2)[:1]]
    velocity = c.model.velocity(theta, delta)
    moved = velocity, weight_velocity(c.model, weights, 2, delta), lifted[0]
    downhill = [-x.derivative(1) for x in losses]
    return np.concatenate(moved), np.concatenate([*downhill, velocity[:3]])


def times(a: Jet, b: Jet) -> Jet:
    return (a[:, :, None] * b[None, :, :]).sum(axis=1)


SIZES = np.geomspace(1e-4, 3e-3, 4)


def remainders(case: Case, *terms: str) -> list[float]:
    """|-grad L - its expansion| along one random direction of (theta, delta)."""
    u, out = np.random.default_rng(7).standard_normal(6), []
    for t in SIZES:
        h, d = t * u, t * case.small
        series = {
            "J0": case.J0 @ h,
            "f1": d * case.f1,
            "B": case.B @ h @ h / 2,
            "J1": d * case.J1 @ h,
            "f2": d**2 * case.f2 / 2,
        }
        exact = case.model.velocity(case.theta + h, d)
        out.append(float(np.linalg.norm(exact - sum(series[k] for k in terms))))
    return out


def expanded(*terms: str, without: str, power: int) -> Callable[[Any], Callable[..., Measurement]]:
    """What an expansion leaves is of this order, and is not without one of its terms."""

    def fitted(c: Case) -> Measurement:
        other = Control(f"without {without}", measured=remainders(c, *(set(terms) - {without})))
        return order("O", x=SIZES, y=remainders(c, *terms), power=power, control=other)

    return lambda function: wraps(function)(lambda study: at_each(study, fitted))


@step("eq 22")
@expanded("J0", "f1", without="f1", power=2)
def first_order_expansion(study) -> Any:
    r"""$-\nabla L(\theta,\delta) = J_0\theta + \delta f_1$ up to terms of second order."""


@step("eq 96")
@expanded("J0", "f1", "B", "J1", "f2", without="J1", power=3)
def second_order_expansion(study) -> Any:
    r"""With $\frac12 B(\theta,\theta) + \delta J_1\theta + \frac12\delta^2 f_2$ it is right to
    second order."""


@step("eq 23")
@against("without k_3", equal, rtol=1e-13, note="share of |grad L|^2 at a point beside")
def split_equations(study, right: bool):
    r"""Stationarity is the pair $Q_R^\top\nabla L = 0$, $Q_K^\top\nabla L = 0$: together they are
    all of it."""

    def share(case: Case) -> float:
        v = case.model.velocity(case.theta + np.linspace(-0.2, 0.3, 6), 0.1 * case.small)
        basis = np.hstack([case.R, case.K if right else case.K[:, :2]])
        return float(np.sum((basis.T @ v) ** 2) / (v @ v))

    return 1.0, stacked(study, share)


@step("eq 93")
def linearised_on_the_manifold(study) -> Measurement:
    r"""The linear flow is $-dG_M\beta$, $-dG_M^\top\gamma$, and $\eta$ stays:
    $d(\gamma^\top G_\Phi\gamma) = 0$."""

    def assembled(c: Case, right: bool):
        gamma, beta = (c.gamma, c.beta) if right else (c.beta, c.gamma)
        dGM = c.d("GM", 1)
        rows = np.einsum("ija,j->ia", dGM, beta), np.einsum("ija,i->ja", dGM, gamma)
        return -np.concatenate(rows), c.J0

    return every(
        J0=same(study, assembled, "gamma for beta"),
        eta=vanishes(study, lambda c, right: eta_rate(here(c, right), 1), "beside"),
    )


@step("App D (eta)")
@zero("the third order")
def eta_is_frozen(c: Case, right: bool):
    r"""$\eta$ need not be considered: the derivatives of its rate vanish up to second order."""
    return eta_rate(c, 0, 1, 2) if right else eta_rate(c, 3)


def eta_rate(c: Case, *orders: int) -> np.ndarray:
    """The derivatives of gamma^T GP gamma in (gamma, beta, delta)."""
    g = Jet.variables(np.append(c.theta, 0.0), 3)[:3]
    rate = ((c.jets.GP * g[None, :]).sum(axis=1) * g).sum(axis=0)
    return np.concatenate([np.ravel(rate.derivative(k)) for k in orders])


# -- Proposition D.1 -----------------------------------------------------------------------------


def leaf(c: Case) -> Case:
    """The same point on the leaf of small starts, |gamma|^2 = |beta|^2 + 2 eta."""
    return Case(c.p, c.l, c.eta, gap=2 * c.eta)


@stated("Prop D.1 (dimension)")
def kernel_dimension(study) -> Measurement:
    r"""$\dim\ker J_0 = 3$ at the symmetric degenerate point, where $|\gamma| = |\beta|$ and
    $\beta^\top\mathbf 1 = 0$."""

    def zeros(right: bool):
        rates = [np.abs(np.linalg.eigvalsh(here(c, right).J0)) for c in cases(study)]
        return 3, [int(np.sum(r < 1e-9 * r.max())) for r in rates]

    def hypotheses(c: Case, right: bool):
        g, b = np.split((c if right else leaf(c)).theta, 2)
        return g @ g - b @ b, b.sum()

    return every(
        dimension=compared(equal, "beside it", zeros, rtol=0),
        hypotheses=vanishes(study, hypotheses, "on the leaf of small starts"),
    )


@stated("Prop D.1 (eq 97)")
def kernel_basis(study) -> Measurement:
    """k1, k2, k3 are orthonormal and J0 annihilates them."""

    def tilt(c: Case, right: bool):
        K = c.K.copy()
        if not right:
            K[:, 2] = np.append(-c.gamma, c.beta) / np.linalg.norm(c.gamma)
        return K.T @ K - np.eye(3)

    return every(
        orthonormal=vanishes(study, tilt, "k_3 over |gamma|"),
        kernel=vanishes(
            study, lambda c, right: c.J0 @ (c.K if right else c.theta), "+gamma in k_3"
        ),
    )


@stated("Prop D.1 (eq 98)")
def range_basis(study) -> Measurement:
    r"""q1, q2, q3 are orthonormal and span the range of $J_0$, when $|\gamma| = |\beta|$."""

    def off(c: Case, right: bool):
        c = c if right else leaf(c)
        return c.R @ (c.R.T @ c.J0) - c.J0

    def tilt(c: Case, right: bool):
        c = c if right else leaf(c)
        Q = np.column_stack([c.K, c.R])
        return Q.T @ Q - np.eye(6)

    unequal = "where |gamma| is not |beta|"
    return every(orthonormal=vanishes(study, tilt, unequal), range=vanishes(study, off, unequal))


@stated("ours: the norms of gamma and beta along the flow", part="hypothesis")
@exact("|gamma|^2 + |beta|^2")
def norm_balance(c: Case, right: bool):
    r"""$|\gamma|^2 - |\beta|^2$ moves with $2\eta$, so it is $2\eta$ from a small start: the
    hypothesis $|\gamma| = |\beta|$ of Prop. D.1 is not met where $\eta$ is large (only $q_3$
    depends on it)."""
    theta = c.beside.theta
    g, v = theta[:3], c.model.velocity(theta) * theta
    twice_eta = -4 * c.eta * g @ c.model.fields(theta).GP @ g  # eta' = -2 eta gamma^T GP gamma
    return twice_eta, 2 * v[:3].sum() - (2 if right else -2) * v[3:].sum()


@stated("ours: range basis on the leaf of small starts")
@zero("q_3 as printed")
def range_basis_on_the_leaf(c: Case, right: bool):
    r"""For $|\gamma|^2 = |\beta|^2 + 2\eta$ only $q_3$ changes: it is
    $(\gamma/|\gamma|^2, \beta/|\beta|^2)$, normalised."""
    c = leaf(c)
    ours = np.append(c.gamma / (c.gamma @ c.gamma), c.beta / (c.beta @ c.beta))
    q3 = ours / np.linalg.norm(ours) if right else c.R[:, 2]
    R = np.column_stack([c.R[:, :2], q3])
    gap = c.gamma @ c.gamma - c.beta @ c.beta - 2 * c.eta
    return np.concatenate([np.ravel(R @ (R.T @ c.J0) - c.J0), np.ravel(R.T @ c.K), [gap]])


# -- Proposition D.2 -----------------------------------------------------------------------------


@stated("Prop D.2")
def range_equation_solvable(study) -> Measurement:
    r"""The range equation has a solution $y = \zeta(x,\delta)$ near $(0,0)$: $\Lambda_R$ is
    invertible."""

    def least(c: Case, right: bool) -> float:
        basis = c.R if right else np.column_stack([c.R[:, :2], c.K[:, 2]])
        return -np.linalg.eigvalsh(basis.T @ c.J0 @ basis)[-1]

    def residual(c: Case, right: bool) -> Any:
        if not right:
            return c.R.T @ c.model.velocity(c.theta, c.deltas[0])
        points = (0.0, c.deltas[-1]), (1e-3, c.deltas[0]), (0.02, 0.0)
        return [c.reduction.solve(x * np.array([0.3, 1.0, -0.5]), d).residual for x, d in points]

    return every(
        invertible=compared(
            sign,
            "k_3 for q_3",
            lambda r: stacked(study, lambda c: least(c, r)),
            predicted=+1,
            margin=1e-9,
            note="smallest rate on the range",
        ),
        solved=vanishes(study, residual, "before Newton", bound=1e-13),
    )


@stated("Prop D.2 (eq 100)", part="constant")
@exact("P_12 in both terms of c_1")
def first_order_solution(c: Case, right: bool):
    r"""$\partial\zeta/\partial\delta = (0, \sqrt2(\lambda\gamma_{low} + (1-\lambda)(\pi_1\gamma_1 +
    (1-\pi_1)\gamma_{low}))/c_1, 0)$."""
    other = c.P1[1] * (c.p * c.g1**2 + (1 - c.p) * c.gl**2)
    return [0, np.sqrt(2) * c.drive / (c.c1 if right else other), 0], c.reduction.first_order


@stated("Prop D.2 (remainder)")
def second_order_remainder(study) -> Measurement:
    r"""$\zeta(x,\delta)$ differs from its first-order term by $O(\delta^2 + |x|^2)$."""
    x = np.array([0.5, 0.2, -0.4])

    def fitted(c: Case) -> Measurement:
        y = [c.reduction.zeta(t * x, t * c.small) for t in SIZES]
        left = [
            a - t * c.small * np.sqrt(2) * c.c * np.eye(3)[1] for a, t in zip(y, SIZES, strict=True)
        ]
        itself = Control("zeta itself", measured=np.linalg.norm(y, axis=1))
        return order("O", x=SIZES, y=np.linalg.norm(left, axis=1), power=2, control=itself)

    return at_each(study, fitted)


# -- Theorems D.3 and 3.9 ------------------------------------------------------------------------


def speeds(case: Case, points: list[np.ndarray]) -> np.ndarray:
    """|grad L| at one point per delta."""
    pairs = zip(points, case.deltas, strict=True)
    return np.array([np.linalg.norm(case.model.velocity(t, d)) for t, d in pairs])


@stated("Thm 3.9 (eq 24)")
@against("at the explicit first-order point (100)", at_most, bound=1.0, note="over (delta/p)^3")
def gradient_at_the_perturbed_point(study, right: bool):
    r"""$|\nabla L(\theta(\delta),\delta)| = O(\delta^3)$: it stays below $(\delta/p)^3$, $p$ the
    mass of a lower token, at the range solution with $x = 0$."""

    def ratios(c: Case) -> np.ndarray:
        points = [s.theta for s in c.path] if right else c.explicit
        return speeds(c, points)

    return stacked(study, lambda c: ratios(c) / (c.deltas / c.small) ** 3)


@stated("ours: the perturbed point is exactly critical")
def exactly_critical(study) -> Measurement:
    r"""With the range equation solved, $\nabla L$ vanishes exactly: $Q_R$ keeps
    $\gamma_2 = \gamma_3$, where $G_\Phi = 0$ and $L$ keeps its scaling and shift, so the reduced
    kernel equation is 0 for every $\delta$."""

    def score(c: Case, right: bool):
        shift = 0.0 if right else BESIDE
        return [c.model.fields(s.theta + shift, s.p).GP for s in c.path]

    def gradient(c: Case, right: bool):
        return [s.speed for s in c.path] if right else speeds(c, c.explicit)

    return every(
        gradient=vanishes(study, gradient, "at the explicit first-order point (100)"),
        score=vanishes(study, score, "beside it", bound=1e-15),
    )


@stated("ours: the explicit first-order point", part="constant")
def explicit_point(study) -> Measurement:
    r"""At the explicit point $\delta\sqrt2 c q_2$ of (100) the gradient is of order $\delta^2$."""

    def fitted(c: Case) -> Measurement:
        c = Case(c.p, c.l, c.eta)
        c.deltas = 0.03 * c.deltas
        unmoved = Control("not moved", measured=speeds(c, [c.theta] * len(c.deltas)))
        y = speeds(c, c.explicit)
        return order("Theta", x=c.deltas, y=y, power=2, control=unmoved)

    return at_each(study, fitted)


@stated("Thm 3.9 (slow tangential)")
@against("the transverse rate", at_most, bound=1.0, note="over (delta/p)^2")
def tangential_rates(study, right: bool):
    r"""Positive eigenvalues born from the kernel stay below $(\delta/p)^2$."""

    def largest(c: Case) -> np.ndarray:
        return c.tangential.max(axis=1) if right else c.path_rates[:, 0]

    return stacked(study, lambda c: largest(c) / (c.deltas / c.small) ** 2)


@stated("ours: tangential eigenvalues are exactly zero")
@zero("at the explicit first-order point (100)")
def tangential_zero(c: Case, right: bool):
    r"""At fixed $\eta$ the three kernel directions stay neutral for every $\delta$, not only to
    second order: shift and scaling are symmetries, and along $(0, \pi_3, -\pi_2)$ the attended
    embeddings of the lower tokens change alike, to second order."""
    J = c.evaluate(c.explicit[-1], c.deltas[-1])[1][:, :6]
    return c.tangential if right else np.linalg.eigvalsh(J)[-1]


@stated("Thm 3.9 (fast normal)")
def transverse_order(study) -> Measurement:
    r"""Transverse to the rank-one manifold there is a positive eigenvalue of order $\delta$, of
    the flow of all weights (of width 2)."""
    return at_each(study, lambda c: of_first_order(c, c.path_rates[:, 0]))


def of_first_order(c: Case, y: np.ndarray) -> Measurement:
    other = Control("|grad L| at the point (100)", measured=speeds(c, c.explicit))
    return order("Theta", x=c.deltas, y=y, power=1, tol=0.02, control=other)


def gradient_slope(case: Case) -> np.ndarray:
    """d(dL/dM)/d delta along the perturbed point."""
    return case.d("GM", 0, 1) + case.d("GM", 1) @ case.moved


def left_163(case: Case) -> float:
    return case.c * (1 - case.p) * case.gl * case.Pl[1] - case.kappa


def top_row(case: Case) -> float:
    return case.p * (case.c * case.g1 * case.P1[1] - (1 - case.l))


@stated("ours: transverse rate in closed form", part="constant")
def transverse_coefficient(study) -> Measurement:
    r"""The rate is $\sigma_{max}(\partial L/\partial M) = \sqrt{2A^2 + B^2}\,\delta$ with
    $A = c\pi_1\gamma_1 P_{12} - \pi_1(1-\lambda)$ and $B$ the left side of (163);
    $\gamma_1 A + \gamma_{low} B = 0$."""

    def coefficient(c: Case, right: bool):
        A = (np.sqrt(2) if right else 1.0) * top_row(c)
        return np.hypot(A, left_163(c)), np.linalg.norm(gradient_slope(c), 2)

    def balance(c: Case, right: bool):
        B = 2 * gradient_slope(c)[1, 1]
        return c.g1 * top_row(c), -c.gl * (B if right else -c.kappa)

    def rate(c: Case, right: bool):
        points = [s.theta for s in c.path] if right else c.explicit
        forces = [c.force(t, d)[0] for t, d in zip(points, c.deltas, strict=True)]
        return forces, c.path_rates[:, 0]

    return every(
        coefficient=same(study, coefficient, "sqrt(A^2 + B^2)"),
        balance=same(study, balance, "kappa for -B"),
        rate=same(study, rate, "dL/dM at the explicit point (100)"),
    )


# -- Lemma D.17 ----------------------------------------------------------------------------------


@stated("Lemma D.17 (gradients)")
def sizes_of_the_gradients(study) -> Measurement:
    r"""At the perturbed point $\partial L/\partial\Phi = O(\delta^2)$ (it is exactly zero), while
    $\partial L/\partial M = \Theta(\delta)$."""

    def score(c: Case, right: bool) -> list[np.ndarray]:
        shift = 0.0 if right else BESIDE
        return [c.model.fields(s.theta + shift, s.p).GP * (c.small / s.p) ** 2 for s in c.path]

    def readout(c: Case) -> Measurement:
        return of_first_order(c, np.array([c.force(s.theta, s.p)[0] for s in c.path]))

    return every(GP=vanishes(study, score, "beside it", bound=1.0), GM=at_each(study, readout))


@step("Lemma D.17 (perturbed dL/dM)")
@exact("e_2 for the mean of e_2 and e_3")
def perturbed_readout_gradient(c: Case, right: bool):
    r"""$\partial L/\partial M = \delta\,(c\pi_1\gamma_1 e_1 (0, P_{12}, -P_{12}) +
    c(1-\pi_1)\gamma_{low}\hat e (0, P_{low,2}, -P_{low,2}))$ plus $\delta$ times (119), to first
    order."""
    e = np.eye(3)
    new = c.p * c.g1 * c.P1[1] * e[0] + (1 - c.p) * c.gl * c.Pl[1] * (LOW if right else e[1])
    return np.outer(c.c * new - c.l * LOW - (1 - c.l) * c.pi, S), gradient_slope(c)


@stated("Lemma D.17 (eigenvalue)")
@against("delta = 0", sign, predicted=+1, margin=1e-3)
def transverse_eigenvalue(study, right: bool):
    r"""The linearised full dynamics has a positive transverse eigenvalue for every $\delta$
    tried."""

    def rate(c: Case) -> np.ndarray:
        return c.path_rates[:, 0] / c.deltas if right else c.transverse_rates(c.theta, 0.0)[:1]

    return stacked(study, rate)


@stated("Lemma D.17 (eq 163)", part="hypothesis")
def condition_always_true(study) -> Measurement:
    r"""The left side of (163) is $\pi_1\gamma_1((1-\pi_1)(1-\lambda)\gamma_{low}P_{low,2} -
    \kappa\gamma_1 P_{12})/c_1 < 0$ with $\kappa = \lambda + (1-\pi_1)(1-\lambda)$: the condition
    holds wherever the point exists ($\gamma_1 > 0 > \gamma_{low}$), so no set is excluded."""

    def closed(c: Case, right: bool):
        low, P12 = (1 - c.p) * (1 - c.l) * c.gl * c.Pl[1], (c.P1 if right else c.Pl)[1]
        closed = c.p * c.g1 * (low - c.kappa * c.g1 * P12) / c.c1
        return closed, 2 * gradient_slope(c)[1, 1]

    grid = [
        Case(p, l, 3.0)
        for p in np.linspace(0.34, 0.99, 7)
        for l in np.linspace(0.02, 0.98, 7)
        if (1 - l) * p < 1 / 3 < l + (1 - l) * p  # there the point exists
    ]
    first = [c.c * (1 - c.p) * c.gl * c.Pl[1] for c in grid]
    return every(
        identity=same(study, closed, "P_low,2 for P_12"),
        sign=sign(
            predicted=-1,
            measured=[left_163(c) for c in grid],
            control=Control("its first term alone", first),
            note=f"{len(grid)} points of (0.34..0.99) x (0.02..0.98)",
        ),
    )
