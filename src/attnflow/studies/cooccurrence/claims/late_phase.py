"""Appendix F: phase 2, in which gradients balance by themselves and the loss falls."""

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
    equal,
    every,
    fit_line,
    identity,
    not_checkable,
    order,
)
from attnflow.models import value_mlp
from attnflow.studies.cooccurrence import theory
from attnflow.studies.cooccurrence.claims.common import phase_2, two_targets
from attnflow.studies.cooccurrence.claims.early_phase import (
    largest,
    slow_forces,
    slow_output,
    small_model,
    value_rates,
)
from attnflow.studies.cooccurrence.claims.scaling import (
    END,
    LAST,
    SETTING,
    WIDTHS,
    Record,
    few,
    in_width,
    record,
)
from attnflow.studies.cooccurrence.paper import paper

WIDE = 4096
"""m of the statements for all times."""

AT = f"n = 36, L = 4, m1 = 16, m = {WIDE}, k0 = .3, k1 = 1; T1 = 25/(s1^2 m m1) to 120 T1"

SAMPLES = (60, 120, 240)

SOFTMAX = Erratum(
    "softmax-rate",
    "the scores' second 1/sqrt m, that of the softmax, is lost from the rate of attention",
    cause="constant",
)


def since(name: str) -> tuple[str, Any]:
    """The largest change in phase 2, as a control."""
    words = {"G": "values G", "VV": "value products", "S": "scores"}[name]
    return f"the change of {words}", lambda r: largest(r.change(name, r.end)[r.late])


RATES = ("the rates of G", lambda r: largest(r.dG[r.late]))


# --- The box of Def. F.1.


def ratios(r: Record, one: int) -> np.ndarray:
    """The largest ratio of two gradients of a class at each time."""
    g = r.g[:, r.kind == one]
    return g.max(axis=1) / g.min(axis=1)


@paper.claim("Cor F.2", regime=phase_2, setting=AT)
def gradients_of_a_class(study) -> Measurement:
    r"""In phase 2 $\max_{i,j\in I}g_i/g_j \le O(1)$ for each class $I$: at most 5 here."""
    r = record(study, WIDE)
    within = np.max([ratios(r, one) for one in range(4)], axis=0)
    return always(
        times=r.clock,
        measured=within,
        after=END * (1 - 1e-9),
        at_most=5.0,
        control=Control("all classes together", r.g.max(axis=1) / r.g.min(axis=1)),
    )


def box(r: Record) -> np.ndarray:
    """Def. F.1 with constants of order one: every entry is at most 1 inside; `[time, item]`."""
    mean = r.g.mean(axis=1)
    S1, S2, S3, S4 = r.sums.T
    values = np.einsum("tuv,tv->tu", r.VV, r.phi) * r.m1
    moving = np.einsum("tik,tikl->ti", r.G[:, r.token], r.dp)
    random = np.where(r.token > 2, r.G[:, r.token], 0.0)
    size = r.s0**2 * np.sqrt(r.dim)
    items = [
        r.change("KK").max(axis=(1, 2)) / size,
        r.change("QQ").max(axis=(1, 2)) / size,
        np.abs(r.p - r.p[0]).max(axis=(1, 2, 3)) * r.L**2,
        r.U / (2 * r.s1**2 * r.dim * r.m1),
        np.abs(values).max(axis=1) / r.U * r.L / mean,
        np.abs(moving).max(axis=1) / r.U / mean,
        S4 / np.minimum(S2, S3),
        np.maximum(S2, S3) / S1,
        S1 / (S2 + S3 + S4),
        np.maximum(S2 / S3, S3 / S2) / 2,
        np.exp(-r.margin.min(axis=1)),
        np.abs(r.G[:, :3]).max(axis=1) / (2 * np.log(r.dim)),
        np.abs(np.einsum("tik,tikl->ti", random, r.p)).max(axis=1) / 6,
    ]
    return np.stack(items, axis=1)


