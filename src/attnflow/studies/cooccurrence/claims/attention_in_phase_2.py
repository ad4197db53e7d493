"""Appendix F, the rest: random words, scores and attention, the end of training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_most,
    corrected,
    equal,
    every,
    fit_line,
    not_checkable,
    order,
)
from attnflow.studies.cooccurrence import theory
from attnflow.studies.cooccurrence.claims.common import declared, each, phase_2, two_targets
from attnflow.studies.cooccurrence.claims.late_phase import SOFTMAX, VALUES, box, moving, pushed
from attnflow.studies.cooccurrence.claims.scaling import (
    AT,
    END,
    LAST,
    RANDOM,
    RELEVANT,
    SETTING,
    WIDTHS,
    Over,
    Quantity,
    Record,
    bounded,
    changed,
    few,
    in_phase_2,
    largest,
    power,
    record,
    starts,
)
from attnflow.studies.cooccurrence.paper import paper

claim = partial(declared, __name__, phase_2, setting=SETTING)
at_all_times = partial(claim, setting=AT)

VALUE_PRODUCTS = changed("VV", "value products", late=True)
SCORES = changed("S", "scores", late=True)


# --- Value products and random words.


def least_product(r: Record) -> np.ndarray:
    d = r.dVV
    signed = [d[:, 0, 1], d[:, 0, 0], d[:, 1, 1], -d[:, 0, 2], -d[:, 1, 2]]
    return np.min(signed, axis=0) / np.abs(d[:, :3, :3]).max(axis=(1, 2))


def common_product(r: Record) -> np.ndarray:
    d = r.dVV
    return -d[:, 2, 2] / np.abs(d[:, :3, :3]).max(axis=(1, 2))


def random_rate(r: Record, words: slice) -> float:
    first = r.s1**2 * r.dim * r.m1 / r.n
    rest = r.m1 * (r.L * (r.s0**2 * np.sqrt(r.dim) + 1 / r.dim) + r.s0**2 * r.dim)
    return float((np.abs(r.dG[:, words]).max(axis=1) / (r.loss * (first + rest)))[r.late].max())


VALUE_ROWS = (
    claim(
        "Lemma F.11",
        r"""In phase 2 value products change by $O(\frac{\log m\log t}{\sigma_1^2mm_1})$: the power
        of $m$.""",
        power("O", -1.0, VALUE_PRODUCTS[1], VALUES),
    ),
    claim(
        "Cor F.12",
        r"""In phase 2 $\max_\mu|\sum_ja_j\partial_tw_jW_V\mu|$ over the sum is at most
        $o(1/L)\frac{1}{n}\sum_ig_i$; its proof has $\tilde O((\sigma_0^2\sqrt mL + L/m +
        \sigma_0^2m + 1/m)/(\sigma_1^2m))$, which is $1/m$ here.""",
        power(
            "O",
            -1.0,
            lambda r: largest(pushed(r)[r.late]),
            (
                "the values' part",
                lambda r: largest((np.abs(r.phi).max(axis=1) / r.g.mean(axis=1))[r.late]),
            ),
        ),
    ),
    at_all_times(
        "Cor F.13",
        r"""In phase 2 $\langle v(\mu_1), v(\mu_2)\rangle$, $\|v(\mu_1)\|^2$ and $\|v(\mu_2)\|^2$
        grow, $\langle v(\mu_1), v(\mu_3)\rangle$ and $\langle v(\mu_2), v(\mu_3)\rangle$ fall.""",
        in_phase_2(
            least_product,
            ("of the common word with itself, taken to fall", common_product),
            at_least=0.3,
        ),
    ),
    claim(
        "Lemma F.14 (rate)",
        r"""In phase 2 a random word has $|\partial_tG(\mu)| \le O(\frac{1}{n}\hat L\sigma_1^2mm_1)
        + \tilde O(\hat Lm_1(L(\sigma_0^2\sqrt m + 1/m) + \sigma_0^2m))$: the constant.""",
        bounded(
            4.0,
            lambda r: random_rate(r, RANDOM),
            ("relevant words", lambda r: random_rate(r, RELEVANT)),
        ),
    ),
)


@paper.once
def limit_values(
    study: Any, samples: int, length: int = 3, until: float = LAST
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """tau, G[time, word] and the words of each sample at infinite width, Assumption 2.3."""
    ready = few(study, mode="infinite-width", samples=samples, length=length, until=until)
    rows = ready.solution.trajectory
    return rows["time"].values, rows["value"].values, ready.sentences.token


def random_total(study: Any, *how: Any) -> np.ndarray:
    """The largest sum of random words' values in a sample, at each time."""
    _, G, token = limit_values(study, *how)
    return np.abs(np.where(token > 2, G[:, token], 0.0).sum(axis=2)).max(axis=1)


