"""Section 3.2: the derivatives at the second critical point, and where attention grows to."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Measurement, against, at_least, compared, equal, identity
from attnflow.flows import integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_gradients,
    cosine,
    distinct_leader,
    grows,
    nonuniform,
    two_term,
)
from attnflow.studies.focus_dilution.paper import paper


@paper.claim("Prop C.1 (eq 62)", regime=nonuniform & two_term)
@against("without the means taken off: diag(pi) for V", equal, rtol=1e-12, atol=1e-15)
def score_gradient(study, right: bool):
    r"""At the second point $\partial L/\partial\Phi = -\lambda V b g^\top V$ with $V$ the variance
    of $\pi$, $W_0 = g a^\top$ and $W_1 = a b^\top$."""
    chain, point = study.chain, theory.unigram_point(study.chain, DIM)
    g, b = np.asarray(point.W0)[:, 0], np.asarray(point.W1)[0]
    V = variance(chain.pi) if right else np.diag(chain.pi)
    return -chain.lam * np.outer(V @ b, V @ g), autodiff_gradients(point, chain)[1]


@paper.claim("Prop C.1 (eq 63)", regime=nonuniform)
def differential_of_the_readout_gradient(study) -> Measurement:
    r"""At the second point $d(\partial L/\partial M) = \pi\pi^\top\,dM\,V$."""
    pi, M = study.chain.pi, np.asarray(theory.unigram_point(study.chain, DIM).readout)
    turns = [np.random.default_rng(seed).normal(size=M.shape) for seed in SEEDS]

    def moved(dM: np.ndarray, right: bool):
        beside = M + 1e-150j * dM  # a complex step: nothing is subtracted
        GM = one_layer.token_gradients(beside, np.zeros_like(M), study.chain)[0]
        V = variance(pi) if right else np.eye(len(pi))
        return np.outer(pi, pi) @ dM @ V, np.imag(GM) / 1e-150

    return compared(identity, "without the softmax's derivative", moved, over=turns)


@paper.claim(
    "eq 65",
    part="proof-step",
    regime=two_term,
    reading=r"the middle form has $\mathbf 1\mathbf 1^\top$ where (2) has $\mathbf 1\pi^\top$",
)
@against("the middle form as extracted", equal, rtol=1e-12)
def joint_minus_product(study, right: bool):
    r"""$\mathrm{diag}(\pi)(\lambda I + (1-\lambda)\mathbf 1\pi^\top) - \pi\pi^\top = \lambda V$."""
    pi, lam, d = study.chain.pi, study.chain.lam, study.chain.tokens
    extracted = np.diag(pi) @ (lam * np.eye(d) + (1 - lam) * np.ones((d, d))) - np.outer(pi, pi)
    measured = np.diag(pi) @ study.chain.transition - np.outer(pi, pi)
    return lam * variance(pi) if right else extracted, measured


@paper.claim("Thm 3.5 (eq 15)", regime=grows)
@against("at the start", at_least, bound=0.999, note="where |WQ| has grown from 4e-6 to 0.01")
def queries_and_keys_align(study, right: bool):
    r"""From small $W_Q, W_K$ near the second point both become $a x^\top$ with one common $x$."""
    theta = focused(study) if right else focused_start(study)
    own = [abs(cosine(w, np.outer(AXIS, AXIS @ w))) for w in (theta.WQ, theta.WK)]
    return [*own, abs(cosine(AXIS @ theta.WQ, AXIS @ theta.WK))]


@paper.claim(
    "Thm 3.5 (eq 16)", regime=grows, reading=r"the right side lacks its normalisation $|\pi|^2$"
)
@against("without the norm, as extracted", equal, rtol=1e-3)
def score_matrix(study, right: bool):
    r"""Along the unstable ray $\Phi/|\Phi| = \pi\pi^\top/|\pi|^2$."""
    Phi, pi = np.asarray(focused(study).score), study.chain.pi
    return np.outer(pi, pi) / (pi @ pi if right else pi.sum()), Phi / np.linalg.norm(Phi)


@paper.claim("Thm 3.5 (eq 17)", regime=distinct_leader)
@against("k^2 = 1", at_least, bound=1 - 1e-9)
def limit_of_attention(study, right: bool):
    r"""As the amplitude of $W_Q = W_K = k a x^\top$ grows every query attends to token 1 alone."""
    pi, lead = study.chain.pi, int(np.argmax(study.chain.pi))
    g = np.asarray(theory.unigram_point(study.chain, 1).W0)[:, 0]
    slow = float(np.min(g)) * (float(g[lead]) - float(np.sort(g)[-2]))
    scores = (40 / slow if right else 1.0) * np.outer(g, g) + np.log(pi)
    A = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (A / A.sum(axis=1, keepdims=True))[:, lead].min()


AXIS = np.eye(DIM)[0]
"""The direction a of the unigram point."""


def variance(pi: np.ndarray) -> np.ndarray:
    return np.diag(pi) - np.outer(pi, pi)


def focused_start(study) -> OneLayerAttention:
    """The unigram point with small Gaussian WQ and WK."""
    point = theory.unigram_point(study.chain, DIM)
    noise = OneLayerAttention.gaussian(study.chain.tokens, DIM, 1e-6, 8)
    return OneLayerAttention(point.W0, point.W1, noise.WQ, noise.WK)


@paper.once
def focused(study) -> OneLayerAttention:
    """Where attention has grown to 0.01 out of the unigram point."""
    start = focused_start(study)
    amplitude = np.linalg.norm(AXIS @ (np.asarray(start.WQ) + np.asarray(start.WK))) / 2
    until = float(np.log(0.01 / amplitude) / theory.focus_rate(study.chain))
    flow = population_flow(study.chain)
    return integrate(flow, start, until=until, rtol=1e-8, progress=False).final
