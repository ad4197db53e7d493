"""Prop. 3.8 at finite eta: symmetric critical points, when they break, the saddles visited."""

from __future__ import annotations

import functools

import numpy as np

from attnflow.claims import (
    Correction,
    Measurement,
    Regime,
    at_most,
    claim,
    corrected,
    equal,
    every,
    fact,
    not_checkable,
    refuted,
)
from attnflow.models import one_layer
from attnflow.studies.focus_dilution import rank_one, symmetric, theory
from attnflow.studies.focus_dilution.claims.common import DIM, STUDY, inside
from attnflow.studies.focus_dilution.claims.rank_one import (
    resolved,
    several_low,
    symmetric_data,
    system_of,
)
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain

FAMILY = ((0.5, 1.0), (4.0, 2.0), (20.0, 3.0))
"""(sharpness, scale) of the critical points that are looked at; the second is the standard one."""

CELLS = 12
"""The regime map is measured on CELLS x CELLS laws (pi1, lam)."""


def breaks(study) -> Regime:
    """Symmetric data whose critical points are strict saddles, by the closed-form criterion."""
    base = several_low(study)
    if not base.inside:
        return base
    margin = _margin(study)
    return Regime(margin > 0, f"{base.sentence}; the instability margin is {margin:.4g} (> 0)")


def breaks_at_first(study) -> Regime:
    """The same, where the family reaches eta = infinity as the proof of Prop. 3.8 has it."""
    base = breaks(study)
    if not base.inside:
        return base
    system = system_of(study)
    back, share = system.first[1], 1 / system.tokens
    return Regime(back < share, f"{base.sentence}; (1 - lam) pi1 = {back:.4g} < 1/d = {share:.4g}")


def off_uniform(study) -> Regime:
    """A law that leaves the origin at a rate that stands out from rounding."""
    rate = theory.escape_rate(study.chain)
    return Regime(
        rate > 1e-5, f"the law is not uniform: it leaves the origin at {rate:.3g} (> 1e-5)"
    )


def _margin(study) -> float:
    system = system_of(study)
    return float(symmetric.instability_margin(system.pi1, system.lam, system.tokens))


@claim("Prop 3.8 (existence)", regime=symmetric_data, expected=inside(symmetric_data), study=STUDY)
def symmetric_critical_points(study) -> Measurement:
    """There are critical points with dL/dM = 0 and dL/dPhi = 0: a family, at every finite eta."""
    system = system_of(study)
    found, beside = [], []
    for sharpness, scale in FAMILY:
        z = symmetric.symmetric_state(system, sharpness, scale)
        found.append(_forces(system, z))
        beside.append(_forces(system, z * [1.01, 1, 1, 1, 1, 1]))
    M, Phi = np.max(found, axis=0)
    return every(
        M=at_most(M, 1e-13, control=min(b[0] for b in beside)),
        Phi=at_most(Phi, 1e-13, control=min(b[1] for b in beside)),
        loss=equal(
            symmetric.two_group_loss(system),
            rank_one.loss(system.lift(symmetric.symmetric_state(system, *FAMILY[1])), system.chain),
            rtol=1e-12,
            control=system.chain.unigram_entropy,
        ),
    )


def _forces(system: TwoGroup, z: np.ndarray) -> tuple[float, float]:
    """Largest entries of dL/dM and dL/dPhi."""
    x, d = system.lift(z), system.tokens
    g, b, eta = x[:d], x[d : 2 * d], x[-2] * x[-1]
    GM, GP = one_layer.token_gradients(np.outer(g, b), eta * np.outer(g, g), system.chain)
    return float(np.abs(GM).max()), float(np.abs(GP).max())


