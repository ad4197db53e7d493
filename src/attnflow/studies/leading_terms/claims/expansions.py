"""Beyond the paper: the expansions that the terms are compared with, on flows solved by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, at_most, equal, every
from attnflow.expand import descent_series, series
from attnflow.flows import Flow
from attnflow.studies.leading_terms.claims.common import in_steps
from attnflow.studies.leading_terms.paper import paper

EPS = float(np.finfo(float).eps)


@paper.once
def cancelling(study: Any) -> tuple[Flow, dict[str, np.ndarray]]:
    """`y' = x_0/10 + x_1/5 - 3 x_2/10`, which is 0 at x = 1 but for rounding, while `x_0' = 1/2 +
    y/10`: y is t^2/40 to leading order. `z' = 1e200`: squares of its coefficients overflow."""

    def loss(theta: Any) -> Any:
        x, y, z = theta["x"], theta["y"], theta["z"]
        return -(y * (0.1 * x[0] + 0.2 * x[1] - 0.3 * x[2])).sum() - 0.5 * x[0] - 1e200 * z.sum()

    return Flow(loss), {"x": np.ones(3), "y": np.zeros(1), "z": np.zeros(2)}


@paper.claim("ours: zeros of an expansion", setting="six numbers")
def zeros_of_expansions(study) -> Measurement:
    """What rounding leaves of a zero is not a leading term: `.1 + .2 - .3` is none, and the order
    after it is found, in time (t^2/40) and in steps (C(s,2)/20)."""
    flow, start = cancelling(study)
    smooth, stepped = series(flow, start, 3), descent_series(flow, start, 3)
    moved = {**start, "x": np.array([2.0, 1.0, 1.0])}
    time, steps = smooth.leading(), stepped.leading()
    other = series(flow, moved, 3).leading()

    def facts(found: Any) -> list[float]:
        return [found["y"].order or 0, found["x"].order or 0, found["z"].order or 0]

    def sizes(found: Any) -> list[float]:
        return [found["y"].norm, found["x"].norm, found["z"].norm / 1e200]

    return every(
        left=at_most(
            bound=0.0,
            measured=-abs(float(smooth.block("y")[1, 0])),
            control=Control("at x = (2, 1, 1)", float(series(flow, moved, 3).block("y")[1, 0])),
            note="something is left of the zero",
        ),
        orders=equal(
            predicted=[2, 1, 1],
            measured=facts(time),
            rtol=0.0,
            control=Control("at x = (2, 1, 1)", measured=facts(other)),
        ),
        orders_in_steps=equal(
            predicted=[2, 1, 1],
            measured=facts(steps),
            rtol=0.0,
            control=Control("at x = (2, 1, 1)", measured=facts(other)),
        ),
        sizes=equal(
            predicted=[1 / 40, 1 / 2, np.sqrt(2)],
            measured=sizes(time),
            rtol=1e-12,
            each=True,
            control=Control("in steps", sizes(steps)),
        ),
        sizes_in_steps=equal(
            predicted=[1 / 20, 1 / 2, np.sqrt(2)],
            measured=sizes(steps),
            rtol=1e-12,
            each=True,
            control=Control("in time", sizes(time)),
        ),
        following=equal(
            predicted=[4, 3],
            measured=[_next(series(flow, start, 4), "y"), _next(series(flow, start, 4), "x")],
            rtol=0.0,
            control=Control(
                "at x = (2, 1, 1)",
                measured=[_next(series(flow, moved, 4), "y"), _next(series(flow, moved, 4), "x")],
            ),
        ),
    )


def _next(found: Any, name: str) -> int:
    return found.leading()[name].next or 0


@paper.claim("ours: rounding of an expansion", setting="x' = -x^2, x = 1/3, ten orders")
def rounding(study) -> Measurement:
    """The stated rounding of each coefficient is what it may have lost: it is above the error
    against exact fractions, and below a hundred units in the last place."""
    flow = Flow(lambda theta: (theta["x"] ** 3).sum() / 3)

    def parts(x: float) -> tuple[np.ndarray, np.ndarray]:
        found = series(flow, {"x": np.array([x])}, 10)
        exact = [(-1) ** k * Fraction(x) ** (k + 1) for k in range(11)]
        got = found.coefficients[:, 0]
        error = [float(abs(Fraction(float(c)) - e)) for c, e in zip(got, exact, strict=True)]
        size = np.array([abs(float(e)) for e in exact])
        return np.array(error[1:]) / size[1:] / EPS, found.rounding[1:, 0] / size[1:] / EPS

    error, stated = parts(1 / 3)
    exact = [(-1) ** k * Fraction(1 / 3) ** (k + 1) for k in range(11)]
    single = series(flow, {"x": np.array([np.float32(1 / 3)], dtype=float)}, 10).coefficients[1:, 0]
    off = [abs(float(c) / float(e) - 1) / EPS for c, e in zip(single, exact[1:], strict=True)]
    y = series(*cancelling(study), 3)
    nothing = series(Flow(lambda theta: 0 * theta["x"].sum()), {"x": np.array([1 / 3])}, 10)
    return every(
        above=at_most(
            bound=stated + 0.5,
            measured=error,
            control=Control("a start in single precision", measured=off),
        ),
        below=at_most(
            bound=np.arange(2.0, 12.0) * 10,
            measured=stated,
            control=Control(
                "of a zero",
                measured=np.full(10, y.rounding[1, 3] / abs(y.coefficients[1, 3]) / EPS),
            ),
        ),
        least=at_most(
            bound=stated,
            measured=np.full(10, 0.9),
            control=Control("of a flow that stands still", predicted=nothing.rounding[1:, 0]),
        ),
    )


@paper.claim("ours: expansion through a logarithm", setting="x' = -log x, x = 2 and 3")
def logarithm(study) -> Measurement:
    """Of `x' = v = -log x` the second derivative is `-v/x` and the third `v/x^2 + (v/x)^2`: three
    coefficients by hand."""
    import jax.numpy as jnp

    flow = Flow(lambda theta: (theta["x"] * jnp.log(theta["x"]) - theta["x"]).sum())

    def by_hand(x: float) -> list[float]:
        v = -np.log(x)
        return [v, -v / x / 2, (v / x**2 + (v / x) ** 2) / 6]

    return equal(
        predicted=by_hand(2.0),
        measured=series(flow, {"x": np.array([2.0])}, 3).coefficients[1:, 0],
        rtol=1e-12,
        each=True,
        control=Control("x = 3", by_hand(3.0)),
    )


@paper.claim("ours: binomials of the leading terms", setting="V = 5, T = 4, N = 3, L = 2")
def leading_binomials(study) -> Measurement:
    """The expansion of descent reads off the orders 1, 2, 4, 4 and the whole factors of every
    binomial: C(s,1), C(s,2), and 3 C(s,4) + 2 C(s,3) for W and P."""
    found = in_steps(study, 2).leading()
    flow, start = cancelling(study)
    other = descent_series(flow, start, 3).leading()
    names = ("W_O", "V", "W", "P")
    printed = {"W_O": "C(s,1)", "V": "C(s,2)"}

    def factors(table: Any, blocks: tuple[str, ...]) -> list[float]:
        return [table[n].weights.get(j, 0.0) for n in blocks for j in (1, 2, 3, 4)]

    return every(
        orders=equal(
            predicted=[1, 2, 4, 4],
            measured=[found[n].order or 0 for n in names],
            rtol=0.0,
            control=Control("another flow", measured=[other[n].order or 0 for n in "xyzz"]),
        ),
        factors=equal(
            predicted=[1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 3, 0, 0, 2, 3],
            measured=factors(found, names),
            rtol=0.0,
            control=Control("another flow", measured=factors(other, ("x", "y", "z", "z"))),
        ),
        words=equal(
            predicted=1.0,
            measured=float(
                np.mean([found[n].steps == printed.get(n, "3*C(s,4) + 2*C(s,3)") for n in names])
            ),
            rtol=0.0,
            control=Control(
                "another flow", measured=float(np.mean([other[n].steps == "C(s,1)" for n in "xyz"]))
            ),
        ),
    )
