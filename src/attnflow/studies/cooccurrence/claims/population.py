"""Section 2: the law of the data, the model and its start."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_most,
    equal,
    every,
    identity,
    statistical,
)
from attnflow.models import value_mlp
from attnflow.models.value_mlp import initialisation
from attnflow.studies.cooccurrence import observables
from attnflow.studies.cooccurrence.claims.common import PLAIN, inside
from attnflow.studies.cooccurrence.claims.literal import DIM, Point, all_points, attention, outputs
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import WordCooccurrence

DRAWS = range(8)


def small_law(study) -> WordCooccurrence:
    """The config's classes with three irrelevant words and few places: all can be written out."""
    k = study.config.targets
    return WordCooccurrence(k + 2, k + 4, k, study.config.proportions)


def written_out(law: WordCooccurrence, even: bool = False) -> dict[tuple[int, ...], float]:
    """The probability of every multiset of words, from all orders of independent draws."""
    k, found = law.targets, defaultdict(float)
    for size in range(k + 1):
        for subset in itertools.combinations(range(k), size):
            chance = float(law.law[law.classes.index(subset)])
            free = law.length - 1 - size
            rest = list(itertools.product(range(k + 1, law.vocab), repeat=free))
            bags = {tuple(sorted(words)) for words in rest}
            for words in bags if even else rest:
                bag = tuple(sorted((*subset, k, *words)))
                found[bag] += chance / len(bags if even else rest)
    return found


def truth(bag: tuple[int, ...], k: int) -> float:
    """Whether a sentence has all targets."""
    return 1.0 if set(range(k)) <= set(bag) else -1.0


@paper.claim("Def 2.1")
def law_of_the_data(study) -> Measurement:
    """A sentence has the common word, the targets of its class and irrelevant words, uniform with
    replacement; it is positive where both targets occur. The listed population is all of them,
    with their probabilities."""
    law = small_law(study)
    listed, k = law.population, law.targets
    bags = [tuple(sorted(row)) for row in listed.token.tolist()]
    told = dict(zip(bags, listed.weight, strict=True))
    exact, even = written_out(law), written_out(law, even=True)
    return every(
        probability=equal(
            predicted=[told.get(bag, 0.0) for bag in exact],
            measured=list(exact.values()),
            rtol=1e-13,
            control=Control("every multiset alike", measured=[even[bag] for bag in exact]),
        ),
        label=equal(
            predicted=listed.label,
            measured=[truth(bag, k) for bag in bags],
            rtol=0.0,
            control=Control(
                "by the common word", measured=[truth((*bag, *range(k)), k) for bag in bags]
            ),
        ),
        count=equal(
            predicted=[law.count, len(bags), listed.weight.sum()],
            measured=[len(exact), len(exact), 1.0],
            rtol=1e-13,
            control=Control("ordered sentences", measured=[law.vocab**law.length, len(exact), 1.0]),
        ),
    )


@paper.claim("Def 2.1 (sampler)")
def sampler_of_the_law(study) -> Measurement:
    """Drawn sentences have the law's own mean number of each irrelevant word."""
    task, k = study.task, study.config.targets

    def mean(seed: int) -> float:
        """Of the number of the first irrelevant word in a sentence."""
        X = task.sample(4000, seed)
        return float(X.weight @ (X.token == k + 1).sum(axis=1))

    share = 1 / (task.vocab - k - 1)
    places = [task.length - 1 - len(subset) for subset in task.classes]
    expected = float(np.dot([float(p) for p in task.law], places)) * share
    return statistical(
        predicted=expected,
        samples=[mean(seed) for seed in DRAWS],
        z=4.0,
        seeds=list(DRAWS),
        control=Control("targets drawn as well", float(task.length - 1) * share),
    )


@paper.claim("Assumption 2.3 (i)", part="hypothesis")
def class_sizes(study) -> Measurement:
    r"""$|I_1|/n = 1/2$ and $|I_2|/n = |I_3|/n = |I_4|/n = 1/6$ (or the config's shares) exactly,
    in each of the three ways to draw the irrelevant words."""
    c = study.config
    law = [float(p) for p in study.task.law]

    def shares(tokens: str) -> list[float]:
        X = study.at(tokens=tokens, vocab=0).sentences
        has = (X.token[:, :, None] == np.arange(c.targets)).any(axis=1)
        return [
            float(np.mean([set(np.flatnonzero(h)) == set(s) for h in has]))
            for s in study.task.classes
        ]

    drawn = np.random.default_rng(c.seed).choice(len(law), c.samples, p=law)
    return equal(
        predicted=[law] * 3,
        measured=[shares(tokens) for tokens in ("distinct", "within", "iid")],
        rtol=1e-12,
        control=Control(
            "classes drawn at random",
            measured=[np.bincount(drawn, minlength=len(law)) / c.samples] * 3,
        ),
    )


