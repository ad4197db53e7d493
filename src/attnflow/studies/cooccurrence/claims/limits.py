"""Beyond the paper: the constants of late time, many samples, infinite width, idle attention."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, against, at_least, at_most, equal, every, order
from attnflow.studies.cooccurrence import observables, theory
from attnflow.studies.cooccurrence.claims.common import Run, all_different, solved
from attnflow.studies.cooccurrence.claims.scaling import few as few_words
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import WordCooccurrence

LONG = 1e6


def few(study: Any, **keys: Any) -> Any:
    """24 samples under Assumption 2.3 and Condition 1."""
    return few_words(study, **{"samples": 24, **keys})


def nearest_point(K: np.ndarray) -> tuple[float, np.ndarray]:
    """The smallest `a'K a` over convex weights a, by trying every support: (value, weights)."""
    best, weights = np.inf, np.zeros(len(K))
    for size in range(1, len(K) + 1):
        for support in itertools.combinations(range(len(K)), size):
            at = list(support)
            solved = np.linalg.lstsq(K[np.ix_(at, at)], np.ones(size), rcond=None)[0]
            if solved.sum() > 0 and (solved >= -1e-12).all():
                a = np.zeros(len(K))
                a[at] = solved / solved.sum()
                if a @ K @ a < best - 1e-14:
                    best, weights = float(a @ K @ a), a
    return best, weights


def class_grams(targets: int, length: int, counts: np.ndarray) -> np.ndarray:
    """Inner products of signed mean sentences of two classes: common words, and their own."""
    classes = [
        s for size in range(targets, -1, -1) for s in itertools.combinations(range(targets), size)
    ]
    y = [1.0] + [-1.0] * (len(classes) - 1)
    return np.array([
        [
            y[i] * y[j] * (1 + len(set(a) & set(b)))
            + (i == j) * (length - 1 - len(a)) / counts[i]
            for j, b in enumerate(classes)
        ]
        for i, a in enumerate(classes)
    ])  # fmt: skip


def sizes(n: float, targets: int = 2) -> np.ndarray:
    """The default classes of n samples."""
    rest = 2**targets - 1
    return np.array([n / 2, *[n / (2 * rest)] * rest])


def by_hand(n: float, L: int, k: int = 2) -> dict[str, Any]:
    """The limit of late time of k targets, from the classes' Gram matrix alone."""
    gamma2, a = nearest_point(class_grams(k, L, sizes(n, k)))
    pull = np.array([1.0, *[-1.0] * (len(a) - 1)]) * a / gamma2
    # Targets are alike, so that each has their mean weight.
    has = [k - i for i in range(k + 1) for _ in range(math.comb(k, i))]
    w1, w3 = float(pull @ has) / k, float(pull.sum())
    irrelevant = pull / sizes(n, k)
    there = irrelevant[[L - 1 - size > 0 for size in has]]
    worst = []
    for way, size in zip([1.0, *[-1.0] * (len(a) - 1)], has, strict=True):
        kinds = itertools.combinations_with_replacement(there, L - 1 - size)
        worst.append(min(way * (size * w1 + w3 + sum(kind)) for kind in kinds))
    return {"gamma2": gamma2, "r": -w3 / w1, "shares": a, "worst": min(worst), "w": (w1, w3)}


@paper.claim("ours: max-margin law")
def max_margin_law(study) -> Measurement:
    r"""$\gamma^2$, $R^*$, the gradients' shares and $w$ of the limit of late time solve the
    max-margin problem of the bags of words, for any proportions and targets: one variable per class
    or per sample, and by trying every set of support vectors."""
    task, n = study.task, 2 * study.task.step
    law = WordCooccurrence(task.length, task.needed(n, "distinct"), task.targets, task.proportions)
    told = theory.class_law(law, n), theory.sample_law(law.training(n))
    K = class_grams(task.targets, task.length, np.array([float(p) * n for p in law.law]))
    gamma2, a = nearest_point(K)
    exact = [gamma2, (a[0] - a[1:].sum()) / gamma2, *a]

    def numbers(found: theory.MarginLaw) -> list[float]:
        return [found.gamma2, found.relevant[-1], *found.shares]

    other = theory.class_law(law, 2 * n)
    twice = Control("twice as many samples", numbers(other))
    apart = Control("one against the other's margin", [abs(other.gamma2 / gamma2 - 1)] * 2)
    gaps = [told[0].gap, told[1].gap]
    return every(
        classes=equal(predicted=numbers(told[0]), measured=exact, rtol=1e-7, control=twice),
        samples=equal(predicted=numbers(told[1]), measured=exact, rtol=1e-6, control=twice),
        certificate=at_most(bound=1e-9, measured=gaps, control=apart),
    )


