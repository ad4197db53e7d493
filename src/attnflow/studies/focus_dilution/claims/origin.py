"""Section 3.1: the linearised flow near a saddle, and condensation out of the origin."""

from __future__ import annotations

from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    at_least,
    at_most,
    claim,
    corrected,
    equal,
    every,
    exponent,
)
from attnflow.claims import slope as fitted_slope
from attnflow.flows import Mark, integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    STUDY,
    autodiff_gradients,
    cosine,
    flat,
    inside,
    jacobian,
    nonuniform,
    random_points,
)
from attnflow.tasks.markov import MarkovChain


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


@claim(
    "Thm 3.2 (condensation time)",
    part="constant",
    regime=nonuniform,
    study=STUDY,
    expected=inside(nonuniform),
)
def condensation_time(study) -> Measurement:
    """From scale eps the embedding condenses at log(r/a0)/(|pi||v|), a0 the unstable component."""
    measured, predicted = _condensation(study.chain)
    control = 1.02 * np.asarray(predicted)
    return equal(predicted, measured, rtol=5e-3, each=True, control=control)


@claim(
    "Thm 3.2 (order log 1/eps)",
    strength="fit",
    regime=nonuniform,
    study=STUDY,
    expected=inside(nonuniform, "consistent"),
)
def condensation_order(study) -> Measurement:
    """The condensation time is Theta(log 1/eps): its slope against log 1/eps is 1/mu0."""
    measured, _ = _condensation(study.chain)
    rate = theory.escape_rate(study.chain)
    return fitted_slope(
        -np.log(SCALES),
        measured,
        1 / rate,
        tol=0.01 / rate,
        control=1.1 / rate,
        note="mu0 = |pi||v|",
    )


SCALES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)


@lru_cache(maxsize=32)
def _condensation(chain: MarkovChain) -> tuple[list[float], list[float]]:
    """Measured and predicted times at which the condensed amplitude reaches its level."""
    measured, predicted = [], []

    def amplitude(th):
        return jnp.linalg.norm(theory.condensed_amplitude(th, chain))

    stop = {"condensed": Mark(amplitude, theory.CONDENSED, 1)}
    for scale in SCALES:
        theta = OneLayerAttention.gaussian(chain.tokens, DIM, scale, SEEDS[0])
        guess = theory.condensation_time(theta, chain, theory.CONDENSED)
        solution = integrate(
            population_flow(chain), theta, until=3 * guess, stops=stop, rtol=1e-8, progress=False
        )
        measured.append(solution.first("condensed"))
        predicted.append(guess)
    return measured, predicted


@claim(
    "Thm 3.2 (attention stays small)", regime=nonuniform, expected=inside(nonuniform), study=STUDY
)
def attention_stays_small(study) -> Measurement:
    """Until the embedding has condensed, the attention matrices keep their initial size."""
    theta = OneLayerAttention.gaussian(study.chain.tokens, DIM, 1e-4, SEEDS[0])
    until = theory.condensation_time(theta, study.chain, 0.05)
    solution = integrate(
        population_flow(study.chain), theta, until=until, rtol=1e-8, progress=False
    )
    moved = np.linalg.norm(solution.final.WQ - theta.WQ) / np.linalg.norm(theta.WQ)
    grown = np.linalg.norm(solution.final.W0 - theta.W0) / np.linalg.norm(theta.W0)
    return at_most(
        float(moved),
        1e-2,
        control=float(grown),
        note="relative change of WQ; the control is that of W0",
    )