@paper.claim("Assumption 2.3 (ii)", part="hypothesis")
def all_words_different(study) -> Measurement:
    r"""All irrelevant words of the training set are different, which needs $d \ge 3 + |I_1|(L-3) +
    (|I_2|+|I_3|)(L-2) + |I_4|(L-1)$ words (the text's $nL \le d$ is more than that)."""
    ready = study.at(tokens="distinct", vocab=0)
    X, c = ready.sentences, ready.config
    used = X.token[X.token > c.targets]
    common = (X.token == c.targets).sum(axis=1)
    return every(
        words=equal(
            predicted=[c.words, len(used), 0],
            measured=[len(np.unique(used)) + c.targets + 1, len(np.unique(used)), X.repeats],
            rtol=0.0,
            control=Control("n L words", [c.samples * c.length, len(used), 0]),
        ),
        common=equal(
            predicted=np.ones(len(X)),
            measured=common,
            rtol=0.0,
            control=Control("the first target", measured=(X.token == 0).sum(axis=1)),
        ),
    )


@paper.claim("ours: ways to draw words")
def ways_to_draw(study) -> Measurement:
    """`within` repeats no word inside a sentence, `iid` does; irrelevant words are drawn from all,
    and bags of words count them."""
    k = study.config.targets
    law = WordCooccurrence(study.config.length, k + 1 + study.config.length, k)
    n = 20 * law.step

    def most(tokens: str) -> list[float]:
        X = law.training(n, tokens, study.config.seed)  # type: ignore[arg-type]
        counts = [Counter(row) for row in X.token.tolist()]
        twice = sum(max(c.values()) > 1 for c in counts)
        rows = np.array([[c[w] for w in range(law.vocab)] for c in counts])
        gap = float(np.abs(rows - X.bags).max())
        return [twice, X.repeats, gap, len(set(X.token.ravel().tolist()))]

    def same(*seeds: int) -> list[float]:
        return [float(law.training(n, "iid", 1) == law.training(n, "iid", s)) for s in seeds]

    repeated = most("iid")
    return every(
        within=equal(
            predicted=[0.0, 0.0, 0.0, law.vocab],
            measured=most("within"),
            rtol=0.0,
            control=Control("with replacement", measured=repeated),
        ),
        repeats=equal(
            predicted=repeated[0],
            measured=repeated[1],
            rtol=0.0,
            control=Control("all samples", float(n)),
        ),
        seeds=equal(
            predicted=same(1, 2),
            measured=[1.0, 0.0],
            rtol=0.0,
            control=Control("one seed", same(1, 1)),
        ),
    )


@paper.claim("eq 1, eq 2")
@against("without the temperature", identity, over=all_points)
def output_and_loss(study, at: Point, right: bool):
    r"""$F(X) = \sum_l\sum_j a_j w_j^\top W_V X\,\mathrm{softmax}(X^\top W_K^\top W_Q x_l/\sqrt m)$
    and $\hat L = \frac 1n\sum_i \log(1+e^{-y_iF_i})$: the model's margins, loss and attention are
    these, written out."""
    th, t = at.model, value_mlp.tables(at.sentences, DIM if right else 1)
    G, S = th.a @ th.W @ th.WV, th.WK.T @ th.WQ
    model = np.concatenate([t.margins(G, S), [t.loss(G, S)], t.attention(S).ravel()])
    F = outputs(at.X, th.W, th.WV, th.WK, th.WQ, th.a)
    loss = np.log(1 + np.exp(-at.y * F)).mean()
    return model, np.concatenate([at.y * F, [loss], attention(at.X, th.WK, th.WQ).ravel()])


