"""Appendix E: phase 1, in which the values of words are learned and all else stands."""

from __future__ import annotations

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
    every,
    identity,
    order,
    statistical,
)
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence.claims.common import phase_1
from attnflow.studies.cooccurrence.claims.scaling import (
    END,
    SETTING,
    WIDTHS,
    Record,
    at_start,
    in_width,
    record,
)
from attnflow.studies.cooccurrence.paper import paper

DELTA = 0.1
"""The failure probability at which bounds with delta are tested."""

SEEDS = tuple(range(20))

SCALES = (0.03, 0.1, 0.3)
"""k0 of the fits in the size of the first outputs."""

NEURONS = (4, 16, 64)

HALF = Erratum(
    "half", "the residual g(0) = 1/2 of every sample is lost from the first rate", cause="constant"
)


# --- Quantities of a record that rows and controls share.


def largest(x: np.ndarray) -> float:
    return float(np.abs(x).max())


def change_of(name: str) -> tuple[str, Any]:
    """The largest change in phase 1, as a control."""
    words = {"G": "values G", "VV": "value products", "S": "scores"}[name]
    return f"the change of {words}", lambda r: largest(r.change(name)[r.early])


VALUE_RATES = ("the rates of G", lambda r: largest(r.dG[r.early]))
SCORE_RATES = ("the rates of scores", lambda r: largest(r.dS[r.early]))


# --- Attention and the first rates.


@paper.claim("Prop E.3", regime=phase_1, setting=SETTING)
def softmax_radius(study) -> Measurement:
    r"""In phase 1 attention moves by $R_P = O(1/(\sqrt m L) + L/m)$.

    Measured: the power of $m$. Attention moves by far less, like $m^{-2}$ (Cor. E.24)."""
    return in_width("O", study, lambda r: largest((r.p - r.p[0])[r.early]), -0.5, change_of("G"))


@paper.claim("Lemma E.4", regime=phase_1, setting="t = 0, k0 = .03, m1 = 4, eight starts")
def target_rates(study) -> Measurement:
    r"""At $t = 0$ every neuron turns to the targets, $\partial_t a_j w_j W_V\mu =
    \Theta((\sigma_0^2 + \sigma_1^2)m)$: the slowest and the fastest neuron."""
    sizes = {"k0": 0.03, "neurons": 4, "samples": 12, "length": 3}

    def mean(m: int, of: Any) -> float:
        return float(np.mean([of(at_start(study, m, seed=s, **sizes)) for s in SEEDS[:8]]))

    def check(of: Any) -> Measurement:
        return order(
            "Theta",
            x=[mean(m, scale) for m in WIDTHS],
            y=[mean(m, lambda r: of(r.neuron_rate[0, :, :2])) for m in WIDTHS],
            power=1,
            tol=0.15,
            toward="infinity",
            control=Control(
                "the other neurons' part",
                measured=[mean(m, lambda r: largest(r.cross_neuron[0])) for m in WIDTHS],
            ),
        )

    return every(slowest=check(np.min), fastest=check(np.max))


def scale(r: Record) -> float:
    """(s0^2 + s1^2) m."""
    return (r.s0**2 + r.s1**2) * r.dim


@paper.claim("Lemma E.4", part="constant", regime=phase_1, setting="t = 0, k0 = .01, m = 1024")
def first_rate_constant(study) -> Measurement:
    r"""The rate is $(1/3 \pm .01)(\sigma_0^2 + \sigma_1^2)m$, on average over neurons."""
    starts = [at_start(study, 1024, k0=0.01, seed=seed) for seed in SEEDS]
    rates = [float(r.neuron_rate[0, :, :2].mean()) / scale(r) for r in starts]
    common = [float(r.neuron_rate[0, :, 2].mean()) / scale(r) for r in starts]
    return corrected(
        printed=statistical(predicted=1 / 3, samples=rates, z=4.0),
        right=statistical(
            predicted=1 / 6,
            samples=rates,
            z=4.0,
            control=Control("the common word", measured=common),
        ),
        text=r"$(\frac{1}{3} \pm .01)(\sigma_0^2 + \sigma_1^2)m$",
        correct=r"$g(0)(\frac{1}{2} - \frac{1}{6})(\sigma_0^2 + \sigma_1^2)m$, one sixth",
        erratum=HALF,
    )


@paper.claim("Lemma E.4", part="hypothesis", regime=phase_1, setting="t = 0, m1 = 64, k0 = .03")
def neurons_against_width(study) -> Measurement:
    r"""That *every* neuron turns to the targets needs $m$ far above $m_1$: here $m = 64 m_1$."""
    share = {
        m: float((at_start(study, m, k0=0.03, neurons=64).neuron_rate[0, :, :2] > 0).mean())
        for m in (16, 4096)
    }
    return at_least(
        bound=1.0, measured=share[4096], control=Control("m = m1/4: share of neurons", share[16])
    )


# --- Prop E.5: bounds with probability 1 - delta.

BERNSTEIN = {"samples": 12, "length": 3, "neurons": 4}


def tail(m: int, count: float) -> float:
    """sqrt(4/m log(count/delta)) + 4/m log(count/delta)."""
    ell = np.log(count / DELTA) / m
    return float(np.sqrt(4 * ell) + 4 * ell)


def failures(study: Any, beyond: Any) -> float:
    """The share of starts in which `beyond` finds a bound broken."""
    return float(np.mean([beyond(at_start(study, 16384, seed=s, **BERNSTEIN)) for s in SEEDS]))


def neuron_bound(r: Record, log: float) -> float:
    size = r.s1**2 * np.sqrt(r.m1) * r.dim
    return size * tail(r.dim, 2 * r.m1**2) * float(np.sqrt(np.log(log * r.m1 / DELTA)))


