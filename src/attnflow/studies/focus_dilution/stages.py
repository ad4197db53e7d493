"""The stages of a run: condensation, focus, dilution, retraction, new direction, cycle by cycle.

Tokens are taken in the order of their frequency; the leader of cycle k is the k-th of them. A
cycle begins at the new direction before it (the first one: where W0 condenses) and ends at its
own, and what is looked for in it is looked for between these two. Every rule is a signal over its
gate, a ratio that does not know the width, the law or the scale of the start. A signal that turns
back short of its gate, but beyond half of it, still marks its stage, with a low confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnflow.observe.stages import Plateau, Stage, first_time, summit

Series = Float[np.ndarray, "time"]

RANK_ONE = 0.05
"""Condensed: the stable rank of W0 is within this of 1."""

FALLEN = 0.02
"""Condensed: the loss has fallen by this share (a start that happens to be rank one has not)."""

DIRECTION = 0.10
"""New direction: the next singular value of W0 over the first."""

GROWN = 3.0
"""New direction: it has also grown by this factor since it was least."""

GAIN = 0.002
"""Focus: what the rarer queries' attention to the leader gains."""

VISIBLE = 0.02
"""A gain below this is not seen on an axis from 0 to 1."""

LOSS_OF_FOCUS = 0.05
"""Dilution: what that attention loses from its highest value."""

RETRACTED = 0.2
"""Retraction: the share of its largest norm that an embedding loses."""

ONSET = 3.0
"""Attention grows: the leading singular value of WQ over the median at the start."""

SPLIT = 0.10
"""In-manifold split: relative difference of the norms of equally frequent tokens."""

MARGIN, NEARLY = 2.0, 0.9
"""A signal counts from 1/MARGIN of its gate on; it has arrived at NEARLY of its best, or at its
gate where that comes first, so that the time does not jump where a signal just misses its gate."""


@dataclass(frozen=True)
class Signals:
    """The series that the rules read."""

    t: Series
    loss: Series
    rank: Series
    """Effective rank of W0."""
    stable: Series
    """Stable rank of W0."""
    embedding: Float[np.ndarray, "time mode"]
    """Singular values of W0."""
    query: Float[np.ndarray, "time mode"]
    """Leading singular values of WQ."""
    attention: Float[np.ndarray, "time query key"]
    norms: Float[np.ndarray, "time token"]

    @classmethod
    def of(cls, data: xr.Dataset) -> Signals:
        return cls(
            t=data["time"].values,
            loss=data["loss"].values,
            rank=data["effective_rank"].sel(matrix="W0").values,
            stable=data["stable_rank"].sel(matrix="W0").values,
            embedding=data["singular_W0"].values,
            query=data["singular_WQ"].values,
            attention=data["attention"].values,
            norms=data["embedding_norm"].values,
        )


def find(
    s: Signals, pi: Float[np.ndarray, "token"], waits: list[Plateau] | None = None
) -> list[Stage]:
    """All stages in the order of time; empty is "no separation".

    `waits` are the run's plateaus; a flow that never waits in its first cycle has no stages, since
    nothing separates them. None skips that test (an optimiser's steps do not slow at a saddle).
    """
    order = np.argsort(-pi, kind="stable")
    begun = _condensed(s)
    onward = [] if begun is None else _new_directions(s, begun.time)
    starts = [] if begun is None else [begun.time, *(x.time for x in onward)]
    ends = [*starts[1:], np.inf, np.inf]
    found: list[Stage] = list(onward)
    for k, after in enumerate(starts[: len(order) - 1]):
        cycle = _Cycle(s, k + 1, after, ends[k], ends[k + 1], int(order[k]), order[k + 1 :])
        first = begun if k == 0 else cycle.rank_growth()
        if first is None:
            break
        found += [first, *cycle.stages(pi)]
    if begun is not None:
        found += _split(s, order, pi, begun.time)
    if waits is not None and not any(_separates(w, found) for w in waits):
        return []
    return sorted(found, key=lambda x: (x.time, x.cycle))


