"""Which steps a series should have: powers of two and then equal distances, as far as they show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def missing_steps(steps: Sequence[int], planned: Sequence[int] | None = None) -> list[int]:
    """Steps that the others say should be there, or that a plan names.

    A hole is seen where both its sides go on as the series does: between powers of two, or where
    a distance is a multiple of its neighbours'.

    >>> missing_steps([0, 1, 2, 4, 16, 32])
    [8]
    >>> missing_steps([0, 1000, 2000, 4000, 5000])
    [3000]
    >>> missing_steps([0, 1, 2, 4, 8, 1000, 2000, 3000])
    []
    """
    found = sorted(set(steps))
    if planned is not None:
        return sorted(set(planned) - set(found))
    missing = []
    gaps = [b - a for a, b in pairwise(found)]
    for at, (a, b) in enumerate(pairwise(found)):
        if b != 2 * a or not _power(a):
            missing += _doubling(found, at, a, b) or _even(gaps, at, a, b)
    return missing


def _doubling(found: list[int], at: int, a: int, b: int) -> list[int]:
    """The powers of two between two powers of two in a series that doubles."""
    before = [n for n in found[: at + 1] if n > 0]
    later = found[at + 1 :]
    doubles = len(before) > 1 or [b, 2 * b] == later[:2]
    if not all(_power(n) for n in (*before, b)) or len(later) < 2 or not doubles:
        return []
    if a == 0 and b != 2:
        return []  # where a series begins after 0 is its own affair
    hole = [2**k for k in range(a.bit_length(), b.bit_length() - 1)]
    gaps = [n - m for m, n in pairwise(later)]
    # Several at once, before an even spacing that begins with b: the schedule itself changes.
    return [] if len(hole) > 1 and gaps[:2] == [b, b] else hole


def _even(gaps: list[int], at: int, a: int, b: int) -> list[int]:
    """What is left out of an even spacing."""
    beside = [gaps[k] for k in (at - 2, at - 1, at + 1, at + 2) if 0 <= k < len(gaps)]
    for gap in dict.fromkeys(beside):
        left, right = gaps[max(at - 2, 0) : at], gaps[at + 1 : at + 3]
        around = (left[-1:] == [gap] and right[:1] == [gap]) or [gap] * 2 in (left, right)
        if around and gap > 0 and b - a > gap and (b - a) % gap == 0 and a % gap == b % gap == 0:
            return list(range(a + gap, b, gap))
    return []


def _power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0
