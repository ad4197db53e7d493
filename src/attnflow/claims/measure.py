"""Measurements: a prediction, what was measured, the tolerance, and a control that must flip.

Every builder compares twice: once as claimed, once with the prediction (`control`) or the setting
(`control_measured`) perturbed. The second comparison has to give the other answer; a check that
cannot come out differently shows nothing, and `Claim.check` calls it a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow._errors import InputError, shown
from attnflow.claims.values import Value, finite, numbers, plain
from attnflow.claims.verdict import Strength, Verdict

if TYPE_CHECKING:
    from attnflow.claims.evidence import Correction

MOST_ENTRIES = 64
"""Arrays with more entries than this are stored as their worst entry."""


@dataclass(frozen=True)
class Control:
    """The perturbed comparison: whether it flipped the verdict, and how it came out."""

    flips: bool
    sentence: str
    predicted: Value = None
    measured: Value = None


@dataclass(frozen=True)
class Measurement:
    """The outcome of one comparison, as the builders of this module make it."""

    verdict: Verdict
    sentence: str
    predicted: Value = None
    measured: Value = None
    tolerance: Value = None
    error: float | None = None
    strength: Strength = Strength.NUMERIC
    control: Control | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    correction: Correction | None = None

    @property
    def good(self) -> bool:
        """Whether the comparison came out as predicted."""
        return self.verdict in (Verdict.HOLDS, Verdict.CONSISTENT)


def equal(
    predicted: ArrayLike,
    measured: ArrayLike,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    each: bool = False,
    control: ArrayLike | None = None,
    control_measured: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """`|measured - predicted| <= atol + rtol |predicted|`, for a number or entry by entry.

    For arrays `|predicted|` is the largest entry, so that a predicted 0 among others is compared
    at the scale of the whole; with `each=True` every entry is compared at its own size.

    >>> equal(predicted=2.0, measured=2.0 + 1e-12, control=2.1).verdict
    <Verdict.HOLDS: 'holds'>
    """
    _tolerances(rtol=rtol, atol=atol)

    def compare(p: NDArray, m: NDArray) -> Outcome:
        gap = np.abs(m - p)
        size = np.abs(p) if each else np.max(np.abs(p))
        allowed = np.broadcast_to(atol + rtol * size, gap.shape)
        return _entrywise(p, m, gap <= allowed, gap, allowed, "error {error}, allowed {allowed}")

    return _twice(
        compare, (predicted, measured), (control, control_measured), Strength.NUMERIC, note
    )


def at_most(
    measured: ArrayLike,
    bound: ArrayLike,
    *,
    slack: float = 0.0,
    control: ArrayLike | None = None,
    control_bound: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """`measured <= bound + slack` in every entry.

    `control` is the same quantity measured where the claim should break; `control_bound` is a
    perturbed bound instead.
    """
    _tolerances(slack=slack)

    def compare(b: NDArray, m: NDArray) -> Outcome:
        allowed = np.broadcast_to(slack, np.broadcast_shapes(b.shape, m.shape))
        over = m - b
        return _entrywise(b, m, over <= slack, over, allowed, "{measured} against at most {bound}")

    return _twice(compare, (bound, measured), (control_bound, control), Strength.NUMERIC, note)


def at_least(
    measured: ArrayLike,
    bound: ArrayLike,
    *,
    slack: float = 0.0,
    control: ArrayLike | None = None,
    control_bound: ArrayLike | None = None,
    note: str = "",
) -> Measurement:
    """`measured >= bound - slack` in every entry; controls as in `at_most`."""
    _tolerances(slack=slack)

    def compare(b: NDArray, m: NDArray) -> Outcome:
        allowed = np.broadcast_to(slack, np.broadcast_shapes(b.shape, m.shape))
        under = b - m
        words = "{measured} against at least {bound}"
        return _entrywise(b, m, under <= slack, under, allowed, words)

    return _twice(compare, (bound, measured), (control_bound, control), Strength.NUMERIC, note)


def positive(
    measured: ArrayLike, *, margin: float = 0.0, control: ArrayLike | None = None, note: str = ""
) -> Measurement:
    """`measured > margin` in every entry; `control` is measured where the sign should change."""
    return _signed(measured, +1, margin, control, note)


def negative(
    measured: ArrayLike, *, margin: float = 0.0, control: ArrayLike | None = None, note: str = ""
) -> Measurement:
    """`measured < -margin` in every entry; `control` is measured where the sign should change."""
    return _signed(measured, -1, margin, control, note)


def fact(
    measured: bool, *, control: bool | None = None, sentence: str = "", note: str = ""
) -> Measurement:
    """A statement that is simply true or false; `control` is its truth in a perturbed setting."""
    for name, value in (("measured", measured), ("control", control)):
        if value is not None and not isinstance(value, bool | np.bool_):
            raise InputError(name, f"{shown(value)} is not a truth value; give True or False")
    found = bool(measured)
    flipped = None
    if control is not None:
        words = f"in the perturbed setting it is {_said(bool(control))}"
        flipped = Control(bool(control) is not found, words, True, bool(control))
    return Measurement(
        verdict=Verdict.HOLDS if found else Verdict.FAILS,
        sentence=_joined(sentence or f"it is {_said(found)}", note),
        predicted=True,
        measured=found,
        strength=Strength.EXACT,
        control=flipped,
    )


def every(**parts: Measurement) -> Measurement:
    """All of several measurements: holds when each does, and every control has to flip.

    >>> every(top=equal(1.0, 1.0, control=2.0), low=positive(3.0, control=-3.0)).verdict
    <Verdict.HOLDS: 'holds'>
    """
    if not parts:
        raise InputError("every", "no measurement was given")
    for name, part in parts.items():
        if part.correction is not None or part.verdict is Verdict.NOT_CHECKABLE:
            raise InputError(name, f"is {part.verdict.label}; give it a claim of its own")
    some_fit = any(p.verdict is Verdict.CONSISTENT for p in parts.values())
    good = Verdict.CONSISTENT if some_fit else Verdict.HOLDS
    controls = {name: p.control for name, p in parts.items() if p.control is not None}
    control = None
    if len(controls) == len(parts):
        words = "; ".join(f"{name}: {c.sentence}" for name, c in controls.items())
        control = Control(all(c.flips for c in controls.values()), words)
    weakest = max((p.strength for p in parts.values()), key=list(Strength).index)
    return Measurement(
        verdict=good if all(p.good for p in parts.values()) else Verdict.FAILS,
        sentence="; ".join(f"{name}: {p.sentence}" for name, p in parts.items()),
        predicted=[p.predicted for p in parts.values()],
        measured=[p.measured for p in parts.values()],
        tolerance=[p.tolerance for p in parts.values()],
        error=max((p.error for p in parts.values() if p.error is not None), default=None),
        strength=weakest,
        control=control,
        evidence={name: dict(p.evidence) for name, p in parts.items() if p.evidence},
    )


def not_checkable(reason: str) -> Measurement:
    """Nothing can be concluded, and why; the one measurement that needs no control."""
    if not reason.strip():
        raise InputError("reason", "is empty; say why the claim cannot be checked")
    return Measurement(Verdict.NOT_CHECKABLE, reason.strip())


@dataclass(frozen=True)
class Outcome:
    """One comparison: whether it came out as predicted, and the numbers to show for it."""

    good: bool
    sentence: str
    predicted: Value
    measured: Value
    tolerance: Value
    error: float | None


def _twice(
    compare: Callable[[NDArray, NDArray], Outcome],
    claimed: tuple[ArrayLike, ArrayLike],
    perturbed: tuple[ArrayLike | None, ArrayLike | None],
    strength: Strength,
    note: str,
) -> Measurement:
    """Compare as claimed and as perturbed; a value without a perturbed one is used in both."""
    predicted, measured = numbers("predicted", claimed[0]), numbers("measured", claimed[1])
    with np.errstate(all="ignore"):
        main = compare(*_matched(predicted, measured))
    control = None
    if any(p is not None for p in perturbed):
        p = predicted if perturbed[0] is None else numbers("control", perturbed[0])
        m = measured if perturbed[1] is None else numbers("control", perturbed[1])
        given = [a for a, raw in ((p, perturbed[0]), (m, perturbed[1])) if raw is not None]
        if all(np.isfinite(a).all() for a in given):
            with np.errstate(all="ignore"):
                other = compare(*_matched(p, m))
            flips = other.good is not main.good
            control = Control(flips, other.sentence, other.predicted, other.measured)
        else:
            control = Control(False, "the control is not finite, so it shows nothing")
    return Measurement(
        verdict=Verdict.HOLDS if main.good else Verdict.FAILS,
        sentence=_joined(main.sentence, note),
        predicted=main.predicted,
        measured=main.measured,
        tolerance=main.tolerance,
        error=main.error,
        strength=strength,
        control=control,
    )


def _signed(
    measured: ArrayLike, sign: int, margin: float, control: ArrayLike | None, note: str
) -> Measurement:
    _tolerances(margin=margin)
    words = "{measured}, predicted " + ("> {allowed}" if sign > 0 else "< -{allowed}")

    def compare(p: NDArray, m: NDArray) -> Outcome:
        allowed = np.broadcast_to(margin, m.shape)
        return _entrywise(p, m, sign * m > margin, -sign * m, allowed, words)

    return _twice(compare, (float(sign), measured), (None, control), Strength.NUMERIC, note)


def _entrywise(
    predicted: NDArray,
    measured: NDArray,
    good: NDArray,
    error: NDArray,
    allowed: NDArray,
    words: str,
) -> Outcome:
    """Judge all entries, and describe the worst one."""
    excess = np.where(np.isnan(error), np.inf, error - allowed)
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    p, m = np.broadcast_to(predicted, good.shape), np.broadcast_to(measured, good.shape)
    sentence = words.format(
        error=f"{error[worst]:.3g}",
        allowed=f"{allowed[worst]:.3g}",
        measured=f"{m[worst]:.6g}",
        bound=f"{p[worst]:.6g}",
    )
    if good.size > 1:
        sentence += f" (worst of {good.size} entries)"
    if not np.isfinite(measured).all():
        sentence += "; what was measured is not finite"
    if good.size > MOST_ENTRIES:
        predicted, measured, allowed = p[worst], m[worst], allowed[worst]
    same = np.all(allowed == allowed.flat[0])
    return Outcome(
        good=bool(good.all()),
        sentence=sentence,
        predicted=plain(predicted),
        measured=plain(measured),
        tolerance=plain(allowed.flat[0] if same else allowed),
        error=finite(float(error[worst])),
    )


def _matched(predicted: NDArray, measured: NDArray) -> tuple[NDArray, NDArray]:
    """Two arrays of one shape, or one of them a single number."""
    if predicted.shape != measured.shape and predicted.ndim and measured.ndim:
        raise InputError(
            "measured", f"has shape {measured.shape} and the prediction {predicted.shape}"
        )
    return predicted, measured


def _tolerances(**given: float) -> None:
    for name, value in given.items():
        if not (np.ndim(value) == 0 and np.isfinite(value) and value >= 0):
            raise InputError(name, f"{shown(value)} is not a tolerance; it is a number >= 0")


def _said(truth: bool) -> str:
    return "true" if truth else "false"


def _joined(*sentences: str) -> str:
    return ". ".join(s.strip().rstrip(".") for s in sentences if s.strip())
