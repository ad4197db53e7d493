"""Theorem 3.9 and Appendix D.2: the degenerate point, its reduction, and its two scales."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnflow.claims import Measurement, at_most, claim, equal, every, exponent, negative, positive
from attnflow.expand.jets import Jet
from attnflow.studies.focus_dilution.claims.degenerate_cases import (
    CONSISTENT,
    EXPECTED,
    HERE,
    LOW,
    Case,
    S,
    at_each,
    cases,
    same,
    stacked,
    together,
    vanishes,
)
from attnflow.studies.focus_dilution.limit import LimitModel

# -- the expansion ------------------------------------------------------------------------------


def _remainders(case: Case, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """|-grad L - its expansion| along one random direction of (theta, delta)."""
    rng = np.random.default_rng(7)
    u, way = rng.standard_normal(6), case.small
    sizes, out = np.geomspace(1e-4, 3e-3, 6), []
    for t in sizes:
        h, d = t * u, t * way
        exact = case.model.velocity(case.theta + h, d)
        series = case.J0 @ h + d * case.f1
        if terms == 2:
            series = series + 0.5 * np.einsum("kab,a,b", case.B, h, h)
            series = series + d * case.J1 @ h + 0.5 * d**2 * case.f2
        out.append(np.linalg.norm(exact - series))
    return sizes, np.array(out)


@claim("eq 22", part="proof-step", strength="fit", expected=CONSISTENT, **HERE)
def first_order_expansion(study) -> Measurement:
    """-grad L(theta, delta) = J0 theta + delta f1 + terms of second order."""
    return at_each(study, lambda c: exponent(*_remainders(c, 1), 2.0, tol=0.1, control=3.0))


@claim("eq 96", part="proof-step", strength="fit", expected=CONSISTENT, **HERE)
def second_order_expansion(study) -> Measurement:
    """With B/2, delta J1 and delta^2 f2/2 the expansion of -grad L is right to second order."""
    return at_each(
        study,
        lambda c: exponent(
            *_remainders(c, 2),
            3.0,
            tol=0.1,
            control_y=_remainders(c, 1)[1],
            note="the control leaves the second-order terms out",
        ),
    )


@claim("eq 23", part="proof-step", expected=EXPECTED, **HERE)
def split_equations(study) -> Measurement:
    """Stationarity is the pair Q_R^T grad L = 0, Q_K^T grad L = 0: together they are all of it."""

    def parts(case: Case, kernel: int) -> float:
        v = case.model.velocity(case.theta + np.linspace(-0.2, 0.3, 6), 0.1 * case.small)
        size = np.sum((case.R.T @ v) ** 2) + np.sum((case.K[:, :kernel].T @ v) ** 2)
        return float(size / (v @ v))

    return equal(
        1.0,
        stacked(study, lambda c: parts(c, 3)),
        rtol=1e-12,
        control_measured=stacked(study, lambda c: parts(c, 2)),
        note="share of |grad L|^2 at a random point; the control drops k3",
    )


@claim("eq 93", part="proof-step", expected=EXPECTED, **HERE)
def linearised_on_the_manifold(study) -> Measurement:
    """The linear flow is -dGM beta, -dGM^T gamma, and eta stays: d(gamma^T GP gamma) = 0."""

    def assembled(case: Case) -> np.ndarray:
        dGM = case.jets.GM.derivative(1)[:, :, :6]
        rows = np.einsum("ija,j->ia", dGM, case.beta), np.einsum("ija,i->ja", dGM, case.gamma)
        return -np.concatenate(rows)

    def eta_rate(case: Case, delta: float = 0.0) -> np.ndarray:
        z = Jet.variables(case.theta + delta * np.arange(6), 1)
        GP = case.model.fields(z, 0.0).GP
        return ((GP * z[None, :3]).sum(axis=1) * z[:3]).sum(axis=0).derivative(1)

    return every(
        J0=same(study, assembled, lambda c: c.J0, lambda c: 1.001 * assembled(c)),
        eta=vanishes(
            study, eta_rate, lambda c: eta_rate(c, 0.1), note="the control is at another point"
        ),
    )


@claim("App D (eta)", part="proof-step", expected=EXPECTED, **HERE)
def eta_is_frozen(study) -> Measurement:
    """eta need not be considered: the derivatives of its rate vanish up to second order."""

    def rate(case: Case) -> Jet:
        z = Jet.variables(np.append(case.theta, 0.0), 3)
        g = z[:3]
        return ((case.jets.GP * g[None, :]).sum(axis=1) * g).sum(axis=0)

    def low_orders(case: Case) -> np.ndarray:
        r = rate(case)
        return np.concatenate([r.value.ravel(), *(r.derivative(k).ravel() for k in (1, 2))])

    return vanishes(
        study,
        low_orders,
        lambda c: rate(c).derivative(3),
        note="of gamma^T GP gamma; the control is the third order",
    )


# -- Proposition D.1 -----------------------------------------------------------------------------


@claim("Prop D.1 (dimension)", expected=EXPECTED, **HERE)
def kernel_dimension(study) -> Measurement:
    """The kernel of J0 at the symmetric degenerate point has dimension 3."""

    def zeros(J: np.ndarray) -> int:
        rates = np.abs(np.linalg.eigvalsh(J))
        return int(np.sum(rates < 1e-9 * rates.max()))

    elsewhere = [
        zeros(c.evaluate(c.theta + np.array([0, 0.1, -0.05, 0, 0.1, 0]), 0.0)[1][:, :6])
        for c in cases(study)
    ]
    return equal(
        3,
        [zeros(c.J0) for c in cases(study)],
        rtol=0,
        control_measured=elsewhere,
        note="the control is beside it",
    )


@claim("Prop D.1 (eq 97)", expected=EXPECTED, **HERE)
def kernel_basis(study) -> Measurement:
    """k1, k2, k3 are orthonormal and J0 annihilates them."""

    def wrong(case: Case) -> np.ndarray:
        return case.J0 @ np.append(case.gamma, case.beta) / case.norm

    return every(
        orthonormal=vanishes(
            study, lambda c: c.K.T @ c.K - np.eye(3), lambda c: c.K.T @ (1.001 * c.K) - np.eye(3)
        ),
        kernel=vanishes(study, lambda c: c.J0 @ c.K, wrong, note="the control has +gamma in k3"),
    )


@claim("Prop D.1 (eq 98)", expected=EXPECTED, **HERE)
def range_basis(study) -> Measurement:
    """q1, q2, q3 are orthonormal and span the range of J0, when |gamma| = |beta|."""
    leaf = [Case(c.p, c.l, c.eta, gap=2 * c.eta) for c in cases(study)]
    off = np.concatenate([np.ravel(c.R @ (c.R.T @ c.J0) - c.J0) for c in leaf])
    return every(
        orthonormal=vanishes(
            study, lambda c: c.R.T @ c.R - np.eye(3), lambda c: c.R.T @ (1.001 * c.R) - np.eye(3)
        ),
        range=at_most(
            np.abs(stacked(study, lambda c: c.R @ (c.R.T @ c.J0) - c.J0)).max(),
            1e-12,
            control=np.abs(off).max(),
            note="the control has |gamma| != |beta|",
        ),
    )


@claim(
    "ours: the norms of gamma and beta along the flow", part="hypothesis", expected=EXPECTED, **HERE
)
def norm_balance(study) -> Measurement:
    """|gamma|^2 - |beta|^2 moves with 2 eta, so it is 2 eta from a small start: the hypothesis
    |gamma| = |beta| of Prop. D.1 is not met where eta is large (only q3 depends on it).
    """

    def rates(case: Case) -> tuple[float, float]:
        theta = case.theta + np.array([0.1, 0.2, -0.1, 0.0, 0.3, 0.1])
        v, g = case.model.velocity(theta), theta[:3]
        eta = -2 * case.eta * g @ case.model.fields(theta).GP @ g
        return float(2 * g @ v[:3] - 2 * theta[3:] @ v[3:]), float(2 * eta)

    return equal(
        stacked(study, lambda c: rates(c)[1]),
        stacked(study, lambda c: rates(c)[0]),
        rtol=1e-11,
        atol=1e-14,
        control=0.0,
        note="rate of |gamma|^2 - |beta|^2 beside the point; lQ = lK",
    )


@claim("ours: range basis on the leaf of small starts", expected=EXPECTED, **HERE)
def range_basis_on_the_leaf(study) -> Measurement:
    """For |gamma|^2 = |beta|^2 + 2 eta only q3 changes: (gamma/|gamma|^2, beta/|beta|^2)."""
    worst, printed = 0.0, 0.0
    for c in (Case(c.p, c.l, c.eta, gap=2 * c.eta) for c in cases(study)):
        q3 = np.concatenate([c.gamma / (c.gamma @ c.gamma), c.beta / (c.beta @ c.beta)])
        R = np.column_stack([c.R[:, :2], q3 / np.linalg.norm(q3)])
        worst = max(worst, np.abs(R @ (R.T @ c.J0) - c.J0).max(), np.abs(R.T @ c.K).max())
        printed = max(printed, np.abs(c.R @ (c.R.T @ c.J0) - c.J0).max())
    return at_most(worst, 1e-12, control=printed, note="the control is the printed q3")


# -- Proposition D.2 -----------------------------------------------------------------------------


@claim("Prop D.2", expected=EXPECTED, **HERE)
def range_equation_solvable(study) -> Measurement:
    """The range equation has a solution y = zeta(x, delta) near (0, 0): Lambda_R is invertible."""

    def least(basis: Callable[[Case], np.ndarray]) -> np.ndarray:
        return stacked(study, lambda c: -np.linalg.eigvalsh(basis(c).T @ c.J0 @ basis(c))[-1])

    def mixed(case: Case) -> np.ndarray:
        return np.column_stack([case.R[:, :2], case.K[:, 2]])

    solved = [
        c.reduction.solve(x * np.array([0.3, 1.0, -0.5]), d)
        for c in cases(study)
        for x, d in ((0.0, c.deltas[-1]), (1e-3, c.deltas[0]), (0.02, 0.0))
    ]
    first = [np.linalg.norm(c.R.T @ c.model.velocity(c.theta, c.deltas[0])) for c in cases(study)]
    return every(
        invertible=positive(
            least(lambda c: c.R),
            margin=1e-9,
            control=least(mixed),
            note="smallest rate on the range; the control takes k3 for q3",
        ),
        solved=at_most(
            max(s.residual for s in solved),
            1e-13,
            control=max(first),
            note="|Q_R^T grad L| after Newton; the control is before",
        ),
    )


@claim("Prop D.2 (eq 100)", part="constant", expected=EXPECTED, **HERE)
def first_order_solution(study) -> Measurement:
    """d zeta/d delta = (0, sqrt 2 (lam g_low + (1-lam)(pi1 g_1 + (1-pi1) g_low))/c_1, 0)."""
    return every(
        coefficient=same(
            study,
            lambda c: [0, np.sqrt(2) * c.c, 0],
            lambda c: c.reduction.first_order,
            lambda c: [0, c.c, 0],
        ),
        denominator=positive(stacked(study, lambda c: c.c1), control=-1.0, note="c_1 > 0"),
    )


@claim("Prop D.2 (remainder)", strength="fit", expected=CONSISTENT, **HERE)
def second_order_remainder(study) -> Measurement:
    """zeta(x, delta) differs from its first-order term by O(delta^2 + |x|^2)."""
    x = np.array([0.5, 0.2, -0.4])

    def remainder(case: Case) -> Measurement:
        ls, sizes = case.reduction, np.geomspace(1e-4, 3e-3, 5)
        y = [ls.zeta(t * x, t * case.small) for t in sizes]
        off = [
            np.linalg.norm(v - t * case.small * ls.first_order)
            for v, t in zip(y, sizes, strict=True)
        ]
        return exponent(
            sizes,
            off,
            2.0,
            tol=0.1,
            control_y=[np.linalg.norm(v) for v in y],
            note="the control keeps the first-order term",
        )

    return at_each(study, remainder)


# -- Theorems D.3 and 3.9 ------------------------------------------------------------------------


@claim("Thm 3.9 (eq 24)", expected=EXPECTED, **HERE)
def gradient_at_the_perturbed_point(study) -> Measurement:
    """|grad L(theta(delta), delta)| = O(delta^3): it stays below (delta/p)^3, p the lower mass."""
    ratios = stacked(
        study,
        lambda c: [s.speed / (d / c.small) ** 3 for s, d in zip(c.path, c.deltas, strict=True)],
    )
    explicit = stacked(study, lambda c: _explicit_speeds(c) / (c.deltas / c.small) ** 3)
    return at_most(
        ratios,
        1.0,
        control=explicit.max(),
        note="|grad L|/(delta/p)^3 at the range solution, x = 0; the control is the "
        "explicit first-order point (100)",
    )


@claim("ours: the perturbed point is exactly critical", expected=EXPECTED, **HERE)
def exactly_critical(study) -> Measurement:
    """With the range equation solved, grad L vanishes exactly: Q_R keeps gamma_2 = gamma_3, where
    GP = 0 and L keeps its scaling and shift, so the reduced kernel equation is 0 for every delta.
    """
    return every(
        gradient=at_most(
            max(s.speed for c in cases(study) for s in c.path),
            1e-13,
            control=max(_explicit_speeds(c).max() for c in cases(study)),
        ),
        score=vanishes(
            study,
            lambda c: [c.model.fields(s.theta, s.p).GP for s in c.path],
            lambda c: c.model.fields(c.theta + np.arange(6) / 10, c.small / 5).GP,
            1e-15,
            note="dL/dPhi there; the control is at a point beside it",
        ),
    )


@claim(
    "ours: the explicit first-order point",
    part="constant",
    strength="fit",
    expected=CONSISTENT,
    **HERE,
)
def explicit_point(study) -> Measurement:
    """At the explicit point delta sqrt 2 c q2 of (100) the gradient is of order delta^2."""
    return at_each(
        study,
        lambda c: exponent(0.03 * c.deltas, _explicit_speeds(c, 0.03), 2.0, tol=0.02, control=3.0),
    )


def _explicit_speeds(case: Case, scale: float = 1.0) -> np.ndarray:
    q = np.sqrt(2) * case.c * case.R[:, 1]
    return np.array(
        [np.linalg.norm(case.model.velocity(case.theta + d * q, d)) for d in scale * case.deltas]
    )


@claim("Thm 3.9 (slow tangential)", expected=EXPECTED, **HERE)
def tangential_rates(study) -> Measurement:
    """Positive eigenvalues born from the kernel stay below (delta/p)^2."""
    found = stacked(study, lambda c: _tangential(c).max(axis=1) / (c.deltas / c.small) ** 2)
    fast = stacked(study, lambda c: [c.force(s.theta, s.p) / (s.p / c.small) ** 2 for s in c.path])
    return at_most(
        found,
        1.0,
        control=fast.max(),
        note="largest tangential rate over (delta/p)^2; the control is the transverse one",
    )


@claim("ours: tangential eigenvalues are exactly zero", expected=EXPECTED, **HERE)
def tangential_zero(study) -> Measurement:
    """At fixed eta the three kernel directions stay neutral for every delta, not only to second
    order: shift and scaling are symmetries, and along (0, pi_3, -pi_2) the attended embeddings of
    the lower tokens change alike, to second order.
    """
    moved = stacked(
        study, lambda c: np.linalg.eigvalsh(c.evaluate(_explicit(c, 4), c.deltas[4])[1][:, :6])[-1]
    )
    return at_most(
        np.abs(stacked(study, _tangential)).max(),
        1e-13,
        control=moved.max(),
        note="the control is the explicit point (100), not critical",
    )


def _tangential(case: Case) -> np.ndarray:
    return np.array([case.tangential(d) for d in case.deltas])


def _explicit(case: Case, k: int) -> np.ndarray:
    return case.theta + case.deltas[k] * np.sqrt(2) * case.c * case.R[:, 1]


@claim("Thm 3.9 (fast normal)", strength="fit", expected=CONSISTENT, **HERE)
def transverse_order(study) -> Measurement:
    """Transverse to the rank-one manifold there is a positive eigenvalue of order delta."""
    return at_each(
        study,
        lambda c: exponent(
            c.deltas,
            c.path_rates,
            1.0,
            tol=0.02,
            control=2.0,
            note="top rate of the flow of all weights off the manifold, width 2",
        ),
    )


@claim("ours: transverse rate in closed form", part="constant", expected=EXPECTED, **HERE)
def transverse_coefficient(study) -> Measurement:
    """The rate is sigma_max(dL/dM) = sqrt(2 A^2 + B^2) delta, A = c pi1 g_1 P_12 - pi1 (1 - lam),
    B the left side of (163), with g_1 A + g_low B = 0.
    """

    def closed(case: Case) -> float:
        A, B = _A(case), _B(case)
        return float(np.sqrt(2 * A**2 + B**2))

    def measured(case: Case) -> float:
        dGM = case.jets.GM.derivative(1)
        return float(np.linalg.norm(dGM[:, :, 6] + case.c * (dGM[:, :, 4] - dGM[:, :, 5]), 2))

    def full(case: Case) -> list[float]:
        return [
            r / case.force(s.theta, s.p) for r, s in zip(case.path_rates, case.path, strict=True)
        ]

    return every(
        coefficient=same(study, closed, measured, lambda c: 1.001 * closed(c)),
        balance=vanishes(study, lambda c: c.g1 * _A(c) + c.gl * _B(c), _A),
        rate=equal(
            1.0,
            stacked(study, full),
            rtol=1e-10,
            control_measured=1.001 * stacked(study, full),
            note="top transverse rate over sigma_max(dL/dM)",
        ),
    )


def _A(case: Case) -> float:
    return case.p * (case.c * case.g1 * case.P1[1] - (1 - case.l))


def _B(case: Case) -> float:
    """The left side of (163)."""
    return case.c * (1 - case.p) * case.gl * case.Pl[1] - case.kappa


# -- Lemma D.17 ----------------------------------------------------------------------------------


@claim("Lemma D.17 (gradients)", strength="fit", expected=CONSISTENT, **HERE)
def sizes_of_the_gradients(study) -> Measurement:
    """At the perturbed point dL/dPhi = O(delta^2), while dL/dM = Theta(delta)."""
    fields = {c.name: [c.model.fields(s.theta, s.p) for s in c.path] for c in cases(study)}

    def scores(case: Case) -> Measurement:
        worst = max(
            float(np.abs(f.GP).max()) / (d / case.small) ** 2
            for f, d in zip(fields[case.name], case.deltas, strict=True)
        )
        beside = case.model.fields(case.theta + np.arange(6) / 10, case.deltas[0]).GP
        return at_most(
            worst,
            1.0,
            control=np.abs(beside).max() * 1e6,
            note="|GP|/(delta/p)^2 (it is exactly zero); the control is at a fixed "
            "point beside, delta = p/1000",
        )

    def readouts(case: Case) -> Measurement:
        return exponent(
            case.deltas,
            [np.linalg.norm(f.GM, 2) for f in fields[case.name]],
            1.0,
            tol=0.02,
            control=2.0,
        )

    return together(GP=at_each(study, scores), GM=at_each(study, readouts))


@claim("Lemma D.17 (perturbed dL/dM)", part="proof-step", expected=EXPECTED, **HERE)
def perturbed_readout_gradient(study) -> Measurement:
    """dL/dM = delta (c pi1 g_1 e_1 (0, P_12, -P_12) + c (1-pi1) g_low e^ (0, P_low2, -P_low2))
    plus delta times (119), to first order.
    """

    def printed(case: Case, c: float) -> np.ndarray:
        e1 = np.eye(3)[0]
        new = c * case.p * case.g1 * case.P1[1] * np.outer(e1, S)
        new += c * (1 - case.p) * case.gl * case.Pl[1] * np.outer(LOW, S)
        return new + case.readout_slope

    def measured(case: Case) -> np.ndarray:
        up, down = (case.solved(float(s * case.fine[0])) for s in (1, -1))
        fields = [case.model.fields(s.theta, s.p).GM for s in (up, down)]
        return (fields[0] - fields[1]) / (2 * case.fine[0])

    return same(
        study,
        lambda c: printed(c, c.c),
        measured,
        lambda c: printed(c, 1.01 * c.c),
        rtol=1e-4,
        note="central difference along the path, delta = p/10000",
    )


@claim("Lemma D.17 (eigenvalue)", expected=EXPECTED, **HERE)
def transverse_eigenvalue(study) -> Measurement:
    """The linearised full dynamics has a positive transverse eigenvalue for every delta tried."""
    found = stacked(study, lambda c: c.path_rates / c.deltas)
    at_zero = stacked(study, lambda c: c.transverse_rate(c.theta, 0.0))
    return positive(
        found,
        margin=1e-6,
        control=at_zero,
        note="top transverse rate over delta; the control is delta = 0",
    )


@claim("Lemma D.17 (eq 163)", part="hypothesis", expected=EXPECTED, **HERE)
def condition_always_true(study) -> Measurement:
    """The left side of (163) is pi1 g_1 ((1-pi1)(1-lam) g_low P_low2 - kappa g_1 P_12)/c_1 < 0: the
    condition holds wherever the point exists (g_1 > 0 > g_low), so no set needs to be excluded.
    """

    def closed(case: Case) -> float:
        inner = (1 - case.p) * (1 - case.l) * case.gl * case.Pl[1]
        return float(case.p * case.g1 * (inner - case.kappa * case.g1 * case.P1[1]) / case.c1)

    grid = [
        Case(p, l, 3.0)
        for p in np.linspace(0.34, 0.99, 9)
        for l in np.linspace(0.02, 0.98, 9)
        if not LimitModel(float(p), float(l), 3.0).regime
    ]
    return every(
        identity=same(study, closed, _B, lambda c: 1.001 * closed(c)),
        sign=negative(
            [_B(c) for c in grid],
            control=[_B(c) + c.kappa for c in grid],
            note=f"{len(grid)} points of (0.34..0.99) x (0.02..0.98); the control drops kappa",
        ),
    )
