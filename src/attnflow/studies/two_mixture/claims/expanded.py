"""Appendices E.5 to E.7: rates at uniform attention, sums of gradients, expanded updates.

The displays are compared as identities in the scores and self-scores, at random matrices that have
the symmetries of Appendix C, so that no term is hidden by a zero. Those of E.5 and E.7 add the
four conflicting samples without their weight 1/4 in the conditional expectation of Algorithm 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import Claim, Control, Measurement, at_most, corrected, identity
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, C2, CONFLICTING, V1, V2, past_gates
from attnflow.studies.two_mixture.errata import QUARTER
from attnflow.studies.two_mixture.paper import paper

BIAS = 4.0
"""Keeps the gates of the conflicting samples on at the random points (Lemma E.6)."""

NAMES = CONFLICTING.names()
TEX = ("c_1", "c_2", "v_1", "v_2")
COORDINATES = {"c1": C1, "c2": C2, "v1": V1, "v2": V2}


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
        return common.neurons_of(self.gamma, self.a)

    @functools.cached_property
    def known(self) -> tuple[np.ndarray, float]:
        """p[sample, key, query] of the plus head, and g, which the conflicting samples share."""
        p, _, f = common.forward(self.w, common.both_heads(self.S), CONFLICTING, BIAS)
        return p[0], float(1 / (1 + np.exp(CONFLICTING.label[0] * f[0])))

    @functools.cached_property
    def M(self) -> np.ndarray:
        """-dL/dS of the plus head, from the loss alone."""
        return common.score_force(self.w, common.both_heads(self.S), CONFLICTING, BIAS)

    @functools.cached_property
    def uniform(self) -> np.ndarray:
        """M with 1/3 in place of p but not in g: that of S = 0, where g = 1/2."""
        g, still = self.known[1], np.zeros((2, 4, 4))
        return 2 * g * common.score_force(self.w, still, CONFLICTING, BIAS)

    def of_sample(self, sample: str) -> np.ndarray:
        """-d loss/dS on one conflicting sample alone."""
        alone = CONFLICTING.restricted(where=np.array(NAMES) == sample)
        return common.score_force(self.w, common.both_heads(self.S), alone, BIAS)

    def block(self, name: str) -> np.ndarray:
        return {"S": self.S, "A": self.A, "B": self.B, "Z": self.S.T}[name]

    def rates(self, M: np.ndarray) -> dict[str, np.ndarray]:
        return common.gram_rates(self.S, self.A, self.B, M)

    def p(self, sample: str, query: str) -> dict[str, float]:
        """The attention of a signed token of a sample on each of them."""
        words = sample.replace("+", "").split()
        at = NAMES.index(sample), slice(None), words.index(query)
        return dict(zip(words, self.known[0][at], strict=True))

    def mean(self, sample: str, query: str) -> float:
        """w.X p."""
        return sum(p * times(self.w[0], word) for word, p in self.p(sample, query).items())

    def part(self, sample: str, query: str, key: str) -> float:
        """p (w.key - w.X p)."""
        return self.p(sample, query)[key] * (times(self.w[0], key) - self.mean(sample, query))


@functools.cache
def points() -> tuple[Point, ...]:
    rng, made = np.random.default_rng(17), []
    for _ in range(3):
        S = common.lifted(*(0.4 * rng.standard_normal((2, 2)) for _ in range(2)))
        pairs = (rng.standard_normal((2, 2, 2)) for _ in range(2))
        A, B = (common.lifted(*(x @ common.turned(x) for x in pair)) for pair in pairs)
        made.append(Point(float(rng.uniform(0.2, 0.6)), float(rng.uniform(0.5, 1.0)), S, A, B))
    return tuple(made)


Value = Callable[[Point], float]


def weighted(printed: Value, measured: Value, text: str, right: Value | None = None) -> Measurement:
    """The printed sum against the measured rate, which is a quarter of it (of `right`)."""
    known = right or printed
    exact = functools.partial(identity, over=points(), measured=measured, rtol=1e-11)
    return corrected(
        printed=exact(predicted=printed),
        right=exact(predicted=lambda x: known(x) / 4),
        text=text,
        correct="a quarter of it" if right is None else "a quarter of it as read",
        erratum=QUARTER,
        snippet="weights_of_samples",
    )


HIGH, LOW = 2 / 3, -1 / 3
"""w.c - w.Xp and -w.Xp over w.c, for a conflicting sample under uniform attention."""

Term = tuple[int, str, int, int, int, float]
"""Factor, block (Z: S transposed), row, the two columns whose difference counts, HIGH or LOW."""

AT_T1: dict[tuple[str, int, int], list[Term]] = {
    ("S", C1, V1): [(2, "B", V1, V1, V2, HIGH), (2, "A", C1, C1, C2, HIGH)],
    ("S", C1, C1): [(2, "B", C1, V1, V2, HIGH), (2, "A", C1, V1, V2, LOW)],
    ("S", V1, V1): [(2, "B", V1, C1, C2, LOW), (2, "A", V1, C1, C2, HIGH)],
    ("S", V1, C1): [(2, "B", C1, C1, C2, LOW), (2, "A", V1, V1, V2, LOW)],
    ("A", C1, C1): [(4, "S", C1, V1, V2, HIGH)],
    ("A", C1, C2): [(2, "S", C1, V2, V1, HIGH), (2, "S", C2, V1, V2, HIGH)],
    ("A", V1, V1): [(4, "S", V1, C1, C2, LOW)],
    ("A", C1, V1): [(2, "S", C1, C1, C2, LOW), (2, "S", V1, V1, V2, HIGH)],
    ("B", V1, V1): [(4, "Z", V1, C1, C2, HIGH)],
    ("B", V1, V2): [(2, "Z", V1, C2, C1, HIGH), (2, "Z", V2, C1, C2, HIGH)],
    ("B", C1, V1): [(2, "Z", C1, C1, C2, HIGH), (2, "Z", V1, V1, V2, LOW)],
    ("B", C1, C1): [(4, "Z", C1, V1, V2, LOW)],
}
"""The terms of each rate over (1/3) g w.c, by block and entry."""

REPEATED = [*AT_T1["A", C1, V1][:1], (2, "S", V1, V2, V2, HIGH)]
"""The rate of c1'A v1 as extracted: its second bracket is v1'S v2 - v1'S v2."""