@paper.claim("Prop E.5 (neurons)", regime=phase_1, setting="20 starts, m = 16384, m1 = 4, n = 12")
def other_neurons(study) -> Measurement:
    r"""With probability $1-\delta$, $|\sum_{j_2\ne j_1} a_{j_2}\langle w_{j_1}, w_{j_2}\rangle| \le
    \sigma_1^2\sqrt{m_1}m(\sqrt{\frac{4}{m}\log\frac{2m_1^2}{\delta}} +
    \frac{4}{m}\log\frac{2m_1^2}{\delta})\sqrt{\log\frac{4m_1}{\delta}}$ for all $j_1$."""
    return at_most(
        bound=DELTA,
        measured=failures(study, lambda r: largest(r.cross_neuron[0]) > neuron_bound(r, 4)),
        control=Control(
            "with the neuron itself",
            failures(study, lambda r: largest(r.NN[0] @ r.a) > neuron_bound(r, 4)),
        ),
        note="share of starts in which it is broken, at delta = .1",
    )


@paper.claim("Prop E.5 (weighted)", regime=phase_1, setting="20 starts, m = 16384, m1 = 4, n = 12")
def other_neurons_weighted(study) -> Measurement:
    r"""The same sum, weighted with gradients and attention of a word, is at most $|\{i: \mu\in
    X^{(i)}\}|/n$ times that bound."""

    def beyond(r: Record, sums: np.ndarray) -> bool:
        allowed = r.count / r.n * neuron_bound(r, 1)
        return bool((np.abs(np.outer(sums, r.phi[0])) > allowed).any())

    return at_most(
        bound=DELTA,
        measured=failures(study, lambda r: beyond(r, r.cross_neuron[0])),
        control=Control(
            "with the neuron itself", failures(study, lambda r: beyond(r, r.NN[0] @ r.a))
        ),
        note="share of starts in which it is broken, at delta = .1",
    )


@paper.claim("Prop E.5 (values)", regime=phase_1, setting="20 starts, m = 16384, m1 = 4, n = 12")
def other_values(study) -> Measurement:
    r"""The values of the other words along that of $\mu$, weighted with gradients and attention,
    are at most $\sigma_0^2 m\sqrt L(\sqrt{\frac{4}{m}\log\frac{2nLd}{\delta}} +
    \frac{4}{m}\log\frac{2nLd}{\delta})$."""

    def beyond(r: Record, sums: np.ndarray) -> bool:
        d = r.G.shape[1]
        return largest(sums) > r.s0**2 * r.dim * np.sqrt(r.L) * tail(r.dim, 2 * r.n * r.L * d)

    return at_most(
        bound=DELTA,
        measured=failures(study, lambda r: beyond(r, r.cross_value[0])),
        control=Control(
            "with the word itself", failures(study, lambda r: beyond(r, r.VV[0] @ r.phi[0]))
        ),
        note="share of starts in which it is broken, at delta = .1",
    )


@paper.claim("Lemma E.6", regime=phase_1, setting="t = 0, m = 1024, n = 24, 72, 216")
def random_first_rates(study) -> Measurement:
    r"""At $t = 0$ a random word's rates are $O(\frac{1}{n}(\sigma_0^2+\sigma_1^2)m +
    \sigma_0^2\sqrt{mL})$: the fastest neuron and word."""
    starts = [at_start(study, 1024, samples=n) for n in (24, 72, 216)]
    return order(
        "O",
        x=[scale(r) / r.n + r.s0**2 * np.sqrt(r.dim * r.L) for r in starts],
        y=[largest(r.neuron_rate[0, :, 3:]) for r in starts],
        power=1,
        tol=0.3,
        control=Control("a target", measured=[largest(r.neuron_rate[0, :, :2]) for r in starts]),
    )


# --- Perturbations.


def radius(r: Record) -> float:
    """R of Def. E.2: how far a neuron's product with a relevant word moves in phase 1."""
    return largest(r.change("P")[r.early][:, :, :3])


def responses(r: Record) -> np.ndarray:
    """w_j V p of every neuron, sample and query, in phase 1."""
    return np.einsum("tjik,tikl->tjil", r.P[r.early][:, :, r.token], r.p[r.early])


def moved(r: Record, words: int) -> float:
    """L R_P s0 s1 sqrt m + words R/L, the bound of Lemma E.7 with the constant 1."""
    RP = largest((r.p - r.p[0])[r.early])
    return r.L * RP * r.s0 * r.s1 * np.sqrt(r.dim) + words * radius(r) / r.L


@paper.claim("Lemma E.7", regime=phase_1, setting=SETTING)
def neuron_response(study) -> Measurement:
    r"""In phase 1 $|w_jW_VX^{(i)}p_l - w_j^{(0)}W_V^{(0)}X^{(i)}p_l^{(0)}| \le \tilde
    O(LR_P\sigma_0\sigma_1\sqrt m) + 4R/L$, with $R$ and $R_P$ as measured."""
    runs = [record(study, m) for m in WIDTHS]
    change = [largest(responses(r) - responses(r)[0]) for r in runs]
    return at_most(
        bound=1.0,
        measured=[c / moved(r, 4) for c, r in zip(change, runs, strict=True)],
        control=Control(
            "R/L, of one word", [c / moved(r, 1) for c, r in zip(change, runs, strict=True)]
        ),
    )


@paper.claim(
    "Lemma E.7", part="proof-step", regime=phase_1, setting="m = 4096, m1 = 4, 16, 64, L = 3"
)
def response_stays_small(study) -> Measurement:
    r"""By the choice of parameters that bound is below $\sigma_0\sigma_1\sqrt{m/L}$.

    Measured: their ratio falls with $m_1$; at these widths it is above 1, so that 'below' needs a
    larger $m_1$ than any here."""
    runs = [record(study, 4096, END, neurons=m1, length=3) for m1 in NEURONS]
    unit = [r.s0 * r.s1 * float(np.sqrt(r.dim / r.L)) for r in runs]
    outputs = [largest((r.margin - r.margin[0])[r.early]) for r in runs]
    return order(
        "O",
        x=NEURONS,
        y=[moved(r, 4) / size for r, size in zip(runs, unit, strict=True)],
        power=-0.5,
        tol=0.25,
        toward="infinity",
        control=Control(
            "of all neurons, F", measured=[c / size for c, size in zip(outputs, unit, strict=True)]
        ),
    )


