"""Section 3.3 and App. C.3: the rank-one manifold, its two-group system, and dilution."""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import Correction, Measurement, Regime, at_most, claim, corrected, equal, every
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.claims.common import DIM, SEEDS, STUDY, inside
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain

POINTS = 6
"""Random states at which an identity is compared."""

DISTINCT = 1e-3
"""By how much pi1 exceeds the other entries, so that rounding cannot hide what depends on it."""


SLOWEST = 1e-6
"""The slowest focus that is followed: the velocity is known to 1e-17 or so, and c scales it."""


def symmetric_data(study) -> Regime:
    """Two-term chains; the two-group law is the one with the config's own largest entry."""
    pi, lam = theory.two_group(study.chain).pi, study.chain.lam
    words = f"P = lam I + (1 - lam) 1 pi^T with pi1 = {pi[0]:.4g} > pi2 = ... = {pi[1]:.4g}"
    return Regime(lam is not None and bool(pi[0] > pi[1] + DISTINCT), words)


def resolved(study) -> Regime:
    """The same where the focus is fast enough to be seen beside rounding."""
    base = symmetric_data(study)
    if not base.inside:
        return base
    c = theory.focus_rate(theory.two_group(study.chain))
    return Regime(c > SLOWEST, f"{base.sentence}; c = {c:.3g} (> {SLOWEST:g})")


def several_low(study) -> Regime:
    """The same with at least two lower tokens."""
    base, d = symmetric_data(study), study.chain.tokens
    return Regime(base.inside and d > 2, f"{base.sentence}, and {d - 1} lower tokens (at least 2)")


def system_of(study) -> TwoGroup:
    return TwoGroup.of(theory.two_group(study.chain))


def states(size: int, seed: int = SEEDS[0]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(POINTS, size))


# --- Prop. 3.6 and the group action.


@claim("Prop 3.6 (i)", study=STUDY)
def rank_one_is_invariant(study) -> Measurement:
    """The flow stays on the rank-one manifold (18), for any chain: it is the flow of width one."""
    chain, d = study.chain, study.chain.tokens
    rng = np.random.default_rng(SEEDS[0])
    gap, off = [], []
    for z in states(2 * d + 2):
        a, at, other = (x / np.linalg.norm(x) for x in rng.normal(size=(3, DIM)))
        theta = rank_one.rank_one_lift(state := rank_one.state_of(z), a, at)
        narrow = one_layer.velocity(state, chain)
        gap.append(_distance(rank_one.rank_one_lift(narrow, a, at), theta, chain))
        beside = OneLayerAttention(theta.W0, theta.W1, z[-2] * np.outer(other, at), theta.WK)
        off.append(_distance(rank_one.rank_one_lift(narrow, a, at), beside, chain))
    return at_most(max(gap), 1e-13, control=min(off), note="control: WQ leaves alpha")


def _distance(predicted: OneLayerAttention, theta: OneLayerAttention, chain: MarkovChain) -> float:
    v = one_layer.velocity(theta, chain)
    pairs = zip(
        (predicted.W0, predicted.W1, predicted.WQ, predicted.WK),
        (v.W0, v.W1, v.WQ, v.WK),
        strict=True,
    )
    return max(float(np.abs(p - w).max()) for p, w in pairs)


@claim("Prop 3.6 (ii)", regime=several_low, expected=inside(several_low), study=STUDY)
def low_tokens_stay_equal(study) -> Measurement:
    """Where the lower tokens have equal gamma and beta, they move equally and stay equal."""
    system = system_of(study)
    x, d, pi = system.lift(states(6)), system.tokens, system.chain.pi.copy()
    pi[1:3] += np.array([0.1, -0.1]) * pi[1]

    def spread(chain: MarkovChain) -> float:
        v = rank_one.velocity(x, chain)
        return float(
            max(np.ptp(v[:, 1:d], axis=1).max(), np.ptp(v[:, d + 1 : 2 * d], axis=1).max())
        )

    return at_most(
        spread(system.chain),
        1e-13,
        control=spread(MarkovChain(pi, system.lam)),
        note="control: lower entries that differ by 20 %",
    )


