"""Section 3.2: the second critical point, its spectrum, and the focus of attention."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from attnflow.claims import Measurement, at_least, at_most, claim, equal, every
from attnflow.models import one_layer
from attnflow.models.one_layer import OneLayerAttention, population_flow
from attnflow.studies.focus_dilution import theory
from attnflow.studies.focus_dilution.claims.common import (
    DIM,
    STUDY,
    distinct,
    inside,
    nonuniform,
    two_groups,
)
from attnflow.tasks.markov import MarkovChain


@claim("Prop 3.3", regime=two_groups, expected=inside(two_groups), study=STUDY)
def second_critical_point(study) -> Measurement:
    """On a two-group law the condensation ray holds a critical point that predicts pi."""
    chain = theory.two_group(study.chain)
    k2 = theory.ray_constant(chain)
    speed, gap = _ray_point(chain, k2)
    off, _ = _ray_point(chain, 1.05 * k2)
    return every(
        critical=at_most(speed, 1e-14, control=off),
        prediction=at_most(gap, 1e-14, control=_ray_point(chain, 1.05 * k2)[1]),
    )


def _ray_point(chain: MarkovChain, k2: float) -> tuple[float, float]:
    """Speed and |P_i - pi| at the point of eq. (12) with kappa1^2 = k2."""
    pi, v = chain.pi, chain.pi - 1 / chain.tokens
    k, a, zero = np.sqrt(k2), np.eye(DIM)[0], np.zeros((DIM, DIM))
    theta = OneLayerAttention(
        k * np.outer(pi / np.linalg.norm(pi), a), k * np.outer(a, v / np.linalg.norm(v)), zero, zero
    )  # type: ignore[arg-type]
    velocity = population_flow(chain).velocity(theta)
    speed = max(float(np.abs(w).max()) for w in (velocity.W0, velocity.W1))
    return speed, float(np.abs(one_layer.prediction(theta, pi) - pi).max())


@claim("Prop 3.4 (eq 14)", part="constant", regime=two_groups, expected=inside(two_groups),
       study=STUDY)  # fmt: skip
def attention_growth_rate(study) -> Measurement:
    """At the second critical point attention grows at c = lam kappa1^4 |pi|_Var^4/(|v||pi|^3)."""
    chain = theory.two_group(study.chain)
    stays = 0.9 * (chain.lam or 0.8)
    return equal(
        theory.printed_focus_rate(chain), _attention_rate(chain), rtol=1e-10,
        control=theory.printed_focus_rate(MarkovChain(chain.pi.tolist(), stays)),
    )  # fmt: skip


@claim("ours: focus rate of any law", part="constant", regime=nonuniform, study=STUDY,
       expected=inside(nonuniform))  # fmt: skip
def general_growth_rate(study) -> Measurement:
    """For any chain the unigram point is critical and attention grows there at rate -g^T GP g."""
    chain = study.chain
    point = theory.unigram_point(chain, DIM)
    flow = population_flow(chain)
    velocity = flow.velocity(point)
    speed = max(float(np.abs(w).max()) for w in (velocity.W0, velocity.W1))
    off = flow.velocity(OneLayerAttention(1.05 * point.W0, point.W1, point.WQ, point.WK))
    return every(
        critical=at_most(speed, 1e-13, control=float(np.abs(off.W1).max())),
        loss=equal(chain.unigram_entropy, flow.loss(point), rtol=1e-12, control=chain.floor),
        rate=equal(
            theory.focus_rate(chain), _attention_rate(chain), rtol=1e-10,
            control=1.001 * theory.focus_rate(chain),
        ),
    )  # fmt: skip


def _attention_rate(chain: MarkovChain) -> float:
    """The top growth rate of (WQ, WK) at the unigram point, from the Jacobian of the flow."""
    system = population_flow(chain).bind(point := theory.unigram_point(chain, DIM))
    jacobian = system.jacobian(system.layout.flatten(point))
    attention = slice(2 * chain.tokens * DIM, None)
    return float(np.linalg.eigvalsh(jacobian[attention, attention])[-1])


@claim("ours: printed ray beyond two groups", part="hypothesis", regime=distinct,
       expected=inside(distinct), study=STUDY)  # fmt: skip
def no_point_on_the_ray(study) -> Measurement:
    """Beyond two groups the ray of eq. (12) holds no critical point: its speed stays above zero."""
    chain = study.chain

    def least(c: MarkovChain) -> float:
        found = minimize_scalar(
            lambda k2: _ray_point(c, k2)[0], bounds=(0.05, 20), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        return float(found.fun)  # type: ignore[union-attr]

    return at_least(
        least(chain), 1e-3, control=least(theory.two_group(chain)),
        note="largest entry of W0', W1' minimised over kappa1^2 in [0.05, 20]",
    )  # fmt: skip
