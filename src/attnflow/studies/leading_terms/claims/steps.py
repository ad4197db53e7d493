"""The first steps (Appendix D.1): what is zero, what is leading."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Control, Measurement, at_least, at_most, equal, every, order
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import (
    DEPTHS,
    by_autodiff,
    defined,
    in_steps,
    small,
    trained,
)
from attnflow.studies.leading_terms.paper import paper
from attnflow.studies.leading_terms.terms import flow_coefficients, leading_coefficients

ETA = 0.01
SETTING = "V = 17, T = 9, N = 12, eta = 0.01, L = 1, 2, 3"


@paper.claim("eqs 148-149", setting=SETTING)
def first_output(study) -> Measurement:
    r"""After one step from zero $W_O = \eta\bar B$, for any number of layers."""
    B = defined(study, "small")["bigram"]
    return every(
        **{
            f"L{L}": equal(
                predicted=ETA * B,
                measured=trained(study, "small", L, 1, ETA)["W_O"],
                rtol=0.0,
                atol=1e-17,
                control=Control("two steps", measured=trained(study, "small", L, 2, ETA)["W_O"]),
            )
            for L in DEPTHS
        }
    )


@paper.claim("eq 150", setting=SETTING)
def first_others(study) -> Measurement:
    """After one step V, W and P are still zero, because no gradient comes through W_O = 0."""

    def largest(steps: int) -> list[float]:
        found = [trained(study, "small", L, steps, ETA) for L in DEPTHS]
        return [float(np.abs(f[name]).max()) for f in found for name in ("V", "W", "P")]

    return at_most(bound=1e-17, measured=largest(1), control=Control("three steps", largest(3)))


@paper.claim("eq 40", part="proof-step", setting=SETTING)
def second_output(study) -> Measurement:
    r"""After one step the logits are $\eta X_i\bar B$: the stream is still the input."""
    ground = small(study)
    B = defined(study, "small")["bigram"]
    data = lm.Windows(ground.windows, ground.size)
    weights = trained(study, "small", 3, 1, ETA)

    def loss(table: np.ndarray) -> float:
        logits = [(X @ table, Y) for X, Y in literal.sequences(ground.windows, ground.size)]
        rows = [np.log(np.exp(F).sum(axis=1)) - (F * Y).sum(axis=1) for F, Y in logits]
        return float(np.mean(rows))

    return equal(
        predicted=loss(ETA * B),
        measured=float(data.loss(weights)),
        rtol=1e-14,
        control=Control("twice that step", loss(2 * ETA * B)),
    )


@paper.claim("eq 47", part="proof-step", setting="V = 17, T = 9, N = 12, one layer")
def second_value_gradient(study) -> Measurement:
    r"""At the second step $\lVert \partial L/\partial V + \eta\,\bar\Phi^\top\bar B^\top\rVert_F
    \leq 2\eta^2/\sqrt{|V|}$."""
    ground = small(study)
    K = defined(study, "small")["value"]

    def gap(eta: float, steps: int) -> float:
        theta = trained(study, "small", 1, steps, eta)
        return literal.size(literal.gradients(theta, ground.windows)["V"][0] + eta * K)

    bound = 2 * ETA**2 / np.sqrt(ground.size)
    return at_most(
        bound=bound, measured=gap(ETA, 1), control=Control("after 30 steps", gap(ETA, 30))
    )


@paper.claim("eq 48 (second step)", setting=SETTING)
def second_value(study) -> Measurement:
    r"""After two steps $V^{(l)} = \eta^2\bar\Phi^\top\bar B^\top$ to leading order, in every layer;
    measured on autodiff's own descent."""
    K = defined(study, "small")["value"]

    def errors(steps: int, factor: float) -> list[float]:
        found = [V for L in DEPTHS for V in by_autodiff(study, "small", L, steps, ETA)["V"]]
        return [literal.size(V - factor * K) / literal.size(factor * K) for V in found]

    return at_most(
        bound=1e-4,
        measured=errors(2, ETA**2),
        control=Control("the power s^2/2", errors(2, 2 * ETA**2)),
    )


@paper.claim("App D.1 (second step, W and P)", setting=SETTING)
def second_attention(study) -> Measurement:
    """After two steps W and P are still zero, because V was zero at the second gradient."""

    def largest(steps: int) -> list[float]:
        found = [by_autodiff(study, "small", L, steps, ETA) for L in DEPTHS]
        return [float(np.abs(f[name]).max()) for f in found for name in ("W", "P")]

    return at_most(bound=1e-17, measured=largest(2), control=Control("three steps", largest(3)))


@paper.claim("App D.1 (third step)", setting=SETTING)
def third_attention(study) -> Measurement:
    r"""W and P first move at the third step: $2\eta^4\bar Q$ and $2\eta^4\Delta$."""
    terms = defined(study, "small")

    def errors(factor: float) -> list[float]:
        found = []
        for L in DEPTHS:
            weights = by_autodiff(study, "small", L, 3, ETA)
            for name, term in (("W", terms["attention"]), ("P", terms["position"])):
                size = literal.size(factor * term)
                found += [literal.size(w - factor * term) / size for w in weights[name]]
        return found

    return at_most(
        bound=5e-4,
        measured=errors(2 * ETA**4),
        control=Control("the power s^4/8", errors(3**4 / 8 * ETA**4)),
    )