@paper.claim("Lemma F.3", regime=phase_2, setting=SETTING)
def phase_two_begins(study) -> Measurement:
    r"""At $T_1$ every condition of Def. F.1 holds strictly.

    Measured with the constants 1 (keys, queries, attention, gradients, order of the classes'
    gradients), 2 (neurons, $I_2$ against $I_3$), $2\log m$ (values), 6 (random words' total)."""
    runs = [record(study, m) for m in WIDTHS]
    return at_most(
        bound=1.0,
        measured=np.array([box(r)[r.end] for r in runs]),
        control=Control(
            "at 2/(s1^2 m m1)", np.array([box(r)[np.argmax(r.clock >= 2)] for r in runs])
        ),
    )


# --- The sum over neurons.


@paper.claim("Lemma F.4", part="proof-step")
def neuron_sum_rate(study) -> Measurement:
    r"""$\partial_t\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle =
    \frac{2m_1}{n}\sum_ig_iy_iF_i$. Measured: the flow of all weights, and of the Grams."""
    theta, X = small_model(study)
    u = theta.W.T @ theta.a
    v = value_mlp.weight_flow(X, theta.W.shape[1]).velocity(theta)
    gram = value_mlp.gram_flow(X, theta.W.shape[1], float(len(theta.a)))
    moved = gram.flow.velocity(gram.project(theta))["gram"]["value"]["u"][0, 0]

    def right(halves: float = 2.0) -> float:
        outputs = [slow_output(theta, x)[1] for x in X.token]
        pull = [y * F / (1 + np.exp(y * F)) for y, F in zip(X.label, outputs, strict=True)]
        return halves * len(theta.a) * float(np.mean(pull))

    return identity(
        over=("weights", "Grams"),
        predicted=lambda _: right(),
        measured=lambda how: 2 * u @ (v.W.T @ theta.a) if how == "weights" else moved,
        control=Control("without the factor 2", lambda _: right(1.0)),
    )


@paper.claim("Lemma F.4 (sign)", regime=phase_2, setting=AT)
def neuron_sum_grows(study) -> Measurement:
    r"""In phase 2 that rate is positive, since every $y_iF_i > 0$."""
    r = record(study, WIDE)
    return always(
        times=r.clock,
        measured=np.gradient(r.U, r.t) / (2 * r.m1),
        after=END * (1 - 1e-9),
        at_least=0.0,
        control=Control("with labels forgotten", (r.g * r.y * r.margin).mean(axis=1)),
    )


@paper.claim("Lemma F.4 (size)", regime=phase_2, setting=SETTING)
def neuron_sum_size(study) -> Measurement:
    r"""So in phase 2 the sum is $\Omega(\sigma_1^2mm_1)$."""
    return in_width("Omega", study, lambda r: float(r.U[r.late].min()), 1.0, since("G"), 0.1)


# --- Balance.


@paper.claim("Lemma F.5", regime=phase_2, setting=AT)
def single_targets_balance(study) -> Measurement:
    r"""In phase 2 $|\sum_{I_2}g_i - \sum_{I_3}g_i| / \min(\sum_{I_2}g_i, \sum_{I_3}g_i) \le C$ with
    a small $C$; here $C = .1$."""
    r = record(study, WIDE)
    _, S2, S3, S4 = r.sums.T
    return always(
        times=r.clock,
        measured=np.abs(S2 - S3) / np.minimum(S2, S3),
        after=END * (1 - 1e-9),
        at_most=0.1,
        control=Control("one target against none", np.abs(S2 - S4) / np.minimum(S2, S4)),
    )


def total_over(r: Record, one: int) -> np.ndarray:
    """The sum of all gradients over that of I1 less a single-target class."""
    return r.sums.sum(axis=1) / (r.sums[:, 0] - r.sums[:, one])


