"""Claims of Section 4.2 and Fig. 3, measured on the user's own run.

No verdict can be foreseen for a text nobody has seen: what is expected is what is measured, and
a ledger of this study holds no surprise but a check that shows nothing. A claim that holds has as
control the same measurement where nothing was learned (or with time reversed), one that fails the
same measurement on a curve that does what the paper describes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnflow.claims import (
    Claim,
    Correction,
    Measurement,
    Regime,
    Verdict,
    at_least,
    at_most,
    claim,
    every,
    not_checkable,
    positive,
    refuted,
)
from attnflow.studies.focus_text.model import SELF
from attnflow.studies.focus_text.phases import PHASES, in_order, phases, retraction

STUDY = "focus-dilution-text"

GROWS = 0.02
"""A norm grows continuously if it never falls by more than this part of its maximum."""

RETRACTS = 0.05
"""A norm that falls by at least this part of its maximum has retracted."""

FOCUSED = 0.10
"""Attention beyond the tokens' share that counts as giving them priority."""


def trained(study) -> Regime:
    loss = study.solution.trajectory["loss"].values
    way = (loss[0] - loss.min()) / (loss[0] - study.data.unigram)
    words = f"training went {way:.0%} of the way from the start to the unigram loss"
    return Regime(bool(way > 0.5), f"{words} (half at least)")


def medium_query(study) -> Regime:
    law = study.data.law[list(study.data.sequence)]
    before = trained(study)
    if not before.inside:
        return before
    words = f"the query ({law[-1]:.4f}) is less frequent than another token ({law.max():.4f})"
    return Regime(bool(law[-1] < law.max()), words)


def bigrams_tell(study) -> Regime:
    before, d = trained(study), study.data
    if not before.inside:
        return before
    words = f"on held-out text bigrams ({d.bigram:.3f}) beat unigrams ({d.unigram:.3f}) by 0.05"
    return Regime(d.bigram < d.unigram - 0.05, words)


def measured(
    id: str, regime: Callable[[Any], Regime] = trained
) -> Callable[[Callable[[Any], Measurement]], Claim]:
    """A claim about this run, measured once, without a verdict foreseen."""

    def made(measure: Callable[[Any], Measurement]) -> Claim:
        @functools.wraps(measure)
        def once(study: Any) -> Measurement:
            if id not in study.measured:
                found = measure(study)
                study.measured[id] = _refuted(found, study, measure.__doc__ or id)
            return study.measured[id]

        def expected(study: Any) -> Verdict:
            if not regime(study).inside:
                return Verdict.OUT_OF_REGIME
            known = study.measured.get(id)
            return Verdict.HOLDS if known is None else known.verdict

        return claim(id, part="experiment", regime=regime, expected=expected, study=STUDY)(once)

    return made


@measured("Fig 3A/3B (A1)", medium_query)
def four_phases(study) -> Measurement:
    """Attention of a medium-frequency token goes through four phases in this order: uniform,
    focus on a frequent token, second dilution, focus on itself."""
    data, law = study.solution.trajectory, study.data.law[list(study.data.sequence)]
    seen = study.phases(data)
    names = ["token"] * len(law)
    still = in_order(phases(_frozen(data["attention"].values[:, -1]), law, names))
    good = in_order(
        phases(_textbook(max(len(law), 2)), np.array([2.0, *law[1:-1] * 0, 1.0]), names)
    )
    words = "; ".join(f"{p.name} {'seen' if p.seen else 'not seen'}: {p.evidence}" for p in seen)
    return _bounded(at_least, in_order(seen), len(PHASES), still, good, words)


@measured("Fig 3A/3B (A2, dominant token)")
def dominant_token_grows(study) -> Measurement:
    """The embedding norm of the most frequent token grows continuously."""
    norm = study.solution.trajectory["embedding_norm"].values[:, 0]
    return _bounded(
        at_most,
        retraction(norm),
        GROWS,
        retraction(norm[::-1]),
        retraction(np.sort(norm)),
        "largest fall, part of the maximum",
    )


@measured("Fig 3A/3B (A2, other tokens)")
def other_tokens_retract(study) -> Measurement:
    """The embedding norms of the other tracked tokens retract."""
    norm = study.solution.trajectory["embedding_norm"].values[:, 1:]
    drop = dict(zip(study.solution.trajectory["tracked"].values[1:], retraction(norm), strict=True))
    words = "largest falls: " + ", ".join(f"{n} {d:.2f}" for n, d in drop.items())
    return _bounded(
        at_least,
        min(drop.values()),
        RETRACTS,
        retraction(np.sort(norm, axis=0)).min(),
        retraction(norm[::-1]).min(),
        words,
    )


@measured("Section 4.2 (retraction of frequent tokens)")
def frequent_tokens_retract_too(study) -> Measurement:
    """Occasionally even one of the most frequent tokens retracts."""
    count = len(study.data.frequent)
    norm = study.solution.trajectory["embedding_norm"].values[:, :count]
    most = float(retraction(norm).max())
    if most < RETRACTS:
        return not_checkable(
            f"none of the {count} most frequent tokens falls by {RETRACTS} in this run (largest "
            f"{most:.3f}); one run cannot refute what is said to happen occasionally"
        )
    return at_least(most, RETRACTS, control=retraction(np.sort(norm, axis=0)).max())


