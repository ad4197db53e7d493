"""Beyond the paper: Adam, AdamW and minibatches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from attnflow.claims import (
    Claim,
    Control,
    Measurement,
    at_least,
    at_most,
    equal,
    every,
    not_reproduced,
    observed,
    order,
)
from attnflow.flows.discrete import Adam
from attnflow.models import attention_lm as lm
from attnflow.models.attention_lm import BLOCKS, Weights
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    DEPTHS,
    Ground,
    by_rule,
    chain,
    counted,
    course,
    defined,
    descended,
    half,
    layers_of,
    on_text,
    pace,
    small,
    trained,
)
from attnflow.studies.leading_terms.claims.experiments import GUESSED
from attnflow.studies.leading_terms.optimised import Moments, adam_signs, leading
from attnflow.studies.leading_terms.paper import paper

ETA = 1e-5
SIGNS = 1e-14
"""An eps far below every gradient: Adam makes signs of them."""


@paper.claim("ours: Adam's rule", setting="V = 17, T = 9, N = 12, L = 2, 12 steps, rate 0.01")
def rule_of_adam(study) -> Measurement:
    """The steps of the rows below are those of optax's AdamW, all weights together."""
    from jax.flatten_util import ravel_pytree

    ground = small(study)
    data, start = lm.Windows(ground.windows, ground.size), lm.start(ground.size, ground.context, 2)
    decayed, plain = adam(1e-8, decay=2.0, rate=0.01), adam(1e-8, rate=0.01)

    def flat(theta: Weights) -> np.ndarray:
        return np.asarray(ravel_pytree(theta)[0])

    with jax.enable_x64(True):
        # The rule works on each entry: as one vector it is compiled for one shape, not for four.
        weights, unravel = ravel_pytree(start)
        update: Any = decayed.transform()
        state: Any = update.init(weights)
        for _ in range(12):
            at = {block: np.asarray(m) for block, m in unravel(weights).items()}
            step, state = update.update(flat(data.gradient(at)[1]), state, weights)
            weights = weights + step
        return equal(
            predicted=np.asarray(weights),
            measured=flat(by_rule(data, start, decayed, 12)),
            rtol=1e-12,
            control=Control("without decay", measured=flat(by_rule(data, start, plain, 12))),
        )


def adam(eps: float = SIGNS, decay: float = 0.0, rate: float = ETA) -> Adam:
    return Adam(rate, eps=eps, decay=decay)


@paper.once
def theory(study: Any, rule: Adam, steps: int) -> dict[str, np.ndarray]:
    found = counted(study, "small")
    return leading(Moments(rule), steps, lambda k: found)


def by_hand(study: Any, rule: Adam) -> dict[str, np.ndarray]:
    return hand(small(study), rule)


def hand(ground: Ground, rule: Adam) -> dict[str, np.ndarray]:
    """The first gradient of each block turned into its first step: W_O(1), V(2), W(3), P(3)."""
    made = literal.statistics(ground.windows, ground.size)
    eta, b1, b2, eps = rule.rate, rule.b1, rule.b2, rule.eps

    def first(g: np.ndarray, s: int) -> np.ndarray:
        """At step s a block gets its first gradient: c_m g / (sqrt(c_v) |g| + eps); what rounding
        leaves of a zero is none."""
        g = np.where(np.abs(g) > 1e-9 * np.abs(g).max(), g, 0.0)
        m, v = (1 - b1) / (1 - b1**s), (1 - b2) / (1 - b2**s)
        return eta * m * g / (np.sqrt(v) * np.abs(g) + eps)

    W_O = first(made["bigram"], 1)
    V = first(made["context"].T @ W_O.T, 2)
    table = (2 * W_O).T @ V.T
    term = literal.attention(ground.windows, ground.size, table)
    return {"W_O": W_O, "V": V, "W": first(term["attention"], 3), "P": first(term["position"], 3)}


def masked(term: np.ndarray, weight: np.ndarray) -> float:
    """The cosine where the term says something: pairs that never met are outside it."""
    inside = np.abs(term) > 1e-9 * np.abs(term).max()
    return literal.cosine(weight[inside], term[inside])