@paper.claim("Lemma F.6 (ratios)", regime=phase_2, setting=AT)
def gaps_are_comparable(study) -> Measurement:
    r"""In phase 2 $\sum_{[n]}g_i$ is $O(1)$ times $\sum_{I_2\cup I_3\cup I_4}g_i - \sum_{I_1}g_i$,
    $\sum_{I_1}g_i - \sum_{I_2}g_i$ and $\sum_{I_1}g_i - \sum_{I_3}g_i$; at most 10 here. In the
    limit of many samples they are 17/3 and 17/2."""
    r = record(study, WIDE)
    S1, S2, S3, S4 = r.sums.T
    total = r.sums.sum(axis=1)
    found = np.max([total / (S2 + S3 + S4 - S1), total_over(r, 1), total_over(r, 2)], axis=0)
    return always(
        times=r.clock,
        measured=found,
        after=END * (1 - 1e-9),
        at_most=10.0,
        control=Control("over that of samples with no target", total / S4),
    )


@paper.claim("Lemma F.6 (targets)", regime=phase_2, setting=AT)
def targets_rise_alike(study) -> Measurement:
    r"""In phase 2 $\partial_tG(\mu_1)/\partial_tG(\mu_2) = \Theta(1)$: within a factor 1.25."""
    r = record(study, WIDE)
    return always(
        times=r.clock,
        measured=np.exp(np.abs(np.log(r.dG[:, 0] / r.dG[:, 1]))),
        after=END * (1 - 1e-9),
        at_most=1.25,
        control=Control("a target and a random word", r.dG[:, 0] / np.abs(r.dG[:, 5])),
    )


@paper.claim("Lemma F.6 (inequality)", regime=phase_2, setting=AT)
def common_word_between(study) -> Measurement:
    r"""In phase 2 $(1+C)\max(\partial_tG(\mu_1), \partial_tG(\mu_2)) \le -\partial_tG(\mu_3) \le
    (1-C)(\partial_tG(\mu_1) + \partial_tG(\mu_2))$; here $C = .15$ and $.25$."""
    r, poor = record(study, WIDE), record(study, WIDE, END, samples=12, k0=0.1)
    lower = -r.dG[:, 2] / r.dG[:, :2].max(axis=1)
    behind = float((-poor.dG[:, 2] / poor.dG[:, :2].max(axis=1))[-1])
    times = {"times": r.clock, "after": END * (1 - 1e-9)}
    return every(
        lower=always(
            measured=lower,
            at_least=1.15,
            control=Control("n = 12, below L^2, at T1", np.full(len(r.t), behind)),
            **times,
        ),
        upper=always(
            measured=-r.dG[:, 2] / r.dG[:, :2].sum(axis=1),
            at_most=0.75,
            control=Control("one target alone", lower),
            **times,
        ),
    )


@paper.once
def scalars(study: Any) -> np.ndarray:
    """The class gradients of the limit of many samples, at its last times."""
    ready = few(study, mode="scalar", until=1e6)
    return ready.solution.trajectory["gradient_sum"].values


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
    S = scalars(study)[-1]

    def root(wrong: float = 1.0) -> float:
        # g' = -g (1 - g), and g is tiny.
        a, b = -(S[0] + S[1]), -(S[2] + S[3] - wrong * S[0])
        c = S[1] + S[2] + 2 * S[0]
        return float(-b / (2 * a) + np.sqrt(b**2 / (4 * a**2) - c / a))

    return equal(
        predicted=root(),
        measured=(S[1:].sum() - S[0]) / (S[0] - S[1]),
        rtol=3e-5,
        control=Control("b without I1", root(0.0)),
    )


@paper.claim("Cor F.7", regime=phase_2, setting=AT)
def values_are_comparable(study) -> Measurement:
    r"""In phase 2 $G(\mu_1)/G(\mu_2)$ and $G(\mu_1)/(-G(\mu_3))$, $G(\mu_2)/(-G(\mu_3))$ are
    $\Theta(1)$: within a factor 1.5."""
    r = record(study, WIDE)
    G1, G2, G3 = r.G[:, 0], r.G[:, 1], -r.G[:, 2]
    logs = np.abs(np.log(np.abs([G1 / G2, G1 / G3, G2 / G3])))
    return always(
        times=r.clock,
        measured=np.exp(logs.max(axis=0)),
        after=END * (1 - 1e-9),
        at_most=1.5,
        control=Control("a target and a random word", np.abs(G1 / r.G[:, 5])),
    )


