"""Section 3.2: the second critical point, its spectrum, and the focus of attention."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attnflow.claims import (
    Correction,
    Measurement,
    at_least,
    at_most,
    claim,
    corrected,
    equal,
    every,
    refuted,
)
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    STUDY,
    autodiff_gradients,
    distinct,
    flat,
    grows,
    inside,
    jacobian,
    nonuniform,
    random_points,
    two_groups,
)
from attnflow.tasks.markov import MarkovChain


@claim("Prop 3.3", regime=two_groups, expected=inside(two_groups), study=STUDY)
def second_critical_point(study) -> Measurement:
    """On a two-group law the condensation ray holds a critical point that predicts pi."""
    chain = theory.two_group(study.chain)
    k2 = theory.ray_constant(chain)
    speed, gap = _ray_point(chain, k2)
    off, _ = _ray_point(chain, 1.05 * k2)
    return every(
        critical=at_most(speed, 1e-14, control=off),
        prediction=at_most(gap, 1e-14, control=_ray_point(chain, 1.05 * k2)[1]),
    )


def _ray_point(chain: MarkovChain, k2: float) -> tuple[float, float]:
    """Speed and |P_i - pi| at the point of eq. (12) with kappa1^2 = k2."""
    theta, pi = _ray(chain, k2), chain.pi
    velocity = population_flow(chain).velocity(theta)
    speed = max(float(np.abs(w).max()) for w in (velocity.W0, velocity.W1))
    return speed, float(np.abs(one_layer.prediction(theta, pi) - pi).max())


@claim(
    "Prop 3.4 (eq 14)", part="constant", regime=two_groups, expected=inside(two_groups), study=STUDY
)
def attention_growth_rate(study) -> Measurement:
    """At the second critical point attention grows at c = lam kappa1^4 |pi|_Var^4/(|v||pi|^3)."""
    chain = theory.two_group(study.chain)
    stays = 0.9 * (chain.lam or 0.8)
    return equal(
        theory.printed_focus_rate(chain),
        _attention_rate(chain),
        rtol=1e-10,
        control=theory.printed_focus_rate(MarkovChain(chain.pi.tolist(), stays)),
    )


@claim(
    "ours: focus rate of any law",
    part="constant",
    regime=nonuniform,
    study=STUDY,
    expected=inside(nonuniform),
)
def general_growth_rate(study) -> Measurement:
    """For any chain the unigram point is critical and attention grows there at rate -g^T GP g."""
    chain = study.chain
    point = theory.unigram_point(chain, DIM)
    flow = population_flow(chain)
    velocity = flow.velocity(point)
    speed = max(float(np.abs(w).max()) for w in (velocity.W0, velocity.W1))
    off = flow.velocity(OneLayerAttention(1.05 * point.W0, point.W1, point.WQ, point.WK))
    return every(
        critical=at_most(speed, 1e-13, control=float(np.abs(off.W1).max())),
        loss=equal(chain.unigram_entropy, flow.loss(point), rtol=1e-12, control=chain.floor),
        rate=equal(
            theory.focus_rate(chain),
            _attention_rate(chain),
            rtol=1e-10,
            control=1.001 * theory.focus_rate(chain),
        ),
    )


def _attention_rate(chain: MarkovChain) -> float:
    """The top growth rate of (WQ, WK) at the unigram point, from the Jacobian of the flow."""
    J, outer = at_unigram(chain)
    return float(np.linalg.eigvalsh(J[outer:, outer:])[-1])


@claim(
    "ours: printed ray beyond two groups",
    part="hypothesis",
    regime=distinct,
    expected=inside(distinct),
    study=STUDY,
)
def no_point_on_the_ray(study) -> Measurement:
    """Beyond two groups the ray of eq. (12) holds no critical point: its speed stays above zero."""
    chain = study.chain

    def least(c: MarkovChain) -> float:
        found = minimize_scalar(
            lambda k2: _ray_point(c, k2)[0],
            bounds=(0.05, 20),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return float(found.fun)  # type: ignore[union-attr]

    return at_least(
        least(chain),
        1e-3,
        control=least(theory.two_group(chain)),
        note="largest entry of W0', W1' minimised over kappa1^2 in [0.05, 20]",
    )


@claim(
    "Prop 3.3 (hypothesis)",
    part="hypothesis",
    regime=two_groups,
    expected=inside(two_groups, "holds-corrected"),
    study=STUDY,
)
def the_law_of_the_ray(study) -> Measurement:
    """The law has one frequent token and equal rare ones: pi_d = ... = pi_2 < pi_1."""
    chain = theory.two_group(study.chain)
    d = chain.tokens
    ray = lambda pi: float(np.linalg.norm(pi - 1 / d))  # noqa: E731
    return corrected(
        printed=at_least(ray(np.full(d, 1 / d)), 1e-6),
        right=at_least(ray(chain.pi), 1e-6),
        correction=Correction(
            printed="0 < pi_d = ... = pi_2 = pi_1 < 1",
            corrected="0 < pi_d = ... = pi_2 < pi_1 < 1",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                uniform, two_groups = np.full(3, 1 / 3), np.array([0.75, 0.125, 0.125])
                for law in (uniform, two_groups):
                    print(law, "length of the ray's read-out", np.linalg.norm(law - 1 / 3))
                assert np.linalg.norm(uniform - 1 / 3) < 1e-15 < np.linalg.norm(two_groups - 1 / 3)
            """,
        ),
    )


