"""Appendix F: phase 2, in which gradients balance by themselves and the loss falls."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnflow.claims import Control, Erratum, Measurement, against, equal, fit_line, identity, order
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence import theory
from attnflow.studies.cooccurrence.claims.common import declared, each, phase_2, two_targets
from attnflow.studies.cooccurrence.claims.literal import Point, all_points
from attnflow.studies.cooccurrence.claims.scaling import (
    AT,
    END,
    LAST,
    SETTING,
    WIDE,
    WIDTHS,
    Quantity,
    Record,
    bounded,
    changed,
    few,
    in_phase_2,
    power,
    record,
)
from attnflow.studies.cooccurrence.paper import paper

claim = partial(declared, __name__, phase_2, setting=SETTING)
at_all_times = partial(claim, setting=AT)

SOFTMAX = Erratum(
    "softmax-rate",
    "the scores' second 1/sqrt m, that of the softmax, is lost from the rate of attention",
    cause="constant",
)


VALUES = changed("G", "values G", late=True)


def ratio(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By which factor two positive series differ."""
    return np.exp(np.abs(np.log(np.abs(x / y))))


def spread(g: np.ndarray) -> np.ndarray:
    """The largest ratio of two gradients at each time."""
    return g.max(axis=1) / g.min(axis=1)


def pushed(r: Record) -> np.ndarray:
    """The neurons' part of dG over U and the mean gradient, at each time."""
    part = np.abs(np.einsum("tuv,tv->tu", r.VV, r.phi)).max(axis=1) * r.m1
    return part / r.U / r.g.mean(axis=1)


def moving(r: Record, G: np.ndarray, p: np.ndarray) -> np.ndarray:
    """A part of dF over U and the mean gradient, at each time."""
    part = np.abs(np.einsum("tik,tikl->ti", G[:, r.token], p)).max(axis=1)
    return part / r.U / r.g.mean(axis=1)


def box(r: Record) -> np.ndarray:
    """Def. F.1 with constants of order one: every entry is at most 1 inside; `[time, item]`."""
    S1, S2, S3, S4 = r.sums.T
    random = np.where(r.token > 2, r.G[:, r.token], 0.0)
    size = r.s0**2 * np.sqrt(r.dim)
    items = [
        r.change("KK").max(axis=(1, 2)) / size,
        r.change("QQ").max(axis=(1, 2)) / size,
        np.abs(r.p - r.p[0]).max(axis=(1, 2, 3)) * r.L**2,
        r.U / (2 * r.s1**2 * r.dim * r.m1),
        pushed(r) * r.L,
        moving(r, r.G, r.dp),
        S4 / np.minimum(S2, S3),
        np.maximum(S2, S3) / S1,
        S1 / (S2 + S3 + S4),
        ratio(S2, S3) / 2,
        np.exp(-r.margin.min(axis=1)),
        np.abs(r.G[:, :3]).max(axis=1) / (2 * np.log(r.dim)),
        np.abs(np.einsum("tik,tikl->ti", random, r.p)).max(axis=1) / 6,
    ]
    return np.stack(items, axis=1)


BOX = (
    at_all_times(
        "Cor F.2",
        r"In phase 2 $\max_{i,j\in I}g_i/g_j \le O(1)$ for each class $I$: at most 5 here.",
        in_phase_2(
            lambda r: np.max([spread(r.g[:, r.kind == one]) for one in range(4)], axis=0),
            ("all classes together", lambda r: spread(r.g)),
            at_most=5.0,
        ),
    ),
    claim(
        "Lemma F.3",
        r"""At $T_1$ every condition of Def. F.1 holds strictly: the largest of all.

        Measured with the constants 1 (keys, queries, attention, gradients, order of the classes'
        gradients), 2 (neurons, $I_2$ against $I_3$), $2\log m$ (values), 6 (random words).""",
        bounded(
            1.0,
            lambda r: box(r)[r.end].max(),
            ("at 2/(s1^2 m m1)", lambda r: box(r)[np.argmax(r.clock >= 2)].max()),
        ),
    ),
)


# --- Identities, on all weights.


@paper.claim("Lemma F.4", part="proof-step")
@against("without the factor 2", identity, over=all_points)
def neuron_sum_rate(study, at: Point, right: bool):
    r"""$\partial_t\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle =
    \frac{2m_1}{n}\sum_ig_iy_iF_i$. Measured: the flow of all weights, and of the Grams."""
    th, dim = at.model, len(at.model.WV)
    v = value_mlp.weight_flow(at.sentences, dim).velocity(th)
    gram = value_mlp.gram_flow(at.sentences, dim, float(len(th.a)))
    moved = gram.flow.velocity(gram.project(th))["gram"]["value"]["u"][0, 0]
    pull = (2 if right else 1) * len(th.a) * float(at.gy @ at.F)
    return [pull] * 2, [2 * th.a @ th.W @ v.W.T @ th.a, moved]


