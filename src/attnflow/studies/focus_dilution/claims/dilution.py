"""Section 3.3: the rank-one system linearised at its entry, and the redistribution of mass."""

from __future__ import annotations

import numpy as np
from scipy.linalg import expm

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    against,
    at_most,
    compared,
    equal,
    every,
    refuted,
    sign,
)
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.claims.common import autodiff_velocity
from attnflow.studies.focus_dilution.claims.rank_one import resolved, symmetric_data, system_of
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_dilution.rank_one import TwoGroup

ETA = np.eye(5)[4]

# --- The linearisation at the entry state in (gamma_1, gamma_low, beta_1, beta_low, eta).


@paper.once
def linearised(system: TwoGroup) -> tuple[np.ndarray, np.ndarray]:
    """The entry state and the Jacobian `[moved, by]` of the five equations of (20) there.

    From the loss of all tokens alone, by differences of autodiff's velocity.
    """
    x0 = np.r_[rank_one.entry(system)[:4], 0.0]

    def moved(x: np.ndarray) -> np.ndarray:
        # lambda_Q = eta and lambda_K = 1 have the same eta; with (19) eta' is 2 eta lambda_Q'.
        state = rank_one.state_of(system.lift(np.r_[x, 1.0]))
        v, d = autodiff_velocity(state, system.chain), system.tokens
        return np.r_[v[[0, 1, d, d + 1]], 2 * x[4] * v[-2]]

    h = 1e-5
    columns = [(8 * (moved(x0 + h * e) - moved(x0 - h * e)) - moved(x0 + 2 * h * e)
                + moved(x0 - 2 * h * e)) / (12 * h) for e in np.eye(5)]  # fmt: skip
    return x0, np.stack(columns, axis=1)


def _with_score(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)


@paper.claim("App C.3 (linearised attention)", part="proof-step", regime=symmetric_data)
@against("gamma_1 for both groups", equal, rtol=1e-12)
def first_order_attention(study, right: bool):
    r"""$\xi_i$ moves to first order by $\pi_1(1-\pi_1)\gamma_i\Delta\gamma\,\eta$, and by nothing
    else."""
    system = system_of(study)
    x0, _ = linearised(system)
    found = rank_one.derivative(lambda x: np.stack(system.attention(_with_score(x)), axis=-1), x0)
    force = system.pi1 * (1 - system.pi1) * (x0[0] - x0[1])
    return force * np.outer(x0[[0, 1] if right else [0, 0]], ETA), found


@paper.claim(
    "App C.3 (linearised prediction)",
    part="proof-step",
    regime=symmetric_data,
    reading=r"the $\eta$ term carries $(\Delta\gamma^0)^2$: $m_i = b + \xi_i\Delta\gamma$ brings a"
    r" second factor, which the next display uses",
)
@against("as extracted, one factor", equal, rtol=1e-11)
def first_order_prediction(study, right: bool):
    r"""$\hat p_i$ moves to first order as printed, with
    $\pi_1(1-\pi_1)\eta\,\gamma_i(\Delta\gamma^0)^2\Delta\beta^0$ in its last term."""
    system = system_of(study)
    x0, _ = linearised(system)
    found = rank_one.derivative(lambda x: np.stack(system.prediction(_with_score(x)), axis=-1), x0)
    return _first_order_p(system, 2 if right else 1), found


def _first_order_p(system: TwoGroup, power: int) -> np.ndarray:
    """The printed p_i^1 as rows of coefficients, with Dgamma0 to this power in the eta term."""
    a, b, *beta, _ = rank_one.entry(system)[:5]
    p, V, B = system.pi1, system.pi1 * (1 - system.pi1), beta[0] - beta[1]
    m = b + p * (a - b)
    rows = [(p * B, (1 - p) * B, m, -m, V * x * (a - b) ** power * B) for x in (a, b)]
    return V * np.array(rows)


@paper.claim("App C.3 (first-order system)", part="proof-step", regime=symmetric_data)
@against("2 for 3", equal, rtol=1e-7)
def first_order_system(study, right: bool):
    r"""$\gamma_1$ and $\gamma_{low}$ obey the printed first-order system, with the term
    $3\lambda\eta\pi_1^2(1-\pi_1)^2\Delta\beta(\Delta\gamma)^2$."""
    system = system_of(study)
    (x0, J), d, w = linearised(system), system.tokens, system.pi1
    p, B = _first_order_p(system, 2), x0[2] - x0[3]
    mean, force = w * p[0] + (1 - w) * p[1], system.contrast_force() * (1 if right else 2 / 3)
    low = -(B * (1 - w) * mean + force * ETA) / (d - 1)
    return np.stack([-B * w * mean + force * ETA, low]), J[:2]


@paper.claim("eq 90", part="proof-step", regime=resolved)
@against("a contrast without weights", equal, rtol=1e-6)
def contrast_is_driven_by_eta(study, right: bool):
    r"""The contrast grows at $3\lambda\pi_1^2(1-\pi_1)^2\Delta\beta(\Delta\gamma)^2\eta$, free of
    all else."""
    system = system_of(study)
    weights = np.array([1 - system.pi1, (system.tokens - 1) * system.pi1]) if right else np.ones(2)
    return system.contrast_force() * ETA, weights * [1, -1] @ linearised(system)[1][:2]


@paper.claim("eq 91", part="constant", regime=resolved)
@against("the rate of WQ alone, of the unigram point", equal, rtol=1e-6)
def eta_grows(study, right: bool):
    r"""$\eta$ grows exponentially near the entry state; its rate is twice the $c$ of eq. (14)."""
    system = system_of(study)
    both = 2 * theory.printed_focus_rate(system.chain)
    return (both if right else theory.focus_rate(system.chain)) * ETA, linearised(system)[1][4]