@paper.claim("Prop E.8", regime=phase_1, setting="t = 0, m = 1024, 20 starts")
def first_values(study) -> Measurement:
    r"""$|G^{(0)}(\mu)| \le \tilde O(\sigma_0\sigma_1\sqrt{mm_1})$: its mean square is
    $\sigma_0^2\sigma_1^2mm_1$."""
    starts = [at_start(study, 1024, k0=0.01, seed=seed) for seed in SEEDS]

    def square(r: Record, values: np.ndarray) -> float:
        return float((values**2).mean()) / ((r.s0 * r.s1) ** 2 * r.dim * r.m1)

    return statistical(
        predicted=1.0,
        samples=[square(r, r.G[0]) for r in starts],
        z=4.0,
        control=Control("of one neuron", measured=[square(r, r.P[0, 0]) for r in starts]),
    )


def value_rates(r: Record) -> np.ndarray:
    """dVV/dt, Lemma C.3."""
    half = r.G[:, :, None] * r.phi[:, None, :]
    return half + half.swapaxes(1, 2)


def per_sample(r: Record) -> np.ndarray:
    """(|{i: mu in X}| + |{i: nu in X}|) / n."""
    return (r.count[:, None] + r.count) / r.n


@paper.claim("Lemma E.9 (rate)", regime=phase_1, setting=SETTING)
def value_correlation_rate(study) -> Measurement:
    r"""In phase 1 $|\partial_t\langle v(\mu), v(\nu)\rangle| \le \frac{|\{i:\mu\in X\}| +
    |\{i:\nu\in X\}|}{n}O(1)$.

    Measured: the largest ratio of the two sides over words and times."""
    return in_width(
        "O", study, lambda r: largest(value_rates(r)[r.early] / per_sample(r)), 0.0, VALUE_RATES
    )


@paper.claim("Lemma E.9 (change)", regime=phase_1, setting=SETTING)
def value_correlation_change(study) -> Measurement:
    r"""In phase 1 $|\langle v(\mu), v(\nu)\rangle - \langle v^{(0)}(\mu), v^{(0)}(\nu)\rangle| \le
    t\,\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}O(1)$, which is $O(1/m)$ at its end."""
    return in_width(
        "O", study, lambda r: largest(r.change("VV")[r.end] / per_sample(r)), -1, change_of("G")
    )


@paper.claim("Lemma E.9 (sizes)", regime=phase_1, setting=SETTING)
def value_correlation_sizes(study) -> Measurement:
    r"""So in phase 1 $|\langle v(\mu), v(\nu)\rangle| \le \tilde O(\sigma_0^2\sqrt m)$ and
    $|v(\mu)|^2 = \Theta(\sigma_0^2m)$; $\sigma_0^2m$ does not depend on $m$ here."""

    def norms(r: Record) -> np.ndarray:
        return np.einsum("tvv->tv", r.VV[r.early])

    def products(r: Record) -> np.ndarray:
        return r.VV[r.early] * (1 - np.eye(r.VV.shape[1]))

    of_norms = ("the norms", lambda r: largest(norms(r)))
    of_products = ("the products", lambda r: largest(products(r)))
    return every(
        products=in_width("O", study, of_products[1], -0.5, of_norms),
        shortest=in_width("Theta", study, lambda r: norms(r).min(), 0.0, of_products),
        longest=in_width("Theta", study, of_norms[1], 0.0, of_products),
    )


@paper.claim("Cor E.10", regime=phase_1, setting=SETTING)
def cross_values(study) -> Measurement:
    r"""In phase 1 the other words' values along that of $\mu_1$, weighted with gradients and
    attention, are at most $L\tilde O(\sigma_0^2\sqrt m)$."""
    own = ("the word's own value", lambda r: largest((r.VV[:, 0, 0] * r.phi[:, 0])[r.early]))
    return in_width("O", study, lambda r: largest(r.cross_value[r.early, 0]), -0.5, own)


@paper.claim("Lemma E.11", regime=phase_1, setting=SETTING)
def cross_neurons(study) -> Measurement:
    r"""In phase 1 the other neurons' part of a target's rate is at most $\frac{|\{i:\mu_1\in
    X\}|}{n}\tilde O(\sigma_1^2\sqrt{mm_1})$; a
    neuron's own part is not."""
    runs = [record(study, m) for m in WIDTHS]

    def ratio(r: Record, part: np.ndarray) -> float:
        size = r.count[0] / r.n * r.s1**2 * np.sqrt(r.dim * r.m1)
        return largest((part * r.phi[:, :1])[r.early]) / size

    return at_most(
        bound=1.5,
        measured=[ratio(r, r.cross_neuron) for r in runs],
        control=Control(
            "the neuron's own part", [ratio(r, np.einsum("tjj->tj", r.NN)) for r in runs]
        ),
        note="the constant, at every width",
    )


def neuron_correlation_rates(r: Record) -> np.ndarray:
    """d<w_i, w_j>/dt, Lemma C.2, in phase 1."""
    one = np.einsum("tjv,tv->tj", r.P, r.phi)[r.early, :, None] * r.a
    return one + one.swapaxes(1, 2)


def correlation_bound(r: Record) -> float:
    """2L(s1 s0 sqrt(m/L log(m1 n L/delta)) + the bound of Lemma E.7)."""
    log = np.log(r.m1 * r.n * r.L / DELTA)
    return 2 * r.L * (r.s1 * r.s0 * np.sqrt(r.dim / r.L * log) + moved(r, 4))


