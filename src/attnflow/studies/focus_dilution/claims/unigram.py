"""Section 3.2: the second critical point, its spectrum, and the focus of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    against,
    at_least,
    at_most,
    compared,
    equal,
    every,
    identity,
    refuted,
)
from attnflow.models.one_layer import OneLayerAttention
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    SEEDS,
    autodiff_gradients,
    autodiff_velocity,
    blocks,
    distinct,
    flat,
    grows,
    jacobian,
    nonuniform,
    random_points,
    two_groups,
)
from attnflow.studies.focus_dilution.claims.focus import variance
from attnflow.studies.focus_dilution.paper import paper
from attnflow.tasks.markov import MarkovChain

# --- Proposition 3.3: the point on the condensation ray.


@paper.claim(
    "Prop 3.3",
    regime=two_groups,
    reading=r"the hypothesis is $\pi_d = \dots = \pi_2 < \pi_1$, as its proof has it; the extracted"
    r" $\pi_2 = \pi_1$ is the uniform law, which has no ray",
)
def second_critical_point(study) -> Measurement:
    r"""On a two-group law the condensation ray holds a critical point that predicts $\pi$."""
    chain, other = theory.two_group(study.chain), "kappa1 of a flatter law"

    def k2(right: bool) -> float:
        return theory.ray_constant(chain if right else flatter(chain))

    def missed(right: bool) -> float:
        return np.abs(predicted_law(chain, k2(right)) - chain.pi).max()

    return every(
        critical=compared(at_most, other, lambda r: speed(ray(chain, k2(r)), chain), bound=1e-14),
        prediction=compared(at_most, other, missed, bound=1e-14),
    )


@paper.claim("Prop 3.3 (kappa1)", part="constant", regime=two_groups)
@against("without the d tokens", equal, rtol=1e-12)
def ray_constant(study, right: bool):
    r"""$\kappa_1^2 = \sqrt{(d-1)/d}\,\ln(\pi_1/\pi_2)/|\pi|$: where the prediction on the ray is
    $\pi$."""
    chain = theory.two_group(study.chain)
    pi, without = chain.pi, np.log(chain.pi[0] / chain.pi[1]) / np.linalg.norm(chain.pi)
    found: Any = brentq(lambda k2: predicted_law(chain, k2)[0] - pi[0], 1e-6, 200.0, xtol=1e-14)
    return theory.ray_constant(chain) if right else without, found


@paper.claim(
    "eq 60",
    part="proof-step",
    regime=two_groups,
    reading=r"the exponent lacks the norms of (12): $|\pi|^2(\pi_j - 1/d)$ stands for"
    r" $|\pi|(\pi_j - 1/d)/|\pi - \mathbf 1/d|$",
)
@against("as extracted", identity, over=(0.4, 1.3, 3.0))
def prediction_on_the_ray(study, k2: float, right: bool):
    r"""On the ray every prediction is $\mathrm{softmax}(\kappa^2|\pi|(\pi - \mathbf 1/d)/|\pi -
    \mathbf 1/d|)$."""
    chain = theory.two_group(study.chain)
    size, v = np.linalg.norm(chain.pi), chain.pi - 1 / chain.tokens
    exponent = size / np.linalg.norm(v) if right else size**2
    return softmax(k2 * exponent * v), predicted_law(chain, k2)


@paper.claim("eq 61", part="proof-step", regime=two_groups)
@against("elsewhere on the ray", equal, atol=1e-15, rtol=0.0)
def gradient_on_the_ray(study, right: bool):
    r"""Where every prediction is $\pi$, $\partial L/\partial M = -\pi\sum_i\pi_i(P_i - \pi^\top)$,
    which is 0 as $\pi^\top P = \pi^\top$."""
    chain = theory.two_group(study.chain)
    point = ray(chain, theory.ray_constant(chain if right else flatter(chain)))
    formula = -np.outer(chain.pi, chain.pi @ (chain.transition - chain.pi))
    return formula, autodiff_gradients(point, chain)[0]


@paper.claim("ours: printed ray beyond two groups", part="hypothesis", regime=distinct)
@against("its two-group law", at_least, bound=1e-3, note="largest entry of W0', W1' on the ray")
def no_point_on_the_ray(study, right: bool):
    """Beyond two groups the ray of eq. (12) holds no critical point: its speed stays above zero,
    minimised over kappa1^2 in [0.05, 20]."""
    chain = study.chain if right else theory.two_group(study.chain)
    how = {"bounds": (0.05, 20), "method": "bounded", "options": {"xatol": 1e-10}}
    found: Any = minimize_scalar(lambda k2: speed(ray(chain, k2), chain), **how)
    return float(found.fun)


@paper.claim("ours: unigram point of any law", regime=nonuniform)
def unigram_point(study) -> Measurement:
    r"""For any chain $W_0 = k\,\pi a^\top/|\pi|$, $W_1 = k\,a\,l^\top/|l|$ with $l$ the centred
    $\log\pi$ and $k^2 = |l|/|\pi|$ is critical, and its loss is the unigram entropy."""
    chain = study.chain
    point, other = (theory.unigram_point(c, DIM) for c in (chain, flatter(chain)))
    plain = np.linalg.norm(theory.log_law(chain)) / np.linalg.norm(chain.pi)

    def loss(right: bool):
        law = softmax(chain.pi @ np.asarray(point.readout))
        return chain.unigram_entropy if right else chain.floor, -float(chain.pi @ np.log(law))

    def size(right: bool):
        return np.linalg.norm(point.W0), np.linalg.norm(point.W1) if right else plain

    return every(
        critical=compared(
            at_most, "of a flatter law", lambda r: speed(point if r else other, chain), bound=1e-13
        ),
        loss=compared(equal, "the entropy rate", loss, rtol=1e-12),
        balanced=compared(equal, "weights as large as pi and l themselves", size, rtol=1e-12),
    )


# --- Proposition 3.4: the linearisation there.


@paper.claim("Prop 3.4 (eq 13)", regime=nonuniform)
@against("at random weights", at_most, bound=1e-14)
def block_form(study, right: bool):
    r"""At the second critical point $(W_0, W_1)$ and $(W_Q, W_K)$ decouple."""
    J = at_unigram(study) if right else jacobian(random_points(study)[0], study.chain)
    return np.abs(J[outer(study), inner(study)]).max()


@paper.claim("Prop 3.4 (J_out)", regime=nonuniform)
@against("at the origin", at_most, bound=1e-13)
def outer_block_contracts(study, right: bool):
    r"""$J_{out}$ is negative semidefinite."""
    origin = OneLayerAttention.gaussian(study.chain.tokens, DIM, 1e-200, 0)
    J = at_unigram(study) if right else jacobian(origin, study.chain)
    return np.linalg.eigvalsh(J[outer(study), outer(study)]).max()


@paper.claim("Prop 3.4 (J_att)", regime=nonuniform)
def attention_block_is_indefinite(study) -> Measurement:
    r"""$J_{att}$ is positive semidefinite."""
    J = at_unigram(study)[inner(study), inner(study)]
    swap = np.kron(np.eye(2)[::-1], np.eye(DIM * DIM))  # (WQ, WK) -> (WK, WQ)
    return refuted(
        printed=at_least(
            bound=0.0,
            measured=np.linalg.eigvalsh(J).min(),
            slack=1e-12,
            control=Control("on WQ = WK alone", np.linalg.eigvalsh((J + swap @ J) / 2).min()),
        ),
        text=r"$J_{att}$ is positive semi-definite",
        counterexample=r"$(\Delta W_Q, \Delta W_K) = (X, -X)$ decays at rate $c$: the block is"
        r" $c\,aa^\top$ off the diagonal, with eigenvalues $+c$, $-c$ and 0",
        erratum=Erratum(
            "indefinite", "J_att has as many negative rates as positive ones", cause="false"
        ),
    )


@paper.claim(
    "Prop 3.4 (unique mode)",
    regime=grows,
    reading="'unique' is meant up to the right factor x: at width m there are m unstable modes",
)
@against("the modes of rate -c", at_most, bound=1e-9)
def unstable_modes(study, right: bool):
    r"""The unstable modes are $W_Q = W_K = a x^\top$: one left factor $a$, any $x$, and nothing in
    $(W_0, W_1)$."""
    rates, modes = np.linalg.eigh(at_unigram(study))
    chosen = modes[:, rates > 1e-9 if right else np.isclose(rates, -rates.max())]
    first, second = np.reshape(chosen[inner(study)], (2, DIM, DIM, -1))
    other = [first - second, first[1:], second[1:]]  # what is not of the form (a x^T, a x^T)
    return max(float(np.abs(rest).max()) for rest in (chosen[outer(study)], *other))


@paper.claim("Prop 3.4 (eq 14)", regime=nonuniform)
@against("each driven by itself", equal, rtol=1e-12, atol=1e-15)
def attention_system(study, right: bool):
    r"""$\Delta\dot W_Q = c\,aa^\top\Delta W_K$ and $\Delta\dot W_K = c\,aa^\top\Delta W_Q$."""
    aa = np.diag([theory.focus_rate(study.chain), *[0.0] * (DIM - 1)])
    system = np.kron(np.kron(np.eye(2)[::-1] if right else np.eye(2), aa), np.eye(DIM))
    return system, at_unigram(study)[inner(study), inner(study)]


@paper.claim("Prop 3.4 (eq 14, c)", part="constant", regime=two_groups)
@against("of a flatter law", equal, rtol=1e-10)
def attention_growth_rate(study, right: bool):
    r"""$c = \lambda\kappa_1^4|\pi|_{Var}^4/(|\pi - \mathbf 1/d||\pi|^3)$, on a two-group law."""
    chain = theory.two_group(study.chain)
    formula = theory.printed_focus_rate(chain if right else flatter(chain))
    return formula, growth_of_attention(study, chain)


@paper.claim("Prop 3.4 (eq 79)", part="constant", regime=two_groups)
@against("u for q in both", equal, rtol=1e-10)
def two_forms_of_the_rate(study, right: bool):
    r"""$c_1 = \lambda\kappa_1^4\,(q^\top V u)(q^\top V q)$ of eq. (79) is the same rate."""
    chain = theory.two_group(study.chain)
    q, u = (x / np.linalg.norm(x) for x in (chain.pi, chain.pi - 1 / chain.tokens))
    V, force = variance(chain.pi), float(chain.lam or 0.0) * theory.ray_constant(chain) ** 2
    left = q if right else u
    return force * (left @ V @ u) * (left @ V @ q), growth_of_attention(study, chain)


@paper.claim("ours: focus rate of any law", part="constant", regime=nonuniform)
@against("of a flatter law", equal, rtol=1e-10)
def general_growth_rate(study, right: bool):
    r"""For any chain attention grows at the unigram point at rate $-g^\top G_\Phi g$."""
    chain = study.chain if right else flatter(study.chain)
    return theory.focus_rate(chain), growth_of_attention(study, study.chain)


@paper.claim(
    "eq 71", part="proof-step", regime=nonuniform, reading="both lines lack their minus sign"
)
@against("as extracted", identity, over=random_points)
def outer_system(study, move: OneLayerAttention, right: bool):
    r"""$\Delta\dot W_0 = -d(G_M)W_1^\top$ and $\Delta\dot W_1 = -W_0^\top d(G_M)$, with
    $d(G_M) = \pi\pi^\top dM\,V$."""
    pi, way = study.chain.pi, outer(study)
    W0, W1, *_ = blocks(theory.unigram_point(study.chain, DIM))
    dG = np.outer(pi, pi) @ (move.W0 @ W1 + W0 @ move.W1) @ variance(pi)
    dG = -dG if right else dG
    system = np.concatenate([np.ravel(dG @ W1.T), np.ravel(W0.T @ dG)])
    return system, at_unigram(study)[way, way] @ flat(move)[way]


@paper.claim("eq 72", part="proof-step", regime=nonuniform)
@against("each driven by itself", identity, over=random_points, rtol=1e-11)
def attention_system_by_gradients(study, move: OneLayerAttention, right: bool):
    r"""$\Delta\dot W_Q = -W_0^\top G_\Phi W_0\Delta W_K$ and $\Delta\dot W_K =
    -W_0^\top G_\Phi^\top W_0\Delta W_Q$."""
    point, way = theory.unigram_point(study.chain, DIM), inner(study)
    W0, GP = blocks(point)[0], autodiff_gradients(point, study.chain)[1]
    first, second = (move.WK, move.WQ) if right else (move.WQ, move.WK)
    system = np.ravel(W0.T @ GP @ W0 @ first), np.ravel(W0.T @ GP.T @ W0 @ second)
    return -np.concatenate(system), at_unigram(study)[way, way] @ flat(move)[way]


@paper.claim("eq 78", regime=nonuniform)
def contraction_matrix(study) -> Measurement:
    r"""Along $a$ the block is $-\kappa_1^2 A$ of eq. (78), and $A$ is symmetric and $\ge 0$."""
    block, d = theory.contraction(study.chain), study.chain.tokens
    uncoupled = block * np.kron(np.eye(2), np.ones((d, d)))
    along = at_unigram(study)[np.ix_(sector(study, 0), sector(study, 0))]

    def top(right: bool) -> float:
        return np.linalg.eigvalsh(block if right else block - uncoupled).max()

    def same(right: bool):
        return block if right else uncoupled, along

    return every(
        block=compared(equal, "without the mixed blocks", same, rtol=1e-12, atol=1e-15),
        sign=compared(at_most, "the mixed blocks alone", top, bound=1e-14),
    )


@paper.claim("eq 74 (normal directions)", part="proof-step", regime=nonuniform)
@against("along a", at_most, bound=1e-14)
def normal_directions_are_degenerate(study, right: bool):
    r"""In every direction perpendicular to $a$ the linearisation of $(W_0, W_1)$ vanishes."""
    rows = [sector(study, axis) for axis in (range(1, DIM) if right else [0])]
    return np.abs(at_unigram(study)[np.concatenate(rows), outer(study)]).max()


@paper.claim("ours: settling rate", part="constant", regime=nonuniform)
@against("of a flatter law", equal, rtol=1e-9)
def settling_rate(study, right: bool):
    r"""The slowest rate but zero at which $(W_0, W_1)$ settle at the unigram point, from the
    Jacobian of the flow."""
    rates = -np.linalg.eigvalsh(at_unigram(study)[outer(study), outer(study)])
    chain = study.chain if right else flatter(study.chain)
    return theory.slowest_contraction(chain), rates[rates > 1e-9 * rates.max()].min()


def outer(study) -> slice:
    """Where W0 and W1 stand among all parameters."""
    return slice(None, 2 * study.chain.tokens * DIM)


def inner(study) -> slice:
    """Where WQ and WK do."""
    return slice(2 * study.chain.tokens * DIM, None)


@paper.once
def at_unigram(study) -> np.ndarray:
    """The Jacobian of the flow at the unigram point (a = first axis)."""
    return jacobian(theory.unigram_point(study.chain, DIM), study.chain)


@paper.once
def growth_of_attention(study, chain: MarkovChain) -> float:
    """The top rate of (WQ, WK) at the unigram point, by differences of autodiff's velocity."""
    W0, W1, *_ = blocks(theory.unigram_point(chain, DIM))
    step = np.zeros((DIM, DIM))
    step[0] = np.random.default_rng(SEEDS[0]).normal(size=DIM)
    moved = autodiff_velocity(OneLayerAttention(W0, W1, 1e-7 * step, 1e-7 * step), chain)  # type: ignore[arg-type]
    return float(moved[-2 * DIM * DIM :] @ np.tile(step.ravel(), 2) / (2e-7 * np.sum(step**2)))


