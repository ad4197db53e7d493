"""The four phases of Fig. 3 (A1), read from the attention of one query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnflow.observe.stages import Stage, first_time
from attnflow.studies.focus_text.model import SELF

UNIFORM = 0.98
"""Attention is uniform while its entropy is at least this part of log n."""

HALF = 0.5
"""One token is in focus while it has this much; attention is diluted when none has."""

STAYS = 0.5
"""The final phase lasts for at least this part of the time that is left when it begins."""

HOLD = 3
"""Observations in a row that a phase must last."""

PHASES = ("uniform", "focus", "second dilution", "self focus")

Attention = Float[np.ndarray, "time position"]
Law = Float[np.ndarray, "position"]


@dataclass(frozen=True)
class AttentionPhase:
    """One phase: where it begins (an index; None: not seen), what shows it and how clearly."""

    name: str
    begin: int | None
    evidence: str
    confidence: float = 0.0

    @property
    def seen(self) -> bool:
        return self.begin is not None

    def stage(self, time: Float[np.ndarray, "time"]) -> Stage:
        assert self.begin is not None
        return Stage(self.name, float(time[self.begin]), 1, self.evidence, self.confidence)


def phases(
    attention: Attention, law: Law, names: list[str], query: int = -1
) -> list[AttentionPhase]:
    """The four phases in the paper's order, each looked for only after the one before it.

    `attention` is what the token at position `query` gives to every position, `law` how frequent
    the tokens there are. Rules, each for three observations in a row: uniform, entropy of at least
    0.98 log n at the start; focus, a token more frequent than the query has half of the attention;
    second dilution, no token has half; self focus, the query gives itself 0.75, and keeps doing so
    for at least half of the time that is left (the paper's phase is the final one).

    The confidence is how far a phase goes beyond its threshold (for the last: the part of the
    remaining time for which it stays), from 0 to 1.
    """
    n = attention.shape[1]
    if n < 2:
        return [AttentionPhase(name, None, "the input has a single token") for name in PHASES]
    entropy = -np.sum(attention * np.log(np.maximum(attention, 1e-300)), axis=1) / np.log(n)
    own, top = attention[:, query], attention.max(axis=1)
    frequent = np.flatnonzero(law > law[query])

    uniform = AttentionPhase(
        "uniform",
        0 if _first(entropy >= UNIFORM, 0) == 0 else None,
        f"entropy {entropy[0]:.3f} log n at the start",
        _share(entropy[0], UNIFORM, 1.0),
    )
    if len(frequent) == 0:
        focus = AttentionPhase(
            "focus", None, "no token of the input is more frequent than the query"
        )
    else:
        begin = _first(attention[:, frequent].max(axis=1) >= HALF, 0)
        when, which = np.unravel_index(attention[:, frequent].argmax(), (len(own), len(frequent)))
        most, leader = float(attention[when, frequent[which]]), names[frequent[which]]
        focus = AttentionPhase(
            "focus",
            begin,
            f"up to {most:.2f} of the attention on {leader}",
            _share(most, HALF, 1.0),
        )
    after = 0 if focus.begin is None else focus.begin + HOLD
    if focus.begin is None:
        dilution = AttentionPhase("second dilution", None, "there was no focus to lose")
    else:
        least = float(top[after:].min(initial=1.0))
        dilution = AttentionPhase(
            "second dilution",
            _first(top < HALF, after),
            f"the largest attention falls to {least:.2f}",
            _share(-least, -HALF, -1 / n),
        )
        after = after if dilution.begin is None else dilution.begin
    words = f"the query gives itself up to {own[after:].max(initial=0.0):.2f}"
    begin = came = _first(own >= SELF, after)
    while begin is not None and np.mean(own[begin:] >= SELF) < STAYS:
        begin = _first(own >= SELF, begin + 1)
    stays = 0.0 if begin is None else float(np.mean(own[begin:] >= SELF))
    if begin is not None:
        words += f", and {SELF} for {stays:.0%} of the time since"
    elif came is not None:
        words += ", but does not stay there"
    return [uniform, focus, dilution, AttentionPhase("self focus", begin, words, stays)]


def in_order(found: list[AttentionPhase]) -> int:
    """How many of the phases were seen one after the other from the first on."""
    count = 0
    for phase in found:
        if not phase.seen:
            break
        count += 1
    return count


def retraction(norm: Float[np.ndarray, "time *more"]) -> Float[np.ndarray, "*more"]:
    """The largest fall below the running maximum, as a part of that maximum."""
    return np.asarray(np.max(1 - norm / np.maximum.accumulate(norm, axis=0), axis=0))


def _first(holds: np.ndarray, after: int) -> int | None:
    index = np.arange(len(holds), dtype=float)
    found = first_time(index, holds.astype(float), level=0.0, after=after, hold=HOLD)
    return None if found is None else int(found)


def _share(value: float, low: float, high: float) -> float:
    if low == high:  # two tokens: the threshold is all there is
        return float(value >= low)
    return float(np.clip((value - low) / (high - low), 0.0, 1.0))
