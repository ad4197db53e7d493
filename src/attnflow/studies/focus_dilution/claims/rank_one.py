"""Section 3.3 and Appendix C.3: the rank-one manifold and its two-group system."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    Regime,
    at_most,
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


def models(study) -> list[OneLayerAttention]:
    """Models of width one at random two-group states."""
    return [rank_one.state_of(x) for x in system_of(study).lift(states(6))]


# --- Prop. 3.6 and the group action.


@paper.claim("Prop 3.6 (i)")
def rank_one_is_invariant(study) -> Measurement:
    r"""The flow stays on the rank-one manifold (18), for any chain: it is the flow of width one."""
    chain = study.chain
    rng = np.random.default_rng(SEEDS[0])
    points = [(z, *rng.normal(size=(3, DIM))) for z in states(2 * chain.tokens + 2)]  # not unit

    def lifted(z, a, at, other) -> np.ndarray:
        return flat(rank_one.rank_one_lift(rank_one.state_of(rank_one.velocity(z, chain)), a, at))

    def moved(z, a, at, other, query=None) -> np.ndarray:
        W0, W1, WQ, WK = blocks(rank_one.rank_one_lift(rank_one.state_of(z), a, at))
        WQ = WQ if query is None else z[-2] * np.outer(query, at)
        return autodiff_velocity(OneLayerAttention(W0, W1, WQ, WK), chain)  # type: ignore[arg-type]

    return identity(
        over=points,
        predicted=lambda p: lifted(*p),
        measured=lambda p: moved(*p),
        control=Control("WQ with another left factor", measured=lambda p: moved(*p, query=p[3])),
    )


@paper.claim("Prop 3.6 (ii)", regime=several_low)
def low_tokens_stay_equal(study) -> Measurement:
    r"""Where the lower tokens have equal $\gamma$ and $\beta$, they move equally and stay equal."""
    system = system_of(study)
    pi, d = system.chain.pi.copy(), system.tokens
    pi[1:3] += np.array([0.1, -0.1]) * pi[1]

    def spread(chain: MarkovChain) -> float:
        """The largest difference of the lower tokens' velocities, by autodiff."""
        v = np.array([autodiff_velocity(th, chain) for th in models(study)])
        return float(np.ptp(v[:, 1:d], axis=1).max() + np.ptp(v[:, d + 1 : 2 * d], axis=1).max())

    other = spread(MarkovChain(pi, system.lam))
    return at_most(
        bound=1e-13,
        measured=spread(system.chain),
        control=Control("lower frequencies that differ by 20 %", other),
    )


@paper.claim("Prop 3.6 (eq 20)")
def closed_system(study) -> Measurement:
    r"""On the manifold $\dot\gamma = -G_M\beta - \eta(G_\Phi + G_\Phi^\top)\gamma$ and
    $\dot\beta = -G_M^\top\gamma$."""
    d = study.chain.tokens

    def system(z: np.ndarray, both: bool = True) -> np.ndarray:
        g, b, eta, GM, GP = _gradients(z, study.chain)
        turned = GP.T if both else 0 * GP
        return np.concatenate([-GM @ b - eta * (GP + turned) @ g, -GM.T @ g])

    return identity(
        over=states(2 * d + 2),
        predicted=system,
        measured=lambda z: _minus_gradient(z, study.chain)[: 2 * d],
        control=Control("without the transposed term", lambda z: system(z, both=False)),
    )


UNEQUAL = Erratum(
    "unequal-scales",
    "the equation of eta needs lambda_Q = lambda_K, which (19) has and Prop. 3.6 does not ask for",
    cause="missing-hypothesis",
)