@paper.claim(
    "Thm 4.1 (binomials)", part="constant", setting="V = 5, T = 4, N = 3, L = 2; exact in s"
)
def binomials(study) -> Measurement:
    r"""The leading orders in $\eta$ are 1, 2, 4, 4 with the factors $s$, $\binom s2$ and
    $3\binom s4 + 2\binom s3$: found by expanding descent itself."""
    found = in_steps(study, 2).leading()
    steps = 7
    from math import comb

    # `descent_series` scales a term and its binomials as it likes: compare their product.
    terms = defined(study, "tiny")
    direct = {"W_O": "bigram", "V": "value", "W": "attention", "P": "position"}
    measured, predicted, powers = [], [], []
    for name, statistic in direct.items():
        lead = found[name]
        total = sum(w * comb(steps, j) for j, w in lead.weights.items())
        size = literal.size(terms[statistic])
        first = lead.coefficient if name == "W_O" else lead.coefficient[0]
        measured.append(total * literal.size(first) / size)
        predicted.append(leading_coefficients(steps, 1.0)[name])
        powers.append(flow_coefficients(float(steps))[name])
    return equal(
        predicted=predicted,
        measured=measured,
        rtol=1e-9,
        each=True,
        control=Control("powers of t", powers),
    )


@paper.claim("ours: initial slope of the loss", setting="V = 17, T = 9, N = 12")
def slope_of_loss(study) -> Measurement:
    r"""The loss begins to fall at the rate $\lVert\bar B\rVert_F^2$."""
    ground = small(study)
    B = defined(study, "small")["bigram"]
    data = lm.Windows(ground.windows, ground.size)
    eta = 1e-4
    drop = np.log(ground.size) - float(data.loss(by_autodiff(study, "small", 3, 1, eta)))
    other = literal.size(defined(study, "small")["context"]) ** 2
    return equal(
        predicted=literal.size(B) ** 2,
        measured=drop / eta,
        rtol=1e-3,
        control=Control("of the context mapping", other),
    )


@paper.claim("ours: norms grow like t, t^2, t^4", setting="V = 48, T = 16, L = 1, flow")
def exponents(study) -> Measurement:
    """Along a flow the norms of W_O, V and W grow as t, t^2 and t^4 (many small steps)."""
    steps = (160, 226, 320)

    def sizes(name: str) -> list[float]:
        return [literal.size(trained(study, "middle", 1, s, 0.005)[name]) for s in steps]

    time = [0.005 * s for s in steps]
    powers = {"W_O": 1, "V": 2, "W": 4, "P": 4}
    others = {"W_O": 2, "V": 3, "W": 5, "P": 3}
    return every(
        **{
            name: order(
                "Theta",
                x=time,
                y=sizes(name),
                power=p,
                tol=0.06,
                control=Control("another power", others[name]),
            )
            for name, p in powers.items()
        }
    )


def _sums(steps: int, rate: float) -> list[float]:
    """The factors of W_O, V, W and P as running sums, step by step."""
    a = b = c = 0.0
    for _ in range(steps):
        a, b, c = a + rate, b + rate * a, c + rate * a * b
    return [a, b, c, c]


@paper.claim("ours: powers are not binomials")
def powers_are_not_binomials(study) -> Measurement:
    """Few steps are far from the powers: the exact factor of W over s^4/8 is 0.45, 0.70, 0.84 and
    0.93 at 5, 10, 20 and 50 steps."""
    counts = (5, 10, 20, 50)

    def exact(s: int) -> float:
        """The sum of k C(k, 2) over the steps before."""
        return sum(k * (k * (k - 1) // 2) for k in range(s)) / (s**4 / 8)

    found = [leading_coefficients(s, 1.0)["W"] / flow_coefficients(float(s))["W"] for s in counts]
    values = [leading_coefficients(s, 1.0)["V"] / flow_coefficients(float(s))["V"] for s in counts]
    return every(
        sums=equal(
            predicted=[exact(s) for s in counts],
            measured=found,
            rtol=1e-12,
            control=Control("those of V", values),
        ),
        printed=equal(
            predicted=[0.45, 0.70, 0.84, 0.93],
            measured=found,
            atol=0.006,
            control=Control("those of V", measured=values),
        ),
        rates=equal(
            predicted=_sums(7, 0.3),
            measured=list(leading_coefficients(7, 0.3).values()),
            rtol=1e-12,
            each=True,
            control=Control("twice the rate", _sums(7, 0.6)),
        ),
        limit=equal(
            predicted=_sums(4000, 1.7 / 4000),
            measured=list(flow_coefficients(1.7).values()),
            rtol=2e-3,
            each=True,
            control=Control("40 steps", _sums(40, 1.7 / 40)),
        ),
        below=at_least(
            bound=found, measured=[1.0] * 4, control=Control("half as many", [f / 2 for f in found])
        ),
    )