@claim("Prop 3.8 (construction)", part="proof-step", expected="holds-corrected", study=STUDY)
def point_at_infinite_eta(study) -> Measurement:
    """As eta grows the lower tokens' attention to token 1 goes to 0 where (1-lam) pi1 < 1/d."""
    d = study.chain.tokens
    system, clear = _grid(d)
    z = symmetric.symmetric_state(system, 1e5)
    vanishes = (system.attention(z)[1] < 1e-6)[clear]
    predicted = (system.first[1] < 1 / d)[clear]
    share = 1 - predicted.mean()
    return corrected(
        printed=fact(bool(vanishes.all()), sentence=f"it does not in {share:.0%} of the laws"),
        right=fact(bool(np.array_equal(vanishes, predicted)), sentence=f"{vanishes.size} laws"),
        correction=Correction(
            printed="for large eta A_1 = e_1, A_low = (0, 1/(d-1), ...), gamma_1 > 0 > gamma_low",
            corrected="the same under (1-lam) pi1 < 1/d; else the lower tokens, too, must predict"
            " token 1 above average, gamma_low -> 0 and their attention to token 1 -> L_2/L_1",
            cause="missing-hypothesis",
            snippet="""
                import numpy as np
                d, pi1, lam = 3, 0.75, 0.3
                P11, P21 = lam + (1 - lam) * pi1, (1 - lam) * pi1
                softmax_first = lambda m: np.exp(m) / (np.exp(m) + d - 1)      # m = m_2 Dbeta
                m = np.linspace(-50, 0, 100001)       # gamma_low < 0 < Dbeta: m_2 = gamma_low
                best = softmax_first(m).max()
                print("largest prediction of token 1:", best, "asked for:", P21)
                assert best < P21 and P21 > 1 / d
            """,
        ),
    )


@claim(
    "Prop 3.8 (neutrally stable)",
    regime=several_low,
    study=STUDY,
    expected=lambda study: _stability_expected(study),
)
def neutrally_stable(study) -> Measurement:
    """At finite eta the symmetric critical point is neutrally stable for the linearised flow."""
    system = system_of(study)
    d, (sharpness, scale) = system.tokens, FAMILY[1]
    z = symmetric.symmetric_state(system, sharpness, scale)
    # A law known to keep its symmetry, or one known to lose it, whichever this one is not.
    known = TwoGroup(0.8, 0.3, d) if _margin(study) > 0 else TwoGroup(0.75, 0.95, d)
    other = _top_within(known, symmetric.symmetric_state(known, sharpness, scale))
    eta = z[4] * z[5]
    return refuted(
        printed=at_most(
            _top_within(system, z),
            1e-12,
            control=other,
            note=f"top growth rate within rank one at eta = {eta:.3g}",
        ),
        correction=Correction(
            printed="neutrally stable: J_0 is negative semidefinite",
            corrected="a strict saddle at every finite eta, with d - 2 modes, where P21 (1-P21)"
            " [pi1 L1^2 P12 + (1-pi1) L2^2 Q] < lam^2 (1-pi1)/(d-1); neutral elsewhere",
            cause="missing-hypothesis",
            counterexample="pi = (0.75, 0.125, 0.125), lam = 0.8: the lower tokens part",
            snippet=STRICT_SADDLE,
        ),
    )


def _stability_expected(study) -> str:
    if not several_low(study).inside:
        return "out-of-regime"
    return "fails" if _margin(study) > 0 else "holds"


@claim("ours: regime map of Prop 3.8", study=STUDY)
def regime_map(study) -> Measurement:
    """The closed-form criterion has the sign of the top growth rate within rank one, law by law."""
    d = max(study.chain.tokens, 3)
    system, _ = _grid(d)
    top = _top_within(system, symmetric.symmetric_state(system, *FAMILY[1]))
    margin = symmetric.instability_margin(system.pi1, system.lam, d)
    # The criterion with lam instead of lam^2: as easily misread, and wrong.
    other = margin + (system.lam - system.lam**2) * (1 - system.pi1) / (d - 1)
    unstable, clear = top > 1e-9, np.abs(margin) > 1e-7
    agree = lambda m: bool(np.array_equal((m > 0)[clear], unstable[clear]))  # noqa: E731
    quiet = float(np.abs(top[~unstable]).max())
    words = (
        f"{unstable.mean():.1%} of {top.size} laws over 1/d < pi1 < 1, 0 < lam < 1 break at"
        f" d = {d}; growth rates from {top[unstable].min():.2g} there, below {quiet:.1g} elsewhere"
    )
    return fact(agree(margin), control=agree(other), sentence=words)


