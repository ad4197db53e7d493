"""Appendix D: the start."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy.stats import binom

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    against,
    at_most,
    corrected,
    every,
    order,
    statistical,
)
from attnflow.models.value_mlp import ValueMLP
from attnflow.studies.cooccurrence.claims.common import all_different, condition_1, inside
from attnflow.studies.cooccurrence.claims.literal import attention, outputs
from attnflow.studies.cooccurrence.claims.scaling import WIDTHS, few, starts
from attnflow.studies.cooccurrence.paper import paper

DELTA = 0.1
"""The failure probability delta at which the bounds are measured."""

DRAWS = 20
STARTS = f"of {DRAWS} starts"

RESPONSE = Erratum(
    "response",
    "the Gaussian tail of a neuron's first response needs a factor 2 in front of the logarithm",
    cause="constant",
)


def radius(m: int, count: float, factor: float = 4.0) -> float:
    """`sqrt(4 log(2 N / delta) / m) + 4 log(2 N / delta) / m`."""
    part = factor * np.log(2 * count / DELTA) / m
    return float(np.sqrt(part) + part)


@cache
def drawn(init, words: int, dim: int, neurons: int, seed: int) -> ValueMLP:
    return init.model(words, dim, neurons, seed)


def draws(study) -> list[ValueMLP]:
    """Starts at Condition 1."""
    c = inside(study).config
    init = inside(study).initialisation
    return [drawn(init, c.words, c.dim, c.neurons, c.seed + i) for i in range(DRAWS)]


def off(gram: Any) -> float:
    """The largest entry beside the diagonal."""
    return float(np.abs(gram - np.diag(np.diag(gram))).max())


def far(vectors: np.ndarray, size: float) -> float:
    """The largest difference of a column's squared length from a size."""
    return float(np.abs((vectors**2).sum(axis=0) - size).max())


def failed(values: list[list[float]], bounds: list[float]) -> np.ndarray:
    """The fraction of starts at which each quantity is beyond its bound."""
    return np.mean(np.array(values) > np.array(bounds), axis=0)


def rarely(values: list[list[float]], bounds: Any) -> Measurement:
    """Bounds that are broken at most in a share delta of the starts; `bounds(factor)` of the
    concentration radius."""
    beyond = Control("without the factor 4", failed(values, bounds(1.0)))
    note = f"{STARTS}; the largest is {np.max(np.array(values) / bounds(4.0)):.2f} of it"
    return at_most(bound=DELTA, measured=failed(values, bounds(4.0)), control=beyond, note=note)


@paper.claim("Lemma D.1", regime=condition_1)
def key_query_grams(study) -> Measurement:
    r"""With probability $1-\delta$, keys and queries are orthogonal up to $\sigma_0^2 m
    (\sqrt{\frac 4m\log\frac{2d}\delta} + \frac 4m\log\frac{2d}\delta)$, and their squared lengths
    are $\sigma_0^2 m$ up to the same."""
    c = inside(study).config
    size = c.k0**2 / c.length  # s0^2 m

    def found(K: Any, Q: Any) -> list[float]:
        return [np.abs(K.T @ Q).max(), off(K.T @ K), off(Q.T @ Q), far(K, size), far(Q, size)]

    values = [found(th.WK, th.WQ) for th in draws(study)]
    return rarely(values, lambda factor: [size * radius(c.dim, c.words, factor)] * 5)


@paper.claim("Cor D.2", regime=condition_1, setting="n = 36, L = 4, widths 256 to 16384")
def attention_is_uniform(study) -> Measurement:
    r"""$p_{l,k}^{(0,i)} = \frac 1L \pm \tilde O(\frac{1}{Lm})$."""
    ready = [few(study, dim=m, seed=seed) for m in WIDTHS for seed in starts(study)]
    X = np.eye(ready[0].config.words)[ready[0].sentences.token].transpose(0, 2, 1)

    def deviation(w: Any) -> float:
        return float(np.abs(attention(X, w["WK"], w["WQ"]) - 1 / X.shape[2]).max())

    scores = [float(np.abs(r.drawn["WK"].T @ r.drawn["WQ"]).max()) for r in ready]
    return order(
        "O",
        x=[r.config.dim for r in ready],
        y=[deviation(r.drawn) for r in ready],
        power=-1.0,
        tol=0.15,
        toward="infinity",
        control=Control("the scores themselves", measured=scores),
    )