@paper.claim("ours: closed law")
@against("one word more", equal, rtol=1e-10)
def closed_law(study, right: bool):
    r"""For two targets with shares 1/2 and 1/6: $\gamma^2 = 3 + e_1 -
    \frac{(10+2e_1)^2}{34+4e_1+e_2}$, $R^* = \frac{4s-1}{1-3s}$, $s = \frac{10+2e_1}{34+4e_1+e_2}$
    with $e_1 = 2(L-3)/n$ and $e_2 =
    12(L-2)/n$; 0.12160612 and 1.26866 at n = 60, L = 5."""
    points = [(60, 5), (120, 5), (240, 8), (48, 3)]
    laws = [theory.closed_law(n, L if right else L + 1) for n, L in points]
    told = [[law[name] for name in ("gamma2", "r_star", "share", "w3")] for law in laws]
    found = [by_hand(n, L) for n, L in points]
    return told, [[x["gamma2"], x["r"], x["shares"][1], -x["w"][1]] for x in found]


@paper.claim("ours: late time", regime=all_different, setting="infinite width, tau = 1e6")
def late_time(study) -> Measurement:
    r"""At infinite width the loss is $1/(\gamma^2\tau)$, the gradients' shares are the dual
    weights, $R$ tends to $R^*$ and $G$ to $w\ln\tau$: all that the paper leaves as $\Theta$."""
    c = study.config
    keys = {"init": "condition", "output": 0.0, "attention": "trained", "rate": 0.01}
    ready = study.at(**keys, mode="infinite-width", until=LONG)
    law, rows = theory.class_law(ready.task, c.samples), ready.solution.trajectory
    half = theory.class_law(ready.task, 2 * c.samples)
    tau, loss, S = (rows[n].values for n in ("time", "loss", "gradient_sum"))
    last = tau >= LONG / 10
    slope, whole = (np.polyfit(tau[at], 1 / loss[at], 1)[0] for at in (last, tau >= 0))
    G, i = rows["value"].values[:, : c.targets + 1], np.flatnonzero(last)[0]
    growth = (G[-1] - G[i]) / np.log(tau[-1] / tau[i])
    told = [law.r_star, float(ready.ratio(rows)[-1])]
    found = [-growth[-1] / growth[:-1].max()] * 2
    twice = "twice as many samples"
    gamma, words = Control(twice, half.gamma2), Control(twice, half.relevant)
    everything = Control("on all rows", whole)
    first = Control("at the start", S[0] / S[0].sum())
    ratio = Control(twice, [half.r_star] * 2)
    return every(
        slope=equal(predicted=law.gamma2, measured=slope, rtol=0.01, control=gamma),
        recorded=equal(predicted=ready.slope(rows), measured=slope, rtol=1e-6, control=everything),
        shares=equal(predicted=law.shares, measured=S[-1] / S[-1].sum(), rtol=0.02, control=first),
        values=equal(predicted=law.relevant, measured=growth, rtol=0.03, control=words),
        ratio=equal(predicted=told, measured=found, rtol=0.02, control=ratio),
    )


