"""The cases at which Appendix D is measured, and the few ways in which its claims compare.

Four cases: the config's (pi1, lam) and (0.45, 0.65), each with eta = 3 and 10, in the limit model
(`limit.LimitModel`) at its degenerate point. Derivatives are exact (jets); each is taken once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from attnflow.claims import Measurement, Regime, Verdict, at_most, equal, every
from attnflow.expand.jets import Jet
from attnflow.linearise.lyapunov_schmidt import LyapunovSchmidt, RangeSolution, lyapunov_schmidt
from attnflow.studies.focus_dilution.claims.common import STUDY, inside
from attnflow.studies.focus_dilution.limit import (
    LimitModel,
    rank_one_weights,
    split_weights,
    weight_velocity,
)

S = np.array([0.0, 1.0, -1.0])
"""The antisymmetric direction of the two lower tokens."""

LOW = np.array([0.0, 0.5, 0.5])
"""Attention of the lower tokens at the symmetric point."""


def limit_point(study) -> Regime:
    """The d = 3 law with the config's first entry has the degenerate point of Prop. 3.8."""
    lam, pi1 = study.chain.lam, float(study.chain.pi.max())
    if lam is None:
        return Regime(False, "P = lam I + (1 - lam) 1 pi^T, eq. (2)")
    leads, room = 1 / 3 + 1e-3 < pi1 < 1 - 1e-3, (1 - lam) * pi1 < 1 / 3 - 1e-3
    return Regime(
        leads and room and lam < 1 - 1e-3,
        f"d = 3: token 1 leads, 1/3 < pi1 = {pi1:.4g} < 1, and gamma_low < 0 because "
        f"(1 - lam) pi1 = {(1 - lam) * pi1:.4g} < 1/3 (each by 1e-3)",
    )


HERE: dict[str, Any] = {"regime": limit_point, "study": STUDY}
EXPECTED = inside(limit_point)
CONSISTENT = inside(limit_point, "consistent")
CORRECTED = inside(limit_point, "holds-corrected")


class Case:
    """The degenerate point of one (pi1, lam, eta), and its derivatives in (theta, delta)."""

    def __init__(self, pi1: float, lam: float, eta: float, gap: float = 0.0):
        self.model = LimitModel(pi1, lam, eta)
        self.name = f"pi1={pi1:g} lam={lam:g} eta={eta:g}"
        self.p, self.l, self.eta = pi1, lam, eta
        self.theta = self.model.symmetric_point(gap)
        self.gamma, self.beta = self.theta[:3], self.theta[3:]
        self.g1, self.gl = float(self.gamma[0]), float(self.gamma[1])
        self.pi, self.small = self.model.law(), (1 - pi1) / 2
        fields = self.model.fields(self.theta)
        self.A, self.P = fields.attention, fields.prediction
        self.P1, self.Pl = self.P[0], self.P[1]
        self.V1, self.Vl = var(self.P1), var(self.Pl)
        self.norm = float(np.linalg.norm(self.theta))
        self._solved: dict[float, RangeSolution] = {}

    @cached_property
    def jets(self) -> Any:
        """Attention, prediction, loss, GM, GP as jets of order 3 in (gamma, beta, delta)."""
        z = Jet.variables(np.append(self.theta, 0.0), 3)
        return self.model.fields(z[:6], z[6])

    @cached_property
    def third(self) -> np.ndarray:
        return -self.jets.loss.derivative(3)[:6]

    @cached_property
    def J0(self) -> np.ndarray:
        return -self.jets.loss.derivative(2)[:6, :6]

    @cached_property
    def f1(self) -> np.ndarray:
        return -self.jets.loss.derivative(2)[:6, 6]

    @property
    def B(self) -> np.ndarray:
        """B[k, a, b] = -d^3 L of eq. (96)."""
        return self.third[:, :6, :6]

    @property
    def J1(self) -> np.ndarray:
        return self.third[:, :6, 6]

    @property
    def f2(self) -> np.ndarray:
        return self.third[:, 6, 6]

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

    @property
    def c1(self) -> float:
        """c_1 of eq. (100)."""
        return self.p * self.g1**2 * self.P1[1] + (1 - self.p) * self.gl**2 * self.Pl[1]

    @property
    def drive(self) -> float:
        """lam gamma_low + (1 - lam)(pi1 gamma_1 + (1 - pi1) gamma_low), the factor of f_1."""
        return self.l * self.gl + (1 - self.l) * (self.p * self.g1 + (1 - self.p) * self.gl)

    @property
    def kappa(self) -> float:
        """lam + (1 - pi1)(1 - lam)."""
        return self.l + (1 - self.p) * (1 - self.l)

    @property
    def c(self) -> float:
        """c of Lemmas D.15 and D.17, without delta: the shift of beta along (0, 1, -1)."""
        return self.drive / self.c1

    @property
    def readout_slope(self) -> np.ndarray:
        """The partial derivative of dL/dM in delta, eq. (119)."""
        masses = np.array([self.p, (1 - self.p) / 2, (1 - self.p) / 2])
        return -self.l * np.outer(LOW, S) - (1 - self.l) * np.outer(masses, S)

    @cached_property
    def H1(self) -> np.ndarray:
        """d/d delta of -Hess L along the first-order point, by autodiff."""
        return self.c * self.B[:, :, 4] - self.c * self.B[:, :, 5] + self.J1

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
        return self.small * np.geomspace(1e-3, 3e-2, 6)

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

    def jacobian(self, delta: float) -> np.ndarray:
        """-Hess L at the perturbed point of this delta."""
        return self.evaluate(self.solved(float(delta)).theta, delta)[1][:, :6]

    def tangential(self, delta: float) -> np.ndarray:
        """The three rates closest to zero at the perturbed point, smallest first."""
        rates = np.linalg.eigvalsh(self.jacobian(delta))
        return np.sort(rates[np.argsort(np.abs(rates))[:3]])

    def weight_jacobian(self, theta: np.ndarray, delta: float) -> np.ndarray:
        z = Jet.variables(rank_one_weights(self.model, theta, 2), 1)
        return weight_velocity(self.model, z, 2, delta).derivative(1)

    def transverse(self, theta: np.ndarray, delta: float) -> np.ndarray:
        """The block of that Jacobian on the modes odd in the second hidden direction."""
        W0, W1, WQ, WK = split_weights(np.arange(20), 3, 2)
        odd = np.concatenate([W0[:, 1], W1[1], WQ[1], WK[1]])
        return self.weight_jacobian(theta, delta)[np.ix_(odd, odd)]

    def transverse_rate(self, theta: np.ndarray, delta: float) -> float:
        """The largest rate off the rank-one manifold."""
        return float(np.linalg.eigvals(self.transverse(theta, delta)).real.max())

    @cached_property
    def path_rates(self) -> np.ndarray:
        """The largest transverse rate at every delta."""
        return np.array([self.transverse_rate(s.theta, s.p) for s in self.path])

    def force(self, theta: np.ndarray, delta: float) -> float:
        """sigma_max(dL/dM)."""
        return float(np.linalg.norm(self.model.fields(theta, delta).GM, 2))