# --- The loss.


@paper.claim("Theorem F.8", regime=phase_2, setting=SETTING)
def loss_law(study) -> Measurement:
    r"""In phase 2 $\hat L = 1/(\Theta(\sigma_1^2mm_1)(t - T_1) + 1/\hat L(T_1))$: the mean slope of
    $1/\hat L$ in $t$ is of that order."""

    def slope(r: Record) -> float:
        return float((1 / r.loss[-1] - 1 / r.loss[r.end]) / (r.t[-1] - r.t[r.end]))

    return in_width("Theta", study, slope, 1.0, since("G"), 0.1)


@paper.claim(
    "Theorem F.8", part="constant", regime=phase_2, setting="m = 16384, last third of log t"
)
def loss_constant(study) -> Measurement:
    r"""The constant is that of the largest margin, $\hat L \to 1/(\gamma^2Ut)$: the slope of
    $1/\hat L$ on $\int U dt$, at $m$ so large that attention stands."""
    r = record(study, WIDTHS[-1])
    last = r.clock >= LAST / 10
    line = fit_line(r.t[last] * r.U[last].mean(), 1 / r.loss[last])
    return equal(
        predicted=theory.closed_law(r.n, r.L)["gamma2"],
        measured=line.slope,
        rtol=0.01,
        control=Control("of many samples, 1/17", theory.class_law(study.task).gamma2),
    )


@paper.claim("Theorem F.8", part="proof-step", regime=phase_2, setting=AT)
def loss_rate(study) -> Measurement:
    r"""In phase 2 $\partial_t\hat L = -U\,\Theta(\hat L^2)$: $-\partial_t\hat L/(U\hat L^2)$ stays
    between 1/20 and 1/2."""
    r = record(study, WIDE)
    rate = -np.gradient(r.loss, r.t)[r.late] / r.U[r.late]
    return every(
        least=at_least(
            bound=0.05,
            measured=rate / r.loss[r.late] ** 2,
            control=Control("over the loss", rate / r.loss[r.late]),
        ),
        largest=at_most(
            bound=0.5,
            measured=rate / r.loss[r.late] ** 2,
            control=Control("over its cube", rate / r.loss[r.late] ** 3),
        ),
    )


@paper.claim("Cor F.9", regime=phase_2, setting=SETTING)
def neuron_sum_change(study) -> Measurement:
    r"""Through phase 2 $\sum_{j_1,j_2}\langle a_{j_1}w_{j_1}, a_{j_2}w_{j_2}\rangle$ changes by
    $\tilde O(m_1/m)$, and that is the order in $m$."""
    return in_width("Theta", study, lambda r: r.U[-1] - r.U[r.end], -1.0, since("G"))


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


@paper.claim("Lemma F.10 (size)", regime=phase_2, setting=SETTING)
def neuron_sum_stays(study) -> Measurement:
    r"""Thus the sum stays $\Theta(\sigma_1^2mm_1)$ in phase 2."""
    return in_width("Theta", study, lambda r: float(r.U[-1]), 1.0, since("G"), 0.1)


# --- Value products.


@paper.claim("Lemma F.11", part="proof-step")
def value_product_rate(study) -> Measurement:
    r"""$\partial_t\mu^\top W_V^\top W_V\nu = G(\nu)\phi(\mu) + G(\mu)\phi(\nu)$ with $\phi(\mu) =
    \frac{1}{n}\sum_{i:\mu\in X}g_iy_i\sum_lp_{q_l,k_\mu}$, a word that occurs twice in a sample
    counted twice. Measured: the flow of all weights."""
    theta, X = small_model(study)
    v = value_mlp.weight_flow(X, theta.W.shape[1]).velocity(theta)
    G, phi = theta.a @ theta.W @ theta.WV, slow_forces(theta, X)
    half = v.WV.T @ theta.WV
    return identity(
        over=range(4),
        predicted=lambda word: G * phi[word] + G[word] * phi,
        measured=lambda word: (half + half.T)[word],
        control=Control("one term alone", lambda word: G * phi[word]),
    )