def _first(name: str, step: int, eps: float, bar: float) -> Claim:
    def measure(study) -> Measurement:
        rule = adam(eps)
        term = by_hand(study, rule)[name]
        plain = {"W_O": "bigram", "V": "value", "W": "attention", "P": "position"}[name]

        def found(direction: np.ndarray) -> list[float]:
            return [
                masked(direction, w)
                for L in DEPTHS
                for w in layers_of(
                    name, trained(study, "small", L, step, rule.rate, 0.0, rule)[name]
                )
            ]

        return at_least(
            bound=1 - bar,
            measured=found(term),
            control=Control("leading term of descent", found(defined(study, "small")[plain])),
        )

    regime = "signs" if eps == SIGNS else f"eps = {eps:g}"
    measure.__doc__ = (
        f"Under Adam {name} after step {step} is the normalised first gradient with signs between "
        f"the maps, in every layer of L = 1, 2, 3 ({regime}); descent's own term is another one."
    )
    return paper.claim(
        f"ours: Adam, {name} at step {step}, {regime}", setting="V = 17, T = 9, N = 12"
    )(measure)


first_output = _first("W_O", 1, SIGNS, 1e-9)
first_value = _first("V", 2, SIGNS, 1e-6)
first_attention = _first("W", 3, SIGNS, 1e-3)
first_position = _first("P", 3, SIGNS, 1e-3)
value_at_eps = _first("V", 2, 1e-8, 1e-6)
attention_at_eps = _first("W", 3, 1e-8, 1e-3)


# --- Without zeros of the leading gradients.

GENERIC = "V = 17, T = 9, N = 12, L = 1, 2, 3"


@paper.once
def generic(study: Any) -> Ground:
    """The first synthetic corpus in which no leading gradient vanishes by coincidence.

    A pair that is met exactly as often as 1/V says has a zero in B, and Adam takes a full step of
    the next order there; so it is for the first gradients of V and of W. Such zeros are seen before
    training: rounding leaves something of them, where pairs that never meet have none.
    """
    for seed in range(100):
        ground = chain(17, 9, 12, seed)
        if all(smallest(g) > 1e-9 for g in first_gradients(ground)):
            return ground
    raise AssertionError("no such corpus among a hundred")


def smallest(gradient: np.ndarray) -> float:
    """The smallest entry that is not zero, relative to the largest."""
    size = np.abs(gradient)
    return float(size[size > 0].min() / size.max())


