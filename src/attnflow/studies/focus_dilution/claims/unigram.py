"""Section 3.2: the second critical point, its spectrum, and the focus of attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attnflow.claims import (
    Control,
    Erratum,
    Measurement,
    at_least,
    at_most,
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
    chain = theory.two_group(study.chain)
    right, other = (theory.ray_constant(c) for c in (chain, flatter(chain)))
    return every(
        critical=at_most(
            bound=1e-14,
            measured=speed(ray(chain, right), chain),
            control=Control("kappa1 of a flatter law", speed(ray(chain, other), chain)),
        ),
        prediction=at_most(
            bound=1e-14,
            measured=np.abs(predicted_law(chain, right) - chain.pi).max(),
            control=Control(
                "kappa1 of a flatter law", np.abs(predicted_law(chain, other) - chain.pi).max()
            ),
        ),
    )


@paper.claim("Prop 3.3 (kappa1)", part="constant", regime=two_groups)
def ray_constant(study) -> Measurement:
    r"""$\kappa_1^2 = \sqrt{(d-1)/d}\,\ln(\pi_1/\pi_2)/|\pi|$: where the prediction on the ray is
    $\pi$."""
    chain = theory.two_group(study.chain)
    pi = chain.pi
    found: Any = brentq(lambda k2: predicted_law(chain, k2)[0] - pi[0], 1e-6, 200.0, xtol=1e-14)
    return equal(
        predicted=theory.ray_constant(chain),
        measured=found,
        rtol=1e-12,
        control=Control("without the d tokens", np.log(pi[0] / pi[1]) / np.linalg.norm(pi)),
    )


@paper.claim(
    "eq 60",
    part="proof-step",
    regime=two_groups,
    reading=r"the exponent lacks the norms of (12): $|\pi|^2(\pi_j - 1/d)$ stands for"
    r" $|\pi|(\pi_j - 1/d)/|\pi - \mathbf 1/d|$",
)
def prediction_on_the_ray(study) -> Measurement:
    r"""On the ray every prediction is $\mathrm{softmax}(\kappa^2|\pi|(\pi - \mathbf 1/d)/|\pi -
    \mathbf 1/d|)$."""
    chain = theory.two_group(study.chain)
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    size = np.linalg.norm(pi)
    return identity(
        over=(0.4, 1.3, 3.0),
        predicted=lambda k2: softmax(k2 * size * v / np.linalg.norm(v)),
        measured=lambda k2: predicted_law(chain, k2),
        control=Control("as extracted", lambda k2: softmax(k2 * size**2 * v)),
    )


@paper.claim("eq 61", part="proof-step", regime=two_groups)
def gradient_on_the_ray(study) -> Measurement:
    r"""Where every prediction is $\pi$, $\partial L/\partial M = -\pi\sum_i\pi_i(P_i - \pi^\top)$,
    which is 0 as $\pi^\top P = \pi^\top$."""
    chain = theory.two_group(study.chain)
    GM = autodiff_gradients(ray(chain, theory.ray_constant(chain)), chain)[0]
    elsewhere = autodiff_gradients(ray(chain, theory.ray_constant(flatter(chain))), chain)[0]
    return equal(
        predicted=-np.outer(chain.pi, chain.pi @ (chain.transition - chain.pi)),
        measured=GM,
        atol=1e-15,
        rtol=0.0,
        control=Control("elsewhere on the ray", measured=elsewhere),
    )


@paper.claim("ours: printed ray beyond two groups", part="hypothesis", regime=distinct)
def no_point_on_the_ray(study) -> Measurement:
    """Beyond two groups the ray of eq. (12) holds no critical point: its speed stays above zero."""

    def least(chain: MarkovChain) -> float:
        options = {"bounds": (0.05, 20), "method": "bounded", "options": {"xatol": 1e-10}}
        found: Any = minimize_scalar(lambda k2: speed(ray(chain, k2), chain), **options)
        return float(found.fun)

    return at_least(
        bound=1e-3,
        measured=least(study.chain),
        control=Control("its two-group law", least(theory.two_group(study.chain))),
        note="largest entry of W0', W1' minimised over kappa1^2 in [0.05, 20]",
    )


@paper.claim("ours: unigram point of any law", regime=nonuniform)
def unigram_point(study) -> Measurement:
    r"""For any chain $W_0 = k\,\pi a^\top/|\pi|$, $W_1 = k\,a\,l^\top/|l|$ with $l$ the centred
    $\log\pi$ and $k^2 = |l|/|\pi|$ is critical, and its loss is the unigram entropy."""
    chain = study.chain
    point = theory.unigram_point(chain, DIM)
    ones = theory.unigram_point(flatter(chain), DIM)
    law = softmax(chain.pi @ np.asarray(point.readout))
    return every(
        critical=at_most(
            bound=1e-13,
            measured=speed(point, chain),
            control=Control("of a flatter law", speed(ones, chain)),
        ),
        loss=equal(
            predicted=chain.unigram_entropy,
            measured=-float(chain.pi @ np.log(law)),
            rtol=1e-12,
            control=Control("the entropy rate", chain.floor),
        ),
        balanced=equal(
            predicted=np.linalg.norm(point.W0),
            measured=np.linalg.norm(point.W1),
            rtol=1e-12,
            control=Control(
                "weights as large as pi and l themselves",
                measured=np.linalg.norm(theory.log_law(chain)) / np.linalg.norm(chain.pi),
            ),
        ),
    )


# --- Proposition 3.4: the linearisation there.


@paper.claim("Prop 3.4 (eq 13)", regime=nonuniform)
def block_form(study) -> Measurement:
    r"""At the second critical point $(W_0, W_1)$ and $(W_Q, W_K)$ decouple."""
    outer = 2 * study.chain.tokens * DIM
    elsewhere = jacobian(random_points(study)[0], study.chain)
    return at_most(
        bound=1e-14,
        measured=np.abs(at_unigram(study)[:outer, outer:]).max(),
        control=Control("at random weights", np.abs(elsewhere[:outer, outer:]).max()),
    )


@paper.claim("Prop 3.4 (J_out)", regime=nonuniform)
def outer_block_contracts(study) -> Measurement:
    r"""$J_{out}$ is negative semidefinite."""
    outer = 2 * study.chain.tokens * DIM
    origin = jacobian(OneLayerAttention.gaussian(study.chain.tokens, DIM, 1e-200, 0), study.chain)
    return at_most(
        bound=1e-13,
        measured=np.linalg.eigvalsh(at_unigram(study)[:outer, :outer]).max(),
        control=Control("at the origin", np.linalg.eigvalsh(origin[:outer, :outer]).max()),
    )


@paper.claim("Prop 3.4 (J_att)", regime=nonuniform)
def attention_block_is_indefinite(study) -> Measurement:
    r"""$J_{att}$ is positive semidefinite."""
    outer = 2 * study.chain.tokens * DIM
    J = at_unigram(study)[outer:, outer:]
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
def unstable_modes(study) -> Measurement:
    r"""The unstable modes are $W_Q = W_K = a x^\top$: one left factor $a$, any $x$, and nothing in
    $(W_0, W_1)$."""
    outer = 2 * study.chain.tokens * DIM
    rates, modes = np.linalg.eigh(at_unigram(study))

    def outside(chosen: np.ndarray) -> float:
        """The largest part of such modes that is not of the form (a x^T, a x^T)."""
        kept = np.zeros((DIM, DIM))
        kept[0, 0] = 1.0
        both = np.kron(np.full((2, 2), 0.5), np.kron(kept, np.eye(DIM)))
        inner = modes[outer:, chosen]
        rest = np.concatenate([modes[:outer, chosen], inner - both @ inner])
        return float(np.linalg.norm(rest, axis=0).max())

    return at_most(
        bound=1e-9,
        measured=outside(rates > 1e-9),
        control=Control("the modes of rate -c", outside(np.isclose(rates, -rates.max()))),
        note=f"{np.sum(rates > 1e-9)} unstable modes at width {DIM}",
    )


@paper.claim("Prop 3.4 (eq 14)", regime=nonuniform)
def attention_system(study) -> Measurement:
    r"""$\Delta\dot W_Q = c\,aa^\top\Delta W_K$ and $\Delta\dot W_K = c\,aa^\top\Delta W_Q$."""
    outer = 2 * study.chain.tokens * DIM
    aa = np.diag([theory.focus_rate(study.chain), *[0.0] * (DIM - 1)])

    def system(of: np.ndarray) -> np.ndarray:
        return np.kron(np.kron(of, aa), np.eye(DIM))

    return equal(
        predicted=system(np.array([[0, 1], [1, 0]])),
        measured=at_unigram(study)[outer:, outer:],
        rtol=1e-12,
        atol=1e-15,
        control=Control("each driven by itself", system(np.eye(2))),
    )


@paper.claim("Prop 3.4 (eq 14, c)", part="constant", regime=two_groups)
def attention_growth_rate(study) -> Measurement:
    r"""$c = \lambda\kappa_1^4|\pi|_{Var}^4/(|\pi - \mathbf 1/d||\pi|^3)$, on a two-group law."""
    chain = theory.two_group(study.chain)
    return equal(
        predicted=theory.printed_focus_rate(chain),
        measured=growth_of_attention(study, chain),
        rtol=1e-10,
        control=Control("of a flatter law", theory.printed_focus_rate(flatter(chain))),
    )


@paper.claim("Prop 3.4 (eq 79)", part="constant", regime=two_groups)
def two_forms_of_the_rate(study) -> Measurement:
    r"""$c_1 = \lambda\kappa_1^4\,(q^\top V u)(q^\top V q)$ of eq. (79) is the same rate."""
    chain = theory.two_group(study.chain)
    q, u = (x / np.linalg.norm(x) for x in (chain.pi, chain.pi - 1 / chain.tokens))
    V, force = variance(chain.pi), float(chain.lam or 0.0) * theory.ray_constant(chain) ** 2
    return equal(
        predicted=force * (q @ V @ u) * (q @ V @ q),
        measured=growth_of_attention(study, chain),
        rtol=1e-10,
        control=Control("u for q in both", force * (u @ V @ u) * (u @ V @ q)),
    )


@paper.claim("ours: focus rate of any law", part="constant", regime=nonuniform)
def general_growth_rate(study) -> Measurement:
    r"""For any chain attention grows at the unigram point at rate $-g^\top G_\Phi g$."""
    chain = study.chain
    return equal(
        predicted=theory.focus_rate(chain),
        measured=growth_of_attention(study, chain),
        rtol=1e-10,
        control=Control("of a flatter law", theory.focus_rate(flatter(chain))),
    )


@paper.claim(
    "eq 71", part="proof-step", regime=nonuniform, reading="both lines lack their minus sign"
)
def outer_system(study) -> Measurement:
    r"""$\Delta\dot W_0 = -d(G_M)W_1^\top$ and $\Delta\dot W_1 = -W_0^\top d(G_M)$, with
    $d(G_M) = \pi\pi^\top dM\,V$."""
    chain, outer = study.chain, 2 * study.chain.tokens * DIM
    W0, W1, *_ = blocks(theory.unigram_point(chain, DIM))
    J, V = at_unigram(study), variance(chain.pi)

    def system(move: OneLayerAttention, sign: float = -1.0) -> np.ndarray:
        dG = np.outer(chain.pi, chain.pi) @ (move.W0 @ W1 + W0 @ move.W1) @ V
        return sign * np.concatenate([np.ravel(dG @ W1.T), np.ravel(W0.T @ dG)])

    return identity(
        over=random_points(study),
        predicted=system,
        measured=lambda move: J[:outer, :outer] @ flat(move)[:outer],
        control=Control("as extracted", lambda move: system(move, sign=1.0)),
    )


@paper.claim("eq 72", part="proof-step", regime=nonuniform)
def attention_system_by_gradients(study) -> Measurement:
    r"""$\Delta\dot W_Q = -W_0^\top G_\Phi W_0\Delta W_K$ and $\Delta\dot W_K =
    -W_0^\top G_\Phi^\top W_0\Delta W_Q$."""
    chain, outer = study.chain, 2 * study.chain.tokens * DIM
    point, J = theory.unigram_point(chain, DIM), at_unigram(study)
    inner = np.asarray(point.W0).T @ autodiff_gradients(point, chain)[1] @ np.asarray(point.W0)

    def system(move: OneLayerAttention, swapped: bool = False) -> np.ndarray:
        first, second = (move.WQ, move.WK) if swapped else (move.WK, move.WQ)
        return -np.concatenate([np.ravel(inner @ first), np.ravel(inner.T @ second)])

    return identity(
        over=random_points(study),
        predicted=system,
        measured=lambda move: J[outer:, outer:] @ flat(move)[outer:],
        rtol=1e-11,
        control=Control("each driven by itself", lambda move: system(move, swapped=True)),
    )


@paper.claim("eq 78", regime=nonuniform)
def contraction_matrix(study) -> Measurement:
    r"""Along $a$ the block is $-\kappa_1^2 A$ of eq. (78), and $A$ is symmetric and $\ge 0$."""
    along = sector(study, 0)
    block = theory.contraction(study.chain)
    d = study.chain.tokens
    uncoupled = block * np.kron(np.eye(2), np.ones((d, d)))
    return every(
        block=equal(
            predicted=block,
            measured=at_unigram(study)[np.ix_(along, along)],
            rtol=1e-12,
            atol=1e-15,
            control=Control("without the mixed blocks", uncoupled),
        ),
        sign=at_most(
            bound=1e-14,
            measured=np.linalg.eigvalsh(block).max(),
            control=Control("the mixed blocks alone", np.linalg.eigvalsh(block - uncoupled).max()),
        ),
    )


@paper.claim("eq 74 (normal directions)", part="proof-step", regime=nonuniform)
def normal_directions_are_degenerate(study) -> Measurement:
    r"""In every direction perpendicular to $a$ the linearisation of $(W_0, W_1)$ vanishes."""
    J, outer = at_unigram(study), 2 * study.chain.tokens * DIM
    across = np.concatenate([sector(study, axis) for axis in range(1, DIM)])
    return at_most(
        bound=1e-14,
        measured=np.abs(J[across, :outer]).max(),
        control=Control("along a", np.abs(J[sector(study, 0), :outer]).max()),
    )


@paper.claim("ours: settling rate", part="constant", regime=nonuniform)
def settling_rate(study) -> Measurement:
    r"""The slowest rate but zero at which $(W_0, W_1)$ settle at the unigram point, from the
    Jacobian of the flow."""
    outer = 2 * study.chain.tokens * DIM
    rates = -np.linalg.eigvalsh(at_unigram(study)[:outer, :outer])
    rates = np.sort(rates[rates > 1e-9 * rates.max()])
    return equal(
        predicted=theory.slowest_contraction(study.chain),
        measured=rates[0],
        rtol=1e-9,
        control=Control("of a flatter law", theory.slowest_contraction(flatter(study.chain))),
    )


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
