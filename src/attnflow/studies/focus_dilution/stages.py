"""The stages of a run: condensation, focus, dilution, retraction, new direction, cycle by cycle.

Tokens are taken in the order of their frequency; the leader of cycle k is the k-th of them. Every
rule is a signal over its threshold: it holds where the ratio exceeds 1 for three samples, and
`1 - 1/ratio` at the signal's best is the confidence. The thresholds are ratios, so that they do
not know the width, the law or the scale of the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnflow.observe.stages import Plateau, Stage, first_time

Series = Float[np.ndarray, "time"]

RANK_ONE = 0.05
"""Condensed: the stable rank of W0 is within this of 1."""

DIRECTION = 0.10
"""New direction: the next singular value of W0 over the first."""

GROWN = 3.0
"""New direction: it has also grown by this factor since it was least."""

FALLEN = 0.02
"""Condensed: the loss has fallen by this share (a start that happens to be rank one has not)."""

GAIN = 0.002
"""Focus: what the rarer queries' attention to the leader gains."""

LOSS_OF_FOCUS = 0.05
"""Dilution: what that attention loses from its highest value."""

RETRACTED = 0.2
"""Retraction: the share of its largest norm that an embedding loses."""

ONSET = 3.0
"""Attention grows: the leading singular value of WQ over the median at the start."""

SPLIT = 0.10
"""In-manifold split: relative difference of the norms of equally frequent tokens."""


@dataclass(frozen=True)
class Signals:
    """The series that the rules read, from a trajectory."""

    t: Series
    loss: Series
    rank: Series
    stable: Series
    embedding: Float[np.ndarray, "time mode"]
    query: Float[np.ndarray, "time mode"]
    attention: Float[np.ndarray, "time query key"]
    norms: Float[np.ndarray, "time token"]

    @property
    def second(self) -> Series:
        """The second singular value of W0 over the first."""
        if self.embedding.shape[1] < 2:  # width one
            return np.zeros_like(self.t)
        return self.embedding[:, 1] / self.embedding[:, 0]

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


def find(data: xr.Dataset, pi: Float[np.ndarray, "token"], waits: list[Plateau] | None) -> list:
    """All stages in the order of time; empty is "no separation".

    `waits` are the run's plateaus; a flow that never waits in its first cycle has no stages, since
    nothing separates them. None skips that test (an optimiser's steps do not slow at a saddle).
    """
    s = Signals.of(data)
    order = np.argsort(-pi, kind="stable")
    found: list[Stage] = []
    since = -np.inf
    for cycle in range(1, len(order)):
        stages = _cycle(s, order, pi, cycle, since)
        found += stages
        onward = [x for x in stages if x.name == "new direction"]
        if not onward:
            break
        since = onward[0].time
    if waits is not None and not any(_separates(w, found) for w in waits):
        return []
    return sorted(found, key=lambda x: (x.time, x.cycle))


def _separates(wait: Plateau, found: list[Stage]) -> bool:
    """Whether a plateau lies between condensation and the end of the first cycle."""
    times = {x.name: x.time for x in found if x.cycle == 1}
    if "condensation" not in times:
        return False
    return wait.leave > times["condensation"] and wait.enter < times.get("new direction", np.inf)