@paper.claim("Prop E.12 (rate)", regime=phase_1, setting=SETTING)
def neuron_correlation_rate(study) -> Measurement:
    r"""In phase 1 $|\partial_t\langle w_{j_1}, w_{j_2}\rangle| \le
    2L(\sigma_1\sigma_0\sqrt{\frac{m}{L}\log\frac{m_1nL}{\delta}} + \tilde
    O(LR_P\sigma_0\sigma_1\sqrt m) + 4R/L)$ at $\delta = .1$, with $R$ and $R_P$ as measured."""
    runs = [record(study, m) for m in WIDTHS]
    sums = [largest((2 * r.m1 * (r.g * r.margin).mean(axis=1))[r.early]) for r in runs]
    return at_most(
        bound=1.0,
        measured=[largest(neuron_correlation_rates(r)) / correlation_bound(r) for r in runs],
        control=Control(
            "of the sum over all pairs",
            [s / correlation_bound(r) for s, r in zip(sums, runs, strict=True)],
        ),
    )


@paper.claim("Prop E.12 (change)", regime=phase_1, setting=SETTING)
def neuron_correlation_change(study) -> Measurement:
    r"""In phase 1 $|\langle w_{j_1}, w_{j_2}\rangle - \langle w_{j_1}^{(0)},
    w_{j_2}^{(0)}\rangle|$ is at most $t$ times that bound."""
    runs = [record(study, m) for m in WIDTHS]

    def ratio(r: Record, change: np.ndarray) -> float:
        later = r.early & (r.t > 0)
        return float((change[later] / (r.t[later] * correlation_bound(r))).max())

    return at_most(
        bound=1.0,
        measured=[ratio(r, r.change("NN").max(axis=(1, 2))) for r in runs],
        control=Control("of the sum over all pairs", [ratio(r, r.change("U")) for r in runs]),
    )


@paper.claim(
    "Cor E.13",
    regime=phase_1,
    setting=SETTING,
    reading=r"'for all $j\in[m]$' is $j\in[m_1]$: there are $m_1$ neurons",
)
def neuron_norm_change(study) -> Measurement:
    r"""In phase 1 $\|w_j\|^2$ of every neuron changes by at most $t$ times the bound of E.12."""
    runs = [record(study, m) for m in WIDTHS]

    def ratio(r: Record, change: np.ndarray) -> float:
        return float(change[r.end] / (r.t[r.end] * correlation_bound(r)))

    return at_most(
        bound=1.0,
        measured=[ratio(r, np.einsum("tjj->tj", r.change("NN")).max(axis=1)) for r in runs],
        control=Control("of |W'a|^2", [ratio(r, r.change("U")) for r in runs]),
    )


# --- Growth through phase 1.


def small_model(study: Any) -> tuple[Any, Any]:
    """A few random weights of order one, and their sentences."""
    ready = study.at(
        samples=study.task.step, vocab=0, dim=6, neurons=5, seed=study.config.seed + 1,
        init="condition", k0=2.0, k1=2.0, mode="flow", output=0.0, rate=0.01,
    )  # fmt: skip
    return ready.initialisation.model(ready.config.words, 6, 5, 3), ready.sentences


@paper.claim("Theorem E.14", part="proof-step")
def growth_of_a_neuron(study) -> Measurement:
    r"""$\partial_t a_jw_jW_V\mu = (\|w_j\|^2 + \|v(\mu)\|^2)\frac{1}{n}\sum_{i:\mu\in X}
    g_iy_i\sum_lp_{q_l,k_\mu} + \epsilon$, with $\epsilon$ the other neurons' and the other words'
    part.

    Measured: the flow of all weights."""
    theta, X = small_model(study)
    v = value_mlp.weight_flow(X, 6).velocity(theta)
    phi = slow_forces(theta, X)
    W, WV, a = theta.W, theta.WV, theta.a

    def right(j: int, others: float = 1.0) -> np.ndarray:
        NN, VV = W @ W.T, WV.T @ WV
        own = (NN[j, j] + np.diag(VV)) * phi
        neurons = a[j] * (NN[j] @ a - a[j] * NN[j, j]) * phi
        return own + others * neurons + (VV - np.diag(np.diag(VV))) @ phi

    return identity(
        over=range(5),
        predicted=right,
        measured=lambda j: a[j] * (v.W[j] @ WV + W[j] @ v.WV),
        control=Control("without the other neurons", lambda j: right(j, 0.0)),
    )


def slow_forces(theta: Any, X: Any) -> np.ndarray:
    """(1/n) sum of g y times the attention on each word, sample by sample."""
    phi = np.zeros(X.vocab)
    for x, y in zip(X.token, X.label, strict=True):
        p, F = slow_output(theta, x)
        for place, word in enumerate(x):
            phi[word] += y / (1 + np.exp(y * F)) * p[place].sum() / len(X)
    return phi


def slow_output(theta: Any, x: np.ndarray) -> tuple[np.ndarray, float]:
    """Attention p[key, query] and F of one sentence, eq. (1)."""
    K, Q = theta.WK[:, x], theta.WQ[:, x]
    e = np.exp(K.T @ Q / np.sqrt(len(K)))
    p = e / e.sum(axis=0)
    return p, float((theta.a @ theta.W @ theta.WV[:, x] @ p).sum())


