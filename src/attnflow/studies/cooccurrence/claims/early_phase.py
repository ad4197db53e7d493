"""Appendix E: phase 1, in which the values of words are learned and all else stands."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    always,
    at_least,
    at_most,
    corrected,
    identity,
    statistical,
)
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence.claims.common import phase_1
from attnflow.studies.cooccurrence.claims.literal import Point, all_points
from attnflow.studies.cooccurrence.claims.scaling import (
    END,
    SETTING,
    WIDTHS,
    Check,
    Named,
    Over,
    Quantity,
    Record,
    at_start,
    bounded,
    declared,
    each,
    largest,
    power,
    record,
    starts,
    sweep,
)
from attnflow.studies.cooccurrence.paper import paper

claim = partial(declared, __name__, phase_1)

DELTA = 0.1
"""The failure probability at which bounds with delta are tested."""

SEEDS = tuple(range(20))

HALF = Erratum(
    "half", "the residual g(0) = 1/2 of every sample is lost from the first rate", cause="constant"
)


# --- Quantities of a record that rows and controls share.


def moved(name: str) -> Quantity:
    """The largest change of a product in phase 1."""
    return lambda r: largest(r.change(name)[r.early])


VALUES: Named = ("the change of values G", moved("G"))
VALUE_PRODUCTS: Named = ("the change of value products", moved("VV"))
SCORES: Named = ("the change of scores", moved("S"))
VALUE_RATES: Named = ("the rates of G", lambda r: largest(r.dG[r.early]))
SCORE_RATES: Named = ("the rates of scores", lambda r: largest(r.dS[r.early]))


def scale(r: Record) -> float:
    """(s0^2 + s1^2) m."""
    return (r.s0**2 + r.s1**2) * r.dim


def softmax_radius(r: Record) -> float:
    """R_P of Def. E.2: how far attention moves in phase 1."""
    return largest((r.p - r.p[0])[r.early])


def radius(r: Record) -> float:
    """R of Def. E.2: how far a neuron's product with a relevant word moves in phase 1."""
    return largest(r.change("P")[r.early][:, :, :3])


def per_sample(r: Record) -> np.ndarray:
    """(|{i: mu in X}| + |{i: nu in X}|) / n."""
    return (r.count[:, None] + r.count) / r.n


def rates(r: Record, words: slice, at: Any = 0) -> np.ndarray:
    """Every neuron's rates along some words, at the start or at some rows."""
    return r.neuron_rate[at][..., words]


TARGETS, COMMON, RELEVANT, RANDOM = slice(2), slice(2, 3), slice(3), slice(3, None)


# --- Attention and the first rates.


def first_rates(study: Any) -> list[Record]:
    sizes = {"k0": 0.03, "neurons": 4, "samples": 12, "length": 3}
    return [at_start(study, m, seed=seed, **sizes) for m in WIDTHS for seed in SEEDS[:8]]


def first(of: Any) -> Check:
    other = ("the other neurons' part", lambda r: largest(r.cross_neuron[0]))
    many = Over(first_rates, scale)
    return power("Theta", 1, lambda r: of(rates(r, TARGETS)), other, 0.15, many)


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
    means = [float(rates(r, TARGETS).mean()) / scale(r) for r in found]
    common = [float(rates(r, COMMON).mean()) / scale(r) for r in found]
    other = Control("the common word", measured=common)
    return corrected(
        printed=statistical(predicted=1 / 3, samples=means, z=4.0),
        right=statistical(predicted=1 / 6, samples=means, z=4.0, control=other),
        text=r"$(\frac{1}{3} \pm .01)(\sigma_0^2 + \sigma_1^2)m$",
        correct=r"$g(0)(\frac{1}{2} - \frac{1}{6})(\sigma_0^2 + \sigma_1^2)m$, one sixth",
        erratum=HALF,
    )


@paper.claim("Lemma E.4", part="hypothesis", regime=phase_1, setting="t = 0, m1 = 64, k0 = .03")
def neurons_against_width(study) -> Measurement:
    r"""That *every* neuron turns to the targets needs $m$ far above $m_1$: here $m = 64 m_1$."""
    share = {
        m: float((rates(at_start(study, m, k0=0.03, neurons=64), TARGETS) > 0).mean())
        for m in (16, 4096)
    }
    other = Control("m = m1/4: share of neurons", share[16])
    return at_least(bound=1.0, measured=share[4096], control=other)


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
    sizes = {"samples": 12, "length": 3, "neurons": 4}

    def share(study: Any, of: Quantity) -> float:
        found = [at_start(study, 16384, seed=seed, **sizes) for seed in SEEDS]
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
            lambda r: largest(rates(r, RANDOM)),
            ("a target", lambda r: largest(rates(r, TARGETS))),
            0.3,
            Over(many_samples, lambda r: scale(r) / r.n + r.s0**2 * np.sqrt(r.dim * r.L), "zero"),
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
    return small + words * radius(r) / r.L