@claim(
    "ours: rate of the split of equal tokens",
    part="constant",
    regime=several_low,
    expected=inside(several_low),
    study=STUDY,
)
def split_rate(study) -> Measurement:
    """The top growth rate of the whole flow at a symmetric point is that of a 2 x 2 Hessian."""
    system = system_of(study)
    measured, predicted, wrong = [], [], []
    for sharpness, scale in FAMILY:
        z = symmetric.symmetric_state(system, sharpness, scale)
        measured.append(_top_of_all(system.lift(z), system.chain))
        predicted.append(max(float(symmetric.antisymmetric_rate(system, z)), 0.0))
        H = symmetric.antisymmetric_hessian(system, z)
        wrong.append(-np.linalg.eigvalsh(H * [[0, 1], [1, 1]])[0])
    return equal(
        predicted,
        measured,
        rtol=1e-9,
        atol=1e-13,
        control=wrong,
        note=f"all {2 * DIM * (system.tokens + DIM)} parameters at width {DIM}; control:"
        " without the embedding's own entry",
    )


@claim(
    "ours: equal tokens part within rank one", regime=breaks, expected=inside(breaks), study=STUDY
)
def equal_tokens_part(study) -> Measurement:
    """With exactly symmetric data a small difference of two lower tokens grows, within rank one."""
    system = system_of(study)
    z = symmetric.symmetric_state(system, *FAMILY[1])
    rate = float(symmetric.antisymmetric_rate(system, z))
    x, y = np.linalg.eigh(symmetric.antisymmetric_hessian(system, z))[1][:, 0]
    d, size = system.tokens, 1e-6
    apart = np.zeros(2 * d + 2)
    apart[[1, 2]], apart[[d + 1, d + 2]] = np.array([x, -x]), np.array([y, -y])
    until = 3 / rate
    flow = rank_one.vector_flow(lambda x: rank_one.velocity(x, system.chain), "rank one")
    moved = system.lift(z) + size * apart
    end = rank_one.solve(flow, moved, until, rtol=1e-10, atol=1e-13).final["z"]
    measured = np.log((end - system.lift(z)) @ apart / (size * apart @ apart)) / until
    return equal(
        rate,
        measured,
        rtol=1e-3,
        control=1.01 * rate,
        note=f"over {until:.4g} units of time, e^3 in size",
    )


@claim(
    "ours: the split dies as eta grows",
    regime=breaks_at_first,
    study=STUDY,
    expected=inside(breaks_at_first),
)
def split_dies(study) -> Measurement:
    """On the leaf of small starts the rate of the split falls to 0 as eta grows: Prop. 3.8 is the
    limit."""
    system = system_of(study)
    L1, L2 = symmetric.log_odds(system)
    large = np.sqrt(30 * (L1 - L2) / -L2)  # then xi_2 is about exp(-60)
    etas = (0.5, 1.0, large / 4, large)
    rates = [
        float(symmetric.antisymmetric_rate(system, symmetric.balanced_state(system, e)))
        for e in etas
    ]
    shown = ", ".join(f"{r:.3g} at {e:.3g}" for r, e in zip(rates, etas, strict=True))
    return at_most(rates[-1] / rates[1], 1e-6, control=rates[0] / rates[1], note=f"rates {shown}")


@claim("ours: focus ends at a finite eta", regime=resolved, expected=inside(resolved), study=STUDY)
def focus_ends(study) -> Measurement:
    """From the unigram point the two-group flow stops on the family r1 = r2 = 0 at a finite eta."""
    system = system_of(study)
    visited = symmetric.visited_saddles(system.chain)
    if len(visited) < 3:
        return not_checkable("the flow does not leave the unigram point in time")
    end = visited[2]
    eta = float(end.z[-2] * end.z[-1])
    at = lambda e: system.lift(symmetric.balanced_state(system, e))  # noqa: E731
    return every(
        loss=equal(
            symmetric.two_group_loss(system),
            end.loss,
            rtol=1e-9,
            control=system.chain.floor if system.tokens > 2 else 1.01 * end.loss,
        ),
        point=equal(at(eta), end.z, rtol=1e-5, control=at(1.01 * eta), note=f"eta = {eta:.6g}"),
    )


@claim(
    "ours: saddles of symmetric data",
    part="constant",
    regime=resolved,
    expected=inside(resolved),
    study=STUDY,
)
def saddles_of_symmetric_data(study) -> Measurement:
    """On the two-group law the saddles visited are critical, each left at its predicted rate."""
    return _saddles(system_of(study).chain)


