"""Lemmas 1.1, D.2 and D.7: gradients against autodiff, and softmax perturbations."""

from __future__ import annotations

import numpy as np

from attnflow.claims import Claim, Control, Measurement, at_most, equal, every
from attnflow.models import attention_lm as lm
from attnflow.studies.leading_terms.claims import literal
from attnflow.studies.leading_terms.claims.common import autodiff, small
from attnflow.studies.leading_terms.paper import paper

EQUATIONS = {"W_O": "129", "V": "130", "W": "176", "P": "177"}


@paper.once
def written_out(study, layers: int, **without: bool):
    theta, _ = autodiff(study, "small", layers)
    return literal.gradients(theta, small(study).windows, **without)


def _one_layer(name: str) -> Claim:
    def measure(study) -> Measurement:
        theta, slope = autodiff(study, "small", 1)
        still = {**theta, "V": 0 * theta["V"], "W": 0 * theta["W"]}
        uniform = literal.gradients(still, small(study).windows)
        return equal(
            predicted=written_out(study, 1)[name],
            measured=slope[name],
            rtol=1e-13,
            control=Control("at V = W = 0", uniform[name]),
        )

    measure.__doc__ = f"The gradient of {name} for one layer is the formula of the lemma."
    return paper.claim(
        f"Lemma 1.1 ({name})",
        setting="V = 17, T = 9, weights of order 1",
        torn="the display is not on the page; it is Lemma D.7 at L = 1",
    )(measure)


one_output, one_value, one_attention, one_position = map(_one_layer, ("W_O", "V", "W", "P"))


def _recursion(name: str) -> Claim:
    def measure(study) -> Measurement:
        _, slope = autodiff(study, "small", 3)
        part = {"W_O": "values", "V": "values", "W": "scores", "P": "scores"}[name]
        other = written_out(study, 3, **{part: True})[name]
        if name == "W_O":  # it needs no recursion; its stream does
            other = written_out(study, 1)["W_O"]
        return equal(
            predicted=written_out(study, 3)[name],
            measured=slope[name],
            rtol=1e-13,
            control=Control(f"without the {part} of other layers", other),
        )

    measure.__doc__ = (
        f"The gradient of {name} in every layer of three follows from the recursion (126)-(128)."
    )
    return paper.claim(
        f"Lemma D.7 (eq {EQUATIONS[name]})", setting="V = 17, T = 9, L = 3, weights of order 1"
    )(measure)


output, values, attention, positions = map(_recursion, ("W_O", "V", "W", "P"))


def _route(route: str, layers: int) -> Claim:
    def measure(study) -> Measurement:
        ground = small(study)
        theta, slope = autodiff(study, "small", layers)
        data = lm.Windows(ground.windows, ground.size, route=route)  # type: ignore[arg-type]
        other = lm.Windows(ground.windows[:, ::-1], ground.size, route=route)  # type: ignore
        found, turned = data.gradient(theta)[1], other.gradient(theta)[1]
        return every(
            **{
                name: equal(
                    predicted=slope[name],
                    measured=found[name],
                    rtol=1e-13,
                    control=Control("windows backwards", measured=turned[name]),
                )
                for name in slope
            }
        )

    measure.__doc__ = (
        f"The library's gradient by the route `{route}` is that of autodiff, {layers} layer(s)."
    )
    return paper.claim(f"ours: gradient by {route}, L = {layers}")(measure)


by_table = _route("table", 1)
by_gather = _route("gather", 2)
by_dense = _route("dense", 3)


