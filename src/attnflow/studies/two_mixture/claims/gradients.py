"""Appendix B: gradients of the weights, the closed system of the Gram, and what it conserves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnflow.claims import Control, Measurement, at_most, equal, every, identity
from attnflow.flows import Flow, integrate
from attnflow.flows.options import Solver
from attnflow.models.two_head import HEADS, TwoHeadClassifier, velocity, weight_flow
from attnflow.models.two_head_gram import gram_flow, infinite_width_start, self_scores
from attnflow.models.two_head_reduced import symmetric_flow
from attnflow.reduce import gram_descent
from attnflow.studies.two_mixture.claims import common
from attnflow.studies.two_mixture.claims.common import TWO, derivative, root, stacked, turned
from attnflow.studies.two_mixture.paper import paper
from attnflow.tasks.mixture import MixtureClassification, MixturePopulation

DIM, OPEN = 3, 6.0
"""A width, on which no identity depends, and a bias that keeps every gate on."""


@dataclass(frozen=True, eq=False)
class Point:
    """Random weights and a random law over a dozen samples of Def. 2.1, of a small (K, L)."""

    theta: Any  # a TwoHeadClassifier of NumPy arrays
    population: MixturePopulation

    @functools.cached_property
    def gradients(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Minus the gradients of w, WK, WQ, from the loss alone by complex steps."""
        th = [self.theta.w, self.theta.WK, self.theta.WQ]

        def along(i: int) -> np.ndarray:
            def value(x: Any) -> Any:
                w, WK, WQ = (*th[:i], x, *th[i + 1 :])
                return common.loss(w, turned(WK) @ WQ, self.population, self.theta.bias)

            return -derivative(value, th[i])

        return along(0), along(1), along(2)

    @functools.cached_property
    def factors(self) -> tuple[Any, ...]:
        """X, p, and g y sigma' times the weight of each sample, for both heads."""
        th, pop = self.theta, self.population
        p, H, f = common.forward(th.w, th.scores, pop, th.bias)
        g = 1 / (1 + np.exp(pop.label * f))
        return pop.inputs, p, pop.weight * pop.label * g * (H + th.bias > 0)

    @functools.cached_property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """H = [WK, WQ] of both heads, and its velocity."""
        pairs = (self.theta.WK, self.theta.WQ), self.gradients[1:]
        return np.concatenate(pairs[0], 2), np.concatenate(pairs[1], 2)


def points(study) -> tuple[Point, ...]:
    return _points(min(study.config.groups, 4), min(study.config.length, 5))


@functools.lru_cache(maxsize=8)
def _points(groups: int, length: int) -> tuple[Point, ...]:
    found, D = [], 2 * groups
    for seed in (21, 22):
        rng = np.random.default_rng(seed)
        pop = MixtureClassification(groups, length).sample(12, seed=seed).distinct()
        WK, WQ = 0.6 * rng.standard_normal((2, 2, DIM, D))
        theta = TwoHeadClassifier(0.5 * rng.standard_normal((2, D)), WK, WQ, 0.5)
        found.append(Point(theta, pop.reweighted(rng.uniform(0.5, 1.5, len(pop)))))
    return tuple(found)


def velocities(study, block: int, head: int, formula: Callable, control: Control) -> Measurement:
    """A formula at random points against minus the gradient of the loss there."""
    measured = lambda at: at.gradients[block][head]  # noqa: E731
    return identity(over=points(study), predicted=formula, measured=measured, control=control)


def bags(at: Point, head: int, attention: int) -> np.ndarray:
    X, p, c = at.factors
    return np.einsum("n,nkq,nka->a", c[head], p[attention], X)


@paper.claim("App B.1 (w+)")
def gradient_of_plus_neurons(study) -> Measurement:
    r"""$dw_+/dt = \mathbb E[g\,y\,\dot\sigma_+ \sum_l X p_l^{(+)}]$."""
    other = Control("the attention of the other head", lambda at: bags(at, 0, 1))
    return velocities(study, 0, 0, lambda at: bags(at, 0, 0), other)


@paper.claim("App B.1 (w-)", reading=r"$p_l^{(+)}$ stands for the head's own $p_l^{(-)}$")
def gradient_of_minus_neurons(study) -> Measurement:
    r"""$dw_-/dt = -\mathbb E[g\,y\,\dot\sigma_- \sum_l X p_l^{(-)}]$."""
    extracted = Control("as extracted", lambda at: -bags(at, 1, 0))
    return velocities(study, 0, 1, lambda at: -bags(at, 1, 1), extracted)


