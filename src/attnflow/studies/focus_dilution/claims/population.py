"""Section 2: the flow in the four matrices, its population limit, and what it conserves."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Correction, Measurement, at_most, claim, corrected, equal
from attnflow.flows import Flow
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution.claims.common import (
    SEEDS,
    STUDY,
    autodiff_gradients,
    random_points,
)


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