@paper.claim("Prop 3.6 (eq 20, eta)")
def closed_system_eta(study) -> Measurement:
    r"""On the manifold $\eta = \lambda_Q\lambda_K$ obeys
    $\dot\eta = -(\lambda_Q^2+\lambda_K^2)\gamma^\top G_\Phi\gamma$."""

    def compared(factor) -> Measurement:
        def rate(z: np.ndarray) -> float:
            g, *_, GP = _gradients(z, study.chain)
            return -factor(z[-2], z[-1]) * g @ GP @ g

        def by_loss(z: np.ndarray) -> float:
            v = _minus_gradient(z, study.chain)
            return v[-2] * z[-1] + z[-2] * v[-1]

        points = states(2 * study.chain.tokens + 2)
        return identity(over=points, predicted=rate, measured=by_loss)

    return corrected(
        printed=compared(lambda q, k: 2 * q * k),
        right=compared(lambda q, k: q**2 + k**2),
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
    chain = study.chain

    def swapped(z: np.ndarray) -> np.ndarray:
        moved = rank_one.velocity(z, chain)
        return np.concatenate([moved[:-2], moved[-1:], moved[-2:-1]])

    return every(
        velocity=identity(
            over=states(2 * chain.tokens + 2),
            predicted=lambda z: rank_one.velocity(z, chain),
            measured=lambda z: autodiff_velocity(rank_one.state_of(z), chain),
            control=Control("queries and keys exchanged", swapped),
        ),
        readout=identity(
            over=states(2 * chain.tokens + 2),
            predicted=lambda z: rank_one.readout_gradient(z, chain),
            measured=lambda z: _gradients(z, chain)[3],
            control=Control("that of the scores", measured=lambda z: _gradients(z, chain)[4]),
        ),
        loss=identity(
            over=states(2 * chain.tokens + 2),
            predicted=lambda z: rank_one.loss(z, chain),
            measured=lambda z: float(one_layer.population_loss(rank_one.state_of(z), chain)),
            control=Control(
                "of a flatter chain", measured=lambda z: rank_one.loss(z, _flat(chain))
            ),
        ),
    )


def _flat(chain: MarkovChain) -> MarkovChain:
    return MarkovChain.of(0.5 * (chain.transition + 1 / chain.tokens))


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
    r"""The entry state $\kappa_1(\pi/|\pi|, (\pi-\mathbf 1/d)/|\pi-\mathbf 1/d|)$ with $\lambda =
    0$ is the unigram point, and critical, on a two-group law."""
    system = system_of(study)
    pi, v = system.chain.pi, system.chain.pi - 1 / system.tokens
    k = np.sqrt(theory.ray_constant(system.chain))
    z = np.concatenate([k * pi / np.linalg.norm(pi), k * v / np.linalg.norm(v), [0, 0]])
    turned = np.concatenate([k * v / np.linalg.norm(v), k * pi / np.linalg.norm(pi), [0, 0]])
    speed = lambda x: float(np.abs(_minus_gradient(x, system.chain)).max()) / k  # noqa: E731
    return every(
        critical=at_most(
            bound=1e-14,
            measured=speed(z),
            control=Control("embedding and read-out exchanged", speed(turned)),
        ),
        entry=equal(
            predicted=z,
            measured=system.lift(rank_one.entry(system)),
            rtol=1e-12,
            control=Control("embedding and read-out exchanged", turned),
        ),
    )


@paper.claim("eqs 80-81", part="proof-step", regime=several_low)
def group_action(study) -> Measurement:
    r"""Permuting the lower tokens in $W_0$ and $W_1$ permutes the predictions and leaves the
    loss."""
    chain = theory.two_group(study.chain)
    d = chain.tokens
    theta = OneLayerAttention.gaussian(d, DIM, 0.7, SEEDS[0])

    def gaps(order: np.ndarray) -> list[float]:
        image = OneLayerAttention(theta.W0[order], theta.W1[:, order], theta.WQ, theta.WK)
        here, there = (np.asarray(one_layer.prediction(th, chain.pi)) for th in (theta, image))
        loss = [float(one_layer.population_loss(th, chain)) for th in (theta, image)]
        return [float(np.abs(there - here[np.ix_(order, order)]).max()), abs(loss[0] - loss[1])]

    return at_most(
        bound=1e-14,
        measured=gaps(np.r_[0, np.roll(np.arange(1, d), 1)]),
        control=Control("the first token moved too", gaps(np.r_[1, 0, 2:d])),
    )


# --- The two-group system, eqs. (82) to (89), at random states.


@paper.claim("eqs 82-83", part="proof-step", regime=symmetric_data)
def attention_to_the_first(study) -> Measurement:
    r"""On the manifold $A$ has the rows $(\xi_i, (1-\xi_i)/(d-1), \dots)$, $\xi_1$ and $\xi_2$ as
    printed."""
    system, z = system_of(study), states(6)
    d = system.tokens

    def rows(xi: tuple) -> np.ndarray:
        each = np.stack(xi, axis=1)[:, [0] + [1] * (d - 1)]
        low = np.repeat(((1 - each) / (d - 1))[..., None], d - 1, axis=-1)
        return np.concatenate([each[..., None], low], axis=-1)

    unweighted = TwoGroup(1 / d, system.lam, d)
    return equal(
        predicted=rows(system.attention(z)),
        measured=[one_layer.attention(th, system.chain.pi) for th in models(study)],
        rtol=1e-13,
        control=Control("tokens counted once each", rows(unweighted.attention(z))),
    )


@paper.claim("eq 84", part="proof-step", regime=symmetric_data)
def predicted_first(study) -> Measurement:
    r"""The model predicts token 1 with probability $\sigma(m_i\Delta\beta - \log(d-1))$."""
    system, z = system_of(study), states(6)
    m, gap = np.stack(system.averages(z), axis=1), (z[:, 2] - z[:, 3])[:, None]
    return equal(
        predicted=np.stack(system.prediction(z), axis=1),
        measured=[one_layer.prediction(th, system.chain.pi)[[0, 1], 0] for th in models(study)],
        rtol=1e-13,
        control=Control("log d", 1 / (1 + np.exp(-(m * gap - np.log(system.tokens))))),
    )


@paper.claim("eqs 85-86", part="proof-step", regime=symmetric_data)
def residual_identity(study) -> Measurement:
    r"""$(P_i - \hat p_i)\beta = r_i\Delta\beta$ with $r_i = P_{i1} - \hat p_{i1}$, the same for
    every lower token."""
    system, z = system_of(study), states(6)
    d, chain = system.tokens, system.chain
    gap = chain.transition - np.array([one_layer.prediction(th, chain.pi) for th in models(study)])
    r = np.stack(system.residuals(z), axis=1)[:, [0] + [1] * (d - 1)]
    return equal(
        predicted=r * (z[:, 2:3] - z[:, 3:4]),
        measured=np.einsum("sij,sj->si", gap, system.lift(z)[:, d : 2 * d]),
        rtol=1e-12,
        control=Control("beta_1 for the difference", r * z[:, 2:3]),
    )


@paper.claim("App C.3 (variance of attention)", part="proof-step", regime=symmetric_data)
def variance_identities(study) -> Measurement:
    r"""$\mathrm{Var}(A_i)\gamma = \xi_i(1-\xi_i)\Delta\gamma\,(1, -1/(d-1), \dots)$, and
    $\gamma^\top\mathrm{Var}(A_i)\gamma = \xi_i(1-\xi_i)(\Delta\gamma)^2$."""
    system, z = system_of(study), states(6)
    d, gap, g = system.tokens, z[:, 0] - z[:, 1], system.lift(z)[:, : system.tokens]
    A = np.array([one_layer.attention(th, system.chain.pi)[:2] for th in models(study)])
    moved = A * g[:, None, :] - A * np.einsum("sij,sj->si", A, g)[..., None]
    spread = np.stack([x * (1 - x) for x in system.attention(z)], axis=1) * gap[:, None]
    shape = lambda n: np.r_[1.0, np.full(d - 1, -1 / n)]  # noqa: E731
    return every(
        vector=equal(
            predicted=spread[..., None] * shape(d - 1),
            measured=moved,
            rtol=1e-12,
            atol=1e-15,
            control=Control("-1/d below", spread[..., None] * shape(d)),
        ),
        form=equal(
            predicted=spread * gap[:, None],
            measured=np.einsum("sij,sj->si", moved, g),
            rtol=1e-12,
            atol=1e-15,
            control=Control("gamma_1 for the second difference", spread * z[:, :1]),
        ),
    )


@paper.claim("eq 87", part="proof-step", regime=symmetric_data)
def driven_by_the_readout(study) -> Measurement:
    r"""The $M$-driven velocities of $\gamma_1$ and $\gamma_{low}$ are those of eq. (87)."""
    system, z = system_of(study), states(6)
    swapped = system.from_readout(z[:, [1, 0, 2, 3, 4, 5]])
    return equal(
        predicted=np.stack(system.from_readout(z), axis=1),
        measured=_driven(system, z)[0],
        rtol=1e-12,
        control=Control("the two groups exchanged", np.stack(swapped, axis=1)),
    )


@paper.claim(
    "eq 88",
    part="proof-step",
    regime=symmetric_data,
    reading=r"the last term has lost its factor $\gamma_{i\ne1}$, which (89) keeps",
)
def first_driven_by_the_scores(study) -> Measurement:
    r"""The $\Phi$-driven velocity of $\gamma_1$; its last term is
    $(1-\pi_1)r_2\xi_2(1-\xi_2)\gamma_{low}\Delta\gamma$."""
    system, z = system_of(study), states(6)
    return equal(
        predicted=system.from_scores(z)[0],
        measured=_driven(system, z)[1][:, 0],
        rtol=1e-12,
        control=Control("as extracted", system.from_scores(z, printed=True)[0]),
    )


@paper.claim("eq 89", part="proof-step", regime=symmetric_data)
def low_driven_by_the_scores(study) -> Measurement:
    r"""The $\Phi$-driven velocity of $\gamma_{low}$, with $a = \gamma_1$ and $b = \gamma_{low}$."""
    system, z = system_of(study), states(6)
    swapped = system.from_scores(z[:, [1, 0, 2, 3, 4, 5]])[1]
    return equal(
        predicted=system.from_scores(z)[1],
        measured=_driven(system, z)[1][:, 1],
        rtol=1e-12,
        control=Control("the two groups exchanged", swapped),
    )


@paper.claim("ours: two-group system in closed form", regime=symmetric_data)
def two_group_velocity(study) -> Measurement:
    r"""Eqs. (87) to (89) with the equations of $\beta$ and $\lambda$ beside them are the flow of
    six numbers: minus the gradient of the loss of all tokens."""
    system = system_of(study)

    def group(v: np.ndarray) -> np.ndarray:
        d = system.tokens
        return v[[0, 1, d, d + 1, -2, -1]]

    def summed(z: np.ndarray) -> np.ndarray:
        low = system.tokens - 1
        return system.velocity(z) * (np.array([1, low, 1, low, 1, 1]) if low > 1 else z)

    return identity(
        over=states(6),
        predicted=system.velocity,
        measured=lambda z: group(_minus_gradient(system.lift(z), system.chain)),
        control=Control("the gradient in the six numbers, lower tokens summed", summed),
    )


def _driven(system: TwoGroup, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-GM beta and -eta (GP + GP^T) gamma at tokens 1 and 2, from autodiff's gradients."""
    by_M, by_scores = [], []
    for x in system.lift(z):
        g, b, eta, GM, GP = _gradients(x, system.chain)
        by_M.append((-GM @ b)[:2])
        by_scores.append((-eta * (GP + GP.T) @ g)[:2])
    return np.array(by_M), np.array(by_scores)
