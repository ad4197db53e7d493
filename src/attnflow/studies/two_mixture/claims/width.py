"""Appendices G and H: finite width, and the inequalities behind it.

The deviation of a finite width is that of its Gram: gradient descent closes in it exactly, so
that many starts of many widths are one batch of small matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow import claims
from attnflow.claims import Control, Measurement, at_least, at_most, every, order, statistical
from attnflow.models.two_head import HEADS, TwoHeadClassifier
from attnflow.models.two_head_gram import gram_flow, head_scores
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture import theory
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO, neurons_of, staged
from attnflow.studies.two_mixture.errata import BERNSTEIN
from attnflow.studies.two_mixture.margin import largest_margin, signed_features
from attnflow.studies.two_mixture.paper import paper

DELTA, WIDTHS, STARTS, SCALES = 0.1, (64, 256, 1024, 4096), 16, (0.1, 0.03, 0.01)

small_and_past = common.past_gates & common.condition_one


def bound(m: Any, delta: float = DELTA, count: float = 8.0) -> Any:
    """The bound of Lemma G.1 over omega^2: sqrt(4/m log 8/delta) + 4/m log 8/delta."""
    tail = 4 / np.asarray(m) * np.log(count / delta)
    return np.sqrt(tail) + tail


@paper.claim("Lemma G.1")
def initial_concentration(study) -> Measurement:
    r"""With probability at least $1 - \delta$ all initial scores and self-scores of different
    signals are within $\omega^2(\sqrt{(4/m)\log(8/\delta)} + (4/m)\log(8/\delta))$ of 0, and the
    norms of $\omega^2$."""

    def beyond(m: int, shrunk: int = 1) -> np.ndarray:
        H = np.random.default_rng(m).standard_normal((120, m, 8)) / np.sqrt(m)
        gap = np.abs(np.swapaxes(H, 1, 2) @ H - np.eye(8)).max(axis=(1, 2))
        return (gap > bound(shrunk * m)) * 1.0

    def below(m: int) -> Measurement:
        tight = Control("1/m in place of 4/m", measured=beyond(m, shrunk=4))
        return statistical(predicted=DELTA, samples=beyond(m), side="below", z=2.0, control=tight)

    return every(**{f"m{m}": below(m) for m in (20, 100, 400)})


@paper.claim("Lemma G.1", part="proof-step", reading=r"read $N(0, \omega^2 I/m)$, see C.1")
def variance_of_a_column(study) -> Measurement:
    r"""$W_K\mu, W_Q\nu \sim N(0, \omega^2 I/m)$ at initialisation."""
    m, omega = 50, 0.3
    rng = np.random.default_rng(30)
    starts = [TwoHeadClassifier.gaussian(2, m, omega, seed=seed) for seed in range(30)]
    norms = [((th.WK**2).sum() + (th.WQ**2).sum()) / 16 for th in starts]
    extracted = [((omega * rng.standard_normal((m, 16))) ** 2).sum() / 16 for _ in starts]
    control = Control("as extracted", measured=extracted)
    return statistical(predicted=omega**2, samples=norms, z=4.0, control=control)


@paper.once
def deviations(bias: float, omega: float, t1: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Stage 2 by exact Gram descent: for each width the mean over starts of the first and of the
    largest `|G - G_inf|`, and the least of all margins at the end.

    It ends where the infinite width reaches `c1'S v1 = 1`.
    """
    gamma, a = (float(x) for x in theory.neurons(t1, bias))
    rng, rest = np.random.default_rng(5), {"w": neurons_of(gamma, a)}
    flow = gram_flow(common.CONFLICTING, bias, ("neurons",))
    starts = [flow.infinite_width(omega, rest)]
    for m in np.repeat(WIDTHS, STARTS).tolist():
        factors = {head: bartlett(rng, m) for head in HEADS}
        grams = {head: omega**2 / m * L @ L.T for head, L in factors.items()}
        starts.append(flow.state(grams, rest))

    def kept(state: Any) -> tuple[np.ndarray, np.ndarray]:
        G = np.stack([state["gram"][head].upper for head in HEADS], axis=1)
        return np.abs(G - G[:1]).max(axis=(1, 2)), head_scores(state)

    limit = int(4 * theory.attention_time(gamma, omega)) + 200
    stop = lambda state: head_scores(state)[0, 0, 0, 2] >= 1.0  # noqa: E731
    gaps, S = gram_descent(flow, starts, 1.0, limit, keep=kept, stop=stop).rows
    first, most = (x[1:].reshape(-1, STARTS).mean(axis=1) for x in (gaps[0], gaps.max(axis=0)))
    return first, most, min(margin_of(rest["w"], s, bias) for s in S[-1])


