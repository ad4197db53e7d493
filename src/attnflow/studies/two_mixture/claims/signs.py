"""Appendices E.3 and E.4: signs of all scores and self-scores, and the gates, Lemmas E.5, E.6."""

from __future__ import annotations

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    at_least,
    claim,
    corrected,
    equal,
    negative,
    positive,
)
from attnflow.studies.two_mixture.claims.common import (
    C1,
    C2,
    CONFLICTING,
    V1,
    V2,
    StageTwo,
    both_heads,
    forward,
    past_gates,
    said,
    second_stage,
    second_stages,
    staged,
)
from attnflow.studies.two_mixture.claims.stage_two import AFTER

# --- Signs: Lemma E.5; gates: Lemma E.6.

SIGNS = {
    1: ("S", C1, (V1, V2), 1),
    2: ("S", V1, (V1, V2), -1),
    3: ("S", C1, (C1, C2), 1),
    4: ("S", V1, (C1, C2), -1),
    5: ("B", C1, (V1, V2), 1),
    6: ("B", C1, (C1, C2), 1),
    7: ("B", V1, (V1, V2), 1),
    8: ("A", C1, (V1, V2), -1),
    9: ("A", C1, (C1, C2), 1),
}
"""The lines of Lemma E.5: block, key, the two queries, and the sign of the first."""


def _signs(study, line: tuple[str, int, tuple[int, int], int]) -> Measurement:
    block, key, (first, second), sign = line
    X = [getattr(r, block) / r.omega**2 for r in (second_stage(study), *second_stages(study))]
    pairs = [sign * np.stack([x[:, key, first], -x[:, key, second]]) for x in X]
    return at_least(
        min(float(p.min()) for p in pairs),
        0.0,
        slack=1e-9,
        control=min(float((-p).min()) for p in pairs),
        note="least on [T1, T2] over omega^2; control: the other sign",
    )


WORDS = {
    1: "c1'S v1 >= 0, c1'S v2 <= 0",
    2: "v1'S v1 <= 0, v1'S v2 >= 0",
    3: "c1'S c1 >= 0, c1'S c2 <= 0",
    4: "v1'S c1 <= 0, v1'S c2 >= 0",
    5: "c1'B v1 >= 0, c1'B v2 <= 0",
    6: "c1'B c1 >= 0, c1'B c2 <= 0",
    7: "v1'B v1 >= 0, v1'B v2 <= 0",
    8: "c1'A v1 <= 0, c1'A v2 >= 0",
    9: "c1'A c1 >= 0, c1'A c2 <= 0",
}


def _line(number: int) -> None:
    def signs_of_line(study) -> Measurement:
        return _signs(study, SIGNS[number])

    signs_of_line.__doc__ = f"On [T1, T2]: {WORDS[number]}."
    signs_of_line.__qualname__ += f"_{number}"
    claim(f"Lemma E.5 (line {number})", **said(staged))(signs_of_line)


for _number in SIGNS:
    _line(_number)


@claim("Lemma E.5 (lines 10 and 11)", **said(staged, "holds-corrected"))
def last_lines(study) -> Measurement:
    """On [T1, T2]: v1'A v1 >= 0, v1'A v2 <= 0; printed is v1'A c1 >= 0, v1'A c2 <= 0, twice."""
    return corrected(
        printed=_signs(study, ("A", V1, (C1, C2), 1)),
        right=_signs(study, ("A", V1, (V1, V2), 1)),
        correction=Correction(
            printed="v1'A c1 >= 0, v1'A c2 <= 0 (twice)",
            corrected="v1'A v1 >= 0, v1'A v2 <= 0; v1'A c1 is negative, as line 8 says",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                # A is symmetric, so line 8 (c1'A v1 <= 0) and v1'A c1 >= 0 leave only 0 = 0;
                # the leading column of S has c1'S v1 > 0 and v1'S v1 < 0 (lines 1 and 2)
                s, w4 = np.array([1.0, -0.11]), 1e-4              # rows c, v of the difference
                A = np.linalg.cholesky(np.outer(s, s) + w4 * np.eye(2))
                U, d, _ = np.linalg.svd(A)
                root = U @ np.diag(d) @ U.T                       # (omega^4 + s s^T)^(1/2)
                print(root)
                assert root[1, 0] < 0 < root[1, 1]
            """,
        ),
    )


@claim("Lemma E.5 (values at T1)", part="proof-step", **said(staged, "holds-corrected"))
def values_at_start(study) -> Measurement:
    """At T1 all scores and all self-scores of different signals are 0; the squared norms are
    omega^2.
    """
    r = second_stage(study)
    found = np.stack([r.S[0], r.A[0], r.B[0]]) / r.omega**2
    right = np.stack([np.zeros((4, 4)), np.eye(4), np.eye(4)])
    return corrected(
        printed=equal(0 * right, found, rtol=0.0, atol=1e-12),
        right=equal(right, found, rtol=1e-12),
        correction=Correction(
            printed="at t = T1 all the variables are zero",
            corrected="all but the squared norms v1'Bv1, c1'Bc1, c1'Ac1, v1'Av1, which are omega^2 "
            "(Lemma C.1); the signs hold there all the same",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                m, omega = 100_000, 0.1
                W = omega / np.sqrt(m) * np.random.default_rng(0).normal(size=(m, 4))
                print(W.T @ W)                                     # omega^2 I, not 0
                assert np.allclose(W.T @ W, omega**2 * np.eye(4), atol=3e-4)
            """,
        ),
    )


