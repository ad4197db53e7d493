"""Section 5.2 and Appendix E.1: which scores lead, how fast they grow, and how long it takes."""

from __future__ import annotations

import functools

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import expm

from attnflow import claims
from attnflow.claims import Control, Measurement, at_least, at_most, equal, every, identity
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, V1, V2, StageTwo, staged
from attnflow.studies.two_mixture.errata import DOUBLED, QUARTER
from attnflow.studies.two_mixture.paper import paper

AFTER = slice(3, None)
"""Times a little after T1: at T1 itself ratios of scores are 0/0."""

LINEAR = np.array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])
"""The matrix of Lemmas 5.5, E.2 and E.3."""


def everyone(study) -> tuple[StageTwo, ...]:
    """Stage 2 at the config's omega and at those that orders are fitted over."""
    return (common.second_stage(study), *common.second_stages(study))


def in_omega(study, kind, power: float, y, control: Control, tol: float = 0.1) -> Measurement:
    """An order in omega of something measured on stage 2."""
    rs, how = common.second_stages(study), {"power": power, "tol": tol, "control": control}
    return claims.order(kind, over=rs, x=lambda r: r.omega, y=y, **how)


@paper.once
def at_t1(study) -> tuple[float, float, np.ndarray]:
    """gamma, omega^2 and M = -dL/dS of the plus head at T1, where S = 0 and A = B = omega^2."""
    c = study.config
    gamma, a = (float(x) for x in theory.neurons(c.t1, c.bias))
    w, uniform = common.neurons_of(gamma, a), np.zeros((2, 4, 4))
    return gamma, c.omega**2, common.score_force(w, uniform, common.CONFLICTING, c.bias)


step = functools.partial(paper.claim, part="proof-step", regime=staged)
constant = functools.partial(paper.claim, part="constant", regime=staged)


@step("Section 5.2 (rate at T1)")
def displayed_rate(study) -> Measurement:
    r"""At $T_1$ $\frac{d}{dt} c_1^\top S v_1 = \frac{1}{6} g\,(v_1^\top B v_1 + c_1^\top A c_1)
    \frac{2}{3} w_+^\top c_1$ with $g = 1/2$: an eighth of the display."""
    gamma, w2, M = at_t1(study)
    printed, found = 1 / 3 * 0.5 * 4 * (w2 + w2) * 2 / 3 * gamma, 2 * w2 * M[C1, V1]
    text = r"$\frac{1}{3} g 4 (v_1^\top B v_1 + c_1^\top A c_1)\frac{2}{3} w_+^\top c_1$"
    correct = (
        r"an eighth of it: the weight $1/4$ of a sample is missing, and $v_1^\top B v_2 ="
        r" c_1^\top A c_2 = 0$ at $T_1$, so that the brackets of E.5.1 are not yet doubled"
    )
    return too_large(8, printed, found, text, correct=correct, erratum=DOUBLED)


@step("Lemma E.1 (rates at T1)", reading="without the stray factor m of the first line")
def rates_at_start(study) -> Measurement:
    r"""At $T_1$ $\frac{d}{dt} c_k^\top S v_k = -\frac{d}{dt} c_k^\top S v_{k'} =
    \frac{1}{3} g\omega^2\frac{2}{3} w_+^\top c_1$ with $g = 1/2$."""
    gamma, w2, M = at_t1(study)
    found = 2 * w2 * M[C1, V1:] * [1, -1]
    text = r"$\frac{4}{3} g\omega^2\frac{2}{3} w_+^\top c_1$"
    return too_large(4, 4 / 3 * 0.5 * w2 * 2 / 3 * gamma, found, text)


SIZES = r"the rate of $|v_1^\top S c_1|$, which is what is compared; the score itself falls"


@step("Lemma E.1 (next rate at T1)", reading=SIZES)
def next_rate_at_start(study) -> Measurement:
    r"""At $T_1$ the fastest of the other scores has $\frac{d}{dt}|v_1^\top S c_1| =
    \frac{1}{3} g\omega^2\frac{1}{3} w_+^\top c_1$."""
    gamma, w2, M = at_t1(study)
    text = r"$\frac{4}{3} g\omega^2\frac{1}{3} w_+^\top c_1$"
    return too_large(4, 4 / 3 * 0.5 * w2 * 1 / 3 * gamma, -2 * w2 * M[V1, C1], text)