def spread(at: Point, centred: bool) -> np.ndarray:
    """p_lh (w^T x_h - w^T X p_l) of the plus head, sample key query."""
    X, p, _ = at.factors
    w = at.theta.w[0] @ turned(X)
    return p[0] * (w[:, :, None] - centred * np.einsum("nh,nhl->nl", w, p[0])[:, None])


@paper.claim("App B.1 (WK)")
def gradient_of_keys(study) -> Measurement:
    r"""$dW_{K+}/dt =$ $\mathbb E[g y \dot\sigma_+ \sum_l q_l p_l^\top \mathrm{diag}(w_+^\top X -
    w_+^\top X p_l) X^\top]$, and the line with $p_{lh}(1(h = h') - p_{lh'})$."""

    def last(at: Point, centred: bool = True) -> np.ndarray:
        X, _, c = at.factors
        Q = at.theta.WQ[0] @ turned(X)
        return np.einsum("n,ndl,nhl,nha->da", c[0], Q, spread(at, centred), X)

    def first(at: Point, one: float = 1.0) -> np.ndarray:
        X, (p, _), c = at.factors
        w, Q = at.theta.w[0] @ turned(X), at.theta.WQ[0] @ turned(X)
        jac = one * np.einsum("nhl,hk->nhkl", p, np.eye(X.shape[1])) - p[:, :, None] * p[:, None]
        return np.einsum("n,nh,nhkl,ndl,nka->da", c[0], w, jac, Q, X)

    mean = Control("without the mean w'X p_l", lambda at: last(at, centred=False))
    delta = Control("without 1(h = h')", lambda at: first(at, one=0.0))
    one, two = velocities(study, 1, 0, last, mean), velocities(study, 1, 0, first, delta)
    return every(last=one, first=two)


@paper.claim("App B.1 (WQ)")
def gradient_of_queries(study) -> Measurement:
    r"""$dW_{Q+}/dt =$ $\mathbb E[g y \dot\sigma_+ \sum_l K_+ \mathrm{diag}(X^\top w_+ -
    w_+^\top X p_l) p_l x_l^\top]$."""

    def formula(at: Point, centred: bool = True) -> np.ndarray:
        X, _, c = at.factors
        K = at.theta.WK[0] @ turned(X)
        return np.einsum("n,ndh,nhl,nla->da", c[0], K, spread(at, centred), X)

    mean = Control("without the mean w'X p_l", lambda at: formula(at, centred=False))
    return velocities(study, 2, 0, formula, mean)


@paper.claim("App B.2 (system)")
def closed_system(study) -> Measurement:
    r"""$w^\top\mu$, $\nu^\top W_K^\top W_Q\mu$, $\nu^\top W_K^\top W_K\mu$ and
    $\nu^\top W_Q^\top W_Q\mu$ move as the four displays say: only these variables occur in them."""

    def by_weights(at: Point) -> np.ndarray:
        H, dH = at.columns
        return np.r_[at.gradients[0].ravel(), (turned(dH) @ H + turned(H) @ dH).ravel()]

    def closed(at: Point, turn: bool = False) -> np.ndarray:
        th = at.theta
        S, A, B = (np.asarray(x) for x in (th.scores, th.key_scores, th.query_scores))
        dw, M = common.force(th.w, S, at.population, th.bias)
        rate = common.gram_rates(S, A, B, turned(M) if turn else M)
        return np.r_[dw.ravel(), stacked(rate["A"], rate["S"], rate["B"]).ravel()]

    turn = Control("key and query of M exchanged", lambda at: closed(at, turn=True))
    return identity(over=points(study), predicted=closed, measured=by_weights, control=turn)


@paper.claim("Sec 5.2 (36 variables)")
def number_of_variables(study) -> Measurement:
    """At K = 2 the dynamical system of a head has 16 + 10 + 10 = 36 variables."""
    WK, WQ = np.random.default_rng(3).standard_normal((2, 60, 8, 4))
    S, A, B = turned(WK) @ WQ, turned(WK) @ WK, turned(WQ) @ WQ

    def rank(*blocks: np.ndarray) -> int:
        """How many of these numbers are independent, over random weights."""
        return int(np.linalg.matrix_rank(np.concatenate([b.reshape(60, -1) for b in blocks], 1)))

    twice = Control("the vector as extracted, scores twice", measured=rank(S, S, B))
    return equal(predicted=16 + 10 + 10, measured=rank(S, A, B), rtol=0.0, control=twice)


# --- Ours: the flows of the package, and what the Gram system has beside.


