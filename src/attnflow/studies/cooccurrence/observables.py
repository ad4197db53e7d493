"""What a run of co-occurrence observes, whichever state carries it.

A `View` reads margins, values and their rates from one kind of state: Gram or reduced weights, or
the values alone at infinite width. Scores are `score[key, query]`; words are numbered as in the
task and shown as `target 1`, `target 2`, `common`, `word 1` ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np
from jaxtyping import Float, Int

from attnflow.flows.layout import Params
from attnflow.flows.probes import Mark, Observable, shared
from attnflow.models.two_head import namespace
from attnflow.models.value_mlp import Correlations, Tables, correlations, tables
from attnflow.tasks.cooccurrence import MOST, Sentences, WordCooccurrence

SHOWN = 3
"""Irrelevant words whose scores and correlations are recorded."""


class View(Protocol):
    """How a kind of state is read; all functions are traceable."""

    label: np.ndarray
    weight: np.ndarray
    membership: np.ndarray

    margins: Callable[[Params], Any]
    """y F of each training sample."""
    value_rates: Callable[[Params], Any]
    """dG/dt[word]."""

    def values(self, state: Params) -> Any:
        """G[word]."""
        ...


@final
class BagView:
    """The values alone, at infinite width."""

    def __init__(self, bags: Any, label: Any, weight: Any, membership: Any):
        self.label, self.weight, self.membership = label, weight, membership
        self.signed = label[:, None] * bags
        self.margins = shared(lambda state: self.signed @ state)
        self.value_rates = shared(
            lambda state: (weight * residuals(self.margins(state))) @ self.signed
        )

    def values(self, state: Params) -> Any:
        return state


@final
class StateView:
    """Gram or reduced weights at a finite width, with what they were at the start."""

    def __init__(self, sentences: Sentences, dim: int, rate: float, start: Params):
        self.label, self.weight = sentences.label, sentences.weight
        self.membership, self.rate = sentences.membership, rate
        self.tables: Tables = tables(sentences, dim)
        self.first_scores = np.asarray(correlations(start).S)
        self.first_attention = self.tables.attention(self.first_scores)
        self.read = shared(correlations)
        self.attention = shared(lambda state: self.tables.attention(self.read(state).S))
        self.margins = shared(self._margins)
        self.value_rates = shared(self._value_rates)

    def values(self, state: Params) -> Any:
        return self.read(state).G

    def _margins(self, state: Params) -> Any:
        found: Correlations = self.read(state)
        return self.tables.margins(found.G, found.S)

    def _value_rates(self, state: Params) -> Any:
        """eq. (4): `dG = U phi + |a|^2 VV phi`."""
        found: Correlations = self.read(state)
        phi, _ = self.tables.forces(found.G, found.S)
        return found.U * phi + self.rate * found.pushed(phi)

    def softmax_change(self, state: Params) -> Any:
        return abs(self.attention(state) - self.first_attention).max()


def residuals(margins: Any) -> Any:
    """g(y F) = 1 / (1 + exp(y F))."""
    xp = namespace(margins)
    return xp.exp(-xp.logaddexp(0.0, margins))


def of(view: View, task: WordCooccurrence) -> dict[str, Observable]:
    """The observables of a run."""
    classes = {"class": np.array(task.names)}
    means = view.membership / view.membership.sum(axis=1, keepdims=True)
    margins, weight, k = view.margins, view.weight, task.targets + 1
    words = word_names(task.targets, k + SHOWN)

    def losses(state: Params) -> Any:
        each = margins(state)
        return namespace(each).logaddexp(0.0, -each)

    found = {
        "loss": Observable(lambda s: weight @ losses(s), (), {}, "nats", "training loss"),
        "class_loss": Observable(
            lambda s: means @ losses(s), ("class",), classes, "nats", "loss of each class"
        ),
        "class_margin": Observable(
            lambda s: means @ margins(s), ("class",), classes, "", "mean margin y F of each class"
        ),
        "worst_margin": Observable(
            lambda s: margins(s).min(), (), {}, "", "smallest margin of a training sample"
        ),
        "gradient_sum": Observable(
            lambda s: view.membership @ (weight * residuals(margins(s))),
            ("class",),
            classes,
            "",
            "sum of g(y F) / n over each class",
        ),
        "value": Observable(view.values, ("word",), {}, "", "G(word) = a'W WV word"),
        "value_rate": Observable(
            lambda s: view.value_rates(s)[:k],
            ("relevant",),
            {"relevant": words[:k]},
            "per time",
            "dG/dt of targets and common word",
        ),
    }
    if isinstance(view, StateView):
        found |= _of_weights(view, words)
    return {name: replace(o, host=True) for name, o in found.items()}


def _of_weights(view: StateView, words: np.ndarray) -> dict[str, Observable]:
    shown = min(len(words), len(view.first_scores))
    words, k = words[:shown], len(words) - SHOWN
    few = shared(lambda state: view.read(state).first(shown))

    def part(name: str, one: str, two: str, label: str) -> Observable:
        coords = {one: words, two: words}
        return Observable(lambda s: getattr(few(s), name), (one, two), coords, "", label)

    def random_change(state: Params) -> Any:
        """Of scores with an irrelevant word: largest and root mean square change."""
        C = view.read(state).S - view.first_scores
        xp, rest = namespace(C), np.ones(view.first_scores.shape, dtype=bool)
        rest[:k, :k] = False
        size = abs(C) * rest
        return xp.stack([size.max(), xp.sqrt((size**2).sum() / rest.sum())])

    return {
        "neuron_norm": Observable(
            lambda s: view.read(s).U, (), {}, "", "U = |W'a|^2, the sum over neurons"
        ),
        "score": part("S", "key", "query", "scores WK'WQ"),
        "value_correlation": part("VV", "word1", "word2", "WV'WV"),
        "key_correlation": part("KK", "key1", "key2", "WK'WK"),
        "query_correlation": part("QQ", "query1", "query2", "WQ'WQ"),
        "softmax_change": Observable(
            view.softmax_change, (), {}, "probability", "largest change of an attention weight"
        ),
        "random_score_change": Observable(
            random_change,
            ("statistic",),
            {"statistic": np.array(["largest", "rms"])},
            "",
            "change of scores with an irrelevant word",
        ),
    }


def word_names(targets: int, count: int) -> np.ndarray:
    """`target 1`, ..., `common`, `word 1`, ..."""
    names = [f"target {j + 1}" for j in range(targets)]
    return np.array([*names, "common", *(f"word {i + 1}" for i in range(count))][:count])


# --- Marks.


def marks(view: View, task: WordCooccurrence) -> dict[str, Mark]:
    """The functions whose last zeros are the phases' times (see `stages`)."""
    margins, rates, k = view.margins, view.value_rates, task.targets
    signed = task.label[:, None] * task.relevant

    def lead(state: Params) -> Any:
        found = rates(state)
        return -found[k] - found[:k].max()

    def by_values(state: Params) -> Any:
        return (signed @ view.values(state)[: k + 1]).min()

    measures = {
        "t05": lead,
        "t1": lambda s: (view.membership @ margins(s)).min(),  # a sum has the sign of its mean
        "t1_all": lambda s: margins(s).min(),
        "t1_g": by_values,
    }
    return {name: Mark(measure, host=True) for name, measure in measures.items()}