@paper.claim("Lemma D.3", regime=condition_1)
def value_neuron_grams(study) -> Measurement:
    r"""The same for values (with $\sigma_0^2 m$, $\log\frac{2d}\delta$), for pairs of neurons
    ($\sigma_1^2 m$, $\log\frac{2m_1^2}\delta$), for neurons and values ($\sigma_0\sigma_1 m$,
    $\log\frac{2m_1d}\delta$), and for the squared lengths ($\log\frac{2m_1}\delta$,
    $\log\frac{2d}\delta$)."""
    c = inside(study).config
    s0, s1 = c.k0 / np.sqrt(c.length * c.dim), c.k1 / np.sqrt(c.neurons)
    sizes = np.array([s0**2, s1**2, s0 * s1, s1**2, s0**2]) * c.dim
    counts = (c.words, c.neurons**2, c.neurons * c.words, c.neurons, c.words)

    def found(W: Any, V: Any) -> list[float]:
        products = [off(V.T @ V), off(W @ W.T), float(np.abs(W @ V).max())]
        return [*products, far(W.T, sizes[1]), far(V, sizes[0])]

    def bounds(factor: float) -> list[float]:
        return [s * radius(c.dim, n, factor) for s, n in zip(sizes, counts, strict=True)]

    return rarely([found(th.W, th.WV) for th in draws(study)], bounds)


def attended(study, th: ValueMLP) -> tuple[np.ndarray, np.ndarray]:
    """`WV X p_l`, a column for each sample and place, and its neuron responses."""
    ready = inside(study)
    X = np.eye(ready.config.words)[ready.sentences.token].transpose(0, 2, 1)
    mixed = np.einsum("idk,ikl->dil", X, attention(X, th.WK, th.WQ), optimize=True)
    value = th.WV @ mixed.reshape(len(mixed), -1)
    return value, th.W @ value


@paper.claim("Lemma D.4", regime=condition_1 & all_different)
def attended_values(study) -> Measurement:
    r"""$\|W_V^{(0)}X^{(i)}p_l\|^2 = \frac{\sigma_0^2m}{L}(1 \pm \sqrt{\frac 4m\log\frac{2nL}\delta}
    \pm \frac 4m\log\frac{2nL}\delta)$ for all samples and places, with probability $1-\delta$."""
    c = inside(study).config
    size = c.k0**2 / c.length
    values = [attended(study, th)[0] for th in draws(study)]
    told = [size / c.length * radius(c.dim, c.samples * c.length)]

    def share(mean: float) -> np.ndarray:
        return failed([[far(v, mean)] for v in values], told)

    alone = Control("without averaging over L words", share(size))
    return at_most(bound=DELTA, measured=share(size / c.length), control=alone, note=STARTS)


@paper.claim("Cor D.5", regime=condition_1 & all_different)
def neuron_responses(study) -> Measurement:
    r"""$|w_j^\top V p_l| \le \sigma_1\sigma_0\sqrt{\frac mL\log\frac{m_1nL}\delta}$ for all
    neurons, samples and places, with probability $1-\delta$."""
    c = inside(study).config
    size = c.k0 * c.k1 / (c.length * np.sqrt(c.neurons))  # s1 s0 sqrt(m / L)
    found = [[float(np.abs(attended(study, th)[1]).max())] for th in draws(study)]
    log = np.log(c.neurons * c.samples * c.length / DELTA)
    return corrected(
        printed=at_most(bound=DELTA, measured=failed(found, [size * np.sqrt(log)])),
        right=at_most(bound=DELTA, measured=failed(found, [size * np.sqrt(2 * (log + np.log(2)))])),
        text=r"\sigma_1\sigma_0\sqrt{\frac mL\log\frac{m_1nL}{\delta}}",
        correct=r"\sigma_1\sigma_0\sqrt{\frac{2m}{L}\log\frac{2m_1nL}{\delta}}",
        erratum=RESPONSE,
    )


PAIRS = [(m1, delta) for m1 in (16, 64, 256, 1024) for delta in (0.3, 0.1, 0.01)]