@claim(
    "eq 60",
    part="proof-step",
    regime=two_groups,
    study=STUDY,
    expected=inside(two_groups, "holds-corrected"),
)
def prediction_on_the_ray(study) -> Measurement:
    """On the ray every prediction is softmax(kappa^2 |pi| (pi - 1/d) / |pi - 1/d|)."""
    chain = theory.two_group(study.chain)
    pi, v, k2 = chain.pi, chain.pi - 1 / chain.tokens, 1.3
    measured = one_layer.prediction(_ray(chain, k2), pi)[0]
    soft = lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum()  # noqa: E731
    size = np.linalg.norm(pi)
    return corrected(
        printed=equal(soft(k2 * size**2 * v), measured, rtol=1e-12),
        right=equal(soft(k2 * size * v / np.linalg.norm(v)), measured, rtol=1e-12),
        correction=Correction(
            printed="P_ij ~ exp(kappa^2 |pi|^2 (pi_j - 1/d))",
            corrected="P_ij ~ exp(kappa^2 |pi| (pi_j - 1/d) / |pi - 1/d|)",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                pi, k2 = np.array([0.75, 0.125, 0.125]), 1.3
                v, size = pi - 1 / 3, np.linalg.norm(pi)
                W0, W1 = np.sqrt(k2) * pi / size, np.sqrt(k2) * v / np.linalg.norm(v)
                logits = (pi @ W0) * W1                       # A_i = pi while WQ = WK = 0
                print("model", logits, "printed", k2 * size**2 * v)
                assert np.allclose(logits, k2 * size * v / np.linalg.norm(v))
                assert not np.allclose(logits, k2 * size**2 * v)
            """,
        ),
    )


@claim(
    "Prop 3.3 (kappa1)",
    part="constant",
    regime=two_groups,
    expected=inside(two_groups),
    study=STUDY,
)
def ray_constant(study) -> Measurement:
    """kappa1^2 = sqrt((d-1)/d) ln(pi1/pi2) / |pi|: where the speed on the ray vanishes."""
    chain = theory.two_group(study.chain)
    pi = chain.pi

    def excess(k2: float) -> float:
        return float(one_layer.prediction(_ray(chain, k2), pi)[0, 0] - pi[0])

    found: Any = brentq(excess, 1e-6, 200.0, xtol=1e-14)
    return equal(
        theory.ray_constant(chain), found, rtol=1e-12, control=1.01 * theory.ray_constant(chain)
    )


@claim("Prop 3.4 (eq 13)", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def block_form(study) -> Measurement:
    """At the second critical point (W0, W1) and (WQ, WK) decouple."""
    J, outer = at_unigram(study.chain)
    elsewhere = jacobian(random_points(study)[0], study.chain)
    return at_most(
        np.abs(J[:outer, outer:]).max(), 1e-14, control=np.abs(elsewhere[:outer, outer:]).max()
    )


@claim("Prop 3.4 (J_out)", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def outer_block_contracts(study) -> Measurement:
    """J_out is negative semidefinite."""
    J, outer = at_unigram(study.chain)
    return at_most(
        np.linalg.eigvalsh(J[:outer, :outer]).max(), 1e-13, control=np.linalg.eigvalsh(J).max()
    )


@claim("Prop 3.4 (J_att)", regime=nonuniform, expected=inside(nonuniform, "fails"), study=STUDY)
def attention_block_is_indefinite(study) -> Measurement:
    """J_att is positive semidefinite."""
    J, outer = at_unigram(study.chain)
    rates = np.linalg.eigvalsh(J[outer:, outer:])
    return refuted(
        printed=at_least(
            rates.min(),
            0.0,
            slack=1e-12,
            control=rates.max(),
            note=f"eigenvalues -c, 0, +c with c = {rates.max():.6g}",
        ),
        correction=Correction(
            printed="J_att is positive semi-definite",
            corrected=None,
            counterexample="(Delta WQ, Delta WK) = (X, -X) decays at rate c: the block is "
            "[[0, c aa^T], [c aa^T, 0]], whose eigenvalues are +c, -c and 0",
            cause="false",
            snippet="""
                import numpy as np
                c, m = 0.066, 3                              # WQ' = c aa^T WK, WK' = c aa^T WQ
                aa = np.outer(np.eye(m)[0], np.eye(m)[0])
                J = np.kron(np.block([[0 * aa, c * aa], [c * aa, 0 * aa]]), np.eye(m))
                rates = np.linalg.eigvalsh(J)
                print("smallest", rates[0], "largest", rates[-1])
                assert np.isclose(rates[0], -c) and np.isclose(rates[-1], c)
            """,
        ),
    )


@claim(
    "Prop 3.4 (unique mode)", regime=grows, study=STUDY, expected=inside(grows, "holds-corrected")
)
def unstable_modes(study) -> Measurement:
    """The unstable mode is unique up to its right factor: a x^T for every x, m modes in all."""
    J, _ = at_unigram(study.chain)
    rates = np.linalg.eigvalsh(J)
    count = float(np.sum(rates > 1e-9))
    return corrected(
        printed=equal(1.0, count),
        right=equal(float(DIM), count),
        correction=Correction(
            printed="its unique unstable direction",
            corrected="m unstable directions (WQ, WK) = (a x^T, a x^T), one for each x; the left "
            "factor a is unique",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                c, m = 0.066, 3
                aa = np.outer(np.eye(m)[0], np.eye(m)[0])
                block = np.block([[0 * aa, c * aa], [c * aa, 0 * aa]])
                rates = np.linalg.eigvalsh(np.kron(block, np.eye(m)))
                print("unstable directions:", np.sum(rates > 1e-9), "at width", m)
                assert np.sum(rates > 1e-9) == m
            """,
        ),
    )


