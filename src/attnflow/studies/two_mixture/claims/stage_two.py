"""Section 5.2 and Appendix E.1: which scores lead, how fast they grow, and how long it takes."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    at_least,
    at_most,
    claim,
    corrected,
    equal,
    every,
    exponent,
    fact,
    slope,
)
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims.common import (
    C1,
    C2,
    MODERATE,
    OMEGAS,
    V1,
    V2,
    StageTwo,
    past_gates,
    run_at,
    said,
    second_stage,
    second_stages,
    stage_two,
    staged,
    three_tokens_past_gates,
)

AFTER = slice(3, None)
"""Times a little after T1: at T1 itself ratios of scores are 0/0."""

SNIPPET_STAGE_TWO = """
import numpy as np
gamma, a, w2 = 0.31, 0.87, 0.01                    # alignments at T1, omega^2
w = np.array([gamma, gamma, a, a]); e = np.eye(4)  # c1, c2, v1, v2
M = np.zeros((4, 4))
for k in (0, 1):
    for s in (1, -1):                              # X = (c_k, s v_k, -s v_k'), y = s, f = 0
        X = np.array([e[k], s * e[2 + k], -s * e[3 - k]])
        for q in X:
            M += 1 / 4 * 0.5 * s * np.outer((X @ w - (X @ w).mean()) / 3 @ X, q)
dS = 2 * w2 * M                                    # A = B = omega^2 I
"""


# --- Rates at T1, eq. (11) to (14): Lemma E.1.


@claim("Lemma E.1 (rates at T1)", part="proof-step", **said(staged, "holds-corrected"))
def rates_at_start(study) -> Measurement:
    """At T1 d c_k^T S v_k/dt = -d c_k^T S v_k'/dt = (1/3) g omega^2 (2/3) w_+^T c_1, g = 1/2."""
    r = second_stage(study)
    found = r.rates["S"][0, [C1, C1], [V1, V2]]
    printed = 4 / 3 * 0.5 * r.omega**2 * 2 / 3 * r.gamma * np.array([1, -1])
    return corrected(
        printed=equal(printed, found, rtol=1e-10),
        right=equal(printed / 4, found, rtol=1e-10),
        correction=Correction(
            printed="(4/3) g omega^2 m (w.c_1 - w.X p) = (4/3) g omega^2 (2/3) w.c_1",
            corrected="(1/3) g omega^2 (2/3) w.c_1 = omega^2 gamma/9: each of the four conflicting "
            "samples has weight 1/4, and there is no m",
            cause="constant",
            snippet=SNIPPET_STAGE_TWO + "print(dS[0, 2], 4 / 3 * 0.5 * w2 * 2 / 3 * gamma)\n"
            "assert np.isclose(dS[0, 2], w2 * gamma / 9)",
        ),
    )


@claim("Lemma E.1 (next rate at T1)", part="proof-step", **said(staged, "holds-corrected"))
def next_rate_at_start(study) -> Measurement:
    """At T1 d v_1^T S c_1/dt = -(1/3) g omega^2 (1/3) w_+^T c_1, the fastest of other scores."""
    r = second_stage(study)
    found = r.rates["S"][0, V1, C1]
    printed = 4 / 3 * 0.5 * r.omega**2 / 3 * r.gamma
    return corrected(
        printed=equal(printed, found, rtol=1e-10),
        right=equal(-printed / 4, found, rtol=1e-10),
        correction=Correction(
            printed="d v_1^T S c_1/dt = (4/3) g omega^2 (1/3) w.c_1 at T1",
            corrected="d v_1^T S c_1/dt = -(1/3) g omega^2 (1/3) w.c_1 = -omega^2 gamma/18; the "
            "ratio 1/2 of the sizes is right",
            cause="constant",
            snippet=SNIPPET_STAGE_TWO
            + "print(dS[2, 0], dS[0, 2])\nassert np.isclose(dS[2, 0], -w2 * gamma / 18)",
        ),
    )


@claim("Lemma E.1 (order at T1)", part="proof-step", **said(staged))
def order_at_start(study) -> Measurement:
    """At T1 the fastest of the other scores is v_1^T S c_1 (up to symmetry), at half the rate of
    the leading ones; all self-scores stand still.
    """
    r = second_stage(study)
    others = _others(np.abs(r.rates["S"]))[0]
    lead = r.rates["S"][0, C1, V1]
    still = max(np.abs(r.rates[n][0]).max() for n in "AB")
    moving = max(np.abs(r.rates[n][-1]).max() for n in "AB")
    best = np.abs(others[V1, C1]) == others.max()
    return every(
        argmax=fact(bool(best), control=bool(np.abs(others[V1, V1]) == others.max())),
        ratio=equal(0.5, others.max() / lead, rtol=1e-10, control=1.0),
        still=at_most(still, 0.0, control=moving, note="control: at T2"),
    )