@paper.claim("ours: the flow of the weights")
def flow_of_the_weights(study) -> Measurement:
    """The velocity of all weights is minus the gradient of the loss."""

    def flat(*parts: Any) -> np.ndarray:
        return np.concatenate([np.ravel(x) for x in parts])

    def moved(at: Point, gates: Any = None) -> np.ndarray:
        v = velocity(at.theta, at.population, None, gates)
        return flat(v.w, v.WK, v.WQ)

    on = Control("all gates on", lambda at: moved(at, np.ones((2, len(at.population)))))
    told = lambda at: flat(*at.gradients)  # noqa: E731
    return identity(over=points(study), predicted=moved, measured=told, control=on)


@paper.claim("ours: gradient descent closes in the Gram")
def descent_closes(study) -> Measurement:
    r"""One step of descent on the weights is $G \leftarrow (I + \eta N) G (I + \eta N)$ per head;
    at infinite width it also closes in the two sectors of the groups, for every K."""
    b, lr, steps, K = study.config.bias, 0.1, 40, min(study.config.groups, 3)
    task = MixtureClassification(K, min(study.config.length, 4))
    start = TwoHeadClassifier.gaussian(K, DIM, 0.8, bias=b, neurons=0.3, seed=2)
    flow, ten = gram_flow(task.population, b), symmetric_flow(task.orbits, 0.8, b)
    exact = gram_descent(flow, flow.project(start), lr, steps, every=steps).final
    th = start
    for _ in range(steps):
        dw, M = common.force(th.w, th.scores, task.population, b)
        moved = (th.w + lr * dw, th.WK + lr * th.WQ @ turned(M), th.WQ + lr * th.WK @ M)
        th = TwoHeadClassifier(*moved, b)
    rows = gram_descent(ten.gram, ten.gram.start, 1.0, steps, keep=ten.of_gram).rows
    old, few = (ten.lift({k: x[i] for k, x in rows.items()}) for i in (-2, -1))
    many = gram_descent(flow, infinite_width_start(K, 0.8), 1.0, steps, every=steps).final
    full = np.r_[both(many)[:, : 2 * K, 2 * K :].ravel(), many["rest"]["w"].ravel()]
    few, old = (np.r_[x["S"].ravel(), x["w"].ravel()] for x in (few, old))
    euler = Control("Euler steps of G', without lr^2 N G N", euler_steps(start, task, lr, steps))
    less = Control("one step less", measured=old)
    return every(
        weights=equal(predicted=gram(th), measured=both(exact), rtol=1e-12, control=euler),
        sectors=equal(predicted=full, measured=few, rtol=1e-11, control=less),
    )


def euler_steps(th: Any, task: MixtureClassification, lr: float, steps: int) -> np.ndarray:
    """The Gram after steps of its own velocity."""
    G, w, D = gram(th), th.w, task.dimension
    for _ in range(steps):
        dw, M = common.force(w, G[:, :D, D:], task.population, th.bias)
        w, N = w + lr * dw, sides(M)
        G = G + lr * (N @ G + G @ N)
    return G


@paper.claim("ours: momentum closes in the Gram")
def momentum_closes(study) -> Measurement:
    """Steps with momentum, plain and Nesterov's, have the Gram of the same steps of the weights."""
    flow, lr, mu, steps = gram_flow(TWO.population, OPEN), 0.05, 0.6, 30
    start: Any = open_start()

    def stepped(nesterov: bool) -> np.ndarray:
        th, v = [start.w, start.WK, start.WQ], [0.0, 0.0, 0.0]
        for _ in range(steps):
            dw, M = common.force(th[0], turned(th[1]) @ th[2], TWO.population, OPEN)
            moved = dw, th[2] @ turned(M), th[1] @ M
            v = [mu * x + y for x, y in zip(v, moved, strict=True)]
            ahead = [y + mu * x for x, y in zip(v, moved, strict=True)] if nesterov else v
            th = [x + lr * y for x, y in zip(th, ahead, strict=True)]
        w, WK, WQ = th
        return np.r_[w.ravel(), gram(TwoHeadClassifier(w, WK, WQ, OPEN)).ravel()]

    def found(nesterov: bool) -> np.ndarray:
        how: Any = {"momentum": mu, "nesterov": nesterov, "every": steps}
        end = gram_descent(flow, flow.project(start), lr, steps, **how).final
        return np.r_[end["rest"]["w"].ravel(), both(end).ravel()]

    kinds, other = (False, True), Control("of the other kind", lambda kind: stepped(not kind))
    return identity(over=kinds, predicted=stepped, measured=found, control=other)


