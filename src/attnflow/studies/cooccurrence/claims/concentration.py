"""Appendices G and H: derivatives of the softmax, and concentration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    against,
    at_most,
    corrected,
    every,
    identity,
    order,
)
from attnflow.models.value_mlp import Tables
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import WordCooccurrence

RNG = np.random.default_rng(5)

SCORES = RNG.normal(size=(3, 4, 5))
"""Score vectors s of five places, the directions that they move in and two more, three times."""


def softmax(s: np.ndarray) -> np.ndarray:
    """As the model computes it: one sentence of five words, whose first query sees the scores s."""
    sentences = WordCooccurrence(length=5, vocab=8).training(6, "within")
    one = sentences.token[0]
    S = np.zeros((8, 8))
    S[one, one[0]] = s
    return Tables(sentences, 1.0).attention(S)[0, :, 0]


def jacobian(s: np.ndarray, outer: float = 1.0) -> np.ndarray:
    """eq. (17): diag p - p p'."""
    p = np.exp(s) / np.exp(s).sum()
    return np.diag(p) - outer * np.outer(p, p)


def derivative(of: Any, h: float = 1e-3) -> np.ndarray:
    """That of a function at 0, by differences of sixth order."""
    weights = {1: 45, 2: -9, 3: 1}
    terms = [w * (of(k * h) - of(-k * h)) for k, w in weights.items()]
    return np.sum(terms, axis=0) / (60 * h)


@paper.claim("eq 17")
@against("diag p alone", identity, over=lambda _: SCORES[:, 0], rtol=1e-10)
def softmax_jacobian(study, s, right: bool):
    r"""$\partial p_i/\partial x_j = p_i(1_{i=j} - p_j)$, so $J = \mathrm{diag}(p) - pp^\top$."""
    columns = [derivative(lambda t, e=e: softmax(s + t * e)) for e in np.eye(5)]
    return jacobian(s, 1.0 if right else 0.0), np.stack(columns, axis=1)


@paper.claim("Lemma G.1")
@against("diag p alone", identity, over=lambda _: SCORES, rtol=1e-10)
def softmax_rate(study, x, right: bool):
    r"""$\partial_tp(s(t)) = (\mathrm{diag}(p) - pp^\top)\partial_ts$, here along curved $s(t)$."""
    moving = derivative(lambda t: softmax(x[0] + np.sin(t) * x[1] + t**2 * x[2]))
    return jacobian(x[0], 1.0 if right else 0.0) @ x[1], moving


@paper.claim("Lemma G.2")
@against("diag p alone", order, kind="O", over=(1e-3, 1e-2, 1e-1), power=2)
def softmax_perturbation(study, size: float, right: bool):
    r"""$p(s + \epsilon) - p(s) = (\mathrm{diag}(p) - pp^\top)\epsilon + \xi$ with $\|\xi\| =
    O(\|\epsilon\|^2)$."""
    s, along = SCORES[0, :2]
    e = size * along / np.linalg.norm(along)
    first = jacobian(s, 1.0 if right else 0.0) @ e
    return float(np.linalg.norm(softmax(s + e) - softmax(s) - first))


# --- Appendix H.

GRID = [x.ravel() for x in np.meshgrid(*[np.geomspace(1e-2, 1e2, 25)] * 3)]
"""V, M and t (or log 1/delta) over four decades."""

BERNSTEIN = Erratum(
    "bernstein-middle",
    "Bernstein's bound does not give exp(-min(t^2/(2V), t/(2M))): at V = Mt it is weaker",
    cause="constant",
)


def tails(n: int) -> tuple[np.ndarray, np.ndarray]:
    """P[Z > t] of a sum of n signs, exactly, between the places where it jumps."""
    t = np.arange(0, n) + 0.5
    return t, stats.binom.sf(np.floor((t + n) / 2), n, 0.5)


@paper.claim("Lemma H.1 (first form)")
@against("without the half", at_most, bound=0.0)
def bernstein(study, right: bool):
    r"""$P[Z > t] \le \exp(-\frac{t^2/2}{V + Mt/3})$ for a sum of bounded centred variables; here of
    $n$ signs, whose tails are known exactly."""
    half, numbers = 0.5 if right else 1.0, (1, 5, 20, 100)
    found = [tail - np.exp(-half * t**2 / (n + t / 3)) for n in numbers for t, tail in [tails(n)]]
    return float(np.concatenate(found).max())