# --- From a trajectory.


def gradient_ratio(
    sums: Float[np.ndarray, "*time class"], task: WordCooccurrence
) -> Float[np.ndarray, "*time"]:
    """R: `(sum of all S - 2 S_full) / max_j (S_full - sum of S_A over A that contain j)`."""
    S = np.asarray(sums)
    full = S[..., :1]
    rising = full - S[..., 1:] @ task.relevant[1:, :-1]
    with np.errstate(divide="ignore", invalid="ignore"):  # at the start no target need rise
        return (S.sum(axis=-1) - 2 * full[..., 0]) / rising.max(axis=-1)


def norm_integral(time: Float[np.ndarray, "time"], U: Any = 1.0) -> Float[np.ndarray, "time"]:
    """The integral of U dt, by Simpson's rule on the rows."""
    from scipy.integrate import cumulative_simpson

    U = np.broadcast_to(np.asarray(U, dtype=float), time.shape)
    return cumulative_simpson(U, x=time, initial=0.0)


def last_decade_slope(
    time: Float[np.ndarray, "time"], loss: Float[np.ndarray, "time"], U: Any = 1.0
) -> float:
    """The least-squares slope of 1/loss on the integral of U dt over the last decade of time."""
    x = norm_integral(time, U)
    last = time >= time[-1] / 10
    return float(np.polyfit(x[last], 1 / loss[last], 1)[0])


# --- The population.


@dataclass(frozen=True)
class Population:
    """Loss and error over every sentence of Def. 2.1, exact or by draws."""

    loss: float
    error: float
    worst: float
    """The smallest margin that was seen."""
    loss_error: float = 0.0
    """The standard error of `loss`; 0 where it is exact."""
    error_error: float = 0.0


def population(
    task: WordCooccurrence,
    margin: Callable[[Sentences], np.ndarray],
    seed: int = 0,
    draws: int = 200_000,
) -> Population:
    """Every sentence where they can be listed, else `draws` of them."""
    exact = task.count <= MOST
    sentences = task.population if exact else task.sample(draws, seed)
    margins = margin(sentences)
    return weighed(margins, sentences.weight, None if exact else sentences.kind)


def bag_population(
    task: WordCooccurrence,
    G: Float[np.ndarray, "word"],
    seed: int = 0,
    draws: int = 200_000,
    digits: int = 12,
) -> Population:
    """With uniform attention, where irrelevant words of one value (to so many digits) are alike:
    exact where their bags can be listed, which are far fewer than the sentences."""
    k = task.targets + 1
    value, size = np.unique(np.round(G[k:], digits), return_counts=True)
    if task.bag_count(len(size)) > MOST:
        return population(task, lambda X: X.label * G[X.token].sum(axis=1), seed, draws)
    bags = task.bags(size)
    F = (task.relevant @ G[:k])[bags.kind] + bags.times @ value
    return weighed(task.label[bags.kind] * F, bags.weight)


def margins_of(
    sentences: Sentences, dim: int, G: np.ndarray, S: np.ndarray, chunk: int = 50_000
) -> Float[np.ndarray, "sample"]:
    """y F of many sentences, with the attention of `chunk` of them at a time."""
    parts = (slice(at, at + chunk) for at in range(0, len(sentences), chunk))
    return np.concatenate(
        [Tables(sentences[part], float(np.sqrt(dim))).margins(G, S) for part in parts]
    )


def weighed(
    margins: Float[np.ndarray, "sample"],
    weight: Float[np.ndarray, "sample"],
    kind: Int[np.ndarray, "sample"] | None = None,
) -> Population:
    """Loss and error of weighted margins; with `kind`, drawn class by class, their errors too."""
    losses, wrong = np.logaddexp(0.0, -margins), margins <= 0
    if kind is None:
        return Population(float(weight @ losses), float(weight @ wrong), float(margins.min()))
    spread = []
    for values in (losses, wrong):
        parts = [(weight[kind == c].sum(), values[kind == c]) for c in np.unique(kind)]
        spread.append(float(np.sqrt(sum(w**2 * v.var() / len(v) for w, v in parts))))
    loss, error = float(weight @ losses), float(weight @ wrong)
    return Population(loss, error, float(margins.min()), *spread)
