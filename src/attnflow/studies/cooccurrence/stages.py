"""The two phases of a run, from the last zeros of four functions of the state.

    t05     -dG(common) - max dG(target): from then on the common word falls faster than a target
            rises (Lemma 4.3)
    t1      the smallest mean margin of a class: phase 1 ends (Theorem 3.1)
    t1_all  the smallest margin of a training sample
    t1_g    every proper subset of the targets with the common word has a negative sum of values,
            the full set a positive one (Theorem 3.2, last item)

A solve finds them by root finding, descent as the first step behind. The *last* crossing counts:
at t = 0 all of them may be zero by symmetry, and a start may be right by accident.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnflow.flows.sinks import Event
from attnflow.observe.stages import Stage

NAMES = ("t05", "t1", "t1_all", "t1_g")


def last_crossings(events: Sequence[Event]) -> dict[str, float]:
    """The time of each, in the run's own time; 0 where there is no crossing after t = 0."""
    found: dict[str, float] = dict.fromkeys(NAMES, 0.0)
    for event in sorted(events, key=lambda e: e.time):
        if event.name in found:
            found[event.name] = float(event.time)
    return found


def find(events: Sequence[Event], tau: float, rate: float | None = None) -> list[Stage]:
    """The phases; `tau` is the natural time of one unit of the run's, `rate` that of descent."""
    last = last_crossings(events)
    upward = {e.name: e.direction > 0 for e in sorted(events, key=lambda e: e.time)}

    def stage(name: str, time: float, words: str) -> Stage:
        step = None if rate is None else round(time / rate)
        return Stage(name, time, evidence=words, step=step)

    found = [stage("phase 1", 0.0, "targets' values rise, the common word's follows")]
    if upward.get("t05") and last["t05"] < (last["t1"] or float("inf")):
        since = f"{last['t05'] * tau:.4g}"
        words = f"the common word falls faster than a target rises from tau = {since} on"
        found.append(stage("common word", last["t05"], words))
    if upward.get("t1"):
        samples, values = (
            f"from {last[n] * tau:.4g}" if upward.get(n) else "not by the end"
            for n in ("t1_all", "t1_g")
        )
        words = (
            f"every class is right on average from tau = {last['t1'] * tau:.4g} on, every sample "
            f"{samples}, by its relevant words alone {values}"
        )
        found.append(stage("phase 2", last["t1"], words))
    return found
