"""What is predicted: the max-margin law, its attention pattern, thresholds, and the n limit.

While attention is uniform the flow is logistic regression on bags of words. Its loss falls like
`1 / (gamma^2 U t)`, the gradients' shares tend to the dual weights of the largest margin, and
`G ~ w ln t` with w the shortest vector that classifies every sample with margin 1. Nothing here
solves a flow of the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from attnflow.observe.margin import Margin, largest_margin
from attnflow.tasks.cooccurrence import Sentences, WordCooccurrence

SAFE = 1e-9
"""A margin of the limit direction (which gives training samples 1) that counts as positive."""


@dataclass(frozen=True)
class MarginLaw:
    """The limit of late time: `loss = 1/(gamma2 U t)`, `G = w ln t`, gradients in `shares`."""

    gamma2: float
    gap: float
    """How far primal and dual certify gamma apart, relative."""
    shares: Float[np.ndarray, "class"]
    """The classes' shares of the gradient, in the limit."""
    relevant: Float[np.ndarray, "word"]
    """w of the targets and of the common word (last)."""
    irrelevant: Float[np.ndarray, "kind"]
    """w of the irrelevant words: by the class that they occur in (nan: it has none), or one by
    one."""

    @property
    def r_star(self) -> float:
        """`-dG(common) / max dG(target)`, in the limit."""
        return float(-self.relevant[-1] / self.relevant[:-1].max())


def class_law(task: WordCooccurrence, samples: int | None = None) -> MarginLaw:
    """The law where all irrelevant words are different (Assumption 2.3): 2^k variables.

    The samples of a class are alike, so each gets the same dual weight. A class's mean sample is
    its relevant words and a direction of its own, of length `sqrt(irrelevant words / samples)`.
    None is the limit of many samples, in which these vanish.
    """
    counts = np.full(len(task.classes), np.inf) if samples is None else task.counts(samples)
    own = np.diag(np.sqrt(task.irrelevant / counts))
    Z = task.label[:, None] * np.concatenate([task.relevant, own], axis=1)
    found = largest_margin(Z)
    relevant = _shortest(found, Z)[: task.targets + 1]
    irrelevant = task.label * found.weights / (counts * found.upper**2)
    irrelevant[task.irrelevant == 0] = np.nan
    return MarginLaw(found.upper**2, _gap(found), found.weights, relevant, irrelevant)


def sample_law(sentences: Sentences) -> MarginLaw:
    """The law of a training set, whichever words repeat: one variable per sample."""
    Z = sentences.label[:, None] * sentences.bags
    found = largest_margin(Z)
    w, k = _shortest(found, Z), sentences.targets + 1
    shares = sentences.membership @ found.weights
    return MarginLaw(found.upper**2, _gap(found), shares, w[:k], w[k:])


def closed_law(n: int, L: int) -> dict[str, float]:
    """gamma^2, R* and the share s of a single-target class for two targets, 1/2 and 1/6 each.

    `e1 = 2(L-3)/n, e2 = 12(L-2)/n, s = (10+2 e1)/(34+4 e1+e2), shares (1-2s, s, s, 0)`; it is the
    law as long as samples without a target are no support vectors, `w3 >= 1`.
    """
    e1, e2 = 2 * (L - 3) / n, 12 * (L - 2) / n
    s = (10 + 2 * e1) / (34 + 4 * e1 + e2)
    gamma2 = 3 + e1 - (10 + 2 * e1) ** 2 / (34 + 4 * e1 + e2)
    w3 = (4 * s - 1) / gamma2
    return {"gamma2": gamma2, "r_star": (4 * s - 1) / (1 - 3 * s), "share": s, "w3": w3}


def _shortest(found: Margin, Z: np.ndarray) -> np.ndarray:
    """w with `min Z w = 1`, from the dual."""
    return (found.weights @ Z) / found.upper**2


def _gap(found: Margin) -> float:
    return abs(found.upper - found.lower) / found.upper


# --- Generalisation.


def worst_margin(task: WordCooccurrence, law: MarginLaw) -> float:
    """The smallest margin of the limit direction over every sentence of the population.

    It is that of a negative one: those of a class that supports the margin have more places for
    irrelevant words than the positive ones, whose margin on the training set is 1 too.
    """
    outputs = task.relevant @ law.relevant + task.irrelevant * np.nanmax(law.irrelevant)
    return float(-outputs[1:].max())


def safe_samples(task: WordCooccurrence, most: int = 20_000) -> int | None:
    """The smallest n from which on every sentence is classified right in the limit direction.

    All irrelevant words of the training set are different. None where that never happens, or not
    within the first `most` admissible numbers.
    """
    return _from_on(task, lambda law: worst_margin(task, law) > SAFE, most)