def too_large(factor: int, printed: float, found, text: str, **how) -> Measurement:
    return claims.corrected(
        printed=equal(predicted=printed, measured=found, rtol=1e-12),
        right=equal(predicted=printed / factor, measured=found, rtol=1e-12),
        text=text,
        snippet="rates_at_t1",
        **{"correct": "a quarter of it", "erratum": QUARTER} | how,
    )


@step("Lemma E.1 (order at T1)")
def order_at_start(study) -> Measurement:
    r"""At $T_1$ the fastest of the other scores are $v_k^\top S c_{k'}$, at half the rate of the
    leading ones; all self-scores stand still."""
    r, M = common.second_stage(study), at_t1(study)[2]
    size, lead = np.abs(M), M[C1, V1]
    selves = np.abs([r.rates["A"], r.rates["B"]]).max(axis=(0, 2, 3))
    found = [others(M).max() / lead, *size[V1:, :V1].ravel() / lead]
    other = Control("v_k' S v_k'", measured=size[V1:, V1:].ravel() / lead)
    return every(
        half=equal(predicted=0.5, measured=found, rtol=1e-12, control=other),
        still=at_most(bound=1e-15, measured=selves[0], control=Control("at T2", selves[-1])),
    )


def others(S: np.ndarray, key: int = C1, query: int = V1) -> np.ndarray:
    """Sizes of the scores with one block left out, by default the leading one."""
    kept = np.abs(S)
    kept[..., key : key + 2, query : query + 2] = 0
    return kept


def score_ratio(S: np.ndarray, key: int = C1, query: int = V1) -> np.ndarray:
    """(11): the largest other score over the smallest leading one."""
    lead = S[..., key : key + 2, query : query + 2] * [[1, -1], [-1, 1]]
    return others(S, key, query).max(axis=(-2, -1)) / lead.min(axis=(-2, -1))


def self_ratio(G: np.ndarray, own: int, other: int) -> np.ndarray:
    """(12) and (13): the largest other entry over the smaller of the two leading ones."""
    rest = G[..., [own, own, other], [other, other + 1, other + 1]]
    return np.abs(rest).max(axis=-1) / np.minimum(G[..., own, own], -G[..., own, own + 1])


def dominance(study, c: float, ratio, near, far) -> Measurement:
    """c at T1 from the loss, and the smallest c that serves a whole run; `ratio(r, exchanged)`."""
    rs, swaps = everyone(study), (False, True)
    most, least = ([float(ratio(r, swap)[AFTER].max()) for r in rs] for swap in swaps)
    there = Control("keys and queries exchanged", measured=far)
    swapped = Control("c and v exchanged", least)
    return every(
        at_T1=equal(predicted=c, measured=near, rtol=1e-11, control=there),
        on_T1_T2=at_most(bound=1.02 * c, measured=most, control=swapped),
    )


@constant("Lemma E.1 (eq 11)")
def leading_scores(study) -> Measurement:
    r"""Some $c < 1$ times $c_k^\top S v_k$ and $-c_k^\top S v_{k'}$ exceeds every other score: $c$
    is $1/2$ at $T_1$, and hardly more on $[T_1, T_2]$."""
    M = at_t1(study)[2]

    def ratio(r: StageTwo, swap: bool) -> np.ndarray:
        with np.errstate(all="ignore"):  # 0/0 at T1
            return score_ratio(-r.S, V1, C1) if swap else score_ratio(r.S)

    return dominance(study, 1 / 2, ratio, score_ratio(M), score_ratio(-M, V1, C1))


SELF = "times ${0}_k^\\top {1} {0}_k$ and $-{0}_k^\\top {1} {0}_{{k'}}$ exceeds the other {2}"


