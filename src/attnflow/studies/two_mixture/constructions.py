"""Hand-made weights for eq. (1): checked on every sample, exactly (Lemma 6.1).

A construction is the neurons `w[head, signal]`, the scores `S[head, key, query]` and the bias;
`examine` enumerates the samples and says which fail. The weights WK, WQ of any width give such
scores (`Construction.of`), and every S comes from some (WK = I, WQ = S).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from attnflow._errors import InputError, positive, shown, whole
from attnflow.models.two_head import TwoHeadClassifier, tables
from attnflow.tasks.mixture import MixtureClassification


@dataclass(frozen=True, eq=False)
class Construction:
    """Weights to be checked; coordinates are c_1 ... c_K, v_1 ... v_K.

    `relu=False` leaves the ReLUs out, `f = H_+ - H_-`, as the transformer printed in the proof of
    Lemma 6.1 does.
    """

    w: Any  # head x signal
    S: Any  # head x key x query
    bias: float = 0.5
    relu: bool = True
    name: str = "construction"

    def __post_init__(self) -> None:
        for field in ("w", "S"):
            try:
                value = np.asarray(getattr(self, field), dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(field, f"{shown(getattr(self, field))}; numbers") from None
            object.__setattr__(self, field, value)
        D = self.w.shape[1] if self.w.ndim == 2 else 0
        if self.w.ndim != 2 or self.w.shape[0] != 2 or D < 4 or D % 2:
            raise InputError(
                "w",
                f"shape {self.w.shape}; 2 heads x 2K signals (c_1 ... c_K, v_1 ... v_K), K >= 2",
            )
        if self.S.shape != (2, D, D):
            raise InputError(
                "S", f"shape {self.S.shape}; 2 heads x {D} keys x {D} queries, as w has {D} signals"
            )
        if not (np.isfinite(self.w).all() and np.isfinite(self.S).all()):
            raise InputError("w, S", "a NaN or infinite weight; weights are finite")
        if not np.isfinite(self.bias):
            raise InputError("bias", f"{shown(self.bias)}; a finite number")

    @property
    def groups(self) -> int:
        return self.w.shape[1] // 2

    @classmethod
    def of(cls, model: TwoHeadClassifier, name: str = "weights") -> Construction:
        """Trained or hand-made WK and WQ."""
        return cls(np.asarray(model.w), np.asarray(model.scores), model.bias, name=name)

    def predictions(self, task: MixtureClassification) -> Float[np.ndarray, "sample"]:
        """f of every sample of the task."""
        if task.groups != self.groups:
            raise InputError(
                "task",
                f"K = {task.groups}; the construction has {2 * self.groups} signals, "
                f"that is K = {self.groups}",
            )
        t = tables(task.population)
        gates = None if self.relu else np.ones((2, len(task.population)))
        return np.asarray(t.predictions(self.w, self.S, self.bias, gates))


@dataclass(frozen=True)
class Examination:
    """The outcome of an exact enumeration."""

    name: str
    groups: int
    length: int
    samples: int
    smallest: float
    """min y f(X) over all samples."""
    accuracy: float
    """The probability of y f(X) > 0."""
    failing: tuple[str, ...]
    """The samples with y f(X) <= 0, in words: `c1 -v1 +v2`."""

    @property
    def solves(self) -> bool:
        return not self.failing

    def __repr__(self) -> str:
        verdict = "solves" if self.solves else f"fails on {len(self.failing)} of"
        return (
            f"{self.name}: {verdict} the {self.samples} samples of K = {self.groups}, "
            f"L = {self.length}; min yf {self.smallest:.4g}, accuracy {self.accuracy:.4g}"
        )


def examine(construction: Construction, length: int = 3, *, rounding: float = 1e-9) -> Examination:
    """Every sample of K groups and L tokens, exactly.

    `y f` must exceed `rounding`: that is what is left where both heads agree.

    >>> examine(corrected(groups=2))
    corrected: solves the 8 samples of K = 2, L = 3; min yf 0.4607, accuracy 1
    """
    task = MixtureClassification(construction.groups, length)
    population = task.population
    yf = population.label * construction.predictions(task)
    wrong = yf <= rounding
    names = np.array(population.names())
    return Examination(
        construction.name,
        task.groups,
        task.length,
        len(population),
        float(yf.min()),
        float(1 - population.weight[wrong].sum()),
        tuple(names[wrong].tolist()),
    )


def printed(groups: int, scale: float = 10.0) -> Construction:
    """Lemma 6.1 as printed: `S_+- = C (sum c c^T + v v^T) +- 2C sum v c^T`, readout sum v."""
    K, C = whole("groups", groups, least=2), positive("scale", scale)
    same, cross = _blocks(K)
    w = np.tile(np.repeat([0.0, 1.0], K), (2, 1))
    S = np.stack([C * same + 2 * C * cross, C * same - 2 * C * cross])
    return Construction(w, S, relu=False, name="printed")


def transposed(groups: int, scale: float = 10.0) -> Construction:
    """The printed one with key and query exchanged: `c v^T` in place of `v c^T`."""
    base = printed(groups, scale)
    return Construction(base.w, base.S.swapaxes(1, 2), relu=False, name="transposed")


def resigned(groups: int, scale: float = 10.0) -> Construction:
    """The printed one with the second head added instead of subtracted."""
    base = printed(groups, scale)
    w = base.w * np.array([[1.0], [-1.0]])
    return Construction(w, base.S, relu=False, name="second sign changed")


def corrected(groups: int, scale: float = 1.0, bias: float = 0.5) -> Construction:
    """Inside eq. (1), ReLUs and all: read the group token, with the minus sign in the plus head.

    `w_+ = w_- = sum c_k`, `S_+- = C sum (c c^T + v v^T) -+ 2C sum v_k c_k^T`. The signal queries
    give both heads the same, so that y f > 0 for every C > 0, K and L.
    """
    K, C = whole("groups", groups, least=2), positive("scale", scale)
    same, cross = _blocks(K)
    w = np.tile(np.repeat([1.0, 0.0], K), (2, 1))
    S = np.stack([C * same - 2 * C * cross, C * same + 2 * C * cross])
    return Construction(w, S, bias, name="corrected")


def _blocks(K: int) -> tuple[Any, Any]:
    """`sum c c^T + v v^T` and `sum v_k c_k^T` (key v, query c)."""
    cross = np.zeros((2 * K, 2 * K))
    cross[K:, :K] = np.eye(K)
    return np.eye(2 * K), cross
