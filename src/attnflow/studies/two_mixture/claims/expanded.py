"""Appendices E.5 to E.7: rates at uniform attention, sums of gradients, expanded updates.

Every display there adds the four conflicting samples without their weight 1/4 in the conditional
expectation of Algorithm 1. The displays are compared as identities in the self-scores and scores,
at random matrices that have the symmetries of Appendix C, so that no term is hidden by a zero.
Where the extracted text is torn (parts of E.5.1, E.5.3, E.6 and E.7.2) a display is read by the
pattern of its neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnflow.claims import Correction, Measurement, at_most, claim, corrected, equal
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import (
    C1,
    C2,
    CONFLICTING,
    V1,
    V2,
    both_heads,
    derivative,
    force,
    forward,
    lifted,
    neurons_of,
    past_gates,
    said,
    turned,
)

BIAS = 4.0
"""Keeps the gates of the conflicting samples on at the random points (Lemma E.6)."""

SNIPPET_WEIGHTS = """
import numpy as np
gamma, a, e = 0.31, 0.87, np.eye(4)                       # c1, c2, v1, v2
w = np.array([gamma, gamma, a, a])
X = np.array([[e[k], s * e[2 + k], -s * e[3 - k]] for k in (0, 1) for s in (1, -1)])
y = np.array([1, -1, 1, -1])                              # the four conflicting samples
def loss(S):                                              # gates on, minus head: v -> -v
    out = 0
    for sign in (1, -1):
        J = np.diag([1, 1, sign, sign])
        z = np.exp(np.einsum("nka,ab,nqb->nkq", X, J @ S @ J, X))
        out = out + sign * np.einsum("a,nka,nkq->n", J @ w, X, z / z.sum(1, keepdims=True))
    return np.log1p(np.exp(-y * out)).mean()              # the mean has the weight 1/4