def cases(study) -> tuple[Case, ...]:
    return _cases(float(study.chain.pi.max()), float(study.chain.lam))


@lru_cache(maxsize=16)
def _cases(pi1: float, lam: float) -> tuple[Case, ...]:
    points = dict.fromkeys([(pi1, lam), (0.45, 0.65)])
    return tuple(Case(p, l, eta) for p, l in points for eta in (3.0, 10.0))


def var(p: np.ndarray) -> np.ndarray:
    """Var(p) = diag(p) - p p^T."""
    return np.diag(p) - np.outer(p, p)


def stacked(study, f: Callable[[Case], Any]) -> np.ndarray:
    """What f gives at all cases, in one vector."""
    return np.concatenate([np.ravel(f(c)) for c in cases(study)])


def same(study, predicted, measured, control, rtol: float = 1e-11, note: str = "") -> Measurement:
    """One formula against autodiff at all cases; `control` is a perturbed formula."""
    return equal(
        stacked(study, predicted),
        stacked(study, measured),
        rtol=rtol,
        atol=1e-13,
        control=stacked(study, control),
        note=note,
    )


def vanishes(study, measured, control, bound: float = 1e-12, note: str = "") -> Measurement:
    """The largest entry over all cases is zero to rounding; `control` is measured where not."""
    return at_most(
        np.abs(stacked(study, measured)).max(),
        bound,
        control=np.abs(stacked(study, control)).max(),
        note=note,
    )


def at_each(study, f: Callable[[Case], Measurement]) -> Measurement:
    """One measurement per case, all of which have to come out; a fit too loose says so."""
    return together(**{c.name: f(c) for c in cases(study)})


def together(**parts: Measurement) -> Measurement:
    """`every`, except that a part which cannot be checked is the whole answer."""
    loose = [m for m in parts.values() if m.verdict is Verdict.NOT_CHECKABLE]
    return loose[0] if loose else every(**parts)


POINT = """
    import numpy as np
    p, lam, eta = 0.75, 0.8, 3.0
    pi = np.array([p, (1 - p) / 2, (1 - p) / 2]); T = lam * np.eye(3) + (1 - lam) * pi
    a, c = np.log(T[0, 0] / T[0, 1]), np.log(2 * T[1, 0] / (1 - T[1, 0]))
    s = (1.5 * (a**2 + 2 * c**2)) ** 0.25
    g, b = np.array([a, c, c]) / s, s * np.array([2, -1, -1]) / 3
    soft = lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    def model(g, b):  # attention, prediction, dL/dM of the limit model
        A = np.eye(3); A[1:, 1:] = soft(eta * np.outer(g[1:], g[1:]))
        P = soft(A @ np.outer(g, b)); return A, P, -(A * pi[:, None]).T @ (T - P)
"""
"""The first lines of most snippets: the symmetric point of (0.75, 0.8), eta = 3."""


def snippet(lines: str, head: str = POINT) -> str:
    return textwrap.dedent(head).strip("\n") + "\n" + textwrap.dedent(lines).strip("\n")