@paper.claim("eq 92", part="proof-step", regime=resolved)
def contrast_of_the_linear_flow(study) -> Measurement:
    r"""On the linearised flow the contrast is $c'(e^{ct} - 1)$ with $c$ the rate of $\eta$, and 0
    at the entry."""
    system = system_of(study)
    (x0, J), times = linearised(system), np.array([0.5, 2.0, 5.0]) / focus_of_eta(system)

    def growth(right: bool):
        found = [system.contrast(expm(J * t)[:, 4]) for t in times]
        return growing(system, times, right), found

    def entry(right: bool) -> float:
        return abs(system.contrast(x0 if right else x0[[2, 3, 0, 1, 4]])) / x0[0]

    return every(
        growth=compared(equal, "at the rate of WQ", growth, rtol=1e-5, each=True),
        entry=compared(at_most, "of the read-out", entry, bound=1e-14),
    )


def focus_of_eta(system: TwoGroup) -> float:
    """The rate of eta, twice the c of (14)."""
    return 2 * theory.focus_rate(system.chain)


def growing(system: TwoGroup, times: np.ndarray, right: bool) -> np.ndarray:
    """The contrast per unit of eta at the start; at the rate of WQ where not `right`."""
    rate = focus_of_eta(system) / (1 if right else 2)
    return system.contrast_force() / rate * np.expm1(rate * times)


@paper.claim("Thm 3.7 (eq 21)", regime=resolved)
@against("at the rate of WQ", equal, rtol=1e-3, each=True, note="until eta is 10^4 times as large")
def contrast_grows(study, right: bool):
    r"""From the entry state $(1-\pi_1)\gamma_1 - (d-1)\pi_1\gamma_{low}$ grows as $e^{ct} - 1$,
    $c > 0$ twice the $c$ of (14), on the nonlinear flow too."""
    system = system_of(study)
    start, times, z = nonlinear(system)
    return start * growing(system, times, right), system.contrast(z)


SAME_WAY = TwoGroup(0.75, 0.02, 6)
"""A law on which gamma_1 and gamma_low fall together."""


@paper.claim("Thm 3.7 (opposite directions)")
def opposite_directions(study) -> Measurement:
    r"""$\gamma_1$ and $\gamma_{low}$ cannot move in the same direction."""

    def together(system: TwoGroup) -> float:
        """gamma_1' gamma_low' per unit of eta, in the unstable mode and on the nonlinear flow."""
        z = nonlinear(system)[2][-1]
        moved = (z[:2] - rank_one.entry(system)[:2]) / (z[4] * z[5])
        return max(float(np.prod(mode(system))), float(np.prod(moved)))

    return refuted(
        printed=sign(
            predicted=-1.0,
            measured=together(SAME_WAY),
            control=Control("pi1 = 0.75, lam = 0.8, d = 3", together(TwoGroup(0.75, 0.8, 3))),
            note="product of what both move by per unit of eta, at d = 6, pi1 = 0.75, lam = 0.02",
        ),
        text=r"$\gamma_1(t)$ and $\gamma_{i\ne1}(t)$ cannot move in the same direction",
        counterexample=r"$d = 6$, $\pi_1 = .75$, $\lambda = .02$: both fall while their contrast"
        r" grows. $\gamma_{low}$ always falls; $\gamma_1$ rises only where"
        r" $3\lambda V^2\Delta\gamma^2 > \pi_1 S$",
        erratum=Erratum(
            "same-direction",
            "a growing contrast does not keep gamma_1 and gamma_low from moving the same way",
            cause="false",
        ),
    )


@paper.claim("ours: the unstable mode of dilution", part="constant", regime=resolved)
@against("F alone, predictions held", equal, rtol=1e-5, note="F of (90), S the mean change of p")
def unstable_mode(study, right: bool):
    r"""Per unit of $\eta$ $\gamma_{low}$ falls by $(F + \Delta\beta(1-\pi_1)S)/((d-1)2c)$;
    $\gamma_1$ moves by $(F - \Delta\beta\pi_1S)/(2c)$, of either sign."""
    system = system_of(study)
    alone = system.contrast_force() / focus_of_eta(system) * np.r_[1, -1 / (system.tokens - 1)]
    return system.redistribution() if right else alone, mode(system)


@paper.once
def mode(system: TwoGroup) -> tuple[float, float]:
    """(gamma_1, gamma_low) per unit of eta in the unstable eigenvector of the linearisation."""
    values, vectors = np.linalg.eig(linearised(system)[1])
    v = np.real(vectors[:, np.argmax(np.real(values))])
    return float(v[0] / v[4]), float(v[1] / v[4])


@paper.once
def nonlinear(system: TwoGroup) -> tuple[float, np.ndarray, np.ndarray]:
    """The two-group flow from the entry state with a small eta: that eta, times, states there.

    It ends where gamma has moved by a millionth of Dgamma: near the point, far above rounding.
    """
    z = rank_one.entry(system)
    end = 1e-6 * (z[0] - z[1]) / np.abs(mode(system)).max()
    start = 1e-4 * end
    times = np.log([1e2, 1e3, 1e4]) / (2 * theory.focus_rate(system.chain))
    flow = rank_one.vector_flow(system.velocity, "two groups")
    entry = rank_one.entry(system, np.sqrt(start))
    found = rank_one.solve(flow, entry, times[-1], rtol=1e-9, atol=1e-14, save=times)
    return float(start), times, found.trajectory["z"].values
