"""Measurements: a prediction, what was measured, the tolerance, and a control that must flip.

Every builder compares twice: once as claimed, once with the control. The second comparison has to
give the other answer; a check that cannot come out differently shows nothing, and `Claim.check`
calls it a defect. What a builder returns at best is what the claim promises: `holds`, or
`consistent` for a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow._errors import InputError, shown
from attnflow.claims.control import Control, Countercheck, given_control, refuse_copies
from attnflow.claims.values import Value, finite, numbers, plain
from attnflow.claims.verdict import Strength, Verdict

if TYPE_CHECKING:
    from attnflow.claims.evidence import Correction

MOST_ENTRIES = 64
"""Arrays with more entries than this are stored as their worst entry."""


@dataclass(frozen=True)
class Measurement:
    """The outcome of one comparison, as the builders of this room make it."""

    verdict: Verdict
    sentence: str
    relation: str = "="
    predicted: Value = None
    measured: Value = None
    tolerance: Value = None
    error: float | None = None
    strength: Strength = Strength.NUMERIC
    control: Countercheck | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    promise: Verdict = Verdict.HOLDS
    correction: Correction | None = None
    guessed: str = ""

    @property
    def good(self) -> bool:
        """Whether the comparison came out as predicted."""
        return self.verdict in (Verdict.HOLDS, Verdict.CONSISTENT)


def equal(
    *,
    predicted: ArrayLike,
    measured: ArrayLike,
    rtol: float = 1e-9,
    atol: float = 0.0,
    each: bool = False,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`|measured - predicted| <= atol + rtol |predicted|`, for a number or entry by entry.

    For arrays `|predicted|` is the largest entry, so that a predicted 0 among others is compared
    at the scale of the whole; with `each=True` every entry is compared at its own size.

    >>> other = Control("another law", 2.1)
    >>> equal(predicted=2.0, measured=2.0 + 1e-12, control=other).verdict
    <Verdict.HOLDS: 'holds'>
    """
    _tolerances(rtol=rtol, atol=atol)

    def compare(p: NDArray, m: NDArray) -> Comparison:
        gap = np.abs(m - p)
        size = np.abs(p) if each else np.max(np.abs(p))
        allowed = np.broadcast_to(atol + rtol * size, gap.shape)
        return _entrywise(p, m, gap <= allowed, gap, allowed, "error {error}, allowed {allowed}")

    return _twice(compare, "=", (predicted, measured), control, "predicted", note)


