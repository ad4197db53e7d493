"""Beyond the paper: exact reductions of the flow and of descent, and what they conserve."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, against, at_most, equal, every, identity
from attnflow.flows import integrate
from attnflow.models import value_mlp
from attnflow.models.value_mlp import ValueMLP, gram_flow, reduced_flow, weight_flow
from attnflow.reduce import gram_descent
from attnflow.studies.cooccurrence import observables
from attnflow.studies.cooccurrence.claims.gradients import (
    key_update,
    neuron_update,
    query_update,
    value_update,
)
from attnflow.studies.cooccurrence.claims.literal import (
    BLOCKS,
    DIM,
    NEURONS,
    Point,
    all_points,
    attention,
    outputs,
    points,
)
from attnflow.studies.cooccurrence.paper import paper

OUTPUT = float(NEURONS)
"""|a|^2 of a = +-1."""

TIGHT = 1e-12
NAMES = ("U", "G", "VV", "S", "KK", "QQ")


def written_out(th: ValueMLP) -> dict[str, Any]:
    """U, G, VV, S, KK and QQ of weights, from their definitions."""
    u = th.a @ th.W
    pairs = {"VV": (th.WV, th.WV), "S": (th.WK, th.WQ), "KK": (th.WK, th.WK), "QQ": (th.WQ, th.WQ)}
    found = {name: left.T @ right for name, (left, right) in pairs.items()}
    return {"U": np.array([u @ u]), "G": u @ th.WV, **found}


def told(state: Any) -> np.ndarray:
    """What a state of the reduced or the Gram flow says of words, as one vector."""
    found = value_mlp.correlations(state)
    return np.concatenate([np.ravel(getattr(found, name)) for name in NAMES])


def flat(th: ValueMLP) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in written_out(th).values()])


def stacked(moved: Any, names: tuple[str, ...] = BLOCKS) -> np.ndarray:
    parts = moved if isinstance(moved, dict) else {name: getattr(moved, name) for name in names}
    return np.concatenate([np.ravel(parts[name]) for name in names])


@paper.claim("ours: velocities")
def velocities(study) -> Measurement:
    r"""The velocities of all weights, and of $u = W^\top a$ with the rest, are minus the gradient
    of eq. (2), with words that repeat and without."""
    names = ("u", *BLOCKS[1:])

    def weights(at: Point, dim: int = DIM) -> np.ndarray:
        return stacked(weight_flow(at.sentences, dim).velocity(at.model))

    def reduced(at: Point, rate: float = OUTPUT) -> np.ndarray:
        return stacked(reduced_flow(at.sentences, DIM, rate).velocity(at.model.reduced), names)

    def exact(at: Point) -> np.ndarray:
        return stacked({**at.moved, "u": at.moved["W"].T @ at.model.a}, names)

    wide = Control("scores divided by sqrt(4 m)", lambda at: weights(at, 4 * DIM))
    slow = Control("u at the rate of the others", lambda at: reduced(at, 1.0))
    where = all_points(study)

    def uniform(at: Point, weight: float = 1.0) -> np.ndarray:
        """Loss and velocity at infinite width."""
        X, G = at.sentences, at.model.WV[0]
        flow = value_mlp.bag_flow(X.bags, X.label, weight * X.weight)
        return np.array([flow.loss(G), *flow.velocity(G)])

    def regression(at: Point) -> np.ndarray:
        """Logistic regression on bags of words."""
        bags, G = at.X.sum(axis=2), at.model.WV[0]
        F = at.y * (bags @ G)
        pulls = at.y / (1 + np.exp(F)) / len(F)
        return np.array([np.log(1 + np.exp(-F)).mean(), *(pulls @ bags)])

    double = Control("every sample twice", lambda at: uniform(at, 2.0))
    return every(
        weights=identity(
            over=where, predicted=weights, measured=lambda at: stacked(at.moved), control=wide
        ),
        infinite=identity(over=where, predicted=uniform, measured=regression, control=double),
        reduced=identity(over=where, predicted=reduced, measured=exact, control=slow),
    )


@paper.claim("ours: order of words")
@against("a word twice for another", identity, over=all_points)
def order_of_words(study, at: Point, right: bool):
    """The output does not see the order of a sentence's words, so that Def. 2.1's random places
    do not matter; it does see which words there are."""
    th, rng = at.model, np.random.default_rng(3)
    X = at.X[:, :, rng.permutation(at.X.shape[2])]
    if not right:
        X = np.concatenate([X[:, :, 1:], X[:, :, 1:2]], axis=2)
    return at.F, outputs(X, th.W, th.WV, th.WK, th.WQ, th.a)


@paper.claim("ours: Gram velocity")
@against("u at the rate of the others", identity, over=all_points)
def gram_velocity(study, at: Point, right: bool):
    r"""$\dot U = 2|a|^2 G\cdot\phi$, $\dot G = U\phi + |a|^2 V\phi$, $\dot S = A Q + K A$ and the
    like: the system of $U$, $G$ and the four correlations is closed, at any width, also where a
    word repeats."""
    flow, th = gram_flow(at.sentences, DIM, OUTPUT if right else 1.0), at.model
    # The chain rule by a central difference, which is exact for products of two.
    ends = [
        flat(ValueMLP(**{n: getattr(th, n) + way * at.moved[n] for n in BLOCKS}, a=th.a))
        for way in (1.0, -1.0)
    ]
    return told(flow.velocity(flow.project(th))), (ends[0] - ends[1]) / 2


@paper.claim("ours: one solution")
def one_solution(study) -> Measurement:
    r"""The flow of all weights, of $u$, $W_V$, $W_K$, $W_Q$, and of the Grams end at the same
    point; $W$ follows as $W(0) + a(u - u(0))^\top/|a|^2$."""
    at = points(study)[0].repeated
    X, th = at.sentences, at.model

    def solved(flow: Any, start: Any) -> Any:
        return integrate(flow, start, 0.5, rtol=TIGHT).final

    def by_gram(frozen: bool) -> np.ndarray:
        flow = gram_flow(X, DIM, OUTPUT, frozen)
        return told(solved(flow, flow.project(th)))

    full = solved(weight_flow(X, DIM), th)
    small, frozen = (solved(reduced_flow(X, DIM, OUTPUT, f), th.reduced) for f in (False, True))
    closed, held = by_gram(False), by_gram(True)

    def neurons(state: Any) -> np.ndarray:
        return np.asarray(th.W + np.outer(th.a, state["u"] - th.reduced["u"]) / OUTPUT)

    still = "frozen attention"
    pairs = {
        "reduced": (told(small), flat(full), Control(still, told(frozen))),
        "gram": (closed, flat(full), Control(still, held)),
        "frozen": (told(frozen), held, Control("trained", closed)),
        "neurons": (neurons(small), full.W, Control(still, neurons(frozen))),
    }
    return every(
        **{
            name: equal(predicted=p, measured=m, rtol=2e-9, control=control)
            for name, (p, m, control) in pairs.items()
        }
    )


@paper.claim("ours: exact descent")
def exact_descent(study) -> Measurement:
    r"""Gradient descent, too, closes in the Gram variables: with the terms of order $\eta^2$ its
    steps are exactly those of the weights."""
    at, rate, steps = points(study)[0].repeated, 0.1, 20
    th, flow = at.model, gram_flow(at.sentences, DIM, OUTPUT)
    start = flow.project(th)
    for _ in range(steps):
        here = Point(at.sentences, th)
        moved = [u(here) for u in (neuron_update, value_update, key_update, query_update)]
        weights = {n: getattr(th, n) + rate * v for n, v in zip(BLOCKS, moved, strict=True)}
        th = ValueMLP(**weights, a=th.a)
    forward = integrate(flow, start, steps * rate, rtol=1e-8).final
    return equal(
        predicted=told(gram_descent(flow, start, rate, steps, every=steps // 4).final),
        measured=flat(th),
        rtol=1e-12,
        control=Control("the flow over the same time", told(forward)),
    )


@paper.claim("ours: conserved quantities")
def conserved_quantities(study) -> Measurement:
    r"""The flow conserves $W_KW_K^\top - W_QW_Q^\top$, $W^\top W - W_VW_V^\top$ and the part of $W$
    orthogonal to $a$; without $W$ the second is $uu^\top/|a|^2 - W_VW_V^\top$, and the Grams keep
    its scalar versions."""

    def rates(flow: Any, start: Any, moved: Any) -> list[float]:
        """The largest entry of dC/dt; a central difference is exact for quadratic C."""
        found = []
        for quantity in flow.conserved.values():
            ends = [quantity(moved(way)) for way in (1e-4, -1e-4)]
            found.append(float(np.abs(np.asarray(ends[0]) - np.asarray(ends[1])).max()) / 2e-4)
        return found

    at = points(study)[1].repeated
    th, X = at.model, at.sentences

    def weights(way: float, turned: float = 1.0) -> ValueMLP:
        signs = dict(zip(BLOCKS, (1.0, turned, 1.0, turned), strict=True))
        moved = {n: getattr(th, n) + way * signs[n] * at.moved[n] for n in BLOCKS}
        return ValueMLP(**moved, a=th.a)

    flows = weight_flow(X, DIM), reduced_flow(X, DIM, OUTPUT), gram_flow(X, DIM, OUTPUT)
    reads = (lambda w: w), (lambda w: w.reduced), flows[2].project

    def all_rates(turned: float) -> list[float]:
        return [
            r
            for flow, read in zip(flows, reads, strict=True)
            for r in rates(flow, th, lambda way, read=read: read(weights(way, turned)))
        ]

    return at_most(
        bound=1e-7,
        measured=all_rates(1.0),
        control=Control("values and queries moved backwards", all_rates(-1.0)),
        note="largest entry of dC/dt at random weights",
    )


@paper.claim("ours: what a run observes")
def what_a_run_observes(study) -> Measurement:
    r"""Losses, margins, gradient sums, values and their rates as a run records them are those of
    eq. (1) and (4) written out, from reduced weights and from Grams."""
    at = points(study)[0].repeated
    th, X, k = at.model, at.sentences, at.sentences.targets + 1
    task = study.task
    F = at.y * at.F
    g = 1 / (1 + np.exp(F))
    kinds = [X.kind == c for c in range(len(task.classes))]
    first = points(study)[1].model

    def by_hand(weights: ValueMLP) -> dict[str, Any]:
        u = weights.a @ weights.W
        there = Point(X, weights)
        G_rate = weights.a @ (there.moved["W"] @ weights.WV + weights.W @ there.moved["WV"])
        shown = min(k + 3, X.vocab)
        C = weights.WK.T @ weights.WQ - first.WK.T @ first.WQ
        C[:k, :k] = 0
        others = C.size - k * k
        moved = attention(at.X, weights.WK, weights.WQ) - attention(at.X, first.WK, first.WQ)
        exact = {n: x[..., :shown][:shown] for n, x in written_out(weights).items() if x.ndim == 2}
        return {
            "loss": np.log(1 + np.exp(-F)).mean(),
            "class_loss": np.array([np.log(1 + np.exp(-F[c])).mean() for c in kinds]),
            "class_margin": np.array([F[c].mean() for c in kinds]),
            "worst_margin": F.min(),
            "gradient_sum": np.array([g[c].sum() for c in kinds]) / len(F),
            "value": u @ weights.WV,
            "value_rate": G_rate[:k],
            "neuron_norm": u @ u,
            "score": exact["S"],
            "value_correlation": exact["VV"],
            "key_correlation": exact["KK"],
            "query_correlation": exact["QQ"],
            "softmax_change": np.abs(moved).max(),
            "random_score_change": np.array([np.abs(C).max(), np.sqrt((C**2).sum() / others)]),
        }

    flow = gram_flow(X, DIM, OUTPUT)
    states = {"reduced": (th.reduced, first.reduced)}
    states["gram"] = flow.project(th), flow.project(first)
    truth = by_hand(th)

    def recorded(state: Any, start: Any, rate: float = OUTPUT) -> np.ndarray:
        found = observables.of(observables.StateView(X, DIM, rate, start), task)
        if set(found) != set(truth):
            raise KeyError(set(found) ^ set(truth))
        return np.concatenate([np.ravel(found[name].measure(state)) for name in truth])

    measured = np.concatenate([np.ravel(x) for x in truth.values()])
    return every(
        **{
            name: equal(
                predicted=recorded(*pair),
                measured=measured,
                rtol=1e-12,
                control=Control("u at the rate of the others", recorded(*pair, 1.0)),
            )
            for name, pair in states.items()
        }
    )