def bartlett(rng: np.random.Generator, m: int, p: int = 8) -> np.ndarray:
    """A factor of a Wishart matrix, so that no m x p matrix is needed."""
    L = np.tril(rng.standard_normal((p, p)), -1)
    L[np.diag_indices(p)] = np.sqrt(rng.chisquare(m - np.arange(p)))
    return L


def margin_of(w: np.ndarray, S: np.ndarray, bias: float) -> float:
    return largest_margin(signed_features(TWO.population, w, S, bias)).lower


@paper.claim("App G (rate)", regime=small_and_past)
def finite_width_rate(study) -> Measurement:
    r"""The deviation of a finite width from the infinite one in stage 2 is
    $\mathrm{poly}(1/\omega)\,O(1/\sqrt m)$: it falls like $1/\sqrt m$."""
    c = study.config
    y, tail = deviations(c.bias, c.omega, c.t1)[1], [4 / m * np.log(8 / DELTA) for m in WIDTHS]
    term = Control("the second term of Lemma G.1's bound", measured=tail)
    return order("Theta", x=WIDTHS, y=y, power=-0.5, toward="infinity", control=term)


def system_norms(study) -> list[tuple[float, float]]:
    """For each scale the largest row sum of |A| in stage 2, and its integral.

    Rows of A have those of M and M^T: S' = M B + A M, A' = M S^T + S M^T, B' = M^T S + S^T M.
    """
    found = []
    for run in common.second_stages(study, SCALES):
        rows, columns = (np.abs(run.M).sum(axis=axis).max(axis=-1) for axis in (-1, -2))
        norms = np.max([rows + columns, 2 * rows, 2 * columns], axis=0)
        found.append((float(norms.max()), float(np.trapezoid(norms, run.times))))
    return found


@paper.claim("App G (norm of A)", regime=staged)
def norm_of_the_system(study) -> Measurement:
    r"""In stage 2 $\|A^{(t)}\|_\infty = O(1)$: it does not grow as $\omega$ falls."""
    most, integrals = zip(*system_norms(study), strict=True)
    whole = Control("its integral over stage 2", measured=integrals)
    return order("O", x=SCALES, y=most, power=0.0, tol=0.05, control=whole)


@paper.claim("App G (bound)", regime=staged)
def amplification(study) -> Measurement:
    r"""The perturbation of the start is amplified by at most $\mathrm{poly}(1/\omega)$: by no more
    than $e^{\int\|A\|\,dt}$ over stage 2 (logarithms, the largest over m)."""
    c = study.config
    found = [deviations(c.bias, w, c.t1) for w in SCALES]
    grown = [np.log((most / first).max()) for first, most, _ in found]
    unit, integrals = zip(*system_norms(study), strict=True)
    short = Control("a stage 2 of unit length", predicted=unit)
    return at_most(bound=integrals, measured=grown, control=short)


@paper.claim("ours: the deviation of a width does not grow with 1/omega", regime=small_and_past)
def uniform_in_omega(study) -> Measurement:
    r"""The factor $\mathrm{poly}(1/\omega)$ of Appendix G is not needed: the initial deviation
    $\omega^2/\sqrt m$ is amplified by $1/\omega^2$, so that at T2 it does not grow as $\omega$
    falls (.01 against .1, for each m)."""
    c = study.config
    first, most = zip(*(deviations(c.bias, w, c.t1)[:2] for w in SCALES), strict=True)
    factor = Control("the amplification itself", most[-1] / first[-1] * first[0] / most[0])
    return at_most(bound=1.3, measured=most[-1] / most[0], control=factor)


@paper.claim("Thm 4.1 (1/eps at most poly m)", part="hypothesis", regime=staged)
def any_epsilon(study) -> Measurement:
    r"""For $1/\epsilon \leq O(\mathrm{poly}(m))$ stage 3 reaches a loss of $\epsilon$: at finite
    widths the attention features at T2 are separable, so that it reaches every $\epsilon$."""
    c = study.config
    w = neurons_of(*(float(x) for x in theory.neurons(c.t1, c.bias)))
    before = Control("at T1", margin_of(w, np.zeros((2, 4, 4)), c.bias))
    return at_least(bound=0.1, measured=deviations(c.bias, c.omega, c.t1)[2], control=before)


GRID = [x.ravel() for x in np.meshgrid(*[np.geomspace(1e-2, 1e2, 25)] * 3)]