@paper.claim("Lemma H.1 (second form)", part="proof-step")
def bernstein_middle(study) -> Measurement:
    r"""That bound is at most $\exp(-\min(\frac{t^2}{2V}, \frac{t}{2M}))$."""
    V, M, t = GRID

    def excess(of: float) -> float:
        # Compared as exponents: the exponentials underflow together.
        return float((np.minimum(t**2 / (of * V), t / (2 * M)) - t**2 / 2 / (V + M * t / 3)).max())

    return corrected(
        printed=at_most(bound=0.0, measured=excess(2.0), note="V = M = t = 1: .687 against .607"),
        right=at_most(bound=0.0, measured=excess(4.0)),
        text=r"$\exp(-\frac{t^2/2}{V + Mt/3}) \le \exp(-\min(\frac{t^2}{2V}, \frac{t}{2M}))$",
        correct=r"$\exp(-\frac{t^2/2}{V + Mt/3}) \le \exp(-\min(\frac{t^2}{4V}, \frac{t}{2M}))$",
        erratum=BERNSTEIN,
    )


@paper.claim("Lemma H.1 (with probability)")
@against(
    "M/2 log in place of 2M log",
    at_most,
    bound=0.0,
    slack=1e-12,
    note="log 1/delta less the exponent, relative",
)
def bernstein_final(study, right: bool):
    r"""With probability $1-\delta$, $Z \le \sqrt{2V\log\frac{1}{\delta}} + 2M\log\frac{1}{\delta}$:
    it follows from the first form in spite of the second."""
    V, M, log = GRID
    t = np.sqrt(2 * V * log) + (2.0 if right else 0.5) * M * log
    return float((1 - t**2 / 2 / (V + M * t / 3) / log).max())


DIMS, DELTAS = (1, 2, 5, 20, 100, 1000), (0.5, 0.1, 0.01)


def threshold(m: int, delta: float, four: float) -> float:
    ell = np.log(2 / delta) / m
    return float(np.sqrt(four * ell) + four * ell)


@paper.claim("Lemma H.2 (norm)")
@against("1 in place of 4", at_most, bound=0.0)
def gaussian_norm(study, right: bool):
    r"""For $w \sim N(0, I_m/m)$, $P[|\|w\|^2 - 1| \ge \sqrt{\frac{4}{m}\log\frac{2}{\delta}} +
    \frac{4}{m}\log\frac{2}{\delta}] \le \delta$; its tails are exact."""
    found = []
    for m, delta in product(DIMS, DELTAS):
        t = threshold(m, delta, 4.0 if right else 1.0)
        found.append(stats.chi2.sf(m * (1 + t), m) + stats.chi2.cdf(m * (1 - t), m) - delta)
    return float(max(found))


@paper.claim("Lemma H.2 (product)")
@against("1/4 in place of 4", at_most, bound=0.0)
def gaussian_product(study, right: bool):
    r"""For independent $w_1, w_2 \sim N(0, I_m/m)$ the same holds of $|\langle w_1, w_2\rangle|$;
    given $\|w_1\|$ it is Gaussian."""
    levels, found = (np.arange(2000) + 0.5) / 2000, []
    for m, delta in product(DIMS, DELTAS):
        size = np.sqrt(stats.chi2.ppf(levels, m)) / m
        tail = 2 * stats.norm.sf(threshold(m, delta, 4.0 if right else 0.25) / size)
        found.append(float(tail.mean()) - delta)
    return max(found)


@paper.claim("Lemma H.2", part="proof-step")
def gaussian_means(study) -> Measurement:
    r"""$E\|w_1\|^2 = 1$ and $E\langle w_1, w_2\rangle = 0$, with variances $2/m$ and $1/m$: the
    standard deviations of 400 draws at $m = 50$."""
    m = 50
    w = np.random.default_rng(3).standard_normal((2, 400, m)) / np.sqrt(m)
    norms, products = (w[0] ** 2).sum(axis=1), (w[0] * w[1]).sum(axis=1)

    def score(found: np.ndarray, mean: float, variance: float) -> float:
        return float(abs(found.mean() - mean) / np.sqrt(variance / len(found)))

    return every(
        norm=at_most(
            bound=4.0,
            measured=score(norms, 1.0, 2 / m),
            control=Control(
                "entries of variance 1/(m - 5)", score(norms * m / (m - 5), 1.0, 2 / m)
            ),
        ),
        product=at_most(
            bound=4.0,
            measured=score(products, 0.0, 1 / m),
            control=Control("a vector with itself", score(norms, 0.0, 1 / m)),
        ),
    )
