"""Theorem E.7 and the attention bullets of Theorem 4.1: the softmax at the end of stage 2.

Stage 3 leaves the attention as it is, so what Theorem 4.1 says at T3 is measured at T2. Tokens of
a sample by position: 0 is the group signal, 1 its own classification signal, 2 the other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Measurement, at_most, claim, every, exponent, positive
from attnflow.studies.two_mixture.claims.common import (
    C1,
    OMEGAS,
    V1,
    V2,
    StageTwo,
    order_at_most,
    said,
    second_stage,
    second_stages,
    staged,
)

PP, MM, PM, MP = "c1 +v1 +v2", "c1 -v1 -v2", "c1 +v1 -v2", "c1 -v1 +v2"
PLUS, MINUS = 0, 1
Place = tuple[str, int, int, int]
"""Sample, query, key, head."""

EXACT = 1e-13


def gap(r: StageTwo, one: Place, other: Place) -> float:
    """The difference of two entries of the attention at T2."""
    return float(r.p(*one)[-1] - r.p(*other)[-1])


def _largest(r: StageTwo, pairs: list[tuple[Place, Place]]) -> float:
    return max(abs(gap(r, one, other)) for one, other in pairs)


def _pair(a: str, qa: int, ka: int, b: str, qb: int, kb: int) -> tuple[Place, Place]:
    return (a, qa, ka, PLUS), (b, qb, kb, PLUS)


def _small(study, pairs: list[tuple[Place, Place]]) -> Measurement:
    """Each difference is O~(omega)."""
    rs = second_stages(study)
    return order_at_most(
        OMEGAS,
        [_largest(r, pairs) for r in rs],
        1.0,
        tol=0.05,
        control_y=[gap(r, (PM, 1, 0, PLUS), (PM, 1, 0, MINUS)) for r in rs],
        note="control: the concentration on the group key",
    )


def _zero(study, pairs: list[tuple[Place, Place]]) -> Measurement:
    """The differences that O~(omega) allows are exactly 0."""
    everyone = (second_stage(study), *second_stages(study))
    found = max(_largest(r, pairs) for r in everyone)
    moved = min(_largest(r, [_pair(PM, 0, 1, PM, 0, 2)]) for r in everyone)
    return at_most(
        found, EXACT, control=moved, note="0 to rounding, not just O(omega); control: group query"
    )


def _constant(study, pairs: list[tuple[Place, Place]]) -> Measurement:
    """Each difference is of order one."""
    rs = second_stages(study)
    tiny = [abs(gap(r, *_pair(PM, 0, 1, PM, 0, 2))) for r in rs]
    return every(
        **{
            f"query{one[1]}": exponent(
                OMEGAS,
                [gap(r, one, other) for r in rs],
                0.0,
                tol=0.02,
                control_y=tiny,
                note="control: a near-symmetric pair",
            )
            for one, other in pairs
        }
    )


# --- Theorem E.7, the four blocks.


@claim("Thm E.7 (consistent, group query)", **said(staged, "consistent"))
def consistent_group_query(study) -> Measurement:
    """With the query c_1, X_{1,+,+} and X_{1,-,-} are attended alike up to O~(omega)."""
    return _small(
        study, [_pair(PP, 0, 0, MM, 0, 0), _pair(PP, 0, 1, MM, 0, 2), _pair(PP, 0, 2, MM, 0, 1)]
    )


@claim("Thm E.7 (consistent, signal query)", **said(staged))
def consistent_signal_query(study) -> Measurement:
    """With a classification query, X_{1,+,+} and X_{1,-,-} are attended alike with v_1 and v_2
    exchanged.
    """
    swap = (0, 2, 1)
    return _zero(study, [_pair(PP, q, k, MM, swap[q], swap[k]) for q in (1, 2) for k in (0, 1, 2)])


@claim("Thm E.7 (conflicting, group query, sign)", **said(staged))
def conflicting_group_sign(study) -> Measurement:
    """With the query c_1 the group key has more attention on X_{1,+,-} than on X_{1,-,+}."""
    return _group_sign(study, MP, PLUS)


def _group_sign(study, sample: str, head: int) -> Measurement:
    everyone = (second_stage(study), *second_stages(study))
    found: Any = [gap(r, (PM, 0, 0, PLUS), (sample, 0, 0, head)) for r in everyone]
    words = [f"{r.omega:g}: {x:.4g}" for r, x in zip(everyone, found, strict=True)]
    return positive(found, control=[-x for x in found], note=", ".join(words))


@claim("Thm E.7 (conflicting, group query, sizes)", **said(staged, "consistent"))
def conflicting_group_sizes(study) -> Measurement:
    """With the query c_1 both classification keys have the same attention up to O~(omega)."""
    return _small(study, [_pair(PM, 0, 1, PM, 0, 2), _pair(MP, 0, 1, MP, 0, 2)])


@claim("Thm E.7 (conflicting, signal query, concentration)", **said(staged, "consistent"))
def conflicting_concentration(study) -> Measurement:
    """With a classification query the group key has more attention on X_{1,+,-} than on X_{1,-,+},
    by a constant.
    """
    return _constant(study, [_pair(PM, 1, 0, MP, 1, 0), _pair(PM, 2, 0, MP, 2, 0)])


@claim("Thm E.7 (conflicting, signal query, near symmetry)", **said(staged))
def conflicting_near_symmetry(study) -> Measurement:
    """On X_{1,+,-} both classification keys have the same attention from each classification
    query, and the group key the same from both.
    """
    return _zero(
        study, [_pair(PM, 1, 1, PM, 1, 2), _pair(PM, 2, 1, PM, 2, 2), _pair(PM, 2, 0, PM, 1, 0)]
    )


# --- Theorem 4.1.


@claim("Thm 4.1 (concentration, signal queries)", **said(staged, "consistent"))
def concentration(study) -> Measurement:
    """On X_{1,+,-} the plus head attends to c_1 more than the minus head by a constant, from v_1
    and from -v_2.
    """
    heads = [((PM, q, 0, PLUS), (PM, q, 0, MINUS)) for q in (1, 2)]
    return _constant(study, heads)


@claim("Thm 4.1 (concentration, group query)", **said(staged))
def group_concentration(study) -> Measurement:
    """On X_{1,+,-} the plus head attends to c_1 at least as much as the minus head, from c_1."""
    return _group_sign(study, PM, MINUS)


@claim("Thm 4.1 (near symmetry, signal queries)", **said(staged))
def near_symmetry(study) -> Measurement:
    """On X_{1,+,-} the keys v_1 and -v_2 have the same attention from v_1 and from -v_2."""
    return _zero(study, [_pair(PM, 1, 1, PM, 1, 2), _pair(PM, 2, 1, PM, 2, 2)])


@claim("Thm 4.1 (near symmetry, group query)", **said(staged, "consistent"))
def group_near_symmetry(study) -> Measurement:
    """On X_{1,+,-} the keys v_1 and -v_2 have the same attention from c_1 up to O~(omega)."""
    return _small(study, [_pair(PM, 0, 1, PM, 0, 2)])


@claim("Section 5.2 (group query)", **said(staged))
def scores_of_group_query(study) -> Measurement:
    """v_1^T S c_1 < 0 < v_2^T S c_1 after T1, which puts the plus head's attention on c_1."""
    found = np.stack(
        [
            [-r.S[1:, V1, C1] / r.omega**2, r.S[1:, V2, C1] / r.omega**2]
            for r in (second_stage(study), *second_stages(study))
        ]
    )
    return positive(found, control=-found)


@claim("Section 5.2 (classification keys)", **said(staged, "consistent"))
def keys_near_symmetry(study) -> Measurement:
    """v_1^T S mu and -v_2^T S mu agree for mu = v_1, v_2, c_1 up to a power of omega."""
    rs = second_stages(study)
    sums = [max(abs(float(r.S[-1, V1, mu] + r.S[-1, V2, mu])) for mu in (V1, V2, C1)) for r in rs]
    return order_at_most(
        OMEGAS,
        sums,
        1.0,
        control_y=[abs(r.S[-1, V1, V1]) for r in rs],
        note="control: v_1^T S v_1 itself",
    )