@claim("Prop 3.6 (eq 20)", study=STUDY)
def closed_system(study) -> Measurement:
    """On the manifold gamma' = -GM beta - eta (GP + GP^T) gamma and beta' = -GM^T gamma."""
    d, by_loss, predicted, wrong = study.chain.tokens, [], [], []
    for z in states(2 * d + 2):
        by_loss.append(_minus_gradient(z, study.chain)[: 2 * d])
        g, b, eta, GM, GP = _gradients(z, study.chain)
        predicted.append(np.concatenate([-GM @ b - eta * (GP + GP.T) @ g, -GM.T @ g]))
        wrong.append(np.concatenate([-GM @ b - eta * GP @ g, -GM.T @ g]))
    return equal(predicted, by_loss, rtol=1e-12, control=wrong, note="control: without GP^T")


@claim("Prop 3.6 (eq 20, eta)", expected="holds-corrected", study=STUDY)
def closed_system_eta(study) -> Measurement:
    """On the manifold eta = lambda_Q lambda_K obeys eta' = -(lambda_Q^2 + lambda_K^2) g^T GP g."""
    measured, printed, right = [], [], []
    for z in states(2 * study.chain.tokens + 2):
        v = _minus_gradient(z, study.chain)
        measured.append(v[-2] * z[-1] + z[-2] * v[-1])
        g, _, eta, _, GP = _gradients(z, study.chain)
        printed.append(-2 * eta * g @ GP @ g)
        right.append(-(z[-2] ** 2 + z[-1] ** 2) * g @ GP @ g)
    return corrected(
        printed=equal(printed, measured, rtol=1e-12),
        right=equal(right, measured, rtol=1e-12),
        correction=Correction(
            printed="eta' = -2 eta gamma^T GP gamma, so that (gamma, beta, eta) closes",
            corrected="eta' = -(lQ^2 + lK^2) gamma^T GP gamma; the printed line needs lQ = lK, as"
            " in (19); else sqrt(D^2 + 4 eta^2) with the conserved D = lQ^2 - lK^2 closes it",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                slope = 0.7                 # L depends on lQ, lK through eta alone: dL/d eta
                lQ, lK = 2.0, 0.5
                dQ, dK = -slope * lK, -slope * lQ                  # gradient flow
                eta_rate = dQ * lK + lQ * dK
                print("measured", eta_rate, "printed", -2 * lQ * lK * slope)
                assert np.isclose(eta_rate, -(lQ**2 + lK**2) * slope)
                assert not np.isclose(eta_rate, -2 * lQ * lK * slope)
            """,
        ),
    )


def _minus_gradient(z: np.ndarray, chain: MarkovChain) -> np.ndarray:
    """From the loss alone, by complex step: independent of every formula for the velocity."""
    return -rank_one.derivative(lambda x: rank_one.loss(x, chain), z)


def _gradients(z: np.ndarray, chain: MarkovChain):
    d = chain.tokens
    g, b, eta = z[:d], z[d : 2 * d], z[-2] * z[-1]
    GM, GP = one_layer.token_gradients(np.outer(g, b), eta * np.outer(g, g), chain)
    return g, b, eta, GM, GP


@claim("eq 19", regime=symmetric_data, expected=inside(symmetric_data), study=STUDY)
def entry_state(study) -> Measurement:
    """The entry state kappa1 (pi/|pi|, v/|v|) with lambda = 0 is critical on a two-group law."""
    system = system_of(study)
    chain = system.chain
    pi, v, k = chain.pi, chain.pi - 1 / chain.tokens, np.sqrt(theory.ray_constant(chain))
    z = np.concatenate([k * pi / np.linalg.norm(pi), k * v / np.linalg.norm(v), [0, 0]])
    speed = lambda x: float(np.abs(rank_one.velocity(x, chain)).max())  # noqa: E731
    return at_most(
        speed(z) / k, 1e-14, control=speed(np.r_[1.05 * z[:-2], 0, 0]) / k, note="speed over kappa1"
    )


@claim(
    "eqs 80-81", part="proof-step", regime=several_low, expected=inside(several_low), study=STUDY
)
def group_action(study) -> Measurement:
    """Permuting the lower tokens in W0 and W1 permutes the predictions and leaves the loss."""
    chain = theory.two_group(study.chain)
    d, rng = chain.tokens, np.random.default_rng(SEEDS[0])
    theta = OneLayerAttention.gaussian(d, DIM, 0.7, SEEDS[0])

    def gaps(order: np.ndarray) -> tuple[float, float]:
        image = OneLayerAttention(theta.W0[order], theta.W1[:, order], theta.WQ, theta.WK)
        here, there = (one_layer.prediction(th, chain.pi) for th in (theta, image))
        loss = [-np.sum(chain.pi[:, None] * chain.transition * np.log(p)) for p in (here, there)]
        return float(np.abs(there - here[np.ix_(order, order)]).max()), abs(loss[0] - loss[1])

    low = 1 + rng.permutation(d - 1)
    low = low if (low != np.arange(1, d)).any() else np.roll(low, 1)
    kept, moved = gaps(np.r_[0, low]), gaps(np.r_[1, 0, 2:d])
    return every(
        prediction=at_most(kept[0], 1e-14, control=moved[0]),
        loss=at_most(kept[1], 1e-14, control=moved[1]),
    )


# --- The two-group system, eqs. (82) to (89), at random states.


@claim(
    "eqs 82-83",
    part="proof-step",
    regime=symmetric_data,
    expected=inside(symmetric_data),
    study=STUDY,
)
def attention_to_the_first(study) -> Measurement:
    """On the manifold A has the rows (xi_i, (1-xi_i)/(d-1), ...), xi_1 and xi_2 as printed."""
    system, (z, thetas) = system_of(study), _two_group_models(study)
    d, pi1 = system.tokens, system.pi1
    eta, a, b = z[:, 4] * z[:, 5], z[:, 0], z[:, 1]

    def rows(rest: float) -> np.ndarray:
        first = [pi1 * np.exp(eta * x * a) for x in (a, b)]
        low = [rest * np.exp(eta * x * b) for x in (a, b)]
        xi = np.stack([f / (f + l) for f, l in zip(first, low, strict=True)], axis=1)[
            :, [0] + [1] * (d - 1)
        ]
        return np.concatenate(
            [xi[..., None], np.repeat(((1 - xi) / (d - 1))[..., None], d - 1, -1)], -1
        )

    measured = np.array([one_layer.attention(th, system.chain.pi) for th in thetas])
    return equal(rows(1 - pi1), measured, rtol=1e-13, control=rows(0.9 * (1 - pi1)))


@claim(
    "eq 84", part="proof-step", regime=symmetric_data, expected=inside(symmetric_data), study=STUDY
)
def predicted_first(study) -> Measurement:
    """The model predicts token 1 with probability sigma(m_i Dbeta - log(d-1))."""
    system, (z, thetas) = system_of(study), _two_group_models(study)
    measured = [one_layer.prediction(th, system.chain.pi)[[0, 1], 0] for th in thetas]
    predicted = np.stack(system.prediction(z), axis=1)
    m = np.stack(system.averages(z), axis=1)
    wrong = rank_one.sigmoid(m * (z[:, 2] - z[:, 3])[:, None] - np.log(system.tokens))
    return equal(predicted, measured, rtol=1e-13, control=wrong, note="control: log d")


@claim(
    "eqs 85-86",
    part="proof-step",
    regime=symmetric_data,
    expected=inside(symmetric_data),
    study=STUDY,
)
def residual_identity(study) -> Measurement:
    """(P_i - p_i) beta = r_i Dbeta with r_i = P_i1 - p_i1, the same for every lower token."""
    system, (z, thetas) = system_of(study), _two_group_models(study)
    beta, gap = system.lift(z)[:, system.tokens : 2 * system.tokens], z[:, 2] - z[:, 3]
    p = np.array([one_layer.prediction(th, system.chain.pi) for th in thetas])
    measured = np.einsum("sij,sj->si", system.chain.transition - p, beta)
    r = np.stack(system.residuals(z), axis=1)[:, [0] + [1] * (system.tokens - 1)]
    return equal(
        r * gap[:, None], measured, rtol=1e-12, control=r * z[:, 2:3], note="control: beta_1"
    )


@claim(
    "App C.3 (variance of attention)",
    part="proof-step",
    regime=symmetric_data,
    expected=inside(symmetric_data),
    study=STUDY,
)
def variance_identities(study) -> Measurement:
    """Var(A_i) gamma = xi_i (1-xi_i) Dgamma (1, -1/(d-1), ...); gamma^T of it has Dgamma^2."""
    system, (z, thetas) = system_of(study), _two_group_models(study)
    d, gap, g = system.tokens, z[:, 0] - z[:, 1], system.lift(z)[:, : system.tokens]
    A = np.array([one_layer.attention(th, system.chain.pi)[:2] for th in thetas])
    moved = A * g[:, None, :] - A * np.einsum("sij,sj->si", A, g)[..., None]
    spread = np.stack([x * (1 - x) for x in system.attention(z)], axis=1) * gap[:, None]
    shape = np.r_[1.0, np.full(d - 1, -1 / (d - 1))]
    return every(
        vector=equal(
            spread[..., None] * shape,
            moved,
            rtol=1e-12,
            atol=1e-15,
            control=spread[..., None] * np.r_[1.0, np.full(d - 1, -1 / d)],
        ),
        form=equal(
            spread * gap[:, None],
            np.einsum("sij,sj->si", moved, g),
            rtol=1e-12,
            atol=1e-15,
            control=spread * z[:, :1],
        ),
    )


@claim(
    "eq 87", part="proof-step", regime=symmetric_data, expected=inside(symmetric_data), study=STUDY
)
def driven_by_the_readout(study) -> Measurement:
    """The M-driven velocities of gamma_1 and gamma_low are those of eq. (87)."""
    system, z = system_of(study), states(6)
    by_M, _ = _driven(system, z)
    predicted = np.stack(system.from_readout(z), axis=1)
    swapped = np.stack(system.from_readout(z[:, [1, 0, 2, 3, 4, 5]]), axis=1)
    return equal(predicted, by_M, rtol=1e-12, control=swapped)


@claim(
    "eq 88",
    part="proof-step",
    regime=symmetric_data,
    study=STUDY,
    expected=inside(symmetric_data, "holds-corrected"),
)
def first_driven_by_the_scores(study) -> Measurement:
    """The Phi-driven velocity of gamma_1; its last term carries the factor gamma_low."""
    system, z = system_of(study), states(6)
    _, by_scores = _driven(system, z)
    return corrected(
        printed=equal(system.from_scores(z, printed=True)[0], by_scores[:, 0], rtol=1e-12),
        right=equal(system.from_scores(z)[0], by_scores[:, 0], rtol=1e-12),
        correction=Correction(
            printed="... + (1-pi1) r2 xi2 (1-xi2) Dgamma]",
            corrected="... + (1-pi1) r2 xi2 (1-xi2) gamma_low Dgamma]",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                p, r1, r2, D_beta = 0.75, 0.3, -0.2, 1.3            # any residuals
                a, b, eta = 1.1, -0.4, 0.6
                g, pi, r = np.array([a, b, b]), np.array([p, .125, .125]), np.array([r1, r2, r2])
                A = pi * np.exp(eta * np.outer(g, g)); A /= A.sum(1, keepdims=True)
                var = [np.diag(row) - np.outer(row, row) for row in A]
                GP = -D_beta * np.array([pi[i] * r[i] * g @ var[i] for i in range(3)])
                measured = -eta * ((GP + GP.T) @ g)[0]
                w = [pr * x * (1 - x) for pr, x in zip((p * r1, (1 - p) * r2), A[:2, 0])]
                first = w[0] * ((a - b) ** 2 + a * (a - b))
                printed = eta * D_beta * (first + w[1] * (a - b))
                right = eta * D_beta * (first + w[1] * b * (a - b))
                print("measured", measured, "printed", printed, "right", right)
                assert np.isclose(right, measured) and not np.isclose(printed, measured)
            """,
        ),
    )


@claim(
    "eq 89", part="proof-step", regime=symmetric_data, expected=inside(symmetric_data), study=STUDY
)
def low_driven_by_the_scores(study) -> Measurement:
    """The Phi-driven velocity of gamma_low, with a = gamma_1 and b = gamma_low."""
    system, z = system_of(study), states(6)
    _, by_scores = _driven(system, z)
    predicted = system.from_scores(z)[1]
    return equal(predicted, by_scores[:, 1], rtol=1e-12, control=1.01 * predicted)


@functools.lru_cache(maxsize=16)
def _models(system: TwoGroup) -> tuple[np.ndarray, tuple[OneLayerAttention, ...]]:
    z = states(6)
    return z, tuple(rank_one.state_of(x) for x in system.lift(z))


def _two_group_models(study):
    return _models(system_of(study))


def _driven(system: TwoGroup, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-GM beta and -eta (GP + GP^T) gamma at tokens 1 and 2, from eq. (5)."""
    by_M, by_scores = [], []
    for x in system.lift(z):
        g, b, eta, GM, GP = _gradients(x, system.chain)
        by_M.append((-GM @ b)[:2])
        by_scores.append((-eta * (GP + GP.T) @ g)[:2])
    return np.array(by_M), np.array(by_scores)