M = np.array([[-np.imag(loss(1e-150j * np.outer(p, q))) / 1e-150 for q in e] for p in e]) / 2
printed = 1 / 3 * 0.5 * 2 * (2 / 3 * gamma)               # (1/3) g 2 (2/3 w.c1), of M = -dL/dS
print("c1 v1", M[0, 2], "printed", printed)
assert np.isclose(M[0, 2], printed / 4)
"""


# --- Random points with the symmetries of Appendix C.


@dataclass(frozen=True, eq=False)
class Point:
    """Scores and self-scores at random, alike between groups, mirrored between heads."""

    gamma: float
    a: float
    S: np.ndarray
    A: np.ndarray
    B: np.ndarray

    @property
    def w(self) -> np.ndarray:
        return neurons_of(self.gamma, self.a)

    @functools.cached_property
    def p(self) -> np.ndarray:
        """p[sample, key, query] of the plus head."""
        return forward(self.w, both_heads(self.S), CONFLICTING, BIAS)[0][0]

    @functools.cached_property
    def g(self) -> float:
        """g of the conflicting samples, all the same by symmetry."""
        f = forward(self.w, both_heads(self.S), CONFLICTING, BIAS)[2]
        return float(1 / (1 + np.exp(CONFLICTING.label[0] * f[0])))

    @functools.cached_property
    def M(self) -> np.ndarray:
        """-dL/dS of the plus head, from the loss alone by complex steps."""

        def value(S: np.ndarray) -> np.ndarray:
            return common.loss(self.w, np.stack([S, both_heads(self.S)[1]]), CONFLICTING, BIAS)

        return -derivative(value, self.S)

    @functools.cached_property
    def uniform(self) -> np.ndarray:
        """M with 1/3 in place of p."""
        return force(self.w, both_heads(self.S), CONFLICTING, BIAS, uniform=True)[1][0]

    def rates(self, M: np.ndarray) -> dict[str, np.ndarray]:
        S, A, B = self.S, self.A, self.B
        return {"S": M @ B + A @ M, "A": M @ S.T + S @ M.T, "B": M.T @ S + S.T @ M}


@functools.lru_cache(maxsize=8)
def points() -> tuple[Point, ...]:
    rng, made = np.random.default_rng(17), []
    for _ in range(3):
        S = lifted(*(0.4 * rng.standard_normal((2, 2)) for _ in range(2)))
        A, B = (lifted(*(x @ turned(x) for x in rng.standard_normal((2, 2, 2)))) for _ in range(2))
        made.append(Point(float(rng.uniform(0.2, 0.6)), float(rng.uniform(0.5, 1.0)), S, A, B))
    return tuple(made)


def _weighted(
    printed: Callable[[Point], float], measured: Callable[[Point], float], formula: str
) -> Measurement:
    """The printed sum against the measured rate, which is a quarter of it."""
    p, m = (np.array([f(x) for x in points()]) for f in (printed, measured))
    return corrected(
        printed=equal(p, m, rtol=1e-11),
        right=equal(p / 4, m, rtol=1e-11),
        correction=Correction(
            printed=formula,
            corrected="a quarter of it: E[. | X_{k,s,-s}] gives each of the four samples the "
            "weight 1/4",
            cause="constant",
            snippet=SNIPPET_WEIGHTS,
        ),
    )


# --- Appendix E.5: rates at T1, that is with p = 1/3.


def _d(G: np.ndarray, row: int, one: int, other: int) -> float:
    return float(G[row, one] - G[row, other])


HIGH, LOW = 2 / 3, -1 / 3
"""w.c - w.Xp and -w.Xp over w.c, for a conflicting sample under uniform attention."""

AT_T1: dict[str, tuple[str, str, int, int, Callable[[Point], float]]] = {
    "App E.5.1 (c1 v1)": (
        "(1/3)g 2(v1'Bv1 - v1'Bv2)(2/3 w.c1) + (1/3)g 2(c1'Ac1 - c1'Ac2)(2/3 w.c1)",
        "S",
        C1,
        V1,
        lambda x: 2 * _d(x.B, V1, V1, V2) * HIGH + 2 * _d(x.A, C1, C1, C2) * HIGH,
    ),
    "App E.5.1 (c1 c1)": (
        "(1/3)g 2(c1'Bv1 - c1'Bv2)(2/3 w.c1) + (1/3)g 2(c1'Av1 - c1'Av2)(-1/3 w.c1)",
        "S",
        C1,
        C1,
        lambda x: 2 * _d(x.B, C1, V1, V2) * HIGH + 2 * _d(x.A, C1, V1, V2) * LOW,
    ),
    "App E.5.1 (v1 v1)": (
        "(1/3)g 2(v1'Bc1 - v1'Bc2)(-1/3 w.c1) + (1/3)g 2(v1'Ac1 - v1'Ac2)(2/3 w.c1)",
        "S",
        V1,
        V1,
        lambda x: 2 * _d(x.B, V1, C1, C2) * LOW + 2 * _d(x.A, V1, C1, C2) * HIGH,
    ),
    "App E.5.1 (v1 c1)": (
        "(1/3)g 2(c1'Bc1 - c1'Bc2)(-1/3 w.c1) + (1/3)g 2(v1'Av1 - v1'Av2)(-1/3 w.c1)",
        "S",
        V1,
        C1,
        lambda x: 2 * _d(x.B, C1, C1, C2) * LOW + 2 * _d(x.A, V1, V1, V2) * LOW,
    ),
    "App E.5.2 (c1 c1)": (
        "(1/3)g 4(c1'Sv1 - c1'Sv2)(2/3 w.c1)",
        "A",
        C1,
        C1,
        lambda x: 4 * _d(x.S, C1, V1, V2) * HIGH,
    ),
    "App E.5.2 (c1 c2)": (
        "(1/3)g 2(c1'Sv2 - c1'Sv1)(2/3 w.c2) + (1/3)g 2(c2'Sv1 - c2'Sv2)(2/3 w.c1)",
        "A",
        C1,
        C2,
        lambda x: 2 * _d(x.S, C1, V2, V1) * HIGH + 2 * _d(x.S, C2, V1, V2) * HIGH,
    ),
    "App E.5.2 (v1 v1)": (
        "(1/3)g 4(v1'Sc1 - v1'Sc2)(-1/3 w.c1)",
        "A",
        V1,
        V1,
        lambda x: 4 * _d(x.S, V1, C1, C2) * LOW,
    ),
    "App E.5.2 (c1 v1)": (
        "(1/3)g 2(c1'Sc1 - c1'Sc2)(-1/3 w.c1) + (1/3)g 2(v1'Sv1 - v1'Sv2)(2/3 w.c1), where the "
        "text has v1'Sv2 - v1'Sv2",
        "A",
        C1,
        V1,
        lambda x: 2 * _d(x.S, C1, C1, C2) * LOW + 2 * _d(x.S, V1, V1, V2) * HIGH,
    ),
    "App E.5.3 (v1 v1)": (
        "(1/3)g 4(v1'S'c1 - v1'S'c2)(2/3 w.c1)",
        "B",
        V1,
        V1,
        lambda x: 4 * _d(x.S.T, V1, C1, C2) * HIGH,
    ),
    "App E.5.3 (v1 v2)": (
        "(1/3)g 2(-v1'S'c1 + v1'S'c2)(2/3 w.c1) + (1/3)g 2(v2'S'c1 - v2'S'c2)(2/3 w.c1)",
        "B",
        V1,
        V2,
        lambda x: 2 * _d(x.S.T, V1, C2, C1) * HIGH + 2 * _d(x.S.T, V2, C1, C2) * HIGH,
    ),
    "App E.5.3 (c1 v1)": (
        "(1/3)g 2(c1'S'c1 - c1'S'c2)(2/3 w.c1) + (1/3)g 2(v1'S'v1 - v1'S'v2)(-1/3 w.c1)",
        "B",
        C1,
        V1,
        lambda x: 2 * _d(x.S.T, C1, C1, C2) * HIGH + 2 * _d(x.S.T, V1, V1, V2) * LOW,
    ),
    "App E.5.3 (c1 c1)": (
        "(1/3)g 4(c1'S'v1 - c1'S'v2)(-1/3 w.c1)",
        "B",
        C1,
        C1,
        lambda x: 4 * _d(x.S.T, C1, V1, V2) * LOW,
    ),
}
"""Label, formula, block and entry of each rate, and the formula over (1/3) g w.c."""


def _rate_at_t1(label: str) -> None:
    formula, block, row, column, value = AT_T1[label]

    def rate_at_t1(study) -> Measurement:
        return _weighted(
            lambda x: x.g / 3 * x.gamma * value(x),
            lambda x: float(x.rates(x.uniform)[block][row, column]),
            formula,
        )

    names = {"S": "score", "A": "key self-score", "B": "query self-score"}
    rate_at_t1.__doc__ = (
        f"With uniform attention the {names[block]} {label.split('(')[1][:-1]} moves at {formula}, "
        "times 1/4."
    )
    rate_at_t1.__qualname__ += f" {label}"
    claim(label, part="constant", **said(past_gates, "holds-corrected"))(rate_at_t1)


for _label in AT_T1:
    _rate_at_t1(_label)


# --- Terms of the displays: query and key are signed tokens of one sample.


COORDINATE = {"c1": C1, "c2": C2, "v1": V1, "v2": V2}
NAMES = CONFLICTING.names()
X1P, X1M = NAMES.index("c1 +v1 -v2"), NAMES.index("c1 -v1 +v2")
X2P, X2M = NAMES.index("c2 +v2 -v1"), NAMES.index("c2 -v2 +v1")


def _token(name: str) -> tuple[int, float]:
    return COORDINATE[name.lstrip("-")], -1.0 if name.startswith("-") else 1.0


def _at(sample: int, name: str) -> int:
    """The position of a token, which must be in the sample with this sign."""
    coordinate, sign = _token(name)
    token, signs = CONFLICTING.token[sample], CONFLICTING.sign[sample]
    return int(np.flatnonzero((token == coordinate) & (signs == sign))[0])


@dataclass(frozen=True)
class Terms:
    """p, w and means of a point, for reading the displays term by term."""

    x: Point

    def p(self, sample: int, query: str, key: str) -> float:
        return float(self.x.p[sample, _at(sample, key), _at(sample, query)])

    def mean(self, sample: int, query: str) -> float:
        """w.X p_l."""
        values = CONFLICTING.inputs[sample] @ self.x.w[0]
        return float(values @ self.x.p[sample, :, _at(sample, query)])

    def value(self, name: str) -> float:
        coordinate, sign = _token(name)
        return float(sign * self.x.w[0, coordinate])

    def part(self, sample: int, query: str, key: str) -> float:
        """p (w.key - w.X p)."""
        return self.p(sample, query, key) * (self.value(key) - self.mean(sample, query))


def _times(row: np.ndarray, name: str) -> float:
    coordinate, sign = _token(name)
    return float(sign * row[coordinate])


def by_key(x: Point, row: np.ndarray, plus: bool) -> float:
    """The six terms of `g sum_l (row . x_l) p_l (w.x - w.X p_l) X^T v_1`, on X_{k,+,-} or on
    X_{k,-,+}: E.7.1 with row c_1'S and v_1'S, E.7.3 with row v_1'B and c_1'B.
    """
    t = Terms(x)
    if plus:
        own = [("v1", "v1"), ("c1", "v1"), ("-v2", "v1")]
        other = [("v2", "-v1"), ("c2", "-v1"), ("-v1", "-v1")]
        samples = X1P, X2P
    else:
        own = [("-v1", "-v1"), ("c1", "-v1"), ("v2", "-v1")]
        other = [("-v2", "v1"), ("c2", "v1"), ("v1", "v1")]
        samples = X1M, X2M
    total = sum(_times(row, q) * t.part(samples[0], q, k) for q, k in own)
    return x.g * (total - sum(_times(row, q) * t.part(samples[1], q, k) for q, k in other))


def by_key_rearranged(x: Point, row: np.ndarray, plus: bool) -> float:
    """The same as the display below it groups them."""
    t, a = Terms(x), x.a
    s = "" if plus else "-"
    flip = {"": "-", "-": ""}[s]
    one, two = (X1P, X2P) if plus else (X1M, X2M)
    own, mirrored, far, back = f"{s}v1", f"{flip}v1", f"{flip}v2", f"{s}v2"
    first, second = t.p(one, own, own), t.p(two, mirrored, mirrored)
    third, fourth = t.p(one, far, own), t.p(two, back, mirrored)
    fifth, sixth = t.p(one, "c1", own), t.p(two, "c2", mirrored)
    sign = 1 if plus else -1
    total = _times(row, own) * (-first * t.mean(one, own) - second * t.mean(two, mirrored))
    total += _times(row, "v1") * a * (first - second)
    total += _times(row, far) * (-third * t.mean(one, far) - fourth * t.mean(two, back))
    total += _times(row, far) * sign * a * (third - fourth)
    total += _times(row, "c2") * sixth * t.mean(two, "c2")
    total -= _times(row, "c1") * fifth * t.mean(one, "c1")
    total += sign * a * (_times(row, "c1") * fifth + _times(row, "c2") * sixth)
    return x.g * total


def by_group_key(x: Point, row: np.ndarray) -> float:
    """The six terms with the key c_1, on X_{1,+,-} and X_{1,-,+}."""
    t = Terms(x)
    plus = sum(_times(row, q) * t.part(X1P, q, "c1") for q in ("v1", "c1", "-v2"))
    return x.g * (plus - sum(_times(row, q) * t.part(X1M, q, "c1") for q in ("-v1", "c1", "v2")))


def by_query(x: Point, row: np.ndarray) -> float:
    """The twelve terms of `g sum_l row . diag(w.x - w.X p_l) p_l x_l^T v_1`: E.7.2 with c_1'S',
    E.7.3 with v_1'A.
    """
    t, total = Terms(x), 0.0
    cases = [
        (X1P, "v1", ("v1", "c1", "-v2"), 1),
        (X2P, "-v1", ("v2", "c2", "-v1"), -1),
        (X1M, "-v1", ("-v1", "c1", "v2"), 1),
        (X2M, "v1", ("-v2", "c2", "v1"), -1),
    ]
    for sample, query, keys, sign in cases:
        total += sign * sum(_times(row, k) * t.part(sample, query, k) for k in keys)
    return x.g * total


def by_group_query(x: Point, row: np.ndarray) -> float:
    """The six terms with the query c_1."""
    t = Terms(x)
    plus = sum(_times(row, k) * t.part(X1P, "c1", k) for k in ("v1", "c1", "-v2"))
    return x.g * (plus - sum(_times(row, k) * t.part(X1M, "c1", k) for k in ("-v1", "c1", "v2")))


# --- Appendix E.6: sums of partial gradients.


def _summed(x: Point, turn: bool) -> np.ndarray:
    """dWQ(v_1 + v_2)/dt by keys, or dWK(v_1 + v_2)/dt by queries, as the displays add them."""
    t, out = Terms(x), np.zeros(4)
    for n, tokens in enumerate(NAMES):
        words = [word.lstrip("+") for word in tokens.split()]
        for q in words:
            for k in words:
                kept, dropped = (q, k) if turn else (k, q)
                (here, s), (there, u) = _token(kept), _token(dropped)
                if there in (V1, V2):
                    out[here] += CONFLICTING.label[n] * s * u * t.part(n, q, k)
    return x.g * out


def _sum_claim(turn: bool, formula: str) -> Measurement:
    both = np.array([0.0, 0, 1, 1])
    p = np.stack([_summed(x, turn) for x in points()])
    m = np.stack([(x.M.T if turn else x.M) @ both for x in points()])
    return corrected(
        printed=equal(p, m, rtol=1e-11),
        right=equal(p / 4, m, rtol=1e-11),
        correction=Correction(
            printed=formula,
            corrected="a quarter of it: E[. | X_{k,s,-s}] gives each of the four samples the "
            "weight 1/4",
            cause="constant",
            snippet=SNIPPET_WEIGHTS,
        ),
    )


@claim("App E.6 (queries)", part="constant", **said(past_gates, "holds-corrected"))
def sum_of_query_gradients(study) -> Measurement:
    """dWQ(v_1 + v_2)/dt is the sum over the conflicting samples of WK x_k p (w.x_k - w.X p) with
    the signs of label and query, times g and 1/4.
    """
    return _sum_claim(False, "dWQ v1/dt + dWQ v2/dt = g (WK v1 (w.v1 - w.X p) p + ...)")


@claim("App E.6 (keys)", part="constant", **said(past_gates, "holds-corrected"))
def sum_of_key_gradients(study) -> Measurement:
    """dWK(v_1 + v_2)/dt is the sum over the conflicting samples of WQ x_q p (w.x_k - w.X p) with
    the signs of label and key, times g and 1/4.
    """
    return _sum_claim(True, "dWK v1/dt + dWK v2/dt = g (WQ v1 p (w.v1 - w.X p) + ...)")


@claim("App E.6 (cancellation)", part="proof-step", **said(past_gates))
def sums_cancel(study) -> Measurement:
    """Under uniform attention the sums dWQ(v_1 + v_2)/dt and dWK(v_1 + v_2)/dt vanish, and those of
    c_1 + c_2.
    """
    sums = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
    both = [(x.uniform @ sums.T, sums @ x.uniform) for x in points()]
    off = max(float(np.abs(y).max()) for pair in both for y in pair)
    on = min(float(np.abs(x.M @ sums.T).max()) for x in points())
    return at_most(off, 1e-16, control=on, note="control: with the attention of the scores")


# --- Appendix E.7: expanded updates.


@claim("App E.7.1 (c1 v1)", part="constant", **said(past_gates, "holds-corrected"))
def key_score_c1_v1(study) -> Measurement:
    """d c_1^T A v_1/dt is the sum of the three displays, times 1/4."""
    return _weighted(
        lambda x: by_key(x, x.S[C1], True) + by_key(x, x.S[C1], False) + by_group_key(x, x.S[V1]),
        lambda x: float(x.rates(x.M)["A"][C1, V1]),
        "E[...X'v1 | X_{k,+,-}] + E[...X'v1 | X_{k,-,+}] + E[...X'c1 | X_{k,s,-s}], each as g(...)",
    )


@claim("App E.7.1 (v1 v1)", part="constant", **said(past_gates, "holds-corrected"))
def key_score_v1_v1(study) -> Measurement:
    """d v_1^T A v_1/dt is twice the sum of its two displays, times 1/4."""
    return _weighted(
        lambda x: 2 * (by_key(x, x.S[V1], True) + by_key(x, x.S[V1], False)),
        lambda x: float(x.rates(x.M)["A"][V1, V1]),
        "2 E[...X'v1 | X_{k,s,-s}] = 2 g(...)",
    )


@claim("App E.7.1 (rearranged)", part="proof-step", **said(past_gates))
def key_score_rearranged(study) -> Measurement:
    """The displays and their rearranged forms agree, for c_1^T A v_1 and v_1^T A v_1."""
    return _rearranged([lambda x: x.S[C1], lambda x: x.S[V1]])


def _rearranged(rows: list[Callable[[Point], np.ndarray]]) -> Measurement:
    cases = [(x, row(x), plus) for x in points() for row in rows for plus in (True, False)]
    swapped = [by_key_rearranged(x, row, not plus) for x, row, plus in cases]
    return equal(
        [by_key(*c) for c in cases],
        [by_key_rearranged(*c) for c in cases],
        rtol=1e-12,
        control_measured=swapped,
        note="control: the other label",
    )


@claim("App E.7.1 (left side)", part="proof-step", **said(past_gates, "holds-corrected"))
def key_score_left_side(study) -> Measurement:
    """The second display under d v_1^T A v_1/dt has v_1^T WK^T on its left side, not c_1^T WK^T."""

    def left(row: int) -> np.ndarray:
        return np.array([by_key(x, x.S[row], False) for x in points()])

    shown = np.array([by_key_rearranged(x, x.S[V1], False) for x in points()])
    return corrected(
        printed=equal(left(C1), shown, rtol=1e-12),
        right=equal(left(V1), shown, rtol=1e-12),
        correction=Correction(
            printed="E[g y s' sum_l c1'WK' q_l p_l' diag(...) X'v1 | X_{k,-,+}] = g(v1'S(-v1) ...)",
            corrected="E[g y s' sum_l v1'WK' q_l p_l' diag(...) X'v1 | X_{k,-,+}]",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                S = np.random.default_rng(0).normal(size=(4, 4))   # rows: c1, c2, v1, v2
                q = np.array([0.0, 0, -1, 0])                       # the query -v1
                left, right = S[0] @ q, S[2] @ q                    # c1'S(-v1) and v1'S(-v1)
                print(left, right)
                assert not np.isclose(left, right)
            """,
        ),
    )


