"""Section 4.2 and Fig. 3 on the user's own text.

No verdict can be foreseen for a text nobody has seen: a row says what this run shows. The control
is the same measurement on a run that learned nothing where the statement holds, and on one that
does what the paper describes where it does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from attnflow.claims import (
    Claim,
    Control,
    Measurement,
    at_least,
    at_most,
    every,
    not_checkable,
    observed,
)
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_text.model import SELF
from attnflow.studies.focus_text.phases import PHASES, in_order, phases, retraction

GROWS = 0.02
"""A norm grows continuously if it never falls by more than this part of its maximum."""

RETRACTS = 0.05
"""A norm that falls by at least this part of its maximum has retracted."""

FOCUSED = 0.10
"""Attention beyond the tokens' share that counts as giving them priority."""

GUESSED = "the tokenizer and its vocabulary, the batch, the steps and the tokens that are followed"

Measure = Callable[[Any], Measurement]


def trained(study: Any) -> str:
    """Why nothing can be seen yet, or an empty text."""
    loss = study.solution.trajectory["loss"].values
    way = (loss[0] - loss.min()) / (loss[0] - study.data.unigram)
    words = f"training went {way:.0%} of the way from the start to the unigram loss; half is needed"
    return "" if way > 0.5 else words


def medium_query(study: Any) -> str:
    law = study.data.law[list(study.data.sequence)]
    words = f"no token of the input is more frequent than the query ({law[-1]:.4f})"
    return "" if law[-1] < law.max() else words


def bigrams_tell(study: Any) -> str:
    d = study.data
    words = f"on held-out text bigrams ({d.bigram:.3f}) hardly beat unigrams ({d.unigram:.3f})"
    return "" if d.bigram < d.unigram - 0.05 else words


def shown(id: str, *needs: Callable[[Any], str]) -> Callable[[Measure], Claim]:
    """A claim about what this run shows, once enough was learned for it to show anything."""

    def made(measure: Measure) -> Claim:
        @functools.wraps(measure)
        def looked(study: Any) -> Measurement:
            lacking = next((why for need in (trained, *needs) if (why := need(study))), "")
            if lacking:
                return not_checkable(lacking)
            return observed(found=measure(study), guessed=GUESSED)

        return paper.claim(id, part="experiment")(looked)

    return made


@shown("Fig 3A/3B (A1)", medium_query)
def four_phases(study) -> Measurement:
    """Attention of a medium-frequency token goes through four phases in this order: uniform,
    focus on a frequent token, second dilution, focus on itself."""
    law = study.data.law[list(study.data.sequence)]
    names = ["token"] * len(law)
    seen = study.phases(study.solution.trajectory)
    words = "; ".join(f"{p.name} {'seen' if p.seen else 'not seen'}: {p.evidence}" for p in seen)

    def passed(data: xr.Dataset) -> int:
        return in_order(phases(data["attention"].values[:, -1], law, names))

    return _bounded(at_least, study, passed, len(PHASES), words)


@shown("Fig 3A/3B (A2, dominant token)")
def dominant_token_grows(study) -> Measurement:
    """The embedding norm of the most frequent token grows continuously."""

    def fall(data: xr.Dataset) -> float:
        return float(retraction(data["embedding_norm"].values[:, 0]))

    words = "largest fall, part of the maximum"
    return _bounded(at_most, study, fall, GROWS, words, backwards=True)


@shown("Fig 3A/3B (A2, other tokens)")
def other_tokens_retract(study) -> Measurement:
    """The embedding norms of the other tracked tokens retract."""

    def falls(data: xr.Dataset) -> np.ndarray:
        return retraction(data["embedding_norm"].values[:, 1:])

    data = study.solution.trajectory
    each = zip(data["tracked"].values[1:], falls(data), strict=True)
    words = "largest falls: " + ", ".join(f"{name} {drop:.2f}" for name, drop in each)
    return _bounded(at_least, study, lambda data: falls(data).min(), RETRACTS, words)


@shown("Section 4.2 (retraction of frequent tokens)")
def frequent_tokens_retract_too(study) -> Measurement:
    """Occasionally even one of the most frequent tokens retracts."""
    count = len(study.data.frequent)

    def most(data: xr.Dataset) -> float:
        return retraction(data["embedding_norm"].values[:, :count]).max()

    found = most(study.solution.trajectory)
    if found < RETRACTS:
        return not_checkable(
            f"none of the {count} most frequent tokens falls by {RETRACTS} in this run (largest "
            f"{found:.3f}); one run cannot refute what is said to happen occasionally"
        )
    return _bounded(at_least, study, most, RETRACTS)