@paper.claim("Lemma F.11", regime=phase_2, setting=SETTING)
def value_product_change(study) -> Measurement:
    r"""In phase 2 value products change by $O(\frac{\log m\log t}{\sigma_1^2mm_1})$: the power of
    $m$."""
    return in_width("O", study, lambda r: largest(r.change("VV", r.end)[r.late]), -1.0, since("G"))


@paper.claim("Cor F.12", regime=phase_2, setting=SETTING)
def neurons_hardly_push(study) -> Measurement:
    r"""In phase 2 $\max_\mu|\sum_ja_j\partial_tw_jW_V\mu|$ over the sum is at most
    $o(1/L)\frac{1}{n}\sum_ig_i$; its proof has $\tilde O((\sigma_0^2\sqrt mL + L/m + \sigma_0^2m +
    1/m)/(\sigma_1^2m))$, which is $1/m$ here."""

    def part(r: Record) -> float:
        pushed = np.abs(np.einsum("tuv,tv->tu", r.VV, r.phi)).max(axis=1) * r.m1
        return largest((pushed / r.U / r.g.mean(axis=1))[r.late])

    def values(r: Record) -> float:
        return largest((np.abs(r.phi).max(axis=1) / r.g.mean(axis=1))[r.late])

    return in_width("O", study, part, -1.0, ("the values' part", values))


@paper.claim("Cor F.13", regime=phase_2, setting=AT)
def value_product_signs(study) -> Measurement:
    r"""In phase 2 $\langle v(\mu_1), v(\mu_2)\rangle$, $\|v(\mu_1)\|^2$ and $\|v(\mu_2)\|^2$ grow,
    $\langle v(\mu_1), v(\mu_3)\rangle$ and $\langle v(\mu_2), v(\mu_3)\rangle$ fall."""
    r = record(study, WIDE)
    d = value_rates(r)
    signed = [d[:, 0, 1], d[:, 0, 0], d[:, 1, 1], -d[:, 0, 2], -d[:, 1, 2]]
    scale = np.abs(d[:, :3, :3]).max(axis=(1, 2))
    return always(
        times=r.clock,
        measured=np.min(signed, axis=0) / scale,
        after=END * (1 - 1e-9),
        at_least=0.3,
        control=Control("of the common word with itself, taken to fall", -d[:, 2, 2] / scale),
    )


# --- Random words.