@paper.claim("ours: descent departs from the flow at order lr")
def departs_at_first_order(study) -> Measurement:
    r"""After the same time descent and flow differ by $\eta e + O(\eta^2)$ with
    $e' = J e - \frac12 J v$, $v$ the velocity of the weights and $J$ its derivative."""
    start, flow = open_start(), gram_flow(TWO.population, OPEN)

    def field(th: Any) -> list[Any]:
        dw, M = common.force(th[0], turned(th[1]) @ th[2], TWO.population, OPEN)
        return [dw, th[2] @ turned(M), th[1] @ M]

    def along(state: dict[str, Any], out: dict[str, Any] | None = None) -> dict[str, Any]:
        """(theta, e)': J acts by a complex step."""
        (th, e), h = ([state[f"{k}{i}"] for i in range(3)] for k in "te"), 1e-150
        v = field(th)
        ahead = field([x + 1j * h * (y - z / 2) for x, y, z in zip(th, e, v, strict=True)])
        moved = {f"t{i}": v[i] for i in range(3)} | {f"e{i}": ahead[i].imag / h for i in range(3)}
        for k, x in (out or {}).items():
            x[:] = moved[k]
        return out or moved

    first = {f"t{i}": x for i, x in enumerate((start.w, start.WK, start.WQ))}
    zero = {f"e{i}": np.zeros_like(x) for i, x in enumerate(first.values())}
    end = solved(Flow(velocity=along, host=True), first | zero, 1.0, 1e-11).final
    H, dH = (np.concatenate([end[f"{k}1"], end[f"{k}2"]], axis=2) for k in "te")

    def gap(lr: float, euler: bool) -> np.ndarray:
        steps = round(1 / lr)
        descent = gram_descent(flow, flow.project(start), lr, steps, every=steps)
        G = euler_steps(start, TWO, lr, steps) if euler else both(descent.final)
        return (G - turned(H) @ H) / lr

    def limit(euler: bool = False) -> np.ndarray:
        """To lr = 0, without its first two powers."""
        a, b, c = (gap(lr, euler) for lr in (0.02, 0.01, 0.005))
        return (a - 6 * b + 8 * c) / 3

    term = Control("Euler steps of G', without lr^2 N G N", measured=limit(euler=True))
    e = turned(dH) @ H + turned(H) @ dH
    return equal(predicted=e, measured=limit(), rtol=1e-7, control=term)


def weights_of(w: np.ndarray, S: np.ndarray, omega: float, bias: float) -> TwoHeadClassifier:
    """Weights with these scores and the self-scores of the infinite width."""
    A, B = root(omega**4, S @ turned(S)), root(omega**4, turned(S) @ S)
    H, D = root(0.0, stacked(A, S, B)), S.shape[-1]
    return TwoHeadClassifier(w, H[..., :D], H[..., D:], bias)


def gram(th: Any) -> np.ndarray:
    H = np.concatenate([th.WK, th.WQ], axis=2)
    return turned(H) @ H


def both(state: Any) -> np.ndarray:
    return np.stack([state["gram"][head].matrix for head in HEADS])


def sides(M: np.ndarray) -> np.ndarray:
    """N = [[0, M], [M^T, 0]]."""
    return stacked(0 * M, M, 0 * M)


def open_start() -> TwoHeadClassifier:
    return TwoHeadClassifier.gaussian(2, DIM, 0.9, bias=OPEN, neurons=1.0, seed=4)


def solved(flow: Any, start: Any, until: float, rtol: float) -> Any:
    solver = Solver("scipy", "dop853", atol=rtol / 10)
    return integrate(flow, start, until, rtol=rtol, save=[0.0], solver=solver, progress=False)


@paper.once
def ends(frozen: bool) -> tuple[Any, Any]:
    """Both ends of the joint flow of random weights at K = 2, to t = 10; queries may be frozen."""
    field = lambda th, out=None: velocity(th, TWO.population, out)  # noqa: E731
    still = Flow(velocity=field, rates={"WQ": 0.0}, host=True)
    flow = still if frozen else weight_flow(TWO.population)
    return open_start(), solved(flow, open_start(), 10.0, 1e-9).final


@paper.claim("ours: WK WK^T - WQ WQ^T is conserved")
def key_query_balance(study) -> Measurement:
    r"""Along the joint flow $W_K W_K^\top - W_Q W_Q^\top$ of each head stays what it was."""

    def drift(frozen: bool) -> float:
        first, last = (th.WK @ turned(th.WK) - th.WQ @ turned(th.WQ) for th in ends(frozen))
        return float(np.abs(last - first).max())

    still = Control("with frozen queries", drift(True))
    return at_most(bound=1e-10, measured=drift(False), control=still)


