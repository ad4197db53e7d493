"""Section 3.2: the derivatives at the second critical point, and where attention grows to."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from attnflow.claims import Correction, Measurement, at_least, claim, corrected, equal
from attnflow.flows import integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    STUDY,
    autodiff_gradients,
    cosine,
    distinct_leader,
    grows,
    inside,
    nonuniform,
    two_term,
    uneven_two_term,
)
from attnflow.tasks.markov import MarkovChain


@claim("Prop C.1 (eq 62)", regime=uneven_two_term, expected=inside(uneven_two_term), study=STUDY)
def score_gradient(study) -> Measurement:
    """At the second point dL/dPhi = -lam Var(pi) b g^T Var(pi), with W0 = g a^T and W1 = a b^T."""
    chain = study.chain
    point = theory.unigram_point(chain, DIM)
    _, GP = autodiff_gradients(point, chain)
    g, b = np.asarray(point.W0)[:, 0], np.asarray(point.W1)[0]
    var = np.diag(chain.pi) - np.outer(chain.pi, chain.pi)
    predicted = -chain.lam * np.outer(var @ b, var @ g)
    wrong = predicted.T + 1e-3
    return equal(predicted, GP, rtol=1e-12, atol=1e-15, control=wrong)


@claim("Prop C.1 (eq 63)", regime=nonuniform, expected=inside(nonuniform), study=STUDY)
def differential_of_the_readout_gradient(study) -> Measurement:
    """At the second point d(dL/dM) = pi pi^T dM Var(pi)."""
    chain = study.chain
    point = theory.unigram_point(chain, DIM)
    M, h = np.asarray(point.readout), 1e-6
    dM = np.random.default_rng(3).normal(size=M.shape)
    Phi = np.zeros_like(M)
    GM = lambda m: one_layer.token_gradients(m, Phi, chain)[0]  # noqa: E731
    measured = (GM(M + h * dM) - GM(M - h * dM)) / (2 * h)
    var = np.diag(chain.pi) - np.outer(chain.pi, chain.pi)
    predicted = np.outer(chain.pi, chain.pi) @ dM @ var
    return equal(
        predicted,
        measured,
        rtol=1e-8,
        control=np.outer(chain.pi, chain.pi) @ dM,
        note="central difference, step 1e-6",
    )


@claim(
    "eq 65",
    part="proof-step",
    regime=two_term,
    study=STUDY,
    expected=inside(two_term, "holds-corrected"),
)
def joint_minus_product(study) -> Measurement:
    """diag(pi) P - pi pi^T = diag(pi) (lam I + (1 - lam) 1 pi^T) - pi pi^T = lam Var(pi)."""
    chain = study.chain
    d, pi, lam = chain.tokens, chain.pi, chain.lam
    measured = np.diag(pi) @ chain.transition - np.outer(pi, pi)
    printed = np.diag(pi) @ (lam * np.eye(d) + (1 - lam) * np.ones((d, d))) - np.outer(pi, pi)
    return corrected(
        printed=equal(printed, measured, rtol=1e-12),
        right=equal(lam * (np.diag(pi) - np.outer(pi, pi)), measured, rtol=1e-12),
        correction=Correction(
            printed="diag(pi) (lam I + (1 - lam) 1 1^T) - pi pi^T",
            corrected="diag(pi) (lam I + (1 - lam) 1 pi^T) - pi pi^T = lam Var(pi)",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                pi, lam = np.array([0.75, 0.125, 0.125]), 0.8
                P = lam * np.eye(3) + (1 - lam) * np.outer(np.ones(3), pi)
                left = np.diag(pi) @ P - np.outer(pi, pi)
                print(left - lam * (np.diag(pi) - np.outer(pi, pi)))
                assert np.allclose(left, lam * (np.diag(pi) - np.outer(pi, pi)))
                assert not np.allclose(P, lam * np.eye(3) + (1 - lam) * np.ones((3, 3)))
            """,
        ),
    )


