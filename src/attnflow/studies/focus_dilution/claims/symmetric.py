"""Section 3.4, Prop. 3.8 at finite eta: symmetric critical points, and the saddles visited."""

from __future__ import annotations

import itertools

import numpy as np

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    Regime,
    against,
    at_most,
    compared,
    condition,
    corrected,
    equal,
    every,
    fact,
    refuted,
)
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import rank_one, symmetric, theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    autodiff_gradients,
    autodiff_velocity,
    jacobian,
)
from attnflow.studies.focus_dilution.claims.rank_one import (
    resolved,
    several_low,
    symmetric_data,
    system_of,
)
from attnflow.studies.focus_dilution.config import Config
from attnflow.studies.focus_dilution.paper import paper
from attnflow.studies.focus_dilution.rank_one import TwoGroup
from attnflow.tasks.markov import MarkovChain

FAMILY = ((0.5, 1.0), (4.0, 2.0), (20.0, 3.0))
"""(sharpness, scale) of the critical points that are looked at; the second is the standard one."""

CELLS = 12
"""The regime map is measured on CELLS x CELLS laws (pi1, lam)."""


@condition
def splitting(config: Config) -> Regime:
    """Symmetric data whose critical points are strict saddles, by the closed-form criterion."""
    found = margin(TwoGroup.of(theory.two_group(config.chain())))
    return Regime(bool(found > 0), f"the instability margin is {found:.4g} (> 0)")


@condition
def reaches_infinity(config: Config) -> Regime:
    """The family reaches eta = infinity as the proof of Prop. 3.8 has it."""
    system = TwoGroup.of(theory.two_group(config.chain()))
    back, share = system.first[1], 1 / system.tokens
    return Regime(back < share, f"(1 - lam) pi1 = {back:.4g} < 1/d = {share:.4g}")


@condition
def off_uniform(config: Config) -> Regime:
    rate = theory.escape_rate(config.chain())
    return Regime(rate > 1e-5, f"the origin is left at {rate:.3g} (> 1e-5)")


breaks = several_low & splitting


def margin(system: TwoGroup):
    """The criterion of the split written out: which verdict is foreseen rests on no code of the
    study."""
    p, lam, low = system.pi1, system.lam, system.tokens - 1
    P11, P21 = lam + (1 - lam) * p, (1 - lam) * p
    L1, L2 = (np.log(low * P / (1 - P)) for P in (P11, P21))
    bracket = (p * L1**2 * (1 - P11) + (1 - p) * L2**2 * (1 - P21)) / low
    return lam**2 * (1 - p) / low - P21 * (1 - P21) * bracket


@paper.claim("Prop 3.8 (existence)", regime=symmetric_data)
def symmetric_critical_points(study) -> Measurement:
    r"""There are critical points with $\partial L/\partial M = 0$ and $\partial L/\partial\Phi =
    0$: a family, at every finite $\eta$, of the loss that tells token 1 from the rest."""
    system = system_of(study)
    points = [symmetric.symmetric_state(system, *where) for where in FAMILY]

    def forces(right: bool) -> np.ndarray:
        """Largest entries of dL/dM and dL/dPhi, by autodiff."""
        states = points if right else [rank_one.entry(system, 0.5)]
        models = [rank_one.state_of(system.lift(z)) for z in states]
        return np.abs([autodiff_gradients(th, system.chain) for th in models]).max(axis=(0, 2, 3))

    def loss(right: bool):
        level = symmetric.two_group_loss(system) if right else system.chain.unigram_entropy
        return level, float(rank_one.loss(system.lift(points[1]), system.chain))

    return every(
        forces=compared(at_most, "at the entry state", forces, bound=1e-13),
        loss=compared(equal, "the unigram entropy", loss, rtol=1e-12),
    )