@paper.family(
    {
        f"Lemma E.1 (eq {n})": (f"Some $c < 1$ {SELF.format(*words)}: $c$ is $1/4$ at $T_1$.", *at)
        for n, words, at in (
            (12, ("v", "B", "query self-scores"), ("B", V1, C1)),
            (13, ("c", "A", "key self-scores"), ("A", C1, V1)),
        )
    },
    part="constant",
    regime=staged,
)
def self_dominance(study, name: str, own: int, other: int) -> Measurement:
    M = at_t1(study)[2]
    moved = [M @ M.T, M.T @ M][:: 1 if name == "A" else -1]  # the second derivative at T1

    def ratio(r: StageTwo, swap: bool) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self_ratio(getattr(r, name), *((other, own) if swap else (own, other)))

    return dominance(study, 1 / 4, ratio, *(self_ratio(G, own, other) for G in moved))


@paper.claim("ours: how small omega has to be", part="hypothesis", regime=common.past_gates)
def constant_of_condition_one(study) -> Measurement:
    r"""The constant $C$ of Condition 1 shrinks with $\gamma/a$ at $T_1$: (11) holds at $\omega =
    2\gamma/a$ and fails at $\omega = 8\gamma/a$, although both are below $1/2$."""
    found: dict[int, list[float]] = {2: [], 8: []}
    for bias, late in ((1.0, 1.2), (2.0, 1.4)):
        t1 = late * theory.gate_time(bias)
        gamma, a = (float(x) for x in theory.neurons(t1, bias))
        for scale, into in found.items():
            S = common.run_at(bias, scale * gamma / a, t1, 1.0).S
            into.append(float(score_ratio(S[AFTER]).max()))
    return at_most(bound=0.51, measured=found[2], control=Control("omega = 8 gamma/a", found[8]))


@paper.claim("Lemma E.1 (eq 14)", regime=staged)
def leading_norms(study) -> Measurement:
    r"""$|W_Q v_k|^2 \ge |W_Q c_k|^2$ and $|W_K c_k|^2 \ge |W_K v_k|^2$."""

    def least(queries: str, keys: str) -> list[float]:
        pairs = [(getattr(r, queries), getattr(r, keys)) for r in everyone(study)]
        gaps = [(B[:, V1, V1] - B[:, C1, C1], A[:, C1, C1] - A[:, V1, V1]) for B, A in pairs]
        return [float(np.min(g)) for g in gaps]

    other = Control("keys and queries exchanged", least("A", "B"))
    return at_least(bound=0.0, measured=least("B", "A"), slack=1e-15, control=other)


def _largest_b(r: StageTwo, key: int = C1, query: int = V1) -> np.ndarray:
    """The largest b over time with x' >= b LINEAR x, x = (key S query, key A key, query B
    query)."""
    s, A, B = r.S[:, key, query], r.A[:, key, key], r.B[:, query, query]
    first = r.rates["S"][:, key, query] / (A + B)
    second = r.rates["A"][:, key, key], r.rates["B"][:, query, query]
    with np.errstate(all="ignore"):  # at T1 the last two are 0/0
        return np.fmin.reduce([first, *(np.where(s == 0, np.inf, d / s) for d in second)])


def growth_bound(study) -> Measurement:
    r"""There is $b > 0$ with $\dot x \ge b\,[[0,1,1],[1,0,0],[1,0,0]]\,x$ for $x = (c_1^\top S v_1,
    c_1^\top A c_1, v_1^\top B v_1)$: at $T_1$ the largest is $b = w_+^\top c_1/18$."""
    gamma, _, M = at_t1(study)
    most = lambda r, *at: float((_largest_b(r, *at) / r.M[0, C1, V1]).min())  # noqa: E731
    here, there = ([most(r, *at) for r in everyone(study)] for at in ((C1, V1), (V1, C1)))
    start = Control("for key v and query c", measured=M[V1, C1])
    later = Control("for key v and query c", there)
    return every(
        at_T1=equal(predicted=gamma / 18, measured=M[C1, V1], rtol=1e-12, control=start),
        over_that_of_T1=at_least(bound=0.99, measured=here, control=later),
    )


score_growth, informal = (constant(x)(growth_bound) for x in ("Lemma E.2", "Lemma 5.5"))