@claim("App E.7.2 (c1 v1)", part="constant", **said(past_gates, "holds-corrected"))
def query_score_c1_v1(study) -> Measurement:
    """d c_1^T B v_1/dt is the sum of its displays, times 1/4."""
    return _weighted(
        lambda x: by_query(x, x.S[:, C1]) + by_group_query(x, x.S[:, V1]),
        lambda x: float(x.rates(x.M)["B"][C1, V1]),
        "E[c1'WQ'K diag(.)p x_l'v1 | X_{k,s,-s}] + E[v1'WQ'K diag(.)p x_l'c1 | .], each as g(.)",
    )


@claim("App E.7.2 (c1 c1)", part="constant", **said(past_gates, "holds-corrected"))
def query_score_c1_c1(study) -> Measurement:
    """d c_1^T B c_1/dt is twice its display, times 1/4."""
    return _weighted(
        lambda x: 2 * by_group_query(x, x.S[:, C1]),
        lambda x: float(x.rates(x.M)["B"][C1, C1]),
        "2 E[c1'WQ'K diag(...)p x_l'c1 | X_{k,s,-s}] = 2 g(...)",
    )


@claim("App E.7.3 (c1 c1)", part="constant", **said(past_gates, "holds-corrected"))
def score_c1_c1(study) -> Measurement:
    """d c_1^T S c_1/dt is the sum of its displays, times 1/4."""
    return _weighted(
        lambda x: by_group_key(x, x.B[C1]) + by_group_query(x, x.A[C1]),
        lambda x: float(x.rates(x.M)["S"][C1, C1]),
        "E[c1'WQ'q p'diag(...)X'c1 | .] + E[c1'WK'K diag(...)p x_l'c1 | .], each as g(...)",
    )


