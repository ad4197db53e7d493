"""Section 5.2 and Appendix E.2: the near symmetry of the scores, Lemma E.4."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_most, corrected, equal, every
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import C1, C2, V1, V2, StageTwo, staged
from attnflow.studies.two_mixture.claims.stage_two import at_t1, in_omega, step
from attnflow.studies.two_mixture.errata import QUARTER
from attnflow.studies.two_mixture.paper import paper

SUMS = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]])
"""c_1 + c_2 and v_1 + v_2."""


def size(r: StageTwo | dict[str, np.ndarray]) -> np.ndarray:
    """Delta of Lemma E.4 over time; of the rates, a bound on its speed."""
    S, A, B = (r[name] if isinstance(r, dict) else getattr(r, name) for name in "SAB")
    parts = [SUMS @ S, S @ SUMS.T, SUMS @ A, SUMS @ B]
    return np.max([np.abs(x).max(axis=(1, 2)) for x in parts], axis=0)


@paper.claim("Lemma E.4 (size)", regime=staged)
def asymmetry_small(study) -> Measurement:
    r"""$\Delta = \tilde O(\omega)$ up to $T_2$."""
    lead = Control("the leading score", measured=lambda r: r.S[-1, C1, V1])
    return in_omega(study, "O", 1, lambda r: size(r).max(), lead)


@paper.claim("ours: asymmetry is omega^2", part="constant", regime=staged)
def asymmetry_order(study) -> Measurement:
    r"""$\Delta(T_2) = \omega^2(1 + o(1))$: the sum sector of the self-scores hardly moves."""
    lead = Control("c_1' A c_1", measured=lambda r: r.A[-1, C1, C1])
    return in_omega(study, "Theta", 2, lambda r: size(r)[-1], lead, tol=0.05)


@paper.claim("Lemma E.4 (rates)", regime=staged)
def asymmetry_slow(study) -> Measurement:
    r"""$\dot\Delta$ over $\frac{d}{dt} c_1^\top S v_1$ is $\tilde O(\omega)$ on $[T_1, T_2]$."""

    def over_lead(r: StageTwo, rate: np.ndarray) -> float:
        return float((rate / r.rates["S"][:, C1, V1]).max())

    control = Control("of v_1' S c_1", measured=lambda r: over_lead(r, -r.rates["S"][:, V1, C1]))
    return in_omega(study, "O", 1, lambda r: over_lead(r, size(r.rates)), control)


@step("Lemma E.4 (start)")
def asymmetry_start(study) -> Measurement:
    r"""$\Delta(T_1) = \omega^2$ and $\dot\Delta = 0$ at $T_1$."""
    r = common.second_stage(study)
    Delta, moved = size(r), size(r.rates) / r.omega**2
    late, fast = Control("at T2", measured=Delta[-1]), Control("at T2", moved[-1])
    return every(
        size=equal(predicted=r.omega**2, measured=Delta[0], rtol=1e-12, control=late),
        speed=at_most(bound=1e-15, measured=moved[0], control=fast),
    )


@step("Lemma E.4 (eq 15)")
def asymmetry_rate(study) -> Measurement:
    r"""$|\dot\Delta| \le O(\Delta\,\Delta p)$, $\Delta p$ the largest change of attention from
    $1/3$."""

    def constant(r: StageTwo, rate: np.ndarray) -> float:
        moved = np.abs(r.attention - 1 / 3).max(axis=(1, 2, 3, 4))
        return float((rate / np.where(moved > 0, size(r) * moved, np.inf)).max())

    control = Control("of v_1' S c_1", measured=lambda r: constant(r, -r.rates["S"][:, V1, C1]))
    return in_omega(study, "O", 0, lambda r: constant(r, size(r.rates)), control)


@step("Lemma E.4 (uniform attention)")
def rate_at_uniform_attention(study) -> Measurement:
    r"""With $p = 1/3$ $\frac{d}{dt} c_1^\top S v_1 =$ $\frac{1}{12} g\cdot 2\cdot\frac{2}{3}
    w_+^\top c_1$ $(v_1^\top B v_1 - v_1^\top B v_2 + c_1^\top A c_1 - c_1^\top A c_2)$, and
    $\frac{d}{dt} c_1^\top S (v_1 + v_2)$ vanishes."""
    r, M = common.second_stage(study), at_t1(study)[2]
    f = common.forward(r.w, common.both_heads(r.S), common.CONFLICTING, r.bias)[2]
    g = 1 / (1 + np.exp(f[:, 0]))
    rate = (M @ r.B + r.A @ M)[:, C1] * (g / g[0])[:, None]  # all conflicting samples share g
    brackets = r.B[:, V1, V1] - r.B[:, V1, V2] + r.A[:, C1, C1] - r.A[:, C1, C2]
    printed = g / 3 * 2 * brackets * 2 / 3 * r.gamma
    there = Control("with the attention that there is", -r.rates["S"][:, C1, V1])
    late = Control("g of T1", printed / 4 * (g[0] / g))
    return corrected(
        printed=equal(predicted=printed, measured=rate[:, V1], rtol=1e-11),
        right=every(
            rate=equal(predicted=printed / 4, measured=rate[:, V1], rtol=1e-11, control=late),
            vanishes=equal(predicted=-rate[:, V1], measured=rate[:, V2], rtol=1e-12, control=there),
        ),
        text=r"$\frac{1}{3} g 2 (v_1^\top B v_1 - v_1^\top B v_2)\frac{2}{3} w_+^\top c_1$ +"
        r" $\frac{1}{3} g 2 (c_1^\top A c_1 - c_1^\top A c_2)\frac{2}{3} w_+^\top c_1$",
        correct="a quarter of it",
        erratum=QUARTER,
        snippet="rates_at_t1",
    )


@paper.claim("Section 5.2 (near symmetries)", regime=staged)
def leading_near_symmetry(study) -> Measurement:
    r"""$c_1^\top S v_1 \approx -c_1^\top S v_2$, $c_1^\top A c_1 \approx -c_1^\top A c_2$ and
    $v_1^\top B v_1 \approx -v_1^\top B v_2$ at $T_2$ up to a power of $\omega$."""

    def sums(r: StageTwo) -> float:
        S, A, B = (getattr(r, name)[-1] for name in "SAB")
        pairs = S[C1, [V1, V2]], A[C1, [C1, C2]], B[V1, [V1, V2]]
        return max(abs(float(pair.sum())) for pair in pairs)

    lead = Control("c_1' A c_1 itself", measured=lambda r: r.A[-1, C1, C1])
    return in_omega(study, "O", 1, sums, lead)


@step("Section 5.2 (three variables at T1)")
def three_variables_at_start(study) -> Measurement:
    r"""At $T_1$ the rate of $c_1^\top S v_1$ depends on $v_1^\top B v_k$ and $c_1^\top A c_k$
    alone, those of $c_1^\top A c_1$ and $v_1^\top B v_1$ on $c_1^\top S v_k$ alone: $M =
    \frac{\gamma}{18}$ times $D$ in the block of key $c$ and query $v$, $-D/2$ in that of key $v$
    and query $c$, 0 elsewhere, $D = [[1,-1],[-1,1]]$."""
    gamma, _, M = at_t1(study)
    blocks, turned = np.array([[0, 1], [-0.5, 0]]), np.array([[0, -0.5], [1, 0]])
    D = np.array([[1, -1], [-1, 1]])
    known, other = (gamma / 18 * np.kron(each, D) for each in (blocks, turned))
    control = Control("keys and queries exchanged", other)
    return equal(predicted=known, measured=M, rtol=1e-12, control=control)
