"""The cases at which Appendix D is measured, and the few ways in which its claims compare.

Three cases of the limit model (`limit.LimitModel`) at its degenerate point: the config's (pi1, lam)
with eta = 3 and 10, and (0.45, 0.65) with eta = 10. Derivatives are exact (jets), taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial, wraps
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, Regime, at_most, condition, every, identity
from attnflow.expand.jets import Jet
from attnflow.linearise.lyapunov_schmidt import LyapunovSchmidt, RangeSolution, lyapunov_schmidt
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.limit import (
    LimitModel,
    rank_one_weights,
    split_weights,
    weight_velocity,
)
from attnflow.studies.focus_dilution.paper import paper

S = np.array([0.0, 1.0, -1.0])
"""The antisymmetric direction of the two lower tokens."""

LOW = np.array([0.0, 0.5, 0.5])
"""Attention of the lower tokens at the symmetric point."""

BESIDE = np.array([0.1, 0.2, -0.15, 0.05, -0.1, 0.2])
"""To a point where nothing is symmetric: identities that hold anywhere are measured there."""


@condition
def limit_point(config: Config) -> Regime:
    """The d = 3 law with the config's first entry has the degenerate point of Prop. 3.8."""
    chain = config.chain()
    lam, pi1 = chain.lam, float(chain.pi.max())
    if lam is None:
        return Regime(False, "P = lam I + (1 - lam) 1 pi^T, eq. (2)")
    leads, room = 1 / 3 + 1e-3 < pi1 < 1 - 1e-3, (1 - lam) * pi1 < 1 / 3 - 1e-3
    return Regime(
        leads and room and lam < 1 - 1e-3,
        f"d = 3: token 1 leads, 1/3 < pi1 = {pi1:.4g} < 1, and gamma_low < 0 because "
        f"(1 - lam) pi1 = {(1 - lam) * pi1:.4g} < 1/3 (each by 1e-3)",
    )


stated = partial(paper.claim, regime=limit_point, setting="limit model (eta = infinity)")
step = partial(stated, part="proof-step")


def of_the_loss(theta: int, delta: int = 0) -> Any:
    """A term of the expansion (96) of -grad L: minus a derivative of the loss."""
    return cached_property(lambda self: -self.d("loss", theta, delta))