IN_SAMPLES = {"kind": "O", "over": (60, 120, 240), "toward": "infinity"}


@paper.claim("Lemma F.14 (change)", regime=phase_2, setting="infinite width, L = 3, tau = 3e3")
@against("relevant words", order, **IN_SAMPLES, power=-1, tol=0.2)
def random_change(study, n: int, right: bool):
    r"""So through phase 2 $|G(\mu) - G^{(T_1)}(\mu)| \le \tilde O(\frac{1}{n} + \dots)$: the power
    of $n$ at infinite width, where only that term is left."""
    t, G, _ = limit_values(study, n)
    return largest((G[-1] - G[np.argmax(t >= END)])[RANDOM if right else RELEVANT])


@paper.claim("Cor F.15", regime=phase_2, setting="infinite width, L = 3, tau = 3e3")
@against("the number of samples' own words", order, **IN_SAMPLES, power=0, tol=0.1)
def random_words_stay(study, n: int, right: bool):
    r"""In phase 2 the random words of a sample add up to $O(1)$: they fall with $n$, which
    Condition 1 lets grow with the logarithm of the time."""
    words = (limit_values(study, n)[2] > 2).sum()
    return float(random_total(study, n)[-1] if right else words)


@paper.claim(
    "Cor F.15",
    part="hypothesis",
    regime=two_targets,
    setting="infinite width, n = 36, L = 4, tau = 1e8",
)
def random_words_grow(study) -> Measurement:
    r"""At fixed $n$ no bound is uniform in $t$: the total of a sample with one target grows like
    $(L-2)\frac{6s}{n\gamma^2}\ln t$, $s$ the share of its class in the limit."""
    long = (36, 4, 1e8)
    t = limit_values(study, *long)[0]
    last, law, task = t >= 1e6, theory.closed_law(36, 4), few(study, samples=36).task
    both = float(task.irrelevant[0] * theory.class_law(task, 36).irrelevant[0])
    return equal(
        predicted=2 * 6 * law["share"] / (36 * law["gamma2"]),
        measured=fit_line(np.log(t[last]), random_total(study, *long)[last]).slope,
        rtol=4e-3,
        control=Control("of a sample with both targets", both),
    )


# --- Scores and attention.


def last_rate(one: tuple[int, int], two: tuple[int, int], sign: float) -> Quantity:
    """The slower rate of two scores at the end, over the loss."""
    return lambda r: min(sign * r.dS[-1][one], sign * r.dS[-1][two]) / r.loss[-1]


