"""Beyond the paper: null corpora, the time of breakdown, the clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, at_least, at_most, equal, every, observed
from attnflow.corpus import breakdown_time, shuffled
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    counted,
    course,
    defined,
    middle,
    on_text,
    reach,
    trained,
)
from attnflow.studies.leading_terms.claims.experiments import GUESSED
from attnflow.studies.leading_terms.observables import crossing
from attnflow.studies.leading_terms.paper import paper


@paper.claim("ours: nulls are high", part="experiment")
def nulls_are_high(study) -> Measurement:
    """The leading term of values is close to that of the token-shuffled text (cosine above 0.3, and
    above 1.5 times that under a permutation of the tokens): a high cosine alone needs no order."""
    nulls = on_text(study).data.nulls
    by_chance = abs(nulls["permuted"]["V"])
    return observed(
        found=at_least(
            bound=max(0.3, 1.5 * by_chance),
            measured=nulls["shuffled"]["V"],
            control=Control("tokens permuted", by_chance),
        ),
        guessed=GUESSED,
    )


@paper.claim("ours: null cosines by definition", setting="V = 48, T = 16")
def null_cosines(study) -> Measurement:
    """The printed nulls are what their definition says: a permutation of all window tokens, or of
    the vocabulary on both axes of the theory, both with seed 0."""
    ground = middle(study)
    from attnflow.corpus import Corpus
    from attnflow.studies.leading_terms.data import Data

    corpus = Corpus(
        ground.windows.ravel().astype(np.int32), tuple(str(i) for i in range(ground.size))
    )
    found = Data(corpus, ground.windows, ground.windows).nulls
    rng = np.random.default_rng(0)
    mixed = rng.permutation(ground.windows.ravel()).reshape(ground.windows.shape)
    one = defined(study, "middle")
    other = literal.statistics(mixed, ground.size)
    order = np.random.default_rng(0).permutation(ground.size)
    lags = np.random.default_rng(0).permutation(ground.context)
    names = {"W_O": "bigram", "V": "value", "W": "attention"}
    by_hand = {n: literal.cosine(one[s], other[s]) for n, s in names.items()}
    by_hand["P"] = literal.cosine(one["position"], other["position"])
    turned = {n: literal.cosine(one[s], one[s][np.ix_(order, order)]) for n, s in names.items()}
    turned["P"] = literal.cosine(one["position"], one["position"][lags])
    keys = ("W_O", "V", "W", "P")
    return every(
        shuffled=equal(
            predicted=[by_hand[n] for n in keys],
            measured=[found["shuffled"][n] for n in keys],
            rtol=1e-9,
            control=Control("permuted", [turned[n] for n in keys]),
        ),
        permuted=equal(
            predicted=[turned[n] for n in keys],
            measured=[found["permuted"][n] for n in keys],
            rtol=1e-9,
            control=Control("shuffled", [by_hand[n] for n in keys]),
        ),
    )


@paper.claim("ours: residual cosines", part="experiment")
def residual_cosines(study) -> Measurement:
    """The theory passes the harder test: with the shuffled text's direction projected out of both,
    and with frequencies divided out, cosines stay above 0.9999 (a third of the breakdown
    time)."""
    ready, rows = on_text(study), course(study).rows
    at = int(np.flatnonzero(rows["time"].values <= ready.breakdown / 3)[-1])
    found = [
        float(np.nanmin(f.cosine[at]))
        for view in ("residual", "whitened")
        for f in ready.followed(rows, view).values()
    ]
    other = list(ready.data.nulls["shuffled"].values())
    return observed(
        found=at_least(bound=0.9999, measured=found, control=Control("shuffled theory", other)),
        guessed=GUESSED,
    )


@paper.claim("ours: views by definition", part="experiment")
def views_by_definition(study) -> Measurement:
    """Cosine, gain and relative error of every view, from two lengths, are what the weights at the
    end give by their definitions."""
    ready = on_text(study, steps=reach(study))
    rows, data, end = course(study).rows, ready.data, ready.config
    weights = course(study).weights[end.steps]
    made = literal.statistics(data.windows, data.corpus.tokens)
    null = literal.statistics(shuffled(data.windows), data.corpus.tokens)
    law = np.bincount(data.windows[:, :-1].ravel(), minlength=data.corpus.tokens)
    root = np.sqrt(np.maximum(law, 1) / data.windows[:, 1:].size)
    terms = {"W_O": "bigram", "V": "value", "W": "attention", "P": "position"}
    s, eta = end.steps, end.rate
    sums = {"W_O": s * eta, "V": s * (s - 1) / 2 * eta**2}
    sums["W"] = sums["P"] = sum(k * (k * (k - 1) // 2) for k in range(s)) * eta**4

    def seen(view: str, name: str, m: np.ndarray) -> np.ndarray:
        if view == "residual":
            unit = null[terms[name]] / literal.size(null[terms[name]])
            return m - np.sum(unit * m) * unit
        if view == "whitened" and name != "P":
            return m / root[:, None] / root[None, :]
        return m

    found, by_hand, other = [], [], []
    for view in ("raw", "residual", "whitened"):
        followed = ready.followed(rows, view)
        for name, statistic in terms.items():
            w = seen(view, name, weights[name] if name == "W_O" else weights[name][-1])
            term = seen(view, name, sums[name] * made[statistic])
            f = followed[name]
            found += [f.cosine[-1, -1], f.gain[-1, -1], f.error[-1, -1], f.gap[-1, -1]]
            inner = np.sum(w * term)
            by_hand += [
                literal.cosine(w, term),
                inner / np.sum(term**2),
                literal.size(w - term) / literal.size(term),
                1 - literal.cosine(w, term),
            ]
            other += [0.5, literal.size(w) / literal.size(term) * 0.9, 0.0, 0.5]
    first = next(iter(ready.followed(rows.sel(layer=[1, 2])).values()))
    return every(
        views=equal(
            predicted=by_hand, measured=found, rtol=1e-7, control=Control("lengths of both", other)
        ),
        layers=equal(
            predicted=[1, 2, 3],
            measured=rows["layer"].values,
            rtol=0.0,
            control=Control("of the output", measured=np.resize(first.cosine.shape[1], 3)),
        ),
    )


@paper.claim("ours: time of breakdown", part="experiment")
def breakdown(study) -> Measurement:
    """The cosine of W_O falls below 0.999 at the time that the one-line formula foresees before
    training, within 20 % (three layers)."""
    ready = on_text(study)
    measured = ready.measured_breakdown(course(study).rows)
    one = breakdown_time(ready.data.theory, 1)
    return observed(
        found=equal(
            predicted=ready.breakdown,
            measured=float("nan") if measured is None else measured,
            rtol=0.2,
            control=Control("as if it had one layer", one),
        ),
        guessed=GUESSED,
    )


@paper.once
def gaps(study: Any, layers: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Times, and 1 - cosine of W_O with B, of a training on the middle corpus."""
    ground = middle(study)
    B = defined(study, "middle")["bigram"]
    until = 1.5 * breakdown_time(counted(study, "middle"), layers)
    data = lm.Windows(ground.windows, ground.size)
    theta = lm.start(ground.size, ground.context, layers)
    each = []
    for _ in range(round(until / rate)):
        found = data.gradient(theta)[1]
        theta = {block: m - rate * found[block] for block, m in theta.items()}
        each.append(1 - literal.cosine(theta["W_O"], B))
    return rate * np.arange(1, len(each) + 1), np.array(each)


