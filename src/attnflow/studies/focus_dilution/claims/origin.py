"""Section 3.1: the linearised flow near a saddle, and condensation out of the origin."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_most, equal, every, identity, order, slope
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
    sizes = (1e-1, 1e-2, 1e-3)
    return every(
        **{
            name: order(
                "O",
                x=sizes,
                y=[remainder(study, place, size) for size in sizes],
                power=2.0,
                control=Control(
                    "without the linear part",
                    measured=[remainder(study, place, size, linear=False) for size in sizes],
                ),
            )
            for name, place in (("origin", True), ("second", False))
        }
    )


def remainder(study, origin: bool, size: float, linear: bool = True) -> float:
    """|F(p + x) - J x|, or without the linear part, for a random x of this size."""
    point, unit, J = around(study, origin)
    found = flat(one_layer.velocity(moved(point, size * unit), study.chain))
    return float(np.linalg.norm(found - linear * J @ (size * unit)))


@paper.claim("Lemma 3.1 (eq 7, origin)", regime=nonuniform)
def linearisation_error_at_the_origin(study) -> Measurement:
    r"""The linearised flow errs by $O(\varepsilon^2)$; at the origin by $\varepsilon^3$, as the
    first nonlinear term there is cubic."""
    sizes = (0.02, 0.04, 0.08)
    return order(
        "Theta",
        over=sizes,
        y=lambda e: linear_error(study, True, e),
        power=3.0,
        tol=0.02,
        control=Control(
            "from the second point", measured=lambda e: linear_error(study, False, e / 20)
        ),
    )


@paper.claim("Lemma 3.1 (eq 7, second point)", regime=nonuniform)
def linearisation_error_at_the_second_point(study) -> Measurement:
    r"""The linearised flow errs by $O(\varepsilon^2)$ near the second critical point."""
    sizes = (0.001, 0.002, 0.004)
    return order(
        "Theta",
        over=sizes,
        y=lambda e: linear_error(study, False, e),
        power=2.0,
        tol=0.02,
        control=Control("from the origin", measured=lambda e: linear_error(study, True, 20 * e)),
    )


@paper.claim("Lemma 3.1 (eq 7, growth)", regime=nonuniform)
def linearisation_error_over_time(study) -> Measurement:
    r"""The error grows at most like $e^{2\mu t}$ with $\mu$ the top rate: near the second point
    over the first three time constants, from a start along the unstable mode."""
    mu = np.linalg.eigvalsh(around(study, False)[2]).max()
    lengths = (1.0, 1.5, 2.0, 2.5, 3.0)

    def grown(power: float) -> float:
        """The fitted rate of the error over |linear|^power."""
        errors = [linear_error(study, False, 1e-4, n) / np.exp(power * n) for n in lengths]
        return float(np.polyfit(np.divide(lengths, mu), np.log(errors), 1)[0])

    return at_most(
        bound=0.05 * mu,
        measured=grown(2.0),
        control=Control("against e^(mu t)", grown(1.0)),
        note=f"growth of the error over e^(2 mu t), mu = {mu:.4g}",
    )


@paper.claim("Lemma 3.1 (window)", regime=nonuniform)
def linear_for_a_logarithmic_time(study) -> Measurement:
    r"""The linearised flow is good up to times $\Theta(\log 1/\varepsilon)$: the time at which it
    errs by a tenth of itself grows like $\log(1/\varepsilon)/\mu$ at the origin."""
    return slope(
        over=SCALES[:4],
        x=lambda e: -np.log(e),
        y=lambda e: window(study, e),
        predicted=1 / theory.escape_rate(study.chain),
        within=0.01,
        control=Control(*flatter(study)),
    )


@paper.once
def window(study, scale: float) -> float:
    """When the condensed amplitude is a tenth below its linear growth."""
    chain = study.chain
    start = OneLayerAttention.gaussian(chain.tokens, DIM, scale, SEEDS[0])
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
def alignment_with_a_simple_mode(study) -> Measurement:
    r"""With a simple top rate the flow aligns with its eigenvector while $\varepsilon e^{\mu t}$ is
    small.

    Width one, where the rate at the origin is simple: at $t = \log(1/\varepsilon)/(2\mu)$.
    """
    chain = study.chain
    q, v = chain.pi / np.linalg.norm(chain.pi), chain.pi - 1 / chain.tokens
    mode = np.concatenate([q, v / np.linalg.norm(v), [0.0, 0.0]])

    def missing(scale: float) -> float:
        start = OneLayerAttention.gaussian(chain.tokens, 1, scale, SEEDS[1])
        until = np.log(1 / scale) / (2 * theory.escape_rate(chain))
        end = integrate(population_flow(chain), start, until=until, rtol=1e-9, progress=False).final
        return 1 - abs(cosine(flat(end), mode))

    return at_most(
        bound=1e-9,
        measured=missing(1e-12),
        control=Control("too early: eps = 0.1", missing(0.1)),
        note="one minus the cosine at scale 1e-12",
    )


@paper.claim(
    "Section 3.1 (single unstable direction)",
    regime=nonuniform,
    reading="'single' is meant up to the right factor, which the start chooses: at width m the "
    "top rate has multiplicity m",
)
def one_left_factor(study) -> Measurement:
    r"""At the origin all unstable modes have one left factor: $\Delta W_0 = \pi x^\top$ and
    $\Delta W_1 = x(\pi - 1/d)^\top$, for any $x$."""
    rates, modes = np.linalg.eigh(at_origin(study))
    d = study.chain.tokens

    def spread(chosen: np.ndarray) -> float:
        """Second singular value of the left factors of W0 over the first."""
        factors = [mode[: d * DIM].reshape(d, DIM) for mode in modes[:, chosen].T]
        s = np.linalg.svd(np.concatenate(factors, axis=1), compute_uv=False)
        return float(s[1] / s[0])

    return at_most(
        bound=1e-12,
        measured=spread(rates > 1e-9),
        control=Control("with the modes of rate 0", spread(rates > -1e-9)),
        note=f"{np.sum(rates > 1e-9)} unstable modes at width {DIM}",
    )


@paper.once
def around(study, origin: bool) -> tuple:
    """A critical point as a function of the step away from it, a random direction, and J there."""
    chain = study.chain
    zero = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-200, 0)
    point = zero if origin else theory.unigram_point(chain, DIM)
    direction = flat(OneLayerAttention.gaussian(chain.tokens, DIM, 1.0, SEEDS[2]))
    return point, direction / np.linalg.norm(direction), jacobian(point, chain)


def moved(point: OneLayerAttention, step: np.ndarray) -> OneLayerAttention:
    """The parameters at a step from a point."""
    shapes = [w.shape for w in blocks(point)]
    parts = np.split(step, np.cumsum([np.prod(s) for s in shapes])[:-1])
    pairs = zip(blocks(point), parts, shapes, strict=True)
    return OneLayerAttention(*(w + part.reshape(s) for w, part, s in pairs))  # type: ignore[arg-type]


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


def at_origin(study) -> np.ndarray:
    """The Jacobian of the flow at the origin."""
    return around(study, True)[2]


# --- Theorem 3.2.


@paper.claim("Thm 3.2 (eq 9)")
def gradients_at_the_origin(study) -> Measurement:
    r"""At the origin $\partial L/\partial M = -\pi(\pi - \mathbf 1/d)^\top$ and
    $\partial L/\partial\Phi = 0$."""
    d, pi = study.chain.tokens, study.chain.pi
    GM, GP = autodiff_gradients(around(study, True)[0], study.chain)
    return every(
        M=equal(
            predicted=-np.outer(pi, pi - 1 / d),
            measured=GM,
            rtol=1e-13,
            atol=1e-15,
            control=Control("without the uniform prediction", -np.outer(pi, pi)),
        ),
        Phi=at_most(
            bound=1e-15,
            measured=np.abs(GP).max(),
            control=Control(
                "at random weights",
                np.abs(autodiff_gradients(random_points(study)[0], study.chain)[1]).max(),
            ),
        ),
    )


@paper.claim(
    "Thm 3.2 (eq 10)",
    regime=nonuniform,
    reading=r"the first line reads $\Delta W_0^\top$ where shapes and (4) want $\Delta W_1^\top$",
)
def linear_system_at_the_origin(study) -> Measurement:
    r"""Near the origin $\dot W_0 = \pi(\pi-\mathbf 1/d)^\top W_1^\top$ and
    $\dot W_1 = W_0^\top\pi(\pi-\mathbf 1/d)^\top$."""
    chain = study.chain
    G = np.outer(chain.pi, chain.pi - 1 / chain.tokens)

    def linear(theta: OneLayerAttention, extracted: bool = False) -> np.ndarray:
        W0, W1, WQ, WK = blocks(theta)
        first = G @ (W0 if extracted else W1).T
        return np.concatenate([x.ravel() for x in (first, W0.T @ G, 0 * WQ, 0 * WK)])

    # Width d: what is extracted has the right shape too. At 1e-60 the flow is its linear part.
    starts = [OneLayerAttention.gaussian(chain.tokens, chain.tokens, 1e-60, s) for s in SEEDS]
    return identity(
        over=starts,
        predicted=linear,
        measured=lambda th: flat(one_layer.velocity(th, chain)),
        control=Control("as extracted", lambda th: linear(th, extracted=True)),
    )


@paper.claim("Thm 3.2 (spectrum of the origin)", part="constant", regime=nonuniform)
def spectrum_of_the_origin(study) -> Measurement:
    r"""The rates at the origin are $\mu_0 = |\pi||\pi - \mathbf 1/d|$ and $-\mu_0$, $m$ times each,
    and 0."""
    rates = np.linalg.eigvalsh(at_origin(study))
    mu0, none = theory.escape_rate(study.chain), np.zeros(len(rates) - 2 * DIM)
    one = np.zeros(len(rates) - DIM - 1)
    return equal(
        predicted=np.concatenate([[-mu0] * DIM, none, [mu0] * DIM]),
        measured=rates,
        rtol=1e-12,
        control=Control("one unstable direction", np.concatenate([[-mu0] * DIM, one, [mu0]])),
    )


@paper.claim("Thm 3.2 (eq 11)", regime=nonuniform)
def rank_one_condensation(study) -> Measurement:
    r"""At the condensation time $W_0$ and $W_1$ are parallel to $\pi a^\top$ and
    $a(\pi-\mathbf 1/d)^\top$."""
    chain = study.chain
    v = chain.pi - 1 / chain.tokens
    end = condensed(study, 1e-6)

    def missing(left: np.ndarray, right: np.ndarray) -> list[float]:
        a = theory.condensed_amplitude(end, chain)
        pairs = ((end.W0, np.outer(left, a)), (end.W1, np.outer(a, right)))
        return [1 - cosine(*pair) for pair in pairs]

    other = np.log(chain.pi) - np.log(chain.pi).mean()
    return at_most(
        bound=1e-5,
        measured=missing(chain.pi, v),
        control=Control("read-out by log frequencies", missing(np.sqrt(chain.pi), other)),
        note="one minus the cosines at scale 1e-6",
    )


@paper.claim("Thm 3.2 (direction)", part="constant", regime=nonuniform)
def condensed_direction(study) -> Measurement:
    r"""The direction is that of the start's own component, $a \propto W_0(0)^\top\pi/|\pi| +
    W_1(0)(\pi-\mathbf 1/d)/|\pi-\mathbf 1/d|$."""
    chain, end = study.chain, condensed(study, 1e-6)
    start = OneLayerAttention.gaussian(chain.tokens, DIM, 1e-6, SEEDS[0])
    # The direction is read from the end itself, by its largest singular vector.
    a = np.linalg.svd(np.asarray(end.W0))[2][0]
    return at_most(
        bound=1e-6,
        measured=1 - abs(cosine(theory.condensed_amplitude(start, chain), a)),
        control=Control(
            "of the embedding alone", 1 - abs(cosine(np.asarray(start.W0).T @ chain.pi, a))
        ),
        note="one minus the cosine",
    )


@paper.claim("Thm 3.2 (condensation time)", part="constant", regime=nonuniform)
def condensation_time(study) -> Measurement:
    r"""From scale $\varepsilon$ the embedding condenses at $\log(r/a_0)/\mu_0$, $a_0$ the unstable
    component of the start."""
    chain = study.chain

    def start(scale: float) -> OneLayerAttention:
        return OneLayerAttention.gaussian(chain.tokens, DIM, scale, SEEDS[0])

    level = theory.CONDENSED
    whole = [np.log(level / np.linalg.norm(flat(start(e)))) for e in SCALES]
    return equal(
        predicted=[theory.condensation_time(start(e), chain, level) for e in SCALES],
        measured=[condensation(study, e) for e in SCALES],
        rtol=5e-3,
        each=True,
        control=Control(
            "from the size of the whole start", np.divide(whole, theory.escape_rate(chain))
        ),
    )


@paper.claim("Thm 3.2 (order log 1/eps)", regime=nonuniform)
def condensation_order(study) -> Measurement:
    r"""The condensation time is $\Theta(\log 1/\varepsilon)$: its slope is $1/\mu_0$."""
    return slope(
        over=SCALES,
        x=lambda e: -np.log(e),
        y=lambda e: condensation(study, e),
        predicted=1 / theory.escape_rate(study.chain),
        within=2e-3,
        control=Control(*flatter(study)),
    )


@paper.claim("Section 3.1 (attention stays small)", regime=nonuniform)
def attention_stays_small(study) -> Measurement:
    r"""Throughout this stage the attention matrices stay $O(\varepsilon)$."""

    def largest(blocks_: tuple[str, str]):
        def at(scale: float) -> float:
            end = condensed(study, scale)
            return max(float(np.linalg.norm(getattr(end, b))) for b in blocks_)

        return at

    return order(
        "O",
        over=SCALES[1:],
        y=largest(("WQ", "WK")),
        power=1.0,
        tol=0.01,
        control=Control("the embedding and the read-out", measured=largest(("W0", "W1"))),
        note="norms where the condensed amplitude is 0.05",
    )


def flatter(study) -> tuple[str, float]:
    """The time constant of another law, half way to the uniform one."""
    other = MarkovChain.of(0.5 * (study.chain.transition + 1 / study.chain.tokens))
    return "a law half way to the uniform one", 1 / theory.escape_rate(other)


@paper.once
def _condensing(study, scale: float):
    chain = study.chain
    start = OneLayerAttention.gaussian(chain.tokens, DIM, scale, SEEDS[0])
    q, v = chain.pi, chain.pi - 1 / chain.tokens
    q, u = q / np.linalg.norm(q), v / np.linalg.norm(v)
    amplitude = Mark(
        lambda th: np.sqrt(((th.W0.T @ q + th.W1 @ u) ** 2).sum()) / 2, theory.CONDENSED, 1
    )
    until = 3 * theory.condensation_time(start, chain, theory.CONDENSED)
    found = integrate(
        population_flow(chain),
        start,
        until,
        stops={"condensed": amplitude},
        rtol=1e-8,
        progress=False,
    )
    return found.time, found.final


def condensation(study, scale: float) -> float:
    """When the amplitude along the unstable modes, written out here, reaches its level."""
    return _condensing(study, scale)[0]


def condensed(study, scale: float) -> OneLayerAttention:
    """The weights at that time."""
    return _condensing(study, scale)[1]