def balanced_samples(task: WordCooccurrence, most: int = 20_000) -> int | None:
    """The smallest n from which on `R* > 1`, the lower inequality of Lemma 4.3 in the limit."""
    return _from_on(task, lambda law: law.r_star > 1 + SAFE, most)


def _from_on(task: WordCooccurrence, good: Callable[[MarginLaw], bool], most: int) -> int | None:
    if not good(class_law(task)):
        return None
    last, n = 0, task.step
    # What an irrelevant word weighs falls like 1/n: beyond four times the last failure none comes.
    while n <= max(4 * last, 40 * task.step):
        if n > most * task.step:
            return None
        if not good(class_law(task, n)):
            last = n
        n += task.step
    return last + task.step


def limit_error(task: WordCooccurrence, samples: int) -> float:
    """The share of sentences that the limit direction gets wrong, all training words different."""
    law = class_law(task, samples)
    sizes = task.counts(samples) * task.irrelevant
    bags = task.bags(sizes[sizes > 0])
    words = bags.times @ law.irrelevant[sizes > 0]
    margins = task.label[bags.kind] * ((task.relevant @ law.relevant)[bags.kind] + words)
    return float(bags.weight[margins <= SAFE].sum())


# --- Attention.


def attention_pattern(sentences: Sentences) -> Float[np.ndarray, "key query"]:
    """The limit of `(S - S(0)) / ((s0^2 sqrt m / (L U gamma^2)) ln^2 tau)`, up to its sign-free
    scale: `sum_i y_i share_i (w(key) - F_i / L)` over the samples with both words.

    With frozen uniform attention `dS = 2 s0^2 m A`, g_i tends to `share_i / (gamma^2 U t)` and G to
    `w ln t`, so that the time integral is `ln^2(tau) / 2` and the factor 2 cancels it.
    """
    Z = sentences.label[:, None] * sentences.bags
    found = largest_margin(Z)
    w = _shortest(found, Z)
    pull = sentences.label * found.weights
    both = (sentences.bags * pull[:, None]).T @ sentences.bags
    mean = sentences.bags @ w / sentences.length
    return w[:, None] * both - (sentences.bags * (pull * mean)[:, None]).T @ sentences.bags


def score_scale(s0: float, dim: int, length: int, U: float, gamma2: float, tau: float) -> float:
    """What the pattern is multiplied by to give C of Theorem 3.3, to leading logarithm."""
    return s0**2 * np.sqrt(dim) / (length * U * gamma2) * np.log(tau) ** 2


def norm_growth(rate: float, gamma2: float, U: float, loss: float) -> float:
    """By how much U has grown, relative: `|a|^2 ln^2(1/loss) / (gamma^2 U^2)`.

    By eq. (5) `dU/dt = 2 |a|^2 sum_i g_i y_i F_i / n`, where the mean of g tends to the loss and
    every support vector's margin to ln(1/loss).
    """
    return rate * np.log(1 / loss) ** 2 / (gamma2 * U**2)


# --- Many samples: two numbers.


@dataclass(frozen=True)
class TwoScalars:
    """`x = G(target)`, `z = -G(common)` for two targets, 1/2 and 1/6 each, n to infinity."""

    peak: float
    """When the loss of single-target sentences is largest."""
    rise: float
    """That loss over ln 2."""
    correct: float
    """When every class is right: `z = x`."""
    loss: float
    """The loss then."""
    x: float


def two_scalars(rtol: float = 1e-12) -> TwoScalars:
    """Solved by SciPy: `x' = g(2x-z)/2 - g(z-x)/6`, `z' = g(z-x)/3 + g(z)/6 - g(2x-z)/2`."""

    def rates(_: float, v: Any) -> list[float]:
        x, z = v
        both, single, none = (1 / (1 + np.exp(h)) for h in (2 * x - z, z - x, z))
        return [both / 2 - single / 6, single / 3 + none / 6 - both / 2]

    def lag(t: float, v: Any) -> float:
        speed = rates(t, v)
        return speed[1] - speed[0]

    def behind(_: float, v: Any) -> float:
        return v[1] - v[0]

    events: Any = [lag, behind]
    run = solve_ivp(rates, (0, 40), (0.0, 0.0), "DOP853", events=events, rtol=rtol, atol=1e-14)
    # The last ones: both functions may be zero at the start.
    (peak, correct), (top, end) = ([e[-1] for e in x] for x in (run.t_events, run.y_events))
    x, z = end
    loss = np.logaddexp(0, np.array([z - 2 * x, x - z, -z])) @ [1 / 2, 1 / 3, 1 / 6]
    rise = np.logaddexp(0, top[0] - top[1]) / np.log(2)
    return TwoScalars(float(peak), float(rise), float(correct), float(loss), float(x))
