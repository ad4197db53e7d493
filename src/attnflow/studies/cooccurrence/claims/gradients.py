"""Appendices B and C: the flow of the weights, and the closed system of their products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnflow.claims import (
    Claim,
    Control,
    Measurement,
    against,
    at_least,
    compared,
    every,
    identity,
)
from attnflow.studies.cooccurrence.claims.literal import Point, all_points, points
from attnflow.studies.cooccurrence.paper import paper

Formula = Callable[[Point], Any]


def places(at: Point) -> Iterator[tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
    """`(g_i y_i / n, X_i, p_l, x_l)` of every sample and place, as the sums of Appendix B run."""
    for gy, X, p in zip(at.gy, at.X, at.p, strict=True):
        for attended, x in zip(p, X.T, strict=True):
            yield gy, X, attended, x


def neurons(at: Point) -> np.ndarray:
    """`sum_j a_j w_j`."""
    return np.sum([a * w for a, w in zip(at.model.a, at.model.W, strict=True)], axis=0)


def _row(
    id: str,
    statement: str,
    printed: Formula,
    measured: Formula,
    name: str,
    other: Formula | None = None,
    **keys: Any,
) -> Claim:
    """A printed formula against complex steps; without `other` the control repeats a word."""

    def measure(study) -> Measurement:
        if other is not None:
            return identity(
                over=all_points(study),
                predicted=printed,
                measured=measured,
                control=Control(name, other),
            )
        control = Control(
            name,
            predicted=lambda at: printed(at.repeated),
            measured=lambda at: measured(at.repeated),
        )
        return identity(over=points(study), predicted=printed, measured=measured, control=control)

    measure.__doc__ = statement
    return paper.claim(id, **keys)(measure)


# --- Appendix B.


def neuron_update(at: Point, signed: bool = True) -> np.ndarray:
    total = sum(gy * at.model.WV @ X @ p for gy, X, p, _ in places(at))
    return np.array([(a if signed else 1.0) * total for a in at.model.a])


def value_update(at: Point) -> np.ndarray:
    return sum(gy * np.outer(neurons(at), X @ p) for gy, X, p, _ in places(at))  # type: ignore


def key_update(at: Point, centred: bool = True) -> np.ndarray:
    u, th = neurons(at), at.model
    found = np.zeros_like(th.WK)
    for gy, X, p, x in places(at):
        values = u @ th.WV @ X
        spread = p * (values - centred * (values @ p))
        found += gy * np.outer(th.WQ @ x, X @ spread) / np.sqrt(len(th.WK))
    return found


def query_update(at: Point, centred: bool = True) -> np.ndarray:
    u, th = neurons(at), at.model
    found = np.zeros_like(th.WQ)
    for gy, X, p, x in places(at):
        values = u @ th.WV @ X
        spread = (values - centred * (values @ p)) * p
        found += gy * np.outer(th.WK @ X @ spread, x) / np.sqrt(len(th.WK))
    return found


neuron_line = _row(
    "App B (neurons)",
    r"$\frac{\partial w_j}{\partial t} = \frac 1n \sum_i g_i y_i \sum_l a_j V^{(i)} p_l^{(i)}$.",
    neuron_update,
    lambda at: at.moved["W"],
    "without the neuron's own sign",
    lambda at: neuron_update(at, signed=False),
)
value_line = _row(
    "App B (values)",
    r"$\frac{\partial W_V}{\partial t} = \frac 1n \sum_i g_i y_i \sum_l \sum_j a_j w_j"
    r" (X^{(i)} p_l^{(i)})^\top$.",
    value_update,
    lambda at: at.moved["WV"],
    "uniform attention",
    lambda at: sum(gy * np.outer(neurons(at), X.mean(axis=1)) for gy, X, _, _ in places(at)),  # type: ignore
)
key_line = _row(
    "App B (keys)",
    r"$\frac{\partial W_K}{\partial t} = \frac{1}{n\sqrt m} \sum_i g_i y_i \sum_l \sum_j a_j q_l"
    r" p_l^\top \mathrm{diag}(w_j^\top V - w_j^\top V p_l) X^\top$.",
    key_update,
    lambda at: at.moved["WK"],
    "without the mean of the values",
    lambda at: key_update(at, centred=False),
)
query_line = _row(
    "App B (queries)",
    r"$\frac{\partial W_Q}{\partial t} = \frac{1}{n\sqrt m} \sum_i g_i y_i \sum_l \sum_j a_j K"
    r" \mathrm{diag}(V^\top w_j - w_j^\top V p_l) p_l x_l^\top$.",
    query_update,
    lambda at: at.moved["WQ"],
    "without the mean of the values",
    lambda at: query_update(at, centred=False),
)


# --- Appendix C: what is measured is the product rule on the exact velocities.


def neuron_value_rate(at: Point) -> np.ndarray:
    return at.moved["W"] @ at.model.WV + at.model.W @ at.moved["WV"]


def score_rate(at: Point) -> np.ndarray:
    return at.moved["WK"].T @ at.model.WQ + at.model.WK.T @ at.moved["WQ"]


def self_rate(name: str) -> Formula:
    def rate(at: Point) -> np.ndarray:
        w, v = getattr(at.model, name), at.moved[name]
        return v @ w.T + w @ v.T if name == "W" else v.T @ w + w.T @ v

    return rate


def equation_6(at: Point, own: bool = True) -> np.ndarray:
    th = at.model
    found = np.zeros((len(th.W), at.X.shape[1]))
    for gy, X, p, _ in places(at):
        found += gy * np.outer(th.W @ th.W.T @ th.a, X @ p)
        found += own * gy * np.outer(th.a, th.WV.T @ th.WV @ X @ p)
    return found


def equation_7(at: Point, halves: tuple[bool, bool] = (True, True)) -> Any:
    """`[nu, mu]`: key nu, query mu."""
    th = at.model
    return halves[0] * th.WK.T @ query_update(at) + halves[1] * (th.WQ.T @ key_update(at)).T


def neuron_correlation(at: Point, half: bool = False) -> np.ndarray:
    th = at.model
    response = sum(gy * th.W @ th.WV @ X @ p for gy, X, p, _ in places(at))
    return np.outer(response, th.a) + (not half) * np.outer(th.a, response)


equation_6_row = _row(
    "eq 6",
    r"$\frac{\partial w_{j}^\top W_V\mu}{\partial t} = \frac 1n\sum_i g_i y_i \sum_l \sum_{j'}"
    r" a_{j'} \langle w_j, w_{j'}\rangle (X p_l)^\top\mu + \frac 1n\sum_i g_i y_i \sum_l a_j"
    r" p_l^\top V^\top W_V\mu$.",
    equation_6,
    neuron_value_rate,
    "without the motion of the neurons",
    lambda at: equation_6(at, own=False),
)
equation_7_row = _row(
    "eq 7",
    r"Scores move as $\nu^\top W_K^\top \dot W_Q\mu + \nu^\top \dot W_K^\top W_Q\mu$ with the"
    r" updates of Appendix B, which is the printed pair of sums.",
    equation_7,
    score_rate,
    "keys alone",
    lambda at: equation_7(at, (False, True)),
)
neuron_correlation_row = _row(
    "App C (neuron correlation)",
    r"$\frac{\partial\langle w_j, w_k\rangle}{\partial t} = \frac 1n\sum_i g_i y_i\sum_l (a_k"
    r" w_j^\top V p_l + a_j w_k^\top V p_l)$.",
    neuron_correlation,
    self_rate("W"),
    "one of the two sums",
    lambda at: neuron_correlation(at, half=True),
)


# --- The compact forms: one place l(i, mu) of each word in each sample.


def samples_with(at: Point, *words: int) -> Iterator[tuple[int, list[int]]]:
    """Samples that contain the words, with the (first) place of each."""
    for i, X in enumerate(at.X):
        if all(X[w].any() for w in words):
            yield i, [int(np.argmax(X[w])) for w in words]


def compact_values(at: Point) -> np.ndarray:
    G = neurons(at) @ at.model.WV
    phi = np.zeros(at.X.shape[1])
    for mu in range(len(phi)):
        for i, (place,) in samples_with(at, mu):
            phi[mu] += at.gy[i] * at.p[i, :, place].sum()
    return np.outer(G, phi) + np.outer(phi, G)


def compact_queries(at: Point) -> np.ndarray:
    th, u = at.model, neurons(at)
    half = np.zeros((at.X.shape[1],) * 2)
    for mu in range(len(half)):
        for i, (place,) in samples_with(at, mu):
            values, p = u @ th.WV @ at.X[i], at.p[i, place]
            half[:, mu] += at.gy[i] * th.WQ.T @ th.WK @ at.X[i] @ ((values - values @ p) * p)
    return (half + half.T) / np.sqrt(len(th.WK))


def compact_keys(at: Point) -> np.ndarray:
    th, G = at.model, neurons(at) @ at.model.WV
    half = np.zeros((len(G),) * 2)
    for mu in range(len(half)):
        for i, (place,) in samples_with(at, mu):
            p, Q = at.p[i], th.WQ @ at.X[i]
            half[:, mu] += at.gy[i] * th.WK.T @ Q @ (p[:, place] * (G[mu] - p @ (G @ at.X[i])))
    return (half + half.T) / np.sqrt(len(th.WK))


def compact_scores(at: Point) -> np.ndarray:
    """The four sums of Lemma C.4: own key, other keys, own query, other queries."""
    th, G = at.model, neurons(at) @ at.model.WV
    KK, QQ = th.WK.T @ th.WK, th.WQ.T @ th.WQ
    found = np.zeros((len(G),) * 2)
    for mu in range(len(G)):
        for i, (l,) in samples_with(at, mu):
            words = at.sentences.token[i]
            spread = (G[words] - at.p[i, l] @ G[words]) * at.p[i, l]
            for place, word in enumerate(words):  # queries of mu: every key of the sample
                found[:, mu] += at.gy[i] * KK[:, word] * spread[place]
    for nu in range(len(G)):
        for i, (h,) in samples_with(at, nu):
            words = at.sentences.token[i]
            lead = at.p[i, :, h] * (G[nu] - at.p[i] @ G[words])
            found[nu] += at.gy[i] * QQ[:, words] @ lead  # keys nu: every query of the sample
    return found / np.sqrt(len(th.WK))


def split_response(at: Point) -> np.ndarray:
    """Lemma C.1: the part of its own norms, and epsilon."""
    th, v = at.model, at.model.WV.T @ at.model.WV
    norms = np.sum(th.W**2, axis=1)
    others = (th.W @ th.W.T - np.diag(norms)) @ th.a
    found = np.zeros((len(th.W), len(v)))
    for mu in range(len(v)):
        for i, (place,) in samples_with(at, mu):
            mass = at.gy[i] * at.p[i, :, place].sum()
            found[:, mu] += mass * (th.a * (norms + v[mu, mu]) + others)
        for i, words in enumerate(at.sentences.token):
            mass = at.p[i].sum(axis=0) * (words != mu)
            found[:, mu] += at.gy[i] * th.a * (mass @ v[words, mu])
    return found


REPEATED = "a sample with a word twice"

lemma_c1 = _row(
    "Lemma C.1",
    r"$\frac{\partial w_j^\top W_V\mu}{\partial t} = \frac 1n\sum_{i:\mu\in X^{(i)}} g_i y_i"
    r" \sum_l a_j (\|w_j\|^2 + \|v(\mu)\|^2) p_{q_l,k_\mu} + \varepsilon$ with the two sums of"
    r" $\varepsilon$, for every neuron.",
    split_response,
    neuron_value_rate,
    REPEATED,
    reading=r"$j\in[m]$ is $j\in[m_1]$, and $a_j$, $w_j$ are those of the $j_1$ on the left",
)
lemma_c3 = _row(
    "Lemma C.3",
    r"$\frac{\partial \nu^\top W_V^\top W_V\mu}{\partial t} = \frac 1n\sum_{i:\mu\in X^{(i)}} g_i"
    r" y_i \sum_l \sum_j a_j \nu^\top W_V^\top w_j p_{q_l,k_\mu}$ and the same with $\mu$ and"
    r" $\nu$ exchanged.",
    compact_values,
    self_rate("WV"),
    REPEATED,
    reading=r"the left side lacks a transpose: $\nu W_V^\top$ is $\nu^\top W_V^\top$",
)
lemma_c4_queries = _row(
    "Lemma C.4 (queries)",
    r"$\frac{\partial \nu^\top W_Q^\top W_Q\mu}{\partial t} = \frac{1}{n\sqrt m}"
    r"\sum_{i:\mu\in X^{(i)}} g_i y_i\sum_j a_j \nu^\top W_Q^\top K \mathrm{diag}(V^\top w_j -"
    r" w_j^\top V p_{l(i,\mu)}) p_{l(i,\mu)}$ and the same with $\mu$ and $\nu$ exchanged.",
    compact_queries,
    self_rate("WQ"),
    REPEATED,
)
lemma_c4_keys = _row(
    "Lemma C.4 (keys)",
    r"$\frac{\partial \nu^\top W_K^\top W_K\mu}{\partial t} = \frac{1}{n\sqrt m}"
    r"\sum_{i:\mu\in X^{(i)}} g_i y_i\sum_l\sum_j a_j \nu^\top W_K^\top q_l p_{q_l,k_\mu}"
    r" (w_j^\top v(\mu) - w_j^\top V p_l)$ and the same with $\mu$ and $\nu$ exchanged.",
    compact_keys,
    self_rate("WK"),
    REPEATED,
)
lemma_c4_scores = _row(
    "Lemma C.4 (scores)",
    r"$\frac{\partial \nu^\top W_K^\top W_Q\mu}{\partial t}$ is the sum over samples with $\mu$ of"
    r" its query's pull on every key (that of $\nu$ itself and the others), and over samples with"
    r" $\nu$ of its key's on every query.",
    compact_scores,
    score_rate,
    REPEATED,
)


@paper.claim("Lemma C.2")
@against("the words of U alone", identity, over=all_points)
def lemma_c2(study, at: Point, right: bool):
    r"""$\frac{\partial\langle w_j, w_k\rangle}{\partial t}$ is the sum over the places of words in
    a set $U$ and over the other places of $\frac 1n\sum_i g_i y_i\sum_l (a_k w_j^\top V_{l'}
    p_{l,l'} + a_j w_k^\top V_{l'} p_{l,l'})$, for any set of words."""
    th, k = at.model, at.sentences.targets + 1
    response = np.zeros(len(th.W))
    for i, words in enumerate(at.sentences.token):
        mass = at.p[i].sum(axis=0)
        for chosen in (words < k, words >= k) if right else (words < k,):
            response += at.gy[i] * th.W @ th.WV[:, words] @ (mass * chosen)
    return np.outer(response, th.a) + np.outer(th.a, response), self_rate("W")(at)


@paper.claim("ours: repeated words")
def repeated_words(study) -> Measurement:
    """The compact formulas of Lemmas C.1, C.3 and C.4 read one place per word: they are wrong by
    several per cent or more where a sample has an irrelevant word twice, which Def. 2.1 allows."""
    formulas = (
        (split_response, neuron_value_rate),
        (compact_values, self_rate("WV")),
        (compact_queries, self_rate("WQ")),
        (compact_keys, self_rate("WK")),
        (compact_scores, score_rate),
    )

    def error(repeats: bool) -> list[float]:
        found = []
        for printed, truth in formulas:
            where = [at.repeated if repeats else at for at in points(study)]
            pairs = [(printed(at), truth(at)) for at in where]
            found.append(max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs))
        return found

    return at_least(
        bound=0.02,
        measured=error(repeats=True),
        control=Control("all words of a sample different", error(repeats=False)),
        note="error over the largest entry: C.1, C.3, C.4 queries, keys, scores",
    )


@paper.claim(
    "eq 4",
    reading=r"$a_{j_1}$ in the last sum stands for nothing: Def. E.18 has the sum without it,"
    r" $\sum_j a_j^2 = m_1$ being taken already",
)
@against("summed over neurons with the stray sign", identity, over=all_points)
def equation_4(study, at: Point, right: bool):
    r"""$\frac{\partial G(\mu)}{\partial t} = \frac 1n\sum_{i:\mu\in X^{(i)}} g_i y_i\sum_l
    p_{q_l,k_\mu} \sum_{j,k} a_j a_k\langle w_j, w_k\rangle + \frac{m_1}{n}\sum_i g_i y_i\sum_l
    p_l^\top V^\top W_V\mu$."""
    th = at.model
    U = float(np.sum(np.outer(th.a, th.a) * (th.W @ th.W.T)))
    m1 = len(th.a) if right else th.a.sum()
    found = sum(gy * (U * X @ p + m1 * p @ X.T @ th.WV.T @ th.WV) for gy, X, p, _ in places(at))
    return found, th.a @ neuron_value_rate(at)


@paper.claim("eq 5")
@against("without the number of neurons", identity, over=all_points)
def equation_5(study, at: Point, right: bool):
    r"""$\frac{\partial}{\partial t}\sum_{j,k}\langle a_j w_j, a_k w_k\rangle = \frac{2m_1}{n}
    \sum_i g_i y_i F_i$."""
    a = at.model.a
    return 2 * (len(a) if right else 1) * at.gy @ at.F, a @ self_rate("W")(at) @ a


@paper.claim("Def E.18")
def sub_network(study) -> Measurement:
    r"""$\frac{\partial G(\mu)}{\partial t} = \sum_j a_j w_j \frac{\partial W_V\mu}{\partial t} +
    a_j\frac{\partial w_j}{\partial t}W_V\mu$: the part of the values and the part of the neurons
    are the two sums of its last line."""

    def sums(at: Point) -> list[Any]:
        mass: Any = sum(gy * X @ p for gy, X, p, _ in places(at))
        V, u = at.model.WV, neurons(at)
        return [u @ u * mass, len(at.model.a) * V.T @ (V @ mass)]

    def parts(at: Point) -> list[Any]:
        return [neurons(at) @ at.moved["WV"], at.model.a @ at.moved["W"] @ at.model.WV]

    def one(which: int) -> Measurement:
        def both(at: Point, right: bool) -> tuple[Any, Any]:
            return sums(at)[which if right else 1 - which], parts(at)[which]

        return compared(identity, "the other sum", both, over=all_points(study))

    return every(values=one(0), neurons=one(1))