@claim(
    "ours: saddles of the rank-one phase",
    part="constant",
    regime=off_uniform,
    expected=inside(off_uniform),
    study=STUDY,
)
def saddles_of_any_law(study) -> Measurement:
    """From (pi, lam) alone: the saddles visited at rank one are critical, left at their rates."""
    return _saddles(study.chain)


@functools.lru_cache(maxsize=64)
def _saddles(chain: MarkovChain) -> Measurement:
    visited = symmetric.visited_saddles(chain)
    exact = [s for s in visited if s.critical]
    speeds = [float(np.abs(rank_one.velocity(s.z, chain)).max()) for s in exact]
    rates = np.array([s.rate for s in exact])
    top = [_top_of_all(s.z, chain) for s in exact]
    words = " -> ".join(f"{s.name} {s.loss:.6f} ({s.rate:.4g}, {s.mode})" for s in visited)
    beside = float(np.abs(rank_one.velocity(1.01 * exact[1].z, chain)).max())
    return every(
        critical=at_most(max(speeds), 1e-10, control=beside),
        rates=equal(rates, top, rtol=1e-6, atol=1e-11, control=1.01 * rates, note=words),
    )


def _grid(tokens: int) -> tuple[TwoGroup, np.ndarray]:
    """Laws over 1/d < pi1 < 1, 0 < lam < 1, and which lie clear of (1-lam) pi1 = 1/d."""
    middle = (np.arange(CELLS) + 0.5) / CELLS
    pi1, lam = np.meshgrid(1 / tokens + (1 - 1 / tokens) * middle, middle, indexing="ij")
    return TwoGroup(pi1, lam, tokens), np.abs((1 - lam) * pi1 - 1 / tokens) > 1e-3


def _top_within(system: TwoGroup, z: np.ndarray):
    """The top growth rate within rank one, from the Jacobian of the rank-one flow; batched."""
    d, pi1, lam = system.tokens, np.asarray(system.pi1), np.asarray(system.lam)
    low = np.repeat(((1 - pi1) / (d - 1))[..., None], d - 1, axis=-1)
    pi = np.concatenate([pi1[..., None], low], axis=-1)
    P = lam[..., None, None] * np.eye(d) + (1 - lam)[..., None, None] * pi[..., None, :]
    J = rank_one.derivative(
        lambda x: rank_one.velocity(x, (pi[..., None, :], P[..., None, :, :])), system.lift(z)
    )
    return np.linalg.eigvalsh((J + np.swapaxes(J, -1, -2)) / 2)[..., -1]


def _top_of_all(z: np.ndarray, chain: MarkovChain) -> float:
    """The top growth rate of the whole flow, all parameters at width DIM."""
    J = rank_one.full_jacobian(z, chain, DIM)
    return float(np.linalg.eigvalsh((J + J.T) / 2)[-1])


STRICT_SADDLE = """
    import numpy as np
    d, p, lam, a, b = 3, 0.75, 0.8, 0.0, 0.0
    pi = np.array([p, .125, .125]); P = lam * np.eye(d) + (1 - lam) * pi
    soft = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
    def flow(x):                                               # (gamma, beta, eta): eq (20)
        g, b, eta = x[:d], x[d:-1], x[-1]
        A = soft(eta * np.outer(g, g) + np.log(pi))
        R = pi[:, None] * (P - soft(np.outer(A @ g, b)))
        S = A * np.outer(R @ b, g); GP = A * S.sum(1, keepdims=True) - S
        return np.r_[A.T @ R @ b - eta * (GP + GP.T) @ g, R.T @ A @ g, -2 * eta * g @ GP @ g]
    jacobian = lambda x: np.array([flow(x + 1e-20j * e).imag / 1e-20 for e in np.eye(7)]).T
    x = np.array([1.9, -0.8, -0.8, 1.2, -0.6, -0.6, 1.4])      # Newton to the symmetric point
    for _ in range(50):
        x = x - np.linalg.lstsq(jacobian(x), flow(x), rcond=1e-8)[0]
    rates = np.linalg.eigvals(jacobian(x)).real
    print("eta", x[-1], "speed", np.abs(flow(x)).max(), "rates", np.sort(rates))
    assert np.abs(flow(x)).max() < 1e-14 and rates.max() > 0.02
"""