@paper.claim("Theorem E.14", regime=phase_1, setting=SETTING)
def growth_of_targets(study) -> Measurement:
    r"""In phase 1 a neuron's rate along a target is $\Theta((\sigma_0^2+\sigma_1^2)m)$ times the
    difference of gradients, up to $|\epsilon| \le \tilde O(L\sigma_0^2\sqrt m +
    \sigma_1^2\sqrt{mm_1})$, with the constant 1."""

    def factor(r: Record) -> np.ndarray:
        norms, values = np.einsum("tjj->tj", r.NN), np.einsum("tvv->tv", r.VV)[:, :2]
        return (norms[:, :, None] + values[:, None, :])[r.early]

    def error(r: Record) -> float:
        own = factor(r) * r.phi[r.early, None, :2]
        size = r.L * r.s0**2 * np.sqrt(r.dim) + r.s1**2 * np.sqrt(r.dim * r.m1)
        return largest(r.neuron_rate[r.early][:, :, :2] - own) / size

    def rate(r: Record) -> float:
        size = r.L * r.s0**2 * np.sqrt(r.dim) + r.s1**2 * np.sqrt(r.dim * r.m1)
        return largest(r.neuron_rate[r.early][:, :, :2]) / size

    least, most = (lambda r: factor(r).min()), (lambda r: factor(r).max())
    runs = [record(study, m) for m in WIDTHS]
    return every(
        least=in_width("Theta", study, least, 1.0, change_of("G")),
        largest=in_width("Theta", study, most, 1.0, change_of("G")),
        error=at_most(
            bound=1.0,
            measured=[error(r) for r in runs],
            control=Control("the rate itself", [rate(r) for r in runs]),
        ),
    )


@paper.claim("Theorem E.15", regime=phase_1, setting=SETTING)
def growth_of_random_words(study) -> Measurement:
    r"""In phase 1 a random word's rates are $O(\frac{1}{n}(\sigma_0^2+\sigma_1^2)m) + \tilde
    O(\sigma_0^2L\sqrt m)$: with the constant 2, at every width."""
    runs = [record(study, m) for m in WIDTHS]

    def ratio(r: Record, words: slice) -> float:
        size = scale(r) / r.n + r.s0**2 * r.L * np.sqrt(r.dim)
        return largest(r.neuron_rate[r.early][:, :, words]) / size

    return at_most(
        bound=2.0,
        measured=[ratio(r, slice(3, None)) for r in runs],
        control=Control("relevant words", [ratio(r, slice(3)) for r in runs]),
    )


@paper.claim("Lemma E.16", regime=phase_1, setting="t = 0, m = 16384, k0 = .03 to 3")
def common_first_rates(study) -> Measurement:
    r"""At $t = 0$ the common word's rates are $\tilde O(\sigma_1^2\sqrt{mm_1} + \sigma_0^2\sqrt{mL}
    + (\sigma_0^2+\sigma_1^2)mF)$, $F = \max_i|F_i^{(0)}|$: they vanish with the first outputs."""
    starts = [at_start(study, 16384, k0=k0, samples=12, length=3) for k0 in (0.03, 0.1, 0.3, 1.0)]

    def bound(r: Record) -> float:
        small = r.s1**2 * np.sqrt(r.dim * r.m1) + r.s0**2 * np.sqrt(r.dim * r.L)
        return float(small + scale(r) * largest(r.margin[0]))

    return order(
        "O",
        x=[bound(r) for r in starts],
        y=[largest(r.neuron_rate[0, :, 2]) for r in starts],
        power=1,
        tol=0.4,
        control=Control("a target", measured=[largest(r.neuron_rate[0, :, :2]) for r in starts]),
    )


@paper.claim(
    "Lemma E.17",
    regime=phase_1,
    setting=SETTING,
    reading=r"the rate is that of time $t$; the printed weights are those of time 0",
)
def common_rates(study) -> Measurement:
    r"""In phase 1 $|\partial_ta_jw_jW_V\mu_3| \le \tilde O(\sigma_1^2m)$."""
    runs = [record(study, m) for m in WIDTHS]
    return at_most(
        bound=0.5,
        measured=[largest(r.neuron_rate[r.early][:, :, 2]) / (r.s1**2 * r.dim) for r in runs],
        control=Control(
            "all neurons together", [largest(r.dG[r.early, 2]) / (r.s1**2 * r.dim) for r in runs]
        ),
        note="the constant, at every width",
    )


# --- The common word.


def lead(r: Record) -> np.ndarray:
    """-dG(mu3) over the larger of dG(mu1), dG(mu2), in phase 1."""
    return (-r.dG[:, 2] / r.dG[:, :2].max(axis=1))[r.early]


def takes_over(r: Record, C: float = 0.05) -> float:
    """The clock from which on, up to T1, -dG(mu3) >= (1 + C) max(dG(mu1), dG(mu2))."""
    behind = np.flatnonzero(lead(r) < 1 + C)
    return float(r.clock[min(behind[-1] + 1, r.end) if len(behind) else 0])


@paper.claim("Theorem E.19 (lower)", regime=phase_1, setting=SETTING)
def common_word_takes_over(study) -> Measurement:
    r"""From some $T_{0.5} < T_1$ on, $(1+C)\max(\partial_tG(\mu_1), \partial_tG(\mu_2)) \le
    -\partial_tG(\mu_3)$; here $C = .05$, and $T_{0.5}$ is the last crossing."""
    return at_most(
        bound=0.8 * END,
        measured=[takes_over(record(study, m)) for m in WIDTHS],
        control=Control(
            "n = 12, below L^2", takes_over(record(study, 4096, END, samples=12, k0=0.1))
        ),
        note="T_0.5 in the clock in which T1 = 25",
    )


@paper.claim("Theorem E.19 (upper)", regime=phase_1, setting=SETTING)
def common_word_below_both(study) -> Measurement:
    r"""For all $t \le T_1$, $-\partial_tG(\mu_3) \le (1-C)(\partial_tG(\mu_1) +
    \partial_tG(\mu_2))$; here $C = .25$."""
    r = record(study, 4096)
    return always(
        times=r.clock[r.early],
        measured=(-r.dG[:, 2] / r.dG[:, :2].sum(axis=1))[r.early],
        at_most=0.75,
        control=Control("one target alone", lead(r)),
    )