class Case:
    """The degenerate point of one (pi1, lam, eta), and its derivatives in (theta, delta)."""

    def __init__(self, pi1: float, lam: float, eta: float, gap: float = 0.0, shift: Any = 0.0):
        self.model = LimitModel(pi1, lam, eta)
        self.name = f"pi1={pi1:g} lam={lam:g} eta={eta:g}"
        self.p, self.l, self.eta = pi1, lam, eta
        self.theta = self.model.symmetric_point(gap) + shift
        self.gamma, self.beta = self.theta[:3], self.theta[3:]
        self.g1, self.gl = float(self.gamma[0]), float(self.gamma[1])
        self.small = (1 - pi1) / 2
        self.pi = np.array([pi1, self.small, self.small])
        fields = self.model.fields(self.theta)
        self.A, self.P = fields.attention, fields.prediction
        self.V = np.stack([var(p) for p in self.P])
        self.P1, self.Pl, self.V1, self.Vl = self.P[0], self.P[1], self.V[0], self.V[1]
        self.norm = float(np.linalg.norm(self.theta))
        self.kappa, mean = lam + (1 - pi1) * (1 - lam), pi1 * self.g1 + (1 - pi1) * self.gl
        self.c1 = pi1 * self.g1**2 * self.P1[1] + (1 - pi1) * self.gl**2 * self.Pl[1]  # of (100)
        self.drive = lam * self.gl + (1 - lam) * mean  # the factor of f_1
        self.c = self.drive / self.c1  # of D.15, D.17 without delta: beta moves along (0, 1, -1)
        self._solved: dict[float, RangeSolution] = {}

    @cached_property
    def beside(self) -> Case:
        return Case(self.p, self.l, self.eta, shift=BESIDE)

    @cached_property
    def jets(self) -> Any:
        """Attention, prediction, loss, GM, GP as jets of order 3 in (gamma, beta, delta)."""
        z = Jet.variables(np.append(self.theta, 0.0), 3)
        return self.model.fields(z[:6], z[6])

    def d(self, field: str, theta: int, delta: int = 0) -> np.ndarray:
        """The derivative of a field of those orders, theta's axes last."""
        whole = getattr(self.jets, field).derivative(theta + delta)
        return whole[(..., *[slice(6)] * theta, *[6] * delta)]

    J0, f1, B = of_the_loss(2), of_the_loss(1, 1), of_the_loss(3)
    J1, f2 = of_the_loss(2, 1), of_the_loss(1, 2)

    @cached_property
    def K(self) -> np.ndarray:
        """The kernel basis (97) in columns."""
        last = np.concatenate([-self.gamma, self.beta]) / self.norm
        k2 = np.concatenate([np.zeros(3), np.ones(3)]) / np.sqrt(3)
        return np.stack([np.append(S, np.zeros(3)) / np.sqrt(2), k2, last], axis=1)

    @cached_property
    def R(self) -> np.ndarray:
        """The range basis (98) in columns."""
        first = np.array([-2 * self.gl, self.g1, self.g1, 0, 0, 0])
        first /= np.sqrt(4 * self.gl**2 + 2 * self.g1**2)
        q2 = np.concatenate([np.zeros(3), S]) / np.sqrt(2)
        return np.stack([first, q2, self.theta / self.norm], axis=1)

    @cached_property
    def moved(self) -> np.ndarray:
        """d theta/d delta of the perturbed point, from the range equation."""
        return self.R @ self.reduction.first_order

    @cached_property
    def H1(self) -> np.ndarray:
        """d/d delta of -Hess L along the perturbed point."""
        return self.B @ self.moved + self.J1

    @property
    def E(self) -> np.ndarray:
        """Q_K^T H_1 Q_R of (103)."""
        return self.K.T @ self.H1 @ self.R

    @cached_property
    def reduction(self) -> LyapunovSchmidt:
        return lyapunov_schmidt(self.evaluate, self.theta, kernel=self.K, range=self.R, host=True)

    def evaluate(self, theta: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
        """-grad L and its Jacobian in (theta, delta)."""
        z = Jet.variables(np.append(theta, delta), 1)
        v = self.model.velocity(z[:6], z[6])
        return v.value, v.derivative(1)

    @cached_property
    def deltas(self) -> np.ndarray:
        """What the law is moved by: p/1000 to 3p/100, p the mass of a lower token."""
        return self.small * np.geomspace(1e-3, 3e-2, 4)

    @property
    def fine(self) -> np.ndarray:
        """A tenth of it, for remainders: at the edges of the regime the next order is large."""
        return 0.1 * self.deltas

    def solved(self, delta: float) -> RangeSolution:
        """The range solution at x = 0."""
        if delta not in self._solved:
            self._solved[delta] = self.reduction.solve(np.zeros(3), delta)
        return self._solved[delta]

    @cached_property
    def path(self) -> list[RangeSolution]:
        """The range solutions at x = 0 for every delta."""
        return [self.solved(float(d)) for d in self.deltas]

    @cached_property
    def explicit(self) -> list[np.ndarray]:
        """The first-order points of (100), in the formula's own numbers, for every delta."""
        q = np.append(np.zeros(3), self.c * S)
        return [self.theta + d * q for d in self.deltas]

    def jacobian(self, delta: float) -> np.ndarray:
        """-Hess L at the perturbed point of this delta."""
        return self.evaluate(self.solved(float(delta)).theta, delta)[1][:, :6]

    @cached_property
    def tangential(self) -> np.ndarray:
        """The three rates closest to zero at each perturbed point, smallest first."""
        rates = [np.linalg.eigvalsh(self.jacobian(d)) for d in self.deltas]
        return np.array([np.sort(r[np.argsort(np.abs(r))[:3]]) for r in rates])

    def weight_jacobian(self, theta: np.ndarray, delta: float) -> np.ndarray:
        z = Jet.variables(rank_one_weights(self.model, theta, 2), 1)
        return weight_velocity(self.model, z, 2, delta).derivative(1)

    def transverse(self, theta: np.ndarray, delta: float) -> np.ndarray:
        """The block of that Jacobian on the modes odd in the second hidden direction."""
        odd = odd_modes()
        return self.weight_jacobian(theta, delta)[np.ix_(odd, odd)]

    def transverse_rates(self, theta: np.ndarray, delta: float) -> np.ndarray:
        """The rates off the rank-one manifold, largest first."""
        return np.sort(np.linalg.eigvals(self.transverse(theta, delta)).real)[::-1]

    @cached_property
    def path_rates(self) -> np.ndarray:
        """The transverse rates at every delta."""
        return np.array([self.transverse_rates(s.theta, s.p) for s in self.path])

    def force(self, theta: np.ndarray, delta: float) -> np.ndarray:
        """The singular values of dL/dM, largest first."""
        return np.linalg.svd(self.model.fields(theta, delta).GM, compute_uv=False)

    # What the blocks of the bilinear form are made of.

    @property
    def rest(self) -> np.ndarray:
        """P_i - Phat_i, the law's from pi and lam."""
        return self.l * np.eye(3) + (1 - self.l) * self.pi - self.P

    @cached_property
    def dM(self) -> np.ndarray:
        """d(gamma beta^T), as [token, next, parameter]."""
        by_gamma = np.einsum("ja,k->jka", np.eye(6)[:3], self.beta)
        return by_gamma + np.einsum("j,ka->jka", self.gamma, np.eye(6)[3:])

    @cached_property
    def ddM(self) -> np.ndarray:
        return doubled(np.einsum("ja,kb->jkab", np.eye(6)[:3], np.eye(6)[3:]))

    @cached_property
    def dlogits(self) -> np.ndarray:
        """d(A_i M) = dA_i M + A_i dM."""
        M = np.outer(self.gamma, self.beta)
        moved = np.einsum("ija,jk->ika", self.d("attention", 1), M)
        return moved + np.einsum("ij,jka->ika", self.A, self.dM)

    @cached_property
    def dV(self) -> np.ndarray:
        """dVar(P_i) = diag(dP_i) - dP_i^T P_i - P_i^T dP_i, as [i, k, l, parameter]."""
        dP = self.d("prediction", 1)
        mixed = np.einsum("ika,il->ikla", dP, self.P)
        return np.einsum("ika,kl->ikla", dP, np.eye(3)) - mixed - np.swapaxes(mixed, 1, 2)

    @cached_property
    def spread(self) -> np.ndarray:
        """d(A_i M) dVar(P_i), as a symmetric form [i, next, a, b]."""
        return doubled(np.einsum("ika,iklb->ilab", self.dlogits, self.dV)) / 2

    @cached_property
    def blocks(self) -> dict[str, np.ndarray]:
        """Every B^(l) from its definition, [k, a, b], k of gamma (`g1`...) or beta (`b1`...)."""
        pi, A, V, b, inner = self.pi, self.A, self.V, self.beta, self.A @ self.gamma
        dA, dM, ddM = self.d("attention", 1), self.dM, self.ddM
        dP, dGM, ddGP = self.d("prediction", 1), self.d("GM", 1), self.d("GP", 2)
        score, e = ddGP + np.swapaxes(ddGP, 0, 1), np.eye(6)
        return {
            "g1": -doubled(np.einsum("kja,jb->kab", dGM, e[3:])),
            "g2": -doubled(np.einsum("i,ika,ijb,j->kab", pi, dA, dP, b)),
            "g3": -doubled(np.einsum("i,ik,ija,jlb,ilm,m->kab", pi, A, dA, dM, V, b)),
            "g4": -np.einsum("i,ik,ij,jlab,ilm,m->kab", pi, A, A, ddM, V, b),
            "g5": -np.einsum("i,ik,ilab,l->kab", pi, A, self.spread, b),
            "g6": -self.eta * np.einsum("kjab,j->kab", score, self.gamma),
            "b1": -doubled(np.einsum("i,ikl,jla,ij,im,mb->kab", pi, V, dM, A, A, e[:3])),
            "b2": -doubled(np.einsum("i,i,ija,jlb,ilk->kab", pi, inner, dA, dM, V)),
            "b3": -np.einsum("i,i,ij,jlab,ilk->kab", pi, inner, A, ddM, V),
            "b4": -np.einsum("i,i,ikab->kab", pi, inner, self.spread),
        }


@paper.once
def cases(study) -> tuple[Case, ...]:
    pi1, lam = float(study.chain.pi.max()), float(study.chain.lam)
    return Case(pi1, lam, 3.0), Case(pi1, lam, 10.0), Case(0.45, 0.65, 10.0)


def var(p: np.ndarray) -> np.ndarray:
    """Var(p) = diag(p) - p p^T."""
    return np.diag(p) - np.outer(p, p)


def doubled(form: np.ndarray) -> np.ndarray:
    """2 u v as a symmetric bilinear form: u_a v_b + u_b v_a."""
    return form + np.swapaxes(form, -1, -2)


def odd_modes() -> np.ndarray:
    """Where, among all weights of width 2, the modes odd in the second hidden direction stand."""
    W0, W1, WQ, WK = split_weights(np.arange(20), 3, 2)
    return np.concatenate([W0[:, 1], W1[1], WQ[1], WK[1]])


def stacked(study, f: Callable[[Case], Any]) -> np.ndarray:
    """What f gives at all cases, in one vector."""
    return np.concatenate([np.ravel(f(c)) for c in cases(study)])


def here(case: Case, right: bool) -> Case:
    """The case, or the one beside it, where what vanishes by symmetry does not."""
    return case if right else case.beside


Pair = Callable[[Case, bool], tuple[Any, Any]]
"""`(case, right)` to a formula and what is measured; where not `right` one of them is another."""


def same(study, pair: Pair, control: str) -> Measurement:
    """A formula against what is measured, at every case; so is the control, which is not right."""

    def side(k: int, right: bool) -> Callable[[Case], Any]:
        return lambda case: pair(case, right)[k]

    other = Control(control, predicted=side(0, False), measured=side(1, False))
    return identity(
        over=cases(study),
        predicted=side(0, True),
        measured=side(1, True),
        rtol=1e-11,  # second derivatives of attention are some 1e3 where blocks are 1
        atol=1e-12,
        control=other,
    )


def vanishes(study, f: Callable[[Case, bool], Any], control: str, bound: float = 1e-12):
    """The largest entry over all cases is zero to rounding, and is not where not `right`."""

    def largest(right: bool) -> float:
        return float(np.abs(stacked(study, lambda c: f(c, right))).max())

    return at_most(bound=bound, measured=largest(True), control=Control(control, largest(False)))


def exact(control: str) -> Callable[[Pair], Callable[[Any], Measurement]]:
    """`same` of one pair is the whole measurement of a claim."""
    return lambda pair: wraps(pair)(lambda study: same(study, pair, control))


def zero(control: str) -> Callable[[Callable[[Case, bool], Any]], Callable[[Any], Measurement]]:
    """`vanishes` of one function is the whole measurement of a claim."""
    return lambda f: wraps(f)(lambda study: vanishes(study, f, control))


def at_each(study, f: Callable[[Case], Measurement]) -> Measurement:
    """One measurement per case, all of which have to come out."""
    return every(**{c.name: f(c) for c in cases(study)})
