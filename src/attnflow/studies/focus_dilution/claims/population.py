"""Section 2: the flow in the four matrices, its population limit, and what it conserves."""

from __future__ import annotations

from functools import lru_cache

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
    not_checkable,
    statistical,
)
from attnflow.flows import Flow
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.models.one_layer_contexts import context_attention, context_gradients
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    STUDY,
    autodiff_gradients,
    forgetful,
    inside,
    random_points,
    two_term,
)
from attnflow.tasks.contexts import Contexts
from attnflow.tasks.markov import MarkovChain


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
        np.concatenate(predicted),
        np.concatenate(measured),
        rtol=1e-12,
        control=np.concatenate(wrong),
        note=f"random weights, seeds {SEEDS}",
    )


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


@lru_cache(maxsize=16)
def _by_autodiff(chain: MarkovChain) -> Flow:
    return Flow(lambda th: one_layer.population_loss(th, chain))


def study_gradient(study, theta: OneLayerAttention) -> np.ndarray:
    """-dL/dW0 by autodiff of the whole loss."""
    return _by_autodiff(study.chain).velocity(theta).W0


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
        worst = max(
            worst, *(float(np.abs(x).max()) for x in (balance - attention, pair, v.W1.sum(axis=1)))
        )
        control = max(control, float(np.abs(balance + attention).max()))
    return at_most(worst, 1e-12, control=control, note="largest entry of dC/dt at random weights")


@claim("eq 2", study=STUDY, regime=two_term, expected=inside(two_term))
def the_law_is_stationary(study) -> Measurement:
    """P = lam I + (1 - lam) 1 pi^T is row-stochastic and has stationary law pi."""
    chain = study.chain
    moved = np.roll(chain.pi, 1)
    return every(
        stationary=at_most(
            np.abs(chain.pi @ chain.transition - chain.pi).max(),
            1e-15,
            control=float(np.abs(moved @ chain.transition - chain.pi).max() + 1e-3),
        ),
        rows=equal(np.ones(chain.tokens), chain.transition.sum(axis=1), rtol=1e-14, control=1.01),
    )


@claim(
    "Prop 2.3 (limit in s)",
    strength="fit",
    study=STUDY,
    regime=forgetful,
    expected=inside(forgetful, "consistent"),
)
def long_contexts(study) -> Measurement:
    """The gradients of contexts of length s tend to the population gradients; their bias is O(1/s).

    Measured by the exact law of two tokens (the config's most frequent one against the rest), at
    random weights: no sample, so no noise.
    """
    lengths = (160, 320, 640, 1280)
    bias = [_bias(study, s, "uniform") for s in lengths]
    return exponent(lengths, bias, -1.0, tol=0.1, control=-2.0, note=f"weights of seed {SEEDS[0]}")


@claim("Prop 2.3 (limit in N)", strength="fit", study=STUDY, expected="consistent")
def many_sequences(study) -> Measurement:
    """The gradient of N sequences tends to that of their law like N^(-1/2)."""
    chain, s = study.chain, 6
    theta = OneLayerAttention.gaussian(chain.tokens, DIM, 0.7, SEEDS[0])
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    exact = context_gradients(M, Phi, Contexts.of_chain(chain, s))[0]
    numbers = (250, 1000, 4000, 16000)
    noise = []
    for n in numbers:
        off = []
        for seed in range(12):
            tokens = chain.sample(n, s + 1, seed=seed, first="uniform")
            table = Contexts.of_sample(tokens, chain.tokens)
            off.append(np.sum((context_gradients(M, Phi, table)[0] - exact) ** 2))
        noise.append(np.sqrt(np.mean(off)))
    return exponent(
        numbers,
        noise,
        -0.5,
        tol=0.08,
        control=-1.0,
        note="against the exact law of 6 tokens; 12 samples each",
    )


@claim(
    "ours: bias of short contexts",
    part="constant",
    study=STUDY,
    regime=two_term,
    expected=inside(two_term),
)
def short_contexts(study) -> Measurement:
    """Given the last token i, a stationary context holds pi_j + rho (1_ij - pi_j) of token j,
    with rho = (1 - lam^s) / (s (1 - lam)): at s = 19 and lam = .8 a quarter of it is token i."""
    chain = study.chain
    length = 19 if chain.tokens <= 5 else 6
    shares = Contexts.of_chain(chain, length, "stationary").mean_frequencies
    rho = theory.context_bias(chain, length)
    predicted = chain.pi + rho * (np.eye(chain.tokens) - chain.pi)
    return equal(
        predicted,
        shares,
        rtol=1e-12,
        control=np.tile(chain.pi, (chain.tokens, 1)),
        note=f"rho = {rho:.4f} at s = {length}; the control is the limit",
    )