TORN = "the display is torn; put together from its left side and the pattern of its neighbours"
WHOLE = {("A", C1, C1), ("A", C1, C2), ("A", V1, V1), ("A", C1, V1), ("B", V1, V2)}
"""Rates whose last line the text at hand has in full."""


def sum_of(terms: list[Term]) -> Value:
    def value(x: Point) -> float:
        each = [n * (x.block(b)[r, i] - x.block(b)[r, j]) * h for n, b, r, i, j, h in terms]
        return x.known[1] / 3 * x.gamma * sum(each)

    return value


def spelled(terms: list[Term]) -> str:
    share = {HIGH: r"\frac{2}{3}", LOW: r"-\frac{1}{3}"}

    def word(n: int, b: str, r: int, i: int, j: int, h: float) -> str:
        left = TEX[r] + r"^\top " + b.replace("Z", r"S^\top")
        bracket = f"({left} {TEX[i]} - {left} {TEX[j]})"
        return rf"\frac{{1}}{{3}} g {n}{bracket}({share[h]} w_+^\top c_1)"

    return " + ".join(f"${word(*term)}$" for term in terms)  # one by one: lines break between them


def rate_at_t1(entry: tuple[str, int, int]) -> Claim:
    (block, row, column), terms = entry, AT_T1[entry]
    slip = entry == ("A", C1, V1)
    shown = REPEATED if slip else terms

    def rate(study) -> Measurement:
        found = lambda x: float(x.rates(x.uniform)[block][row, column])  # noqa: E731
        return weighted(sum_of(shown), found, spelled(shown), sum_of(terms) if slip else None)

    what = rf"${TEX[row]}^\top {block} {TEX[column]}$"
    rate.__doc__ = f"With uniform attention {what} moves at a quarter of {spelled(terms)}."
    label = f"App E.5.{'SAB'.index(block) + 1} ({TEX[row]} {TEX[column]})".replace("_", "")
    reading = r"$v_1^\top S v_2 - v_1^\top S v_2$ is read $v_1^\top S v_1 - v_1^\top S v_2$"
    read = {"reading": reading} if slip else {"torn": "" if entry in WHOLE else TORN}
    return paper.claim(label, part="constant", regime=past_gates, **read)(rate)


rates_at_t1 = tuple(map(rate_at_t1, AT_T1))


# --- Terms of the displays: query and key are signed tokens of one sample.

X1P, X1M, X2P, X2M = "c1 +v1 -v2", "c1 -v1 +v2", "c2 +v2 -v1", "c2 -v2 +v1"
Case = tuple[int, str, tuple[str, str, str], str]
"""Sign, sample, the three tokens that are summed over, and the token that stays."""