@paper.claim("ours: many samples", setting="two targets, n to infinity")
def many_samples(study) -> Measurement:
    r"""With ever more samples the flow is that of two numbers $x = G(\mu_1) = G(\mu_2)$ and $z =
    -G(\mu_3)$: the loss of single targets peaks at $\tau = 3.564722$ at $1.157861\ln 2$, all
    classes are right from $12.979411$ on."""
    told = theory.two_scalars()
    ready = few(study, mode="scalar", until=40.0, rtol=1e-10)
    other = few(study, mode="infinite-width", until=40.0, rtol=1e-10, samples=240)
    rows, names = ready.solution.trajectory, ("t05", "t1", "t1_all", "t1_g")
    t = rows["time"].values

    def near(name: str, time: float, entry: int = 0) -> float:
        """By a cubic through the four rows around a time."""
        at = np.clip(np.searchsorted(t, time) - 2, 0, len(t) - 4)
        values = rows[name].values.reshape(len(t), -1)[at : at + 4, entry]
        return float(np.polyval(np.polyfit(t[at : at + 4] - time, values, 3), 0.0))

    def losses(one: float, two: float) -> list[float]:
        return [near("class_loss", one, 1), near("loss", two)]

    def values(time: float) -> list[float]:
        return [near("value", time, 0), near("value", time, 2)]

    times, there = ([run.times()[n] for n in names] for run in (ready, other))
    finite = Control("240 samples", measured=there)
    exchanged = Control("exchanged", measured=losses(told.correct, told.peak))
    peak = Control("at the peak", measured=values(told.peak))
    return every(
        times=equal(
            predicted=[told.peak, *[told.correct] * 3], measured=times, rtol=1e-7, control=finite
        ),
        losses=equal(
            predicted=[told.rise * np.log(2), told.loss],
            measured=losses(told.peak, told.correct),
            rtol=1e-5,
            control=exchanged,
        ),
        value=equal(
            predicted=[told.x, -told.x], measured=values(told.correct), rtol=1e-5, control=peak
        ),
    )


@paper.claim("ours: 1/17 and 3/2", setting="two targets, n to infinity")
def one_seventeenth(study) -> Measurement:
    r"""With ever more samples $\gamma^2 = 1/17$, $R^* = 3/2$, gradients are shared 7 : 5 : 5 : 0
    and $G = (2, 2, -3)\ln\tau$; the two-number flow gets there."""
    ready = few(study, mode="scalar", until=LONG)
    law, rows = theory.class_law(ready.task), ready.solution.trajectory
    tau, loss = rows["time"].values, rows["loss"].values
    last, S = tau >= LONG / 10, rows["gradient_sum"].values[-1]
    slope = np.polyfit(tau[last], 1 / loss[last], 1)[0]
    measured = [slope, (S.sum() - 2 * S[0]) / (S[0] - S[1]), *(S / S.sum())]

    def numbers(found: theory.MarginLaw) -> list[float]:
        return [found.gamma2, found.r_star, *found.shares]

    finite = theory.class_law(ready.task, 240)
    here = Control("240 samples", [*numbers(finite), *finite.relevant])
    return every(
        exact=equal(
            predicted=[*numbers(law), *law.relevant],
            measured=[1 / 17, 3 / 2, 7 / 17, 5 / 17, 5 / 17, 0, 2, 2, -3],
            rtol=1e-10,
            control=here,
        ),
        flow=equal(
            predicted=numbers(law),
            measured=measured,
            rtol=1e-3,
            control=Control("240 samples", numbers(finite)),
        ),
    )