@claim("Thm 3.5 (eq 15)", regime=grows, expected=inside(grows), study=STUDY)
def queries_and_keys_align(study) -> Measurement:
    """From small WQ, WK near the second point both become a x^T with one common x."""
    theta, a = focused(study.chain)
    start, _ = focused_start(study.chain)
    found = []
    for w in (theta.WQ, theta.WK):
        right = a @ w
        found.append(abs(cosine(w, np.outer(a, right))))
    both = abs(cosine(a @ theta.WQ, a @ theta.WK))
    before = abs(cosine(start.WQ, np.outer(a, a @ start.WQ)))
    words = "where |WQ| has grown from 4e-6 to 0.01; the control is the start"
    return at_least([*found, both], 0.999, control=[before] * 3, note=words)


@claim("Thm 3.5 (eq 16)", regime=grows, expected=inside(grows, "holds-corrected"), study=STUDY)
def score_matrix(study) -> Measurement:
    """Along the unstable ray Phi / |Phi| = pi pi^T / |pi|^2."""
    chain = study.chain
    theta, _ = focused(chain)
    Phi = np.asarray(theta.score)
    measured = Phi / np.linalg.norm(Phi)
    outer = np.outer(chain.pi, chain.pi)
    return corrected(
        printed=equal(outer, measured, rtol=0.02),
        right=equal(outer / (chain.pi @ chain.pi), measured, rtol=0.02),
        correction=Correction(
            printed="Phi / |Phi| = pi pi^T",
            corrected="Phi / |Phi| = pi pi^T / |pi|^2",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                pi = np.array([0.75, 0.125, 0.125])
                Phi = 2.7 * np.outer(pi, pi)                  # W0 = k q a^T, WQ = WK = s a x^T
                unit = Phi / np.linalg.norm(Phi)
                print("norm of pi pi^T:", np.linalg.norm(np.outer(pi, pi)))
                assert np.allclose(unit, np.outer(pi, pi) / (pi @ pi))
                assert not np.allclose(unit, np.outer(pi, pi))
            """,
        ),
    )


@claim("Thm 3.5 (eq 17)", regime=distinct_leader, expected=inside(distinct_leader), study=STUDY)
def limit_of_attention(study) -> Measurement:
    """As the amplitude of WQ = WK = k a x^T grows every query attends to token 1 alone."""
    chain = study.chain
    lead = int(np.argmax(chain.pi))
    g = np.asarray(theory.unigram_point(chain, 1).W0)[:, 0]
    slow = float(np.min(g)) * (float(g[lead]) - float(np.sort(g)[-2]))

    def least(eta: float) -> float:
        scores = eta * np.outer(g, g) + np.log(chain.pi)
        A = np.exp(scores - scores.max(axis=1, keepdims=True))
        return float((A / A.sum(axis=1, keepdims=True))[:, lead].min())

    return at_least(least(40 / slow), 1 - 1e-9, control=least(1.0), note="the control is k^2 = 1")


def focused_start(chain: MarkovChain) -> tuple[OneLayerAttention, np.ndarray]:
    """The unigram point with small Gaussian WQ and WK."""
    point = theory.unigram_point(chain, DIM)
    noise = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-6, 8)
    return OneLayerAttention(point.W0, point.W1, noise.WQ, noise.WK), np.eye(DIM)[0]


@lru_cache(maxsize=32)
def focused(chain: MarkovChain) -> tuple[OneLayerAttention, np.ndarray]:
    """Where attention has grown to 0.01 out of the unigram point, and the direction a."""
    start, a = focused_start(chain)
    amplitude = np.linalg.norm(a @ (np.asarray(start.WQ) + np.asarray(start.WK))) / 2
    until = float(np.log(0.01 / amplitude) / theory.focus_rate(chain))
    solved = integrate(population_flow(chain), start, until=until, rtol=1e-8, progress=False)
    return solved.final, a
