"""Appendix E, growth: the common word takes over, the box of phase 1 and its end."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, against, always, at_most, identity
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence.claims.common import Check, declared, each, phase_1
from attnflow.studies.cooccurrence.claims.early_phase import (
    BY_NEURONS,
    OF_NEURONS,
    VALUE_RATES,
    VALUES,
    weighted,
)
from attnflow.studies.cooccurrence.claims.literal import Point, all_points
from attnflow.studies.cooccurrence.claims.scaling import (
    COMMON,
    END,
    RANDOM,
    RELEVANT,
    SETTING,
    TARGETS,
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
    sweep,
)
from attnflow.studies.cooccurrence.paper import paper

claim = partial(declared, __name__, phase_1, setting=SETTING)

VALUE_PRODUCTS, SCORES = changed("VV", "value products"), changed("S", "scores")


# --- Growth through phase 1.


@paper.claim("Theorem E.14", part="proof-step")
@against("without the other neurons", identity, over=all_points)
def growth_of_a_neuron(study, at: Point, right: bool):
    r"""$\partial_t a_jw_jW_V\mu = (\|w_j\|^2 + \|v(\mu)\|^2)\frac{1}{n}\sum_{i:\mu\in X}
    g_iy_i\sum_lp_{q_l,k_\mu} + \epsilon$, with $\epsilon$ the other neurons' and the other words'
    part. Measured: the flow of all weights."""
    th = at.model
    NN, VV = th.W @ th.W.T, th.WV.T @ th.WV
    own = np.add.outer(np.diag(NN), np.diag(VV)) * at.phi
    neurons = right * th.a * (NN @ th.a - th.a * np.diag(NN))
    told = own + np.outer(neurons, at.phi) + (VV - np.diag(np.diag(VV))) @ at.phi
    v = value_mlp.weight_flow(at.sentences, len(th.WV)).velocity(th)
    return told, th.a[:, None] * (v.W @ th.WV + th.W @ v.WV)


def factor(r: Record) -> np.ndarray:
    """|w_j|^2 + |v(mu)|^2 of the targets in phase 1."""
    neurons = np.einsum("tjj->tj", r.NN)[r.early]
    return neurons[:, :, None] + r.norms[r.early, None, :2]


def over_error(r: Record, x: np.ndarray) -> float:
    """Over L s0^2 sqrt m + s1^2 sqrt(m m1)."""
    size = r.L * r.s0**2 * np.sqrt(r.dim) + r.s1**2 * np.sqrt(r.dim * r.m1)
    return largest(x) / size


def growth(r: Record, words: slice) -> float:
    size = r.scale / r.n + r.s0**2 * r.L * np.sqrt(r.dim)
    return largest(r.rates(words, r.early)) / size


def small_starts(study: Any) -> list[Record]:
    """One draw at several scales: the constant is that of the draw."""
    return [at_start(study, 16384, k0=k, samples=12, length=3) for k in (0.03, 0.1, 0.3, 1.0)]


def first_bound(r: Record) -> float:
    small = r.s1**2 * np.sqrt(r.dim * r.m1) + r.s0**2 * np.sqrt(r.dim * r.L)
    return float(small + r.scale * largest(r.margin[0]))


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
                    r, r.rates(TARGETS, r.early) - factor(r) * r.phi[r.early, None, :2]
                ),
                ("the rate itself", lambda r: over_error(r, r.rates(TARGETS, r.early))),
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
            lambda r: largest(r.rates(COMMON)),
            ("a target", lambda r: largest(r.rates(TARGETS))),
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
            lambda r: largest(r.rates(COMMON, r.early)) / (r.s1**2 * r.dim),
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


SOFTMAX_RATE, SOFTMAX_CHANGE = (lambda r: r.dp), (lambda r: r.p - r.p[0])
SCORE_RATES: Named = ("the rates of scores", lambda r: largest(r.dS[r.early]))


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
        power("O", -0.5, lambda r: largest(r.dS[r.early] / r.shares), VALUE_RATES),
    ),
    claim(
        "Lemma E.23 (change)",
        r"""So scores change by at most $t$ times that, $m^{-3/2}$ at the end of phase 1.""",
        power("O", -1.5, lambda r: largest(r.change("S")[r.early] / r.shares), VALUE_PRODUCTS),
    ),
    claim(
        "Cor E.24 (rates)",
        r"""In phase 1 $|\partial_tp| \le \tilde O(\frac{1}{L(L^2+n)\sqrt m})$ between random words,
        $\tilde O(\frac{1}{L^2\sqrt m})$ otherwise.

        Measured: the power of $m$. It is a bound, and holds with room: see the proof.""",
        both_ways(SOFTMAX_RATE, -0.5, VALUE_RATES),
    ),
    claim(
        "Cor E.24 (rates)",
        r"""Its proof has $\frac{1}{m}$ where the statement has $\frac{1}{\sqrt m}$: $|\partial_tp|
        \le \tilde O(\frac{1}{Lm}(\frac{1}{L} + \frac{1}{\sqrt m}))$, and this is the order.""",
        power("Theta", -1.0, pairs(SOFTMAX_RATE, False), SCORE_RATES),
        part="proof-step",
    ),
    claim(
        "Cor E.24 (change)",
        r"""In phase 1 attention changes by $\tilde O((\frac{1}{L}+\frac{1}{n})\frac{1}{Lm^2}
        (\frac{1}{L} + \frac{1}{\sqrt m}))$ between random words, $\tilde O(\frac{1}{Lm^2}
        (\frac{1}{L} + \frac{1}{\sqrt m}))$ otherwise. Measured: the power of $m$.""",
        both_ways(SOFTMAX_CHANGE, -2.0, SCORES),
    ),
    claim(
        "Lemma E.25",
        r"""In phase 1 the products of keys and those of queries change by at most
        $t\frac{1}{\sqrt m}\frac{|\{i:\mu\in X\}| + |\{i:\nu\in X\}|}{n}\tilde
        O(\frac{1}{\sqrt m})$, $m^{-2}$ at its end.""",
        each(
            keys=power("O", -2.0, lambda r: largest(r.change("KK")[r.end] / r.shares), SCORES),
            queries=power("O", -2.0, lambda r: largest(r.change("QQ")[r.end] / r.shares), SCORES),
        ),
    ),
)


# --- The box of Def. E.2 and the end of phase 1.


def random_part(r: Record) -> float:
    return r.radius * (1 / r.n + 1 / float(np.sqrt(r.dim)))


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
        power("O", -1, lambda r: r.radius, ("all neurons together", VALUES[1]), 0.2, BY_NEURONS),
        **OF_NEURONS,
    ),
    claim(
        "Theorem E.26 (ii)",
        r"""Up to then its product with a random word moves by at most $O(R/n + R/\sqrt m)$.

        Measured: the largest ratio, which is the constant; it does not grow with $m$.""",
        bounded(
            15.0,
            lambda r: largest(r.change("P")[r.early][:, :, 3:]) / random_part(r),
            ("relevant words", lambda r: r.radius / random_part(r)),
        ),
    ),
    claim(
        "Theorem E.26 (iii)",
        r"""Up to then scores move by at most $R_S \le O(\frac{1}{m\sqrt m})$.""",
        power("O", -1.5, lambda r: r.moved("S"), VALUE_PRODUCTS),
    ),
    *(
        claim(
            f"Theorem E.26 ({item})",
            rf"""Up to then the products of {words} move by at most ${size} \le \tilde
            O(\sigma_0^2\sqrt m)$, which is $m^{{-1/2}}$ here; they move by far less.""",
            power("O", -0.5, lambda r, name=name: r.moved(name), VALUES),
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
        r"""At $T_1$ all training samples are right, $y_iF_i = \Omega(1)$: the mean of every class
        is at least .3 at every width.""",
        at_end(0.3, least_mean),
    ),
    *(
        claim(
            f"Theorem E.28 ({words})",
            rf"In phase 1 the {words} change by $\tilde O({size})$, and that is their order.",
            power("Theta", exponent, lambda r, name=name: r.moved(name), other, tol),
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