def _cycle(s: Signals, order: np.ndarray, pi: np.ndarray, cycle: int, since: float) -> list[Stage]:
    lead, rest = int(order[cycle - 1]), order[cycle:]
    found: list[Stage] = []

    def add(name: str, ratio: Series, after: float, evidence: str) -> float:
        when = first_time(s.t, ratio > 1, after=after)
        if when is None:
            return np.inf
        best = float(np.max(ratio[s.t >= when]))
        found.append(Stage(name, when, cycle, evidence, confidence=1 - 1 / max(best, 1.0)))
        return when

    if cycle == 1:
        flat = RANK_ONE / np.maximum(s.stable - 1, 1e-12)
        ratio = np.minimum(flat, (1 - s.loss / s.loss[0]) / FALLEN)
        begun = add("condensation", ratio, since, f"stable rank of W0 below {1 + RANK_ONE:g}")
    else:
        ratio = (s.rank - (cycle - 1)) / 0.5
        begun = add("condensation", ratio, since, f"effective rank of W0 above {cycle - 0.5:g}")
    if not found:
        return []
    start = begun if cycle == 1 else since

    top, median = s.query[:, cycle - 1], float(np.median(s.query[0]))
    below = s.query[:, cycle] if cycle < s.query.shape[1] else np.zeros_like(top)
    ratio = np.minimum(
        top / (ONSET * max(median, 1e-300)), top / (ONSET * np.maximum(below, 1e-300))
    )
    add(
        "attention onset", ratio, start, f"singular value {cycle} of WQ {ONSET:g} times the start's"
    )

    weights = pi[rest] / pi[rest].sum()
    onto = s.attention[:, rest, lead] @ weights
    later = s.t >= start
    base = onto[later][0]
    highest = np.maximum.accumulate(np.where(later, onto, -np.inf))
    fall = np.where(later, highest - onto, 0.0)
    words = f"the rarer tokens' attention to token {lead} fell by {LOSS_OF_FOCUS:g}"
    diluted = add("dilution", fall / LOSS_OF_FOCUS, start, words)
    before = later & (s.t <= diluted)
    peak = int(np.argmax(np.where(before, onto, -np.inf)))
    lowest = float(np.min(onto[before & (s.t <= s.t[peak])], initial=base))
    gain = float(onto[peak]) - lowest
    if gain > GAIN:
        found.append(
            Stage(
                "focus",
                float(s.t[peak]),
                cycle,
                f"the rarer tokens' attention to token {lead} is highest, {gain:+.3f}",
                confidence=1 - GAIN / gain,
            )
        )

    largest = np.maximum.accumulate(np.where(later[:, None], s.norms, 0.0))
    drop = np.where(later[:, None], 1 - s.norms / np.maximum(largest, 1e-300), 0.0)[:, rest]
    who = [int(r) for r in rest[drop.max(axis=0) > RETRACTED]]
    add(
        "retraction",
        drop.max(axis=1) / RETRACTED,
        start,
        f"embeddings of tokens {', '.join(map(str, who))} lost a fifth of their norm",
    )

    if cycle < s.embedding.shape[1]:
        share = s.embedding[:, cycle] / s.embedding[:, 0]
        # It must have grown: a large start has all directions at once.
        least = np.minimum.accumulate(np.where(later, share, np.inf))
        ratio = np.where(later, share / np.maximum(DIRECTION, GROWN * least), 0.0)
        words = f"singular value {cycle + 1} of W0 above a tenth of the first"
        add("new direction", ratio, start, words)
    if cycle == 1:
        _split(s, order, pi, start, add)
    return found


def _split(s: Signals, order: np.ndarray, pi: np.ndarray, start: float, add) -> None:
    """Equally frequent tokens part while the embedding is still of rank one."""
    gap = np.zeros_like(s.t)
    pairs = [(a, b) for a, b in pairwise(order.tolist()) if abs(pi[a] - pi[b]) <= 1e-12 * pi[a]]
    if not pairs:
        return
    for a, b in pairs:
        # Over the largest norm so far: both pass zero when they retract.
        size = np.maximum.accumulate(np.maximum(s.norms[:, a], s.norms[:, b]))
        gap = np.maximum(gap, np.abs(s.norms[:, a] - s.norms[:, b]) / size)
    flat = (s.second < DIRECTION) & (s.t >= start)
    # At a small start the norms of equal tokens differ by chance: they must have met before.
    met = np.minimum.accumulate(np.where(s.t >= start, gap, np.inf)) < SPLIT / 2
    add(
        "in-manifold split",
        np.where(flat & met, gap / SPLIT, 0.0),
        start,
        "equally frequent tokens part inside rank one",
    )
