"""Theorems 3.9 and D.3 at finite eta, on the model itself: what their proofs leave out."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    Regime,
    against,
    at_most,
    compared,
    condition,
    corrected,
    equal,
    every,
    order,
)
from attnflow.linearise.lyapunov_schmidt import RangeSolution, lyapunov_schmidt
from attnflow.studies.focus_dilution import rank_one, symmetric
from attnflow.studies.focus_dilution.claims.common import jacobian
from attnflow.studies.focus_dilution.claims.degenerate_cases import limit_point, odd_modes
from attnflow.studies.focus_dilution.claims.symmetric import FINITE, margin
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain

SHARPNESS = (4.0, 8.0, 10.727)
"""eta (gamma_1 - gamma_low)^2; the last is where the flow of pi = (.75, .125, .125), lam = .8 from
a small start comes to rest, eta = 1.394."""

SHARES = (1e-5, 3e-5, 1e-4)
"""delta over p, the mass of a lower token."""


@condition
def off_the_boundary(config: Config) -> Regime:
    chain = config.chain()
    found = margin(TwoGroup(float(chain.pi.max()), chain.lam, 3))
    words = f"the criterion of the split of equal tokens is off its boundary: {found:.3g}"
    return Regime(abs(found) > 3e-4, words)


class FiniteEta:
    """A symmetric critical point of the d = 3 law on the leaf of small starts, and the law moved
    by delta."""

    def __init__(self, study, sharpness: float):
        self.system = TwoGroup(float(study.chain.pi.max()), study.chain.lam, 3)
        self.p = (1 - self.system.pi1) / 2
        z = symmetric.symmetric_state(self.system, sharpness)
        gamma, beta = z[0] ** 2 + 2 * z[1] ** 2, z[2] ** 2 + 2 * z[3] ** 2
        scale = ((beta + 2 * sharpness) / gamma) ** 0.25  # |gamma|^2 = |beta|^2 + 2 eta
        self.z = symmetric.symmetric_state(self.system, sharpness, scale)

    @property
    def split_rate(self) -> float:
        return float(symmetric.antisymmetric_rate(self.system, self.z))

    def law(self, delta: complex) -> tuple[np.ndarray, np.ndarray]:
        pi = np.array([self.system.pi1, self.p + delta, self.p - delta])
        return pi, self.system.lam * np.eye(3) + (1 - self.system.lam) * pi

    def evaluate(self, z: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
        """The flow in (gamma, beta, lambda_Q, lambda_K), and its Jacobian in it and delta."""
        h = 1e-20
        J = rank_one.derivative(lambda x: rank_one.velocity(x, self.law(delta)), z)
        f1 = np.imag(rank_one.velocity(z + 0j, self.law(delta + 1j * h))) / h
        return rank_one.velocity(z, self.law(delta)), np.column_stack([J, f1])

    def rates(self, found: RangeSolution) -> list[float]:
        """The largest rates within rank one and off it, of the flow of all weights at width 2."""
        e, odd = np.eye(2)[0], odd_modes()
        theta = rank_one.rank_one_lift(rank_one.state_of(found.theta), e, e)
        J = jacobian(theta, MarkovChain(self.law(found.p)[0], self.system.lam))
        within = np.setdiff1d(np.arange(20), np.append(odd, [13, 17]))  # 13, 17: WQ, WK into e_2
        return [np.linalg.eigvals(J[np.ix_(s, s)]).real.max() for s in (within, odd)]


@paper.once
def finite(study, sharpness: float, shares: tuple[float, ...] = SHARES) -> np.ndarray:
    """delta, |grad L|, the largest rates within rank one and off it, at each perturbed point."""
    at = FiniteEta(study, sharpness)
    ls = lyapunov_schmidt(at.evaluate, at.system.lift(at.z), host=True)
    found = [ls.solve(np.zeros(ls.dimension), s * at.p) for s in shares]
    return np.array([(f.p, f.speed, *at.rates(f)) for f in found]).T


on_the_model = partial(
    paper.claim,
    regime=limit_point & off_the_boundary,
    setting="the model itself, d = 3, eta Dgamma^2 = 4, 8, 10.7",
)


@on_the_model("Thm 3.9, Thm D.3 (critical point, finite eta)")
@against("at the symmetric point", at_most, bound=1e-13, note="in gamma, beta, lambda_Q, lambda_K")
def critical_at_finite_eta(study, right: bool):
    r"""At finite $\eta$ too there is a point $\theta(\delta)$ near the symmetric one with
    $|\nabla L| = O(\delta^3)$; it is exactly critical."""
    if right:
        return max(finite(study, k)[1].max() for k in SHARPNESS)
    points = [FiniteEta(study, k) for k in SHARPNESS]
    return np.abs([f.evaluate(f.system.lift(f.z), SHARES[0] * f.p)[0] for f in points]).max()


@on_the_model("Thm 3.9, Thm D.3 (slow tangential, finite eta)")
def tangential_at_finite_eta(study) -> Measurement:
    r"""Positive eigenvalues within the rank-one manifold are at most $O(\delta^2)$.

    The proof takes $\eta\to\infty$; at finite $\eta$ the split of equal tokens has a rate that does
    not shrink with $\delta$, where the criterion of its instability holds."""
    points = [FiniteEta(study, k) for k in SHARPNESS]
    if margin(points[0].system) < 0:
        other = study.at(pi=(0.75, 0.125, 0.125), lam=0.8)
        return at_most(
            bound=1e-13,
            measured=max(finite(study, k)[2].max() for k in SHARPNESS),
            control=Control("pi1 = 0.75, lam = 0.8", finite(other, SHARPNESS[0])[2].max()),
            note="the criterion says stable: nothing grows within rank one",
        )
    delta, _, tangential, transverse = finite(study, SHARPNESS[-1])
    rate = f"transverse {transverse[0] / delta[0]:.4g} delta"
    note = f"at eta = {points[-1].z[4] ** 2:.4g} the rate is {tangential[0]:.4g}, {rate}"

    def rates(right: bool):
        told = [FiniteEta(study, k if right else 2 * k).split_rate for k in SHARPNESS]
        return told, [finite(study, k, (1e-7,))[2][0] for k in SHARPNESS]

    bars = {"rtol": 1e-6, "each": True, "note": "as delta goes to 0"}
    return corrected(
        printed=order("O", x=delta, y=tangential, power=2, note=note),
        right=compared(equal, "at twice the sharpness", rates, **bars),
        text=r"any positive eigenvalue within rank one is at most $O(\delta^2)$",
        correct=r"so as $\eta\to\infty$, which the proof takes. At finite $\eta$ it is"
        r" $r(\eta) + O(\delta^2)$ with $r(\eta) > 0$ where"
        r" $P_{21}(1-P_{21})[\pi_1L_1^2P_{12} + (1-\pi_1)L_2^2Q] < \lambda^2(1-\pi_1)/(d-1)$, and"
        r" $r(\eta)\to0$",
        erratum=FINITE,
    )


@on_the_model("Thm 3.9, Thm D.3 (fast normal, finite eta)")
def transverse_at_finite_eta(study) -> Measurement:
    r"""At finite $\eta$ too a transverse eigenvalue of order $\delta$ appears."""

    def fitted(k: float) -> Measurement:
        delta, _, _, transverse = finite(study, k)
        at = FiniteEta(study, k)
        second = [np.linalg.norm(at.evaluate(at.system.lift(at.z), d)[0]) ** 2 for d in delta]
        squared = Control("the square of |grad L| at the symmetric point", measured=second)
        return order("Theta", x=delta, y=transverse, power=1, control=squared)

    return every(**{f"sharpness={k:g}": fitted(k) for k in SHARPNESS})