def _others(S: np.ndarray) -> np.ndarray:
    """Scores with the leading block (key c, query v) left out."""
    kept = S.copy()
    kept[:, :V1, V1:] = 0
    return kept


def _score_ratio(r: StageTwo, S: np.ndarray) -> np.ndarray:
    lead = np.minimum.reduce([S[:, C1, V1], -S[:, C1, V2], S[:, C2, V2], -S[:, C2, V1]])
    return (_others(np.abs(S)).max(axis=(1, 2))[AFTER]) / lead[AFTER]


def _self_ratio(G: np.ndarray, own: tuple[int, int], other: tuple[int, int]) -> np.ndarray:
    """(12) and (13): the other entries against the smaller of the two leading ones."""
    lead = np.minimum(G[:, own[0], own[0]], -G[:, own[0], own[1]])[AFTER]
    rest = G[:, [own[0], own[0], other[0]], [other[0], other[1], other[1]]]
    return np.abs(rest).max(axis=1)[AFTER] / lead


def _constant(study, ratio, control: np.ndarray) -> Measurement:
    found = [float(ratio(r).max()) for r in (second_stage(study), *second_stages(study))]
    return at_most(
        found,
        0.75,
        control=float(control.min()),
        note=f"the smallest c at the config's omega and at {OMEGAS}: "
        f"{', '.join(f'{x:.4f}' for x in found)}",
    )


@claim("Lemma E.1 (eq 11)", part="constant", **said(staged))
def leading_scores(study) -> Measurement:
    """Some c < 1 times c_k^T S v_k, -c_k^T S v_k' exceeds every other score: c = 1/2 near T1."""
    r = second_stage(study)
    return _constant(study, lambda r: _score_ratio(r, r.S), 1 / _score_ratio(r, r.S))


@claim("Lemma E.1 (eq 12)", part="constant", **said(staged))
def leading_query_scores(study) -> Measurement:
    """Some c < 1 times v_k^T B v_k, -v_k^T B v_k' exceeds the other query self-scores: c = 1/4."""
    ratio = lambda r: _self_ratio(r.B, (V1, V2), (C1, C2))  # noqa: E731
    return _constant(study, ratio, 1 / ratio(second_stage(study)))


@claim("Lemma E.1 (eq 13)", part="constant", **said(staged))
def leading_key_scores(study) -> Measurement:
    """Some c < 1 times c_k^T A c_k, -c_k^T A c_k' exceeds the other key self-scores: c = 1/4."""
    ratio = lambda r: _self_ratio(r.A, (C1, C2), (V1, V2))  # noqa: E731
    return _constant(study, ratio, 1 / ratio(second_stage(study)))


@claim("ours: how small omega has to be", part="hypothesis", **said(past_gates))
def constant_of_condition_one(study) -> Measurement:
    """The constant C of Condition 1 shrinks with gamma/a at T1: (11) holds at omega = 2 gamma/a and
    fails at omega = 8 gamma/a, although both are below 1/2.
    """
    found, broken, words = [], [], []
    for bias, late in ((1.0, 1.2), (2.0, 1.4)):
        t1 = late * theory.gate_time(bias)
        gamma, a = (float(x) for x in theory.neurons(t1, bias))
        for scale, into in ((2, found), (8, broken)):
            r = run_at(bias, scale * gamma / a, t1, 1.0)
            into.append(float(_score_ratio(r, r.S).max()))
        words.append(f"b = {bias:g}, T1 = {t1:.4g}: gamma/a = {gamma / a:.4g}")
    return at_most(found, 0.75, control=min(broken), note="; ".join(words))


@claim("Lemma E.1 (eq 14)", **said(staged))
def leading_norms(study) -> Measurement:
    """|WQ v_k|^2 >= |WQ c_k|^2 and |WK c_k|^2 >= |WK v_k|^2."""

    def least(sign: float) -> float:
        gaps = [
            [(r.B[:, V1, V1] - r.B[:, C1, C1]).min(), (r.A[:, C1, C1] - r.A[:, V1, V1]).min()]
            if sign > 0
            else [(r.B[:, C1, C1] - r.B[:, V1, V1]).min(), (r.A[:, V1, V1] - r.A[:, C1, C1]).min()]
            for r in (second_stage(study), *second_stages(study))
        ]
        return float(np.min(gaps))

    return at_least(
        least(1), 0.0, slack=1e-15, control=least(-1), note="control: c and v exchanged"
    )


# --- The three-variable bound: Lemmas E.2 and 5.5, the time of Lemma E.3.