@paper.claim("Sec 2.2 (generalisation loss)")
def generalisation_loss(study) -> Measurement:
    r"""$L = E\,\ell(yF(X))$ over the law of Def. 2.1, exactly: from every multiset of words, and
    with uniform attention from bags of words of equal value."""
    law = small_law(study)
    rng, d, k, m = np.random.default_rng(5), law.vocab, law.targets, 3
    G, WK, WQ = rng.standard_normal(d), rng.standard_normal((m, d)), rng.standard_normal((m, d))
    G[k + 2] = G[k + 1]  # two irrelevant words of one value
    bags = written_out(law)
    X = np.eye(d)[np.array(list(bags))].transpose(0, 2, 1)
    y = np.array([truth(bag, k) for bag in bags])

    def by_hand(scale: float) -> list[float]:
        F = np.einsum("d,idk,ikl->i", G, X, attention(X, scale * WK, WQ))
        w = np.array(list(bags.values()))
        return [w @ np.log(1 + np.exp(-y * F)), w @ (y * F <= 0), (y * F).min()]

    margins = partial(observables.margins_of, dim=m, G=G)
    full = observables.population(law, lambda s: margins(s, S=WK.T @ WQ))
    even = observables.bag_population(law, G)
    # Two kinds of irrelevant words where sentences are too many to list: a binomial law.
    many = WordCooccurrence(6, k + 301, k)
    rough = np.concatenate([G[: k + 1], np.repeat([0.3, -0.7], [100, 200])])
    told = observables.bag_population(many, rough)

    def binomial(chance: float) -> list[float]:
        loss = error = 0.0
        for p, subset in zip(many.law, many.classes, strict=True):
            free, y = 5 - len(subset), truth(subset, k)
            first = np.arange(free + 1)
            w = stats.binom.pmf(first, free, chance) * float(p)
            F = y * (G[[*subset, k]].sum() + 0.3 * first - 0.7 * (free - first))
            loss, error = loss + w @ np.log(1 + np.exp(-F)), error + w @ (F <= 0)
        return [loss, error]

    return every(
        attention=equal(
            predicted=[full.loss, full.error, full.worst],
            measured=by_hand(1.0),
            rtol=1e-12,
            control=Control("uniform attention", measured=by_hand(0.0)),
        ),
        bags=equal(
            predicted=[even.loss, even.error, even.worst],
            measured=by_hand(0.0),
            rtol=1e-11,
            control=Control("this attention", measured=by_hand(1.0)),
        ),
        many=equal(
            predicted=[told.loss, told.error],
            measured=binomial(1 / 3),
            rtol=1e-12,
            control=Control("both kinds alike", measured=binomial(1 / 2)),
        ),
    )


@paper.claim("ours: population by draws")
def population_by_draws(study) -> Measurement:
    """Where the sentences are too many to list, draws give loss and error within their stated
    standard errors."""
    law = small_law(study)
    G = np.random.default_rng(6).standard_normal(law.vocab)
    S = np.zeros((law.vocab, law.vocab))
    exact = observables.population(law, lambda s: observables.margins_of(s, 2, G, S))

    def drawn(seed: int, power: float = 1.0) -> list[float]:
        X = law.sample(3000, seed)
        found = observables.weighed(observables.margins_of(X, 2, G, S, 700), X.weight, X.kind)
        spread = found.loss_error, found.error_error
        gaps = found.loss - exact.loss, found.error - exact.error
        return [g / s**power for g, s in zip(gaps, spread, strict=True)]

    def spread(power: float) -> np.ndarray:
        return np.sqrt((np.array([drawn(s, power) for s in range(40)]) ** 2).mean(axis=0))

    few = law.sample(50, 0)
    F = few.label * G[few.token].sum(axis=1)
    seen, classes = observables.weighed(F, few.weight, few.kind), 2**law.targets
    whole = classes * next(n for n in range(51) if n * classes >= 50)
    return every(
        errors=equal(
            predicted=np.ones(2),
            measured=spread(1.0),
            rtol=0.35,
            control=Control("the variance for the error", measured=spread(2.0)),
            note="root mean square of the deviations in standard errors",
        ),
        worst=equal(
            predicted=[seen.worst, len(few)],
            measured=[min(F), whole],
            rtol=1e-12,
            control=Control("the best", measured=[max(F), whole]),
            note="50 draws, rounded up to as many of each class",
        ),
    )