@shown("Section 4.2 (focus, then dilution)")
def focus_then_dilution(study) -> Measurement:
    """Attention first prioritises the most frequent tokens and then loses this focus."""

    def lost(data: xr.Dataset) -> float:
        focus = data["focus"].values
        # A focus that never came cannot be lost.
        return 1 - focus[-1] / focus.max() if focus.max() > FOCUSED else 0.0

    return every(
        focus=_bounded(
            at_least, study, lambda d: d["focus"].values.max(), FOCUSED, "beyond their share"
        ),
        dilution=_bounded(at_least, study, lost, 0.5, "part of the peak that is lost at the end"),
    )


@shown("Fig 3C (self-attention)")
def more_tokens_attend_to_themselves(study) -> Measurement:
    """In a held-out sample more and more tokens give themselves at least 0.75."""

    def count(data: xr.Dataset) -> np.ndarray:
        return (data["self_attention"].values >= SELF).sum(axis=1).astype(float)

    def trend(data: xr.Dataset) -> float:
        from scipy.stats import spearmanr

        series = count(data)
        rank = spearmanr(np.arange(len(series)), series) if np.ptp(series) else (0.0,)
        return float(np.asarray(rank)[0])

    now = count(study.solution.trajectory)
    words = f"{now[0]:.0f} at the start, {now[-1]:.0f} at the end"
    return every(
        gain=_bounded(at_least, study, lambda d: count(d)[-1] - count(d)[0], 1.0, words),
        trend=_bounded(at_least, study, trend, 0.5, "rank correlation of their number with time"),
    )


@shown("Section 4.2 (from uniform to self-attention)")
def attention_moves_to_the_current_token(study) -> Measurement:
    """Tokens shift from uniform attention to self-attention: the current token gets most of it."""

    def moved(data: xr.Dataset) -> float:
        seen = data["self_mean"].values
        return (seen[-1] - seen[0]) / (1 - seen[0])

    return _bounded(at_least, study, moved, 0.5, "of what held-out attention to itself can gain")


@shown("Section 4.2 (pseudo-2-gram)", bigrams_tell)
def pseudo_bigram(study) -> Measurement:
    """The model works as a pseudo-2-gram model: its loss passes the unigram level towards the
    bigram level, and its predictions are nearer to the bigram row than to the unigram law."""
    d = study.data

    def way(data: xr.Dataset) -> float:
        return (d.unigram - data["loss"].values[-1]) / (d.unigram - d.bigram)

    def nearer(data: xr.Dataset) -> float:
        return data["unigram_gap"].values[-1] - data["bigram_gap"].values[-1]

    words = "part of the way from the unigram to the bigram loss"
    return every(
        loss=_bounded(at_least, study, way, 0.25, words),
        prediction=_bounded(at_least, study, nearer, 0.0, "nats nearer to the bigram row"),
    )


def _bounded(
    builder: Callable[..., Measurement],
    study: Any,
    quantity: Callable[[xr.Dataset], Any],
    bound: float,
    note: str = "",
    backwards: bool = False,
) -> Measurement:
    """A bound on this run; its control is a run that has to come out the other way."""
    run = study.solution.trajectory
    found = float(quantity(run))
    rows = np.arange(run.sizes["time"])
    if not (found >= bound if builder is at_least else found <= bound):
        name, other = "as the paper describes it", textbook(study)
    elif backwards:
        name, other = "told backwards", run.isel(time=rows[::-1])
    else:
        name, other = "nothing learned", run.isel(time=0 * rows)
    control = float(quantity(other))
    return builder(bound=bound, measured=found, control=Control(name, control), note=note)


def textbook(study: Any) -> xr.Dataset:
    """Observations that do what Section 4.2 and Fig. 3 describe."""
    run, d = study.solution.trajectory, study.data
    time = np.arange(run.sizes["time"]) / max(run.sizes["time"] - 1, 1)
    law = d.law[list(d.sequence)]
    n, lead = len(law), int(np.argmax(law))
    flat, first, own = np.full(n, 1 / n), np.eye(n)[lead], np.eye(n)[-1]
    phase = np.minimum((4 * time).astype(int), 3)
    rows = np.array([flat, first, flat, own])[phase]
    rise_and_fall = np.sin(np.pi * time)
    norms = np.stack([time, *[rise_and_fall] * (run.sizes["tracked"] - 1)], axis=1) + 0.1
    series = {
        "attention": np.repeat(rows[:, None], n, axis=1),
        "embedding_norm": norms,
        "focus": rise_and_fall,
        "self_attention": (np.arange(run.sizes["place"]) < time[:, None] * run.sizes["place"])
        * 1.0,
        "self_mean": time,
        "loss": d.unigram + time * (d.bigram - d.unigram),
        "unigram_gap": time,
        "bigram_gap": 1 - time,
    }
    return run.assign({name: (run[name].dims, values) for name, values in series.items()})
