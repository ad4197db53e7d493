"""Section 5 and Appendix B: the experiments, on the config's own text and smaller."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    at_least,
    every,
    not_checkable,
    not_reproduced,
    observed,
)
from attnflow.corpus import Corpus, Statistics, cosine, statistics, stories
from attnflow.models.attention_lm import BLOCKS
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    course,
    descended,
    half,
    layers_of,
    on_text,
    pace,
)
from attnflow.studies.leading_terms.paper import paper
from attnflow.studies.leading_terms.terms import Terms, directions

GUESSED = (
    "corpus, vocabulary, sequence length, number of sequences and rate are ours: 65,536 sequences "
    "of 201 tokens, BPE of 10,000, batches of 2048 and a rate of .005 for 100 epochs are not run"
)
PAPER_TOKENS = 65536 * 200


@paper.once
def minima(study: Any, until: float, order_kept: bool = True) -> dict[str, float]:
    """The smallest cosine of each weight over a run up to a time, over all layers."""
    ready, rows = on_text(study), course(study).rows
    inside = (rows["time"].values > 0) & (rows["time"].values <= until)
    followed = ready.followed(rows)
    if order_kept:
        return {n: float(np.nanmin(f.cosine[inside])) for n, f in followed.items()}
    # The same weights against the theory of a corpus without order: its cosine with the theory
    # bounds what they can reach.
    return ready.data.nulls["shuffled"]


@paper.claim("Table 2", part="experiment")
def table_2(study) -> Measurement:
    """The smallest cosines over training are those of a theory that is right: above 0.9979 for
    attention, values and output of three layers (up to half the foreseen time of breakdown)."""
    ready = on_text(study)
    found = minima(study, ready.breakdown / 2)
    other = minima(study, 0.0, order_kept=False)
    names = ("W", "V", "W_O")
    return observed(
        found=at_least(
            bound=0.997891,
            measured=[found[n] for n in names],
            control=Control("theory of the shuffled text", [other[n] for n in names]),
        ),
        guessed=GUESSED,
    )


def _floor(whole: Statistics, part: Statistics) -> list[float]:
    """Cosines of attention, values and output between a part of a corpus and all of it."""
    one, other = directions(whole), directions(part)
    return [cosine(one[n], other[n]) for n in ("W", "V", "W_O")]


@paper.once
def sampled(study: Any, share: float) -> list[float]:
    """The theory of the first windows of built-in stories against that of all of them."""
    corpus, whole = told(study)
    windows = corpus.windows(32)
    few = windows[: max(2, round(share * len(windows)))]
    return _floor(whole, statistics(few, 300))


@paper.claim("Table 2 (size)", part="experiment", setting="built-in stories, V = 300, T = 32")
def table_2_size(study) -> Measurement:
    """What is missing to 1 in the table, 1e-4 to 2e-3, is the sampling of its theory (one batch of
    2048 sequences): a theory from a third of a corpus misses that of all of it by more than ten
    times what truncation costs up to t = 2.5 (our reading)."""
    gaps = 1 - np.array(sampled(study, 1 / 3))
    truncation = max(1 - c for c in early(study).values())
    same = 1 - np.array(sampled(study, 1.0))
    return at_least(
        bound=10 * truncation, measured=gaps, control=Control("all of the corpus", same)
    )


@paper.claim("Table 2 (order)", part="experiment", setting="built-in stories, V = 300, T = 32")
def table_2_order(study) -> Measurement:
    """Attention is closest to its theory (.999914), then values (.998800), then the output
    (.997891): as the order of a sampling floor it comes and goes with the share of the corpus, and
    in training itself, with the theory of the same windows, our output is the closest."""

    def ratios(*shares: float) -> list[float]:
        gaps = [1 - np.array(sampled(study, s)) for s in shares]
        return np.ravel([[g[1] / g[0], g[2] / g[1]] for g in gaps]).tolist()

    return not_reproduced(
        found=at_least(
            bound=1.0,
            measured=ratios(1 / 24, 1 / 3),
            control=Control("a sixth and two thirds", ratios(1 / 6, 2 / 3)),
            note="what is missing to 1: values over attention, output over values, with a theory "
            "from a 24th and a third of the corpus",
        ),
        guessed=GUESSED,
    )


@paper.claim("ours: sampling floor of the theory", setting="built-in stories, V = 300, T = 32")
def sampling_floor(study) -> Measurement:
    """A theory from fewer sequences agrees less with that of the whole corpus: the share of the
    corpus, not truncation, sets the last digits of such a cosine."""
    shares = (1 / 24, 1 / 6, 2 / 3)
    gaps = [1 - np.array(sampled(study, s)) for s in shares]
    ratios = [gaps[0] / gaps[1], gaps[1] / gaps[2]]
    same = 1 - np.array(sampled(study, 1 / 6))
    return at_least(
        bound=1.5,
        measured=np.ravel(ratios),
        control=Control("the same share twice", np.ravel([gaps[1] / same, same / gaps[1]])),
    )


@paper.claim("Section 5 (setting)", part="experiment")
def setting(study) -> Measurement:
    """3-layer models on 65,536 TinyStories sequences of 201 tokens, batches of 2048, rate .005,
    100 epochs."""
    data = on_text(study).data
    tokens = data.windows[:, 1:].size
    return not_checkable(
        f"our run has {tokens:,} tokens, {PAPER_TOKENS / tokens:,.0f} times fewer, and a "
        f"vocabulary of {data.corpus.tokens} in place of 10,000 or all words; its time t = s eta "
        "is longer"
    )


@paper.once
def interventions(study: Any) -> dict[str, dict[str, list[float]]]:
    """The rises of the loss by interventions at the end of a run to half the breakdown time."""
    from attnflow.studies.leading_terms.observables import causal

    ready, steps, rate = on_text(study), half(study), pace(study)
    terms = Terms.after(ready.data.windows, ready.data.theory, ready.config.layers, steps, rate)
    weights = course(study).weights[steps]
    return causal(ready.windows.loss, ready.start, weights, terms.leading())


def effects(study: Any, kind: str) -> dict[str, list[float]]:
    return {name: found[kind] for name, found in interventions(study).items()}


@paper.claim("Table 3 (order)", part="experiment")
def causal_order(study) -> Measurement:
    """Removing the leading term's component hurts most for the output, less for a layer's values,
    least for its attention: by factors of at least 30 and 1000 (half the time of breakdown)."""
    rises = effects(study, "remove")
    replaced = effects(study, "replace")

    def factors(found: dict[str, list[float]]) -> list[float]:
        output, value = found["W_O"][0], np.array(found["V"])
        attention = np.maximum(np.abs(found["W"]), 1e-300)
        return [float(output / value.max() / 30), float(value.min() / attention.max() / 1000)]

    late = {**rises, "W_O": replaced["W_O"], "W": rises["V"]}
    return observed(
        found=at_least(
            bound=1.0,
            measured=factors(rises),
            control=Control("output replaced, values for attention", factors(late)),
        ),
        guessed=GUESSED,
    )


@paper.claim("Table 3 (loss)", part="experiment")
def causal_loss(study) -> Measurement:
    """The original loss is 5.349, and 5.350 to 5.352 without an attention layer."""
    return not_checkable(
        "the loss is that of another corpus and vocabulary; with 3000 tokens the start is at 8.01 "
        "and falls at |B|^2, a few hundredths per unit of t, so that t = 16 (32 batches, 100 "
        "epochs, rate .005) does not lead to 5.349: another time or rate was used"
    )


@paper.claim("ours: replaced by its leading term", part="experiment")
def replaced(study) -> Measurement:
    """At half the time of breakdown a weight may be replaced by its leading term: the loss rises by
    less than a tenth of what zeroing it costs, for the output and all values."""
    put, gone = effects(study, "replace"), effects(study, "zero")
    rescaled = effects(study, "rescale")
    names = ("W_O", "V")
    bound = np.concatenate([0.1 * np.array(gone[n]) for n in names])
    removed = effects(study, "remove")
    return observed(
        found=every(
            replace=at_least(
                bound=np.concatenate([put[n] for n in names]),
                measured=bound,
                control=Control("removed", predicted=np.concatenate([removed[n] for n in names])),
            ),
            rescale=at_least(
                bound=np.concatenate([rescaled[n] for n in names]),
                measured=bound,
                control=Control("removed", predicted=np.concatenate([removed[n] for n in names])),
            ),
        ),
        guessed=GUESSED,
    )


@paper.claim("ours: loss on the plateau", part="experiment")
def plateau(study) -> Measurement:
    r"""While the match lasts the loss falls as $t\lVert\bar B\rVert_F^2$: measured at half the time
    of breakdown, to a tenth."""
    from attnflow.claims import equal

    ready, steps = on_text(study), half(study)
    rows = course(study).rows
    at = int(np.flatnonzero(rows["time"].values <= pace(study) * (steps + 0.5))[-1])
    drop = rows["loss"].values[0] - rows["loss"].values[at]
    time = float(rows["time"].values[at])
    size = float((ready.data.theory.bigram**2).sum()) * time
    without = float((ready.data.shuffled.bigram**2).sum()) * time
    return observed(
        found=equal(
            predicted=size, measured=float(drop), rtol=0.1, control=Control("shuffled", without)
        ),
        guessed=GUESSED,
    )


# --- Figures.


@paper.once
def early(study: Any) -> dict[str, float]:
    """The smallest cosine of each weight at t = 2.5, five steps of descent on the text."""
    ready, weights = on_text(study), descended(study, 5, 0.5)
    terms = directions(ready.data.theory)
    return {
        name: min(cosine(w, terms[name]) for w in layers_of(name, weights[name])) for name in BLOCKS
    }


@paper.claim("Fig 4", part="experiment")
def figure_4(study) -> Measurement:
    """The cosines stay close to 1: above 0.999 at t = 2.5, the time of 100 epochs there with the
    printed defaults."""
    nulls = list(on_text(study).data.nulls["shuffled"].values())
    return observed(
        found=at_least(
            bound=0.999,
            measured=list(early(study).values()),
            control=Control("theory of the shuffled text", nulls),
        ),
        guessed=GUESSED,
    )


@paper.once
def told(study: Any) -> tuple[Corpus, Statistics]:
    """Built-in stories by words, all of them."""
    corpus = Corpus.of(stories(), "word", 300)
    return corpus, statistics(corpus.windows(32), 300)


@paper.claim("Fig 3", part="experiment", setting="built-in stories, V = 300, T = 32")
def figure_3(study) -> Measurement:
    """Larger entries of Phi belong to tokens that are more frequent in the context of a token: the
    rank correlation of a row of Phi with how much more often than elsewhere, counted by hand."""
    corpus, found = told(study)
    windows = corpus.windows(32)
    size, T = corpus.tokens, 32
    share = np.zeros((size, size))
    for row in windows:
        seen = np.zeros(size)
        for t in range(T):
            seen[row[t]] += 1
            share[row[t + 1]] += seen / (t + 1)
    excess = share / (len(windows) * T) - share.sum(axis=0) / (len(windows) * T) / size
    top = np.argsort(-corpus.counts)[:12]

    def ranks(table: np.ndarray) -> list[float]:
        return [
            literal.cosine(*(r - r.mean() for r in (_ranks(table[i]), _ranks(excess[i]))))
            for i in top
        ]

    return at_least(
        bound=0.999999,
        measured=ranks(found.context),
        control=Control("its transpose", ranks(found.context.T)),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value among all; equal ones (to rounding) share their mean rank."""
    _, group, count = np.unique(np.round(values, 15), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group]