@paper.claim("Theorem E.19 (rates)", regime=phase_1, setting=SETTING)
def target_rates_last(study) -> Measurement:
    r"""Between $T_{0.5}$ and $T_1$, $\partial_tG(\mu_1), \partial_tG(\mu_2) \ge
    \Omega((\sigma_0^2+\sigma_1^2)mm_1)$."""

    def least(r: Record) -> float:
        return float(r.dG[r.early & (r.clock >= takes_over(r)), :2].min())

    return in_width("Omega", study, least, 1.0, change_of("G"))


@paper.claim(
    "Cor E.20",
    regime=phase_1,
    setting=SETTING,
    reading=r"$F_i \ge C$ is $y_iF_i \ge C$: samples of one target are negative",
)
def single_targets_right(study) -> Measurement:
    r"""$T' = \min\{t: \min_{i\in I_2\cup I_3}y_iF_i \ge C\} \le O(1/m)$; here $C = .05$."""

    def first(r: Record) -> int:
        single = (r.kind == 1) | (r.kind == 2)
        return int(np.argmax(r.margin[:, single].min(axis=1) >= 0.05))

    clock = ("in the clock of the values", lambda r: r.clock[first(r)])
    return in_width("O", study, lambda r: r.t[first(r)], -1.0, clock)


@paper.claim("Prop E.21", regime=phase_1, setting="m = 1024, L = 3, k0 = .03 to .3")
def single_targets_balanced(study) -> Measurement:
    r"""In phase 1 $|\frac{1}{n}\sum_{I_2}g_i - \frac{1}{n}\sum_{I_3}g_i| \le O(F)$, $F =
    \max_i|F_i^{(0)}|$."""
    runs = [record(study, 1024, END, k0=k0, length=3) for k0 in SCALES]

    def gap(r: Record, one: int, two: int) -> float:
        return largest((r.sums[:, one] - r.sums[:, two])[r.early]) / r.n

    return order(
        "O",
        x=[largest(r.margin[0]) for r in runs],
        y=[gap(r, 1, 2) for r in runs],
        power=1,
        tol=0.2,
        control=Control("both targets against one", measured=[gap(r, 0, 2) for r in runs]),
    )


# --- Scores.


@paper.claim("Prop E.22", regime=phase_1, setting="t = 0, m = 1024, 20 starts")
def weighted_first_values(study) -> Measurement:
    r"""$|\sum_ja_j\|k(\mu)\|^2w_j^\top v(\nu)|$ and the same with $q$ are at most
    $O(\sigma_0^2m\,\sigma_0\sigma_1\sqrt{mm_1})$ up to logarithms, and with $k(\nu)^\top k_l$ in
    place of the norm at most $\tilde O(\sigma_0^2\sqrt m\,\sigma_0\sigma_1\sqrt{mm_1})$: their mean
    squares are the squares of these."""
    starts = [at_start(study, 1024, k0=0.01, seed=seed) for seed in SEEDS]

    def square(r: Record, K: np.ndarray, norms: bool) -> float:
        d = len(K)
        chosen = np.diag(K) if norms else K[~np.eye(d, dtype=bool)]
        size = r.s0**2 * (r.dim if norms else np.sqrt(r.dim))
        values = r.G[0] / (r.s0 * r.s1 * np.sqrt(r.dim * r.m1))
        return float((chosen**2).mean() * (values**2).mean() / size**2)

    def check(name: str, norms: bool) -> Measurement:
        return statistical(
            predicted=1.0,
            samples=[square(r, getattr(r, name)[0], norms) for r in starts],
            z=4.0,
            atol=0.01,
            control=Control(
                "scores in their place, for norms" if norms else "norms among the products",
                measured=[square(r, (r.S if norms else r.NN)[0], norms) for r in starts],
            ),
        )

    return every(
        keys=check("KK", True),
        queries=check("QQ", True),
        key_products=check("KK", False),
        query_products=check("QQ", False),
    )


@paper.claim("Lemma E.23 (rate)", regime=phase_1, setting=SETTING)
def score_rate(study) -> Measurement:
    r"""In phase 1 $|\partial_t\nu^\top W_K^\top W_Q\mu| \le \frac{1}{\sqrt m}\frac{|\{i:\mu\in X\}|
    + |\{i:\nu\in X\}|}{n}\tilde O(\frac{1}{L} + \frac{1}{\sqrt m})$.

    Measured: the power of $m$ of the largest ratio over words and times."""
    return in_width("O", study, lambda r: largest(r.dS[r.early] / per_sample(r)), -0.5, VALUE_RATES)


@paper.claim("Lemma E.23 (change)", regime=phase_1, setting=SETTING)
def score_change(study) -> Measurement:
    r"""So scores change by at most $t$ times that, $m^{-3/2}$ at the end of phase 1."""
    return in_width(
        "O", study, lambda r: largest(r.change("S")[r.early] / per_sample(r)), -1.5, change_of("VV")
    )


def random_pair(r: Record, x: np.ndarray, both: bool) -> float:
    """The largest |x[sample, key, query]| in phase 1 where both words are random, or not both."""
    random = r.token > 2
    chosen = random[:, :, None] & random[:, None, :]
    return largest(x[r.early][:, chosen if both else ~chosen])


def both_ways(study: Any, of: Any, power: float, other: tuple[str, Any]) -> Measurement:
    return every(
        random=in_width("O", study, lambda r: random_pair(r, of(r), True), power, other),
        otherwise=in_width("O", study, lambda r: random_pair(r, of(r), False), power, other),
    )


@paper.claim("Cor E.24 (rates)", regime=phase_1, setting=SETTING)
def softmax_rates(study) -> Measurement:
    r"""In phase 1 $|\partial_tp| \le \tilde O(\frac{1}{L(L^2+n)\sqrt m})$ between random words,
    $\tilde O(\frac{1}{L^2\sqrt m})$ otherwise.

    Measured: the power of $m$. It is a bound, and holds with room: see the proof."""
    return both_ways(study, lambda r: r.dp, -0.5, VALUE_RATES)


