"""Section 3.3 and Appendix C.3: the rank-one manifold and its two-group system."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnflow.claims import (
    Erratum,
    Measurement,
    Regime,
    against,
    at_most,
    compared,
    condition,
    corrected,
    equal,
    every,
    identity,
)
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_gradients,
    autodiff_velocity,
    blocks,
    flat,
)
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain

POINTS = 6
"""Random states at which an identity is compared."""

DISTINCT = 1e-3
"""By how much pi1 exceeds the other entries, so that rounding cannot hide what depends on it."""

SLOWEST = 1e-6
"""The slowest focus that is followed: the velocity is known to 1e-17 or so, and c scales it."""


@condition
def symmetric_data(config: Config) -> Regime:
    """Two-term chains; the two-group law is the one with the config's own largest entry."""
    chain = config.chain()
    pi = theory.two_group(chain).pi
    words = f"P = lam I + (1 - lam) 1 pi^T with pi1 = {pi[0]:.4g} > pi2 = ... = {pi[1]:.4g}"
    return Regime(chain.lam is not None and bool(pi[0] > pi[1] + DISTINCT), words)


@condition
def fast_focus(config: Config) -> Regime:
    c = theory.focus_rate(theory.two_group(config.chain()))
    return Regime(c > SLOWEST, f"the focus stands out from rounding: c = {c:.3g} (> {SLOWEST:g})")


@condition
def two_low_tokens(config: Config) -> Regime:
    low = config.chain().tokens - 1
    return Regime(low > 1, f"{low} lower tokens (at least 2)")


resolved = symmetric_data & fast_focus
several_low = symmetric_data & two_low_tokens


def system_of(study) -> TwoGroup:
    return TwoGroup.of(theory.two_group(study.chain))


def states(size: int, seed: int = SEEDS[0]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(POINTS, size))


def rank_one_states(study) -> np.ndarray:
    return states(2 * study.chain.tokens + 2)


def lifted(system: TwoGroup, z: np.ndarray) -> list[OneLayerAttention]:
    """Models of width one at two-group states."""
    return [rank_one.state_of(x) for x in system.lift(z)]


# --- Prop. 3.6 and the group action.


@paper.claim("Prop 3.6 (i)")
def rank_one_is_invariant(study) -> Measurement:
    r"""The flow stays on the rank-one manifold (18), for any chain: it is the flow of width one."""
    chain, rng = study.chain, np.random.default_rng(SEEDS[0])
    points = [(z, *rng.normal(size=(3, DIM))) for z in rank_one_states(study)]  # not unit

    def moved(point: tuple, right: bool):
        z, a, at, other = point
        lifted = rank_one.rank_one_lift(rank_one.state_of(rank_one.velocity(z, chain)), a, at)
        W0, W1, WQ, WK = blocks(rank_one.rank_one_lift(rank_one.state_of(z), a, at))
        WQ = WQ if right else z[-2] * np.outer(other, at)
        return flat(lifted), autodiff_velocity(OneLayerAttention(W0, W1, WQ, WK), chain)  # type: ignore[arg-type]

    return compared(identity, "WQ with another left factor", moved, over=points)


@paper.claim("Prop 3.6 (ii)", regime=several_low)
@against("lower frequencies that differ by 20 %", at_most, bound=1e-13)
def low_tokens_stay_equal(study, right: bool):
    r"""Where the lower tokens have equal $\gamma$ and $\beta$, they move equally and stay equal."""
    system = system_of(study)
    pi, d = system.chain.pi.copy(), system.tokens
    pi[1:3] += (0 if right else 0.1 * pi[1]) * np.array([1, -1])
    v = np.array(
        [autodiff_velocity(th, MarkovChain(pi, system.lam)) for th in lifted(system, states(6))]
    )
    return np.ptp(v[:, 1:d], axis=1).max() + np.ptp(v[:, d + 1 : 2 * d], axis=1).max()


@paper.claim("Prop 3.6 (eq 20)")
@against("without the transposed term", identity, over=rank_one_states)
def closed_system(study, z: np.ndarray, right: bool):
    r"""On the manifold $\dot\gamma = -G_M\beta - \eta(G_\Phi + G_\Phi^\top)\gamma$ and
    $\dot\beta = -G_M^\top\gamma$."""
    g, b, eta, GM, GP = _gradients(z, study.chain)
    turned = GP.T if right else 0 * GP
    formula = np.concatenate([-GM @ b - eta * (GP + turned) @ g, -GM.T @ g])
    return formula, _minus_gradient(z, study.chain)[:-2]