def first_gradients(ground: Ground) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B, Phi^T S^T and Q[S^T sign(Phi^T S^T)^T] with S the signs of B."""
    made = literal.statistics(ground.windows, ground.size)
    S = np.sign(made["bigram"])
    V = made["context"].T @ S.T
    Q = literal.attention(ground.windows, ground.size, S.T @ np.sign(V).T)["attention"]
    return made["bigram"], V, Q


@paper.once
def early_gaps(study: Any, rate: float, eps: float, of: str = "adam") -> dict[str, list[float]]:
    """1 - cosine of W_O(2), V(2) and W(3) of every layer, L = 1, 2, 3, with Adam's terms or those
    of descent."""
    ground, rule = generic(study), adam(eps, rate=rate)
    data = lm.Windows(ground.windows, ground.size)
    made = literal.statistics(ground.windows, ground.size)
    terms = hand(ground, rule)
    if of == "descent":
        terms = {"W_O": made["bigram"], "V": made["value"], "W": made["attention"]}
    found: dict[str, list[float]] = {"W_O": [], "V": [], "W": []}
    for L in DEPTHS:
        two = by_rule(data, lm.start(ground.size, ground.context, L), rule, 2)
        three = by_rule(data, lm.start(ground.size, ground.context, L), rule, 3)
        for name, weights in (("W_O", two), ("V", two), ("W", three)):
            found[name] += [1 - masked(terms[name], w) for w in layers_of(name, weights[name])]
    return found


EARLY = {"W_O": (2, 4e-11), "V": (2, 3e-8), "W": (3, 5e-7)}
"""The step at which a weight is looked at, and the bar of 1 - cosine there."""


def _early(name: str) -> Claim:
    step, bar = EARLY[name]

    def measure(study) -> Measurement:
        def gaps(of: str) -> list[float]:
            return [
                gap
                for rate in (1e-4, 1e-5)
                for eps in (1e-20, 1e-8)
                for gap in early_gaps(study, rate, eps, of)[name]
            ]

        return at_most(
            bound=bar,
            measured=gaps("adam"),
            control=Control("leading term of descent", gaps("descent")),
        )

    measure.__doc__ = (
        f"Where no leading gradient is zero by coincidence, 1 - cosine of {name}({step}) with"
        f" Adam's term is below {bar:g}, at rates of 1e-4 and 1e-5 with eps = 1e-20 and 1e-8."
    )
    return paper.claim(f"ours: Adam, {name}({step}) on generic text", setting=GENERIC)(measure)


early_output, early_value, early_attention = map(_early, EARLY)


@paper.claim("ours: Adam at a rate of 1e-3", part="experiment", setting=GENERIC)
def early_at_a_high_rate(study) -> Measurement:
    """The same bars at a rate of 1e-3, met on another corpus of this size with one layer: on ours
    the smallest leading gradients are below eps, and V and W miss them."""

    def parts(rate: float) -> list[float]:
        found = early_gaps(study, rate, 1e-8)
        return [max(found[name]) / bar for name, (_, bar) in EARLY.items()]

    return not_reproduced(
        found=at_most(
            bound=1.0,
            measured=parts(1e-3),
            control=Control("a rate of 1e-4", parts(1e-4)),
            note="1 - cosine over its bar: W_O(2), V(2), W(3), worst of L = 1, 2, 3",
        ),
        guessed="the corpus of V = 17 that the bars were measured on",
    )


@paper.claim("ours: order of what Adam's terms leave", setting=GENERIC)
def early_order(study) -> Measurement:
    """The gap of the cosine of W_O(2) falls like the square of the rate."""
    rates = (4e-3, 2e-3, 1e-3, 5e-4)

    def gaps(of: str) -> list[float]:
        return [max(early_gaps(study, rate, 1e-8, of)["W_O"]) for rate in rates]

    return order(
        "Theta",
        x=rates,
        y=gaps("adam"),
        power=2,
        tol=0.1,
        control=Control("leading term of descent", measured=gaps("descent")),
    )


@paper.claim("ours: Adam, zeros of B", setting="V = 17, T = 9, N = 12, L = 1, two steps")
def zeros(study) -> Measurement:
    """Where a pair is met exactly as often as 1/V says, the leading term of W_O is zero, and Adam's
    second step is a full one of the next order: c_m / sqrt(c_v) times the rate, .744."""
    rule = adam(1e-12)
    B = defined(study, "small")["bigram"]
    size = np.abs(trained(study, "small", 1, 2, rule.rate, 0.0, rule)["W_O"]) / rule.rate
    inside = np.abs(B) > 1e-9 * np.abs(B).max()
    c_m, c_v = (1 - rule.b1) / (1 - rule.b1**2), (1 - rule.b2) / (1 - rule.b2**2)
    found = size[~inside]
    # Rounding leaves something of these zeros, of which no sign must be made.
    term = np.abs(theory(study, adam(1e-24), 2)["W_O"]) / rule.rate
    return every(
        step=equal(
            predicted=np.full(len(found), c_m / np.sqrt(c_v)),
            measured=found,
            rtol=1e-3,
            control=Control("other entries", measured=size[inside][: len(found)]),
            note=f"{len(found)} of {B.size} entries",
        ),
        term=at_most(
            bound=0.0,
            measured=float(term[~inside].max()),
            control=Control("other entries", float(term[inside].max())),
        ),
    )


@paper.claim("ours: eps is a regime of Adam", setting="V = 17, T = 9, N = 12")
def eps_regime(study) -> Measurement:
    """With eps = 1e-8 and this rate the gradient of W is far below eps: the sign turns linear and
    W(3) is Q of Adam's own table; with eps = 1e-14 it is its sign."""
    ground = small(study)

    def linear(eps: float) -> float:
        rule = adam(eps)
        hand = by_hand(study, rule)
        table = hand["W_O"].T @ hand["V"].T
        Q = literal.attention(ground.windows, ground.size, table)["attention"]
        return masked(Q, trained(study, "small", 1, 3, rule.rate, 0.0, rule)["W"][0])

    return at_least(
        bound=0.9999, measured=linear(1e-8), control=Control("eps = 1e-14", linear(SIGNS))
    )