def _time(study: Any, layers: int, rate: float = 0.25) -> float:
    found = crossing(*gaps(study, layers, rate), 1e-3)
    return float("nan") if found is None else found


@paper.claim("ours: breakdown by the number of layers", setting="V = 48, T = 16")
def breakdown_by_layers(study) -> Measurement:
    """For L = 1, 2, 3 the formula is within 20 %: more layers break down earlier, as 1/sqrt L."""
    found = [_time(study, L) for L in (1, 2, 3)]
    same = [breakdown_time(counted(study, "middle"), 1)] * 3
    predicted = [breakdown_time(counted(study, "middle"), L) for L in (1, 2, 3)]
    return equal(
        predicted=predicted,
        measured=found,
        rtol=0.2,
        each=True,
        control=Control("without the number of layers", same),
    )


@paper.claim("ours: formula of the breakdown", setting="V = 48, T = 16")
def formula(study) -> Measurement:
    r"""$t_c = \sqrt{6\tan(\arccos c)/(Lr)}$ with r the length of $\bar B\bar\Phi\bar\Phi^\top$
    across $\bar B$, relative to $\bar B$."""
    made = defined(study, "middle")
    B, Phi = made["bigram"], made["context"]
    M = B @ Phi @ Phi.T
    across = M - np.sum(M * B) / np.sum(B * B) * B

    def time(part: np.ndarray, L: int, c: float) -> float:
        r = literal.size(part) / literal.size(B)
        return float(np.sqrt(6 * np.tan(np.arccos(c)) / (L * r)))

    cells = [(L, c) for L in (1, 3) for c in (0.99, 0.999)]
    return equal(
        predicted=[time(across, L, c) for L, c in cells],
        measured=[breakdown_time(counted(study, "middle"), L, c) for L, c in cells],
        rtol=1e-9,
        control=Control("with the part along B", [time(M, L, c) for L, c in cells]),
    )


@paper.claim("ours: the clock is t = s eta", setting="V = 48, T = 16, L = 2")
def clock(study) -> Measurement:
    """Half the rate and twice the steps: W_O breaks down at the same time t, within 6 %."""
    return equal(
        predicted=_time(study, 2, 0.5),
        measured=_time(study, 2, 0.25),
        rtol=0.06,
        control=Control("three layers", _time(study, 3, 0.5)),
    )


@paper.claim("ours: interpolated crossing")
def interpolated(study) -> Measurement:
    """A power law crosses its level where interpolation of both logarithms says, exactly."""
    t = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    exact = (1e-3 / 2e-5) ** (1 / 4)
    found = crossing(t, 2e-5 * t**4, 1e-3)
    linear = float(np.interp(1e-3, 2e-5 * t**4, t))
    return equal(
        predicted=exact,
        measured=float("nan") if found is None else found,
        rtol=1e-12,
        control=Control("linear interpolation", linear),
    )


@paper.claim("ours: single precision", setting="V = 48, T = 16, L = 2, 3 steps of 1e-4")
def single_precision(study) -> Measurement:
    """A gradient in float32 gives W of size 1e-16 to a hundredth: no square of it underflows, where
    plain float32 squares do."""
    ground = middle(study)
    eta = 1e-4
    exact = trained(study, "middle", 2, 3, eta)
    data = lm.Windows(ground.windows, ground.size, precision="float32")
    theta = lm.start(ground.size, ground.context, 2)
    for _ in range(3):
        slope = data.gradient(theta)[1]
        theta = {name: m - eta * slope[name] for name, m in theta.items()}
    from attnflow.corpus.nulls import norm

    found = norm(theta["W"].astype(np.float32)) / literal.size(exact["W"])
    with np.errstate(under="ignore"):
        squares = np.sum((theta["W"].astype(np.float32) * np.float32(1e-8)) ** 2, dtype=np.float32)
    plain = float(np.sqrt(squares)) * 1e8 / literal.size(exact["W"])
    return at_most(
        bound=0.01, measured=abs(found - 1), control=Control("plain squares", abs(plain - 1))
    )
