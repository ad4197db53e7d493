"""Beyond the paper: Adam, AdamW and minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Claim, Control, Measurement, at_least, at_most, equal, every, observed
from attnflow.flows.discrete import Adam
from attnflow.models.attention_lm import BLOCKS
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    DEPTHS,
    by_rule,
    counted,
    defined,
    descended,
    layers_of,
    on_text,
    small,
    trained,
)
from attnflow.studies.leading_terms.claims.experiments import GUESSED
from attnflow.studies.leading_terms.optimised import Moments, adam_signs, leading
from attnflow.studies.leading_terms.paper import paper

ETA = 1e-5
SIGNS = 1e-14
"""An eps far below every gradient: Adam makes signs of them."""


def adam(eps: float = SIGNS, decay: float = 0.0, rate: float = ETA) -> Adam:
    return Adam(rate, eps=eps, decay=decay)


@paper.once
def theory(study: Any, rule: Adam, steps: int) -> dict[str, np.ndarray]:
    found = counted(study, "small")
    return leading(Moments(rule), steps, lambda k: found)


def by_hand(study: Any, rule: Adam) -> dict[str, np.ndarray]:
    """The first gradient of each block turned into its first step: W_O(1), V(2), W(3), P(3)."""
    ground, made = small(study), defined(study, "small")
    eta, b1, b2, eps = rule.rate, rule.b1, rule.b2, rule.eps

    def first(g: np.ndarray, s: int) -> np.ndarray:
        """At step s a block gets its first gradient: c_m g / (sqrt(c_v) |g| + eps)."""
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


@paper.claim("ours: Adam, W_O in closed form", setting="V = 17, T = 9, N = 12")
def closed_form(study) -> Measurement:
    r"""$W_O = s\eta\,\bar B/(|\bar B|+\epsilon)$ after s steps; with decay $\lambda$ the factor is
    $(1-(1-\eta\lambda)^s)/\lambda$."""
    found = counted(study, "small")
    rules = (adam(1e-8), adam(1e-8, decay=2e4))

    def seen(rule: Adam, steps: int) -> np.ndarray:
        S = defined(study, "small")["bigram"]
        inside = np.abs(S) > 1e-4 * np.abs(S).max()
        return trained(study, "small", 2, steps, rule.rate, 0.0, rule)["W_O"][inside]

    def told(rule: Adam, steps: int) -> np.ndarray:
        S = defined(study, "small")["bigram"]
        return adam_signs(found, rule, steps)[np.abs(S) > 1e-4 * np.abs(S).max()]

    return every(
        **{
            f"{'AdamW' if rule.decay else 'Adam'}{steps}": equal(
                predicted=told(rule, steps),
                measured=seen(rule, steps),
                rtol=5e-3,
                control=Control("the other rule", told(rules[1 - i], steps)),
            )
            for i, rule in enumerate(rules)
            for steps in (6, 12)
        }
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
    by_descent = on_text(study, steps=6).knowing(trained=descended(study, 6))

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
    """Under minibatch descent the sums over the batches that were drawn are followed to 0.9999;
    one batch as theory is not."""
    drawn = on_text(study, mode="sgd", rate=0.25, steps=16, batch=16)
    ready = drawn.knowing(trained=descended(study, 16, 0.25, batch=16))
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
