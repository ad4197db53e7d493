"""Claims of the focus-dilution study: what the paper states, measured here.

Every claim is about the exact population flow. Statements whose hypothesis is a two-group law
are measured on the two-group law with the config's own first entry (`theory.two_group`), and the
regime is evaluated on that law.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from attnflow._precision import float64
from attnflow.claims import (
    Correction,
    Measurement,
    Regime,
    at_least,
    at_most,
    claim,
    corrected,
    equal,
    every,
)
from attnflow.claims import slope as fitted_slope
from attnflow.flows import Flow, Mark, integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.tasks.markov import MarkovChain

STUDY = "focus-dilution"
SEEDS = (11, 12, 13)

DIM = 4
"""Width at which claims are measured: none depends on it, and one width is compiled once."""


def nonuniform(study) -> Regime:
    spread = float(np.ptp(study.chain.pi))
    return Regime(spread > 0, f"the law is not uniform (its entries span {spread:.3g})")


def two_groups(study) -> Regime:
    pi = theory.two_group(study.chain).pi
    inside = bool(pi[0] > pi[1] and np.ptp(pi[1:]) < 1e-12)
    return Regime(inside, f"two-group law: pi1 = {pi[0]:.4g} > pi2 = ... = pid = {pi[1]:.4g}")


def two_term(study) -> Regime:
    lam = study.chain.lam
    return Regime(lam is not None, "P = lam I + (1 - lam) 1 pi^T, eq. (2)")


def distinct(study) -> Regime:
    low = np.sort(study.chain.pi)[:-1]
    spread = float(np.ptp(low))
    inside = study.chain.tokens > 2 and spread > 1e-3
    return Regime(inside, f"the lower-frequency tokens differ (by {spread:.3g})")


def inside(regime: Callable[[Any], Regime], verdict: str = "holds") -> Callable[[Any], str]:
    """What to expect of a claim: its verdict inside the regime, `out-of-regime` outside."""
    return lambda study: verdict if regime(study).inside else "out-of-regime"


def random_points(study, scale: float = 0.7) -> list[OneLayerAttention]:
    d = study.chain.tokens
    return [OneLayerAttention.gaussian(d, DIM, scale, seed) for seed in SEEDS]


@float64
def autodiff_gradients(theta: OneLayerAttention, chain: MarkovChain):
    """dL/dM and dL/dPhi of the population loss by autodiff, independent of the closed form."""

    def loss(M, Phi):
        A = jax.nn.softmax(Phi + jnp.log(chain.pi), axis=1)
        return -jnp.sum(chain.pi[:, None] * chain.transition * jax.nn.log_softmax(A @ M, axis=1))

    gradients = jax.grad(loss, (0, 1))(theta.readout, theta.score)
    return [np.asarray(g) for g in gradients]


@claim("Prop 2.3 (eq 5)", study=STUDY)
def population_gradients(study) -> Measurement:
    """The population gradients in M and Phi have the closed form of eq. (5)."""
    measured, predicted, wrong = [], [], []
    for theta in random_points(study):
        by_autodiff = autodiff_gradients(theta, study.chain)
        GM, GP = one_layer.token_gradients(theta.readout, theta.score, study.chain)
        measured += [np.ravel(g) for g in by_autodiff]
        predicted += [np.ravel(GM), np.ravel(GP)]
        wrong += [np.ravel(GM), 1.01 * np.ravel(GP)]
    return equal(
        np.concatenate(predicted), np.concatenate(measured), rtol=1e-12,
        control=np.concatenate(wrong), note=f"random weights, seeds {SEEDS}",
    )  # fmt: skip


@claim("Prop 2.3 (eq 4)", expected="holds-corrected", study=STUDY)
def embedding_velocity(study) -> Measurement:
    """The embedding moves by -GM W1^T - GP W0 (WQ WK^T)^T - GP^T W0 WQ WK^T."""
    theta = random_points(study)[0]
    GM, GP = autodiff_gradients(theta, study.chain)
    W0, W1, WQ, WK = (np.asarray(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK))
    by_autodiff = study_gradient(study, theta)
    printed = -GM @ W1.T - GP @ W0 @ WQ.T - GP.T @ W0 @ WQ @ WK.T
    right = -GM @ W1.T - GP @ W0 @ WK @ WQ.T - GP.T @ W0 @ WQ @ WK.T
    return corrected(
        printed=equal(printed, by_autodiff, rtol=1e-12),
        right=equal(right, by_autodiff, rtol=1e-12),
        correction=Correction(
            printed="W0' = -GM W1^T - GP W0 WQ^T - GP^T W0 W_QK",
            corrected="W0' = -GM W1^T - GP W0 W_QK^T - GP^T W0 W_QK, with W_QK = WQ WK^T",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                W0, G = rng.normal(size=(3, 4)), rng.normal(size=(3, 3))
                WQ, WK, E = (rng.normal(size=s) for s in ((4, 4), (4, 4), (3, 4)))
                score = lambda w: w @ WQ @ WK.T @ w.T            # L = <G, Phi>, so dL/dPhi = G
                h = 1e-6
                slope = np.sum(G * (score(W0 + h * E) - score(W0 - h * E))) / (2 * h)
                printed = G @ W0 @ WQ.T + G.T @ W0 @ WQ @ WK.T
                right = G @ W0 @ (WQ @ WK.T).T + G.T @ W0 @ WQ @ WK.T
                print("printed", np.sum(printed * E) - slope, "right", np.sum(right * E) - slope)
                assert abs(np.sum(right * E) - slope) < 1e-6 < abs(np.sum(printed * E) - slope)
            """,
        ),
    )