def _three(r: StageTwo) -> np.ndarray:
    return np.stack([r.S[:, C1, V1], r.A[:, C1, C1], r.B[:, V1, V1]])


def _largest_b(r: StageTwo) -> float:
    """The largest b with x' >= b [[0,1,1],[1,0,0],[1,0,0]] x along the run."""
    s, key, query = _three(r)
    first = r.rates["S"][:, C1, V1] / (key + query)
    second = r.rates["A"][AFTER, C1, C1] / s[AFTER]
    third = r.rates["B"][AFTER, V1, V1] / s[AFTER]
    return float(min(first.min(), second.min(), third.min()))


def _bound(study) -> Measurement:
    found = np.array(
        [_largest_b(r) / (r.gamma / 18) for r in (second_stage(study), *second_stages(study))]
    )
    return at_least(
        found,
        0.25,
        control_bound=1.05,
        note=f"the largest b over gamma/18 = {second_stage(study).gamma / 18:.5g}; at T1 it is exactly 1",
    )


@claim("Lemma E.2", part="constant", **said(staged))
def score_growth(study) -> Measurement:
    """There is b > 0 with x' >= b [[0,1,1],[1,0,0],[1,0,0]] x for x = (c_1^T S v_1, c_1^T A c_1,
    v_1^T B v_1).
    """
    return _bound(study)


@claim("Lemma 5.5", part="constant", **said(staged))
def score_growth_informal(study) -> Measurement:
    """The informal form of Lemma E.2: three variables grow at least like a linear system."""
    return _bound(study)


@claim("ours: the bound of Lemma E.2 is loose by 2 sqrt 2", part="constant", **said(staged))
def loose_bound(study) -> Measurement:
    """The bound guarantees the rate sqrt 2 b <= sqrt 2 gamma/18; the scores grow at 2 gamma/9."""
    gamma, a, b = (getattr(second_stage(study), n) for n in ("gamma", "a", "bias"))
    found = stage_two(gamma, a, b, min(OMEGAS), float(study.config.score_stop))
    times = np.array([0.25, 0.5]) * found.time
    lead = found.states(times)["S_diff"][:, 0, 1]
    rate = np.log(lead[1] / lead[0]) / (times[1] - times[0])
    return equal(
        2 * np.sqrt(2),
        rate / (np.sqrt(2) * gamma / 18),
        rtol=0.01,
        control=1.0,
        note=f"measured rate {rate:.6g} at omega = {min(OMEGAS):g}",
    )


@claim("Lemma E.3", **said(staged, "consistent"))
def length_of_stage_two(study) -> Measurement:
    """T2 - T1 = O(log 1/omega^2): the fitted slope against log 1/omega^2 is 9/(2 gamma)."""
    return _length(study, 2.0)


@claim("Thm 4.1 (T2 - T1)", **said(staged, "consistent"))
def second_stage_logarithmic(study) -> Measurement:
    """T2 - T1 = O(log 1/omega): the fitted slope against log 1/omega is 9/gamma."""
    return _length(study, 1.0)


def _length(study, power: float) -> Measurement:
    rs = second_stages(study)[1:]  # the slope is that of small omega
    predicted = theory.attention_slope(rs[0].gamma) / power
    return slope(
        power * np.log([1 / r.omega for r in rs]),
        [r.length for r in rs],
        predicted,
        tol=0.01 * predicted,
        control=1.05 * predicted,
        note=", ".join(f"{r.omega:g}: {r.length:.4f}" for r in rs),
    )


@claim(
    "ours: stage 2 takes 9 (K-1)/gamma log 1/omega",
    part="constant",
    **said(three_tokens_past_gates, "consistent"),
)
def slope_for_groups(study) -> Measurement:
    """For K groups (L = 3) T2 - T1 grows with log 1/omega at the slope 9 (K-1)/gamma, T1 in units
    of K/2.
    """
    c = study.config
    gamma, a = (float(x) for x in theory.neurons(c.t1, c.bias))
    stop, scales = min(float(c.score_stop), MODERATE), (1e-2, 3e-3, 1e-3)
    K = c.groups if c.groups > 2 else 4
    lengths = [stage_two(gamma, a, float(c.bias), w, stop, K).time for w in scales]
    predicted = theory.attention_slope(gamma, K)
    return slope(
        np.log(1 / np.array(scales)),
        lengths,
        predicted,
        tol=0.005 * predicted,
        control=theory.attention_slope(gamma, K + 1),
        note=f"K = {K}: {predicted:.6g} predicted; control: K + 1",
    )


