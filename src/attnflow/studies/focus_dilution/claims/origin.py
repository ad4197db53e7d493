"""Section 3.1: the linearised flow near a saddle, and condensation out of the origin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attnflow.claims import (
    Control,
    Measurement,
    against,
    at_most,
    compared,
    equal,
    every,
    identity,
    order,
    slope,
)
from attnflow.flows import Mark, integrate
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_gradients,
    blocks,
    cosine,
    flat,
    jacobian,
    moved,
    nonuniform,
    random_points,
)
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.markov import MarkovChain

SCALES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)


# --- Lemma 3.1.


@paper.claim("Lemma 3.1 (eq 6)", regime=nonuniform)
def the_flow_is_smooth(study) -> Measurement:
    r"""The hypothesis holds here: $|F(\theta_*+\Delta) - J\Delta| \le L|\Delta|^2$ near both
    critical points, so the quotient stays bounded as $\Delta$ shrinks."""

    def fitted(origin: bool) -> Measurement:
        point, unit, J = around(study, origin)

        def remainder(size: float, right: bool) -> float:
            found = flat(one_layer.velocity(moved(point, size * unit), study.chain))
            return float(np.linalg.norm(found - (J @ (size * unit) if right else 0)))

        how = {"kind": "O", "over": (1e-1, 1e-2, 1e-3), "power": 2.0}
        return compared(order, "without the linear part", remainder, **how)

    return every(origin=fitted(True), second=fitted(False))


@paper.claim("Lemma 3.1 (eq 7, origin)", regime=nonuniform)
@against("from the second point", order, kind="Theta", over=(0.02, 0.04, 0.08), power=3.0, tol=0.02)
def linearisation_error_at_the_origin(study, size: float, right: bool):
    r"""The linearised flow errs by $O(\varepsilon^2)$; at the origin by $\varepsilon^3$, as the
    first nonlinear term there is cubic."""
    return linear_error(study, right, size if right else size / 20)


@paper.claim("Lemma 3.1 (eq 7, second point)", regime=nonuniform)
@against("from the origin", order, kind="Theta", over=(0.001, 0.002, 0.004), power=2.0, tol=0.02)
def linearisation_error_at_the_second_point(study, size: float, right: bool):
    r"""The linearised flow errs by $O(\varepsilon^2)$ near the second critical point."""
    return linear_error(study, not right, size if right else 20 * size)


@paper.claim("Lemma 3.1 (eq 7, growth)", regime=nonuniform)
@against(
    "against e^(mu t)", at_most, bound=0.05, note="over mu, growth of the error over e^(2 mu t)"
)
def linearisation_error_over_time(study, right: bool):
    r"""The error grows at most like $e^{2\mu t}$ with $\mu$ the top rate: near the second point
    over the first three time constants, from a start along the unstable mode."""
    lengths, power = (1.0, 1.5, 2.0, 2.5, 3.0), 2 if right else 1
    errors = [linear_error(study, False, 1e-4, n) / np.exp(power * n) for n in lengths]
    return float(np.polyfit(lengths, np.log(errors), 1)[0])


@paper.claim("Lemma 3.1 (window)", regime=nonuniform)
def linear_for_a_logarithmic_time(study) -> Measurement:
    r"""The linearised flow is good up to times $\Theta(\log 1/\varepsilon)$: the time at which it
    errs by a tenth of itself grows like $\log(1/\varepsilon)/\mu$ at the origin."""
    return logarithmic(study, SCALES[:4], window, within=0.01)


@paper.once
def window(study, scale: float) -> float:
    """When the condensed amplitude is a tenth below its linear growth."""
    chain, start = study.chain, beginning(study, scale)
    a0, mu = np.linalg.norm(theory.condensed_amplitude(start, chain)), theory.escape_rate(chain)
    limit = theory.condensation_time(start, chain, 3.0)
    found = integrate(population_flow(chain), start, until=limit, rtol=1e-8, progress=False)
    t = np.linspace(0.5 * limit, limit, 400)
    states = found.states(t)
    amplitude = [
        np.linalg.norm(theory.condensed_amplitude(OneLayerAttention(*rows), chain))
        for rows in zip(*blocks(states), strict=True)
    ]
    lost = np.asarray(amplitude) / (a0 * np.exp(mu * t))
    return float(np.interp(-0.9, -lost, t))


@paper.claim("Lemma 3.1 (eq 8)", regime=nonuniform)
@against("too early: eps = 0.1", at_most, bound=1e-9, note="1 - the cosine at scale 1e-12")
def alignment_with_a_simple_mode(study, right: bool):
    r"""With a simple top rate the flow aligns with its eigenvector while $\varepsilon e^{\mu t}$ is
    small.

    Width one, where the rate at the origin is simple: at $t = \log(1/\varepsilon)/(2\mu)$.
    """
    chain, scale = study.chain, 1e-12 if right else 0.1
    q, v = chain.pi / np.linalg.norm(chain.pi), chain.pi - 1 / chain.tokens
    start = OneLayerAttention.gaussian(chain.tokens, 1, scale, SEEDS[1])
    until = np.log(1 / scale) / (2 * theory.escape_rate(chain))
    end = integrate(population_flow(chain), start, until=until, rtol=1e-9, progress=False).final
    return 1 - abs(cosine(flat(end), np.concatenate([q, v / np.linalg.norm(v), [0.0, 0.0]])))


@paper.claim(
    "Section 3.1 (single unstable direction)",
    regime=nonuniform,
    reading="'single' is meant up to the right factor, which the start chooses: at width m the "
    "top rate has multiplicity m",
)
@against("with the modes of rate 0", at_most, bound=1e-12, note=f"width {DIM}")
def one_left_factor(study, right: bool):
    r"""At the origin all unstable modes have one left factor: $\Delta W_0 = \pi x^\top$ and
    $\Delta W_1 = x(\pi - 1/d)^\top$, for any $x$."""
    rates, modes = np.linalg.eigh(around(study, True)[2])
    d, chosen = study.chain.tokens, rates > (1e-9 if right else -1e-9)
    factors = [mode[: d * DIM].reshape(d, DIM) for mode in modes[:, chosen].T]
    s = np.linalg.svd(np.concatenate(factors, axis=1), compute_uv=False)
    return s[1] / s[0]


@paper.once
def around(study, origin: bool) -> tuple:
    """A critical point as a function of the step away from it, a random direction, and J there."""
    chain = study.chain
    zero = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-200, 0)
    point = zero if origin else theory.unigram_point(chain, DIM)
    direction = flat(OneLayerAttention.gaussian(chain.tokens, DIM, 1.0, SEEDS[2]))
    return point, direction / np.linalg.norm(direction), jacobian(point, chain)


@paper.once
def linear_error(study, origin: bool, size: float, constants: float = 1.0) -> float:
    """|nonlinear - linear| after so many time constants, from a start of this size."""
    point, unit, J = around(study, origin)
    rates, modes = np.linalg.eigh((J + J.T) / 2)
    time = constants / rates.max()
    flow = population_flow(study.chain)
    end = integrate(flow, moved(point, size * unit), until=time, rtol=1e-11, progress=False).final
    linear = modes @ (np.exp(rates * time) * (modes.T @ (size * unit)))
    return float(np.linalg.norm(flat(end) - flat(point) - linear))


# --- Theorem 3.2.


@paper.claim("Thm 3.2 (eq 9)")
def gradients_at_the_origin(study) -> Measurement:
    r"""At the origin $\partial L/\partial M = -\pi(\pi - \mathbf 1/d)^\top$ and
    $\partial L/\partial\Phi = 0$."""
    d, pi = study.chain.tokens, study.chain.pi

    def readout(right: bool):
        formula = -np.outer(pi, pi - (1 / d if right else 0))
        return formula, autodiff_gradients(around(study, True)[0], study.chain)[0]

    def score(right: bool) -> float:
        point = around(study, True)[0] if right else random_points(study)[0]
        return np.abs(autodiff_gradients(point, study.chain)[1]).max()

    return every(
        M=compared(equal, "without the uniform prediction", readout, rtol=1e-13, atol=1e-15),
        Phi=compared(at_most, "at random weights", score, bound=1e-15),
    )


@paper.claim(
    "Thm 3.2 (eq 10)",
    regime=nonuniform,
    reading=r"the first line reads $\Delta W_0^\top$ where shapes and (4) want $\Delta W_1^\top$",
)
def linear_system_at_the_origin(study) -> Measurement:
    r"""Near the origin $\dot W_0 = \pi(\pi-\mathbf 1/d)^\top W_1^\top$ and
    $\dot W_1 = W_0^\top\pi(\pi-\mathbf 1/d)^\top$."""
    chain, G = study.chain, np.outer(study.chain.pi, study.chain.pi - 1 / study.chain.tokens)

    def linear(theta: OneLayerAttention, right: bool):
        W0, W1, WQ, WK = blocks(theta)
        parts = G @ (W1 if right else W0).T, W0.T @ G, 0 * WQ, 0 * WK
        return np.concatenate([x.ravel() for x in parts]), flat(one_layer.velocity(theta, chain))

    # Width d: what is extracted has the right shape too. At 1e-60 the flow is its linear part.
    starts = [OneLayerAttention.gaussian(chain.tokens, chain.tokens, 1e-60, s) for s in SEEDS]
    return compared(identity, "as extracted", linear, over=starts)


@paper.claim("Thm 3.2 (spectrum of the origin)", part="constant", regime=nonuniform)
@against("one unstable direction", equal, rtol=1e-12)
def spectrum_of_the_origin(study, right: bool):
    r"""The rates at the origin are $\mu_0 = |\pi||\pi - \mathbf 1/d|$ and $-\mu_0$, $m$ times each,
    and 0."""
    rates, mu0 = np.linalg.eigvalsh(around(study, True)[2]), theory.escape_rate(study.chain)
    up = DIM if right else 1
    none = np.zeros(len(rates) - DIM - up)
    return np.concatenate([[-mu0] * DIM, none, [mu0] * up]), rates


@paper.claim("Thm 3.2 (eq 11)", regime=nonuniform)
@against("read-out by log frequencies", at_most, bound=1e-5, note="1 - the cosines at scale 1e-6")
def rank_one_condensation(study, right: bool):
    r"""At the condensation time $W_0$ and $W_1$ are parallel to $\pi a^\top$ and
    $a(\pi-\mathbf 1/d)^\top$."""
    chain, end = study.chain, condensed(study, 1e-6)
    a, pi, log = theory.condensed_amplitude(end, chain), chain.pi, np.log(chain.pi)
    rows, columns = (pi, pi - 1 / chain.tokens) if right else (np.sqrt(pi), log - log.mean())
    return [1 - cosine(end.W0, np.outer(rows, a)), 1 - cosine(end.W1, np.outer(a, columns))]


@paper.claim("Thm 3.2 (direction)", part="constant", regime=nonuniform)
@against("of the embedding alone", at_most, bound=1e-6, note="1 - the cosine")
def condensed_direction(study, right: bool):
    r"""The direction is that of the start's own component, $a \propto W_0(0)^\top\pi/|\pi| +
    W_1(0)(\pi-\mathbf 1/d)/|\pi-\mathbf 1/d|$; read from the end by its largest singular vector."""
    chain, end, start = study.chain, condensed(study, 1e-6), beginning(study, 1e-6)
    whole, alone = theory.condensed_amplitude(start, chain), np.asarray(start.W0).T @ chain.pi
    return 1 - abs(cosine(whole if right else alone, np.linalg.svd(np.asarray(end.W0))[2][0]))


@paper.claim("Thm 3.2 (condensation time)", part="constant", regime=nonuniform)
@against("from the size of the whole start", equal, rtol=5e-3, each=True)
def condensation_time(study, right: bool):
    r"""From scale $\varepsilon$ the embedding condenses at $\log(r/a_0)/\mu_0$, $a_0$ the unstable
    component of the start."""
    chain, level, starts = study.chain, theory.CONDENSED, [beginning(study, e) for e in SCALES]
    told = [theory.condensation_time(start, chain, level) for start in starts]
    whole = [np.log(level / np.linalg.norm(flat(start))) for start in starts]
    other = np.divide(whole, theory.escape_rate(chain))
    return told if right else other, [condensation(study, e) for e in SCALES]


@paper.claim("Thm 3.2 (order log 1/eps)", regime=nonuniform)
def condensation_order(study) -> Measurement:
    r"""The condensation time is $\Theta(\log 1/\varepsilon)$: its slope is $1/\mu_0$."""
    return logarithmic(study, SCALES, condensation, within=2e-3)


@paper.claim("Section 3.1 (attention stays small)", regime=nonuniform)
@against(
    "the embedding and the read-out",
    order,
    kind="O",
    over=SCALES[1:],
    power=1.0,
    tol=0.01,
    note="norms where the condensed amplitude is 0.05",
)
def attention_stays_small(study, scale: float, right: bool):
    r"""Throughout this stage the attention matrices stay $O(\varepsilon)$."""
    W0, W1, WQ, WK = blocks(condensed(study, scale))
    return max(np.linalg.norm(w) for w in ((WQ, WK) if right else (W0, W1)))


def logarithmic(study, scales: tuple[float, ...], time: Callable, within: float) -> Measurement:
    """A time grows by 1/mu0 per e-fold of the start; mu0 of a law half way to the uniform one
    does not do."""
    other = MarkovChain.of(0.5 * (study.chain.transition + 1 / study.chain.tokens))
    control = Control("a law half way to the uniform one", 1 / theory.escape_rate(other))
    x, y, rate = lambda e: -np.log(e), partial(time, study), theory.escape_rate(study.chain)
    return slope(over=scales, x=x, y=y, predicted=1 / rate, within=within, control=control)


def beginning(study, scale: float) -> OneLayerAttention:
    return OneLayerAttention.gaussian(study.chain.tokens, DIM, scale, SEEDS[0])


@paper.once
def _condensing(study, scale: float):
    chain, start = study.chain, beginning(study, scale)
    q, v = chain.pi, chain.pi - 1 / chain.tokens
    q, u = q / np.linalg.norm(q), v / np.linalg.norm(v)
    size = lambda th: np.sqrt(((th.W0.T @ q + th.W1 @ u) ** 2).sum()) / 2  # noqa: E731
    stops = {"condensed": Mark(size, theory.CONDENSED, 1)}
    until = 3 * theory.condensation_time(start, chain, theory.CONDENSED)
    flow = population_flow(chain)
    found = integrate(flow, start, until, stops=stops, rtol=1e-8, progress=False)
    return found.time, found.final


def condensation(study, scale: float) -> float:
    """When the amplitude along the unstable modes, written out here, reaches its level."""
    return _condensing(study, scale)[0]


def condensed(study, scale: float) -> OneLayerAttention:
    """The weights at that time."""
    return _condensing(study, scale)[1]
