"""Appendices G and H: finite width, and the inequalities behind it.

The deviation of a finite width is that of its Gram: gradient descent closes in it exactly, so
that many starts of many widths are one batch of small matrices.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy import stats

from attnflow.claims import (
    Correction,
    Measurement,
    at_most,
    claim,
    corrected,
    every,
    exponent,
    statistical,
)
from attnflow.models.two_head import HEADS
from attnflow.models.two_head_gram import gram_flow, head_scores
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims.common import (
    CONFLICTING,
    STUDY,
    condition_one,
    neurons_of,
    past_gates,
    said,
)

DELTA = 0.1
WIDTHS, STARTS = (64, 256, 1024, 4096), 16
RATE = 1.0
"""Step of stage 2 in the batch: the finite and the infinite width take the same steps."""


def bound(m, delta: float = DELTA):
    """The bound of Lemma G.1 over omega^2: sqrt(4/m log 8/delta) + 4/m log 8/delta."""
    tail = 4 / np.asarray(m) * np.log(8 / delta)
    return np.sqrt(tail) + tail


@functools.cache
def worst_entries(m: int, repeats: int = 120) -> np.ndarray:
    """Per start: the largest deviation of an entry of the Gram of [WK, WQ] from omega^2 I, over
    omega^2, for the eight vectors of K = 2."""
    H = np.random.default_rng(m).standard_normal((repeats, m, 8)) / np.sqrt(m)
    gap = np.swapaxes(H, 1, 2) @ H - np.eye(8)
    return np.abs(gap).max(axis=(1, 2))


@claim("Lemma G.1", study=STUDY)
def initial_concentration(study) -> Measurement:
    """With probability at least 1 - delta all initial scores and self-scores of different signals
    are within omega^2 (sqrt(4/m log 8/delta) + 4/m log 8/delta) of 0, and the norms of omega^2."""
    wrong = {m: worst_entries(m) > bound(m) for m in (20, 100, 400)}
    tight = {m: worst_entries(m) > 0.4 * bound(m) for m in wrong}
    return every(
        **{
            f"m{m}": statistical(
                DELTA, wrong[m] * 1.0, side="below", z=2.0, control_samples=tight[m] * 1.0
            )
            for m in wrong
        }
    )


@claim("Lemma G.1", part="proof-step", expected="holds-corrected", study=STUDY)
def variance_of_a_column(study) -> Measurement:
    """W_K mu and W_Q nu are Gaussian with covariance omega^2 I at initialisation."""
    m, omega = 200, 0.3
    H = omega / np.sqrt(m) * np.random.default_rng(0).standard_normal((400, m))
    norms = (H**2).sum(axis=1)
    return corrected(
        printed=statistical(omega**2 * m, norms, z=5.0),
        right=statistical(omega**2, norms, z=5.0),
        correction=Correction(
            printed="W_K mu, W_Q nu ~ N(0, omega^2 I)",
            corrected="W_K mu, W_Q nu ~ N(0, omega^2 I / m)",
            cause="extraction-or-typo",
            snippet="""
            import numpy as np
            m, omega = 200, 0.3  # Algorithm 1: entries N(0, omega^2 / m)
            column = omega / np.sqrt(m) * np.random.default_rng(0).standard_normal((400, m))
            norm2 = (column**2).sum(axis=1).mean()
            print("E |W_K mu|^2 =", round(norm2, 4), "; omega^2 =", omega**2, "; m omega^2 =",
                  m * omega**2)
            """,
        ),
    )


@functools.lru_cache(maxsize=16)
def deviations(bias: float, omega: float, t1: float) -> dict[int, float]:
    """Stage 2 by exact Gram descent: mean over starts of sup_t |S - S_inf|, for each width.

    It ends where the infinite width reaches `c1'S v1 = 1`.
    """
    gamma, a = (float(x) for x in theory.neurons(t1, bias))
    rng = np.random.default_rng(5)
    flow = gram_flow(CONFLICTING, bias, ("neurons",))
    rest = {"w": neurons_of(gamma, a)}
    starts = [flow.infinite_width(omega, rest)]
    for m in np.repeat(WIDTHS, STARTS).tolist():
        # A Wishart matrix by its Bartlett factor: no m x 8 matrices.
        factors = {head: _bartlett(rng, m) for head in HEADS}
        grams = {head: omega**2 / m * L @ L.T for head, L in factors.items()}
        starts.append(flow.state(grams, rest))

    def deviation(state: Any) -> np.ndarray:
        S = head_scores(state)
        return np.abs(S - S[:1]).max(axis=(1, 2, 3))

    limit = int(4 * theory.attention_time(gamma, omega) / RATE) + 200
    stop = lambda state: head_scores(state)[0, 0, 0, 2] >= 1.0  # noqa: E731
    found = gram_descent(flow, starts, RATE, limit, keep=deviation, stop=stop)
    worst = found.rows.max(axis=0)[1:].reshape(len(WIDTHS), STARTS).mean(axis=1)
    return dict(zip(WIDTHS, worst.tolist(), strict=True))


def _bartlett(rng: np.random.Generator, m: int, p: int = 8) -> np.ndarray:
    L = np.tril(rng.standard_normal((p, p)), -1)
    L[np.diag_indices(p)] = np.sqrt(rng.chisquare(m - np.arange(p)))
    return L


def small_and_past(study):
    base, scale = past_gates(study), condition_one(study)
    return base if not base.inside else scale


@claim("App G (rate)", **said(small_and_past, "consistent"))
def finite_width_rate(study) -> Measurement:
    """The deviation of a finite width from the infinite one in stage 2 is
    poly(1/omega) O(1/sqrt m): it falls like 1/sqrt m."""
    c = study.config
    found = deviations(c.bias, c.omega, c.t1)
    return exponent(WIDTHS, [found[m] for m in WIDTHS], -0.5, tol=0.1, control=-1.0)


@claim("ours: the deviation of a finite width does not grow with 1/omega", **said(small_and_past))
def uniform_in_omega(study) -> Measurement:
    """The factor poly(1/omega) of Appendix G is not needed: the initial deviation omega^2/sqrt m is
    amplified by 1/omega^2, so that the deviation at T2 does not grow as omega falls."""
    c = study.config
    found = {w: deviations(c.bias, w, c.t1) for w in (0.1, 0.03, 0.01)}
    ratio = max(found[0.01][m] / found[0.1][m] for m in WIDTHS)
    return at_most(ratio, 1.5, control=10.0, note=f"m in {WIDTHS}; omega .1 to .01")


# --- Appendix H.


def _tails(n: int) -> tuple[np.ndarray, np.ndarray]:
    """P[Z > t] of a sum of n signs, exactly, at all t where it jumps and between."""
    t = np.arange(0, n) + 0.5
    return t, stats.binom.sf(np.floor((t + n) / 2), n, 0.5)


@claim("Lemma H.1", study=STUDY)
def bernstein(study) -> Measurement:
    """Bernstein: P[Z > t] <= exp(-(t^2/2)/(V + M t/3)) for sums of independent bounded centred
    variables, here of n signs, whose tails are known exactly."""
    excess, loose = [], []
    for n in (1, 2, 5, 20, 100):
        t, tail = _tails(n)
        excess.append((tail - np.exp(-(t**2 / 2) / (n + t / 3))).max())
        loose.append((tail - np.exp(-(t**2) / (n + t / 3))).max())
    return at_most(max(excess), 0.0, control=max(loose))


@claim("Lemma H.1", part="proof-step", expected="holds-corrected", study=STUDY)
def middle_form(study) -> Measurement:
    """The bound is at most exp(-min{t^2/(2V), t/(2M)})."""
    V, M, t = (x.ravel() for x in np.meshgrid(*[np.geomspace(1e-2, 1e2, 25)] * 3))
    first = -(t**2 / 2) / (V + M * t / 3)
    # Compared as exponents: the exponentials underflow together.
    printed = first + np.minimum(t**2 / (2 * V), t / (2 * M))
    right = first + np.minimum(t**2 / (4 * V), t / (2 * M))
    return corrected(
        printed=at_most(printed.max(), 0.0, note="V = M = t = 1: .687 against .607"),
        right=at_most(right.max(), 0.0, control=printed.max()),
        correction=Correction(
            printed="exp(-(t^2/2)/(V + Mt/3)) <= exp(-min{t^2/(2V), t/(2M)})",
            corrected="exp(-(t^2/2)/(V + Mt/3)) <= exp(-min{t^2/(4V), t/(2M)})",
            cause="constant",
            snippet="""
            from math import exp
            V = M = t = 1.0
            left = exp(-(t**2 / 2) / (V + M * t / 3))
            print(round(left, 3), "<=", round(exp(-min(t**2 / (2 * V), t / (2 * M))), 3), "is",
                  left <= exp(-min(t**2 / (2 * V), t / (2 * M))))
            print(round(left, 3), "<=", round(exp(-min(t**2 / (4 * V), t / (2 * M))), 3), "is",
                  left <= exp(-min(t**2 / (4 * V), t / (2 * M))))
            """,
        ),
    )


@claim("Lemma H.1 (final form)", study=STUDY)
def final_form(study) -> Measurement:
    """With probability at least 1 - delta, Z <= sqrt(2 V log 1/delta) + 2 M log 1/delta: it follows
    from the first form in spite of the middle one."""
    V, M, ell = (x.ravel() for x in np.meshgrid(*[np.geomspace(1e-2, 1e2, 25)] * 3))

    def slack(size: float) -> float:
        t = size * (np.sqrt(2 * V * ell) + 2 * M * ell)
        return float((ell - (t**2 / 2) / (V + M * t / 3)).max())

    return at_most(slack(1.0), 0.0, slack=1e-9, control=slack(0.7))


@claim("Lemma H.2", study=STUDY)
def gaussian_vectors(study) -> Measurement:
    """For w1, w2 ~ N(0, I_m/m) both | |w1|^2 - 1 | and |<w1, w2>| exceed
    sqrt(4/m log 2/delta) + 4/m log 2/delta with probability at most delta (tails are exact)."""
    norm, inner, tight = [], [], []
    levels = (np.arange(2000) + 0.5) / 2000
    for m in (1, 2, 5, 20, 100, 1000):
        size = np.sqrt(stats.chi2.ppf(levels, m) / m)
        for delta in (0.5, 0.1, 0.01):
            t = bound(m, 4 * delta)  # log 8/(4 delta) = log 2/delta
            norm.append(stats.chi2.sf(m * (1 + t), m) + stats.chi2.cdf(m * (1 - t), m) - delta)
            inner.append(float(np.mean(2 * stats.norm.sf(t * np.sqrt(m) / size))) - delta)
            half = 0.4 * t
            tight.append(
                stats.chi2.sf(m * (1 + half), m) + stats.chi2.cdf(m * (1 - half), m) - delta
            )
    return every(
        norm=at_most(max(norm), 0.0, control=max(tight)),
        product=at_most(max(inner), 0.0, control=max(tight)),
    )


@claim("Lemma H.2", part="constant", study=STUDY)
def expectations(study) -> Measurement:
    """E |w1|^2 = 1 and E <w1, w2> = 0."""
    m = 50
    H = np.random.default_rng(3).standard_normal((2, 400, m)) / np.sqrt(m)
    return every(
        norm=statistical(1.0, (H[0] ** 2).sum(axis=1), z=4.0, control=1.1),
        product=statistical(0.0, (H[0] * H[1]).sum(axis=1), z=4.0, control=0.1),
    )
