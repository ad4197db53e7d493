"""Section 5.2 and Appendix E.2: the near symmetry of the scores, Lemma E.4."""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    at_most,
    claim,
    corrected,
    equal,
    every,
    exponent,
)
from attnflow.studies.two_mixture.claims.common import (
    C1,
    C2,
    CONFLICTING,
    OMEGAS,
    V1,
    V2,
    StageTwo,
    both_heads,
    force,
    forward,
    order_at_most,
    said,
    second_stage,
    second_stages,
    staged,
)
from attnflow.studies.two_mixture.claims.stage_two import SNIPPET_STAGE_TWO

SUMS = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
"""c_1 + c_2 and v_1 + v_2."""

# --- Near symmetry: Lemma E.4.


def _asymmetry(S: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Delta of Lemma E.4 over time."""
    parts = [SUMS @ S, S @ SUMS.T, SUMS @ A, SUMS @ B]
    return np.max([np.abs(x).max(axis=(1, 2)) for x in parts], axis=0)


@functools.lru_cache(maxsize=64)
def _deltas(r: StageTwo) -> tuple[np.ndarray, np.ndarray]:
    """Delta, and a bound on |dDelta/dt|: the fastest of the sums it is the largest of."""
    return _asymmetry(r.S, r.A, r.B), _asymmetry(*(r.rates[n] for n in "SAB"))


@claim("Lemma E.4 (size)", **said(staged, "consistent"))
def asymmetry_small(study) -> Measurement:
    """Delta = O~(omega) up to T2; it is of order omega^2."""
    rs = second_stages(study)
    return order_at_most(
        OMEGAS,
        [_deltas(r)[0].max() for r in rs],
        1.0,
        control_y=[r.S[-1, C1, V1] for r in rs],
        note="control: the leading score",
    )


@claim("ours: asymmetry is omega^2", part="constant", **said(staged, "consistent"))
def asymmetry_order(study) -> Measurement:
    """Delta(T2) = omega^2 (1 + small): the sum sector of the self-scores hardly moves."""
    rs = second_stages(study)
    return exponent(OMEGAS, [_deltas(r)[0][-1] for r in rs], 2.0, tol=0.2, control=1.0)


@claim("Lemma E.4 (rates)", **said(staged, "consistent"))
def asymmetry_slow(study) -> Measurement:
    """dDelta/dt over d c_1^T S v_1/dt = O~(omega) on [T1, T2]; it is of order omega^2."""
    rs = second_stages(study)
    found = [(_deltas(r)[1] / r.rates["S"][:, C1, V1]).max() for r in rs]
    other = [(-r.rates["S"][:, V1, C1] / r.rates["S"][:, C1, V1]).max() for r in rs]
    return order_at_most(
        OMEGAS, found, 1.0, control_y=other, note="control: v_1^T S c_1 in place of Delta"
    )


@claim("Lemma E.4 (start)", part="proof-step", **said(staged))
def asymmetry_start(study) -> Measurement:
    """Delta(T1) = omega^2 and dDelta/dt = 0 at T1."""
    r = second_stage(study)
    size, speed = _deltas(r)
    return every(
        size=equal(r.omega**2, size[0], rtol=1e-12, control=r.omega),
        speed=at_most(speed[0], 1e-18, control=speed[-1], note="control: at T2"),
    )


@claim("Lemma E.4 (eq 15)", part="proof-step", **said(staged, "consistent"))
def asymmetry_rate(study) -> Measurement:
    """|dDelta/dt| <= O(Delta Delta p), Delta p the largest change of attention from 1/3."""
    rs = second_stages(study)

    def constant(r: StageTwo) -> float:
        size, speed = _deltas(r)
        moved = np.abs(r.attention - 1 / 3).max(axis=(1, 2, 3, 4))
        return float((speed / np.where(moved > 0, size * moved, np.inf)).max())

    return order_at_most(
        OMEGAS,
        [constant(r) for r in rs],
        0.0,
        control_y=[constant(r) / r.omega for r in rs],
        note="over Delta Delta p; control: over omega times it",
    )


@claim("Lemma E.4 (uniform attention)", part="proof-step", **said(staged, "holds-corrected"))
def rate_at_uniform_attention(study) -> Measurement:
    """With p = 1/3 d c_1^T S v_1/dt is (1/12) g 2 (2/3) w.c_1 (v_1^T B v_1 - v_1^T B v_2 +
    c_1^T A c_1 - c_1^T A c_2), and d c_1^T S (v_1 + v_2)/dt vanishes.
    """
    r = second_stage(study)
    _, M = force(r.w, both_heads(r.S), CONFLICTING, r.bias, uniform=True)
    M = M[:, 0]
    rate = M @ r.B + r.A @ M
    g = 1 / (1 + np.exp(forward(r.w, both_heads(r.S), CONFLICTING, r.bias)[2][:, 0]))
    brackets = r.B[:, V1, V1] - r.B[:, V1, V2] + r.A[:, C1, C1] - r.A[:, C1, C2]
    printed = g / 3 * 2 * brackets * 2 / 3 * r.gamma
    gap = np.abs(rate[:, C1, V1] + rate[:, C1, V2]).max()
    found = equal(printed / 4, rate[:, C1, V1], rtol=1e-10)
    vanishes = at_most(gap, 1e-12 * np.abs(rate).max(), control=np.abs(rate[:, C1, V1]).max())
    return corrected(
        printed=equal(printed, rate[:, C1, V1], rtol=1e-10),
        right=every(
            rate=equal(printed / 4, rate[:, C1, V1], rtol=1e-10, control=printed), sum=vanishes
        )
        if found.good
        else found,
        correction=Correction(
            printed="(1/3) g 2 (v1'Bv1 - v1'Bv2)(2/3 w.c1) + (1/3) g 2 (c1'Ac1 - c1'Ac2)(2/3 w.c1)",
            corrected="the same times 1/4, the weight of each conflicting sample",
            cause="constant",
            snippet=SNIPPET_STAGE_TWO
            + "print(dS[0, 2], 1 / 3 * 0.5 * 2 * 2 * w2 * 2 / 3 * gamma)\n"
            "assert np.isclose(4 * dS[0, 2], 1 / 3 * 0.5 * 2 * 2 * w2 * 2 / 3 * gamma)",
        ),
    )


@claim("Section 5.2 (near symmetries)", **said(staged, "consistent"))
def leading_near_symmetry(study) -> Measurement:
    """c_1^T S v_1 = -c_1^T S v_2, c_1^T A c_1 = -c_1^T A c_2 and v_1^T B v_1 = -v_1^T B v_2 hold at
    T2 up to a power of omega.
    """
    rs = second_stages(study)
    sums = [
        max(
            abs(r.S[-1, C1, V1] + r.S[-1, C1, V2]),
            r.A[-1, C1, C1] + r.A[-1, C1, C2],
            r.B[-1, V1, V1] + r.B[-1, V1, V2],
        )
        for r in rs
    ]
    return order_at_most(
        OMEGAS, sums, 1.0, control_y=[r.A[-1, C1, C1] for r in rs], note="control: c.Ac itself"
    )


@claim("Section 5.2 (three variables at T1)", part="proof-step", **said(staged))
def three_variables_at_start(study) -> Measurement:
    """At T1 the rate of c_1^T S v_1 depends on c_1^T A c_1 and v_1^T B v_1 alone, and the rates of
    these two on c_1^T S v_1 alone: 1 : 1 : 2 : 2 in units of gamma/18 after near symmetry.
    """
    r = second_stage(study)
    M = r.M[0]
    near = np.array([1.0, -1.0])
    lead = np.zeros((4, 4))
    lead[:V1, V1:] = np.outer(near, near)
    first = (M @ _only(V1) + _only(C1) @ M)[C1, V1]
    second, third = 2 * (M @ lead.T)[C1, C1], 2 * (M.T @ lead)[V1, V1]
    unit = r.gamma / 18
    return equal(
        [2 * unit, 4 * unit, 4 * unit],
        [first, second, third],
        rtol=1e-10,
        control=[2 * unit, 2 * unit, 2 * unit],
    )


def _only(k: int) -> np.ndarray:
    E = np.zeros((4, 4))
    E[k, k] = 1.0
    return E