def identity(
    *,
    over: Iterable[Any],
    predicted: Callable[[Any], ArrayLike],
    measured: Callable[[Any], ArrayLike],
    rtol: float = 1e-12,
    atol: float = 0.0,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`predicted(point) = measured(point)` to rounding at every point; its strength is `exact`.

    The control's value is another function of the point. Each point is compared at its own scale.

    >>> wrong = Control("without the factor", lambda x: x)
    >>> identity(over=[1.0, 2.0], predicted=lambda x: 2 * x, measured=lambda x: x + x,
    ...          control=wrong).strength
    <Strength.EXACT: 'exact'>
    """
    _tolerances(rtol=rtol, atol=atol)
    points = list(over)
    if not points:
        raise InputError("over", "has no point, and an identity at no point always holds")

    def at(function: Any, scales: list[float] | None = None) -> NDArray:
        parts = [np.ravel(numbers("identity", function(p))) for p in points]
        if scales is None:
            return np.concatenate(parts)
        return np.concatenate([np.full(p.size, s) for p, s in zip(parts, scales, strict=True)])

    scales = [float(np.abs(numbers("predicted", predicted(p))).max()) for p in points]
    allowed = atol + rtol * at(predicted, scales)

    def compare(p: NDArray, m: NDArray) -> Comparison:
        gap = np.abs(m - p)
        words = f"error {{error}}, allowed {{allowed}} at {len(points)} points"
        return _entrywise(p, m, gap <= allowed, gap, allowed, words)

    given = given_control(control)
    if given is not None:
        p, m = given.sides("predicted")
        given = Control(
            given.name,
            predicted=None if p is None else at(p),
            measured=None if m is None else at(m),
        )
    claimed = (at(predicted), at(measured))
    return _twice(compare, "=", claimed, given, "predicted", note, Strength.EXACT)


def at_most(
    *,
    bound: ArrayLike,
    measured: ArrayLike,
    slack: float = 0.0,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`measured <= bound + slack` in every entry; the control is measured where it breaks."""
    return _bounded(-1, bound, measured, slack, control, note)


def at_least(
    *,
    bound: ArrayLike,
    measured: ArrayLike,
    slack: float = 0.0,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`measured >= bound - slack` in every entry; the control is measured where it breaks."""
    return _bounded(+1, bound, measured, slack, control, note)


def sign(
    *,
    predicted: ArrayLike,
    measured: ArrayLike,
    margin: float = 0.0,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """`measured` has the predicted signs (+1 or -1, one or an array), by more than `margin`."""
    _tolerances(margin=margin)
    signs = numbers("predicted", predicted)
    if not np.isin(signs, (-1.0, 1.0)).all():
        raise InputError("predicted", f"{shown(predicted)}; a sign is +1 or -1")

    def compare(p: NDArray, m: NDArray) -> Comparison:
        lacking = -p * m
        allowed = np.broadcast_to(margin, lacking.shape)
        words = "{measured}, predicted sign {bound}" + (f" beyond {margin:g}" if margin else "")
        return _entrywise(p, m, lacking < -allowed, lacking, allowed, words)

    return _twice(compare, "sign", (signs, measured), control, "measured", note)


def monotone(
    *,
    measured: Sequence[float] | NDArray,
    rising: bool = True,
    slack: float = 0.0,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """Each value is above the one before (below it, where not `rising`); `slack` may be lost."""
    _tolerances(slack=slack)
    sense = 1.0 if rising else -1.0

    def compare(p: NDArray, m: NDArray) -> Comparison:
        lost = -sense * np.diff(m, axis=0)
        allowed = np.broadcast_to(slack, lost.shape)
        good = lost <= allowed if slack else lost < 0
        words = f"{'rises' if rising else 'falls'} from {m[0].min():.6g} to {m[-1].max():.6g}"
        words += f" in {len(m)} values, worst step {-lost.max() * sense:.3g}"
        worst = _entrywise(np.zeros_like(lost), -lost, good, lost, allowed, "")
        shown_values = plain([m[0].min(), m[-1].max()])
        tolerance = finite(float(slack))
        return Comparison(worst.good, words, worst.predicted, shown_values, tolerance, worst.error)

    series = numbers("measured", measured)
    if series.ndim == 0 or len(series) < 3:
        raise InputError("measured", "a series needs at least three values to be monotone")
    return _twice(compare, "rises" if rising else "falls", (0.0, series), control, "measured", note)


def always(
    *,
    times: ArrayLike,
    measured: ArrayLike,
    after: float = -np.inf,
    until: float = np.inf,
    at_least: float | None = None,
    at_most: float | None = None,
    control: Control | None = None,
    note: str = "",
) -> Measurement:
    """A bound at every time in `[after, until]`; the control is another series at these times."""
    if (at_least is None) == (at_most is None):
        raise InputError("always", "give one of at_least and at_most")
    t = numbers("times", times)
    inside = (t >= after) & (t <= until)
    if not inside.any():
        raise InputError("times", f"no time lies between {after:g} and {until:g}")

    def within(values: Any) -> NDArray:
        found: Any = values() if callable(values) else values
        series = numbers("measured", found)
        if len(series) != len(t):
            raise InputError("measured", f"{len(series)} values at {len(t)} times")
        return series[inside]

    given = given_control(control)
    if given is not None:
        p, m = given.sides("measured")
        given = Control(given.name, predicted=p, measured=None if m is None else within(m))
    way, bound = (1, at_least) if at_least is not None else (-1, at_most)
    words = f"{inside.sum()} times from {t[inside][0]:.4g} to {t[inside][-1]:.4g}"
    return _bounded(way, bound, within(measured), 0.0, given, joined(words, note))


def fact(*, measured: bool, control: Control | None = None, note: str = "") -> Measurement:
    """A statement that is simply true or false; the control is its truth in another setting."""
    given = given_control(control)
    other = None if given is None else given.sides("measured")[1]
    for name, value in (("measured", measured), ("control", other)):
        if value is not None and not isinstance(value, bool | np.bool_):
            raise InputError(name, f"{shown(value)} is not a truth value; give True or False")
    found, flipped = bool(measured), None
    if given is not None:
        words = f"there it is {_said(bool(other))}"
        flipped = Countercheck(given.name, bool(other) is not found, words, True, bool(other))
    return Measurement(
        verdict=Verdict.HOLDS if found else Verdict.FAILS,
        sentence=note.strip() or f"it is {_said(found)}",
        predicted=True,
        measured=found,
        control=flipped,
    )


def every(**parts: Measurement) -> Measurement:
    """All of several measurements: holds when each does, and every control has to flip."""
    if not parts:
        raise InputError("every", "no measurement was given")
    for name, part in parts.items():
        if part.correction is not None or part.guessed:
            raise InputError(name, f"is {part.verdict.label}; give it a claim of its own")
    fits = any(p.promise is Verdict.CONSISTENT for p in parts.values())
    promise = Verdict.CONSISTENT if fits else Verdict.HOLDS
    verdict = promise if all(p.good for p in parts.values()) else Verdict.FAILS
    if any(p.verdict is Verdict.NOT_CHECKABLE for p in parts.values()):
        verdict = Verdict.NOT_CHECKABLE
    controls = {name: p.control for name, p in parts.items() if p.control is not None}
    control = None
    if len(controls) == len(parts):
        words = "; ".join(f"{name}: {c.sentence}" for name, c in controls.items())
        names = "; ".join(dict.fromkeys(c.name for c in controls.values()))
        control = Countercheck(names, all(c.flips for c in controls.values()), words)
    return Measurement(
        verdict=verdict,
        sentence="; ".join(f"{name}: {p.sentence}" for name, p in parts.items()),
        relation="each",
        predicted=[p.predicted for p in parts.values()],
        measured=[p.measured for p in parts.values()],
        tolerance=[p.tolerance for p in parts.values()],
        error=max((p.error for p in parts.values() if p.error is not None), default=None),
        strength=max((p.strength for p in parts.values()), key=list(Strength).index),
        control=control,
        evidence={
            name: {"relation": p.relation, "strength": p.strength.value, **p.evidence}
            for name, p in parts.items()
        },
        promise=promise,
    )


def not_checkable(reason: str) -> Measurement:
    """Nothing can be concluded, and why; the one measurement that needs no control."""
    if not reason.strip():
        raise InputError("reason", "is empty; say why the claim cannot be checked")
    verdict = Verdict.NOT_CHECKABLE
    return Measurement(verdict, reason.strip(), relation="", promise=verdict)


@dataclass(frozen=True)
class Comparison:
    """One comparison: whether it came out as predicted, and the numbers to show for it."""

    good: bool
    sentence: str
    predicted: Value
    measured: Value
    tolerance: Value
    error: float | None


def _bounded(
    way: int, bound: Any, measured: ArrayLike, slack: float, control: Control | None, note: str
) -> Measurement:
    _tolerances(slack=slack)
    words = "{measured} against at " + ("least" if way > 0 else "most") + " {bound}"

    def compare(b: NDArray, m: NDArray) -> Comparison:
        allowed = np.broadcast_to(slack, np.broadcast_shapes(b.shape, m.shape))
        beyond = way * (b - m)
        return _entrywise(b, m, beyond <= slack, beyond, allowed, words)

    relation = "at least" if way > 0 else "at most"
    return _twice(compare, relation, (bound, measured), control, "measured", note)


def _twice(
    compare: Callable[[NDArray, NDArray], Comparison],
    relation: str,
    claimed: tuple[Any, Any],
    control: Control | None,
    side: str,
    note: str,
    strength: Strength = Strength.NUMERIC,
) -> Measurement:
    """Compare as claimed and as the control says; a side that it does not give is kept."""
    predicted, measured = numbers("predicted", claimed[0]), numbers("measured", claimed[1])
    with np.errstate(all="ignore"):
        main = compare(*_matched(predicted, measured))
    given, flipped = given_control(control), None
    if given is not None:
        p, m = (None if x is None else numbers("control", x) for x in given.sides(side))
        if any(x is not None and not np.isfinite(x).all() for x in (p, m)):
            flipped = Countercheck(given.name, False, "it is not finite, so it shows nothing")
        else:
            for mine, result in ((p, predicted), (m, measured)):
                if mine is not None:
                    refuse_copies(given, mine, result)
            pair = predicted if p is None else p, measured if m is None else m
            with np.errstate(all="ignore"):
                other = compare(*_matched(*pair))
            numbers_ = other.predicted, other.measured
            flipped = Countercheck(given.name, other.good != main.good, other.sentence, *numbers_)
    return Measurement(
        verdict=Verdict.HOLDS if main.good else Verdict.FAILS,
        sentence=joined(main.sentence, note),
        relation=relation,
        predicted=main.predicted,
        measured=main.measured,
        tolerance=main.tolerance,
        error=main.error,
        strength=strength,
        control=flipped,
    )


def _entrywise(
    predicted: NDArray,
    measured: NDArray,
    good: NDArray,
    error: NDArray,
    allowed: NDArray,
    words: str,
) -> Comparison:
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
    return Comparison(
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


def joined(*sentences: str) -> str:
    return ". ".join(s.strip().rstrip(".") for s in sentences if s.strip())