@claim("Lemma E.5 (growing variables)", part="proof-step", **said(staged, "holds-corrected"))
def growing_variables(study) -> Measurement:
    """c_1^T S v_1, c_1^T A c_1 and v_1^T B v_1 grow; printed is c_1^T A v_1, which falls."""
    r = second_stage(study)
    good = [r.rates["S"][AFTER, C1, V1], r.rates["A"][AFTER, C1, C1], r.rates["B"][AFTER, V1, V1]]
    return corrected(
        printed=positive(r.rates["A"][AFTER, C1, V1]),
        right=positive(np.stack(good)),
        correction=Correction(
            printed="d c1'S v1/dt, d c1'A v1/dt, d v1'B v1/dt >= 0",
            corrected="d c1'S v1/dt, d c1'A c1/dt, d v1'B v1/dt >= 0",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                s0, s1 = np.array([0.5, -0.03]), np.array([0.6, -0.04])   # c.Sv grows, v.Sv falls
                def root(s, w4=1e-4):
                    d, U = np.linalg.eigh(np.outer(s, s) + w4 * np.eye(2))
                    return U @ np.diag(np.sqrt(d)) @ U.T
                change = root(s1) - root(s0)                              # of c.A c, c.A v, v.A v
                assert change[0, 0] > 0 > change[0, 1]
            """,
        ),
    )


@claim("Lemma E.5 (v1 S c1)", part="proof-step", **said(staged))
def example_of_the_proof(study) -> Measurement:
    """d v_1^T S c_1/dt <= 0 on [T1, T2], the example of the proof."""
    r = second_stage(study)
    rate = r.rates["S"][:, V1] / r.omega**2
    return negative(rate[:, C1], control=rate[:, C2], note="control: v_1^T S c_2")


@claim("Lemma E.5 (second column)", part="proof-step", **said(staged))
def second_column(study) -> Measurement:
    """The rates of the second column have the opposite sign of those of the first."""
    r = second_stage(study)
    rows = [(r.rates[b][AFTER, k], i, j) for b, k, (i, j), _ in SIGNS.values()]
    both = np.stack([x[:, i] * x[:, j] for x, i, j in rows])
    same = np.stack([x[:, i] * x[:, i] for x, i, _ in rows])
    return negative(both / r.omega**4, control=same / r.omega**4)


@claim("Lemma E.5 (parabola)", part="proof-step", **said(past_gates, "holds-corrected"))
def parabola(study) -> Measurement:
    """If x_1 < 1/3 and 1/3 < x_2 < 2/3 then x_2 (1-x_2)/2 > x_1 (1-x_1)/2."""
    y = lambda x: (1 - x) * x / 2  # noqa: E731
    low = np.linspace(0.0, 1 / 3, 40)[:-1]

    def least(top: float) -> float:
        high = np.linspace(1 / 3, top, 40)[1:-1]
        return float((y(high)[:, None] - y(low)[None]).min())

    return corrected(
        printed=positive(least(1.0)),
        right=positive(least(2 / 3)),
        correction=Correction(
            printed="1/3 < x_2 < 3/3",
            corrected="1/3 < x_2 < 2/3",
            cause="extraction-or-typo",
            snippet="""
                y = lambda x: (1 - x) * x / 2
                assert y(0.9) < y(0.3)            # x_1 = 0.3 < 1/3 < x_2 = 0.9 < 3/3
                assert y(0.66) > y(0.33)
            """,
        ),
    )


@claim("Lemma E.6", **said(staged))
def gates_on(study) -> Measurement:
    """On [T1, T2] the gates of all conflicting samples are on, in both heads."""

    def least(r: StageTwo, bias: float) -> float:
        return float((forward(r.w, both_heads(r.S), CONFLICTING, r.bias)[1] + bias).min())

    found = [least(r, r.bias) for r in (second_stage(study), *second_stages(study))]
    return positive(
        found, control=least(second_stage(study), -10.0), note="least H + b; control: b = -10"
    )