ON_PLUS: list[Case] = [(1, X1P, ("v1", "c1", "-v2"), "v1"), (-1, X2P, ("v2", "c2", "-v1"), "-v1")]
ON_MINUS: list[Case] = [(1, X1M, ("-v1", "c1", "v2"), "-v1"), (-1, X2M, ("-v2", "c2", "v1"), "v1")]
ON_GROUP: list[Case] = [(1, X1P, ("v1", "c1", "-v2"), "c1"), (-1, X1M, ("-v1", "c1", "v2"), "c1")]


def times(row: np.ndarray, token: str) -> Any:
    return row[COORDINATES[token.lstrip("-")]] * (-1 if token[0] == "-" else 1)


def by_key(x: Point, row: np.ndarray, *cases: Case) -> float:
    """`g sum_l (row . x_l) p_l (w.x - w.X p_l)` at the key that stays: E.7.1, E.7.3."""
    each = (s * times(row, q) * x.part(n, q, key) for s, n, qs, key in cases for q in qs)
    return x.known[1] * sum(each)


def by_query(x: Point, row: np.ndarray, *cases: Case) -> float:
    """`g row . diag(w.x - w.X p_l) p_l` at the query that stays: E.7.2, E.7.3."""
    each = (s * times(row, k) * x.part(n, query, k) for s, n, ks, query in cases for k in ks)
    return x.known[1] * sum(each)


def rearranged(x: Point, row: np.ndarray, plus: bool) -> float:
    """`by_key` on X_{k,+,-} or X_{k,-,+} as the display below it groups the terms."""
    s, flip = ("", "-") if plus else ("-", "")
    one, two = (X1P, X2P) if plus else (X1M, X2M)
    own, mirrored, far, back = f"{s}v1", f"{flip}v1", f"{flip}v2", f"{s}v2"

    sign = 1 if plus else -1
    total = 0.0
    for first, second in ((own, mirrored), (far, back)):
        a, b = x.p(one, first)[own], x.p(two, second)[mirrored]
        total += times(row, first) * (-a * x.mean(one, first) - b * x.mean(two, second))
        total += times(row, first) * sign * x.a * (a - b)
    a, b = x.p(one, "c1")[own], x.p(two, "c2")[mirrored]
    total += times(row, "c2") * b * x.mean(two, "c2") - times(row, "c1") * a * x.mean(one, "c1")
    total += sign * x.a * (times(row, "c1") * a + times(row, "c2") * b)
    return x.known[1] * total


SUMS_TORN = "the sums are torn across pages; each has the three terms of its one sample"


def of_two_samples(keys: bool) -> Measurement:
    """The sums over X_{1,+,-} with v_1 and X_{2,+,-} with v_2, and those with the other label."""
    ours = [(X1P, "v1"), (X2P, "v2")], [(X1M, "-v1"), (X2M, "-v2")]
    axes = np.eye(4)

    def displayed(x: Point, turn: bool) -> np.ndarray:
        def gradient(sample: str, stays: str) -> np.ndarray:
            words = sample.replace("+", "").split()
            order = [(w, stays) if turn else (stays, w) for w in words]
            parts = [x.part(sample, *pair) for pair in order]
            return np.array(parts) @ [times(axes, w) for w in words]

        return x.known[1] * np.stack([sum(gradient(*pair) for pair in pairs) for pairs in ours])

    def measured(x: Point) -> np.ndarray:
        M = [[x.of_sample(n) for n, _ in pairs] for pairs in ours]
        return np.stack([m[V1] + n[V2] if keys else m[:, V1] + n[:, V2] for m, n in M])

    known, wrong = (lambda x, turn=turn: displayed(x, turn) for turn in (keys, not keys))
    turned, how = Control("keys and queries exchanged", wrong), {"over": points(), "rtol": 1e-11}
    return identity(predicted=known, measured=measured, control=turned, **how)


@paper.claim("App E.6 (queries)", regime=past_gates, torn=SUMS_TORN)
def sum_of_query_gradients(study) -> Measurement:
    r"""$\frac{d}{dt} W_Q v_1$ given $X_{1,s,-s}$ plus $\frac{d}{dt} W_Q v_2$ given $X_{2,s,-s}$ is
    $g\sum W_K x\, p\,(w_+^\top x - w_+^\top X p)$ over the keys $x$ of the two samples."""
    return of_two_samples(keys=False)


@paper.claim("App E.6 (keys)", regime=past_gates, torn=SUMS_TORN)
def sum_of_key_gradients(study) -> Measurement:
    r"""$\frac{d}{dt} W_K v_1$ given $X_{1,s,-s}$ plus $\frac{d}{dt} W_K v_2$ given $X_{2,s,-s}$ is
    $g\sum W_Q x\, p\,(w_+^\top v - w_+^\top X p)$ over the queries $x$ of the two samples."""
    return of_two_samples(keys=True)