@claim("Prop B.1 (i)", study=STUDY, regime=two_term, expected=inside(two_term))
def marginals_converge(study) -> Measurement:
    """From any first law mu the marginals converge to pi; for eq. (2) exactly like lam^t."""
    chain, t = study.chain, 30
    mu = np.full(chain.tokens, 0.1 / (chain.tokens - 1))
    mu[-1] = 0.9
    moved = mu @ np.linalg.matrix_power(chain.transition, t)
    predicted = chain.pi + chain.lam**t * (mu - chain.pi)
    return equal(
        predicted, moved, rtol=1e-12, control=chain.pi + (0.9 * chain.lam) ** 5 * (mu - chain.pi)
    )


@claim(
    "Prop B.1 (ii)",
    strength="statistical",
    regime=forgetful,
    expected=inside(forgetful),
    study=STUDY,
)
def frequencies_converge(study) -> Measurement:
    """Along one trajectory the empirical frequencies converge to pi (a test at finite length)."""
    chain = study.chain
    tokens = chain.sample(64, 4000, seed=7, first="uniform")
    lead = int(np.argmax(chain.pi))
    shares = (tokens == lead).mean(axis=1)
    law, words = float(chain.pi[lead]), "64 trajectories of 4,000 tokens; the commonest token"
    return statistical(law, shares, z=4.0, control=0.9 * law, note=words)


@claim("Prop B.1 (ii, almost surely)", part="statement", study=STUDY, expected="not-checkable")
def almost_surely(study) -> Measurement:
    """The empirical frequencies converge almost surely."""
    return not_checkable("an almost-sure limit cannot be decided by finitely many finite runs")


@claim("App B.2 (eq 31)", study=STUDY)
def chain_rule_of_the_embedding(study) -> Measurement:
    """dL/dW0 = GM W1^T + GP W0 WK WQ^T + GP^T W0 WQ WK^T."""
    measured, predicted, wrong = [], [], []
    for theta in random_points(study)[:2]:
        GM, GP = autodiff_gradients(theta, study.chain)
        W0, W1, WQ, WK = (np.asarray(w) for w in (theta.W0, theta.W1, theta.WQ, theta.WK))
        formula = GM @ W1.T + GP @ W0 @ WK @ WQ.T + GP.T @ W0 @ WQ @ WK.T
        predicted.append(formula.ravel())
        wrong.append((formula + GP @ W0 @ WQ @ WK.T).ravel())
        measured.append(-study_gradient(study, theta).ravel())
    return equal(
        np.concatenate(predicted),
        np.concatenate(measured),
        rtol=1e-12,
        control=np.concatenate(wrong),
    )


@claim("App B.2 (eq 32, 39)", study=STUDY)
def gradients_of_a_sample(study) -> Measurement:
    """Before the limit: the gradients in M and Phi of N sequences, as sums over positions."""
    chain = study.chain
    tokens = chain.sample(200, 9, seed=3, first="uniform")
    theta = OneLayerAttention.gaussian(chain.tokens, DIM, 0.7, SEEDS[1])
    by_autodiff = Flow(lambda th: one_layer.sequence_loss(th, tokens)).velocity(theta)
    table = Contexts.of_sample(tokens, chain.tokens)
    right = one_layer.move(theta, lambda M, Phi: context_gradients(M, Phi, table))
    limit = one_layer.velocity(theta, chain)
    flat = lambda th: np.concatenate([np.ravel(w) for w in (th.W0, th.W1, th.WQ, th.WK)])  # noqa: E731
    return equal(
        flat(right),
        flat(by_autodiff),
        rtol=1e-11,
        control=flat(limit),
        note="200 sequences of 8 tokens; the control is the population limit",
    )


@claim("App B.2 (eq 33, 34)", part="proof-step", study=STUDY)
def pooled_attention(study) -> Measurement:
    """Where token j fills the share pi_j of a context, its positions together get A_ij."""
    pi = study.chain.pi
    theta = random_points(study)[0]
    counts = np.tile(np.round(pi * 10**9), (len(pi), 1)).astype(np.int64)
    table = Contexts(np.arange(len(pi)), counts, np.eye(len(pi)) / len(pi))
    pooled = np.asarray(context_attention(np.asarray(theta.score), table))
    uneven = Contexts(np.arange(len(pi)), np.ones_like(counts), np.eye(len(pi)) / len(pi))
    control = np.asarray(context_attention(np.asarray(theta.score), uneven))
    control = control + (0.01 if np.ptp(pi) < 1e-6 else 0.0)
    return equal(np.asarray(one_layer.attention(theta, pi)), pooled, rtol=1e-8, control=control)


def _bias(study, length: int, first: str) -> float:
    """|GM of contexts of a length - GM of the population|, relative, for two lumped tokens."""
    p = float(np.clip(study.chain.pi.max(), 0.05, 0.95))
    chain = MarkovChain((p, 1 - p), study.chain.lam or 0.8)
    theta = OneLayerAttention.gaussian(2, DIM, 0.7, SEEDS[0])
    M, Phi = np.asarray(theta.readout), np.asarray(theta.score)
    limit = one_layer.token_gradients(M, Phi, chain)[0]
    finite = context_gradients(M, Phi, Contexts.of_chain(chain, length, first))[0]  # type: ignore[arg-type]
    return float(np.linalg.norm(finite - limit) / np.linalg.norm(limit))
