"""Eq. (1) and (2) written out from their definitions, and their exact derivatives.

Nothing here uses the model's own code: words are one-hot columns, the softmax is taken place by
place, and derivatives are complex steps, which have no cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attnflow.models.value_mlp import ValueMLP
from attnflow.studies.cooccurrence.paper import paper
from attnflow.tasks.cooccurrence import Sentences, WordCooccurrence

SEEDS = (11, 12)
DIM, NEURONS = 4, 3
BLOCKS = ("W", "WV", "WK", "WQ")


@dataclass(frozen=True, eq=False)
class Point:
    """Weights, and a few sentences."""

    sentences: Sentences
    model: ValueMLP

    @classmethod
    def random(cls, sentences: Sentences, seed: int) -> Point:
        """Weights of order one, a = +-1."""
        rng, d = np.random.default_rng(seed), sentences.vocab
        shapes = ((NEURONS, DIM), (DIM, d), (DIM, d), (DIM, d))
        W, WV, WK, WQ = (rng.standard_normal(shape) for shape in shapes)
        return cls(sentences, ValueMLP(W, WV, WK, WQ, rng.permutation([1.0, -1.0, 1.0])))

    @cached_property
    def repeated(self) -> Point:
        """The same weights; samples without a target have their last word twice."""
        token = self.sentences.token.copy()
        none = self.sentences.kind == 2**self.sentences.targets - 1
        token[none, -2] = token[none, -1]
        return Point(replace(self.sentences, token=token), self.model)

    @cached_property
    def X(self) -> np.ndarray:
        """The one-hot words: sample x word x place."""
        return np.eye(self.sentences.vocab)[self.sentences.token].transpose(0, 2, 1)

    @cached_property
    def y(self) -> np.ndarray:
        return self.sentences.label

    @cached_property
    def p(self) -> np.ndarray:
        """The attention p_l: sample x place l x place h."""
        return attention(self.X, self.model.WK, self.model.WQ).transpose(0, 2, 1)

    @cached_property
    def F(self) -> np.ndarray:
        th = self.model
        return outputs(self.X, th.W, th.WV, th.WK, th.WQ, th.a)

    @cached_property
    def gy(self) -> np.ndarray:
        """g_i y_i / n."""
        return self.y / (1 + np.exp(self.y * self.F)) / len(self.y)

    @cached_property
    def phi(self) -> np.ndarray:
        """`(1/n) sum_i g_i y_i` times the attention on each word."""
        return np.einsum("i,idh,ilh->d", self.gy, self.X, self.p)

    @cached_property
    def moved(self) -> dict[str, np.ndarray]:
        """The flow's velocity of each weight: minus the gradient of eq. (2), by complex steps."""
        th = self.model
        weights: dict[str, Any] = {name: np.asarray(getattr(th, name)) for name in BLOCKS}
        return {name: self._slope(weights, name) for name in BLOCKS}

    def _slope(self, weights: dict[str, Any], name: str) -> np.ndarray:
        found = np.empty(weights[name].shape)
        for at in np.ndindex(found.shape):
            moved = weights[name].astype(complex)
            moved[at] += 1e-100j
            loss = losses(self.X, self.y, **{**weights, name: moved}, a=self.model.a).mean()
            found[at] = -np.imag(loss) / 1e-100
        return found


def attention(X: np.ndarray, WK: Any, WQ: Any) -> np.ndarray:
    """Softmax of `X'WK'WQ x_l / sqrt m`: sample x key x query."""
    score = np.einsum("idk,de,iel->ikl", X, WK.T @ WQ, X, optimize=True)
    e = np.exp(score / np.sqrt(len(WK)))
    return e / e.sum(axis=1, keepdims=True)


def outputs(X: np.ndarray, W: Any, WV: Any, WK: Any, WQ: Any, a: Any) -> np.ndarray:
    """Eq. (1): `sum_l sum_j a_j w_j' WV X softmax_l`."""
    return np.einsum("d,idk,ikl->i", a @ W @ WV, X, attention(X, WK, WQ), optimize=True)


def losses(X: np.ndarray, y: np.ndarray, W: Any, WV: Any, WK: Any, WQ: Any, a: Any) -> np.ndarray:
    """`log(1 + exp(-y F))` of each sample; its mean is eq. (2)."""
    return np.log(1 + np.exp(-y * outputs(X, W, WV, WK, WQ, a)))


@paper.once
def points(study: Any) -> list[Point]:
    """Few sentences of the config's length and targets, all irrelevant words different."""
    c = study.config
    law = WordCooccurrence(c.length, c.targets + 2, c.targets)
    law = WordCooccurrence(c.length, law.needed(law.step, "distinct"), c.targets)
    return [Point.random(law.training(law.step, "distinct", seed), seed) for seed in SEEDS]


def all_points(study: Any) -> list[Point]:
    """The same, and with a word twice in some samples."""
    return [*points(study), *(at.repeated for at in points(study))]