NAMES = [
    "Lily",
    "Mia",
    "Anna",
    "Sue",
    "Emma",
    "Rosa",
    "Tom",
    "Ben",
    "Max",
    "Sam",
    "Tim",
    "Leo",
    "Jack",
]


@paper.claim("Fig 5", part="experiment", setting="built-in stories, V = 300, T = 32")
def figure_5(study) -> Measurement:
    """Tokens that correlate most under a basis belong together: of the eight nearest tokens of a
    first name under whitened interchangeability most are first names, under raw frequency few."""
    corpus, found = told(study)
    place = {word: i for i, word in enumerate(corpus.vocabulary)}
    names = [place[n] for n in NAMES if n in place]
    B = found.bigram
    label = np.bincount(corpus.windows(32)[:, 1:].ravel(), minlength=corpus.tokens)
    scale = np.sqrt(np.maximum(label, 1))

    def share(columns: np.ndarray) -> float:
        unit = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        near = unit.T @ unit
        hits = []
        for i in names[:6]:
            order = [j for j in np.argsort(-near[i]) if j != i][:8]
            hits.append(np.mean([j in names for j in order]))
        return float(np.mean(hits))

    root = np.sqrt(np.maximum(found.unigram, 1e-6))[:, None]
    rng = np.random.default_rng(0)
    permuted = rng.permuted(B / scale, axis=0)
    return at_least(
        bound=0.5,
        measured=share(B / root / scale),
        control=Control("followers shuffled", share(permuted)),
    )


def _no_pythia(id: str, words: str):
    def measure(study) -> Measurement:
        return not_checkable(
            "it needs Pythia-1.4B over training, which is not at hand here; the same protocol runs "
            "on other series of checkpoints"
        )

    measure.__doc__ = words
    return paper.claim(id, part="experiment")(measure)


figure_6 = _no_pythia("Fig 6", "Covariances of Pythia-1.4B's attention and embeddings follow Q, K.")
figure_7 = _no_pythia("Fig 7", "The same for its individual heads.")
figure_8 = _no_pythia("Fig 8", "The same with statistics of a second corpus.")