def _large(route: str, layers: int) -> Measurement:
    """Scores and logits of several hundred: exponentials overflow without a shift."""
    rng = np.random.default_rng(4)
    windows = rng.integers(0, 5, (3, 5))
    sizes = {"W_O": 400.0, "V": 1.0, "W": 400.0, "P": 400.0}
    theta = {n: sizes[n] * m for n, m in lm.start(5, 4, layers, 1.0, seed=2).items()}
    value, found = lm.Windows(windows, 5, route=route).gradient(theta)  # type: ignore[arg-type]
    by_hand, loss = literal.gradients(theta, windows), literal.loss(theta, windows)
    small = literal.gradients({n: m / 400 for n, m in theta.items()}, windows)
    return every(
        loss=equal(
            predicted=loss, measured=value, rtol=1e-12, control=Control("no weights", np.log(5))
        ),
        **{
            name: equal(
                predicted=by_hand[name],
                measured=found[name],
                rtol=1e-9,
                atol=1e-12,
                control=Control("weights of order 1", small[name]),
            )
            for name in ("W_O", "V")
        },
    )


@paper.claim("ours: large scores", setting="V = 5, T = 4, N = 3, scores and logits of 400")
def large_scores(study) -> Measurement:
    """Scores and logits of several hundred, whose exponentials overflow, give the loss and the
    gradients that shifted exponentials give by hand."""
    return every(table=_large("table", 1), gather=_large("gather", 1), dense=_large("dense", 1))


@paper.claim(
    "Lemma D.2",
    part="proof-step",
    reading="the statement is not on the page; from its uses (94) and (216) we read: scores of at "
    "most c move a row of t uniform weights by at most c / sqrt t",
)
def softmax_perturbation(study) -> Measurement:
    r"""$\lVert \mathrm{softmax}(z) - 1/t\rVert_2 \leq \lVert z\rVert_\infty/\sqrt t$; the worst
    row has half of its scores at $+c$ and half at $-c$: $\tanh(c)/\sqrt t$."""
    rng = np.random.default_rng(0)

    def moved(z: np.ndarray) -> float:
        p = np.exp(z) / np.exp(z).sum()
        return float(np.linalg.norm(p - 1 / len(z)) * np.sqrt(len(z)) / np.abs(z).max())

    rows = [c * rng.uniform(-1, 1, t) for t in (2, 7, 60) for c in (1e-3, 0.1, 1.0)]
    half = [c * np.repeat([1.0, -1.0], t) for t in (1, 4, 30) for c in (1e-3, 0.1, 1.0)]
    logits = [30 * np.eye(20)[0]]  # far outside: one score that takes everything
    exact = [np.tanh(np.abs(z).max()) / np.abs(z).max() for z in half]
    wide = [moved(z) * np.abs(z).max() for z in logits]
    return every(
        bound=at_most(
            bound=1.0,
            measured=[moved(z) for z in (*rows, *half)],
            control=Control("not relative to the scores", wide),
        ),
        worst=equal(
            predicted=exact,
            measured=[moved(z) for z in half],
            rtol=1e-9,
            control=Control("uniform scores", measured=[moved(z) for z in rows]),
        ),
    )


@paper.claim(
    "eq 41",
    part="proof-step",
    reading="the display is cut off; with (46) it bounds the change of the predictions by "
    "eta sqrt T / sqrt V per sequence",
)
def softmax_jacobian(study) -> Measurement:
    r"""After one step $\lVert S(\eta X_i\bar B) - U\rVert_F \leq \eta\sqrt{T/|V|}$: the Jacobian of
    a softmax at uniform probabilities has norm $1/|V|$."""
    ground, eta = small(study), 0.5
    B = literal.statistics(ground.windows, ground.size)["bigram"]

    def changes(scale: float) -> list[float]:
        found = []
        for X, _ in literal.sequences(ground.windows, ground.size):
            weight = np.exp(scale * X @ B)
            p = weight / weight.sum(axis=1, keepdims=True)
            found.append(float(np.linalg.norm(p - 1 / ground.size)))
        return found

    bound = eta * np.sqrt(ground.context / ground.size)
    return at_most(
        bound=bound, measured=changes(eta), control=Control("logits 300 times", changes(300 * eta))
    )