@paper.claim("Lemma D.6")
@against("a quarter of the radius", at_most, bound=[delta for _, delta in PAIRS])
def output_signs(study, right: bool):
    r"""$|S_{\pm 1}| = m_1(\frac 12 \pm \sqrt{\frac{2\log(4/\delta)}{m_1}})$ with probability
    $1-\delta$: exactly, from the binomial law, at many numbers of neurons."""
    missed, factor = [], 2.0 if right else 2 / 16
    for m1, delta in PAIRS:
        gap = m1 * np.sqrt(factor * np.log(4 / delta) / m1)
        low, high = np.ceil(m1 / 2 - gap), np.floor(m1 / 2 + gap)
        missed.append(float(1 - binom.cdf(high, m1, 0.5) + binom.cdf(low - 1, m1, 0.5)))
    return missed


@paper.claim("Lemma D.7", regime=condition_1)
def first_values(study) -> Measurement:
    r"""$|G^{(0)}(\mu)| \le \tilde O(\sigma_1\sigma_0\sqrt{mm_1})$: that is its standard
    deviation."""
    c = inside(study).config
    size = c.k0 * c.k1 / np.sqrt(c.length)
    square = [float(np.mean((th.a @ th.W @ th.WV) ** 2)) / size**2 for th in draws(study)]
    return statistical(
        predicted=1.0,
        samples=square,
        z=4.0,
        control=Control("without the number of neurons", 1 / c.neurons),
        note="mean square of G(0) over the words, in units of the squared bound",
    )


@paper.claim("Lemma D.8", regime=condition_1 & all_different)
def first_outputs(study) -> Measurement:
    r"""$|F^{(0)}(X^{(i)})| \le 2\sigma_0\sigma_1\sqrt{2Lm_1m\log(2Ln/\delta)}$ with probability
    $1-\delta$; the standard deviation is $\sigma_0\sigma_1\sqrt{Lm_1m} = k_0k_1$."""
    c = inside(study).config
    ready, spread = inside(study), c.k0 * c.k1
    X = np.eye(c.words)[ready.sentences.token].transpose(0, 2, 1)
    found = [outputs(X, th.W, th.WV, th.WK, th.WQ, th.a) for th in draws(study)]
    log = np.log(2 * c.length * c.samples / DELTA)
    bound = 2 * spread * np.sqrt(2 * log)

    def one(seed: int) -> float:
        """The output of a sentence of different words, of a start of its own."""
        th = ready.initialisation.model(c.length, c.dim, c.neurons, seed)
        F = outputs(np.eye(c.length)[None], th.W, th.WV, th.WK, th.WQ, th.a)
        return float(F[0]) / spread

    most = [[float(np.abs(F).max())] for F in found]
    return every(
        bound=at_most(
            bound=DELTA,
            measured=failed(most, [bound]),
            control=Control("one standard deviation", failed(most, [spread])),
            note=f"the largest is {np.max(most) / bound:.2f} of the bound",
        ),
        spread=statistical(
            predicted=1.0,
            samples=[one(seed) ** 2 for seed in range(300)],
            z=4.0,
            control=Control("of a place", 1 / c.length),
            note="mean square over (k0 k1)^2",
        ),
    )


@paper.claim("Lemma D.8", part="constant", regime=condition_1 & all_different)
def first_outputs_below_a_hundredth(study) -> Measurement:
    r"""By Condition 1 the bound can be made $\le 0.01$: at $k_0k_1 = 0.01/(2\sqrt{2\log(2Ln/
    \delta)})$, some 0.001. At scales of order one it is not."""
    ready = inside(study)
    c = ready.config
    X = np.eye(c.words)[ready.sentences.token].transpose(0, 2, 1)
    small = 0.01 / (2 * np.sqrt(2 * np.log(2 * c.length * c.samples / DELTA)))

    def most(k0: float) -> float:
        init = ready.at(k0=k0).initialisation
        th = init.model(c.words, c.dim, c.neurons, c.seed)
        return float(np.abs(outputs(X, th.W, th.WV, th.WK, th.WQ, th.a)).max())

    return at_most(
        bound=0.01,
        measured=most(small / c.k1),
        control=Control(f"k0 = 0.1 (with k1 = {c.k1:g})", most(0.1 / c.k1)),
        note=f"k0 k1 = {small:.2g}",
    )
