"""Beyond the paper: what a run measures, on numbers that are done by hand."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, equal, every
from attnflow.models.attention_lm import Weights
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.observables import (
    CHANGES,
    Followed,
    View,
    across,
    along,
    causal,
    changed,
    crossing,
)
from attnflow.studies.leading_terms.paper import paper
from attnflow.studies.leading_terms.stages import find


def _followed(sign: float = 1.0) -> Followed:
    """3-4-5 triangles, one along its term (of length 2) and one against it."""
    return Followed(
        sign * np.array([[3.0], [-3.0]]), np.array([[4.0], [4.0]]), np.array([2.0, 2.0])
    )


@paper.claim("ours: cosine, gain and error of two lengths", setting="triangles of 3, 4 and 5")
def lengths(study) -> Measurement:
    """Norm, cosine, gap, gain and relative error follow from the lengths along and across a term,
    also where a weight has turned against it."""

    def facts(f: Followed) -> list[float]:
        parts = (f.norm, f.cosine, f.gap, f.gain, f.error)
        return np.concatenate([np.ravel(part) for part in parts]).tolist()

    by_hand = [5, 5, 0.6, -0.6, 0.4, 1.6, 1.5, -1.5, np.hypot(0.5, 2), np.hypot(2.5, 2)]
    return equal(
        predicted=by_hand,
        measured=facts(_followed()),
        rtol=1e-15,
        each=True,
        control=Control("turned round", measured=facts(_followed(-1.0))),
    )


@paper.claim("ours: lengths of tiny increments", setting="40 numbers of 1e-200")
def tiny_lengths(study) -> Measurement:
    """The lengths along and across a unit vector are those of Pythagoras for entries whose squares
    vanish, and zero for a weight that has not moved."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 40))
    unit = b / literal.size(b)
    view, wide = View(lambda m: m, unit, 1.0), View(lambda m: 2 * m, unit, 1.0)
    part = float(a @ unit)
    rest = float(np.sqrt(a @ a - part**2))

    def facts(seen: View) -> list[float]:
        still = np.zeros(40)
        small = 1e-200 * a
        each = [1e200 * along(seen, small), 1e200 * across(seen, small)]
        return [float(x) for x in (*each, along(seen, still), across(seen, still))]

    return equal(
        predicted=[part, rest, 0.0, 0.0],
        measured=facts(view),
        rtol=1e-12,
        atol=1e-12,
        each=True,
        control=Control("seen twice as large", measured=facts(wide)),
    )


@paper.claim("ours: when a gap is crossed")
def crossings(study) -> Measurement:
    """Interpolated between two rows with a gap; at the later row where the one before has none, or
    is the start; never where it stays below; of several layers the first one counts."""
    time = np.array([0.0, 1.0, 2.0, 4.0])

    def facts(level: float) -> list[float]:
        gaps = ([0, 1, 1, 16], [0, 0, 9, 9], [5, 5, 5, 5], [0, 1e-9, 1e-9, 1e-9])
        found = [crossing(time, np.array(gap, dtype=float), level) for gap in gaps]
        return [-1.0 if each is None else each for each in found]

    def weights(first: float) -> dict[str, Followed]:
        # Two layers of V turn by angles that double; the second one starts further away.
        angle = np.outer([0.0, 1.0, 2.0, 4.0], [first, 0.03])
        turned = Followed(np.cos(angle), np.sin(angle), np.ones(4))
        still = Followed(np.ones((4, 1)), np.zeros((4, 1)), np.ones(4))
        return {"W_O": still, "V": turned, "W": still, "P": still}

    def leaves(first: float) -> list[float]:
        stages = find(time, weights(first))
        return [float(len(stages)), stages[0].time, stages[-1].time]

    gap = 1 - np.cos(0.06)
    small = 1 - np.cos(0.03)
    expected = float(np.exp(np.log(1e-3 / small) / np.log(gap / small) * np.log(2)))
    return every(
        times=equal(
            predicted=[2 * np.sqrt(2), 2.0, 1.0, -1.0],
            measured=facts(4.0),
            rtol=1e-12,
            each=True,
            control=Control("a lower level", measured=facts(0.5)),
        ),
        stages=equal(
            predicted=[2, 0.0, expected],
            measured=leaves(0.01),
            rtol=1e-9,
            each=True,
            control=Control("the first layer ahead", measured=leaves(0.04)),
        ),
    )


@paper.claim("ours: interventions by definition", setting="a quadratic loss, two layers of 3 x 3")
def interventions(study) -> Measurement:
    """Replace, rescale, remove and zero do to an increment what they say, one layer at a time, and
    the reported rise is that of the loss."""
    rng = np.random.default_rng(2)
    shapes = {"W_O": (3, 3), "V": (2, 3, 3), "W": (2, 3, 3), "P": (2, 4)}
    start, trained, terms, centre = (
        {name: rng.standard_normal(shape) for name, shape in shapes.items()} for _ in range(4)
    )

    def loss(theta: Weights) -> float:
        return sum(float(((m - centre[name]) ** 2).sum()) for name, m in theta.items())

    def by_hand(kind: str, moved: np.ndarray, term: np.ndarray) -> np.ndarray:
        if kind == "replace":
            return term
        if kind == "rescale":
            return term / literal.size(term) * literal.size(moved)
        if kind == "remove":
            return moved - np.sum(moved * term) / np.sum(term * term) * term
        return 0 * moved

    found, predicted, turned = [], [], []
    rises = causal(loss, start, trained, terms)
    others = causal(loss, trained, start, terms)
    for name in shapes:
        for kind in CHANGES:
            for layer, rise in enumerate(rises[name][kind]):
                at = ... if name == "W_O" else layer
                old, c = trained[name][at], centre[name][at]
                new = start[name][at] + by_hand(kind, old - start[name][at], terms[name][at])
                predicted.append(float(((new - c) ** 2).sum() - ((old - c) ** 2).sum()))
                found.append(rise)
                turned.append(others[name][kind][layer])
    nothing = changed("rescale", trained["P"], 0 * trained["P"])
    return every(
        rises=equal(
            predicted=predicted,
            measured=found,
            rtol=1e-9,
            each=True,
            control=Control("start and end exchanged", measured=turned),
        ),
        nothing=equal(
            predicted=0.0,
            measured=literal.size(nothing),
            rtol=0.0,
            control=Control(
                "along a term", measured=literal.size(changed("rescale", trained["P"], terms["P"]))
            ),
        ),
    )