@claim("eq 14 (system)", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def attention_system(study) -> Measurement:
    """Delta WQ' = c a a^T Delta WK and Delta WK' = c a a^T Delta WQ."""
    J, outer = at_unigram(study.chain)
    c = theory.focus_rate(study.chain)
    aa = np.zeros((DIM, DIM))
    aa[0, 0] = c
    zero = np.zeros_like(aa)
    system = lambda s: np.kron(np.block([[zero, aa], [s * aa, zero]]), np.eye(DIM))  # noqa: E731
    return equal(system(1.0), J[outer:, outer:], rtol=1e-12, atol=1e-15, control=system(-1.0))


@claim(
    "eq 71",
    part="proof-step",
    regime=nonuniform,
    study=STUDY,
    expected=inside(nonuniform, "holds-corrected"),
)
def outer_system(study) -> Measurement:
    """Delta W0' = -d(GM) W1^T and Delta W1' = -W0^T d(GM), with d(GM) = pi pi^T dM Var(pi)."""
    chain = study.chain
    J, outer = at_unigram(chain)
    point = theory.unigram_point(chain, DIM)
    move = OneLayerAttention.gaussian(chain.tokens, DIM, 1.0, 5)
    var = np.diag(chain.pi) - np.outer(chain.pi, chain.pi)
    dM = move.W0 @ point.W1 + point.W0 @ move.W1
    dG = np.outer(chain.pi, chain.pi) @ dM @ var
    right = -np.concatenate([np.ravel(dG @ point.W1.T), np.ravel(point.W0.T @ dG)])
    measured = J[:outer, :outer] @ flat(move)[:outer]
    return corrected(
        printed=equal(-right, measured, rtol=1e-12),
        right=equal(right, measured, rtol=1e-12),
        correction=Correction(
            printed="Delta W0' = d(GM) W1^T, Delta W1' = W0^T d(GM)",
            corrected="Delta W0' = -d(GM) W1^T, Delta W1' = -W0^T d(GM)",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                pi = np.array([0.75, 0.125, 0.125])           # L(M) = cross-entropy of A = pi
                soft = lambda z: np.exp(z) / np.exp(z).sum()
                l = np.log(pi) - np.log(pi).mean()
                size = np.linalg.norm(pi)
                k = np.sqrt(np.linalg.norm(l) / size)
                W0, W1 = k * pi / size, k * l / np.linalg.norm(l)
                G = lambda w0, w1: -np.outer(pi, pi - soft((pi @ w0) * w1))
                x, h = np.array([0.3, -0.2, 0.5]), 1e-6
                dG = (G(W0 + h * x, W1) - G(W0 - h * x, W1)) / (2 * h)
                velocity = lambda w0: -G(w0, W1) @ W1
                moved = (velocity(W0 + h * x) - velocity(W0 - h * x)) / (2 * h)
                print(moved, "=", -dG @ W1)
                assert np.allclose(moved, -dG @ W1, atol=1e-8)
                assert not np.allclose(moved, dG @ W1, atol=1e-3)
            """,
        ),
    )


@claim("eq 61", part="proof-step", regime=two_groups, expected=inside(two_groups), study=STUDY)
def gradient_on_the_ray(study) -> Measurement:
    """Where every prediction is pi, dL/dM = -pi sum_i pi_i (P_i - pi)^T = 0, as pi P = pi."""
    chain = theory.two_group(study.chain)
    point = _ray(chain, theory.ray_constant(chain))
    GM, _ = one_layer.token_gradients(np.asarray(point.readout), np.asarray(point.score), chain)
    formula = -np.outer(chain.pi, chain.pi @ (chain.transition - chain.pi))
    moved = -np.outer(chain.pi, np.roll(chain.pi, 1) @ (chain.transition - chain.pi))
    return every(
        formula=equal(formula, GM, atol=1e-15, rtol=0.0, control=moved),
        zero=at_most(np.abs(GM).max(), 1e-15, control=np.abs(moved).max()),
    )


@claim("eq 72", part="proof-step", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def attention_system_by_gradients(study) -> Measurement:
    """Delta WQ' = -W0^T GP W0 Delta WK and Delta WK' = -W0^T GP^T W0 Delta WQ."""
    chain = study.chain
    J, outer = at_unigram(chain)
    point, move = theory.unigram_point(chain, DIM), OneLayerAttention.gaussian(2, DIM, 1.0, 6)
    _, GP = autodiff_gradients(point, chain)
    W0 = np.asarray(point.W0)

    def system(G: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [np.ravel(-W0.T @ G @ W0 @ move.WK), np.ravel(-W0.T @ G.T @ W0 @ move.WQ)]
        )

    measured = J[outer:, outer:] @ np.concatenate([np.ravel(move.WQ), np.ravel(move.WK)])
    return equal(system(GP), measured, rtol=1e-11, atol=1e-15, control=system(-GP))


@claim("eq 78", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def contraction_matrix(study) -> Measurement:
    """Along a the block is -kappa1^2 A of eq. (78); its rates, and A is symmetric and >= 0."""
    J, _ = at_unigram(study.chain)
    along, _ = sector(study.chain, 0)
    A = -theory.contraction(study.chain)
    return every(
        block=equal(-A, J[np.ix_(along, along)], rtol=1e-12, atol=1e-15, control=-1.01 * A),
        sign=at_least(
            np.linalg.eigvalsh(A).min(), 0.0, slack=1e-14, control=-np.linalg.eigvalsh(A).max()
        ),
    )


@claim(
    "eq 74 (normal directions)",
    part="proof-step",
    regime=nonuniform,
    expected=inside(nonuniform),
    study=STUDY,
)
def normal_directions_are_degenerate(study) -> Measurement:
    """In every direction perpendicular to a the linearisation of (W0, W1) vanishes."""
    J, outer = at_unigram(study.chain)
    across, _ = sector(study.chain, 1)
    along, _ = sector(study.chain, 0)
    return at_most(np.abs(J[across, :outer]).max(), 1e-14, control=np.abs(J[along, :outer]).max())


@claim(
    "Prop 3.4 (eq 79)", part="constant", regime=two_groups, expected=inside(two_groups), study=STUDY
)
def two_forms_of_the_rate(study) -> Measurement:
    """c_1 of eq. (79) and c of eq. (14) are one number."""
    chain = theory.two_group(study.chain)
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    q, u = pi / np.linalg.norm(pi), v / np.linalg.norm(v)
    var = np.diag(pi) - np.outer(pi, pi)
    k4 = theory.ray_constant(chain) ** 2
    c1 = (chain.lam or 0.8) * k4 * (q @ var @ u) * (q @ var @ q)
    return equal(theory.printed_focus_rate(chain), c1, rtol=1e-12, control=1.001 * c1)


def _ray(chain: MarkovChain, k2: float) -> OneLayerAttention:
    """The point of eq. (12) with kappa1^2 = k2."""
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    k, a, zero = np.sqrt(k2), np.eye(DIM)[0], np.zeros((DIM, DIM))
    return OneLayerAttention(
        k * np.outer(pi / np.linalg.norm(pi), a), k * np.outer(a, v / np.linalg.norm(v)), zero, zero
    )  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def at_unigram(chain: MarkovChain) -> tuple[np.ndarray, int]:
    """The Jacobian at the unigram point (a = first axis), and where the attention block begins."""
    return jacobian(theory.unigram_point(chain, DIM), chain), 2 * chain.tokens * DIM


def sector(chain: MarkovChain, axis: int) -> tuple[np.ndarray, int]:
    """Indices of (Delta W0 x, Delta W1^T x) for x the axis of that number."""
    d = chain.tokens
    first = np.arange(d) * DIM + axis
    second = d * DIM + axis * d + np.arange(d)
    return np.concatenate([first, second]), 2 * d
