"""Section 3.1: the linearised flow near a saddle, and condensation out of the origin."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from attnflow.claims import Measurement, at_most, claim, equal, every
from attnflow.claims import slope as fitted_slope
from attnflow.flows import Mark, integrate
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    STUDY,
    autodiff_gradients,
    inside,
    nonuniform,
    random_points,
)


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