UNEQUAL = Erratum(
    "unequal-scales",
    "the equation of eta needs lambda_Q = lambda_K, which (19) has and Prop. 3.6 does not ask for",
    cause="missing-hypothesis",
)


@paper.claim("Prop 3.6 (eq 20, eta)")
def closed_system_eta(study) -> Measurement:
    r"""On the manifold $\eta = \lambda_Q\lambda_K$ obeys
    $\dot\eta = -(\lambda_Q^2+\lambda_K^2)\gamma^\top G_\Phi\gamma$."""

    def following(factor) -> Measurement:
        def rate(z: np.ndarray) -> float:
            g, *_, GP = _gradients(z, study.chain)
            return -factor(z[-2], z[-1]) * g @ GP @ g

        def by_loss(z: np.ndarray) -> float:
            v = _minus_gradient(z, study.chain)
            return v[-2] * z[-1] + z[-2] * v[-1]

        return identity(over=rank_one_states(study), predicted=rate, measured=by_loss)

    return corrected(
        printed=following(lambda q, k: 2 * q * k),
        right=following(lambda q, k: q**2 + k**2),
        text=r"$\dot\eta = -2\eta\gamma^\top G_\Phi\gamma$, so that $(\gamma, \beta, \eta)$ closes",
        correct=r"$\dot\eta = -(\lambda_Q^2+\lambda_K^2)\gamma^\top G_\Phi\gamma$; with the"
        r" conserved $D = \lambda_Q^2 - \lambda_K^2$ it is"
        r" $-\sqrt{D^2 + 4\eta^2}\,\gamma^\top G_\Phi\gamma$",
        erratum=UNEQUAL,
    )


@paper.claim("ours: rank-one system in closed form")
def rank_one_velocity(study) -> Measurement:
    r"""The velocity of $(\gamma, \beta, \lambda_Q, \lambda_K)$ written out is minus the gradient of
    the loss on the manifold, and that loss is the loss of the model of width one."""
    chain, points = study.chain, rank_one_states(study)
    flat_chain = MarkovChain.of(0.5 * (chain.transition + 1 / chain.tokens))

    def velocity(z: np.ndarray, right: bool):
        kept = np.arange(len(z)) if right else np.r_[: len(z) - 2, len(z) - 1, len(z) - 2]
        return rank_one.velocity(z, chain)[kept], _minus_gradient(z, chain)

    def readout(z: np.ndarray, right: bool):
        return rank_one.readout_gradient(z, chain), _gradients(z, chain)[3 if right else 4]

    def loss(z: np.ndarray, right: bool):
        model = one_layer.population_loss(rank_one.state_of(z), chain if right else flat_chain)
        return rank_one.loss(z, chain), float(model)

    return every(
        velocity=compared(identity, "queries and keys exchanged", velocity, over=points),
        readout=compared(identity, "that of the scores", readout, over=points),
        loss=compared(identity, "of a flatter chain", loss, over=points),
    )


def _minus_gradient(z: np.ndarray, chain: MarkovChain) -> np.ndarray:
    """Autodiff of the model of width one: independent of every formula for the velocity."""
    return autodiff_velocity(rank_one.state_of(z), chain)


def _gradients(z: np.ndarray, chain: MarkovChain):
    """gamma, beta, eta and autodiff's two gradients at a state."""
    d = chain.tokens
    GM, GP = autodiff_gradients(rank_one.state_of(z), chain)
    return z[:d], z[d : 2 * d], z[-2] * z[-1], GM, GP