@paper.claim("App E.6 (cancellation)", part="proof-step", regime=past_gates)
def sums_cancel(study) -> Measurement:
    r"""Under uniform attention the rates of $W_Q(v_1 + v_2)$, $W_K(v_1 + v_2)$, $W_Q(c_1 + c_2)$
    and $W_K(c_1 + c_2)$ vanish."""
    sums = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]])

    def moved(M: np.ndarray) -> float:
        return float(max(np.abs(M @ sums.T).max(), np.abs(sums @ M).max()))

    other = Control("with the attention of the scores", [moved(x.M) for x in points()])
    return at_most(bound=1e-16, measured=[moved(x.uniform) for x in points()], control=other)


GARBLED = "terms of the display are garbled; put together by the pattern of those that are clear"


K, Q, BOTH = by_key, by_query, [*ON_PLUS, *ON_MINUS]
EXPANSIONS = {
    "App E.7.1 (c1 v1)": ("A", C1, V1, [(K, "S", C1, BOTH), (K, "S", V1, ON_GROUP)], ""),
    "App E.7.1 (v1 v1)": ("A", V1, V1, [(K, "S", V1, BOTH), (K, "S", V1, BOTH)], ""),
    "App E.7.2 (c1 v1)": ("B", C1, V1, [(Q, "Z", C1, BOTH), (Q, "Z", V1, ON_GROUP)], GARBLED),
    "App E.7.2 (c1 c1)": ("B", C1, C1, [(Q, "Z", C1, ON_GROUP), (Q, "Z", C1, ON_GROUP)], GARBLED),
    "App E.7.3 (c1 c1)": ("S", C1, C1, [(K, "B", C1, ON_GROUP), (Q, "A", C1, ON_GROUP)], GARBLED),
    "App E.7.3 (v1 v1)": ("S", V1, V1, [(K, "B", V1, BOTH), (Q, "A", V1, BOTH)], ""),
    "App E.7.3 (v1 c1)": ("S", V1, C1, [(K, "B", C1, BOTH), (Q, "A", V1, ON_GROUP)], GARBLED),
}
"""The displays of each update: block and entry, what they add (block, Z: S transposed, row, cases),
and what is torn."""


def expansion(label: str) -> Claim:
    block, row, column, terms, torn = EXPANSIONS[label]
    value = lambda x: sum(by(x, x.block(b)[r], *cases) for by, b, r, cases in terms)  # noqa: E731
    rate = rf"$\frac{{d}}{{dt}} {TEX[row]}^\top {block} {TEX[column]}$"

    def update(study) -> Measurement:
        text = rf"the displays of {rate}, each as $g(\ldots)$"
        return weighted(value, lambda x: float(x.rates(x.M)[block][row, column]), text)

    update.__doc__ = f"{rate} is a quarter of the sum of its displays."
    return paper.claim(label, part="constant", regime=past_gates, torn=torn)(update)


expanded_updates = tuple(map(expansion, EXPANSIONS))


@paper.family(
    {
        f"App E.7.{n} (rearranged)": (
            f"The displays of {what} and their rearranged forms agree.",
            b,
        )
        for n, what, b in (
            (1, r"$c_1^\top A v_1$ and $v_1^\top A v_1$", "S"),
            (3, r"$v_1^\top B$ and $c_1^\top B$", "B"),
        )
    },
    part="proof-step",
    regime=past_gates,
)
def regrouped(study, block: str) -> Measurement:
    def each(x: Point, *kinds: bool) -> list[float]:
        return [rearranged(x, x.block(block)[row], plus) for row in (C1, V1) for plus in kinds]

    def known(x: Point) -> list[float]:
        return [by_key(x, x.block(block)[row], *c) for row in (C1, V1) for c in (ON_PLUS, ON_MINUS)]

    other = Control("of the other label", measured=lambda x: each(x, False, True))
    measured = lambda x: each(x, True, False)  # noqa: E731
    return identity(over=points(), predicted=known, measured=measured, control=other)


LEFT = r"$c_1^\top W_K^\top$ on the left is read $v_1^\top W_K^\top$, as on the right"


@paper.claim("App E.7.1 (left side)", part="proof-step", regime=past_gates, reading=LEFT)
def key_score_left_side(study) -> Measurement:
    r"""The second display under $\frac{d}{dt} v_1^\top A v_1$ expands $v_1^\top W_K^\top q$."""
    known, wrong = (lambda x, at=at: by_key(x, x.S[at], *ON_MINUS) for at in (V1, C1))
    found, extracted = lambda x: rearranged(x, x.S[V1], False), Control("c_1, as extracted", wrong)
    return identity(over=points(), predicted=known, measured=found, control=extracted)