@claim("Lemma E.3 (scores)", **said(staged, "consistent"))
def scores_of_order_one(study) -> Measurement:
    """At T2 c_1^T S v_1 and -c_1^T S v_2 are of order one, whatever omega."""
    rs = second_stages(study)
    return exponent(
        OMEGAS,
        [-r.S[-1, C1, V2] for r in rs],
        0.0,
        tol=0.02,
        control_y=[r.A[0, C1, C1] for r in rs],
        note="-c_1^T S v_2 at T2; control: the start, omega^2",
    )


@claim("Lemma E.3 (comparison system)", part="proof-step", **said(past_gates, "holds-corrected"))
def comparison_system(study) -> Measurement:
    """x(t) = (omega^2/2)(e^{s t}(sqrt 2, 1, 1) + e^{-s t}(-sqrt 2, 1, 1)), s = sqrt 2 b, solves
    x' = b A x from (0, omega^2, omega^2); the printed system has b/sqrt m.
    """
    omega, b, m = float(study.config.omega), 0.05, 64
    times, h = np.linspace(0, 40, 9), 1e-5
    x = theory.comparison(times, omega, b)
    later, sooner = (theory.comparison(times + step, omega, b) for step in (h, -h))
    rate = (later - sooner) / (2 * h)
    A = np.array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])
    return corrected(
        printed=equal(b / np.sqrt(m) * A @ x, rate, rtol=1e-7),
        right=equal(b * A @ x, rate, rtol=1e-7),
        correction=Correction(
            printed="dx/dt = (b/sqrt m) A x, solved by exponentials of sqrt 2 b t",
            corrected="dx/dt = b A x: Lemma E.2 has no m",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                A, b, m, t = np.array([[0., 1, 1], [1, 0, 0], [1, 0, 0]]), 0.05, 64, 7.0
                r = np.sqrt(2)
                up, down = np.array([r, 1, 1]), np.array([-r, 1, 1])
                x = 0.5 * (np.exp(r * b * t) * up + np.exp(-r * b * t) * down)
                dx = 0.5 * r * b * (np.exp(r * b * t) * up - np.exp(-r * b * t) * down)
                assert np.allclose(dx, b * A @ x)
                assert not np.allclose(dx, b / np.sqrt(m) * A @ x)
            """,
        ),
    )


@claim("Lemma E.3 (eigenvectors)", part="proof-step", **said(past_gates))
def comparison_spectrum(study) -> Measurement:
    """[[0,1,1],[1,0,0],[1,0,0]] has the eigenvalues 0, +-sqrt 2, with (0,-1,1) and (lambda,1,1)."""
    A, root = np.array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]), np.sqrt(2)
    pairs = [(0.0, [0, -1, 1]), (root, [root, 1, 1]), (-root, [-root, 1, 1])]
    off = max(float(np.abs(A @ v - l * np.array(v)).max()) for l, v in pairs)
    wrong = float(np.abs(A @ [1, 1, 1] - root * np.ones(3)).max())
    return at_most(off, 1e-15, control=wrong)


@claim("Lemma E.3 (comparison)", part="proof-step", **said(staged))
def comparison_holds(study) -> Measurement:
    """The comparison system stays below (c.Sv, c.Ac, v.Bv) with the b of Lemma E.2."""
    r = second_stage(study)
    b = _largest_b(r)

    def least(rate: float) -> float:
        gap = _three(r) - theory.comparison(r.times, r.omega, rate)
        return float((gap / r.omega**2).min())

    return at_least(least(b), 0.0, slack=1e-9, control=least(6 * b), note="control: six times b")


@claim("ours: linear phase in closed form", **said(staged))
def linear_phase(study) -> Measurement:
    """While scores are small c.Sv = (omega^2/2) sinh(2 gamma t/9), v.Sc = -(omega^2/2)
    sinh(gamma t/9), c.Ac = (omega^2/2)(1 + cosh(2 gamma t/9)): the relative error is of the order
    of the score.
    """
    r = next(x for x in second_stages(study) if x.omega == min(OMEGAS))
    closed = theory.linear_phase(r.times, r.gamma, r.omega)
    found = {
        "c.S v": r.S[:, C1, V1],
        "v.S c": r.S[:, V1, C1],
        "c.A c": r.A[:, C1, C1],
        "v.A v": r.A[:, V1, V1],
    }
    size = r.S[:, C1, V1]
    small = (size > 1e-5) & (size < 1e-2)
    fast = theory.linear_phase(r.times, 1.02 * r.gamma, r.omega)

    def error(name: str, closed: dict[str, np.ndarray]) -> float:
        off = np.abs(found[name][small] / closed[name][small] - 1)
        return float((off / size[small]).max())

    note = "relative error over the score; control: gamma off by 2 %"
    return every(
        **{
            name: at_most(error(name, closed), 10.0, control=error(name, fast), note=note)
            for name in found
        }
    )