@paper.claim("eq 19", regime=symmetric_data)
def entry_state(study) -> Measurement:
    r"""The entry state $\kappa_1(\pi/|\pi|, (\pi-\mathbf 1/d)/|\pi-\mathbf 1/d|)$ with
    $\lambda = 0$ is the unigram point, and critical, on a two-group law."""
    system = system_of(study)
    pi, v = system.chain.pi, system.chain.pi - 1 / system.tokens
    k, turned = np.sqrt(theory.ray_constant(system.chain)), "embedding and read-out exchanged"

    def entry(right: bool) -> np.ndarray:
        halves = [k * pi / np.linalg.norm(pi), k * v / np.linalg.norm(v)]
        return np.concatenate([*(halves if right else halves[::-1]), [0, 0]])

    def speed(right: bool) -> float:
        return np.abs(_minus_gradient(entry(right), system.chain)).max() / k

    def same(right: bool):
        return entry(right), system.lift(rank_one.entry(system))

    return every(
        critical=compared(at_most, turned, speed, bound=1e-14),
        entry=compared(equal, turned, same, rtol=1e-12),
    )


@paper.claim("eqs 80-81", part="proof-step", regime=several_low)
@against("the first token moved too", at_most, bound=1e-14)
def group_action(study, right: bool):
    r"""Permuting the lower tokens in $W_0$ and $W_1$ permutes the predictions and leaves the
    loss."""
    chain = theory.two_group(study.chain)
    d, theta = chain.tokens, OneLayerAttention.gaussian(chain.tokens, DIM, 0.7, SEEDS[0])
    order = np.r_[0, np.roll(np.arange(1, d), 1)] if right else np.r_[1, 0, 2:d]
    image = OneLayerAttention(theta.W0[order], theta.W1[:, order], theta.WQ, theta.WK)
    here, there = (np.asarray(one_layer.prediction(th, chain.pi)) for th in (theta, image))
    loss = [float(one_layer.population_loss(th, chain)) for th in (theta, image)]
    return [np.abs(there - here[np.ix_(order, order)]).max(), abs(loss[0] - loss[1])]


# --- The two-group system, eqs. (82) to (89), at random states.


proof = partial(paper.claim, part="proof-step", regime=symmetric_data)


SWAPPED = [1, 0, 2, 3, 4, 5]
"""The two groups exchanged, in the embedding alone."""


@proof("eqs 82-83")
@against("tokens counted once each", equal, rtol=1e-13)
def attention_to_the_first(study, right: bool):
    r"""On the manifold $A$ has the rows $(\xi_i, (1-\xi_i)/(d-1), \dots)$, $\xi_1$ and $\xi_2$ as
    printed."""
    system, z = system_of(study), states(6)
    d = system.tokens
    xi = (system if right else TwoGroup(1 / d, system.lam, d)).attention(z)
    each = np.stack(xi, axis=1)[:, [0] + [1] * (d - 1)]
    low = np.repeat(((1 - each) / (d - 1))[..., None], d - 1, axis=-1)
    return np.concatenate([each[..., None], low], axis=-1), attended(system, z)


@proof("eq 84")
@against("log d", equal, rtol=1e-13)
def predicted_first(study, right: bool):
    r"""The model predicts token 1 with probability $\sigma(m_i\Delta\beta - \log(d-1))$."""
    system, z = system_of(study), states(6)
    m, gap = np.stack(system.averages(z), axis=1), (z[:, 2] - z[:, 3])[:, None]
    other = 1 / (1 + np.exp(-(m * gap - np.log(system.tokens))))
    formula = np.stack(system.prediction(z), axis=1) if right else other
    return formula, predicted(system, z)[:, [0, 1], 0]


@proof("eqs 85-86")
@against("beta_1 for the difference", equal, rtol=1e-12)
def residual_identity(study, right: bool):
    r"""$(P_i - \hat p_i)\beta = r_i\Delta\beta$ with $r_i = P_{i1} - \hat p_{i1}$, the same for
    every lower token."""
    system, z = system_of(study), states(6)
    d, gap = system.tokens, system.chain.transition - predicted(system, z)
    r = np.stack(system.residuals(z), axis=1)[:, [0] + [1] * (d - 1)]
    beta = z[:, 2:3] - (z[:, 3:4] if right else 0)
    return r * beta, np.einsum("sij,sj->si", gap, system.lift(z)[:, d : 2 * d])