def by_neurons(study: Any) -> list[Record]:
    return [
        record(study, 4096, END, neurons=m1, length=3, seed=seed)
        for m1 in (4, 16, 64)
        for seed in starts(study)
    ]


def over_unit(r: Record, x: float) -> float:
    return x / (r.s0 * r.s1 * float(np.sqrt(r.dim / r.L)))


def value_rates(r: Record) -> np.ndarray:
    """dVV/dt, Lemma C.3."""
    half = r.G[:, :, None] * r.phi[:, None, :]
    return half + half.swapaxes(1, 2)


def norms(r: Record) -> np.ndarray:
    return np.einsum("tvv->tv", r.VV[r.early])


PRODUCTS: Named = ("the products", lambda r: largest(r.VV[r.early] * (1 - np.eye(r.VV.shape[1]))))
NORMS: Named = ("the norms", lambda r: largest(norms(r)))
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
        power("O", 0.0, lambda r: largest(value_rates(r)[r.early] / per_sample(r)), VALUE_RATES),
    ),
    claim(
        "Lemma E.9 (change)",
        r"""In phase 1 $|\langle v(\mu), v(\nu)\rangle - \langle v^{(0)}(\mu), v^{(0)}(\nu)\rangle|
        \le t\,\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}O(1)$, which is $O(1/m)$ at its end.""",
        power("O", -1.0, lambda r: largest(r.change("VV")[r.end] / per_sample(r)), VALUES),
    ),
    claim(
        "Lemma E.9 (sizes)",
        r"""So in phase 1 $|\langle v(\mu), v(\nu)\rangle| \le \tilde O(\sigma_0^2\sqrt m)$ and
        $|v(\mu)|^2 = \Theta(\sigma_0^2m)$; $\sigma_0^2m$ does not depend on $m$ here.""",
        each(
            products=power("O", -0.5, PRODUCTS[1], NORMS),
            shortest=power("Theta", 0.0, lambda r: norms(r).min(), PRODUCTS),
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


# --- Growth through phase 1.


@paper.claim("Theorem E.14", part="proof-step")
def growth_of_a_neuron(study) -> Measurement:
    r"""$\partial_t a_jw_jW_V\mu = (\|w_j\|^2 + \|v(\mu)\|^2)\frac{1}{n}\sum_{i:\mu\in X}
    g_iy_i\sum_lp_{q_l,k_\mu} + \epsilon$, with $\epsilon$ the other neurons' and the other words'
    part. Measured: the flow of all weights."""

    def right(at: Point, others: float = 1.0) -> np.ndarray:
        th = at.model
        NN, VV = th.W @ th.W.T, th.WV.T @ th.WV
        own = np.add.outer(np.diag(NN), np.diag(VV)) * at.phi
        neurons = th.a * (NN @ th.a - th.a * np.diag(NN))
        return own + others * np.outer(neurons, at.phi) + (VV - np.diag(np.diag(VV))) @ at.phi

    def flow(at: Point) -> np.ndarray:
        th = at.model
        v = value_mlp.weight_flow(at.sentences, len(th.WV)).velocity(th)
        return th.a[:, None] * (v.W @ th.WV + th.W @ v.WV)

    other = Control("without the other neurons", lambda at: right(at, 0.0))
    return identity(over=all_points(study), predicted=right, measured=flow, control=other)


def factor(r: Record) -> np.ndarray:
    """|w_j|^2 + |v(mu)|^2 of the targets in phase 1."""
    neurons = np.einsum("tjj->tj", r.NN)[r.early]
    return neurons[:, :, None] + norms(r)[:, None, :2]


def over_error(r: Record, x: np.ndarray) -> float:
    """Over L s0^2 sqrt m + s1^2 sqrt(m m1)."""
    size = r.L * r.s0**2 * np.sqrt(r.dim) + r.s1**2 * np.sqrt(r.dim * r.m1)
    return largest(x) / size


def growth(r: Record, words: slice) -> float:
    size = scale(r) / r.n + r.s0**2 * r.L * np.sqrt(r.dim)
    return largest(rates(r, words, r.early)) / size


def small_starts(study: Any) -> list[Record]:
    """One draw at several scales: the constant is that of the draw."""
    return [at_start(study, 16384, k0=k, samples=12, length=3) for k in (0.03, 0.1, 0.3, 1.0)]


def first_bound(r: Record) -> float:
    small = r.s1**2 * np.sqrt(r.dim * r.m1) + r.s0**2 * np.sqrt(r.dim * r.L)
    return float(small + scale(r) * largest(r.margin[0]))


def lead(r: Record) -> np.ndarray:
    """-dG(mu3) over the larger of dG(mu1), dG(mu2), in phase 1."""
    return (-r.dG[:, 2] / r.dG[:, :2].max(axis=1))[r.early]


def takes_over(r: Record, C: float = 0.05) -> float:
    """The clock from which on, up to T1, -dG(mu3) >= (1 + C) max(dG(mu1), dG(mu2))."""
    behind = np.flatnonzero(lead(r) < 1 + C)
    return float(r.clock[min(behind[-1] + 1, r.end) if len(behind) else 0])


GROWTH = (
    claim(
        "Theorem E.14",
        r"""In phase 1 a neuron's rate along a target is $\Theta((\sigma_0^2+\sigma_1^2)m)$ times
        the difference of gradients, up to $|\epsilon| \le \tilde O(L\sigma_0^2\sqrt m +
        \sigma_1^2\sqrt{mm_1})$, with the constant 1.""",
        each(
            least=power("Theta", 1.0, lambda r: factor(r).min(), VALUES),
            largest=power("Theta", 1.0, lambda r: factor(r).max(), VALUES),
            error=bounded(
                1.0,
                lambda r: over_error(
                    r, rates(r, TARGETS, r.early) - factor(r) * r.phi[r.early, None, :2]
                ),
                ("the rate itself", lambda r: over_error(r, rates(r, TARGETS, r.early))),
            ),
        ),
    ),
    claim(
        "Theorem E.15",
        r"""In phase 1 a random word's rates are $O(\frac{1}{n}(\sigma_0^2+\sigma_1^2)m) + \tilde
        O(\sigma_0^2L\sqrt m)$: with the constant 2, at every width.""",
        bounded(
            2.0, lambda r: growth(r, RANDOM), ("relevant words", lambda r: growth(r, RELEVANT))
        ),
    ),
    claim(
        "Lemma E.16",
        r"""At $t = 0$ the common word's rates are $\tilde O(\sigma_1^2\sqrt{mm_1} +
        \sigma_0^2\sqrt{mL} + (\sigma_0^2+\sigma_1^2)mF)$, $F = \max_i|F_i^{(0)}|$: they vanish with
        the first outputs.""",
        power(
            "O",
            1,
            lambda r: largest(rates(r, COMMON)),
            ("a target", lambda r: largest(rates(r, TARGETS))),
            0.4,
            Over(small_starts, first_bound, "zero"),
        ),
        setting="t = 0, m = 16384, k0 = .03 to 1",
    ),
    claim(
        "Lemma E.17",
        r"""In phase 1 $|\partial_ta_jw_jW_V\mu_3| \le \tilde O(\sigma_1^2m)$.""",
        bounded(
            0.5,
            lambda r: largest(rates(r, COMMON, r.early)) / (r.s1**2 * r.dim),
            ("all neurons together", lambda r: largest(r.dG[r.early, 2]) / (r.s1**2 * r.dim)),
        ),
        reading=r"the rate is that of time $t$; the printed weights are those of time 0",
    ),
    claim(
        "Theorem E.19 (rates)",
        r"""Between $T_{0.5}$ and $T_1$, $\partial_tG(\mu_1), \partial_tG(\mu_2) \ge
        \Omega((\sigma_0^2+\sigma_1^2)mm_1)$.""",
        power(
            "Omega",
            1.0,
            lambda r: float(r.dG[r.early & (r.clock >= takes_over(r)), :2].min()),
            VALUES,
        ),
    ),
)


@paper.claim("Theorem E.19 (lower)", regime=phase_1, setting=SETTING)
def common_word_takes_over(study) -> Measurement:
    r"""From some $T_{0.5} < T_1$ on, $(1+C)\max(\partial_tG(\mu_1), \partial_tG(\mu_2)) \le
    -\partial_tG(\mu_3)$; here $C = .05$, and $T_{0.5}$ is the last crossing."""
    few = takes_over(record(study, 4096, END, samples=12, k0=0.1))
    return at_most(
        bound=0.8 * END,
        measured=[takes_over(r) for r in sweep(study)],
        control=Control("n = 12, below L^2", few),
        note="T_0.5 in the clock in which T1 = 25",
    )


@paper.claim("Theorem E.19 (upper)", regime=phase_1, setting="m = 4096")
def common_word_below_both(study) -> Measurement:
    r"""For all $t \le T_1$, $-\partial_tG(\mu_3) \le (1-C)(\partial_tG(\mu_1) +
    \partial_tG(\mu_2))$; here $C = .25$."""
    r = record(study, 4096)
    both = (-r.dG[:, 2] / r.dG[:, :2].sum(axis=1))[r.early]
    one = Control("one target alone", lead(r))
    return always(times=r.clock[r.early], measured=both, at_most=0.75, control=one)


# --- Single targets and scores.


def single_right(r: Record) -> int:
    """The first row in which every sample with one target has y F >= .05."""
    single = (r.kind == 1) | (r.kind == 2)
    return int(np.argmax(r.margin[:, single].min(axis=1) >= 0.05))


def by_scale(study: Any) -> list[Record]:
    return [record(study, 1024, END, k0=k, length=3) for k in (0.03, 0.1, 0.3)]


def gap(r: Record, one: int, two: int) -> float:
    return largest((r.sums[:, one] - r.sums[:, two])[r.early]) / r.n


def pairs(x: Quantity, random: bool) -> Quantity:
    """The largest |x[sample, key, query]| in phase 1 where both words are random, or not both."""

    def of(r: Record) -> float:
        rare = r.token > 2
        both = rare[:, :, None] & rare[:, None, :]
        return largest(x(r)[r.early][:, both if random else ~both])

    return of


def softmax_rate(r: Record) -> np.ndarray:
    return r.dp


def softmax_change(r: Record) -> np.ndarray:
    return r.p - r.p[0]


def both_ways(x: Quantity, exponent: float, other: Named) -> Check:
    return each(
        random=power("O", exponent, pairs(x, True), other),
        otherwise=power("O", exponent, pairs(x, False), other),
    )


SINGLE = (
    claim(
        "Cor E.20",
        r"""$T' = \min\{t: \min_{i\in I_2\cup I_3}y_iF_i \ge C\} \le O(1/m)$; here $C = .05$.""",
        power(
            "O",
            -1.0,
            lambda r: r.t[single_right(r)],
            ("in the clock of the values", lambda r: r.clock[single_right(r)]),
        ),
        reading=r"$F_i \ge C$ is $y_iF_i \ge C$: samples of one target are negative",
    ),
    claim(
        "Prop E.21",
        r"""In phase 1 $|\frac{1}{n}\sum_{I_2}g_i - \frac{1}{n}\sum_{I_3}g_i| \le O(F)$, $F =
        \max_i|F_i^{(0)}|$.""",
        power(
            "O",
            1,
            lambda r: gap(r, 1, 2),
            ("both targets against one", lambda r: gap(r, 0, 2)),
            0.2,
            Over(by_scale, lambda r: largest(r.margin[0]), "zero"),
        ),
        setting="m = 1024, L = 3, k0 = .03 to .3",
    ),
    claim(
        "Prop E.22",
        r"""$|\sum_ja_j\|k(\mu)\|^2w_j^\top v(\nu)|$ and the same with $q$ are at most
        $O(\sigma_0^2m\,\sigma_0\sigma_1\sqrt{mm_1})$ up to logarithms, and with $k(\nu)^\top k_l$
        in place of the norm at most $\tilde O(\sigma_0^2\sqrt m\,\sigma_0\sigma_1\sqrt{mm_1})$:
        their mean squares are the squares of these.""",
        each(
            keys=weighted("KK", True),
            queries=weighted("QQ", True),
            key_products=weighted("KK", False),
            query_products=weighted("QQ", False),
        ),
        setting="t = 0, m = 1024, 20 starts",
    ),
    claim(
        "Lemma E.23 (rate)",
        r"""In phase 1 $|\partial_t\nu^\top W_K^\top W_Q\mu| \le \frac{1}{\sqrt m}\frac{|\{i:\mu\in
        X\}| + |\{i:\nu\in X\}|}{n}\tilde O(\frac{1}{L} + \frac{1}{\sqrt m})$.

        Measured: the power of $m$ of the largest ratio over words and times.""",
        power("O", -0.5, lambda r: largest(r.dS[r.early] / per_sample(r)), VALUE_RATES),
    ),
    claim(
        "Lemma E.23 (change)",
        r"""So scores change by at most $t$ times that, $m^{-3/2}$ at the end of phase 1.""",
        power("O", -1.5, lambda r: largest(r.change("S")[r.early] / per_sample(r)), VALUE_PRODUCTS),
    ),
    claim(
        "Cor E.24 (rates)",
        r"""In phase 1 $|\partial_tp| \le \tilde O(\frac{1}{L(L^2+n)\sqrt m})$ between random words,
        $\tilde O(\frac{1}{L^2\sqrt m})$ otherwise.

        Measured: the power of $m$. It is a bound, and holds with room: see the proof.""",
        both_ways(softmax_rate, -0.5, VALUE_RATES),
    ),
    claim(
        "Cor E.24 (rates)",
        r"""Its proof has $\frac{1}{m}$ where the statement has $\frac{1}{\sqrt m}$: $|\partial_tp|
        \le \tilde O(\frac{1}{Lm}(\frac{1}{L} + \frac{1}{\sqrt m}))$, and this is the order.""",
        power("Theta", -1.0, pairs(softmax_rate, False), SCORE_RATES),
        part="proof-step",
    ),
    claim(
        "Cor E.24 (change)",
        r"""In phase 1 attention changes by $\tilde O((\frac{1}{L}+\frac{1}{n})\frac{1}{Lm^2}
        (\frac{1}{L} + \frac{1}{\sqrt m}))$ between random words, $\tilde O(\frac{1}{Lm^2}
        (\frac{1}{L} + \frac{1}{\sqrt m}))$ otherwise. Measured: the power of $m$.""",
        both_ways(softmax_change, -2.0, SCORES),
    ),
    claim(
        "Lemma E.25",
        r"""In phase 1 the products of keys and those of queries change by at most
        $t\frac{1}{\sqrt m}\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}\tilde
        O(\frac{1}{\sqrt m})$, $m^{-2}$ at its end.""",
        each(
            keys=power("O", -2.0, lambda r: largest(r.change("KK")[r.end] / per_sample(r)), SCORES),
            queries=power(
                "O", -2.0, lambda r: largest(r.change("QQ")[r.end] / per_sample(r)), SCORES
            ),
        ),
    ),
)


# --- The box of Def. E.2 and the end of phase 1.


def random_part(r: Record) -> float:
    return radius(r) * (1 / r.n + 1 / float(np.sqrt(r.dim)))


def before(of: Any) -> Named:
    """The same at the clock 2, long before T1."""
    return "at 2/(s1^2 m m1)", lambda r: of(r, int(np.argmax(r.clock >= 2.0)))


def at_end(bound: float, of: Any) -> Check:
    """At least `bound` at T1."""
    return bounded(bound, lambda r: of(r, r.end), before(of), above=True)


def least_margin(r: Record, k: int) -> float:
    return r.margin[k].min()


def least_value(r: Record, k: int) -> float:
    return min(r.G[k, 0], r.G[k, 1], -r.G[k, 2])


def least_mean(r: Record, k: int) -> float:
    return min(r.margin[k, r.kind == one].mean() for one in range(4))


def right_from(r: Record) -> int:
    """The row from which on every sample is right and the values have their signs."""
    signs = np.stack([r.G[:, 0], r.G[:, 1], -r.G[:, 2], r.margin.min(axis=1)]).min(axis=0)
    return int(np.flatnonzero(signs <= 0)[-1] + 1)


BOX = (
    claim(
        "Theorem E.26 (i)",
        r"""Up to $C_{T_1}/(\sigma_1^2mm_1)$ a neuron's product with a relevant word moves by at
        most $R = O(1/m_1)$.""",
        power("O", -1, radius, ("all neurons together", moved("G")), 0.2, BY_NEURONS),
        **OF_NEURONS,
    ),
    claim(
        "Theorem E.26 (ii)",
        r"""Up to then its product with a random word moves by at most $O(R/n + R/\sqrt m)$.

        Measured: the largest ratio, which is the constant; it does not grow with $m$.""",
        bounded(
            15.0,
            lambda r: largest(r.change("P")[r.early][:, :, 3:]) / random_part(r),
            ("relevant words", lambda r: radius(r) / random_part(r)),
        ),
    ),
    claim(
        "Theorem E.26 (iii)",
        r"""Up to then scores move by at most $R_S \le O(\frac{1}{m\sqrt m})$.""",
        power("O", -1.5, moved("S"), VALUE_PRODUCTS),
    ),
    *(
        claim(
            f"Theorem E.26 ({item})",
            rf"""Up to then the products of {words} move by at most ${size} \le \tilde
            O(\sigma_0^2\sqrt m)$, which is $m^{{-1/2}}$ here; they move by far less.""",
            power("O", -0.5, moved(name), VALUES),
        )
        for item, words, size, name in (("iv", "queries", "R_Q", "QQ"), ("v", "keys", "R_K", "KK"))
    ),
    claim(
        "Theorem E.27 (margins)",
        r"""At $T_1$, $y_iF_i = \Theta(1)$ for all samples: between .02 and 4 at every width.""",
        each(
            least=at_end(0.02, least_margin),
            largest=bounded(
                4.0,
                lambda r: r.margin[r.end].max(),
                ("at the end of phase 2", lambda r: r.margin[-1].max()),
            ),
        ),
    ),
    claim(
        "Theorem E.27 (values)",
        r"""At $T_1$, $G(\mu_1)$, $G(\mu_2)$ and $-G(\mu_3)$ are $\Theta(1)$: no power of $m$.""",
        each(
            first=power("Theta", 0.0, lambda r: r.G[r.end, 0], VALUE_RATES),
            second=power("Theta", 0.0, lambda r: r.G[r.end, 1], VALUE_RATES),
            common=power("Theta", 0.0, lambda r: -r.G[r.end, 2], VALUE_RATES),
        ),
    ),
    claim(
        "Theorem E.27 (random words)",
        r"""At $T_1$ every random word has $G(\mu) = \tilde O(\sigma_0\sigma_1\sqrt{mm_1})$, which
        does not depend on $m$ here; the constant also holds the growth of Theorem E.15, of order
        $1/n$.""",
        power(
            "O",
            0.0,
            lambda r: largest(r.G[r.end, 3:]) / (r.s0 * r.s1 * np.sqrt(r.dim * r.m1)),
            VALUE_RATES,
        ),
    ),
    claim(
        "Theorem E.27 (neurons)",
        r"""At $T_1$, $\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle =
        \Theta(\sigma_1^2mm_1)$.""",
        power("Theta", 1.0, lambda r: r.U[r.end], VALUES, 0.1),
    ),
    claim(
        "Theorem E.28 (T1)",
        r"""Phase 1 ends at $T_1 = \tilde O(1/m)$: from then on every sample is right and
        $G(\mu_1), G(\mu_2) > 0 > G(\mu_3)$.""",
        power(
            "O",
            -1.0,
            lambda r: r.t[right_from(r)],
            ("in the clock of the values", lambda r: r.clock[right_from(r)]),
            0.25,
        ),
    ),
    claim(
        "Theorem E.28 (values)",
        r"""At $T_1$, $G(\mu_1), G(\mu_2) \ge \Omega(1)$ and $G(\mu_3) \le -\Omega(1)$: at least 1/2
        in size at every width.""",
        at_end(0.5, least_value),
    ),
    claim(
        "Theorem E.28 (margins)",
        r"""At $T_1$ all training samples are right, $y_iF_i = \Omega(1)$: the mean of every class is
        at least .3 at every width.""",
        at_end(0.3, least_mean),
    ),
    *(
        claim(
            f"Theorem E.28 ({words})",
            rf"In phase 1 the {words} change by $\tilde O({size})$, and that is their order.",
            power("Theta", exponent, moved(name), other, tol),
        )
        for words, size, name, exponent, other, tol in (
            ("neuron products", "1/m", "NN", -1.0, SCORES, 0.2),
            ("value products", "1/m", "VV", -1.0, SCORES, 0.2),
            (
                "scores",
                r"\frac{1}{m^{3/2}}(\frac{1}{L} + \frac{1}{\sqrt m})",
                *("S", -1.5, VALUE_PRODUCTS, 0.2),
            ),
            ("key products", "1/m^2", "KK", -2.0, SCORES, 0.25),
            ("query products", "1/m^2", "QQ", -2.0, SCORES, 0.25),
        )
    ),
    claim(
        "Theorem E.28 (loss)",
        r"""At $T_1$ the training loss is $\Theta(1)$: no power of $m$.""",
        power("Theta", 0.0, lambda r: r.loss[r.end], VALUE_PRODUCTS, 0.1),
    ),
)
