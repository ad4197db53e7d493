"""Appendix E: phase 1, in which the values of words are learned and all else stands."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    against,
    at_least,
    at_most,
    corrected,
    statistical,
)
from attnflow.studies.cooccurrence.claims.common import Check, declared, each, phase_1
from attnflow.studies.cooccurrence.claims.scaling import (
    COMMON,
    END,
    RANDOM,
    SETTING,
    TARGETS,
    WIDTHS,
    Named,
    Over,
    Quantity,
    Record,
    at_start,
    bounded,
    changed,
    largest,
    power,
    record,
    starts,
)
from attnflow.studies.cooccurrence.paper import paper

claim = partial(declared, __name__, phase_1, setting=SETTING)

DELTA = 0.1
"""The failure probability at which bounds with delta are tested."""

SEEDS = tuple(range(20))

HALF = Erratum(
    "half", "the residual g(0) = 1/2 of every sample is lost from the first rate", cause="constant"
)


VALUES = changed("G", "values G")
VALUE_RATES: Named = ("the rates of G", lambda r: largest(r.dG[r.early]))


def softmax_radius(r: Record) -> float:
    """R_P of Def. E.2: how far attention moves in phase 1."""
    return largest((r.p - r.p[0])[r.early])


def small(study: Any, dim: int, seed: int, **keys: Any) -> Record:
    """A start with few words and neurons."""
    return at_start(study, dim, seed=seed, samples=12, length=3, neurons=4, **keys)


# --- Attention and the first rates.


def first(of: Any) -> Check:
    """The rates along the targets at t = 0, of one neuron."""
    other = ("the other neurons' part", lambda r: largest(r.cross_neuron[0]))
    many = Over(
        lambda study: [small(study, m, seed, k0=0.03) for m in WIDTHS for seed in SEEDS[:8]],
        lambda r: r.scale,
    )
    return power("Theta", 1, lambda r: of(r.rates(TARGETS)), other, 0.15, many)


START = (
    claim(
        "Prop E.3",
        r"""In phase 1 attention moves by $R_P = O(1/(\sqrt m L) + L/m)$.

        Measured: the power of $m$. Attention moves by far less, like $m^{-2}$ (Cor. E.24).""",
        power("O", -0.5, softmax_radius, VALUES),
    ),
    claim(
        "Lemma E.4",
        r"""At $t = 0$ every neuron turns to the targets, $\partial_t a_j w_j W_V\mu =
        \Theta((\sigma_0^2 + \sigma_1^2)m)$: the slowest and the fastest neuron.""",
        each(slowest=first(np.min), fastest=first(np.max)),
        setting="t = 0, k0 = .03, m1 = 4, eight starts",
    ),
)


@paper.claim("Lemma E.4", part="constant", regime=phase_1, setting="t = 0, k0 = .01, m = 1024")
def first_rate_constant(study) -> Measurement:
    r"""The rate is $(1/3 \pm .01)(\sigma_0^2 + \sigma_1^2)m$, on average over neurons."""
    found = [at_start(study, 1024, k0=0.01, seed=seed) for seed in SEEDS]
    means, common = (
        [float(r.rates(words).mean()) / r.scale for r in found] for words in (TARGETS, COMMON)
    )
    other = Control("the common word", measured=common)
    return corrected(
        printed=statistical(predicted=1 / 3, samples=means, z=4.0),
        right=statistical(predicted=1 / 6, samples=means, z=4.0, control=other),
        text=r"$(\frac{1}{3} \pm .01)(\sigma_0^2 + \sigma_1^2)m$",
        correct=r"$g(0)(\frac{1}{2} - \frac{1}{6})(\sigma_0^2 + \sigma_1^2)m$, one sixth",
        erratum=HALF,
    )


@paper.claim("Lemma E.4", part="hypothesis", regime=phase_1, setting="t = 0, m1 = 64, k0 = .03")
@against("m = m1/4: share of neurons", at_least, bound=1.0)
def neurons_against_width(study, right: bool):
    r"""That *every* neuron turns to the targets needs $m$ far above $m_1$: here $m = 64 m_1$."""
    start = at_start(study, 4096 if right else 16, k0=0.03, neurons=64)
    return float((start.rates(TARGETS) > 0).mean())


# --- Prop E.5: bounds with probability 1 - delta.


def tail(m: int, count: float) -> float:
    """sqrt(4/m log(count/delta)) + 4/m log(count/delta)."""
    ell = np.log(count / DELTA) / m
    return float(np.sqrt(4 * ell) + 4 * ell)


def neuron_bound(r: Record, log: float) -> float:
    size = r.s1**2 * np.sqrt(r.m1) * r.dim
    return size * tail(r.dim, 2 * r.m1**2) * float(np.sqrt(np.log(log * r.m1 / DELTA)))


def value_bound(r: Record) -> float:
    count = 2 * r.n * r.L * r.G.shape[1]
    return r.s0**2 * r.dim * np.sqrt(r.L) * tail(r.dim, count)


def rarely(sums: Quantity, bound: Quantity, other: Named) -> Check:
    """The share of starts in which a sum is beyond its bound, at most delta."""

    def share(study: Any, of: Quantity) -> float:
        found = [small(study, 16384, seed) for seed in SEEDS]
        return float(np.mean([(np.abs(of(r)) > bound(r)).any() for r in found]))

    def check(study: Any) -> Measurement:
        control = Control(other[0], share(study, other[1]))
        note = "share of starts in which it is broken, at delta = .1"
        return at_most(bound=DELTA, measured=share(study, sums), control=control, note=note)

    return check


def many_samples(study: Any) -> list[Record]:
    numbers = (24, 72, 216)
    return [at_start(study, 1024, samples=n, seed=s) for n in numbers for s in starts(study)]


ITSELF: Named = ("with the neuron itself", lambda r: r.NN[0] @ r.a)
SUMS = partial(claim, setting="20 starts, m = 16384, m1 = 4, n = 12")

BERNSTEIN = (
    SUMS(
        "Prop E.5 (neurons)",
        r"""With probability $1-\delta$, $|\sum_{j_2\ne j_1} a_{j_2}\langle w_{j_1}, w_{j_2}\rangle|
        \le \sigma_1^2\sqrt{m_1}m(\sqrt{\frac{4}{m}\log\frac{2m_1^2}{\delta}} +
        \frac{4}{m}\log\frac{2m_1^2}{\delta})\sqrt{\log\frac{4m_1}{\delta}}$ for all $j_1$.""",
        rarely(lambda r: r.cross_neuron[0], lambda r: neuron_bound(r, 4), ITSELF),
    ),
    SUMS(
        "Prop E.5 (weighted)",
        r"""The same sum, weighted with gradients and attention of a word, is at most $|\{i: \mu\in
        X^{(i)}\}|/n$ times that bound.""",
        rarely(
            lambda r: np.outer(r.cross_neuron[0], r.phi[0]),
            lambda r: r.count / r.n * neuron_bound(r, 1),
            (ITSELF[0], lambda r: np.outer(ITSELF[1](r), r.phi[0])),
        ),
    ),
    SUMS(
        "Prop E.5 (values)",
        r"""The values of the other words along that of $\mu$, weighted with gradients and
        attention, are at most $\sigma_0^2 m\sqrt L(\sqrt{\frac{4}{m}\log\frac{2nLd}{\delta}} +
        \frac{4}{m}\log\frac{2nLd}{\delta})$.""",
        rarely(
            lambda r: r.cross_value[0],
            value_bound,
            ("with the word itself", lambda r: r.VV[0] @ r.phi[0]),
        ),
    ),
    claim(
        "Lemma E.6",
        r"""At $t = 0$ a random word's rates are $O(\frac{1}{n}(\sigma_0^2+\sigma_1^2)m +
        \sigma_0^2\sqrt{mL})$: the fastest neuron and word.""",
        power(
            "O",
            1,
            lambda r: largest(r.rates(RANDOM)),
            ("a target", lambda r: largest(r.rates(TARGETS))),
            0.3,
            Over(many_samples, lambda r: r.scale / r.n + r.s0**2 * np.sqrt(r.dim * r.L), "zero"),
        ),
        setting="t = 0, m = 1024, n = 24, 72, 216",
    ),
)


# --- Perturbations.


def responses(r: Record) -> np.ndarray:
    """w_j V p of every neuron, sample and query, in phase 1."""
    return np.einsum("tjik,tikl->tjil", r.P[r.early][:, :, r.token], r.p[r.early])


def response_change(r: Record) -> float:
    found = responses(r)
    return largest(found - found[0])


def response_bound(r: Record, words: int = 4) -> float:
    """L R_P s0 s1 sqrt m + words R/L, the bound of Lemma E.7 with the constant 1."""
    small = r.L * softmax_radius(r) * r.s0 * r.s1 * np.sqrt(r.dim)
    return small + words * r.radius / r.L


def by_neurons(study: Any) -> list[Record]:
    return [
        record(study, 4096, END, neurons=m1, length=3, seed=seed)
        for m1 in (4, 16, 64)
        for seed in starts(study)
    ]


def over_unit(r: Record, x: float) -> float:
    return x / (r.s0 * r.s1 * float(np.sqrt(r.dim / r.L)))


PRODUCTS: Named = ("the products", lambda r: largest(r.VV[r.early] * (1 - np.eye(r.VV.shape[1]))))
NORMS: Named = ("the norms", lambda r: largest(r.norms[r.early]))
BY_NEURONS = Over(by_neurons, lambda r: r.m1)
OF_NEURONS = {"setting": "m = 4096, m1 = 4, 16, 64, L = 3"}

RESPONSES = (
    claim(
        "Lemma E.7",
        r"""In phase 1 $|w_jW_VX^{(i)}p_l - w_j^{(0)}W_V^{(0)}X^{(i)}p_l^{(0)}| \le \tilde
        O(LR_P\sigma_0\sigma_1\sqrt m) + 4R/L$, with $R$ and $R_P$ as measured.""",
        bounded(
            1.0,
            lambda r: response_change(r) / response_bound(r),
            ("R/L, of one word", lambda r: response_change(r) / response_bound(r, 1)),
        ),
    ),
    claim(
        "Lemma E.7",
        r"""By the choice of parameters that bound is below $\sigma_0\sigma_1\sqrt{m/L}$.

        Measured: their ratio falls with $m_1$; at these widths it is above 1, so that 'below' needs
        a larger $m_1$ than any here.""",
        power(
            "O",
            -0.5,
            lambda r: over_unit(r, response_bound(r)),
            (
                "of all neurons, F",
                lambda r: over_unit(r, largest((r.margin - r.margin[0])[r.early])),
            ),
            0.25,
            BY_NEURONS,
        ),
        part="proof-step",
        **OF_NEURONS,
    ),
)


def first_squares(study: Any, of: Quantity, name: str, other: Quantity) -> Measurement:
    """The mean of a relative square over starts is 1."""
    found = [at_start(study, 1024, k0=0.01, seed=seed) for seed in SEEDS]
    return statistical(
        predicted=1.0,
        samples=[of(r) for r in found],
        z=4.0,
        atol=0.01,
        control=Control(name, measured=[other(r) for r in found]),
    )


def square(r: Record, values: np.ndarray) -> float:
    """The mean square of values over s0^2 s1^2 m m1."""
    return float((values**2).mean()) / ((r.s0 * r.s1) ** 2 * r.dim * r.m1)


def weighted_square(r: Record, K: np.ndarray, norms: bool) -> float:
    """That of G, times that of the norms or products of keys over their own size."""
    chosen = np.diag(K) if norms else K[~np.eye(len(K), dtype=bool)]
    size = r.s0**2 * (r.dim if norms else np.sqrt(r.dim))
    return float((chosen**2).mean() / size**2) * square(r, r.G[0])


def weighted(name: str, norms: bool) -> Check:
    return lambda study: first_squares(
        study,
        lambda r: weighted_square(r, getattr(r, name)[0], norms),
        "scores in their place, for norms" if norms else "norms among the products",
        lambda r: weighted_square(r, (r.S if norms else r.NN)[0], norms),
    )


def correlation_bound(r: Record) -> float:
    """2L(s1 s0 sqrt(m/L log(m1 n L/delta)) + the bound of Lemma E.7)."""
    log = np.log(r.m1 * r.n * r.L / DELTA)
    return 2 * r.L * (r.s1 * r.s0 * np.sqrt(r.dim / r.L * log) + response_bound(r))


def neuron_product_rate(r: Record) -> float:
    """The largest d<w_i, w_j>/dt of phase 1, Lemma C.2."""
    one = np.einsum("tjv,tv->tj", r.P, r.phi)[r.early, :, None] * r.a
    return largest(one + one.swapaxes(1, 2))


def per_time(r: Record, change: np.ndarray) -> float:
    """The largest change over t times the bound of Prop. E.12."""
    later = r.early & (r.t > 0)
    return float((change[later] / (r.t[later] * correlation_bound(r))).max())


def own_part(r: Record, part: np.ndarray) -> float:
    """Of a target's rate, over the bound of Lemma E.11."""
    size = r.count[0] / r.n * r.s1**2 * np.sqrt(r.dim * r.m1)
    return largest((part * r.phi[:, :1])[r.early]) / size