@constant("ours: the bound of Lemma E.2 is loose by 2 sqrt 2")
def loose_bound(study) -> Measurement:
    r"""The bound guarantees the rate $\sqrt 2\, b \le \sqrt 2\,\gamma/18$; the scores grow at
    $2\gamma/9$."""
    r = common.second_stages(study)[-1]
    early = (r.S[:, C1, V1] > 1e-5) & (r.S[:, C1, V1] < 1e-3)
    t, guaranteed = r.times[early], np.sqrt(2) * r.gamma / 18

    def rate(x: np.ndarray) -> float:
        return float(np.log(x[-1] / x[0]) / (t[-1] - t[0]) / guaranteed)

    system = rate(theory.comparison(t, r.omega, r.gamma / 18)[0])
    found, other = rate(r.S[early, C1, V1]), Control("the comparison system", measured=system)
    return equal(predicted=2 * np.sqrt(2), measured=found, rtol=1e-3, control=other)


@paper.family(
    {
        f"{id}": (f"$T_2 - T_1 = O(\\log 1/{x})$: the slope against $\\log 1/{x}$ is ${y}$.", n)
        for id, x, y, n in (
            ("Lemma E.3", r"\omega^2", r"9/(2\gamma)", 2.0),
            ("Thm 4.1 (T2 - T1)", r"\omega", r"9/\gamma", 1.0),
        )
    },
    regime=staged,
)
def length(study, power: float) -> Measurement:
    rs = common.second_stages(study)[1:]  # the slope is that of small omega
    guaranteed = theory.comparison(rs[0].times, 1.0, rs[0].gamma / 18)[1]
    slow = np.diff(rs[0].times)[-1] / np.diff(np.log(guaranteed))[-1]
    return claims.slope(
        x=[-power * np.log(r.omega) for r in rs],
        y=[r.length for r in rs],
        predicted=theory.attention_slope(rs[0].gamma) / power,
        within=2e-3,
        control=Control("what the bound of Lemma E.2 guarantees", 2 * slow / power),
    )


@constant("ours: stage 2 takes 9 (K-1)/gamma log 1/omega", regime=common.three_tokens_past_gates)
def slope_for_groups(study) -> Measurement:
    r"""For $K$ groups ($L = 3$) $T_2 - T_1$ grows with $\log 1/\omega$ at the slope
    $9(K-1)/\gamma$, $T_1$ in units of $K/2$."""
    c = study.config
    gamma, a = (float(x) for x in theory.neurons(c.t1, c.bias))
    K, stop = max(c.groups, 3), min(float(c.score_stop), common.MODERATE)
    scales = np.array([1e-2, 3e-3, 1e-3])
    lengths = [common.stage_two(gamma, a, float(c.bias), float(w), stop, K).time for w in scales]
    known, more = (theory.attention_slope(gamma, each) for each in (K, K + 1))
    x, other = -np.log(scales), Control("one group more", more)
    return claims.slope(x=x, y=lengths, predicted=known, within=2e-3, control=other)