@paper.claim("ours: safe numbers of samples")
def safe_numbers(study) -> Measurement:
    """In the limit direction every sentence of the population is right from n = 18, 48, 72, 90, 132
    on at L = 3, 4, 5, 6, 8, some 20 L; and R* > 1 from n = 18, 18, 24, 24, 30 on. One target at
    L = 3: 12, three at L = 4: 56."""
    laws = [WordCooccurrence(L) for L in (3, 4, 5, 6, 8)]
    others = [WordCooccurrence(3, targets=1), WordCooccurrence(4, targets=3)]

    def threshold(law: WordCooccurrence, good: Any, longer: int) -> int:
        """The n from which on it holds, by the classes' Gram matrix and every kind of sentence."""
        L, k, step = law.length + longer, law.targets, 2 * (2**law.targets - 1)
        numbers = range(step, max(5 * L, 15) * step, step)
        return max((n for n in numbers if not good(by_hand(n, L, k))), default=0) + step

    def found(longer: int = 0) -> list[int]:
        safe = [threshold(law, lambda x: x["worst"] > 1e-9, longer) for law in laws + others]
        return safe + [threshold(law, lambda x: x["r"] > 1 + 1e-9, longer) for law in laws]

    def limited(*most: int) -> list[int]:
        """With few numbers tried; with one target no n gives R* > 1."""
        never = theory.balanced_samples(others[0])
        return [*(theory.safe_samples(laws[0], each) or 0 for each in most), never or 0]

    told = [theory.safe_samples(law) or 0 for law in laws + others]
    told += [theory.balanced_samples(law) or 0 for law in laws]
    return every(
        numbers=equal(
            predicted=told,
            measured=found(),
            rtol=0.0,
            control=Control("one word more", measured=found(1)),
        ),
        limits=equal(
            predicted=limited(39, 40),
            measured=[0, 18, 0],
            rtol=0.0,
            control=Control("40 numbers", limited(40, 40)),
        ),
    )


@paper.claim("ours: limit error", setting="n = 24, L = 4, infinite width")
def limit_error(study) -> Measurement:
    """Below the safe number of samples a fixed share of sentences stays wrong, however long one
    trains: that of the limit direction."""
    ready = few(study, mode="infinite-width", until=LONG)
    short = ready.at(until=30.0).population
    return every(
        error=equal(
            predicted=theory.limit_error(ready.task, 24),
            measured=ready.population.error,
            rtol=1e-9,
            control=Control("at tau = 30", measured=short.error),
        ),
        worst=equal(
            predicted=theory.worst_margin(ready.task, theory.class_law(ready.task, 24)),
            measured=by_hand(24, 4)["worst"],
            rtol=1e-8,
            control=Control(
                "36 samples", theory.worst_margin(ready.task, theory.class_law(ready.task, 36))
            ),
        ),
    )


@paper.claim("ours: idle attention", setting="n = 24, L = 4, m = 1024")
@against("|a|^2 = 1, m = 128, k0 = 17", at_most, bound=1e-4)
def idle_attention(study, right: bool):
    """In the theory's regime attention hardly matters: freezing it changes the loss by less than a
    part in ten thousand. With a small output layer and large keys it does matter."""
    large = {"dim": 128, "output": 1.0, "k0": 17.0, "length": 3}
    ready = few(study, until=300.0).at(**({"dim": 1024} if right else large))
    runs = (ready, ready.at(attention="frozen"))
    trained, frozen = (r.solution.trajectory["loss"].values[-1] for r in runs)
    return abs(frozen / trained - 1)


SIZES = (256, 1024, 4096)


@paper.claim("ours: infinite width", setting="L = 3, n = 12, expected start")
def infinite_width(study) -> Measurement:
    r"""Without the fluctuations of the start a run tends to the infinite-width run like $1/m^2$:
    the limit is nearly lazy, attention does not move and $U$ stays. With them it does not."""
    base = few(study).at(length=3, samples=12)
    limit = base.at(mode="infinite-width", until=100.0).solution.final

    def run(m: int) -> Any:
        return base.at(dim=m, until=100.0, init="expected").solution

    def gap(m: int) -> float:
        G = run(m).final["gram"]["value"]["u", "V"][0]
        return float(np.abs(np.asarray(G) - limit).max())

    def drawn(m: int) -> float:
        w = base.at(dim=m).drawn
        return float(np.abs(w["u"] @ w["WV"]).max())

    return order(
        "Theta",
        over=SIZES,
        y=gap,
        power=-2.0,
        tol=0.05,
        toward="infinity",
        control=Control("a drawn start", measured=drawn),
    )


@paper.once
def long_even(study) -> Run:
    """L = 3, n = 24, without fluctuations, for long and wide."""
    return solved(few(study, dim=65536, until=LONG).at(length=3, init="expected"))


