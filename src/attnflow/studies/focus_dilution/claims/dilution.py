"""Section 3.3: the rank-one system linearised at its entry, and the redistribution of mass."""

from __future__ import annotations

import functools

import numpy as np
from scipy.linalg import expm

from attnflow.claims import (
    Correction,
    Measurement,
    at_most,
    claim,
    corrected,
    equal,
    every,
    negative,
    positive,
    refuted,
)
from attnflow.studies.focus_dilution import rank_one, theory
from attnflow.studies.focus_dilution.claims.common import STUDY, inside
from attnflow.studies.focus_dilution.claims.rank_one import resolved, symmetric_data, system_of
from attnflow.studies.focus_dilution.rank_one import TwoGroup

# --- The linearisation at the entry state in (gamma_1, gamma_low, beta_1, beta_low, eta).


@functools.lru_cache(maxsize=64)
def linearised(system: TwoGroup) -> tuple[np.ndarray, np.ndarray]:
    """The entry state and the Jacobian `[moved, by]` of the five equations of (20) there."""
    x0 = np.r_[rank_one.entry(system)[:4], 0.0]

    def moved(x: np.ndarray) -> np.ndarray:
        v = system.velocity(_with_score(x))
        # lambda_Q = eta, lambda_K = 1 there: eta' = -2 eta g^T GP g is 2 eta lambda_Q'.
        return np.concatenate([v[..., :4], 2 * x[..., 4:] * v[..., 4:5]], axis=-1)

    return x0, rank_one.derivative(moved, x0)


def _with_score(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)


@claim(
    "App C.3 (linearised attention)",
    part="proof-step",
    regime=symmetric_data,
    expected=inside(symmetric_data),
    study=STUDY,
)
def first_order_attention(study) -> Measurement:
    """xi_i moves to first order by pi1 (1-pi1) gamma_i Dgamma eta, and by nothing else."""
    system = system_of(study)
    x0, _ = linearised(system)
    found = rank_one.derivative(lambda x: np.stack(system.attention(_with_score(x)), axis=-1), x0)
    predicted = np.zeros((2, 5))
    predicted[:, 4] = system.pi1 * (1 - system.pi1) * x0[:2] * (x0[0] - x0[1])
    return equal(predicted, found, rtol=1e-12, control=predicted[::-1])


@claim(
    "App C.3 (linearised prediction)",
    part="proof-step",
    regime=symmetric_data,
    study=STUDY,
    expected=inside(symmetric_data, "holds-corrected"),
)
def first_order_prediction(study) -> Measurement:
    """p_i moves to first order as printed once the eta term carries (Dgamma^0)^2."""
    system = system_of(study)
    x0, _ = linearised(system)
    found = rank_one.derivative(lambda x: np.stack(system.prediction(_with_score(x)), axis=-1), x0)
    return corrected(
        printed=equal(_first_order_p(system, 1), found, rtol=1e-11),
        right=equal(_first_order_p(system, 2), found, rtol=1e-11),
        correction=Correction(
            printed="p_1^1 = pi1(1-pi1)(... + pi1(1-pi1) eta a0 Dgamma0 Dbeta0 + ...)",
            corrected="p_1^1 = pi1(1-pi1)(... + pi1(1-pi1) eta a0 (Dgamma0)^2 Dbeta0 + ...), and"
            " p_2^1 with b0: m_i = b + xi_i Dgamma brings a second Dgamma0",
            cause="extraction-or-typo",
            snippet="""
                import numpy as np
                p, a, b, B = 0.75, 1.2, 0.3, 1.5
                odds = np.log(p / (1 - p))
                sigma = lambda x: 1 / (1 + np.exp(-x))
                shift = (b + p * (a - b)) * B - odds            # so that the base value is pi1
                xi = lambda eta: sigma(odds + eta * a * (a - b))
                p1 = lambda eta: sigma((b + xi(eta) * (a - b)) * B - shift)
                h = 1e-6
                slope = (p1(h) - p1(-h)) / (2 * h)
                printed = (p * (1 - p)) ** 2 * a * (a - b) * B
                print("measured", slope, "printed", printed, "right", printed * (a - b))
                assert abs(slope - printed * (a - b)) < 1e-9 < abs(slope - printed)
            """,
        ),
    )


def _first_order_p(system: TwoGroup, power: int) -> np.ndarray:
    """The printed p_i^1 as rows of coefficients, with Dgamma0 to this power in the eta term."""
    x0, _ = linearised(system)
    a, b, V, p = x0[0], x0[1], system.pi1 * (1 - system.pi1), system.pi1
    B, m = x0[2] - x0[3], b + p * (a - b)
    return np.array(
        [[V * c for c in (p * B, (1 - p) * B, m, -m, V * x * (a - b) ** power * B)] for x in (a, b)]
    )