def signed(x: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The least of the rates that have a sign: between targets, and of the common word for one."""
    return np.min([x[:, 1, 0], x[:, 0, 1], -x[:, 2, 0], -x[:, 2, 1]], axis=0) / unit


def score_unit(r: Record) -> np.ndarray:
    return r.s0**2 * np.sqrt(r.dim) / r.L * r.loss


def softmax_unit(r: Record) -> np.ndarray:
    return r.s0**2 / r.L**2 * r.loss


def both_targets(r: Record) -> np.ndarray:
    """The mean rate of attention over I1."""
    return r.dp[:, r.kind == 0].mean(axis=1)


def random_scores(r: Record, x: np.ndarray, size: np.ndarray | float, words: slice) -> float:
    """The largest |x| of a word of `words` and a relevant one, either way round, over the bound
    `s0^2 sqrt m / (n L) + s0^2` times `size`."""
    bound = r.s0**2 * (np.sqrt(r.dim) / (r.n * r.L) + 1) * size
    both = np.concatenate([x[:, words, :3], x[:, :3, words].swapaxes(1, 2)], axis=1)
    return float((np.abs(both).max(axis=(1, 2)) / bound).max())


def random_rates(words: slice) -> Quantity:
    return lambda r: random_scores(r, r.dS[r.late], r.loss[r.late], words)


def random_change_of_scores(words: slice) -> Quantity:
    """With ln^2 of the time as the logarithms."""

    def of(r: Record) -> float:
        size = np.log(LAST) ** 2 / (r.s1**2 * r.dim * r.m1)
        return random_scores(r, r.change("S", r.end)[-1:], size, words)

    return of


def target_rate(r: Record) -> float:
    return r.dG[-1, 0] / r.loss[-1]


SCORE_ROWS = (
    claim(
        "Lemma F.16 (rates)",
        r"""In phase 2 the score of one target for the other grows at the rate $\frac{1}{\sqrt
        m}\tilde \Theta(\hat L\sigma_0^2m)\frac{1}{L}$, that of the common word for a target falls
        at it. Measured: the power of $m$ at the end, of the slowest pair.""",
        each(
            targets=power(
                "Theta", -0.5, last_rate((1, 0), (0, 1), 1.0), ("the rates of G", target_rate)
            ),
            common=power(
                "Theta", -0.5, last_rate((2, 0), (2, 1), -1.0), ("the rates of G", target_rate)
            ),
        ),
    ),
    at_all_times(
        "Lemma F.16 (signs)",
        r"""All through phase 2 the scores between targets grow, those of the common word for a
        target fall.""",
        in_phase_2(
            lambda r: signed(r.dS, score_unit(r)),
            (
                "of the common word for itself, taken to fall",
                lambda r: -r.dS[:, 2, 2] / score_unit(r),
            ),
            at_least=0.3,
        ),
    ),
    claim(
        "Lemma F.16 (change)",
        r"""Through phase 2 scores of relevant words change by $\Theta(\frac{\sigma_0^2m}{\sqrt
        mL\sigma_1^2mm_1} + \frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$: $m^{-3/2}$ here.""",
        power("Theta", -1.5, lambda r: largest(r.change("S", r.end)[-1, :3, :3]), VALUE_PRODUCTS),
    ),
    claim(
        "Lemma F.16 (random rates)",
        r"""In phase 2 $\partial_t\mu^\top W_K^\top W_Q\gamma = \frac{1}{n\sqrt m}\tilde\Theta(\hat
        L\sigma_0^2m)\frac{1}{L} + \tilde O(\frac{1}{\sqrt m}\hat L\sigma_0^2\sqrt m)$ for a
        relevant word $\mu$ and a random one, $\gamma$: the constant of the two as a bound.""",
        bounded(20.0, random_rates(RANDOM), ("relevant words", random_rates(RELEVANT))),
    ),
    claim(
        "Lemma F.16 (random words)",
        r"""Through phase 2 scores of a random word and a relevant one change by at most $\tilde
        O(\frac{\sigma_0^2m}{n\sqrt mL\sigma_1^2mm_1} + \frac{\sigma_0^2\sqrt m}{\sqrt
        m\sigma_1^2mm_1})$: the constant, with $\ln^2$ of the time as the logarithms.""",
        bounded(
            8.0,
            random_change_of_scores(RANDOM),
            ("relevant words", random_change_of_scores(RELEVANT)),
        ),
    ),
)


def three_words(study: Any) -> list[Record]:
    keys = {"samples": 18, "length": 3}
    return [record(study, m, END, seed=s, **keys) for m in WIDTHS[1:] for s in starts(study)[:2]]


def attention_rate(key: int) -> Quantity:
    """How fast a word of I1 gains or loses the first target's attention, over the loss."""
    return lambda r: np.abs(r.dp[-1, r.kind == 0, key, 0]).mean() / r.loss[-1]


@paper.claim(
    "Cor F.17 (rates)", regime=phase_2, setting="n = 18, L = 3, m1 = 16, m = 1024 to 16384, t = T1"
)
def softmax_rates(study) -> Measurement:
    r"""In phase 2 the attention of one target on the other grows at $\frac{1}{\sqrt m}\tilde
    \Theta(\hat L\sigma_0^2m)\frac{1}{L^2}$, that on the common word falls at it."""
    scores = ("scores", lambda r: np.abs(r.dS[-1, 1, 0]) / r.loss[-1])
    over = Over(three_words, lambda r: r.dim)

    def both(exponent: float) -> Measurement:
        one, two = (
            power("Theta", exponent, attention_rate(key), scores, 0.2, over) for key in (1, 2)
        )
        return each(target=one, common=two)(study)

    return corrected(
        printed=both(-0.5),
        right=both(-1.0),
        text=r"$\partial_tp_{q_\mu,k_\nu} = \frac{1}{\sqrt m}\Theta(L\sigma_0^2m)\frac{1}{L^2}$",
        correct=r"$\partial_tp_{q_\mu,k_\nu} = \frac{1}{m}\Theta(L\sigma_0^2m)\frac{1}{L^2}$",
        erratum=SOFTMAX,
        snippet="softmax_rate_in_width",
    )


def random_attention(r: Record) -> float:
    """The largest rate of a target's attention on a random word, over the loss."""
    random = r.token[r.kind == 0] > 2
    found = np.abs(r.dp[:, r.kind == 0][:, random][:, :, 0]).max(axis=1) / r.loss
    return float(found[r.late].max())


ATTENTION = (
    at_all_times(
        "Cor F.17 (signs)",
        r"""All through phase 2 attention of a target on the other grows, on the common word falls,
        on average over $I_1$.""",
        in_phase_2(
            lambda r: signed(both_targets(r), softmax_unit(r)),
            (
                "of the common word on itself, taken to fall",
                lambda r: -both_targets(r)[:, 2, 2] / softmax_unit(r),
            ),
            at_least=0.3,
        ),
    ),
    claim(
        "Cor F.17 (random words)",
        r"""In phase 2 $|\partial_tp_{q_\mu,k_\gamma}| \le \frac{1}{n\sqrt m}\tilde\Theta(\hat
        L\sigma_0^2m)\frac{1}{L^2} + \tilde O(\frac{1}{L\sqrt m}\hat L\sigma_0^2\sqrt m)$ for a
        target $\mu$ and a random word: as a bound it holds, the rate falls like $1/m$.""",
        power("O", -0.5, random_attention, ("the rates of G", target_rate)),
    ),
    claim(
        "Cor F.18",
        r"""In phase 2 $\max_i|\sum_{l_1,l_2}G(X_{l_2})\partial_tp_{l_1,l_2}|$ over the sum of
        neurons is at most $o(1)\frac{1}{n}\sum_ig_i$: it falls at least like $1/m$.""",
        power(
            "O",
            -1.0,
            lambda r: largest(moving(r, r.G, r.dp)[r.late]),
            ("the values' part", lambda r: largest(moving(r, r.dG, r.p)[r.late])),
        ),
    ),
    claim(
        "Lemma F.19",
        r"""Through phase 2 the products of keys and those of queries change by at most $\tilde
        O(\frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$, which is $m^{-2}$ here.""",
        each(
            keys=power("O", -2.0, lambda r: largest(r.change("KK", r.end)[-1]), SCORES),
            queries=power("O", -2.0, lambda r: largest(r.change("QQ", r.end)[-1]), SCORES),
        ),
    ),
)


@paper.claim("Cor F.17 (change)", regime=phase_2, setting=SETTING)
@against("k0 = 20, far outside Condition 1", at_most, bound=1e-3)
def softmax_stays(study, right: bool):
    r"""All through phase 2 attention stays within $O(1/L^2)$ of its start: below $10^{-3}/L^2$ at
    every width."""
    far = [] if right else [record(study, 256, 2.0, k0=20.0, length=3)]
    return [largest(r.p - r.p[0]) * r.L**2 for r in far or [record(study, m) for m in WIDTHS]]


@paper.claim("Theorem F.20")
def small_loss(study) -> Measurement:
    r"""$T^\star = \min\{t: \hat L = \Theta(1/\mathrm{poly}(m))\}$ lies in $[T_1, T_2]$."""
    return not_checkable(
        "no power of m is given, and T2 is the end of a box without constants; "
        "the row below chooses both"
    )


@paper.claim("Theorem F.20 (1/m)", regime=phase_2, setting="m = 256, n = 36, L = 4")
def small_loss_inside_the_box(study) -> Measurement:
    r"""With poly$(m) = m$: from $T_1$ until $\hat L = 1/m$ every condition of Def. F.1 holds, with
    the constants of Lemma F.3."""
    r = record(study, 256)
    reached = int(np.argmax(r.loss <= 1 / r.dim)) or len(r.t) - 1
    outside = Control("from 2/(s1^2 m m1) on", box(r)[r.clock >= 2].max(axis=0))
    return every(
        reached=at_most(
            bound=1 / r.dim, measured=r.loss[reached], control=Control("at T1", r.loss[r.end])
        ),
        inside=at_most(
            bound=1.0, measured=box(r)[r.end : reached + 1].max(axis=0), control=outside
        ),
    )