@paper.claim("Lemma H.1")
def bernstein(study) -> Measurement:
    r"""Bernstein: $P[Z > t] \leq \exp(-(t^2/2)/(V + Mt/3))$ for sums of independent bounded centred
    variables, here of n signs, whose tails are known exactly."""
    from scipy import stats  # late: the figure of this section does without it

    def excess(second: float) -> float:
        """The largest of log P - log bound, with `t^2 second` in the exponent."""
        found = []
        for n in (1, 2, 5, 20, 100):
            t = np.arange(0, n) + 0.5
            tail = stats.binom.logsf(np.floor((t + n) / 2), n, 0.5)
            found.append(float((tail + second * t**2 / (n + t / 3)).max()))
        return max(found)

    whole = Control("t^2 in place of t^2/2", excess(1.0))
    return at_most(bound=0.0, measured=excess(1 / 2), control=whole)


@paper.claim("Lemma H.1", part="proof-step")
def middle_form(study) -> Measurement:
    r"""The bound is at most $\exp(-\min\{t^2/(2V), t/(2M)\})$."""
    V, M, t = GRID

    def excess(factor: float) -> float:
        # Compared as exponents: the exponentials underflow together.
        first = -(t**2 / 2) / (V + M * t / 3)
        return float((first + np.minimum(t**2 / (factor * V), t / (2 * M))).max())

    return claims.corrected(
        printed=at_most(bound=0.0, measured=excess(2.0), note="V = M = t = 1: .687 against .607"),
        right=at_most(bound=0.0, measured=excess(4.0)),
        text=r"\exp(-(t^2/2)/(V + Mt/3)) \leq \exp(-\min\{t^2/(2V), t/(2M)\})",
        correct=r"\exp(-(t^2/2)/(V + Mt/3)) \leq \exp(-\min\{t^2/(4V), t/(2M)\})",
        erratum=BERNSTEIN,
    )


@paper.claim("Lemma H.1 (final form)")
def final_form(study) -> Measurement:
    r"""With probability at least $1 - \delta$, $Z \leq \sqrt{2V\log(1/\delta)} + 2M\log(1/\delta)$:
    it follows from the first form in spite of the middle one."""
    V, M, ell = GRID

    def lacking(second: float) -> float:
        """log 1/delta less the exponent of the first form at this t."""
        t = np.sqrt(2 * V * ell) + second * M * ell
        return float((ell - (t**2 / 2) / (V + M * t / 3)).max())

    half = Control("M/2 for 2M", lacking(0.5))
    return at_most(bound=0.0, measured=lacking(2.0), slack=1e-9, control=half)


@paper.claim("Lemma H.2")
def gaussian_vectors(study) -> Measurement:
    r"""For $w_1, w_2 \sim N(0, I_m/m)$ both $|\,|w_1|^2 - 1|$ and $|w_1^\top w_2|$ exceed
    $\sqrt{(4/m)\log(2/\delta)} + (4/m)\log(2/\delta)$ with probability at most $\delta$."""
    from scipy import stats

    def excess(shrunk: int = 1) -> np.ndarray:
        """The exact probabilities less delta, of the norm and of the product."""
        levels, rows = (np.arange(2000) + 0.5) / 2000, []
        for m in (1, 2, 5, 20, 100, 1000):
            size = np.sqrt(stats.chi2.ppf(levels, m) / m)
            for delta in (0.5, 0.1, 0.01):
                t = bound(shrunk * m, delta, 2.0)
                norm = stats.chi2.sf(m * (1 + t), m) + stats.chi2.cdf(m * (1 - t), m)
                inner = np.mean(2 * stats.norm.sf(t * np.sqrt(m) / size))
                rows.append([norm - delta, inner - delta])
        return np.max(rows, axis=0)

    tight = Control("1/m in place of 4/m", excess(shrunk=4))
    return at_most(bound=0.0, measured=excess(), control=tight)


@paper.claim("Lemma H.2", part="constant")
def expectations(study) -> Measurement:
    r"""$\mathbb E|w_1|^2 = 1$ and $\mathbb E\,w_1^\top w_2 = 0$."""
    H = np.random.default_rng(3).standard_normal((2, 400, 50)) / np.sqrt(50)
    norm, product = (H[0] ** 2).sum(axis=1), (H[0] * H[1]).sum(axis=1)
    both = Control("of w1 + w2", measured=((H[0] + H[1]) ** 2).sum(axis=1))
    own = Control("of w1 with w1", measured=norm)
    return every(
        norm=statistical(predicted=1.0, samples=norm, z=4.0, control=both),
        product=statistical(predicted=0.0, samples=product, z=4.0, control=own),
    )