ALL_PAIRS: Named = ("of the sum over all pairs", lambda r: per_time(r, r.change("U")))

PERTURBATIONS = (
    claim(
        "Prop E.8",
        r"""$|G^{(0)}(\mu)| \le \tilde O(\sigma_0\sigma_1\sqrt{mm_1})$: its mean square is
        $\sigma_0^2\sigma_1^2mm_1$.""",
        lambda study: first_squares(
            study, lambda r: square(r, r.G[0]), "of one neuron", lambda r: square(r, r.P[0, 0])
        ),
        setting="t = 0, m = 1024, 20 starts",
    ),
    claim(
        "Lemma E.9 (rate)",
        r"""In phase 1 $|\partial_t\langle v(\mu), v(\nu)\rangle| \le \frac{|\{i:\mu\in X\}| +
        |\{i:\nu\in X\}|}{n}O(1)$.

        Measured: the largest ratio of the two sides over words and times.""",
        power("O", 0.0, lambda r: largest(r.dVV[r.early] / r.shares), VALUE_RATES),
    ),
    claim(
        "Lemma E.9 (change)",
        r"""In phase 1 $|\langle v(\mu), v(\nu)\rangle - \langle v^{(0)}(\mu), v^{(0)}(\nu)\rangle|
        \le t\,\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}O(1)$, which is $O(1/m)$ at its end.""",
        power("O", -1.0, lambda r: largest(r.change("VV")[r.end] / r.shares), VALUES),
    ),
    claim(
        "Lemma E.9 (sizes)",
        r"""So in phase 1 $|\langle v(\mu), v(\nu)\rangle| \le \tilde O(\sigma_0^2\sqrt m)$ and
        $|v(\mu)|^2 = \Theta(\sigma_0^2m)$; $\sigma_0^2m$ does not depend on $m$ here.""",
        each(
            products=power("O", -0.5, PRODUCTS[1], NORMS),
            shortest=power("Theta", 0.0, lambda r: r.norms[r.early].min(), PRODUCTS),
            longest=power("Theta", 0.0, NORMS[1], PRODUCTS),
        ),
    ),
    claim(
        "Cor E.10",
        r"""In phase 1 the other words' values along that of $\mu_1$, weighted with gradients and
        attention, are at most $L\tilde O(\sigma_0^2\sqrt m)$.""",
        power(
            "O",
            -0.5,
            lambda r: largest(r.cross_value[r.early, 0]),
            ("the word's own value", lambda r: largest((r.VV[:, 0, 0] * r.phi[:, 0])[r.early])),
        ),
    ),
    claim(
        "Lemma E.11",
        r"""In phase 1 the other neurons' part of a target's rate is at most $\frac{|\{i:\mu_1\in
        X\}|}{n}\tilde O(\sigma_1^2\sqrt{mm_1})$; a neuron's own part is not.""",
        bounded(
            1.5,
            lambda r: own_part(r, r.cross_neuron),
            ("the neuron's own part", lambda r: own_part(r, np.einsum("tjj->tj", r.NN))),
        ),
    ),
    claim(
        "Prop E.12 (rate)",
        r"""In phase 1 $|\partial_t\langle w_{j_1}, w_{j_2}\rangle| \le
        2L(\sigma_1\sigma_0\sqrt{\frac{m}{L}\log\frac{m_1nL}{\delta}} + \tilde
        O(LR_P\sigma_0\sigma_1\sqrt m) + 4R/L)$ at $\delta = .1$, with $R$ and $R_P$ as
        measured.""",
        bounded(
            1.0,
            lambda r: neuron_product_rate(r) / correlation_bound(r),
            (
                "of the sum over all pairs",
                lambda r: (
                    largest((2 * r.m1 * (r.g * r.margin).mean(axis=1))[r.early])
                    / correlation_bound(r)
                ),
            ),
        ),
    ),
    claim(
        "Prop E.12 (change)",
        r"""In phase 1 $|\langle w_{j_1}, w_{j_2}\rangle - \langle w_{j_1}^{(0)},
        w_{j_2}^{(0)}\rangle|$ is at most $t$ times that bound.""",
        bounded(1.0, lambda r: per_time(r, r.change("NN").max(axis=(1, 2))), ALL_PAIRS),
    ),
    claim(
        "Cor E.13",
        r"""In phase 1 $\|w_j\|^2$ of every neuron changes by at most $t$ times the bound of
        E.12.""",
        bounded(
            1.0, lambda r: per_time(r, np.einsum("tjj->tj", r.change("NN")).max(axis=1)), ALL_PAIRS
        ),
        reading=r"'for all $j\in[m]$' is $j\in[m_1]$: there are $m_1$ neurons",
    ),
)