@paper.claim("Lemma E.3 (scores)", regime=staged)
def scores_of_order_one(study) -> Measurement:
    r"""At $T_2$ $c_1^\top S v_1$ and $-c_1^\top S v_2$ are of order one, whatever $\omega$."""
    half = Control("half-way through stage 2", measured=lambda r: -r.S[common.GRID // 2, C1, V2])
    return in_omega(study, "Theta", 0, lambda r: -r.S[-1, C1, V2], half, tol=0.01)


RATE = r"printed is $\dot x = (b/\sqrt m) A x$; its solution and Lemma E.2 have $b$"


@step("Lemma E.3 (comparison system)", regime=common.past_gates, reading=RATE)
def comparison_system(study) -> Measurement:
    r"""$x(t) = \frac{\omega^2}{2}(e^{st}(\sqrt 2, 1, 1) + e^{-st}(-\sqrt 2, 1, 1))$, $s = \sqrt 2\,
    b$, solves $\dot x = b A x$ from $(0, \omega^2, \omega^2)$."""
    omega, b, m = float(study.config.omega), 0.05, 64

    def solved(rate: float):
        return lambda t: expm(rate * t * LINEAR) @ [0, omega**2, omega**2]

    return identity(
        over=np.linspace(0, 40, 9),
        predicted=lambda t: theory.comparison(t, omega, b),
        measured=solved(b),
        control=Control("with b/sqrt m, m = 64", measured=solved(b / np.sqrt(m))),
    )


@step("Lemma E.3 (eigenvectors)", regime=common.past_gates)
def comparison_spectrum(study) -> Measurement:
    r"""$[[0,1,1],[1,0,0],[1,0,0]]$ has the eigenvalues $0, \pm\sqrt 2$ with the vectors $(0,-1,1)$
    and $(\lambda, 1, 1)$."""
    vector = {0.0: [0, -1, 1]} | {x: [x, 1, 1] for x in (np.sqrt(2), -np.sqrt(2))}
    return identity(
        over=list(vector),
        predicted=lambda x: x * np.array(vector[x]),
        measured=lambda x: LINEAR @ vector[x],
        atol=1e-15,
        control=Control("of the opposite eigenvalues", measured=lambda x: LINEAR @ vector[-x]),
    )


@step("Lemma E.3 (comparison)")
def comparison_holds(study) -> Measurement:
    r"""The comparison system stays below $(c_1^\top S v_1, c_1^\top A c_1, v_1^\top B v_1)$ with
    the $b$ of Lemma E.2."""
    r = common.second_stage(study)
    three = np.stack([r.S[:, C1, V1], r.A[:, C1, C1], r.B[:, V1, V1]])
    below, b = float(_largest_b(r).min()), 2 * np.sqrt(2) * r.gamma / 18

    def least(rate: float) -> float:
        return float(((three - theory.comparison(r.times, r.omega, rate)) / r.omega**2).min())

    control = Control("b of the rate at which they do grow", least(b))
    return at_least(bound=0.0, measured=least(below), slack=1e-9, control=control)


@paper.claim("ours: linear phase in closed form", regime=staged)
def linear_phase(study) -> Measurement:
    r"""While scores are small $c^\top S v = \frac{\omega^2}{2}\sinh\frac{2\gamma t}{9}$, $v^\top S
    c = -\frac{\omega^2}{2}\sinh\frac{\gamma t}{9}$, $c^\top A c = \frac{\omega^2}{2}(1 +
    \cosh\frac{2\gamma t}{9})$, $v^\top A v$ at half that rate: the relative error is of the order
    of the score."""
    r = common.second_stages(study)[-1]
    size = r.S[:, C1, V1]
    small = (size > 1e-5) & (size < 2e-4)
    S, A = r.S[small], r.A[small]
    found = {"c.S v": S[:, C1, V1], "v.S c": S[:, V1, C1], "c.A c": A[:, C1, C1]}
    found["v.A v"] = A[:, V1, V1]
    closed, other = (theory.linear_phase(r.times[small], r.gamma, r.omega, K) for K in (2, 3))
    when, late = (theory.attention_time(r.gamma, r.omega, K, 1e-4) for K in (2, 3))
    reached = CubicSpline(np.log(size[small]), r.times[small])(np.log(1e-4))

    def agrees(known, measured, there, rtol: float) -> Measurement:
        control = Control("three groups", there)
        return equal(predicted=known, measured=measured, rtol=rtol, each=True, control=control)

    parts = {name: agrees(closed[name], x, other[name], 5e-4) for name, x in found.items()}
    return every(**parts, time=agrees(when, reached, late, 1e-4))


@paper.claim("ours: ten numbers solve the 36-variable system", regime=staged)
def reduced_solves_full(study) -> Measurement:
    r"""Along stage 2 the scores and self-scores of the ten variables change as Appendix B.2 says of
    all 36: their change is the integral of $MB + AM$, $MS^\top + SM^\top$, $M^\top S + S^\top
    M$."""
    r = common.second_stage(study)
    M = common.force(r.w, common.both_heads(r.S), common.TWO.population, r.bias)[1][:, 0]

    def grown(rate: np.ndarray) -> np.ndarray:
        return CubicSpline(r.times, rate).integrate(0, r.length)

    wanted = np.stack([grown(r.rates[name]) for name in "SAB"])
    found = np.stack([getattr(r, name)[-1] - getattr(r, name)[0] for name in "SAB"])
    other = Control("on all samples", np.stack([grown(M @ r.B + r.A @ M)] * 3))
    return equal(predicted=wanted, measured=found, rtol=1e-6, control=other)
