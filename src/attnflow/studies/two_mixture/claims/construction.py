"""Lemma 6.1: some transformer solves K mixtures; the printed one does not."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_least, corrected, equal, every, identity, sign
from attnflow.studies.two_mixture import constructions
from attnflow.studies.two_mixture.constructions import examine
from attnflow.studies.two_mixture.errata import CONSTRUCTION
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification


def least(make, scale: float = 1.0) -> list[float]:
    return [examine(make(K, scale), L).smallest for K in (2, 3, 4, 8) for L in (3, 4)]


@paper.claim("Lemma 6.1")
def a_transformer_exists(study) -> Measurement:
    r"""There is a transformer of (1), ReLUs included, with $y f > 0$ on every sample of K mixtures:
    readout $\sum c_k$, $S_\pm = C\sum(c_k c_k^\top + v_k v_k^\top) \mp 2C\sum v_k c_k^\top$."""
    printed, right, note = constructions.printed, constructions.corrected, "several K and L"
    scales = {"one": 1.0, "hard": 1000.0}  # at C = 1000 each query reads one token
    return every(
        **{
            name: sign(
                predicted=1,
                measured=least(right, C),
                margin=0.1,
                control=Control("as printed", least(printed, C)),
                note=f"C = {C:g}, {note}",
            )
            for name, C in scales.items()
        }
    )


@paper.claim("Lemma 6.1", part="proof-step")
def the_printed_transformer(study) -> Measurement:
    r"""The transformer that the proof prints has $y f > 0$ on every sample as C grows."""
    return corrected(
        printed=sign(
            predicted=1, measured=least(constructions.printed, 10.0), note="f = +1 always"
        ),
        right=at_least(bound=0.9998, measured=least(constructions.corrected, 10.0)),
        text=r"S_\pm = C\sum(c c^\top + v v^\top) \pm 2C\sum v_k c_k^\top, readout \sum v_k, "
        r"f = H_+ - H_-",
        correct=r"S_\pm = C\sum(c c^\top + v v^\top) \mp 2C\sum v_k c_k^\top, readout \sum c_k",
        erratum=CONSTRUCTION,
    )


@paper.claim("ours: repairs of Lemma 6.1")
def repairs(study) -> Measurement:
    """As printed f = +1 everywhere; exchanging key and query gives f = -1; changing the second
    head's sign solves L = 3 but only 3/4 of L = 4: neither is the missing transpose."""

    def outcome(make, length: int = 3) -> list[float]:
        found = examine(make(2), length)
        return [found.accuracy, found.smallest]

    made = (constructions.printed, constructions.transposed, constructions.resigned)
    signs = ((1, 1), (1, 1), (1, -1))
    return every(
        limit=equal(
            predicted=[[1 / 2, -1], [1 / 2, -1], [1, 1], [3 / 4, -1]],
            measured=[*map(outcome, made), outcome(constructions.resigned, 4)],
            rtol=1e-3,
            control=Control(
                "all of them at L = 4",
                measured=[*(outcome(make, 4) for make in made), outcome(constructions.resigned, 3)],
            ),
        ),
        before=equal(
            predicted=[by_hand(k == 1, signs[k], 2) for k in range(3)],
            measured=[make(3, 0.4).predictions(MixtureClassification(3, 4)) for make in made],
            rtol=1e-12,
            control=Control(r"C in place of 2C", [by_hand(k == 1, signs[k], 1) for k in range(3)]),
        ),
    )


def by_hand(turned: bool, signs: tuple[int, int], cross: float) -> np.ndarray:
    """f of the printed transformer, no ReLUs, at K = 3, L = 4 and C = .4, token by token."""
    K, C, e = 3, 0.4, np.eye(6)
    found = []
    for X in MixtureClassification(K, 4).population.inputs:
        f = 0.0
        for head, way in zip((1, -1), signs, strict=True):
            link = np.einsum("ki,kj->ij", e[K:], e[:K])  # key v_k, query c_k
            S = C * np.einsum("ki,kj->ij", e, e) + head * cross * C * (link.T if turned else link)
            for x in X:
                p = np.exp(X @ S @ x)
                f += head * way * sum((X[:, K:] * (p / p.sum())[:, None]).ravel())
        found.append(f)
    return np.array(found)


@paper.claim("ours: the size of the repaired construction", part="constant")
def size_of_the_construction(study) -> Measurement:
    r"""min y f of the repaired construction is
    $e^C/(e^C + e^{-2C} + L - 2) - e^C/(e^C + e^{2C} + L - 2)$ for every K: .461 at C = 1, L = 3."""

    Ks = (2, 3, 5)

    def formula(case: tuple[float, int], tokens: int = 2) -> list[float]:
        C, L = case
        near, far = (np.exp(C) / (np.exp(C) + np.exp(s * C) + L - tokens) for s in (-2, 2))
        return [near - far] * len(Ks)

    return identity(
        over=[(C, L) for C in (0.5, 1.0, 3.0) for L in (3, 4)],
        predicted=formula,
        measured=lambda x: [examine(constructions.corrected(K, x[0]), x[1]).smallest for K in Ks],
        control=Control("L - 3 other signals", lambda case: formula(case, tokens=3)),
    )