def study_gradient(study, theta: OneLayerAttention) -> np.ndarray:
    """-dL/dW0 by autodiff of the whole loss."""
    flow = Flow(lambda th: one_layer.population_loss(th, study.chain))
    return flow.velocity(theta).W0


@claim("ours: conserved balances", study=STUDY)
def conserved(study) -> Measurement:
    """The flow conserves W0^T W0 - W1 W1^T - WQ WQ^T - WK WK^T, WQ^T WQ - WK^T WK and W1 1."""
    worst, control = 0.0, 0.0
    flow = population_flow(study.chain)
    for theta in random_points(study):
        v = flow.velocity(theta)
        rate = lambda a, b: a.T @ b + b.T @ a  # noqa: E731
        outer = lambda a, b: a @ b.T + b @ a.T  # noqa: E731
        attention = outer(theta.WQ, v.WQ) + outer(theta.WK, v.WK)
        balance = rate(theta.W0, v.W0) - outer(theta.W1, v.W1)
        pair = rate(theta.WQ, v.WQ) - rate(theta.WK, v.WK)
        worst = max(worst, *(float(np.abs(x).max()) for x in (
            balance - attention, pair, v.W1.sum(axis=1))))  # fmt: skip
        control = max(control, float(np.abs(balance + attention).max()))
    return at_most(worst, 1e-12, control=control, note="largest entry of dC/dt at random weights")


@claim("Thm 3.2 (eq 9)", study=STUDY)
def gradients_at_the_origin(study) -> Measurement:
    """At the origin dL/dM = -pi (pi - 1/d)^T and dL/dPhi = 0."""
    d, pi = study.chain.tokens, study.chain.pi
    theta = OneLayerAttention.gaussian(d, DIM, 1e-300, 0)
    GM, GP = autodiff_gradients(theta, study.chain)
    _, elsewhere = autodiff_gradients(random_points(study)[0], study.chain)
    predicted = -np.outer(pi, pi - 1 / d)
    return every(
        M=equal(predicted, GM, rtol=1e-13, atol=1e-15, control=predicted.T + 1e-3),
        Phi=at_most(np.abs(GP).max(), 1e-15, control=np.abs(elsewhere).max()),
    )


@claim("Thm 3.2 (condensation time)", part="constant", regime=nonuniform, study=STUDY,
       expected=inside(nonuniform))  # fmt: skip
def condensation_time(study) -> Measurement:
    """From scale eps the embedding condenses at log(r/a0)/(|pi||v|), a0 the unstable component."""
    measured, predicted = _condensation(study, (1e-3, 1e-5, 1e-8))
    control = 1.02 * np.asarray(predicted)
    return equal(predicted, measured, rtol=5e-3, each=True, control=control)


@claim("Thm 3.2 (order log 1/eps)", strength="fit", regime=nonuniform, study=STUDY,
       expected=inside(nonuniform, "consistent"))  # fmt: skip
def condensation_order(study) -> Measurement:
    """The condensation time is Theta(log 1/eps): its slope against log 1/eps is 1/mu0."""
    scales = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
    measured, _ = _condensation(study, scales)
    rate = theory.escape_rate(study.chain)
    return fitted_slope(
        -np.log(scales), measured, 1 / rate, tol=0.01 / rate, control=1.1 / rate,
        note="mu0 = |pi||v|",
    )  # fmt: skip