@paper.claim("Lemma F.11", part="proof-step")
@against("one term alone", identity, over=all_points)
def value_product_rate(study, at: Point, right: bool):
    r"""$\partial_t\mu^\top W_V^\top W_V\nu = G(\nu)\phi(\mu) + G(\mu)\phi(\nu)$ with $\phi(\mu) =
    \frac{1}{n}\sum_{i:\mu\in X}g_iy_i\sum_lp_{q_l,k_\mu}$, a word that occurs twice in a sample
    counted twice. Measured: the flow of all weights."""
    G = at.model.a @ at.model.W @ at.model.WV
    other = np.outer(at.phi, G) if right else 0.0
    v = value_mlp.weight_flow(at.sentences, len(at.model.WV)).velocity(at.model)
    flow = v.WV.T @ at.model.WV + at.model.WV.T @ v.WV
    return np.outer(G, at.phi) + other, flow


# --- Balance.


def rate_ratio(r: Record) -> np.ndarray:
    return -r.dG[:, 2] / r.dG[:, :2].max(axis=1)


def total_over(r: Record, *gaps: np.ndarray) -> np.ndarray:
    """The sum of all gradients over the smallest of some differences."""
    return r.sums.sum(axis=1) / np.min(gaps, axis=0)


def gaps(r: Record) -> np.ndarray:
    S1, S2, S3, S4 = r.sums.T
    return total_over(r, S2 + S3 + S4 - S1, S1 - S2, S1 - S3)


def value_ratios(r: Record) -> np.ndarray:
    G1, G2, G3 = r.G[:, :3].T
    return np.max([ratio(G1, G2), ratio(G1, G3), ratio(G2, G3)], axis=0)


BALANCE = (
    at_all_times(
        "Lemma F.4 (sign)",
        r"In phase 2 that rate is positive, since every $y_iF_i > 0$.",
        in_phase_2(
            lambda r: np.gradient(r.U, r.t),
            ("with labels forgotten", lambda r: (r.g * r.y * r.margin).mean(axis=1)),
            at_least=0.0,
        ),
    ),
    claim(
        "Lemma F.4 (size)",
        r"So in phase 2 the sum is $\Omega(\sigma_1^2mm_1)$.",
        power("Omega", 1.0, lambda r: r.U[r.late].min(), VALUES, 0.1),
    ),
    at_all_times(
        "Lemma F.5",
        r"""In phase 2 $|\sum_{I_2}g_i - \sum_{I_3}g_i| / \min(\sum_{I_2}g_i, \sum_{I_3}g_i) \le C$
        with a small $C$; here $C = .1$.""",
        in_phase_2(
            lambda r: ratio(r.sums[:, 1], r.sums[:, 2]) - 1,
            ("one target against none", lambda r: ratio(r.sums[:, 1], r.sums[:, 3]) - 1),
            at_most=0.1,
        ),
    ),
    at_all_times(
        "Lemma F.6 (ratios)",
        r"""In phase 2 $\sum_{[n]}g_i$ is $O(1)$ times $\sum_{I_2\cup I_3\cup I_4}g_i -
        \sum_{I_1}g_i$, $\sum_{I_1}g_i - \sum_{I_2}g_i$ and $\sum_{I_1}g_i - \sum_{I_3}g_i$; at most
        10 here. In the limit of many samples they are 17/3 and 17/2.""",
        in_phase_2(
            gaps,
            ("over that of samples with no target", lambda r: total_over(r, r.sums[:, 3])),
            at_most=10.0,
        ),
    ),
    at_all_times(
        "Lemma F.6 (targets)",
        r"In phase 2 $\partial_tG(\mu_1)/\partial_tG(\mu_2) = \Theta(1)$: within a factor 1.25.",
        in_phase_2(
            lambda r: ratio(r.dG[:, 0], r.dG[:, 1]),
            ("a target and a random word", lambda r: ratio(r.dG[:, 0], r.dG[:, 5])),
            at_most=1.25,
        ),
    ),
    at_all_times(
        "Lemma F.6 (inequality)",
        r"""In phase 2 $(1+C)\max(\partial_tG(\mu_1), \partial_tG(\mu_2)) \le -\partial_tG(\mu_3)
        \le (1-C)(\partial_tG(\mu_1) + \partial_tG(\mu_2))$; here $C = .15$ and $.25$.""",
        each(
            lower=in_phase_2(
                rate_ratio,
                ("a random word for the common one", lambda r: -r.dG[:, 5] / r.dG[:, 0]),
                at_least=1.15,
            ),
            upper=in_phase_2(
                lambda r: -r.dG[:, 2] / r.dG[:, :2].sum(axis=1),
                ("one target alone", rate_ratio),
                at_most=0.75,
            ),
        ),
    ),
    at_all_times(
        "Cor F.7",
        r"""In phase 2 $G(\mu_1)/G(\mu_2)$ and $G(\mu_1)/(-G(\mu_3))$, $G(\mu_2)/(-G(\mu_3))$ are
        $\Theta(1)$: within a factor 1.5.""",
        in_phase_2(
            value_ratios,
            ("a target and a random word", lambda r: ratio(r.G[:, 0], r.G[:, 5])),
            at_most=1.5,
        ),
    ),
)