@paper.claim("ours: attention pattern", setting="L = 3, n = 24, m = 65536, expected start")
def attention_pattern(study) -> Measurement:
    r"""The learned scores are $\frac{\sigma_0^2\sqrt m}{LU\gamma^2}\ln^2\tau \sum_i y_i s_i
    (w(\mathrm{key}) - F_i/L)$ over samples with both words ($s_i$ the shares), to leading
    logarithm: also those that Theorem 3.3 does not mention, of a target or the common word with
    itself."""
    run, ready = long_even(study), few(study, length=3)
    X, law = ready.sentences, by_hand(24, 3)
    told = theory.attention_pattern(X)
    (w1, w3), each = law["w"], law["shares"] / sizes(24)
    scale = theory.score_scale(run.s0, 65536, 3, float(run.start["U"]), law["gamma2"], np.e)
    w = np.array([w1, w1, w3, *np.zeros(X.vocab - 3)])
    for words, c, y in zip(X.token, X.kind, X.label, strict=True):
        w[words[words > 2]] = y * each[c] / law["gamma2"]

    def pulls(centred: float) -> np.ndarray:
        found = np.zeros_like(told)
        for words, c, y in zip(X.token, X.kind, X.label, strict=True):
            for key, query in itertools.product(words, repeat=2):
                found[key, query] += y * each[c] * (w[key] - centred * w[words].mean())
        return found

    late = run.tau >= LONG / 1e3
    C = run["score"][late, :3, :3] - run["score"][0, :3, :3]
    curve = np.polyfit(np.log(run.tau[late]), C.reshape(len(C), 9), 2)[0].reshape(3, 3)
    turned = Control("keys and queries exchanged", told.T[:3, :3] * scale)
    return every(
        pattern=equal(
            predicted=told,
            measured=pulls(1.0),
            rtol=1e-8,
            control=Control("without the mean", pulls(0.0)),
        ),
        flow=equal(
            predicted=told[:3, :3] * scale,
            measured=curve,
            rtol=0.05,
            control=turned,
            note="the coefficient of ln^2 tau over the last three decades",
        ),
    )


@paper.claim("ours: growth of the neurons", setting="L = 3, n = 24, expected start")
def growth_of_the_neurons(study) -> Measurement:
    r"""$U$ grows by $|a|^2\ln^2(1/\hat L)/(\gamma^2U^2)$, relative: that is why the slope exceeds
    $\gamma^2$ at a finite width."""
    run, output = long_even(study), few(study).config.neurons
    U, early = run["neuron_norm"], float(np.interp(1e4, run.tau, run["loss"]))

    def growth(loss: float) -> float:
        return theory.norm_growth(output, by_hand(24, 3)["gamma2"], float(U[0]), loss)

    other = Control("by the loss at tau = 1e4", growth(early))
    last = growth(float(run["loss"][-1]))
    return equal(predicted=last, measured=U[-1] / U[0] - 1, rtol=0.08, control=other)


@paper.claim("ours: slope at a finite width", setting="n = 24, L = 4, m = 128")
def slope_at_a_finite_width(study) -> Measurement:
    r"""At a finite width the slope of 1/loss on $\int U dt$ is above $\gamma^2$ of the limit, as
    values grow too, and within a factor of 2 of it."""
    ready = few(study, dim=128, until=1e3)
    run, gamma2 = solved(ready), by_hand(24, 4)["gamma2"]
    t, U = run.tau / run.unit, run["neuron_norm"]
    x = np.concatenate([[0.0], np.cumsum((U[1:] + U[:-1]) / 2 * np.diff(t))])
    last = run.tau >= run.tau[-1] / 10
    slope, first, plain = (
        np.polyfit(of[last], 1 / run["loss"][last], 1)[0] for of in (x, U[0] * t, t)
    )

    def room(found: float) -> list[float]:
        return [found / gamma2 - 1.0, 2.1 - found / gamma2]

    told = ready.slope(run.rows)
    other = Control("with the first U", first)
    whole = observables.norm_integral(t, U)
    return every(
        recorded=equal(predicted=told, measured=slope, rtol=2e-3, control=other),
        integral=equal(
            predicted=whole, measured=x, rtol=1e-4, control=Control("with the first U", U[0] * t)
        ),
        bounds=at_least(
            bound=0.0, measured=room(slope), control=Control("on t alone", room(plain))
        ),
    )