@claim("App E.7.3 (v1 v1)", part="constant", **said(past_gates, "holds-corrected"))
def score_v1_v1(study) -> Measurement:
    """d v_1^T S v_1/dt is the sum of its displays, times 1/4."""
    return _weighted(
        lambda x: by_key(x, x.B[V1], True) + by_key(x, x.B[V1], False) + by_query(x, x.A[V1]),
        lambda x: float(x.rates(x.M)["S"][V1, V1]),
        "E[v1'WQ'q p'diag(.)X'v1 | X_{k,+,-}] + E[. | X_{k,-,+}] + E[v1'WK'K diag(.)p x_l'v1 | .]",
    )


@claim("App E.7.3 (v1 c1)", part="constant", **said(past_gates, "holds-corrected"))
def score_v1_c1(study) -> Measurement:
    """d v_1^T S c_1/dt is the sum of its displays, times 1/4."""
    return _weighted(
        lambda x: by_key(x, x.B[C1], True) + by_key(x, x.B[C1], False) + by_group_query(x, x.A[V1]),
        lambda x: float(x.rates(x.M)["S"][V1, C1]),
        "E[c1'WQ'q p'diag(.)X'v1 | X_{k,+,-}] + E[. | X_{k,-,+}] + E[v1'WK'K diag(.)p x_l'c1 | .]",
    )


@claim("App E.7.3 (rearranged)", part="proof-step", **said(past_gates))
def score_rearranged(study) -> Measurement:
    """The displays with v_1^T B and c_1^T B and their rearranged forms agree."""
    return _rearranged([lambda x: x.B[V1], lambda x: x.B[C1]])