@claim(
    "App C.3 (first-order system)",
    part="proof-step",
    regime=symmetric_data,
    expected=inside(symmetric_data),
    study=STUDY,
)
def first_order_system(study) -> Measurement:
    """gamma_1 and gamma_low obey the printed first-order system, with the 3 lam eta term."""
    system = system_of(study)
    (x0, J), d, w = linearised(system), system.tokens, system.pi1
    p, B = _first_order_p(system, 2), x0[2] - x0[3]
    mean = w * p[0] + (1 - w) * p[1]
    force = system.contrast_force() * np.eye(5)[4]

    def rows(times: float) -> np.ndarray:
        low = -(B * (1 - w) * mean + times * force) / (d - 1)
        return np.stack([-B * w * mean + times * force, low])

    return equal(rows(1), J[:2], rtol=1e-11, control=rows(2 / 3), note="control: 2 instead of 3")


@claim("eq 90", part="proof-step", regime=resolved, expected=inside(resolved), study=STUDY)
def contrast_is_driven_by_eta(study) -> Measurement:
    """The contrast grows at 3 lam pi1^2 (1-pi1)^2 Dbeta Dgamma^2 eta, free of all else."""
    system = system_of(study)
    _, J = linearised(system)
    found = (1 - system.pi1) * J[0] - (system.tokens - 1) * system.pi1 * J[1]
    predicted = system.contrast_force() * np.eye(5)[4]
    return equal(predicted, found, rtol=1e-9, control=predicted * 2 / 3)


@claim("eq 91", part="constant", regime=resolved, expected=inside(resolved), study=STUDY)
def eta_grows(study) -> Measurement:
    """eta grows exponentially near the entry state; its rate is twice the c of eq. (14)."""
    system = system_of(study)
    c, (_, J) = theory.printed_focus_rate(system.chain), linearised(system)
    row = 2 * c * np.eye(5)[4]
    return every(
        rate=equal(row, J[4], rtol=1e-9, control=row / 2, note="control: c itself"),
        sign=positive(J[4, 4], control=-J[4, 4]),
    )


@claim("eq 92", part="proof-step", regime=resolved, expected=inside(resolved), study=STUDY)
def contrast_of_the_linear_flow(study) -> Measurement:
    """On the linearised flow the contrast is c' (exp(2ct) - 1), and 0 at the entry."""
    system = system_of(study)
    (x0, J), rate = linearised(system), 2 * theory.focus_rate(system.chain)
    times = np.array([0.5, 2.0, 5.0]) / rate
    found = [system.contrast(expm(J * t)[:, 4]) for t in times]
    grown = lambda r: system.contrast_force() / r * np.expm1(r * times)  # noqa: E731
    return every(
        growth=equal(grown(rate), found, rtol=1e-6, each=True, control=grown(rate / 2)),
        entry=at_most(
            abs(system.contrast(x0)) / x0[0],
            1e-14,
            control=system.contrast(x0 * [1.01, 1, 1, 1, 1]),
        ),
    )


@claim("Thm 3.7 (eq 21)", regime=resolved, expected=inside(resolved), study=STUDY)
def contrast_grows(study) -> Measurement:
    """From the entry state the contrast grows as exp(c t) - 1, c > 0, on the nonlinear flow too."""
    system = system_of(study)
    rate = 2 * theory.focus_rate(system.chain)
    start, times, z = _nonlinear(system)
    grown = lambda r: system.contrast_force() / r * start * np.expm1(r * times)  # noqa: E731
    return equal(
        grown(rate),
        system.contrast(z),
        rtol=1e-3,
        each=True,
        control=grown(rate / 2),
        note=f"c = 2 x the c of (14), from eta = {start:.1g} until it is 10^4 times as large",
    )