@paper.once
def scalars(study: Any) -> np.ndarray:
    """The class gradients of the limit of many samples, at its last time."""
    return few(study, mode="scalar", until=1e6).solution.trajectory["gradient_sum"].values[-1]


@paper.claim(
    "Lemma F.6",
    part="proof-step",
    regime=two_targets,
    setting="many samples, tau = 1e6",
    reading=r"$c/a = -2(1 \pm \dots)$: the sign is lost, and with $+2$ there is no real root",
)
def root_of_the_ratio(study) -> Measurement:
    r"""$R = (\sum_{I_2\cup I_3\cup I_4}g_i - \sum_{I_1}g_i)/(\sum_{I_1}g_i - \sum_{I_2}g_i)$
    tends to the root $-\frac{b}{2a} + \sqrt{\frac{b^2}{4a^2} - \frac{c}{a}} \in (1, 2)$ of $aR^2 +
    bR + c$, where $a = \sum_{I_1}g' + \sum_{I_2}g'$, $b = \sum_{I_3}g' + \sum_{I_4}g' -
    \sum_{I_1}g'$, $c = -\sum_{I_2}g' - \sum_{I_3}g' - 2\sum_{I_1}g'$: it is 3/2."""
    S = scalars(study)

    def root(wrong: float = 1.0) -> float:
        # g' = -g (1 - g), and g is tiny.
        a, b = -(S[0] + S[1]), -(S[2] + S[3] - wrong * S[0])
        return float(-b / (2 * a) + np.sqrt(b**2 / (4 * a**2) - (S[1] + S[2] + 2 * S[0]) / a))

    measured = (S[1:].sum() - S[0]) / (S[0] - S[1])
    other = Control("b without I1", root(0.0))
    return equal(predicted=root(), measured=measured, rtol=3e-5, control=other)


# --- The loss.


def mean_slope(r: Record) -> float:
    return float((1 / r.loss[-1] - 1 / r.loss[r.end]) / (r.t[-1] - r.t[r.end]))


def rate_over(degree: int) -> Quantity:
    """-dL/dt over U and a power of the loss."""
    return lambda r: -np.gradient(r.loss, r.t) / r.U / r.loss**degree


LOSS = (
    claim(
        "Theorem F.8",
        r"""In phase 2 $\hat L = 1/(\Theta(\sigma_1^2mm_1)(t - T_1) + 1/\hat L(T_1))$: the mean
        slope of $1/\hat L$ in $t$ is of that order.""",
        power("Theta", 1.0, mean_slope, VALUES, 0.1),
    ),
    at_all_times(
        "Theorem F.8",
        r"""In phase 2 $\partial_t\hat L = -U\,\Theta(\hat L^2)$: $-\partial_t\hat L/(U\hat L^2)$
        stays between 1/20 and 1/2.""",
        each(
            least=in_phase_2(rate_over(2), ("over the loss", rate_over(1)), at_least=0.05),
            largest=in_phase_2(rate_over(2), ("over its cube", rate_over(3)), at_most=0.5),
        ),
        part="proof-step",
    ),
    claim(
        "Cor F.9",
        r"""Through phase 2 $\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle$ changes by
        $\tilde O(m_1/m)$, and that is the order in $m$.""",
        power("Theta", -1.0, lambda r: r.U[-1] - r.U[r.end], VALUES),
    ),
    claim(
        "Lemma F.10 (size)",
        r"Thus the sum stays $\Theta(\sigma_1^2mm_1)$ in phase 2.",
        power("Theta", 1.0, lambda r: r.U[-1], VALUES, 0.1),
    ),
)


@paper.claim(
    "Theorem F.8", part="constant", regime=phase_2, setting="m = 16384, last third of log t"
)
def loss_constant(study) -> Measurement:
    r"""The constant is that of the largest margin, $\hat L \to 1/(\gamma^2Ut)$: the slope of
    $1/\hat L$ on $\int U dt$, at $m$ so large that attention stands."""
    r = record(study, WIDTHS[-1])
    last = r.clock >= LAST / 10
    return equal(
        predicted=theory.closed_law(r.n, r.L)["gamma2"],
        measured=fit_line(r.t[last] * r.U[last].mean(), 1 / r.loss[last]).slope,
        rtol=0.01,
        control=Control("of many samples, 1/17", theory.class_law(study.task).gamma2),
    )


@paper.claim("Lemma F.10", regime=phase_2, setting=AT)
def neuron_sum_logarithm(study) -> Measurement:
    r"""In phase 2 it grows by $O(\frac{m_1\log m\log t}{\sigma_1^2mm_1})$, at most like
    $\log^2(t/T_1)$, as values grow like $\log t$."""
    r = record(study, WIDE)
    later = r.clock >= 4 * END
    return order(
        "O",
        x=np.log(r.clock[later] / END),
        y=(r.U - r.U[r.end])[later],
        power=2,
        tol=0.2,
        toward="infinity",
        control=Control("1/loss", measured=1 / r.loss[later]),
    )