@paper.claim("Lemma F.14 (rate)", regime=phase_2, setting=SETTING)
def random_rates(study) -> Measurement:
    r"""In phase 2 a random word has $|\partial_tG(\mu)| \le O(\frac{1}{n}\hat L\sigma_1^2mm_1) +
    \tilde O(\hat Lm_1(L(\sigma_0^2\sqrt m + 1/m) + \sigma_0^2m))$: the constant, at every width."""
    runs = [record(study, m) for m in WIDTHS]

    def ratio(r: Record, words: slice) -> float:
        first = r.s1**2 * r.dim * r.m1 / r.n
        rest = r.m1 * (r.L * (r.s0**2 * np.sqrt(r.dim) + 1 / r.dim) + r.s0**2 * r.dim)
        rates = np.abs(r.dG[:, words]).max(axis=1) / (r.loss * (first + rest))
        return float(rates[r.late].max())

    return at_most(
        bound=4.0,
        measured=[ratio(r, slice(3, None)) for r in runs],
        control=Control("relevant words", [ratio(r, slice(3)) for r in runs]),
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


@paper.claim("Lemma F.14 (change)", regime=phase_2, setting="infinite width, L = 3, tau = 3e3")
def random_change(study) -> Measurement:
    r"""So through phase 2 $|G(\mu) - G^{(T_1)}(\mu)| \le \tilde O(\frac{1}{n} + \dots)$: the power
    of $n$ at infinite width, where only that term is left."""

    def change(n: int, words: slice) -> float:
        t, G, _ = limit_values(study, n)
        return largest((G[-1] - G[np.argmax(t >= END)])[words])

    return order(
        "O",
        over=SAMPLES,
        y=lambda n: change(n, slice(3, None)),
        power=-1,
        tol=0.2,
        toward="infinity",
        control=Control("relevant words", measured=lambda n: change(n, slice(3))),
    )


@paper.claim("Cor F.15", regime=phase_2, setting="infinite width, L = 3, tau = 3e3")
def random_words_stay(study) -> Measurement:
    r"""In phase 2 the random words of a sample add up to $O(1)$: they fall with $n$, which
    Condition 1 lets grow with the logarithm of the time."""
    return order(
        "O",
        over=SAMPLES,
        y=lambda n: float(random_total(study, n)[-1]),
        power=0,
        tol=0.1,
        toward="infinity",
        control=Control(
            "the number of samples' own words",
            measured=lambda n: float((limit_values(study, n)[2] > 2).sum()),
        ),
    )


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
    last = t >= 1e6
    law = theory.closed_law(36, 4)
    words = few(study, samples=36)
    return equal(
        predicted=2 * 6 * law["share"] / (36 * law["gamma2"]),
        measured=fit_line(np.log(t[last]), random_total(study, *long)[last]).slope,
        rtol=4e-3,
        control=Control(
            "of a sample with both targets",
            float(words.task.irrelevant[0] * theory.class_law(words.task, 36).irrelevant[0]),
        ),
    )


# --- Scores and attention.


@paper.claim("Lemma F.16 (rates)", regime=phase_2, setting=SETTING)
def score_rates(study) -> Measurement:
    r"""In phase 2 the score of one target for the other grows at the rate $\frac{1}{\sqrt m}\tilde
    \Theta(\hat L\sigma_0^2m)\frac{1}{L}$, that of the common word for a target falls at it.

    Measured: the power of $m$ at the end, of the slowest pair."""

    def rate(r: Record, rows: tuple[int, ...], sign: float) -> float:
        pairs = [sign * r.dS[-1, rows[0], 0], sign * r.dS[-1, rows[-1], 1]]
        return float(min(pairs) / r.loss[-1])

    other = ("the rates of G", lambda r: r.dG[-1, 0] / r.loss[-1])
    return every(
        targets=in_width("Theta", study, lambda r: rate(r, (1, 0), 1.0), -0.5, other),
        common=in_width("Theta", study, lambda r: rate(r, (2, 2), -1.0), -0.5, other),
    )


@paper.claim("Lemma F.16 (signs)", regime=phase_2, setting=AT)
def score_signs(study) -> Measurement:
    r"""All through phase 2 the scores between targets grow, those of the common word for a target
    fall."""
    r = record(study, WIDE)
    unit = r.s0**2 * np.sqrt(r.dim) / r.L * r.loss
    signed = [r.dS[:, 1, 0], r.dS[:, 0, 1], -r.dS[:, 2, 0], -r.dS[:, 2, 1]]
    return always(
        times=r.clock,
        measured=np.min(signed, axis=0) / unit,
        after=END * (1 - 1e-9),
        at_least=0.3,
        control=Control("of the common word for itself, taken to fall", -r.dS[:, 2, 2] / unit),
    )


@paper.claim("Lemma F.16 (change)", regime=phase_2, setting=SETTING)
def relevant_score_change(study) -> Measurement:
    r"""Through phase 2 scores of relevant words change by $\Theta(\frac{\sigma_0^2m}{\sqrt
    mL\sigma_1^2mm_1} + \frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$: $m^{-3/2}$ here."""

    def change(r: Record) -> float:
        return largest(r.change("S", r.end)[-1, :3, :3])

    return in_width("Theta", study, change, -1.5, since("VV"))


def random_scores(r: Record, x: np.ndarray, size: np.ndarray | float, words: slice) -> float:
    """The largest |x| of a word of `words` and a relevant one, either way round, over the bound
    `s0^2 sqrt m / (n L) + s0^2` times `size`."""
    bound = r.s0**2 * (np.sqrt(r.dim) / (r.n * r.L) + 1) * size
    found = np.maximum(
        np.abs(x[:, words, :3]).max(axis=(1, 2)), np.abs(x[:, :3, words]).max(axis=(1, 2))
    )
    return float((found / bound).max())


@paper.claim("Lemma F.16 (random rates)", regime=phase_2, setting=SETTING)
def random_score_rates(study) -> Measurement:
    r"""In phase 2 $\partial_t\mu^\top W_K^\top W_Q\gamma = \frac{1}{n\sqrt m}\tilde\Theta(\hat
    L\sigma_0^2m)\frac{1}{L} + \tilde O(\frac{1}{\sqrt m}\hat L\sigma_0^2\sqrt m)$ for a relevant
    word $\mu$ and a random one, $\gamma$. Measured: the constant of the two as a bound."""
    runs = [record(study, m) for m in WIDTHS]
    late = [(r, r.dS[r.late], r.loss[r.late]) for r in runs]
    return at_most(
        bound=20.0,
        measured=[random_scores(*run, slice(3, None)) for run in late],
        control=Control("relevant words", [random_scores(*run, slice(3)) for run in late]),
    )


@paper.claim("Lemma F.16 (random words)", regime=phase_2, setting=SETTING)
def random_score_change(study) -> Measurement:
    r"""Through phase 2 scores of a random word and a relevant one change by at most $\tilde
    O(\frac{\sigma_0^2m}{n\sqrt mL\sigma_1^2mm_1} + \frac{\sigma_0^2\sqrt m}{\sqrt
    m\sigma_1^2mm_1})$.

    Measured: the constant, with $\ln^2$ of the time as the logarithms, either way round."""
    runs = [record(study, m) for m in WIDTHS]
    ends = [
        (r, r.change("S", r.end)[-1:], np.log(LAST) ** 2 / (r.s1**2 * r.dim * r.m1)) for r in runs
    ]
    return at_most(
        bound=8.0,
        measured=[random_scores(*run, slice(3, None)) for run in ends],
        control=Control("relevant words", [random_scores(*run, slice(3)) for run in ends]),
    )


def attention_rate(r: Record, key: int) -> float:
    """How fast a word of I1 gains or loses the first target's attention, over the loss."""
    return float(np.abs(r.dp[-1, r.kind == 0, key, 0]).mean() / r.loss[-1])


@paper.claim(
    "Cor F.17 (rates)", regime=phase_2, setting="n = 18, L = 3, m1 = 16, m = 1024 to 16384, t = T1"
)
def softmax_rates(study) -> Measurement:
    r"""In phase 2 the attention of one target on the other grows at $\frac{1}{\sqrt m}\tilde
    \Theta(\hat L\sigma_0^2m)\frac{1}{L^2}$, that on the common word falls at it."""

    runs = [record(study, m, END, samples=18, length=3) for m in WIDTHS[1:]]
    scores = [float(np.abs(r.dS[-1, 1, 0]) / r.loss[-1]) for r in runs]

    def one(key: int, power: float) -> Measurement:
        return order(
            "Theta",
            x=WIDTHS[1:],
            y=[attention_rate(r, key) for r in runs],
            power=power,
            tol=0.2,
            toward="infinity",
            control=Control("scores", measured=scores),
        )

    def both(power: float) -> Measurement:
        return every(target=one(1, power), common=one(2, power))

    return corrected(
        printed=both(-0.5),
        right=both(-1.0),
        text=r"$\partial_tp_{q_\mu,k_\nu} = \frac{1}{\sqrt m}\Theta(L\sigma_0^2m)\frac{1}{L^2}$",
        correct=r"$\partial_tp_{q_\mu,k_\nu} = \frac{1}{m}\Theta(L\sigma_0^2m)\frac{1}{L^2}$",
        erratum=SOFTMAX,
        snippet="softmax_rate_in_width",
    )


@paper.claim("Cor F.17 (signs)", regime=phase_2, setting=AT)
def softmax_signs(study) -> Measurement:
    r"""All through phase 2 attention of a target on the other grows, on the common word falls, on
    average over $I_1$."""
    r = record(study, WIDE)
    unit = r.s0**2 / r.L**2 * r.loss
    p = r.dp[:, r.kind == 0].mean(axis=1)
    signed = [p[:, 1, 0], p[:, 0, 1], -p[:, 2, 0], -p[:, 2, 1]]
    return always(
        times=r.clock,
        measured=np.min(signed, axis=0) / unit,
        after=END * (1 - 1e-9),
        at_least=0.3,
        control=Control("of the common word on itself, taken to fall", -p[:, 2, 2] / unit),
    )


@paper.claim("Cor F.17 (random words)", regime=phase_2, setting=SETTING)
def softmax_random(study) -> Measurement:
    r"""In phase 2 $|\partial_tp_{q_\mu,k_\gamma}| \le \frac{1}{n\sqrt m}\tilde\Theta(\hat
    L\sigma_0^2m)\frac{1}{L^2} + \tilde O(\frac{1}{L\sqrt m}\hat L\sigma_0^2\sqrt m)$ for a target
    $\mu$ and a random word: as a bound it holds, the rate falls like $1/m$."""

    def rate(r: Record) -> float:
        random = r.token[r.kind == 0] > 2
        found = np.abs(r.dp[:, r.kind == 0][:, random][:, :, 0]).max(axis=1) / r.loss
        return float(found[r.late].max())

    other = ("the rates of G", lambda r: largest((r.dG[:, 0] / r.loss)[r.late]))
    return in_width("O", study, rate, -0.5, other)


@paper.claim("Cor F.17 (change)", regime=phase_2, setting=SETTING)
def softmax_stays(study) -> Measurement:
    r"""All through phase 2 attention stays within $O(1/L^2)$ of its start: below $10^{-3}/L^2$ at
    every width."""
    runs = [record(study, m) for m in WIDTHS]
    loud = [record(study, 256, END, k0=k0, length=3) for k0 in (30.0,)]

    def moved(r: Record) -> float:
        return largest(r.p - r.p[0]) * r.L**2

    return at_most(
        bound=1e-3,
        measured=[moved(r) for r in runs],
        control=Control("k0 = 30, far outside Condition 1", [moved(r) for r in loud]),
    )


@paper.claim("Cor F.18", regime=phase_2, setting=SETTING)
def attention_hardly_helps(study) -> Measurement:
    r"""In phase 2 $\max_i|\sum_{l_1,l_2}G(X_{l_2})\partial_tp_{l_1,l_2}|$ over the sum of neurons
    is at most $o(1)\frac{1}{n}\sum_ig_i$: it falls at least like $1/m$."""

    def part(r: Record) -> float:
        moving = np.abs(np.einsum("tik,tikl->ti", r.G[:, r.token], r.dp)).max(axis=1)
        return largest((moving / r.U / r.g.mean(axis=1))[r.late])

    def values(r: Record) -> float:
        moving = np.abs(np.einsum("tik,tikl->ti", r.dG[:, r.token], r.p)).max(axis=1)
        return largest((moving / r.U / r.g.mean(axis=1))[r.late])

    return in_width("O", study, part, -1.0, ("the values' part", values))


@paper.claim("Lemma F.19", regime=phase_2, setting=SETTING)
def key_query_change(study) -> Measurement:
    r"""Through phase 2 the products of keys and those of queries change by at most $\tilde
    O(\frac{\sigma_0^2\sqrt m}{\sqrt m\sigma_1^2mm_1})$, which is $m^{-2}$ here."""

    def check(name: str) -> Measurement:
        change = lambda r: largest(r.change(name, r.end)[-1])  # noqa: E731
        return in_width("O", study, change, -2.0, since("S"))

    return every(keys=check("KK"), queries=check("QQ"))


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
    return every(
        reached=at_most(
            bound=1 / r.dim, measured=r.loss[reached], control=Control("at T1", r.loss[r.end])
        ),
        inside=at_most(
            bound=1.0,
            measured=box(r)[r.end : reached + 1].max(axis=0),
            control=Control("from 2/(s1^2 m m1) on", box(r)[r.clock >= 2].max(axis=0)),
        ),
    )