@paper.claim("ours: Adam, later steps", setting="V = 17, T = 9, N = 12, 12 steps, L = 1, 2, 3")
def later_steps(study) -> Measurement:
    """As long as signs keep, Adam's rule applied to the leading gradients gives all weights: twelve
    steps, cosines above 0.999."""
    rule = adam(1e-8)

    def found(terms: dict[str, np.ndarray]) -> list[float]:
        return [
            masked(terms[name], w)
            for L in DEPTHS
            for name in BLOCKS
            for w in layers_of(name, trained(study, "small", L, 12, rule.rate, 0.0, rule)[name])
        ]

    made = defined(study, "small")
    plain = {"W_O": made["bigram"], "V": made["value"], "W": made["attention"]}
    return at_least(
        bound=0.999,
        measured=found(theory(study, rule, 12)),
        control=Control("descent", found({**plain, "P": made["position"]})),
    )


@paper.once
def off_closed_form(
    study: Any, rate: float, decay: float, steps: int, other: bool = False
) -> float:
    """|W_O - closed form| / |closed form| where B is not zero; `other`: of the rule with or
    without decay, whichever it is not. The decay is given in units of 1 / rate."""
    rule = adam(1e-8, decay / rate, rate)
    told = adam(1e-8, (0.2 - decay) / rate, rate) if other else rule
    B = defined(study, "small")["bigram"]
    inside = np.abs(B) > 1e-4 * np.abs(B).max()
    found = trained(study, "small", 2, steps, rate, 0.0, rule)["W_O"][inside]
    term = adam_signs(counted(study, "small"), told, steps)[inside]
    return literal.size(found - term) / literal.size(term)


@paper.claim("ours: Adam, W_O in closed form", setting="V = 17, T = 9, N = 12, L = 2")
def closed_form(study) -> Measurement:
    r"""$W_O = s\eta\,\bar B/(|\bar B|+\epsilon)$ after s steps; with decay $\lambda$ the factor is
    $(1-(1-\eta\lambda)^s)/\lambda$. It is the leading order in $\eta$: what is missing, relative to
    it, falls like $\eta$, because the gradient moves by that much while its signs keep (in
    Frobenius norm; a single entry with a small B is off by up to seven times as much)."""
    rates = (4e-5, 2e-5, 1e-5, 5e-6)
    cells = {f"{rule}{s}": (d, s) for rule, d in (("Adam", 0.0), ("AdamW", 0.2)) for s in (6, 12)}
    return every(
        size=at_most(
            bound=2e-3,
            measured=[off_closed_form(study, ETA, *cell) for cell in cells.values()],
            control=Control(
                "the other rule", [off_closed_form(study, ETA, *c, True) for c in cells.values()]
            ),
        ),
        first=equal(
            predicted=adam_signs(counted(study, "small"), adam(1e-3), 1),
            measured=trained(study, "small", 1, 1, ETA, 0.0, adam(1e-3))["W_O"],
            rtol=1e-12,
            control=Control("signs", adam_signs(counted(study, "small"), adam(), 1)),
        ),
        **{
            key: order(
                "Theta",
                x=rates,
                y=[off_closed_form(study, rate, *cell) for rate in rates],
                power=1,
                tol=0.15,
                control=Control(
                    "the other rule",
                    measured=[off_closed_form(study, rate, *cell, True) for rate in rates],
                ),
            )
            for key, cell in cells.items()
        },
    )