@paper.claim("Cor E.24 (rates)", part="proof-step", regime=phase_1, setting=SETTING)
def softmax_rates_of_the_proof(study) -> Measurement:
    r"""Its proof has $\frac{1}{m}$ where the statement has $\frac{1}{\sqrt m}$: $|\partial_tp| \le
    \tilde O(\frac{1}{Lm}(\frac{1}{L} + \frac{1}{\sqrt m}))$, and this is the order."""
    return in_width("Theta", study, lambda r: random_pair(r, r.dp, False), -1.0, SCORE_RATES)


@paper.claim("Cor E.24 (change)", regime=phase_1, setting=SETTING)
def softmax_change(study) -> Measurement:
    r"""In phase 1 attention changes by $\tilde O((\frac{1}{L}+\frac{1}{n})\frac{1}{Lm^2}
    (\frac{1}{L} + \frac{1}{\sqrt m}))$ between random words, $\tilde O(\frac{1}{Lm^2}(\frac{1}{L} +
    \frac{1}{\sqrt m}))$ otherwise. Measured: the power of $m$."""
    return both_ways(study, lambda r: r.p - r.p[0], -2.0, change_of("S"))


@paper.claim("Lemma E.25", regime=phase_1, setting=SETTING)
def key_query_change(study) -> Measurement:
    r"""In phase 1 the products of keys and those of queries change by at most
    $t\frac{1}{\sqrt m}\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}\tilde O(\frac{1}{\sqrt m})$,
    $m^{-2}$ at its end."""

    def change(name: str) -> Measurement:
        of = lambda r: largest(r.change(name)[r.end] / per_sample(r))  # noqa: E731
        return in_width("O", study, of, -2.0, change_of("S"))

    return every(keys=change("KK"), queries=change("QQ"))


# --- The box of Def. E.2 and the end of phase 1.


@paper.claim("Theorem E.26 (i)", regime=phase_1, setting="m = 4096, m1 = 4, 16, 64, L = 3")
def box_of_targets(study) -> Measurement:
    r"""Up to $C_{T_1}/(\sigma_1^2mm_1)$ a neuron's product with a relevant word moves by at most
    $R = O(1/m_1)$."""
    runs = [record(study, 4096, END, neurons=m1, length=3) for m1 in NEURONS]
    return order(
        "O",
        x=NEURONS,
        y=[radius(r) for r in runs],
        power=-1,
        toward="infinity",
        tol=0.2,
        control=Control("all neurons together", measured=[change_of("G")[1](r) for r in runs]),
    )


@paper.claim("Theorem E.26 (ii)", regime=phase_1, setting=SETTING)
def box_of_random_words(study) -> Measurement:
    r"""Up to then its product with a random word moves by at most $O(R/n + R/\sqrt m)$.

    Measured: the largest ratio, which is the constant; it does not grow with $m$."""

    runs = [record(study, m) for m in WIDTHS]

    def size(r: Record) -> float:
        return radius(r) * (1 / r.n + 1 / float(np.sqrt(r.dim)))

    return at_most(
        bound=15.0,
        measured=[largest(r.change("P")[r.early][:, :, 3:]) / size(r) for r in runs],
        control=Control("relevant words", [radius(r) / size(r) for r in runs]),
    )


@paper.claim("Theorem E.26 (iii)", regime=phase_1, setting=SETTING)
def box_of_scores(study) -> Measurement:
    r"""Up to then scores move by at most $R_S \le O(\frac{1}{m\sqrt m})$."""
    return in_width("O", study, lambda r: largest(r.change("S")[r.early]), -1.5, change_of("VV"))


@paper.claim("Theorem E.26 (iv)", regime=phase_1, setting=SETTING)
def box_of_queries(study) -> Measurement:
    r"""Up to then the products of queries move by at most $R_Q \le \tilde O(\sigma_0^2\sqrt m)$,
    which is $m^{-1/2}$ here; they move by far less."""
    return in_width("O", study, lambda r: largest(r.change("QQ")[r.early]), -0.5, change_of("G"))


@paper.claim("Theorem E.26 (v)", regime=phase_1, setting=SETTING)
def box_of_keys(study) -> Measurement:
    r"""Up to then the products of keys move by at most $R_K \le \tilde O(\sigma_0^2\sqrt m)$."""
    return in_width("O", study, lambda r: largest(r.change("KK")[r.early]), -0.5, change_of("G"))


def at_end(study: Any, of: Any) -> list[float]:
    return [float(of(r := record(study, m), r.end)) for m in WIDTHS]


def before(study: Any, of: Any) -> list[float]:
    """The same at the clock 2, long before T1."""
    return [float(of(r := record(study, m), int(np.argmax(r.clock >= 2.0)))) for m in WIDTHS]


@paper.claim("Theorem E.27 (margins)", regime=phase_1, setting=SETTING)
def margins_at_the_end(study) -> Measurement:
    r"""At $T_1$, $y_iF_i = \Theta(1)$ for all samples: between .02 and 4 at every width."""
    least, most = (lambda r, k: r.margin[k].min()), (lambda r, k: r.margin[k].max())
    small = lambda r, k: r.margin[-1].max()  # noqa: E731
    return every(
        least=at_least(
            bound=0.02,
            measured=at_end(study, least),
            control=Control("at 2/(s1^2 m m1)", before(study, least)),
        ),
        largest=at_most(
            bound=4.0,
            measured=at_end(study, most),
            control=Control("at the end of phase 2", at_end(study, small)),
        ),
    )