@measured("Section 4.2 (focus, then dilution)")
def focus_then_dilution(study) -> Measurement:
    """Attention first prioritises the most frequent tokens and then loses this focus."""
    focus = study.solution.trajectory["focus"].values
    peak = int(np.argmax(focus))
    most, end = float(focus[peak]), float(focus[-1])
    # A focus that never came cannot be lost: the second part then compares with nothing.
    left = end / most if most > FOCUSED else 1.0
    return every(
        focus=_bounded(
            at_least,
            most,
            FOCUSED,
            float(focus[0]),
            1.0,
            f"reached after {peak / (len(focus) - 1):.0%} of the observations",
        ),
        dilution=_bounded(at_most, left, 0.5, 1.0, 0.0, "what is left of the peak at the end"),
    )


@measured("Fig 3C (self-attention)")
def more_tokens_attend_to_themselves(study) -> Measurement:
    """In a held-out sample more and more tokens give themselves at least 0.75."""
    seen = study.solution.trajectory["self_attention"].values
    count = (seen >= SELF).sum(axis=1).astype(float)
    ideal = np.linspace(0, seen.shape[1], len(count))
    words = f"{count[0]:.0f} of {seen.shape[1]} at the start, {count[-1]:.0f} at the end"
    return every(
        gain=_bounded(
            at_least, count[-1] - count[0], 1.0, count[0] - count[-1], ideal[-1] - ideal[0], words
        ),
        trend=_bounded(
            at_least,
            _trend(count),
            0.5,
            _trend(count[::-1]),
            _trend(ideal),
            "rank correlation of their number with time",
        ),
    )


@measured("Section 4.2 (from uniform to self-attention)")
def attention_moves_to_the_current_token(study) -> Measurement:
    """Tokens shift from uniform attention to self-attention: the current token gets most of it."""
    seen = study.solution.trajectory["self_mean"].values
    moved = (seen - seen[0]) / (1 - seen[0])
    words = (
        f"held-out attention to itself from {seen[0]:.3f} to {seen[-1]:.3f}, of what is possible"
    )
    return _bounded(at_least, float(moved[-1]), 0.5, float(moved[0]), 1.0, words)


@measured("Section 4.2 (pseudo-2-gram)", bigrams_tell)
def pseudo_bigram(study) -> Measurement:
    """The model works as a pseudo-2-gram model: its loss passes the unigram level towards the
    bigram level, and its predictions are nearer to the bigram row than to the unigram law."""
    data, d = study.solution.trajectory, study.data
    way = (d.unigram - data["loss"].values) / (d.unigram - d.bigram)
    nearer = data["unigram_gap"].values - data["bigram_gap"].values
    return every(
        loss=_bounded(
            at_least,
            float(way[-1]),
            0.25,
            float(way[0]),
            1.0,
            "part of the way from the unigram to the bigram loss",
        ),
        prediction=positive(
            float(nearer[-1]),
            control=float(nearer[0] if nearer[-1] > 0 else 1.0),
            note="nats nearer to the bigram row, at the end",
        ),
    )


def _bounded(
    builder: Callable[..., Measurement], value: Any, bound: float, null: Any, ideal: Any, note: str
) -> Measurement:
    """A bound, with the control that has to come out the other way."""
    value = float(value)
    holds = value >= bound if builder is at_least else value <= bound
    return builder(value, bound, control=float(null if holds else ideal), note=note)


def _refuted(found: Measurement, study: Any, statement: str) -> Measurement:
    """A claim that fails on this text, with the numbers that show it."""
    if found.verdict is not Verdict.FAILS:
        return found
    data = study.data.corpus
    where = f"{data.name} ({data.tokens} {data.tokenizer} tokens), seed {study.config.seed}"
    correction = Correction(
        printed=" ".join(statement.split()),
        corrected=None,
        cause="missing-hypothesis",
        snippet=f"measured = {found.measured!r}\nwanted = {found.predicted!r}\n"
        "print(measured, 'where the statement wants', wanted)",
        counterexample=f"{where}: {found.sentence}",
    )
    return refuted(printed=found, correction=correction)


def _frozen(values: np.ndarray) -> np.ndarray:
    """The same observations if nothing had been learned."""
    return np.broadcast_to(values[0], values.shape)


def _textbook(n: int) -> np.ndarray:
    """Attention as Fig. 3 (A1) describes it, twelve observations a phase."""
    flat, first, own = np.full(n, 1 / n), np.eye(n)[0], np.eye(n)[-1]
    return np.repeat([flat, first, flat, own], 12, axis=0)


def _trend(series: np.ndarray) -> float:
    from scipy.stats import spearmanr

    if np.ptp(series) == 0:
        return 0.0
    return float(np.asarray(spearmanr(np.arange(len(series)), series))[0])