@paper.claim("ours: Lax pair of the Gram")
def lax_pair(study) -> Measurement:
    r"""With $J = \mathrm{diag}(I, -I)$: $d(JG)/dt = [JG, N]$, so its spectrum is constant."""

    def J(D: int, sign: float = -1.0) -> np.ndarray:
        return np.diag(np.r_[np.ones(D), sign * np.ones(D)])

    def pair(at: Point, way: float = -1.0) -> np.ndarray:
        JG, th = J(at.population.dimension) @ gram(at.theta), at.theta
        N = sides(common.force(th.w, th.scores, at.population, th.bias)[1])
        return JG @ N + way * N @ JG

    def moved(at: Point) -> np.ndarray:
        H, dH = at.columns
        return J(at.population.dimension) @ (turned(dH) @ H + turned(H) @ dH)

    def traces(end: int, sign: float = -1.0) -> np.ndarray:
        """tr (JG)^k, k = 1, 2, 3."""
        X = J(4, sign) @ gram(ends(False)[end])
        return np.array([np.trace(np.linalg.matrix_power(x, k)) for x in X for k in (1, 2, 3)])

    other = Control("the anticommutator", lambda at: pair(at, way=1.0))
    plain = Control("G without J", predicted=traces(0, 1.0), measured=traces(1, 1.0))
    return every(
        pair=identity(over=points(study), predicted=pair, measured=moved, control=other),
        spectrum=equal(predicted=traces(0), measured=traces(1), rtol=1e-9, control=plain),
    )


@paper.claim("ours: self-scores are square roots")
def square_roots(study) -> Measurement:
    r"""At infinite width $(JG)^2 = \omega^4 I$ for all t: $A = (\omega^4 I + S S^\top)^{1/2}$,
    $B = (\omega^4 I + S^\top S)^{1/2}$; 16 variables carry the 36."""
    flow, start = gram_flow(TWO.population, 0.5), infinite_width_start(2, 0.4)
    G = both(solved(flow, start, 60.0, 1e-10).final)
    S, found = G[:, :4, 4:], np.stack([G[:, :4, :4], G[:, 4:, 4:]])
    turn = Control("S^T S and S S^T exchanged", np.stack(self_scores(turned(S), 0.4)))
    return equal(predicted=np.stack(self_scores(S, 0.4)), measured=found, rtol=1e-10, control=turn)


@paper.claim("ours: ten variables for every K and L")
def ten_variables(study) -> Measurement:
    """At infinite width the symmetric states form an invariant set of ten numbers (gamma, a and two
    2 x 2 score blocks) for every K and L; losses, powers and gates are functions of them."""
    c, omega = study.config, 0.3
    own = MixtureClassification(c.groups, c.length)
    pairs = {(2, 3), (3, 4), (4, 3), (8, 3), (c.groups, min(c.length, 8 if own.count < 1e4 else 3))}

    def gaps(K: int, L: int, moved: float = 0.0) -> float:
        """The largest relative difference to the loss written out and its forces."""
        task = MixtureClassification(K, L)
        ten, pop = symmetric_flow(task.orbits, omega, c.bias), task.population
        state = ten.sample(np.random.default_rng(K + 10 * L), ten.start)
        theta = ten.lift(state)
        back, up = ten.project(theta), ten.lift(ten.flow.velocity(state))
        theta["S"][0, 0, -1] += moved
        S, x = theta["S"], common.written(theta["w"], theta["S"], omega, pop, c.bias)
        where = [pop.names().index(name) for name in ten.population.names()]
        compared = [
            (x.dw, up["w"]),
            (x.dS, up["S"]),
            (x.loss, ten.loss_of(state)),
            (x.given, ten.group_losses(state)),
            (x.height[:, where], ten.gate_values(state)),
            (x.power, ten.powers(state)),
            (S[0, 0, K], ten.score(state, "c", "v")),
            (S[0, K, 1], ten.score(state, "v", "c", False)),
            *((state[k], back[k]) for k in state),
        ]
        return max(float(np.abs(np.subtract(x, y)).max() / np.abs(x).max()) for x, y in compared)

    broken = Control("one score moved by a millionth", [gaps(K, L, 1e-6) for K, L in sorted(pairs)])
    return at_most(bound=1e-11, measured=[gaps(*pair) for pair in sorted(pairs)], control=broken)