@paper.claim("ours: AdamW", setting="V = 17, T = 9, N = 12, 12 steps, L = 2")
def adamw(study) -> Measurement:
    """With weight decay the rule applied to the leading gradients gives lengths too, to 2 %;
    without the decay it does not."""
    rule = adam(1e-8, decay=5e3)
    weights = trained(study, "small", 2, 12, rule.rate, 0.0, rule)

    def ratios(terms: dict[str, np.ndarray]) -> list[float]:
        found = []
        for name in BLOCKS:
            inside = np.abs(terms[name]) > 1e-9 * np.abs(terms[name]).max()
            size = literal.size(terms[name][inside])
            found += [literal.size(w[inside]) / size for w in layers_of(name, weights[name])]
        return found

    return equal(
        predicted=np.ones(7),
        measured=ratios(theory(study, rule, 12)),
        rtol=0.02,
        control=Control("no decay", measured=ratios(theory(study, adam(1e-8), 12))),
    )


@paper.claim("ours: which theory a run follows", part="experiment")
def which_theory(study) -> Measurement:
    """A run by Adam is closer to Adam's leading terms than to descent's in every weight, and a run
    by descent the other way round."""
    adam_run = on_text(study, mode="adam", rate=1e-5, steps=6)
    found = by_rule(adam_run.windows, adam_run.start, adam_run.optimiser(), 6)
    by_adam = adam_run.knowing(trained=found)
    steps = half(study)
    by_descent = on_text(study, steps=steps).knowing(trained=course(study).weights[steps])

    def lead(ready: Any, one: str, other: str) -> list[float]:
        found = ready.theories()
        return [
            float(np.nanmean(found[one][name]) - np.nanmean(found[other][name])) for name in BLOCKS
        ]

    return observed(
        found=every(
            adam=at_least(
                bound=0.05,
                measured=lead(by_adam, "adam", "descent"),
                control=Control("trained by descent", lead(by_descent, "adam", "descent")),
            ),
            descent=at_least(
                bound=0.05,
                measured=lead(by_descent, "descent", "adam"),
                control=Control("trained by Adam", lead(by_adam, "descent", "adam")),
            ),
        ),
        guessed=GUESSED,
    )


@paper.claim("ours: minibatches", part="experiment")
def minibatches(study) -> Measurement:
    """Under minibatch descent the sums over the batches that were drawn are followed to 0.9999
    (at t = 5 on built-in stories); one batch as theory is not."""
    rate = pace(study) / 8
    drawn = on_text(study, mode="sgd", rate=rate, steps=20, batch=16)
    ready = drawn.knowing(trained=descended(study, 20, rate, batch=16))
    found = ready.cosines(ready.schedule)
    from attnflow.corpus import statistics
    from attnflow.studies.leading_terms.terms import directions, repeated

    first = statistics(ready.data.windows[ready.drawn[0]], ready.data.corpus.tokens)
    single = ready.cosines(repeated(directions(first), ready.config.layers))
    names = ("W_O", "V", "W")
    return observed(
        found=at_least(
            bound=0.9999,
            measured=[c for n in names for c in found[n]],
            control=Control("the first batch", [c for n in names for c in single[n]]),
        ),
        guessed=GUESSED,
    )


@paper.claim("ours: signs of Adam's gradient", setting="V = 17, T = 9, N = 12")
def signs_keep(study) -> Measurement:
    """After twelve steps of 1e-5 the signs of W_O's gradient are still those of B, wherever B is
    not nearly zero; at a rate of 0.3 some have turned."""
    B = defined(study, "small")["bigram"]
    inside = np.abs(B) > 1e-4 * np.abs(B).max()

    def turned(rate: float) -> float:
        rule = adam(1e-8, rate=rate)
        weights = trained(study, "small", 1, 12, rate, 0.0, rule)
        slope = literal.gradients(weights, small(study).windows)["W_O"]
        return float(np.mean(np.sign(-slope[inside]) != np.sign(B[inside])))

    return at_most(bound=0.0, measured=turned(ETA), control=Control("a rate of 0.3", turned(0.3)))