def sector(study, axis: int) -> np.ndarray:
    """Indices of (Delta W0 x, Delta W1^T x) for x the axis of that number."""
    d = study.chain.tokens
    return np.concatenate([np.arange(d) * DIM + axis, d * DIM + axis * d + np.arange(d)])


def ray(chain: MarkovChain, k2: float) -> OneLayerAttention:
    """The point of eq. (12) with kappa1^2 = k2."""
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    k, a, zero = np.sqrt(k2), np.eye(DIM)[0], np.zeros((DIM, DIM))
    return OneLayerAttention(
        k * np.outer(pi / np.linalg.norm(pi), a), k * np.outer(a, v / np.linalg.norm(v)), zero, zero
    )  # type: ignore[arg-type]


def predicted_law(chain: MarkovChain, k2: float) -> np.ndarray:
    """The prediction of every token on the ray: attention is pi while WQ = WK = 0."""
    return softmax(chain.pi @ np.asarray(ray(chain, k2).readout))


def speed(theta: OneLayerAttention, chain: MarkovChain) -> float:
    """The largest entry of the velocity, by autodiff."""
    return float(np.abs(autodiff_velocity(theta, chain)).max())


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max())
    return e / e.sum()


def flatter(chain: MarkovChain) -> MarkovChain:
    """A chain with a law half way to the uniform one, and as much staying."""
    return MarkovChain(0.5 * (chain.pi + 1 / chain.tokens), 0.8 if chain.lam is None else chain.lam)