@paper.claim("Prop 3.8 (construction)", part="proof-step")
def point_at_infinite_eta(study) -> Measurement:
    r"""As $\eta$ grows the lower tokens' attention to token 1 goes to 0 where
    $(1-\lambda)\pi_1 < 1/d$."""
    d = study.chain.tokens
    system, clear = _grid(d)
    z = symmetric.symmetric_state(system, 1e5)
    vanishes = (system.attention(z)[1] < 1e-6)[clear]
    predicted = (system.first[1] < 1 / d)[clear]
    other = (system.first[1] < system.pi1)[clear]
    return corrected(
        printed=fact(measured=bool(vanishes.all()), note=f"not in {1 - predicted.mean():.0%}"),
        right=fact(
            measured=bool(np.array_equal(vanishes, predicted)),
            control=Control("(1-lam) pi1 < pi1", bool(np.array_equal(vanishes, other))),
            note=f"{vanishes.size} laws",
        ),
        text=r"for large $\eta$ $A_1 = e_1$, $A_{low} = (0, 1/(d-1), \dots)$ and"
        r" $\gamma_1 > 0 > \gamma_{low}$",
        correct=r"the same under $(1-\lambda)\pi_1 < 1/d$; else the lower tokens, too, must predict"
        r" token 1 above average, and their attention to it tends to $L_2/L_1$",
        erratum=Erratum(
            "below-average",
            "the construction needs (1-lam) pi1 < 1/d: softmax(k beta) with k < 0 cannot predict"
            " token 1 above average",
            cause="missing-hypothesis",
        ),
    )


FINITE = Erratum(
    "finite-eta",
    "the point is neutrally stable as eta goes to infinity only: at every finite eta it is a strict"
    " saddle for part of the laws",
    cause="missing-hypothesis",
)


@paper.claim("Prop 3.8 (neutrally stable)", regime=several_low)
def neutrally_stable(study) -> Measurement:
    r"""The symmetric critical point is neutrally stable for the linearised flow: its top growth
    rate within rank one is 0."""
    system = system_of(study)
    z = symmetric.symmetric_state(system, *FAMILY[1])
    # A law known to lose its symmetry, or one known to keep it, whichever this one is not.
    known = TwoGroup(0.8, 0.3, system.tokens) if margin(system) > 0 else TwoGroup(0.75, 0.95, 4)
    other = _top_within(known, symmetric.symmetric_state(known, *FAMILY[1]))
    finite = at_most(
        bound=1e-12,
        measured=_top_within(system, z),
        control=Control(f"pi1 = {known.pi1}, lam = {known.lam}", other),
        note=f"top growth rate within rank one at eta = {z[4] * z[5]:.3g}",
    )
    if margin(system) <= 0:
        return finite
    statement = r"neutrally stable: $J_0$ is negative semidefinite"
    if not reaches_infinity(study.config).inside:
        return refuted(
            printed=finite,
            text=statement,
            counterexample=r"no point of the family is: the margin of the closed-form criterion is"
            r" positive at every $\eta$, and $\eta\to\infty$ does not lead to $A_{low} = (0, ...)$",
            erratum=FINITE,
        )
    L1, L2 = symmetric.log_odds(system)
    far = symmetric.balanced_state(system, float(np.sqrt(30 * (L1 - L2) / -L2)))
    return corrected(
        printed=finite,
        right=at_most(
            bound=1e-12,
            measured=_top_within(system, far),
            control=Control("at that finite eta", _top_within(system, z)),
            note=f"at eta = {far[4] * far[5]:.3g}",
        ),
        text=statement,
        correct=r"so as $\eta\to\infty$. At finite $\eta$ a strict saddle with $d-2$ modes where"
        r" $P_{21}(1-P_{21})[\pi_1L_1^2P_{12} + (1-\pi_1)L_2^2Q] < \lambda^2(1-\pi_1)/(d-1)$",
        erratum=FINITE,
    )


@paper.claim("ours: regime map of Prop 3.8")
def regime_map(study) -> Measurement:
    """The closed-form criterion has the sign of the top growth rate within rank one, law by law,
    and the value that it is written out to have."""
    d = max(study.chain.tokens, 3)
    system, _ = _grid(d)
    top = _top_within(system, symmetric.symmetric_state(system, *FAMILY[1]))
    found = symmetric.instability_margin(system.pi1, system.lam, d)
    # The criterion with lam instead of lam^2: as easily misread, and wrong.
    other = found + (system.lam - system.lam**2) * (1 - system.pi1) / (d - 1)
    unstable, clear = top > 1e-9, np.abs(found) > 1e-7
    agree = lambda m: bool(np.array_equal((m > 0)[clear], unstable[clear]))  # noqa: E731
    value = equal(
        predicted=margin(system),
        measured=found,
        rtol=1e-12,
        control=Control("lam for lam^2", other),
    )
    sign = fact(
        measured=agree(found),
        control=Control("lam for lam^2", agree(other)),
        note=f"{unstable.mean():.1%} of {top.size} laws over 1/d < pi1 < 1, 0 < lam < 1 break at"
        f" d = {d}; growth rates from {top[unstable].min():.2g} there, below"
        f" {np.abs(top[~unstable]).max():.1g} elsewhere",
    )
    return every(value=value, sign=sign)


