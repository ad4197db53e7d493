"""Theorem E.7 and the attention bullets of Theorem 4.1: the softmax at the end of stage 2.

Stage 3 leaves the attention as it is, so what Theorem 4.1 says at T3 is measured at T2. Tokens of
a sample by position: 0 is the group signal, 1 its own classification signal, 2 the other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, at_most, every, sign
from attnflow.studies.two_mixture.claims.common import C1, V1, V2, StageTwo, staged
from attnflow.studies.two_mixture.claims.stage_two import everyone, in_omega
from attnflow.studies.two_mixture.paper import paper

PP, MM, PM, MP = "c1 +v1 +v2", "c1 -v1 -v2", "c1 +v1 -v2", "c1 -v1 +v2"
PLUS, MINUS = 0, 1
Place = tuple[str, int, int, int]
"""Sample, query, key, head."""
Pairs = list[tuple[Place, Place]]

VISIBLE = 1e-4
"""What a gap of attention that is not just O(omega) has at least."""


def gap(r: StageTwo, one: Place, other: Place) -> float:
    """The difference of two entries of the attention at T2."""
    return float(r.p(*one)[-1] - r.p(*other)[-1])


def largest(r: StageTwo, pairs: Pairs) -> float:
    return max(abs(gap(r, one, other)) for one, other in pairs)


def plus(a: str, qa: int, ka: int, b: str, qb: int, kb: int) -> tuple[Place, Place]:
    """Two places of the plus head."""
    return (a, qa, ka, PLUS), (b, qb, kb, PLUS)


GROUP_QUERY = [plus(PM, 0, 1, PM, 0, 2)]
"""The two classification keys of X_{1,+,-} from the group query: alike up to a power of omega."""


def small(study, pairs: Pairs) -> Measurement:
    """Each difference is O~(omega)."""
    heads = (PM, 1, 0, PLUS), (PM, 1, 0, MINUS)
    other = Control("the group key between the heads", measured=lambda r: gap(r, *heads))
    return in_omega(study, "O", 1, lambda r: largest(r, pairs), other, tol=0.2)


def zero(study, pairs: Pairs) -> Measurement:
    """The differences that O~(omega) allows are exactly 0."""
    other = Control("from the group query", [largest(r, GROUP_QUERY) for r in everyone(study)])
    found = [largest(r, pairs) for r in everyone(study)]
    return at_most(bound=1e-13, measured=found, control=other, note="0 to rounding")


def constant(study, pairs: Pairs) -> Measurement:
    """Each difference is of order one."""
    other = Control("a near-symmetric pair", measured=lambda r: largest(r, GROUP_QUERY))
    of = lambda pair: in_omega(study, "Theta", 0, lambda r: gap(r, *pair), other, 0.02)  # noqa: E731
    parts = {f"query{pair[0][1]}": of(pair) for pair in pairs}
    return every(**parts)


def group_key(study, there: tuple[str, int, Place]) -> Measurement:
    """The group query attends to the group key more than there, by far more than `easy` says."""
    (sample, head, easy), runs = there, everyone(study)
    found = [gap(r, (PM, 0, 0, PLUS), (sample, 0, 0, head)) for r in runs]
    other = Control("on the consistent samples", [gap(r, (PP, 0, 0, PLUS), easy) for r in runs])
    return sign(predicted=1, measured=found, margin=VISIBLE, control=other)


SWAPPED = [plus(PP, q, k, MM, (0, 2, 1)[q], (0, 2, 1)[k]) for q in (0, 1, 2) for k in (0, 1, 2)]
"""X_{1,+,+} and X_{1,-,-} with v_1 and v_2 exchanged, query by query."""
KEYS = [plus(PM, 1, 1, PM, 1, 2), plus(PM, 2, 1, PM, 2, 2)]
LABELS = [plus(PM, 1, 0, MP, 1, 0), plus(PM, 2, 0, MP, 2, 0)]
HEADS = [((PM, q, 0, PLUS), (PM, q, 0, MINUS)) for q in (1, 2)]

DIFFERENCES = {
    "Thm E.7 (consistent, group query)": (
        r"From $c_1$, $X_{1,+,+}$ and $X_{1,-,-}$ are attended alike up to $\tilde O(\omega)$.",
        ("small", SWAPPED[:3]),
    ),
    "Thm E.7 (consistent, signal query)": (
        r"With a signal query $X_{1,+,+}$ is attended as $X_{1,-,-}$ with $v_1, v_2$ exchanged.",
        ("zero", SWAPPED[3:]),
    ),
    "Thm E.7 (conflicting, group query, sign)": (
        r"From $c_1$ the group key has more attention on $X_{1,+,-}$ than on $X_{1,-,+}$.",
        ("greater", (MP, PLUS, (MM, 0, 0, PLUS))),
    ),
    "Thm E.7 (conflicting, group query, sizes)": (
        r"From $c_1$ both signal keys have the same attention up to $\tilde O(\omega)$.",
        ("small", [*GROUP_QUERY, plus(MP, 0, 1, MP, 0, 2)]),
    ),
    "Thm E.7 (conflicting, signal query, concentration)": (
        r"With a signal query $c_1$ has more on $X_{1,+,-}$ than on $X_{1,-,+}$, by a constant.",
        ("constant", LABELS),
    ),
    "Thm E.7 (conflicting, signal query, near symmetry)": (
        r"On $X_{1,+,-}$ a signal query attends to both signal keys alike, both to $c_1$ alike.",
        ("zero", [*KEYS, plus(PM, 2, 0, PM, 1, 0)]),
    ),
    "Thm 4.1 (concentration, signal queries)": (
        r"On $X_{1,+,-}$ signal queries attend to $c_1$ more in the plus head, by a constant.",
        ("constant", HEADS),
    ),
    "Thm 4.1 (concentration, group query)": (
        r"On $X_{1,+,-}$ the query $c_1$ attends to $c_1$ at least as much in the plus head.",
        ("greater", (PM, MINUS, (PP, 0, 0, MINUS))),
    ),
    "Thm 4.1 (near symmetry, signal queries)": (
        r"On $X_{1,+,-}$ $v_1$ and $-v_2$ have the same attention from $v_1$ and from $-v_2$.",
        ("zero", KEYS),
    ),
    "Thm 4.1 (near symmetry, group query)": (
        r"On $X_{1,+,-}$ $v_1$ and $-v_2$ are attended alike from $c_1$ up to $\tilde O(\omega)$.",
        ("small", GROUP_QUERY),
    ),
}


@paper.family(DIFFERENCES, regime=staged)
def differences(study, case: tuple[str, Any]) -> Measurement:
    """Differences of the attention at T2: small, exactly zero, of order one, or one greater."""
    size, of = case
    how = {"small": small, "zero": zero, "constant": constant, "greater": group_key}
    return how[size](study, of)


@paper.claim("Section 5.2 (group query)", regime=staged)
def scores_of_group_query(study) -> Measurement:
    r"""$v_1^\top S c_1 < 0 < v_2^\top S c_1$ after $T_1$, which puts the plus head's attention on
    $c_1$."""
    S = [r.S[1:] / r.omega**2 for r in everyone(study)]
    turned = Control("keys and queries exchanged", [[-X[:, C1, V1], X[:, C1, V2]] for X in S])
    found = [[-X[:, V1, C1], X[:, V2, C1]] for X in S]
    return sign(predicted=1, measured=found, control=turned)


@paper.claim("Section 5.2 (classification keys)", regime=staged)
def keys_near_symmetry(study) -> Measurement:
    r"""$v_1^\top S\mu \approx -v_2^\top S\mu$ for $\mu = v_1, v_2, c_1$ up to a power of
    $\omega$."""

    def sums(r: StageTwo) -> float:
        return float(np.abs(r.S[-1, V1] + r.S[-1, V2])[[V1, V2, C1]].max())

    itself = Control("v_1' S v_1 itself", measured=lambda r: -r.S[-1, V1, V1])
    return in_omega(study, "O", 1, sums, itself)