@paper.claim("Theorem E.27 (values)", regime=phase_1, setting=SETTING)
def values_at_the_end(study) -> Measurement:
    r"""At $T_1$, $G(\mu_1)$, $G(\mu_2)$ and $-G(\mu_3)$ are $\Theta(1)$: no power of $m$."""

    def of(word: int, sign: float) -> Measurement:
        y = lambda r: sign * float(r.G[r.end, word])  # noqa: E731
        return in_width("Theta", study, y, 0.0, VALUE_RATES)

    return every(first=of(0, 1.0), second=of(1, 1.0), common=of(2, -1.0))


@paper.claim("Theorem E.27 (random words)", regime=phase_1, setting=SETTING)
def random_words_at_the_end(study) -> Measurement:
    r"""At $T_1$ every random word has $G(\mu) = \tilde O(\sigma_0\sigma_1\sqrt{mm_1})$, which does
    not depend on $m$ here; the constant also holds the growth of Theorem E.15, of order $1/n$."""
    return in_width(
        "O",
        study,
        lambda r: largest(r.G[r.end, 3:]) / (r.s0 * r.s1 * np.sqrt(r.dim * r.m1)),
        0.0,
        VALUE_RATES,
    )


@paper.claim("Theorem E.27 (neurons)", regime=phase_1, setting=SETTING)
def neurons_at_the_end(study) -> Measurement:
    r"""At $T_1$, $\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle =
    \Theta(\sigma_1^2mm_1)$."""
    return in_width("Theta", study, lambda r: float(r.U[r.end]), 1.0, change_of("G"), 0.1)


@paper.claim("Theorem E.28 (T1)", regime=phase_1, setting=SETTING)
def end_of_phase_one(study) -> Measurement:
    r"""Phase 1 ends at $T_1 = \tilde O(1/m)$: from then on every sample is right and
    $G(\mu_1), G(\mu_2) > 0 > G(\mu_3)$."""

    def right(r: Record) -> int:
        signs = np.stack([r.G[:, 0], r.G[:, 1], -r.G[:, 2], r.margin.min(axis=1)]).min(axis=0)
        return int(np.flatnonzero(signs <= 0)[-1] + 1)

    clock = ("in the clock of the values", lambda r: r.clock[right(r)])
    return in_width("O", study, lambda r: r.t[right(r)], -1.0, clock, 0.25)


@paper.claim("Theorem E.28 (values)", regime=phase_1, setting=SETTING)
def phase_one_values(study) -> Measurement:
    r"""At $T_1$, $G(\mu_1), G(\mu_2) \ge \Omega(1)$ and $G(\mu_3) \le -\Omega(1)$: at least 1/2
    in size at every width."""
    of = lambda r, k: min(r.G[k, 0], r.G[k, 1], -r.G[k, 2])  # noqa: E731
    return at_least(
        bound=0.5,
        measured=at_end(study, of),
        control=Control("at 2/(s1^2 m m1)", before(study, of)),
    )


@paper.claim("Theorem E.28 (margins)", regime=phase_1, setting=SETTING)
def phase_one_margins(study) -> Measurement:
    r"""At $T_1$ all training samples are right, $y_iF_i = \Omega(1)$: the mean of every class is at
    least .3 at every width."""
    means = lambda r, k: min(r.margin[k, r.kind == one].mean() for one in range(4))  # noqa: E731
    return at_least(
        bound=0.3,
        measured=at_end(study, means),
        control=Control("at 2/(s1^2 m m1)", before(study, means)),
    )


@paper.claim("Theorem E.28 (neuron products)", regime=phase_1, setting=SETTING)
def phase_one_neurons(study) -> Measurement:
    r"""In phase 1 $|\langle w_{j_1}, w_{j_2}\rangle - \langle w_{j_1}^{(0)}, w_{j_2}^{(0)}\rangle|
    \le \tilde O(1/m)$, and that is their order."""
    y = lambda r: largest(r.change("NN")[r.early])  # noqa: E731
    return in_width("Theta", study, y, -1.0, change_of("S"))


@paper.claim("Theorem E.28 (value products)", regime=phase_1, setting=SETTING)
def phase_one_value_products(study) -> Measurement:
    r"""In phase 1 $|\langle v(\mu), v(\nu)\rangle - \langle v^{(0)}(\mu), v^{(0)}(\nu)\rangle| \le
    \tilde O(1/m)$, and that is their order."""
    y = lambda r: largest(r.change("VV")[r.early])  # noqa: E731
    return in_width("Theta", study, y, -1.0, change_of("S"))


@paper.claim("Theorem E.28 (scores)", regime=phase_1, setting=SETTING)
def phase_one_scores(study) -> Measurement:
    r"""In phase 1 scores change by $\tilde O(\frac{1}{m^{3/2}}(\frac{1}{L} + \frac{1}{\sqrt m}))$,
    and that is their order."""
    y = lambda r: largest(r.change("S")[r.early])  # noqa: E731
    return in_width("Theta", study, y, -1.5, change_of("VV"))


@paper.claim("Theorem E.28 (key products)", regime=phase_1, setting=SETTING)
def phase_one_keys(study) -> Measurement:
    r"""In phase 1 the products of keys change by $\tilde O(1/m^2)$, and that is their order."""
    y = lambda r: largest(r.change("KK")[r.early])  # noqa: E731
    return in_width("Theta", study, y, -2.0, change_of("S"), 0.25)


@paper.claim("Theorem E.28 (query products)", regime=phase_1, setting=SETTING)
def phase_one_queries(study) -> Measurement:
    r"""In phase 1 the products of queries change by $\tilde O(1/m^2)$, and that is their order."""
    y = lambda r: largest(r.change("QQ")[r.early])  # noqa: E731
    return in_width("Theta", study, y, -2.0, change_of("S"), 0.25)


@paper.claim("Theorem E.28 (loss)", regime=phase_1, setting=SETTING)
def phase_one_loss(study) -> Measurement:
    r"""At $T_1$ the training loss is $\Theta(1)$: no power of $m$."""
    return in_width("Theta", study, lambda r: float(r.loss[r.end]), 0.0, change_of("VV"), 0.1)