def _condensation(study, scales) -> tuple[list[float], list[float]]:
    """Measured and predicted times at which the condensed amplitude reaches 0.05."""
    level, measured, predicted = 0.05, [], []
    flow = population_flow(study.chain)
    pi, v = study.chain.pi, study.chain.pi - 1 / study.chain.tokens
    q, u = pi / np.linalg.norm(pi), v / np.linalg.norm(v)

    def amplitude(th):
        return jnp.linalg.norm(th.W0.T @ q + th.W1 @ u) / 2

    stop = {"condensed": Mark(amplitude, level, 1)}
    for scale in scales:
        theta = OneLayerAttention.gaussian(study.chain.tokens, DIM, scale, SEEDS[0])
        guess = theory.condensation_time(theta, study.chain, level)
        solution = integrate(
            flow, theta, until=3 * guess, stops=stop,
            rtol=1e-8, progress=False,
        )  # fmt: skip
        measured.append(solution.first("condensed"))
        predicted.append(guess)
    return measured, predicted


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
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    k, a, zero = np.sqrt(k2), np.eye(DIM)[0], np.zeros((DIM, DIM))
    theta = OneLayerAttention(
        k * np.outer(pi / np.linalg.norm(pi), a), k * np.outer(a, v / np.linalg.norm(v)), zero, zero
    )  # type: ignore[arg-type]
    velocity = population_flow(chain).velocity(theta)
    speed = max(float(np.abs(w).max()) for w in (velocity.W0, velocity.W1))
    return speed, float(np.abs(one_layer.prediction(theta, pi) - pi).max())


@claim("Prop 3.4 (eq 14)", part="constant", regime=two_groups, expected=inside(two_groups),
       study=STUDY)  # fmt: skip
def attention_growth_rate(study) -> Measurement:
    """At the second critical point attention grows at c = lam kappa1^4 |pi|_Var^4/(|v||pi|^3)."""
    chain = theory.two_group(study.chain)
    stays = 0.9 * (chain.lam or 0.8)
    return equal(
        theory.printed_focus_rate(chain), _attention_rate(chain), rtol=1e-10,
        control=theory.printed_focus_rate(MarkovChain(chain.pi.tolist(), stays)),
    )  # fmt: skip


@claim("ours: focus rate of any law", part="constant", regime=nonuniform, study=STUDY,
       expected=inside(nonuniform))  # fmt: skip
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
            theory.focus_rate(chain), _attention_rate(chain), rtol=1e-10,
            control=1.001 * theory.focus_rate(chain),
        ),
    )  # fmt: skip


def _attention_rate(chain: MarkovChain) -> float:
    """The top growth rate of (WQ, WK) at the unigram point, from the Jacobian of the flow."""
    system = population_flow(chain).bind(point := theory.unigram_point(chain, DIM))
    jacobian = system.jacobian(system.layout.flatten(point))
    attention = slice(2 * chain.tokens * DIM, None)
    return float(np.linalg.eigvalsh(jacobian[attention, attention])[-1])


@claim("ours: printed ray beyond two groups", part="hypothesis", regime=distinct,
       expected=inside(distinct), study=STUDY)  # fmt: skip
def no_point_on_the_ray(study) -> Measurement:
    """Beyond two groups the ray of eq. (12) holds no critical point: its speed stays above zero."""
    chain = study.chain

    def least(c: MarkovChain) -> float:
        found = minimize_scalar(
            lambda k2: _ray_point(c, k2)[0], bounds=(0.05, 20), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        return float(found.fun)  # type: ignore[union-attr]

    return at_least(
        least(chain), 1e-3, control=least(theory.two_group(chain)),
        note="largest entry of W0', W1' minimised over kappa1^2 in [0.05, 20]",
    )  # fmt: skip


@claim("Thm 3.2 (attention stays small)", regime=nonuniform, expected=inside(nonuniform),
       study=STUDY)  # fmt: skip
def attention_stays_small(study) -> Measurement:
    """Until the embedding has condensed, the attention matrices keep their initial size."""
    theta = OneLayerAttention.gaussian(study.chain.tokens, DIM, 1e-4, SEEDS[0])
    until = theory.condensation_time(theta, study.chain, 0.05)
    solution = integrate(population_flow(study.chain), theta, until=until, rtol=1e-8,
                         progress=False)  # fmt: skip
    moved = np.linalg.norm(solution.final.WQ - theta.WQ) / np.linalg.norm(theta.WQ)
    grown = np.linalg.norm(solution.final.W0 - theta.W0) / np.linalg.norm(theta.W0)
    return at_most(float(moved), 1e-2, control=float(grown),
                   note="relative change of WQ; the control is that of W0")  # fmt: skip
