"""Beyond the paper: the next orders, and when layers begin to differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Claim, Control, Measurement, at_least, at_most, equal, every
from attnflow.corpus import statistics
from attnflow.expand import series
from attnflow.expand.clock import Continuous, Steps
from attnflow.models.attention_lm import BLOCKS
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    DEPTHS,
    by_autodiff,
    counted,
    in_steps,
    layers_of,
    middle,
    small,
    tiny,
    tiny_flow,
    trained,
)
from attnflow.studies.leading_terms.paper import paper
from attnflow.studies.leading_terms.terms import Terms

ORDERS = {"W_O": (1, 2, 3), "V": (2, 3, 4), "W": (4, 5, 6), "P": (4, 5, 6)}


@paper.once
def coefficients(study: Any, layers: int) -> list[dict[str, np.ndarray]]:
    """The Taylor coefficients of the flow from zero, order by order, from the loss alone."""
    found = series(*tiny_flow(layers), 6)
    return [found.layout.unflatten(row) for row in found.coefficients]


@paper.once
def in_closed_form(study: Any, layers: int, name: str, order: int) -> np.ndarray:
    """One order of one weight: what the terms gain at t = 1."""
    ground = tiny(study)
    terms = Terms(ground.windows, counted(study, "tiny"), layers, Continuous(1.0))
    key = "W" if name == "P" else name
    below = terms.upto(**{key: order - 1})[name] if order > ORDERS[name][0] else 0.0
    return terms.upto(**{key: order})[name] - below


def _order(name: str, which: int) -> Claim:
    order = ORDERS[name][which]

    def measure(study) -> Measurement:
        return every(
            **{
                f"L{L}": equal(
                    predicted=in_closed_form(study, L, name, order),
                    measured=coefficients(study, L)[order][name],
                    rtol=1e-9,
                    control=Control(
                        "one order less",
                        in_closed_form(study, L, name, order - 1)
                        if which
                        else coefficients(study, L)[order + 1][name],
                    ),
                )
                for L in DEPTHS
            }
        )

    measure.__doc__ = (
        f"The coefficient of t^{order} of {name}, each layer of L = 1, 2, 3: the closed form"
        " equals that of the series of the flow, which knows only the loss."
    )
    return paper.claim(f"ours: t^{order} of {name}", setting="V = 5, T = 4, N = 3")(measure)


for _name in BLOCKS:
    for _which in range(3):
        globals()[f"order_{_name}_{_which}"] = _order(_name, _which)


@paper.claim("ours: first order at which layers differ", setting="V = 5, T = 4, N = 3, L = 3")
def layers_differ(study) -> Measurement:
    """Layers are alike up to t^3 in V and t^5 in W and P, and differ at t^4 and t^6."""
    found = coefficients(study, 3)

    def spread(name: str, order: int) -> float:
        layers = found[order][name]
        return float(np.abs(layers - layers[0]).max() / np.abs(layers[0]).max())

    alike = [spread(n, k) for n, k in (("V", 2), ("V", 3), ("W", 4), ("W", 5), ("P", 5))]
    apart = [spread(n, k) for n, k in (("V", 4), ("W", 6), ("P", 6))]
    return every(
        alike=at_most(bound=1e-9, measured=alike, control=Control("the next order", apart)),
        apart=at_least(bound=1e-3, measured=apart, control=Control("the order before", alike)),
    )


@paper.claim("ours: exact binomials of all orders", setting="V = 5, T = 4, N = 3; 5 and 9 steps")
def discrete(study) -> Measurement:
    """In steps the powers of t become running sums: all known orders of all weights equal the
    expansion of descent in its rate, exactly in the number of steps."""
    from math import comb

    ground = tiny(study)
    found = in_steps(study, 2)
    last = {"W_O": 3, "V": 4, "W": 6, "P": 6}

    def expanded(steps: int, name: str) -> np.ndarray:
        rows = found.differences
        total = sum(
            comb(steps, j) * found.layout.unflatten(rows[j, n])[name]
            for j in range(len(rows))
            for n in range(last[name] + 1)
        )
        return np.asarray(total)

    parts = {}
    for steps in (5, 9):
        terms = Terms(ground.windows, counted(study, "tiny"), 2, Steps.equal(steps, 1.0)).upto()
        flows = Terms(ground.windows, counted(study, "tiny"), 2, Continuous(float(steps))).upto()
        for name in BLOCKS:
            parts[f"{name}{steps}"] = equal(
                predicted=terms[name],
                measured=expanded(steps, name),
                rtol=1e-9,
                control=Control("powers of t", flows[name]),
            )
    return every(**parts)


def _gain(name: str, bar: float) -> Claim:
    steps, eta = 34, 0.1

    def measure(study) -> Measurement:
        ground = middle(study)

        def errors(order: str) -> list[float]:
            each = []
            for L in DEPTHS:
                terms = Terms.after(ground.windows, counted(study, "middle"), L, steps, eta)
                known = terms.leading() if order == "leading" else terms.upto()
                weights = trained(study, "middle", L, steps, eta)
                for w, term in zip(
                    layers_of(name, weights[name]), layers_of(name, known[name]), strict=True
                ):
                    each.append(literal.size(w - term) / literal.size(w))
            return each

        return at_most(
            bound=bar, measured=errors("all"), control=Control("leading", errors("leading"))
        )

    measure.__doc__ = f"With all known orders the relative error of {name} is below {bar:g}."
    return paper.claim(f"ours: corrected {name}", setting="V = 48, T = 16, t = 3.4, L = 1, 2, 3")(
        measure
    )


corrected_output = _gain("W_O", 2e-4)
corrected_value = _gain("V", 4e-4)
corrected_attention = _gain("W", 1e-3)
corrected_position = _gain("P", 1e-3)


@paper.claim("ours: schedules of rates", setting="V = 17, T = 9, L = 2, 12 steps, warm-up")
def schedules(study) -> Measurement:
    """Under a warm-up of the rate the leading terms are running sums of the actual rates."""
    ground = small(study)
    rates = tuple(0.05 * min(1.0, (k + 1) / 8) for k in range(12))
    weights = by_autodiff(study, "small", 2, 12, rates)
    found = statistics(ground.windows, ground.size)

    def errors(clock: Any) -> list[float]:
        terms = Terms(ground.windows, found, 2, clock).leading()
        return [
            literal.size(w - term) / literal.size(term)
            for name in BLOCKS
            for w, term in zip(
                layers_of(name, weights[name]), layers_of(name, terms[name]), strict=True
            )
        ]

    even = Steps.equal(12, float(np.mean(rates)))
    return at_most(
        bound=0.01, measured=errors(Steps(rates)), control=Control("their mean", errors(even)[1:])
    )