@claim(
    "Thm 3.2 (eq 10)",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform, "holds-corrected"),
)
def linear_system_at_the_origin(study) -> Measurement:
    """Near the origin W0' = -GM W1^T and W1' = -W0^T GM, with GM = -pi (pi - 1/d)^T."""
    chain = study.chain
    # Width d, where what is printed has the right shape too. At 1e-60 the flow is its linear part.
    theta = OneLayerAttention.gaussian(chain.tokens, chain.tokens, 1e-60, SEEDS[0])
    moved = one_layer.velocity(theta, chain)
    W0, W1 = np.asarray(theta.W0), np.asarray(theta.W1)
    G = np.outer(chain.pi, chain.pi - 1 / chain.tokens)
    measured = np.concatenate([moved.W0.ravel(), moved.W1.ravel()])
    right = np.concatenate([(G @ W1.T).ravel(), (W0.T @ G).ravel()])
    printed = np.concatenate([(G @ W0.T).ravel(), (W0.T @ G).ravel()])
    return corrected(
        printed=equal(printed, measured, rtol=1e-10),
        right=equal(right, measured, rtol=1e-10),
        correction=Correction(
            printed="dW0/dt = -GM W0^T, dW1/dt = -W0^T GM",
            corrected="dW0/dt = -GM W1^T, dW1/dt = -W0^T GM",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                rng = np.random.default_rng(0)
                G, W0 = rng.normal(size=(3, 3)), rng.normal(size=(3, 4))
                W1 = rng.normal(size=(4, 3))
                E, h = rng.normal(size=(3, 4)), 1e-6      # L = <G, W0 W1> to second order
                slope = np.sum(G * ((W0 + h * E) @ W1 - (W0 - h * E) @ W1)) / (2 * h)
                print("with W1^T:", np.sum((G @ W1.T) * E) - slope)
                assert abs(np.sum((G @ W1.T) * E) - slope) < 1e-6
                assert (G @ W1.T).shape == W0.shape and W0.T.shape[0] != G.shape[1]
            """,
        ),
    )


@claim(
    "Thm 3.2 (spectrum of the origin)",
    part="constant",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform),
)
def spectrum_of_the_origin(study) -> Measurement:
    """The rates at the origin are mu0 = |pi||v| and -mu0, m times each, and 0."""
    rates = np.sort(np.linalg.eigvalsh(at_origin(study.chain)))
    mu0 = theory.escape_rate(study.chain)
    predicted = np.zeros_like(rates)
    predicted[:DIM], predicted[-DIM:] = -mu0, mu0
    wrong = predicted.copy()
    wrong[-DIM:] = [*[0.0] * (DIM - 1), mu0]
    return equal(
        predicted,
        rates,
        rtol=1e-12,
        control=wrong,
        note="the control has one unstable direction, as the text says",
    )


@claim("Thm 3.2 (eq 11)", study=STUDY, regime=nonuniform, expected=inside(nonuniform))
def rank_one_condensation(study) -> Measurement:
    """At the condensation time W0 and W1 are parallel to pi a^T and a (pi - 1/d)^T."""
    chain = study.chain
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    start = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-6, SEEDS[0])
    until = theory.condensation_time(start, chain, 0.02)
    end = integrate(population_flow(chain), start, until=until, rtol=1e-8, progress=False).final
    a = theory.condensed_amplitude(end, chain)
    found = [cosine(end.W0, np.outer(pi, a)), cosine(end.W1, np.outer(a, v))]
    other = [cosine(end.W0, np.outer(np.sqrt(pi), a)), cosine(end.W1, np.outer(a, np.sqrt(pi)))]
    return at_least(found, 0.999, control=other, note="scale 1e-6; the control has sqrt(pi)")


@claim(
    "Thm 3.2 (direction)",
    part="constant",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform),
)
def condensed_direction(study) -> Measurement:
    """The direction is that of the start's own component: a = W0(0)^T q + W1(0) u, normalised."""
    chain = study.chain
    start = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-6, SEEDS[0])
    until = theory.condensation_time(start, chain, 0.02)
    end = integrate(population_flow(chain), start, until=until, rtol=1e-8, progress=False).final
    unit = lambda x: x / np.linalg.norm(x)  # noqa: E731
    a0, a = (unit(theory.condensed_amplitude(th, chain)) for th in (start, end))
    another = unit(np.asarray(start.W0).T @ np.ones(chain.tokens))
    return at_least(float(a0 @ a), 0.9999, control=float(another @ a))


@claim(
    "Lemma 3.1 (eq 7, origin)",
    strength="fit",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform, "consistent"),
)
def linearisation_error_at_the_origin(study) -> Measurement:
    """The linearised flow errs by O(eps^2); at the origin by eps^3, as the first nonlinear term
    there is cubic."""
    scales, errors = linear_errors(study.chain, origin=True)
    return exponent(scales, errors, 3.0, tol=0.05, control=2.0)


@claim(
    "Lemma 3.1 (eq 7, second point)",
    strength="fit",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform, "consistent"),
)
def linearisation_error_at_the_second_point(study) -> Measurement:
    """The linearised flow errs by O(eps^2) near the second critical point."""
    scales, errors = linear_errors(study.chain, origin=False)
    return exponent(scales, errors, 2.0, tol=0.05, control=1.0)