@claim(
    "Thm 3.7 (opposite directions)",
    study=STUDY,
    regime=resolved,
    expected=lambda study: _directions_expected(study),
)
def opposite_directions(study) -> Measurement:
    """gamma_1 and gamma_low cannot move in the same direction in the unstable mode."""
    system = system_of(study)
    first, low = _mode(system)
    z = _nonlinear(system)[2][-1]
    moved = (z[:2] - rank_one.entry(system)[:2]) / (z[4] * z[5])
    apart = system.redistribution()[0] > 0
    other = _mode(TwoGroup(0.75, 0.02, 6) if apart else TwoGroup(0.75, 0.8, 3))
    note = (
        f"per unit of eta gamma_1 moves by {first:.4g}, gamma_low by {low:.4g}"
        f" (nonlinear flow: {moved[0]:.4g}, {moved[1]:.4g})"
    )
    return refuted(
        printed=negative(
            max(first * low, moved[0] * moved[1]), control=other[0] * other[1], note=note
        ),
        correction=Correction(
            printed="gamma_1(t) and gamma_low(t) cannot move in the same direction",
            corrected="gamma_low falls; gamma_1 rises only where 3 lam V^2 Dgamma^2 > pi1 S",
            cause="false",
            counterexample="d = 6, pi1 = 0.75, lam = 0.02: both fall while their contrast grows",
            snippet=SAME_DIRECTION,
        ),
    )


def _directions_expected(study) -> str:
    if not resolved(study).inside:
        return "out-of-regime"
    return "holds" if system_of(study).redistribution()[0] > 0 else "fails"


@claim(
    "ours: the unstable mode of dilution",
    part="constant",
    regime=resolved,
    expected=inside(resolved),
    study=STUDY,
)
def unstable_mode(study) -> Measurement:
    """Per unit of eta gamma_low falls by (F + Db (1-pi1) S)/((d-1) 2c); gamma_1 moves by
    (F - Db pi1 S)/(2c), of either sign."""
    system = system_of(study)
    predicted = np.array(system.redistribution())
    return equal(
        predicted,
        _mode(system),
        rtol=1e-6,
        control=predicted * [1.01, 1],
        note="F of eq. (90), S the mean change of the predictions",
    )


@functools.lru_cache(maxsize=64)
def _mode(system: TwoGroup) -> tuple[float, float]:
    """(gamma_1, gamma_low) per unit of eta in the unstable eigenvector of the linearisation."""
    values, vectors = np.linalg.eig(linearised(system)[1])
    v = np.real(vectors[:, np.argmax(np.real(values))])
    return float(v[0] / v[4]), float(v[1] / v[4])


@functools.lru_cache(maxsize=16)
def _nonlinear(system: TwoGroup) -> tuple[float, np.ndarray, np.ndarray]:
    """The two-group flow from the entry state with a small eta: that eta, times, states there.

    It ends where gamma has moved by a millionth of Dgamma: near the point, far above rounding.
    """
    z = rank_one.entry(system)
    end = 1e-6 * (z[0] - z[1]) / np.abs(_mode(system)).max()
    start = 1e-4 * end
    times = np.log([1e2, 1e3, 1e4]) / (2 * theory.focus_rate(system.chain))
    flow = rank_one.vector_flow(system.velocity, "two groups")
    entry = rank_one.entry(system, np.sqrt(start))
    found = rank_one.solve(flow, entry, times[-1], rtol=1e-9, atol=1e-14, save=times)
    return float(start), times, found.trajectory["z"].values


SAME_DIRECTION = """
    import numpy as np
    d, p, lam = 6, 0.75, 0.02
    pi = np.array([p] + [(1 - p) / (d - 1)] * (d - 1)); P = lam * np.eye(d) + (1 - lam) * pi
    soft = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
    def flow(x):                                               # (gamma, beta, eta): eq (20)
        g, b, eta = x[:d], x[d:-1], x[-1]
        A = soft(eta * np.outer(g, g) + np.log(pi))
        R = pi[:, None] * (P - soft(np.outer(A @ g, b)))
        S = A * np.outer(R @ b, g); GP = A * S.sum(1, keepdims=True) - S
        return np.r_[A.T @ R @ b - eta * (GP + GP.T) @ g, R.T @ A @ g, -2 * eta * g @ GP @ g]
    l = np.log(pi) - np.log(pi).mean(); k = (l @ l / (pi @ pi)) ** 0.25
    x = np.r_[k * pi / np.linalg.norm(pi), k * l / np.linalg.norm(l), 0]      # entry state (19)
    assert np.abs(flow(x)).max() < 1e-14
    J = np.array([flow(x + 1e-20j * e).imag / 1e-20 for e in np.eye(2 * d + 1)]).T
    w, V = np.linalg.eig(J); u = V[:, np.argmax(w.real)].real; u /= u[-1]
    print("per unit of eta: gamma_1", u[0], "gamma_low", u[1])
    assert u[0] < 0 and u[1] < 0 and (1 - p) * u[0] - (d - 1) * p * u[1] > 0
"""