def _separates(wait: Plateau, found: list[Stage]) -> bool:
    """Whether a plateau lies between condensation and the end of the first cycle."""
    times = {x.name: x.time for x in found if x.cycle == 1}
    if "condensation" not in times:
        return False
    return wait.leave > times["condensation"] and wait.enter < times.get("new direction", np.inf)


def _condensed(s: Signals) -> Stage | None:
    flat = RANK_ONE / np.maximum(s.stable - 1, 1e-12)
    ratio = np.minimum(flat, (1 - s.loss / s.loss[0]) / FALLEN)
    words = f"stable rank of W0 falls to 1 + {s.stable.min() - 1:.2g} (gate 1 + {RANK_ONE:g})"
    return _gated("condensation", 1, s.t, ratio, words)


def _new_directions(s: Signals, after: float) -> list[Stage]:
    """The new direction of each cycle, each after the one before."""
    found: list[Stage] = []
    for cycle in range(1, s.embedding.shape[1]):
        share, later = s.embedding[:, cycle] / s.embedding[:, 0], s.t >= after
        # It must have grown: a large start has all directions at once.
        least = np.minimum.accumulate(np.where(later, share, np.inf))
        ratio = share / np.maximum(DIRECTION, GROWN * least)
        words = f"singular value {cycle + 1} of W0 passes a tenth of the first"
        stage = _gated("new direction", cycle, s.t, ratio, words, after)
        if stage is None:
            break
        found.append(stage)
        after = stage.time
    return found


@dataclass(frozen=True)
class _Cycle:
    """One cycle: what its leader's followers do between two new directions.

    `beyond` is the new direction after that: attention may turn away a little late.
    """

    s: Signals
    cycle: int
    after: float
    until: float
    beyond: float
    lead: int
    rest: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        return (self.s.t >= self.after) & (self.s.t <= self.until)

    def gated(
        self, name: str, ratio: Series, words: str, until: float | None = None
    ) -> Stage | None:
        end = self.until if until is None else until
        return _gated(name, self.cycle, self.s.t, ratio, words, self.after, end)

    def stages(self, pi: np.ndarray) -> list[Stage]:
        weights = pi[self.rest] / pi[self.rest].sum()
        onto = self.s.attention[:, self.rest, self.lead] @ weights
        diluted = self.dilution(onto)
        found = (self.onset(), self.focus(onto, diluted), diluted, self.retraction())
        return [stage for stage in found if stage is not None]

    def onset(self) -> Stage | None:
        # Where there is no next mode, it is zero.
        modes, median = _with_zero(self.s.query), float(np.median(self.s.query[0]))
        top, below = modes[:, self.cycle - 1], modes[:, self.cycle]
        ratio = top / (ONSET * np.maximum(np.maximum(below, median), 1e-300))
        words = f"singular value {self.cycle} of WQ is {ONSET:g} times the start's and the next"
        return self.gated("attention onset", ratio, words)

    def rank_growth(self) -> Stage | None:
        words = f"effective rank of W0 rises above {self.cycle - 0.5:g}"
        return self.gated("rank growth", (self.s.rank - (self.cycle - 1)) / 0.5, words)

    def dilution(self, onto: Series) -> Stage | None:
        highest = np.maximum.accumulate(np.where(self.inside, onto, -np.inf))
        fall = highest - onto
        most = fall[self.s.t <= self.beyond].max()
        words = f"the rarer tokens' attention to token {self.lead} falls by {most:.3f}"
        return self.gated("dilution", fall / LOSS_OF_FOCUS, words, self.beyond)

    def focus(self, onto: Series, diluted: Stage | None) -> Stage | None:
        """Where attention is highest before it dilutes, or has come to stay."""
        t = self.s.t
        before = self.inside if diluted is None else self.inside & (t <= diluted.time)
        peak = int(np.argmax(np.where(before, onto, -np.inf)))
        rising = before & (t <= t[peak])
        least = float(np.min(onto[rising], initial=np.inf))
        gain = float(onto[peak]) - least
        if gain <= (GAIN if diluted is None else GAIN / MARGIN):
            return None
        time, how = summit(t, onto, peak), "is highest"
        if diluted is None:
            risen = np.where(rising, (onto - least) / (NEARLY * gain), 0.0)
            time, how = first_time(t, risen, after=self.after) or time, "rises and stays"
        words = f"the rarer tokens' attention to token {self.lead} {how}, {gain:+.3f}"
        if gain < VISIBLE:
            words += ", too little to see on an axis from 0 to 1"
        return Stage("focus", time, self.cycle, words, confidence=_confidence(gain / GAIN))

    def retraction(self) -> Stage | None:
        """A fall that began in this cycle, to its end: no other cycle counts it again."""
        t, norms = self.s.t[:, None], self.s.norms[:, self.rest]
        rises = np.diff(norms, axis=0, append=norms[-1:]) > 0
        inside = (t >= self.after) & (t <= self.until)
        begun = np.logical_or.accumulate(rises & inside, axis=0)
        ended = np.logical_or.accumulate(rises & (t > self.until), axis=0)
        largest = np.maximum.accumulate(np.where(begun & inside, norms, 0.0), axis=0)
        drop = np.where(begun & ~ended, 1 - norms / np.maximum(largest, 1e-300), 0.0)
        most = drop.max(axis=0)
        lost = [f"{r} loses {x:.0%}" for r, x in zip(self.rest, most, strict=True) if x > 0.1]
        words = f"of its norm the embedding of token {', '.join(lost)}"
        return self.gated("retraction", drop.max(axis=1) / RETRACTED, words, self.beyond)