@paper.claim("ours: rate of the split of equal tokens", part="constant", regime=several_low)
@against("without the embedding's own entry", equal, rtol=1e-9, atol=1e-13, note=f"width {DIM}")
def split_rate(study, right: bool):
    r"""The top growth rate of the whole flow at a symmetric point is that of a $2\times2$
    Hessian."""
    system = system_of(study)
    points = [symmetric.symmetric_state(system, *where) for where in FAMILY]
    rates = [max(float(symmetric.antisymmetric_rate(system, z)), 0.0) for z in points]
    uncoupled = [symmetric.antisymmetric_hessian(system, z) * [[0, 1], [1, 1]] for z in points]
    other = [-np.linalg.eigvalsh(H)[0] for H in uncoupled]
    return rates if right else other, [_top_of_all(system.lift(z), system.chain) for z in points]


@paper.claim("ours: equal tokens part within rank one", regime=breaks)
@against("along the stable way to part", equal, rtol=1e-3, note="until it is e^3 times as large")
def equal_tokens_part(study, right: bool):
    """With exactly symmetric data a small difference of two lower tokens grows, within rank one."""
    system, size = system_of(study), 1e-6
    d, z = system.tokens, symmetric.symmetric_state(system, *FAMILY[1])
    rate = float(symmetric.antisymmetric_rate(system, z))
    way = np.linalg.eigh(symmetric.antisymmetric_hessian(system, z))[1][:, 0 if right else 1]
    apart = np.zeros(2 * d + 2)
    apart[[1, 2, d + 1, d + 2]] = np.kron(way, [1, -1])
    flow = rank_one.vector_flow(lambda x: rank_one.velocity(x, system.chain), "rank one")
    start = system.lift(z) + size * apart
    end = rank_one.solve(flow, start, 3 / rate, rtol=1e-10, atol=1e-13).final["z"]
    grown = abs((end - system.lift(z)) @ apart) / (size * apart @ apart)
    return rate, float(np.log(grown) * rate / 3)


@paper.claim("ours: the split dies as eta grows", regime=breaks & reaches_infinity)
def split_dies(study) -> Measurement:
    r"""On the leaf of small starts the rate of the split falls to 0 as $\eta$ grows: Prop. 3.8 is
    the limit."""
    system = system_of(study)
    L1, L2 = symmetric.log_odds(system)
    large = np.sqrt(30 * (L1 - L2) / -L2)  # then xi_2 is about exp(-60)
    states = {e: symmetric.balanced_state(system, e) for e in (0.5, 1.0, large / 4, large)}
    rates = {e: _top_of_all(system.lift(z), system.chain) for e, z in states.items()}
    return at_most(
        bound=1e-6,
        measured=rates[large] / rates[1.0],
        control=Control("at eta = 1/2", rates[0.5] / rates[1.0]),
        note="rates " + ", ".join(f"{r:.3g} at {e:.3g}" for e, r in rates.items()),
    )


@paper.claim("ours: balanced symmetric point", regime=symmetric_data)
@against("other points of the family", equal, rtol=1e-9)
def balanced_point(study, right: bool):
    r"""On the leaf of small starts $|\gamma|^2 = |\beta|^2 + 2\eta$ and $\sum\beta = 0$."""
    system = system_of(study)
    balanced = [symmetric.balanced_state(system, eta) for eta in (0.5, 1.0, 2.0)]
    family = [symmetric.symmetric_state(system, *where) for where in FAMILY]

    def balance(x: np.ndarray) -> float:
        g, b = np.split(x[:-2], 2)
        return float(g @ g - b @ b) / (2 * x[-1] * x[-2]) + abs(b.sum())

    return np.ones(3), [balance(system.lift(z)) for z in (balanced if right else family)]


@paper.claim("ours: focus ends at a finite eta", regime=resolved)
@against("the point of twice the eta", equal, rtol=1e-8)
def focus_ends(study, right: bool):
    r"""From the unigram point the two-group flow stops on the family $r_1 = r_2 = 0$ at a finite
    $\eta$."""
    system = system_of(study)
    end = symmetric.visited_saddles(system.chain)[:3][-1].z  # the unigram point, if never left
    eta = (float(end[-2] * end[-1]) or 1.0) * (1 if right else 2)
    return system.lift(symmetric.balanced_state(system, eta)), end