@proof("App C.3 (variance of attention)")
def variance_identities(study) -> Measurement:
    r"""$\mathrm{Var}(A_i)\gamma = \xi_i(1-\xi_i)\Delta\gamma\,(1, -1/(d-1), \dots)$, and
    $\gamma^\top\mathrm{Var}(A_i)\gamma = \xi_i(1-\xi_i)(\Delta\gamma)^2$."""
    system, z = system_of(study), states(6)
    d, gap, g = system.tokens, z[:, 0] - z[:, 1], system.lift(z)[:, : system.tokens]
    A = attended(system, z)[:, :2]
    moved = A * g[:, None, :] - A * np.einsum("sij,sj->si", A, g)[..., None]
    spread = np.stack([x * (1 - x) for x in system.attention(z)], axis=1) * gap[:, None]

    def vector(right: bool):
        below = np.full(d - 1, -1 / (d - 1 if right else d))
        return spread[..., None] * np.r_[1.0, below], moved

    def form(right: bool):
        return spread * (gap if right else z[:, 0])[:, None], np.einsum("sij,sj->si", moved, g)

    bars = {"rtol": 1e-12, "atol": 1e-15}
    return every(
        vector=compared(equal, "-1/d below", vector, **bars),
        form=compared(equal, "gamma_1 for the second difference", form, **bars),
    )


@proof("eq 87")
@against("the two groups exchanged", equal, rtol=1e-12)
def driven_by_the_readout(study, right: bool):
    r"""The $M$-driven velocities of $\gamma_1$ and $\gamma_{low}$ are those of eq. (87)."""
    system, z = system_of(study), states(6)
    formula = system.from_readout(z if right else z[:, SWAPPED])
    return np.stack(formula, axis=1), _driven(system, z)[0]


@proof("eq 88", reading=r"the last term has lost its factor $\gamma_{i\ne1}$, which (89) keeps")
@against("as extracted", equal, rtol=1e-12)
def first_driven_by_the_scores(study, right: bool):
    r"""The $\Phi$-driven velocity of $\gamma_1$; its last term is
    $(1-\pi_1)r_2\xi_2(1-\xi_2)\gamma_{low}\Delta\gamma$."""
    system, z = system_of(study), states(6)
    return system.from_scores(z, printed=not right)[0], _driven(system, z)[1][:, 0]


@proof("eq 89")
@against("the two groups exchanged", equal, rtol=1e-12)
def low_driven_by_the_scores(study, right: bool):
    r"""The $\Phi$-driven velocity of $\gamma_{low}$, with $a = \gamma_1$ and $b = \gamma_{low}$."""
    system, z = system_of(study), states(6)
    formula = system.from_scores(z if right else z[:, SWAPPED])[1]
    return formula, _driven(system, z)[1][:, 1]


@paper.claim("ours: two-group system in closed form", regime=symmetric_data)
def two_group_velocity(study) -> Measurement:
    r"""Eqs. (87) to (89) with the equations of $\beta$ and $\lambda$ beside them are the flow of
    six numbers: minus the gradient of the loss of all tokens."""
    system = system_of(study)
    d, low = system.tokens, system.tokens - 1

    def velocity(z: np.ndarray, right: bool):
        summed = np.array([1, low, 1, low, 1, 1]) if low > 1 else z
        whole = _minus_gradient(system.lift(z), system.chain)
        return system.velocity(z) * (1 if right else summed), whole[[0, 1, d, d + 1, -2, -1]]

    control = "the gradient in the six numbers, lower tokens summed"
    return compared(identity, control, velocity, over=states(6))


def attended(system: TwoGroup, z: np.ndarray) -> np.ndarray:
    """The model's attention `[state, query, key]`."""
    return np.array([one_layer.attention(th, system.chain.pi) for th in lifted(system, z)])


def predicted(system: TwoGroup, z: np.ndarray) -> np.ndarray:
    """What the model predicts `[state, token, next]`."""
    return np.array([one_layer.prediction(th, system.chain.pi) for th in lifted(system, z)])


def _driven(system: TwoGroup, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-GM beta and -eta (GP + GP^T) gamma at tokens 1 and 2, from autodiff's gradients."""
    by_M, by_scores = [], []
    for x in system.lift(z):
        g, b, eta, GM, GP = _gradients(x, system.chain)
        by_M.append((-GM @ b)[:2])
        by_scores.append((-eta * (GP + GP.T) @ g)[:2])
    return np.array(by_M), np.array(by_scores)