@paper.claim("Condition 1 (initial scales)", part="hypothesis")
def initial_scales(study) -> Measurement:
    r"""$W$ has entries $N(0,\sigma_1^2)$, the other matrices $N(0,\sigma_0^2)$, $a_j = \pm 1$, with
    $\sigma_0 = k_0/\sqrt{Lm}$ and $\sigma_1 = k_1/\sqrt{m_1}$; $u = W^\top a$ is drawn without
    $W$."""
    ready = inside(study.at(**PLAIN))
    c, init = ready.config, ready.initialisation
    s0, s1 = c.k0 / np.sqrt(c.length * c.dim), c.k1 / np.sqrt(c.neurons)
    norm = s1 * np.sqrt(c.neurons)

    def drawn(seed: int) -> dict[str, Any]:
        th, w = (make(c.words, c.dim, c.neurons, seed) for make in (init.model, init.draw))
        whole = {"W": th.W / s1, "WV": th.WV / s0, "WQ": th.WQ / s0, "u": th.W.T @ th.a / norm}
        few = {"drawn_WV": w["WV"] / s0, "drawn_WK": w["WK"] / s0, "drawn_u": w["u"] / norm}
        squares = {n: float(np.mean(np.square(x))) for n, x in {**whole, **few}.items()}
        return {**squares, "output": [th.a @ th.a, np.abs(th.a).max(), w["rate"]]}

    found = [drawn(seed) for seed in DRAWS]
    output = found[0].pop("output")

    def check(name: str) -> Measurement:
        own = s1 if name in ("W", "u", "drawn_u") else s0
        other = Control("the standard deviation for the variance", own)
        return statistical(predicted=1.0, samples=[f[name] for f in found], z=4.5, control=other)

    one = Control("of length one", [1.0, 1 / np.sqrt(c.neurons), 1.0])
    told = [float(c.neurons), 1.0, float(c.neurons)]
    return every(
        **{name: check(name) for name in found[0]},
        output=equal(predicted=told, measured=output, rtol=1e-12, control=one),
    )


@paper.claim("ours: expected start")
def expected_start(study) -> Measurement:
    r"""Without fluctuations the start is $U = \sigma_1^2 m|a|^2$, $W_V^\top W_V = W_K^\top W_K =
    W_Q^\top W_Q = \sigma_0^2 m I$, all else 0: the mean over draws."""
    c = inside(study.at(**PLAIN)).config
    d, m = 5, 64
    init = initialisation(
        "condition", vocab=d, dim=m, neurons=c.neurons, length=c.length, k0=c.k0, k1=c.k1
    )
    told = init.expected(d, m)

    def gram(seed: int, which: str) -> np.ndarray:
        w = init.draw(d, m, c.neurons, seed)
        left = [w["u"][:, None], w["WV"]] if which == "value" else [w["WK"], w["WQ"]]
        both = np.concatenate(left, axis=1)
        return both.T @ both

    def compare(which: str) -> Measurement:
        draws = np.array([gram(seed, which) for seed in range(200)])
        spread = draws.std(axis=0) / np.sqrt(len(draws))
        uneven = np.mean(draws[:3] @ np.diag(1 + np.arange(len(spread))), axis=0)
        weighted = Control("columns weighted", measured=(uneven - told[which]) / spread)
        found = (draws.mean(axis=0) - told[which]) / spread
        note = "entries in standard errors of 200 draws"
        zero = np.zeros_like(spread)
        return equal(predicted=zero, measured=found, atol=4.5, control=weighted, note=note)

    return every(value=compare("value"), attention=compare("attention"))


@paper.claim("ours: readings of Kaiming")
def readings_of_kaiming(study) -> Measurement:
    r"""`torch`: uniform with variance $1/(3\cdot\mathrm{fan\ in})$, `kaiming`: Gaussian with
    $2/\mathrm{fan\ in}$; fan-in is $d$ for $W_V, W_K, W_Q$ and $m$ for $W$. The output layer is
    $\pm 1$, or of size $1/\sqrt{m_1}$. Measured in units of what chance allows."""
    d, m, m1 = 200, 100, 300
    torch, kaiming = (1 / (3 * d), 1 / (3 * m), np.sqrt(3)), (2 / d, 2 / m, 4.3)
    told = {
        "torch": (*torch, m1),
        "kaiming": (*kaiming, m1),
        "torch-output": (*torch, 1 / 3),
        "kaiming-output": (*kaiming, 1.0),
    }
    allowed = np.array([0.05, 0.05, 0.05, 0.6, 0.15, 0.15, 0.1])  # u has m entries, a has m1

    def drawn(name: str) -> list[Any]:
        init = initialisation(name, vocab=d, dim=m, neurons=m1, length=study.config.length)
        th, w = init.model(d, m, m1, 1), init.draw(d, m, m1, 2)
        largest = np.abs(th.WV).max() / th.WV.std()
        U = w["u"] @ w["u"] / (m * float(w["rate"]))
        return [np.var(th.WK), np.var(w["WV"]), np.var(th.W), U, th.a @ th.a, w["rate"], largest]

    def off(names: Any) -> np.ndarray:
        """Of each reading from what is told of another, relative."""
        rows = []
        for name, other in zip(told, names, strict=True):
            s0, s1, largest, output = told[other]
            expected = np.array([s0, s0, s1, s1, output, output, largest])
            rows.append(np.abs(drawn(name) / expected - 1) / allowed)
        return np.array(rows)

    turned = Control("output layers exchanged", off([*list(told)[2:], *list(told)[:2]]))
    return at_most(bound=1.0, measured=off(told), control=turned)