@paper.claim("ours: saddles of symmetric data", part="constant", regime=resolved)
def saddles_of_symmetric_data(study) -> Measurement:
    """On the two-group law the saddles visited are critical, each left at its predicted rate."""
    chain = system_of(study).chain
    visited = symmetric.visited_saddles(chain)  # the two groups meet a critical point, and then?
    return _saddles(chain, visited[:3] + tuple(s for s in visited[3:] if s.critical))


@paper.claim("ours: saddles of the rank-one phase", part="constant", regime=off_uniform)
def saddles_of_any_law(study) -> Measurement:
    """From the law and lam alone: the saddles visited at rank one are critical, left at their
    rates."""
    visited = symmetric.visited_saddles(study.chain)  # a slow passage is no critical point
    return _saddles(study.chain, tuple(s for s in visited if s.critical))


def _saddles(chain: MarkovChain, visited: tuple[symmetric.Saddle, ...]) -> Measurement:
    between = [(a.z + b.z) / 2 for a, b in itertools.pairwise(visited)] or [visited[0].z + 0.1]

    def speed(right: bool) -> float:
        models = [rank_one.state_of(z) for z in ([s.z for s in visited] if right else between)]
        return max(float(np.abs(autodiff_velocity(th, chain)).max()) for th in models)

    def rates(right: bool):
        within = [np.linalg.eigvalsh(_symmetric(rank_one.jacobian(s.z, chain)))[0] for s in visited]
        return [s.rate for s in visited] if right else within, [
            _top_of_all(s.z, chain) for s in visited
        ]

    def losses(right: bool):
        states = [s.z if right else s.z * 0.5 + 0.1 for s in visited]
        return [s.loss for s in visited], [float(rank_one.loss(z, chain)) for z in states]

    def leaf(right: bool) -> float:
        """What the flow conserves, and a small start has nothing of."""
        states = [s.z if right else s.z * 0.5 + 0.1 for s in visited]
        parts = [(*np.split(z[:-2], 2), z[-2:]) for z in states]
        off = [(g @ g - b @ b - k @ k, k[0] ** 2 - k[1] ** 2, b.sum()) for g, b, k in parts]
        return float(np.abs(off).max())

    names = " -> ".join(f"{s.name} {s.loss:.6f} ({s.rate:.4g}, {s.mode})" for s in visited)
    bars = {"rtol": 1e-6, "atol": 1e-11, "note": names}
    return every(
        critical=compared(at_most, "half way between two", speed, bound=1e-10),
        rates=compared(equal, "the fastest decay within rank one", rates, **bars),
        leaf=compared(at_most, "half the embedding", leaf, bound=2e-7),
        losses=compared(equal, "half the embedding", losses, rtol=1e-12),
    )


def _grid(tokens: int) -> tuple[TwoGroup, np.ndarray]:
    """Laws over 1/d < pi1 < 1, 0 < lam < 1, and which lie clear of (1-lam) pi1 = 1/d."""
    middle = (np.arange(CELLS) + 0.5) / CELLS
    pi1, lam = np.meshgrid(1 / tokens + (1 - 1 / tokens) * middle, middle, indexing="ij")
    return TwoGroup(pi1, lam, tokens), np.abs((1 - lam) * pi1 - 1 / tokens) > 1e-3


def _symmetric(J: np.ndarray) -> np.ndarray:
    return (J + np.swapaxes(J, -1, -2)) / 2


def _top_within(system: TwoGroup, z: np.ndarray):
    """The top growth rate within rank one, from the Jacobian of the rank-one flow; batched."""
    d, pi1, lam = system.tokens, np.asarray(system.pi1), np.asarray(system.lam)
    low = np.repeat(((1 - pi1) / (d - 1))[..., None], d - 1, axis=-1)
    pi = np.concatenate([pi1[..., None], low], axis=-1)
    P = lam[..., None, None] * np.eye(d) + (1 - lam)[..., None, None] * pi[..., None, :]
    J = rank_one.derivative(
        lambda x: rank_one.velocity(x, (pi[..., None, :], P[..., None, :, :])), system.lift(z)
    )
    return np.linalg.eigvalsh(_symmetric(J))[..., -1]


def _top_of_all(z: np.ndarray, chain: MarkovChain) -> float:
    """The top growth rate of the whole flow, all parameters at width DIM."""
    e = np.eye(DIM)[0]
    theta: OneLayerAttention = rank_one.rank_one_lift(rank_one.state_of(z), e, e)
    return float(np.linalg.eigvalsh(_symmetric(jacobian(theta, chain)))[-1])