def _split(s: Signals, order: np.ndarray, pi: np.ndarray, start: float) -> list[Stage]:
    """Equally frequent tokens part while the embedding is still of rank one."""
    gap = np.zeros_like(s.t)
    pairs = [(a, b) for a, b in pairwise(order.tolist()) if abs(pi[a] - pi[b]) <= 1e-12 * pi[a]]
    if not pairs:
        return []
    for a, b in pairs:
        # Over the largest norm so far: both pass zero when they retract.
        size = np.maximum.accumulate(np.maximum(s.norms[:, a], s.norms[:, b]))
        gap = np.maximum(gap, np.abs(s.norms[:, a] - s.norms[:, b]) / size)
    second = _with_zero(s.embedding)[:, 1]
    flat = (second < DIRECTION * s.embedding[:, 0]) & (s.t >= start)
    # At a small start the norms of equal tokens differ by chance: they must have met before.
    met = np.minimum.accumulate(np.where(s.t >= start, gap, np.inf)) < SPLIT / 2
    ratio = np.where(flat & met, gap / SPLIT, 0.0)
    words = "equally frequent tokens part inside rank one"
    found = _gated("in-manifold split", 1, s.t, ratio, words, start)
    return [] if found is None else [found]


def _with_zero(modes: np.ndarray) -> np.ndarray:
    """Singular values, and a last one that is zero."""
    return np.pad(modes, ((0, 0), (0, 1)))


def _gated(
    name: str,
    cycle: int,
    t: Series,
    ratio: Series,
    words: str,
    after: float = -np.inf,
    until: float = np.inf,
) -> Stage | None:
    """The stage whose signal passes its gate (`ratio` 1), or turns back within the margin."""
    inside = (t >= after) & (t <= until)
    ratio = np.where(inside & np.isfinite(ratio), ratio, 0.0)
    top = int(np.argmax(ratio))
    best = float(ratio[top])
    turned = bool((ratio[top:][inside[top:]] < NEARLY * best).any())
    if best < 1 / MARGIN or (best < 1 and not turned):
        return None
    time = first_time(t, ratio / min(1.0, NEARLY * best), after=after)
    if time is None:
        return None
    if best < 1:
        words += f"; short of its gate, {best:.2f} of it"
    return Stage(name, time, cycle, words, confidence=_confidence(best))


def _confidence(best: float) -> float:
    """0 at the margin, a half at the gate, 1 far beyond it."""
    return float(np.clip(1 - 1 / (MARGIN * max(best, 1e-300)), 0.0, 1.0))