@claim("Lemma 3.1 (eq 8)", study=STUDY, regime=nonuniform, expected=inside(nonuniform))
def alignment_with_a_simple_mode(study) -> Measurement:
    """With a simple top rate the flow aligns with its eigenvector while eps e^(mu t) is small.

    Width one, where the rate at the origin is simple: at t = log(1/eps)/(2 mu).
    """
    chain = study.chain
    flow = population_flow(chain)
    q = chain.pi / np.linalg.norm(chain.pi)
    v = chain.pi - 1 / chain.tokens
    mode = np.concatenate([q, v / np.linalg.norm(v), [0.0, 0.0]]) / np.sqrt(2)
    other = np.concatenate([q, -v / np.linalg.norm(v), [0.0, 0.0]]) / np.sqrt(2)
    scale = 1e-12
    start = OneLayerAttention.gaussian(chain.tokens, 1, scale, SEEDS[1])
    until = np.log(1 / scale) / (2 * theory.escape_rate(chain))
    y = flat(integrate(flow, start, until=until, rtol=1e-9, progress=False).final)
    return at_least(
        abs(cosine(y, mode)),
        0.9999,
        control=abs(cosine(y, other)),
        note="scale 1e-12; the control is the mode of rate -mu",
    )


@claim(
    "Lemma 3.1 (simple eigenvalue)",
    part="hypothesis",
    study=STUDY,
    regime=nonuniform,
    expected=inside(nonuniform, "holds-corrected"),
)
def the_top_rate_is_not_simple(study) -> Measurement:
    """At both critical points the top rate has multiplicity m, so what survives is the
    projection of the start on an m-dimensional eigenspace, not one eigenvector."""
    rates = np.linalg.eigvalsh(at_origin(study.chain))
    count = float(np.sum(rates > 0.999 * rates.max()))
    return corrected(
        printed=equal(1.0, count, rtol=1e-12),
        right=equal(float(DIM), count, rtol=1e-12),
        correction=Correction(
            printed="J has a simple eigenvalue mu > 0 ... a single unstable direction",
            corrected="mu0 has multiplicity m; the limit is the projection on its eigenspace, "
            "which is pi a^T and a (pi - 1/d)^T with a fixed by the start",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                pi = np.array([0.75, 0.19, 0.05, 0.01]); d, m = 4, 3
                G = np.outer(pi, pi - 1 / d)            # W0' = G W1^T, W1'^T = G^T W0
                J = np.kron(np.block([[np.zeros((d, d)), G], [G.T, np.zeros((d, d))]]), np.eye(m))
                rates = np.linalg.eigvalsh(J)
                print(np.sum(rates > 0.999 * rates.max()), "copies at width", m)
                assert np.sum(rates > 0.999 * rates.max()) == m
            """,
        ),
    )


@lru_cache(maxsize=32)
def at_origin(chain: MarkovChain) -> np.ndarray:
    """The Jacobian of the flow at the origin."""
    return jacobian(OneLayerAttention.gaussian(chain.tokens, DIM, 1e-200, 0), chain)


@lru_cache(maxsize=32)
def linear_errors(chain: MarkovChain, origin: bool) -> tuple[tuple[float, ...], tuple]:
    """|nonlinear - linear| after a fixed time, from starts of several sizes."""
    flow = population_flow(chain)
    direction = OneLayerAttention.gaussian(chain.tokens, DIM, 1.0, SEEDS[2])
    system = flow.bind(direction)
    point = theory.unigram_point(chain, DIM)
    base = np.zeros(system.size) if origin else system.layout.flatten(point)
    unit = system.layout.flatten(direction)
    unit = unit / np.linalg.norm(unit)
    J = jacobian(system.layout.unflatten(base), chain)
    rates, modes = np.linalg.eigh((J + J.T) / 2)
    time = 1.0 / rates.max()
    scales = (0.02, 0.04, 0.08) if origin else (0.001, 0.002, 0.004)
    errors = []
    for scale in scales:
        start = system.layout.numpy(base + scale * unit)
        end = integrate(flow, start, until=time, rtol=1e-11, progress=False).final
        linear = modes @ (np.exp(rates * time) * (modes.T @ (scale * unit)))
        errors.append(float(np.linalg.norm(system.layout.flatten(end) - base - linear)))
    return scales, tuple(errors)
